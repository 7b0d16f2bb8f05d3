//! Split, replace, merge (section 4.4), and removal of emptied leaves, each by one NAW of a link.
//!
//! ```text
//! split     P --> L --> N      becomes   P --> L1 --> L2 --> N
//! replace   P --> L --> N                P --> L' --> N
//! merge     P --> L --> R --> N          P --> M --> N
//! unlink    P --> L --> N                P --> N
//! ```
//!
//! New leaves are written and fenced first. Then one store of P's link (or of the head word)
//! switches to them. Persist cost: the new leaves' header and element lines, a fence, 1 line, a
//! fence.
//!
//! A right sibling in another PLN is merged only if it is alone there: a PLN's keys can move to the
//! left as a whole, and not in part.
//!
//! The old leaf's lock is taken before its elements are read and never released: a thread that
//! waits for it finds the leaf out of the list and descends again.

use super::adapt::{Profile, SPARSE};
use super::info::{LeafInfo, Traffic};
use super::leaf::{ELEMENT, Leaf, Shape, block};
use super::read::Held;
use super::{HEAD, Nodes, NvTree, count};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use crate::sync::{wait, wait_for_readers};
use bristlecone_pmem::cell::PWord;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch::{self as epoch, Guard};
use crossbeam_utils::Backoff;
use std::sync::atomic::Ordering;

/// Number of PLNs on the right that are searched for a sibling to merge with.
const FAR: usize = 8;

/// A leaf's elements, sorted.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Key and value words of the live keys, ascending.
    pub live: Vec<(u64, u64)>,
    /// Words of key records that no live key uses.
    pub dead: Vec<u64>,
}

/// PLNs held for a change, and a slot in them.
struct Place<'g> {
    pln: usize,
    slot: usize,
    /// The PLN of the leaf before, if that is another PLN.
    left: Option<usize>,
    /// The locks, released when the place is dropped.
    held: [Option<Held<'g>>; 2],
}

