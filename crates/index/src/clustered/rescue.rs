//! Recovering damaged pages.
//!
//! *Inner pages* say nothing that the pages below do not: a damaged one is made again from their
//! fences, when it is loaded. Where one of those is damaged too, the page to its left has its
//! number. Only the first page below must be readable.
//!
//! *Leaf pages* are read as far as their sums hold, for readers and for salvage. An entry of the
//! base is sound if its stripes are, a record of the tail if its group is. A damaged group may have
//! changed any key, so the values before it are uncertain.

use super::image::{Entries, Spec};
use super::layout::{Header, Lengths, STRIPE, Seed};
use super::load::Sound;
use super::page::{Page, Span, ValueSpan};
use super::place::{Base, Place};
use super::replace::{Course, FULL, Turnover, child_value};
use super::stored::Stored;
use super::table::{Kind, Table, Word};
use super::upper::{Known, Upper};
use super::{ClusteredTree, Handle, ReadError};
use crate::inner::Ranged;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use crossbeam_epoch::Guard;
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::Ordering;

/// A page as its fences say where it is.
struct Fenced {
    id: u32,
    level: u8,
    low: Option<Vec<u8>>,
    high: Option<Vec<u8>>,
    next: u32,
}

/// The keys between two bounds.
type Gap = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The readable part of a damaged leaf page.
#[derive(Debug, Default)]
pub(super) struct Rescued {
    /// Keys in order, with their values.
    pub(super) entries: Vec<(Vec<u8>, ValueSpan)>,
    /// Keys that a damaged change may have changed, with the values before.
    pub(super) uncertain: Vec<(Vec<u8>, Option<ValueSpan>)>,
    /// Entries that cannot be read.
    pub(super) lost: usize,
    /// The keys that those lie between.
    gaps: Vec<Gap>,
    /// A change cannot be read: it may be of any key.
    has_lost_change: bool,
}

