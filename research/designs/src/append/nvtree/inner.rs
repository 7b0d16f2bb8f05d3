//! Inner nodes (INs) and parents of leaves (PLNs): one contiguous block of DRAM, cache-line
//! aligned, without child pointers (sections 4.1, 4.2).
//!
//! ```text
//! block | IN level 0 (root) | IN level 1 | ... | PLN 0 | PLN 1 | ... |
//! IN    | 2m keys                                                    a node's children are computed
//! PLN   | writers | version | count, left | LN pointers | keys | (whole keys, byte strings) |
//! ```
//!
//! Nodes are numbered level by level. Child `k` of node `i` of a level is node `i * (2m + 1) + k`
//! of the next level. This is the paper's formula counted from the level's start, so that levels
//! that are not full take no space. The number of keys of a node follows from the number of nodes
//! below it. PLNs may be several units long (section 5.5); then a table has the start of each.
//!
//! A key in a node is the smallest of its right child. (The paper keeps the largest of the left
//! child; nothing depends on it.) For byte strings the word is the key's first eight bytes, and the
//! whole key is stored beside it.
//!
//! # Invariants
//! 1. INs never change. PLN 0 always has a leaf. A PLN without leaves stays empty. Its keys belong
//!    to the nearest PLN with leaves on its left, as if they had been routed there. (When the leaf
//!    that they went to splits, they may be keys of either half.)
//! 2. A search finds the leaf whose range holds the key. The range of a leaf in the list only ever
//!    grows, when a neighbour is removed. A thread that finds a leaf and, under the leaf's lock,
//!    finds it still in the list has the right one, whatever has happened to PLNs in between.
//! 3. Each whole key of a byte string is in one place: in a PLN, or as the lower end of one PLN.
//!
//! # Concurrency
//! Readers take no lock: a PLN has a version word, which is held only while entries move. Writers
//! of a PLN hold `writers` for a whole split, replace or merge. Several are taken in ascending
//! order, or tried without waiting.

mod keys;

use self::keys::Keys;
use super::info::LeafInfo;
use crate::inner::Separator;
use crate::version_lock::VersionWord;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace};
use crossbeam_epoch::Guard;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Words in a line.
const WORDS: usize = 8;

#[repr(C, align(64))]
struct Line([AtomicU64; WORDS]);

/// Dimensions of the nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeShape {
    /// Words of a unit: an IN, and the smallest PLN.
    unit: usize,
    /// Number of keys of an IN (`2m`).
    keys: usize,
    /// Words of a key.
    key_words: usize,
    /// Maximum number of leaves of a PLN, by unit, if fewer than fit (tests).
    most: usize,
}

impl NodeShape {
    /// Returns the dimensions of nodes of `bytes` bytes. `tiny` makes nodes with as few keys as
    /// possible, so that small trees have every kind of node.
    pub(super) fn new<S: Separator + ?Sized>(bytes: u64, tiny: bool) -> Self {
        let unit = bytes as usize / 8;
        let key_words = 1 + size_of::<S::Slot>() / 8;
        Self {
            unit,
            keys: if tiny { 3 } else { unit / key_words },
            key_words,
            most: if tiny { 4 } else { usize::MAX },
        }
    }

    fn fan(self) -> usize {
        self.keys + 1
    }

    /// Returns the number of LN pointers that a PLN of `units` units has room for (`m + 1`).
    fn capacity(self, units: usize) -> usize {
        let room = units * self.unit - PLN_HEADER + self.key_words;
        (room / (1 + self.key_words)).min(self.most.saturating_mul(units))
    }
}

/// Words before the pointers of a PLN.
const PLN_HEADER: usize = size_of::<PlnHeader>() / 8;

/// The part of a PLN that changes.
#[repr(C)]
pub(super) struct PlnHeader {
    /// Held by a thread that changes the PLN's leaves.
    pub writers: VersionWord,
    /// Held while entries move.
    version: VersionWord,
    count: AtomicU32,
    /// For an empty PLN: a PLN on the left to look at instead.
    left: AtomicU32,
}

/// A level of INs.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// Index of the first node's first word.
    at: usize,
    /// Number of nodes of the level below.
    below: usize,
}

