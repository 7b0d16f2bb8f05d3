//! The sweeper: a thread that deletes expired large collections, and the elements of deleted ones.
//!
//! Each step is a commit of its own. The record that asks for the work is deleted with the last
//! one, so that a crash only leaves more to be swept.

use crate::data::Data;
use crate::data::locks::Patience;
use crate::data::record::parse_expiry;
use crate::data::spaces::Space;
use crate::error::{CommandError, Outcome};
use bristlecone_store::{Batch, WriteError};
use std::ops::Bound;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The number of elements deleted in one commit, and of expired collections looked up at once.
pub(crate) const AT_ONCE: usize = 1024;
/// How long the sweeper sleeps when there is nothing to do.
const PAUSE: Duration = Duration::from_millis(100);
/// How long it sleeps after an error, such as a full or a damaged pool.
const AFTER_ERROR: Duration = Duration::from_secs(5);

/// A running sweeper. Dropping it stops it.
#[derive(Debug)]
pub struct Sweeper {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Stop {
    said: Mutex<bool>,
    told: Condvar,
}

impl Stop {
    /// Sleeps. Returns true if the sweeper has to stop.
    fn sleep(&self, pause: Duration) -> bool {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let (said, _) = self
            .told
            .wait_timeout_while(said, pause, |said| !*said)
            .unwrap_or_else(PoisonError::into_inner);
        *said
    }

    fn say(&self) {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.told.notify_all();
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.stop.say();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts the sweeper of databases.
///
/// # Errors
/// The thread cannot be started.
pub fn spawn(data: &Arc<Data>) -> std::io::Result<Sweeper> {
    let data = Arc::clone(data);
    spawn_stepping("sweeper", move || data.sweep())
}

/// Starts a sweeper, which takes steps while they return true, and looks again after a pause.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn spawn_stepping(
    name: &str,
    step: impl Fn() -> Result<bool, CommandError> + Send + 'static,
) -> std::io::Result<Sweeper> {
    let stop = Arc::new(Stop::default());
    let told = Arc::clone(&stop);
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let mut pause = PAUSE;
            while !told.sleep(pause) {
                pause = match step() {
                    // New work may come as fast as it is done.
                    Ok(true) => Duration::ZERO,
                    Ok(false) => PAUSE,
                    Err(e) => {
                        tracing::error!(error = %e, "taking away what has expired or is deleted failed");
                        AFTER_ERROR
                    }
                };
            }
        })?;
    Ok(Sweeper {
        stop,
        thread: Some(thread),
    })
}

impl Data {
    /// Takes one step: deletes a bounded number of expired collections, and of elements of deleted
    /// ones. Returns true if there may be more.
    ///
    /// # Errors
    /// The first [`CommandError`]; what was deleted stays deleted.
    pub fn sweep(&self) -> Result<bool, CommandError> {
        // The three are independent: one that fails on damaged records does not stop the others.
        let expired = self.sweep_expired();
        let gone = self.sweep_garbage();
        let orphans = self.sweep_orphans();
        let done = [expired, gone, orphans].map(|done| match done {
            // The database was cleared meanwhile: what was to be deleted is gone.
            Err(CommandError::Write(WriteError::Dropped { .. })) => Ok(true),
            done => done,
        });
        if !done.iter().all(|done| matches!(done, Ok(false))) {
            self.settle(self.applied())?;
        }
        let mut more = false;
        for done in done {
            more |= done?;
        }
        Ok(more)
    }

    /// Deletes expired collections. Returns true if there were any.
    fn sweep_expired(&self) -> Result<bool, CommandError> {
        let end = self.store.now().saturating_add(1).to_be_bytes();
        let range = (Bound::Unbounded, Bound::Excluded(end.to_vec()));
        let snapshot = self.deferring.snapshot();
        let due = snapshot
            .into_cursor(&self.spaces().expiries, range)
            .next_keys(AT_ONCE)?;
        let mut done = Ok(!due.is_empty());
        for entry in &due {
            if let Err(e) = self.expire(entry) {
                // A damaged one does not stop the others.
                done = done.and(Err(e));
            }
        }
        done
    }

