//! Bulk load: a chain of leaves is built beside the tree, and one NAW of the head word switches to
//! it.
//!
//! Persist cost: every line once, and 2 fences in all.

use super::Pair;
use super::layout::INNER_FILL;
use super::positions::Positions;
use super::{HEAD, LeafDesign, LeafTree, handle, offset};
use crate::contract::{Fill, InsertError};
use crate::inner::InnerIndex;
use crate::link;
use crate::repr::{Stored, StoredKey, WordOf};
use bristlecone_pmem::{Media, POff};
use std::borrow::Borrow;
use std::sync::atomic::Ordering;

/// Leaves that nothing leads to yet. They are freed if the load fails.
struct Chain<K: Stored + ?Sized, V: Stored + ?Sized> {
    leaves: Vec<u32>,
    lows: Vec<K::Owned>,
    pairs: Vec<Pair<WordOf<K>, WordOf<V>>>,
    entries: u64,
}

impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    pub(super) fn load_sorted<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
    ) -> Result<u64, InsertError> {
        if self.read_only {
            return Err(InsertError::ReadOnly);
        }
        let guard = crossbeam_epoch::pin();
        let only = self.inner.find_first(&guard);
        let old = only.located.leaf;
        if only.high.is_some() || D::count(self, self.leaf(old)) > 0 {
            return Err(InsertError::KeyExists);
        }
        let mut chain: Chain<K, V> = Chain {
            leaves: Vec::new(),
            lows: Vec::new(),
            pairs: Vec::new(),
            entries: 0,
        };
        if let Err(e) = self.build(sorted, fill.of(self.design.capacity()), &mut chain) {
            self.discard(chain);
            return Err(e);
        }
        let Some(&first) = chain.leaves.first() else {
            return Ok(0);
        };
        let lows = chain
            .lows
            .drain(..)
            .skip(1)
            .zip(chain.leaves.iter().copied().skip(1));
        let inner = match InnerIndex::from_sorted(first, lows, INNER_FILL, self.pm().capacity()) {
            Ok(inner) => inner,
            Err(e) => {
                self.discard(chain);
                return Err(InsertError::Space(bristlecone_pmem::SpaceError::io(
                    "building the inner nodes",
                    std::io::Error::other(e.to_string()),
                )));
            }
        };
        let pm = self.pm();
        // PERSIST: all leaves and records, before the head word that leads to them.
        pm.fence();
        // PERSIST: (in `publish`) the head word; the loaded leaves are the tree.
        self.root()
            .word(HEAD)
            .publish(pm, link::word(offset(first)));
        self.inner = inner;
        self.heap.retire(POff::new(offset(old)), &guard);
        let positions = Positions::spread::<M>(chain.leaves.into_iter());
        positions.save(self.root());
        self.set_positions(positions);
        self.commit()?;
        Ok(chain.entries)
    }

    fn build<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        sorted: impl Iterator<Item = (Q, W)>,
        per_leaf: usize,
        chain: &mut Chain<K, V>,
    ) -> Result<(), InsertError> {
        let mut last: Option<Q> = None;
        // `chain.pairs` has the pairs of the leaf that is being filled.
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
            let pair = self.make_pair(key.borrow(), value.borrow(), key.borrow().hash())?;
            chain.pairs.push(pair);
            chain.entries += 1;
            last = Some(key);
        }
        if !chain.pairs.is_empty() {
            self.seal(chain)?;
        }
        Ok(())
    }

    /// Writes the gathered pairs as the next leaf of the chain.
    fn seal(&self, chain: &mut Chain<K, V>) -> Result<(), InsertError> {
        let pm = self.pm();
        let new = handle(self.new_leaf()?);
        let leaf = self.leaf(new);
        D::fill(self, leaf, &chain.pairs);
        chain.pairs.clear();
        // PERSIST: the leaf, fenced before the head word is published.
        D::flush_filled(self, leaf);
        if let Some(before) = chain.leaves.last() {
            let (word, value) = D::link(self, self.leaf(*before), offset(new));
            // ORDERING: Relaxed; as above.
            word.store(pm, value, Ordering::Relaxed);
            // PERSIST: the link, fenced before the head word is published.
            pm.flush_of(word);
        }
        chain.leaves.push(new);
        Ok(())
    }

    fn discard(&self, chain: Chain<K, V>) {
        for pair in chain.pairs {
            self.free_pair(pair);
        }
        for leaf in chain.leaves {
            D::for_each(self, self.leaf(leaf), |_, key, value| {
                K::discard(&self.heap, key);
                V::discard(&self.heap, value);
            });
            self.heap.free(POff::new(offset(leaf)));
        }
    }
}
