//! Changing keys.
//!
//! Writers are inside the [gate](super::gate) from before they look whether the keyspace was
//! dropped until their change is made. Nobody is inside while waiting for durability.

use super::long::{self, Place};
use super::parts::Stored;
use super::value::{Found, encode_packed, glimpsed};
use super::{Core, damaged, read_error, time_of, write_error};
use crate::catalogue::Keyspace;
use crate::dropped::DroppedAt;
use crate::engine::{KeyWrite, Ticket, Wait};
use crate::entry::{Entry, Update, expires_at, expiry};
use crate::error::{ConflictError, WriteError};
use crate::feed::{Watch, WatchLimits};
use crate::key::{IndexKey, split};
use crate::options::Compression;
use crate::reads::ReadSet;
use crate::write::{Step, check_value, retry_for_space};
use bristlecone_index::clustered::{
    self, ChangeError, Current, Modification, Modified, Reads, Step as TreeStep, When,
};
use bristlecone_pmem::{Media, planted};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};

/// Longest value that a batch of steps reads, in bytes, since other keys are locked meanwhile.
const MAX_READ_BYTES: usize = 64 << 10;
/// Steps that are executed at once.
const MAX_STEPS: usize = 1024;

impl<M: Media> Core<M> {
    /// Runs `op`, and once more after sweeping if there was no space. A failed `op` has left
    /// markers of long keys behind at most.
    pub(super) fn retry_for_space<T>(
        &self,
        op: impl FnMut() -> Result<T, WriteError>,
    ) -> Result<T, WriteError> {
        retry_for_space(|| self.reclaim_space(), op)
    }

    /// Checks that the store can be written to.
    pub(super) fn writable(&self) -> Result<(), WriteError> {
        if self.pm().read_only() {
            return Err(WriteError::ReadOnly);
        }
        Ok(self.sound()?)
    }

