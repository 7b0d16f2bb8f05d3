//! Reading words, and finishing an operation, by its own thread or by others.
//!
//! See the module's head for protocol, invariants and concurrency. Any number of threads may run
//! every function here for the same operation at once.

use super::area::DescriptorPool;
use super::encoding::{
    CONDITIONAL, DIRTY, FLAGS, GENERATION, MAX_WORDS, OWN_ATTEMPT, State, Status, condition,
    conditional, is_attempt, pointed, pointer,
};
use crate::cell::PWord;
use crate::media::{LINE, Media};
use crate::planted;
use crossbeam_epoch::{self as epoch, Guard};
use std::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decided {
    Succeeded,
    Failed,
}

/// The outcome of an attempt to install a pointer in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Installed {
    /// The pointer is there, or was until the operation was decided.
    There,
    /// Another value than the expected one.
    Mismatch,
}

/// The thread that works on an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Helper {
    /// The thread that executes it.
    Own,
    /// One that has met a pointer to it.
    Other,
}

// ORDERING of the whole file: every change of a word or status is a read-modify-write with AcqRel,
// and every load is an Acquire, which pairs with them; stronger orderings are explained where they
// occur. So a thread that sees a value in a word also sees the decision that put it there. RDCSS
// relies on this: it sees an old value that came after an operation was decided, and then the
// decision.

impl<M: Media> DescriptorPool<M> {
    /// The value of a word that operations change: one load and a test where no operation is under
    /// way. Helps operations that it meets; what it returns, no crash takes back.
    ///
    /// A value with bits of [`FLAGS`] that leads to no operation on this word did not come from
    /// this module. It counts without those bits; [`check`](Self::check) reports a damaged file.
    #[inline]
    pub fn read(&self, word: &PWord) -> u64 {
        let found = word.load(self.pm(), Acquire);
        if found & FLAGS == 0 {
            found
        } else {
            self.read_slow(word)
        }
    }

    #[cold]
    fn read_slow(&self, word: &PWord) -> u64 {
        let guard = epoch::pin();
        loop {
            // Again, pinned: what the word leads to now is not used again while this thread looks
            // at it.
            let found = word.load(self.pm(), Acquire);
            if found & FLAGS == 0 {
                return found;
            }
            self.clear(word, found, &guard);
        }
    }

    /// Returns the value of a word while no operation is under way: for owners that check a file's
    /// content after [`open`](Self::open) and before any other read.
    ///
    /// # Errors
    /// The reason in words, if the word has a value that no operation leaves.
    pub fn check(&self, word: &PWord) -> Result<u64, String> {
        let found = word.load(self.pm(), Acquire);
        if found & FLAGS == 0 {
            Ok(found)
        } else {
            Err(format!(
                "a word holds {found:#x}, which leads to no operation"
            ))
        }
    }

    /// Does what it takes to have `word` no longer hold `found`, which has a flag.
    fn clear(&self, word: &PWord, found: u64, guard: &Guard) {
        match self.operation(word, found) {
            Some(_) if found & CONDITIONAL != 0 => self.complete_attempt(word, found),
            Some((number, status)) => {
                self.counters.helped();
                if status.single() {
                    self.complete_single(number, status);
                } else {
                    self.complete(number, status, guard);
                }
            }
            None => {
                // No operation leaves that in a word: it was there before. It counts, and is made
                // durable as what it stands for is unknown. PERSIST: the value, before a thread
                // acts on it, which it may as soon as no bit is set.
                self.persist(word);
                let _ = word.compare_exchange(self.pm(), found, found & !FLAGS, AcqRel, Acquire);
            }
        }
    }

    /// Returns the operation behind `found`, a pointer or conditional pointer in `word`, or `None`
    /// if no operation of this pool put it there. By invariants 1 and 2 a pointer's descriptor is
    /// in the same use while this thread, which is pinned, looks. After recovery all descriptors
    /// are free.
    fn operation(&self, word: &PWord, found: u64) -> Option<(usize, Status)> {
        let number = if found & CONDITIONAL == 0 {
            pointed(found)
        } else {
            condition(found).0
        };
        if number >= self.descriptors {
            return None;
        }
        let status = Status(self.status(number).load(self.pm(), Acquire));
        if status.is(State::Free) {
            return None;
        }
        let place = self.place_of(word).ok()?;
        let generation = status.generation();
        let mut entries = 0..status.count();
        let led = entries.any(|i| {
            self.place(number, i) == place
                && (found == pointer(number, generation)
                    || is_attempt(found, number, generation, i))
        });
        led.then_some((number, status))
    }

    /// Executes a published operation of one word, which is decided by the pointer in it. By its
    /// own thread.
    pub(super) fn execute_single(&self, number: usize, status: Status, guard: &Guard) -> Decided {
        match self.install_first(number, status, guard) {
            Installed::There => self.complete_single(number, status),
            Installed::Mismatch => Decided::Failed,
        }
    }