/// A leaf to build nodes over: the smallest key routed to it (`None` for the first leaf), and the
/// units that its PLN gets.
pub(super) struct Entry<S: Separator + ?Sized> {
    pub low: Option<S::Full>,
    pub info: *mut LeafInfo,
    pub units: u32,
}

/// A leaf and its range: from `low` (included; `None` is unbounded) to `high` (excluded).
pub(super) struct Ranged<'g, S: Separator + ?Sized> {
    pub info: &'g LeafInfo,
    pub low: Option<S::Owned>,
    pub high: Option<S::Owned>,
}

/// A set of INs and PLNs. Dropping it frees no leaf and no key; [`Inner::dismantle`] does.
pub(super) struct Inner<S: Separator + ?Sized, D> {
    shape: NodeShape,
    levels: Vec<Level>,
    plns: usize,
    /// Index of PLN 0's first word.
    plns_at: usize,
    /// Start of each PLN in units from PLN 0; `None` if each is one unit long.
    table: Option<Box<[u32]>>,
    block: Box<[Line]>,
    emptied: AtomicU32,
    holds: PhantomData<fn(&S) -> D>,
}

// SAFETY: 1. all shared state is atomic; 2. leaves and keys that it leads to may be used and freed
// on any thread.
unsafe impl<S: Separator + ?Sized, D> Send for Inner<S, D> {}
// SAFETY: 1. and 2. as for `Send`.
unsafe impl<S: Separator + ?Sized, D> Sync for Inner<S, D> {}

impl<S: Separator + ?Sized, D: DramTrace> Inner<S, D> {
    /// Builds the nodes over `entries`, with one leaf in each PLN.
    pub(super) fn build(shape: NodeShape, entries: Vec<Entry<S>>) -> Self {
        let plns = entries.len();
        debug_assert!(plns > 0 && entries[0].low.is_none());
        // Number of nodes of each level, from the bottom up.
        let mut counts = Vec::new();
        let mut below = plns;
        while below > 1 {
            counts.push(below);
            below = below.div_ceil(shape.fan());
        }
        let mut levels = Vec::with_capacity(counts.len());
        let mut at = 0;
        for below in counts.into_iter().rev() {
            levels.push(Level { at, below });
            at += below.div_ceil(shape.fan()) * shape.unit;
        }
        let mut unit = 0u32;
        let table = entries.iter().any(|entry| entry.units != 1).then(|| {
            entries
                .iter()
                .map(|entry| {
                    let begins = unit;
                    unit += entry.units;
                    begins
                })
                // One more entry: the end of the last PLN.
                .collect::<Vec<_>>()
        });
        let table = table.map(|mut table| {
            table.push(unit);
            table.into_boxed_slice()
        });
        let units = table.as_ref().map_or(plns, |_| unit as usize);
        let words = at + units * shape.unit;
        let block = Box::new_zeroed_slice(words.div_ceil(WORDS));
        let inner = Self {
            shape,
            levels,
            plns,
            plns_at: at,
            table,
            // SAFETY: all zero is a valid line, and a valid empty slot.
            block: unsafe { block.assume_init() },
            emptied: AtomicU32::new(0),
            holds: PhantomData,
        };
        for (i, entry) in entries.into_iter().enumerate() {
            let (header, pointers) = (inner.header(i), inner.pointers(i));
            // ORDERING (both): Relaxed; the block is published with Release.
            pointers[0].store(entry.info, Ordering::Relaxed);
            header.count.store(1, Ordering::Relaxed);
            if let Some(low) = entry.low {
                let (node, key) = inner.above(i).unwrap_or((0, 0));
                inner.in_keys(node).store(key, low);
            }
        }
        inner
    }

    fn words(&self) -> *const AtomicU64 {
        self.block.as_ptr().cast()
    }

