//! Descriptors: their form in the pool, and building an operation before it is published.
//!
//! The words of an operation are collected in volatile memory, sorted, and then written to the
//! descriptor, once. So the pool has nothing of an operation that is discarded, or never executed.
//! See the module's head for the layout (invariants 2, 4 and 5 are kept here).

use super::area::DescriptorPool;
use super::encoding::{Entry, GENERATION, MAX_WORDS, Policy, State, Status};
use super::error::{ExecuteError, Exhausted, WordError};
use super::operation::{Word, check_recycled, plain};
use super::protocol::Decided;
use crate::cell::PWord;
use crate::media::Media;
use crate::planted;
use crate::sync::{PATIENT_TURNS, pause, simulates, worker};
use crossbeam_epoch as epoch;
use std::fmt;
use std::sync::atomic::Ordering;

/// How often a thread that is pinned itself asks the epoch to move on before a pool counts as
/// exhausted.
const OWN_PATIENCE: usize = 256;

impl<M: Media> DescriptorPool<M> {
    /// Writes an operation and makes it durable: undecided, or decided by its pointer if it has one
    /// word.
    fn publish(&self, number: usize, words: &mut [Word]) -> Status {
        let pm = self.pm();
        let late = planted!(pm, "pmwcas-sorted-late");
        // Most callers add words in that order.
        if !late && !words.is_sorted_by_key(|word| word.entry.place) {
            words.sort_unstable_by_key(|word| word.entry.place);
        }
        let policies = |words: &[Word]| {
            let all = words.iter().enumerate();
            all.fold(0, |bits, (i, word)| bits | (word.policy as u64) << (2 * i))
        };
        // ORDERING (both): Relaxed; a descriptor's next generation belongs to the thread that has
        // taken it, and the lists that it was taken from order that.
        let generation = self.next[number].load(Ordering::Relaxed);
        self.next[number].store(generation.wrapping_add(1) & GENERATION, Ordering::Relaxed);
        for (i, word) in words.iter().enumerate() {
            self.write_entry(number, i, &word.entry);
        }
        // PERSIST: what is in a line, before the word that says that it counts (invariant 4).
        pm.store_fence();
        for line in 1..words.len().div_ceil(2) {
            // ORDERING: Relaxed; for recovery alone.
            self.generation(number, line)
                .store(pm, generation, Ordering::Relaxed);
        }
        let single = matches!(words, [word] if word.policy == Policy::None);
        let state = if single {
            State::Succeeded
        } else {
            State::Undecided
        };
        let status = Status::new(state, generation, words.len(), policies(words));
        // ORDERING: Release; pairs with the Acquire loads of helpers, who read the entries after
        // it.
        self.status(number).store(pm, status.0, Ordering::Release);
        let lines = words.len().div_ceil(2);
        if M::PERSISTENT {
            // PERSIST: the whole descriptor, before any word leads to it: recovery finds what a
            // pointer stands for.
            pm.flush(self.status(number).addr(), lines * crate::media::LINE);
        }
        self.fence();
        if late {
            words.sort_unstable_by_key(|word| word.entry.place);
            for (i, word) in words.iter().enumerate() {
                self.write_entry(number, i, &word.entry);
            }
            let status = Status::new(state, generation, words.len(), policies(words));
            self.status(number).store(pm, status.0, Ordering::Release);
            return status;
        }
        status
    }

    /// Executes the policies of an ended operation, whose descriptor no thread reads any more.
    fn recycle_blocks(&self, number: usize) {
        // ORDERING: Acquire; pairs with the Release with which the status was decided.
        let status = Status(self.status(number).load(self.pm(), Ordering::Acquire));
        if status.policies() == 0 || status.is(State::Free) {
            return;
        }
        let blocks: Vec<u64> = self.blocks(number, status).collect();
        let pm = self.pm();
        let free_first = planted!(pm, "pmwcas-free-first");
        if !free_first {
            blocks.iter().for_each(|block| self.recycle.release(*block));
        }
        let word = self.status(number);
        // ORDERING: Release; pairs with the Acquire of `held_blocks`.
        word.store(pm, status.with(State::Free).0, Ordering::Release);
        // PERSIST: the descriptor names its blocks no longer, before they are used again and before
        // its entries change (invariant 5).
        self.persist(word);
        if free_first {
            blocks.iter().for_each(|block| self.recycle.release(*block));
        }
        blocks.iter().for_each(|block| self.recycle.reuse(*block));
        if planted!(pm, "pmwcas-recycled-twice") {
            blocks.iter().for_each(|block| self.recycle.reuse(*block));
        }
    }

