//! Bulk load: a list of leaves is built beside the tree, and one NAW of the head word switches to
//! it.
//!
//! Persist cost: every line once, and 2 fences in all.

use super::info::LeafInfo;
use super::inner::{Entry, Inner};
use super::leaf::{Shape, block};
use super::{HEAD, NvTree};
use crate::common::make_pair;
use crate::index::{Fill, InsertError};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use std::borrow::Borrow;

/// Leaves that nothing leads to yet. They are freed if the load fails.
struct Chain<K: ToOwned + ?Sized> {
    /// Offset, shape and number of elements of each leaf.
    leaves: Vec<(u64, Shape, u32)>,
    lows: Vec<K::Owned>,
    /// Pairs of the leaf that is being filled.
    pairs: Vec<(u64, u64)>,
    entries: u64,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> NvTree<K, V, M> {
    pub(super) fn load_sorted<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
    ) -> Result<u64, InsertError> {
        if self.read_only {
            return Err(InsertError::ReadOnly);
        }
        let guard = crossbeam_epoch::pin();
        let only = self.inner(&guard).find_first(&guard);
        if only.high.is_some() || only.info.live() > 0 {
            return Err(InsertError::KeyExists);
        }
        let leaf = only.info.leaf(self.pm());
        let old_dead = self.contents(&leaf, only.info.elements()).dead;
        let old_off = only.info.off;
        let mut chain: Chain<K> = Chain {
            leaves: Vec::new(),
            lows: Vec::new(),
            pairs: Vec::new(),
            entries: 0,
        };
        if let Err(e) = self.build(sorted, fill, &mut chain) {
            self.discard(chain);
            return Err(e);
        }
        let Some(&(first, ..)) = chain.leaves.first() else {
            return Ok(0);
        };
        let pm = self.pm();
        // PERSIST: all leaves and records, before the head word that leads to them.
        pm.fence();
        // PERSIST: (in `publish`) the head word; the loaded leaves are the tree.
        self.root().word(HEAD).publish(pm, link::word(first));
        let size = self.leaf_bytes;
        let entries: Vec<Entry<K>> = chain
            .leaves
            .iter()
            .zip(&chain.lows)
            .enumerate()
            .map(|(i, (&(off, shape, n), low))| Entry {
                low: (i > 0).then(|| low.borrow().allocate().0),
                info: Box::into_raw(Box::new(LeafInfo::new(off, shape, size, n, n))),
                units: 1,
            })
            .collect();
        *self.leaves.get_mut() = entries.len() as u64;
        let new = Box::into_raw(Box::new(Inner::build(self.nodes, entries)));
        let old = std::mem::replace(self.inner.get_mut(), new);
        // SAFETY: 1. the pointer came from `Box::into_raw`; 2. `&mut self`: no other thread uses
        // the tree.
        unsafe {
            let old = Box::from_raw(old);
            old.dismantle();
        }
        for word in old_dead {
            K::retire(&self.heap, word, &guard);
        }
        self.heap.retire(block(old_off), &guard);
        self.commit()?;
        Ok(chain.entries)
    }

    fn build<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
        chain: &mut Chain<K>,
    ) -> Result<(), InsertError> {
        let per_leaf = fill.of(Shape::of(self.leaf_bytes).capacity as usize);
        let mut last: Option<Q> = None;
        for (key, value) in sorted {
            self.check_pair(key.borrow(), value.borrow())?;
            if last
                .as_ref()
                .is_some_and(|last| last.borrow() >= key.borrow())
            {
                return Err(InsertError::KeyExists);
            }
            if chain.pairs.len() == per_leaf {
                self.seal(chain)?;
            }
            if chain.pairs.is_empty() {
                chain.lows.push(key.borrow().to_owned());
            }
            chain
                .pairs
                .push(make_pair(&self.heap, key.borrow(), value.borrow())?);
            chain.entries += 1;
            last = Some(key);
        }
        if !chain.pairs.is_empty() {
            self.seal(chain)?;
        }
        Ok(())
    }

    /// Writes the gathered pairs as the next leaf of the chain.
    fn seal(&self, chain: &mut Chain<K>) -> Result<(), InsertError> {
        let (off, shape) = self.new_leaf(self.leaf_bytes)?;
        self.leaf_of(off, shape).fill(&chain.pairs, 0);
        if let Some(&(before, shape, _)) = chain.leaves.last() {
            self.leaf_of(before, shape).link_unpublished(off);
        }
        chain.leaves.push((off, shape, chain.pairs.len() as u32));
        chain.pairs.clear();
        Ok(())
    }

    fn discard(&self, chain: Chain<K>) {
        let discard = |(key, value): (u64, u64)| {
            K::discard(&self.heap, key);
            V::discard(&self.heap, value);
        };
        chain.pairs.into_iter().for_each(discard);
        for (off, shape, n) in chain.leaves {
            let leaf = self.leaf_of(off, shape);
            for i in 0..n as usize {
                discard((leaf.key(i), leaf.value(i)));
            }
            self.heap.free(block(off));
        }
    }
}
