//! The keys and values that a command works on, and the commands on one key.

use crate::failure::{Failure, Outcome};
use crate::text::{base64, program, quoted, shell_path};
use crate::{MAX_KEY, MAX_VALUE, print_json, rows};
use bristlecone_pmem::MediumKind;
use serde::Serialize;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Read, Write};
use std::ops::{Bound, ControlFlow};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A value as it can be shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown<'v> {
    /// Its type, in a server's keyspace: as `TYPE` has it.
    pub kind: Option<&'static str>,
    /// Its bytes; none for a server's collection.
    pub value: Option<&'v [u8]>,
    /// When it expires, in ms since 1970.
    pub expires_at: Option<u64>,
}

impl<'v> Shown<'v> {
    /// A value that is bytes and nothing else.
    #[must_use]
    pub fn bytes(value: &'v [u8]) -> Self {
        Self {
            value: Some(value),
            ..Self::default()
        }
    }
}

/// The visitor of a scan: it gets a record and may end the scan.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &Shown<'_>) -> ControlFlow<()>;

/// The effect of a write on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It was not there before.
    New,
    /// It had another value before.
    Replaced,
    /// It had this value before.
    Same,
}

/// Keys and values in order: a keyspace of a database, or a bare index. Errors name the pool.
///
/// A write is as durable as the pool was opened for when the method returns.
pub trait Records: Sync {
    /// The pool's path.
    fn path(&self) -> &Path;

    /// Whether values have types, as a server's have.
    fn typed(&self) -> bool;

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// The value is damaged, or of a type that has no bytes to show.
    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>>;

    /// Stores `value` under `key`. Returns whether the key was there.
    ///
    /// # Errors
    /// The pool does not take it; nothing has changed.
    fn put(&self, key: &[u8], value: &[u8]) -> Outcome<bool>;

    /// Removes `key`. Returns whether it was there.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    fn remove(&self, key: &[u8]) -> Outcome<bool>;

    /// Stores pairs of distinct keys. Returns one result for each, in order.
    fn put_all(&self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<Outcome<Written>>;

    /// Visits the records of a range until `visit` breaks, upwards or downwards.
    ///
    /// # Errors
    /// A record is damaged: those before it were visited.
    fn scan(&self, range: &Range, reverse: bool, visit: Visit<'_>) -> Outcome;

    /// Closes the pool cleanly.
    ///
    /// # Errors
    /// The written changes are not durable.
    fn close(self: Box<Self>) -> Outcome;
}

/// A range of keys.
#[derive(Clone, Debug)]
pub struct Range {
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
}

impl Range {
    /// Every key.
    pub const ALL: Self = Self {
        from: Bound::Unbounded,
        to: Bound::Unbounded,
    };

    /// Keys from `from` on, before `to`, that begin with `prefix`.
    #[must_use]
    pub fn new(from: Option<&[u8]>, to: Option<&[u8]>, prefix: Option<&[u8]>) -> Self {
        let after = prefix.and_then(successor);
        let from = match (from, prefix) {
            (Some(f), Some(p)) => Some(f.max(p)),
            (f, p) => f.or(p),
        };
        let to = match (to, after.as_deref()) {
            (Some(t), Some(a)) => Some(t.min(a)),
            (t, a) => t.or(a),
        };
        Self {
            from: from.map_or(Bound::Unbounded, |f| Bound::Included(f.to_vec())),
            to: to.map_or(Bound::Unbounded, |t| Bound::Excluded(t.to_vec())),
        }
    }

    /// Whether no key can be in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match (&self.from, &self.to) {
            (Bound::Included(f), Bound::Excluded(t)) => f >= t,
            (_, Bound::Excluded(t)) => t.is_empty(),
            _ => false,
        }
    }

    /// Its bounds.
    #[must_use]
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (
            self.from.as_ref().map(Vec::as_slice),
            self.to.as_ref().map(Vec::as_slice),
        )
    }
}

/// Returns the least key after all that begin with `prefix`; none if they reach the end.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|b| *b != u8::MAX)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

/// Returns what a medium survives, as a sentence.
#[must_use]
pub fn survival(medium: MediumKind) -> String {
    format!("acknowledged writes survive {}", medium.survives())
}

/// Returns the key that an argument gives.
///
/// # Errors
/// It is too long.
pub fn key(arg: &OsStr) -> Outcome<&[u8]> {
    let key = arg.as_bytes();
    if key.len() > MAX_KEY {
        return Err(Failure::new(format!(
            "key {}: a key may have up to {MAX_KEY} bytes; store a digest of it as the key and the rest in the value",
            quoted(key)
        )));
    }
    Ok(key)
}

