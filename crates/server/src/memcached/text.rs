//! The text protocol: the classic commands.

use super::stores::mode_of;
use super::words::{Words, first_line, flags, next_word, time};
use super::{AT_ONCE, Memcached, Next, Wanted, expiry, server_error};
use crate::budget::Part;
use crate::conversation::{ENOUGH_OUTPUT, Flow};
use crate::items::change::{Counted, Deleted, Delta};
use crate::items::{DetailUse, Item, ItemError};
use crate::parse::c_number::{signed, unsigned};
use crate::reply::{Out, Protocol};
use crate::server::Server;
use crate::table::add;
use std::io::Write;

/// The longest line that is no retrieval, besides a key.
pub(super) const LONGEST_LINE: usize = 2048;
/// The longest name and password.
const LONGEST_LOGIN: usize = 1024;

pub(super) const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_TIME: &str = "CLIENT_ERROR invalid exptime argument";
pub(super) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
pub(super) const NOT_A_NUMBER: &str =
    "CLIENT_ERROR cannot increment or decrement non-numeric value";

fn is_get(words: &Words<'_>) -> Option<bool> {
    match words.get(0) {
        b"get" | b"bget" => Some(false),
        b"gets" => Some(true),
        _ => None,
    }
}

/// A retrieval of more than [`AT_ONCE`] keys, which is answered in parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongGet {
    with_cas: bool,
    /// Where the keys begin that are not answered, in the line.
    from: usize,
    /// The length of the line with its end.
    end: usize,
}

impl Memcached {
    /// Executes the first command of `bytes`, with those like it that follow. Returns the length of
    /// what is done.
    pub(super) fn execute_text(
        &mut self,
        server: &Server,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        if let Some(long) = self.long.take() {
            return self.answer_long(server, bytes, long, out);
        }
        let Some((line, end)) = first_line(bytes, self.searched.min(bytes.len())) else {
            return self.without_line(bytes);
        };
        if !self.authenticated {
            return self.log_in_by_set(server, bytes, (line, end), out);
        }
        let words = Words::new(line);
        if words.get(0).len() < 2 {
            self.say(out, false, "ERROR");
            return (end, Next::More);
        }
        if let Some(with_cas) = is_get(&words) {
            if words.len() < 3 {
                self.say(out, false, "ERROR");
                return (end, Next::More);
            }
            return self.gets(server, bytes, (words, with_cas, end), out);
        }
        if let Some(mode) = mode_of(words.get(0)) {
            return self.stores(server, bytes, (mode, &words, end), out);
        }
        let now = self.items.now();
        match words.get(0) {
            b"gat" | b"gats" => return self.gat(server, &words, end, out),
            b"ms" => return self.meta_set(server, bytes, (&words, end), out),
            b"mg" => self.meta_get(server, &words, out),
            b"md" => self.meta_delete(server, &words, out),
            b"ma" => self.meta_count(server, &words, out),
            b"me" => self.meta_debug(server, &words, out),
            b"mn" => {
                self.note(server, "mn", b"", 1);
                self.say(out, false, "MN");
            }
            b"incr" => self.incr_or_decr(server, (&words, true), now, out),
            b"decr" => self.incr_or_decr(server, (&words, false), now, out),
            b"delete" => self.delete(server, &words, now, out),
            b"touch" => self.touch(server, &words, now, out),
            b"stats" => {
                self.stats_text(server, &words, out);
                // Some take long: the client may have gone, or be told to go.
                return (end, Next::Send);
            }
            b"flush_all" => self.flush_all(server, &words, now, out),
            b"version" => {
                self.note(server, "version", b"", 1);
                self.say(out, false, &format!("VERSION {}", super::MEMCACHED_VERSION));
            }
            b"verbosity" => self.verbosity(server, &words, out),
            b"debugtime" if self.may_debug() => self.debugtime(server, &words, out),
            b"quit" => return (end, Next::Flow(Flow::Close)),
            b"shutdown" => {
                if let Some(flow) = self.shutdown(server, &words, out) {
                    return (end, Next::Flow(flow));
                }
            }
            _ => {
                let last = words.words.last().copied().unwrap_or_default();
                if last.starts_with(b"HTTP/") {
                    return (end, Next::Flow(Flow::Close));
                }
                add(&server.stats.errors, 1);
                self.say(out, false, "ERROR");
            }
        }
        (end, Next::More)
    }

