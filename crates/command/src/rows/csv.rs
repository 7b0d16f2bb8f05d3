//! Comma-separated values with a header line.

use super::json::{Fields, push_string};
use super::{Row, RowError};
use crate::text::{base64, from_base64, quoted};
use csv::ByteRecord;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::ops::RangeInclusive;

/// How the columns make up key and value.
enum Shape {
    /// Key from one column, value a JSON object of all; `names` are ready as `"name":`.
    Table { key: usize, names: Vec<String> },
    /// Two columns, key and value themselves; true where base64.
    Pairs { key_coded: bool, value_coded: bool },
}

/// Most bytes a record may have. More is a missing quotation mark or no CSV file at all.
const MAX_RECORD: usize = 64 << 20;

/// Where in the grammar of RFC 4180 a byte is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    FieldStart,
    Plain,
    Quoted,
    /// Behind a quotation mark inside a quoted field: its end, or the first of two.
    QuotedMark,
}

/// Passes the input on and follows its quotation marks, since the parser lets pass what is most
/// likely a missing one: a field that is never closed, and text behind a closing mark. Line breaks
/// between records all become line feeds, since the parser miscounts lines that end in two bytes.
struct Quotes<R> {
    input: R,
    place: Place,
    line: u64,
    /// Lines with text behind a closing mark, of records that are still to come.
    stray: VecDeque<u64>,
    record_bytes: usize,
    offset: usize,
    after_return: bool,
    ended: bool,
}

impl<R> Quotes<R> {
    fn new(input: R) -> Self {
        Self {
            input,
            place: Place::FieldStart,
            line: 1,
            stray: VecDeque::new(),
            record_bytes: 0,
            offset: 0,
            after_return: false,
            ended: false,
        }
    }

    /// True when the input has ended inside quotation marks: the parser's last record then.
    fn left_open(&self) -> bool {
        self.ended && self.place == Place::Quoted
    }

    /// The line of stray text in the record of these lines.
    fn stray_in(&mut self, lines: RangeInclusive<u64>) -> Option<u64> {
        while self.stray.front().is_some_and(|l| l < lines.start()) {
            self.stray.pop_front();
        }
        self.stray.front().copied().filter(|l| lines.contains(l))
    }

    /// Takes a byte; answers the one to pass on, if any.
    fn follow(&mut self, mut byte: u8) -> Option<u8> {
        const BYTE_ORDER_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];
        self.offset = self.offset.saturating_add(1);
        if self.place == Place::FieldStart && BYTE_ORDER_MARK.get(self.offset - 1) == Some(&byte) {
            return Some(byte);
        }
        let after_return = std::mem::take(&mut self.after_return);
        if self.place != Place::Quoted {
            if byte == b'\n' && after_return {
                return None;
            }
            if byte == b'\r' {
                self.after_return = true;
                byte = b'\n';
            }
        }
        self.record_bytes += 1;
        self.place = match (self.place, byte) {
            (Place::Quoted, b'"') => Place::QuotedMark,
            (Place::Quoted, _) => Place::Quoted,
            (Place::FieldStart | Place::QuotedMark, b'"') => Place::Quoted,
            (_, b',') => Place::FieldStart,
            (_, b'\n') => {
                self.record_bytes = 0;
                Place::FieldStart
            }
            (place, _) => {
                if place == Place::QuotedMark && self.stray.back() != Some(&self.line) {
                    self.stray.push_back(self.line);
                }
                Place::Plain
            }
        };
        self.line += u64::from(byte == b'\n');
        Some(byte)
    }
}

impl<R: Read> Read for Quotes<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut kept = 0;
        while kept == 0 {
            let read = self.input.read(buffer)?;
            self.ended = read == 0;
            for i in 0..read {
                if let Some(byte) = self.follow(buffer[i]) {
                    buffer[kept] = byte;
                    kept += 1;
                }
            }
            if self.ended || buffer.is_empty() {
                break;
            }
        }
        if self.record_bytes > MAX_RECORD {
            let what = if self.place == Place::Quoted {
                "a quotation mark is not closed"
            } else {
                "is this a CSV file?"
            };
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a record of more than {MAX_RECORD} bytes: {what}"),
            ));
        }
        Ok(kept)
    }
}

