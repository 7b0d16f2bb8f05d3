//! Opening: one walk of the index, which finds every record that counts.
//!
//! 1. The index opens itself.
//! 2. Every entry is followed, by two threads from both ends of the index. Committed records are
//!    marked as in use. A record that is pending under a slot with a lower timestamp is undone: its
//!    entry will lead to the version before, or be removed. Tombstones will be removed. Damaged
//!    records are noted and kept.
//! 3. These changes are made, and committed records that are still pending are stamped. The records
//!    of each slot's last commit are stamped again even if they have their stamps: a process that
//!    ended without a power cut may have left stamps that are not durable, and the slot is about to
//!    be reused. The stamps are fenced with the word that says that the store is open. A slot under
//!    which damaged records are pending gets a new timestamp.
//! 4. Blocks that were not marked are free.
//!
//! The highest timestamp found in records and slots is the *floor*. New timestamps are above it,
//! and `previous` of a record at or below it is void, since no snapshot outlives its process. So
//! recovery writes nothing for versions, and older ones cost nothing.
//!
//! # Damage
//! Damage is what no crash can leave. Nothing is removed or skipped because of it: the entry stays,
//! whatever may be blocks of the record stays in use, reads of the key are errors, and the
//! [report](StoreRecovery) names it:
//!
//! | found | why no crash leaves it |
//! | --- | --- |
//! | an offset that cannot be a record's, or an impossible length or flag | a record is durable before the index leads to it |
//! | a wrong checksum: of values of up to 4 KiB, and of every record that recovery would remove or restore | likewise; nothing that it covers ever changes |
//! | a stamp without a valid timestamp or slot | likewise; a stamp changes from pending to committed or dead by one word |
//! | pending under a slot that has a higher timestamp, that has a wrong parity, or that no commit uses | [`slots`](crate::slots) |
//! | pending at the timestamp of a commit through another slot | timestamps are used once |
//! | pending and not committed, under a slot whose last commit has pending records too | those are stamped before the index leads to the next one's |
//! | pending and not committed, in a store that was closed in order | closing waits for commits in progress |
//!
//! Some damage looks like a crash:
//!
//! - In a store that was *not* closed in order, a record that is pending at T under a slot with a
//!   lower timestamp belongs to a commit that was in progress; or it is the only record of its
//!   commit that is still pending, and a flipped bit has raised T. It is undone.
//! - A flipped bit that turns the timestamp of a committed record into another possible one changes
//!   nothing that is read.
//! - Several flipped bits in one word may cancel out in a slot's parity.
//! - A flipped bit in a key of the index is found, since the record's checksum covers the key, but
//!   the original key reads as absent.
//! - Values above 4 KiB are verified when they are read, by a check, and before the vacuum removes
//!   them as expired.
//!
//! Damage in the catalogue refuses the opening, since without it no key has a keyspace.
//!
//! A store was closed *in order* if the pool was closed and root word 3 is 2. The word is 1 while
//! the store is open for writing, and stays 1 if a commit failed or a panic interrupted one.
//!
//! # Crash states
//! Each change of step 3 is atomic and does not change what a later walk finds, so recovery may be
//! interrupted and repeated. Nothing is allocated from the store's heap before step 4.

use crate::read::PREFETCHED_BYTES;
use crate::record::{self, MAX_VERIFIED_BYTES, Meta, Stamp, is_valid_timestamp};
use crate::slots::{SLOTS, Slots, TABLE, Verdict};
use crate::stripes::{Counts, Stripes};
use bristlecone_index::Direction;
use bristlecone_index::UpdateError;
use bristlecone_index::engine::Engine;
use bristlecone_pmem::media::deferring_commits;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Heap, Media, PWord};
use bristlecone_store::engine::{MAX_REPORTED, split};
use bristlecone_store::{Damage, DamagedRecord, StoreError, StoreRecovery, WriteError};
use crossbeam_epoch::{self as epoch, Guard};
use std::ops::{Bound, ControlFlow};
use std::sync::Mutex;
use std::time::Instant;

