//! `ACL`: users and their rights.

use crate::client::Client;
use crate::command::{HelpLine, InMulti};
use crate::error::CommandError;
use crate::parse::Arg;
use crate::reply::Out;
use crate::server::Server;
use crate::session::{Context, Done, Flow, Session, SessionCommand, subcommand};
use crate::table;
use crate::users::{DEFAULT, User, Users};
use std::sync::Arc;

const ACL_HELP: &[HelpLine] = &[
    (
        "CAT [<category>]",
        "List the categories, or the commands of one.",
    ),
    (
        "DELUSER <username> [<username> ...]",
        "Delete users, and disconnect their clients.",
    ),
    ("GETUSER <username>", "Show what a user may do."),
    ("LOAD", "Read all users from the file of users again."),
    ("SAVE", "Write all users to the file of users."),
    ("LIST", "Show all users, each with its rules."),
    (
        "SETUSER <username> [<rule> ...]",
        "Create or change a user.",
    ),
    ("USERS", "List the names of all users."),
    ("WHOAMI", "Return the name of this connection's user."),
];

/// The commands.
pub const COMMANDS: &[SessionCommand] =
    &[
        SessionCommand::new("acl", -2, &["admin", "slow", "dangerous"], acl)
            .in_multi(InMulti::Refused)
            .help(ACL_HELP),
    ];

fn bulks<'b>(out: &mut Out<'_>, texts: impl ExactSizeIterator<Item = &'b str>) {
    out.array(texts.len());
    texts.for_each(|text| out.bulk(text.as_bytes()));
}

/// Replies to `ACL GETUSER`.
fn describe(user: Option<&User>, out: &mut Out<'_>) {
    let Some(user) = user else {
        out.null_array();
        return;
    };
    out.map(6);
    out.bulk(b"flags");
    let on = if user.on { "on" } else { "off" };
    let flags = [on].into_iter().chain(user.nopass.then_some("nopass"));
    let flags: Vec<&str> = flags.collect();
    out.set(flags.len());
    flags.iter().for_each(|flag| out.bulk(flag.as_bytes()));
    out.bulk(b"passwords");
    let hashes = user.hashes();
    bulks(out, hashes.iter().map(String::as_str));
    for (field, value) in [
        ("commands", user.commands()),
        ("keys", user.key_patterns()),
        ("channels", user.channel_patterns()),
    ] {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"selectors");
    out.array(0);
}

/// Disconnects clients whose subscriptions, or what they wait for, their users' rights no longer
/// allow. Returns what becomes of this one.
fn disconnect<'u>(
    server: &Server,
    session: &Session,
    users: impl Iterator<Item = &'u User>,
) -> Flow {
    let mut flow = Flow::Go;
    for user in users {
        let waits_in_vain = |client: &Arc<Client>| {
            let names = client.names().clone();
            let entry = server.table.find(names.command.as_bytes());
            names.user == user.name
                && client.waiter().is_some_and(|waiter| {
                    let mut keys = waiter.wants.keys.iter().chain(&waiter.wants.destination);
                    !user.on
                        || entry.is_some_and(|entry| !user.may(entry))
                        || keys.any(|key| !user.may_touch(key))
                })
        };
        let waiting = server.clients.all().into_iter().filter(waits_in_vain);
        for client in server.pubsub.not_allowed(user).into_iter().chain(waiting) {
            if client.id == session.client.id {
                flow = Flow::Close;
            } else {
                client.kill();
            }
        }
    }
    flow
}

fn acl(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let (word, lower, rest) = subcommand(args);
    let Context { server, session } = context;
    match (lower.as_str(), rest) {
        ("whoami", []) => out.bulk(session.current.user.name.as_bytes()),
        ("list", []) => {
            let lines: Vec<String> = server.users.all().iter().map(|user| user.line()).collect();
            bulks(out, lines.iter().map(String::as_str));
        }
        ("users", []) => {
            let users = server.users.all();
            bulks(out, users.iter().map(|user| user.name.as_str()));
        }
        ("cat", []) => bulks(out, Users::categories().iter().copied()),
        ("cat", [name]) => {
            let category = table::category(name).ok_or_else(|| {
                let name = String::from_utf8_lossy(name);
                CommandError::reply(format!("ERR Unknown category '{name}'"))
            })?;
            let entries = server.table.entries().iter();
            let named: Vec<&str> = entries
                .filter(|entry| entry.categories & 1 << category != 0)
                .map(|entry| entry.name())
                .collect();
            bulks(out, named.into_iter());
        }
        ("setuser", [name, rules @ ..]) => {
            server
                .users
                .set(name, rules, &server.table)
                .map_err(CommandError::reply)?;
            out.status("OK");
            let changed = server.users.get(name);
            return Ok(disconnect(server, session, changed.as_deref().into_iter()));
        }
        ("save", []) => {
            tokio::task::block_in_place(|| server.save_users()).map_err(CommandError::reply)?;
            out.status("OK");
        }
        ("load", []) => {
            tokio::task::block_in_place(|| server.load_users()).map_err(CommandError::reply)?;
            out.status("OK");
            let mut flow = Flow::Go;
            for client in server.clients.all() {
                let named = client.names().user.clone();
                if server.users.get(named.as_bytes()).is_none() {
                    if client.id == session.client.id {
                        flow = Flow::Close;
                    } else {
                        client.kill();
                    }
                }
            }
            let all = server.users.all();
            return Ok(
                match disconnect(server, session, all.iter().map(|user| &**user)) {
                    Flow::Go => flow,
                    other => other,
                },
            );
        }
        ("getuser", [name]) => describe(server.users.get(name).as_deref(), out),
        ("deluser", [_, ..]) => {
            if rest.contains(&DEFAULT.as_bytes()) {
                return Err(CommandError::reply(
                    "ERR The 'default' user cannot be removed",
                ));
            }
            let gone = rest.iter().filter(|name| server.users.delete(name)).count();
            let own = session.client.id;
            for client in server.clients.all() {
                let named = client.names().user.clone();
                if client.id != own && rest.contains(&named.as_bytes()) {
                    client.kill();
                }
            }
            out.integer(gone as i64);
            if rest.contains(&session.current.user.name.as_bytes()) {
                return Ok(Flow::Close);
            }
        }
        (
            "whoami" | "list" | "users" | "cat" | "setuser" | "getuser" | "deluser" | "save"
            | "load",
            _,
        ) => {
            return Err(CommandError::arity(&format!("acl|{lower}")));
        }
        _ => return Err(CommandError::unknown_subcommand("acl", word)),
    }
    Ok(Flow::Go)
}
