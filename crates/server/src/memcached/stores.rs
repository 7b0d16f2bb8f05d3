//! The stores of the text protocol: `set`, `add`, `replace`, `append`, `prepend`, `cas`.

use super::text::{BAD_FORMAT, LONGEST_LINE, TOO_LARGE};
use super::words::{Words, first_line, flags, time, value_length};
use super::{AT_ONCE, Memcached, Next, expiry};
use crate::items::DetailUse;
use crate::items::change::{MAX_BATCH_BYTES, Mode, Put, Stored};
use crate::items::record::size;
use crate::parse::c_number::unsigned;
use crate::server::Server;
use crate::table::add;
use smallvec::SmallVec;

/// A store of a pipeline that nothing speaks against, with all of its value.
struct Plain<'a> {
    put: Put<'a>,
    no_reply: bool,
    end: usize,
}

impl Memcached {
    /// Executes a store. Plain ones that follow a plain one go with it.
    pub(super) fn stores(
        &mut self,
        server: &Server,
        bytes: &[u8],
        (mode, words, end): (Mode, &Words<'_>, usize),
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        let (put, length) = match self.parse_store(mode, words) {
            Ok(parsed) => parsed,
            Err(text) => {
                add(&server.stats.errors, 1);
                self.say(out, text != "ERROR" && words.no_reply(), text);
                return (end, Next::More);
            }
        };
        let no_reply = words.no_reply();
        let refused = if let Err(text) = self.permit(server, "set", Some(put.key)) {
            Some(format!("CLIENT_ERROR {text}"))
        } else if size(put.key.len(), put.flags, length) > self.items.limits.item {
            add(&self.items.counters.store_too_large, 1);
            if mode == Mode::Set {
                // No older value may be taken for the new one.
                self.wrote();
                if let Err(e) = self.items.delete(self.items.now(), put.key, None) {
                    self.say_failed(server, out, no_reply, &e);
                    self.discards = length + 2;
                    return (end, Next::More);
                }
            }
            Some(TOO_LARGE.to_owned())
        } else {
            None
        };
        if let Some(text) = refused {
            add(&server.stats.errors, 1);
            self.say(out, no_reply, &text);
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
            self.say(out, no_reply, "CLIENT_ERROR bad data chunk");
            return (whole, Next::More);
        };
        let put = Put { value, ..put };
        let details = &self.items.details;
        details.note(put.key, DetailUse::Set);
        if mode == Mode::Set {
            let first = Plain {
                put,
                no_reply,
                end: whole,
            };
            return self.set_together(server, bytes, first, out);
        }
        self.wrote();
        let (items, now) = (&self.items, self.items.now());
        match Self::perhaps_long(value.len(), || items.store(now, &put)) {
            Ok(stored) => self.say(
                out,
                no_reply,
                match stored {
                    Stored::Done(_) => "STORED",
                    Stored::Refused => "NOT_STORED",
                    Stored::Exists => "EXISTS",
                    Stored::NotFound => "NOT_FOUND",
                },
            ),
            Err(e) => self.say_failed(server, out, no_reply, &e),
        }
        let name = match mode {
            Mode::Add => "add",
            Mode::Replace => "replace",
            Mode::Append => "append",
            Mode::Prepend => "prepend",
            _ => "cas",
        };
        self.note(server, name, put.key, 1);
        (whole, Next::More)
    }

    /// Stores an item, and those of the plain stores that follow.
    fn set_together(
        &mut self,
        server: &Server,
        bytes: &[u8],
        first: Plain<'_>,
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        let (mut held, mut end) = (first.put.value.len(), first.end);
        let mut silent: SmallVec<[bool; 8]> = SmallVec::new();
        silent.push(first.no_reply);
        let mut puts: Vec<Put<'_>> = Vec::with_capacity(16);
        puts.push(first.put);
        while puts.len() < AT_ONCE
            && held < MAX_BATCH_BYTES
            && let Some(plain) = self.plain_store(server, &bytes[end..])
        {
            self.items.details.note(plain.put.key, DetailUse::Set);
            held += plain.put.value.len();
            end += plain.end;
            puts.push(plain.put);
            silent.push(plain.no_reply);
        }
        let now = self.items.now();
        for (stored, no_reply) in self.set(now, &puts).into_iter().zip(silent) {
            match stored {
                Ok(_) => self.say(out, no_reply, "STORED"),
                Err(e) => self.say_failed(server, out, no_reply, &e),
            }
        }
        self.note(server, "set", puts[0].key, puts.len() as u64);
        (end, Next::More)
    }

    /// Returns the command that comes first, if it is a store that nothing speaks against.
    fn plain_store<'a>(&self, server: &Server, bytes: &'a [u8]) -> Option<Plain<'a>> {
        let rest = bytes.get(..bytes.len().min(LONGEST_LINE))?;
        let (line, end) = first_line(rest, 0)?;
        let line = &bytes[..line.len()];
        let words = Words::new(line);
        if words.get(0) != b"set" {
            return None;
        }
        let (put, length) = self.parse_store(Mode::Set, &words).ok()?;
        if size(put.key.len(), put.flags, length) > self.items.limits.item {
            return None;
        }
        let value = bytes.get(end..end + length + 2)?.strip_suffix(b"\r\n")?;
        self.permit(server, "set", Some(put.key)).ok()?;
        Some(Plain {
            put: Put { value, ..put },
            no_reply: words.no_reply(),
            end: end + length + 2,
        })
    }

    /// Returns the item of a store without its value, and the value's length.
    fn parse_store<'a>(
        &self,
        mode: Mode,
        words: &Words<'a>,
    ) -> Result<(Put<'a>, usize), &'static str> {
        let least = if mode == Mode::Cas { 7 } else { 6 };
        if words.len() != least && words.len() != least + 1 {
            return Err("ERROR");
        }
        let key = words.get(1);
        if self.is_too_long(key) {
            return Err(BAD_FORMAT);
        }
        let flags = flags(words.get(2)).ok_or(BAD_FORMAT)?;
        let time = time(words.get(3)).ok_or(BAD_FORMAT)?;
        let length = value_length(words.get(4)).ok_or(BAD_FORMAT)?;
        let cas = if mode == Mode::Cas {
            unsigned(words.get(5)).ok_or(BAD_FORMAT)?
        } else {
            0
        };
        let put = Put {
            mode,
            key,
            value: b"",
            flags,
            expires_at: expiry(time, self.items.now()),
            cas,
            stale: false,
            binary: false,
        };
        Ok((put, length))
    }
}

/// Returns the store that a command is, by its name.
pub(super) fn mode_of(name: &[u8]) -> Option<Mode> {
    Some(match name {
        b"set" => Mode::Set,
        b"add" => Mode::Add,
        b"replace" => Mode::Replace,
        b"append" => Mode::Append,
        b"prepend" => Mode::Prepend,
        b"cas" => Mode::Cas,
        _ => return None,
    })
}