/// Entries whose records are prefetched together.
const ENTRIES_AT_ONCE: usize = 32;
const _: () = assert!(SLOTS <= u64::BITS as usize, "a bit for each");

/// Entries that are classified together: the keys in one piece, and the end and the record's offset
/// of each.
#[derive(Default)]
struct EntryBatch {
    keys: Vec<u8>,
    ends: Vec<(usize, u64)>,
}

impl EntryBatch {
    fn push(&mut self, key: &[u8], entry: u64) {
        self.keys.extend_from_slice(key);
        self.ends.push((self.keys.len(), entry));
    }

    fn entries(&self) -> impl Iterator<Item = (&[u8], u64)> {
        let mut start = 0;
        self.ends.iter().map(move |(end, entry)| {
            let key = &self.keys[start..*end];
            start = *end;
            (key, *entry)
        })
    }
}

/// How far the walks from both ends of the index have come.
#[derive(Default)]
struct Claims {
    /// The last keys claimed by the upward walk and by the downward walk.
    up: Option<Vec<u8>>,
    down: Option<Vec<u8>>,
}

impl Claims {
    /// Claims the entries that the other walk has not claimed. Returns how many.
    fn claim(&mut self, batch: &EntryBatch, direction: Direction) -> usize {
        let (own, other) = match direction {
            Direction::Up => (&mut self.up, &self.down),
            Direction::Down => (&mut self.down, &self.up),
        };
        let free = |key: &[u8]| match (other, direction) {
            (None, _) => true,
            (Some(other), Direction::Up) => key < other.as_slice(),
            (Some(other), Direction::Down) => key > other.as_slice(),
        };
        let mine = batch.entries().take_while(|(key, _)| free(key));
        let (count, last) = mine.fold((0, None), |(n, _), (key, _)| (n + 1, Some(key)));
        if let Some(last) = last {
            *own = Some(last.to_vec());
        }
        count
    }
}

/// A change of an entry that recovery is to make.
enum Fix {
    /// Remove it.
    Remove(Vec<u8>),
    /// Make it lead to the version `before` instead of to the record `undone`, which was never
    /// committed.
    PointTo {
        key: Vec<u8>,
        before: u64,
        undone: u64,
    },
}

/// The walk over the index, or one thread's part of it.
pub(crate) struct Walk<'a, M: Media> {
    heap: &'a Heap<M>,
    slots: &'a Slots,
    counts: Counts,
    /// Highest timestamp found.
    pub floor: u64,
    /// Largest number of a keyspace found.
    pub largest: u32,
    /// Timestamps of the last commits through each slot, ascending.
    last: Vec<u64>,
    fixes: Vec<Fix>,
    pending: Vec<(u64, u64)>,
    /// Records that are pending under slots without their timestamp: keys, offsets, slots.
    unfinished: Vec<(Vec<u8>, u64, usize)>,
    /// A bit for each slot whose last commit has pending records.
    has_pending: u64,
    /// A bit for each slot that needs a new timestamp, since damaged records are pending under it.
    sealed: u64,
    /// Damaged records, whose possible blocks all stay in use.
    kept: Vec<u64>,
    /// The keys that lead to them, with their offsets.
    pub damaged_entries: Vec<(Vec<u8>, u64)>,
    /// The store was closed in order, so no commit was in progress.
    closed: bool,
    pub report: StoreRecovery,
}

/// The classification of a record.
struct Classified {
    meta: Meta,
    stamp: Stamp,
    /// Its commit is complete.
    committed: bool,
}

impl<'a, M: Media> Walk<'a, M> {
    fn new(heap: &'a Heap<M>, slots: &'a Slots, last: &[u64], closed: bool) -> Self {
        Self {
            heap,
            slots,
            counts: Counts::default(),
            floor: last.last().copied().unwrap_or(0),
            largest: 0,
            last: last.to_vec(),
            fixes: Vec::new(),
            pending: Vec::new(),
            unfinished: Vec::new(),
            has_pending: 0,
            sealed: 0,
            kept: Vec::new(),
            damaged_entries: Vec::new(),
            closed,
            report: StoreRecovery::default(),
        }
    }

