//! Searching: chains of leaves and inner nodes, and the descent.
//!
//! A delta overrides everything below it. So a chain is searched from its head, and the base node
//! by halving only if no delta has decided. A *probe* directs the search: it is true of the
//! separators to whose right the target lies, which are the lowest ones. So one descent serves a
//! key, a separator, and the place just before one.

use super::BwTree;
use super::page::{BaseNode, Kind, Node};
use super::table::PageId;
use crate::btree::node::{compare_to_word, compare_words};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::cpu;
use crossbeam_epoch::Guard;
use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

/// Bytes from the head of a chain that are prefetched as soon as its address is known.
const ASKED: usize = 512;

/// The root, as one word: number of changes (24 bits), level (8 bits), page (32 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root(pub u64);

impl Root {
    pub fn new(page: PageId, level: u8, changes: u64) -> Self {
        Self(changes << 40 | u64::from(level) << 32 | u64::from(page))
    }

    #[inline(always)]
    pub fn page(self) -> PageId {
        self.0 as u32
    }

    #[inline(always)]
    pub fn level(self) -> u8 {
        (self.0 >> 32) as u8
    }

    /// Returns another root to replace this one. Its number of changes tells it from an earlier
    /// one.
    pub fn followed_by(self, page: PageId, level: u8) -> Self {
        Self::new(page, level, (self.0 >> 40) + 1)
    }
}

/// A page and its chain at the time of the search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'g> {
    pub page: PageId,
    pub head: Node<'g>,
    /// Word of a separator, or 0. All keys of the page that the probe leads to are at least this.
    pub low: u64,
}

/// An entry of an inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its separator; 0 in the first of the leftmost node.
    pub low: u64,
    pub child: PageId,
    /// The next separator, or the end of the node's range; `None` if the range is unbounded.
    pub next: Option<u64>,
}

