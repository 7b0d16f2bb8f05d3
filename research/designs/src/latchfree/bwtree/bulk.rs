//! Bulk load: base nodes are made level by level, then the root is exchanged.

use super::BwTree;
use super::find::Root;
use super::page::Base;
use super::table::PageId;
use crate::index::{Fill, InsertError};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::{Media, SpaceError};
use std::borrow::Borrow;
use std::sync::atomic::Ordering;

/// Fill of inner nodes.
const INNER_FILL: Fill = match Fill::percent(85) {
    Some(fill) => fill,
    None => Fill::FULL,
};

/// A level under construction: pages by their low ends, 0 for the first.
type Level = Vec<(u64, PageId)>;

/// Pages and records made so far.
#[derive(Default)]
struct Made {
    leaves: Level,
    /// The pairs of the leaf that is being filled.
    keys: Vec<u64>,
    values: Vec<u64>,
    /// The last full leaf, which waits for its sibling.
    full: Option<(Vec<u64>, Vec<u64>)>,
    entries: u64,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BwTree<K, V, M> {
    pub(super) fn load_sorted<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
    ) -> Result<u64, InsertError> {
        let mut is_empty = true;
        self.scan_up(&.., |_, _| {
            is_empty = false;
            std::ops::ControlFlow::Break(())
        });
        if !is_empty {
            return Err(InsertError::KeyExists);
        }
        let mut made = Made::default();
        if let Err(e) = self.load_leaves(sorted, fill.of(self.most_entries), &mut made) {
            self.unload(made);
            return Err(e);
        }
        let Made {
            leaves, entries, ..
        } = made;
        if leaves.is_empty() {
            return Ok(0);
        }
        let mut level = leaves;
        let mut height = 0;
        while level.len() > 1 {
            level = self.load_inner(&level);
            height += 1;
        }
        let old = self.root();
        self.free_pages();
        // ORDERING: Relaxed; the tree is borrowed exclusively.
        let new = old.followed_by(level[0].1, height);
        self.root.store(new.0, Ordering::Relaxed);
        Ok(entries)
    }

    fn load_leaves<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        sorted: impl Iterator<Item = (Q, W)>,
        per_leaf: usize,
        made: &mut Made,
    ) -> Result<(), InsertError> {
        let mut last: Option<Q> = None;
        for (key, value) in sorted {
            self.check_pair(key.borrow(), value.borrow())?;
            let (k, v) = (key.borrow(), value.borrow());
            if last.as_ref().is_some_and(|last| last.borrow() >= k) {
                return Err(InsertError::KeyExists);
            }
            if made.keys.len() == per_leaf {
                self.seal(made)?;
            }
            let key_word = k.make(&self.heap)?;
            let value_word = v.make(&self.heap).inspect_err(|_| {
                K::discard(&self.heap, key_word);
            })?;
            made.keys.push(key_word);
            made.values.push(value_word);
            made.entries += 1;
            last = Some(key);
        }
        if !made.keys.is_empty() {
            self.seal(made)?;
            self.write_full(made, 0, 0);
        }
        Ok(())
    }

    /// Makes the gathered pairs the next leaf, and writes the one before it.
    fn seal(&self, made: &mut Made) -> Result<(), SpaceError> {
        let low = match made.keys.first() {
            Some(key) if !made.leaves.is_empty() => {
                match K::read(self.pm(), *key, |key| key.make(&self.heap)) {
                    Some(made) => made?,
                    None => *key, // The word was made just now.
                }
            }
            _ => 0,
        };
        let page = self.table.take();
        self.write_full(made, low, page);
        made.leaves.push((low, page));
        made.full = Some((
            std::mem::take(&mut made.keys),
            std::mem::take(&mut made.values),
        ));
        Ok(())
    }

    /// Writes the leaf that waited for its sibling.
    fn write_full(&self, made: &mut Made, high: u64, right: PageId) {
        if let (Some((keys, values)), Some((_, page))) = (made.full.take(), made.leaves.last()) {
            let base = Base::leaf(&keys, &values, high, right, self.longest(0));
            self.table.set(*page, base.cast());
        }
    }

    /// Makes the level above one.
    fn load_inner(&self, below: &Level) -> Level {
        let per_node = INNER_FILL.of(self.most_children).max(2);
        // Evenly, so that no node is left with one child.
        let nodes = below.len().div_ceil(per_node);
        let part = |i: usize| below.len() * i / nodes..below.len() * (i + 1) / nodes;
        let level: Level = (0..nodes)
            .map(|i| (below[part(i).start].0, self.table.take()))
            .collect();
        for (i, (_, page)) in level.iter().enumerate() {
            let (keys, children): (Vec<_>, Vec<_>) = below[part(i)].iter().copied().unzip();
            let (high, right) = level.get(i + 1).copied().unwrap_or((0, 0));
            let base = Base::inner(&keys, &children, high, right);
            self.table.set(*page, base.cast());
        }
        level
    }

    /// Frees everything that a failed load made.
    fn unload(&mut self, mut made: Made) {
        let discard = |(keys, values): (Vec<u64>, Vec<u64>)| {
            keys.into_iter()
                .for_each(|word| K::discard(&self.heap, word));
            values
                .into_iter()
                .for_each(|word| V::discard(&self.heap, word));
        };
        discard((made.keys, made.values));
        if let (Some(full), Some((low, page))) = (made.full.take(), made.leaves.pop()) {
            discard(full);
            if low != 0 {
                K::discard(&self.heap, low);
            }
            self.table.release(page);
        }
        for (low, page) in made.leaves {
            // SAFETY: 1. the load made it, so no other thread knows it; 2. the caller is done with
            // it.
            let head = unsafe { self.alone(page) };
            let base = head.base();
            discard((base.keys().to_vec(), base.values().to_vec()));
            if low != 0 {
                K::discard(&self.heap, low);
            }
            // SAFETY: 1. the load made it, so no other thread knows it; 2. nothing leads to it.
            unsafe { super::page::free(head.ptr()) };
            self.table.release(page);
        }
    }

    /// Makes a page that is an empty leaf.
    pub(super) fn empty_leaf(table: &super::table::Table) -> Root {
        let page = table.take();
        table.set(page, Base::leaf(&[], &[], 0, 0, 0).cast());
        Root::new(page, 0, 0)
    }
}
