//! The sorted node and *failure-atomic shift* (FAST): insertion and removal shift entries one word
//! at a time, so that the node reads right after each store.
//!
//! ```text
//! word 0    | level:8 hidden:2 | 0 | parity:1 |
//! word 1    | link to the right sibling, 0 for the last node of the level
//! words 2, 3 | low: word of the smallest key that the node is for, 0 for the first node of a level
//! words 4.. | key 0 | value 0 | key 1 | value 1 | ...          entries of 16 or 32 bytes, none of which crosses a line (24: some do)
//! ```
//!
//! `parity` makes the number of bits set in word 0 even. Entries are in no sum: a shift ends in
//! another line than that of word 0, and would have to flush it too.
//!
//! A value is a leaf's value word or an inner node's child. Inner nodes have the same layout as
//! leaves: entry 0's key is the node's own low word, and a child is in the first word of a value.
//!
//! # Wide keys and values
//! If keys or values have 16 bytes, an entry has 32. A shift stores a key over another, and at no
//! moment may a mixture of both be there, since a mixture looks like a key that was inserted.
//! Therefore a wide key is stored by *one 16-byte store* ([`PWord16`]), and so is the wide value of
//! an update. A tree with such a key or value declares 16 bytes to be failure-atomic, which is an
//! assumption about the platform, and is refused on processors without such a store. All other
//! stores are of values of entries that do not count, and may tear.
//!
//! Then entry 1 is in line 1, and `hidden` in line 0. The left neighbour's key hides it, unless
//! that key is 0: then line 0 is made durable before entry 1 changes, and entry 1 before line 0.
//!
//! # Entries that count
//! There is no count: one store cannot publish both an entry that is stored twice and a count.
//!
//! 1. The `hidden` entry does not count: 1 means entry 0, 2 means entry 1, and 0 none. At rest it
//!    is entry 0 of an empty node, or none.
//! 2. The first zero key from entry 1 on ends the node. (Keys ascend and 0 is the least number, so
//!    only entry 0 can have it as a key; the word of a byte string is never 0.)
//! 3. Of neighbours with the same key word the left one counts.
//!
//! In the published design an entry whose *pointer* equals its left neighbour's is the duplicate of
//! a shift, since pointers are distinct. Here values are arbitrary and the keys of a node are
//! distinct. So the *key* decides, and equal values in neighbouring entries mean nothing. `hidden`
//! is for the entries without a left neighbour, or with one whose key may be 0. The zero key ends
//! the node, as a null pointer does there.
//!
//! `node/shift.rs` tells how entries are shifted.
//!
//! # Persist cost
//! | operation | lines, fences |
//! | --- | --- |
//! | insert | lines of entries p to n: each 1 and 1 (and 1 and 1 where the zero key goes into a further line) |
//! | remove | lines of entries p to n-1: each 1 and 1 |
//! | update | 1 and 1 |
//!
//! A wide entry 1 beside an entry 0 with key 0 costs 3 and 3 more to insert, and 3 and 3 more to
//! remove.
//!
//! # Crash states
//! 1. *Shift*: entry p is there or not, an entry is there twice, or one is hidden with entries
//!    behind it. [`Node::repair`] removes the superfluous entry by the second half of a removal,
//!    which is failure-atomic itself.
//! 2. *Before a split's cut, or while a merge appends*: the node has entries of the right sibling.
//!    [`Node::repair`] cuts them off.

mod shift;

use crate::btree::node::{compare_to_word, compare_words};
use crate::leaftree::Found;
use crate::link;
use crate::repr::{StoredKey, WIDEST, Word, WordOf};
use bristlecone_pmem::cell::PWord16;
use bristlecone_pmem::media::LINE;
use bristlecone_pmem::{Media, PWord};
use std::cmp::Ordering as Order;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// Words before the entries.
const ENTRIES: usize = 4;
const META: usize = 0;
const NEXT: usize = 1;
const LOW: usize = 2;

