//! Insertion and replacement: room among the sorted entries, a new entry, the version.

use super::node::Entry;
use super::read::Seek;
use super::{CddsTree, LEVELS, Writer, corrupt};
use crate::index::InsertError;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;
use std::sync::atomic::Ordering;

/// What to do with a key that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfPresent {
    /// Report [`InsertError::KeyExists`].
    Refuse,
    /// Put the new value in its place.
    Replace,
}

/// The way from the root to a leaf, as the writer went it.
pub(super) struct Path {
    /// By level: the node.
    pub nodes: [u32; LEVELS],
    /// By level: the slot of the child that the way goes on to.
    pub slots: [u16; LEVELS],
    /// Level of the root.
    pub top: usize,
}

/// An entry that is to be put into a leaf.
#[derive(Clone, Copy)]
pub(super) struct Change {
    /// The key and value words and the version in progress.
    pub entry: Entry,
    /// Slots that come before it.
    pub place: usize,
    /// The slot of the entry that it takes the place of.
    pub old: Option<usize>,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> CddsTree<K, V, M> {
    /// Goes down to the leaf of `key`. For the writer.
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
            // ORDERING: Relaxed; the writer alone changes it.
            let word = node.slots[slot].value.load(self.pm(), Ordering::Relaxed);
            path.slots[level] = slot as u16;
            path.nodes[level - 1] = self.child(word).ok_or_else(corrupt)?;
        }
        Ok(path)
    }

    /// Makes the words for a pair, records and all; nothing is allocated if it fails.
    pub(super) fn make_pair(&self, key: &K, value: &V) -> Result<(u64, u64), SpaceError> {
        let key = key.make(&self.heap)?;
        let value = value
            .make(&self.heap)
            .inspect_err(|_| K::discard(&self.heap, key))?;
        Ok((key, value))
    }

    pub(super) fn free_pair(&self, (key, value): (u64, u64)) {
        K::discard(&self.heap, key);
        V::discard(&self.heap, value);
    }

    /// Inserts, or does as `present` says. True if the key was there. What it fenced is still to be
    /// committed to the medium.
    pub(super) fn put(&self, key: &K, value: &V, present: IfPresent) -> Result<bool, InsertError> {
        let guard = &epoch::pin();
        // Records are made before the lock is taken, but not for nothing.
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
            // The key's record is there already.
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

    /// Replaces the value of `key` if it is there: false if not. What it fenced is still to be committed
    /// to the medium.
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

    /// Ends the entry in slot `old` of the leaf and begins one with the value word `value`; gives the old
    /// value back.
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

    /// Makes a change to a leaf, which splits if it is full, and commits its version.
    ///
    /// # Errors
    /// [`SpaceError`] when there is no room for new nodes; nothing has changed then.
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
            leaf.slots[old].end.store(pm, v, Ordering::Relaxed);
            if old / 2 != at / 2 {
                // PERSIST: the end of the old entry; if it shares the new one's line, that flush does.
                pm.flush_of(&leaf.slots[old].end);
            }
        }
        leaf.put(pm, at, change.entry);
        // PERSIST: the new entry and what its words lead to, before its version is committed.
        pm.persist(&leaf.slots[at]);
        self.commit_version(writer, v);
        // After the fence: what others see now, a crash keeps.
        locked.unlock();
        Ok(())
    }

    /// Inserts a batch; the commit to the medium is shared.
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
        if out.iter().any(Result::is_ok)
            && let Err(e) = self.commit()
        {
            for result in out.iter_mut().filter(|result| result.is_ok()) {
                *result = Err(e.duplicate().into());
            }
        }
    }
}
