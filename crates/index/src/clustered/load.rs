//! Making a page known that is touched for the first time.
//!
//! The inner index leads to a page by its number until it is loaded. Loading a leaf page makes its
//! part and puts that in the place of the number. Loading an inner page puts its children in its
//! place, by their numbers. Either checks every sum of the page, and that it is the one which the
//! way there promised: its number, generation and fences.
//!
//! Loading is done under the lock of the inner pages, one page at a time.

use super::layout::{Header, MAX_PAGE, MIN_PAGE, Seed};
use super::outer;
use super::page::Page;
use super::part::Part;
use super::place::{Base, Place};
use super::replace::{NewPage, entries_at};
use super::stored::{Reference, Stored};
use super::table::Kind;
use super::tail::{Seen, SoundTail};
use super::upper::{Known, Upper, by_itself};
use super::{ClusteredTree, Handle, ReadError};
use crate::inner::Ranged;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::pool::DataKind;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, planted};
use crossbeam_epoch::Guard;
use std::borrow::Borrow;

/// A page that was found sound, and where.
pub(super) struct Sound<'p, M> {
    pub(super) page: Page<'p, M>,
    pub(super) header: Header,
    pub(super) seed: Seed,
    pub(super) block: u64,
}

/// The content of an inner page, with one child at least.
struct Inner {
    known: Known,
    children: Vec<(Vec<u8>, u32)>,
    tail: SoundTail,
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Loads the page that `key` leads to, if it is not loaded.
    ///
    /// # Errors
    /// [`ReadError`]; the page is not loaded then.
    #[cold]
    pub(super) fn load(&self, key: &K, guard: &Guard) -> Result<(), ReadError> {
        self.touch_page(key, guard);
        let _storing = self.storing();
        let mut upper = lock(&self.upper);
        let range = self.inner.find_range(key, guard);
        match Handle::decode(range.located.leaf) {
            // Another thread has been faster.
            _ if !self.inner.validate(&range.located) => Ok(()),
            Handle::Part(_) => Ok(()),
            Handle::Unloaded(id) => self.load_page(&mut upper, id, &range, guard),
        }
    }

    /// Before the page of `key` is read: it has probably left memory.
    fn touch_page(&self, key: &K, guard: &Guard) {
        if let Handle::Unloaded(id) = Handle::decode(self.inner.find(key, guard).leaf)
            && let Ok(Some(word)) = self.table.read(self.pm(), id)
            && word.kind == Kind::Page
        {
            self.touch_page_at(word.block);
        }
    }

    /// Loads page `id`, which the inner index leads the keys of `range` to.
    pub(super) fn load_page(
        &self,
        upper: &mut Upper,
        id: u32,
        range: &Ranged<K>,
        guard: &Guard,
    ) -> Result<(), ReadError> {
        let low = range.low.as_ref().map(Borrow::borrow);
        let high = range.high.as_ref().map(Borrow::borrow);
        self.ensure_memory(0)?;
        let read = self.sound(id).and_then(|sound| {
            let missing = self.beyond(&sound, low, high)?;
            let inner = (sound.header.level > 0).then(|| self.content_of_inner(&sound));
            Ok((missing, inner.transpose()?, sound))
        });
        let (missing, inner, sound) = match read {
            Ok(read) => read,
            Err(what) => {
                // Pages that are salvaged are found by what leaf pages say.
                let is_known = self.pool.is_salvaged() || upper.lost.contains(&id);
                if !is_known && self.make_again(upper, id, range, guard)? {
                    return Ok(());
                }
                upper.lost.insert(id);
                return Err(self.damaged(id, &what));
            }
        };
        if let Some(separator) = missing {
            // The page to the right has no separator yet: a crash came before it.
            let next = sound.header.next;
            self.route(separator, Handle::Unloaded(next), guard)?;
        }
        match inner {
            None => self.load_leaf(&sound, low, guard),
            Some(inner) => self.expand(upper, &sound, inner, low, guard),
        }
        .map_err(|e| match e {
            ReadError::Damaged(what) => self.damaged(id, &what),
            e => e,
        })?;
        match missing {
            Some(separator) if !self.read_only => {
                let level = sound.header.level + 1;
                // If it fails, the page goes on being found from its left neighbour.
                let _ = self.post(upper, level, separator, sound.header.next);
            }
            _ => {}
        }
        Ok(())
    }

    fn damaged(&self, id: u32, what: &str) -> ReadError {
        let word = self.table.read(self.pm(), id).ok().flatten();
        let place = word.map_or(String::new(), |word| format!(" at {:#x}", word.block));
        ReadError::Damaged(format!("page {id}{place}: {what}"))
    }

