//! Reading: without locks, at a timestamp.
//!
//! A reader pins an epoch, takes the record that the index leads to, and follows `previous` to the
//! first version at or below its timestamp. A pending record whose timestamp is applied is
//! committed: an undone commit's records are dead by then.
//!
//! # Damage
//! A record that no commit can have written is an error and never skipped: an impossible stamp, or
//! a pending record of an applied commit whose slot does not confirm it. The checksum is compared
//! wherever a value is returned, and wherever a record says that there is no value (a tombstone, an
//! expiry, a dead record).

use crate::clock::Clock;
use crate::damaged::DamagedEntries;
use crate::horizon::Snapshots;
use crate::record::{self, Header, Meta, Stamp};
use crate::slots::{Slots, Verdict};
use bristlecone_index::Direction;
use bristlecone_index::Hint;
use bristlecone_index::engine::{Engine, Range};
use bristlecone_pmem::media::{LINE, cpu};
use bristlecone_pmem::{Heap, Media};
use bristlecone_store::engine::{Dropped, Ticket, Wait, split};
use bristlecone_store::{Damage, ReadError, WallClock};
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};

/// Bytes of a record that are prefetched before it is read.
pub(crate) const PREFETCHED_BYTES: usize = 2 * LINE;

/// Dead records that a reader may meet in one chain: commits that were undone while it went along.
const MAX_DEAD_RECORDS: u32 = 64;

/// The version of a key that a reader found.
pub(crate) struct Found<'p, M: Media> {
    pm: &'p M,
    off: u64,
    meta: Meta,
}

impl<M: Media> Clone for Found<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Media> Copy for Found<'_, M> {}

impl<'p, M: Media> Found<'p, M> {
    /// Returns the value, once the record's checksum has been compared.
    ///
    /// # Errors
    /// [`Damage`]: the checksum is not that of this index key and this value.
    #[inline]
    pub fn value(&self, key: &[u8]) -> Result<Cow<'p, [u8]>, Damage> {
        record::verified_value(self.pm, key, self.off, &self.meta)
    }

    /// Returns whether the version reads as absent. The checksum is compared first, since the flag
    /// that says so may be what is damaged.
    #[inline]
    fn is_absent(&self, key: &[u8], now: impl FnOnce() -> u64) -> Result<bool, Damage> {
        let absent = self.meta.absent_by(now);
        if absent {
            record::verify_checksum(self.pm, key, self.off, &self.meta)?;
        }
        Ok(absent)
    }

    /// Returns the expiry in ms since 1970; 0 for none.
    pub fn expiry(&self) -> u64 {
        self.meta.expiry()
    }
}

