//! The meta commands: `mg`, `ms`, `md`, `ma`, `me`.

use super::text::{BAD_FORMAT, NOT_A_NUMBER, TOO_LARGE};
use super::words::{Words, time, value_length};
use super::{Memcached, Next, expiry};
use crate::items::ItemError;
use crate::items::change::{Change, Counted, Deleted, Delta, Mode, Put, Stored};
use crate::items::record::{BINARY, Item, Record, STALE, WON, seconds_left, size};
use crate::parse::c_number::unsigned;
use crate::reply::{Out, Protocol};
use crate::server::Server;
use crate::table::add;
use base64::Engine;
use base64::alphabet::STANDARD as ALPHABET;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use std::borrow::Cow;
use std::io::Write;

/// The most words of a command, its end included.
const MAX_WORDS: usize = 20;
/// The longest opaque token, its letter included.
const MAX_OPAQUE: usize = 32;
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const BAD_FLAG: &str = "CLIENT_ERROR invalid or duplicate flag";

/// Base64 as memcached reads it: bits that are left over may be anything.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// The flags of a command.
#[derive(Debug, Default)]
struct Flags<'a> {
    /// As they were given: the letter and its token.
    all: Vec<(u8, &'a [u8])>,
    /// The key, decoded.
    key: Cow<'a, [u8]>,
    binary: bool,
    quiet: bool,
    value: bool,
    no_bump: bool,
    stale: bool,
    mode: Option<u8>,
    expires_at: Option<Option<u64>>,
    vivify: Option<Option<u64>>,
    /// Seconds to live below which the client wants to make the item anew.
    recache: Option<i64>,
    client_flags: u32,
    cas: Option<u64>,
    delta: u64,
    initial: u64,
}

