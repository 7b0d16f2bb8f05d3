//! Structural modifications: splits, and the unlinking of emptied nodes.
//!
//! Persist cost of a split, beyond its log (under [`WholeNodes`](super::change::WholeNodes) two
//! whole nodes, or the root): the new node's lines, 1 or 2 of the node that is split, and those of
//! the parent from the new separator on; 4 fences in all, log included. Unlinking: the parent's
//! lines from the separator on, and 1 of the leaf before; 4 fences. The log of a redo record is
//! shorter, as `change.rs` says.

use super::BTree;
use super::change::Overwritten;
use super::find::{Corrupt, Next, Step};
use super::kind::{FoundOf, Kind, Leaf, insert_at, overwritten_from};
use super::node::{HEADER, MAX_LEVEL, Node, meta, sort_words, sum_of, sum_of_child};
use crate::link;
use crate::repr::{PairOf, Stored, StoredKey, Word, WordOf};
use crate::version_lock::LockedAll;
use bristlecone_pmem::{Media, POff, SpaceError};
use crossbeam_epoch::{self as epoch, Guard};

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind> BTree<K, V, M, D> {
    /// Locks these nodes at the versions that a descent read, without waiting. Returns `None` if
    /// one has changed.
    fn lock_all(&self, steps: &[Step]) -> Option<LockedAll<'_>> {
        self.pm().interleave();
        (self.locks).try_lock_all(steps.iter().map(|step| (step.at, step.version)))
    }

    /// Makes room in the full leaf `full` that `key` belongs to: splits the highest node of the run
    /// of full ones above it, or the leaf itself. The caller tries again, until the leaf itself is
    /// split.
    pub(super) fn make_room(&self, key: &K, full: Step) -> Result<(), SpaceError> {
        let pm = self.pm();
        let path = self.path_to(key).map_err(Corrupt::into_error)?;
        if path.leaf.at != full.at || path.leaf.version != full.version {
            return Ok(()); // another thread has split it
        }
        // From the leaf up while the parent is full too.
        let mut child = path.leaf;
        for parent in path.inner().iter().rev() {
            let node = self.node(parent.at).inner::<K>();
            if node.count(pm) < self.inner_capacity() {
                return self.split_child(*parent, child);
            }
            child = *parent;
        }
        self.split_root(child)
    }

    /// Copies the upper half of a full node to a new one. Returns it with the separator, which is a
    /// record of its own for a leaf. The new node is written and flushed.
    fn upper_half(
        &self,
        node: Node<'_>,
        level: usize,
    ) -> Result<(Node<'_>, WordOf<K>, usize), SpaceError> {
        let pm = self.pm();
        let upper = self.new_node()?;
        let (separator, kept) = if level == 0 {
            let mut entries = Vec::with_capacity(self.leaf_capacity());
            self.sorted_entries(node, &mut entries);
            let kept = entries.len() / 2;
            let middle = entries.get(kept).ok_or_else(|| Corrupt.into_error());
            let separator = match middle.and_then(|(key, _)| self.copy_key(*key)) {
                Ok(separator) => separator,
                Err(e) => {
                    self.free_node(upper);
                    return Err(e);
                }
            };
            D::Leaf::fill(upper, pm, &entries[kept..], node.next(pm));
            (separator, kept)
        } else {
            let node = node.inner::<K>();
            let n = node.count(pm);
            // The middle separator moves up, with its record.
            let kept = n / 2;
            let rest: Vec<(K::Word, u64)> = (kept + 1..n)
                .map(|i| (node.key(pm, i), node.value(pm, i)))
                .collect();
            let first = node.value(pm, kept);
            upper.inner::<K>().fill(pm, level, first, &rest);
            (node.key(pm, kept), kept)
        };
        // PERSIST: the new node; one of the change's fences makes it durable before the change
        // counts.
        self.flush_new(upper);
        Ok((upper, separator, kept))
    }

    /// Appends the entries of a leaf in key order. For the holder of its lock.
    pub(super) fn sorted_entries(&self, leaf: Node<'_>, out: &mut Vec<PairOf<K, V>>) {
        let pm = self.pm();
        D::Leaf::entries(leaf, pm, out);
        if !D::Leaf::SORTED {
            sort_words::<K, V, M>(pm, out);
        }
    }

    /// Returns a key word for a separator that equals the key behind `word`.
    pub(super) fn copy_key(&self, word: K::Word) -> Result<K::Word, SpaceError> {
        K::read(self.pm(), word, |key| key.make(&self.heap))
            .unwrap_or_else(|| Err(Corrupt.into_error()))
    }

    /// Splits a full node whose parent has room.
    fn split_child(&self, parent: Step, child: Step) -> Result<(), SpaceError> {
        let pm = self.pm();
        let Some(held) = self.lock_all(&[parent, child]) else {
            return Ok(());
        };
        let (above, node) = (self.node(parent.at).inner::<K>(), self.node(child.at));
        let level = node.level(pm);
        let (upper, separator, kept) = match self.upper_half(node, level) {
            Ok(halved) => halved,
            Err(e) => {
                held.unlock_unchanged();
                return Err(e);
            }
        };
        let [count, keys, children] = overwritten_from(above, parent.child, above.count(pm) + 1);
        let left = Overwritten {
            node,
            from: 0,
            words: if level == 0 {
                D::Leaf::split_words::<K::Word, V::Word>(self.words)
            } else {
                1
            },
        };
        let mut change = self.change_to_new(&[left, count, keys, children]);
        if level == 0 {
            D::Leaf::keep_lower::<K, V, M>(&mut change, pm, node, separator, upper.offset());
        } else {
            let sum = node.inner::<K>().sum_of_first(pm, kept, level);
            change.store(node, 0, meta(kept, level, sum));
        }
        insert_at(
            &mut change,
            pm,
            above,
            parent.child,
            (separator, upper.offset()),
        );
        change.commit();
        held.unlock();
        pm.interleave();
        Ok(())
    }

    /// Splits a full root: its content moves to two new nodes, and the root becomes their parent.
    fn split_root(&self, top: Step) -> Result<(), SpaceError> {
        let pm = self.pm();
        let Some(held) = self.lock_all(&[top]) else {
            return Ok(());
        };
        let node = self.node(top.at);
        let level = node.level(pm);
        let halves = self.upper_half(node, level).and_then(|upper| {
            self.new_node()
                .map(|lower| (lower, upper))
                .inspect_err(|_| {
                    self.free_node(upper.0);
                    if level == 0 {
                        K::discard(&self.heap, upper.1);
                    }
                })
        });
        let (lower, (upper, separator, kept)) = match halves {
            Ok(halves) => halves,
            Err(e) => {
                held.unlock_unchanged();
                return Err(e);
            }
        };
        if level == 0 {
            let mut entries = Vec::with_capacity(self.leaf_capacity());
            self.sorted_entries(node, &mut entries);
            D::Leaf::fill(lower, pm, &entries[..kept], upper.offset());
        } else {
            let node = node.inner::<K>();
            let rest: Vec<(K::Word, u64)> = (0..kept)
                .map(|i| (node.key(pm, i), node.value(pm, i)))
                .collect();
            let first = node.child(pm, 0);
            lower.inner::<K>().fill(pm, level, first, &rest);
        }
        // PERSIST: the lower half, as for the upper one.
        self.flush_new(lower);
        let words = |from, words| Overwritten { node, from, words };
        let root = node.inner::<K>();
        let first = root.value_at(0);
        let header = HEADER + K::Word::WORDS;
        let mut change = self.change_to_new(&[words(0, header), words(first, 1)]);
        let sum = sum_of_child(lower.offset()) ^ sum_of(level + 1, separator, upper.offset());
        change.store(node, 0, meta(1, level + 1, sum));
        change.store(node, 1, lower.offset());
        change.store_wide(node, root.key_at(0), separator);
        change.store(node, first, upper.offset());
        change.commit();
        held.unlock();
        pm.interleave();
        Ok(())
    }

    /// Unlinks and frees the leaf of `key`, which is its only entry, and the inner nodes that have
    /// no other child. This removes the key. Returns `None`, with nothing done, if something
    /// changed meanwhile. The caller retires the entry's records.
    pub(super) fn unlink(&self, key: &K, guard: &Guard) -> Result<Option<FoundOf<K, V>>, Corrupt> {
        let pm = self.pm();
        let path = self.path_to(key)?;
        let Some(fork) = path
            .inner()
            .iter()
            .rposition(|step| self.node(step.at).inner::<K>().count(pm) > 0)
        else {
            // Every node on the path has one child.
            self.collapse(guard)?;
            return Ok(None);
        };
        let above = path.inner()[fork];
        let Ok(before) = self.leaf_before(path.inner())? else {
            return Ok(None);
        };
        // All nodes that change or are freed, except the leaf before, which changes.
        let mut steps = vec![above, path.leaf];
        steps.extend_from_slice(&path.inner()[fork + 1..]);
        steps.extend(before);
        let Some(held) = self.lock_all(&steps) else {
            return Ok(None);
        };
        let (parent, leaf) = (self.node(above.at).inner::<K>(), self.node(path.leaf.at));
        let found = D::Leaf::find::<K, V, M>(leaf, pm, key)
            .filter(|_| D::Leaf::len::<K::Word, V::Word, M>(leaf, pm) == 1);
        let Some(found) = found else {
            held.unlock_unchanged();
            return Ok(None);
        };
        let before = before.map(|step| self.node(step.at));
        if before.is_some_and(|before| before.next(pm) != leaf.offset()) {
            held.unlock_unchanged();
            return Err(Corrupt);
        }
        let n = parent.count(pm);
        // Child 0 takes separator 0 with it, and child i separator i - 1.
        let gone = above.child.saturating_sub(1);
        let separator = parent.key(pm, gone);
        let words = |from, words| Overwritten {
            node: *parent,
            from,
            words,
        };
        // Child 0 is beside the count; the others follow the keys.
        let (header, first) = if above.child == 0 {
            (HEADER, 1)
        } else {
            (1, above.child)
        };
        let mut overwritten = vec![
            words(0, header),
            words(parent.key_at(gone), (n - 1 - gone) * K::Word::WORDS),
            words(parent.child_at(first), n - first),
        ];
        overwritten.extend(before.map(|node| Overwritten {
            node,
            from: 1,
            words: 1,
        }));
        let sum =
            parent.sum(pm) ^ sum_of(parent.level(pm), separator, parent.child(pm, above.child));
        let mut change = self.change(&overwritten);
        for i in gone..n - 1 {
            change.store_wide(*parent, parent.key_at(i), parent.key(pm, i + 1));
        }
        for i in above.child..n {
            change.store(*parent, parent.child_at(i), parent.child(pm, i + 1));
        }
        change.store(*parent, 0, meta(n - 1, parent.level(pm), sum));
        if let Some(before) = before {
            change.store(before, 1, link::word(leaf.next(pm)));
        }
        change.commit();
        held.unlock();
        pm.interleave();
        self.heap.retire(POff::new(leaf.offset()), guard);
        for step in &path.inner()[fork + 1..] {
            self.heap
                .retire(POff::new(self.node(step.at).offset()), guard);
        }
        K::retire(&self.heap, separator, guard);
        if n == 1 && parent.at == self.top {
            // The key is removed. If the pool is corrupt, `verify` reports what is wrong.
            let _ = self.collapse(&epoch::pin());
        }
        Ok(Some(found))
    }

    /// Returns the leaf before the one that `path` leads to: `Ok(None)` inside if that is the
    /// first, `Err` inside if something changed meanwhile.
    fn leaf_before(&self, path: &[Step]) -> Result<Result<Option<Step>, ()>, Corrupt> {
        let pm = self.pm();
        let Some(fork) = path.iter().rposition(|step| step.child > 0) else {
            return Ok(Ok(None));
        };
        let mut step = path[fork];
        step.child -= 1;
        for level in (1..=path.len() - fork).rev() {
            match self.go_down(&step, level)? {
                Next::Child(child) => step = child,
                Next::Again => return Ok(Err(())),
            }
            step.child = if level > 1 {
                self.node(step.at).inner::<K>().count(pm)
            } else {
                0
            };
        }
        Ok(Ok(Some(step)))
    }

    /// While the root has a single child, it takes that child's content over.
    pub(super) fn collapse(&self, guard: &Guard) -> Result<(), Corrupt> {
        let pm = self.pm();
        for _ in 0..=MAX_LEVEL {
            let mut top = self.start();
            let node = self.node(top.at);
            let level = node.level(pm);
            if level == 0 || node.inner::<K>().count(pm) > 0 {
                if self.locks.validate(top.at, top.version) {
                    return Ok(());
                }
                continue;
            }
            top.child = 0;
            let Next::Child(child) = self.go_down(&top, level)? else {
                continue;
            };
            let Some(held) = self.lock_all(&[top, child]) else {
                continue;
            };
            let only = self.node(child.at);
            let mut change = self.change(&[Overwritten {
                node,
                from: 0,
                words: self.words,
            }]);
            for word in 0..self.words {
                change.store(node, word, only.load(pm, word));
            }
            change.commit();
            held.unlock();
            pm.interleave();
            self.heap.retire(POff::new(only.offset()), guard);
        }
        Ok(())
    }
}
