//! What DRAM holds of a leaf page that has been touched: its locks, and how to find a key in it
//! with two or three cache misses.
//!
//! ```text
//! line 0      version | writer's lock | block | shape 64 | lengths 64 | first key word | id, shift, step, samples | count, end
//! line 1      samples of the base: the heads, of 15 bits, of up to 32 of its keys
//! line 2, 3   fingerprints of the tail's records, 8 bits each
//! line 3 - 6  places of the tail's records, 16 bits each
//! line 6      the page's generation 48, keys that are there 16: for writers | latest stamp of the page
//! line 6 - 12 lock of the order | latest stamp of the base 50, records looked at 7, in it 7 | records in key
//!             order, 32 bits each
//! ```
//!
//! A key's *word* is the eight bytes that follow the page's prefix, as a number; its *head* is the
//! 15 bits of that from the highest on in which the base's keys differ. Heads are in the order of
//! keys, except that equal heads decide nothing.
//!
//! # Concurrency
//! 1. The *writer's lock* is held by the thread that changes the page. Readers do not look at it.
//! 2. The *version* is locked while the page is replaced, so that all of the part changes at once
//!    for readers. An append leaves it alone: it stores fingerprint and place, and then the count
//!    with Release. A reader loads the count with Acquire, and finds all records below it whole.
//! 3. Every field is an atomic. A reader that gets a mixture of two states does not fault (places
//!    are bounded by the page) and finds out when it validates the version.
//! 4. The *order* of the tail is for scans, which bring it up to date under its own lock. A scan
//!    that does not get the lock at once orders the tail for itself. While the lock is held the
//!    page is not replaced.
//! 5. The *latest stamp* of the page is stored before the count that shows its record. So who loads
//!    the count and then the stamp finds it at least as late as all records below the count. Pages
//!    that were loaded have none: their changes are older than any time at which somebody reads.
//! 6. Parts are type-stable: their memory always holds parts, and versions never go back.

use super::layout::{Header, Uniform};
use super::order::{Ranked, TailOrder};
use super::page::Page;
use super::place::{Base, Place};
use super::slots::STAMP_BITS;
use crate::arena::Node;
use crate::version_lock::VersionWord;
use bristlecone_pmem::Media;
use bristlecone_pmem::media::LINE;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most records in a tail.
pub(super) const TAIL: usize = 96;
/// Most samples of a base.
const SAMPLES: usize = 32;

/// See the module's head.
#[repr(C, align(64))]
pub(super) struct Part {
    pub(super) version: VersionWord,
    pub(super) writer: VersionWord,
    block: AtomicU64,
    shape: AtomicU64,
    lengths: AtomicU64,
    first: AtomicU64,
    about: AtomicU64,
    tail: AtomicU64,
    samples: [AtomicU64; SAMPLES / 4],
    fingerprints: [AtomicU64; TAIL / 8],
    places: [AtomicU64; TAIL / 4],
    generation: AtomicU64,
    latest: AtomicU64,
    ordering: VersionWord,
    ordered: AtomicU64,
    order: [AtomicU64; TAIL / 2],
}

/// Bytes of a part that a search touches: its first lines.
pub(super) const SEARCHED: usize = std::mem::offset_of!(Part, ordering).next_multiple_of(64);

const _: () = assert!(size_of::<Part>() == 832 && TAIL.is_multiple_of(8));

// SAFETY: 1. all zero is a valid part: two free locks and numbers; 2. every field is atomic; 3.
// dropping does nothing.
unsafe impl Node for Part {}

/// Bits of a word that are a block / 64; words of the page follow.
const BLOCK_BITS: u32 = 48;
const BLOCK: u64 = (1 << BLOCK_BITS) - 1;
/// Bits of a word that are a generation.
const GENERATION: u64 = (1 << 48) - 1;
/// Bits of a number of lines: key and value lengths come below, and the form's bit above.
const SUPERSEDED: u64 = (1 << 31) - 1;
/// Bits of a number of records.
const COUNT_BITS: u32 = 7;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

const _: () = assert!(TAIL <= COUNT as usize && STAMP_BITS + 2 * COUNT_BITS <= u64::BITS);

/// The word of the order: the latest stamp of the base, records looked at, and records in it.
fn ordered(latest: u64, seen: u64, len: u64) -> u64 {
    latest << (2 * COUNT_BITS) | seen << COUNT_BITS | len
}

