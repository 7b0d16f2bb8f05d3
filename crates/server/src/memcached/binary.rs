//! The binary protocol, and its SASL.

use super::packet::{
    HEAD, Head, Op, REQUEST, Request, Response, Status, op, respond, respond_error, respond_miss,
    u32_at, u64_at,
};
use super::{AT_ONCE, Memcached, Next, Wanted, expiry, server_error};
use crate::conversation::Flow;
use crate::items::change::{Counted, Deleted, Delta, MAX_BATCH_BYTES, Mode, Stored};
use crate::items::record::size;
use crate::items::{DetailUse, ItemError};
use crate::reply::{Out, Protocol};
use crate::server::Server;
use crate::table::add;
use bristlecone_store::WriteError;

/// The longest key and value of a client that has not logged in.
const LONGEST_LOGIN: usize = 4 << 10;

/// The expiry with which an increment makes no item.
const NEVER_MAKE: u32 = 0xffff_ffff;

impl Memcached {
    pub(super) fn answer(&self, out: &mut Vec<u8>, head: &Head, response: Response<'_>) {
        let mut out = Out::for_client(out, Protocol::Resp2, &self.client.account);
        respond(&mut out, head, response);
    }

    fn refuse(&self, server: &Server, out: &mut Vec<u8>, head: &Head, status: Status) {
        self.refuse_saying(server, out, head, (status, status.text()));
    }

    fn refuse_saying(
        &self,
        server: &Server,
        out: &mut Vec<u8>,
        head: &Head,
        (status, text): (Status, &str),
    ) {
        if !matches!(
            status,
            Status::NotFound | Status::Exists | Status::NotStored
        ) {
            add(&server.stats.errors, 1);
        }
        let mut out = Out::for_client(out, Protocol::Resp2, &self.client.account);
        respond_error(&mut out, head, status, text);
    }

    fn refuse_failed(&self, server: &Server, out: &mut Vec<u8>, head: &Head, error: &ItemError) {
        self.count_refused(error);
        let status = match error {
            ItemError::Write(WriteError::Space(_)) => Status::NoMemory,
            _ => Status::Internal,
        };
        self.refuse_saying(server, out, head, (status, &server_error(error)));
    }

    /// Executes the first request of `bytes`, with those like it that follow. Returns the length of
    /// what is done.
    pub(super) fn execute_binary(
        &mut self,
        server: &Server,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        const CLOSE: Next = Next::Flow(Flow::Close);
        if bytes[0] != REQUEST {
            return (0, CLOSE);
        }
        let Some(request) = Request::parse(bytes) else {
            let parts = Head::parse(bytes).map_or(0, |head| head.extras + head.key);
            self.needed = HEAD + parts;
            return (0, Next::Incomplete);
        };
        let Request { head, value, .. } = request;
        let start = request.start();
        if head.is_crooked() {
            self.refuse(server, out, &head, Status::Unknown);
            return (start, CLOSE);
        }
        let op = op(head.code);
        let is_open = matches!(op, Some((Op::Login | Op::ListMechanisms | Op::Version, _)));
        if !self.authenticated && !is_open {
            self.refuse(server, out, &head, Status::Auth);
            return (start, CLOSE);
        }
        let Some((op, quiet)) = op else {
            self.refuse(server, out, &head, Status::Unknown);
            self.discards = value;
            return (start, Next::More);
        };
        if self.is_too_long(request.key) || !request.is_formed(op) {
            self.refuse(server, out, &head, Status::Invalid);
            return (start, CLOSE);
        }
        if let Err(text) = self.permit_op(server, op, request.key) {
            self.refuse_saying(server, out, &head, (Status::Auth, &text));
            self.discards = value;
            return (start, Next::More);
        }
        match op {
            Op::Get { .. } => return self.binary_gets(server, bytes, out),
            Op::Store(mode) => {
                return self.binary_store(server, bytes, (&request, mode, quiet), out);
            }
            Op::Login => return self.binary_log_in(server, bytes, &request, out),
            Op::Quit => {
                if !quiet {
                    self.answer(out, &head, Response::default());
                }
                return (start, CLOSE);
            }
            Op::Touch | Op::GetAndTouch { .. } => {
                self.binary_touch(server, &request, (op, quiet), out);
            }
            Op::Delete => self.binary_delete(server, &request, quiet, out),
            Op::Count { adds } => self.binary_count(server, &request, (adds, quiet), out),
            Op::Flush => self.binary_flush(server, &request, quiet, out),
            Op::Noop => self.answer(out, &head, Response::default()),
            Op::Version => {
                let value = super::MEMCACHED_VERSION.as_bytes();
                self.answer(
                    out,
                    &head,
                    Response {
                        value,
                        ..Response::default()
                    },
                );
            }
            Op::ListMechanisms => {
                let value = b"PLAIN";
                self.answer(
                    out,
                    &head,
                    Response {
                        value,
                        ..Response::default()
                    },
                );
            }
            Op::Stat => self.stats_binary(server, &head, request.key, out),
        }
        // Some clients send a value where there is none to be.
        self.discards = value;
        (start, Next::More)
    }

