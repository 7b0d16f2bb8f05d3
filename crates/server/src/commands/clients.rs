//! `CLIENT`: this connection's client, and the others.

use crate::client::Client;
use crate::command::HelpLine;
use crate::error::CommandError;
use crate::parse::{Arg, integer, is};
use crate::reply::Out;
use crate::session::{Context, Done, Flow, Replies, SessionCommand, subcommand};
use std::sync::Arc;

/// The longest name of a client or of its library, in bytes.
const MAX_NAME: usize = 1 << 10;

const CLIENT_HELP: &[HelpLine] = &[
    ("GETNAME", "Return this connection's name."),
    ("ID", "Return this connection's number."),
    ("INFO", "Show this connection, as LIST does."),
    ("KILL <ip:port>", "Disconnect the client with that address."),
    (
        "KILL <option> <value> [<option> <value> ...]",
        "Disconnect clients by ID, TYPE, ADDR, LADDR, USER; with SKIPME no, also this one.",
    ),
    (
        "LIST [TYPE <type> | ID <id> [<id> ...]]",
        "Show clients, one per line.",
    ),
    (
        "NO-EVICT (ON|OFF)",
        "Exempt this connection from eviction by maxmemory-clients, or end that.",
    ),
    (
        "REPLY (ON|OFF|SKIP)",
        "Turn replies on or off, or skip the next one.",
    ),
    (
        "SETINFO (LIB-NAME|LIB-VER) <text>",
        "Set the name or the version of the client library.",
    ),
    ("SETNAME <name>", "Give this connection a name."),
    (
        "UNBLOCK <id> [TIMEOUT|ERROR]",
        "End the waiting of a client, as if by its timeout, or with an error.",
    ),
];

const CLIENT: SessionCommand = {
    let mut command =
        SessionCommand::new("client", -2, &["slow", "connection"], client).help(CLIENT_HELP);
    command.spec.admin_subcommands = &["kill", "list", "no-evict", "unblock"];
    command
};

/// The command.
pub const COMMANDS: &[SessionCommand] = &[CLIENT];

/// Checks a name that a client gives itself; `what` names it in the error.
pub(crate) fn check_name(name: Arg<'_>, what: &str) -> Result<(), CommandError> {
    if name.len() > MAX_NAME {
        return Err(CommandError::reply(format!(
            "ERR {what} cannot be longer than {MAX_NAME} bytes."
        )));
    }
    if !name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Err(CommandError::reply(format!(
            "ERR {what} cannot contain spaces, newlines or special characters."
        )));
    }
    Ok(())
}

fn client(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let (word, lower, rest) = subcommand(args);
    let wrong = || CommandError::arity(&format!("client|{lower}"));
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
                return Err(CommandError::reply(format!(
                    "ERR Unrecognized option '{field}'"
                )));
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
                return Err(CommandError::syntax());
            }
        }
        ("no-evict", [mode]) if is(mode, "on") || is(mode, "off") => {
            own.account.set_exempt(is(mode, "on"));
            out.status("OK");
        }
        ("no-evict", [_]) => return Err(CommandError::syntax()),
        ("unblock", [id, reason @ ..]) if reason.len() <= 1 => {
            out.integer(unblock(context, id, reason.first().copied())?.into());
        }
        (
            "id" | "getname" | "setname" | "setinfo" | "info" | "kill" | "reply" | "no-evict"
            | "unblock",
            _,
        ) => return Err(wrong()),
        _ => return Err(CommandError::unknown_subcommand("client", word)),
    }
    Ok(Flow::Go)
}

/// Executes `CLIENT UNBLOCK`. Returns true if the client was waiting.
fn unblock(
    context: &Context<'_>,
    id: Arg<'_>,
    reason: Option<Arg<'_>>,
) -> Result<bool, CommandError> {
    let fails = match reason {
        None => false,
        Some(word) if is(word, "timeout") => false,
        Some(word) if is(word, "error") => true,
        Some(_) => {
            return Err(CommandError::reply(
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
        context.server.data.waiting.give_up(&waiter, |out| {
            if fails {
                out.error("UNBLOCKED client unblocked via CLIENT UNBLOCK");
            } else {
                out.null_array();
            }
        })
    }))
}

fn known_kind(kind: Arg<'_>) -> Result<&'static str, CommandError> {
    ["normal", "master", "replica", "pubsub"]
        .into_iter()
        .find(|known| is(kind, known) || *known == "replica" && is(kind, "slave"))
        .ok_or_else(|| {
            let kind = String::from_utf8_lossy(kind);
            CommandError::reply(format!("ERR Unknown client type '{kind}'"))
        })
}

fn list(
    context: &mut Context<'_>,
    rest: &[Arg<'_>],
    out: &mut Out<'_>,
) -> Result<(), CommandError> {
    context.session.end_batch();
    let mut clients = context.server.clients.all();
    match rest {
        [] => {}
        [word, kind] if is(word, "type") => {
            let kind = known_kind(kind)?;
            clients.retain(|client| client.kind() == kind);
        }
        [word, ids @ ..] if is(word, "id") && !ids.is_empty() => {
            let ids: Result<Vec<u64>, CommandError> = ids
                .iter()
                .map(|id| {
                    let id = integer(id).ok().and_then(|id| u64::try_from(id).ok());
                    id.filter(|id| *id > 0)
                        .ok_or_else(|| CommandError::reply("ERR Invalid client ID"))
                })
                .collect();
            let ids = ids?;
            clients.retain(|client| ids.contains(&client.id));
        }
        _ => return Err(CommandError::syntax()),
    }
    let lines: String = clients.iter().map(|client| client.line() + "\n").collect();
    out.verbatim(&lines);
    Ok(())
}

/// Executes `CLIENT KILL`, with an address or with filters.
fn kill(context: &mut Context<'_>, rest: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let own = context.session.client.id;
    let clients = context.server.clients.all();
    let end = |victim: &Client| {
        if victim.id != own {
            victim.kill();
        }
    };
    if let [address] = rest {
        let found = clients
            .iter()
            .find(|client| client.address.as_bytes() == *address)
            .ok_or_else(|| CommandError::reply("ERR No such client"))?;
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
            return Err(CommandError::syntax());
        };
        if is(word, "id") {
            let id = integer(value)
                .ok()
                .filter(|id| *id > 0)
                .ok_or_else(|| CommandError::reply("ERR client-id should be greater than 0"))?;
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
                return Err(CommandError::reply(format!("ERR No such user '{name}'")));
            }
            victims.retain(|client| client.names().user.as_bytes() == *value);
        } else if is(word, "skipme") && (is(value, "yes") || is(value, "no")) {
            skip_me = is(value, "yes");
        } else {
            return Err(CommandError::syntax());
        }
    }
    victims.retain(|client| !skip_me || client.id != own);
    victims.iter().for_each(|victim| end(victim));
    out.integer(victims.len() as i64);
    let me = victims.iter().any(|victim| victim.id == own);
    Ok(if me { Flow::Close } else { Flow::Go })
}