const LEVEL: u64 = 0xFF;
/// The bit of word 0 that makes the number of its set bits even.
const PARITY: u32 = 63;
const HIDDEN_SHIFT: u32 = 8;
const HIDDEN: u64 = 3 << HIDDEN_SHIFT;
/// Number of entries that are hidden by number and not by their left neighbour's key.
const NUMBERED: usize = 2;

const LINE_WORDS: usize = LINE / 8;

/// Planted fault: the stores of a shift are not ordered inside a line.
const UNORDERED: [&str; 2] = ["fastfair-unordered", "fastfair-unordered-sp"];
/// Planted fault: recovery leaves duplicates.
const DUPLICATE_KEPT: &str = "fastfair-duplicate-kept";

/// Returns the number of entries that a node of `bytes` bytes has room for.
pub(crate) const fn capacity<A: Word, B: Word>(bytes: usize) -> usize {
    (bytes / 8 - ENTRIES) / Node::<A, B>::STRIDE
}

const _: () = assert!(capacity::<u64, u64>(256) == 14 && capacity::<u64, u64>(8192) == 510);
const _: () = assert!(capacity::<u128, u64>(256) == 7 && capacity::<u128, u128>(512) == 15);
const _: () = assert!(Node::<u64, u64>::NEAR && !Node::<u128, u128>::NEAR);
const _: () = assert!(ENTRIES.is_multiple_of(Node::<u128, u128>::STRIDE));
const _: () = assert!(LINE_WORDS.is_multiple_of(Node::<u128, u128>::STRIDE));

/// Returns the value word of an inner entry that leads to the node at `off`.
#[inline(always)]
pub(crate) fn to_child<B: Word>(off: u64) -> B {
    B::from_parts([off, 0])
}

/// Returns the offset of the child behind an inner entry's value word.
#[inline(always)]
pub(crate) fn child<B: Word>(value: B) -> u64 {
    value.parts()[0]
}

/// A node in the pool with keys and values of such words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'t, A, B> {
    pub words: &'t [PWord],
    kinds: PhantomData<fn() -> (A, B)>,
}

/// A node of a tree from `K` to `V`.
pub(crate) type NodeOf<'t, K, V> = Node<'t, WordOf<K>, WordOf<V>>;

/// Orders the stores before it and after it, on processors that do not order them anyway.
#[inline(always)]
#[track_caller]
fn order<M: Media>(pm: &M) {
    if !UNORDERED.iter().any(|fault| pm.planted(fault)) {
        pm.store_fence();
    }
}

/// Content of a node after a crash.
#[derive(Debug)]
pub(crate) struct Raw<A, B> {
    /// The entries that count.
    pub entries: Vec<(A, B)>,
    /// The first entry that belongs to the right sibling.
    cut: Option<usize>,
    /// The entry to remove, because its shift was cut short.
    superfluous: Option<usize>,
}

impl<A, B> Raw<A, B> {
    /// Returns the first entry that belongs to the right sibling.
    pub fn cut_at(&self) -> Option<usize> {
        self.cut
    }

    /// Returns true if nothing has to be repaired.
    pub fn is_whole(&self) -> bool {
        self.cut.is_none() && self.superfluous.is_none()
    }
}

impl<'t, A: Word, B: Word> Node<'t, A, B> {
    /// Words of an entry.
    const STRIDE: usize = if A::WORDS + B::WORDS == 2 {
        2
    } else {
        WIDEST * 2
    };
    /// Words of an entry before the value.
    const VALUE: usize = Self::STRIDE / 2;
    /// True if the entries that are hidden by number are in line 0.
    const NEAR: bool = ENTRIES + Self::STRIDE * NUMBERED <= LINE_WORDS;

    /// Returns the node of these words.
    #[inline(always)]
    pub fn new(words: &'t [PWord]) -> Self {
        let kinds = PhantomData;
        Self { words, kinds }
    }

    /// Returns the number of entries that fit.
    #[inline(always)]
    pub fn slots(self) -> usize {
        (self.words.len() - ENTRIES) / Self::STRIDE
    }

