//! Replacing a page by one block or two: consolidation, split, growth of the root.
//!
//! ```text
//! consolidation   new block | fence | word of the page, fence
//! split           two blocks, newborn word of the right page | fence | word of the left page, fence
//! root            three blocks, two newborn words | fence | word of the root, fence
//! ```
//!
//! The change that found no room in the tail is part of the new pages, so its operation costs a
//! fence more than others, and nothing else is appended. The old block is free once readers have
//! left it.

use super::image;
pub(super) use super::image::{Entries, Spec};
use super::layout::{DROPPED_WORDS, Header, MAX_PAGE};
use super::order::{TailOrder, Walk};
use super::page::Page;
use super::place::{Base, Place};
use super::stored::{Reference, Stored};
use super::table::{Kind, Table, Word};
use super::{ClusteredTree, root};
use crate::repr::{KeyRepr, Repr};
use crate::sorted::common_prefix;
use bristlecone_pmem::media::MediumKind;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, POff, SpaceError, planted};
use crossbeam_epoch::Guard;
use std::ops::Bound;

/// Percent of a page that its entries may take after a replacement; more, and it is split.
const SPLIT_ABOVE: usize = 88;
/// That percentage differs by less than this from page to page.
const SPLIT_SPREAD: usize = 28;
/// Likewise where entries come in ascending order: the left page stays as it is.
pub(super) const SPLIT_ASCENDING_ABOVE: usize = 88;
/// Entries of a leaf page that is split, at least.
const FEW: usize = 4;
/// Likewise, of an inner page.
const FEW_CHILDREN: usize = 8;
/// Blocks that are kept back, so that removing needs no space. Nothing durable says so.
const SPARE: usize = 4;
/// Entries of a page above which it is split where rare paths are to be taken often.
pub(super) const TINY_ENTRIES: usize = 5;

/// A page that replaces another, or is new.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewPage {
    pub(super) header: Header,
    pub(super) block: u64,
}

/// How a page was replaced.
#[derive(Debug)]
pub(super) enum Replaced {
    /// By one page.
    One(NewPage),
    /// By two. `separator`: the low fence of the right one.
    Two {
        left: NewPage,
        right: NewPage,
        separator: Vec<u8>,
    },
    /// The root, by two pages below a new root.
    Grown {
        left: NewPage,
        right: NewPage,
        separator: Vec<u8>,
        root: NewPage,
    },
}

/// A page as it was, with its fences.
#[derive(Clone, Copy, Debug)]
pub(super) struct Old<'p> {
    pub(super) header: Header,
    pub(super) low: Option<&'p [u8]>,
    pub(super) high: Option<&'p [u8]>,
}

/// How entries come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// In any order.
    Any,
    /// In ascending order so far, one behind the other; the one at `at` is new.
    Ascending { at: usize },
    /// None: room is made for so many words in the tail. `frees`: for removals only, which may use
    /// spare blocks.
    Making { room: usize, frees: bool },
    /// The page is one of many, written one behind the other. It may not be given up before the
    /// next fence.
    Chain,
    /// One is removed: that is to need no space. The page is not split, and may use a spare block.
    Removing,
}

impl Course {
    /// Whether spare blocks may be used.
    fn frees(self) -> bool {
        matches!(self, Self::Removing | Self::Making { frees: true, .. })
    }
}

/// Where a page is split: the entries before `at` stay, below `separator`.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) at: usize,
    /// Percent of the left page that entries may take.
    pub(super) left_full: usize,
    pub(super) separator: Vec<u8>,
}

/// A change of a key, beside what the page has: its new value, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change<'c> {
    pub(super) key: &'c [u8],
    pub(super) value: Option<Stored<'c>>,
}

/// The effects of a replacement, besides the pages.
#[derive(Debug)]
pub(super) struct Turnover {
    /// Of the pages.
    pub(super) generation: u64,
    /// Outer values that are new.
    pub(super) born: Vec<Reference>,
    /// Outer values that no record leads to any more.
    pub(super) dropped: Vec<Reference>,
}

impl Turnover {
    /// Nothing else.
    pub(super) fn of(generation: u64) -> Self {
        Self {
            generation,
            born: Vec::new(),
            dropped: Vec::new(),
        }
    }
}

