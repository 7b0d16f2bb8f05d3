//! All commands, by family. Each module declares its commands in a slice beside their functions;
//! what is here only collects the slices.

pub mod acl;
pub mod admin;
pub mod arguments;
pub mod bitfield;
pub mod bits;
pub mod blocking;
pub mod clients;
#[cfg(test)]
mod collection_tests;
pub mod connection;
pub mod databases;
pub mod dump;
pub mod expiry;
pub mod hashes;
pub mod info;
pub mod introspection;
pub mod keys;
pub mod lcs;
pub mod lists;
pub mod ordered;
pub mod pubsub;
pub mod replies;
pub mod scan;
pub mod scripting;
pub mod sets;
pub mod sort;
pub mod sorted_set_operations;
pub mod sorted_set_ranges;
pub mod sorted_sets;
pub mod strings;
pub mod transactions;

use crate::command::Command;
use crate::session::{Handler, SessionCommand};
use crate::table::{Entry, Table};

/// The commands on data.
const DATA: &[&[Command]] = &[
    bitfield::COMMANDS,
    bits::COMMANDS,
    blocking::COMMANDS,
    databases::COMMANDS,
    dump::COMMANDS,
    expiry::COMMANDS,
    hashes::COMMANDS,
    keys::COMMANDS,
    lcs::COMMANDS,
    lists::COMMANDS,
    ordered::COMMANDS,
    scan::COMMANDS,
    scripting::COMMANDS,
    sets::COMMANDS,
    sort::COMMANDS,
    sorted_set_operations::COMMANDS,
    sorted_set_ranges::COMMANDS,
    sorted_sets::COMMANDS,
    strings::COMMANDS,
];

/// The commands on the session and on the server.
const SESSION: &[&[SessionCommand]] = &[
    connection::COMMANDS,
    clients::COMMANDS,
    transactions::COMMANDS,
    pubsub::COMMANDS,
    admin::COMMANDS,
    acl::COMMANDS,
    info::COMMANDS,
    introspection::COMMANDS,
    scripting::SCRIPT,
];

/// Returns the commands on data.
pub fn data() -> impl Iterator<Item = &'static Command> {
    DATA.iter().copied().flatten()
}

fn session() -> impl Iterator<Item = &'static SessionCommand> {
    SESSION.iter().copied().flatten()
}

/// Returns the table of all commands.
#[must_use]
pub fn table() -> Table {
    Table::new(data(), session().map(|command| &command.spec))
}

/// Returns what executes a command of the [`table`].
pub(crate) fn handler(entry: &Entry) -> Option<Handler> {
    if let Some(command) = entry.data {
        return Some(Handler::Data(command));
    }
    handler_at(entry.index)
}

/// Returns what executes the command of that number in the [`table`].
fn handler_at(index: usize) -> Option<Handler> {
    let Some(mut number) = index.checked_sub(data_count()) else {
        return data().nth(index).map(Handler::Data);
    };
    for family in SESSION {
        if let Some(command) = family.get(number) {
            return Some(Handler::Session(command));
        }
        number -= family.len();
    }
    None
}

/// Returns how many commands on data precede the others in the table.
const fn data_count() -> usize {
    let (mut count, mut family) = (0, 0);
    while family < DATA.len() {
        count += DATA[family].len();
        family += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_of_the_table_has_its_own_handler() {
        for entry in table().entries() {
            let name = match handler(entry) {
                Some(Handler::Data(command)) => command.spec.name,
                Some(Handler::Session(command)) => command.spec.name,
                None => "none",
            };
            assert_eq!(name, entry.name());
        }
    }
}
