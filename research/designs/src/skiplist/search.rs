//! Search: down the towers, along the bottom list, with a validated last step.
//!
//! A pinned thread meets no reused node: every node that a search reaches was in the list at some
//! moment since the pin. A search starts at the head or at a node that is found to be in the list
//! (a tower may stay longer than its node, so this is checked). The link of a removed node does not
//! change, so it leads to a node that was in the list at the removal. The same holds on each upper
//! level, since towers are linked upwards and unlinked downwards.

use super::node::{MAX_HEIGHT, has_left, target};
use super::{SkipList, Towers, handle};
use crate::repr::{KeyRepr, Repr};
use crate::version_lock::VersionLocks;
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace};
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::cmp::Ordering;

/// The towers before a key, by level; entry 0 is not used.
pub(super) type Path = [u64; MAX_HEIGHT];

/// The place of a key: `pred` leads to `next`, the key of `pred` is smaller, and that of `next` is
/// not. All of it held at one moment at which `pred` was unlocked, so it is durable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near {
    pub pred: u64,
    /// Version of `pred` at that moment.
    pub version: u64,
    /// The next node; 0 at the end.
    pub next: u64,
    /// The value word, if `next` has the key.
    pub found: Option<u64>,
}

/// The successor of a node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// The node has been removed.
    Left,
    /// There is none.
    End,
    /// Another node, with its key and value words.
    To { node: u64, key: u64, value: u64 },
}

/// Number of searches of a batch that advance together.
const LANES: usize = 16;