/// Result of an attempt to make room.
enum Outcome {
    /// There is room now.
    Done,
    /// The PLN is full.
    Full,
    /// Another thread was in the way.
    Again,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> NvTree<K, V, M> {
    /// Sorts the first `n` elements of a leaf.
    pub(super) fn contents(&self, leaf: &Leaf<'_, M>, n: usize) -> Contents {
        let mut all: Vec<(u64, u32)> = (0..n).map(|i| (leaf.key(i), i as u32)).collect();
        // By key, newest first.
        if K::RECORDS {
            all.sort_unstable_by(|a, b| self.compare_words(a.0, b.0).then(b.1.cmp(&a.1)));
        } else {
            all.sort_unstable_by_key(|(key, i)| (*key, std::cmp::Reverse(*i)));
        }
        let mut contents = Contents::default();
        let same = |a: &(u64, u32), b: &(u64, u32)| {
            a.0 == b.0 || (K::RECORDS && self.compare_words(a.0, b.0).is_eq())
        };
        for elements in all.chunk_by(same) {
            let (key, newest) = elements[0];
            let is_live = !leaf.is_negative(newest as usize);
            if is_live {
                contents.live.push((key, leaf.value(newest as usize)));
            }
            if K::RECORDS {
                let words = elements.iter().map(|(word, _)| *word);
                let mut dead: Vec<u64> = words.filter(|word| !is_live || *word != key).collect();
                dead.sort_unstable();
                dead.dedup();
                contents.dead.append(&mut dead);
            }
        }
        contents
    }

    /// Makes room for `need` elements in the leaf of `key`.
    ///
    /// # Errors
    /// [`SpaceError`] when there is no block for a new leaf; nothing has changed then.
    pub(super) fn make_room(&self, key: &K, need: usize) -> Result<(), SpaceError> {
        let backoff = Backoff::new();
        loop {
            let outcome = self.try_make_room(key, need, &epoch::pin());
            match outcome {
                Ok(Outcome::Done) => return Ok(()),
                Ok(Outcome::Full) => self.rebuild(true),
                Ok(Outcome::Again) => wait(&backoff),
                Err(e) if !self.retired.wait() => return Err(e),
                Err(_) => {} // the replaced leaf may have been waiting for readers to leave
            }
        }
    }

    /// Replaces the leaf of `key` when there is no space for records, so that the records of its
    /// removed keys become free. Returns false if that frees nothing.
    pub(super) fn compact(&self, key: &K) -> bool {
        let backoff = Backoff::new();
        let replaced = loop {
            let guard = epoch::pin();
            let inside = self.gate.enter();
            let inner = self.inner(&guard);
            if let Some(place) = self.hold(inner, key) {
                let info = inner.leaf_at(place.pln, place.slot);
                if let Some(held) = Held::of_leaf(info) {
                    if info.elements() == info.live() as usize {
                        return false;
                    }
                    break self.replace_leaf(inner, &place, info, held, 1, &guard);
                }
            }
            drop(inside);
            wait(&backoff);
        };
        if replaced.is_ok() {
            wait_for_readers();
        }
        replaced.is_ok()
    }

    fn try_make_room(&self, key: &K, need: usize, guard: &Guard) -> Result<Outcome, SpaceError> {
        let inside = self.gate.enter();
        let inner = self.inner(guard);
        let Some(place) = self.hold(inner, key) else {
            return Ok(Outcome::Again);
        };
        let info = inner.leaf_at(place.pln, place.slot);
        let Some(held) = Held::of_leaf(info) else {
            return Ok(Outcome::Again);
        };
        if info.room() >= need {
            return Ok(Outcome::Done);
        }
        let live = info.live() as usize;
        if live >= self.minimal_fill(info) && live >= 2 {
            if inner.is_full(place.pln) {
                return Ok(Outcome::Full);
            }
            self.split(inner, &place, info, held, key, guard)?;
        } else {
            let right = self.right_sibling(inner, &place);
            let merged = match right {
                Some(right) => self.merge(inner, &place, info, &right, held, guard),
                None => Err(held),
            };
            if let Err(held) = merged {
                self.replace_leaf(inner, &place, info, held, need, guard)?;
            }
        }
        drop(place);
        drop(inside);
        if self.too_many_empty(inner) {
            self.rebuild(false);
        }
        Ok(Outcome::Done)
    }

    /// Returns the number of elements that fill a leaf by half. A large leaf counts as one of the
    /// default size.
    fn minimal_fill(&self, info: &LeafInfo) -> usize {
        let usual = Shape::of(self.leaf_bytes).capacity;
        usual.min(info.shape.capacity).div_ceil(2) as usize
    }

    /// Holds the PLN of `key`'s leaf and that of the leaf before it. Returns `None` if the caller
    /// must try again.
    fn hold<'g>(&self, inner: &'g Nodes<K, M>, key: &K) -> Option<Place<'g>> {
        let pln = inner.with_leaves(inner.route(key));
        self.pm().interleave();
        let own = Held::lock(&inner.header(pln).writers);
        if inner.leaves_of(pln).0 == 0 {
            return None;
        }
        let slot = inner.slot_of(pln, key);
        let mut place = Place {
            pln,
            slot,
            left: None,
            held: [Some(own), None],
        };
        if slot == 0 && pln > 0 {
            let left = inner.with_leaves(pln - 1);
            // Threads wait for locks from left to right only.
            place.held[1] = Some(Held::try_lock(&inner.header(left).writers)?);
            if inner.leaves_of(left).0 == 0 {
                return None;
            }
            place.left = Some(left);
        }
        Some(place)
    }

    /// Returns the word that leads to the leaf at `place`: the link of the leaf before it, or the
    /// head.
    fn link<'g>(&'g self, inner: &'g Nodes<K, M>, place: &Place<'_>) -> &'g PWord {
        let before = match place.left {
            Some(left) => inner.leaf_at(left, inner.leaves_of(left).0 - 1),
            None if place.slot > 0 => inner.leaf_at(place.pln, place.slot - 1),
            None => return self.root().word(HEAD),
        };
        before.leaf(self.pm()).next()
    }

    /// Returns the size of a leaf's successors, each of which begins with `left` keys.
    fn resized(&self, info: &LeafInfo, traffic: Traffic, left: u32) -> u64 {
        if !self.adaptive() {
            return u64::from(info.size);
        }
        let profile = Profile {
            size: u64::from(info.size),
            leaf: traffic,
            all: self.totals.sum(),
            // ORDERING: Relaxed; a statistic.
            leaves: self.leaves.load(Ordering::Relaxed),
            elements: info.elements() as u32,
            live: info.live(),
            left,
        };
        self.sizing.resized(&profile)
    }

    fn count_resizing(&self, old: u32, new: u64) {
        let old = u64::from(old);
        if new > old {
            count(&self.counters.enlarged, 1);
        } else if new < old {
            count(&self.counters.shrunk, 1);
        }
    }

    /// Returns a new leaf of at least `size` bytes with room for `elements` elements.
    fn leaf_for(&self, size: u64, elements: usize) -> Result<(u64, u64, Shape), SpaceError> {
        let mut size = size;
        while (Shape::of(size).capacity as usize) < elements {
            size += ELEMENT as u64 * 4;
        }
        let (off, shape) = self.new_leaf(size)?;
        Ok((off, size, shape))
    }

    /// Writes a leaf that nothing leads to yet. Flushes it and does not fence.
    fn write(
        &self,
        (off, size, shape): (u64, u64, Shape),
        elements: &[(u64, u64)],
        next: u64,
        traffic: Traffic,
    ) -> *mut LeafInfo {
        self.leaf_of(off, shape).fill(elements, next);
        let n = elements.len() as u32;
        let info = LeafInfo::new(off, shape, size, n, n).with_traffic(traffic);
        Box::into_raw(Box::new(info))
    }

    /// Fences the new leaves and switches `link` to `to`.
    fn switch(&self, link: &PWord, to: u64) {
        let pm = self.pm();
        if pm.planted("nvtree-link-first") {
            link.publish(pm, link::word(to));
        }
        // PERSIST: the new leaves, before the link that leads to them.
        pm.fence();
        // PERSIST: (in `publish`) the link to the new leaves, before any thread uses them.
        link.publish(pm, link::word(to));
        pm.interleave();
    }

    /// Frees a leaf that is out of the list and of its PLN, and the key records that only it used.
    fn retire_leaf(&self, info: &LeafInfo, held: Held<'_>, dead: &[u64], guard: &Guard) {
        let (off, info) = (info.off, std::ptr::from_ref(info).cast_mut());
        held.retire();
        for word in dead {
            K::retire(&self.heap, *word, guard);
        }
        self.heap.retire(block(off), guard);
        self.retired.note();
        // SAFETY: 1. the pointer came from `Box::into_raw`, and the holder of its lock retires it
        // once; 2. no PLN leads to it any more, and pinned threads may go on using it until they
        // leave.
        unsafe { guard.defer_unchecked(move || drop(Box::from_raw(info))) };
    }

    fn retire_separator(full: K::Full, guard: &Guard) {
        if !K::EXACT {
            // SAFETY: 1. no node has it any more; 2. pinned readers may go on using it until they
            // leave; 3. the closure owns what it frees, on whatever thread.
            unsafe { guard.defer_unchecked(move || K::free(full)) };
        }
    }

    fn split(
        &self,
        inner: &Nodes<K, M>,
        place: &Place<'_>,
        info: &LeafInfo,
        held: Held<'_>,
        key: &K,
        guard: &Guard,
    ) -> Result<(), SpaceError> {
        let pm = self.pm();
        let traffic = info.traffic();
        let size = self.resized(info, traffic, info.live().div_ceil(2));
        let room = info.live().div_ceil(2) as usize + 2;
        let left = self.leaf_for(size, room)?;
        let right = self
            .leaf_for(size, room)
            .inspect_err(|_| self.heap.free(block(left.0)))?;
        let leaf = info.leaf(pm);
        let Contents { live, dead } = self.contents(&leaf, info.elements());
        let (lower, upper) = live.split_at(live.len() / 2);
        // Table 3: each half inherits half of the counts.
        let half = traffic.half();
        let right_info = self.write(right, upper, leaf.next_offset(), half);
        let left_info = self.write(left, lower, right.0, half);
        self.switch(self.link(inner, place), left.0);
        let low = upper
            .first()
            .and_then(|(word, _)| K::read(pm, *word, |low| low.allocate().0))
            // The pool has become corrupt: keep the leaf reachable.
            .unwrap_or_else(|| key.allocate().0);
        inner.split(place.pln, place.slot, left_info, low, right_info);
        self.count_resizing(info.size, size);
        self.retire_leaf(info, held, &dead, guard);
        // ORDERING: Relaxed; a statistic.
        self.leaves.fetch_add(1, Ordering::Relaxed);
        self.keep_spare();
        count(&self.counters.splits, 1);
        Ok(())
    }

    fn replace_leaf(
        &self,
        inner: &Nodes<K, M>,
        place: &Place<'_>,
        info: &LeafInfo,
        held: Held<'_>,
        need: usize,
        guard: &Guard,
    ) -> Result<(), SpaceError> {
        let traffic = info.traffic();
        let mut size = self.resized(info, traffic, info.live());
        if size > u64::from(info.size) && size / ELEMENT as u64 > SPARSE * u64::from(info.live()) {
            size = u64::from(info.size);
        }
        let room = info.live() as usize + need;
        let new = match self.leaf_for(size, room) {
            Ok(new) => new,
            Err(e) => self.take_spare(room).ok_or(e)?,
        };
        let leaf = info.leaf(self.pm());
        let Contents { live, dead } = self.contents(&leaf, info.elements());
        let new_info = self.write(new, &live, leaf.next_offset(), traffic);
        self.switch(self.link(inner, place), new.0);
        inner.replace(place.pln, place.slot, new_info);
        self.count_resizing(info.size, new.1);
        self.retire_leaf(info, held, &dead, guard);
        self.keep_spare();
        count(&self.counters.replaces, 1);
        Ok(())
    }

    /// Returns the leaf after `place` that may be merged with it: its PLN and slot, and the PLN's
    /// lock if that is another PLN.
    fn right_sibling<'g>(
        &self,
        inner: &'g Nodes<K, M>,
        place: &Place<'_>,
    ) -> Option<(usize, usize, Option<Held<'g>>)> {
        if place.slot + 1 < inner.leaves_of(place.pln).0 {
            return Some((place.pln, place.slot + 1, None));
        }
        let end = inner.plns().min(place.pln + 1 + FAR);
        let next = (place.pln + 1..end).find(|pln| inner.leaves_of(*pln).0 > 0)?;
        let held = Held::lock(&inner.header(next).writers);
        (inner.leaves_of(next).0 == 1).then_some((next, 0, Some(held)))
    }

    /// Merges the leaf at `place` with its right sibling if that has few elements. Otherwise
    /// returns the lock.
    fn merge<'g>(
        &self,
        inner: &'g Nodes<K, M>,
        place: &Place<'_>,
        info: &LeafInfo,
        (right_pln, right_slot, _): &(usize, usize, Option<Held<'g>>),
        held: Held<'g>,
        guard: &Guard,
    ) -> Result<(), Held<'g>> {
        let right = inner.leaf_at(*right_pln, *right_slot);
        // `nElement` decides, since counting the live elements would take a scan.
        let few = |elements: usize| elements < self.minimal_fill(right);
        if !few(right.count()) {
            return Err(held);
        }
        let Some(right_held) = Held::of_leaf(right) else {
            return Err(held);
        };
        if !few(right.elements()) {
            return Err(held);
        }
        let size = u64::from(info.size.max(right.size));
        let live = (info.live() + right.live()) as usize;
        let Ok(new) = self.leaf_for(size, live + 2) else {
            // The spare block may be enough for a replacement.
            return Err(held);
        };
        let pm = self.pm();
        let (leaf, right_leaf) = (info.leaf(pm), right.leaf(pm));
        let mut mine = self.contents(&leaf, info.elements());
        let mut others = self.contents(&right_leaf, right.elements());
        let right_dead = std::mem::take(&mut others.dead);
        mine.live.append(&mut others.live);
        let traffic = info.traffic().plus(right.traffic());
        let new_info = self.write(new, &mine.live, right_leaf.next_offset(), traffic);
        self.switch(self.link(inner, place), new.0);
        inner.replace(place.pln, place.slot, new_info);
        if let Some(low) = inner.remove(*right_pln, *right_slot) {
            Self::retire_separator(low, guard);
        }
        self.retire_leaf(info, held, &mine.dead, guard);
        self.retire_leaf(right, right_held, &right_dead, guard);
        // ORDERING: Relaxed; a statistic.
        self.leaves.fetch_sub(1, Ordering::Relaxed);
        count(&self.counters.merges, 1);
        Ok(())
    }

    /// Unlinks the leaf of `key` if it has no live key. The first leaf always stays.
    pub(super) fn unlink_emptied(&self, key: &K, guard: &Guard) {
        let backoff = Backoff::new();
        loop {
            let inside = self.gate.enter();
            let inner = self.inner(guard);
            let Some(place) = self.hold(inner, key) else {
                drop(inside);
                wait(&backoff);
                continue;
            };
            let info = inner.leaf_at(place.pln, place.slot);
            if place.left.is_none() && place.slot == 0 {
                return;
            }
            let Some(held) = Held::of_leaf(info) else {
                return;
            };
            if info.live() > 0 {
                return; // another thread inserted meanwhile
            }
            let leaf = info.leaf(self.pm());
            let dead = self.contents(&leaf, info.elements()).dead;
            // PERSIST: (in `publish`) the link past the leaf, before its block is used again.
            self.link(inner, &place)
                .publish(self.pm(), link::word(leaf.next_offset()));
            self.pm().interleave();
            if let Some(low) = inner.remove(place.pln, place.slot) {
                Self::retire_separator(low, guard);
            }
            self.retire_leaf(info, held, &dead, guard);
            // ORDERING: Relaxed; a statistic.
            self.leaves.fetch_sub(1, Ordering::Relaxed);
            count(&self.counters.unlinks, 1);
            drop(place);
            drop(inside);
            if self.too_many_empty(inner) {
                self.rebuild(false);
            }
            return;
        }
    }

    /// Returns true if enough PLNs are empty that the others should get their space.
    pub(super) fn too_many_empty(&self, inner: &Nodes<K, M>) -> bool {
        let few = if self.pm().tiny() { 1 } else { 64 };
        let emptied = inner.emptied();
        emptied > few && emptied * 2 > inner.plns()
    }

    /// Takes the spare block if a leaf with room for `elements` fits into it.
    fn take_spare(&self, elements: usize) -> Option<(u64, u64, Shape)> {
        let shape = Shape::of(self.leaf_bytes);
        if (shape.capacity as usize) < elements {
            return None;
        }
        let off = lock(&self.spare).take()?;
        Some((off, self.leaf_bytes, shape))
    }

    /// Makes sure that there is a spare block, if there is space at all.
    pub(super) fn keep_spare(&self) {
        let mut spare = lock(&self.spare);
        if spare.is_none() {
            *spare = self.heap.alloc(self.leaf_bytes).ok().map(|off| off.get());
        }
    }
}
