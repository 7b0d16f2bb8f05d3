//! `SUBSCRIBE`, `PUBLISH` and what belongs to them.

use super::{Context, Done, Flow, Session, SessionCommand, subcommand};
use crate::budget::Part;
use crate::command::{Arg, Failed};
use crate::reply::Out;
use crate::server::Server;
use std::sync::atomic::Ordering;

pub(super) const COMMANDS: &[SessionCommand] = &[
    SessionCommand::new("subscribe", -2, &["pubsub", "slow"], subscribe).while_subscribed(),
    SessionCommand::new("psubscribe", -2, &["pubsub", "slow"], psubscribe).while_subscribed(),
    SessionCommand::new("unsubscribe", -1, &["pubsub", "slow"], unsubscribe).while_subscribed(),
    SessionCommand::new("punsubscribe", -1, &["pubsub", "slow"], punsubscribe).while_subscribed(),
    SessionCommand::new("publish", 3, &["pubsub", "fast"], publish),
    SessionCommand::new("pubsub", -2, &["pubsub", "slow"], pubsub),
];

impl Session {
    fn count(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    fn note_subscriptions(&self) {
        // ORDERING: Relaxed; shown only.
        self.client
            .channels
            .store(self.channels.len(), Ordering::Relaxed);
        self.client
            .patterns
            .store(self.patterns.len(), Ordering::Relaxed);
        self.hold_names();
    }

    /// Counts the memory that names take: here and with all subscriptions, each time with what that needs besides.
    fn hold_names(&self) {
        let held = 2 * (self.names + 100 * self.count());
        self.client.hold(Part::Names, held);
    }

    /// It listens to nothing any more.
    pub(super) fn unsubscribe_all(&mut self, server: &Server) {
        for name in std::mem::take(&mut self.channels) {
            server.pubsub.unsubscribe(&name, false, self.client.id);
        }
        for name in std::mem::take(&mut self.patterns) {
            server.pubsub.unsubscribe(&name, true, self.client.id);
        }
        self.names = 0;
        self.note_subscriptions();
    }
}

/// Bytes of a channel's name, or of a pattern.
const NAME_MOST: usize = 64 << 10;
/// Longer names are matched with patterns where other connections do not wait for it.
const NAME_LONG: usize = 1 << 10;

fn check_name(name: Arg<'_>) -> Result<(), Failed> {
    if name.len() > NAME_MOST {
        return Err(Failed::reply(format!(
            "ERR a channel's name or pattern of {} bytes: at most {NAME_MOST} are possible",
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
        confirm(out, what, Some(name), session.count());
    }
    session.note_subscriptions();
    // Whoever has taken the right away meanwhile may have come too early to find this connection.
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
    // What it was sent comes before what ends it.
    let mut pending = Vec::new();
    session.client.take_pending(&mut pending);
    out.raw(&pending);
    if asked.is_empty() {
        confirm(out, what, None, session.count());
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
        confirm(out, what, Some(&name), session.count());
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
        return Err(Failed::arity("publish"));
    };
    check_name(channel)?;
    // Who gets the message may look at what was written before it.
    context.settle()?;
    let limit = context.session.settings.client_output_buffer_limit;
    let pubsub = &context.server.pubsub;
    let told = if channel.len() > NAME_LONG {
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
        ("channels" | "numpat", _) => return Err(Failed::arity(&format!("pubsub|{lower}"))),
        _ => return Err(Failed::unknown_subcommand("pubsub", word)),
    }
    Ok(Flow::Go)
}