    /// Walks the index of a heap whose recovery has begun, with one or two `threads`, and changes
    /// nothing. Adds its counts to `stripes`. `closed` says that the store was closed in order.
    ///
    /// # Errors
    /// [`Damage`]
    pub fn of(
        index: &dyn Engine,
        heap: &'a Heap<M>,
        slots: &'a Slots,
        stripes: &Stripes,
        (table, threads): (u64, usize),
        closed: bool,
    ) -> Result<Self, Damage> {
        let begun = Instant::now();
        heap.mark(table, TABLE, &epoch::pin())
            .map_err(Damage::new)?;
        let claims = Mutex::new(Claims::default());
        let (mut last, damaged) = slots.all(heap.pool().pm());
        last.sort_unstable();
        let mut walk = Self::new(heap, slots, &last, closed);
        for slot in damaged {
            walk.sealed |= 1 << slot.number;
            walk.report.found(slot.into());
        }
        // A simulated medium is used by one thread.
        if threads < 2 || M::TRACED {
            walk.go(index, Direction::Up, &claims);
        } else {
            // From both ends, until they meet.
            let mut down = Self::new(heap, slots, &last, closed);
            std::thread::scope(|scope| {
                let other = scope.spawn(|| down.go(index, Direction::Down, &claims));
                walk.go(index, Direction::Up, &claims);
                if let Err(panic) = other.join() {
                    std::panic::resume_unwind(panic);
                }
            });
            walk.floor = walk.floor.max(down.floor);
            walk.largest = walk.largest.max(down.largest);
            walk.fixes.append(&mut down.fixes);
            walk.pending.append(&mut down.pending);
            walk.kept.append(&mut down.kept);
            walk.damaged_entries.append(&mut down.damaged_entries);
            walk.unfinished.append(&mut down.unfinished);
            walk.has_pending |= down.has_pending;
            walk.sealed |= down.sealed;
            walk.counts.add(&down.counts);
            walk.report.entries += down.report.entries;
            walk.report.tombstones += down.report.tombstones;
            walk.report.damaged += down.report.damaged;
            // The downward walk found these in descending order.
            let above = down.report.damage.into_iter().rev();
            walk.report.damage.extend(above);
            walk.report.damage.truncate(MAX_REPORTED);
        }
        walk.undo_all();
        walk.report.in_order = closed;
        stripes.lock(0).counts.add(&walk.counts);
        walk.report.elapsed = begun.elapsed();
        Ok(walk)
    }

