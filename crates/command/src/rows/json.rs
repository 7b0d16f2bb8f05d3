//! JSON lines.

use super::{Row, RowError};
use crate::records::Shown;
use crate::text::{base64, from_base64, quoted};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

/// Longest line that is read. A longer one is not a row but a file of another kind.
const MAX_LINE: u64 = 64 << 20;

/// A JSON object's fields in the order of the text, values unparsed.
pub struct Fields<'a>(pub Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Fields<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// A key and its value.
type KeyValue = (Vec<u8>, Vec<u8>);

/// The message of serde, without the "line 1" that would be taken for a line of the file.
fn malformed(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    format!("malformed JSON at column {}: {what}", error.column())
}

/// Key and value of a line without its line break.
pub fn parse(line: &[u8], key_field: Option<&str>) -> Result<KeyValue, String> {
    let text = std::str::from_utf8(line)
        .map_err(|e| format!("not UTF-8 from byte {} of the line on", e.valid_up_to() + 1))?;
    let Fields(fields) = serde_json::from_str(text).map_err(|e| malformed(&e))?;
    if key_field.is_none()
        && let Some(pair) = pair(&fields)?
    {
        return Ok(pair);
    }
    let name = key_field.unwrap_or("key");
    let mut named = fields.iter().filter(|(n, _)| n == name);
    let Some((_, raw)) = named.next() else {
        let names: Vec<_> = fields
            .iter()
            .take(8)
            .map(|(n, _)| quoted(n.as_bytes()))
            .collect();
        let more = if fields.len() > 8 { ", …" } else { "" };
        return Err(format!(
            "no field {} for the key (the fields are {}{more}); name one with --key",
            quoted(name.as_bytes()),
            if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            }
        ));
    };
    if named.next().is_some() {
        return Err(format!(
            "the field {} is there twice",
            quoted(name.as_bytes())
        ));
    }
    Ok((scalar(name, raw)?, line.to_vec()))
}

/// Key and value, if the object has just these two.
fn pair(fields: &[(String, &RawValue)]) -> Result<Option<KeyValue>, String> {
    let [a, b] = fields else { return Ok(None) };
    let is = |f: &(String, &RawValue), plain, coded| f.0 == plain || f.0 == coded;
    let (key, value) = if is(a, "key", "key_base64") && is(b, "value", "value_base64") {
        (a, b)
    } else if is(b, "key", "key_base64") && is(a, "value", "value_base64") {
        (b, a)
    } else {
        return Ok(None);
    };
    let key = if key.0 == "key" {
        scalar("key", key.1)?
    } else {
        coded(key)?
    };
    let value = if value.0 == "value_base64" {
        coded(value)?
    } else if value.1.get().starts_with('"') {
        string("value", value.1)?.into_bytes()
    } else {
        value.1.get().as_bytes().to_vec()
    };
    Ok(Some((key, value)))
}

fn coded((name, raw): &(String, &RawValue)) -> Result<Vec<u8>, String> {
    if !raw.get().starts_with('"') {
        return Err(format!("field \"{name}\": expected a string of base64"));
    }
    from_base64(&string(name, raw)?).map_err(|e| format!("field \"{name}\": {e}"))
}

fn string(name: &str, raw: &RawValue) -> Result<String, String> {
    serde_json::from_str(raw.get())
        .map_err(|e| format!("field {}: {}", quoted(name.as_bytes()), malformed(&e)))
}

/// A field as a key: a string's content, or a number's or boolean's text.
fn scalar(name: &str, raw: &RawValue) -> Result<Vec<u8>, String> {
    match raw.get().as_bytes().first() {
        Some(b'"') => string(name, raw).map(String::into_bytes),
        Some(b'{' | b'[' | b'n') => Err(format!(
            "field {}: a key must be a string, number or boolean, not {}",
            quoted(name.as_bytes()),
            quoted(raw.get().as_bytes())
        )),
        _ => Ok(raw.get().as_bytes().to_vec()),
    }
}

