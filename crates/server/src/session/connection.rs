//! Commands on the connection itself: `PING`, `HELLO`, `AUTH`, `CLIENT` ...

use super::{Context, Done, Flow, InMulti, Replies, SessionCommand, default_user, subcommand};
use crate::client::Client;
use crate::command::{Arg, Failed, integer, is};
use crate::data::keys::database;
use crate::reply::{Out, Protocol};
use crate::server::REDIS_VERSION;
use crate::table::add;
use std::sync::Arc;

/// Bytes of a user's name that are logged when the password was wrong.
const LOGGED_MOST: usize = 64;
/// Bytes of a name that a client gives itself, or its library.
const NAME_MOST: usize = 1 << 10;

pub(super) const COMMANDS: &[SessionCommand] = &[
    SessionCommand::new("ping", -1, &["fast", "connection"], ping).while_subscribed(),
    SessionCommand::new("echo", 2, &["fast", "connection"], echo),
    SessionCommand::new("quit", -1, &["fast", "connection"], quit)
        .for_strangers()
        .while_subscribed()
        .in_multi(InMulti::Now),
    SessionCommand::new("reset", 1, &["fast", "connection"], reset)
        .for_strangers()
        .while_subscribed()
        .in_multi(InMulti::Now),
    SessionCommand::new("select", 2, &["fast", "connection"], select),
    SessionCommand::new("hello", -1, &["fast", "connection"], hello)
        .for_strangers()
        .in_multi(InMulti::Refused),
    SessionCommand::new("auth", -2, &["fast", "connection"], auth)
        .for_strangers()
        .in_multi(InMulti::Refused),
    SessionCommand::new("client", -2, &["slow", "connection"], client),
];

/// Whether this is what a web page makes a browser send to a server on its machine: the first words of HTTP, which an inline
/// command may follow.
pub(super) fn is_http(name: Arg<'_>) -> bool {
    is(name, "post") || is(name, "host:")
}

fn ping(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let text = match args {
        [_] => None,
        [_, text] => Some(*text),
        _ => return Err(Failed::arity("ping")),
    };
    let session = &context.session;
    let listens = !session.channels.is_empty() || !session.patterns.is_empty();
    if listens && session.protocol == Protocol::Resp2 {
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
    session.client.held.set_stays(false);
    session.user = default_user(server);
    session.known = session.user.on && session.user.nopass;
    let mut names = session.client.names();
    names.name.clear();
    names.user.clone_from(&session.user.name);
    out.status("RESET");
    Ok(Flow::Go)
}

fn select(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    context.session.db = database(args.get(1).copied().unwrap_or_default())?;
    out.status("OK");
    Ok(Flow::Go)
}

fn log_in(context: &mut Context<'_>, name: Arg<'_>, password: Arg<'_>) -> Result<(), Failed> {
    let Context { server, session } = context;
    let user = server.users.get(name);
    let user = user.filter(|user| user.on && user.knows(password));
    let Some(user) = user else {
        add(&server.stats.denied, 1);
        let address = &session.client.address;
        // Anybody may send anything here: it is not to fill the log, nor to make up lines of it.
        let shown = name.get(..LOGGED_MOST).unwrap_or(name).escape_ascii();
        tracing::warn!(client = %address, user = %shown, "wrong password");
        return Err(Failed::reply(
            "WRONGPASS invalid username-password pair or user is disabled.",
        ));
    };
    session.client.names().user.clone_from(&user.name);
    session.user = user;
    session.known = true;
    Ok(())
}

fn auth(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    match args {
        [_, password] => {
            if default_user(context.server).nopass {
                return Err(Failed::reply(
                    "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
                ));
            }
            log_in(context, b"default", password)?;
        }
        [_, name, password] => log_in(context, name, password)?,
        _ => return Err(Failed::syntax()),
    }
    out.status("OK");
    Ok(Flow::Go)
}

/// Checks a name that a client gives itself; `what` is its title in the error.
fn check_name(name: Arg<'_>, what: &str) -> Result<(), Failed> {
    if name.len() > NAME_MOST {
        return Err(Failed::reply(format!(
            "ERR {what} cannot be longer than {NAME_MOST} bytes."
        )));
    }
    if !name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Err(Failed::reply(format!(
            "ERR {what} cannot contain spaces, newlines or special characters."
        )));
    }
    Ok(())
}

