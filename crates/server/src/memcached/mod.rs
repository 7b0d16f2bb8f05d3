//! The protocols of memcached in the loop of a connection: classic text, meta commands, and the
//! binary protocol, which a connection chooses with its first byte.
//!
//! | module | holds |
//! | --- | --- |
//! | `text`, `stores`, `words` | the classic commands; those that store; the words of a line |
//! | `meta` | `mg`, `ms`, `md`, `ma`, `me` |
//! | `binary`, `packet` | the binary protocol, SASL; its packets |
//! | `stats` | `stats`, in both |
//!
//! Retrievals that follow one another are one call of the store, and so are plain stores, whose
//! changes are one commit. What a batch of commands has read and written becomes durable before its
//! replies are sent, as with Redis clients.

mod binary;
mod meta;
mod packet;
mod stats;
mod stores;
mod text;
mod words;

use crate::client::Client;
use crate::conversation::{Conversation, ENOUGH_OUTPUT, Flow, Turn};
use crate::current::{Current, UserState};
use crate::data::Reads;
use crate::input::Input;
use crate::items::change::{Put, Stored};
use crate::items::{Item, ItemError, Items};
use crate::parse::Arg;
use crate::reply::{Out, Protocol};
use crate::rights;
use crate::server::Server;
use crate::session::LARGE;
use crate::table::add;
use bristlecone_store::WriteError;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;
use text::LongGet;

/// The version of memcached whose commands and replies these are.
pub(crate) const MEMCACHED_VERSION: &str = "1.6.18";
/// Keys of a batch of retrievals, and stores of a batch.
const AT_ONCE: usize = 256;
/// The first byte of a binary request.
const BINARY: u8 = 0x80;
/// Seconds up to which a time is relative: 30 days.
const RELATIVE: i64 = 60 * 60 * 24 * 30;

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    Text,
    Binary,
}

/// What comes after a part of the input was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Further commands may be complete.
    More,
    /// Replies are sent before more commands are executed: there are many bytes of them.
    Send,
    /// The rest is the beginning of a command.
    Incomplete,
    /// As a flow says.
    Flow(Flow),
}

/// A key that a retrieval asks for.
#[derive(Clone, Copy, Debug)]
struct Wanted<'a, T> {
    key: &'a [u8],
    /// What its reply depends on.
    tag: T,
}

/// A conversation with a memcached client.
#[derive(Debug)]
pub(crate) struct Memcached {
    client: Arc<Client>,
    items: Arc<Items>,
    current: Current,
    authenticated: bool,
    wire: Option<Wire>,
    /// What was written or read in this batch has to be durable before the replies are sent.
    unsettled: bool,
    /// The number of commands in this batch.
    batch: u64,
    /// Something was stored in this batch.
    stored: bool,
    /// The items exceed their budget: the client's next command waits until they do not.
    surplus: bool,
    /// The length of the first command, as far as it is known.
    needed: usize,
    /// Bytes to be discarded: the value of a store that was refused.
    discards: usize,
    /// Keys of the first command that were answered already.
    answered: usize,
    /// The first command, if it is a retrieval of very many keys of which some were answered.
    long: Option<LongGet>,
    /// Bytes of the first line that were searched for its end.
    searched: usize,
    /// The end of the last command.
    clock: Instant,
    /// The name of the last command.
    last: &'static str,
}

/// Returns when an item expires, in ms since 1970, that is given a time as memcached's clients do:
/// 0 for never, up to 30 days in seconds from now, else in seconds since 1970; negative for at
/// once.
fn expiry(time: i64, now: u64) -> Option<u64> {
    let seconds = |time: i64| time.unsigned_abs().saturating_mul(1000);
    match time {
        0 => None,
        ..0 => Some(now),
        1..=RELATIVE => Some(now.saturating_add(seconds(time))),
        _ => Some(seconds(time).max(now)),
    }
}

/// Returns the text of an error that is the server's.
fn server_error(error: &ItemError) -> String {
    match error {
        ItemError::Write(WriteError::Space(_)) => "out of memory storing object".into(),
        error => error.to_string().replace(['\r', '\n'], " "),
    }
}

impl Memcached {
    /// Begins one.
    pub fn new(server: &Server, client: Arc<Client>, items: Arc<Items>) -> Self {
        let current = Current::new(server);
        let user = &current.user;
        client.names().user.clone_from(&user.name);
        Self {
            authenticated: user.on && user.nopass,
            current,
            client,
            items,
            wire: None,
            unsettled: false,
            batch: 0,
            stored: false,
            surplus: false,
            needed: 0,
            discards: 0,
            answered: 0,
            long: None,
            searched: 0,
            clock: Instant::now(),
            last: "",
        }
    }

