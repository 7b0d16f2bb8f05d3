//! `SUBSCRIBE`, `PUBLISH` and their relatives.

use crate::command::{ChannelArgs, HelpLine};
use crate::error::CommandError;
use crate::parse::Arg;
use crate::reply::Out;
use crate::session::{Context, Done, Flow, SessionCommand, SessionFn, subcommand};

const PUBSUB_HELP: &[HelpLine] = &[
    (
        "CHANNELS [<pattern>]",
        "List the channels that have subscribers.",
    ),
    (
        "NUMPAT",
        "Return the number of patterns that have subscribers.",
    ),
    (
        "NUMSUB [<channel> ...]",
        "Return the number of subscribers of each channel.",
    ),
];

const fn channels(mut command: SessionCommand, channels: ChannelArgs) -> SessionCommand {
    command.spec.channels = channels;
    command
}

const fn subscription(name: &'static str, arity: i32, run: SessionFn) -> SessionCommand {
    SessionCommand::new(name, arity, &["pubsub", "slow"], run).while_subscribed()
}

/// The commands.
pub const COMMANDS: &[SessionCommand] = &[
    channels(subscription("subscribe", -2, subscribe), ChannelArgs::All),
    channels(
        subscription("psubscribe", -2, psubscribe),
        ChannelArgs::AllPatterns,
    ),
    subscription("unsubscribe", -1, unsubscribe),
    subscription("punsubscribe", -1, punsubscribe),
    channels(
        SessionCommand::new("publish", 3, &["pubsub", "fast"], publish),
        ChannelArgs::First,
    ),
    SessionCommand::new("pubsub", -2, &["pubsub", "slow"], pubsub).help(PUBSUB_HELP),
];

/// The longest name of a channel, or pattern, in bytes.
const MAX_NAME: usize = 64 << 10;
/// Longer names are matched with patterns where other connections do not wait.
const LONG_NAME: usize = 1 << 10;

pub(super) fn check_name(name: Arg<'_>) -> Result<(), CommandError> {
    if name.len() > MAX_NAME {
        return Err(CommandError::reply(format!(
            "ERR a channel's name or pattern of {} bytes: at most {MAX_NAME} are possible",
            name.len()
        )));
    }
    Ok(())
}

fn confirm(out: &mut Out<'_>, what: &str, name: Option<&[u8]>, count: usize) {
    out.push(3);
    out.bulk(what.as_bytes());
    out.maybe_bulk(name);
    out.integer(count as i64);
}

fn enter(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>, is_pattern: bool) -> Done {
    let Context { server, session } = context;
    let what = if is_pattern {
        "psubscribe"
    } else {
        "subscribe"
    };
    args.iter().skip(1).try_for_each(|name| check_name(name))?;
    for name in args.iter().skip(1) {
        let names = if is_pattern {
            &mut session.patterns
        } else {
            &mut session.channels
        };
        if names.insert(name.to_vec()) {
            session.names += name.len();
            session.hold_names();
            if session.client.is_evicted() {
                return Ok(Flow::Close);
            }
            server.pubsub.subscribe(name, is_pattern, &session.client);
        }
        confirm(out, what, Some(name), session.subscriptions());
    }
    session.note_subscriptions();
    // If the right was withdrawn meanwhile, this connection may not have been found then.
    if !session.renew_user(server) {
        return Ok(Flow::Close);
    }
    Ok(Flow::Go)
}

fn leave(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>, is_pattern: bool) -> Done {
    let Context { server, session } = context;
    let what = if is_pattern {
        "punsubscribe"
    } else {
        "unsubscribe"
    };
    let names = if is_pattern {
        &session.patterns
    } else {
        &session.channels
    };
    let asked: Vec<Vec<u8>> = match args.get(1..) {
        Some([]) | None => names.iter().cloned().collect(),
        Some(asked) => asked.iter().map(|name| name.to_vec()).collect(),
    };
    // Messages that were sent to it come before the end of the subscription.
    let mut pending = Vec::new();
    session.client.account.take_messages(&mut pending);
    out.raw(&pending);
    if asked.is_empty() {
        confirm(out, what, None, session.subscriptions());
    }
    for name in asked {
        let names = if is_pattern {
            &mut session.patterns
        } else {
            &mut session.channels
        };
        if names.remove(&name) {
            session.names = session.names.saturating_sub(name.len());
            server
                .pubsub
                .unsubscribe(&name, is_pattern, session.client.id);
        }
        confirm(out, what, Some(&name), session.subscriptions());
    }
    session.note_subscriptions();
    Ok(Flow::Go)
}

fn subscribe(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    enter(context, args, out, false)
}

fn psubscribe(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    enter(context, args, out, true)
}

fn unsubscribe(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    leave(context, args, out, false)
}

fn punsubscribe(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    leave(context, args, out, true)
}

fn publish(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let [_, channel, message] = args else {
        return Err(CommandError::arity("publish"));
    };
    check_name(channel)?;
    // Receivers of the message may read what was written before it.
    context.settle()?;
    let limit = context.session.current.settings.client_output_buffer_limit;
    let pubsub = &context.server.pubsub;
    let told = if channel.len() > LONG_NAME {
        tokio::task::block_in_place(|| pubsub.publish(channel, message, limit))
    } else {
        pubsub.publish(channel, message, limit)
    };
    out.integer(told as i64);
    Ok(Flow::Go)
}

fn pubsub(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let (word, lower, rest) = subcommand(args);
    let pubsub = &context.server.pubsub;
    match (lower.as_str(), rest) {
        ("channels", [] | [_]) => {
            let pattern = rest.first().copied().unwrap_or(b"*");
            check_name(pattern)?;
            let channels = pubsub.channels(pattern);
            out.array(channels.len());
            channels.iter().for_each(|channel| out.bulk(channel));
        }
        ("numsub", channels) => {
            out.array(2 * channels.len());
            for channel in channels {
                out.bulk(channel);
                out.integer(pubsub.listeners(channel) as i64);
            }
        }
        ("numpat", []) => out.integer(pubsub.counts().1 as i64),
        ("channels" | "numpat", _) => return Err(CommandError::arity(&format!("pubsub|{lower}"))),
        _ => return Err(CommandError::unknown_subcommand("pubsub", word)),
    }
    Ok(Flow::Go)
}
