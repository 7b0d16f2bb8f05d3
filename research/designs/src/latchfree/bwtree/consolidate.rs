//! Consolidation replaces a page's chain by one base node.
//!
//! # Records
//! Byte strings are records, and a search of a chain compares with the records of its keys, deleted
//! ones included. So the records that an update or removal leaves behind are retired only when a
//! consolidation has replaced the chain with that delta. The consolidating thread retires them.

use super::BwTree;
use super::page::{self, Base, BaseNode, Kind, Node, SplitDelta};
use super::table::PageId;
use crate::btree::node::compare_words;
use crate::repr::{KeyRepr, Repr};
use crate::sync::AtomicU32;
use bristlecone_pmem::Media;
use crossbeam_epoch::Guard;
use std::borrow::Cow;
use std::cmp::Ordering as Order;

/// Words whose records nothing leads to any more.
#[derive(Debug, Default)]
pub(super) struct Dead {
    pub keys: Vec<u64>,
    pub values: Vec<u64>,
}

/// The entries of a base node; of two, if another page was merged in.
struct Entries<'g, T: Clone> {
    keys: Cow<'g, [u64]>,
    /// Values or children.
    others: Cow<'g, [T]>,
}

fn entries<'g, T: Clone>(
    base: BaseNode<'g>,
    bound: usize,
    others: impl Fn(BaseNode<'g>) -> &'g [T],
    merged: Option<BaseNode<'g>>,
) -> Entries<'g, T> {
    let bound = bound.min(base.len());
    let (keys, own) = (&base.keys()[..bound], &others(base)[..bound]);
    match merged {
        None => Entries {
            keys: Cow::Borrowed(keys),
            others: Cow::Borrowed(own),
        },
        Some(merged) => Entries {
            keys: Cow::Owned([keys, merged.keys()].concat()),
            others: Cow::Owned([own, others(merged)].concat()),
        },
    }
}

/// Content of a leaf's chain.
pub(super) struct Contents<'g> {
    base: Entries<'g, u64>,
    /// The newest delta of each key, in key order; its place in the base node; true if the key is
    /// present.
    changes: Vec<(Node<'g>, usize, bool)>,
    /// Number of entries.
    pub len: usize,
}