/// The rows of a CSV file.
pub struct Reader<R> {
    records: csv::Reader<Quotes<R>>,
    header: Vec<String>,
    shape: Shape,
    from_line: u64,
    record: ByteRecord,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header; rows follow from `from_line` on.
    pub fn new(input: R, key: Option<&str>, from_line: u64) -> Result<Self, RowError> {
        let mut records = csv::ReaderBuilder::new()
            .flexible(true)
            .has_headers(false)
            .buffer_capacity(256 << 10)
            .from_reader(Quotes::new(input));
        let wrong = |what: String| RowError { line: 1, what };
        let mut record = ByteRecord::new();
        match records.read_byte_record(&mut record) {
            Ok(true) => {}
            Ok(false) => return Err(wrong("empty file; expected a header line".to_owned())),
            Err(e) => return Err(wrong(e.to_string())),
        }
        let mut header = Vec::with_capacity(record.len());
        for (i, name) in record.iter().enumerate() {
            let name = String::from_utf8(name.to_vec())
                .map_err(|_| wrong(format!("header, column {}: not UTF-8", i + 1)))?;
            if let Some(first) = header.iter().position(|n| *n == name) {
                return Err(wrong(format!(
                    "header: columns {} and {} are both named {}; rename one",
                    first + 1,
                    i + 1,
                    quoted(name.as_bytes())
                )));
            }
            header.push(name);
        }
        let shape = shape(&header, key).map_err(wrong)?;
        Ok(Self {
            records,
            header,
            shape,
            from_line,
            record,
            ended: false,
        })
    }

    fn row(&mut self, line: u64, last_line: u64) -> Result<Row, String> {
        if let Some(stray) = self.records.get_mut().stray_in(line..=last_line) {
            return Err(format!(
                "text behind a closing quotation mark, on line {stray}; inside quotation marks, a quotation mark is written twice"
            ));
        }
        if self.records.get_ref().left_open() {
            return Err("a quotation mark is not closed until the end of the file".to_owned());
        }
        let (found, expected) = (self.record.len(), self.header.len());
        if found != expected {
            let hint = if last_line > line {
                format!(" (it spans lines {line} to {last_line}: is a quotation mark missing?)")
            } else {
                String::new()
            };
            return Err(format!(
                "{found} fields where the header has {expected}{hint}"
            ));
        }
        let decode = |i: usize, coded: bool| {
            let field = &self.record[i];
            if !coded {
                return Ok(field.to_vec());
            }
            from_base64(&String::from_utf8_lossy(field))
                .map_err(|e| format!("column {} ({}): {e}", i + 1, self.header[i]))
        };
        match &self.shape {
            Shape::Pairs {
                key_coded,
                value_coded,
            } => Ok(Row {
                line,
                key: decode(0, *key_coded)?,
                value: decode(1, *value_coded)?,
            }),
            Shape::Table { key, names } => {
                let mut value = String::with_capacity(self.record.as_slice().len() * 2 + 64);
                for (i, name) in names.iter().enumerate() {
                    value.push(if i == 0 { '{' } else { ',' });
                    value.push_str(name);
                    let text = std::str::from_utf8(&self.record[i]).map_err(|e| {
                        format!(
                            "column {} ({}): not UTF-8 from its byte {} on; convert the file, say with iconv",
                            i + 1,
                            self.header[i],
                            e.valid_up_to() + 1
                        )
                    })?;
                    push_string(text, &mut value);
                }
                value.push('}');
                Ok(Row {
                    line,
                    key: self.record[*key].to_vec(),
                    value: value.into_bytes(),
                })
            }
        }
    }
}

fn shape(header: &[String], key: Option<&str>) -> Result<Shape, String> {
    if key.is_none()
        && let [k, v] = header
        && (k == "key" || k == "key_base64")
        && (v == "value" || v == "value_base64")
    {
        return Ok(Shape::Pairs {
            key_coded: k != "key",
            value_coded: v != "value",
        });
    }
    let key = match key {
        None => 0,
        Some(name) => header.iter().position(|n| n == name).ok_or_else(|| {
            let names: Vec<_> = header.iter().map(|n| quoted(n.as_bytes())).collect();
            format!(
                "no column {} for the key; name one of these with --key: {}",
                quoted(name.as_bytes()),
                names.join(", ")
            )
        })?,
    };
    Ok(Shape::Table {
        key,
        names: header.iter().map(|n| field_name(n)).collect(),
    })
}

