//! Reading a line of a pool while other threads store to it.

use super::LINE;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Number of 8-byte words in a line.
pub(crate) const WORDS: usize = LINE / 8;

/// Returns a state that line `line` of the pool at `base` really had, at one moment of this call.
///
/// The line is read twice in a row, word by word, until both reads are equal. A word that both
/// found unchanged held its value between them, so at the moment between the two reads the line was
/// as they found it. (A word that changed and changed back in those nanoseconds, twice, would
/// escape; the code that stores words of a line takes longer than that for one round.)
///
/// # Safety
/// The line lies in one mapping, which starts at `base`, is aligned to lines and stays for the
/// call. Other threads store to it by 8-byte atomics, or plainly to bytes that nothing durable
/// leads to yet.
#[inline]
pub(crate) unsafe fn capture(base: *const u8, line: u64) -> [u64; WORDS] {
    let at = base.wrapping_add(line as usize * LINE).cast::<u64>();
    // SAFETY: the caller promises that the line is in a mapping aligned to lines that stays for the
    // call.
    let mut first = unsafe { collect(at) };
    let mut tries = 0u32;
    loop {
        // ORDERING: Acquire; the second read begins after the first has ended.
        fence(Ordering::Acquire);
        // SAFETY: as above, the caller promises that the line is mapped.
        let second = unsafe { collect(at) };
        if first == second {
            return first;
        }
        first = second;
        tries += 1;
        if tries.is_multiple_of(1024) {
            std::thread::yield_now();
        }
    }
}

/// Reads the words of a line.
///
/// # Safety
/// As of [`capture`].
#[inline(always)]
unsafe fn collect(at: *const u64) -> [u64; WORDS] {
    std::array::from_fn(|i| {
        // SAFETY: 1. the line is mapped and aligned to 64 bytes, so each of its words is valid and
        // aligned; 2. cells store to it through 8-byte atomics; bytes that are not yet published
        // may be written plainly at the same time, and then what is read is a value that nothing
        // relies on until their own flush and fence.
        let word = unsafe { AtomicU64::from_ptr(at.add(i).cast_mut()) };
        // ORDERING: Relaxed; the fence between two reads orders them.
        word.load(Ordering::Relaxed)
    })
}

/// Returns a line's bytes as they lie in memory.
#[inline(always)]
pub(crate) fn bytes_of(words: [u64; WORDS]) -> [u8; LINE] {
    let mut bytes = [0; LINE];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
