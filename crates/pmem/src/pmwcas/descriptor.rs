//! Descriptors: what one looks like in the pool, and how an operation is put together before it is published.
//!
//! The words of an operation are collected in volatile memory, sorted, and then written to the descriptor, once.
//! So nothing of an operation that is discarded, or never executed, is in the pool. See the module's head for the
//! layout (invariants 2, 4 and 5 are kept here).

use super::protocol::Decided;
use super::{
    CONDITIONAL, DIRTY, DescriptorPool, ExecuteError, Exhausted, FLAGS, MOST_WORDS, MULTI, Policy,
    WordError,
};
use crate::cell::PWord;
use crate::media::Media;
use crate::sync::{PATIENT_TURNS, pause, simulates, worker};
use crossbeam_epoch as epoch;
use std::cell::UnsafeCell;
use std::fmt;
use std::sync::atomic::Ordering;

/// The generation's bits, where it is by itself.
pub(super) const GENERATION: u64 = (1 << 36) - 1;
const ATTEMPT: u64 = (1 << 22) - 1;
/// Of attempts' numbers, the bit of those that an operation's own thread makes, and counts by itself.
pub(super) const OWN_ATTEMPT: u32 = 1 << 21;
const _: () = assert!(OWN_ATTEMPT as u64 == ATTEMPT / 2 + 1);
const SHORT_GENERATION: u64 = (1 << 20) - 1;
/// How often the epoch is asked to move on before a pool is exhausted, by a thread that is pinned itself.
const OWN_PATIENCE: usize = 256;

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free = 0,
    Undecided = 1,
    Succeeded = 2,
    Failed = 3,
}

/// A status word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Status(pub(super) u64);

impl Status {
    pub(super) fn new(state: State, generation: u64, count: usize, policies: u64) -> Self {
        Self(state as u64 | (count as u64) << 3 | policies << 8 | (generation & GENERATION) << 24)
    }

    /// `None` for what no descriptor holds.
    pub(super) fn state(self) -> Option<State> {
        match self.0 & 7 {
            0 => Some(State::Free),
            1 => Some(State::Undecided),
            2 => Some(State::Succeeded),
            3 => Some(State::Failed),
            _ => None,
        }
    }

    pub(super) fn is(self, state: State) -> bool {
        self.0 & 7 == state as u64
    }

    pub(super) fn with(self, state: State) -> Self {
        Self(self.0 & !(7 | DIRTY) | state as u64)
    }

    pub(super) fn dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// Words of the operation; never more than a descriptor can have.
    pub(super) fn count(self) -> usize {
        ((self.0 >> 3) & 15).min(MOST_WORDS as u64) as usize
    }

    pub(super) fn policies(self) -> u64 {
        self.0 >> 8 & 0xFFFF
    }

    pub(super) fn policy(self, entry: usize) -> Policy {
        match self.policies() >> (2 * entry) & 3 {
            1 => Policy::FreeOne,
            2 => Policy::FreeOldOnSuccess,
            3 => Policy::FreeNewOnFailure,
            _ => Policy::None,
        }
    }

    pub(super) fn generation(self) -> u64 {
        self.0 >> 24 & GENERATION
    }

    /// True for an operation that is decided by the pointer in its only word.
    pub(super) fn single(self) -> bool {
        self.count() == 1 && self.policies() == 0
    }

    /// True if the bits that no status uses are 0.
    pub(super) fn plausible(self) -> bool {
        self.0 >> 60 & 7 == 0 && self.state().is_some() && self.0 >> 3 & 15 == self.count() as u64
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:#x} ({:?}, {} words)",
            self.0,
            self.state(),
            self.count()
        )
    }
}

/// The pointer to a descriptor in one use of it.
pub(super) fn pointer(number: usize, generation: u64) -> u64 {
    MULTI | generation << 16 | number as u64
}

/// The number of the descriptor that a pointer leads to.
pub(super) fn pointed(pointer: u64) -> usize {
    (pointer & 0xFFFF) as usize
}

/// The conditional pointer of one attempt to install a pointer.
pub(super) fn conditional(number: usize, generation: u64, entry: usize, attempt: u32) -> u64 {
    CONDITIONAL
        | (generation & SHORT_GENERATION) << 41
        | (u64::from(attempt) & ATTEMPT) << 19
        | (number as u64) << 3
        | entry as u64
}

/// Descriptor and entry that a conditional pointer leads to.
pub(super) fn condition(word: u64) -> (usize, usize) {
    ((word >> 3 & 0xFFFF) as usize, (word & 7) as usize)
}

/// True if `word` is a conditional pointer to that entry, of any attempt.
pub(super) fn is_attempt(word: u64, number: usize, generation: u64, entry: usize) -> bool {
    word & !(ATTEMPT << 19) == conditional(number, generation, entry, 0)
}

/// One word of an operation, as a descriptor in the pool holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) place: u64,
    pub(super) old: u64,
    pub(super) new: u64,
}

