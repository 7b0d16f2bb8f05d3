//! Inner pages: separators and the numbers of the pages one level down.
//!
//! Lookups of keys do not come here: the inner index in DRAM has all separators of pages that were
//! loaded. Inner pages keep the separators for the next opening, which loads them when it comes to
//! them. They are changed by splits only, under one lock.

use super::image::Entries;
use super::order::TailOrder;
use super::outer::Given;
use super::page::Page;
use super::place::{Base, Place};
use super::replace::{
    Change, Course, NewPage, Old, Replaced, Turnover, child_of, child_value, entries_at, merged,
};
use super::stored::Stored;
use super::tail::Seen;
use super::write::Tail;
use super::{ClusteredTree, ReadError};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use crossbeam_epoch as epoch;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Whether a group counts in an inner page: none is part of a larger change.
pub(super) fn by_itself(seen: &Seen) -> bool {
    seen.stamp_word >> super::slots::STAMP_BITS == 0
}

/// An inner page that is loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) id: u32,
    pub(super) block: u64,
    pub(super) words: usize,
    pub(super) generation: u64,
    pub(super) base: Base,
    /// Records of the tail.
    pub(super) count: usize,
    /// The word after its last group.
    pub(super) end: usize,
}

impl Known {
    /// A page whose tail is empty.
    pub(super) fn of(page: &NewPage) -> Self {
        let base = Base::of(&page.header);
        Self {
            id: page.header.id,
            block: page.block,
            words: page.header.words,
            generation: page.header.generation,
            base,
            count: 0,
            end: base.aligned(page.header.tail),
        }
    }
}

/// The inner pages that are loaded: of each level, from 1 up, by their low fences. That of the
/// first page is empty.
#[derive(Debug, Default)]
pub(super) struct Upper {
    pub(super) levels: Vec<BTreeMap<Vec<u8>, Known>>,
    /// Damaged pages that cannot be [made again](ClusteredTree::make_again).
    pub(super) lost: BTreeSet<u32>,
}

impl Upper {
    /// Adds the level of a root that has grown over the others.
    pub(super) fn add_root(&mut self, root: &NewPage) {
        self.levels
            .push(BTreeMap::from([(Vec::new(), Known::of(root))]));
    }

    /// Adds a page of a level from 1 up. Returns false if there was one at that place.
    pub(super) fn add(&mut self, level: u8, low: Option<&[u8]>, known: Known) -> bool {
        let level = usize::from(level);
        if self.levels.len() < level {
            self.levels.resize_with(level, BTreeMap::new);
        }
        let low = low.unwrap_or(&[]).to_vec();
        self.levels[level - 1].insert(low, known).is_none()
    }
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Adds the separator of a leaf page that a split made to its parent, durably.
    ///
    /// # Errors
    /// [`ReadError`]; nothing has changed then.
    pub(super) fn post_leaf(&self, separator: &[u8], child: u32) -> Result<(), ReadError> {
        self.post(&mut lock(&self.upper), 1, separator, child)
    }

    /// Adds a separator to the page of `level` that it belongs to, durably.
    ///
    /// # Errors
    /// [`ReadError`]; the separator is not added then.
    pub(super) fn post(
        &self,
        upper: &mut Upper,
        level: u8,
        separator: &[u8],
        child: u32,
    ) -> Result<(), ReadError> {
        let value = child_value(child);
        let change = Change {
            key: separator,
            value: Some(Stored::here(&value)),
        };
        self.change_upper(upper, level, change)
    }

    /// Changes the page of `level` that the key belongs to, durably.
    ///
    /// # Errors
    /// As of [`post`](Self::post).
    pub(super) fn change_upper(
        &self,
        upper: &mut Upper,
        level: u8,
        change: Change<'_>,
    ) -> Result<(), ReadError> {
        let below = (Bound::Unbounded, Bound::Included(change.key));
        let pages = upper.levels.get_mut(usize::from(level) - 1);
        let found = pages.and_then(|pages| pages.range_mut::<[u8], _>(below).next_back());
        let Some((low, known)) = found else {
            let what = format!("no page of level {level} is known for {:?}", change.key);
            return Err(ReadError::Damaged(what));
        };
        let page = self.page(known.block, known.words);
        let tail = Tail {
            count: known.count,
            end: known.end,
            ascends: false,
        };
        let about = (known.id, known.generation, &known.base);
        // Nobody reads inner pages at a time: no stamp, but a number that none of their groups has
        // had.
        let number = || self.next_generation();
        let value = change.value.map(|value| Given::Here(value.bytes));
        let record = (change.key, value, None);
        if let Some(appended) = self.append(page, about, &tail, record, number) {
            known.count += 1;
            known.end = appended.end;
            return Ok(());
        }
        let (low, known) = (low.clone(), *known);
        self.replace_upper(upper, level, low, &known, Some(change))
    }

