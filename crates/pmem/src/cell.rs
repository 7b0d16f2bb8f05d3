//! Cells: reading and writing persistent words.
//!
//! A cell is an atomic integer at a fixed place in a pool. Its loads and stores take the medium, so
//! that a traced medium sees each of them with its call site; on any other medium they compile to
//! the plain atomic access. Stores through a cell cannot be torn or merged by the compiler.

use crate::media::Media;
use portable_atomic::AtomicU128;
use std::sync::atomic::{AtomicU64, Ordering};

/// An 8-byte persistent word: the unit of failure atomicity.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct PWord(AtomicU64);

const _: () = assert!(size_of::<PWord>() == 8 && align_of::<PWord>() == 8);

impl PWord {
    /// Returns a word outside any pool, for building images and for tests.
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// Reads the word.
    #[inline]
    #[track_caller]
    pub fn load<M: Media>(&self, pm: &M, order: Ordering) -> u64 {
        if M::TRACED {
            pm.trace_load(self.addr(), 8);
        }
        self.0.load(order)
    }

    /// Writes the word with one store.
    #[inline]
    #[track_caller]
    pub fn store<M: Media>(&self, pm: &M, value: u64, order: Ordering) {
        if M::TRACED {
            pm.trace_touch(self.addr(), 8);
            // ORDERING: Relaxed; the old value is only for the trace.
            let old = self.0.load(Ordering::Relaxed);
            pm.trace_store(self.addr(), 8, old.into(), value.into());
        }
        self.0.store(value, order);
    }

    /// Replaces `current` by `new`, or returns the value found.
    ///
    /// # Errors
    /// The value found, when it is not `current`; the word is unchanged.
    #[inline]
    #[track_caller]
    pub fn compare_exchange<M: Media>(
        &self,
        pm: &M,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        if M::TRACED {
            pm.trace_load(self.addr(), 8);
        }
        let result = self.0.compare_exchange(current, new, success, failure);
        if M::TRACED
            && let Ok(old) = result
        {
            pm.trace_store(self.addr(), 8, old.into(), new.into());
        }
        result
    }

    /// Makes an NVM atomic write (NAW): one 8-byte store, flush, fence. After it, a crash finds
    /// `value`.
    #[inline]
    #[track_caller]
    pub fn publish<M: Media>(&self, pm: &M, value: u64) {
        // ORDERING: Release; pairs with the Acquire loads of readers that follow this word.
        self.store(pm, value, Ordering::Release);
        pm.persist(self);
    }

    /// Returns the address of the word.
    #[inline]
    #[must_use]
    pub fn addr(&self) -> *const u8 {
        std::ptr::from_ref(self).cast()
    }
}

/// A 16-byte persistent word, for designs that declare 16 bytes as their unit of failure atomicity.
///
/// It is written with `cmpxchg16b` or `casp` (LSE), or with the processor's plain 16-byte store
/// where that is atomic. There is no fallback to a lock, since a lock protects no store from a
/// crash. Check [`PWord16::supported`] before a pool relies on it. Vendors promise 8 bytes; 16 is
/// an assumption about the platform.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct PWord16(AtomicU128);

const _: () = assert!(size_of::<PWord16>() == 16 && align_of::<PWord16>() == 16);

impl PWord16 {
    /// Returns a word outside any pool, for building images and for tests.
    #[must_use]
    pub const fn new(value: u128) -> Self {
        Self(AtomicU128::new(value))
    }

    /// Returns true if this processor writes 16 bytes with one instruction.
    #[must_use]
    pub fn supported() -> bool {
        AtomicU128::is_lock_free()
    }

    /// Reads the word.
    #[inline]
    #[track_caller]
    pub fn load<M: Media>(&self, pm: &M, order: Ordering) -> u128 {
        if M::TRACED {
            pm.trace_load(self.addr(), 16);
        }
        self.0.load(order)
    }

    /// Writes the word with one 16-byte store.
    ///
    /// # Errors
    /// [`NoAtomic16`] if the processor has no such store. Nothing is written then.
    #[inline]
    #[track_caller]
    pub fn store<M: Media>(&self, pm: &M, value: u128, order: Ordering) -> Result<(), NoAtomic16> {
        if !Self::supported() {
            return Err(NoAtomic16);
        }
        if M::TRACED {
            pm.trace_touch(self.addr(), 16);
            // ORDERING: Relaxed; the old value is only for the trace.
            pm.trace_store(self.addr(), 16, self.0.load(Ordering::Relaxed), value);
        }
        self.0.store(value, order);
        Ok(())
    }