    #[inline(always)]
    fn keys_at(&self, at: usize, count: usize) -> Keys<'_, S> {
        debug_assert!(at + count * self.shape.key_words <= self.block.len() * WORDS);
        // SAFETY: 1. the words are inside the block; 2. words and slots are atomic and valid for
        // what is there: zero, or what `Keys` stored; slots have no size, or that of a word.
        unsafe {
            let words = self.words().add(at);
            Keys {
                words: std::slice::from_raw_parts(words, count),
                slots: std::slice::from_raw_parts(words.add(count).cast(), count),
            }
        }
    }

    fn in_keys(&self, at: usize) -> Keys<'_, S> {
        self.keys_at(at, self.shape.keys)
    }

    /// Returns the first word of a PLN and its units.
    #[inline(always)]
    fn pln(&self, pln: usize) -> (usize, usize) {
        debug_assert!(pln < self.plns);
        let (begins, units) = match &self.table {
            None => (pln, 1),
            Some(table) => (table[pln] as usize, (table[pln + 1] - table[pln]) as usize),
        };
        (self.plns_at + begins * self.shape.unit, units)
    }

    #[inline(always)]
    pub(super) fn header(&self, pln: usize) -> &PlnHeader {
        let (at, _) = self.pln(pln);
        // SAFETY: 1. a PLN begins inside the block; 2. headers are all atomic, valid when zero.
        unsafe { &*self.words().add(at).cast() }
    }

    #[inline(always)]
    fn pointers(&self, pln: usize) -> &[AtomicPtr<LeafInfo>] {
        let (at, units) = self.pln(pln);
        let capacity = self.shape.capacity(units);
        // SAFETY: 1. `capacity` pointers are inside the PLN; 2. they are atomic, null when zero.
        unsafe { std::slice::from_raw_parts(self.words().add(at + PLN_HEADER).cast(), capacity) }
    }

    #[inline(always)]
    fn pln_keys(&self, pln: usize) -> Keys<'_, S> {
        let (at, units) = self.pln(pln);
        let capacity = self.shape.capacity(units);
        self.keys_at(at + PLN_HEADER + capacity, capacity - 1)
    }

    /// Returns the IN key that is the lower end of a PLN: the node's first word and the key's
    /// index.
    fn above(&self, pln: usize) -> Option<(usize, usize)> {
        let mut node = pln;
        for level in self.levels.iter().rev() {
            let (parent, child) = (node / self.shape.fan(), node % self.shape.fan());
            if child > 0 {
                return Some((level.at + parent * self.shape.unit, child - 1));
            }
            node = parent;
        }
        None
    }

    /// Returns the lower end of a PLN's range, or `None` for the first.
    fn low_of(&self, pln: usize) -> Option<S::Full> {
        let (node, key) = self.above(pln)?;
        self.in_keys(node).load(key)
    }

    /// Returns the PLN whose range holds `key` (Algorithm 1, lines 2 to 8).
    #[inline(always)]
    fn descend(&self, key: &S, word: u64, strict: bool) -> usize {
        let fan = self.shape.fan();
        let mut node = 0;
        for level in &self.levels {
            let n = fan.min(level.below - node * fan) - 1;
            let at = level.at + node * self.shape.unit;
            let keys = self.in_keys(at);
            Self::report(at, n * 8);
            node = node * fan + keys.rank(n, key, word, strict);
        }
        node
    }

    #[inline(always)]
    fn report(at: usize, bytes: usize) {
        D::touch(
            DramRegion::Inner,
            DramAccess::Load,
            at as u64 * 8,
            bytes as u64,
        );
    }

    /// Returns a PLN left of an empty one that may have leaves. Later calls skip the empty ones on
    /// the way.
    fn left_of(&self, pln: usize) -> usize {
        let left = &self.header(pln).left;
        // ORDERING (all here but the counts): Relaxed; any value that was stored before a PLN
        // became empty, or later, is right, and PLN 0 is never empty.
        let mut at = left.load(Ordering::Relaxed) as usize;
        // ORDERING: Acquire; pairs with the Release in `remove`, which stores `left` before.
        while at > 0 && self.header(at).count.load(Ordering::Acquire) == 0 {
            at = self.header(at).left.load(Ordering::Relaxed) as usize;
        }
        left.store(at as u32, Ordering::Relaxed);
        at
    }

    /// Reads a PLN until a read is whole. `pick` chooses one of `n` leaves; `each` reads anything
    /// else.
    #[inline(always)]
    fn read_pln<R>(
        &self,
        pln: usize,
        pick: impl Fn(&Keys<'_, S>, usize) -> usize,
        each: impl Fn(&Keys<'_, S>, usize, usize) -> R,
    ) -> Option<(usize, &LeafInfo, R)> {
        let (header, pointers, keys) = (self.header(pln), self.pointers(pln), self.pln_keys(pln));
        loop {
            let version = header.version.read();
            // ORDERING: Acquire; an empty PLN stays empty.
            let n = header.count.load(Ordering::Acquire) as usize;
            if n == 0 {
                return None;
            }
            let n = n.min(pointers.len());
            let slot = pick(&keys, n).min(n - 1);
            // ORDERING: Acquire; pairs with the Release store, so that the info is seen whole.
            let info = pointers[slot].load(Ordering::Acquire);
            let more = each(&keys, n, slot);
            if header.version.validate(version) {
                Self::report(self.pln(pln).0, 24 + 8 * (1 + n.ilog2() as usize));
                // SAFETY: 1. slots below the count hold infos; 2. one that leaves a PLN is freed
                // through the epoch, and the caller is pinned.
                return Some((slot, unsafe { &*info }, more));
            }
        }
    }

    /// Returns the leaf whose range holds `key`.
    #[inline(always)]
    pub(super) fn find<'g>(&'g self, key: &S, _guard: &'g Guard) -> &'g LeafInfo {
        let word = key.word(0);
        let mut pln = self.descend(key, word, false);
        loop {
            let pick = |keys: &Keys<'_, S>, n: usize| keys.rank(n - 1, key, word, false);
            if let Some((_, info, ())) = self.read_pln(pln, pick, |_, _, _| ()) {
                return info;
            }
            pln = self.left_of(pln);
        }
    }

    fn owned(full: Option<S::Full>) -> Option<S::Owned> {
        // SAFETY: 1. the caller is pinned; 2. keys that leave a node are freed through the epoch.
        full.map(|full| unsafe { S::view(&full) }.to_owned())
    }

    fn ranged<'g>(
        &'g self,
        mut pln: usize,
        pick: impl Fn(&Keys<'_, S>, usize) -> usize,
    ) -> Ranged<'g, S> {
        let upper = pln + 1;
        loop {
            let read = self.read_pln(pln, &pick, |keys, n, slot| {
                let low = slot.checked_sub(1).map(|i| keys.load(i));
                let high = (slot + 1 < n).then(|| keys.load(slot));
                (low, high)
            });
            if let Some((_, info, (low, high))) = read {
                let low = match low {
                    Some(low) => low,
                    None => self.low_of(pln),
                };
                let high = match high {
                    Some(high) => high,
                    None => self.end_from(upper),
                };
                return Ranged {
                    info,
                    low: Self::owned(low),
                    high: Self::owned(high),
                };
            }
            pln = self.left_of(pln);
        }
    }

    /// Returns the lower end of the first PLN with leaves, from `pln` on.
    fn end_from(&self, pln: usize) -> Option<S::Full> {
        (pln..self.plns)
            .find(|pln| {
                // ORDERING: Acquire; an empty PLN stays empty.
                self.header(*pln).count.load(Ordering::Acquire) > 0
            })
            .and_then(|pln| self.low_of(pln))
    }

    /// Returns the leaf whose range holds `key`, and its range.
    pub(super) fn find_range<'g>(&'g self, key: &S, _guard: &'g Guard) -> Ranged<'g, S> {
        let word = key.word(0);
        let pln = self.descend(key, word, false);
        self.ranged(pln, |keys, n| keys.rank(n - 1, key, word, false))
    }

    /// Returns the leaf that holds the largest keys below `key`, and its range.
    pub(super) fn find_below<'g>(&'g self, key: &S, _guard: &'g Guard) -> Ranged<'g, S> {
        let word = key.word(0);
        let pln = self.descend(key, word, true);
        self.ranged(pln, |keys, n| keys.rank(n - 1, key, word, true))
    }

    /// Returns the first leaf and its range.
    pub(super) fn find_first<'g>(&'g self, _guard: &'g Guard) -> Ranged<'g, S> {
        self.ranged(0, |_, _| 0)
    }

    /// Returns the last leaf and its range.
    pub(super) fn find_last<'g>(&'g self, _guard: &'g Guard) -> Ranged<'g, S> {
        self.ranged(self.plns - 1, |_, n| n - 1)
    }

    /// Returns the number of PLNs, empty ones included.
    pub(super) fn plns(&self) -> usize {
        self.plns
    }

    /// Returns the number of PLNs without leaves.
    pub(super) fn emptied(&self) -> usize {
        // ORDERING: Relaxed; a statistic.
        self.emptied.load(Ordering::Relaxed) as usize
    }

    /// Returns the number of levels and of nodes.
    pub(super) fn size(&self) -> (u32, u64) {
        let fan = self.shape.fan();
        let ins: usize = self
            .levels
            .iter()
            .map(|level| level.below.div_ceil(fan))
            .sum();
        (self.levels.len() as u32 + 1, (ins + self.plns) as u64)
    }

    /// Returns the bytes in DRAM, without whole keys.
    pub(super) fn bytes(&self) -> u64 {
        let table = self.table.as_ref().map_or(0, |table| table.len() * 4);
        (self.block.len() * size_of::<Line>() + table) as u64
    }

    /// Returns the number of leaves and units of a PLN. For its writers, or at rest.
    pub(super) fn leaves_of(&self, pln: usize) -> (usize, usize) {
        // ORDERING: Relaxed; the caller holds `writers`, or no thread writes.
        let n = self.header(pln).count.load(Ordering::Relaxed) as usize;
        (n, self.pln(pln).1)
    }

    /// Returns true if a PLN has no room for another leaf. For its writers.
    pub(super) fn is_full(&self, pln: usize) -> bool {
        self.leaves_of(pln).0 == self.pointers(pln).len()
    }

    /// Returns the PLN to which `key` is routed, whether that one has leaves or not.
    pub(super) fn route(&self, key: &S) -> usize {
        self.descend(key, key.word(0), false)
    }

    /// Returns the nearest PLN, from `pln` to the left, that seems to have leaves.
    pub(super) fn with_leaves(&self, pln: usize) -> usize {
        // ORDERING: Acquire; pairs with the Release in `remove`, so that `left_of` finds what that
        // stored. The caller looks again under `writers`.
        if self.header(pln).count.load(Ordering::Acquire) > 0 {
            pln
        } else {
            self.left_of(pln)
        }
    }

    /// Returns the slot of `key` in a PLN that has leaves. For its writers.
    pub(super) fn slot_of(&self, pln: usize, key: &S) -> usize {
        let (n, _) = self.leaves_of(pln);
        self.pln_keys(pln).rank(n - 1, key, key.word(0), false)
    }

    /// Returns the leaf in a slot. For the PLN's writers, or at rest.
    pub(super) fn leaf_at(&self, pln: usize, slot: usize) -> &LeafInfo {
        // ORDERING: Acquire; as in `read_pln`.
        let info = self.pointers(pln)[slot].load(Ordering::Acquire);
        // SAFETY: 1. slots below the count hold infos; 2. the caller holds `writers`, or the tree
        // is at rest, so that the leaf is not removed.
        unsafe { &*info }
    }

    /// Returns the lower end of a slot's range, or `None` for the first of all. For the PLN's
    /// writers, or at rest.
    pub(super) fn low_at(&self, pln: usize, slot: usize) -> Option<S::Full> {
        match slot.checked_sub(1) {
            Some(i) => self.pln_keys(pln).load(i),
            None => self.low_of(pln),
        }
    }

    /// Replaces the leaf in `slot` by `left` and adds `right`, whose smallest key is `low`, after
    /// it. The PLN has room. For the PLN's writers.
    pub(super) fn split(
        &self,
        pln: usize,
        slot: usize,
        left: *mut LeafInfo,
        low: S::Full,
        right: *mut LeafInfo,
    ) {
        let (header, pointers, keys) = (self.header(pln), self.pointers(pln), self.pln_keys(pln));
        header.version.lock();
        let n = self.leaves_of(pln).0;
        // ORDERING (all here): Release for pointers, which pairs with `read_pln`; the rest is
        // ordered by the version.
        for i in (slot + 1..n).rev() {
            let info = pointers[i].load(Ordering::Relaxed);
            pointers[i + 1].store(info, Ordering::Release);
            keys.shift(i - 1, i);
        }
        pointers[slot].store(left, Ordering::Release);
        pointers[slot + 1].store(right, Ordering::Release);
        keys.store(slot, low);
        header.count.store(n as u32 + 1, Ordering::Release);
        header.version.unlock();
    }

    /// Replaces the leaf in `slot` by `new`. For the PLN's writers.
    pub(super) fn replace(&self, pln: usize, slot: usize, new: *mut LeafInfo) {
        // ORDERING: Release; pairs with `read_pln`.
        self.pointers(pln)[slot].store(new, Ordering::Release);
    }

    /// Removes a leaf. Its range goes to the leaf on its left, or on its right if it is the first
    /// of several. Returns the key that is no longer needed, which the caller retires. For the
    /// PLN's writers; not for the only leaf of PLN 0.
    pub(super) fn remove(&self, pln: usize, slot: usize) -> Option<S::Full> {
        let (header, pointers, keys) = (self.header(pln), self.pointers(pln), self.pln_keys(pln));
        header.version.lock();
        let n = self.leaves_of(pln).0;
        debug_assert!(n > 1 || pln > 0, "PLN 0 always has a leaf");
        let unneeded = (n > 1).then(|| keys.load(slot.saturating_sub(1))).flatten();
        // ORDERING (all here): as in `split`.
        for i in slot + 1..n {
            let info = pointers[i].load(Ordering::Relaxed);
            pointers[i - 1].store(info, Ordering::Release);
        }
        for i in slot.max(1)..n.saturating_sub(1) {
            keys.shift(i, i - 1);
        }
        if n == 1 {
            header.left.store(pln as u32 - 1, Ordering::Relaxed);
            self.emptied.fetch_add(1, Ordering::Relaxed);
        }
        header.count.store(n as u32 - 1, Ordering::Release);
        header.version.unlock();
        unneeded
    }

    /// Visits every leaf in order with the lower end of its range. At rest, or while no PLN can
    /// change.
    pub(super) fn for_each<'g>(
        &'g self,
        mut each: impl FnMut(usize, Option<S::Full>, &'g LeafInfo),
    ) {
        for pln in 0..self.plns {
            for slot in 0..self.leaves_of(pln).0 {
                each(pln, self.low_at(pln, slot), self.leaf_at(pln, slot));
            }
        }
    }

    /// Returns the lower ends of PLNs without leaves, which are not needed once the leaves move to
    /// another set of nodes. While no PLN can change.
    pub(super) fn orphans(&self) -> Vec<S::Full> {
        (1..self.plns)
            .filter(|pln| self.leaves_of(*pln).0 == 0)
            .filter_map(|pln| self.low_of(pln))
            .collect()
    }

    /// Frees every leaf's info and every whole key.
    ///
    /// # Safety
    /// No thread uses them any more, and no other set of nodes leads to them.
    pub(super) unsafe fn dismantle(&self) {
        let mut infos = Vec::new();
        let mut keys = self.orphans();
        self.for_each(|_, low, info| {
            infos.push(std::ptr::from_ref(info).cast_mut());
            keys.extend(low);
        });
        for info in infos {
            // SAFETY: 1. the pointer came from `Box::into_raw`; 2. the caller promises that nothing
            // else leads to it or uses it.
            drop(unsafe { Box::from_raw(info) });
        }
        for key in keys {
            // SAFETY: 1. each key is in one place (invariant 3); 2. the caller promises that
            // nothing uses it.
            unsafe { S::free(key) };
        }
    }

    /// Checks that keys ascend, and that counts and versions are plausible. At rest.
    ///
    /// # Errors
    /// The fault, in words.
    pub(super) fn verify(&self) -> Result<(), String> {
        let mut last: Option<S::Owned> = None;
        for pln in 0..self.plns {
            let (n, _) = self.leaves_of(pln);
            let header = self.header(pln);
            if header.version.is_busy_or_obsolete() || header.writers.is_busy_or_obsolete() {
                return Err(format!("PLN {pln} is locked"));
            }
            if n > self.pointers(pln).len() || (n == 0 && pln == 0) {
                return Err(format!("PLN {pln} has {n} leaves"));
            }
            for slot in 0..n {
                let low = Self::owned(self.low_at(pln, slot));
                if low.is_none() != (pln == 0 && slot == 0) {
                    return Err(format!("PLN {pln} has no key {slot}"));
                }
                if last.is_some() && last >= low {
                    return Err(format!("PLN {pln}: key {slot} is out of order: {low:?}"));
                }
                last = low;
            }
        }
        Ok(())
    }
}