fn hello(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let mut protocol = context.session.protocol;
    if let Some(version) = args.get(1) {
        protocol = match integer(version) {
            Ok(2) => Protocol::Resp2,
            Ok(3) => Protocol::Resp3,
            Ok(_) => return Err(Failed::reply("NOPROTO unsupported protocol version")),
            Err(_) => {
                return Err(Failed::reply(
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
                check_name(to, "Client names")?;
                name = Some(String::from_utf8_lossy(to).into_owned());
                rest = after;
            }
            [word, ..] => {
                let word = String::from_utf8_lossy(word);
                return Err(Failed::reply(format!(
                    "ERR Syntax error in HELLO option '{word}'"
                )));
            }
        }
    }
    if let Some((user, password)) = login {
        log_in(context, user, password)?;
    }
    let session = &mut context.session;
    if !session.known {
        return Err(Failed::reply(
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

/// Its subcommands.
pub(super) const OF_CLIENT: &[&str] = &[
    "id", "getname", "setname", "setinfo", "info", "list", "kill", "reply", "no-evict", "unblock",
];

fn client(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let (word, lower, rest) = subcommand(args);
    let wrong = || Failed::arity(&format!("client|{lower}"));
    let own = Arc::clone(&context.session.client);
    match (lower.as_str(), rest) {
        ("id", []) => out.integer(own.id as i64),
        ("getname", []) => match own.names().name.as_str() {
            "" => out.null(),
            name => out.bulk(name.as_bytes()),
        },
        ("setname", [name]) => {
            check_name(name, "Client names")?;
            own.names().name = String::from_utf8_lossy(name).into_owned();
            out.status("OK");
        }
        ("setinfo", [field, value]) => {
            let mut known = ["lib-name", "lib-ver"].into_iter();
            if let Some(field) = known.find(|known| is(field, known)) {
                check_name(value, field)?;
            }
            let value = String::from_utf8_lossy(value).into_owned();
            if is(field, "lib-name") {
                own.names().library = value;
            } else if is(field, "lib-ver") {
                own.names().version = value;
            } else {
                let field = String::from_utf8_lossy(field);
                return Err(Failed::reply(format!("ERR Unrecognized option '{field}'")));
            }
            out.status("OK");
        }
        ("info", []) => {
            context.session.end_batch();
            out.verbatim(&format!("{}\n", own.line()));
        }
        ("list", rest) => list(context, rest, out)?,
        ("kill", [_, ..]) => return kill(context, rest, out),
        ("reply", [mode]) => {
            let replies = &mut context.session.replies;
            if is(mode, "on") {
                *replies = Replies::On;
                out.status("OK");
            } else if is(mode, "off") {
                *replies = Replies::Off;
            } else if is(mode, "skip") {
                if *replies != Replies::Off {
                    *replies = Replies::SkipNext;
                }
            } else {
                return Err(Failed::syntax());
            }
        }
        ("no-evict", [mode]) if is(mode, "on") || is(mode, "off") => {
            own.held.set_stays(is(mode, "on"));
            out.status("OK");
        }
        ("no-evict", [_]) => return Err(Failed::syntax()),
        ("unblock", [id, reason @ ..]) if reason.len() <= 1 => {
            out.integer(unblock(context, id, reason.first().copied())?.into());
        }
        (
            "id" | "getname" | "setname" | "setinfo" | "info" | "kill" | "reply" | "no-evict"
            | "unblock",
            _,
        ) => return Err(wrong()),
        _ => return Err(Failed::unknown_subcommand("client", word)),
    }
    Ok(Flow::Go)
}

/// `CLIENT UNBLOCK`: true if the client was waiting.
fn unblock(context: &Context<'_>, id: Arg<'_>, reason: Option<Arg<'_>>) -> Result<bool, Failed> {
    let fails = match reason {
        None => false,
        Some(word) if is(word, "timeout") => false,
        Some(word) if is(word, "error") => true,
        Some(_) => {
            return Err(Failed::reply(
                "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR",
            ));
        }
    };
    let id = u64::try_from(integer(id)?).unwrap_or(0);
    let clients = context.server.clients.all();
    let waiter = (clients.iter())
        .find(|client| client.id == id)
        .and_then(|client| client.waiter());
    Ok(waiter.is_some_and(|waiter| {
        context.server.data.give_up(&waiter, |out| {
            if fails {
                out.error("UNBLOCKED client unblocked via CLIENT UNBLOCK");
            } else {
                out.null_array();
            }
        })
    }))
}

fn known_kind(kind: Arg<'_>) -> Result<&'static str, Failed> {
    ["normal", "master", "replica", "pubsub"]
        .into_iter()
        .find(|known| is(kind, known) || *known == "replica" && is(kind, "slave"))
        .ok_or_else(|| {
            let kind = String::from_utf8_lossy(kind);
            Failed::reply(format!("ERR Unknown client type '{kind}'"))
        })
}

fn list(context: &mut Context<'_>, rest: &[Arg<'_>], out: &mut Out<'_>) -> Result<(), Failed> {
    context.session.end_batch();
    let mut clients = context.server.clients.all();
    match rest {
        [] => {}
        [word, kind] if is(word, "type") => {
            let kind = known_kind(kind)?;
            clients.retain(|client| client.kind() == kind);
        }
        [word, ids @ ..] if is(word, "id") && !ids.is_empty() => {
            let ids: Result<Vec<u64>, Failed> = ids
                .iter()
                .map(|id| {
                    let id = integer(id).ok().and_then(|id| u64::try_from(id).ok());
                    id.filter(|id| *id > 0)
                        .ok_or_else(|| Failed::reply("ERR Invalid client ID"))
                })
                .collect();
            let ids = ids?;
            clients.retain(|client| ids.contains(&client.id));
        }
        _ => return Err(Failed::syntax()),
    }
    let lines: String = clients.iter().map(|client| client.line() + "\n").collect();
    out.verbatim(&lines);
    Ok(())
}

/// `CLIENT KILL address`, or with filters.
fn kill(context: &mut Context<'_>, rest: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let own = context.session.client.id;
    let clients = context.server.clients.all();
    let end = |victim: &Client| {
        if victim.id != own {
            victim.kill.notify_one();
        }
    };
    if let [address] = rest {
        let found = clients
            .iter()
            .find(|client| client.address.as_bytes() == *address)
            .ok_or_else(|| Failed::reply("ERR No such client"))?;
        end(found);
        out.status("OK");
        return Ok(if found.id == own {
            Flow::Close
        } else {
            Flow::Go
        });
    }
    let mut victims = clients;
    let mut skip_me = true;
    for pair in rest.chunks(2) {
        let [word, value] = pair else {
            return Err(Failed::syntax());
        };
        if is(word, "id") {
            let id = integer(value)
                .ok()
                .filter(|id| *id > 0)
                .ok_or_else(|| Failed::reply("ERR client-id should be greater than 0"))?;
            victims.retain(|client| client.id == id.unsigned_abs());
        } else if is(word, "type") {
            let kind = known_kind(value)?;
            victims.retain(|client| client.kind() == kind);
        } else if is(word, "addr") {
            victims.retain(|client| client.address.as_bytes() == *value);
        } else if is(word, "laddr") {
            victims.retain(|client| client.local.as_bytes() == *value);
        } else if is(word, "user") {
            if context.server.users.get(value).is_none() {
                let name = String::from_utf8_lossy(value);
                return Err(Failed::reply(format!("ERR No such user '{name}'")));
            }
            victims.retain(|client| client.names().user.as_bytes() == *value);
        } else if is(word, "skipme") && (is(value, "yes") || is(value, "no")) {
            skip_me = is(value, "yes");
        } else {
            return Err(Failed::syntax());
        }
    }
    victims.retain(|client| !skip_me || client.id != own);
    victims.iter().for_each(|victim| end(victim));
    out.integer(victims.len() as i64);
    let me = victims.iter().any(|victim| victim.id == own);
    Ok(if me { Flow::Close } else { Flow::Go })
}
