//! Insert, upsert, update, remove: one compare-and-swap puts one delta on top of the leaf's chain.

use super::BwTree;
use super::page::{self, Base, Head, Kind, LeafDelta, Node};
use super::table::PageId;
use crate::index::{IfPresent, InsertError, RemoveError, UpdateError};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch::{self as epoch, Guard};
use std::ptr;

/// A delta to be installed. It is freed if it never is.
struct Draft {
    at: *mut LeafDelta,
    /// The base node of its slot; null if the delta was allocated.
    slot_of: *const Base,
}

impl Draft {
    const fn new() -> Self {
        Self {
            at: ptr::null_mut(),
            slot_of: ptr::null(),
        }
    }

    /// Writes the delta on top of `head`.
    #[inline(always)]
    fn write(&mut self, head: Node<'_>, kind: Kind, count: usize, key: u64, value: u64) {
        let mut top = Head::on(head, kind).with_count(count);
        let base = head.bottom();
        if !self.at.is_null() && !self.slot_of.is_null() && self.slot_of != base.ptr() {
            // The slot is freed with its base node, which has been replaced.
            *self = Self::new();
        }
        if self.at.is_null()
            && let Some(slot) = base.take_slot()
        {
            *self = Self {
                at: slot,
                slot_of: base.ptr(),
            };
        }
        if !self.slot_of.is_null() {
            top = top.in_slot();
        }
        let delta = LeafDelta {
            head: top,
            key,
            value,
        };
        if self.at.is_null() {
            self.at = page::new(delta);
        } else {
            // SAFETY: 1. it was made by `page::new` as this type, or is a slot that was taken, of
            // this size and alignment, in a base node that is not freed while this thread is
            // pinned; 2. it was not installed, so no one else has it.
            unsafe { self.at.write(delta) };
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.at.is_null() && self.slot_of.is_null() {
            // SAFETY: 1. made by `page::new`; 2. never installed, since `install` would have taken
            // it.
            unsafe { page::free(self.at.cast()) };
        }
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BwTree<K, V, M> {
    /// Installs the draft on top of `head`, and does the leaf's chores if they are due. Returns
    /// false if another thread was faster.
    #[inline(always)]
    fn install(&self, page: PageId, head: Node<'_>, draft: &mut Draft, guard: &Guard) -> bool {
        if !self.table.install(page, head.ptr(), draft.at.cast()) {
            return false;
        }
        let delta = std::mem::replace(&mut draft.at, ptr::null_mut());
        // SAFETY: 1. the delta is in the table; 2. this thread is pinned.
        let (top, key) = unsafe { (Node::new(delta.cast()), (*delta).key) };
        let is_emptied = top.count() == 0 && top.kind() == Kind::Delete;
        if top.length() >= self.longest(0) || is_emptied {
            self.look_after(0, key, guard);
        }
        true
    }

    /// Adds a key or replaces its value. Returns true if the key was present.
    pub(super) fn put(
        &self,
        key: &K,
        value: &V,
        if_present: IfPresent,
    ) -> Result<bool, InsertError> {
        let guard = &epoch::pin();
        let hash = key.hash();
        let mut draft = Draft::new();
        let (mut key_word, mut value_word) = (None, None);
        let discard = |key_word: Option<u64>, value_word: Option<u64>| {
            if let Some(word) = key_word {
                K::discard(&self.heap, word);
            }
            if let Some(word) = value_word {
                V::discard(&self.heap, word);
            }
        };
        loop {
            let (page, head) = self.leaf_to_write(self.to_key(key), guard);
            let found = self.find(head, key, hash);
            if found.is_some() && if_present == IfPresent::Refuse {
                discard(key_word, value_word);
                return Err(InsertError::KeyExists);
            }
            let made = (|| {
                let value = or_make(&mut value_word, || value.make(&self.heap))?;
                Ok((
                    value,
                    match found {
                        Some((key, _)) => key,
                        None => or_make(&mut key_word, || key.make(&self.heap))?,
                    },
                ))
            })();
            let (new_value, new_key) = match made {
                Ok(made) => made,
                Err(e) => {
                    let e: SpaceError = e;
                    discard(key_word, value_word);
                    return Err(e.into());
                }
            };
            let (kind, more) = match found {
                Some(_) => (Kind::Update, 0),
                None => (Kind::Insert, 1),
            };
            draft.write(head, kind, head.count() + more, new_key, new_value);
            if self.install(page, head, &mut draft, guard) {
                if found.is_some() {
                    discard(key_word, None);
                }
                return Ok(found.is_some());
            }
        }
    }

    /// Replaces the value of a key.
    pub(super) fn replace(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        let guard = &epoch::pin();
        let hash = key.hash();
        let mut draft = Draft::new();
        let mut value_word = None;
        loop {
            let (page, head) = self.leaf_to_write(self.to_key(key), guard);
            let Some((key_word, _)) = self.find(head, key, hash) else {
                if let Some(word) = value_word {
                    V::discard(&self.heap, word);
                }
                return Err(UpdateError::NotFound);
            };
            let new = or_make(&mut value_word, || value.make(&self.heap))?;
            draft.write(head, Kind::Update, head.count(), key_word, new);
            if self.install(page, head, &mut draft, guard) {
                return Ok(());
            }
        }
    }

    /// Removes a key. Returns true if it was present.
    pub(super) fn take_away(&self, key: &K) -> Result<bool, RemoveError> {
        let guard = &epoch::pin();
        let hash = key.hash();
        let mut draft = Draft::new();
        loop {
            let (page, head) = self.leaf_to_write(self.to_key(key), guard);
            let Some((key, value)) = self.find(head, key, hash) else {
                return Ok(false);
            };
            let count = head.count().saturating_sub(1);
            draft.write(head, Kind::Delete, count, key, value);
            if self.install(page, head, &mut draft, guard) {
                return Ok(true);
            }
        }
    }
}

/// Returns the word that was made before, or makes it.
#[inline(always)]
fn or_make(
    word: &mut Option<u64>,
    make: impl FnOnce() -> Result<u64, SpaceError>,
) -> Result<u64, SpaceError> {
    if let Some(word) = *word {
        return Ok(word);
    }
    let made = make()?;
    *word = Some(made);
    Ok(made)
}