/// How words of keys become heads.
#[derive(Clone, Copy, Debug)]
struct Heads {
    first: u64,
    shift: u32,
    step: usize,
    samples: usize,
}

/// The highest head.
const HIGHEST: u16 = (1 << 15) - 1;

impl Heads {
    fn head(&self, word: u64) -> u16 {
        let above = word.saturating_sub(self.first);
        // A word above all of the base's has bits that the shift would lose.
        if above.leading_zeros() < self.shift {
            return HIGHEST;
        }
        (above << self.shift >> 49) as u16
    }
}

/// Samples of a base: the heads of up to 32 of its keys. Lanes beyond them have the highest head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Samples {
    heads: Heads,
    samples: [u64; SAMPLES / 4],
}

impl Samples {
    /// The entries of the base, from and to, among which a key with this word must be, if it is
    /// there, or would be. `to` is not below `from`, even of a page that is changing.
    #[inline(always)]
    pub(super) fn near(&self, word: u64, entries: usize) -> (usize, usize) {
        let heads = self.heads;
        let head = heads.head(word);
        // Four at once: a lane's highest bit stays if what is taken from it is not larger.
        let heads_of_four = u64::from(head) * LANES;
        let (mut not_below, mut not_above) = (0, 0);
        for four in self.samples {
            not_below += ((four | LANES << 15) - heads_of_four) >> 15 & LANES;
            not_above += ((heads_of_four | LANES << 15) - four) >> 15 & LANES;
        }
        // None beyond the samples is below a head.
        let below = SAMPLES - sum_of_lanes(not_below);
        let not_above = sum_of_lanes(not_above).min(heads.samples);
        let from = (below.saturating_sub(1) * heads.step).min(entries);
        (from, (not_above * heads.step).clamp(from, entries))
    }
}

/// The lowest bit of each of the four lanes of a word.
const LANES: u64 = 0x0001_0001_0001_0001;

#[inline(always)]
fn sum_of_lanes(word: u64) -> usize {
    (word.wrapping_mul(LANES) >> 48) as usize
}

#[inline(always)]
fn load(cell: &AtomicU64) -> u64 {
    // ORDERING: Relaxed; `version` says whether what was read belongs together, and the count's
    // Acquire that records below it are whole.
    cell.load(Ordering::Relaxed)
}

#[inline(always)]
fn store(cell: &AtomicU64, value: u64) {
    // ORDERING: Relaxed; published by the count's Release, or by unlocking the version.
    cell.store(value, Ordering::Relaxed);
}

#[inline(always)]
fn lane(cells: &[AtomicU64], i: usize) -> u16 {
    (load(&cells[i / 4]) >> (i % 4 * 16)) as u16
}

#[inline(always)]
fn set_lane(cells: &[AtomicU64], i: usize, value: u16) {
    let (cell, shift) = (&cells[i / 4], i % 4 * 16);
    store(
        cell,
        load(cell) & !(0xFFFF << shift) | u64::from(value) << shift,
    );
}

impl Part {
    /// The block of the page, an offset in the pool.
    pub(super) fn block(&self) -> u64 {
        self.block_and_words().0
    }

    /// The block of the page, and its words: in one word, so that no search goes beyond a block.
    #[inline(always)]
    pub(super) fn block_and_words(&self) -> (u64, usize) {
        let both = load(&self.block);
        ((both & BLOCK) * 64, (both >> BLOCK_BITS) as usize)
    }

    pub(super) fn id(&self) -> u32 {
        load(&self.about) as u32
    }

    /// The page's generation; of a page that may be changing, unless the caller holds the writer's
    /// lock.
    pub(super) fn generation(&self) -> u64 {
        load(&self.generation) & GENERATION
    }

    /// Keys of the page. The caller holds the writer's lock.
    pub(super) fn live(&self) -> usize {
        (load(&self.generation) >> 48) as usize
    }

    /// Notes how many keys there are. The caller holds the writer's lock, or is alone.
    pub(super) fn set_live(&self, live: usize) {
        let generation = load(&self.generation) & GENERATION;
        store(&self.generation, generation | (live as u64) << 48);
    }

    /// Bytes of outer values that a later record supersedes, as far as is known. The caller holds
    /// the writer's lock.
    pub(super) fn superseded(&self) -> usize {
        (load(&self.lengths) >> 32 & SUPERSEDED) as usize * LINE
    }

