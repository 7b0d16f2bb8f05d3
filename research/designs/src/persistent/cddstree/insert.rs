//! Insertion and replacement: room among the sorted entries, a new entry, the new version.

use super::node::{Entry, end_word};
use super::read::Seek;
use super::{CddsTree, LEVELS, Writer, corrupt};
use crate::common::{commit_inserts, make_pair};
use crate::index::{IfPresent, InsertError};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;
use std::sync::atomic::Ordering;

/// The path from the root to a leaf that the writer took.
pub(super) struct Path {
    /// By level: the node.
    pub nodes: [u32; LEVELS],
    /// By level: the slot of the child on the path.
    pub slots: [u16; LEVELS],
    /// Level of the root.
    pub top: usize,
}

/// An entry to be put into a leaf.
#[derive(Clone, Copy)]
pub(super) struct Change {
    /// The key and value words, and the version in progress.
    pub entry: Entry,
    /// Number of slots before it.
    pub place: usize,
    /// The slot of the entry that it replaces.
    pub old: Option<usize>,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> CddsTree<K, V, M> {
    /// Descends to the leaf of `key`. For the writer.
    ///
    /// # Errors
    /// The pool is corrupt.
    pub(super) fn path(&self, key: &K) -> Result<Path, SpaceError> {
        let top = self.top();
        let mut path = Path {
            nodes: [top.handle; LEVELS],
            slots: [0; LEVELS],
            top: top.level.into(),
        };
        for level in (1..=path.top).rev() {
            let node = self.node(path.nodes[level]);
            let slot = self.route(node, Seek::At(key), || true).ok().flatten();
            let slot = slot.ok_or_else(corrupt)?;
            // ORDERING: Relaxed; only the writer changes it.
            let word = node.slots[slot].value.load(self.pm(), Ordering::Relaxed);
            path.slots[level] = slot as u16;
            path.nodes[level - 1] = self.child(word).ok_or_else(corrupt)?;
        }
        Ok(path)
    }

    /// Makes the words of a pair, with their records. If this fails, nothing stays allocated.
    pub(super) fn make_pair(&self, key: &K, value: &V) -> Result<(u64, u64), SpaceError> {
        make_pair(&self.heap, key, value)
    }

    pub(super) fn free_pair(&self, (key, value): (u64, u64)) {
        K::discard(&self.heap, key);
        V::discard(&self.heap, value);
    }

    /// Inserts, or acts as `present` says. Returns true if the key was present. The caller commits
    /// what was fenced to the medium.
    pub(super) fn put(&self, key: &K, value: &V, present: IfPresent) -> Result<bool, InsertError> {
        let guard = &epoch::pin();
        // Records are made before the lock is taken, but only if the operation can succeed.
        if (K::RECORDS || V::RECORDS) && self.find_word(key).is_some() {
            match present {
                IfPresent::Refuse => return Err(InsertError::KeyExists),
                IfPresent::Replace => {
                    if self.replace(key, value)? {
                        return Ok(true);
                    }
                }
            }
        }
        let pair = self.make_pair(key, value)?;
        let mut writer = lock(&self.writer);
        let done = self.put_pair(&mut writer, key, pair, present, guard);
        drop(writer);
        match done {
            Ok(false) => {}
            // The key has a record already.
            Ok(true) => K::discard(&self.heap, pair.0),
            Err(_) => self.free_pair(pair),
        }
        done
    }

    fn put_pair(
        &self,
        writer: &mut Writer,
        key: &K,
        pair: (u64, u64),
        present: IfPresent,
        guard: &Guard,
    ) -> Result<bool, InsertError> {
        let path = self.path(key)?;
        let leaf = self.node(path.nodes[0]);
        if let Some(old) = leaf.find(self.pm(), key, || true).flatten() {
            if present == IfPresent::Refuse {
                return Err(InsertError::KeyExists);
            }
            self.replace_at(writer, &path, key, old, pair.1, guard)?;
            return Ok(true);
        }
        let change = Change {
            entry: Entry::live(pair.0, pair.1, writer.version + 1),
            place: leaf.bound(self.pm(), key, true, || true).unwrap_or(0),
            old: None,
        };
        self.change_leaf(writer, &path, change, guard)?;
        writer.entries += 1;
        Ok(false)
    }

    /// Replaces the value of `key`. Returns false if the key is absent. The caller commits what was
    /// fenced to the medium.
    pub(super) fn replace(&self, key: &K, value: &V) -> Result<bool, SpaceError> {
        let guard = &epoch::pin();
        if V::RECORDS && self.find_word(key).is_none() {
            return Ok(false);
        }
        let value = value.make(&self.heap)?;
        let done = {
            let writer = &mut *lock(&self.writer);
            self.path(key).and_then(|path| {
                let leaf = self.node(path.nodes[0]);
                match leaf.find(self.pm(), key, || true).flatten() {
                    Some(old) => self
                        .replace_at(writer, &path, key, old, value, guard)
                        .map(|()| true),
                    None => Ok(false),
                }
            })
        };
        if !matches!(done, Ok(true)) {
            V::discard(&self.heap, value);
        }
        done
    }

    /// Ends the entry in slot `old` of the leaf and begins one with the value word `value`. Returns
    /// the old value.
    fn replace_at(
        &self,
        writer: &mut Writer,
        path: &Path,
        key: &K,
        old: usize,
        value: u64,
        guard: &Guard,
    ) -> Result<(), SpaceError> {
        let leaf = self.node(path.nodes[0]);
        let before = leaf.entry(self.pm(), old);
        let change = Change {
            entry: Entry::live(before.key, value, writer.version + 1),
            place: leaf.bound(self.pm(), key, true, || true).unwrap_or(0),
            old: Some(old),
        };
        self.change_leaf(writer, path, change, guard)?;
        V::retire(&self.heap, before.value, guard);
        Ok(())
    }

    /// Changes a leaf, which splits if it is full, and commits the change's version.
    ///
    /// # Errors
    /// [`SpaceError`] when there is no room for new nodes. Nothing has changed then.
    fn change_leaf(
        &self,
        writer: &mut Writer,
        path: &Path,
        change: Change,
        guard: &Guard,
    ) -> Result<(), SpaceError> {
        let pm = self.pm();
        let v = change.entry.start;
        let leaf = self.node(path.nodes[0]);
        let Some(room) = leaf.room(pm, change.place, v) else {
            return self.split(writer, path, change, guard);
        };
        let locked = self.locks.lock(path.nodes[0]);
        let at = leaf.make_room(pm, room);
        if let Some(old) = change.old.map(|old| room.moved(old)) {
            // ORDERING: Relaxed; readers validate the node's version.
            leaf.slots[old]
                .end
                .store(pm, end_word(v), Ordering::Relaxed);
            if old / 2 != at / 2 {
                // PERSIST: the end of the old entry. If it shares the new entry's line, the flush
                // below covers it.
                pm.flush_of(&leaf.slots[old].end);
            }
        }
        leaf.put(pm, at, change.entry);
        // PERSIST: the new entry and its records, before its version is committed.
        pm.persist(&leaf.slots[at]);
        self.commit_version(writer, v);
        // After the fence, so that others see only what survives a crash.
        locked.unlock();
        Ok(())
    }

    /// Inserts a batch, with one commit to the medium.
    pub(super) fn insert_batch<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        pairs: &[(Q, W)],
        out: &mut Vec<Result<(), InsertError>>,
    ) {
        out.clear();
        out.extend(pairs.iter().map(|(key, value)| {
            let (key, value) = (key.borrow(), value.borrow());
            self.check_pair(key, value)?;
            self.put(key, value, IfPresent::Refuse).map(drop)
        }));
        commit_inserts(out, || self.commit());
    }
}
