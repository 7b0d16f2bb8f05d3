//! Room for the groups of a batch: pages without it are consolidated or split before, which changes
//! no entry.

use super::batch::Run;
use super::changes::{Batch, Change};
use super::find::Found;
use super::group;
use super::layout::{MAX_GROUP, MAX_PAGE};
use super::page::Page;
use super::part::Part;
use super::place::Base;
use super::replace::{Course, Cut, Entries, FULL, Old, Spec, Turnover, separator_between};
use super::{ClusteredTree, ReadError};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;

/// Entries of a page from which on it is split rather than made larger.
const SPLIT_FROM: usize = 4;

/// The entry of the base that a change removes, whose key was found like that.
#[inline(always)]
pub(super) fn entry_to_remove<M: Media>(
    page: Page<'_, M>,
    part: &Part,
    change: &Change,
    found: Found,
) -> Option<u16> {
    match found {
        Found::Value(found) if change.removes() => page.entry_of(&part.base(), found),
        _ => None,
    }
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Whether the group of a run fits behind the others of its page.
    pub(super) fn has_room(&self, batch: &Batch<'_, K>, run: &Run<'_>) -> bool {
        let most = self.most_records();
        let records = batch.records(run.changes.clone());
        let n = records.clone().count();
        let words = group::words(&run.part.base(), records);
        let (_, page_words) = run.part.block_and_words();
        n == 0
            || run.part.count() + n <= most
                && words <= MAX_GROUP
                && run.part.end() + words <= page_words
    }

    /// Replaces the page of `run` by a page or two that have more room, with the same entries.
    /// Returns the right one, locked, with its changes.
    pub(super) fn make_room<'t>(
        &'t self,
        batch: &mut Batch<'_, K>,
        run: &mut Run<'t>,
    ) -> Result<Option<Run<'t>>, ReadError> {
        let guard = &epoch::pin();
        let part = run.part;
        let block = part.block();
        let (old, entries, dropped) = self.content(part, &[])?;
        let turnover = Turnover {
            dropped,
            ..Turnover::of(self.next_generation())
        };
        // All keys will be in the base: of that size are the records of removals.
        for change in &mut batch.changes[run.changes.clone()] {
            change.entry = (change.removes() && change.was_there).then_some(0);
        }
        let around = (batch.spreads).then(|| self.cut_around(batch, run, &entries));
        let around = around.flatten();
        batch.spreads = around.is_some();
        let (cut, room) = match around {
            Some(cut) => (Some(cut), 0),
            None => self.cut_for(batch, run, (&old, &turnover), &entries),
        };
        let middle = cut.as_ref().map(|cut| {
            let below = |i: &usize| batch.key(*i) < &cut.separator[..];
            run.changes.start + run.changes.clone().take_while(below).count()
        });
        let course = Course::Making {
            room,
            frees: batch.frees,
        };
        let replaced = self.replace_as(&old, &entries, cut, course, &turnover)?;
        let dropped = &turnover.dropped;
        let right = self.become_replaced(part, replaced, None, dropped, true, guard);
        self.retire_leaf(block, guard);
        let right = right.zip(middle).map(|(part, middle)| {
            let changes = middle..run.changes.end;
            run.changes.end = middle;
            Run { part, changes }
        });
        for run in [&*run].into_iter().chain(&right) {
            self.find_removed(batch, run);
        }
        Ok(right)
    }

    /// Finds the entries of the base that a run removes.
    fn find_removed(&self, batch: &mut Batch<'_, K>, run: &Run<'_>) {
        let page = self.page_of(run.part);
        for change in &mut batch.changes[run.changes.clone()] {
            let key = &batch.bytes[change.key()];
            let found = page.find(run.part, key, change.hash);
            change.entry = entry_to_remove(page, run.part, change, found);
        }
    }

    /// Where to split a page so that the changes of `run` find room, or the words that they need in
    /// a page by itself.
    fn cut_for(
        &self,
        batch: &Batch<'_, K>,
        run: &Run<'_>,
        (old, turnover): (&Old<'_>, &Turnover),
        entries: &Entries<'_>,
    ) -> (Option<Cut>, usize) {
        let most = self.most_records();
        let records = batch.records(run.changes.clone());
        let n = entries.len();
        let spec = Spec {
            dropped: &turnover.dropped,
            ..self.spec(old)
        };
        let header = spec.header(entries.part(0, n));
        let base = Base::of(&header);
        let words = group::words(&base, records.clone());
        let whole = base.aligned(header.tail) + words;
        let one = (None, whole - header.tail);
        let few = records.clone().count() <= most && words <= MAX_GROUP;
        let is_full = header.tail * 100 > self.page_words * FULL;
        if few && whole <= self.page_words && (batch.frees || !is_full) {
            return one;
        }
        // Keys of the page and of the run, each once.
        let mut keys: Vec<&[u8]> = (0..n).map(|i| entries.key(i)).collect();
        keys.extend(records.map(|record| record.key));
        keys.sort_unstable();
        keys.dedup();
        if keys.len() < 2 || few && keys.len() < SPLIT_FROM && whole <= MAX_PAGE / 8 {
            return one;
        }
        let middle = keys.len() / 2;
        let separator = separator_between(keys[middle - 1], keys[middle], Self::NUMBER_KEYS);
        let below = (0..n).take_while(|i| entries.key(*i) < &separator[..]);
        let cut = Cut {
            at: below.count(),
            left_full: FULL,
            separator,
        };
        (Some(cut), 0)
    }
}