fn field_name(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 3);
    push_string(name, &mut out);
    out.push(':');
    out
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Row, RowError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let mut record = std::mem::take(&mut self.record);
            let read = self.records.read_byte_record(&mut record);
            self.record = record;
            let line = self
                .record
                .position()
                .map_or_else(|| self.records.position().line(), |p| p.line());
            match read {
                Ok(true) => {}
                Ok(false) => {
                    self.ended = true;
                    break;
                }
                Err(e) => {
                    self.ended = true;
                    return Some(Err(RowError {
                        line,
                        what: e.to_string(),
                    }));
                }
            }
            if line < self.from_line {
                continue;
            }
            let breaks = self
                .record
                .as_slice()
                .iter()
                .filter(|b| **b == b'\n')
                .count();
            let last_line = line + breaks as u64;
            return Some(
                self.row(line, last_line)
                    .map_err(|what| RowError { line, what }),
            );
        }
        None
    }
}

/// Writes one record, quoting where RFC 4180 wants it.
pub fn write_record(out: &mut impl Write, fields: &[&[u8]]) -> io::Result<()> {
    for (i, field) in fields.iter().enumerate() {
        if i > 0 {
            out.write_all(b",")?;
        }
        let special = |b: &u8| matches!(b, b',' | b'"' | b'\n' | b'\r');
        // A lone empty field would be an empty line, which readers skip.
        if field.iter().any(special) || (field.is_empty() && fields.len() == 1) {
            out.write_all(b"\"")?;
            for part in field.split_inclusive(|b| *b == b'"') {
                out.write_all(part)?;
                if part.ends_with(b"\"") {
                    out.write_all(b"\"")?;
                }
            }
            out.write_all(b"\"")?;
        } else {
            out.write_all(field)?;
        }
    }
    out.write_all(b"\n")
}

/// The form of a pool as a CSV file; made by showing it every record.
pub struct Survey {
    /// Columns that every value so far has, as its only fields, all strings.
    names: Option<Vec<String>>,
    /// For each column, whether it held the key every time.
    is_key: Vec<bool>,
    is_table: bool,
    keys_utf8: bool,
    values_utf8: bool,
}

/// The chosen form.
pub enum Plan {
    /// The columns of the values; keys are in the column `key`.
    Table {
        /// Column names.
        names: Vec<String>,
        /// Index of the key column.
        key: usize,
    },
    /// Two columns.
    Pairs {
        /// Keys are in base64.
        key_coded: bool,
        /// Values are in base64.
        value_coded: bool,
    },
}

impl Default for Survey {
    /// Nothing seen.
    fn default() -> Self {
        Self {
            names: None,
            is_key: Vec::new(),
            is_table: true,
            keys_utf8: true,
            values_utf8: true,
        }
    }
}

impl Survey {
    /// Takes one record into account.
    pub fn see(&mut self, key: &[u8], value: &[u8]) {
        self.keys_utf8 = self.keys_utf8 && std::str::from_utf8(key).is_ok();
        self.values_utf8 = self.values_utf8 && std::str::from_utf8(value).is_ok();
        self.is_table = self.is_table && self.fits(key, value);
    }

    fn fits(&mut self, key: &[u8], value: &[u8]) -> bool {
        let Some(fields) = string_fields(value) else {
            return false;
        };
        if fields.is_empty() {
            return false;
        }
        let names = self.names.get_or_insert_with(|| {
            self.is_key = vec![true; fields.len()];
            fields.iter().map(|(n, _)| n.clone()).collect()
        });
        if !names.iter().eq(fields.iter().map(|(n, _)| n)) {
            return false;
        }
        // Only the very text that reading the row would make again can stand for the value.
        let mut again = String::with_capacity(value.len());
        for (i, (name, text)) in fields.iter().enumerate() {
            again.push(if i == 0 { '{' } else { ',' });
            again.push_str(&field_name(name));
            push_string(text, &mut again);
            self.is_key[i] = self.is_key[i] && text.as_bytes() == key;
        }
        again.push('}');
        again.as_bytes() == value && self.is_key.contains(&true)
    }