    fn permit_op(&self, server: &Server, op: Op, key: &[u8]) -> Result<(), String> {
        let as_command = match op {
            Op::Get { .. } => "get",
            Op::Touch => "expire",
            Op::GetAndTouch { .. } => {
                self.permit(server, "get", Some(key))?;
                "expire"
            }
            Op::Store(_) => "set",
            Op::Delete => "del",
            Op::Count { .. } => "incrby",
            Op::Flush => return self.permit(server, "flushdb", None),
            Op::Stat => return self.permit(server, "info", None),
            Op::Quit | Op::Noop | Op::Version | Op::ListMechanisms | Op::Login => return Ok(()),
        };
        self.permit(server, as_command, Some(key))
    }

    /// Answers retrievals that follow one another.
    fn binary_gets(&mut self, server: &Server, bytes: &[u8], out: &mut Vec<u8>) -> (usize, Next) {
        /// The head, whether the key is shown, whether a miss is not, and the end.
        #[derive(Clone, Copy)]
        struct Tag {
            head: Head,
            with_key: bool,
            quiet: bool,
            end: usize,
        }
        let mut wanted: Vec<Wanted<'_, Tag>> = Vec::new();
        let mut end = 0;
        while wanted.len() < AT_ONCE
            && bytes.get(end) == Some(&REQUEST)
            && let Some(request) = Request::parse(&bytes[end..])
            && let Some((get @ Op::Get { with_key }, quiet)) = op(request.head.code)
            && !request.head.is_crooked()
            && request.is_formed(get)
            && !self.is_too_long(request.key)
            && self.permit(server, "get", Some(request.key)).is_ok()
        {
            end += request.end();
            let tag = Tag {
                head: request.head,
                with_key,
                quiet,
                end,
            };
            wanted.push(Wanted {
                key: request.key,
                tag,
            });
        }
        let now = self.items.now();
        let items = std::sync::Arc::clone(&self.items);
        let (done, failed) = self.get(now, &wanted, out, |out, tag: Tag, key, item| {
            items.details.note(key, DetailUse::Get(item.is_some()));
            let shown = if tag.with_key { key } else { b"" };
            match item {
                Some(item) => {
                    let response = Response {
                        extras: &item.flags.to_be_bytes(),
                        key: shown,
                        value: item.value,
                        cas: item.cas,
                        ..Response::default()
                    };
                    respond(out, &tag.head, response);
                }
                None if tag.quiet => {}
                None => respond_miss(out, &tag.head, shown),
            }
        });
        let first = wanted.first().map_or(&b""[..], |wanted| wanted.key);
        self.note(server, "get", first, done as u64);
        let executed = done.checked_sub(1).map_or(0, |last| wanted[last].tag.end);
        if let (Some(e), Some(next)) = (failed, wanted.get(done)) {
            self.refuse_failed(server, out, &next.tag.head, &e);
            return (next.tag.end, Next::More);
        }
        let next = if done < wanted.len() {
            Next::Send
        } else {
            Next::More
        };
        (executed, next)
    }

    fn binary_touch(
        &mut self,
        server: &Server,
        request: &Request<'_>,
        (op, quiet): (Op, bool),
        out: &mut Vec<u8>,
    ) {
        let now = self.items.now();
        let (head, key) = (&request.head, request.key);
        let expires_at = expiry(i64::from(u32_at(request.extras, 0)), now);
        let with_value = op != Op::Touch;
        let shown = if op == (Op::GetAndTouch { with_key: true }) {
            key
        } else {
            b""
        };
        self.wrote();
        let mut found = Vec::new();
        let touched = self.items.touch(now, key, expires_at, |item| {
            found.clear();
            if with_value {
                found.extend_from_slice(item.value);
            }
            (item.flags, item.cas)
        });
        match touched {
            Ok(Some((flags, cas))) => {
                self.items.note_read(now, &[key]);
                let response = Response {
                    extras: &flags.to_be_bytes(),
                    key: shown,
                    value: &found,
                    cas,
                    ..Response::default()
                };
                self.answer(out, head, response);
            }
            Ok(None) if quiet => {}
            Ok(None) => {
                let mut out = Out::for_client(out, Protocol::Resp2, &self.client.account);
                respond_miss(&mut out, head, shown);
            }
            Err(e) => self.refuse_failed(server, out, head, &e),
        }
        self.note(server, "touch", key, 1);
    }