    /// Executes a published operation of several words. By its own thread.
    pub(super) fn execute(&self, number: usize, status: Status, guard: &Guard) -> Decided {
        self.complete_by(Helper::Own, number, status, guard)
    }

    /// Puts a pointer into the first word, by the operation's own thread. RDCSS is not needed:
    /// before that pointer is there, no other thread knows the operation, and so none can install
    /// or decide anything.
    fn install_first(&self, number: usize, status: Status, guard: &Guard) -> Installed {
        let entry = self.entry(number, 0);
        let (word, own) = (self.word(entry.place), pointer(number, status.generation()));
        loop {
            match word.compare_exchange(self.pm(), entry.old, own, AcqRel, Acquire) {
                Ok(_) => return Installed::There,
                Err(found) if found & FLAGS != 0 => self.clear(word, found, guard),
                Err(_) => return Installed::Mismatch,
            }
        }
    }

    /// Brings an operation of one word, whose pointer is there or was, to its end.
    fn complete_single(&self, number: usize, status: Status) -> Decided {
        // PERSIST: the pointer, which decides, before the new value can be seen (as the status in
        // invariant 3).
        self.persist(self.word(self.place(number, 0)));
        self.resolve(number, status);
        Decided::Succeeded
    }

    /// Brings the operation of a descriptor, which had that status, to its end. The caller is
    /// pinned.
    pub(super) fn complete(&self, number: usize, status: Status, guard: &Guard) -> Decided {
        self.complete_by(Helper::Other, number, status, guard)
    }

    fn complete_by(&self, by: Helper, number: usize, status: Status, guard: &Guard) -> Decided {
        let pm = self.pm();
        let status = status.with(State::Undecided);
        let seen = Status(self.status(number).load(pm, Acquire));
        let mut mine = false;
        if seen == status {
            let dirty = M::PERSISTENT && !planted!(pm, "pmwcas-status-late");
            let decision = match self.install_all(by, number, status, guard) {
                Installed::There if dirty => status.with(State::Succeeded).0 | DIRTY,
                Installed::There => status.with(State::Succeeded).0,
                // Not dirty: recovery rolls back what is undecided as it does what failed.
                Installed::Mismatch => status.with(State::Failed).0,
            };
            let word = self.status(number);
            // If another thread was faster, its decision holds.
            // ORDERING: SeqCst; pairs with `complete_attempt`.
            let swapped = word.compare_exchange(pm, status.0, decision, SeqCst, SeqCst);
            mine = swapped.is_ok();
        }
        let decided = if !mine && planted!(pm, "pmwcas-dirty-status") {
            Status(self.status(number).load(pm, Acquire) & !DIRTY)
        } else {
            self.decided(number)
        };
        self.resolve(number, decided);
        if decided.is(State::Succeeded) {
            Decided::Succeeded
        } else {
            Decided::Failed
        }
    }

    /// Returns the status of a decided operation, durable if it succeeded.
    fn decided(&self, number: usize) -> Status {
        let pm = self.pm();
        let word = self.status(number);
        let status = Status(word.load(pm, Acquire));
        if !status.dirty() {
            return status;
        }
        debug_assert!(M::PERSISTENT, "nothing is dirty where nothing is durable");
        // PERSIST: the decision, before any new value is stored (invariant 3): what is seen of the
        // operation, a crash does not take back.
        self.persist(word);
        let clean = Status(status.0 & !DIRTY);
        let _ = word.compare_exchange(pm, status.0, clean.0, AcqRel, Acquire);
        clean
    }

    /// Phase 1: puts a pointer into each word, in order of places, and makes them durable.
    fn install_all(&self, by: Helper, number: usize, status: Status, guard: &Guard) -> Installed {
        let mut tries = 0;
        for i in 0..status.count() {
            let installed = match by {
                Helper::Own if i == 0 => self.install_first(number, status, guard),
                _ => self.install(by, &mut tries, number, i, status, guard),
            };
            if installed == Installed::Mismatch {
                return Installed::Mismatch;
            }
        }
        if status.policies() != 0 {
            self.new_blocks(number, status)
                .for_each(|block| self.recycle.activate(block));
        }
        let mut flushed = None;
        for i in 0..status.count() {
            let place = self.place(number, i);
            if flushed.replace(place / LINE as u64) != Some(place / LINE as u64) {
                // PERSIST: the pointers, before the status is decided: if it is durable, recovery
                // finds each word that is to get a new value. By every thread that decides, since
                // pointers have no dirty bit.
                self.flush(self.word(place));
            }
        }
        // PERSIST: all of them, by one fence.
        self.fence();
        Installed::There
    }