impl<M: Media> DescriptorPool<M> {
    /// The word `field` (place, old, new) of an entry.
    fn field(&self, number: usize, entry: usize, field: usize) -> &PWord {
        let word = entry / 2 * 8 + 1 + entry % 2 * 3 + field;
        self.word(self.descriptor_at(number) + word as u64 * 8)
    }

    /// The place of an entry of a descriptor that is not being written.
    #[inline]
    pub(super) fn place(&self, number: usize, entry: usize) -> u64 {
        // ORDERING: Relaxed; as in `entry`.
        self.field(number, entry, 0)
            .load(self.pm(), Ordering::Relaxed)
    }

    /// An entry of a descriptor that is not being written.
    #[inline]
    pub(super) fn entry(&self, number: usize, entry: usize) -> Entry {
        // ORDERING (all): Relaxed; the pointer or status that led here was read with Acquire.
        let field = |field| {
            self.field(number, entry, field)
                .load(self.pm(), Ordering::Relaxed)
        };
        Entry {
            place: field(0),
            old: field(1),
            new: field(2),
        }
    }

    fn write_entry(&self, number: usize, i: usize, entry: &Entry) {
        for (field, value) in [entry.place, entry.old, entry.new].into_iter().enumerate() {
            // ORDERING: Relaxed; the status, stored after it, has Release.
            self.field(number, i, field)
                .store(self.pm(), value, Ordering::Relaxed);
        }
    }

    /// Writes an operation and makes it durable: undecided, or decided by its pointer if it has one word.
    fn publish(&self, number: usize, words: &mut [Word]) -> Status {
        let pm = self.pm();
        let late = pm.planted("pmwcas-sorted-late");
        // Most callers add words in that order.
        if !late && !words.is_sorted_by_key(|word| word.entry.place) {
            words.sort_unstable_by_key(|word| word.entry.place);
        }
        let policies = |words: &[Word]| {
            let all = words.iter().enumerate();
            all.fold(0, |bits, (i, word)| bits | (word.policy as u64) << (2 * i))
        };
        // ORDERING (both): Relaxed; a descriptor's next generation belongs to whoever has taken it, and the lists that it
        // was taken from order that.
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
        // ORDERING: Release; pairs with the Acquire loads of helpers, who read the entries after it.
        self.status(number).store(pm, status.0, Ordering::Release);
        let lines = words.len().div_ceil(2);
        if M::PERSISTENT {
            // PERSIST: the whole descriptor, before any word leads to it: recovery finds what a pointer stands for.
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

    /// The blocks that the policies of an operation with that status recycle.
    pub(super) fn blocks(&self, number: usize, status: Status) -> impl Iterator<Item = u64> {
        let succeeded = status.is(State::Succeeded);
        let blocks = (0..status.count()).map(move |i| {
            let entry = self.entry(number, i);
            match status.policy(i) {
                Policy::FreeOne if succeeded && self.pm().planted("pmwcas-not-recycled") => 0,
                Policy::FreeOne if succeeded => entry.old,
                Policy::FreeOne => entry.new,
                Policy::FreeOldOnSuccess if succeeded => entry.old,
                Policy::FreeNewOnFailure if !succeeded => entry.new,
                _ => 0,
            }
        });
        blocks.filter(|block| *block != 0)
    }

    /// The blocks that an operation with that status makes somebody's if it succeeds.
    pub(super) fn new_blocks(&self, number: usize, status: Status) -> impl Iterator<Item = u64> {
        let frees = move |i: &usize| status.policy(*i).frees_new();
        let blocks = (0..status.count()).filter(frees);
        blocks
            .map(move |i| self.entry(number, i).new)
            .filter(|block| *block != 0)
    }

    /// Does what the policies of an ended operation say. No one looks at its descriptor any more.
    fn recycle_blocks(&self, number: usize) {
        // ORDERING: Acquire; pairs with the Release with which the status was decided.
        let status = Status(self.status(number).load(self.pm(), Ordering::Acquire));
        if status.policies() == 0 || status.is(State::Free) {
            return;
        }
        let blocks: Vec<u64> = self.blocks(number, status).collect();
        let pm = self.pm();
        let free_first = pm.planted("pmwcas-free-first");
        if !free_first {
            blocks.iter().for_each(|block| self.recycle.release(*block));
        }
        let word = self.status(number);
        // ORDERING: Release; pairs with the Acquire of `held_blocks`.
        word.store(pm, status.with(State::Free).0, Ordering::Release);
        // PERSIST: the descriptor names its blocks no longer, before they are used again and before its entries change
        // (invariant 5).
        self.persist(word);
        if free_first {
            blocks.iter().for_each(|block| self.recycle.release(*block));
        }
        blocks.iter().for_each(|block| self.recycle.reuse(*block));
        if pm.planted("pmwcas-recycled-twice") {
            blocks.iter().for_each(|block| self.recycle.reuse(*block));
        }
    }

    /// A descriptor for one operation, and what its words' policies recycle goes where [`create`](Self::create) was
    /// told: recovery has to know it before it meets the first descriptor, so it cannot be given here.
    ///
    /// # Errors
    /// [`Exhausted`] if no descriptor comes back for some six seconds; soon, if the thread is pinned itself, which keeps
    /// its own ones from coming back.
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

    /// As [`allocate_descriptor`](Self::allocate_descriptor), without waiting: `None` if there is none right now. For
    /// who is pinned, and would wait for itself.
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

    /// Recycles what ended operations have to, at once: for a clean close, before an allocator saves what is in use.
    /// No one uses a descriptor or reads one of their words meanwhile, nor holds a reference to a block that a
    /// policy recycles. Operations that a panic cut short are brought to their ends first.
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
        // What the epochs still hold moves bits of the lists before.
        self.lists = std::sync::Arc::new(super::lists::Lists::all_free(
            self.descriptors,
            self.per_thread,
        ));
    }

    /// Recycles what ended operations have to and no one can look at any more, without waiting for anyone: for who is
    /// out of space. How many blocks that were. The caller is better not pinned.
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

    /// Blocks that policies of ended operations are going to recycle, for checks of an allocator: call it while no
    /// operation is under way.
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

/// A word of an operation that is being put together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Word {
    entry: Entry,
    policy: Policy,
    /// Its new value was not given yet.
    open: bool,
}

/// One operation, from its allocation to [`execute`](Self::execute) or [`discard`](Self::discard), which is also what
/// dropping it does.
pub struct Descriptor<'p, M: Media> {
    pool: &'p DescriptorPool<M>,
    number: usize,
    /// Of the pool's scratch for this descriptor, which is this operation's meanwhile.
    count: usize,
    stage: Stage,
}

