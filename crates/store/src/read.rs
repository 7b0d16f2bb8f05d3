//! Reading: without locks, at a time stamp.
//!
//! A reader is pinned, takes the record that the index leads to, and goes along `previous` to the first version at or below its time stamp. A
//! pending record of a time stamp that is applied is committed: what was undone is dead by then.
//!
//! A record that cannot be what was written is an error, never passed by: a stamp that no commit has or had, a pending one at a
//! time that is applied whose slot does not say so, and a checksum that fails, which is compared wherever a value is
//! given, and wherever there would be none because of what the record says (a tombstone, an expiry, dead).

use crate::clock::Wait;
use crate::commit::Inner;
use crate::error::{Damage, ReadError};
use crate::horizon::Ticket;
use crate::record::{self, Header, Stamp, Terms};
use crate::slots::Verdict;
use bristlecone_index::Direction;
use bristlecone_index::Hint;
use bristlecone_index::engine::Range;
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{LINE, cpu};
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};

/// Bytes of a record that are asked for before it is read.
pub(crate) const AHEAD: usize = 2 * LINE;
/// The same where all of its value is read, mostly with the records before and after it.
const SCAN_AHEAD: usize = 3 * LINE;

/// Dead records that a reader may meet on its way, one being given up meanwhile.
const DEAD_MOST: u32 = 64;

/// A version that a reader has found.
pub(crate) struct Found<'p, M: Media> {
    pm: &'p M,
    off: u64,
    /// When it was committed.
    pub ts: u64,
    terms: Terms,
}

impl<M: Media> Clone for Found<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Media> Copy for Found<'_, M> {}

impl<'p, M: Media> Found<'p, M> {
    /// The value, if the record's checksum is that of it and of the index key.
    #[inline]
    pub fn value(&self, key: &[u8]) -> Result<Cow<'p, [u8]>, Damage> {
        record::sound_value(self.pm, key, self.off, &self.terms)
    }

    /// Whether it reads as absent, if the record's checksum does not say that it is another one.
    #[inline]
    fn is_absent(&self, key: &[u8], now: impl FnOnce() -> u64) -> Result<bool, Damage> {
        let absent = self.terms.absent_by(now);
        if absent {
            record::check_sum(self.pm, key, self.off, &self.terms)?;
        }
        Ok(absent)
    }

    /// In ms since 1970; 0 for none.
    pub fn expiry(&self) -> u64 {
        self.terms.expiry()
    }
}

