//! Searching: from the root to a leaf, and in a leaf (section 4.2.5).
//!
//! A search of a leaf bisects the sorted part, then reads the entries added since, in the order in
//! which they were added, to the last entry that exists *by then*. A replacement takes a later
//! entry than the one that it replaces. So a key that is always present is found, whatever happens
//! to it meanwhile, and no search waits.

use super::node::{Form, Meta, Node, Status};
use super::{BzTree, corrupt};
use crate::damage;
use crate::repr::{KeyRepr, Repr, read_record};
use bristlecone_pmem::media::{LINE, cpu};
use bristlecone_pmem::{Media, PWord, SpaceError};
use crossbeam_epoch as epoch;
use std::cmp::Ordering as Order;
use std::hint;

/// Maximum number of bytes of a node's records that are prefetched before the search: a processor
/// does not fetch more lines than that at once.
const ASKED: usize = 512;
/// The same for an inner node.
const ASKED_INNER: usize = 832;

/// Result of a search of a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// The entry of the key, with its metadata at that time.
    pub found: Option<(usize, Meta)>,
    /// True if an entry of this session was reserved and may become the key's.
    pub pending: bool,
}

/// A step from a node to its child `slot`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a, M> {
    pub node: Node<'a, M>,
    /// Index of the child.
    pub slot: usize,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BzTree<K, V, M> {
    /// Returns the order of a record's key against `key`. A word that is no key, in a damaged pool,
    /// is smallest.
    #[inline]
    pub(super) fn compare(&self, node: &Node<'_, M>, meta: Meta, key: &K) -> Order {
        self.with_key(node, meta, |found| found.cmp(key))
            .unwrap_or(Order::Less)
    }

    /// Returns the order of the number at word `at` against `key`.
    #[inline(always)]
    fn compare_at(&self, node: &Node<'_, M>, at: usize, key: &K) -> Order {
        K::read(self.pm(), node.fixed(at), |found: &K| found.cmp(key)).unwrap_or(Order::Less)
    }

    /// Calls `f` with a record's key.
    #[inline]
    pub(super) fn with_key<R>(
        &self,
        node: &Node<'_, M>,
        meta: Meta,
        f: impl FnOnce(&K) -> R,
    ) -> Option<R> {
        if K::RECORDS {
            K::of_byte_string(node.bytes(meta.offset(), meta.key_bytes())).map(f)
        } else {
            K::read(self.pm(), node.fixed(meta.offset()), f)
        }
    }

    /// Returns the last of the first `entries` entries, pairs of numbers from word `first` on,
    /// whose key is not above `key`; 0 if there is none, without reading entry 0. It takes the same
    /// number of steps for any key, without branches on keys.
    #[inline(always)]
    fn last_not_above(&self, node: &Node<'_, M>, first: usize, entries: usize, key: &K) -> usize {
        let (mut low, mut left) = (0, entries);
        while left > 1 {
            let half = left / 2;
            let above = self.compare_at(node, first + 2 * (low + half), key).is_gt();
            low = hint::select_unpredictable(above, low, low + half);
            left -= half;
        }
        low
    }

    /// Returns the word that leads to child `slot` of an inner node; it is beside its separator,
    /// where keys are numbers.
    #[inline(always)]
    pub(super) fn child_word<'a>(&self, node: &Node<'a, M>, slot: usize) -> &'a PWord {
        match node.first_pair() {
            Some(first) if !K::RECORDS => node.word(first + 2 * slot + 1),
            _ => node.word(node.fixed_meta(slot).value_at()),
        }
    }

    /// Prefetches the lines that a search of a node may read. Otherwise it would wait for each in
    /// turn.
    #[inline(always)]
    fn ask_for(&self, off: u64, leaf: bool) {
        let at = self.pm().base().wrapping_add(off as usize).cast_const();
        let node = self.sizes.node * 8;
        cpu::prefetch(at, LINE);
        if !leaf {
            // The records follow the metadata, which numbers do not need. Wherever the records
            // begin and end, their middle comes first.
            for eighth in [5, 4, 6] {
                cpu::prefetch(at.wrapping_add(node / 8 * eighth), LINE);
            }
            let asked = (node / 16 * 13).min(ASKED_INNER);
            cpu::prefetch(at.wrapping_add(node / 16 * 3), asked);
            return;
        }
        // In the order of the search: the header, the keys of the first steps, the other keys
        // (records are at a leaf's end), the metadata.
        for eighth in [6, 7, 5] {
            cpu::prefetch(at.wrapping_add(node / 8 * eighth), LINE);
        }
        cpu::prefetch(at.wrapping_add(node / 2), (node / 2).min(ASKED));
        cpu::prefetch(at.wrapping_add(LINE), (node / 3).min(ASKED));
    }

    /// Returns the child of an inner node that `key` belongs to: the last one whose separator is
    /// not above it. The first one has none.
    #[inline(always)]
    pub(super) fn child_of(&self, node: &Node<'_, M>, key: &K) -> usize {
        // Where keys are numbers, their places follow without the metadata.
        if !K::RECORDS
            && let Some(first) = node.first_pair()
        {
            return self.last_not_above(node, first, node.sorted, key);
        }
        let (mut low, mut high) = (0, node.sorted);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.compare(node, node.fixed_meta(middle), key).is_gt() {
                high = middle;
            } else {
                low = middle;
            }
        }
        low
    }

    /// Returns the node that a word of `parent` leads to, one level below it, or `None` in a
    /// damaged pool that has none there.
    #[inline(always)]
    pub(super) fn child_at(&self, parent: &Node<'_, M>, slot: usize) -> Option<Node<'_, M>> {
        if slot >= parent.sorted {
            return None;
        }
        let off = self.swaps.read(self.child_word(parent, slot));
        self.ask_for(off, parent.level == 1);
        let child = Node::at(self.pm(), off)?;
        (child.level + 1 == parent.level).then_some(child)
    }

    /// Returns the leaf of `key`, or `None` in a damaged pool that has none. The caller is pinned.
    #[inline(always)]
    pub(super) fn leaf_of(&self, key: &K) -> Option<Node<'_, M>> {
        let mut node = Node::at(self.pm(), self.root_node())?;
        while !node.is_leaf() {
            node = self.child_at(&node, self.child_of(&node, key))?;
        }
        Some(node)
    }

    /// Returns the path from the root to the node of `level` that `key` belongs to, and that node,
    /// or one of a lower level if the tree is lower. The caller is pinned.
    pub(super) fn path_to(
        &self,
        key: &K,
        level: u8,
    ) -> Result<(Vec<Step<'_, M>>, Node<'_, M>), SpaceError> {
        let mut path = Vec::new();
        let mut node = Node::at(self.pm(), self.root_node()).ok_or_else(corrupt)?;
        while node.level > level {
            let slot = self.child_of(&node, key);
            path.push(Step { node, slot });
            node = self.child_at(&node, slot).ok_or_else(corrupt)?;
        }
        Ok((path, node))
    }

    /// Searches the first `entries` entries of a leaf.
    #[inline]
    pub(super) fn search(&self, leaf: &Node<'_, M>, key: &K, entries: usize) -> Search {
        let sorted = leaf.sorted.min(entries);
        if let Some(found) = self.search_sorted(leaf, key, sorted) {
            return Search {
                found: Some(found),
                pending: false,
            };
        }
        self.search_added(leaf, key, sorted, entries)
    }

    /// Searches the sorted part by bisection.
    #[inline(always)]
    fn search_sorted(&self, leaf: &Node<'_, M>, key: &K, sorted: usize) -> Option<(usize, Meta)> {
        // The places follow likewise, if values are numbers too.
        if !K::RECORDS
            && !V::RECORDS
            && let Some(first) = leaf.first_pair()
        {
            let entry = self.last_not_above(leaf, first, sorted, key);
            let at = first + 2 * entry;
            if entry >= sorted || self.compare_at(leaf, at, key).is_ne() {
                return None;
            }
            let meta = Meta(self.swaps.read(leaf.meta(entry)));
            return (meta.visible() && meta.offset() == at).then_some((entry, meta));
        }
        let (mut low, mut high) = (0, sorted);
        while low < high {
            let middle = low.midpoint(high);
            let meta = Meta(self.swaps.read(leaf.meta(middle)));
            match self.compare(leaf, meta, key) {
                Order::Less => low = middle + 1,
                Order::Greater => high = middle,
                Order::Equal => return meta.visible().then_some((middle, meta)),
            }
        }
        None
    }

    /// Searches entries in the order in which they were added.
    #[inline]
    pub(super) fn search_added(
        &self,
        leaf: &Node<'_, M>,
        key: &K,
        from: usize,
        to: usize,
    ) -> Search {
        let mut pending = false;
        for i in from..to {
            let meta = Meta(self.swaps.read(leaf.meta(i)));
            if meta.visible() {
                if self.compare(leaf, meta, key).is_eq() {
                    return Search {
                        found: Some((i, meta)),
                        pending,
                    };
                }
            } else {
                pending |= meta == Meta::reserved(self.epoch);
            }
        }
        Search {
            found: None,
            pending,
        }
    }

    /// Returns the entry of `key`, to the last entry that exists when the search ends.
    pub(super) fn find(&self, leaf: &Node<'_, M>, key: &K) -> Option<(usize, Meta)> {
        let mut entries = self.status(leaf).entries();
        let mut found = self.search(leaf, key, entries).found;
        while found.is_none() {
            let now = self.status(leaf).entries();
            if now <= entries {
                return None;
            }
            found = self
                .search_added(leaf, key, entries.max(leaf.sorted), now)
                .found;
            entries = now;
        }
        found
    }

    #[inline]
    pub(super) fn status(&self, leaf: &Node<'_, M>) -> Status {
        Status(self.swaps.read(leaf.status()))
    }

    /// Calls `f` with a record's value. Returns `None` if the value was removed since its metadata
    /// were read (or the word is implausible).
    #[inline]
    pub(super) fn with_value<R>(
        &self,
        leaf: &Node<'_, M>,
        meta: Meta,
        f: impl FnOnce(&V) -> R,
    ) -> Option<R> {
        match meta.form() {
            Form::Inline if V::RECORDS => {
                if !leaf.record_is_sound(meta)
                    && !damage::met(|| format!("{leaf:?}: a record fails its check"))
                {
                    return None;
                }
                V::of_byte_string(leaf.bytes(meta.value_at(), meta.value_bytes())).map(f)
            }
            Form::Inline => V::read(self.pm(), leaf.fixed(meta.value_at()), f),
            form @ (Form::Word | Form::Block) => {
                self.with_word(form, self.swaps.read(leaf.word(meta.value_at())), f)
            }
        }
    }

    /// Calls `f` with the value of a word that swaps change.
    #[inline]
    pub(super) fn with_word<R>(&self, form: Form, word: u64, f: impl FnOnce(&V) -> R) -> Option<R> {
        if form != Form::Block {
            return V::read(self.pm(), word, f);
        }
        let with = |bytes: &[u8]| V::of_byte_string(bytes).map(f);
        read_record(self.pm(), word, with).flatten()
    }

    pub(super) fn look_up<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        let _guard = epoch::pin();
        let mut f = Some(f);
        // The value may be removed between its metadata and itself: the key was removed, or has
        // another entry now. In each turn another one was removed. In a damaged pool without a
        // readable value, the second turn finds the same.
        let mut last = None;
        loop {
            let leaf = self.leaf_of(key)?;
            let found = self.find(&leaf, key)?;
            if last.replace((leaf.off, found)) == Some((leaf.off, found)) {
                return None;
            }
            if let Some(answer) =
                self.with_value(&leaf, found.1, |value| f.take().map(|f| f(value)))
            {
                return answer;
            }
        }
    }
}