    /// Replaces an inner page, with `change` if there is one, durably.
    ///
    /// # Errors
    /// As of [`post`](Self::post).
    pub(super) fn replace_upper(
        &self,
        upper: &mut Upper,
        level: u8,
        low: Vec<u8>,
        known: &Known,
        change: Option<Change<'_>>,
    ) -> Result<(), ReadError> {
        let page = self.page(known.block, known.words);
        let (header, seed) = page.header(self.salt).map_err(ReadError::Damaged)?;
        // It may have left memory since it was loaded.
        page.check_base(&header, seed).map_err(ReadError::Damaged)?;
        let mut places = Vec::new();
        page.tail(&header, seed, by_itself, |place, _| places.push(place))
            .map_err(ReadError::Damaged)?;
        let order = TailOrder::of(page, &Base::of(&header), places.into_iter());
        let entries = merged(page, &header, &order, change.as_slice());
        let course = match change.and_then(|change| change.value) {
            Some(_) => Course::Any,
            None => Course::Removing,
        };
        let old = Old {
            header,
            low: page.low(&header),
            high: page.high(&header),
        };
        let turnover = Turnover::of(self.next_generation());
        let replaced = self.replace(&old, &entries, course, &turnover)?;
        let pages = &mut upper.levels[usize::from(level) - 1];
        let posted = match &replaced {
            Replaced::One(new) => {
                pages.insert(low, Known::of(new));
                None
            }
            Replaced::Two {
                left,
                right,
                separator,
            } => {
                pages.insert(low, Known::of(left));
                pages.insert(separator.clone(), Known::of(right));
                Some((separator, right.header.id))
            }
            Replaced::Grown {
                left,
                right,
                separator,
                root,
            } => {
                pages.insert(low, Known::of(left));
                pages.insert(separator.clone(), Known::of(right));
                upper.add_root(root);
                None
            }
        };
        // Nobody reads inner pages but under the lock that the caller holds, and walks of `verify`.
        self.retire(known.block, &epoch::pin());
        match posted {
            Some((separator, right)) => self.post(upper, level + 1, separator, right),
            None => Ok(()),
        }
    }

    /// Whether an inner page has that separator.
    ///
    /// # Errors
    /// A message, if the page is damaged.
    pub(super) fn has_separator(
        &self,
        page: Page<'_, M>,
        separator: &[u8],
    ) -> Result<bool, String> {
        let (header, seed) = page.header(self.salt)?;
        page.check_base(&header, seed)?;
        let mut newest = None;
        page.tail(&header, seed, by_itself, |place, key| {
            if key == separator {
                newest = Some(place);
            }
        })?;
        let base = Base::of(&header);
        Ok(match (newest, page.strip(&base, separator)) {
            (Some(place), _) => !place.removed,
            (None, Ok(rest)) => page.rank(&base, rest, |_| (0, base.entries)).equal,
            (None, Err(_)) => false,
        })
    }

    /// The separators of an inner page, in order, and the numbers of the pages that they lead to.
    ///
    /// # Errors
    /// A message, if the page is damaged.
    pub(super) fn children(
        &self,
        page: Page<'_, M>,
        known: &mut Known,
    ) -> Result<Vec<(Vec<u8>, u32)>, String> {
        let (header, seed) = page.header(self.salt)?;
        page.check_base(&header, seed)?;
        let mut places: Vec<Place> = Vec::new();
        let (low, high) = (page.low(&header), page.high(&header));
        let mut strays = false;
        let tail = page.tail(&header, seed, by_itself, |place, key| {
            let inside = low.is_none_or(|low| low <= key) && high.is_none_or(|high| key < high);
            strays |= !inside || K::with_value_of(key, |_| ()).is_none();
            places.push(place);
        })?;
        if strays {
            return Err("the tail has separators that are not between the fences".into());
        }
        known.count = places.len();
        known.end = tail.end;
        let entries: Entries<'_> = entries_at(page, &header, places);
        (0..entries.len())
            .map(|i| {
                let child = child_of(entries.value(i).bytes);
                let child = child.ok_or_else(|| format!("separator {i} leads to no page"))?;
                Ok((entries.key(i).to_vec(), child))
            })
            .collect()
    }
}