    /// Returns a descriptor for one operation. Blocks that its words' policies recycle go to the
    /// allocator that [`create`](Self::create) was given; recovery must know it before it meets the
    /// first descriptor, so it cannot be given here.
    ///
    /// # Errors
    /// [`Exhausted`] if no descriptor comes back for some six seconds; soon, if the thread is
    /// pinned itself, which keeps its own ones from coming back.
    pub fn allocate_descriptor(&self) -> Result<Descriptor<'_, M>, Exhausted> {
        match self.try_allocate_descriptor() {
            Some(descriptor) => Ok(descriptor),
            None => self.wait_for_descriptor(),
        }
    }

    #[cold]
    fn wait_for_descriptor(&self) -> Result<Descriptor<'_, M>, Exhausted> {
        let pinned = epoch::is_pinned() && !simulates();
        let turns = if pinned { OWN_PATIENCE } else { PATIENT_TURNS };
        for turn in 0..turns {
            self.lists.turn(&epoch::pin());
            pause(if pinned { 0 } else { turn });
            if let Some(descriptor) = self.try_allocate_descriptor() {
                return Ok(descriptor);
            }
        }
        Err(Exhausted {
            descriptors: self.descriptors,
        })
    }

    /// As [`allocate_descriptor`](Self::allocate_descriptor), without waiting: `None` if there is
    /// none right now. For a pinned thread, which would wait for itself.
    pub fn try_allocate_descriptor(&self) -> Option<Descriptor<'_, M>> {
        // Explored crash states do not depend on which thread explores them.
        let first = if self.pm().tiny() { 0 } else { worker() };
        let taken = self.lists.take(first)?;
        if taken.used {
            self.recycle_blocks(taken.number);
        }
        Some(Descriptor {
            pool: self,
            number: taken.number,
            count: 0,
            stage: Stage::Building,
        })
    }

    /// Recycles everything of ended operations at once, for a clean close, before an allocator
    /// saves what is in use. Meanwhile no thread uses a descriptor, reads one of their words, or
    /// holds a reference to a block that a policy recycles. Operations that a panic cut short are
    /// finished first.
    pub fn quiesce(&mut self) {
        for number in 0..self.descriptors {
            if self.lists.abandoned(number) {
                self.end_abandoned(number);
            }
        }
        for number in 0..self.descriptors {
            if self.lists.held(number) {
                self.recycle_blocks(number);
            }
        }
        // Deferred work that the epochs still hold refers to the old lists.
        self.lists = std::sync::Arc::new(super::lists::Lists::all_free(
            self.descriptors,
            self.per_thread,
        ));
    }

    /// Recycles everything of ended operations that no thread can read any more, without waiting,
    /// for a caller that is out of space. Returns how many blocks that were. The caller should not
    /// be pinned.
    pub fn recycle_ready(&self) -> usize {
        let mut blocks = 0;
        self.lists.turn(&epoch::pin());
        while let Some(number) = self.lists.take_with_policy() {
            // ORDERING: Acquire; as in `recycle_blocks`.
            let status = Status(self.status(number).load(self.pm(), Ordering::Acquire));
            if !status.is(State::Free) {
                blocks += self.blocks(number, status).count();
            }
            self.recycle_blocks(number);
            self.lists.give(number);
        }
        blocks
    }

    /// Returns the blocks that policies of ended operations will recycle, for checks of an
    /// allocator. No operation may be under way.
    #[must_use]
    pub fn held_blocks(&self) -> Vec<u64> {
        let held = (0..self.descriptors).filter(|number| self.lists.held(*number));
        held.flat_map(|number| {
            // ORDERING: Acquire; as in `recycle_blocks`.
            let status = Status(self.status(number).load(self.pm(), Ordering::Acquire));
            let ended = status.is(State::Succeeded) || status.is(State::Failed);
            let blocks: Vec<u64> = self.blocks(number, status).collect();
            blocks.into_iter().filter(move |_| ended)
        })
        .collect()
    }
}

/// One operation, from its allocation to [`execute`](Self::execute) or [`discard`](Self::discard),
/// which is also what dropping it does.
pub struct Descriptor<'p, M: Media> {
    pool: &'p DescriptorPool<M>,
    number: usize,
    /// Number of words in the pool's scratch for this descriptor, which belongs to this operation
    /// meanwhile.
    count: usize,
    stage: Stage,
}

/// Progress of an operation, for dropping it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Building,
    /// It may be in the pool, and other threads may be at work on it.
    Published,
    Ended,
}

impl<M: Media> fmt::Debug for Descriptor<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptor")
            .field("number", &self.number)
            .field("words", &self.words())
            .finish_non_exhaustive()
    }
}