    /// Decides on input without the end of a line.
    fn without_line(&mut self, bytes: &[u8]) -> (usize, Next) {
        let most = if self.authenticated {
            LONGEST_LINE + self.items.limits.key
        } else {
            LONGEST_LINE
        };
        if bytes.len() > most {
            let start = bytes.iter().position(|byte| *byte != b' ');
            let line = bytes
                .get(start.unwrap_or(bytes.len())..)
                .unwrap_or_default();
            let is_get = line.starts_with(b"get ") || line.starts_with(b"gets ");
            if !self.authenticated || !is_get || bytes.len() - line.len() > 100 {
                let client = &self.client.address;
                tracing::debug!(client = %client, "disconnected: its line does not end");
                return (0, Next::Flow(Flow::Close));
            }
        }
        self.searched = bytes.len();
        (0, Next::Incomplete)
    }

    /// Appends a line, unless there is to be none.
    pub(super) fn say(&self, out: &mut Vec<u8>, no_reply: bool, text: &str) {
        if !no_reply {
            let mut out = Out::for_client(out, Protocol::Resp2, &self.client.account);
            out.raw(text.as_bytes());
            out.raw(b"\r\n");
        }
    }

    /// Appends the line of an error that is the server's.
    pub(super) fn say_failed(
        &self,
        server: &Server,
        out: &mut Vec<u8>,
        no_reply: bool,
        error: &ItemError,
    ) {
        add(&server.stats.errors, 1);
        self.count_refused(error);
        self.say(
            out,
            no_reply,
            &format!("SERVER_ERROR {}", server_error(error)),
        );
    }

    /// Returns true if the key of a command is longer than keys may be.
    pub(super) fn is_too_long(&self, key: &[u8]) -> bool {
        key.len() > self.items.limits.key
    }

    /// Logs in: `set` with any key, and a name and a password as its value.
    fn log_in_by_set(
        &mut self,
        server: &Server,
        bytes: &[u8],
        (line, end): (&[u8], usize),
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        let words = Words::new(line);
        let len = signed(words.get(4)).and_then(|len| usize::try_from(len).ok());
        let len = len.filter(|_| words.get(0) == b"set" && words.len() >= 6);
        let Some(len) = len.filter(|len| *len <= LONGEST_LOGIN) else {
            self.say(out, false, "CLIENT_ERROR unauthenticated");
            return (end, Next::More);
        };
        let whole = end + len + 2;
        let Some(value) = bytes.get(end..whole) else {
            self.needed = whole;
            return (0, Next::Incomplete);
        };
        let Some(value) = value.strip_suffix(b"\r\n") else {
            self.say(out, false, "CLIENT_ERROR bad command line termination");
            return (whole, Next::More);
        };
        let login = Words::new(value);
        if login.len() < 3 {
            self.say(out, false, "CLIENT_ERROR bad authentication token format");
            return (whole, Next::More);
        }
        match self.log_in(server, login.get(0), login.get(1)) {
            Ok(()) => {
                self.say(out, false, "STORED");
                (whole, Next::More)
            }
            Err(after) => {
                self.say(out, false, "CLIENT_ERROR authentication failure");
                let flow = if after.is_zero() {
                    Flow::Go
                } else {
                    Flow::Sleep(after)
                };
                (whole, Next::Flow(flow))
            }
        }
    }