    /// Walks in one direction until it meets the other walk.
    fn go(&mut self, index: &dyn Engine, direction: Direction, claims: &Mutex<Claims>) {
        let pm = self.heap.pool().pm();
        let guard = epoch::pin();
        let mut batch = EntryBatch::default();
        let mut goes_on = true;
        let mut visit = |key: &[u8], &entry: &u64| {
            if let Ok(header) = record::header(pm, entry) {
                let at = std::ptr::from_ref(header).cast::<u8>();
                bristlecone_pmem::media::cpu::prefetch(at.cast_mut(), PREFETCHED_BYTES);
            }
            batch.push(key, entry);
            if batch.ends.len() == ENTRIES_AT_ONCE {
                goes_on = self.classify_all(&mut batch, direction, claims, &guard);
            }
            if goes_on {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        let all = (Bound::Unbounded, Bound::Unbounded);
        index.scan(all, direction, None, &mut visit);
        if goes_on {
            self.classify_all(&mut batch, direction, claims, &guard);
        }
    }

    /// Follows the entries that the other walk has not claimed. Returns false if it has claimed
    /// some.
    fn classify_all(
        &mut self,
        batch: &mut EntryBatch,
        direction: Direction,
        claims: &Mutex<Claims>,
        guard: &Guard,
    ) -> bool {
        let mine = lock(claims).claim(batch, direction);
        for (key, entry) in batch.entries().take(mine) {
            self.report.entries += 1;
            if let Err(e) = self.follow(key, entry, guard) {
                self.note_damage(key, entry, e);
            }
        }
        let all = mine == batch.ends.len();
        batch.keys.clear();
        batch.ends.clear();
        all
    }

    /// # Errors
    /// [`Damage`]: nothing was counted for the entry, and nothing will be changed.
    fn follow(&mut self, key: &[u8], entry: u64, guard: &Guard) -> Result<(), Damage> {
        let Some((keyspace, _)) = split(key) else {
            return Err(Damage::new("too short for a key"));
        };
        if keyspace >= u32::MAX - 1 {
            return Err(Damage::new(format!("no keyspace has number {keyspace}")));
        }
        self.largest = self.largest.max(keyspace);
        let classified = self.judge(entry)?;
        match classified.stamp {
            _ if classified.committed => self.keep(key, entry, &classified, guard),
            // Judged later, once it is known whether the slot's last commit has pending records.
            Stamp::Pending { slot, .. } => {
                self.unfinished.push((key.to_vec(), entry, slot));
                Ok(())
            }
            _ => self.undo(key, entry, &classified, guard),
        }
    }

    /// Undoes the records that are pending under slots without their timestamp, unless they are
    /// damaged.
    fn undo_all(&mut self) {
        let guard = epoch::pin();
        for (key, entry, slot) in std::mem::take(&mut self.unfinished) {
            let undone = if self.has_pending & 1 << slot == 0 {
                (self.judge(entry))
                    .and_then(|classified| self.undo(&key, entry, &classified, &guard))
            } else {
                Err(Damage::new(format!(
                    "record {entry:#x} is pending under slot {slot}, whose last commit's records would have been stamped before"
                )))
            };
            match undone {
                Ok(()) => self.report.undone += 1,
                Err(e) => self.note_damage(&key, entry, e),
            }
        }
    }

    /// Notes that an entry is to lead to the version before a dead or uncommitted record, or to be
    /// removed.
    ///
    /// # Errors
    /// As [`follow`](Self::follow).
    fn undo(
        &mut self,
        key: &[u8],
        entry: u64,
        classified: &Classified,
        guard: &Guard,
    ) -> Result<(), Damage> {
        let pm = self.heap.pool().pm();
        // Nothing is removed because of a damaged record. The checksum does not cover the stamp,
        // but the record as a whole was durable before the index led to it.
        record::verify_checksum(pm, key, entry, &classified.meta)?;
        let before = record::header(pm, entry)?.previous(pm);
        if before == 0 {
            self.fixes.push(Fix::Remove(key.to_vec()));
        } else {
            let classified = self.judge(before)?;
            if !classified.committed {
                return Err(Damage::new(format!(
                    "record {entry:#x} is not committed, nor is {before:#x} before it"
                )));
            }
            record::verify_checksum(pm, key, before, &classified.meta)?;
            let tombstone = classified.meta.is_tombstone();
            if tombstone {
                self.fixes.push(Fix::Remove(key.to_vec()));
            } else {
                self.keep(key, before, &classified, guard)?;
                self.fixes.push(Fix::PointTo {
                    key: key.to_vec(),
                    before,
                    undone: entry,
                });
            }
        }
        Ok(())
    }

    /// Notes a damaged record. It is counted as far as its metadata can be read, since a writer
    /// that replaces it will uncount it in the same way.
    fn note_damage(&mut self, key: &[u8], entry: u64, e: Damage) {
        let possible = split(key).filter(|(number, _)| *number < u32::MAX - 1);
        if let Some((keyspace, _)) = possible
            && let Ok(classified) = self.judge(entry)
            && classified.committed
        {
            self.restamp(entry, classified.stamp);
            self.counts.made(&classified.meta);
            self.counts.is_newest(keyspace, &classified.meta);
        }
        let pm = self.heap.pool().pm();
        if let Ok(Stamp::Pending { slot, .. }) = record::header(pm, entry).map(|it| it.stamp(pm))
            && slot < SLOTS
        {
            self.sealed |= 1 << slot;
        }
        let damaged = DamagedRecord::at(Some(key.to_vec()), entry, e.into_what());
        self.report.found(damaged);
        self.damaged_entries.push((key.to_vec(), entry));
        self.kept.push(entry);
    }

    /// Classifies a record.
    ///
    /// # Errors
    /// [`Damage`]
    fn judge(&mut self, off: u64) -> Result<Classified, Damage> {
        let pm = self.heap.pool().pm();
        let broken = |what: String| Damage::new(format!("record {off:#x}: {what}"));
        self.heap.check(off, record::MIN_BLOCK).map_err(broken)?;
        let header = record::header(pm, off)?;
        let stamp = header.stamp(pm);
        let impossible = |why: &str| broken(format!("no commit has {stamp:?}{why}"));
        match stamp {
            Stamp::Dead => {}
            Stamp::At(ts) | Stamp::Pending { ts, .. } if is_valid_timestamp(ts) => {
                // Even if the record is damaged otherwise: a reader must not take its commit for
                // one in progress.
                self.floor = self.floor.max(ts);
            }
            _ => return Err(impossible("")),
        }
        let meta = header.meta(pm);
        if !meta.is_valid() {
            return Err(broken(format!("no record is {meta:?}")));
        }
        let committed = match stamp {
            Stamp::Dead => false,
            Stamp::At(_) => true,
            Stamp::Pending { slot, ts } => match self.slots.judge(pm, slot, ts) {
                Verdict::Committed => true,
                Verdict::Impossible(why) => return Err(impossible(&format!(": {why}"))),
                Verdict::Never if self.closed => {
                    return Err(impossible(&format!(
                        ": slot {slot} does not say that it is committed, and nothing was under way when the store was closed"
                    )));
                }
                Verdict::Never if self.last.binary_search(&ts).is_ok() => {
                    return Err(impossible(&format!(
                        ": the commit of {ts} went through another slot"
                    )));
                }
                Verdict::Never => false,
            },
        };
        Ok(Classified {
            meta,
            stamp,
            committed,
        })
    }

    /// Notes that a committed record is to be stamped, if it belongs to the last commit through a
    /// slot. The stamp that memory holds may not be durable yet.
    fn restamp(&mut self, off: u64, stamp: Stamp) {
        match stamp {
            Stamp::Pending { slot, ts } => {
                self.has_pending |= 1 << slot;
                self.pending.push((off, ts));
            }
            Stamp::At(ts) if self.last.binary_search(&ts).is_ok() => self.pending.push((off, ts)),
            _ => {}
        }
    }

    /// Counts and marks a committed record as the newest of its key.
    ///
    /// # Errors
    /// [`Damage`]; nothing was counted then.
    fn keep(
        &mut self,
        key: &[u8],
        off: u64,
        classified: &Classified,
        guard: &Guard,
    ) -> Result<(), Damage> {
        let meta = &classified.meta;
        // A tombstone's checksum is compared in any case: nothing is deleted because of a damaged
        // record.
        if meta.is_tombstone() || meta.len() <= MAX_VERIFIED_BYTES {
            record::verify_checksum(self.heap.pool().pm(), key, off, meta)?;
        }
        if meta.is_tombstone() {
            self.report.tombstones += 1;
            self.fixes.push(Fix::Remove(key.to_vec()));
        } else {
            record::mark(self.heap, off, meta, guard)?;
            let keyspace = split(key).map_or(0, |(keyspace, _)| keyspace);
            self.counts.made(meta);
            self.counts.is_newest(keyspace, meta);
        }
        self.restamp(off, classified.stamp);
        Ok(())
    }

    /// Makes the changes that the walk noted, and ends the heap's recovery.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn apply_fixes(&mut self, index: &dyn Engine, stripes: &Stripes) -> Result<(), StoreError> {
        let begun = Instant::now();
        let pm = self.heap.pool().pm();
        let guard = epoch::pin();
        for (off, ts) in self.pending.drain(..) {
            let header = record::header(pm, off)?;
            header.set_stamp(pm, Stamp::At(ts));
            // PERSIST: the stamp; fenced before its slot is used again, below or by `Store::run`.
            pm.flush_of::<PWord>(&header.stamp);
            self.report.stamped += 1;
        }
        // The medium commits once for all, below.
        deferring_commits(|| -> Result<(), StoreError> {
            for fix in std::mem::take(&mut self.fixes) {
                if pm.read_only() {
                    self.mask(index, &fix, stripes, &guard)?;
                    continue;
                }
                match fix {
                    Fix::Remove(key) => {
                        index.remove(&key).map_err(WriteError::from)?;
                    }
                    Fix::PointTo {
                        key,
                        before,
                        undone,
                    } => match index.update(&key, &before) {
                        Ok(()) => {}
                        Err(UpdateError::Space(_)) => self.leave(undone, stripes, &guard)?,
                        Err(e) => return Err(WriteError::from(e).into()),
                    },
                }
            }
            Ok(())
        })?;
        // Later openings must find the same damage, even if the store is not closed in order.
        if self.sealed != 0 && !pm.read_only() {
            // PERSIST: stamps, before the slots that they were pending under get new timestamps.
            pm.fence();
            self.floor += 1;
            // Slot 0 keeps its word: no commit uses it, so what is pending there is known to be
            // damaged.
            for slot in (1..SLOTS).filter(|slot| self.sealed & 1 << slot != 0) {
                self.slots.seal(pm, slot, self.floor);
            }
        }
        pm.commit()?;
        // Last, so that blocks of other records are marked by then.
        for off in self.kept.drain(..) {
            record::mark_damaged(self.heap, off, &guard);
        }
        self.heap.finish_recovery();
        self.report.elapsed += begun.elapsed();
        Ok(())
    }

    /// Masks an entry of a pool that is open for reading only: the records that the index should
    /// not lead to are marked dead in this process's private mapping.
    fn mask(
        &self,
        index: &dyn Engine,
        fix: &Fix,
        stripes: &Stripes,
        guard: &Guard,
    ) -> Result<(), Damage> {
        let key = match fix {
            Fix::PointTo { undone, .. } => return self.leave(*undone, stripes, guard),
            Fix::Remove(key) => key,
        };
        let pm = self.heap.pool().pm();
        let mut off = index.get(key).unwrap_or(0);
        while off != 0 {
            let header = record::header(pm, off)?;
            let meta = header.meta(pm);
            record::mark(self.heap, off, &meta, guard)?;
            stripes.lock(0).counts.made(&meta);
            let committed = match header.stamp(pm) {
                Stamp::Dead => false,
                Stamp::At(_) => true,
                Stamp::Pending { slot, ts } => self.slots.judge(pm, slot, ts) == Verdict::Committed,
            };
            if committed {
                break;
            }
            header.set_stamp(pm, Stamp::Dead);
            off = header.previous(pm);
        }
        Ok(())
    }

    /// Marks an uncommitted record dead, because the index has no space to lead past it.
    fn leave(&self, undone: u64, stripes: &Stripes, guard: &Guard) -> Result<(), Damage> {
        let pm = self.heap.pool().pm();
        let header = record::header(pm, undone)?;
        let meta = header.meta(pm);
        record::mark(self.heap, undone, &meta, guard)?;
        header.set_stamp(pm, Stamp::Dead);
        // PERSIST: the record is dead; fenced as a stamp is, before its slot is used again.
        pm.flush_of::<PWord>(&header.stamp);
        stripes.lock(0).counts.made(&meta);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_from_both_ends_share_the_entries() {
        let batch = |keys: &[&str]| {
            let mut batch = EntryBatch::default();
            for key in keys {
                batch.push(key.as_bytes(), 0);
            }
            batch
        };
        let mut claims = Claims::default();
        assert_eq!(claims.claim(&batch(&["a", "b"]), Direction::Up), 2);
        assert_eq!(claims.claim(&batch(&["f", "e"]), Direction::Down), 2);
        assert_eq!(claims.claim(&batch(&["c", "d", "e"]), Direction::Up), 2);
        assert_eq!(claims.claim(&batch(&["d", "c"]), Direction::Down), 0);
        assert_eq!(claims.claim(&batch(&[]), Direction::Down), 0);
    }
}