/// The entries of a page, with those of `changes`, which are in key order: what the newest record
/// of each key says. `order`: of the records of the tail that count.
pub(super) fn merged<'v, M: Media>(
    page: Page<'v, M>,
    header: &Header,
    order: &TailOrder,
    changes: &[Change<'v>],
) -> Entries<'v> {
    let base = Base::of(header);
    let prefix = page.prefix(header.prefix);
    let n = header.entries + order.records.len() + changes.len();
    let of_changes: usize = changes.iter().map(|change| change.key.len()).sum();
    let of_page = (page.words() - header.base) * 8;
    let mut entries = Entries::with_room(n, of_page + n * prefix.len() + of_changes);
    let push = |entries: &mut Entries<'v>, walk: Walk<'_>| {
        for step in walk {
            let (rest, value) = step.entry(page, &base);
            entries.push(prefix, page.bytes(rest), page.stored(value));
        }
    };
    let mut from = Bound::Unbounded;
    for &Change { key, value } in changes {
        let here = Bound::Excluded(key);
        push(&mut entries, order.between((page, &base, None), from, here));
        if let Some(value) = value {
            entries.push(&[], key, value);
        }
        from = here;
    }
    let rest = order.between((page, &base, None), from, Bound::Unbounded);
    push(&mut entries, rest);
    entries
}

/// The entries of a page whose tail has records at `places`, oldest first.
pub(super) fn entries_at<'v, M: Media>(
    page: Page<'v, M>,
    header: &Header,
    places: impl IntoIterator<Item = Place>,
) -> Entries<'v> {
    let order = TailOrder::of(page, &Base::of(header), places.into_iter());
    merged(page, header, &order, &[])
}

/// The shortest key above `left` and not above `right`.
pub(super) fn separator_between(left: &[u8], right: &[u8], numbers: bool) -> Vec<u8> {
    let len = if numbers {
        right.len()
    } else {
        (common_prefix(left, right) + 1).min(right.len())
    };
    right[..len].to_vec()
}