impl<K, V, M, T> SkipList<K, V, M, T>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
    T: Towers<M>,
{
    /// Compares a key's word with a key.
    #[inline(always)]
    pub(super) fn compare(&self, word: u64, key: &K) -> Ordering {
        // Recovery has checked that every word leads to a key. A corrupt one counts as small, so
        // that searches reach their end.
        K::read(self.pm(), word, |found| found.cmp(key)).unwrap_or(Ordering::Less)
    }

    /// Reports an access to a node's lock.
    #[inline(always)]
    pub(super) fn report_lock(access: DramAccess, node: u64) {
        let place = VersionLocks::place(handle(node));
        M::Dram::touch(DramRegion::Locks, access, place, 8);
    }

    /// Descends the towers to the last one for which `before` holds. Notes where it left each
    /// level, down to `lowest`.
    #[inline(always)]
    pub(super) fn descend(
        &self,
        path: &mut Path,
        lowest: usize,
        before: impl Fn(u64) -> bool,
    ) -> u64 {
        let (towers, nodes) = (&self.towers, &self.nodes);
        let mut at = self.head_tower;
        let mut passed = 0;
        for level in (lowest..=self.top()).rev() {
            loop {
                let next = target(towers.link(nodes, at, level));
                // The key that ended the level above need not be compared again.
                if next == 0 || next == passed {
                    break;
                }
                if !before(towers.key(nodes, next)) {
                    passed = next;
                    break;
                }
                at = next;
            }
            path[level] = at;
        }
        at
    }

    /// Returns the node of the lowest tower on `path` that is in the list.
    #[inline(always)]
    pub(super) fn start(&self, path: &Path, lowest: usize) -> u64 {
        for tower in &path[lowest..=self.top().max(lowest)] {
            let node = self.towers.node(*tower);
            if !has_left(self.nodes.next(node)) {
                return node;
            }
        }
        self.head
    }

    /// Returns an empty path: the head on every level.
    #[inline(always)]
    pub(super) fn path(&self) -> Path {
        [self.head_tower; MAX_HEIGHT]
    }

    /// Moves along the bottom list to the last node before `key`, without reading locks.
    #[inline(always)]
    pub(super) fn approach(&self, mut pred: u64, key: &K) -> u64 {
        loop {
            let next = target(self.nodes.next(pred));
            if next == 0 || self.compare(self.nodes.key(next), key).is_ge() {
                return pred;
            }
            pred = next;
        }
    }

    /// Finds the place of `key`. The caller is pinned.
    #[inline]
    pub(super) fn locate(&self, key: &K, path: &mut Path) -> Near {
        loop {
            self.descend(path, 1, |word| self.compare(word, key).is_lt());
            if let Some(near) = self.settle(self.start(path, 1), key) {
                return near;
            }
        }
    }

    /// Finds the place of `key` from a node before it. Returns `None` if it reaches a removed node.
    #[inline(always)]
    pub(super) fn settle(&self, start: u64, key: &K) -> Option<Near> {
        let mut pred = start;
        loop {
            pred = self.approach(pred, key);
            Self::report_lock(DramAccess::Load, pred);
            self.pm().interleave();
            // This waits for a writer, whose fence comes before its unlock.
            let version = self.locks.read(handle(pred));
            let link = self.nodes.next(pred);
            if has_left(link) {
                return None;
            }
            let next = target(link);
            let order = if next == 0 {
                Ordering::Greater
            } else {
                self.compare(self.nodes.key(next), key)
            };
            let found = order.is_eq().then(|| self.nodes.value(next));
            // A smaller key may have come in between.
            if order.is_ge() && self.locks.validate(handle(pred), version) {
                return Some(Near {
                    pred,
                    version,
                    next,
                    found,
                });
            }
        }
    }

    /// Returns the successor of `pred` at one moment at which `pred` was unlocked.
    #[inline]
    pub(super) fn step(&self, pred: u64) -> Step {
        loop {
            Self::report_lock(DramAccess::Load, pred);
            self.pm().interleave();
            let version = self.locks.read(handle(pred));
            let link = self.nodes.next(pred);
            if has_left(link) {
                return Step::Left;
            }
            let step = if link == 0 {
                Step::End
            } else {
                Step::To {
                    node: link,
                    key: self.nodes.key(link),
                    value: self.nodes.value(link),
                }
            };
            if self.locks.validate(handle(pred), version) {
                return step;
            }
        }
    }

    /// Finds `key` and calls `f` with its value.
    #[inline]
    pub(super) fn find_value<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        let _pinned = epoch::pin();
        let near = self.locate(key, &mut self.path());
        V::read(self.pm(), near.found?, f)
    }

    /// Looks up a batch: several searches take steps in turn, so that their misses overlap.
    pub(super) fn get_batch<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        out.clear();
        out.reserve(keys.len());
        for keys in keys.chunks(LANES) {
            let _pinned = epoch::pin();
            let mut lanes: Vec<Lane> = keys.iter().map(|_| self.lane()).collect();
            loop {
                let mut moving = false;
                for (lane, key) in lanes.iter_mut().zip(keys) {
                    moving |= self.advance(lane, key.borrow());
                }
                if !moving {
                    break;
                }
            }
            out.extend(lanes.iter().zip(keys).map(|(lane, key)| {
                let key = key.borrow();
                let near = (!lane.lost)
                    .then(|| self.settle(lane.at, key))
                    .flatten()
                    .unwrap_or_else(|| self.locate(key, &mut self.path()));
                V::read(self.pm(), near.found?, ToOwned::to_owned)
            }));
        }
    }

    fn lane(&self) -> Lane {
        let level = self.top();
        let mut lane = Lane {
            at: self.head_tower,
            level,
            next: 0,
            passed: 0,
            lost: false,
            done: false,
        };
        if level == 0 {
            self.land(&mut lane);
        } else {
            self.look(&mut lane);
        }
        lane
    }

    /// Prefetches the next tower of a lane.
    fn look(&self, lane: &mut Lane) {
        lane.next = target(self.towers.link(&self.nodes, lane.at, lane.level));
        self.towers.prefetch(&self.nodes, lane.next);
    }

    /// Moves a lane from the towers to the bottom list.
    fn land(&self, lane: &mut Lane) {
        lane.at = self.towers.node(lane.at);
        lane.level = 0;
        lane.next = 0;
        self.nodes.prefetch(lane.at);
    }

    /// Takes one step, to the node that the step before prefetched. Returns false at the end.
    fn advance(&self, lane: &mut Lane, key: &K) -> bool {
        if lane.done {
            return false;
        }
        if lane.level > 0 {
            let next = lane.next;
            if next != 0
                && next != lane.passed
                && self
                    .compare(self.towers.key(&self.nodes, next), key)
                    .is_lt()
            {
                lane.at = next;
                self.look(lane);
            } else if lane.level > 1 {
                lane.passed = next;
                lane.level -= 1;
                self.look(lane);
            } else {
                self.land(lane);
            }
            return true;
        }
        if lane.next == 0 {
            // The lane has just reached the bottom list.
            let link = self.nodes.next(lane.at);
            // A tower may outlive its node; then the search begins again.
            lane.lost = has_left(link);
            lane.next = target(link);
        } else if self.compare(self.nodes.key(lane.next), key).is_lt() {
            lane.at = lane.next;
            lane.next = target(self.nodes.next(lane.at));
        } else {
            lane.done = true;
        }
        lane.done |= lane.lost || lane.next == 0;
        self.nodes.prefetch(lane.next);
        !lane.done
    }
}

/// One search of a batch.
struct Lane {
    /// The tower, or on level 0 the node, before the key.
    at: u64,
    level: usize,
    /// The next one, prefetched.
    next: u64,
    /// The one that ended the level above.
    passed: u64,
    /// True if the node of the towers is no longer in the list.
    lost: bool,
    done: bool,
}
