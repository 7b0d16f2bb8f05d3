//! An inner node: up to 30 separators and 31 children.
//!
//! ```text
//! line 0      | version lock | count:16 level:8 skip:16 | key word 0..5 |
//! line 1..3   | key word 6 .. 29                                        |
//! line 4..5   | child 0 .. 30 (u32)                             | spare |
//! line 6..10  | prefix:80 bytes | pointer 0 .. 29 to whole separators    |  byte strings only
//! line 6..13  | prefix:16 bytes | separator 0 .. 29                      |  u128 only
//! ```
//!
//! # Invariants (whenever the node is not locked)
//! 1. `count <= SLOTS`; separators `0..count` are strictly ascending; children are `0..=count`.
//! 2. Child `i` leads to the keys `k` with `separator[i - 1] <= k < separator[i]`, as far as the
//!    node's own range goes.
//! 3. Key words from `count` on are `u64::MAX` and pointers from `count` on are null.
//! 4. All separators of the node start with the same `skip` bytes; a key word is the 8 bytes after
//!    them. `skip` is the longest that fitted when the node was last rebuilt (0 for `u64`), and the
//!    first 80 of these bytes (16 for `u128`) are kept in the node.
//! 5. `level` is 1 above the leaves and one less in each child. It never changes while the node is
//!    reachable, except in the root.
//!
//! # Search
//! The upper bound (how many separators are `<= key`) in two steps without a branch: three
//! comparisons choose one of four groups of seven key words, seven more count inside it. The loads
//! of each step do not wait for each other, which a binary search's do.

use super::arena;
use super::separator::Separator;
use crate::sync::{AtomicU32, AtomicU64};
use crate::version_lock::VersionWord;
use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

/// Separators that a node has room for.
pub(super) const SLOTS: usize = 30;

/// See the module's head.
#[repr(C, align(64))]
pub(super) struct Node<S: Separator + ?Sized> {
    pub(super) version: VersionWord,
    meta: AtomicU64,
    keys: [AtomicU64; SLOTS],
    children: [AtomicU32; SLOTS + 1],
    spare: AtomicU32,
    prefix: S::Prefix,
    full: [S::Slot; SLOTS],
}

const _: () = assert!(size_of::<Node<u64>>() == 384 && align_of::<Node<u64>>() == 64);
const _: () = assert!(size_of::<Node<u128>>() == 896 && align_of::<Node<u128>>() == 64);
const _: () = assert!(size_of::<Node<[u8]>>() == 704 && align_of::<Node<[u8]>>() == 64);
const _: () = assert!(std::mem::offset_of!(Node<u64>, keys) == 16);
const _: () = assert!(std::mem::offset_of!(Node<u64>, children) == 256);
const _: () = assert!(Node::<[u8]>::PREFIX_AT == 384);

// SAFETY: 1. every field is an atomic or zero-sized; 2. zero is a valid value of each (an unlocked
// version, no separators, null pointers); 3. none has a destructor.
unsafe impl<S: Separator + ?Sized> arena::Node for Node<S> {}

impl<S: Separator + ?Sized> Node<S> {
    /// Offset of the prefix.
    pub(super) const PREFIX_AT: usize = std::mem::offset_of!(Self, prefix);

    /// Offset of the children; version, counts and key words come before.
    pub(super) const CHILDREN_AT: usize = std::mem::offset_of!(Self, children);
}

/// The node's second word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) count: usize,
    pub(super) level: u32,
    pub(super) skip: usize,
}

impl Meta {
    #[inline(always)]
    fn from_word(word: u64) -> Self {
        Self {
            count: (word & 0xFFFF) as usize,
            level: (word >> 16) as u32 & 0xFF,
            skip: (word >> 32) as usize & 0xFFFF,
        }
    }

    #[inline(always)]
    fn word(self) -> u64 {
        debug_assert!(self.count <= SLOTS && self.level <= 0xFF && self.skip <= 0xFFFF);
        self.count as u64 | u64::from(self.level) << 16 | (self.skip as u64) << 32
    }
}

/// Reading. All of it may see a node in the middle of a change, and a result counts only once the
/// version has been validated. Nothing here panics or reads out of bounds meanwhile.
impl<S: Separator + ?Sized> Node<S> {
    // ORDERING, for all loads and stores of the node's words below: Relaxed. The version lock's
    // fences order them (`version_lock`, "Why it is right"). Pointers to whole separators are the
    // exception, since they are followed before validation; see `Separator::load`.