    /// Answers `get` and `gets`, and those that follow at once.
    fn gets<'a>(
        &mut self,
        server: &Server,
        bytes: &'a [u8],
        (words, with_cas, end): (Words<'a>, bool, usize),
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        /// Whether the cas is shown, and whether it is the last key of its command.
        #[derive(Clone, Copy)]
        struct Tag {
            with_cas: bool,
            is_last: bool,
        }
        let answered = std::mem::take(&mut self.answered);
        let mut wanted: Vec<Wanted<'_, Tag>> = Vec::new();
        // The number of keys up to the end of each command, and where it ends.
        let mut ends: Vec<(usize, usize)> = Vec::new();
        let (mut words, mut with_cas, mut end) = (words, with_cas, end);
        loop {
            let before = wanted.len();
            let (mut refused, mut is_long) = (None, false);
            for key in words.all_from(1) {
                if let Err(text) = self.may_get(server, key) {
                    refused = Some(text);
                    break;
                }
                is_long = wanted.len() - before == AT_ONCE;
                if is_long {
                    break;
                }
                let is_last = false;
                wanted.push(Wanted {
                    key,
                    tag: Tag { with_cas, is_last },
                });
            }
            if refused.is_some() || is_long {
                wanted.truncate(before);
                if !ends.is_empty() {
                    break;
                }
                if let Some(text) = refused {
                    add(&server.stats.errors, 1);
                    self.say(out, false, &text);
                    return (end, Next::More);
                }
                return self.begin_long(server, bytes, (&words, with_cas, end), out);
            }
            if let Some(last) = wanted.last_mut() {
                last.tag.is_last = true;
            }
            ends.push((wanted.len(), end));
            if wanted.len() >= AT_ONCE {
                break;
            }
            let rest = &bytes[end..];
            let Some((line, length)) = first_line(rest, 0) else {
                break;
            };
            words = Words::new(line);
            match is_get(&words) {
                Some(it) if words.len() >= 3 => with_cas = it,
                _ => break,
            }
            end += length;
        }
        let now = self.items.now();
        let answered = answered.min(wanted.len());
        let rest = &wanted[answered..];
        let items = std::sync::Arc::clone(&self.items);
        let mut head = Vec::new();
        let (done, failed) = self.get(now, rest, out, |out, tag: Tag, key, item| {
            items.details.note(key, DetailUse::Get(item.is_some()));
            if let Some(item) = item {
                value(&mut head, out, key, item, tag.with_cas);
            }
            if tag.is_last {
                out.raw(b"END\r\n");
            }
        });
        let done = answered + done;
        let of_whole = |(keys, _): &&(usize, usize)| *keys <= done;
        let whole = ends.iter().take_while(of_whole).count();
        let name = if with_cas { "gets" } else { "get" };
        let first = wanted.first().map_or(&b""[..], |wanted| wanted.key);
        self.note(server, name, first, whole as u64);
        let (keys, executed) = whole.checked_sub(1).map_or((0, 0), |last| ends[last]);
        if let Some(e) = failed {
            self.say_failed(server, out, false, &e);
            // The command that failed is done with that.
            let end = ends.get(whole).map_or(executed, |(_, end)| *end);
            return (end, Next::More);
        }
        self.answered = done - keys;
        let next = if done < wanted.len() {
            Next::Send
        } else {
            Next::More
        };
        (executed, next)
    }

    /// Refuses a retrieval for one of its keys.
    fn may_get(&self, server: &Server, key: &[u8]) -> Result<(), String> {
        if self.is_too_long(key) {
            return Err(BAD_FORMAT.to_owned());
        }
        self.permit(server, "get", Some(key))
            .map_err(|text| format!("CLIENT_ERROR {text}"))
    }