    #[inline(always)]
    fn key_at(i: usize) -> usize {
        ENTRIES + Self::STRIDE * i
    }

    #[inline(always)]
    fn value_at(i: usize) -> usize {
        Self::key_at(i) + Self::VALUE
    }

    /// Returns the key or value whose words begin at `word`.
    #[inline(always)]
    #[track_caller]
    fn load_wide<M: Media, W: Word>(self, pm: &M, word: usize) -> W {
        if W::WORDS == 1 {
            return W::from_parts([self.load(pm, word), 0]);
        }
        let mut parts = [0; WIDEST];
        for (part, word) in parts.iter_mut().zip(&self.words[word..word + W::WORDS]) {
            // ORDERING: Relaxed; as `load`.
            *part = word.load(pm, Ordering::Relaxed);
        }
        W::from_parts(parts)
    }

    /// Returns two words as one that is stored by one store.
    #[inline(always)]
    fn wide_word(self, word: usize) -> &'t PWord16 {
        let pair = self.words[word..word + 2].as_ptr();
        // SAFETY: 1. the two words are inside the node (the slice is checked); 2. they are
        // 16-aligned, since nodes are 128-aligned and `word` is even; 3. all access to them is
        // atomic: a reader of 8 of the 16 bytes uses them only after it validated the node's
        // version, and the 16-byte store is one instruction (the processor defines what overlapping
        // accesses of two sizes do); 4. a PWord16 is valid for any bits, and lives as long as the
        // words.
        unsafe { &*pair.cast::<PWord16>() }
    }

    /// Stores a word by one store, whatever its width.
    #[inline(always)]
    #[track_caller]
    fn store_whole<M: Media, W: Word>(self, pm: &M, word: usize, value: W) {
        let [low, high] = value.parts();
        if W::WORDS == 1 {
            return self.store(pm, word, low);
        }
        let value = u128::from(high) << 64 | u128::from(low);
        // ORDERING: Relaxed; as `store`.
        let stored = self.wide_word(word).store(pm, value, Ordering::Relaxed);
        debug_assert!(stored.is_ok(), "the tree was refused on such a processor");
    }

    #[inline(always)]
    #[track_caller]
    fn load<M: Media>(self, pm: &M, word: usize) -> u64 {
        // ORDERING: Relaxed; the value is right under the node's lock, or once its version is
        // validated.
        self.words[word].load(pm, Ordering::Relaxed)
    }

    #[inline(always)]
    #[track_caller]
    fn store<M: Media>(self, pm: &M, word: usize, value: u64) {
        // ORDERING: Relaxed; the node is locked, and unlocked with Release, or nothing leads to it
        // yet.
        self.words[word].store(pm, value, Ordering::Relaxed);
    }

    #[inline(always)]
    pub fn key<M: Media>(self, pm: &M, i: usize) -> A {
        self.load_wide(pm, Self::key_at(i))
    }

    #[inline(always)]
    pub fn value<M: Media>(self, pm: &M, i: usize) -> B {
        self.load_wide(pm, Self::value_at(i))
    }

    /// Returns the offset of the child of entry `i` of an inner node.
    #[inline(always)]
    pub fn child<M: Media>(self, pm: &M, i: usize) -> u64 {
        self.load(pm, Self::value_at(i))
    }

    #[inline(always)]
    #[track_caller]
    fn set_key<M: Media>(self, pm: &M, i: usize, key: A) {
        self.store_whole(pm, Self::key_at(i), key);
    }

    #[inline(always)]
    #[track_caller]
    fn set_value<M: Media>(self, pm: &M, i: usize, value: B) {
        let parts = value.parts();
        // The entry does not count, so the stores may tear.
        for (part, at) in parts.into_iter().zip(Self::value_at(i)..).take(B::WORDS) {
            self.store(pm, at, part);
        }
    }

    /// Replaces the value of entry `i`, which counts: a NAW, of 16 bytes if the value is wide.
    #[inline]
    #[track_caller]
    pub fn publish_value<M: Media>(self, pm: &M, i: usize, value: B) {
        let [low, high] = value.parts();
        if B::WORDS == 1 {
            // PERSIST: (in `publish`) the new value.
            return self.value_word(i).publish(pm, low);
        }
        let value = u128::from(high) << 64 | u128::from(low);
        // PERSIST: (in `publish`) the new value.
        let stored = self.wide_word(Self::value_at(i)).publish(pm, value);
        debug_assert!(stored.is_ok(), "the tree was refused on such a processor");
    }

    /// Returns the line of entry `i`.
    #[inline(always)]
    fn line(i: usize) -> usize {
        Self::key_at(i) / LINE_WORDS
    }

    /// Flushes the line of entry `i` and fences.
    #[inline(always)]
    #[track_caller]
    fn persist_line<M: Media>(self, pm: &M, i: usize) {
        // PERSIST: the entry's line, durable after the fence; each caller says what that precedes.
        pm.flush_of(&self.words[Self::key_at(i)]);
        pm.fence();
    }

    #[inline(always)]
    pub fn level<M: Media>(self, pm: &M) -> usize {
        (self.load(pm, META) & LEVEL) as usize
    }

    /// Returns the number of the hidden entry, from 1 on, or 0 if there is none.
    #[inline(always)]
    fn hidden<M: Media>(self, pm: &M) -> usize {
        ((self.load(pm, META) & HIDDEN) >> HIDDEN_SHIFT) as usize
    }

    /// Returns true if a node at rest has no entries.
    #[inline(always)]
    fn is_empty<M: Media>(self, pm: &M) -> bool {
        // ORDERING: Acquire; pairs with the Release in `hide`: a reader that finds the entry
        // visible sees all of it. This also holds in recovery beside another thread, where no
        // version tells that the node has changed.
        self.words[META].load(pm, Ordering::Acquire) & HIDDEN != 0
    }

    /// Stores the number of the hidden entry.
    #[track_caller]
    fn hide<M: Media>(self, pm: &M, number: usize) {
        let meta = self.load(pm, META) & !HIDDEN;
        // ORDERING: Release; pairs with the Acquire in `is_empty`.
        let meta = link::evened(meta | (number as u64) << HIDDEN_SHIFT, PARITY);
        self.words[META].store(pm, meta, Ordering::Release);
    }

    /// Flushes the line of `hidden` and fences.
    #[track_caller]
    fn persist_hidden<M: Media>(self, pm: &M) {
        // PERSIST: the number of the hidden entry, durable after the fence; each caller says what
        // that precedes.
        pm.flush_of(&self.words[META]);
        pm.fence();
    }

    /// Returns true if entry `at` is hidden by number, from another line.
    #[inline(always)]
    fn is_hidden_afar<M: Media>(self, pm: &M, at: usize) -> bool {
        !Self::NEAR && at == 1 && self.key(pm, 0) == A::default()
    }

    /// Makes entry `at` not count. It is also to its right, or is being removed.
    #[inline(always)]
    fn mask<M: Media>(self, pm: &M, at: usize) {
        if Self::NEAR && at < NUMBERED || at == 0 {
            self.hide(pm, at + 1);
        } else if self.is_hidden_afar(pm, at) {
            self.hide(pm, at + 1);
            // PERSIST: the hidden number, before the entry's line changes.
            self.persist_hidden(pm);
        } else {
            self.set_key(pm, at, self.key(pm, at - 1));
        }
    }

    /// Returns the offset of the right sibling.
    #[inline(always)]
    pub fn next<M: Media>(self, pm: &M) -> u64 {
        link::offset(self.load(pm, NEXT))
    }

    /// Checks word 0 and the link to the right sibling.
    pub fn sound<M: Media>(self, pm: &M) -> Result<(), String> {
        let meta = self.load(pm, META);
        if !link::is_even(meta) {
            return Err(format!("its first word, {meta:#x}, fails its check"));
        }
        link::checked(self.load(pm, NEXT)).map(drop)
    }

    /// Returns the word that leads to the right sibling.
    pub fn link(self) -> &'t PWord {
        &self.words[NEXT]
    }

    /// Returns the first word of the value of entry `i`.
    #[inline(always)]
    pub fn value_word(self, i: usize) -> &'t PWord {
        &self.words[Self::value_at(i)]
    }

    /// Returns the low word, the smallest key that is routed to the node; 0 for the first node of a
    /// level.
    #[inline(always)]
    pub fn low<M: Media>(self, pm: &M) -> A {
        self.load_wide(pm, LOW)
    }

    /// Returns the number of entries of a node at rest.
    #[inline]
    pub fn count<M: Media>(self, pm: &M) -> usize {
        if self.is_empty(pm) {
            return 0;
        }
        let slots = self.slots();
        let mut n = 1;
        while n < slots && self.key(pm, n) != A::default() {
            n += 1;
        }
        n
    }

    /// Appends the entries of a node at rest to `out`.
    pub fn entries<M: Media>(self, pm: &M, out: &mut Vec<(A, B)>) {
        out.clear();
        self.each(pm, |_, key, value| out.push((key, value)));
    }

    /// Visits the entries of a node at rest.
    #[inline(always)]
    pub fn each<M: Media>(self, pm: &M, mut f: impl FnMut(usize, A, B)) {
        if self.is_empty(pm) {
            return;
        }
        for i in 0..self.slots() {
            let key = self.key(pm, i);
            if i > 0 && key == A::default() {
                return;
            }
            f(i, key, self.value(pm, i));
        }
    }

    /// Returns how many entries have a key less than `key`, or (`or_equal`) not greater. The
    /// entries before `from` are counted without looking. The node is at rest and not empty.
    ///
    /// Numbers are read one by one, as in the papers, since there is no count to halve. For byte
    /// strings each comparison is a cache miss, so the end is found first, which takes none.
    #[inline(always)]
    fn rank_from<K: StoredKey<Word = A> + ?Sized, M: Media>(
        self,
        pm: &M,
        from: usize,
        key: &K,
        or_equal: bool,
    ) -> usize {
        let before = |word: A| match compare_to_word(pm, key, word) {
            Order::Less => false,
            Order::Equal => or_equal,
            Order::Greater => true,
        };
        if !K::RECORDS {
            let (mut i, slots) = (from, self.slots());
            while i < slots {
                let word = self.key(pm, i);
                if i > 0 && word == A::default() || !before(word) {
                    break;
                }
                i += 1;
            }
            return i;
        }
        let (mut low, mut high) = (from, self.count(pm));
        while low < high {
            let middle = low + (high - low) / 2;
            if before(self.key(pm, middle)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Returns the place of `key` in a leaf, or the place where it would be.
    #[inline(always)]
    pub fn find<K: StoredKey<Word = A> + ?Sized, M: Media>(
        self,
        pm: &M,
        key: &K,
    ) -> Result<Found<A, B>, usize> {
        if self.is_empty(pm) {
            return Err(0);
        }
        let slot = self.rank_from(pm, 0, key, false);
        if slot == self.slots() {
            return Err(slot);
        }
        let word = self.key(pm, slot);
        if slot > 0 && word == A::default() || compare_to_word(pm, key, word).is_ne() {
            return Err(slot);
        }
        Ok(Found {
            slot,
            key: word,
            value: self.value(pm, slot),
        })
    }

    /// Returns the entry of an inner node that leads to `key`, or (`below`) to the largest key
    /// below it.
    #[inline(always)]
    pub fn route<K: StoredKey<Word = A> + ?Sized, M: Media>(
        self,
        pm: &M,
        key: &K,
        below: bool,
    ) -> usize {
        // Entry 0 is for all keys below entry 1.
        self.rank_from(pm, 1, key, !below) - 1
    }

    /// Writes a node that nothing leads to yet, with these entries, in order. All of it must be
    /// flushed, also behind the entries: a zero there that only the caches have would not end the
    /// node after a crash, and [`end_behind`](Self::end_behind) trusts zeros.
    pub fn fill<M: Media>(
        self,
        pm: &M,
        level: usize,
        next: u64,
        low: A,
        entries: impl Iterator<Item = (A, B)>,
    ) {
        self.store(pm, NEXT, link::word(next));
        for (part, word) in low.parts().into_iter().zip(LOW..) {
            self.store(pm, word, part);
        }
        let mut n = 0;
        for (key, value) in entries.take(self.slots()) {
            self.set_key(pm, n, key);
            self.set_value(pm, n, value);
            n += 1;
        }
        let hidden = u64::from(n == 0);
        let meta = level as u64 | hidden << HIDDEN_SHIFT;
        self.store(pm, META, link::evened(meta, PARITY));
        let end = n.max(1);
        if end < self.slots() {
            self.set_key(pm, end, A::default());
        }
    }

    /// Flushes all of a node that nothing leads to yet.
    #[track_caller]
    pub fn flush_new<M: Media>(self, pm: &M) {
        // PERSIST: the node, which the caller fences before anything leads to it.
        pm.flush(self.words[0].addr(), self.words.len() * 8);
    }

    /// Reads a node as a crash left it. From the key word `bound` on, all entries belong to the
    /// right sibling.
    pub fn raw<K: StoredKey<Word = A> + ?Sized, M: Media>(
        self,
        pm: &M,
        bound: Option<A>,
    ) -> Raw<A, B> {
        let mut raw = Raw {
            entries: Vec::new(),
            cut: None,
            superfluous: None,
        };
        let hidden = self.hidden(pm);
        let mut last = None;
        for i in 0..self.slots() {
            if i + 1 == hidden {
                continue;
            }
            let (key, value) = (self.key(pm, i), self.value(pm, i));
            if i > 0 && key == A::default() {
                break;
            }
            if last == Some(key) {
                raw.superfluous.get_or_insert(i);
                continue;
            }
            // The first node of a level has the low key 0, whatever its keys are.
            let beyond =
                |bound| key != A::default() && compare_words::<K, M>(pm, key, bound).is_ge();
            if bound.is_some_and(beyond) {
                raw.cut = Some(i);
                break;
            }
            last = Some(key);
            raw.entries.push((key, value));
        }
        if hidden > 0 && !(hidden == 1 && raw.entries.is_empty()) {
            raw.superfluous = Some(hidden - 1);
        }
        raw
    }

    /// Repairs a node that [`raw`](Self::raw) found to be damaged by a crash. Returns the number of
    /// repairs, which are durable.
    pub fn repair<M: Media>(self, pm: &M, raw: &Raw<A, B>) -> u64 {
        let mut repairs = 0;
        if let Some(at) = raw.cut {
            if at == 0 && self.key(pm, 1) != A::default() {
                // Nothing behind entry 0 counts once entry 0 does not. If a crash keeps only one of
                // the two stores, the remaining entries still belong to the sibling, and the next
                // recovery cuts them.
                self.set_key(pm, 1, A::default());
                if !Self::NEAR {
                    // PERSIST: the end behind entry 0; `cut` fences it, before the sibling has a
                    // parent.
                    pm.flush_of(&self.words[Self::key_at(1)]);
                }
            }
            self.cut(pm, at);
            repairs += 1;
        }
        if let Some(at) = raw.superfluous
            && !pm.planted(DUPLICATE_KEPT)
        {
            let mut n = at + 1;
            while n < self.slots() && self.key(pm, n) != A::default() {
                n += 1;
            }
            if n == at + 1 && self.hidden(pm) == n {
                // No entry is behind it, which no crash leaves.
                self.hide(pm, 0);
            }
            self.shift_left(pm, at, n);
            repairs += 1;
        }
        repairs
    }
}