    /// Deletes the collection of an entry in `Space::Expiries` if that is its current expiry, and
    /// the entry in any case.
    pub(crate) fn expire(&self, entry: &[u8]) -> Outcome {
        let (at, place, key) = parse_expiry(entry)?;
        let found;
        let key = match key {
            Some(key) => key,
            None => match self.deferring.get(&self.spaces().expiries, entry)? {
                Some(key) => {
                    found = key;
                    &found
                }
                // Its collection was just deleted.
                None => return Ok(()),
            },
        };
        // The lock is that of the name in all databases, and prevents them from being swapped.
        let _held = self.locks.keys(std::iter::once((0, key)), Patience::Any);
        let db = self.order().database(place);
        let done = self.transact(db, |tx| {
            // Looking at an expired collection deletes it, with this entry.
            let head = tx.load_head(key)?;
            if head.is_none_or(|head| head.id.is_none() || head.expires_at != Some(at)) {
                tx.delete(Space::Expiries, entry)?;
            }
            Ok(())
        });
        done.map(drop)
    }

    /// Deletes elements of deleted collections. Returns true if there were any.
    fn sweep_garbage(&self) -> Result<bool, CommandError> {
        let all = (Bound::Unbounded, Bound::<Vec<u8>>::Unbounded);
        let spaces = self.spaces();
        let mut ids = (self.deferring.snapshot()).into_cursor(&spaces.garbage, all);
        let ids = ids.next_keys(AT_ONCE)?;
        let mut room = AT_ONCE;
        let mut batch = Batch::new();
        for id in &ids {
            let snapshot = self.deferring.snapshot();
            let elements = snapshot
                .cursor_prefix(&spaces.elements, id)
                .next_keys(room)?;
            for element in &elements {
                batch.delete(&spaces.elements, element);
            }
            room -= elements.len();
            if room == 0 {
                break;
            }
            batch.delete(&spaces.garbage, id);
        }
        if !batch.is_empty() {
            self.deferring.write(batch)?;
        }
        Ok(!ids.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Fixture, put_large};
    use bristlecone_store::MAX_KEY_BYTES;
    use std::time::Instant;

    fn sweep_all(data: &Data) {
        while data.sweep().unwrap() {}
    }

    #[test]
    fn elements_of_what_is_deleted_go() {
        let fixture = Fixture::new();
        let data = fixture.open();
        put_large(&data, 0, b"a", 1000, None);
        put_large(&data, 0, b"b", 10, None);
        assert_eq!(fixture.call(&data, "del a"), ":1\r\n");
        assert_eq!(data.store().len(&data.spaces().elements), 1010);
        assert_eq!(data.store().len(&data.spaces().garbage), 1);
        sweep_all(&data);
        assert_eq!(data.store().len(&data.spaces().elements), 10);
        assert_eq!(data.store().len(&data.spaces().garbage), 0);
        assert_eq!(fixture.call(&data, "exists a b"), ":1\r\n");
    }

    #[test]
    fn a_sweep_that_was_cut_short_is_taken_up_after_opening() {
        let fixture = Fixture::new();
        let data = fixture.open();
        put_large(&data, 0, b"a", 1000, None);
        put_large(&data, 3, b"b", 1000, None);
        let id = data.new_id();
        assert_eq!(fixture.call(&data, "flushall"), "+OK\r\n");
        assert!(data.sweep().unwrap());
        let left = data.store().len(&data.spaces().elements);
        assert!((1..2000).contains(&left), "{left}");
        data.settle(data.applied()).unwrap();
        drop(data);
        let data = fixture.open();
        assert!(data.new_id() > 2, "ids with elements are not given again");
        assert!(data.new_id() <= id + 2);
        assert_eq!(data.store().len(&data.spaces().elements), left);
        sweep_all(&data);
        assert_eq!(data.store().len(&data.spaces().elements), 0);
        assert_eq!(data.store().len(&data.spaces().garbage), 0);
    }

    #[test]
    fn what_has_expired_goes_and_what_has_not_stays() {
        let fixture = Fixture::new();
        let data = fixture.open();
        fixture.at(1000);
        put_large(&data, 0, b"a", 5, Some(2000));
        put_large(&data, 0, b"later", 5, Some(3000));
        put_large(&data, 0, b"no longer", 5, Some(1500));
        put_large(&data, 0, b"renamed", 5, Some(1600));
        assert_eq!(fixture.call(&data, "set \"no longer\" x"), "+OK\r\n");
        assert_eq!(fixture.call(&data, "rename renamed other"), "+OK\r\n");
        assert_eq!(fixture.call(&data, "persist other"), ":1\r\n");
        assert_eq!(fixture.call(&data, "pexpireat other 1700"), ":1\r\n");
        sweep_all(&data);
        assert_eq!(data.store().len(&data.spaces().elements), 15);
        assert_eq!(data.store().len(&data.spaces().expiries), 3);
        fixture.at(2000);
        assert_eq!(fixture.call(&data, "exists a"), ":0\r\n");
        assert_eq!(
            fixture.call(&data, "dbsize"),
            ":4\r\n",
            "they are still there"
        );
        sweep_all(&data);
        assert_eq!(fixture.call(&data, "dbsize"), ":2\r\n");
        assert_eq!(data.store().len(&data.spaces().elements), 5);
        assert_eq!(data.store().len(&data.spaces().expiries), 1);
        assert_eq!(fixture.call(&data, "pttl later"), ":1000\r\n");
        assert_eq!(fixture.call(&data, "get \"no longer\""), "$1\r\nx\r\n");
    }

    /// The entry of an expiry was longer than its key, and impossible for the longest keys.
    #[test]
    fn collections_under_the_longest_keys_expire() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let entries = || data.store().len(&data.spaces().expiries);
        let elements = || data.store().len(&data.spaces().elements);
        for (at, len) in (1..).zip(MAX_KEY_BYTES - 12..=MAX_KEY_BYTES) {
            let at = 10_000 * at;
            fixture.at(at);
            let [one, other] = ["a", "b"].map(|letter| letter.repeat(len));
            let ok = |line: String, reply: &str| {
                assert_eq!(fixture.call(&data, &line), format!("{reply}\r\n"), "{len}");
            };
            put_large(&data, 0, one.as_bytes(), 5, None);
            ok(format!("pexpire {one} 1000"), ":1");
            ok(format!("persist {one}"), ":1");
            assert_eq!(entries(), 0);
            ok(format!("pexpire {one} 1000"), ":1");
            ok(format!("pexpire {one} 2000"), ":1");
            ok(format!("rename {one} {other}"), "+OK");
            ok(format!("move {other} 3"), ":1");
            assert_eq!(entries(), 1);
            put_large(&data, 0, one.as_bytes(), 5, Some(at + 2000));
            fixture.at(at + 1999);
            sweep_all(&data);
            assert_eq!(
                (data.len(0), data.len(3), entries(), elements()),
                (1, 1, 2, 10)
            );
            fixture.at(at + 2000);
            sweep_all(&data);
            assert_eq!(
                (data.len(0), data.len(3), entries(), elements()),
                (0, 0, 0, 0)
            );
        }
    }

