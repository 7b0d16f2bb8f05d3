//! Recovery: every operation that a crash interrupted is rolled forward or back.
//!
//! Recovery reads all descriptors, whatever the first ones hold, and checks their content before it
//! changes anything, since the pool's content may be anything. It handles the words first, under
//! one fence, and then the blocks of policies. Then all descriptors become free, under another
//! fence, so that no word leads anywhere. All of it may be repeated: words without pointers stay as
//! they are, and a block is released as often as its descriptor is found not free (see
//! [`Recycle`](super::Recycle)).

use super::area::{DescriptorPool, MAGIC, NoBlocks, bytes};
use super::encoding::{
    Entry, FLAGS, GENERATION, MAX_PER_THREAD, MAX_THREADS, MAX_WORDS, State, Status, is_attempt,
    pointer,
};
use crate::heap::{Heap, Recycle};
use crate::media::{LINE, Media};
use crate::planted;
use std::sync::atomic::Ordering;

/// Statistics of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Number of words that got the new value of an operation that had succeeded.
    pub forward: u64,
    /// Number of words that got their old value back, because the operation had not succeeded.
    pub back: u64,
    /// Blocks released.
    pub released: u64,
}

// ORDERING of the whole file: Relaxed; the structure is being opened, by one thread.

impl<M: Media> DescriptorPool<M> {
    /// The pool of descriptors at `at`, which came from the pool's content, *recovered*: no word
    /// holds a pointer when it returns. Call it between [`Heap::begin_recovery`] and the walk,
    /// alone, before any of its words is read; again if a crash came in between.
    ///
    /// # Errors
    /// The reason in words.
    pub fn open(
        heap: &Heap<M>,
        at: u64,
        recycle: Box<dyn Recycle>,
    ) -> Result<(Self, Recovered), String> {
        let wrong = |what: String| format!("descriptor area {at:#x}: {what}");
        heap.check(at, LINE as u64).map_err(wrong)?;
        if !at.is_multiple_of(LINE as u64) {
            return Err(wrong("not at the start of a line".into()));
        }
        let header = Self::over(heap.pool(), at, 1, 1, 1, Box::new(NoBlocks));
        // ORDERING (both): Relaxed; the structure is being opened.
        let magic = header.word(at).load(header.pm(), Ordering::Relaxed);
        let shape = header.word(at + 8).load(header.pm(), Ordering::Relaxed);
        let (descriptors, words) = (shape as u32 as usize, (shape >> 32) as u16 as usize);
        let per_thread = (shape >> 48) as usize;
        if magic != MAGIC
            || !(1..=MAX_THREADS * MAX_PER_THREAD).contains(&descriptors)
            || !(1..=MAX_WORDS).contains(&words)
            || !(1..=MAX_PER_THREAD).contains(&per_thread)
            || descriptors > MAX_THREADS * per_thread
        {
            return Err(wrong(format!(
                "magic {magic:#x}, {descriptors} descriptors of {words} words, {per_thread} a thread"
            )));
        }
        heap.check(at, bytes(descriptors, 1, words))
            .map_err(wrong)?;
        let this = Self::over(heap.pool(), at, descriptors, per_thread, words, recycle);
        let recovered = this.recover().map_err(wrong)?;
        Ok((this, recovered))
    }