    #[inline(always)]
    pub(super) fn meta(&self) -> Meta {
        Meta::from_word(self.meta.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn word(&self, i: usize) -> u64 {
        self.keys[i].load(Ordering::Relaxed)
    }

    /// Returns child `i`. A torn count may lead past the end; the last child is as wrong as any
    /// then.
    #[inline(always)]
    pub(super) fn child(&self, i: usize) -> u32 {
        self.children[i.min(SLOTS)].load(Ordering::Relaxed)
    }

    /// Returns separator `i`, or `None` if it was seen in the middle of a change.
    #[inline(always)]
    pub(super) fn separator(&self, i: usize) -> Option<S::Full> {
        let i = i.min(SLOTS - 1);
        S::load(self.word(i), &self.full[i])
    }

    /// Returns how many separators are `<= key`: the child that `key` is routed to.
    ///
    /// # Safety
    /// The calling thread is pinned, or no thread writes.
    #[inline(always)]
    pub(super) unsafe fn upper(&self, meta: Meta, key: &S) -> usize {
        if S::EXACT {
            let word = key.word(0);
            // Key words past the count are MAX; only the key MAX counts them.
            return self.count_words(|w| w <= word).min(meta.count);
        }
        // SAFETY: the caller is pinned, or no thread writes: a separator that is read is not freed
        // while it is compared.
        unsafe { self.bound(meta, key, |order| order != Order::Greater) }
    }

    /// Returns how many separators are `< key`.
    ///
    /// # Safety
    /// The calling thread is pinned, or no thread writes.
    #[inline(always)]
    pub(super) unsafe fn lower(&self, meta: Meta, key: &S) -> usize {
        if S::EXACT {
            let word = key.word(0);
            return self.count_words(|w| w < word).min(meta.count);
        }
        // SAFETY: the caller is pinned, or no thread writes: a separator that is read is not freed
        // while it is compared.
        unsafe { self.bound(meta, key, |order| order == Order::Less) }
    }

    /// Returns the number of key words that are `below`, which holds for a prefix of them.
    #[inline(always)]
    fn count_words(&self, below: impl Fn(u64) -> bool) -> usize {
        let is = |i: usize| usize::from(below(self.word(i)));
        let group = is(7) + is(15) + is(23);
        // Groups start at 0, 8, 16 and 23: the last one overlaps, so that all are seven long and
        // end inside the node.
        let first = (group * 8).min(SLOTS - 7);
        let keys: &[AtomicU64; 7] = self.keys[first..]
            .first_chunk()
            .unwrap_or_else(|| unreachable!());
        let mut n = first;
        for key in keys {
            n += usize::from(below(key.load(Ordering::Relaxed)));
        }
        n
    }

    /// Returns the number of separators whose order against `key` is `below`, for byte strings.
    ///
    /// # Safety
    /// As for `upper`.
    #[inline]
    unsafe fn bound(&self, meta: Meta, key: &S, below: impl Fn(Order) -> bool) -> usize {
        let order = |i: usize, key: &S| match self.separator(i) {
            // SAFETY: the pointer was in a slot after this thread was pinned (or no thread writes),
            // so what it leads to is not freed meanwhile (`separator`, "Lifetime").
            Some(full) => unsafe { S::view(&full) }.cmp(key),
            None => Order::Greater,
        };
        let count = meta.count.min(SLOTS);
        if meta.skip > 0 {
            let order = key.cmp_kept_prefix(&self.prefix, meta.skip).or_else(|| {
                let first = self.separator(0)?;
                // SAFETY: as above.
                Some(key.cmp_prefix(unsafe { S::view(&first) }, meta.skip))
            });
            match order {
                Some(Order::Equal) => {}
                Some(Order::Greater) => return count,
                // The first slot is empty: the node has no separators, or is in the middle of a
                // change.
                Some(Order::Less) | None => return 0,
            }
        }
        let word = key.word(meta.skip);
        let mut low = self.count_words(|w| w < word).min(count);
        if low == count || self.word(low) != word {
            return low;
        }
        let mut high = self.count_words(|w| w <= word).min(count);
        // Separators with the key's own word: compare them whole.
        while low < high {
            let middle = low.midpoint(high);
            if below(order(middle, key)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// Writing. The caller holds the node's lock, or no other thread can reach the node.
impl<S: Separator + ?Sized> Node<S> {
    #[inline(always)]
    fn set_meta(&self, meta: Meta) {
        self.meta.store(meta.word(), Ordering::Relaxed);
    }

    #[inline(always)]
    fn set_child(&self, i: usize, child: u32) {
        self.children[i].store(child, Ordering::Relaxed);
    }

    #[inline(always)]
    fn set_separator(&self, i: usize, word: u64, full: Option<S::Full>) {
        self.keys[i].store(word, Ordering::Relaxed);
        S::store(&self.full[i], full);
    }

    /// Replaces child `i` by another leaf.
    pub(super) fn set_leaf(&self, i: usize, leaf: u32) {
        self.set_child(i, leaf);
    }

    /// Copies slot `from` of `other` to slot `i` of this node, word and all.
    #[inline(always)]
    fn copy_separator(&self, i: usize, other: &Self, from: usize) {
        let word = other.word(from);
        self.set_separator(i, word, S::load(word, &other.full[from]));
    }

    /// Empties the slots `from..to`.
    fn clear(&self, from: usize, to: usize) {
        for i in from..to {
            self.set_separator(i, u64::MAX, None);
        }
    }

    /// Resets a node that no other thread can reach to one with a single child.
    pub(super) fn reset(&self, level: u32, child: u32) {
        self.version.revive();
        self.clear(0, SLOTS);
        self.set_child(0, child);
        self.set_meta(Meta {
            count: 0,
            level,
            skip: 0,
        });
    }

    /// Recomputes the key words for the current longest common prefix of the separators.
    ///
    /// # Safety
    /// The separators are not freed (they are in the index).
    pub(super) unsafe fn set_words(&self) {
        if S::EXACT {
            return;
        }
        let mut meta = self.meta();
        meta.skip = 0;
        if meta.count > 1 {
            let (Some(first), Some(last)) = (self.separator(0), self.separator(meta.count - 1))
            else {
                unreachable!("slots below the count are taken (invariant 3)");
            };
            // They are sorted, so all share what the outermost two share. SAFETY: both are
            // separators of this node, which the caller promises are not freed.
            unsafe {
                meta.skip = S::view(&first).common_prefix(S::view(&last), 0xFFFF);
                S::view(&first).store_prefix(&self.prefix, meta.skip);
            }
        }
        for i in 0..meta.count {
            let Some(full) = self.separator(i) else {
                unreachable!("slots below the count are taken (invariant 3)");
            };
            // SAFETY: it is a separator of this node, which the caller promises are not freed.
            self.keys[i].store(unsafe { S::view(&full) }.word(meta.skip), Ordering::Relaxed);
        }
        self.set_meta(meta);
    }

    /// Adds a separator at `at` and the child to the right of it. The node has room.
    ///
    /// # Safety
    /// `full` and the node's separators are not freed.
    pub(super) unsafe fn insert(&self, at: usize, full: S::Full, right: u32) {
        let mut meta = self.meta();
        debug_assert!(at <= meta.count && meta.count < SLOTS);
        for i in (at..meta.count).rev() {
            self.copy_separator(i + 1, self, i);
            self.set_child(i + 2, self.child(i + 1));
        }
        // SAFETY: the caller promises that `full` is not freed.
        let separator = unsafe { S::view(&full) };
        // The common prefix may have become shorter; look at a neighbour, which has it. Where there
        // is none, what the node had in common is still noted.
        let neighbour = if at > 0 { at - 1 } else { 1 };
        let alone = meta.count == 0;
        let shorter = meta.skip > 0
            && (alone
                || self.separator(neighbour).is_none_or(|other| {
                    // SAFETY: it is a separator of this node, which the caller promises are not
                    // freed.
                    separator.cmp_prefix(unsafe { S::view(&other) }, meta.skip) != Order::Equal
                }));
        self.set_separator(at, separator.word(meta.skip), Some(full));
        self.set_child(at + 1, right);
        meta.count += 1;
        self.set_meta(meta);
        if shorter {
            // SAFETY: the separators are `full` and those that were here; the caller promises that
            // none of them is freed.
            unsafe { self.set_words() };
        }
    }

    /// Removes child `at` and the separator that bounded it: the one to its left, so that the left
    /// neighbour takes over its keys, or, for child 0, the one to its right. The node has at least
    /// two children.
    pub(super) fn remove(&self, at: usize) -> S::Full {
        let mut meta = self.meta();
        debug_assert!(at <= meta.count && meta.count > 0);
        let slot = at.saturating_sub(1);
        let Some(full) = self.separator(slot) else {
            unreachable!("slots below the count are taken (invariant 3)");
        };
        for i in at..meta.count {
            self.set_child(i, self.child(i + 1));
        }
        for i in slot..meta.count - 1 {
            self.copy_separator(i, self, i + 1);
        }
        meta.count -= 1;
        self.clear(meta.count, meta.count + 1);
        self.set_meta(meta);
        full
    }

    /// Adds a separator and child after the last ones. The node has room, no other thread can reach
    /// it, and its separators do not count as sharing a prefix yet: `set_words` follows when it is
    /// full.
    ///
    /// # Safety
    /// `full` is not freed.
    #[inline]
    pub(super) unsafe fn append(&self, full: S::Full, child: u32) {
        let mut meta = self.meta();
        debug_assert!(meta.count < SLOTS && meta.skip == 0);
        // SAFETY: the caller promises that `full` is not freed.
        let word = unsafe { S::view(&full) }.word(0);
        self.set_separator(meta.count, word, Some(full));
        self.set_child(meta.count + 1, child);
        meta.count += 1;
        self.set_meta(meta);
    }

    /// Moves the part right of separator `at` into `right`, which was just reset. Returns separator
    /// `at`, which is then in neither.
    ///
    /// # Safety
    /// The node's separators are not freed.
    pub(super) unsafe fn split(&self, at: usize, right: &Self) -> S::Full {
        let mut meta = self.meta();
        debug_assert!(at < meta.count);
        let Some(up) = self.separator(at) else {
            unreachable!("slots below the count are taken (invariant 3)");
        };
        right.set_child(0, self.child(at + 1));
        for (to, from) in (at + 1..meta.count).enumerate() {
            right.copy_separator(to, self, from);
            right.set_child(to + 1, self.child(from + 1));
        }
        right.set_meta(Meta {
            count: meta.count - at - 1,
            ..meta
        });
        self.clear(at, meta.count);
        meta.count = at;
        self.set_meta(meta);
        // SAFETY: both halves hold separators that were this node's, which the caller promises are
        // not freed.
        unsafe {
            self.set_words();
            right.set_words();
        }
        up
    }

    /// Makes this node a copy of `other`, level included, before `other` is removed. The node keeps
    /// its own version.
    pub(super) fn copy_from(&self, other: &Self) {
        let meta = other.meta();
        for i in 0..meta.count {
            self.copy_separator(i, other, i);
        }
        for i in 0..=meta.count {
            self.set_child(i, other.child(i));
        }
        self.clear(meta.count, self.meta().count.max(meta.count));
        S::copy_prefix(&self.prefix, &other.prefix);
        self.set_meta(meta);
    }

    /// Makes this a node one level up over `left` and `right`.
    ///
    /// # Safety
    /// `full` is not freed.
    pub(super) unsafe fn grow(&self, left: u32, full: S::Full, right: u32) {
        let meta = self.meta();
        self.clear(0, meta.count);
        self.set_child(0, left);
        self.set_meta(Meta {
            count: 0,
            level: meta.level + 1,
            skip: 0,
        });
        // SAFETY: 1. the caller promises that `full` is not freed; 2. the node has no other
        // separator.
        unsafe { self.insert(0, full, right) };
    }
}

/// Checking.
impl<S: Separator + ?Sized> Node<S> {
    /// Checks invariants 3 and 4, at rest.
    pub(super) fn verify_slots(&self) -> Result<(), String> {
        let meta = self.meta();
        for i in 0..SLOTS {
            let (word, full) = (self.word(i), S::load(self.word(i), &self.full[i]));
            if i >= meta.count {
                let empty = !S::HEAP || full.is_none();
                if word != u64::MAX || !empty {
                    return Err(format!(
                        "slot {i} is past the count, {}, but not empty",
                        meta.count
                    ));
                }
                continue;
            }
            let (Some(full), Some(first)) = (full, self.separator(0)) else {
                return Err(format!("separator {i} is missing"));
            };
            // SAFETY: 1. both are in the index; 2. no thread writes.
            let (separator, first) = unsafe { (S::view(&full), S::view(&first)) };
            let kept = separator.cmp_kept_prefix(&self.prefix, meta.skip);
            if separator.cmp_prefix(first, meta.skip) != Order::Equal
                || meta.skip > 0 && kept.is_some_and(|order| order != Order::Equal)
            {
                return Err(format!(
                    "separator {i} lacks the prefix of {} bytes",
                    meta.skip
                ));
            }
            if word != separator.word(meta.skip) {
                return Err(format!("key word {i} is not that of {separator:?}"));
            }
        }
        Ok(())
    }
}