impl<'a> Flags<'a> {
    /// Parses the flags among the words from `from` on.
    fn parse(words: &Words<'a>, from: usize, now: u64) -> Result<Self, &'static str> {
        let mut flags = Self {
            key: Cow::Borrowed(words.get(1)),
            delta: 1,
            ..Self::default()
        };
        let mut error = None;
        for word in words.from(from) {
            let Some((letter, token)) = word.split_first() else {
                continue;
            };
            if *letter >= 127 || flags.all.iter().any(|(seen, _)| seen == letter) {
                return Err("CLIENT_ERROR duplicate flag");
            }
            flags.all.push((*letter, token));
            if let Err(text) = flags.take(*letter, token, now)? {
                // The last one is told, but for that.
                error = if *letter == b'F' {
                    error.or(Some(text))
                } else {
                    Some(text)
                };
            }
        }
        error.map_or(Ok(flags), Err)
    }

    /// Takes one flag. The error within leaves the flags that follow to be looked at.
    fn take(
        &mut self,
        letter: u8,
        token: &'a [u8],
        now: u64,
    ) -> Result<Result<(), &'static str>, &'static str> {
        let expires = || time(token).map(|time| expiry(time, now)).ok_or(BAD_TOKEN);
        let taken = match letter {
            b'b' => {
                self.binary = true;
                BASE64
                    .decode(&*self.key)
                    .map_or(Err("CLIENT_ERROR error decoding key"), |key| {
                        if key.is_empty() {
                            return Err("CLIENT_ERROR error decoding key");
                        }
                        self.key = Cow::Owned(key);
                        Ok(())
                    })
            }
            b'N' => expires().map(|at| self.vivify = Some(at)),
            b'T' => expires().map(|at| self.expires_at = Some(at)),
            b'R' => time(token)
                .ok_or(BAD_TOKEN)
                .map(|time| self.recache = Some(time)),
            b'F' => match unsigned(token) {
                Some(number) => {
                    self.client_flags = number as u32;
                    Ok(())
                }
                None => Err(BAD_FORMAT),
            },
            b'C' => unsigned(token)
                .ok_or(BAD_TOKEN)
                .map(|cas| self.cas = Some(cas)),
            b'M' => match token {
                [mode] => {
                    self.mode = Some(*mode);
                    Ok(())
                }
                _ => Err("CLIENT_ERROR incorrect length for M token"),
            },
            b'J' => unsigned(token)
                .ok_or("CLIENT_ERROR invalid numeric initial value")
                .map(|initial| self.initial = initial),
            b'D' => unsigned(token)
                .ok_or("CLIENT_ERROR invalid numeric delta value")
                .map(|delta| self.delta = delta),
            b'v' => {
                self.value = true;
                Ok(())
            }
            b'u' => {
                self.no_bump = true;
                Ok(())
            }
            b'q' => {
                self.quiet = true;
                Ok(())
            }
            b'I' => {
                self.stale = true;
                Ok(())
            }
            b'l' | b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'h' => Ok(()),
            _ => return Err("CLIENT_ERROR invalid flag"),
        };
        Ok(taken)
    }

    fn opaque_is_too_long(&self) -> bool {
        let longer = |(letter, token): &(u8, &[u8])| *letter == b'O' && token.len() >= MAX_OPAQUE;
        self.all.iter().any(longer)
    }

    /// Appends the flags that every reply shows: the opaque token and the key.
    fn show(&self, line: &mut Vec<u8>, letter: u8, token: &[u8], binary: bool) {
        match letter {
            b'O' => {
                line.extend_from_slice(b" O");
                line.extend_from_slice(token);
            }
            b'k' => {
                line.extend_from_slice(b" k");
                if binary {
                    line.extend_from_slice(BASE64.encode(&*self.key).as_bytes());
                    line.extend_from_slice(b" b");
                } else {
                    line.extend_from_slice(&self.key);
                }
            }
            _ => {}
        }
    }

    /// Returns a line of a code and these flags.
    fn line(&self, code: &str) -> Vec<u8> {
        let mut line = code.as_bytes().to_vec();
        for (letter, token) in &self.all {
            self.show(&mut line, *letter, token, self.binary);
        }
        line
    }
}

/// What `mg` found, and what it changed.
struct Got {
    line: Vec<u8>,
    value: Vec<u8>,
    found: bool,
}

/// Appends a flag with a number.
fn flag(line: &mut Vec<u8>, letter: char, number: impl std::fmt::Display) {
    // Writing to a vector does not fail.
    let _ = write!(line, " {letter}{number}");
}

fn flag_ttl(line: &mut Vec<u8>, expires_at: Option<u64>, now: u64) {
    match seconds_left(expires_at, now) {
        None => flag(line, 't', -1),
        Some(seconds) => flag(line, 't', seconds),
    }
}

impl Memcached {
    /// Appends a line, and a value if there is one.
    fn say_meta(&self, out: &mut Vec<u8>, line: &[u8], value: Option<&[u8]>) {
        let mut out = Out::for_client(out, Protocol::Resp2, &self.client.account);
        out.raw(line);
        out.raw(b"\r\n");
        if let Some(value) = value {
            out.raw(value);
            out.raw(b"\r\n");
        }
    }