    #[test]
    fn what_is_damaged_keeps_nothing_else() {
        let fixture = Fixture::new();
        let data = fixture.open();
        put_large(&data, 0, b"gone", 10, None);
        put_large(&data, 0, b"expired", 10, Some(1000));
        fixture.call(&data, "del gone");
        // The expiry of a key of a database that does not exist.
        let damaged = [&500u64.to_be_bytes()[..], &99u16.to_be_bytes(), b"key"].concat();
        data.store
            .put(&data.spaces().expiries, &damaged, b"")
            .unwrap();
        fixture.at(1000);
        data.sweep().unwrap_err();
        data.sweep().unwrap_err();
        assert_eq!(data.store().len(&data.spaces().elements), 0);
        assert_eq!(fixture.call(&data, "dbsize"), ":0\r\n");
    }

    #[test]
    fn a_sweeper_does_it_by_itself_and_stops() {
        let fixture = Fixture::new();
        let data = Arc::new(fixture.open());
        let sweeper = spawn(&data).unwrap();
        put_large(&data, 0, b"a", 1000, None);
        fixture.call(&data, "set a b");
        let until = Instant::now() + Duration::from_secs(30);
        while data.store().len(&data.spaces().elements) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(data.store().len(&data.spaces().elements), 0);
        drop(sweeper);
        assert_eq!(Arc::strong_count(&data), 1);
    }
}
