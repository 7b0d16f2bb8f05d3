//! The engine of an open store.

use crate::commit::Committer;
use crate::newest::Current;
use crate::read::Found;
use crate::record::Prepared;
use bristlecone_index::engine::Range;
use bristlecone_index::{Direction, IndexStats, Violation};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{CommitError, Media, Pool};
use bristlecone_store::engine::{
    At, KeyWrite, ReadSet, StorageEngine, Ticket, Visit, Wait, expires_at, expiry, slice, whole,
};
use bristlecone_store::{
    CheckReport, Damage, DamagedRecord, Entry, Keyspace, PinnedValue, ReadError, Step,
    StoreRecovery, StoreStats, Update, VacuumReport, Watch, WatchLimits, WriteError,
};
use crossbeam_epoch as epoch;
use std::io::Read;
use std::ops::{ControlFlow, Deref};
use std::sync::Arc;
use std::thread::JoinHandle;

/// An open store on version records.
pub(crate) struct Records<M: Media> {
    // Fields are dropped in this order: the index and the heap close before the root.
    pub committer: Committer<M>,
    /// The vacuum's thread.
    pub thread: Option<JoinHandle<()>>,
    pub recovery: StoreRecovery,
    /// The design of the index.
    pub design: String,
    /// Bytes in a leaf of the index.
    pub node_bytes: u32,
    /// A block of a tombstone's size that nothing leads to. It keeps its chunk, so that a full pool
    /// has room for deletions. 0 if it could not be allocated.
    pub deletion_reserve: u64,
    pub root: Root<M>,
}

impl<M: Media> Deref for Records<M> {
    type Target = Committer<M>;

    fn deref(&self) -> &Committer<M> {
        &self.committer
    }
}

impl<M: Media> Records<M> {
    /// Calls `take` with the version of a key, if it has a value.
    fn find<'s, R>(
        &'s self,
        at: At,
        key: &[u8],
        guard: &epoch::Guard,
        take: impl FnOnce(&Found<'s, M>) -> Result<R, Damage>,
    ) -> Result<Option<R>, ReadError> {
        match at {
            At::Latest(wait) => self.get_latest_in(guard, wait, key, take),
            At::Snapshot(ticket) => self.get_at_in(guard, ticket, key, take),
        }
    }

    fn prepared(&self, key: &[u8], update: Update) -> Result<Option<Prepared<'_, M>>, WriteError> {
        match update {
            Update::Keep => Ok(None),
            Update::Put { value, expires_at } => {
                let record = self.prepare(key, Some(&value), expiry(expires_at))?;
                Ok(Some(record))
            }
            Update::Delete => Ok(Some(self.prepare(key, None, 0)?)),
        }
    }
}

