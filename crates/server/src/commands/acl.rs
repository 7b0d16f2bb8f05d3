//! `ACL`: users and their rights.

use crate::command::{HelpLine, InMulti};
use crate::error::CommandError;
use crate::parse::Arg;
use crate::reply::Out;
use crate::session::{Context, Done, Flow, SessionCommand, subcommand};
use crate::table;
use crate::users::{DEFAULT, User, Users};

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

fn acl(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let (word, lower, rest) = subcommand(args);
    let Context { server, session } = context;
    match (lower.as_str(), rest) {
        ("whoami", []) => out.bulk(session.user.name.as_bytes()),
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
            // Clients with subscriptions that the user's rights no longer allow are disconnected.
            let own = session.client.id;
            let mut flow = Flow::Go;
            if let Some(user) = server.users.get(name) {
                for client in server.pubsub.not_allowed(&user) {
                    if client.id == own {
                        flow = Flow::Close;
                    } else {
                        client.kill();
                    }
                }
            }
            return Ok(flow);
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
            if rest.contains(&session.user.name.as_bytes()) {
                return Ok(Flow::Close);
            }
        }
        ("whoami" | "list" | "users" | "cat" | "setuser" | "getuser" | "deluser", _) => {
            return Err(CommandError::arity(&format!("acl|{lower}")));
        }
        _ => return Err(CommandError::unknown_subcommand("acl", word)),
    }
    Ok(Flow::Go)
}
