//! The table of `docs/research.md` of what remains silent.

use super::Found;
use super::look::Silent;
use std::collections::BTreeSet;
use std::path::Path;

/// A row: a design, and the kind of its keys and values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub design: String,
    pub data: String,
}

/// The first line of the table.
const HEAD: &str = "| design | keys and values | silent after a close | silent after a kill |";

/// Reads the table. Rows name one design or several.
pub fn read() -> Found {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/research.md");
    let text = std::fs::read_to_string(&path).expect("docs/research.md");
    let (_, table) = text.split_once(HEAD).expect("the table's head");
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut found = Found::new();
    for line in rows {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [designs, data, closed, killed] = cells[..] else {
            panic!("not four cells: {line}");
        };
        for design in designs.split(", ") {
            let row = Row {
                design: design.trim_matches('`').to_owned(),
                data: data.trim_matches('`').to_owned(),
            };
            let told = found.insert(row, [closed, killed].map(silent));
            assert!(told.is_none(), "{design} of {data} is there twice");
        }
    }
    found
}

fn silent(cell: &str) -> BTreeSet<Silent> {
    let kinds = [Silent::Keys, Silent::Values];
    let named = |name: &str| {
        let kind = kinds.into_iter().find(|kind| kind.name() == name);
        kind.unwrap_or_else(|| panic!("{name:?} in the table"))
    };
    (cell.split(", ").filter(|name| !name.is_empty()))
        .map(named)
        .collect()
}

/// Returns a row as the table has it.
pub fn line(row: &Row, silent: &[BTreeSet<Silent>; 2]) -> String {
    let [closed, killed] = silent.each_ref().map(|silent| {
        let names: Vec<&str> = silent.iter().map(|kind| kind.name()).collect();
        names.join(", ")
    });
    format!("| `{}` | {} | {closed} | {killed} |", row.design, row.data)
}