impl Contents<'_> {
    /// Calls `put` with all entries in order, in runs that lie together in memory.
    pub fn runs(&self, mut put: impl FnMut(&[u64], &[u64])) {
        let Entries { keys, others } = &self.base;
        let mut done = 0;
        for (node, at, there) in &self.changes {
            put(&keys[done..*at], &others[done..*at]);
            done = at + usize::from(*there);
            if node.kind() != Kind::Delete {
                let delta = node.leaf_delta();
                put(&[delta.key], &[delta.value]);
            }
        }
        put(&keys[done..], &others[done..]);
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BwTree<K, V, M> {
    /// Returns the entry deltas of a chain, newest first, and the entries of its base nodes.
    fn gather<'g, T: Clone>(
        head: Node<'g>,
        others: impl Fn(BaseNode<'g>) -> &'g [T],
    ) -> (Vec<Node<'g>>, Entries<'g, T>) {
        let mut deltas = Vec::with_capacity(head.length());
        let (mut node, mut bound, mut merged) = (head, usize::MAX, None);
        loop {
            match node.kind() {
                Kind::Base => break,
                Kind::Split => bound = node.split().bound as usize,
                Kind::Merge => merged = Some(node.merge().from()),
                Kind::Remove => {}
                _ => deltas.push(node),
            }
            node = node.below();
        }
        (deltas, entries(node.base(), bound, others, merged))
    }

    /// Returns the content of a leaf's chain.
    pub(super) fn contents<'g>(&self, head: Node<'g>) -> Contents<'g> {
        let pm = self.pm();
        let (mut deltas, base) = Self::gather(head, BaseNode::values);
        // The sort is stable, so that the newest delta of a key stays the first.
        deltas.sort_by(|a, b| compare_words::<K, M>(pm, a.leaf_delta().key, b.leaf_delta().key));
        deltas.dedup_by(|b, a| {
            compare_words::<K, M>(pm, a.leaf_delta().key, b.leaf_delta().key).is_eq()
        });
        let mut len = base.keys.len();
        let mut from = 0;
        let changes = deltas.into_iter().map(|node| {
            let key = node.leaf_delta().key;
            from += base.keys[from..]
                .partition_point(|word| compare_words::<K, M>(pm, *word, key) == Order::Less);
            let there = base.keys.get(from);
            let there = there.is_some_and(|word| compare_words::<K, M>(pm, *word, key).is_eq());
            match (node.kind(), there) {
                (Kind::Delete, true) => len -= 1,
                (Kind::Insert | Kind::Update, false) => len += 1,
                _ => {}
            }
            (node, from, there)
        });
        let changes = changes.collect();
        Contents { changes, len, base }
    }

    /// Makes a base node of a leaf chain's content.
    fn leaf_base(&self, head: Node<'_>) -> *mut Base {
        let contents = self.contents(head);
        let made = Base::make(contents.len, false, head.high, head.right, self.longest(0));
        // SAFETY: 1. the node was made here, as a leaf's; 2. no other thread has it.
        let (to_keys, to_values) = unsafe { page::leaf_parts(made) };
        let mut at = 0;
        contents.runs(|keys, values| {
            let end = at + keys.len();
            to_keys[at..end].copy_from_slice(keys);
            to_values[at..end].copy_from_slice(values);
            at = end;
        });
        made
    }

    /// Returns an inner chain's content: separators and children.
    pub(super) fn index_entries(&self, head: Node<'_>) -> (Vec<u64>, Vec<PageId>) {
        let pm = self.pm();
        let (deltas, base) = Self::gather(head, BaseNode::children);
        let mut keys = base.keys.into_owned();
        let mut children = base.others.into_owned();
        for node in deltas.into_iter().rev() {
            let delta = node.index_delta();
            // The first key is the low end, which lies below all changes.
            let rest = &keys[1..];
            let at = 1 + rest
                .partition_point(|word| compare_words::<K, M>(pm, *word, delta.key) == Order::Less);
            if node.kind() == Kind::IndexInsert {
                keys.insert(at, delta.key);
                children.insert(at, delta.child);
            } else {
                debug_assert!(keys.get(at) == Some(&delta.key), "deletes what is there");
                keys.remove(at);
                children.remove(at);
            }
        }
        (keys, children)
    }

    /// Makes a base node of a chain's content.
    pub(super) fn base_of(&self, head: Node<'_>) -> *mut Base {
        if head.is_inner() {
            let (keys, children) = self.index_entries(head);
            Base::inner(&keys, &children, head.high, head.right)
        } else {
            self.leaf_base(head)
        }
    }

    /// Returns the words of a leaf's chain that its consolidation will not contain.
    pub(super) fn dead(&self, head: Node<'_>) -> Dead {
        let mut dead = Dead::default();
        if head.is_inner() || !(K::RECORDS || V::RECORDS) {
            return dead;
        }
        let mut node = head;
        while node.kind() != Kind::Base {
            match node.kind() {
                Kind::Delete => {
                    dead.keys.push(node.leaf_delta().key);
                    dead.values.push(node.leaf_delta().value);
                }
                Kind::Update => {
                    let key = node.leaf_delta().key;
                    let old = K::read(self.pm(), key, |key| {
                        self.find(node.below(), key, key.hash())
                    });
                    dead.values.extend(old.flatten().map(|(_, value)| value));
                }
                _ => {}
            }
            node = node.below();
        }
        dead
    }

    /// Retires records that no chain of the tree leads to any more.
    pub(super) fn retire_dead(&self, dead: &Dead, guard: &Guard) {
        for key in &dead.keys {
            K::retire(&self.heap, *key, guard);
        }
        for value in &dead.values {
            V::retire(&self.heap, *value, guard);
        }
    }

    /// Frees a chain that is no longer in the table, once no thread can be at it.
    pub(super) fn retire_chain(&self, head: Node<'_>, guard: &Guard) {
        let at = head.ptr();
        // SAFETY: 1. the chain is no longer in the table, so only threads that are pinned now can
        // be at it; 2. only the thread that removed it retires it; 3. freeing it needs nothing of
        // the tree.
        unsafe {
            guard.defer_unchecked(move || page::free_chain(at));
        }
    }

    /// Makes a split on top of a base node with too many entries. The right page is in the table,
    /// and nothing leads to it. Returns `None` if there is no room for the separator's record.
    pub(super) fn split_of(&self, base: BaseNode<'_>) -> Option<*mut SplitDelta> {
        let middle = base.len() / 2;
        let (keys, high, right) = (base.keys(), base.head.high, base.head.right);
        let inner = base.head.is_inner();
        let separator = if inner || !K::RECORDS {
            keys[middle]
        } else {
            K::read(self.pm(), keys[middle], |key| key.make(&self.heap))?.ok()?
        };
        let upper = if inner {
            Base::inner(&keys[middle..], &base.children()[middle..], high, right)
        } else {
            Base::leaf(
                &keys[middle..],
                &base.values()[middle..],
                high,
                right,
                self.longest(0),
            )
        };
        let page = self.table.take();
        self.table.set(page, upper.cast());
        let mut head = page::Head::on(base.node(), Kind::Split).with_count(middle);
        (head.high, head.right) = (separator, page);
        Some(page::new(SplitDelta {
            head,
            bound: middle as u32,
            done: AtomicU32::new(0),
        }))
    }

    /// Frees a split that was never installed, but not the base node under it.
    pub(super) fn discard_split(&self, split: *mut SplitDelta) {
        // SAFETY: 1. `split_of` made both nodes; 2. nothing ever led to them or to the page.
        unsafe {
            let (page, separator) = ((*split).head.right, (*split).head.high);
            if K::RECORDS && !(*split).head.is_inner() {
                K::discard(&self.heap, separator);
            }
            page::free(self.table.head(page));
            page::free(split.cast());
            self.table.release(page);
        }
    }
}