/// What a scan calls with an index key and the version that it reads.
pub(crate) type Visit<'a, M> =
    dyn FnMut(&[u8], &Found<'_, M>) -> Result<ControlFlow<()>, Damage> + 'a;

impl<M: Media> Inner<M> {
    /// Which commit the record at `off` is of, or is to be of once it is applied. `given`: a time stamp that was given.
    ///
    /// # Errors
    /// No commit can be: [`Damage`].
    #[inline]
    pub(crate) fn stamp_of(&self, off: u64, header: &Header, given: u64) -> Result<Stamp, Damage> {
        let pm = self.pm();
        let stamp = header.stamp(pm);
        // Mostly without a look at what every writer changes.
        let was_given = |ts| (1..=given).contains(&ts) || self.clock.was_given(ts);
        match stamp {
            Stamp::At(ts) if was_given(ts) => Ok(stamp),
            Stamp::Dead => Ok(stamp),
            Stamp::Pending { slot, ts } if was_given(ts) => {
                self.pending_stamp(off, header, (slot, ts))
            }
            _ => Err(Damage::new(format!(
                "record {off:#x}: no commit has {stamp:?}"
            ))),
        }
    }

    /// As [`stamp_of`](Self::stamp_of), of a record that was pending.
    #[cold]
    fn pending_stamp(
        &self,
        off: u64,
        header: &Header,
        (slot, ts): (usize, u64),
    ) -> Result<Stamp, Damage> {
        let pm = self.pm();
        // Before the slot: what is not applied then may be under way.
        let applied = self.clock.applied();
        let why = match self.slots.judge(pm, slot, ts) {
            Verdict::Committed => return Ok(Stamp::Pending { slot, ts }),
            Verdict::Never if ts > applied => return Ok(Stamp::Pending { slot, ts }),
            Verdict::Never => format!("slot {slot} does not say that it is committed"),
            Verdict::Impossible(why) => why,
        };
        // It is stamped before its slot goes on, and dead before it is applied if it was undone.
        match header.stamp(pm) {
            stamp @ (Stamp::At(_) | Stamp::Dead) => Ok(stamp),
            stamp @ Stamp::Pending { .. } => Err(Damage::new(format!(
                "record {off:#x}: no commit has {stamp:?}: {why}"
            ))),
        }
    }

    /// Calls `f` with the newest version of a key at or below `ts`, from the record `entry` on, if there is one. The caller is pinned,
    /// and was when it read `entry`.
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
                        ts: at,
                        terms: header.terms(pm),
                    }));
                }
                Stamp::At(at) | Stamp::Pending { ts: at, .. } if at < above => above = at,
                Stamp::Dead if dead < DEAD_MOST => {
                    record::check_sum(pm, key, off, &header.terms(pm))?;
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

    /// Calls `f` with the value of a key at a watermark.
    #[inline]
    pub(crate) fn get_latest<R>(
        &self,
        wait: Wait,
        key: &[u8],
        f: impl FnOnce(&Found<'_, M>) -> Result<R, Damage>,
    ) -> Result<Option<R>, ReadError> {
        self.get_latest_in(&epoch::pin(), wait, key, f)
    }

    /// As [`get_latest`](Self::get_latest); what `f` finds is there for as long as the guard is.
    #[inline]
    pub(crate) fn get_latest_in<'s, R>(
        &'s self,
        guard: &Guard,
        wait: Wait,
        key: &[u8],
        f: impl FnOnce(&Found<'s, M>) -> Result<R, Damage>,
    ) -> Result<Option<R>, ReadError> {
        loop {
            let ts = wait.watermark(&self.clock);
            if !self.is_there(key, ts, guard) {
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

    /// The value that `entry` leads to at the watermark `ts`, if there is one. Nothing if it may have been cut off: there is a newer
    /// time to read at. The caller is pinned, as for [`with_version`](Self::with_version).
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

    /// Calls `f` with the value of each key at a watermark, in order, until it breaks; the waits for memory of their searches overlap.
    pub(crate) fn get_together(
        &self,
        wait: Wait,
        keys: &[&[u8]],
        mut f: impl FnMut(&[u8], Option<&Found<'_, M>>) -> Result<ControlFlow<()>, Damage>,
    ) -> Result<(), ReadError> {
        let guard = epoch::pin();
        let ts = wait.watermark(&self.clock);
        let entries = self.find_ahead(keys);
        // One was read at a newer time: those after it are, too, as if each was read when the one before was.
        let mut late = false;
        for (key, (entry, _)) in keys.iter().zip(entries) {
            let named = |e: Damage| Damage::of_key(key, &e);
            let found = match entry {
                _ if late => None,
                Some(entry) if self.is_there(key, ts, &guard) => {
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

    /// What the index leads to for each key, and their places; the records have been asked for.
    pub(crate) fn find_ahead(&self, keys: &[&[u8]]) -> Vec<(Option<u64>, Hint)> {
        let base = self.pm().base();
        self.index.find(keys, &mut |&off| {
            cpu::prefetch(base.wrapping_add(off as usize), AHEAD);
        })
    }

    /// Calls `f` with the value of a key in a snapshot that is entered.
    pub(crate) fn get_at<R>(
        &self,
        at: Ticket,
        key: &[u8],
        f: impl FnOnce(&Found<'_, M>) -> Result<R, Damage>,
    ) -> Result<Option<R>, ReadError> {
        self.get_at_in(&epoch::pin(), at, key, f)
    }

    /// As [`get_at`](Self::get_at); what `f` finds is there for as long as the guard is.
    pub(crate) fn get_at_in<'s, R>(
        &'s self,
        guard: &Guard,
        at: Ticket,
        key: &[u8],
        f: impl FnOnce(&Found<'s, M>) -> Result<R, Damage>,
    ) -> Result<Option<R>, ReadError> {
        if !self.is_there(key, at.ts, guard) {
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

    /// Visits the keys of a range, which is of one keyspace, in a snapshot that is entered.
    pub(crate) fn scan_at(
        &self,
        at: Ticket,
        range: Range<'_>,
        direction: Direction,
        visit: &mut Visit<'_, M>,
    ) -> Result<(), ReadError> {
        let guard = epoch::pin();
        if let Bound::Included(first) | Bound::Excluded(first) = range.0
            && !self.is_there(first, at.ts, &guard)
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
        let mut ahead = |&off: &u64| cpu::prefetch(base.wrapping_add(off as usize), SCAN_AHEAD);
        self.index
            .scan(range, direction, Some(&mut ahead), &mut each);
        damage.map_or(Ok(()), |e| Err(e.into()))
    }
}

/// Bounds of a keyspace's index keys, in room of the caller's: those of `range`, with the prefix before them.
pub(crate) struct Bounds {
    start: Bound<Vec<u8>>,
    end: Bound<Vec<u8>>,
}

impl Bounds {
    pub fn new(keyspace: u32, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Self {
        let prefix = keyspace.to_be_bytes();
        let with = |key: &[u8]| [&prefix, key].concat();
        Self {
            start: match start {
                Bound::Unbounded => Bound::Included(prefix.to_vec()),
                bound => bound.map(with),
            },
            end: match end {
                // Numbers of keyspaces end before the largest.
                Bound::Unbounded => Bound::Excluded((keyspace + 1).to_be_bytes().to_vec()),
                bound => bound.map(with),
            },
        }
    }

    /// The keys that begin with `prefix`.
    pub fn prefix(keyspace: u32, prefix: &[u8]) -> Self {
        let start = [&keyspace.to_be_bytes(), prefix].concat();
        // The least that is above all of them: without what cannot be raised, and the last byte raised.
        let mut end = start.clone();
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                break;
            }
        }
        Self {
            start: Bound::Included(start),
            end: Bound::Excluded(end),
        }
    }

    pub fn range(&self) -> Range<'_> {
        (
            self.start.as_ref().map(Vec::as_slice),
            self.end.as_ref().map(Vec::as_slice),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::RangeBounds;

    #[test]
    fn a_prefix_has_exactly_the_keys_that_begin_with_it() {
        let contains =
            |bounds: &Bounds, key: &[u8]| RangeBounds::<[u8]>::contains(&bounds.range(), key);
        let bounds = Bounds::prefix(1, &[5, 255]);
        assert!(contains(&bounds, &[0, 0, 0, 1, 5, 255]));
        assert!(contains(&bounds, &[0, 0, 0, 1, 5, 255, 255, 255]));
        assert!(!contains(&bounds, &[0, 0, 0, 1, 6]));
        assert!(!contains(&bounds, &[0, 0, 0, 1, 5, 254]));
        let all = Bounds::prefix(255, b"");
        assert!(contains(&all, &[0, 0, 0, 255, 255]));
        assert!(!contains(&all, &[0, 0, 1, 0]));
        let whole = Bounds::new(7, Bound::Unbounded, Bound::Unbounded);
        assert!(contains(&whole, &[0, 0, 0, 7]) && !contains(&whole, &[0, 0, 0, 8]));
    }
}