/// Returns the number of keys of which the probe is true.
#[inline(always)]
fn passed(keys: &[u64], probe: impl Fn(u64) -> bool) -> usize {
    keys.partition_point(|key| probe(*key))
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BwTree<K, V, M> {
    /// Returns the probe for a key.
    #[inline(always)]
    pub(super) fn to_key(&self, key: &K) -> impl Fn(u64) -> bool {
        let pm = self.pm();
        move |word| compare_to_word(pm, key, word).is_ge()
    }

    /// Returns the probe for a key by its word; 0 is before all.
    pub(super) fn to_word(&self, word: u64) -> impl Fn(u64) -> bool {
        let pm = self.pm();
        move |other| word != 0 && compare_words::<K, M>(pm, word, other).is_ge()
    }

    /// Returns the probe for the place just before a separator.
    pub(super) fn before(&self, word: u64) -> impl Fn(u64) -> bool {
        let pm = self.pm();
        move |other| compare_words::<K, M>(pm, word, other).is_gt()
    }

    #[inline(always)]
    pub(super) fn root(&self) -> Root {
        // ORDERING: Acquire; pairs with the Release of the thread that set it: the page that it
        // names is in the table.
        Root(self.root.load(Ordering::Acquire))
    }

    /// Returns the head of a page's chain.
    #[inline(always)]
    pub(super) fn head<'g>(&self, page: PageId, _guard: &'g Guard) -> Node<'g> {
        // SAFETY: 1. the caller is pinned for `'g`; 2. chains are unlinked first, and freed once no
        // thread that was pinned then still is; 3. the number came from the tree while pinned, so
        // its slot has a chain (invariant 2 of the table).
        let head = unsafe { Node::new(self.table.head(page)) };
        // This covers a leaf's deltas, its base node and the first keys, or an inner node's keys.
        cpu::prefetch(head.ptr().cast(), ASKED);
        head
    }

    /// Returns the leaf that the probe leads to.
    #[inline(always)]
    pub(super) fn leaf<'g>(
        &self,
        probe: impl Fn(u64) -> bool,
        guard: &'g Guard,
    ) -> (PageId, Node<'g>) {
        let mut page = self.root().page();
        loop {
            let head = self.head(page, guard);
            if head.right != 0 && probe(head.high) {
                page = head.right;
            } else if head.is_inner() {
                page = child(head, &probe);
            } else {
                return (page, head);
            }
        }
    }

    /// Returns the same leaf for a writer. Finishes splits and merges that it meets.
    #[inline(always)]
    pub(super) fn leaf_to_write<'g>(
        &self,
        probe: impl Fn(u64) -> bool,
        guard: &'g Guard,
    ) -> (PageId, Node<'g>) {
        'again: loop {
            let root = self.root();
            let (mut page, mut level) = (root.page(), root.level());
            loop {
                let head = self.head(page, guard);
                if head.right != 0 && probe(head.high) {
                    if head.is_modified() {
                        self.help_split(page, level, head, guard);
                    }
                    page = head.right;
                } else if head.is_inner() {
                    page = child(head, &probe);
                    level -= 1;
                } else if head.kind() == Kind::Remove {
                    self.help_removal(page, 0, guard);
                    continue 'again;
                } else {
                    return (page, head);
                }
            }
        }
    }

    /// Returns the page of a level that the probe leads to, or `None` if the tree is not so high.
    /// Leaves have level 0.
    pub(super) fn descend<'g>(
        &self,
        to: u8,
        probe: impl Fn(u64) -> bool,
        guard: &'g Guard,
    ) -> Option<Place<'g>> {
        let root = self.root();
        let (mut page, mut level) = (root.page(), root.level());
        if level < to {
            return None;
        }
        let mut low = 0;
        loop {
            let head = self.head(page, guard);
            if head.right != 0 && probe(head.high) {
                low = head.high;
                page = head.right;
            } else if level == to {
                return Some(Place { page, head, low });
            } else {
                let entry = self.entry(head, &probe);
                if entry.low != 0 {
                    low = entry.low;
                }
                page = entry.child;
                level -= 1;
            }
        }
    }

    /// Searches a leaf for a key. Returns the words of key and value.
    #[inline(always)]
    pub(super) fn find(&self, head: Node<'_>, key: &K, hash: u32) -> Option<(u64, u64)> {
        let pm = self.pm();
        let (mut node, mut bound) = (head, usize::MAX);
        loop {
            match node.kind() {
                Kind::Base => return self.find_in(node.base(), bound, key),
                Kind::Insert | Kind::Update => {
                    let delta = node.leaf_delta();
                    if key.is_at(hash, pm, delta.key) {
                        return Some((delta.key, delta.value));
                    }
                }
                Kind::Delete if key.is_at(hash, pm, node.leaf_delta().key) => return None,
                Kind::Split => bound = node.split().bound as usize,
                Kind::Merge => {
                    let merge = node.merge();
                    if compare_to_word(pm, key, merge.key).is_ge() {
                        return self.find_in(merge.from(), usize::MAX, key);
                    }
                }
                _ => {}
            }
            node = node.below();
        }
    }

    #[inline(always)]
    fn find_in(&self, base: BaseNode<'_>, bound: usize, key: &K) -> Option<(u64, u64)> {
        let pm = self.pm();
        let keys = &base.keys()[..bound.min(base.len())];
        let at = passed(keys, |word| {
            compare_to_word(pm, key, word) == Order::Greater
        });
        let word = *keys.get(at)?;
        compare_to_word(pm, key, word)
            .is_eq()
            .then(|| (word, base.values()[at]))
    }

    /// Returns the same as [`child`], with the entry's range.
    pub(super) fn entry(&self, head: Node<'_>, probe: impl Fn(u64) -> bool) -> Entry {
        let nearer = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) if compare_words::<K, M>(self.pm(), a, b).is_gt() => Some(b),
            (a, b) => a.or(b),
        };
        let (mut node, mut bound) = (head, usize::MAX);
        let mut end = (head.right != 0).then_some(head.high);
        // The nearest separator to the right among the inserted ones.
        let mut inserted = None;
        loop {
            match node.kind() {
                Kind::Base => {
                    let base = node.base();
                    let keys = &base.keys()[..bound.min(base.len())];
                    let (at, child) = child_in(base, bound, &probe);
                    return Entry {
                        low: keys[at],
                        child,
                        next: nearer(inserted, keys.get(at + 1).copied().or(end)),
                    };
                }
                Kind::IndexInsert | Kind::IndexDelete => {
                    let delta = node.index_delta();
                    let next = (delta.bounded != 0).then_some(delta.next);
                    if delta.low != 0 && !probe(delta.low) {
                        inserted = nearer(inserted, Some(delta.low));
                    } else if next.is_none_or(|next| !probe(next)) {
                        return Entry {
                            low: delta.low,
                            child: delta.child,
                            next: nearer(inserted, next),
                        };
                    }
                }
                Kind::Split => bound = node.split().bound as usize,
                Kind::Merge => {
                    let merge = node.merge();
                    if probe(merge.key) {
                        node = merge.from().node();
                        continue;
                    }
                    end = Some(merge.key);
                }
                _ => {}
            }
            node = node.below();
        }
    }
}

/// Returns the child of an inner node that the probe leads to.
#[inline(always)]
pub(super) fn child(head: Node<'_>, probe: impl Fn(u64) -> bool) -> PageId {
    let (mut node, mut bound) = (head, usize::MAX);
    loop {
        match node.kind() {
            Kind::Base => return child_in(node.base(), bound, &probe).1,
            Kind::IndexInsert | Kind::IndexDelete => {
                let delta = node.index_delta();
                if (delta.low == 0 || probe(delta.low))
                    && (delta.bounded == 0 || !probe(delta.next))
                {
                    return delta.child;
                }
            }
            Kind::Split => bound = node.split().bound as usize,
            Kind::Merge if probe(node.merge().key) => {
                return child_in(node.merge().from(), usize::MAX, &probe).1;
            }
            _ => {}
        }
        node = node.below();
    }
}

/// Returns the place among the first `bound` entries, and the child there.
#[inline(always)]
fn child_in(base: BaseNode<'_>, bound: usize, probe: impl Fn(u64) -> bool) -> (usize, PageId) {
    let keys = &base.keys()[..bound.min(base.len())];
    // The first key is the low end of the range.
    let at = passed(&keys[1..], probe);
    (at, base.children()[at])
}