/// Appends `text` as a JSON string.
pub fn push_string(text: &str, out: &mut String) {
    match serde_json::to_string(text) {
        Ok(quoted) => out.push_str(&quoted),
        // A string always serializes; this keeps the signature simple.
        Err(_) => out.push_str("\"\""),
    }
}

fn push_bytes(name: &str, bytes: &[u8], out: &mut String) {
    out.push('"');
    out.push_str(name);
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            out.push_str("\":");
            push_string(text, out);
        }
        Err(_) => {
            out.push_str("_base64\":\"");
            out.push_str(&base64(bytes));
            out.push('"');
        }
    }
}

/// Appends `{"key":…,"value":…}`, both as strings, `…_base64` where the bytes are not UTF-8.
pub fn push_pair(key: &[u8], value: &[u8], out: &mut String) {
    out.push('{');
    push_bytes("key", key, out);
    out.push(',');
    push_bytes("value", value, out);
    out.push('}');
}

/// Appends `{"key":…,"type":…,"value":…,"expires_at":…}`, with what is there of the last three.
pub fn push_shown(key: &[u8], shown: &Shown<'_>, out: &mut String) {
    out.push('{');
    push_bytes("key", key, out);
    if let Some(kind) = shown.kind {
        out.push(',');
        push_bytes("type", kind.as_bytes(), out);
    }
    if let Some(value) = shown.value {
        out.push(',');
        push_bytes("value", value, out);
    }
    if let Some(at) = shown.expires_at {
        out.push_str(",\"expires_at\":");
        out.push_str(&at.to_string());
    }
    out.push('}');
}

/// Appends the line for a record: the value itself where it is an object that holds its key, else a
/// pair, with the value as JSON where it is an object or array.
pub fn push_line(key: &[u8], value: &[u8], out: &mut String) {
    if let Ok(text) = std::str::from_utf8(value)
        && !text.contains(['\n', '\r'])
        && text.starts_with(['{', '['])
    {
        let reads_back =
            |line: &str| parse(line.as_bytes(), None).is_ok_and(|(k, v)| k == key && v == value);
        if reads_back(text) {
            out.push_str(text);
            return;
        }
        let mut line = String::with_capacity(text.len() + key.len() + 24);
        line.push('{');
        push_bytes("key", key, &mut line);
        line.push_str(",\"value\":");
        line.push_str(text);
        line.push('}');
        if reads_back(&line) {
            out.push_str(&line);
            return;
        }
    }
    push_pair(key, value, out);
}

/// The rows of a file of JSON lines.
pub struct Reader<R> {
    input: BufReader<R>,
    key: Option<String>,
    from_line: u64,
    line: u64,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Rows from `from_line` on.
    pub fn new(input: R, key: Option<&str>, from_line: u64) -> Self {
        Self {
            input: BufReader::with_capacity(256 << 10, input),
            key: key.map(str::to_owned),
            from_line,
            line: 0,
            ended: false,
        }
    }