    /// Returns the flags of a command that is well formed.
    fn meta_flags<'a>(
        &self,
        server: &Server,
        words: &Words<'a>,
        as_command: &str,
        bad: Option<&'static str>,
    ) -> Result<Flags<'a>, String> {
        if words.len() < 3 {
            return Err("ERROR".into());
        }
        if self.is_too_long(words.get(1)) {
            return Err(BAD_FORMAT.into());
        }
        if words.len() > MAX_WORDS {
            let options = if bad.is_some() {
                "options flags too long"
            } else {
                "options flags are too long"
            };
            return Err(format!("CLIENT_ERROR {options}"));
        }
        let flags = Flags::parse(words, 2, self.items.now()).map_err(|text| bad.unwrap_or(text))?;
        if flags.opaque_is_too_long() {
            return Err("CLIENT_ERROR opaque token too long".into());
        }
        let permitted = self.permit(server, as_command, Some(&flags.key));
        permitted.map_err(|text| format!("CLIENT_ERROR {text}"))?;
        Ok(flags)
    }

    fn refuse_meta(&self, server: &Server, out: &mut Vec<u8>, text: &str) {
        add(&server.stats.errors, 1);
        self.say(out, false, text);
    }

    /// `mg`
    pub(super) fn meta_get(&mut self, server: &Server, words: &Words<'_>, out: &mut Vec<u8>) {
        let flags = match self.meta_flags(server, words, "get", None) {
            Ok(flags) => flags,
            Err(text) => return self.refuse_meta(server, out, &text),
        };
        let changes = flags.vivify.is_some() || flags.expires_at.is_some();
        if changes && let Err(text) = self.permit(server, "set", Some(&flags.key)) {
            return self.refuse_meta(server, out, &format!("CLIENT_ERROR {text}"));
        }
        let now = self.items.now();
        let got = self.look_or_change(&flags, now, changes);
        let got = match got {
            Ok(got) => got,
            Err(e) => return self.say_failed(server, out, false, &e),
        };
        let counters = &self.items.counters;
        if got.found && flags.expires_at.is_some() {
            counters.count_touch(true);
        } else {
            counters.count_gets(u64::from(got.found), u64::from(!got.found));
        }
        if got.found {
            if !flags.no_bump {
                self.items.note_read(now, &[&flags.key]);
            }
            self.say_meta(out, &got.line, flags.value.then_some(&*got.value));
        } else if !flags.quiet {
            self.say_meta(out, &flags.line("EN"), None);
        }
        self.note(server, "mg", &flags.key, 1);
    }

    /// Reads an item. It is changed only if the flags say so, or if this client is the one to make
    /// it anew.
    fn look_or_change(
        &mut self,
        flags: &Flags<'_>,
        now: u64,
        changes: bool,
    ) -> Result<Got, ItemError> {
        let used = self.items.last_use(&flags.key);
        if !changes {
            let reads = self.reads();
            let looked = self.items.read(now, &flags.key, reads, |item| {
                let (got, change) = answer(flags, item, (now, false), used);
                change.is_none().then_some(got)
            })?;
            self.unsettled |= reads == crate::data::Reads::Applied;
            match looked {
                None => return Ok(miss()),
                Some(Some(got)) => return Ok(got),
                // Its marks have to change.
                Some(None) => {}
            }
        }
        self.wrote();
        let items = &self.items;
        items.change(now, &flags.key, |item| {
            let Some(item) = item else {
                if flags.vivify.is_none() {
                    return (Change::Keep, miss());
                }
                let new = Item {
                    flags: 0,
                    cas: items.next_cas(),
                    marks: 0,
                    expires_at: None,
                    value: b"",
                };
                let (got, record) = answer(flags, &new, (now, true), used);
                let record = record.unwrap_or_else(|| Record::new(&new, &[]));
                return (Change::Store(record), got);
            };
            let (got, record) = answer(flags, &item, (now, false), used);
            (record.map_or(Change::Keep, Change::Alter), got)
        })
    }

    /// `ms`
    pub(super) fn meta_set(
        &mut self,
        server: &Server,
        bytes: &[u8],
        (words, end): (&Words<'_>, usize),
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        let early = if words.len() < 3 {
            Some("ERROR")
        } else if self.is_too_long(words.get(1)) || words.len() == 3 {
            Some(BAD_FORMAT)
        } else if words.len() > MAX_WORDS {
            Some("CLIENT_ERROR options flags too long")
        } else {
            None
        };
        let length = value_length(words.get(2));
        let (Some(length), None) = (length, early) else {
            self.refuse_meta(server, out, early.unwrap_or(BAD_FORMAT));
            return (end, Next::More);
        };
        let now = self.items.now();
        let parsed = self.parse_meta_set(server, words, now);
        let (flags, put) = match &parsed {
            Ok((flags, put)) => (flags, put),
            Err(text) => {
                self.refuse_meta(server, out, text);
                self.discards = length + 2;
                return (end, Next::More);
            }
        };
        let mut put = *put;
        put.key = &flags.key;
        if size(put.key.len(), put.flags, length) > self.items.limits.item {
            add(&self.items.counters.store_too_large, 1);
            self.wrote();
            // No older value may be taken for the new one.
            match self.items.delete(now, put.key, None) {
                Ok(_) => self.refuse_meta(server, out, TOO_LARGE),
                Err(e) => self.say_failed(server, out, false, &e),
            }
            self.discards = length + 2;
            return (end, Next::More);
        }
        let whole = end + length + 2;
        let Some(value) = bytes.get(end..whole) else {
            self.needed = whole;
            return (0, Next::Incomplete);
        };
        let Some(value) = value.strip_suffix(b"\r\n") else {
            add(&self.items.counters.cmd_set, 1);
            self.refuse_meta(server, out, "CLIENT_ERROR bad data chunk");
            return (whole, Next::More);
        };
        put.value = value;
        self.wrote();
        let items = &self.items;
        let stored = match Self::perhaps_long(length, || items.store(now, &put)) {
            Ok(stored) => stored,
            Err(e) => {
                self.say_failed(server, out, false, &e);
                return (whole, Next::More);
            }
        };
        let (code, cas) = match stored {
            Stored::Done(cas) => ("HD", cas),
            Stored::Refused => ("NS", 0),
            Stored::Exists => ("EX", 0),
            Stored::NotFound => ("NF", 0),
        };
        if code != "HD" || !flags.quiet {
            let mut line = code.as_bytes().to_vec();
            for (letter, token) in &flags.all {
                if *letter == b'c' {
                    flag(&mut line, 'c', cas);
                } else {
                    flags.show(&mut line, *letter, token, flags.binary);
                }
            }
            self.say_meta(out, &line, None);
        }
        self.note(server, "ms", put.key, 1);
        (whole, Next::More)
    }

    /// Returns the flags of `ms`, and the item without its key and its value.
    fn parse_meta_set<'a>(
        &self,
        server: &Server,
        words: &Words<'a>,
        now: u64,
    ) -> Result<(Flags<'a>, Put<'static>), String> {
        let flags = Flags::parse(words, 3, now)?;
        let mut mode = match flags.mode {
            None | Some(b'S') => Mode::Set,
            Some(b'E') => Mode::Add,
            Some(b'A') => Mode::Append,
            Some(b'P') => Mode::Prepend,
            Some(b'R') => Mode::Replace,
            Some(_) => return Err("CLIENT_ERROR invalid mode for ms M token".into()),
        };
        if flags.opaque_is_too_long() {
            return Err("CLIENT_ERROR opaque token too long".into());
        }
        if flags.cas.is_some() && matches!(mode, Mode::Set | Mode::Replace) {
            mode = Mode::Cas;
        }
        let permitted = self.permit(server, "set", Some(&flags.key));
        permitted.map_err(|text| format!("CLIENT_ERROR {text}"))?;
        let put = Put {
            mode,
            key: b"",
            value: b"",
            flags: flags.client_flags,
            expires_at: flags.expires_at.flatten(),
            cas: flags.cas.unwrap_or(0),
            stale: flags.stale && mode == Mode::Cas,
            binary: flags.binary,
        };
        Ok((flags, put))
    }

    /// `md`
    pub(super) fn meta_delete(&mut self, server: &Server, words: &Words<'_>, out: &mut Vec<u8>) {
        let flags = match self.meta_flags(server, words, "del", Some(BAD_FLAG)) {
            Ok(flags) => flags,
            Err(text) => return self.refuse_meta(server, out, &text),
        };
        let now = self.items.now();
        self.wrote();
        let deleted = if flags.stale {
            self.items
                .make_stale(now, &flags.key, flags.cas, flags.expires_at)
        } else {
            self.items.delete(now, &flags.key, flags.cas)
        };
        let deleted = match deleted {
            Ok(deleted) => deleted,
            Err(e) => return self.say_failed(server, out, false, &e),
        };
        let code = match deleted {
            Deleted::Done => "HD",
            Deleted::NotFound => "NF",
            Deleted::Exists => "EX",
        };
        if deleted != Deleted::Done || !flags.stale {
            self.items.counters.count_delete(deleted == Deleted::Done);
        }
        if code != "HD" || !flags.quiet {
            self.say_meta(out, &flags.line(code), None);
        }
        self.note(server, "md", &flags.key, 1);
    }

    /// `ma`
    pub(super) fn meta_count(&mut self, server: &Server, words: &Words<'_>, out: &mut Vec<u8>) {
        let flags = match self.meta_flags(server, words, "incrby", Some(BAD_FLAG)) {
            Ok(flags) => flags,
            Err(text) => return self.refuse_meta(server, out, &text),
        };
        let adds = match flags.mode {
            None | Some(b'I' | b'+') => true,
            Some(b'D' | b'-') => false,
            Some(_) => {
                let text = "CLIENT_ERROR invalid mode for ma M token";
                return self.refuse_meta(server, out, text);
            }
        };
        let now = self.items.now();
        self.wrote();
        let delta = Delta {
            adds,
            by: flags.delta,
            cas: flags.cas.unwrap_or(0),
            initial: flags.vivify.map(|expires_at| {
                // `T` sets the expiry of a new item, too.
                (
                    flags.initial,
                    last_expiry(&flags, true).unwrap_or(expires_at),
                )
            }),
            expires_at: last_expiry(&flags, false),
        };
        let counted = match self.items.count(now, &flags.key, &delta) {
            Ok(counted) => counted,
            Err(e) => return self.say_failed(server, out, false, &e),
        };
        match counted {
            Counted::Done {
                value,
                cas,
                expires_at,
                created,
            } => {
                if created || !flags.quiet {
                    let digits = value.to_string();
                    let mut line = if flags.value {
                        format!("VA {}", digits.len()).into_bytes()
                    } else {
                        b"HD".to_vec()
                    };
                    let mut expires_at = expires_at;
                    for (letter, token) in &flags.all {
                        match letter {
                            b'c' => flag(&mut line, 'c', cas),
                            b't' => flag_ttl(&mut line, expires_at, now),
                            b'T' => expires_at = flags.expires_at.flatten(),
                            b'N' if created => expires_at = flags.vivify.flatten(),
                            _ => flags.show(&mut line, *letter, token, flags.binary),
                        }
                    }
                    self.say_meta(out, &line, flags.value.then_some(digits.as_bytes()));
                }
            }
            Counted::NotFound => self.say_meta(out, &flags.line("NF"), None),
            Counted::Exists => self.say_meta(out, &flags.line("EX"), None),
            Counted::NotANumber => self.refuse_meta(server, out, NOT_A_NUMBER),
        }
        self.note(server, "ma", &flags.key, 1);
    }

    /// `me`
    pub(super) fn meta_debug(&mut self, server: &Server, words: &Words<'_>, out: &mut Vec<u8>) {
        if words.len() < 3 || self.is_too_long(words.get(1)) {
            return self.refuse_meta(server, out, BAD_FORMAT);
        }
        let mut key = Cow::Borrowed(words.get(1));
        if words.get(2) == b"b" {
            match BASE64.decode(&*key) {
                Ok(decoded) if !decoded.is_empty() => key = Cow::Owned(decoded),
                _ => return self.refuse_meta(server, out, BAD_FORMAT),
            }
        }
        if let Err(text) = self.permit(server, "get", Some(&key)) {
            return self.refuse_meta(server, out, &format!("CLIENT_ERROR {text}"));
        }
        let now = self.items.now();
        let used = self.items.last_use(&key);
        let reads = self.reads();
        let read = self.items.read(now, &key, reads, |item| {
            let mut line = b"ME ".to_vec();
            if item.is(BINARY) {
                line.extend_from_slice(BASE64.encode(&*key).as_bytes());
            } else {
                line.extend_from_slice(&key);
            }
            // Memcached shows the seconds since the item has expired.
            let left = item.seconds_left(now);
            let expiry = left.map_or(-1, |left| -i64::try_from(left).unwrap_or(i64::MAX));
            let since = (now / 1000).saturating_sub(used.at);
            let fetched = if used.read { "yes" } else { "no" };
            let size = size(key.len(), item.flags, item.value.len());
            // Writing to a vector does not fail.
            let _ = write!(
                line,
                " exp={expiry} la={since} cas={} fetch={fetched} cls=1 size={size}",
                item.cas
            );
            line
        });
        self.unsettled |= reads == crate::data::Reads::Applied;
        add(&self.items.counters.cmd_meta, 1);
        match read {
            Ok(Some(line)) => self.say_meta(out, &line, None),
            Ok(None) => self.say(out, false, "EN"),
            Err(e) => self.say_failed(server, out, false, &e),
        }
        self.note(server, "me", &key, 1);
    }
}

