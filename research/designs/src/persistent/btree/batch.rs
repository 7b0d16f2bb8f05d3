//! Batched lookups, interleaved (UCSC-CRSS-20-01, section 6.1): all descents advance together, one
//! node at a time, so that their misses overlap.
//!
//! ```text
//! key 0:  choose a child, ask for it |                           | read it, choose a child, ask for it | ...
//! key 1:                             | choose a child, ask for it |                                    | ...
//! ```
//!
//! Before its next turn, a lookup touches neither the node that it prefetched nor that node's lock.
//! It therefore descends hand over hand one turn later than a lone descent: at its turn it reads
//! the version of the node that it arrives at, and then validates the node before, in which it
//! chose the child a turn ago.

use super::BTree;
use super::find::Step;
use super::kind::{FoundOf, Kind, Leaf};
use super::node::MAX_LEVEL;
use crate::repr::{Stored, StoredKey};
use crate::version_lock::VersionLocks;
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace};
use crossbeam_epoch as epoch;
use std::borrow::Borrow;

/// Keys of a batch that descend together.
const TOGETHER: usize = 32;

/// A lookup between two turns.
#[derive(Clone, Copy, Debug, Default)]
struct OnItsWay {
    /// The inner node in which the lookup chose the child.
    from: Step,
    /// The child, which is being prefetched.
    to: u32,
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind> BTree<K, V, M, D> {
    /// Looks up a batch.
    pub(super) fn get_batch<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        out.clear();
        out.reserve(keys.len());
        for keys in keys.chunks(TOGETHER) {
            let _pin = Self::RECORDS.then(epoch::pin);
            let top = self.start();
            let level = self.node(top.at).level(self.pm()).min(MAX_LEVEL);
            // A lookup that meets a change or an impossible value is repeated alone afterwards.
            let mut lookups = [None; TOGETHER];
            if level > 0 {
                for (key, lookup) in keys.iter().zip(&mut lookups) {
                    *lookup = self.choose(top, key.borrow());
                }
            }
            for level in (1..level).rev() {
                for (key, lookup) in keys.iter().zip(&mut lookups) {
                    let turn = |on: OnItsWay| {
                        let step = self.arrive(&on, level)?;
                        self.choose(step, key.borrow())
                    };
                    *lookup = lookup.and_then(turn);
                }
            }
            for (key, lookup) in keys.iter().zip(lookups) {
                let key = key.borrow();
                let word = match lookup.and_then(|on| self.find_at(&on, key)) {
                    Some(found) => found.map(|found| found.value),
                    None => self.find_word(key),
                };
                out.push(word.and_then(|word| V::read(self.pm(), word, ToOwned::to_owned)));
            }
        }
    }

    /// Chooses the child of an inner node that leads to `key`, and prefetches it.
    #[inline(always)]
    fn choose(&self, mut from: Step, key: &K) -> Option<OnItsWay> {
        let (pm, node) = (self.pm(), self.node(from.at).inner::<K>());
        from.child = node.route(pm, key);
        let to = self.handle(node.child(pm, from.child))?;
        self.prefetch(to);
        self.locks.prefetch(to);
        let (region, access) = (DramRegion::Locks, DramAccess::Prefetch);
        M::Dram::touch(region, access, VersionLocks::place(to), 8);
        Some(OnItsWay { from, to })
    }

    /// Arrives at the prefetched node, which is of this level if all is well.
    #[inline(always)]
    fn arrive(&self, on: &OnItsWay, level: usize) -> Option<Step> {
        // The version comes first: it was read while the parent led there.
        let version = self.version(on.to);
        let step = Step {
            at: on.to,
            version,
            child: 0,
        };
        let led_there = self.locks.validate(on.from.at, on.from.version);
        (led_there && self.node(on.to).level(self.pm()) == level).then_some(step)
    }

    /// Searches the prefetched leaf for `key`. Returns `None` if the lookup has to be repeated
    /// alone.
    #[inline(always)]
    fn find_at(&self, on: &OnItsWay, key: &K) -> Option<Option<FoundOf<K, V>>> {
        let leaf = self.arrive(on, 0)?;
        let found = D::Leaf::find::<K, V, M>(self.node(leaf.at), self.pm(), key);
        self.locks.validate(leaf.at, leaf.version).then_some(found)
    }
}
