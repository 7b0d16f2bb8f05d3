//! Operations on records (sections 4.2.1 to 4.2.4). Each ends with one multi-word swap that has the
//! leaf's status among its words, so that none succeeds in a frozen leaf.
//!
//! | operation | words of the swap |
//! | --- | --- |
//! | reservation | status: one more entry and its record; metadata: free to reserved |
//! | insertion | status: the same; metadata: reserved to visible |
//! | replacement by another record | status: more deleted; metadata: reserved to visible; the old record's: deleted |
//! | replacement in place | the value; status: touched; metadata: the same |
//! | removal | metadata: deleted; status: more deleted |
//!
//! A value with a block of its own adds memory words: the new record's value word (0 to the block)
//! and the old one's (the block to 0), with the policies that recycle them.
//!
//! *Blocks.* A value's block is written before the leaf is read, and belongs to the operation until
//! a swap has it. A swap that fails recycles it, and the next attempt writes another.

mod completion;

use self::completion::Added;
use super::node::{Form, Meta, Node, Status};
use super::reshape::{Reserved, Want};
use super::room::no_room;
use super::{BzTree, corrupt};
use crate::repr::{KeyRepr, Repr, record_bytes, write_record};
use crate::sync::wait;
use bristlecone_pmem::cell::write_bytes;
use bristlecone_pmem::pmwcas::{Descriptor, FLAGS, Policy, WordError};
use bristlecone_pmem::sync::PATIENT_TURNS;
use bristlecone_pmem::{Media, POff, SpaceError};
use crossbeam_epoch as epoch;
use crossbeam_utils::Backoff;
use std::sync::atomic::Ordering;

/// Operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Insert,
    Update,
    Upsert,
}

/// Outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Inserted,
    Replaced,
    /// The key is present, so nothing was inserted.
    Exists,
    /// The key is absent, so nothing was updated.
    Absent,
}

/// Result of an attempt.
#[derive(Clone, Copy, Debug)]
enum Next<T> {
    Done(T),
    /// Another operation came in between: try again.
    Again,
    /// The leaf must be reshaped first.
    Reshape(Want),
    /// A second descriptor is needed.
    Two,
    /// A block for the value is needed.
    Block,
}

/// How often one operation may meet frozen leaves that there is no room to replace.
const REFUSED: u32 = 64;

