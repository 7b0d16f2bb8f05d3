//! A separator inside an inner node: one word in the node, and for byte strings also a pointer to
//! the whole.
//!
//! ```text
//! u64        word = the separator itself                              nothing else
//! u128       as a byte string of 16 bytes, big-endian                 the separator itself
//! byte       word = bytes skip .. skip + 8, big-endian, zero padded   pointer -> | len:u32 | bytes |
//! string            (skip: length of the node's common prefix)
//! ```
//!
//! Words compare like the strings' tails do, except that equal words decide nothing; then the
//! strings themselves are compared. That the key has the node's prefix at all is checked against
//! its first bytes, kept in the node (80, or 16 for `u128`), and past those against the first
//! separator.
//!
//! # Lifetime of byte-string separators
//! 1. One is allocated when it enters the index, never changes, and moves between nodes as a
//!    pointer.
//! 2. When it leaves the index, every slot that held it in a reachable node has been overwritten
//!    first; only then is it handed to the epoch collector. A reader that is pinned later than that
//!    finds no slot with it, one pinned earlier keeps it alive.

use crate::sync::{AtomicPtr, AtomicU64};
use bristlecone_pmem::media::{LINE, cpu};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cmp::Ordering as Order;
use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// A key type that the inner index can route by: `u64`, `u128` or `[u8]`.
///
/// Only the index calls the methods. Other code only names the trait, or forwards the methods of a
/// key with an order of its own to those of `[u8]` (`integrations/rocksdb`).
pub trait Separator: Ord + ToOwned<Owned: Ord + Debug + Clone + Send> + Debug + 'static {
    /// The word alone decides every comparison.
    #[doc(hidden)]
    const EXACT: bool;
    /// True if whole separators are on the heap, so that an empty slot can be told.
    #[doc(hidden)]
    const HEAP: bool;
    /// A whole separator, as it is passed around inside the index.
    #[doc(hidden)]
    type Full: Copy + Debug;
    /// The part that a node keeps beside the word. All zero is an empty one.
    #[doc(hidden)]
    type Slot: Send + Sync;
    /// The start of the prefix that a node's separators share. All zero is an empty one.
    #[doc(hidden)]
    type Prefix: Send + Sync;

    /// Returns the word of this key in a node whose separators share `skip` bytes, this key
    /// included.
    #[doc(hidden)]
    fn word(&self, skip: usize) -> u64;
    /// Returns the order of this key against a prefix of `skip` bytes of `first`; `Equal` if it
    /// starts with it.
    #[doc(hidden)]
    fn cmp_prefix(&self, first: &Self, skip: usize) -> Order;
    /// Returns the length of the longest common prefix, at most `most`.
    #[doc(hidden)]
    fn common_prefix(&self, other: &Self, most: usize) -> usize;
    /// Keeps the first `skip` bytes of this key, as many as there is room for.
    #[doc(hidden)]
    fn store_prefix(&self, prefix: &Self::Prefix, skip: usize);
    /// Copies a kept prefix.
    #[doc(hidden)]
    fn copy_prefix(to: &Self::Prefix, from: &Self::Prefix);
    /// Like `cmp_prefix`, against a kept prefix; `None` if the kept part does not decide.
    #[doc(hidden)]
    fn cmp_kept_prefix(&self, prefix: &Self::Prefix, skip: usize) -> Option<Order>;
    /// Returns a copy that the index owns, and its bytes.
    #[doc(hidden)]
    fn allocate(&self) -> (Self::Full, usize);
    /// Returns the separator in a slot, or `None` if the slot was seen empty (a torn read).
    #[doc(hidden)]
    fn load(word: u64, slot: &Self::Slot) -> Option<Self::Full>;
    /// Puts a separator (or nothing) into a slot.
    #[doc(hidden)]
    fn store(slot: &Self::Slot, full: Option<Self::Full>);
    /// Returns the separator itself.
    ///
    /// # Safety
    /// `full` has not been freed and is not while the result lives (the caller is pinned, or
    /// alone).
    #[doc(hidden)]
    unsafe fn view(full: &Self::Full) -> &Self;
    /// Prefetches the line that [`view`](Self::view) begins in. The separator may have been freed,
    /// or be none.
    #[doc(hidden)]
    #[inline(always)]
    fn prefetch(full: &Self::Full) {
        let _ = full;
    }
    /// Frees the separator. Returns its bytes.
    ///
    /// # Safety
    /// No thread uses `full` any more, and it is freed once.
    #[doc(hidden)]
    unsafe fn free(full: Self::Full) -> usize;
}