/// Calls `f` with a version as an entry.
fn with_found<M: Media, R>(
    key: &[u8],
    found: &Found<'_, M>,
    f: impl FnOnce(Entry<'_>) -> R,
) -> Result<R, Damage> {
    let value = found.value(key)?;
    Ok(f(Entry {
        value: &value,
        expires_at: expires_at(found.expiry()),
    }))
}

/// Calls `f` with the value that a change finds.
fn with_current<M: Media, R>(
    key: &[u8],
    current: Option<&Current<'_, M>>,
    f: impl FnOnce(Option<Entry<'_>>) -> Result<R, WriteError>,
) -> Result<R, WriteError> {
    let Some(current) = current else {
        return f(None);
    };
    let value = current.value(key)?;
    f(Some(Entry {
        value: &value,
        expires_at: expires_at(current.expiry()),
    }))
}

impl<M: Media> StorageEngine<M> for Records<M> {
    fn pool(&self) -> &Arc<Pool<M>> {
        self.heap.pool()
    }

    fn root(&self) -> &Root<M> {
        &self.root
    }

    fn design(&self) -> (&str, u32) {
        (&self.design, self.node_bytes)
    }

    fn recovery(&self) -> &StoreRecovery {
        &self.recovery
    }

    fn applied(&self) -> u64 {
        self.clock.applied()
    }

    fn durable(&self) -> u64 {
        self.clock.durable()
    }

    fn wait_for(&self, ts: u64, wait: Wait) -> Result<(), CommitError> {
        match wait {
            // Those before it too, so that the writer reads its own change.
            Wait::Applied => self.clock.wait_applied(ts),
            Wait::Durable => self.make_durable(ts),
        }
    }

    fn enter(&self, wait: Wait) -> Ticket {
        let now = || self.wall.now();
        self.snapshots.enter(&self.clock, wait, now)
    }

    fn enter_again(&self, ticket: Ticket) -> Ticket {
        self.snapshots.enter_again(ticket)
    }

    fn leave(&self, ticket: Ticket) {
        self.snapshots.leave(ticket);
    }

    fn get(&self, at: At, key: &[u8], f: &mut dyn FnMut(Entry<'_>)) -> Result<(), ReadError> {
        let read = |found: &Found<'_, M>| with_found(key, found, f);
        self.find(at, key, &epoch::pin(), read)?;
        Ok(())
    }

    fn get_range(
        &self,
        at: At,
        key: &[u8],
        range: std::ops::Range<u64>,
        into: &mut Vec<u8>,
    ) -> Result<Option<u64>, ReadError> {
        let mut len = None;
        self.get(at, key, &mut |entry| {
            into.extend_from_slice(slice(entry.value, &range));
            len = Some(entry.value.len() as u64);
        })?;
        Ok(len)
    }

    fn get_pinned(&self, at: At, key: &[u8]) -> Result<Option<PinnedValue<'_>>, ReadError> {
        // Before the record is found.
        let guard = epoch::pin();
        let found = self.find(at, key, &guard, |found| {
            Ok((found.value(key)?, expires_at(found.expiry())))
        })?;
        Ok(found.map(|(value, expires_at)| PinnedValue::of_record(value, expires_at, guard)))
    }

    fn multi_get(
        &self,
        wait: Wait,
        keys: &[&[u8]],
        most: u64,
        f: &mut dyn FnMut(Option<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        self.committer
            .multi_get(wait, keys, |key, found| match found {
                Some(found) => with_found(key, found, |entry| {
                    if entry.value.len() as u64 > most {
                        return ControlFlow::Break(());
                    }
                    f(Some(entry))
                }),
                None => Ok(f(None)),
            })
    }

    fn prefetch(&self, keys: &[&[u8]]) {
        self.multi_find(keys);
    }

    fn scan(
        &self,
        at: Ticket,
        range: Range<'_>,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), ReadError> {
        self.scan_at(at, range, direction, &mut |key, found| {
            with_found(key, found, |entry| visit(key, entry))
        })
    }

    fn scan_keys(
        &self,
        at: Ticket,
        range: Range<'_>,
        visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        self.scan_at(at, range, Direction::Up, &mut |key, _| Ok(visit(key)))
    }

    fn put(&self, key: &[u8], value: &[u8], expiry: u64, wait: Wait) -> Result<(), WriteError> {
        self.retry_for_space(|| {
            let record = self.prepare(key, Some(value), expiry)?;
            self.modify(key, None, wait, |_| Ok((Some(record), ())))?;
            Ok(())
        })
    }

    fn put_from(
        &self,
        key: &[u8],
        from: &mut dyn Read,
        expiry: u64,
        wait: Wait,
    ) -> Result<u64, WriteError> {
        let value = whole(from)?;
        self.put(key, &value, expiry, wait)?;
        Ok(value.len() as u64)
    }

    fn delete(&self, key: &[u8], wait: Wait) -> Result<bool, WriteError> {
        self.retry_for_space(|| {
            let tombstone = self.prepare(key, None, 0)?;
            let (there, _) = self.modify(key, None, wait, |current| {
                let there = current.is_some();
                Ok((Some(tombstone), there))
            })?;
            Ok(there)
        })
    }

    fn update(
        &self,
        key: &[u8],
        wait: Wait,
        f: &mut dyn FnMut(Option<Entry<'_>>) -> Result<Update, WriteError>,
    ) -> Result<(), WriteError> {
        self.retry_for_space(|| {
            self.modify(key, None, wait, |current| {
                let update = with_current(key, current.as_ref(), &mut *f)?;
                Ok((self.prepared(key, update)?, ()))
            })?;
            Ok(())
        })
    }

    fn commit(
        &self,
        writes: &[KeyWrite<'_>],
        since: Option<Ticket>,
        reads: Option<&ReadSet>,
        wait: Wait,
    ) -> Result<u64, WriteError> {
        self.commit_many(writes, since, reads, wait)
    }

    fn execute(
        &self,
        steps: &[(&[u8], Step<'_>)],
        wait: Wait,
        each: &mut dyn FnMut(Option<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<usize, WriteError> {
        self.execute_batch(steps, wait, |key, current| {
            with_current(key, current, |entry| Ok(each(entry).is_continue()))
        })
    }

    fn reclaim_space(&self) {
        self.vacuum.reclaim_space();
    }

    fn name_keyspace(&self, number: u32, from: Option<&str>, to: &str) -> Result<u64, WriteError> {
        self.name_number(number, from, to)
    }

    fn drop_keyspace(
        &self,
        name: &str,
        number: u32,
        empty: Option<u32>,
    ) -> Result<u64, WriteError> {
        self.drop_number(name, number, empty)
    }

    fn len(&self, number: u32) -> u64 {
        if self.is_dropped(number) {
            return 0;
        }
        let counts = self.stripes.counts();
        let of = counts.keys.iter().find(|(id, _)| *id == number);
        of.map_or(0, |(_, keys)| *keys)
    }

    fn watch(
        &self,
        keyspace: &Keyspace,
        prefix: &[u8],
        limits: WatchLimits,
    ) -> Result<Watch, WriteError> {
        self.committer.watch(keyspace, prefix, limits)
    }

    fn vacuum(&self, most: usize) -> Result<VacuumReport, WriteError> {
        self.step(most)
    }

    fn vacuum_all(&self) -> Result<VacuumReport, WriteError> {
        self.run_to_end()
    }

    fn compact(&self) -> Result<(), WriteError> {
        // Records stay where they are: the index leads to them by their places.
        Ok(())
    }

    fn take_failure(&self) -> Option<WriteError> {
        self.control.take_failure()
    }

    fn stats(&self) -> StoreStats {
        self.count()
    }

    fn index_stats(&self) -> IndexStats {
        self.index.stats()
    }

    fn check(&self) -> Result<CheckReport, Violation> {
        let _held = self.control.hold();
        self.index.verify()?;
        self.check_records()
    }

    fn find_damage(&self) -> Vec<DamagedRecord> {
        let _held = self.control.hold();
        self.damaged_records()
    }
}
