//! Consecutive [steps](Step) of a pipeline, `GET`s and plain `SET`s, executed as one batch: their
//! searches overlap their waits for memory, and their writes become durable together.
//!
//! A batch of `GET`s takes no locks. A batch with a `SET` locks all of its keys: its effect is as
//! if its commands were executed one after the other with nothing in between.

use crate::command::Step;
use crate::data::locks::Patience;
use crate::data::record::{self, STRING, string_of};
use crate::data::spaces::Space;
use crate::data::tx::SHORT_WORK;
use crate::data::{Data, Reads};
use crate::parse::Arg;
use crate::reply::Out;
use bristlecone_store::Entry;
use std::ops::ControlFlow;

/// A batch ends when its replies exceed this many bytes.
const ENOUGH_REPLY_BYTES: usize = 256 << 10;

/// A step and its key.
pub type KeyStep<'a> = (Arg<'a>, Step<'a>);

impl Data {
    /// Executes steps on database `db`, in order, up to the first that needs more than a step: a
    /// value of another type, a large collection that a `SET` replaces, a key that comes again
    /// after it was written, or a store without room. Returns how many it has executed. Their
    /// replies are in `out`.
    ///
    /// With a `SET` among them, the replies have to wait until [`applied`](Self::applied) is
    /// durable; without one, `GET`s see what `reads` says.
    pub fn execute_steps(
        &self,
        db: usize,
        steps: &[KeyStep<'_>],
        reads: Reads,
        out: &mut Out<'_>,
    ) -> usize {
        if steps.iter().any(|(_, step)| *step != Step::Get) {
            let done = self.put_steps(db, steps, out);
            if done > 0 {
                return done;
            }
        }
        // GETs before a SET that cannot be executed here need not wait for it.
        let gets = steps.iter().take_while(|(_, step)| *step == Step::Get);
        let keys: Vec<_> = gets.map(|(key, _)| *key).collect();
        if keys.is_empty() {
            return 0;
        }
        self.get_steps(db, &keys, reads, out)
    }

    /// Executes steps that include a `SET`. No client that waits can be served by a `SET`: they
    /// wait for lists and sorted sets.
    fn put_steps(&self, db: usize, steps: &[KeyStep<'_>], out: &mut Out<'_>) -> usize {
        let keys = steps.iter().map(|(key, _)| (db, *key));
        // A step by itself waits for its lock where no connection waits for it.
        let Some(_held) = self.locks.keys(keys, Patience::Short) else {
            return 0;
        };
        // All records are in one allocation.
        let len = |step: &Step<'_>| match step {
            Step::Get => 0,
            Step::Put(value) => 1 + value.len(),
        };
        let mut bytes = Vec::with_capacity(steps.iter().map(|(_, step)| len(step)).sum());
        for (_, step) in steps {
            if let Step::Put(value) = step {
                bytes.push(STRING);
                bytes.extend_from_slice(value);
            }
        }
        let mut rest = &bytes[..];
        let stored: Vec<_> = steps
            .iter()
            .map(|(key, step)| match step {
                Step::Get => (*key, bristlecone_store::Step::Get),
                Step::Put(_) => {
                    let record = rest.split_off(..len(step)).unwrap_or_default();
                    (*key, bristlecone_store::Step::Put(record))
                }
            })
            .collect();
        let keyspace = self.keyspace(Space::Keys(db), self.order());
        let mark = out.mark();
        let mut at = steps.iter();
        let (mut hits, mut misses) = (0, 0);
        let done = self.writer().execute_batch(keyspace, &stored, |before| {
            let Some((_, step)) = at.next() else {
                return ControlFlow::Break(());
            };
            if out.mark().saturating_sub(mark) > ENOUGH_REPLY_BYTES {
                return ControlFlow::Break(());
            }
            match step {
                Step::Get => {
                    let found = before.is_some();
                    reply(before, out)?;
                    hits += u64::from(found);
                    misses += u64::from(!found);
                    return ControlFlow::Continue(());
                }
                // The elements of a large collection have to be deleted, too.
                Step::Put(_) if before.is_some_and(|before| record::is_large(before.value)) => {
                    return ControlFlow::Break(());
                }
                Step::Put(_) => out.ok(),
            }
            ControlFlow::Continue(())
        });
        if !matches!(done, Ok(0)) {
            self.note_write(&done);
        }
        // After an error the first step is executed by itself, and replies with its own error.
        let Ok(done) = done else {
            out.truncate(mark);
            return 0;
        };
        self.lookups.note(hits, misses);
        if self.watchers.any() {
            let puts = steps[..done].iter().filter(|(_, step)| *step != Step::Get);
            puts.for_each(|(key, _)| self.watchers.touch(db, key));
        }
        done
    }

    fn get_steps(&self, db: usize, keys: &[Arg<'_>], reads: Reads, out: &mut Out<'_>) -> usize {
        loop {
            let (mark, swaps) = (out.mark(), self.swaps());
            let keyspace = self.keyspace(Space::Keys(db), self.order());
            let (mut done, mut hits) = (0, 0);
            let store = self.reader(reads);
            // A longer value ends the batch: its step is executed by itself.
            let most = SHORT_WORK as u64;
            let read = store.multi_get_within(keyspace, keys, most, |entry| {
                let found = entry.is_some();
                reply(entry, out)?;
                done += 1;
                hits += u64::from(found);
                if out.mark().saturating_sub(mark) < ENOUGH_REPLY_BYTES {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
            if read.is_ok() && self.swaps() == swaps {
                self.lookups.note(hits, done as u64 - hits);
                return done;
            }
            // The databases were swapped meanwhile: this may have read another one's keys.
            out.truncate(mark);
            if read.is_err() {
                // The first step is executed by itself, and replies with its own error.
                return 0;
            }
        }
    }
}

/// Replies to a `GET` if the key holds a string, or nothing.
fn reply(entry: Option<Entry<'_>>, out: &mut Out<'_>) -> ControlFlow<()> {
    match entry.map(|entry| string_of(entry.value)) {
        None => out.null(),
        Some(Some(bytes)) => out.bulk(bytes),
        Some(_) => return ControlFlow::Break(()),
    }
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::watch::Watch;
    use crate::fixture::{Fixture, on_disk};
    use crate::reply::Protocol;
    use bristlecone_pmem::media::journal::fault::FaultDisk;

    fn together(data: &Data, steps: &[KeyStep<'_>]) -> (usize, String) {
        let mut reply = Vec::new();
        let mut out = Out::new(&mut reply, Protocol::Resp2);
        let done = data.execute_steps(0, steps, Reads::Applied, &mut out);
        (done, String::from_utf8(reply).unwrap())
    }

    #[test]
    fn who_watches_a_key_is_told_of_each_put() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let steps: [KeyStep<'_>; 3] = [
            (b"a", Step::Put(b"v")),
            (b"b", Step::Get),
            (b"c", Step::Put(b"v")),
        ];
        for (key, is_put) in [(b"a", true), (b"b", false), (b"c", true)] {
            let mut watch = Watch::default();
            data.watch(&mut watch, 0, key).unwrap();
            assert_eq!(together(&data, &steps).0, 3);
            assert_eq!(watch.is_touched(), is_put, "{}", key.escape_ascii());
        }
    }

    #[test]
    fn in_a_full_pool_gets_are_answered_and_sets_go_alone() {
        /// Keys with values of 4 KiB that are removed to make room. A page needs a chunk for blocks
        /// of its size, and what is kept back for removals comes first.
        const REMOVED: u64 = 200;
        let (fixture, disk) = (Fixture::new(), FaultDisk::new(1));
        let data = on_disk(&disk, true);
        let (mut keys, mut refused) = (0, String::new());
        for bytes in [4096, 1000, 200, 1] {
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
        let put = |key| (key, Step::Put(b"v"));
        let get = |key| (key, Step::Get);
        // The one that was refused: there may be room for others, in a page of a tree.
        let absent = format!("key{keys}");
        let absent = absent.as_bytes();
        let last = format!("key{}", keys - 1);
        let commands = [get(last.as_bytes()), put(absent), get(absent)];
        let answers = "$1\r\nv\r\n";
        assert_eq!(together(&data, &commands), (1, answers.into()));
        assert_eq!(together(&data, &commands[1..]), (0, String::new()));
        assert_eq!(fixture.call(&data, &format!("set key{keys} v")), refused);
        assert_eq!(together(&data, &commands[2..]), (1, "$-1\r\n".into()));
        // Nothing is lost by that, and room that was made, durably, is used.
        assert_eq!(data.len(0), keys);
        for key in 0..REMOVED {
            assert_eq!(fixture.call(&data, &format!("del key{key}")), ":1\r\n");
        }
        data.settle(data.applied()).unwrap();
        // The index may lack room, too; only a command that is executed by itself waits for it.
        assert_eq!(fixture.call(&data, &format!("set key{keys} v")), "+OK\r\n");
        let done = (2, format!("{answers}+OK\r\n"));
        assert_eq!(together(&data, &commands), done);
        assert_eq!(fixture.call(&data, &format!("get key{keys}")), answers);
    }
}