/// Nothing: the word is the whole separator.
#[doc(hidden)]
#[derive(Debug)]
pub struct NoSlot;

impl Separator for u64 {
    const EXACT: bool = true;
    const HEAP: bool = false;
    type Full = u64;
    type Slot = NoSlot;
    type Prefix = NoSlot;

    #[inline(always)]
    fn word(&self, _skip: usize) -> u64 {
        *self
    }

    #[inline(always)]
    fn cmp_prefix(&self, _first: &Self, _skip: usize) -> Order {
        Order::Equal
    }

    #[inline(always)]
    fn common_prefix(&self, _other: &Self, _most: usize) -> usize {
        0
    }

    #[inline(always)]
    fn store_prefix(&self, _prefix: &Self::Prefix, _skip: usize) {}

    #[inline(always)]
    fn copy_prefix(_to: &Self::Prefix, _from: &Self::Prefix) {}

    #[inline(always)]
    fn cmp_kept_prefix(&self, _prefix: &Self::Prefix, _skip: usize) -> Option<Order> {
        Some(Order::Equal)
    }

    #[inline(always)]
    fn allocate(&self) -> (Self::Full, usize) {
        (*self, 0)
    }

    #[inline(always)]
    fn load(word: u64, _slot: &Self::Slot) -> Option<Self::Full> {
        Some(word)
    }

    #[inline(always)]
    fn store(_slot: &Self::Slot, _full: Option<Self::Full>) {}

    #[inline(always)]
    unsafe fn view(full: &Self::Full) -> &Self {
        full
    }

    #[inline(always)]
    unsafe fn free(_full: Self::Full) -> usize {
        0
    }
}

/// A `u128` in a node, high half first. A read may be torn; the node's version tells.
#[doc(hidden)]
#[derive(Debug)]
pub struct WideSlot([AtomicU64; 2]);

impl Separator for u128 {
    const EXACT: bool = false;
    const HEAP: bool = false;
    type Full = u128;
    type Slot = WideSlot;
    type Prefix = WideSlot;

    #[inline(always)]
    fn word(&self, skip: usize) -> u64 {
        (self.checked_shl(8 * skip as u32).unwrap_or(0) >> 64) as u64
    }

    #[inline(always)]
    fn cmp_prefix(&self, first: &Self, skip: usize) -> Order {
        let mask = prefix_mask(skip);
        (self & mask).cmp(&(first & mask))
    }

    #[inline(always)]
    fn common_prefix(&self, other: &Self, most: usize) -> usize {
        ((self ^ other).leading_zeros() as usize / 8).min(most)
    }

    #[inline(always)]
    fn store_prefix(&self, prefix: &Self::Prefix, skip: usize) {
        Self::store(prefix, Some(self & prefix_mask(skip)));
    }

    #[inline(always)]
    fn copy_prefix(to: &Self::Prefix, from: &Self::Prefix) {
        Self::store(to, Self::load(0, from));
    }

    #[inline(always)]
    fn cmp_kept_prefix(&self, prefix: &Self::Prefix, skip: usize) -> Option<Order> {
        Self::load(0, prefix).map(|kept| (self & prefix_mask(skip)).cmp(&kept))
    }

    #[inline(always)]
    fn allocate(&self) -> (Self::Full, usize) {
        (*self, 0)
    }