impl<M: Media> Descriptor<'_, M> {
    fn words(&self) -> &[Word] {
        // SAFETY: 1. this descriptor's words are its own (see `Scratch`); 2. they are changed
        // through `&mut self` only.
        let words = unsafe { &*self.pool.scratch.words(self.number) };
        &words[..self.count]
    }

    /// Returns all of its words, those beyond the operation's included.
    fn words_mut(&mut self) -> &mut [Word; MAX_WORDS] {
        // SAFETY: 1. as in `words`; 2. `&mut self` is the only way to them now.
        unsafe { &mut *self.pool.scratch.words(self.number) }
    }

    fn add(
        &mut self,
        word: &PWord,
        old: u64,
        new: u64,
        policy: Policy,
        open: bool,
    ) -> Result<(), WordError> {
        let place = self.pool.place_of(word)?;
        let entry = Entry {
            place,
            old: plain(old)?,
            new: plain(new)?,
        };
        if self.words().iter().any(|word| word.entry.place == place) {
            return Err(WordError::Duplicate(place));
        }
        if self.count == self.pool.words {
            return Err(WordError::TooMany(self.pool.words));
        }
        let word = Word {
            entry,
            policy,
            open,
        };
        check_recycled(self.words(), &word)?;
        let count = self.count;
        self.words_mut()[count] = word;
        self.count += 1;
        Ok(())
    }

    /// Adds a word that must be `expected` and becomes `desired` (the two may be equal).
    ///
    /// # Errors
    /// [`WordError`]. The operation is as it was. (A reference is aligned, so misalignment is
    /// impossible here.)
    pub fn add_word(&mut self, word: &PWord, expected: u64, desired: u64) -> Result<(), WordError> {
        self.add(word, expected, desired, Policy::None, false)
    }

    /// Adds a word as [`add_word`](Self::add_word) does, with a policy for the blocks that its
    /// values lead to.
    ///
    /// # Errors
    /// As there.
    pub fn add_word_with(
        &mut self,
        word: &PWord,
        expected: u64,
        desired: u64,
        policy: Policy,
    ) -> Result<(), WordError> {
        self.add(word, expected, desired, policy, false)
    }

    /// Adds a word whose new value is not known yet; [`fill`](Self::fill) sets it.
    ///
    /// # Errors
    /// As [`add_word`](Self::add_word).
    pub fn reserve_entry(
        &mut self,
        word: &PWord,
        expected: u64,
        policy: Policy,
    ) -> Result<(), WordError> {
        self.add(word, expected, 0, policy, true)
    }

    /// Returns the index of a word that is part of the operation.
    fn find(&self, word: &PWord) -> Result<usize, WordError> {
        let addr = word.addr().addr();
        let place = self.pool.place_of(word)?;
        let mut words = self.words().iter();
        words
            .position(|word| word.entry.place == place)
            .ok_or(WordError::Absent(addr))
    }

    /// Gives the new value of a word that was reserved. From [`execute`](Self::execute) or
    /// [`discard`](Self::discard) on its policy holds for it; before, the block is the caller's.
    ///
    /// # Errors
    /// [`WordError`]; the operation is as it was.
    pub fn fill(&mut self, word: &PWord, desired: u64) -> Result<(), WordError> {
        let at = self.find(word)?;
        let word = &self.words()[at];
        if !word.open {
            return Err(WordError::NotReserved(word.entry.place));
        }
        let mut filled = *word;
        filled.entry.new = plain(desired)?;
        filled.open = false;
        let (before, after) = (&self.words()[..at], &self.words()[at + 1..]);
        check_recycled(before, &filled).and_then(|()| check_recycled(after, &filled))?;
        self.words_mut()[at] = filled;
        Ok(())
    }

    /// Removes a word from the operation. Recycles nothing.
    ///
    /// # Errors
    /// [`WordError`]; the operation is as it was.
    pub fn remove_word(&mut self, word: &PWord) -> Result<(), WordError> {
        let at = self.find(word)?;
        let count = self.count;
        self.words_mut().copy_within(at + 1..count, at);
        self.count -= 1;
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Returns the number of words of the operation.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true for an operation without words.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Executes the operation. Returns true if all words were as expected and are now as desired,
    /// durably, and false if one was not and none has changed.
    ///
    /// # Errors
    /// [`ExecuteError`]; the operation was discarded.
    pub fn execute(mut self) -> Result<bool, ExecuteError> {
        let open = self.words().iter().find(|word| word.open);
        if let Some(word) = open {
            return Err(ExecuteError::Unfilled(word.entry.place));
        }
        let pool = self.pool;
        let done = match self.count {
            0 => return Err(ExecuteError::Empty),
            count => {
                let guard = epoch::pin();
                // From here on the protocol owns the descriptor, even if this thread panics.
                self.stage = Stage::Published;
                let number = self.number;
                let status = pool.publish(number, &mut self.words_mut()[..count]);
                let decided = if status.single() {
                    pool.execute_single(self.number, status, &guard)
                } else {
                    pool.execute(self.number, status, &guard)
                };
                if status.single() && decided == Decided::Failed {
                    // No word has led to it.
                    pool.lists.give(self.number);
                } else {
                    let policy = status.policies() != 0;
                    pool.lists.retire(self.number, policy, &guard);
                }
                self.stage = Stage::Ended;
                decided == Decided::Succeeded
            }
        };
        pool.counters.executed(self.count, done);
        Ok(done)
    }

    /// Cancels the operation: no word is changed, and new blocks go where they would go if it had
    /// failed.
    pub fn discard(self) {}
}

impl<M: Media> Drop for Descriptor<'_, M> {
    fn drop(&mut self) {
        match self.stage {
            Stage::Building => {}
            Stage::Published => return self.pool.lists.abandon(self.number),
            Stage::Ended => return,
        }
        for word in self.words() {
            let frees = word.policy.frees_new();
            if frees && !word.open && word.entry.new != 0 {
                self.pool.recycle.release(word.entry.new);
                self.pool.recycle.reuse(word.entry.new);
            }
        }
        self.pool.lists.give(self.number);
    }
}