/// Returns the value that an argument gives: its bytes or, for `-`, those of standard input.
///
/// # Errors
/// It is too long, or standard input cannot be read.
pub fn value<'a>(key: &[u8], arg: &'a OsStr) -> Outcome<Cow<'a, [u8]>> {
    let value = if arg == "-" {
        let mut value = Vec::new();
        io::stdin()
            .lock()
            .take(MAX_VALUE as u64 + 1)
            .read_to_end(&mut value)
            .map_err(|e| Failure::new(format!("standard input: reading failed: {e}")))?;
        Cow::Owned(value)
    } else {
        Cow::Borrowed(arg.as_bytes())
    };
    if value.len() > MAX_VALUE {
        return Err(Failure::new(format!(
            "the value for key {} has more than {MAX_VALUE} bytes, which is the most; split it over several keys",
            quoted(key)
        )));
    }
    Ok(value)
}

/// A key in JSON, and what a command did about it.
#[derive(Serialize)]
struct Done<'k> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'k str>,
    /// Where its bytes are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<bool>,
}

impl<'k> Done<'k> {
    fn about(key: &'k [u8]) -> Self {
        let text = std::str::from_utf8(key).ok();
        Self {
            key: text,
            key_base64: text.is_none().then(|| base64(key)),
            replaced: None,
            removed: None,
        }
    }
}

/// Stores a value and closes the pool; with `json`, prints whether there was one.
///
/// # Errors
/// The pool refuses, or standard output cannot be written to.
pub fn put(records: Box<dyn Records>, key: &[u8], value: &[u8], json: bool) -> Outcome {
    let replaced = records.put(key, value)?;
    records.close()?;
    if !json {
        return Ok(());
    }
    print_json(&Done {
        replaced: Some(replaced),
        ..Done::about(key)
    })
}

/// Prints the value of a key, with a line break after it on a terminal; with `json`, key and value
/// as `scan` does, and for a server's collection just what it is.
///
/// # Errors
/// The key is not there, its value is damaged, or standard output cannot be written to.
pub fn print_value(records: &dyn Records, key: &[u8], json: bool) -> Outcome {
    if json {
        let mut line = String::new();
        // The only key that is not below the one and not above it.
        let range = Range::new(Some(key), Some(&[key, b"\0"].concat()), None);
        records.scan(&range, false, &mut |key, shown| {
            rows::json::push_shown(key, shown, &mut line);
            ControlFlow::Break(())
        })?;
        if line.is_empty() {
            return Err(missing(records.path(), key));
        }
        return writeln!(io::stdout(), "{line}").map_err(|e| Failure::output(&e));
    }
    let found = records.get(key)?;
    let value = found.ok_or_else(|| missing(records.path(), key))?;
    let mut out = io::stdout().lock();
    let line_break: &[u8] = if out.is_terminal() { b"\n" } else { b"" };
    out.write_all(&value)
        .and_then(|()| out.write_all(line_break))
        .and_then(|()| out.flush())
        .map_err(|e| Failure::output(&e))
}

/// Removes a key and closes the pool; with `json`, prints whether it was there.
///
/// # Errors
/// The key is not there, or the pool refuses, or standard output cannot be written to.
pub fn delete(records: Box<dyn Records>, key: &[u8], json: bool) -> Outcome {
    let path = records.path().to_path_buf();
    let there = records.remove(key)?;
    records.close()?;
    if json {
        print_json(&Done {
            removed: Some(there),
            ..Done::about(key)
        })?;
    }
    if there {
        Ok(())
    } else {
        Err(missing(&path, key))
    }
}

fn missing(pool: &Path, key: &[u8]) -> Failure {
    Failure::new(format!(
        "{}: no key {}; `{} scan {}` lists what there is",
        pool.display(),
        quoted(key),
        program(),
        shell_path(pool)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_where_they_should() {
        assert_eq!(successor(b"FR/"), Some(b"FR0".to_vec()));
        assert_eq!(successor(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(successor(b"\xff\xff"), None);
        assert_eq!(successor(b""), None);
    }

    #[test]
    fn ranges_intersect() {
        let r = Range::new(Some(b"FR/L"), None, Some(b"FR/"));
        assert_eq!(
            r.bounds(),
            (Bound::Included(&b"FR/L"[..]), Bound::Excluded(&b"FR0"[..]))
        );
        assert!(!r.is_empty());
        assert!(Range::new(Some(b"b"), Some(b"a"), None).is_empty());
        assert!(Range::new(None, Some(b""), None).is_empty());
        assert!(Range::new(Some(b"G"), None, Some(b"FR/")).is_empty());
        assert!(!Range::ALL.is_empty());
    }
}