/// A pair on its way into a leaf.
struct Pair<'a, K: ?Sized, V: ?Sized> {
    key: &'a K,
    value: &'a V,
    form: Form,
    /// Number of words of the record.
    words: usize,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BzTree<K, V, M> {
    fn pair<'a>(&self, key: &'a K, value: &'a V) -> Pair<'a, K, V> {
        let form = self.form_of(value);
        let value_words = match form {
            Form::Inline => value.bytes().div_ceil(8),
            Form::Word | Form::Block => 1,
        };
        Pair {
            key,
            value,
            form,
            words: key.bytes().div_ceil(8) + value_words,
        }
    }

    /// Returns the words of a pair's record, metadata included.
    pub(super) fn record_words(&self, key: &K, value: &V) -> usize {
        self.pair(key, value).words + 1
    }

    /// Returns the form in which a value is held.
    pub(super) fn form_of(&self, value: &V) -> Form {
        match value.byte_string() {
            Some(bytes) if bytes.len() > self.sizes.inline => Form::Block,
            None if self.number(value) & FLAGS == 0 => Form::Word,
            _ => Form::Inline,
        }
    }

    /// Returns the word of a number.
    pub(super) fn number(&self, value: &V) -> u64 {
        // Numbers need no room.
        value.make(&self.heap).unwrap_or_default()
    }

    /// Returns the metadata of a record of that pair.
    fn meta_of(&self, pair: &Pair<'_, K, V>, offset: usize) -> Meta {
        let value = match pair.form {
            Form::Inline => pair.value.bytes(),
            Form::Word | Form::Block => 0,
        };
        let meta = Meta::of(pair.form, offset, pair.key.bytes(), value);
        self.with_stored(pair.key, |key| match pair.form {
            Form::Inline => self.with_stored(pair.value, |value| meta.checked(key, value)),
            Form::Word | Form::Block => meta.checked(key, &[]),
        })
    }

    /// Calls `f` with the bytes that a record has for a key or an inline value.
    fn with_stored<T: Repr + ?Sized, R>(&self, what: &T, f: impl FnOnce(&[u8]) -> R) -> R {
        match what.byte_string() {
            Some(bytes) => f(bytes),
            // Numbers need no room.
            None => f(&what.make(&self.heap).unwrap_or_default().to_le_bytes()),
        }
    }

    /// Writes a record into its place and flushes it. The swap that makes it visible fences it.
    fn write_pair(&self, leaf: &Node<'_, M>, offset: usize, pair: &Pair<'_, K, V>) {
        let pm = self.pm();
        let at = |word: usize| leaf.word(word);
        let put = |word: usize, value: u64| {
            // ORDERING: Relaxed; published with the metadata.
            at(word).store(pm, value, Ordering::Relaxed);
        };
        let put_bytes = |word: usize, bytes: &[u8]| {
            let to = pm.base().wrapping_add(leaf.off as usize + word * 8);
            // SAFETY: 1. the record is whole words inside the leaf, which had that much free; 2.
            // its entry is reserved for this thread alone, and no thread reads it before its
            // metadata are visible.
            unsafe { write_bytes(pm, to, bytes) };
        };
        match pair.key.byte_string() {
            Some(bytes) => put_bytes(offset, bytes),
            None => put(offset, pair.key.make(&self.heap).unwrap_or_default()),
        }
        let value_at = offset + pair.key.bytes().div_ceil(8);
        match (pair.form, pair.value.byte_string()) {
            (Form::Block, _) => put(value_at, 0),
            (Form::Inline, Some(bytes)) => put_bytes(value_at, bytes),
            _ => put(value_at, self.number(pair.value)),
        }
        if pm.planted("bztree-record-lost") {
            return;
        }
        if pair.words > 0 {
            // PERSIST: the record, by the fence of the descriptor, before the metadata that make it
            // count (crash state 2).
            pm.flush(at(offset).addr(), pair.words * 8);
        }
    }

    /// Makes a block for a value that has one of its own. Flushes it and does not fence. Returns 0
    /// for other values.
    fn make_block(&self, pair: &Pair<'_, K, V>) -> Result<u64, SpaceError> {
        match pair.value.byte_string() {
            Some(bytes) if pair.form == Form::Block => self.block_of(bytes).map(POff::get),
            _ => Ok(0),
        }
    }

    pub(super) fn block_of(&self, bytes: &[u8]) -> Result<POff<u8>, SpaceError> {
        let block = self.blocks.reserve(record_bytes(bytes))?;
        // SAFETY: 1. the block was reserved with that much room; 2. no other thread has its offset.
        unsafe { write_record(self.pm(), block, bytes) };
        Ok(block)
    }

    /// Puts a pair into the tree as `mode` says.
    pub(super) fn put(&self, key: &K, value: &V, mut mode: Mode) -> Result<Done, SpaceError> {
        let pair = self.pair(key, value);
        if mode == Mode::Upsert && self.pm().planted("bztree-upsert-in-two") {
            mode = if self.look_up(key, |_| ()).is_some() {
                Mode::Update
            } else {
                Mode::Insert
            };
        }
        let mut block = self.reservation();
        let backoff = Backoff::new();
        let (mut two, mut refused) = (false, 0);
        loop {
            // Before this thread is pinned, which would keep descriptors from coming back.
            let swaps = if two {
                let (first, second) = self.descriptors(PATIENT_TURNS)?;
                (first, Some(second))
            } else {
                (self.descriptor()?, None)
            };
            let guard = epoch::pin();
            let next = self.try_put(&pair, mode, swaps, &mut block);
            drop(guard);
            match next? {
                Next::Done(done) => return Ok(done),
                Next::Again => wait(&backoff),
                Next::Reshape(want) => self.reshape_for(key, want, &mut refused)?,
                Next::Two => two = true,
                Next::Block => {
                    block.hold(self.with_room(|| self.make_block(&pair)))?;
                }
            }
        }
    }

    /// Reshapes the leaf of a key. A leaf that was frozen and cannot be replaced for want of room
    /// is thawed, which is no failure unless it happens again and again.
    fn reshape_for(&self, key: &K, want: Want, refused: &mut u32) -> Result<(), SpaceError> {
        if want == Want::Help && self.pm().planted("bztree-no-help") {
            return Ok(());
        }
        if want == Want::Help && self.pm().planted("bztree-frozen-refused") {
            return Err(corrupt());
        }
        match self.with_room(|| self.reshape(key, want)) {
            Err(e) if want == Want::Help && no_room(&e) && *refused < REFUSED => {
                *refused += 1;
                Ok(())
            }
            done => done,
        }
    }

    /// Tries to put a pair into the tree. `block` has the value's block, if there is one by now.
    fn try_put<'p>(
        &'p self,
        pair: &Pair<'_, K, V>,
        mode: Mode,
        swaps: (Descriptor<'p, M>, Option<Descriptor<'p, M>>),
        block: &mut Reserved<'_, M>,
    ) -> Result<Next<Done>, SpaceError> {
        let leaf = self.leaf_of(pair.key).ok_or_else(corrupt)?;
        self.in_block(&leaf)?;
        let status = self.status(&leaf);
        if status.frozen() {
            return Ok(Next::Reshape(Want::Help));
        }
        let search = self.search(&leaf, pair.key, status.entries());
        match (search.found, mode) {
            (Some(_), Mode::Insert) => return Ok(Next::Done(Done::Exists)),
            (None, Mode::Update) => {
                // Otherwise the key may have moved to an entry that was added since.
                return Ok(if self.status(&leaf).entries() == status.entries() {
                    Next::Done(Done::Absent)
                } else {
                    Next::Again
                });
            }
            (Some((entry, meta)), _) if meta.form() == pair.form && pair.form != Form::Inline => {
                if pair.form == Form::Block && block.block().is_none() {
                    return Ok(Next::Block);
                }
                let found = (entry, meta);
                let done = self.replace_in_place(&leaf, status, found, pair, swaps.0, block)?;
                return Ok(if done {
                    Next::Done(Done::Replaced)
                } else {
                    Next::Again
                });
            }
            _ => {}
        }
        if leaf.free(status) < pair.words + 1 {
            return Ok(Next::Reshape(Want::Room(pair.words + 1)));
        }
        if pair.form == Form::Block && block.block().is_none() {
            return Ok(Next::Block);
        }
        // This does not wait: this thread, being pinned, may be what keeps descriptors from coming
        // back.
        let Some(second) = swaps.1.or_else(|| self.swaps.try_allocate_descriptor()) else {
            return Ok(Next::Two);
        };
        let own = status.entries();
        let mut reserve = swaps.0;
        let reserved = status.reserve(pair.words);
        let mut words = || -> Result<(), WordError> {
            reserve.add_word(leaf.status(), status.0, reserved.0)?;
            reserve.add_word(leaf.meta(own), Meta::FREE.0, self.reserved().0)
        };
        if !self.swap_of(words(), reserve)? {
            // The entry was reserved together with a change of the status, if it is no longer free.
            let taken = self.swaps.read(leaf.meta(own)) != Meta::FREE.0;
            if taken && self.status(&leaf) == status {
                return Err(corrupt());
            }
            return Ok(Next::Again);
        }
        let offset = leaf.size - reserved.records();
        self.write_pair(&leaf, offset, pair);
        let meta = self.meta_of(pair, offset);
        let added = Added {
            leaf,
            entry: own,
            meta,
            replaces: search.found.is_some(),
            pending: search.pending,
        };
        self.complete(&added, pair, mode, second, block)
    }

    /// Returns the metadata of an entry that this session reserves.
    pub(super) fn reserved(&self) -> Meta {
        Meta::reserved(self.epoch)
    }

    /// Executes a swap whose words were added. Returns an error if the pool's content is
    /// impossible.
    pub(super) fn swap_of(
        &self,
        words: Result<(), WordError>,
        swap: Descriptor<'_, M>,
    ) -> Result<bool, SpaceError> {
        words.map_err(|_| corrupt())?;
        swap.execute().map_err(|_| corrupt())
    }

    /// Replaces a value in place (the paper's update of a record pointer, three words).
    fn replace_in_place(
        &self,
        leaf: &Node<'_, M>,
        status: Status,
        (entry, meta): (usize, Meta),
        pair: &Pair<'_, K, V>,
        mut swap: Descriptor<'_, M>,
        block: &mut Reserved<'_, M>,
    ) -> Result<bool, SpaceError> {
        if !leaf.holds(meta) {
            return Err(corrupt());
        }
        let word = leaf.word(meta.value_at());
        let old = self.swaps.read(word);
        let (new, policy) = match pair.form {
            Form::Block if !self.removable(leaf, status, old)? => return Ok(false),
            Form::Block => (block.block().unwrap_or_default(), Policy::FreeOne),
            _ => (self.number(pair.value), Policy::None),
        };
        let mut words = || -> Result<(), WordError> {
            swap.add_word(leaf.status(), status.0, status.touch().0)?;
            swap.add_word(leaf.meta(entry), meta.0, meta.0)?;
            swap.add_word_with(word, old, new, policy)?;
            // A block now belongs to the swap.
            block.pass_on();
            Ok(())
        };
        self.swap_of(words(), swap)
    }

    /// Checks the block word of a visible record: true for its block, false if the record was
    /// deleted since `status` was read.
    fn removable(
        &self,
        leaf: &Node<'_, M>,
        status: Status,
        block: u64,
    ) -> Result<bool, SpaceError> {
        if self.blocks.is_active(block) {
            Ok(true)
        } else if block == 0 && self.status(leaf) != status {
            Ok(false)
        } else {
            Err(corrupt())
        }
    }

    /// Removes `key`. Returns false if it is absent.
    pub(super) fn take_out(&self, key: &K) -> Result<bool, SpaceError> {
        let backoff = Backoff::new();
        let mut refused = 0;
        loop {
            let swap = self.descriptor()?;
            let guard = epoch::pin();
            let next = self.try_take_out(key, swap);
            drop(guard);
            match next? {
                Next::Done(None) => return Ok(false),
                Next::Done(Some(want)) => {
                    if want != Want::Help {
                        // This can wait if there is no room for it now, or no descriptors.
                        let _ = self.reshape(key, want);
                    }
                    return Ok(true);
                }
                Next::Again | Next::Two | Next::Block => wait(&backoff),
                Next::Reshape(want) => self.reshape_for(key, want, &mut refused)?,
            }
        }
    }

    /// Tries to remove `key`. Returns `Some` if it was removed, with the reshaping that the leaf
    /// needs then ([`Want::Help`] for none).
    fn try_take_out(
        &self,
        key: &K,
        mut swap: Descriptor<'_, M>,
    ) -> Result<Next<Option<Want>>, SpaceError> {
        let leaf = self.leaf_of(key).ok_or_else(corrupt)?;
        self.in_block(&leaf)?;
        let status = self.status(&leaf);
        let Some((entry, meta)) = self.find(&leaf, key) else {
            return Ok(Next::Done(None));
        };
        if status.frozen() {
            return Ok(Next::Reshape(Want::Help));
        }
        let after = status.delete(meta.words() + 1);
        let block = if meta.form() == Form::Block {
            let word = leaf.word(meta.value_at());
            let block = self.swaps.read(word);
            if !leaf.holds(meta) {
                return Err(corrupt());
            }
            if !self.removable(&leaf, status, block)? {
                return Ok(Next::Again);
            }
            Some((word, block))
        } else {
            None
        };
        let mut words = || -> Result<(), WordError> {
            swap.add_word(leaf.status(), status.0, after.0)?;
            swap.add_word(leaf.meta(entry), meta.0, meta.deleted().0)?;
            if let Some((word, block)) = block {
                swap.add_word_with(word, block, 0, Policy::FreeOldOnSuccess)?;
            }
            Ok(())
        };
        if !self.swap_of(words(), swap)? {
            return Ok(Next::Again);
        }
        let live = (after.entries() + after.records()).saturating_sub(after.deleted());
        Ok(Next::Done(Some(if live < self.sizes.merge {
            Want::Merge
        } else if after.deleted() >= self.sizes.deleted {
            Want::Compact
        } else {
            Want::Help
        })))
    }
}
