//! Cells: how persistent words are read and written.
//!
//! A cell is an atomic integer at a fixed place in a pool. Its loads and stores take the medium, so
//! that a traced medium sees each of them with its call site; on any other medium they compile to
//! the plain atomic access. Stores through a cell cannot be torn or merged by the compiler.

use crate::media::Media;
use std::sync::atomic::{AtomicU64, Ordering};

/// An 8-byte persistent word: the unit of failure atomicity.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct PWord(AtomicU64);

const _: () = assert!(size_of::<PWord>() == 8 && align_of::<PWord>() == 8);

impl PWord {
    /// A word outside any pool, for building images and for tests.
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
            // ORDERING: Relaxed; the old value is only for the trace.
            let old = self.0.load(Ordering::Relaxed);
            pm.trace_store(self.addr(), 8, old.into(), value.into());
        }
        self.0.store(value, order);
    }

    /// Replaces `current` by `new`, or returns what is there instead.
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
        let result = self.0.compare_exchange(current, new, success, failure);
        if M::TRACED {
            match result {
                Ok(old) => pm.trace_store(self.addr(), 8, old.into(), new.into()),
                Err(_) => pm.trace_load(self.addr(), 8),
            }
        }
        result
    }

    /// NVM atomic write (NAW): one 8-byte store, flush, fence. After it, a crash finds `value`.
    #[inline]
    #[track_caller]
    pub fn publish<M: Media>(&self, pm: &M, value: u64) {
        // ORDERING: Release; pairs with the Acquire loads of readers that follow this word.
        self.store(pm, value, Ordering::Release);
        pm.persist(self);
    }

    /// Address of the word.
    #[inline]
    #[must_use]
    pub fn addr(&self) -> *const u8 {
        std::ptr::from_ref(self).cast()
    }
}

/// Copies `bytes` to `dst`, which no one else reads yet, and reports them to a traced medium.
///
/// # Safety
/// 1. `dst..dst + bytes.len()` lies inside the pool.
/// 2. No other thread reads or writes that range until it is published.
#[inline]
#[track_caller]
pub unsafe fn write_bytes<M: Media>(pm: &M, dst: *mut u8, bytes: &[u8]) {
    if M::TRACED {
        pm.trace_store_bytes(dst, bytes);
    }
    // SAFETY: 1. the caller's first obligation makes the range valid for writes; 2. the second
    // makes the access exclusive; 3. `bytes` is a live shared slice, so the ranges are disjoint.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dst, bytes.len()) }
}