    /// Begins to answer a retrieval of very many keys, of which one that may not be got refuses the
    /// whole.
    fn begin_long(
        &mut self,
        server: &Server,
        bytes: &[u8],
        (words, with_cas, end): (&Words<'_>, bool, usize),
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        let all = || {
            words
                .all_from(1)
                .try_for_each(|key| self.may_get(server, key))
        };
        if let Err(text) = Self::perhaps_long(end, all) {
            add(&server.stats.errors, 1);
            self.say(out, false, &text);
            return (end, Next::More);
        }
        // A word is a part of the line.
        let name = words.get(0);
        let from = name.as_ptr().addr() - bytes.as_ptr().addr() + name.len();
        let long = LongGet {
            with_cas,
            from,
            end,
        };
        self.answer_long(server, bytes, long, out)
    }

    /// Answers the next keys of a retrieval of very many.
    fn answer_long(
        &mut self,
        server: &Server,
        bytes: &[u8],
        mut long: LongGet,
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        let line = first_line(&bytes[..long.end], long.end - 1).map_or(&b""[..], |(line, _)| line);
        let mut wanted: Vec<Wanted<'_, usize>> = Vec::new();
        let mut at = long.from;
        while wanted.len() < AT_ONCE
            && let Some((key, end)) = next_word(line, at)
        {
            // The rights may have changed since.
            if let Err(text) = self.may_get(server, key) {
                add(&server.stats.errors, 1);
                self.say(out, false, &text);
                return (long.end, Next::More);
            }
            wanted.push(Wanted { key, tag: end });
            at = end;
        }
        let (items, now) = (std::sync::Arc::clone(&self.items), self.items.now());
        let mut head = Vec::new();
        let (done, failed) = self.get(now, &wanted, out, |out, _, key, item| {
            items.details.note(key, DetailUse::Get(item.is_some()));
            if let Some(item) = item {
                value(&mut head, out, key, item, long.with_cas);
            }
        });
        if let Some(e) = failed {
            self.say_failed(server, out, false, &e);
            return (long.end, Next::More);
        }
        if let Some(last) = done.checked_sub(1) {
            long.from = wanted[last].tag;
        }
        if next_word(line, long.from).is_some() {
            self.long = Some(long);
            return (0, Next::Send);
        }
        let name = if long.with_cas { "gets" } else { "get" };
        let first = wanted.first().map_or(&b""[..], |wanted| wanted.key);
        self.note(server, name, first, 1);
        self.say(out, false, "END");
        (long.end, Next::More)
    }

    /// Answers `gat` and `gats`, as far as there is room for replies.
    fn gat(
        &mut self,
        server: &Server,
        words: &Words<'_>,
        end: usize,
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        let with_cas = words.get(0) == b"gats";
        let mut answered = std::mem::take(&mut self.answered);
        let refused = if words.len() < 3 {
            Some("ERROR".to_owned())
        } else if signed(words.get(1)).is_none() {
            Some(BAD_TIME.to_owned())
        } else if words.all_from(2).any(|key| self.is_too_long(key)) {
            Some(BAD_FORMAT.to_owned())
        } else {
            let mut keys = words.all_from(2);
            let denied = keys.find_map(|key| self.permit_touch(server, key).err());
            denied.map(|text| format!("CLIENT_ERROR {text}"))
        };
        if let Some(text) = refused {
            add(&server.stats.errors, 1);
            self.say(out, false, &text);
            return (end, Next::More);
        }
        let now = self.items.now();
        let expires_at = expiry(time(words.get(1)).unwrap_or(0), now);
        let mut head = Vec::new();
        for key in words.all_from(2).skip(answered) {
            self.wrote();
            let mut found = Vec::new();
            let touched = self.items.touch(now, key, expires_at, |item| {
                found.clear();
                found.extend_from_slice(item.value);
                (item.flags, item.cas)
            });
            match touched {
                Ok(Some((flags, cas))) => {
                    let item = Item {
                        flags,
                        cas,
                        marks: 0,
                        expires_at,
                        value: &found,
                    };
                    self.items.note_read(now, &[key]);
                    let mut out = Out::for_client(out, Protocol::Resp2, &self.client.account);
                    value(&mut head, &mut out, key, &item, with_cas);
                }
                Ok(None) => {}
                Err(e) => {
                    self.say_failed(server, out, false, &e);
                    return (end, Next::More);
                }
            }
            answered += 1;
            if out.len() >= ENOUGH_OUTPUT {
                self.answered = answered;
                return (0, Next::Send);
            }
        }
        self.note(server, "gat", words.get(2), 1);
        self.say(out, false, "END");
        (end, Next::More)
    }

    fn permit_touch(&self, server: &Server, key: &[u8]) -> Result<(), String> {
        self.permit(server, "get", Some(key))?;
        self.permit(server, "expire", Some(key))
    }

    fn touch(&mut self, server: &Server, words: &Words<'_>, now: u64, out: &mut Vec<u8>) {
        if words.len() != 4 && words.len() != 5 {
            return self.say(out, false, "ERROR");
        }
        let (key, no_reply) = (words.get(1), words.no_reply());
        if self.is_too_long(key) {
            return self.say(out, no_reply, BAD_FORMAT);
        }
        let Some(time) = time(words.get(2)) else {
            return self.say(out, no_reply, BAD_TIME);
        };
        if let Err(text) = self.permit(server, "expire", Some(key)) {
            return self.say(out, no_reply, &format!("CLIENT_ERROR {text}"));
        }
        self.wrote();
        match self.items.touch(now, key, expiry(time, now), |_| ()) {
            Ok(Some(())) => {
                self.items.note_read(now, &[key]);
                self.say(out, no_reply, "TOUCHED");
            }
            Ok(None) => self.say(out, no_reply, "NOT_FOUND"),
            Err(e) => self.say_failed(server, out, no_reply, &e),
        }
        self.note(server, "touch", key, 1);
    }

    fn incr_or_decr(
        &mut self,
        server: &Server,
        (words, adds): (&Words<'_>, bool),
        now: u64,
        out: &mut Vec<u8>,
    ) {
        if words.len() != 4 && words.len() != 5 {
            return self.say(out, false, "ERROR");
        }
        let (key, no_reply) = (words.get(1), words.no_reply());
        if self.is_too_long(key) {
            return self.say(out, no_reply, BAD_FORMAT);
        }
        let Some(by) = unsigned(words.get(2)) else {
            return self.say(out, no_reply, "CLIENT_ERROR invalid numeric delta argument");
        };
        if let Err(text) = self.permit(server, "incrby", Some(key)) {
            return self.say(out, no_reply, &format!("CLIENT_ERROR {text}"));
        }
        self.wrote();
        let delta = Delta {
            adds,
            by,
            cas: 0,
            initial: None,
            expires_at: None,
        };
        match self.items.count(now, key, &delta) {
            Ok(Counted::Done { value, .. }) => self.say(out, no_reply, &value.to_string()),
            Ok(Counted::NotFound | Counted::Exists) => self.say(out, no_reply, "NOT_FOUND"),
            Ok(Counted::NotANumber) => self.say(out, no_reply, NOT_A_NUMBER),
            Err(e) => self.say_failed(server, out, no_reply, &e),
        }
        self.note(server, if adds { "incr" } else { "decr" }, key, 1);
    }

    fn delete(&mut self, server: &Server, words: &Words<'_>, now: u64, out: &mut Vec<u8>) {
        if !(3..=5).contains(&words.len()) {
            return self.say(out, false, "ERROR");
        }
        let key = words.get(1);
        let no_reply = words.len() > 3 && words.no_reply();
        let is_zero = words.get(2) == b"0";
        let is_valid = match words.len() {
            3 => true,
            4 => is_zero || no_reply,
            _ => is_zero && no_reply,
        };
        if !is_valid {
            let usage = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
            return self.say(out, no_reply, usage);
        }
        if self.is_too_long(key) {
            return self.say(out, no_reply, BAD_FORMAT);
        }
        if let Err(text) = self.permit(server, "del", Some(key)) {
            return self.say(out, no_reply, &format!("CLIENT_ERROR {text}"));
        }
        self.wrote();
        self.items.details.note(key, DetailUse::Delete);
        match self.items.delete(now, key, None) {
            Ok(deleted) => {
                let found = deleted == Deleted::Done;
                self.items.counters.count_delete(found);
                self.say(out, no_reply, if found { "DELETED" } else { "NOT_FOUND" });
            }
            Err(e) => self.say_failed(server, out, no_reply, &e),
        }
        self.note(server, "delete", key, 1);
    }

    fn flush_all(&mut self, server: &Server, words: &Words<'_>, now: u64, out: &mut Vec<u8>) {
        if !(2..=4).contains(&words.len()) {
            return self.say(out, false, "ERROR");
        }
        let no_reply = words.no_reply();
        add(&self.items.counters.cmd_flush, 1);
        let without = if no_reply { 3 } else { 2 };
        let after = if words.len() == without {
            0
        } else {
            match time(words.get(1)) {
                Some(after) => after,
                None => return self.say(out, no_reply, BAD_TIME),
            }
        };
        if let Err(text) = self.permit(server, "flushdb", None) {
            return self.say(out, no_reply, &format!("CLIENT_ERROR {text}"));
        }
        match self.flush(server, after, now) {
            Ok(()) => self.say(out, no_reply, "OK"),
            Err(e) => self.say_failed(server, out, no_reply, &e),
        }
        self.note(server, "flush_all", b"", 1);
    }

    fn verbosity(&mut self, server: &Server, words: &Words<'_>, out: &mut Vec<u8>) {
        let text = if words.len() != 3 && words.len() != 4 {
            return self.say(out, false, "ERROR");
        } else if flags(words.get(1)).is_none() {
            BAD_FORMAT
        } else {
            // What is logged is a setting of the server.
            "OK"
        };
        self.note(server, "verbosity", b"", 1);
        self.say(out, words.no_reply(), text);
    }

    fn debugtime(&mut self, server: &Server, words: &Words<'_>, out: &mut Vec<u8>) {
        if let Err(text) = self.permit(server, "debug", None) {
            return self.say(out, false, &format!("CLIENT_ERROR {text}"));
        }
        self.note(server, "debugtime", b"", 1);
        match (words.get(1), signed(words.get(1))) {
            // The clock is not stopped for a test: that would change too little.
            (b"p" | b"r", _) => self.say(out, false, "OK"),
            (_, Some(seconds)) => {
                self.items.move_clock(seconds);
                self.say(out, false, "OK");
            }
            _ => self.say(out, false, "ERROR"),
        }
    }

    /// Returns what the connection does next, if the server stops.
    fn shutdown(&mut self, server: &Server, words: &Words<'_>, out: &mut Vec<u8>) -> Option<Flow> {
        self.note(server, "shutdown", b"", 1);
        if !self.current.settings.memcached_shutdown {
            self.say(out, false, "ERROR: shutdown not enabled");
        } else if let Err(text) = self.permit(server, "shutdown", None) {
            self.say(out, false, &format!("CLIENT_ERROR {text}"));
        } else if words.len() == 2 || words.len() == 3 && words.get(1) == b"graceful" {
            let client = &self.client.address;
            tracing::info!(client = %client, "told to stop by the command shutdown of a memcached client");
            self.client.hold(Part::Output, out.capacity());
            return Some(Flow::Shutdown);
        } else {
            self.say(out, false, "CLIENT_ERROR invalid shutdown mode");
        }
        None
    }
}

/// Appends an item, as `get` answers it.
fn value(head: &mut Vec<u8>, out: &mut Out<'_>, key: &[u8], item: &Item<'_>, with_cas: bool) {
    head.clear();
    head.extend_from_slice(b"VALUE ");
    head.extend_from_slice(key);
    // Writing to a vector does not fail.
    let _ = write!(head, " {} {}", item.flags, item.value.len());
    if with_cas {
        let _ = write!(head, " {}", item.cas);
    }
    head.extend_from_slice(b"\r\n");
    out.raw(head);
    out.raw(item.value);
    out.raw(b"\r\n");
}
