//! Commands on the connection itself: `PING`, `HELLO`, `AUTH` and others.

use crate::command::{InMulti, database};
use crate::commands::clients;
use crate::error::CommandError;
use crate::parse::{Arg, integer, is};
use crate::reply::REDIS_VERSION;
use crate::reply::{Out, Protocol};
use crate::session::{Context, Done, Flow, Replies, SessionCommand};
use std::time::Duration;

/// The commands.
pub const COMMANDS: &[SessionCommand] = &[
    SessionCommand::new("ping", -1, &["fast", "connection"], ping).while_subscribed(),
    SessionCommand::new("echo", 2, &["fast", "connection"], echo),
    SessionCommand::new("quit", -1, &["fast", "connection"], quit)
        .before_auth()
        .while_subscribed()
        .in_multi(InMulti::Now),
    SessionCommand::new("reset", 1, &["fast", "connection"], reset)
        .before_auth()
        .while_subscribed()
        .in_multi(InMulti::Now),
    SessionCommand::new("select", 2, &["fast", "connection"], select),
    SessionCommand::new("hello", -1, &["fast", "connection"], hello)
        .before_auth()
        .in_multi(InMulti::Refused),
    SessionCommand::new("auth", -2, &["fast", "connection"], auth)
        .before_auth()
        .in_multi(InMulti::Refused),
];

fn ping(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let text = match args {
        [_] => None,
        [_, text] => Some(*text),
        _ => return Err(CommandError::arity("ping")),
    };
    let session = &context.session;
    if session.is_subscribed() && session.protocol == Protocol::Resp2 {
        out.array(2);
        out.bulk(b"pong");
        out.bulk(text.unwrap_or_default());
    } else {
        match text {
            Some(text) => out.bulk(text),
            None => out.status("PONG"),
        }
    }
    Ok(Flow::Go)
}

fn echo(_: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    out.bulk(args.get(1).copied().unwrap_or_default());
    Ok(Flow::Go)
}

fn quit(_: &mut Context<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    out.status("OK");
    Ok(Flow::Close)
}

fn reset(context: &mut Context<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let Context { server, session } = context;
    session.discard();
    session.unsubscribe_all(server);
    session.db = 0;
    session.protocol = Protocol::Resp2;
    session.client.set_protocol(Protocol::Resp2);
    session.replies = Replies::On;
    session.client.account.set_exempt(false);
    session.current.user = server.default_user();
    session.authenticated = session.current.user.on && session.current.user.nopass;
    let mut names = session.client.names();
    names.name.clear();
    names.user.clone_from(&session.current.user.name);
    out.status("RESET");
    Ok(Flow::Go)
}

fn select(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    context.session.db = database(args.get(1).copied().unwrap_or_default())?;
    out.status("OK");
    Ok(Flow::Go)
}

/// Logs in. After a wrong password it returns how long the reply that says so has to wait.
fn log_in(context: &mut Context<'_>, name: Arg<'_>, password: Arg<'_>) -> Result<(), Duration> {
    let Context { server, session } = context;
    session.current.user = server.log_in(&session.client, name, password)?;
    session.authenticated = true;
    Ok(())
}

/// Replies to a wrong password, once its time has come.
fn wrong_password(after: Duration, out: &mut Out<'_>) -> Flow {
    out.error("WRONGPASS invalid username-password pair or user is disabled.");
    if after.is_zero() {
        Flow::Go
    } else {
        Flow::Sleep(after)
    }
}

fn auth(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let logged_in = match args {
        [_, password] => {
            if context.server.default_user().nopass {
                return Err(CommandError::reply(
                    "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
                ));
            }
            log_in(context, b"default", password)
        }
        [_, name, password] => log_in(context, name, password),
        _ => return Err(CommandError::syntax()),
    };
    if let Err(after) = logged_in {
        return Ok(wrong_password(after, out));
    }
    out.status("OK");
    Ok(Flow::Go)
}

fn hello(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let mut protocol = context.session.protocol;
    if let Some(version) = args.get(1) {
        protocol = match integer(version) {
            Ok(2) => Protocol::Resp2,
            Ok(3) => Protocol::Resp3,
            Ok(_) => return Err(CommandError::reply("NOPROTO unsupported protocol version")),
            Err(_) => {
                return Err(CommandError::reply(
                    "ERR Protocol version is not an integer or out of range",
                ));
            }
        };
    }
    let mut rest = args.get(2..).unwrap_or_default();
    let (mut login, mut name) = (None, None);
    loop {
        match rest {
            [] => break,
            [word, user, password, after @ ..] if is(word, "auth") => {
                login = Some((*user, *password));
                rest = after;
            }
            [word, to, after @ ..] if is(word, "setname") => {
                clients::check_name(to, "Client names")?;
                name = Some(String::from_utf8_lossy(to).into_owned());
                rest = after;
            }
            [word, ..] => {
                let word = String::from_utf8_lossy(word);
                return Err(CommandError::reply(format!(
                    "ERR Syntax error in HELLO option '{word}'"
                )));
            }
        }
    }
    if let Some((user, password)) = login
        && let Err(after) = log_in(context, user, password)
    {
        return Ok(wrong_password(after, out));
    }
    let session = &mut context.session;
    if !session.authenticated {
        return Err(CommandError::reply(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        session.client.names().name = name;
    }
    session.protocol = protocol;
    session.client.set_protocol(protocol);
    out.set_protocol(protocol);
    out.map(7);
    for (field, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"proto");
    out.integer(if protocol == Protocol::Resp3 { 3 } else { 2 });
    out.bulk(b"id");
    out.integer(session.client.id as i64);
    for (field, value) in [("mode", "standalone"), ("role", "master")] {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"modules");
    out.array(0);
    Ok(Flow::Go)
}
