//! Durability by handle: the thread that makes commits with [`Durability::Interval`] durable in
//! time.
//!
//! One [`Syncer`] serves all handles of an open database. Its thread starts with the first such
//! commit and sleeps while none is pending.
//!
//! ```text
//! commit   applied; due = min(due, now + interval)
//! thread   sleeps until due; due = none; makes durable all that is applied by then
//! ```
//!
//! # Concurrency
//! `due` is changed under a lock. A commit is applied before it looks at `due`, and the thread
//! clears `due` before it looks at what is applied. So if a commit finds an earlier `due`, the sync
//! at that time covers it.
//!
//! # Errors
//! After a sync has failed, commits sync for themselves and return the error, until one succeeds.
//! The thread goes on trying if the reason is a lack of space.

use crate::error::OrError;
use crate::{Durability, Error, ErrorKind, Result};
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use bristlecone_store::Store;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest interval; a day is added to an `Instant` without overflow.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// How long after a lack of space the thread tries again.
const RETRY: Duration = Duration::from_millis(100);

/// Makes durable all that is applied, whatever durability the database was opened with.
pub(crate) fn settle<M: Media>(store: &Store<M>) -> Result<()> {
    store.make_durable(store.applied()).or_error()?;
    sync_if_not_immediate(store)
}

/// Makes durable what a commit on the medium has left to a thread in the background.
pub(crate) fn sync_if_not_immediate<M: Media>(store: &Store<M>) -> Result<()> {
    let pool = store.pool();
    match pool.pm().durability() {
        Durability::Immediate => Ok(()),
        Durability::Interval(_) | Durability::None => pool.sync().map_err(Error::not_durable),
    }
}

/// Makes commits durable in time. Dropping it makes durable what is pending, and ends the thread.
#[derive(Debug, Default)]
pub(crate) struct Syncer {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// `due` is earlier than it was, or the thread is to end.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// When the commits that are pending have to be durable.
    due: Option<Instant>,
    /// The last sync has failed.
    failed: bool,
    stop: bool,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// Sees to it that what is applied is durable within `interval`.
    ///
    /// # Errors
    /// Those of syncing, if an earlier sync has failed or the system grants no thread: it is done
    /// here then.
    pub fn sync_within<M: Media>(&self, interval: Duration, store: &Store<M>) -> Result<()> {
        let mut state = lock(&self.shared.state);
        if state.failed || !self.runs(&mut state, store) {
            drop(state);
            let settled = settle(store);
            lock(&self.shared.state).failed = settled.is_err();
            return settled;
        }
        let due = Instant::now() + interval.min(LONGEST);
        if state.due.is_none_or(|earlier| due < earlier) {
            state.due = Some(due);
            drop(state);
            self.shared.changed.notify_one();
        }
        Ok(())
    }

    /// Returns whether there is a thread, which is started if there is none.
    fn runs<M: Media>(&self, state: &mut State, store: &Store<M>) -> bool {
        if state.thread.is_none() {
            let (shared, store) = (Arc::clone(&self.shared), store.clone());
            let thread = std::thread::Builder::new().name("database-sync".into());
            state.thread = thread.spawn(move || shared.run(&store)).ok();
        }
        state.thread.is_some()
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        let thread = {
            let mut state = lock(&self.shared.state);
            state.stop = true;
            state.thread.take()
        };
        self.shared.changed.notify_one();
        if let Some(thread) = thread {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The life of the thread.
    fn run<M: Media>(&self, store: &Store<M>) {
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            state = match state.due {
                Some(due) if due <= now || state.stop => {
                    state.due = None;
                    drop(state);
                    let settled = settle(store);
                    let mut state = lock(&self.state);
                    state.failed = settled.is_err();
                    if let Err(e) = settled
                        && e.kind() == ErrorKind::NoSpace
                        && !state.stop
                    {
                        state.due = Some(Instant::now() + RETRY);
                    }
                    state
                }
                _ if state.stop => return,
                Some(due) => {
                    let waited = self.changed.wait_timeout(state, due - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.changed.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bristlecone_pmem::media::Journal;
    use bristlecone_pmem::media::journal::fault::{FaultDisk, Which};
    use bristlecone_pmem::pool::layout::INITIAL;
    use bristlecone_pmem::{Access, MediaOptions, Pool};
    use bristlecone_store::{Keyspace, StoreOptions};
    use std::path::Path;

    /// A store on a disk that fails when told to, and a keyspace.
    fn store(disk: &FaultDisk) -> (Store<Journal>, Keyspace) {
        let path = Path::new("a disk in memory");
        let options = MediaOptions {
            access: Access::Create,
            reserve: 64 << 20,
            journal_max: 4 << 20,
            ..MediaOptions::default()
        };
        let [pool, journal] = [Which::Pool, Which::Journal].map(|which| disk.file(which));
        let pm = Journal::open_on(pool, journal, path, INITIAL, &options).unwrap();
        let pool = Pool::create_on(pm, path).unwrap();
        let options = StoreOptions::default().without_thread();
        let store = Store::create(&pool, "s", &options).unwrap();
        let keyspace = store.keyspace("k").unwrap();
        (store, keyspace)
    }

    fn wait_until(mut holds: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn has_failed(syncer: &Syncer) -> bool {
        lock(&syncer.shared.state).failed
    }

    /// A commit once returned `Ok` for as long as the disk was full, however long ago it should
    /// have been durable.
    #[test]
    fn a_full_disk_is_reported_by_the_next_commit_and_tried_again() {
        let disk = FaultDisk::new(3);
        let (store, k) = store(&disk);
        let (syncer, deferring) = (Syncer::default(), store.deferring());
        let commit = |key: &str, interval| {
            deferring.put(&k, key.as_bytes(), b"value").unwrap();
            syncer.sync_within(interval, &deferring)
        };
        disk.set_full(true);
        commit("a", Duration::from_millis(1)).unwrap();
        wait_until(|| has_failed(&syncer));
        let error = commit("b", LONGEST).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        disk.set_full(false);
        // By the thread, which nobody asks for it again.
        wait_until(|| store.get(&k, b"b").unwrap().is_some());
        wait_until(|| !has_failed(&syncer));
        commit("c", LONGEST).unwrap();
        assert_eq!(store.get(&k, b"c").unwrap(), None);
        drop(syncer);
        assert!(store.get(&k, b"c").unwrap().is_some());
    }

    #[test]
    fn a_disk_that_fails_for_good_fails_every_commit() {
        let disk = FaultDisk::new(4);
        let (store, k) = store(&disk);
        let (syncer, deferring) = (Syncer::default(), store.deferring());
        disk.fail_sync(1);
        deferring.put(&k, b"a", b"value").unwrap();
        syncer.sync_within(Duration::ZERO, &deferring).unwrap();
        wait_until(|| has_failed(&syncer));
        let error = syncer.sync_within(LONGEST, &deferring).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotDurable, "{error}");
        assert!(deferring.put(&k, b"b", b"value").is_err());
        assert_eq!(store.get(&k, b"a").unwrap(), None);
    }
}