    /// Makes an NVM atomic write of 16 bytes: one store, flush, fence. After it, a crash finds
    /// `value`.
    ///
    /// # Errors
    /// [`NoAtomic16`] if the processor has no such store. Nothing is written then.
    #[inline]
    #[track_caller]
    pub fn publish<M: Media>(&self, pm: &M, value: u128) -> Result<(), NoAtomic16> {
        // ORDERING: Release; pairs with the Acquire loads of readers that follow this word.
        self.store(pm, value, Ordering::Release)?;
        pm.persist(self);
        Ok(())
    }

    /// Returns the address of the word.
    #[inline]
    #[must_use]
    pub fn addr(&self) -> *const u8 {
        std::ptr::from_ref(self).cast()
    }
}

/// The processor cannot write 16 bytes with one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAtomic16;

impl std::fmt::Display for NoAtomic16 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "this processor has no 16-byte atomic store; choose a design that needs 8 bytes",
        )
    }
}

impl std::error::Error for NoAtomic16 {}

/// Copies `bytes` to `dst` in 8-byte stores and reports them to a traced medium. Up to 7 bytes
/// after them, to the end of the last word, become zero.
///
/// Nothing leads there yet, but a late search may still be reading the old content: hence words, as
/// everywhere in a pool.
///
/// # Safety
/// 1. `dst` is 8-aligned, and `dst..dst + bytes.len()`, rounded up to whole words, lies inside the
///    pool.
/// 2. No other thread writes that range, and none relies on what it reads there, until it is
///    published.
#[inline]
#[track_caller]
pub unsafe fn write_bytes<M: Media>(pm: &M, dst: *mut u8, bytes: &[u8]) {
    if M::TRACED {
        pm.trace_store_bytes(dst, bytes);
    }
    let (words, rest) = bytes.as_chunks::<8>();
    let dst = dst.cast::<u64>();
    debug_assert!(dst.is_aligned(), "blocks and headers are whole words");
    for (i, word) in words.iter().enumerate() {
        // SAFETY: 1. the caller promises that the range is aligned and inside the pool; 2. all
        // access to a pool is by atomic words, except to records, which no thread reads here before
        // publication.
        let cell = unsafe { AtomicU64::from_ptr(dst.add(i)) };
        // ORDERING: Relaxed; publishing the bytes orders them.
        cell.store(u64::from_le_bytes(*word), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        // A copy of these bytes that is then read as a word would stall the processor until all
        // earlier stores are done.
        let bytes = rest.iter().rev();
        let word = bytes.fold(0, |word, byte| word << 8 | u64::from(*byte));
        // SAFETY: 1. the caller promises that the range, rounded up to whole words, is inside the
        // pool, so the last word is whole; 2. as above.
        let cell = unsafe { AtomicU64::from_ptr(dst.add(words.len())) };
        // ORDERING: Relaxed; as above.
        cell.store(word, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::{Counting, Dram, MediaOptions, PersistCounts};
    use std::path::Path;

    #[test]
    fn words_are_read_back_and_a_naw_is_one_line_and_one_fence() {
        let options = MediaOptions {
            reserve: 64 << 20,
            ..MediaOptions::default()
        };
        let pm = Counting::<Dram>::open(Path::new("dram"), 1 << 20, &options).unwrap();
        let word = PWord::new(1);
        word.publish(&pm, 2);
        assert_eq!(
            pm.counts(),
            PersistCounts {
                lines: 1,
                fences: 1,
                commits: 0
            }
        );
        assert_eq!(word.load(&pm, Ordering::Acquire), 2);
        let (done, seen) = (Ordering::AcqRel, Ordering::Acquire);
        assert_eq!(word.compare_exchange(&pm, 2, 3, done, seen), Ok(2));
        assert_eq!(word.compare_exchange(&pm, 2, 4, done, seen), Err(3));
        let wide = PWord16::new(7);
        assert_eq!(wide.publish(&pm, 1 << 100).is_ok(), PWord16::supported());
        let expected = if PWord16::supported() { 1 << 100 } else { 7 };
        assert_eq!(wide.load(&pm, Ordering::Acquire), expected);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        assert!(PWord16::supported(), "every x86-64 server has cmpxchg16b");
    }
}