    /// Adds to them. The caller holds the writer's lock.
    pub(super) fn add_superseded(&self, bytes: usize) {
        if bytes > 0 {
            let lines = (self.superseded() + bytes).div_ceil(LINE) as u64;
            let others = load(&self.lengths) & !(SUPERSEDED << 32);
            store(&self.lengths, others | lines.min(SUPERSEDED) << 32);
        }
    }

    #[inline(always)]
    pub(super) fn base(&self) -> Base {
        let (shape, lengths) = (load(&self.shape), load(&self.lengths));
        let uniform = lengths >> 63 != 0;
        Base {
            entries: shape as u16 as usize,
            at: (shape >> 16) as u16 as usize,
            prefix: (shape >> 32) as u16 as usize,
            form: uniform.then_some(Uniform {
                key: lengths as u16,
                value: (lengths >> 16) as u16,
            }),
        }
    }

    /// Records of the tail that readers may look at.
    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        // ORDERING: Acquire; pairs with the Release of `publish`.
        (self.tail.load(Ordering::Acquire) as u32 as usize).min(TAIL)
    }

    /// Records of the tail that readers may look at, and the word after the last of their groups.
    pub(super) fn count_and_end(&self) -> (usize, usize) {
        // ORDERING: Acquire; as in `count`.
        let tail = self.tail.load(Ordering::Acquire);
        ((tail as u32 as usize).min(TAIL), (tail >> 32) as usize)
    }

    /// The word after the tail's last group; of a page that may be changing, unless the caller
    /// holds the writer's lock.
    pub(super) fn end(&self) -> usize {
        (load(&self.tail) >> 32) as usize
    }

    /// Adds a record of the tail, for [`publish`](Self::publish) to make visible. The caller holds
    /// the writer's lock, or is alone.
    pub(super) fn add(&self, i: usize, fingerprint: u8, place: Place) {
        let (cell, shift) = (&self.fingerprints[i / 8], i % 8 * 8);
        store(
            cell,
            load(cell) & !(0xFF << shift) | u64::from(fingerprint) << shift,
        );
        set_lane(&self.places, i, place.encode());
    }

    /// Makes the first `count` records of the tail, which ends at word `end`, visible.
    pub(super) fn publish(&self, count: usize, end: usize) {
        // ORDERING: Release; pairs with the Acquire of `count`.
        self.tail
            .store(count as u64 | (end as u64) << 32, Ordering::Release);
    }

    #[inline(always)]
    pub(super) fn place(&self, i: usize) -> Place {
        Place::decode(lane(&self.places, i))
    }

    /// The records below `count` whose fingerprint is `fingerprint`, a bit each.
    #[inline(always)]
    pub(super) fn matches(&self, fingerprint: u8, count: usize) -> u128 {
        let wanted = u64::from(fingerprint) * 0x0101_0101_0101_0101;
        let mut found = 0;
        for (i, cell) in self.fingerprints[..count.div_ceil(8)].iter().enumerate() {
            let differ = load(cell) ^ wanted;
            // The high bit of each byte that is zero, exactly.
            let low = (differ & 0x7F7F_7F7F_7F7F_7F7F) + 0x7F7F_7F7F_7F7F_7F7F;
            let equal = !(low | differ) & 0x8080_8080_8080_8080;
            let bits = (equal >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56;
            found |= u128::from(bits) << (i * 8);
        }
        found & ((1 << count) - 1)
    }

    /// Sets `order` to the order of the tail's records. Returns the latest stamp of the page, which
    /// is that of the last of these records or a later one; `None` if the page is not the one of
    /// `version` any more.
    ///
    /// The caller is pinned, or holds the writer's lock.
    pub(super) fn order<M: Media>(
        &self,
        page: Page<'_, M>,
        version: u64,
        order: &mut TailOrder,
    ) -> Option<u64> {
        order.records.clear();
        order.records.reserve(TAIL);
        order.seen = 0;
        let locked = self.ordering.try_lock();
        if locked {
            let ordered = load(&self.ordered);
            order.seen = (ordered >> COUNT_BITS & COUNT) as usize;
            let len = ((ordered & COUNT) as usize).min(TAIL);
            order
                .records
                .resize(len.next_multiple_of(2), Ranked::default());
            let (twos, _) = order.records.as_chunks_mut();
            for (to, two) in twos.iter_mut().zip(&self.order) {
                let two = load(two);
                *to = [two as u32, (two >> 32) as u32].map(Ranked::decode);
            }
            order.records.truncate(len);
        }
        let base = self.base();
        let mut places = [0; TAIL];
        let fresh = order.seen..self.count();
        for (to, i) in places.iter_mut().zip(fresh.clone()) {
            *to = lane(&self.places, i);
        }
        let latest = self.latest();
        // If so, the places are this page's, and its records below the count never change.
        let valid = self.version.validate(version);
        if valid {
            let places = places[..fresh.len()].iter();
            order.extend(page, &base, places.map(|place| Place::decode(*place)));
        }
        if locked {
            if valid && !fresh.is_empty() {
                self.keep_order(order);
            }
            self.ordering.unlock_unchanged();
        }
        valid.then_some(latest)
    }

    /// The caller holds the lock of the order.
    fn keep_order(&self, order: &TailOrder) {
        for (cell, two) in self.order.iter().zip(order.records.chunks(2)) {
            let high = two.get(1).map_or(0, |record| record.encode());
            store(cell, u64::from(two[0].encode()) | u64::from(high) << 32);
        }
        let (seen, len) = (order.seen as u64, order.records.len() as u64);
        let latest = load(&self.ordered) >> (2 * COUNT_BITS);
        store(&self.ordered, ordered(latest, seen, len));
    }

    /// A copy of the samples of the base: of a page that may be changing, unless the version still
    /// holds afterwards.
    #[inline(always)]
    pub(super) fn samples(&self) -> Samples {
        Samples {
            heads: self.heads(),
            samples: self.samples.each_ref().map(load),
        }
    }

    #[inline(always)]
    fn heads(&self) -> Heads {
        let about = load(&self.about) >> 32;
        Heads {
            first: load(&self.first),
            shift: about as u8 as u32,
            step: ((about >> 8) as u16).max(1).into(),
            samples: ((about >> 24) as u8 as usize).min(SAMPLES),
        }
    }

    /// The entries of the base, from and to, among which a key with this word must be, if it is
    /// there.
    #[inline(always)]
    pub(super) fn near(&self, word: u64, entries: usize) -> (usize, usize) {
        self.samples().near(word, entries)
    }

    /// The latest stamp of the page's changes. The count is to be loaded before.
    #[inline(always)]
    pub(super) fn latest(&self) -> u64 {
        load(&self.latest)
    }

    /// Notes the stamp of a change whose records [`publish`](Self::publish) makes visible next. The
    /// caller holds the writer's lock.
    #[inline(always)]
    pub(super) fn set_latest(&self, stamp: u64) {
        store(&self.latest, stamp);
    }

    /// The latest stamp of what is in the base.
    pub(super) fn latest_of_base(&self) -> u64 {
        load(&self.ordered) >> (2 * COUNT_BITS)
    }

    /// Makes this the part of the page with that header in that block: with an empty tail.
    /// `latest`: the stamp of the latest change that is in it. `word`: the word of the key of an
    /// entry.
    ///
    /// The caller holds the version locked, or is alone.
    pub(super) fn become_page(
        &self,
        header: &Header,
        block: u64,
        latest: u64,
        word: impl Fn(usize) -> u64,
    ) {
        self.ordering.lock();
        store(&self.ordered, ordered(latest, 0, 0));
        self.set_latest(latest);
        let n = header.entries;
        let form = header.form.unwrap_or(Uniform { key: 0, value: 0 });
        let shape = n as u64 | (header.base as u64) << 16 | (header.prefix as u64) << 32;
        let uniform = u64::from(header.form.is_some()) << 63;
        store(
            &self.block,
            (block / 64) | (header.words as u64) << BLOCK_BITS,
        );
        store(&self.shape, shape);
        store(
            &self.lengths,
            uniform | u64::from(form.key) | u64::from(form.value) << 16,
        );
        let (first, last) = if n == 0 {
            (0, 0)
        } else {
            (word(0), word(n - 1))
        };
        // A shift of 49 leaves 15 bits.
        let heads = Heads {
            first,
            shift: last.saturating_sub(first).leading_zeros().min(49),
            step: n.div_ceil(SAMPLES).max(1),
            samples: n.div_ceil(n.div_ceil(SAMPLES).max(1)),
        };
        for sample in 0..SAMPLES {
            let head = match sample < heads.samples {
                true => heads.head(word(sample * heads.step)),
                false => HIGHEST,
            };
            set_lane(&self.samples, sample, head);
        }
        store(&self.first, first);
        store(&self.generation, header.generation);
        self.set_live(n);
        let about =
            u64::from(heads.shift) | (heads.step as u64) << 8 | (heads.samples as u64) << 24;
        store(&self.about, u64::from(header.id) | about << 32);
        self.publish(0, header.tail);
        self.ordering.unlock_unchanged();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> Box<Part> {
        // SAFETY: all zero is a valid part.
        unsafe { Box::new_zeroed().assume_init() }
    }

    fn header(entries: usize) -> Header {
        Header {
            id: 5,
            level: 0,
            generation: 1,
            born_in: 1,
            next: 0,
            words: 512,
            entries,
            prefix: 0,
            low: None,
            high: None,
            base: 12,
            tail: 12 + 2 * entries,
            form: Some(Uniform::NUMBERS),
            dropped: 0,
        }
    }

    #[test]
    fn fingerprints_are_matched_exactly() {
        let part = part();
        let print = |i: usize| (i * 37 % 256) as u8;
        for i in 0..TAIL {
            let place = Place {
                word: i * 80 % 8000,
                general: i % 3 == 0,
                removed: i % 5 == 0,
            };
            part.add(i, print(i), place);
            part.publish(i + 1, 0);
            assert_eq!(part.place(i), place);
        }
        for count in 0..=TAIL {
            for wanted in 0..=255 {
                let expected = (0..count).filter(|i| print(*i) == wanted);
                let expected = expected.fold(0, |bits, i| bits | 1u128 << i);
                assert_eq!(part.matches(wanted, count), expected, "{wanted} of {count}");
            }
        }
    }

    #[test]
    fn a_key_is_among_those_that_its_head_says() {
        let mut state = 1u64;
        for n in [0usize, 1, 2, 31, 32, 33, 63, 64, 65, 200, 255] {
            for spread in [0, 1, 20, 48, 56] {
                let part = part();
                let mut keys: Vec<u64> = (0..n as u64)
                    .map(|i| {
                        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                        (state >> (64 - spread.max(8)) << 8) + i
                    })
                    .collect();
                keys.sort_unstable();
                keys.dedup();
                part.become_page(&header(keys.len()), 4096, 0, |i| keys[i]);
                assert_eq!((part.id(), part.block(), part.count()), (5, 4096, 0));
                assert_eq!(part.base().form, Some(Uniform::NUMBERS));
                let probes = keys
                    .iter()
                    .flat_map(|k| [k.wrapping_sub(1), *k, k.wrapping_add(1)]);
                for probe in probes.chain([0, u64::MAX]) {
                    let (from, to) = part.near(probe, keys.len());
                    let place = keys.partition_point(|key| *key < probe);
                    // Where it is, or would be.
                    assert!(
                        from <= place && place <= to,
                        "{probe}: {place} in {from}..{to}"
                    );
                    if keys.get(place) == Some(&probe) {
                        assert!(place < to);
                    }
                    if spread >= 48 && n > 64 {
                        assert!(to - from <= 3 * n.div_ceil(32), "{from}..{to} of {n}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_mixture_of_two_pages_leads_to_entries_of_one() {
        let mut state = 1u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            state >> 33
        };
        for _ in 0..500 {
            let [one, other] = [(); 2].map(|()| {
                let (n, spread) = (random() as usize % 200, random() % 56);
                let first = random() << 31;
                let part = part();
                let word = |i: usize| first.saturating_add((i as u64) << spread);
                part.become_page(&header(n), 4096, 0, word);
                part
            });
            // A reader that overlaps with `become_page` may see such a mixture.
            let mixed = part();
            let words = |part: &Part| {
                let Part { first, about, .. } = part;
                let all = part.samples.iter().chain([first, about]);
                all.map(load).collect::<Vec<_>>()
            };
            let all = mixed.samples.iter().chain([&mixed.first, &mixed.about]);
            for ((to, one), other) in all.zip(words(&one)).zip(words(&other)) {
                store(to, if random() % 2 == 0 { one } else { other });
            }
            for entries in [one.base().entries, other.base().entries] {
                for word in [0, random() << 31, random() << 20, u64::MAX] {
                    let (from, to) = mixed.near(word, entries);
                    assert!(from <= to && to <= entries, "{from}..{to} of {entries}");
                }
            }
        }
    }
}
