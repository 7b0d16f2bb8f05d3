//! Rows of files as keys and values, and back.
//!
//! | file | row | key | value |
//! | --- | --- | --- | --- |
//! | `.csv` | record under a header line | the key column | JSON object of all columns, in order, as strings |
//! | `.jsonl` | line | the field `key` (or another) | the line as it is |
//! | either, pairs | columns or fields `key` and `value` alone | `key` | `value` itself |
//!
//! In pairs, `key_base64` and `value_base64` stand in where the bytes are not UTF-8.
//!
//! # Invariant
//! The reader of a format reads back byte for byte what its writer wrote. The writers make sure
//! of it by asking the reader before they choose the shorter form.

pub mod csv;
pub mod json;

use std::io;

/// A row of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    /// Line on which it starts; the first is 1.
    pub line: u64,
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

/// A fault of a row.
#[derive(Debug)]
pub struct RowError {
    /// Line on which it starts.
    pub line: u64,
    /// The fault, and its place in the line.
    pub what: String,
}

/// A stream of rows.
pub type Rows<'a> = Box<dyn Iterator<Item = Result<Row, RowError>> + 'a>;

/// The kinds of file, by extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Comma-separated values with a header line.
    Csv,
    /// One JSON object per line.
    Jsonl,
}

impl Kind {
    /// The kind that the extension of `path` names.
    pub fn of(path: &std::path::Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "csv" => Some(Self::Csv),
            "jsonl" | "ndjson" => Some(Self::Jsonl),
            _ => None,
        }
    }
}

/// The rows of `input`, from `from_line` on, with keys from the column or field `key`.
///
/// # Errors
/// A [`RowError`] when the header is no header or has no such column.
pub fn read<'a>(
    kind: Kind,
    input: impl io::Read + 'a,
    key: Option<&str>,
    from_line: u64,
) -> Result<Rows<'a>, RowError> {
    match kind {
        Kind::Csv => Ok(Box::new(csv::Reader::new(input, key, from_line)?)),
        Kind::Jsonl => Ok(Box::new(json::Reader::new(input, key, from_line))),
    }
}
