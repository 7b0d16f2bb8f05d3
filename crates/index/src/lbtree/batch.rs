//! Batched inserts: all searches descend together, and fences are shared.
//!
//! Persist cost of a batch of inserts without splits: the lines of its inserts, each once; 1 fence,
//! and 1 more (shared by all) if some insert wrote a line other than its header's or the pairs have
//! records. 1 commit.

use super::LbDesign;
use super::leaf::Header;
use crate::contract::{IfPresent, InsertError};
use crate::inner::Located;
use crate::leaftree::{LeafTree, Pair, TOGETHER};
use crate::repr::{KeyRepr, Repr};
use crate::version_lock::{Locked, VersionLocks};
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::borrow::Borrow;

/// A leaf that a batch has locked, with its new headers.
struct Held<'t, const B: usize> {
    leaf: u32,
    locked: Locked<'t>,
    durable: [Header; B],
    wanted: [Header; B],
    /// Lines other than header lines that were written, a bit each.
    lines: [u8; B],
    /// The pairs that went here, a bit each.
    pairs: u32,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize>
    LeafTree<LbDesign<B>, K, V, M>
{
    pub(super) fn insert_batches<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        pairs: &[(Q, W)],
        out: &mut Vec<Result<(), InsertError>>,
    ) {
        for pairs in pairs.chunks(TOGETHER) {
            self.insert_together(pairs, out);
        }
    }

    fn insert_together<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        pairs: &[(Q, W)],
        out: &mut Vec<Result<(), InsertError>>,
    ) {
        let guard = epoch::pin();
        let start = out.len();
        out.extend(
            pairs
                .iter()
                .map(|(k, v)| self.check_pair(k.borrow(), v.borrow())),
        );
        let mut located = [Located::default(); TOGETHER];
        let located = &mut located[..pairs.len()];
        let keys: Vec<&K> = pairs.iter().map(|(key, _)| key.borrow()).collect();
        self.locate(&keys, located, &guard);
        let mut held: Vec<Held<'_, B>> = Vec::with_capacity(pairs.len());
        // Pairs that need a split, or whose leaf another thread holds, are inserted one by one
        // afterwards.
        let mut later: Vec<usize> = Vec::new();
        for (i, (_, value)) in pairs.iter().enumerate() {
            if out[start + i].is_err() {
                continue;
            }
            // Of equal keys the first one is inserted, so the others must not overtake it.
            if later.iter().any(|earlier| keys[*earlier] == keys[i]) {
                later.push(i);
                continue;
            }
            match self.place_together(&keys, i, value.borrow(), &located[i], &mut held) {
                Ok(true) => {}
                Ok(false) => later.push(i),
                Err(e) => out[start + i] = Err(e),
            }
        }
        self.publish_together(held);
        drop(guard);
        for i in later {
            let (key, value) = &pairs[i];
            out[start + i] = self
                .put_uncommitted(key.borrow(), value.borrow(), IfPresent::Refuse)
                .map(|_| ());
        }
    }

    /// Writes pair `i` into its leaf without publishing it. Returns false if it must be inserted
    /// alone.
    fn place_together<'t>(
        &'t self,
        keys: &[&K],
        i: usize,
        value: &V,
        at: &Located,
        held: &mut Vec<Held<'t, B>>,
    ) -> Result<bool, InsertError> {
        let (key, pm) = (keys[i], self.pm());
        let hash = key.hash();
        let mine = held.iter().position(|h| h.leaf == at.leaf);
        let mine = match mine {
            // This batch has the lock, but this key may have been located before it was taken.
            Some(mine) if self.is_current(at) => mine,
            Some(_) => return Ok(false),
            None => {
                // Never wait while holding locks; never take a lock that covers a held leaf.
                if held
                    .iter()
                    .any(|h| VersionLocks::same_slot(h.leaf, at.leaf))
                {
                    return Ok(false);
                }
                let Some(locked) = self.try_lock(at) else {
                    return Ok(false);
                };
                let durable = self.leaf(at.leaf).headers(pm);
                let (leaf, wanted) = (at.leaf, durable);
                held.push(Held {
                    leaf,
                    locked,
                    durable,
                    wanted,
                    lines: [0; B],
                    pairs: 0,
                });
                held.len() - 1
            }
        };
        let held = &mut held[mine];
        let leaf = self.leaf(held.leaf);
        if self.search_blocks(leaf, key, hash).is_some()
            || (0..i).any(|j| held.pairs & 1 << j != 0 && keys[j] == key)
        {
            return Err(InsertError::KeyExists);
        }
        // Only slots that the durable header does not count either (invariant 5).
        let usable = |b: usize| held.durable[b].empty() & held.wanted[b].empty();
        let Some(b) = (0..B).find(|&b| usable(b) != 0) else {
            return Ok(false);
        };
        let usable = usable(b);
        let pair: Pair = self.make_pair(key, value, hash)?;
        let place = held.durable[0].place(b);
        let line = self.place(&leaf.blocks[b], place, &mut held.wanted[b], usable, pair);
        if line != place.line() {
            held.lines[b] |= 1 << line;
        }
        held.pairs |= 1 << i;
        Ok(true)
    }

    /// Makes everything that was placed count, and unlocks.
    fn publish_together(&self, held: Vec<Held<'_, B>>) {
        let pm = self.pm();
        let mut other_lines = false;
        for held in &held {
            for (b, lines) in held.lines.iter().enumerate() {
                for line in (0..4).filter(|line| lines & 1 << line != 0) {
                    // PERSIST: new and moved entries, before the headers that make them count.
                    pm.flush(self.leaf(held.leaf).blocks[b].line(line), 64);
                    other_lines = true;
                }
            }
        }
        let any = held.iter().any(|held| held.pairs != 0);
        if other_lines || (Self::RECORDS && any) {
            // PERSIST: those lines, and the pairs' records: one fence for the batch.
            pm.fence();
        }
        for held in &held {
            let leaf = self.leaf(held.leaf);
            for b in 0..B {
                if held.wanted[b] != held.durable[b] {
                    let place = held.durable[0].place(b);
                    leaf.blocks[b].store_header(pm, place, held.wanted[b]);
                    // PERSIST: the NAWs that make the batch's inserts count, each for itself.
                    pm.flush(leaf.blocks[b].line(place.line()), 64);
                }
            }
        }
        if any {
            pm.fence();
        }
        for held in held {
            if held.pairs == 0 {
                held.locked.unlock_unchanged();
            } else {
                held.locked.unlock();
            }
        }
    }
}