    pub(super) fn recover(&self) -> Result<Recovered, String> {
        let pm = self.pm();
        let mut recovered = Recovered::default();
        let mut open = Vec::new();
        if planted!(pm, "pmwcas-first-unused") && self.status_of(0)?.is(State::Free) {
            return Ok(recovered);
        }
        for number in 0..self.descriptors {
            let wrong = |what: String| format!("descriptor {number}: {what}");
            let status = self.status_of(number).map_err(wrong)?;
            self.count_on(number, status);
            if status.is(State::Free) {
                continue;
            }
            let whole = self.whole(number, status);
            if whole {
                self.check_operation(number, status).map_err(wrong)?;
            }
            open.push((number, status, whole));
        }
        let operations = || open.iter().filter(|(_, _, whole)| *whole);
        for &(number, status, _) in operations() {
            for i in 0..status.count() {
                let entry = self.entry(number, i);
                if let Some(forward) = self.restore(number, i, status, &entry) {
                    recovered.forward += u64::from(forward);
                    recovered.back += u64::from(!forward);
                }
            }
        }
        if recovered.forward + recovered.back > 0 {
            // PERSIST: the words, before any descriptor is free or used again.
            pm.fence();
        }
        let mut released = Vec::new();
        for &(number, status, _) in operations() {
            released.extend(self.blocks(number, status));
        }
        released
            .iter()
            .for_each(|block| self.recycle.release(*block));
        recovered.released = released.len() as u64;
        for &(number, status, _) in &open {
            let free = status.with(State::Free);
            self.status(number).store(pm, free.0, Ordering::Relaxed);
            // PERSIST: the descriptor names its blocks no longer, before they are used again
            // (invariant 5).
            pm.flush_of(self.status(number));
        }
        if !open.is_empty() {
            // PERSIST: all of them, by one fence.
            pm.fence();
        }
        released
            .iter()
            .for_each(|block| self.recycle.recovered(*block));
        Ok(recovered)
    }

    /// Checks what the operation of a descriptor names, before anything is changed.
    fn check_operation(&self, number: usize, status: Status) -> Result<(), String> {
        for i in 0..status.count() {
            self.check_entry(&self.entry(number, i))?;
        }
        for block in self.blocks(number, status) {
            if !self.swappable(block, self.pm().len()) {
                return Err(format!("it is to recycle {block:#x}, which is no block"));
            }
            self.recycle.check(block)?;
        }
        Ok(())
    }

    fn status_of(&self, number: usize) -> Result<Status, String> {
        let status = Status(self.status(number).load(self.pm(), Ordering::Relaxed));
        if status.plausible()
            && status.count() <= self.words
            && status.policies() >> (2 * status.count()) == 0
        {
            Ok(status)
        } else {
            Err(format!(
                "status {status:?} of no operation of {} words",
                self.words
            ))
        }
    }

    /// Gives the next use a generation that no line of the descriptor has.
    fn count_on(&self, number: usize, status: Status) {
        let mut last = status.generation();
        for line in 1..self.words.div_ceil(2) {
            let other = self
                .generation(number, line)
                .load(self.pm(), Ordering::Relaxed)
                & GENERATION;
            // The later of the two, where generations begin again at 0 after the last one.
            if other.wrapping_sub(last) & GENERATION < GENERATION / 2 {
                last = other;
            }
        }
        self.next[number].store(last.wrapping_add(1) & GENERATION, Ordering::Relaxed);
    }

    /// Returns true if all lines of the operation are of one use (invariant 4).
    fn whole(&self, number: usize, status: Status) -> bool {
        (1..status.count().div_ceil(2)).all(|line| {
            self.generation(number, line)
                .load(self.pm(), Ordering::Relaxed)
                == status.generation()
        })
    }

    fn check_entry(&self, entry: &Entry) -> Result<(), String> {
        // Where the pool ends now a descriptor that was not used since need not care (`restore`
        // does).
        if !self.swappable(entry.place, u64::MAX) || (entry.old | entry.new) & FLAGS != 0 {
            return Err(format!("no operation has {entry:x?}"));
        }
        Ok(())
    }

    /// Takes the descriptor's pointers out of the word of an entry. `Some(true)`: it got the new
    /// value; `Some(false)`: the old one.
    fn restore(&self, number: usize, i: usize, status: Status, entry: &Entry) -> Option<bool> {
        let pm = self.pm();
        if entry.place + 8 > pm.len() {
            return None;
        }
        let word = self.word(entry.place);
        let found = word.load(pm, Ordering::Relaxed);
        let forward = if found == pointer(number, status.generation()) {
            status.is(State::Succeeded)
        } else if is_attempt(found, number, status.generation(), i)
            && !planted!(pm, "pmwcas-attempt-kept")
        {
            // An attempt that came after the decision, or was never completed: the word holds its
            // old value.
            false
        } else {
            return None;
        };
        let value = if forward { entry.new } else { entry.old };
        word.store(pm, value, Ordering::Relaxed);
        // PERSIST: the word no longer leads to the descriptor; fenced with the others.
        pm.flush_of(word);
        Some(forward)
    }
}