fn miss() -> Got {
    Got {
        line: Vec::new(),
        value: Vec::new(),
        found: false,
    }
}

/// Returns the expiry that an item has after its command: flags take effect in their order.
fn last_expiry(flags: &Flags<'_>, created: bool) -> Option<Option<u64>> {
    let last =
        (flags.all.iter()).rfind(|(letter, _)| *letter == b'T' || created && *letter == b'N');
    last.map(|(letter, _)| {
        if *letter == b'T' {
            flags.expires_at.flatten()
        } else {
            flags.vivify.flatten()
        }
    })
}

/// Returns the reply of `mg` for an item, and its record if that changes.
fn answer(
    flags: &Flags<'_>,
    item: &Item<'_>,
    (now, created): (u64, bool),
    used: crate::items::Use,
) -> (Got, Option<Record>) {
    let mut line = if flags.value {
        format!("VA {}", item.value.len()).into_bytes()
    } else {
        b"HD".to_vec()
    };
    let mut expires_at = item.expires_at;
    let mut won = false;
    for (letter, token) in &flags.all {
        match letter {
            b'T' => expires_at = flags.expires_at.flatten(),
            b'N' if created => {
                expires_at = flags.vivify.flatten();
                won = true;
            }
            b'R' => {
                let left = seconds_left(expires_at, now).and_then(|left| i64::try_from(left).ok());
                let least = match flags.recache {
                    Some(least) if least > super::RELATIVE => {
                        least.saturating_sub_unsigned(now / 1000)
                    }
                    least => least.unwrap_or(0),
                };
                won |= !item.is(WON) && !created && left.is_some_and(|left| left < least);
            }
            b's' => flag(&mut line, 's', item.value.len()),
            b't' => flag_ttl(&mut line, expires_at, now),
            b'c' => flag(&mut line, 'c', item.cas),
            b'f' => flag(&mut line, 'f', item.flags),
            b'l' => flag(&mut line, 'l', (now / 1000).saturating_sub(used.at)),
            b'h' => flag(&mut line, 'h', u8::from(used.read && !created)),
            _ => flags.show(&mut line, *letter, token, item.is(BINARY)),
        }
    }
    if item.is(WON) {
        line.extend_from_slice(b" Z");
    }
    if item.is(STALE) {
        line.extend_from_slice(b" X");
        won |= !item.is(WON);
    }
    let mut marks = item.marks;
    if won {
        line.extend_from_slice(b" W");
        marks |= WON;
    }
    let changed = created || marks != item.marks || expires_at != item.expires_at;
    let record = changed.then(|| item.with(item.cas, marks, expires_at));
    let got = Got {
        line,
        value: if flags.value {
            item.value.to_vec()
        } else {
            Vec::new()
        },
        found: true,
    };
    (got, record)
}