/// The words of operations that are being put together, by descriptor: kept beside the pool's descriptors, so that a
/// [`Descriptor`] is small and cheap to hand on.
pub(super) struct Scratch(Box<[UnsafeCell<[Word; MOST_WORDS]>]>);

// SAFETY: 1. a descriptor's words are reached through the one `Descriptor` that has its number alone; 2. numbers are handed on by
// the lists, with Release and Acquire.
unsafe impl Sync for Scratch {}

impl Scratch {
    pub(super) fn of(descriptors: usize) -> Self {
        Self((0..descriptors).map(|_| UnsafeCell::default()).collect())
    }
}

/// How far an operation is, for who drops it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Building,
    /// It may be in the pool, and others may be at work on it.
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

/// Checks that no block would be recycled that its word keeps, and none by two words.
#[inline]
fn check_recycled(others: &[Word], word: &Word) -> Result<(), WordError> {
    if word.policy == Policy::None {
        return Ok(());
    }
    let Entry { old, new, .. } = word.entry;
    if word.open {
        // Its new value is checked when it is given.
    } else if old == new && old != 0 {
        return Err(WordError::Recycled(old));
    }
    for other in others {
        let both = |frees: fn(Policy) -> bool| frees(word.policy) && frees(other.policy);
        if old != 0 && old == other.entry.old && both(Policy::frees_old) {
            return Err(WordError::Recycled(old));
        }
        let given = !word.open && !other.open && new != 0;
        if given && new == other.entry.new && both(Policy::frees_new) {
            return Err(WordError::Recycled(new));
        }
    }
    Ok(())
}

fn plain(value: u64) -> Result<u64, WordError> {
    if value & FLAGS == 0 {
        Ok(value)
    } else {
        Err(WordError::Flagged(value))
    }
}

impl<M: Media> Descriptor<'_, M> {
    fn words(&self) -> &[Word] {
        // SAFETY: 1. this descriptor's words are its own (see `Scratch`); 2. they are changed through `&mut self` only.
        let words = unsafe { &*self.pool.scratch.0[self.number].get() };
        &words[..self.count]
    }

    /// All of its words, those beyond the operation's included.
    fn words_mut(&mut self) -> &mut [Word; MOST_WORDS] {
        // SAFETY: 1. as in `words`; 2. `&mut self` is the only way to them now.
        unsafe { &mut *self.pool.scratch.0[self.number].get() }
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

    /// Adds a word that is to be `expected` and to become `desired` (or to stay: the two may be equal).
    ///
    /// # Errors
    /// [`WordError`]; the operation is as it was. A reference is aligned, so that is nothing to get wrong here.
    pub fn add_word(&mut self, word: &PWord, expected: u64, desired: u64) -> Result<(), WordError> {
        self.add(word, expected, desired, Policy::None, false)
    }

    /// As [`add_word`](Self::add_word), with what becomes of the blocks that the values lead to.
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

    /// Adds a word whose new value is not known yet: [`fill`](Self::fill) gives it.
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

    /// The place among the words, of a word that is part of the operation.
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

    /// Takes a word out again; nothing is recycled.
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

    /// How many words the operation has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// True for an operation without words.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Executes the operation: true if all words were as expected and are as desired now, durably; false if one was
    /// not, and none has changed.
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
                // From here on the descriptor is the protocol's, even if this thread panics.
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

    /// Cancels the operation: no word is changed, and new blocks go where they would if it had failed.
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
