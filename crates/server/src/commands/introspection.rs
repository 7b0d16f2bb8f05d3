//! `COMMAND`: descriptions of the commands.

use crate::command::{Access, HelpLine, Keys};
use crate::error::CommandError;
use crate::parse::{Arg, glob, is};
use crate::reply::Out;
use crate::session::{Context, Done, Flow, SessionCommand, subcommand};
use crate::table;
use crate::table::{CATEGORIES, Entry};

const COMMAND_HELP: &[HelpLine] = &[
    ("(no subcommand)", "Describe all commands."),
    ("COUNT", "Return the number of commands."),
    ("DOCS [<name> ...]", "Return the groups of commands."),
    (
        "GETKEYS <command> [<arg> ...]",
        "Return which arguments of a command are keys.",
    ),
    ("INFO [<name> ...]", "Describe some commands, or all."),
    (
        "LIST [FILTERBY (ACLCAT <category> | PATTERN <pattern> | MODULE <name>)]",
        "List the names of commands.",
    ),
];

const COMMAND: SessionCommand = {
    let mut command = SessionCommand::new("command", -1, &["slow", "connection"], command);
    command.spec.help = COMMAND_HELP;
    command.spec.bare = true;
    command
};

/// The commands.
pub const COMMANDS: &[SessionCommand] = &[COMMAND];

fn command(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let table = &context.server.table;
    let (word, lower, rest) = subcommand(args);
    match (lower.as_str(), rest) {
        _ if args.len() == 1 => {
            out.array(table.entries().len());
            table
                .entries()
                .iter()
                .for_each(|entry| describe(entry, out));
        }
        ("count", []) => out.integer(table.entries().len() as i64),
        ("info", []) => {
            out.array(table.entries().len());
            table
                .entries()
                .iter()
                .for_each(|entry| describe(entry, out));
        }
        ("info", names) => {
            out.array(names.len());
            for name in names {
                match table.find(name) {
                    Some(entry) => describe(entry, out),
                    None => out.null_array(),
                }
            }
        }
        ("docs", names) => {
            let found: Vec<&Entry> = if names.is_empty() {
                table.entries().iter().collect()
            } else {
                names.iter().filter_map(|name| table.find(name)).collect()
            };
            out.map(found.len());
            for entry in found {
                out.bulk(entry.name().as_bytes());
                out.map(1);
                out.bulk(b"group");
                out.bulk(group(entry).as_bytes());
            }
        }
        ("list", filter) => {
            let names = listed(table.entries(), filter)?;
            out.array(names.len());
            names.iter().for_each(|name| out.bulk(name.as_bytes()));
        }
        ("getkeys", [name, _, ..]) => {
            let entry = table
                .find(name)
                .ok_or_else(|| CommandError::reply("ERR Invalid command specified"))?;
            if entry.spec.keys == Keys::None {
                return Err(CommandError::reply("ERR The command has no key arguments"));
            }
            if !entry.spec.takes(rest.len()) {
                return Err(CommandError::reply(
                    "ERR Invalid number of arguments specified for command",
                ));
            }
            let places = entry.spec.keys.places(rest);
            let keys: Vec<Arg<'_>> = places
                .iter()
                .filter_map(|at| rest.get(*at).copied())
                .collect();
            if keys.is_empty() {
                return Err(CommandError::reply(
                    "ERR Invalid arguments specified for command",
                ));
            }
            out.array(keys.len());
            keys.iter().for_each(|key| out.bulk(key));
        }
        ("count" | "getkeys", _) => return Err(CommandError::arity(&format!("command|{lower}"))),
        _ => return Err(CommandError::unknown_subcommand("command", word)),
    }
    Ok(Flow::Go)
}

fn listed(entries: &[Entry], filter: &[Arg<'_>]) -> Result<Vec<&'static str>, CommandError> {
    let names = |which: &dyn Fn(&Entry) -> bool| {
        let found = entries.iter().filter(|entry| which(entry));
        found.map(|entry| entry.name()).collect()
    };
    match filter {
        [] => Ok(names(&|_| true)),
        [by, how, what] if is(by, "filterby") && is(how, "aclcat") => {
            let category = table::category(what);
            Ok(names(&|entry| {
                category.is_some_and(|category| entry.categories & 1 << category != 0)
            }))
        }
        [by, how, what] if is(by, "filterby") && is(how, "pattern") => {
            let lower = what.to_ascii_lowercase();
            let pattern = glob::Pattern::new(&lower);
            Ok(names(&|entry| pattern.matches(entry.name().as_bytes())))
        }
        [by, how, _] if is(by, "filterby") && is(how, "module") => Ok(Vec::new()),
        _ => Err(CommandError::syntax()),
    }
}

/// Returns the category that tells the subject of a command.
fn group(entry: &Entry) -> &'static str {
    let about = CATEGORIES.iter().enumerate().find(|(number, name)| {
        entry.categories & 1 << number != 0
            && !["read", "write", "fast", "slow", "admin", "dangerous"].contains(name)
    });
    about.map_or("server", |(_, name)| name)
}

fn describe(entry: &Entry, out: &mut Out<'_>) {
    let (first, last, step) = match entry.spec.keys {
        Keys::None => (0, 0, 0),
        Keys::Range { first, last, step } => (first as i64, i64::from(last), step as i64),
        Keys::Counted { before, .. } if before > 0 => (before as i64, before as i64, 1),
        Keys::Counted { .. } => (0, 0, 0),
        Keys::AndStore => (1, 1, 1),
    };
    let moves = matches!(entry.spec.keys, Keys::Counted { .. } | Keys::AndStore);
    let has = |name: &str| {
        table::category(name.as_bytes()).is_some_and(|at| entry.categories & 1 << at != 0)
    };
    let writes = matches!(entry.spec.access, Some(Access::Write | Access::WriteAll));
    let reads = matches!(entry.spec.access, Some(Access::Read | Access::ReadOne));
    let flags: Vec<&str> = [
        (writes, "write"),
        (reads, "readonly"),
        (has("admin"), "admin"),
        (has("pubsub"), "pubsub"),
        (has("fast"), "fast"),
        (moves, "movablekeys"),
    ]
    .into_iter()
    .filter_map(|(set, flag)| set.then_some(flag))
    .collect();
    out.array(10);
    out.bulk(entry.name().as_bytes());
    out.integer(i64::from(entry.spec.arity));
    out.set(flags.len());
    flags.iter().for_each(|flag| out.status(flag));
    out.integer(first);
    out.integer(last);
    out.integer(step);
    let categories: Vec<&str> = CATEGORIES.into_iter().filter(|name| has(name)).collect();
    out.set(categories.len());
    for category in categories {
        out.status(&format!("@{category}"));
    }
    // Tips, key specifications, subcommands: none.
    (0..3).for_each(|_| out.array(0));
}
