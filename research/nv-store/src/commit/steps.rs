//! Batches of steps: gets and puts of different keys under one timestamp.
//!
//! The steps are equivalent to executing them in order while nobody else does anything: all stripes
//! are locked before the keys are read, and until the second fence. Each put is atomic; a crash may
//! keep some of them.
//!
//! # Where the time goes
//! The index looks up all keys at once, so that cache misses overlap, adds new keys as a batch, and
//! updates the others at the places where it found them. A locked instruction waits until earlier
//! stores are in the cache and lines under write-back are done. So blocks are reserved and
//! prefetched first, short records are written once all locks are held, and the index's words are
//! flushed after the last of its locks was taken.

use super::{Change, Committer};
use crate::newest::{Current, Newest};
use crate::record::{self, Stamp};
use crate::stripes::LockedStripes;
use bristlecone_index::Hint;
use bristlecone_pmem::Media;
use bristlecone_pmem::media::deferring_commits;
use bristlecone_store::engine::{PREFIX, Wait, check_key, check_value};
use bristlecone_store::{Step, WriteError};
use crossbeam_epoch::{self as epoch, Guard};

/// Values of up to so many bytes are written under the locks, where that costs least: stores made
/// before would delay the first lock.
const MAX_LATE_WRITE: usize = 1024;
/// Longest value that a batch reads, in bytes, since other keys are locked meanwhile.
const MAX_READ_BYTES: usize = 64 << 10;
/// Steps that are executed at once.
const MAX_STEPS: usize = 1024;

/// A key and what is done with it.
type KeyStep<'a> = (&'a [u8], Step<'a>);

/// The outcome of a batch's reads under its locks.
struct Outcome {
    /// Steps that can be executed.
    count: usize,
    /// Of these, puts.
    puts: usize,
    /// The latest timestamp that the answer rests on, puts excepted.
    read: u64,
}