    #[inline(always)]
    fn load(_word: u64, slot: &Self::Slot) -> Option<Self::Full> {
        // ORDERING: Relaxed, here and in `store`; as for the node's other words: nothing is
        // followed.
        let [high, low] = [0, 1].map(|i| u128::from(slot.0[i].load(Ordering::Relaxed)));
        Some(high << 64 | low)
    }

    #[inline(always)]
    fn store(slot: &Self::Slot, full: Option<Self::Full>) {
        let full = full.unwrap_or(0);
        slot.0[0].store((full >> 64) as u64, Ordering::Relaxed);
        slot.0[1].store(full as u64, Ordering::Relaxed);
    }

    #[inline(always)]
    unsafe fn view(full: &Self::Full) -> &Self {
        full
    }

    #[inline(always)]
    unsafe fn free(_full: Self::Full) -> usize {
        0
    }
}

/// A byte string on the heap: its length, then its bytes. Never changes.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct ByteSeparator(NonNull<u32>);

/// The pointer to a byte string in a node, or null.
#[doc(hidden)]
#[repr(transparent)]
#[derive(Debug)]
pub struct FullSlot(AtomicPtr<u32>);

/// The first bytes of a node's common prefix, in big-endian words, zero padded. With them, most
/// searches need not follow a pointer to check the prefix.
#[doc(hidden)]
#[derive(Debug)]
pub struct KeptPrefix([AtomicU64; KEPT / 8]);

/// Number of bytes of a prefix that are kept in the node: all the rest of the line.
const KEPT: usize = 80;

/// Returns the bits of a `u128` that its first `skip` bytes take.
fn prefix_mask(skip: usize) -> u128 {
    const BYTES: usize = size_of::<u128>();
    u128::MAX
        .checked_shl(8 * (BYTES - skip.min(BYTES)) as u32)
        .unwrap_or(0)
}

/// Returns the kept words of the prefix of `skip` bytes that `key` begins with, zero padded.
fn prefix_words(key: &[u8], skip: usize) -> impl Iterator<Item = u64> {
    let prefix = &key[..key.len().min(skip).min(KEPT)];
    (0..skip.min(KEPT)).step_by(8).map(|at| prefix.word(at))
}

/// [`Separator::cmp_kept_prefix`] for a key that is shorter than the kept part, so that it is
/// either less, or differs before its end.
#[cold]
fn cmp_short(key: &[u8], prefix: &KeptPrefix, skip: usize) -> Order {
    // ORDERING: Relaxed; as for the node's other words.
    let kept = prefix.0.iter().map(|kept| kept.load(Ordering::Relaxed));
    let order = prefix_words(key, skip)
        .zip(kept)
        .map(|(mine, kept)| mine.cmp(&kept))
        .find(|order| *order != Order::Equal);
    // The key's padding stood for zero bytes of the prefix: the key is shorter, so it is less.
    order.unwrap_or(Order::Less)
}

/// Size of the length field.
const LEN: usize = size_of::<u32>();

impl ByteSeparator {
    fn layout(len: usize) -> Layout {
        // Keys are at most 64 KiB long, so neither the sum nor the length field overflows.
        Layout::from_size_align(LEN + len, align_of::<u32>()).expect("keys are short")
    }

    fn new(bytes: &[u8]) -> Self {
        let len = u32::try_from(bytes.len()).expect("keys are short");
        let layout = Self::layout(bytes.len());
        // SAFETY: the layout's size is at least LEN, not zero.
        let at = unsafe { alloc(layout) };
        let Some(head) = NonNull::new(at.cast::<u32>()) else {
            handle_alloc_error(layout)
        };
        // SAFETY: 1. `head` is valid for LEN + len bytes and aligned for u32; 2. no other thread
        // knows it yet; 3. a fresh allocation does not overlap `bytes`.
        unsafe {
            head.write(len);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.add(LEN), bytes.len());
        }
        Self(head)
    }
}

