//! `HELP` of the commands that are told apart by their first argument.

use crate::command::{Arg, Failed, is};
use crate::reply::Out;

/// A subcommand with its arguments, and what it does.
type Line = (&'static str, &'static str);

const ACL: &[Line] = &[
    (
        "CAT [<category>]",
        "List the categories, or the commands of one.",
    ),
    (
        "DELUSER <username> [<username> ...]",
        "Delete users, and disconnect their clients.",
    ),
    ("GETUSER <username>", "Show what a user may do."),
    ("LIST", "Show all users, each as the rules that make it."),
    (
        "SETUSER <username> [<rule> ...]",
        "Make a user, or change one.",
    ),
    ("USERS", "List the names of all users."),
    ("WHOAMI", "Return the name of this connection's user."),
];

const CLIENT: &[Line] = &[
    ("GETNAME", "Return this connection's name."),
    ("ID", "Return this connection's number."),
    ("INFO", "Show this connection, as LIST does."),
    ("KILL <ip:port>", "Disconnect the client of that address."),
    (
        "KILL <option> <value> [<option> <value> ...]",
        "Disconnect clients by ID, TYPE, ADDR, LADDR, USER; SKIPME no: this one, too.",
    ),
    (
        "LIST [TYPE <type> | ID <id> [<id> ...]]",
        "Show clients, one a line.",
    ),
    (
        "NO-EVICT (ON|OFF)",
        "Is taken, and means nothing: no client is evicted.",
    ),
    (
        "REPLY (ON|OFF|SKIP)",
        "Say which commands of this connection are answered.",
    ),
    (
        "SETINFO (LIB-NAME|LIB-VER) <text>",
        "Tell the client library's name or version.",
    ),
    ("SETNAME <name>", "Give this connection a name."),
    (
        "UNBLOCK <id> [TIMEOUT|ERROR]",
        "End the waiting of a client, as by its timeout or with an error.",
    ),
];

const COMMAND: &[Line] = &[
    ("(no subcommand)", "Describe all commands."),
    ("COUNT", "Return how many commands there are."),
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

const CONFIG: &[Line] = &[
    (
        "GET <pattern> [<pattern> ...]",
        "Return the settings whose names match.",
    ),
    ("RESETSTAT", "Begin the statistics of INFO anew."),
    (
        "REWRITE",
        "Return an error: there is no file to be written.",
    ),
    (
        "SET <name> <value> [<name> <value> ...]",
        "Change settings, all or none.",
    ),
];

const DEBUG: &[Line] = &[("SLEEP <seconds>", "Answer after some time.")];

const LATENCY: &[Line] = &[
    ("DOCTOR", "Say where latencies are found."),
    (
        "HISTOGRAM [<command> ...]",
        "Return how many calls of commands took how long.",
    ),
    (
        "HISTORY <event>",
        "Return nothing: events are not recorded.",
    ),
    ("LATEST", "Return nothing: events are not recorded."),
    ("RESET [<event> ...]", "Return 0: events are not recorded."),
];

const MEMORY: &[Line] = &[
    ("DOCTOR", "Say where memory is told of."),
    ("PURGE", "Is taken, and does nothing."),
    (
        "USAGE <key> [SAMPLES <count>]",
        "Return the bytes of a key and its record.",
    ),
];

const PUBSUB: &[Line] = &[
    (
        "CHANNELS [<pattern>]",
        "List the channels that somebody listens to.",
    ),
    ("NUMPAT", "Return how many patterns are listened to."),
    (
        "NUMSUB [<channel> ...]",
        "Return how many listen to each channel.",
    ),
];

const SLOWLOG: &[Line] = &[
    (
        "GET [<count>]",
        "Return the newest entries (default: 10, -1: all): number, time, microseconds, arguments, address, name.",
    ),
    ("LEN", "Return how many entries there are."),
    ("RESET", "Forget them."),
];

fn lines(command: &str) -> Option<&'static [Line]> {
    Some(match command {
        "acl" => ACL,
        "client" => CLIENT,
        "command" => COMMAND,
        "config" => CONFIG,
        "debug" => DEBUG,
        "latency" => LATENCY,
        "memory" => MEMORY,
        "pubsub" => PUBSUB,
        "slowlog" => SLOWLOG,
        _ => return None,
    })
}

/// Answers a command, if it asks for help; false if it does not.
///
/// # Errors
/// There are more arguments.
pub(super) fn answer(command: &str, args: &[Arg<'_>], out: &mut Out<'_>) -> Result<bool, Failed> {
    let asked = args.get(1).is_some_and(|word| is(word, "help"));
    let Some(lines) = lines(command).filter(|_| asked) else {
        return Ok(false);
    };
    if args.len() > 2 {
        return Err(Failed::arity(&format!("{command}|help")));
    }
    let name = command.to_uppercase();
    out.array(2 * lines.len() + 3);
    out.status(&format!(
        "{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    ));
    for (usage, meaning) in lines.iter().chain(&[("HELP", "Print this help.")]) {
        out.status(usage);
        out.status(&format!("    {meaning}"));
    }
    Ok(true)
}