impl<M: Media> Committer<M> {
    /// Executes a prefix of `steps` under one timestamp, and returns its length. It ends before a
    /// key that occurs again (unless both steps read it), before a long value that is to be read,
    /// or at a step for which `each` returns false. `each` is called with the current value, in
    /// order; for a put, with the one to be replaced, even if that has expired. Returns once the
    /// puts, and the versions that the answer rests on, are as durable as `wait` says.
    ///
    /// # Errors
    /// [`WriteError`]; nothing was put then, except for [`WriteError::Commit`].
    pub fn execute_batch(
        &self,
        steps: &[KeyStep<'_>],
        wait: Wait,
        mut each: impl FnMut(&[u8], Option<&Current<'_, M>>) -> Result<bool, WriteError>,
    ) -> Result<usize, WriteError> {
        if steps.is_empty() {
            return Ok(0);
        }
        let steps = &steps[..steps.len().min(MAX_STEPS)];
        let sums: Vec<u32> = steps.iter().map(|(key, _)| crc32c::crc32c(key)).collect();
        let mut stripes: Vec<usize> = sums.iter().map(|sum| self.stripes.of_sum(*sum)).collect();
        let steps = &steps[..distinct(steps, &sums)];
        stripes.truncate(steps.len());
        stripes.iter().for_each(|at| self.stripes.prefetch(*at));
        let mut changes = self.reserve_records(steps, &sums, &stripes)?;
        let keys: Vec<&[u8]> = steps.iter().map(|(key, _)| *key).collect();
        let held = LockedStripes::lock(&self.stripes, stripes.iter().copied());
        held.prefetch_queues(self.pm());
        let guard = epoch::pin();
        let dropped = |key: &&[u8]| self.check_not_dropped(key, &guard);
        if let Err(dropped) = keys.iter().try_for_each(dropped) {
            drop((changes, held, guard));
            return Err(self.dropped_error(dropped, wait));
        }
        let found = self.multi_find(&keys);
        let outcome = self.read_steps(steps, found, &mut changes, &guard, &mut each)?;
        // Unpinned, as in `modify`.
        drop(guard);
        changes.truncate(outcome.puts);
        if changes.is_empty() {
            drop(held);
            self.wait_for(outcome.read, wait)?;
        } else {
            self.commit_puts(held, changes, wait)?;
        }
        Ok(outcome.count)
    }

    /// Reads the current versions of the steps' keys, and notes in `changes` what each put
    /// replaces.
    ///
    /// # Errors
    /// Those of `each`.
    fn read_steps(
        &self,
        steps: &[KeyStep<'_>],
        found: Vec<(Option<u64>, Hint)>,
        changes: &mut [Change<'_, M>],
        guard: &Guard,
        each: &mut impl FnMut(&[u8], Option<&Current<'_, M>>) -> Result<bool, WriteError>,
    ) -> Result<Outcome, WriteError> {
        let mut next = changes.iter_mut();
        let (mut count, mut puts, mut read) = (0, 0, 0);
        for ((key, step), (entry, hint)) in steps.iter().zip(found) {
            let before = self.newest_of(key, entry, guard);
            let current = self.current(key, &before, || match step {
                Step::Get => self.wall.now(),
                // A put sees expired values too.
                Step::Put(_) => 0,
            });
            let len = current.as_ref().map_or(0, Current::len);
            if *step == Step::Get && len > MAX_READ_BYTES {
                break;
            }
            let goes_on = each(key, current.as_ref())?;
            if !goes_on || *step == Step::Get {
                read = read.max(before.ts());
            }
            if !goes_on {
                break;
            }
            count += 1;
            if let Step::Put(_) = step
                && let Some(change) = next.next()
            {
                change.before = before;
                change.hint = entry.map(|_| hint);
                puts += 1;
            }
        }
        Ok(Outcome { count, puts, read })
    }

    /// Commits the puts of a batch under the locks of their stripes, and waits for their durability
    /// without them.
    ///
    /// # Errors
    /// [`WriteError`]; nothing was put then, except for [`WriteError::Commit`].
    fn commit_puts(
        &self,
        mut held: LockedStripes<'_>,
        mut changes: Vec<Change<'_, M>>,
        wait: Wait,
    ) -> Result<(), WriteError> {
        let taken = self.clock.take()?;
        let ts = taken.ts;
        for change in &mut changes {
            change.fill();
            change.record.stamp(Stamp::At(ts), change.before.off())?;
        }
        // PERSIST: the records, before the index leads to them.
        self.pm().fence();
        if let Err((published, e)) = self.publish_entries(&changes) {
            let each = changes.iter_mut().enumerate();
            let published = each.filter_map(|(i, change)| published.contains(&i).then_some(change));
            self.undo(&mut held, published);
            drop((taken, held, changes));
            // Another thread may have made the entries durable before they were undone.
            self.wait_for(ts, wait)?;
            return Err(e);
        }
        for change in &mut changes {
            let off = change.record.release();
            let stripe = held.get(change.stripe);
            let meta = &change.record.meta;
            self.superseded(stripe, change.key, &change.before, (off, meta, ts));
        }
        let garbage = self.drain_simple(&mut held);
        drop((taken, held));
        self.heap.retire_all(garbage, &epoch::pin());
        self.wait_for(ts, wait)
    }

    /// Reserves the records of the puts, and writes the long values.
    ///
    /// # Errors
    /// [`WriteError`]; nothing is allocated then.
    fn reserve_records<'a>(
        &'a self,
        steps: &[(&'a [u8], Step<'a>)],
        sums: &[u32],
        stripes: &[usize],
    ) -> Result<Vec<Change<'a, M>>, WriteError> {
        if self.pm().read_only() {
            return Err(WriteError::ReadOnly);
        }
        self.sound()?;
        for (key, step) in steps {
            check_key(key.get(PREFIX..).unwrap_or(key))?;
            check_value(step.value().unwrap_or(&[]))?;
        }
        let puts = (steps.iter().zip(sums).zip(stripes))
            .filter_map(|(((key, step), sum), stripe)| Some((*key, step.value()?, *sum, *stripe)));
        let mut changes = Vec::with_capacity(steps.len());
        let lens = puts.clone().map(|(_, value, ..)| value.len());
        let mut each = puts;
        record::reserve(&self.heap, lens, |record| {
            if let Some((key, value, sum, stripe)) = each.next() {
                changes.push(Change {
                    key,
                    put: Some((value, sum)),
                    stripe,
                    before: Newest::None,
                    hint: None,
                    record,
                });
            }
        })?;
        for change in &mut changes {
            if change
                .put
                .is_some_and(|(value, _)| value.len() > MAX_LATE_WRITE)
            {
                change.fill();
            }
        }
        Ok(changes)
    }

    /// Makes the index lead to the records of these changes, durably. An error comes with the
    /// positions of the changes whose records it leads to by then.
    fn publish_entries(&self, changes: &[Change<'_, M>]) -> Result<(), (Vec<usize>, WriteError)> {
        let pm = self.pm();
        // New entries come first: mostly they are the only ones that need space.
        let added = || {
            changes
                .iter()
                .enumerate()
                .filter(|(_, change)| change.hint.is_none())
        };
        let entries: Vec<_> = added()
            .map(|(_, change)| (change.key, &change.record.off))
            .collect();
        let mut published = Vec::with_capacity(changes.len());
        let mut outcome = Ok(());
        if !entries.is_empty() {
            let outcomes = deferring_commits(|| self.index.insert_many(&entries));
            for ((i, _), one) in added().zip(outcomes) {
                match one {
                    Ok(()) => published.push(i),
                    Err(e) => outcome = Err(e.into()),
                }
            }
        }
        let mut unflushed = Vec::with_capacity(changes.len());
        for (i, change) in changes.iter().enumerate() {
            let Some(hint) = &change.hint else { continue };
            if outcome.is_err() {
                break;
            }
            let (key, off) = (change.key, &change.record.off);
            match deferring_commits(|| self.index.update_unflushed(hint, key, off)) {
                Ok(word) => {
                    unflushed.extend(word);
                    published.push(i);
                }
                Err(e) => outcome = Err(e.into()),
            }
        }
        // After all updates: taking a lock waits for lines that are being written back.
        for word in &unflushed {
            // PERSIST: the updated entry; fenced with the others, below.
            pm.flush(pm.base().wrapping_add(*word as usize), size_of::<u64>());
        }
        if !unflushed.is_empty() {
            // PERSIST: the updated entries, before their timestamp is applied and before the locks
            // are given back.
            pm.fence();
        }
        outcome.map_err(|e| (published, e))
    }
}

/// Returns the length of the longest prefix of `steps` in which no key occurs twice, unless both
/// steps read it. `sums`: the CRC-32C of each key.
fn distinct(steps: &[(&[u8], Step<'_>)], sums: &[u32]) -> usize {
    let mut order: Vec<(u32, usize)> = sums.iter().copied().zip(0..).collect();
    order.sort_unstable();
    let mut count = steps.len();
    for (at, (sum, later)) in order.iter().enumerate() {
        let (key, step) = steps[*later];
        let before = order[..at].iter().rev();
        let mut alike = before.take_while(|(other, _)| other == sum);
        if alike.any(|(_, i)| steps[*i].0 == key && (steps[*i].1, step) != (Step::Get, Step::Get)) {
            count = count.min(*later);
        }
    }
    count
}