impl Separator for [u8] {
    const EXACT: bool = false;
    const HEAP: bool = true;
    type Full = ByteSeparator;
    type Slot = FullSlot;
    type Prefix = KeptPrefix;

    #[inline]
    fn word(&self, skip: usize) -> u64 {
        let tail = self.get(skip..).unwrap_or_default();
        if let Some(bytes) = tail.first_chunk::<8>() {
            return u64::from_be_bytes(*bytes);
        }
        if let Some(bytes) = self.last_chunk::<8>() {
            // Without copying the bytes, which would be a call.
            let before = 8 * (8 - tail.len()) as u32;
            return u64::from_be_bytes(*bytes).checked_shl(before).unwrap_or(0);
        }
        let mut bytes = [0; 8];
        bytes[..tail.len()].copy_from_slice(tail);
        u64::from_be_bytes(bytes)
    }

    #[inline]
    fn cmp_prefix(&self, first: &Self, skip: usize) -> Order {
        // A torn `skip` may be longer than `first`; a key shorter than the prefix that agrees as
        // far as it goes sorts before it, as slices do.
        self[..self.len().min(skip)].cmp(&first[..first.len().min(skip)])
    }

    fn common_prefix(&self, other: &Self, most: usize) -> usize {
        self.iter()
            .zip(other)
            .take(most)
            .take_while(|(a, b)| a == b)
            .count()
    }

    fn store_prefix(&self, prefix: &Self::Prefix, skip: usize) {
        for (kept, word) in prefix.0.iter().zip(prefix_words(self, skip)) {
            // ORDERING: Relaxed, here and below; as for the node's other words.
            kept.store(word, Ordering::Relaxed);
        }
    }

