//! Splitting a full leaf: the part that all designs share. Each design makes it atomic in its own
//! way.

use super::order::{FEW, sort_by_number};
use super::{FEW_ENTRIES, LeafDesign, LeafTree, Moved, Pair, handle};
use crate::common::sort_by;
use crate::repr::{Stored, StoredKey, WordOf};
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch as epoch;
use std::cmp::Ordering as Order;

/// An entry that moves, of keys and values of these types.
type MovedOf<K, V> = Moved<WordOf<K>, WordOf<V>>;

impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    /// Splits a full, locked leaf and inserts the pair into the half that it belongs to.
    ///
    /// # Errors
    /// [`SpaceError`] when there is no room for the new leaf. Nothing has changed then.
    pub(super) fn split(
        &self,
        leaf: &D::Leaf,
        key: &K,
        pair: Pair<K::Word, V::Word>,
    ) -> Result<(), SpaceError> {
        const {
            assert!(
                D::CAPACITY <= FEW_ENTRIES,
                "a design of larger leaves splits by itself"
            )
        };
        let pm = self.pm();
        // One pin for the allocator, the inner index and everything that they free.
        let guard = &epoch::pin();
        let new = handle(self.new_leaf()?);
        let mut all = [Moved::default(); FEW_ENTRIES];
        let upper = self.upper_half(leaf, &mut all);
        let separator = upper[0].key;
        let goes_right = self.compare_to_word(key, separator) != Order::Less;
        D::split(self, leaf, new, upper, pair, goes_right);
        if K::read(pm, separator, |s| self.inner.insert(s, new, guard)).is_none() {
            // The pool has become corrupt: keep the leaf reachable.
            self.inner.insert(key, new, guard);
        }
        pm.interleave();
        self.record_position(new);
        Ok(())
    }

    /// Returns the larger half of a full leaf's entries, in the order of their keys.
    fn upper_half<'a>(
        &self,
        leaf: &D::Leaf,
        all: &'a mut [MovedOf<K, V>; FEW_ENTRIES],
    ) -> &'a [MovedOf<K, V>] {
        let mut n = 0;
        D::for_each(self, leaf, |slot, key, value| {
            all[n] = Moved { key, value, slot };
            n += 1;
        });
        let all = &mut all[..n];
        if K::RECORDS || n > FEW {
            sort_by(all, &mut |a, b| self.compare_words(a.key, b.key));
        } else {
            sort_by_number(all, |moved| moved.key);
        }
        &all[n / 2..]
    }

    /// Returns the order of two key words.
    pub fn compare_words(&self, a: K::Word, b: K::Word) -> Order {
        let pm = self.pm();
        // Words that lead nowhere (a corrupt pool) sort first, in an order of their own: an order
        // that is not total may make sorting panic.
        K::read(pm, a, |a| self.compare_to_word(a, b)).unwrap_or_else(|| {
            if K::read(pm, b, |_| ()).is_some() {
                Order::Less
            } else {
                a.cmp(&b)
            }
        })
    }

    /// Returns the order of a key and a key word.
    pub fn compare_to_word(&self, key: &K, word: K::Word) -> Order {
        K::read(self.pm(), word, |other| key.cmp(other)).unwrap_or(Order::Greater)
    }
}

#[cfg(test)]
mod tests {
    use crate::DurableIndex;
    use crate::lbtree::{LbOptions, LbTree};
    use bristlecone_pmem::media::Dram;
    use bristlecone_pmem::{Pool, PoolOptions};
    use std::cmp::Ordering;
    use std::path::Path;

    /// Two words that led nowhere were each less than the other, and sorting a leaf of a damaged
    /// pool may panic if an order is not total.
    #[test]
    fn words_that_lead_nowhere_have_a_total_order() {
        let pool = Pool::<Dram>::create(Path::new("none"), &PoolOptions::default()).unwrap();
        let tree = LbTree::<[u8], u64, Dram>::create(&pool, "t", &LbOptions::default()).unwrap();
        let nowhere = [u64::MAX - 15, u64::MAX - 31, (1 << 48) - 16];
        for a in nowhere {
            for b in nowhere {
                let (there, back) = (tree.compare_words(a, b), tree.compare_words(b, a));
                assert_eq!(there, back.reverse(), "{a:#x} {b:#x}");
                assert_eq!(there == Ordering::Equal, a == b);
            }
        }
    }
}
