//! Plain `GET`s and `SET`s of a pipeline, executed at one time: their searches' waits for memory overlap, and what they write is made
//! durable together.
//!
//! Where there are only `GET`s, nothing is locked. Where some of them are `SET`s, the keys of all are locked: it is as if they were
//! executed one after the other while nobody else does anything.

use super::value::{self, STRING};
use super::{Data, Reads, Space};
use crate::command::{Arg, is};
use crate::reply::Out;
use bristlecone_store::{Entry, Step};
use std::ops::ControlFlow;

/// Bytes of answers that are enough for commands that are executed together.
const TOGETHER_MOST: usize = 256 << 10;
/// Longest key or value of such a command, in bytes.
pub(crate) const SHORT: usize = 4 << 10;

/// A `GET`, or a `SET` without options of a short value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain<'a> {
    /// The key.
    pub key: Arg<'a>,
    /// The value of a `SET`.
    pub value: Option<Arg<'a>>,
}

impl<'a> Plain<'a> {
    /// The command of these arguments, if it is one.
    #[must_use]
    pub fn of(args: &[Arg<'a>]) -> Option<Self> {
        let short = |bytes: Arg<'_>| bytes.len() <= SHORT;
        match *args {
            [name, key, value] if short(key) && short(value) && is(name, "set") => Some(Self {
                key,
                value: Some(value),
            }),
            [name, key] if short(key) && is(name, "get") => Some(Self { key, value: None }),
            _ => None,
        }
    }
}

impl Data {
    /// Executes commands on database `db`, from the first on, as long as nothing else is to be done for that: how many. What they write, and
    /// what they read, may not be durable yet, if there is a `SET` among them; what `GET`s alone read is what `reads` says.
    pub fn execute_batch(
        &self,
        db: usize,
        commands: &[Plain<'_>],
        reads: Reads,
        out: &mut Out<'_>,
    ) -> usize {
        if commands.iter().any(|command| command.value.is_some()) {
            let done = self.set_together(db, commands, out);
            if done > 0 {
                return done;
            }
        }
        // Where SETs have to go alone, GETs before them need not.
        let gets = commands.iter().take_while(|get| get.value.is_none());
        let keys: Vec<_> = gets.map(|get| get.key).collect();
        if keys.is_empty() {
            return 0;
        }
        self.multi_get(db, &keys, reads, out)
    }

    fn set_together(&self, db: usize, commands: &[Plain<'_>], out: &mut Out<'_>) -> usize {
        let _held = self
            .locks
            .keys(commands.iter().map(|command| (db, command.key)));
        if self.waiting.any() {
            // Who waits for a key may be to be told.
            return 0;
        }
        // Records in one piece of memory.
        let len = |command: &Plain<'_>| command.value.map_or(0, |value| 1 + value.len());
        let mut bytes = Vec::with_capacity(commands.iter().map(len).sum());
        for value in commands.iter().filter_map(|command| command.value) {
            bytes.push(STRING);
            bytes.extend_from_slice(value);
        }
        let mut rest = &bytes[..];
        let step = |command: &Plain<'_>| match command.value {
            Some(_) => Step::Put(rest.split_off(..len(command)).unwrap_or_default()),
            None => Step::Get,
        };
        let steps: Vec<_> = (commands.iter().map(|command| command.key))
            .zip(commands.iter().map(step))
            .collect();
        let keyspace = self.keyspace(Space::Keys(db), self.order());
        let mark = out.mark();
        let mut at = steps.iter();
        let done = self.deferring.execute_batch(keyspace, &steps, |before| {
            let Some((_, step)) = at.next() else {
                return ControlFlow::Break(());
            };
            match step {
                _ if out.mark().saturating_sub(mark) > TOGETHER_MOST => {
                    return ControlFlow::Break(());
                }
                Step::Get => return answer(before, out),
                // A large collection leaves elements.
                Step::Put(_) if before.is_some_and(|before| value::is_large(before.value)) => {
                    return ControlFlow::Break(());
                }
                Step::Put(_) => out.ok(),
            }
            ControlFlow::Continue(())
        });
        if !matches!(done, Ok(0)) {
            self.note_write(&done);
        }
        // Where it fails, the first one goes alone, and says why.
        let Ok(done) = done else {
            out.truncate(mark);
            return 0;
        };
        if self.touched.any() {
            let sets = commands[..done].iter().filter(|set| set.value.is_some());
            sets.for_each(|set| self.touched.touch(db, set.key));
        }
        done
    }

    fn multi_get(&self, db: usize, keys: &[Arg<'_>], reads: Reads, out: &mut Out<'_>) -> usize {
        loop {
            let (mark, swaps) = (out.mark(), self.swaps());
            let keyspace = self.keyspace(Space::Keys(db), self.order());
            let mut done = 0;
            let read = self.reader(reads).multi_get(keyspace, keys, |entry| {
                answer(entry, out)?;
                done += 1;
                if out.mark().saturating_sub(mark) < TOGETHER_MOST {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
            if read.is_ok() && self.swaps() == swaps {
                return done;
            }
            // What was read may be another database's.
            out.truncate(mark);
            if read.is_err() {
                // The first one goes alone, and says why.
                return 0;
            }
        }
    }
}

/// Answers a `GET`, if a string is there, or nothing.
fn answer(entry: Option<Entry<'_>>, out: &mut Out<'_>) -> ControlFlow<()> {
    match entry.map(|entry| entry.value.split_first()) {
        None => out.null(),
        Some(Some((&STRING, bytes))) => out.bulk(bytes),
        Some(_) => return ControlFlow::Break(()),
    }
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::fixture::{Fixture, on_disk};
    use crate::reply::Protocol;
    use bristlecone_pmem::media::journal::fault::FaultDisk;

    fn together(data: &Data, commands: &[Plain<'_>]) -> (usize, String) {
        let mut reply = Vec::new();
        let mut out = Out::new(&mut reply, Protocol::Resp2);
        let done = data.execute_batch(0, commands, Reads::Applied, &mut out);
        (done, String::from_utf8(reply).unwrap())
    }

    #[test]
    fn in_a_full_pool_gets_are_answered_and_sets_go_alone() {
        let (fixture, disk) = (Fixture::new(), FaultDisk::new(1));
        let data = on_disk(&disk, true);
        let (mut keys, mut refused) = (0, String::new());
        for bytes in [SHORT, 1000, 200, 1] {
            let value = "v".repeat(bytes);
            loop {
                refused = fixture.call(&data, &format!("set key{keys} {value}"));
                if refused.starts_with('-') {
                    break;
                }
                keys += 1;
            }
        }
        assert!(refused.contains("space"), "{refused}");
        let put = |key| Plain {
            key,
            value: Some(&b"v"[..]),
        };
        let get = |key| Plain { key, value: None };
        let absent = b"absent";
        let last = format!("key{}", keys - 1);
        let commands = [get(last.as_bytes()), put(absent), get(absent)];
        let answers = "$1\r\nv\r\n";
        assert_eq!(together(&data, &commands), (1, answers.into()));
        assert_eq!(together(&data, &commands[1..]), (0, String::new()));
        assert_eq!(fixture.call(&data, "set absent v"), refused);
        assert_eq!(together(&data, &commands[2..]), (1, "$-1\r\n".into()));
        // Nothing is lost by that, and room that was made, durably, is used.
        assert_eq!(data.len(0), keys);
        for key in 0..100 {
            assert_eq!(fixture.call(&data, &format!("del key{key}")), ":1\r\n");
        }
        data.settle(data.applied()).unwrap();
        // The index may lack room too, which only who goes alone waits for.
        assert_eq!(fixture.call(&data, "set absent v"), "+OK\r\n");
        let done = (2, format!("{answers}+OK\r\n"));
        assert_eq!(together(&data, &commands), done);
        assert_eq!(fixture.call(&data, "get absent"), answers);
    }
}
