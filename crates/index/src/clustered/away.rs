//! Reading values and leaf pages that are not in memory from the pool file, beside memory.
//!
//! Where memory is short, what is read once should not come to memory: the system would map what
//! lies around it, too, and something else would have to go. So it is read into a buffer. One of
//! fifteen reads brings what it reads to memory all the same: what is read often is there soon.
//!
//! The file has what has left memory as it was then. Whether that is so is looked up before the
//! read, and may change meanwhile:
//! 1. a value that was read counts only if it has the head that the reference repeats, and the sum;
//! 2. a page counts only if nobody has loaded it meanwhile, and so it has not changed. Such a page
//!    has no change that a reader at a time could miss: see [`evict`](super::evict).
//!
//! Whatever does not count is read through memory.

use super::layout::{MAX_PAGE, MIN_PAGE};
use super::page::Page;
use super::place::Base;
use super::stored::{HEAD, Reference};
use super::table::{Kind, Word};
use super::versions::Past;
use super::{ClusteredTree, Handle, image};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use crossbeam_epoch::Guard;
use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};

/// Longest value that is read so, in bytes: the buffer of a longer one costs more than its memory.
pub(super) const LONGEST: usize = 64 << 10;

/// How often a page is looked up while others beside it come and go.
const TRIES: usize = 3;

thread_local! {
    /// Room for a page or a value that is read from the file.
    static COPY: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Room for a value that is only looked at.
pub(super) type Room = OnceCell<Vec<u8>>;

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// The content that a reference leads to, from memory or from the pool file. `sums`: whether
    /// its sum is compared in memory.
    ///
    /// The caller is as of [`content_of`](Self::content_of).
    pub(super) fn content_or_copy(
        &self,
        reference: &Reference,
        sums: bool,
    ) -> Result<Cow<'_, [u8]>, String> {
        match self.content_away(reference, |tree| !tree.comes_in()) {
            Some(content) => Ok(Cow::Owned(content)),
            None => self.content_of(reference, sums).map(Cow::Borrowed),
        }
    }

    /// The content of a value that is not in memory, if it `stays` away.
    fn content_away(
        &self,
        reference: &Reference,
        stays: impl FnOnce(&Self) -> bool,
    ) -> Option<Vec<u8>> {
        let (block, len) = (reference.block, reference.len());
        let bytes = HEAD + len;
        if len > LONGEST || !self.is_away(block..block + bytes as u64) || !stays(self) {
            return None;
        }
        COPY.with_borrow_mut(|words| {
            words.resize(bytes.div_ceil(8), 0);
            let copy = &mut image::bytes_of_mut(words)[..bytes];
            if !self.pm().read_away(block, copy) || copy[..HEAD] != reference.encode()[..HEAD] {
                return None;
            }
            let content = &copy[HEAD..];
            let sum = crc32c::crc32c_append(self.salt as u32, content);
            reference.has_sum(sum).then(|| content.to_vec())
        })
    }

    /// The content of a value that is not in memory, and does not come there to be looked at.
    pub(super) fn seen_away<'r>(&self, reference: &Reference, room: &'r Room) -> Option<&'r [u8]> {
        let content = self.content_away(reference, |_| true)?;
        Some(room.get_or_init(|| content))
    }

    /// What `key` has, if its page is not loaded and does not come to memory: `Some(None)` if it is
    /// not there.
    ///
    /// The guard keeps an outer value readable.
    pub(super) fn past_away(
        &self,
        (key, bytes): (&K, &[u8]),
        guard: &Guard,
    ) -> Option<Option<Past<'static>>> {
        if Self::NUMBERS || !self.is_short_of_memory() || self.comes_in() {
            return None;
        }
        for _ in 0..TRIES {
            let at = self.inner.find(key, guard);
            let Handle::Unloaded(id) = Handle::decode(at.leaf) else {
                return None;
            };
            let word = self.table.read(self.pm(), id).ok().flatten()?;
            if word.kind != Kind::Page {
                return None;
            }
            let found = COPY.with_borrow_mut(|words| {
                self.copy_away(word.block, words)?;
                self.look_up(words, (id, word), bytes)
            })?;
            if self.inner.validate(&at) {
                // As of here the page is what it was: who changes it loads it first.
                return Some(found);
            }
            // It, or another page beside it, was loaded or dropped.
        }
        None
    }

    /// The page at `block`, which is not loaded: where it lies or, if it has left memory, copied
    /// from the pool file. `None` if its size or its header is damaged.
    pub(super) fn unloaded_page<'p>(
        &'p self,
        block: u64,
        copy: &'p mut Vec<u64>,
    ) -> Option<Page<'p, M>> {
        if self.copy_away(block, copy).is_some() {
            let words = Page::copied(self.pm(), copy).header_words();
            let is_size = (MIN_PAGE / 8..=copy.len().min(MAX_PAGE / 8)).contains(&words);
            return is_size.then(|| Page::copied(self.pm(), &mut copy[..words]));
        }
        self.touch_page_at(block);
        self.checked_page(block).ok().map(|(page, ..)| page)
    }

    /// Copies a page that is not in memory. How large it is stands in its header; most are as large
    /// as can be expected.
    pub(super) fn copy_away(&self, block: u64, words: &mut Vec<u64>) -> Option<()> {
        words.resize(self.page_words, 0);
        loop {
            let bytes = image::bytes_of_mut(words);
            let end = block.saturating_add(bytes.len() as u64);
            if !self.is_away(block..end) || !self.pm().read_away(block, bytes) {
                return None;
            }
            let (has, is) = (words.len(), Page::copied(self.pm(), words).header_words());
            if !(has + 1..=MAX_PAGE / 8).contains(&is) {
                return Some(());
            }
            words.resize(is, 0);
        }
    }

    /// What `key` has on leaf page `id`, of which `words` are a copy; `None` if that is not sound,
    /// or not the page that the key belongs to.
    fn look_up(
        &self,
        words: &mut [u64],
        (id, word): (u32, Word),
        key: &[u8],
    ) -> Option<Option<Past<'static>>> {
        let len = Page::copied(self.pm(), words).header_words();
        if !(MIN_PAGE / 8..=words.len()).contains(&len) {
            return None;
        }
        let page = Page::copied(self.pm(), &mut words[..len]);
        let (header, seed) = page.header(self.salt).ok()?;
        let is_it = header.id == id && word.is_of(header.generation) && header.level == 0;
        let has_it = page.low(&header).is_none_or(|low| low <= key)
            && page.high(&header).is_none_or(|high| key < high);
        if !is_it || !has_it {
            return None;
        }
        page.check_base(&header, seed).ok()?;
        let mut newest = None;
        let counts = |seen: &_| self.group_counts(page, &header, seen);
        let tail = page.tail(&header, seed, counts, |place, of| {
            if of == key {
                newest = Some(place);
            }
        });
        // One that may have to be mended is loaded.
        tail.ok().filter(|tail| !tail.is_suspect)?;
        let base = Base::of(&header);
        let value = match (newest, page.strip(&base, key)) {
            (Some(place), _) if place.removed => return Some(None),
            (Some(place), _) => page.record(&base, place).1,
            (None, Ok(rest)) => {
                let rank = page.rank(&base, rest, |_| (0, base.entries));
                if !rank.equal {
                    return Some(None);
                }
                page.entry(&base, rank.below).1
            }
            (None, Err(_)) => return Some(None),
        };
        Some(Some(Past::kept(page.stored(value))))
    }
}