/// The visitor of a scan: gets each index key with the version that the scan reads.
pub(crate) type Visit<'a, M> =
    dyn FnMut(&[u8], &Found<'_, M>) -> Result<ControlFlow<()>, Damage> + 'a;

/// The parts that reading needs and every other role builds on: the index, the records, and what
/// tells which of them count.
pub(crate) struct Reader<M: Media> {
    // Fields are dropped in this order: the index closes while the heap is still there.
    pub index: Box<dyn Engine>,
    pub clock: Clock,
    pub snapshots: Snapshots,
    pub slots: Slots,
    pub dropped: Dropped,
    pub damaged: DamagedEntries,
    pub wall: WallClock,
    pub heap: Heap<M>,
}

impl<M: Media> Reader<M> {
    #[inline]
    pub(crate) fn pm(&self) -> &M {
        self.heap.pool().pm()
    }

    /// Returns whether the keyspace of an index key is visible to a read at `ts`: not dropped by
    /// then.
    #[inline]
    pub(crate) fn is_visible(&self, key: &[u8], ts: u64, guard: &Guard) -> bool {
        let number = split(key).map_or(0, |(number, _)| number);
        let since = self.dropped.since(number, guard);
        since.is_none_or(|since| ts < since)
    }

    /// Returns whether a keyspace was dropped.
    pub(crate) fn is_dropped(&self, number: u32) -> bool {
        self.dropped.since(number, &epoch::pin()).is_some()
    }

    /// Returns the stamp of the record at `off`. `issued` is a timestamp known to have been issued:
    /// stamps up to it are accepted without a look at the clock, whose line every writer changes.
    ///
    /// # Errors
    /// [`Damage`]: no commit can have that stamp.
    #[inline]
    pub(crate) fn stamp_of(&self, off: u64, header: &Header, issued: u64) -> Result<Stamp, Damage> {
        let pm = self.pm();
        let stamp = header.stamp(pm);
        let was_issued = |ts| (1..=issued).contains(&ts) || self.clock.was_issued(ts);
        match stamp {
            Stamp::At(ts) if was_issued(ts) => Ok(stamp),
            Stamp::Dead => Ok(stamp),
            Stamp::Pending { slot, ts } if was_issued(ts) => {
                self.pending_stamp(off, header, (slot, ts))
            }
            _ => Err(Damage::new(format!(
                "record {off:#x}: no commit has {stamp:?}"
            ))),
        }
    }

    /// As [`stamp_of`](Self::stamp_of), for a record that was pending when its stamp was loaded.
    #[cold]
    fn pending_stamp(
        &self,
        off: u64,
        header: &Header,
        (slot, ts): (usize, u64),
    ) -> Result<Stamp, Damage> {
        let pm = self.pm();
        // Loaded before the slot: a commit that was not applied by then may still be in progress.
        let applied = self.clock.applied();
        let why = match self.slots.judge(pm, slot, ts) {
            Verdict::Committed => return Ok(Stamp::Pending { slot, ts }),
            Verdict::Never if ts > applied => return Ok(Stamp::Pending { slot, ts }),
            Verdict::Never => format!("slot {slot} does not say that it is committed"),
            Verdict::Impossible(why) => why,
        };
        // A record is stamped before its slot is reused, and marked dead before an undone commit is
        // applied.
        match header.stamp(pm) {
            stamp @ (Stamp::At(_) | Stamp::Dead) => Ok(stamp),
            stamp @ Stamp::Pending { .. } => Err(Damage::new(format!(
                "record {off:#x}: no commit has {stamp:?}: {why}"
            ))),
        }
    }

    /// Calls `f` with the newest version at or below `ts`, if there is one, searching from the
    /// record `entry` along `previous`. The caller is pinned, and was when it read `entry` from the
    /// index.
    #[inline]
    fn with_version<'s, R>(
        &'s self,
        (key, entry): (&[u8], u64),
        ts: u64,
        f: impl FnOnce(Option<&Found<'s, M>>) -> Result<R, Damage>,
    ) -> Result<R, Damage> {
        let pm = self.pm();
        let (mut off, mut above, mut dead) = (entry, u64::MAX, 0);
        while off != 0 {
            let header = record::header(pm, off)?;
            match self.stamp_of(off, header, ts)? {
                Stamp::At(at) | Stamp::Pending { ts: at, .. } if at <= ts => {
                    return f(Some(&Found {
                        pm,
                        off,
                        meta: header.meta(pm),
                    }));
                }
                Stamp::At(at) | Stamp::Pending { ts: at, .. } if at < above => above = at,
                Stamp::Dead if dead < MAX_DEAD_RECORDS => {
                    record::verify_checksum(pm, key, off, &header.meta(pm))?;
                    dead += 1;
                }
                stamp => {
                    return Err(Damage::new(format!(
                        "record {off:#x}: {stamp:?} behind one of {above}"
                    )));
                }
            }
            off = header.previous(pm);
        }
        f(None)
    }

    /// Calls `f` with the version of a key at the watermark.
    #[inline]
    pub(crate) fn get_latest<R>(
        &self,
        wait: Wait,
        key: &[u8],
        f: impl FnOnce(&Found<'_, M>) -> Result<R, Damage>,
    ) -> Result<Option<R>, ReadError> {
        self.get_latest_in(&epoch::pin(), wait, key, f)
    }

    /// As [`get_latest`](Self::get_latest); the version stays readable while the guard is held.
    #[inline]
    pub(crate) fn get_latest_in<'s, R>(
        &'s self,
        guard: &Guard,
        wait: Wait,
        key: &[u8],
        f: impl FnOnce(&Found<'s, M>) -> Result<R, Damage>,
    ) -> Result<Option<R>, ReadError> {
        loop {
            let ts = self.clock.watermark(wait);
            if !self.is_visible(key, ts, guard) {
                return Ok(None);
            }
            let Some(entry) = self.index.get(key) else {
                return Ok(None);
            };
            let named = |e: Damage| Damage::of_key(key, &e);
            if let Some(found) = self.latest_of(key, entry, ts).map_err(named)? {
                return Ok(found.as_ref().map(f).transpose().map_err(named)?);
            }
        }
    }

    /// Returns the version at the watermark `ts`, `Some(None)` if the key has no value then.
    /// Returns `None` if the version may have been unlinked meanwhile: the caller reads again at a
    /// newer watermark. The caller is pinned, as for [`with_version`](Self::with_version).
    #[inline]
    fn latest_of(
        &self,
        key: &[u8],
        entry: u64,
        ts: u64,
    ) -> Result<Option<Option<Found<'_, M>>>, Damage> {
        self.with_version((key, entry), ts, |found| {
            let first = found.is_some_and(|found| found.off == entry);
            if !first && self.snapshots.passed(ts) {
                return Ok(None);
            }
            match found {
                Some(found) if !found.is_absent(key, || self.wall.now())? => Ok(Some(Some(*found))),
                _ => Ok(Some(None)),
            }
        })
    }

    /// Calls `f` with the version of each key at one watermark, in order, until it breaks. The
    /// cache misses of the searches overlap.
    pub(crate) fn multi_get(
        &self,
        wait: Wait,
        keys: &[&[u8]],
        mut f: impl FnMut(&[u8], Option<&Found<'_, M>>) -> Result<ControlFlow<()>, Damage>,
    ) -> Result<(), ReadError> {
        let guard = epoch::pin();
        let ts = self.clock.watermark(wait);
        let entries = self.multi_find(keys);
        // Once one key had to be read at a newer watermark, so are all after it: each is read no
        // earlier than the one before it.
        let mut late = false;
        for (key, (entry, _)) in keys.iter().zip(entries) {
            let named = |e: Damage| Damage::of_key(key, &e);
            let found = match entry {
                _ if late => None,
                Some(entry) if self.is_visible(key, ts, &guard) => {
                    self.latest_of(key, entry, ts).map_err(named)?
                }
                _ => Some(None),
            };
            let step = match found {
                Some(found) => f(key, found.as_ref()).map_err(named)?,
                None => {
                    late = true;
                    let step = self.get_latest(wait, key, |found| f(key, Some(found)))?;
                    step.map_or_else(|| f(key, None), Ok)?
                }
            };
            if step.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Looks up each key: the offset of its record, and its place in the index. The records are
    /// prefetched.
    pub(crate) fn multi_find(&self, keys: &[&[u8]]) -> Vec<(Option<u64>, Hint)> {
        let base = self.pm().base();
        self.index.find(keys, &mut |&off| {
            cpu::prefetch(base.wrapping_add(off as usize), PREFETCHED_BYTES);
        })
    }

    /// Calls `f` with the version of a key in a registered snapshot; it stays readable while the
    /// guard is held.
    pub(crate) fn get_at_in<'s, R>(
        &'s self,
        guard: &Guard,
        at: Ticket,
        key: &[u8],
        f: impl FnOnce(&Found<'s, M>) -> Result<R, Damage>,
    ) -> Result<Option<R>, ReadError> {
        if !self.is_visible(key, at.ts, guard) {
            return Ok(None);
        }
        let Some(entry) = self.index.get(key) else {
            return Ok(None);
        };
        let read = self.with_version((key, entry), at.ts, |found| match found {
            Some(found) if !found.is_absent(key, || at.now)? => f(found).map(Some),
            _ => Ok(None),
        });
        Ok(read.map_err(|e| Damage::of_key(key, &e))?)
    }

    /// Visits the keys of a range of one keyspace in a registered snapshot.
    pub(crate) fn scan_at(
        &self,
        at: Ticket,
        range: Range<'_>,
        direction: Direction,
        visit: &mut Visit<'_, M>,
    ) -> Result<(), ReadError> {
        let guard = epoch::pin();
        if let Bound::Included(first) | Bound::Excluded(first) = range.0
            && !self.is_visible(first, at.ts, &guard)
        {
            return Ok(());
        }
        let mut damage = None;
        let mut each = |key: &[u8], &entry: &u64| {
            let step = self.with_version((key, entry), at.ts, |found| match found {
                Some(found) if !found.is_absent(key, || at.now)? => visit(key, found),
                _ => Ok(ControlFlow::Continue(())),
            });
            step.unwrap_or_else(|e| {
                damage = Some(Damage::of_key(key, &e));
                ControlFlow::Break(())
            })
        };
        let base = self.pm().base();
        let mut prefetch =
            |&off: &u64| cpu::prefetch(base.wrapping_add(off as usize), PREFETCHED_BYTES);
        self.index
            .scan(range, direction, Some(&mut prefetch), &mut each);
        damage.map_or(Ok(()), |e| Err(e.into()))
    }
}