    /// Checks that the keyspaces of these index keys were not dropped. The caller is inside the
    /// gate.
    fn check_not_dropped<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k [u8]>,
    ) -> Result<(), DroppedAt> {
        if self.counts.dropped.is_empty() {
            return Ok(());
        }
        let numbers = keys.into_iter().filter_map(split).map(|(number, _)| number);
        for number in numbers {
            if let Some(since) = self.dropped_at(number) {
                return Err(DroppedAt { number, since });
            }
        }
        Ok(())
    }

    /// Returns the error of a write to a dropped keyspace, once reads show that it is gone.
    fn dropped_error(&self, dropped: DroppedAt, wait: Wait) -> WriteError {
        match self.wait_for(dropped.since, wait) {
            Ok(()) => WriteError::Dropped {
                keyspace: self.catalogue.name_of(dropped.number),
            },
            Err(e) => e.into(),
        }
    }

    /// Makes a change inside the gate, unless a keyspace was dropped.
    pub(super) fn change<'k, T>(
        &self,
        keys: impl IntoIterator<Item = &'k [u8]>,
        wait: Wait,
        change: impl FnOnce() -> Result<T, WriteError>,
    ) -> Result<T, WriteError> {
        let inside = self.gate.enter();
        if let Err(dropped) = self.check_not_dropped(keys) {
            drop(inside);
            return Err(self.dropped_error(dropped, wait));
        }
        self.settle_counts();
        change()
    }

    pub(super) fn put(
        &self,
        key: &[u8],
        value: &[u8],
        expiry: u64,
        wait: Wait,
    ) -> Result<(), WriteError> {
        self.writable()?;
        let stamp = self.retry_for_space(|| {
            self.change([key], wait, || {
                let place = self.make_place(key)?;
                let stored = self.store_value(&place, value, expiry)?;
                let put = self.counts.naming(std::iter::once((key, &*place)), || {
                    self.tree.put(&place, &stored.bytes)
                });
                let stamp = put.map_err(|e| write_error(Some(key), e))?;
                stored.keep();
                Ok(stamp)
            })
        })?;
        Ok(self.wait_for(stamp, wait)?)
    }

    /// Removes a key. Returns whether it had a value that had not expired.
    pub(super) fn delete(&self, key: &[u8], wait: Wait) -> Result<bool, WriteError> {
        self.writable()?;
        let (there, seen) = self.retry_for_space(|| {
            let mut there = false;
            let modified = self.modify(key, wait, |current| {
                let Some(current) = current else {
                    return Ok(Modification::Keep);
                };
                let expiry = glimpsed(current.glimpse()).expiry;
                there = expiry == 0 || expiry > self.wall.now();
                Ok(Modification::Remove)
            })?;
            Ok((there, modified.seen))
        })?;
        self.wait_for(seen, wait)?;
        Ok(there)
    }

    /// Changes a key to what `decide` makes of what it has, unless it cannot be there.
    fn modify(
        &self,
        key: &[u8],
        wait: Wait,
        decide: impl FnMut(
            Option<Current<'_, M>>,
        ) -> Result<Modification<Vec<u8>>, clustered::ReadError>,
    ) -> Result<Modified, WriteError> {
        self.change([key], wait, || {
            let Some(place) = self.place_of(key)? else {
                return Ok(Modified::default());
            };
            let modified = self.counts.naming(std::iter::once((key, &*place)), || {
                self.tree.modify(&place, decide)
            });
            modified.map_err(|e| write_error(Some(key), e))
        })
    }

    pub(super) fn update(
        &self,
        key: &[u8],
        wait: Wait,
        f: &mut dyn FnMut(Option<Entry<'_>>) -> Result<Update, WriteError>,
    ) -> Result<(), WriteError> {
        self.writable()?;
        let modified = self.retry_for_space(|| {
            self.change([key], wait, || {
                if self.place_of(key)?.is_none() && !matches!(f(None)?, Update::Put { .. }) {
                    // It was not there, and needs no marker.
                    return Ok(Modified::default());
                }
                let place = self.make_place(key)?;
                self.counts.naming(std::iter::once((key, &*place)), || {
                    self.try_update((key, &place), f)
                })
            })
        })?;
        Ok(self.wait_for(modified.seen, wait)?)
    }

    /// Changes a key to what `f` makes of it, once. A value that is to have parts gets them while
    /// the key is not locked, and a long one is compressed then. If the key has another value after
    /// that, `f` is asked again.
    fn try_update(
        &self,
        (key, place): (&[u8], &[u8]),
        f: &mut dyn FnMut(Option<Entry<'_>>) -> Result<Update, WriteError>,
    ) -> Result<Modified, WriteError> {
        let mut prepared: Option<(Option<Vec<u8>>, Stored<'_, 'static>)> = None;
        loop {
            let (mut failed, mut wanted, mut uses) = (None, None, false);
            let modified = self.tree.modify(place, |current| {
                uses = false;
                let was = current.as_ref().map(Current::value).transpose()?;
                if let Some((basis, stored)) = &prepared
                    && basis.as_deref() == was.as_deref()
                {
                    uses = true;
                    return Ok(Modification::Put(stored.bytes.to_vec()));
                }
                let update = match self.decide(place, was.as_deref(), f) {
                    Ok(update) => update?,
                    Err(e) => {
                        failed = Some(e);
                        return Ok(Modification::Keep);
                    }
                };
                Ok(match update {
                    Update::Keep => Modification::Keep,
                    Update::Delete => Modification::Remove,
                    Update::Put { value, expires_at } if !self.takes_long(value.len()) => {
                        let expiry = expiry(expires_at);
                        let stored = encode_packed(&value, expiry, self.compression);
                        Modification::Put(stored.into_owned())
                    }
                    Update::Put { value, expires_at } => {
                        wanted = Some((was.map(Cow::into_owned), value, expires_at));
                        Modification::Keep
                    }
                })
            });
            let modified = modified.map_err(|e| write_error(Some(key), e))?;
            if let Some(e) = failed {
                return Err(e);
            }
            match (wanted, prepared.take()) {
                (Some((basis, value, expires_at)), _) => {
                    let stored = self.store_value(place, &value, expiry(expires_at))?;
                    prepared = Some((basis, stored.into_owned()));
                }
                (None, Some((_, stored))) if uses => {
                    stored.keep();
                    return Ok(modified);
                }
                (None, _) => return Ok(modified),
            }
        }
    }

    /// Whether a value of so many bytes is made ready before its key is locked.
    fn takes_long(&self, len: usize) -> bool {
        let packs = self.compression != Compression::None && len > MAX_READ_BYTES;
        packs || self.has_parts(len)
    }

    /// Asks `f` what becomes of a key, whose page is locked. The outer error is its own.
    fn decide(
        &self,
        place: &[u8],
        stored: Option<&[u8]>,
        f: &mut dyn FnMut(Option<Entry<'_>>) -> Result<Update, WriteError>,
    ) -> Result<Result<Update, clustered::ReadError>, WriteError> {
        let update = match stored {
            None => f(None)?,
            Some(stored) => {
                let mut whole = Vec::new();
                let (value, expiry) = match self.current_value(place, stored, &mut whole) {
                    Ok(found) => found,
                    Err(e) => return Ok(Err(e)),
                };
                let expires_at = expires_at(expiry);
                let is_live = expiry == 0 || expiry > self.wall.now();
                f(is_live.then_some(Entry { value, expires_at }))?
            }
        };
        if let Update::Put { value, .. } = &update {
            check_value(value)?;
        }
        Ok(Ok(update))
    }

    /// Returns the value of a key whose page is locked, in `whole` if it is not in the tree as it
    /// is, and its expiry.
    fn current_value<'v>(
        &self,
        place: &[u8],
        stored: &'v [u8],
        whole: &'v mut Vec<u8>,
    ) -> Result<(&'v [u8], u64), clustered::ReadError> {
        match Found::of(stored).map_err(damaged)? {
            Found::Here(value, expiry) => Ok((value, expiry)),
            Found::Packed(packed) => {
                *whole = packed.unpack().map_err(damaged)?;
                Ok((whole, packed.expiry))
            }
            Found::Apart(head) => {
                // The lock keeps the head, and so its parts.
                *whole = self.assemble(When::Now, place, &head)?;
                Ok((whole, head.expiry))
            }
        }
    }

    /// Commits changes to several keys, each of which occurs once: all of them, or none.
    pub(super) fn commit(
        &self,
        writes: &[KeyWrite<'_>],
        since: Option<Ticket>,
        reads: Option<&ReadSet>,
        wait: Wait,
    ) -> Result<u64, WriteError> {
        if writes.is_empty() {
            return Ok(0);
        }
        self.writable()?;
        let modified = self.retry_for_space(|| {
            let keys = writes.iter().map(|write| write.key);
            self.change(keys.clone(), wait, || {
                if let (Some(reads), Some(ticket)) = (reads, since) {
                    self.check_reads_not_dropped(reads, ticket)?;
                }
                let places = self.make_places(keys.clone())?;
                let since = since.map(|ticket| time_of(ticket.ts));
                let set = reads;
                let reads = reads.map(|reads| self.reads_of(reads)).transpose()?;
                let values = writes.iter().map(|write| (write.value, write.expiry));
                let stored = self.store_values(places.iter().zip(values))?;
                let all = places.iter().zip(&stored);
                let all = all.map(|(place, stored)| {
                    let value = stored.as_ref().map(|stored| &*stored.bytes);
                    (&**place, value)
                });
                let named = keys.clone().zip(places.iter().map(|place| &**place));
                let write = || self.tree.write(all, since, reads.as_ref());
                let written = self.counts.naming(named.clone(), write);
                let written = written.map_err(|e| match e {
                    ChangeError::Conflict { key, read } => {
                        let written = named.clone().find(|(_, place)| **place == *key);
                        let key = match written {
                            Some((key, _)) => Cow::Borrowed(key),
                            None => self.whole_of_read(set, key),
                        };
                        self.conflict(&key, read).into()
                    }
                    e => write_error(None, e),
                })?;
                stored.into_iter().flatten().for_each(Stored::keep);
                Ok(written)
            })
        })?;
        self.wait_for(modified.seen, wait)?;
        Ok(modified.stamp.unwrap_or(0))
    }

    /// Returns where the tree has each key, with markers for those that are too long.
    fn make_places<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<Vec<Cow<'k, [u8]>>, WriteError> {
        keys.map(|key| self.make_place(key)).collect()
    }

    /// As [`store_value`](Self::store_value), of several: where each goes, and its expiry.
    fn store_values<'c, 'v>(
        &'c self,
        values: impl Iterator<Item = (&'v Cow<'v, [u8]>, (Option<&'v [u8]>, u64))>,
    ) -> Result<Vec<Option<Stored<'c, 'v>>>, WriteError> {
        let stored = values.map(|(place, (value, expiry))| {
            let stored = value.map(|value| self.store_value(place, value, expiry));
            stored.transpose()
        });
        stored.collect()
    }

    /// Returns keys and ranges as the tree takes them.
    fn reads_of(&self, set: &ReadSet) -> Result<Reads<[u8]>, WriteError> {
        let mut reads: Reads<[u8]> = Reads::new();
        for key in set.keys() {
            match self.place(key).map_err(|e| read_error(Some(key), e))? {
                Place::At(place) => reads.key(&place),
                Place::Nowhere(marker) => reads.key(&marker),
            }
        }
        for (start, end) in set.ranges() {
            reads.range((start, end));
            // Any long key of the keyspace, since a range does not say which of their spaces it
            // has.
            if let Bound::Included(first) | Bound::Excluded(first) = start
                && let Some((number, _)) = split(first)
            {
                let [first, after] = long::spaces_of(number);
                reads.range((Bound::Included(&first[..]), Bound::Excluded(&after[..])));
            }
        }
        Ok(reads)
    }

    /// Returns the key that a transaction has read and that is at this place, or was to be.
    fn whole_of_read<'k>(&self, set: Option<&'k ReadSet>, place: Vec<u8>) -> Cow<'k, [u8]> {
        let is_there = |key: &&[u8]| match self.place(key) {
            Ok(Place::At(at)) => *at == *place,
            Ok(Place::Nowhere(marker)) => marker == place,
            Err(_) => false,
        };
        let Some(set) = set else {
            return Cow::Owned(place);
        };
        match set.keys().find(is_there) {
            Some(whole) => Cow::Borrowed(whole),
            None => Cow::Owned(self.whole_in(set.ranges(), place)),
        }
    }

    /// Returns the error for a key that another commit changed. `read`: this transaction only read
    /// it.
    fn conflict(&self, key: &[u8], read: bool) -> ConflictError {
        let (keyspace, key) = long::split_whole(key);
        ConflictError::over(self.catalogue.name_of(keyspace), key, read)
    }

    /// Checks that no keyspace that was read was dropped since. The caller is inside the gate, so
    /// none is dropped before its commit is made.
    fn check_reads_not_dropped(&self, reads: &ReadSet, since: Ticket) -> Result<(), WriteError> {
        if self.counts.dropped.is_empty() {
            return Ok(());
        }
        for key in reads.of_keyspaces() {
            // One that was dropped before the snapshot stays dropped.
            let dropped = split(key).and_then(|(number, _)| self.dropped_at(number));
            if dropped.is_some_and(|at| at > since.ts) {
                return Err(self.conflict(key, true).into());
            }
        }
        Ok(())
    }

    pub(super) fn execute(
        &self,
        steps: &[(&[u8], Step<'_>)],
        wait: Wait,
        each: &mut dyn FnMut(Option<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<usize, WriteError> {
        self.writable()?;
        let steps = &steps[..distinct(&steps[..steps.len().min(MAX_STEPS)])];
        if steps.is_empty() {
            return Ok(0);
        }
        let keys = steps.iter().map(|(key, _)| *key);
        let executed = self.change(keys.clone(), wait, || {
            let mut places = Vec::with_capacity(steps.len());
            // Long keys that are only read, and not there.
            let mut absent = HashSet::new();
            for (i, (key, step)) in steps.iter().enumerate() {
                places.push(match step {
                    Step::Put(_) => self.make_place(key)?,
                    Step::Get => match self.place(key).map_err(|e| read_error(Some(key), e))? {
                        Place::At(place) => place,
                        Place::Nowhere(marker) => {
                            absent.insert(i);
                            Cow::Owned(marker)
                        }
                    },
                });
            }
            // A put behind it may have made the marker.
            for i in std::mem::take(&mut absent) {
                let key = steps[i].0;
                match self.place(key).map_err(|e| read_error(Some(key), e))? {
                    Place::At(place) => places[i] = place,
                    Place::Nowhere(_) => drop(absent.insert(i)),
                }
            }
            let values = steps.iter().map(|(_, step)| (step.value(), 0));
            let mut stored = self.store_values(places.iter().zip(values))?;
            let all: Vec<TreeStep<'_>> = (places.iter().zip(&stored))
                .map(|(place, stored)| {
                    let value = stored.as_ref().map(|stored| &*stored.bytes);
                    (&**place, value)
                })
                .collect();
            let mut next = steps.iter().zip(&places).enumerate();
            let mut each = |current: Option<Current<'_, M>>| {
                let (i, reads, place) = match next.next() {
                    Some((i, ((_, step), place))) => (i, *step == Step::Get, &**place),
                    None => return Ok(ControlFlow::Break(())),
                };
                let Some(current) = current else {
                    return Ok(each(None));
                };
                if absent.contains(&i) {
                    // Its marker has been made meanwhile, so it may be there.
                    return Ok(ControlFlow::Break(()));
                }
                let seen = glimpsed(current.glimpse());
                if seen.apart.is_some() || reads && seen.len > MAX_READ_BYTES {
                    return Ok(ControlFlow::Break(()));
                }
                let mut whole = Vec::new();
                let stored = current.value()?;
                let (value, expiry) = self.current_value(place, &stored, &mut whole)?;
                // A put sees expired values too.
                let is_live = !reads || expiry == 0 || expiry > self.wall.now();
                let expires_at = expires_at(expiry);
                Ok(each(is_live.then_some(Entry { value, expires_at })))
            };
            let named = keys.clone().zip(places.iter().map(|place| &**place));
            let executed = self
                .counts
                .naming(named, || self.tree.execute(&all, &mut each));
            drop(all);
            let executed = executed.map_err(|e| write_error(None, e))?;
            stored.drain(..executed.0).flatten().for_each(Stored::keep);
            Ok(executed)
        })?;
        let (done, modified) = executed;
        self.wait_for(modified.seen, wait)?;
        Ok(done)
    }

    pub(super) fn watch(
        &self,
        keyspace: &Keyspace,
        prefix: &[u8],
        limits: WatchLimits,
    ) -> Result<Watch, WriteError> {
        let number = self.catalogue.number(keyspace)?;
        if self.pm().read_only() {
            return Err(WriteError::ReadOnly);
        }
        let closed = self.gate.close();
        if let Err(dropped) = self.check_not_dropped([&*IndexKey::new(number, b"")]) {
            drop(closed);
            return Err(self.dropped_error(dropped, Wait::Durable));
        }
        // With what the sweep has under way, which is not kept out.
        let time = self.tree.begin(false);
        self.tree.end(time);
        let last = time - 1;
        let watch = self.feed.subscribe(number, prefix, limits);
        drop(closed);
        if !planted!(self.pm(), "store-feed-begins-early") {
            // Every snapshot from now on has what the subscriber is not told.
            self.make_durable(last)?;
        }
        Ok(watch)
    }
}

/// Returns the length of the longest prefix of `steps` in which no key occurs twice, unless all of
/// its steps read it.
fn distinct(steps: &[(&[u8], Step<'_>)]) -> usize {
    let (mut looked, mut put) = (HashSet::new(), HashSet::new());
    for (i, (key, step)) in steps.iter().enumerate() {
        let repeated = match step {
            Step::Get => {
                looked.insert(*key);
                put.contains(key)
            }
            Step::Put(_) => looked.contains(key) || !put.insert(*key),
        };
        if repeated {
            return i;
        }
    }
    steps.len()
}