    /// The form to write.
    pub fn plan(self) -> Plan {
        if self.is_table
            && let Some(names) = self.names
            && let Some(key) = self.is_key.iter().position(|k| *k)
        {
            let unique = (1..names.len()).all(|i| !names[..i].contains(&names[i]));
            let marked = names[0].starts_with('\u{feff}');
            let is_pairs = matches!(shape(&names, None), Ok(Shape::Pairs { .. }));
            if unique && !marked && !is_pairs {
                return Plan::Table { names, key };
            }
        }
        Plan::Pairs {
            key_coded: !self.keys_utf8,
            value_coded: !self.values_utf8,
        }
    }
}

/// The fields of a JSON object whose values are all strings.
fn string_fields(value: &[u8]) -> Option<Vec<(String, String)>> {
    let text = std::str::from_utf8(value).ok()?;
    let Fields(fields) = serde_json::from_str(text).ok()?;
    fields
        .into_iter()
        .map(|(name, raw)| {
            raw.get()
                .starts_with('"')
                .then(|| serde_json::from_str(raw.get()).ok())
                .flatten()
                .map(|s| (name, s))
        })
        .collect()
}

impl Plan {
    /// Writes the header line.
    pub fn write_header(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Table { names, .. } => {
                let names: Vec<&[u8]> = names.iter().map(|n| n.as_bytes()).collect();
                write_record(out, &names)
            }
            Self::Pairs {
                key_coded,
                value_coded,
            } => {
                let name =
                    |plain: &'static str, coded: &'static str, is| if is { coded } else { plain };
                let key = name("key", "key_base64", *key_coded);
                let value = name("value", "value_base64", *value_coded);
                write_record(out, &[key.as_bytes(), value.as_bytes()])
            }
        }
    }

    /// Writes one record.
    pub fn write(&self, key: &[u8], value: &[u8], out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Table { .. } => {
                let fields = string_fields(value).unwrap_or_default();
                let fields: Vec<&[u8]> = fields.iter().map(|(_, t)| t.as_bytes()).collect();
                write_record(out, &fields)
            }
            Self::Pairs {
                key_coded,
                value_coded,
            } => {
                let coded = |bytes: &[u8], is| {
                    if is {
                        base64(bytes).into_bytes()
                    } else {
                        bytes.to_vec()
                    }
                };
                write_record(out, &[&coded(key, *key_coded), &coded(value, *value_coded)])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &[u8], key: Option<&str>, from: u64) -> Vec<Result<Row, RowError>> {
        match Reader::new(file, key, from) {
            Ok(reader) => reader.collect(),
            Err(e) => vec![Err(e)],
        }
    }

    fn error(file: &[u8], key: Option<&str>) -> (u64, String) {
        let e = read(file, key, 1)
            .into_iter()
            .find_map(Result::err)
            .unwrap();
        (e.line, e.what)
    }

    #[test]
    fn a_record_becomes_an_object() {
        let rows = read(b"id,name\n1,\"a \"\"b\"\"\nc\"\n2,\n", None, 1);
        let row = rows[0].as_ref().unwrap();
        assert_eq!((row.line, &row.key[..]), (2, &b"1"[..]));
        assert_eq!(row.value, br#"{"id":"1","name":"a \"b\"\nc"}"#);
        let row = rows[1].as_ref().unwrap();
        assert_eq!(
            (row.line, &row.value[..]),
            (4, &br#"{"id":"2","name":""}"#[..])
        );
        let rows = read(
            b"\xef\xbb\xbf\"id\",a\n6\"\" pipe,\"\"\n\r\n1\",\"x\ny\"\n",
            None,
            1,
        );
        let values: Vec<_> = rows
            .iter()
            .map(|r| &r.as_ref().unwrap().value[..])
            .collect();
        let expected = [
            &br#"{"id":"6\"\" pipe","a":""}"#[..],
            br#"{"id":"1\"","a":"x\ny"}"#,
        ];
        assert_eq!(values, expected);
        let rows = read(b"id,name\n1,x\n", Some("name"), 1);
        assert_eq!(rows[0].as_ref().unwrap().key, b"x");
    }

    #[test]
    fn errors_name_the_line() {
        assert_eq!(error(b"", None).0, 1);
        assert!(error(b"a,a\n", None).1.contains("both named"));
        assert!(error(b"a,b\n", Some("c")).1.contains("no column \"c\""));
        let (line, what) = error(b"a,b\n1,2\n3\n4,5\n", None);
        assert_eq!(line, 3);
        assert!(what.contains("1 fields where the header has 2"), "{what}");
        let (line, what) = error(b"a,b\n1,\"2\n3,4\n5,6\n", None);
        assert_eq!(line, 2);
        assert!(what.contains("not closed"), "{what}");
        let (line, what) = error(b"\xef\xbb\xbf\"a\",b\n1,\"2\"\"\"\n3,\"4", None);
        assert_eq!(line, 3);
        assert!(what.contains("not closed"), "{what}");
        let (line, what) = error(b"a,b\n1,\"2\n3,4\n5,\"6\n7,8\n", None);
        assert_eq!(line, 2);
        assert!(
            what.contains("text behind a closing quotation mark, on line 4"),
            "{what}"
        );
        let (line, what) = error(b"a,b\r\n1,\"2\r\n3\",\"4\"\r\n5,6\r\n", None);
        assert_eq!(line, 2);
        assert!(
            what.contains("3 fields where the header has 2 (it spans lines 2 to 3"),
            "{what}"
        );
        let (line, what) = error(b"a,b\n1,2\n3,\xff\n", None);
        assert_eq!(line, 3);
        assert!(what.contains("column 2 (b): not UTF-8"), "{what}");
        let (line, what) = error(b"key_base64,value\nYQ=,x\n", None);
        assert_eq!(line, 2);
        assert!(what.contains("base64"), "{what}");
    }

    #[test]
    fn reading_can_start_at_a_line() {
        let file = b"a,b\nbad\n1,\"x\ny\"\n2,z\n";
        let rows = read(file, None, 3);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].as_ref().unwrap().line, 3);
        assert_eq!(rows[1].as_ref().unwrap().line, 5);
    }

    fn round_trip(records: &[(&[u8], &[u8])]) -> String {
        let mut survey = Survey::default();
        for (k, v) in records {
            survey.see(k, v);
        }
        let plan = survey.plan();
        let key = match &plan {
            Plan::Table { names, key } => Some(names[*key].clone()),
            Plan::Pairs { .. } => None,
        };
        let mut file = Vec::new();
        plan.write_header(&mut file).unwrap();
        for (k, v) in records {
            plan.write(k, v, &mut file).unwrap();
        }
        let rows = read(&file, key.as_deref(), 1);
        assert_eq!(rows.len(), records.len());
        for (row, (k, v)) in rows.into_iter().zip(records) {
            let row = row.unwrap();
            assert_eq!((&row.key[..], &row.value[..]), (*k, *v));
        }
        String::from_utf8_lossy(&file)
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    }

    #[test]
    fn what_is_written_reads_back() {
        let table: [(&[u8], &[u8]); 2] = [
            (b"1", br#"{"n":"x\r\n","id":"1"}"#),
            (b"", br#"{"n":"\u0001,\"","id":""}"#),
        ];
        assert_eq!(round_trip(&table), "n,id");
        assert_eq!(round_trip(&[(b"k", b"v"), (b"", b"")]), "key,value");
        assert_eq!(
            round_trip(&[(b"\xff", b"\r"), (b"a", b"\"")]),
            "key_base64,value"
        );
        assert_eq!(round_trip(&[(b"k", b"\xff")]), "key,value_base64");
        // Not the text that a row would make again, or not the same columns, or no key in it.
        assert_eq!(round_trip(&[(b"1", br#"{"id": "1"}"#)]), "key,value");
        assert_eq!(round_trip(&[(b"1", br#"{"id":1}"#)]), "key,value");
        assert_eq!(round_trip(&[(b"2", br#"{"id":"1"}"#)]), "key,value");
        assert_eq!(
            round_trip(&[(b"1", br#"{"key":"1","value":"x"}"#)]),
            "key,value"
        );
        assert_eq!(round_trip(&[(b"", br#"{"id":""}"#)]), "id");
        assert_eq!(round_trip(&[]), "key,value");
    }
}