    fn copy_prefix(to: &Self::Prefix, from: &Self::Prefix) {
        for (to, from) in to.0.iter().zip(&from.0) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    #[inline]
    fn cmp_kept_prefix(&self, prefix: &Self::Prefix, skip: usize) -> Option<Order> {
        let len = skip.min(KEPT);
        if self.len() >= len {
            let whole = self.as_chunks().0.iter().zip(&prefix.0).take(len / 8);
            for (mine, kept) in whole {
                let order = u64::from_be_bytes(*mine).cmp(&kept.load(Ordering::Relaxed));
                if order != Order::Equal {
                    return Some(order);
                }
            }
            if let Some(kept) = prefix.0.get(len / 8).filter(|_| !len.is_multiple_of(8)) {
                let mine = self.word(len / 8 * 8) & !(u64::MAX >> (8 * (len % 8)));
                let order = mine.cmp(&kept.load(Ordering::Relaxed));
                if order != Order::Equal {
                    return Some(order);
                }
            }
            return (skip <= KEPT).then_some(Order::Equal);
        }
        Some(cmp_short(self, prefix, skip))
    }

    fn allocate(&self) -> (Self::Full, usize) {
        (ByteSeparator::new(self), LEN + self.len())
    }

    #[inline(always)]
    fn load(_word: u64, slot: &Self::Slot) -> Option<Self::Full> {
        // ORDERING: Acquire; pairs with the Release in `store`. The string is read before the node
        // is validated, so seeing the pointer must imply seeing what it leads to.
        NonNull::new(slot.0.load(Ordering::Acquire)).map(ByteSeparator)
    }

    #[inline(always)]
    fn store(slot: &Self::Slot, full: Option<Self::Full>) {
        let pointer = full.map_or(std::ptr::null_mut(), |full| full.0.as_ptr());
        // ORDERING: Release; pairs with the Acquire in `load`.
        slot.0.store(pointer, Ordering::Release);
    }

    #[inline(always)]
    fn prefetch(full: &ByteSeparator) {
        cpu::prefetch(full.0.as_ptr().cast(), LINE);
    }

    #[inline(always)]
    unsafe fn view(full: &Self::Full) -> &Self {
        // SAFETY: 1. the caller promises that it is not freed; 2. `new` wrote the length and as
        // many bytes after it; 3. nothing writes to it after `new`.
        unsafe {
            let len = full.0.read() as usize;
            std::slice::from_raw_parts(full.0.cast::<u8>().add(LEN).as_ptr(), len)
        }
    }

    unsafe fn free(full: Self::Full) -> usize {
        // SAFETY: 1. the caller promises that nothing uses it any more and that this happens once;
        // 2. the layout is the one that `new` allocated with, since the length never changes.
        unsafe {
            let len = full.0.read() as usize;
            dealloc(full.0.as_ptr().cast(), Self::Full::layout(len));
            LEN + len
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_order_like_the_strings_unless_equal() {
        let strings: &[&[u8]] = &[
            b"",
            b"\0",
            b"\0\0",
            b"\0\x01",
            b"a",
            b"a\0",
            b"a\0b",
            b"abcdefg",
            b"abcdefgh",
            b"abcdefgh\0",
            b"abcdefghi",
            b"b",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ];
        for pair in strings.windows(2) {
            assert!(pair[0] < pair[1], "{pair:?}");
            assert!(pair[0].word(0) <= pair[1].word(0), "{pair:?}");
        }
        assert_eq!(b"user:000042".word(5), u64::from_be_bytes(*b"000042\0\0"));
        assert_eq!(b"abc".word(5), 0, "a word past the end is all padding");
        assert_eq!(b"abc".cmp_prefix(b"abcd", 4), Order::Less);
        assert_eq!(b"abcde".cmp_prefix(b"abcd", 4), Order::Equal);
        assert_eq!(b"abd".cmp_prefix(b"abcd", 4), Order::Greater);
        let prefix = KeptPrefix([const { AtomicU64::new(0) }; KEPT / 8]);
        let long = [b'p'; KEPT + 2];
        for kept in [
            &b"tenant\0\0"[..],
            b"tenant:000000\0\0\0",
            b"tenant:000000\0\0\0more",
            &long[..KEPT],
            &long,
        ] {
            let skip = kept.len();
            kept.store_prefix(&prefix, skip);
            for key in [
                &b""[..],
                b"tenant",
                b"tenant\0",
                b"tenant\0\0x",
                b"tenant:",
                b"tenant\x01",
                b"tenanu",
                b"tenant:000000",
                b"tenant:000000\0\0",
                b"tenant:000000\0\0\0",
                b"tenant:000000\0\0\0more",
                &long[..8],
                &long[..KEPT - 1],
                &long[..KEPT],
                &long,
                b"u",
            ] {
                let exact = key.cmp_prefix(kept, skip);
                match key.cmp_kept_prefix(&prefix, skip) {
                    Some(order) => assert_eq!(order, exact, "{key:?} against {kept:?}"),
                    None => assert!(skip > KEPT && key.starts_with(&kept[..KEPT]), "{key:?}"),
                }
            }
        }
        assert_eq!(b"abcd".common_prefix(b"abxd", 9), 2);
        assert_eq!(b"abcd".common_prefix(b"abcd", 3), 3);
    }

    #[test]
    fn whole_separators_round_trip() {
        for bytes in [&b""[..], b"\0", b"separator", &[7; 65_536]] {
            let (full, size) = bytes.allocate();
            let slot = FullSlot(AtomicPtr::new(std::ptr::null_mut()));
            assert!(<[u8]>::load(0, &slot).is_none(), "empty at first");
            <[u8]>::store(&slot, Some(full));
            let seen = <[u8]>::load(0, &slot).expect("just stored");
            // SAFETY: allocated above, and freed only two statements later.
            assert_eq!(unsafe { <[u8]>::view(&seen) }, bytes);
            // SAFETY: allocated above, freed once.
            assert_eq!(unsafe { <[u8]>::free(full) }, size);
        }
    }
}