    /// Puts a pointer into word `i`, by RDCSS: only while the operation is undecided. `tries`:
    /// attempts of this thread.
    fn install(
        &self,
        by: Helper,
        tries: &mut u32,
        number: usize,
        i: usize,
        status: Status,
        guard: &Guard,
    ) -> Installed {
        let pm = self.pm();
        let entry = self.entry(number, i);
        let (word, own) = (self.word(entry.place), pointer(number, status.generation()));
        loop {
            let attempt = match by {
                Helper::Own => {
                    *tries += 1;
                    *tries | OWN_ATTEMPT
                }
                // ORDERING: Relaxed; only that the numbers differ matters.
                Helper::Other => {
                    self.attempts[number].fetch_add(1, std::sync::atomic::Ordering::Relaxed)
                        & !OWN_ATTEMPT
                }
            };
            let attempt = conditional(number, status.generation(), i, attempt);
            let put = if planted!(pm, "pmwcas-unconditional") {
                own
            } else {
                attempt
            };
            match word.compare_exchange(pm, entry.old, put, AcqRel, Acquire) {
                Ok(_) if put == own => return Installed::There,
                Ok(_) => {
                    self.complete_attempt(word, attempt);
                    if self.status(number).load(pm, Acquire) == status.0 {
                        // The old value comes back, or a new one, only after a decision.
                        return Installed::There;
                    }
                }
                Err(found) if found == own => return Installed::There,
                Err(found) if found & FLAGS != 0 => self.clear(word, found, guard),
                Err(_) => return Installed::Mismatch,
            }
            if self.status(number).load(pm, Acquire) != status.0 {
                // The operation was decided meanwhile, so the caller's own decision comes too late,
                // whatever it is.
                return Installed::Mismatch;
            }
        }
    }

    /// Second half of RDCSS: the conditional pointer `attempt` in `word` becomes a pointer if the
    /// operation is undecided, else the old value again.
    fn complete_attempt(&self, word: &PWord, attempt: u64) {
        let pm = self.pm();
        let (number, i) = condition(attempt);
        let status = Status(self.status(number).load(pm, Acquire));
        if status.is(State::Undecided) {
            let pointer = pointer(number, status.generation());
            // This fails if another thread has completed the attempt, since no other attempt has
            // its bits. ORDERING: SeqCst, with the load after it; pairs with the decision in
            // `complete` and the swaps of `resolve` after that: either this thread sees the
            // decision, or the deciding thread sees the pointer.
            if word
                .compare_exchange(pm, attempt, pointer, SeqCst, Acquire)
                .is_ok()
                && !Status(self.status(number).load(pm, SeqCst)).is(State::Undecided)
            {
                // The operation failed in between, and the deciding thread may not have seen the
                // pointer.
                self.resolve(number, self.decided(number));
            }
            return;
        }
        let old = self.entry(number, i).old;
        if word
            .compare_exchange(pm, attempt, old, AcqRel, Acquire)
            .is_ok()
        {
            // PERSIST: the word no longer leads to the descriptor, before it can be used again
            // (invariant 1).
            self.persist(word);
        }
    }

    /// Phase 2: puts new values (or, if it failed, old ones) for the pointers.
    fn resolve(&self, number: usize, status: Status) {
        let pm = self.pm();
        let own = pointer(number, status.generation());
        let mut lines = [None; MAX_WORDS];
        for (i, line) in lines.iter_mut().enumerate().take(status.count()) {
            let entry = self.entry(number, i);
            let value = if status.is(State::Succeeded) {
                entry.new
            } else {
                entry.old
            };
            let word = self.word(entry.place);
            // ORDERING: SeqCst; pairs with `complete_attempt`.
            if word
                .compare_exchange(pm, own, value, SeqCst, SeqCst)
                .is_ok()
            {
                *line = Some(entry.place);
            }
        }
        let mut flushed = None;
        for place in lines.into_iter().flatten() {
            if flushed.replace(place / LINE as u64) != Some(place / LINE as u64) {
                // PERSIST: the values, before the descriptor that stands for them is used again
                // (invariant 1). By the thread that stored them: it is pinned until then.
                self.flush(self.word(place));
            }
        }
        if flushed.is_some() {
            // PERSIST: all of them, by one fence.
            self.fence();
        }
    }

    /// Brings an operation to its end that a panic cut short, perhaps before it began: as recovery
    /// does, so what is undecided has failed. No one else is at work.
    pub(super) fn end_abandoned(&self, number: usize) {
        let pm = self.pm();
        let status = Status(self.status(number).load(pm, Acquire));
        // ORDERING: Relaxed; no other thread is at work.
        let next = self.next[number].load(std::sync::atomic::Ordering::Relaxed);
        if status.is(State::Free) || status.generation().wrapping_add(1) & GENERATION != next {
            // It was never published: what is there is of the use before, which has ended.
            return;
        }
        let failed = status.with(State::Failed);
        let undecided = status.with(State::Undecided);
        let word = self.status(number);
        let _ = word.compare_exchange(pm, undecided.0, failed.0, AcqRel, Acquire);
        for i in 0..status.count() {
            // That takes a pointer out, of either kind.
            self.read(self.word(self.place(number, i)));
        }
    }
}
