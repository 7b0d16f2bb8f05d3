//! The tree as a store's engine.

use super::TreeEngine;
use crate::archive::ArchiveStats;
use crate::catalogue::Keyspace;
use crate::engine::{At, KeyWrite, StorageEngine, Ticket, Visit, VisitWithin, Wait};
use crate::entries::Entries;
use crate::entry::{Entry, Longer, Update};
use crate::error::{ArchiveError, DamagedRecord, ReadError, WriteError};
use crate::feed::{Watch, WatchLimits};
use crate::pinned::PinnedValue;
use crate::reads::ReadSet;
use crate::report::{CheckReport, ScrubStats, StoreRecovery, StoreStats, VacuumReport};
use crate::write::Step;
use bristlecone_index::engine::Range;
use bristlecone_index::{Direction, IndexStats, Violation};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{CommitError, Media, Pool};
use std::ops::ControlFlow;
use std::sync::Arc;

impl<M: Media> StorageEngine<M> for TreeEngine<M> {
    fn pool(&self) -> &Arc<Pool<M>> {
        self.tree.pool()
    }

    fn root(&self) -> &Root<M> {
        &self.core.root
    }

    fn design(&self) -> (&str, u32) {
        (super::open::DESIGN, self.page_bytes)
    }

    fn recovery(&self) -> &StoreRecovery {
        &self.recovery
    }

    fn applied(&self) -> u64 {
        self.core.applied()
    }

    fn durable(&self) -> u64 {
        self.core.durable()
    }

    fn wait_for(&self, ts: u64, wait: Wait) -> Result<(), CommitError> {
        self.core.wait_for(ts, wait)
    }

    fn enter(&self, wait: Wait) -> Ticket {
        self.core.enter(wait)
    }

    fn enter_again(&self, ticket: Ticket) -> Ticket {
        self.core.enter_again(ticket)
    }

    fn leave(&self, ticket: Ticket) {
        self.core.leave(ticket);
    }

    fn get(&self, at: At, key: &[u8], f: &mut dyn FnMut(Entry<'_>)) -> Result<(), ReadError> {
        self.core.get_within(at, key, u64::MAX, f).map(drop)
    }

    fn get_within(
        &self,
        at: At,
        key: &[u8],
        most: u64,
        f: &mut dyn FnMut(Entry<'_>),
    ) -> Result<Option<Longer>, ReadError> {
        self.core.get_within(at, key, most, f)
    }

    fn get_range(
        &self,
        at: At,
        key: &[u8],
        range: std::ops::Range<u64>,
        into: &mut Vec<u8>,
    ) -> Result<Option<u64>, ReadError> {
        self.core.get_range(at, key, range, into)
    }

    fn get_pinned(&self, at: At, key: &[u8]) -> Result<Option<PinnedValue<'_>>, ReadError> {
        self.core.get_pinned(at, key)
    }

    fn multi_get(
        &self,
        wait: Wait,
        keys: &[&[u8]],
        most: u64,
        f: &mut dyn FnMut(Option<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        self.core.multi_get(wait, keys, most, f)
    }

    fn together_until(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.core.tree.page_end(key)
    }

    fn prefetch(&self, keys: &[&[u8]]) {
        self.core.prefetch(keys);
    }

    fn scan(
        &self,
        at: Ticket,
        range: Range<'_>,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), ReadError> {
        self.core.scan(at, range, direction, visit)
    }

    fn scan_within(
        &self,
        at: Ticket,
        range: Range<'_>,
        direction: Direction,
        most: u64,
        visit: &mut VisitWithin<'_>,
    ) -> Result<(), ReadError> {
        self.core.scan_within(at, range, (direction, most), visit)
    }

    fn read(
        &self,
        at: Ticket,
        range: Range<'_>,
        direction: Direction,
        into: &mut Entries,
    ) -> Result<(), ReadError> {
        self.core.read(at, range, direction, into)
    }

    fn scan_keys(
        &self,
        at: Ticket,
        range: Range<'_>,
        visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        self.core.scan_keys(at, range, visit)
    }

    fn put(&self, key: &[u8], value: &[u8], expiry: u64, wait: Wait) -> Result<(), WriteError> {
        self.core.put(key, value, expiry, wait)
    }

    fn put_from(
        &self,
        key: &[u8],
        from: &mut dyn std::io::Read,
        expiry: u64,
        wait: Wait,
    ) -> Result<u64, WriteError> {
        self.core.put_from(key, from, expiry, wait)
    }

    fn delete(&self, key: &[u8], wait: Wait) -> Result<bool, WriteError> {
        self.core.delete(key, wait)
    }

    fn update(
        &self,
        key: &[u8],
        wait: Wait,
        f: &mut dyn FnMut(Option<Entry<'_>>) -> Result<Update, WriteError>,
    ) -> Result<(), WriteError> {
        self.core.update(key, wait, f)
    }

    fn commit(
        &self,
        writes: &[KeyWrite<'_>],
        since: Option<Ticket>,
        reads: Option<&ReadSet>,
        wait: Wait,
    ) -> Result<u64, WriteError> {
        self.core.commit(writes, since, reads, wait)
    }

    fn execute(
        &self,
        steps: &[(&[u8], Step<'_>)],
        wait: Wait,
        each: &mut dyn FnMut(Option<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<usize, WriteError> {
        self.core.execute(steps, wait, each)
    }

    fn reclaim_space(&self) {
        self.core.reclaim_space();
    }

    fn name_keyspace(&self, number: u32, from: Option<&str>, to: &str) -> Result<u64, WriteError> {
        self.core.name_keyspace(number, from, to)
    }

    fn drop_keyspace(
        &self,
        name: &str,
        number: u32,
        empty: Option<u32>,
    ) -> Result<u64, WriteError> {
        self.core.drop_keyspace(name, number, empty)
    }

    fn len(&self, number: u32) -> u64 {
        self.core.len(number)
    }

    fn watch(
        &self,
        keyspace: &Keyspace,
        prefix: &[u8],
        limits: WatchLimits,
    ) -> Result<Watch, WriteError> {
        self.core.watch(keyspace, prefix, limits)
    }

    fn vacuum(&self, most: usize) -> Result<VacuumReport, WriteError> {
        self.core.vacuum(most)
    }

    fn vacuum_all(&self) -> Result<VacuumReport, WriteError> {
        self.core.vacuum_all()
    }

    fn compact(&self) -> Result<(), WriteError> {
        let _held = self.control.hold();
        self.core.compact(true, &|| false)
    }

    fn take_failure(&self) -> Option<WriteError> {
        self.control.take_failure()
    }

    fn stats(&self) -> StoreStats {
        self.core.stats()
    }

    fn index_stats(&self) -> IndexStats {
        self.tree.stats()
    }

    fn check(&self) -> Result<CheckReport, Violation> {
        self.core.check()
    }

    fn find_damage(&self) -> Vec<DamagedRecord> {
        self.core.find_damage()
    }

    fn scrub(&self) -> Result<Vec<DamagedRecord>, ReadError> {
        self.core.scrub_all()
    }

    fn is_counted(&self) -> bool {
        self.core.are_counted()
    }

    fn scrub_stats(&self) -> ScrubStats {
        self.core.scrub.stats()
    }

    fn archive_stats(&self) -> Option<ArchiveStats> {
        self.core.archive_stats()
    }

    fn archive_now(&self) -> Result<(), ArchiveError> {
        self.core.archive_now()
    }

    fn scrub_findings(&self) -> Vec<DamagedRecord> {
        self.core.scrub.found()
    }
}