    /// The next line without its break; `None` at the end.
    fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let read = (&mut self.input)
            .take(MAX_LINE + 1)
            .read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        if line.len() as u64 > MAX_LINE {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("more than {MAX_LINE} bytes without a line break; is this a .jsonl file?"),
            ));
        }
        if line.ends_with(b"\n") {
            line.pop();
            if line.ends_with(b"\r") {
                line.pop();
            }
        }
        Ok(Some(line))
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Row, RowError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            self.line += 1;
            let line = self.line;
            let mut bytes = match self.next_line() {
                Ok(Some(bytes)) => bytes,
                Ok(None) => {
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
            };
            if line == 1 && bytes.starts_with(b"\xef\xbb\xbf") {
                bytes.drain(..3);
            }
            if line < self.from_line || bytes.trim_ascii().is_empty() {
                continue;
            }
            return Some(match parse(&bytes, self.key.as_deref()) {
                Ok((key, value)) => Ok(Row { line, key, value }),
                Err(what) => Err(RowError { line, what }),
            });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(line: &str) -> (String, String) {
        let (k, v) = parse(line.as_bytes(), None).unwrap();
        (String::from_utf8(k).unwrap(), String::from_utf8(v).unwrap())
    }

    fn pair_of(k: &str, v: &str) -> (String, String) {
        (k.to_owned(), v.to_owned())
    }

    #[test]
    fn a_line_is_its_own_value() {
        let line = r#"{"key":"a\u0062","n":1,"deep":{"key":"no"}}"#;
        assert_eq!(ok(line), pair_of("ab", line));
        assert_eq!(
            ok(r#" {"n":1, "key":17} "#),
            pair_of("17", r#" {"n":1, "key":17} "#)
        );
    }

    #[test]
    fn pairs_hold_the_value_alone() {
        assert_eq!(ok(r#"{"key":"a","value":"x\ny"}"#), pair_of("a", "x\ny"));
        assert_eq!(
            ok(r#"{"value":{"n": 1},"key":"a"}"#),
            pair_of("a", r#"{"n": 1}"#)
        );
        assert_eq!(
            ok(r#"{"key_base64":"YQ==","value_base64":""}"#),
            pair_of("a", "")
        );
    }

    #[test]
    fn errors_say_where() {
        let wrong = |line: &[u8], part: &str| {
            let e = parse(line, None).unwrap_err();
            assert!(e.contains(part), "{e}");
        };
        wrong(b"{\"key\":\"a\",", "column 11");
        wrong(b"[1]", "a JSON object");
        wrong(b"{\"id\":1}", "no field \"key\"");
        wrong(b"{}", "the fields are none");
        wrong(b"{\"key\":null}", "a key must be");
        wrong(b"{\"key\":1,\"a\":2,\"key\":3}", "twice");
        wrong(b"{\"key\":\"\xff\"}", "byte 9");
        wrong(b"{\"key_base64\":\"A\",\"value\":1}", "base64");
        wrong(b"{\"key\":\"\\ud800\"}", "column");
        wrong(b"", "column");
    }

    #[test]
    fn what_is_written_reads_back() {
        let values: [&[u8]; 12] = [
            b"",
            b"plain",
            b"\xff\x00",
            b"{\"key\":\"k\",\"a\":1}",
            b"{\"key\":\"other\",\"a\":1}",
            b"{\"key\":\"k\",\"value\":\"v\"}",
            b"{\"key\":\"k\",\"a\":1} ",
            b"{\"key\":\"k\",\"a\":\n1}",
            b"[1,2]",
            b"{broken",
            b"null",
            "\u{feff}é\u{2028}".as_bytes(),
        ];
        for value in values {
            for key in [&b"k"[..], b"", b"\xfe\"", b"a\r\nb"] {
                let mut line = String::new();
                push_line(key, value, &mut line);
                assert!(!line.contains('\n'));
                assert_eq!(
                    parse(line.as_bytes(), None).unwrap(),
                    (key.to_vec(), value.to_vec())
                );
                let mut line = String::new();
                push_pair(key, value, &mut line);
                assert_eq!(
                    parse(line.as_bytes(), None).unwrap(),
                    (key.to_vec(), value.to_vec())
                );
            }
        }
        let mut line = String::new();
        push_line(b"k", values[3], &mut line);
        assert_eq!(line.as_bytes(), values[3]);
    }

    #[test]
    fn lines_are_counted_as_editors_count() {
        let file = b"\xef\xbb\xbf{\"key\":1}\r\n\n{\"key\":2}\nbad\n{\"key\":3}";
        let rows: Vec<_> = Reader::new(&file[..], None, 1).collect();
        assert_eq!(rows.len(), 4);
        let row = |i: usize| rows[i].as_ref().unwrap();
        assert_eq!((row(0).line, &row(0).value[..]), (1, &b"{\"key\":1}"[..]));
        assert_eq!(row(1).line, 3);
        assert_eq!(rows[2].as_ref().unwrap_err().line, 4);
        assert_eq!(row(3).line, 5);
        let rows: Vec<_> = Reader::new(&file[..], None, 5).collect();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].as_ref().unwrap().line, 5);
    }
}