    /// Begins a batch of commands. Returns false if the connection has to end: its user was
    /// deleted.
    fn begin(&mut self, server: &Server) -> bool {
        self.client.touch();
        self.clock = Instant::now();
        self.batch = 0;
        self.current.renew(server) != UserState::Deleted
    }

    /// Returns the state that commands read: the connection's own unsettled writes are included.
    fn reads(&self) -> Reads {
        if self.unsettled {
            Reads::Applied
        } else {
            Reads::Durable
        }
    }

    /// Notes that something was written, or may have been.
    fn wrote(&mut self) {
        self.unsettled = true;
        self.stored = true;
    }

    /// Refuses a command for which the user lacks the right to a command of Redis', or to the key.
    fn permit(&self, server: &Server, as_command: &str, key: Option<&[u8]>) -> Result<(), String> {
        if self.current.user.everything {
            return Ok(());
        }
        let Some(entry) = server.table.find(as_command.as_bytes()) else {
            return Err(format!("NOPERM there is no right to {as_command}"));
        };
        let args: [Arg<'_>; 2] = [as_command.as_bytes(), key.unwrap_or_default()];
        let args = if key.is_some() { &args[..] } else { &args[..1] };
        rights::permit(&self.current.user, entry, args).map_err(|e| {
            add(&server.stats.denied, 1);
            e.to_string()
        })
    }

    /// Notes commands that were executed together since the last one ended.
    fn note(&mut self, server: &Server, name: &'static str, key: &[u8], commands: u64) {
        self.last = name;
        self.batch += commands;
        add(&server.stats.commands, commands);
        let now = Instant::now();
        let took =
            now.saturating_duration_since(self.clock) / u32::try_from(commands).unwrap_or(1).max(1);
        self.clock = now;
        let slow = u128::try_from(self.current.settings.slowlog_log_slower_than);
        if slow.is_ok_and(|slow| took.as_micros() >= slow) {
            let client = (self.client.address.clone(), String::new());
            let most = self.current.settings.slowlog_max_len;
            (server.slowlog).note(&[name.as_bytes(), key], took, client, most);
        }
    }

    /// Calls `f`, which works on a value of that many bytes: where other connections do not wait,
    /// if it is long.
    fn perhaps_long<R>(bytes: usize, f: impl FnOnce() -> R) -> R {
        if bytes > LARGE {
            tokio::task::block_in_place(f)
        } else {
            f()
        }
    }

    /// Answers retrievals in order, until there are enough replies. Returns how many, and the error
    /// of the next one, if that failed.
    fn get<T: Copy>(
        &mut self,
        now: u64,
        wanted: &[Wanted<'_, T>],
        out: &mut Vec<u8>,
        mut reply: impl FnMut(&mut Out<'_>, T, &[u8], Option<&Item<'_>>),
    ) -> (usize, Option<ItemError>) {
        let keys: Vec<&[u8]> = wanted.iter().map(|wanted| wanted.key).collect();
        let reads = self.reads();
        let (mut done, mut found) = (0, Vec::new());
        let mut out = Out::for_client(out, Protocol::Resp2, &self.client.account);
        let mut failed = None;
        while done < wanted.len() {
            let mut at = done;
            let mut answer = |item: Option<&Item<'_>>| {
                let Wanted { key, tag } = wanted[at];
                at += 1;
                if item.is_some() {
                    found.push(key);
                }
                reply(&mut out, tag, key, item);
                if out.mark() < ENOUGH_OUTPUT {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            };
            let read = (self.items).read_many(now, &keys[done..], reads, &mut answer);
            let read = match read {
                // A long one comes first.
                Ok(0) => self
                    .items
                    .read(now, keys[done], reads, |item| {
                        let _ = answer(Some(item));
                    })
                    .map(|read| {
                        if read.is_none() {
                            let _ = answer(None);
                        }
                    }),
                Ok(_) => Ok(()),
                Err(e) => Err(e),
            };
            done = at;
            if let Err(e) = read {
                failed = Some(e);
                break;
            }
            if out.mark() >= ENOUGH_OUTPUT {
                break;
            }
        }
        self.items.note_read(now, &found);
        let hits = found.len() as u64;
        self.items.counters.count_gets(hits, done as u64 - hits);
        self.unsettled |= reads == Reads::Applied;
        (done, failed)
    }

    /// Stores items whatever there is. Returns what to reply to each.
    fn set(&mut self, now: u64, puts: &[Put<'_>]) -> Vec<Result<u64, ItemError>> {
        self.wrote();
        let bytes: usize = puts.iter().map(|put| put.value.len()).sum();
        let items = &self.items;
        Self::perhaps_long(bytes, || {
            if let [put] = puts {
                return vec![items.store(now, put).map(|stored| match stored {
                    Stored::Done(cas) => cas,
                    _ => 0,
                })];
            }
            match items.store_all(now, puts) {
                Ok(numbers) => numbers.into_iter().map(Ok).collect(),
                // Each by itself gets its own error.
                Err(_) => puts
                    .iter()
                    .map(|put| {
                        let stored = items.store(now, put)?;
                        Ok(if let Stored::Done(cas) = stored {
                            cas
                        } else {
                            0
                        })
                    })
                    .collect(),
            }
        })
    }

    /// Flushes all items at a time that is given as memcached's clients do: nothing if it is before
    /// the server was started, else at once if it is past.
    fn flush(&mut self, server: &Server, time: i64, now: u64) -> Result<(), ItemError> {
        self.unsettled = true;
        let ran = u64::try_from(server.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let started = now.saturating_sub(ran) / 1000;
        if time > RELATIVE && time.unsigned_abs() < started {
            return Ok(());
        }
        self.items.flush(expiry(time.max(0), now))
    }

    /// Evicts items, some at most. Returns true if those that are left exceed their budget.
    fn evict(&self) -> bool {
        self.items.make_room().unwrap_or_else(|e| {
            tracing::error!(error = %e, "evicting memcached items failed");
            false
        })
    }

    /// Counts an item that could not be stored.
    fn count_refused(&self, error: &ItemError) {
        if let ItemError::Write(WriteError::Space(_)) = error {
            add(&self.items.counters.store_no_memory, 1);
        }
    }
}

impl Conversation for Memcached {
    fn execute(&mut self, server: &Server, input: &mut Input, out: &mut Vec<u8>) -> (Flow, bool) {
        if !self.begin(server) {
            return (Flow::Close, false);
        }
        self.needed = 0;
        if self.surplus {
            self.surplus = self.evict();
            if self.surplus {
                return (Flow::Go, true);
            }
        }
        let turn = Turn::begin();
        let outcome = loop {
            let discarded = self.discards.min(input.rest().len());
            input.start += discarded;
            self.discards -= discarded;
            let Some(first) = input.rest().first() else {
                break (Flow::Go, false);
            };
            let wire = *self.wire.get_or_insert(if *first == BINARY {
                Wire::Binary
            } else {
                Wire::Text
            });
            if let Err(e) = self.items.prepare() {
                self.fail(&server_error(&e), out);
                break (Flow::Close, false);
            }
            let (executed, next) = match wire {
                Wire::Text => self.execute_text(server, input.rest(), out),
                Wire::Binary => self.execute_binary(server, input.rest(), out),
            };
            input.start += executed;
            if executed > 0 {
                self.searched = 0;
            }
            if self.client.is_evicted() {
                // The eviction was logged.
                *out = Vec::new();
                break (Flow::Close, false);
            }
            match next {
                Next::More if !turn.is_over(out) => {}
                Next::More | Next::Send => break (Flow::Go, true),
                Next::Incomplete => break (Flow::Go, false),
                Next::Flow(flow) => break (flow, true),
            }
        };
        if std::mem::take(&mut self.stored) {
            self.surplus = self.evict();
        }
        let mut names = self.client.names();
        if names.command != self.last {
            self.last.clone_into(&mut names.command);
        }
        drop(names);
        outcome
    }

    fn take_unsettled(&mut self) -> Option<u64> {
        std::mem::take(&mut self.unsettled).then_some(self.batch)
    }

    fn fail(&self, text: &str, out: &mut Vec<u8>) {
        match self.wire {
            Some(Wire::Binary) => packet::fail(text, out),
            _ => {
                out.extend_from_slice(b"SERVER_ERROR ");
                out.extend_from_slice(text.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    fn needed(&self) -> usize {
        self.needed
    }

    fn held(&self) -> usize {
        0
    }

    fn most_input(&self) -> usize {
        self.current.settings.client_query_buffer_limit
    }

    fn leave(&mut self, server: &Server) {
        server.clients.leave(self.client.id);
    }
}