    /// The page of that number: its word and header are sound and say the same.
    pub(super) fn sound(&self, id: u32) -> Result<Sound<'_, M>, String> {
        let word = self.table.read(self.pm(), id)?;
        let word = word.filter(|word| word.kind == Kind::Page);
        let word = word.ok_or("the page table has no such page")?;
        let (page, header, seed) = self.checked_page(word.block)?;
        if header.id != id {
            return Err(format!("it says that it is page {}", header.id));
        }
        if !word.is_of(header.generation) {
            return Err("it is of another generation than the page table says".into());
        }
        Ok(Sound {
            page,
            header,
            seed,
            block: word.block,
        })
    }

    /// The page in `block`, whose header is sound.
    ///
    /// # Errors
    /// A message that says what is wrong.
    pub(super) fn checked_page(&self, block: u64) -> Result<(Page<'_, M>, Header, Seed), String> {
        self.heap.check(block, 64)?;
        let words = self.page(block, 8).header_words();
        if !(MIN_PAGE / 8..=MAX_PAGE / 8).contains(&words) {
            return Err(format!("its header says {words} words"));
        }
        self.heap.check(block, words as u64 * 8)?;
        let page = self.page(block, words);
        let (header, seed) = page.header(self.salt)?;
        Ok((page, header, seed))
    }

    /// Compares the page's fences with the range that led there. Returns its high fence if that
    /// range goes on beyond it.
    fn beyond<'p>(
        &self,
        sound: &Sound<'p, M>,
        low: Option<&K>,
        high: Option<&K>,
    ) -> Result<Option<&'p [u8]>, String> {
        let header = &sound.header;
        let is = |fence: Option<&[u8]>, key: Option<&K>| match (fence, key) {
            (None, None) => true,
            (Some(fence), Some(key)) => key.with_bytes(|key| key == fence),
            _ => false,
        };
        if !is(sound.page.low(header), low) {
            return Err(format!("its low fence is not {low:?}"));
        }
        let fence = sound.page.high(header);
        if is(fence, high) {
            return Ok(None);
        }
        match fence {
            Some(fence)
                if header.next != 0
                    && high.is_none_or(|high| high.with_bytes(|high| fence < high)) =>
            {
                Ok(Some(fence))
            }
            _ => Err(format!("its high fence is beyond {high:?}")),
        }
    }

    /// Leads keys from `separator` on to `handle`.
    pub(super) fn route(
        &self,
        separator: &[u8],
        handle: Handle,
        guard: &Guard,
    ) -> Result<(), ReadError> {
        let right = handle.encode();
        let routed = K::with_value_of(separator, |key| self.inner.insert(key, right, guard));
        routed.ok_or_else(|| ReadError::Damaged("a separator is no key".into()))
    }

    /// Puts `handle` in the place of the page that was not loaded.
    pub(super) fn put_in_place(
        &self,
        id: u32,
        handle: Handle,
        low: Option<&K>,
        guard: &Guard,
    ) -> Result<(), ReadError> {
        let old = Handle::Unloaded(id).encode();
        let replace = |key: &K| self.inner.replace(old, handle.encode(), key, guard);
        let replaced = match low {
            Some(low) => replace(low),
            None => K::with_value_of(Self::lowest(), replace).unwrap_or(false),
        };
        if replaced {
            Ok(())
        } else {
            Err(ReadError::Damaged("the inner index has it no more".into()))
        }
    }

    fn load_leaf(
        &self,
        sound: &Sound<'_, M>,
        low: Option<&K>,
        guard: &Guard,
    ) -> Result<(), ReadError> {
        let damaged = ReadError::Damaged;
        let (page, header) = (sound.page, &sound.header);
        (page.check_base(header, sound.seed)).map_err(damaged)?;
        let numbers = (Self::NUMBER_KEYS, matches!(V::KIND, DataKind::U64));
        page.check_entries(header, numbers).map_err(damaged)?;
        let slot = self.parts.allocate();
        let part = self.part(slot);
        // A search that came too late, for the page whose part this was, finds that out.
        part.version.lock();
        // Its changes are of earlier sessions, older than any time at which somebody reads.
        let filled = self.or_mended(sound, || {
            self.fill(part, header, sound.block, 0);
            self.fill_tail(part, sound)
        });
        part.version.unlock();
        let tail = filled.map_err(|what| {
            self.free_part(slot);
            ReadError::Damaged(what)
        })?;
        self.wipe(page, tail);
        if !self.sums_on_read {
            let checked = self.check_values(part, page, header);
            checked.map_err(|what| {
                self.free_part(slot);
                ReadError::Damaged(what)
            })?;
        }
        if !self.read_only && !planted!(self.pm(), "clustered-outer-undropped") {
            self.drop_again(page, header);
        }
        // Before others find it, and replace it.
        self.note_loaded(sound.block);
        let placed = self.put_in_place(header.id, Handle::Part(slot), low, guard);
        placed.inspect_err(|_| {
            self.note_unloaded(sound.block);
            self.free_part(slot);
        })
    }

    /// Whether these are bytes of a value, or of a reference.
    pub(super) fn is_stored(value: Stored<'_>) -> bool {
        if value.outer {
            Self::OUTER && value.reference().is_some()
        } else {
            V::with_value_of(value.bytes, |_| ()).is_some()
        }
    }

    /// Checks all outer values of a page.
    fn check_values(&self, part: &Part, page: Page<'_, M>, header: &Header) -> Result<(), String> {
        let places = (0..part.count()).map(|i| part.place(i));
        let all = self.references(page, header, places);
        all.iter().try_for_each(|one| self.check_outer(one))
    }

    /// Adds the records of the tail to a part that nobody else knows yet.
    fn fill_tail(&self, part: &Part, sound: &Sound<'_, M>) -> Result<SoundTail, String> {
        let (low, high) = (
            sound.page.low(&sound.header),
            sound.page.high(&sound.header),
        );
        let mut n = 0;
        let mut refused = false;
        let base = Base::of(&sound.header);
        let is_value = |place: Place| {
            let value = sound.page.stored(sound.page.record(&base, place).1);
            place.removed || Self::is_stored(value)
        };
        let counts = |seen: &Seen| self.group_counts(sound.page, &sound.header, seen);
        let tail = (sound.page).tail(&sound.header, sound.seed, counts, |place, key| {
            let hash = K::with_value_of(key, |key| key.hash());
            let inside = low.is_none_or(|low| low <= key) && high.is_none_or(|high| key < high);
            match hash {
                Some(hash) if n < super::part::TAIL && inside && is_value(place) => {
                    part.add(n, hash as u8, place);
                    n += 1;
                }
                _ => refused = true,
            }
        })?;
        if refused {
            return Err("the tail has records that no change adds".into());
        }
        part.publish(n, tail.end);
        let places = (0..n).map(|i| part.place(i));
        let entries = entries_at(sound.page, &sound.header, places.clone());
        part.set_live(entries.len());
        let all = self.references(sound.page, &sound.header, places);
        let superseded = outer::without(all, &entries);
        part.add_superseded(superseded.iter().map(Reference::len).sum());
        Ok(tail)
    }

    /// Takes the head off a group that a crash tore, or whose change it came before. Else a later
    /// group, of which a crash leaves only the last lines, could make the first one whole; or a
    /// later commit through its slot could make it count.
    fn wipe(&self, page: Page<'_, M>, tail: SoundTail) {
        let unwiped = self.read_only || planted!(self.pm(), "clustered-dead-unwiped");
        if tail.has_dead && !unwiped {
            // PERSIST: the group is gone, before another is appended there or committed.
            page.cell(tail.end).publish(self.pm(), 0);
        }
    }

    /// The children of an inner page, which is checked.
    fn content_of_inner(&self, sound: &Sound<'_, M>) -> Result<Inner, String> {
        let (page, header) = (sound.page, &sound.header);
        let mut known = Known::of(&NewPage {
            header: *header,
            block: sound.block,
        });
        page.check_base(header, sound.seed)?;
        page.check_entries(header, (Self::NUMBER_KEYS, true))?;
        let tail = self.or_mended(sound, || {
            page.tail(header, sound.seed, by_itself, |_, _| {})
        })?;
        let children = self.children(page, &mut known)?;
        let (low, high) = (page.low(header), page.high(header));
        let Some(((first, _), rest)) = children.split_first() else {
            return Err("it leads nowhere".into());
        };
        if first != low.unwrap_or(Self::lowest())
            || rest
                .iter()
                .any(|(key, _)| high.is_some_and(|high| &**key >= high))
        {
            return Err("its separators are not between its fences".into());
        }
        Ok(Inner {
            known,
            children,
            tail,
        })
    }

    /// Puts the children of an inner page in its place.
    fn expand(
        &self,
        upper: &mut Upper,
        sound: &Sound<'_, M>,
        inner: Inner,
        low: Option<&K>,
        guard: &Guard,
    ) -> Result<(), ReadError> {
        let header = &sound.header;
        self.wipe(sound.page, inner.tail);
        // From the right: what is added takes over all keys from its separator on, which by then
        // are those up to the next one.
        for (key, child) in inner.children[1..].iter().rev() {
            self.route(key, Handle::Unloaded(*child), guard)?;
        }
        if !upper.add(header.level, sound.page.low(header), inner.known) {
            return Err(ReadError::Damaged("its place is another page's".into()));
        }
        let (_, first) = inner.children[0];
        self.put_in_place(header.id, Handle::Unloaded(first), low, guard)
    }
}