/// Percent of a page that its entries may take at most, so that there is a tail. Where few entries
/// take more, the page is larger than others.
pub(super) const FULL: usize = 88;

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Replaces the page `old` by pages with `entries`, durably. The caller holds the lock of the
    /// page, and sees to what DRAM holds of all of them.
    ///
    /// # Errors
    /// [`SpaceError`]; nothing has changed then.
    pub(super) fn replace(
        &self,
        old: &Old<'_>,
        entries: &Entries<'_>,
        course: Course,
        turnover: &Turnover,
    ) -> Result<Replaced, SpaceError> {
        let n = entries.len();
        // Of what stays: the next replacement does not have what this one drops.
        let whole = self.spec(old).header(entries.part(0, n)).tail;
        let ascending = match course {
            Course::Ascending { at } if at >= n / 2 => Some(at),
            _ => None,
        };
        // Not all alike, or pages that began together would all split together, again and again.
        let split_above = SPLIT_ABOVE - old.header.generation as usize % SPLIT_SPREAD;
        let percent = if ascending.is_some() {
            SPLIT_ASCENDING_ABOVE
        } else {
            split_above
        };
        // A page of few long entries becomes larger instead: where each page held one or two, the
        // tree would be as high as it is long.
        let few = if old.header.level == 0 {
            FEW
        } else {
            FEW_CHILDREN
        };
        let full = n >= few && whole * 100 > self.page_words * percent;
        let tiny = self.pm().tiny() && n > TINY_ENTRIES;
        let split = (full || tiny) && course != Course::Removing;
        let middle = || (self.middle(old, entries), FULL);
        let cut = match ascending {
            _ if !split => None,
            Some(at) if tiny => Some((at, 100)),
            Some(at) => self.cut_ascending(old, entries, at, whole),
            None => Some(middle()),
        };
        let replace = |cut: Option<(usize, usize)>| {
            let cut = cut.map(|(at, left_full)| Cut {
                at,
                left_full,
                separator: self.separator(old, entries, at),
            });
            self.replace_as(old, entries, cut, course, turnover)
        };
        match (replace(cut), ascending) {
            // Without space for a larger page, it is split all the same.
            (Err(_), Some(at)) if split && cut.is_none() => replace(Some((at, 100))),
            (replaced, _) => replaced,
        }
    }

    /// Replaces the page `old` by one page with `entries`, or by two.
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
    pub(super) fn replace_as(
        &self,
        old: &Old<'_>,
        entries: &Entries<'_>,
        cut: Option<Cut>,
        course: Course,
        turnover: &Turnover,
    ) -> Result<Replaced, SpaceError> {
        self.ensure_memory(0)?;
        let spec = Spec {
            generation: turnover.generation,
            dropped: &turnover.dropped,
            ..self.spec(old)
        };
        let Some(cut) = cut else {
            let full = if course.frees() { 100 } else { FULL };
            let all = (0, entries.len());
            let page = self.write_page_as(&spec, entries, all, full, course)?;
            self.install(&page, &[], turnover);
            return Ok(Replaced::One(page));
        };
        let course = match course {
            Course::Making { frees, .. } => Course::Making { room: 0, frees },
            _ => Course::Any,
        };
        let grows = old.header.id == Table::FIRST_ID;
        let mut ids = Vec::new();
        for _ in 0..1 + usize::from(grows) {
            let of_page = Some(turnover.generation);
            match self.table.reserve(self.root(), &self.heap, of_page) {
                Ok(id) => ids.push(id),
                Err(e) => {
                    self.release(ids);
                    return Err(e);
                }
            }
        }
        let replaced = if grows {
            self.grow(&spec, (entries, cut, course), &ids, turnover)
        } else {
            self.split(&spec, (entries, cut, course), &ids, turnover)
        };
        replaced.inspect_err(|_| self.release(ids))
    }

    /// Makes `page` count, durably, and with it the pages and the values that are born in it.
    pub(super) fn install(&self, page: &NewPage, newborn: &[&NewPage], turnover: &Turnover) {
        newborn.iter().for_each(|page| self.bear(page));
        turnover.born.iter().for_each(|born| self.bear_outer(born));
        if planted!(self.pm(), "clustered-outer-dropped-first") {
            for one in &turnover.dropped {
                self.table.clear(self.pm(), one.id());
            }
        }
        if planted!(self.pm(), "clustered-split-first") && !newborn.is_empty() {
            self.name(page);
        }
        self.fence_pages();
        self.name(page);
        newborn.iter().for_each(|page| self.settle(page));
        turnover
            .born
            .iter()
            .for_each(|born| self.settle_outer(born));
    }

    /// Returns the header of the page that replaces `old` by itself.
    pub(super) fn spec<'o>(&self, old: &Old<'o>) -> Spec<'o> {
        Spec {
            id: old.header.id,
            level: old.header.level,
            generation: 0,
            born_in: old.header.born_in,
            next: old.header.next,
            low: old.low,
            high: old.high,
            dropped: &[],
            words: self.page_words,
            numbers: self.are_numbers(old.header.level),
        }
    }

    /// Whether keys and values of pages of that level are numbers. Page numbers are.
    pub(super) fn are_numbers(&self, level: u8) -> bool {
        Self::NUMBERS || level > 0 && Self::NUMBER_KEYS
    }

    /// Keys, and so separators, are numbers.
    pub(super) const NUMBER_KEYS: bool = matches!(K::KIND, bristlecone_pmem::pool::DataKind::U64);

    /// Where to split, so that both pages have about as many words.
    pub(super) fn middle(&self, old: &Old<'_>, entries: &Entries<'_>) -> usize {
        let n = entries.len();
        let spec = self.spec(old);
        if spec.header(entries.part(0, n)).form.is_some() {
            return n / 2;
        }
        let words = |to| spec.header(entries.part(0, to)).tail;
        let half = words(n).midpoint(words(0));
        let (mut from, mut to) = (1, n - 1);
        while from < to {
            let middle = from.midpoint(to);
            if words(middle) < half {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from
    }

    /// `spec`: of the page as it would be by itself.
    fn split(
        &self,
        spec: &Spec<'_>,
        (entries, cut, course): (&Entries<'_>, Cut, Course),
        ids: &[u32],
        turnover: &Turnover,
    ) -> Result<Replaced, SpaceError> {
        let right_id = ids[0];
        let Cut {
            at,
            left_full,
            separator,
        } = cut;
        let left = Spec {
            high: Some(&separator),
            next: right_id,
            ..*spec
        };
        let right = Spec {
            id: right_id,
            low: Some(&separator),
            born_in: spec.id,
            dropped: &[],
            ..*spec
        };
        let n = entries.len();
        let right = self.write_page_as(&right, entries, (at, n), FULL, course)?;
        let left = self.write_page_as(&left, entries, (0, at), left_full, course);
        let left = left.inspect_err(|_| self.discard(&right))?;
        self.install(&left, &[&right], turnover);
        Ok(Replaced::Two {
            left,
            right,
            separator,
        })
    }

    /// As [`split`](Self::split), of the root: its content goes to two new pages.
    fn grow(
        &self,
        spec: &Spec<'_>,
        (entries, cut, course): (&Entries<'_>, Cut, Course),
        ids: &[u32],
        turnover: &Turnover,
    ) -> Result<Replaced, SpaceError> {
        let [left_id, right_id] = [ids[0], ids[1]];
        let Cut {
            at,
            left_full,
            separator,
        } = cut;
        let spec = Spec {
            born_in: spec.id,
            ..*spec
        };
        let left = Spec {
            id: left_id,
            high: Some(&separator),
            next: right_id,
            ..spec
        };
        let right = Spec {
            id: right_id,
            low: Some(&separator),
            dropped: &[],
            ..spec
        };
        let n = entries.len();
        let left = self.write_page_as(&left, entries, (0, at), left_full, course)?;
        let right = self.write_page_as(&right, entries, (at, n), FULL, course);
        let right = right.inspect_err(|_| self.discard(&left))?;
        let (left_child, right_child) = (child_value(left_id), child_value(right_id));
        let mut children = Entries::default();
        children.push(Self::lowest(), &[], Stored::here(&left_child));
        children.push(&separator, &[], Stored::here(&right_child));
        let top = Spec {
            level: spec.level + 1,
            dropped: &[],
            numbers: self.are_numbers(1),
            ..spec
        };
        let root = self.write_page_as(&top, &children, (0, 2), FULL, course);
        let root = root.inspect_err(|_| {
            self.discard(&left);
            self.discard(&right);
        })?;
        self.install(&root, &[&left, &right], turnover);
        Ok(Replaced::Grown {
            left,
            right,
            separator,
            root,
        })
    }

    pub(super) fn separator(&self, old: &Old<'_>, entries: &Entries<'_>, at: usize) -> Vec<u8> {
        // Inner pages hold whole separators, which may not be cut: a page's low fence is its
        // separator.
        let whole = Self::NUMBER_KEYS || old.header.level > 0;
        separator_between(entries.key(at - 1), entries.key(at), whole)
    }

    /// A key that no key is below.
    pub(super) fn lowest() -> &'static [u8] {
        if Self::NUMBER_KEYS { &[0; 8] } else { &[] }
    }

    /// Takes a block for a page, writes the page to it, and flushes it; the caller fences.
    ///
    /// # Errors
    /// [`SpaceError`]; nothing has changed then.
    pub(super) fn write_page(
        &self,
        spec: &Spec<'_>,
        entries: &Entries<'_>,
        range: (usize, usize),
    ) -> Result<NewPage, SpaceError> {
        self.write_page_as(spec, entries, range, FULL, Course::Any)
    }

    /// As [`write_page`](Self::write_page), of which entries take at most `full` percent.
    pub(super) fn write_page_as(
        &self,
        spec: &Spec<'_>,
        entries: &Entries<'_>,
        (from, to): (usize, usize),
        full: usize,
        course: Course,
    ) -> Result<NewPage, SpaceError> {
        let entries = entries.part(from, to);
        let mut spec = *spec;
        spec.words = self.page_words;
        let mut header = spec.header(entries);
        let room = match course {
            Course::Making { room, .. } => room,
            _ => 0,
        };
        let is_full = |header: &Header| {
            let stays = header.tail - header.dropped * DROPPED_WORDS;
            stays * 100 > header.words * full || header.tail + room > header.words
        };
        while is_full(&header) && header.words < MAX_PAGE / 8 {
            header.words *= 2;
        }
        if header.tail > header.words {
            return Err(SpaceError::TooLarge {
                wanted: header.tail as u64 * 8,
                most: MAX_PAGE as u64,
            });
        }
        let seed = self.seed(spec.generation);
        let block = self.block(header.words, course)?;
        self.fill_memory(block..block + header.words as u64 * 8);
        let mut words = Vec::with_capacity(header.tail);
        spec.build(seed, &header, entries, &mut words);
        // SAFETY: 1. the block was allocated for a page of so many words, which the page's do not
        // exceed; 2. nothing leads to it.
        unsafe { image::write(self.pm(), block, &words) };
        let (pm, at) = (self.pm(), self.pm().base().wrapping_add(block as usize));
        if course == Course::Chain && pm.kind() == MediumKind::Journal {
            // PERSIST: the page, before a table's word leads to it: the whole block, which is one
            // with its neighbours then, so that a journal writes them once.
            pm.flush_fresh(at, header.words * 8, self.heap.freed(block));
        } else {
            // PERSIST: the page, before the table's word leads to it.
            pm.flush(at, words.len() * 8);
        }
        Ok(NewPage { header, block })
    }

    /// A block for a page of so many words.
    fn block(&self, words: usize, course: Course) -> Result<u64, SpaceError> {
        let alloc = |words: usize| self.heap.alloc(words as u64 * 8).map(|block| block.get());
        if course.frees() {
            return alloc(words).or_else(|e| {
                let spare = (words == self.page_words).then(|| lock(&self.spare).pop());
                spare.flatten().ok_or(e)
            });
        }
        self.refill_spare()?;
        alloc(words)
    }

    /// Space that has become free fills the reserve before others get any.
    ///
    /// # Errors
    /// [`SpaceError`]: it is not full yet.
    pub(super) fn refill_spare(&self) -> Result<(), SpaceError> {
        while lock(&self.spare).len() < SPARE {
            let block = self.heap.alloc(self.page_words as u64 * 8)?.get();
            lock(&self.spare).push(block);
        }
        Ok(())
    }

    /// Fills the reserve of blocks, as far as there is space.
    pub(super) fn fill_spare(&self) {
        let mut spare = lock(&self.spare);
        while spare.len() < SPARE
            && let Ok(block) = self.heap.alloc(self.page_words as u64 * 8)
        {
            spare.push(block.get());
        }
    }

    /// Gives the reserve back.
    pub(super) fn empty_spare(&self) {
        for block in lock(&self.spare).drain(..) {
            self.heap.free(POff::new(block));
        }
    }

    /// Gives back a page that nothing leads to.
    pub(super) fn discard(&self, page: &NewPage) {
        self.heap.free(POff::new(page.block));
    }

    /// Gives back the block of a page that was replaced, once readers have left it.
    pub(super) fn retire(&self, block: u64, guard: &Guard) {
        self.heap.retire(POff::new(block), guard);
        self.retired.note();
    }

    /// As [`retire`](Self::retire), of a leaf page that had a part.
    pub(super) fn retire_leaf(&self, block: u64, guard: &Guard) {
        self.note_unloaded(block);
        self.retire(block, guard);
    }

    pub(super) fn fence_pages(&self) {
        // PERSIST: new pages, new values, and newborn words, before the word that makes them
        // count.
        self.pm().fence();
    }

    fn word(page: &NewPage) -> Word {
        Word::new(Kind::Page, page.block, page.header.generation, false)
    }

    /// Makes the page count, and with it the pages that were born in it.
    pub(super) fn name(&self, page: &NewPage) {
        self.table
            .publish(self.pm(), page.header.id, Self::word(page));
    }

    pub(super) fn bear(&self, page: &NewPage) {
        let word = Word::new(Kind::Page, page.block, page.header.generation, true);
        self.table.bear(self.pm(), page.header.id, word);
    }

    pub(super) fn settle(&self, page: &NewPage) {
        self.table
            .settle(self.pm(), page.header.id, Self::word(page));
    }

    /// Writes the first page of a new tree: the root, an empty leaf page. Returns it; its word is
    /// stored and flushed, and the caller fences.
    pub(super) fn write_first(&self) -> Result<NewPage, SpaceError> {
        self.table.add_segment(self.root(), &self.heap, 0)?;
        let id = self.table.reserve(self.root(), &self.heap, None)?;
        debug_assert_eq!(id, Table::FIRST_ID);
        let spec = Spec {
            id,
            level: 0,
            generation: self.next_generation(),
            born_in: id,
            next: 0,
            low: None,
            high: None,
            dropped: &[],
            words: self.page_words,
            numbers: Self::NUMBERS,
        };
        let page = self.write_page(&spec, &Entries::default(), (0, 0))?;
        self.fence_pages();
        self.name(&page);
        Ok(page)
    }
}

/// The value of a separator: the number of a page.
pub(super) fn child_value(id: u32) -> [u8; 8] {
    u64::from(id).to_le_bytes()
}

/// The page number that a separator's value says; `None` if it is none.
pub(super) fn child_of(value: &[u8]) -> Option<u32> {
    let eight: [u8; 8] = value.try_into().ok()?;
    u32::try_from(u64::from_le_bytes(eight))
        .ok()
        .filter(|id| *id != 0)
}

const _: () = assert!(root::CLOSED < bristlecone_pmem::pool::ROOT_WORDS);