    fn binary_store(
        &mut self,
        server: &Server,
        bytes: &[u8],
        (request, mode, quiet): (&Request<'_>, Mode, bool),
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        let (head, start) = (&request.head, request.start());
        let now = self.items.now();
        let mut put = request.put(mode, b"", now);
        if size(put.key.len(), put.flags, request.value) > self.items.limits.item {
            add(&self.items.counters.store_too_large, 1);
            self.discards = request.value;
            if mode == Mode::Set {
                // No older value may be taken for the new one.
                self.wrote();
                if let Err(e) = self.items.delete(now, put.key, None) {
                    self.refuse_failed(server, out, head, &e);
                    return (start, Next::More);
                }
            }
            self.refuse(server, out, head, Status::TooLarge);
            return (start, Next::More);
        }
        let Some(value) = bytes.get(start..request.end()) else {
            self.needed = request.end();
            return (0, Next::Incomplete);
        };
        if mode == Mode::Set && head.cas == 0 {
            return self.binary_sets(server, bytes, now, out);
        }
        put.value = value;
        if head.cas != 0 && !matches!(mode, Mode::Append | Mode::Prepend) {
            put.mode = Mode::Cas;
        }
        self.items.details.note(put.key, DetailUse::Set);
        self.wrote();
        let items = &self.items;
        let stored = Self::perhaps_long(value.len(), || items.store(now, &put));
        match stored {
            Ok(Stored::Done(cas)) => {
                if !quiet {
                    self.answer(
                        out,
                        head,
                        Response {
                            cas,
                            ..Response::default()
                        },
                    );
                }
            }
            Ok(Stored::Exists) => self.refuse(server, out, head, Status::Exists),
            Ok(Stored::NotFound) => self.refuse(server, out, head, Status::NotFound),
            Ok(Stored::Refused) => {
                let status = match put.mode {
                    Mode::Add => Status::Exists,
                    Mode::Replace => Status::NotFound,
                    _ => Status::NotStored,
                };
                self.refuse(server, out, head, status);
            }
            Err(e) => self.refuse_failed(server, out, head, &e),
        }
        self.note(server, "set", put.key, 1);
        (request.end(), Next::More)
    }

    /// Stores items whatever there is: all that follow one another.
    fn binary_sets(
        &mut self,
        server: &Server,
        bytes: &[u8],
        now: u64,
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        let (mut puts, mut heads, mut end, mut held) = (Vec::new(), Vec::new(), 0, 0);
        while puts.len() < AT_ONCE
            && held < MAX_BATCH_BYTES
            && bytes.get(end) == Some(&REQUEST)
            && let Some(request) = Request::parse(&bytes[end..])
            && let Some((put, quiet)) = request.plain_put(&bytes[end..], now)
            && !self.is_too_long(put.key)
            && size(put.key.len(), put.flags, put.value.len()) <= self.items.limits.item
            && self.permit(server, "set", Some(put.key)).is_ok()
        {
            self.items.details.note(put.key, DetailUse::Set);
            end += request.end();
            held += put.value.len();
            puts.push(put);
            heads.push((request.head, quiet));
        }
        for (stored, (head, quiet)) in self.set(now, &puts).into_iter().zip(&heads) {
            match stored {
                Ok(_) if *quiet => {}
                Ok(cas) => self.answer(
                    out,
                    head,
                    Response {
                        cas,
                        ..Response::default()
                    },
                ),
                Err(e) => self.refuse_failed(server, out, head, &e),
            }
        }
        let first = puts.first().map_or(&b""[..], |put| put.key);
        self.note(server, "set", first, puts.len() as u64);
        (end, Next::More)
    }

    fn binary_delete(
        &mut self,
        server: &Server,
        request: &Request<'_>,
        quiet: bool,
        out: &mut Vec<u8>,
    ) {
        let (head, key) = (&request.head, request.key);
        self.wrote();
        self.items.details.note(key, DetailUse::Delete);
        let cas = Some(head.cas).filter(|cas| *cas != 0);
        match self.items.delete(self.items.now(), key, cas) {
            Ok(Deleted::Done) => {
                self.items.counters.count_delete(true);
                if !quiet {
                    self.answer(out, head, Response::default());
                }
            }
            Ok(Deleted::Exists) => self.refuse(server, out, head, Status::Exists),
            Ok(Deleted::NotFound) => {
                self.items.counters.count_delete(false);
                self.refuse(server, out, head, Status::NotFound);
            }
            Err(e) => self.refuse_failed(server, out, head, &e),
        }
        self.note(server, "delete", key, 1);
    }

    fn binary_count(
        &mut self,
        server: &Server,
        request: &Request<'_>,
        (adds, quiet): (bool, bool),
        out: &mut Vec<u8>,
    ) {
        let now = self.items.now();
        let (head, key, extras) = (&request.head, request.key, request.extras);
        let time = u32_at(extras, 16);
        let initial = (u64_at(extras, 8), expiry(i64::from(time), now));
        let delta = Delta {
            adds,
            by: u64_at(extras, 0),
            cas: head.cas,
            initial: (time != NEVER_MAKE).then_some(initial),
            expires_at: None,
        };
        self.wrote();
        match self.items.count(now, key, &delta) {
            Ok(Counted::Done { value, cas, .. }) => {
                if !quiet {
                    let value = &value.to_be_bytes();
                    self.answer(
                        out,
                        head,
                        Response {
                            value,
                            cas,
                            ..Response::default()
                        },
                    );
                }
            }
            Ok(Counted::NotFound) => self.refuse(server, out, head, Status::NotFound),
            Ok(Counted::NotANumber) => self.refuse(server, out, head, Status::NotANumber),
            Ok(Counted::Exists) => self.refuse(server, out, head, Status::Exists),
            Err(e) => self.refuse_failed(server, out, head, &e),
        }
        self.note(server, if adds { "incr" } else { "decr" }, key, 1);
    }

    fn binary_flush(
        &mut self,
        server: &Server,
        request: &Request<'_>,
        quiet: bool,
        out: &mut Vec<u8>,
    ) {
        let now = self.items.now();
        add(&self.items.counters.cmd_flush, 1);
        let at = i64::from(u32_at(request.extras, 0));
        match self.flush(server, at, now) {
            Ok(()) if quiet => {}
            Ok(()) => self.answer(out, &request.head, Response::default()),
            Err(e) => self.refuse_failed(server, out, &request.head, &e),
        }
        self.note(server, "flush_all", b"", 1);
    }

    /// SASL's mechanism PLAIN: a name to act as, the user's name and the password, with zeros
    /// between.
    fn binary_log_in(
        &mut self,
        server: &Server,
        bytes: &[u8],
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        let head = &request.head;
        if request.value > LONGEST_LOGIN {
            self.refuse(server, out, head, Status::Invalid);
            return (request.start(), Next::Flow(Flow::Close));
        }
        let Some(value) = bytes.get(request.start()..request.end()) else {
            self.needed = request.end();
            return (0, Next::Incomplete);
        };
        let mut parts = value.split(|byte| *byte == 0);
        let parts = (parts.next(), parts.next(), parts.next(), parts.next());
        let is_begin = head.code == 0x21 && request.key == b"PLAIN";
        let outcome = match parts {
            (Some(_), Some(name), Some(password), None) if is_begin => {
                self.log_in(server, name, password)
            }
            _ => {
                let counters = &self.items.counters;
                add(&counters.auth_cmds, 1);
                add(&counters.auth_errors, 1);
                Err(std::time::Duration::ZERO)
            }
        };
        let flow = match outcome {
            Ok(()) => {
                let value = b"Authenticated";
                self.answer(
                    out,
                    head,
                    Response {
                        value,
                        ..Response::default()
                    },
                );
                return (request.end(), Next::More);
            }
            Err(after) if after.is_zero() => Flow::Go,
            Err(after) => Flow::Sleep(after),
        };
        self.refuse(server, out, head, Status::Auth);
        (request.end(), Next::Flow(flow))
    }

    /// Appends a statistic; the last one is empty.
    pub(super) fn answer_stat(&self, out: &mut Vec<u8>, head: &Head, key: &[u8], value: &[u8]) {
        let response = Response {
            key,
            value,
            ..Response::default()
        };
        self.answer(out, head, response);
    }

    pub(super) fn refuse_stat(&self, server: &Server, out: &mut Vec<u8>, head: &Head) {
        self.refuse(server, out, head, Status::NotFound);
    }
}