impl Rescued {
    /// Whether the entries are all that the page had between two keys.
    pub(super) fn is_whole(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
        let meets = |gap: &Gap| {
            let below = |end: Bound<&[u8]>, start: Bound<&[u8]>| match (end, start) {
                (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
                (Bound::Included(end), Bound::Included(start)) => end < start,
                (Bound::Included(end), Bound::Excluded(start))
                | (Bound::Excluded(end), Bound::Included(start) | Bound::Excluded(start)) => {
                    end <= start
                }
            };
            let (start, end) = (gap.0.as_ref(), gap.1.as_ref());
            let (start, end) = (start.map(Vec::as_slice), end.map(Vec::as_slice));
            !below(to, start) && !below(end, from)
        };
        !self.has_lost_change && !self.gaps.iter().any(meets)
    }
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Makes page `id` again, which cannot be read, if it is an inner page: from the pages below
    /// it. Returns whether it is one, and they say enough. The caller holds the lock of the inner
    /// pages.
    ///
    /// # Errors
    /// [`ReadError`]: there is no space for it.
    #[cold]
    pub(super) fn make_again(
        &self,
        upper: &mut Upper,
        id: u32,
        range: &Ranged<K>,
        guard: &Guard,
    ) -> Result<bool, ReadError> {
        let bound = |key: &Option<K::Owned>| {
            let key = key.as_ref().map(Borrow::<K>::borrow);
            key.map(|key| key.with_bytes(<[u8]>::to_vec))
        };
        let (low, high) = (bound(&range.low), bound(&range.high));
        let expected = self.level_below(upper, low.as_deref());
        if expected == Some(0) || !self.may_be_made_again(id) {
            return Ok(false);
        }
        let levels = upper.levels.iter();
        // Those that led here, among others.
        let known = levels.flat_map(|level| level.values().map(|known| known.id));
        let others: BTreeSet<u32> = known.chain([id]).collect();
        let is_inside = |page: &Fenced| {
            page.low >= low
                && (high.is_none() || page.high.is_some() && page.high <= high)
                && !others.contains(&page.id)
        };
        let mut inside: Vec<Fenced> = self.sound_pages().filter(is_inside).collect();
        inside.sort_by(|a, b| a.low.cmp(&b.low));
        let Some(below) = inside.iter().map(|page| page.level).max() else {
            return Ok(false);
        };
        let level = below + 1;
        let is_other = |page: Sound<'_, M>| page.header.level != level;
        if expected.is_some_and(|expected| expected != level) || self.sound(id).is_ok_and(is_other)
        {
            return Ok(false);
        }
        let children: Vec<&Fenced> = inside.iter().filter(|page| page.level == below).collect();
        // Else this is a leaf page, and the others were split off it.
        let Some(first) = children.first().filter(|first| first.low == low) else {
            return Ok(false);
        };
        let mut all = vec![(low.clone(), first.id)];
        for (i, page) in children.iter().enumerate() {
            let next = children.get(i + 1);
            let ends = next.map_or(&high, |next| &next.low);
            if page.high != *ends {
                // The page in between is damaged, too.
                if page.next == 0 || page.high.is_none() {
                    return Ok(false);
                }
                all.push((page.high.clone(), page.next));
            }
            all.extend(next.map(|next| (next.low.clone(), next.id)));
        }
        if !all.is_sorted_by(|a, b| a.0 < b.0) {
            return Ok(false);
        }
        let known = if self.read_only {
            None
        } else {
            let Some(next) = self.page_behind(upper, level, &high, guard)? else {
                return Ok(false);
            };
            let fences = (low.as_deref(), high.as_deref());
            Some(self.write_inner((id, level, next), fences, &all, guard)?)
        };
        for (key, child) in all[1..].iter().rev() {
            let key = key.as_deref().unwrap_or_default();
            self.route(key, Handle::Unloaded(*child), guard)?;
        }
        let low_key = range.low.as_ref().map(Borrow::borrow);
        if let Some(known) = known {
            upper.add(level, low.as_deref(), known);
        }
        self.put_in_place(id, Handle::Unloaded(first.id), low_key, guard)?;
        // ORDERING: Relaxed; a count.
        self.made_again.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// The level of a page that begins at `low` and is not loaded: one less than that of the page
    /// which led there. `None` of the root.
    fn level_below(&self, upper: &Upper, low: Option<&[u8]>) -> Option<u8> {
        let low = low.unwrap_or(&[]);
        let holds = |known: &Known| {
            let page = self.page(known.block, known.words);
            let header = page.header(self.salt).ok();
            let high = header.and_then(|(header, _)| page.high(&header));
            high.is_none_or(|high| low < high)
        };
        let leads = upper.levels.iter().position(|pages| {
            let below = (Bound::Unbounded, Bound::Included(low));
            let page = pages.range::<[u8], _>(below).next_back();
            page.is_some_and(|(_, known)| holds(known))
        });
        leads.map(|level| level as u8)
    }

    /// Whether the number is still that of a page, and no page whose birth depends on it is
    /// undecided.
    fn may_be_made_again(&self, id: u32) -> bool {
        let word = self.table.read(self.pm(), id);
        let is_page = |word: Word| word.kind == Kind::Page && !word.newborn;
        if self.read_only {
            return true;
        }
        let is_born_there = |(_, block): &(u32, u64)| {
            let page = self.checked_page(*block);
            page.is_ok_and(|(_, header, _)| header.born_in == id)
        };
        matches!(word, Ok(Some(word)) if is_page(word))
            && !lock(&self.unreadable).iter().any(is_born_there)
    }

    /// The number of the page of that level that begins at `high`, 0 if none does; `None` if it
    /// cannot be had. One that is damaged is made again.
    fn page_behind(
        &self,
        upper: &mut Upper,
        level: u8,
        high: &Option<Vec<u8>>,
        guard: &Guard,
    ) -> Result<Option<u32>, ReadError> {
        let Some(high) = high else {
            return Ok(Some(0));
        };
        let of_level = |upper: &Upper| {
            let pages = upper.levels.get(usize::from(level) - 1);
            pages.and_then(|pages| Some(pages.get(high)?.id))
        };
        // From the level of the root down, at most.
        for _ in 0..=u8::MAX {
            if let Some(id) = of_level(upper) {
                return Ok(Some(id));
            }
            let begins = |page: &Fenced| page.level == level && page.low.as_ref() == Some(high);
            if let Some(page) = self.sound_pages().find(begins) {
                return Ok(Some(page.id));
            }
            let at = K::with_value_of(high, |high| self.inner.find_range(high, guard));
            let Some(at) = at else {
                return Ok(None);
            };
            let Handle::Unloaded(id) = Handle::decode(at.located.leaf) else {
                return Ok(None);
            };
            match self.load_page(upper, id, &at, guard) {
                Ok(()) => {}
                Err(ReadError::Damaged(_)) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// All pages that count and whose headers are sound.
    fn sound_pages(&self) -> impl Iterator<Item = Fenced> {
        (Table::FIRST_ID..self.table.end()).filter_map(|id| {
            let word = self.table.read(self.pm(), id).ok().flatten();
            word.filter(|word| word.kind == Kind::Page && !word.newborn)?;
            let Sound { page, header, .. } = self.sound(id).ok()?;
            Some(Fenced {
                id,
                level: header.level,
                low: page.low(&header).map(<[u8]>::to_vec),
                high: page.high(&header).map(<[u8]>::to_vec),
                next: header.next,
            })
        })
    }

    /// Writes an inner page with these children in the place of the damaged one, durably.
    fn write_inner(
        &self,
        (id, level, next): (u32, u8, u32),
        (low, high): (Option<&[u8]>, Option<&[u8]>),
        children: &[(Option<Vec<u8>>, u32)],
        guard: &Guard,
    ) -> Result<Known, ReadError> {
        let values: Vec<[u8; 8]> = children
            .iter()
            .map(|(_, child)| child_value(*child))
            .collect();
        let mut entries = Entries::default();
        for ((key, _), value) in children.iter().zip(&values) {
            let key = key.as_deref().unwrap_or(Self::lowest());
            entries.push(key, &[], Stored::here(value));
        }
        let turnover = Turnover::of(self.next_generation());
        let spec = Spec {
            id,
            level,
            generation: turnover.generation,
            born_in: id,
            next,
            low,
            high,
            dropped: &[],
            words: self.page_words,
            numbers: self.are_numbers(level),
        };
        let old = self.table.read(self.pm(), id).ok().flatten();
        let all = (0, entries.len());
        let page = self.write_page_as(&spec, &entries, all, FULL, Course::Removing)?;
        self.install(&page, &[], &turnover);
        if let Some(old) = old {
            self.retire(old.block, guard);
        }
        Ok(Known::of(&page))
    }

    /// Reads the sound part of leaf page `id`; `None` if it is not a leaf page, or its header is
    /// damaged.
    pub(super) fn rescue(&self, id: u32) -> Option<(Page<'_, M>, Rescued)> {
        let sound = self
            .sound(id)
            .ok()
            .filter(|sound| sound.header.level == 0)?;
        let mut found = BTreeMap::new();
        let mut rescued = Rescued::default();
        let lost = self.rescue_base(&sound, &mut found, &mut rescued);
        rescued.has_lost_change = self.rescue_tail(&sound, &mut found, &lost);
        for (key, (value, certain)) in found {
            match value {
                _ if !certain => rescued.uncertain.push((key, value)),
                Some(value) => rescued.entries.push((key, value)),
                None => {}
            }
        }
        Some((sound.page, rescued))
    }

    /// Adds the entries of the base whose stripes are sound, and says where the others are. Returns
    /// these.
    fn rescue_base(
        &self,
        sound: &Sound<'_, M>,
        found: &mut Found,
        rescued: &mut Rescued,
    ) -> BTreeSet<usize> {
        let (page, header) = (sound.page, &sound.header);
        let (base, prefix) = (Base::of(header), page.prefix(header.prefix));
        let stripes = page.sound_stripes(header, sound.seed);
        let is_sound = |span: Span| {
            let (from, to) = (span.at / 8, (span.at + span.len).div_ceil(8));
            header.base <= from
                && to <= header.tail
                && (from..to.max(from + 1)).all(|word| {
                    stripes
                        .get((word - header.base) / STRIPE)
                        .copied()
                        .unwrap_or(false)
                })
        };
        let (mut last, mut is_gap) = (Bound::Unbounded, false);
        let mut lost = BTreeSet::new();
        for i in 0..header.entries {
            let leads = match header.form {
                Some(_) => true,
                None => page.has_sound_lengths(header, i, is_sound),
            };
            let (key, value) = page.entry(&base, i);
            if !leads || !is_sound(key) || !is_sound(value.span) {
                rescued.lost += 1;
                lost.insert(i);
                is_gap = true;
                continue;
            }
            let key = [prefix, page.bytes(key)].concat();
            let before = std::mem::replace(&mut last, Bound::Excluded(key.clone()));
            if std::mem::take(&mut is_gap) {
                rescued.gaps.push((before, last.clone()));
            }
            found.insert(key, (Some(value), true));
        }
        if is_gap {
            rescued.gaps.push((last, Bound::Unbounded));
        }
        lost
    }

    /// Adds the records of the sound groups of the tail. What was found before a damaged one is
    /// uncertain. `lost`: damaged entries of the base. Returns whether there is one.
    fn rescue_tail(&self, sound: &Sound<'_, M>, found: &mut Found, lost: &BTreeSet<usize>) -> bool {
        let (page, header, seed) = (sound.page, &sound.header, sound.seed);
        let base = Base::of(header);
        let unit = base.group_unit();
        let sealed = page.sealed_end(seed);
        let mut at = base.aligned(header.tail);
        let mut has_lost_change = false;
        while at < page.words() {
            let Some(mut seen) = page.seen(seed, at) else {
                let rest = (at + unit..page.words()).step_by(unit);
                let later = rest.clone().find(|at| page.seen(seed, *at).is_some());
                // The tail ends here, as far as anybody can tell.
                if later.is_none() && sealed.is_some_and(|sealed| sealed <= at) {
                    return has_lost_change;
                }
                found.values_mut().for_each(|(_, certain)| *certain = false);
                has_lost_change = true;
                match later {
                    Some(later) => at = later,
                    None => return true,
                }
                continue;
            };
            seen.behind_seal = sealed.is_none_or(|sealed| at >= sealed);
            let next = base.aligned(at + seen.words());
            let add = |place: Place, key: &[u8]| {
                // Nobody knows the key of what a damaged entry was.
                if page.removed_entry(place).is_some_and(|i| lost.contains(&i)) {
                    return;
                }
                let value = page.record(&base, place).1;
                found.insert(key.to_vec(), ((!place.removed).then_some(value), true));
            };
            let counts = self.group_counts(page, header, &seen);
            if !counts || page.records(&base, &seen, &mut { add }).is_err() {
                // The last one was not committed. One that others follow had counted.
                let mut rest = (next..page.words()).step_by(unit);
                if rest.any(|at| page.seen(seed, at).is_some()) {
                    found.values_mut().for_each(|(_, certain)| *certain = false);
                    has_lost_change = true;
                }
            }
            at = next;
        }
        has_lost_change
    }
}

/// By key: its value, or none if it was removed, and whether that is certain.
type Found = BTreeMap<Vec<u8>, (Option<ValueSpan>, bool)>;

impl<M: Media> Page<'_, M> {
    /// Of each stripe of the base, whether it is sound.
    fn sound_stripes(self, header: &Header, seed: Seed) -> Vec<bool> {
        let stripes = self.stripes(header, seed);
        stripes.map(|stripe| stripe.is_sound()).collect()
    }

    /// Whether the offset of entry `i` of a base in general form, and the lengths that it leads to,
    /// are sound.
    fn has_sound_lengths(self, header: &Header, i: usize, is_sound: impl Fn(Span) -> bool) -> bool {
        let word = |word: usize| Span {
            at: word * 8,
            len: 8,
        };
        let offset = header.base + i / 4;
        if !is_sound(word(offset)) {
            return false;
        }
        let at = (self.word(offset) >> (i % 4 * 16)) as u16 as usize;
        is_sound(word(at)) && Lengths::decode(self.word(at)).is_some()
    }
}
