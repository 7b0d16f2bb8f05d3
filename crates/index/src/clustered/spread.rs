//! A batch whose keys belong to one page, and that many pages have to hold: a load into an empty
//! range, or keys that come in ascending order. Or one that removes most of what the page has.
//!
//! ```text
//! lock the page | stamp | pages with all entries, newborn words | fence | word of the page, fence | show | separators
//! ```
//!
//! Where a batch has several pages it appends a group to each, which counts by a slot. Here one
//! word decides: the page is replaced by a chain of pages that have the changes among their sorted
//! entries. All but the first are born in that replacement, as the right page of a split is, so a
//! crash leaves all of the batch or nothing. Nothing is written twice, and the pages are as full
//! as those of a load. Where keys are removed, the chain is one page without them.
//!
//! Persist cost: the lines of the pages, a line for each word, and 2 fences; and 1 line and 1 fence
//! for each separator, as after a split.

use super::batch::Run;
use super::changes::Batch;
use super::group;
use super::image::{Entries, Spec};
use super::page::partition;
use super::part::Part;
use super::replace::{Change, Course, Cut, NewPage, Old, Turnover, separator_between};
use super::table::Table;
use super::{ClusteredTree, Handle, ReadError};
use crate::repr::{KeyRepr, Repr};
use crate::sorted::common_prefix;
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch as epoch;

/// Pages that the records of a batch fill at least, if it is spread.
const PAGES: usize = 2;
/// Words of a record besides its key and value, or of a group besides its records, at most.
const MOST_OVERHEAD: usize = 4;
/// Records of a batch that is spread where rare paths are to be taken often, at least.
const TINY_RECORDS: usize = 4;
/// Entries of a page likewise, at most.
const TINY_FILL: usize = 2;
/// Pages of an ascent, which get no more.
const ASCENT: Fullness = Fullness {
    percent: 97,
    even: false,
    course: Course::Chain,
};
/// Others, which go on to get some.
const OTHERS: Fullness = Fullness {
    percent: 75,
    even: true,
    course: Course::Chain,
};
/// The page that is left after removals.
const REST: Fullness = Fullness {
    percent: 100,
    even: true,
    course: Course::Removing,
};
/// Entries of a page, at least: a page of long ones becomes larger.
const FEW: usize = 4;

/// Whether the keys of a batch go on where those of the page end, as in an ascent: nothing lies
/// between them, and what is below the first one has as much in common with it as the last one has.
fn ascends(changes: &[Change<'_>], entries: &Entries<'_>) -> bool {
    let (Some(first), Some(last)) = (changes.first(), changes.last()) else {
        return false;
    };
    let below = partition(entries.len(), |i| entries.key(i) < first.key);
    let not_above = partition(entries.len(), |i| entries.key(i) <= last.key);
    let Some(before) = below.checked_sub(1).map(|i| entries.key(i)) else {
        return false;
    };
    not_above - below <= changes.len()
        && common_prefix(before, first.key) >= common_prefix(first.key, last.key)
}

/// How full the pages of a chain are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fullness {
    /// Percent of a page that its entries take at most.
    pub(super) percent: usize,
    /// The last two are alike, rather than one with next to nothing.
    pub(super) even: bool,
    /// Which blocks they may take, and how they are flushed.
    pub(super) course: Course,
}

/// Where a page begins: its first entry, and its low fence.
struct Begin {
    from: usize,
    separator: Vec<u8>,
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Whether the changes of a batch, which are all of one page, are to be spread.
    pub(super) fn is_to_spread(&self, batch: &Batch<'_, K>, run: &Run<'_>) -> bool {
        if batch.frees {
            let mut records = batch.records(run.changes.clone());
            let removes = records.clone().count();
            return removes * 2 > run.part.live()
                && !self.is_root(run.part)
                && records.all(|record| record.value.is_none())
                && !self.has_room(batch, run);
        }
        // Most batches are small: their records are not measured one by one.
        let most = batch.bytes.len() / 8 + run.changes.len() * MOST_OVERHEAD + MOST_OVERHEAD;
        if most <= PAGES * self.page_words && !self.pm().tiny() {
            return false;
        }
        // Ends of keys are counted by 32 bits.
        if batch.bytes.len() > (u32::MAX / 2) as usize {
            return false;
        }
        // A root is split first; a large one may have room for all.
        if self.is_root(run.part) && self.has_room(batch, run) {
            return false;
        }
        let records = batch.records(run.changes.clone());
        if self.pm().tiny() {
            return records.count() >= TINY_RECORDS;
        }
        group::words(&run.part.base(), records) > PAGES * self.page_words
    }

    /// Whether it is the page that a root's word names.
    pub(super) fn is_root(&self, part: &Part) -> bool {
        part.id() == Table::FIRST_ID
    }

    /// Where to split a root, a leaf page, so that all changes belong to one of its children: the
    /// root's word cannot be that of the first of many.
    pub(super) fn cut_around(
        &self,
        batch: &Batch<'_, K>,
        run: &Run<'_>,
        entries: &Entries<'_>,
    ) -> Option<Cut> {
        let (first, last) = (run.changes.start, run.changes.end.checked_sub(1)?);
        let (first, last) = (batch.key(first), batch.key(last));
        let n = entries.len();
        let below = (0..n).take_while(|i| entries.key(*i) < first).count();
        let not_above = (0..n).take_while(|i| entries.key(*i) <= last).count();
        let (at, left, right) = match (below, not_above < n) {
            (0, true) => (not_above, last, entries.key(not_above)),
            (0, false) => (0, &[][..], first),
            _ => (below, entries.key(below - 1), first),
        };
        let separator = separator_between(left, right, Self::NUMBER_KEYS);
        // No key is below the empty one, nor below the number 0.
        (&separator[..] > Self::lowest()).then_some(Cut {
            at,
            left_full: 100,
            separator,
        })
    }

    /// Makes the changes of a run, whose page is locked and is not a root, by replacing the page
    /// with as many as they need. They have that stamp.
    ///
    /// # Errors
    /// [`ReadError`]; no entry has changed then.
    pub(super) fn spread(
        &self,
        batch: &mut Batch<'_, K>,
        run: &Run<'_>,
        stamp: u64,
    ) -> Result<(), ReadError> {
        let part = run.part;
        debug_assert!(
            !self.is_root(part),
            "a root's word is not that of a leaf page"
        );
        let generation = self.next_generation();
        let mut born = Vec::new();
        if Self::OUTER {
            let birth = (part.id(), generation, 0);
            batch.refer(run.changes.clone(), birth, |outer| born.push(*outer));
        }
        let records = batch.records(run.changes.clone());
        let changes: Vec<Change<'_>> = records
            .map(|record| Change {
                key: record.key,
                value: record.value,
            })
            .collect();
        let (old, entries, dropped) = self.content(part, &changes)?;
        let turnover = Turnover {
            generation,
            born,
            dropped,
        };
        let fill = if batch.frees {
            REST
        } else if ascends(&changes, &entries) {
            ASCENT
        } else {
            OTHERS
        };
        let tell = || self.tell_run(batch, run, stamp);
        let content = (&old, &entries);
        self.become_chain(part, content, fill, &turnover, (&changes, stamp), tell)?;
        Ok(())
    }

    /// Replaces a page, whose writer's lock the caller holds, by as many as `entries` need. They
    /// have those of `changes`, whose stamp goes with them. It is not a root, unless one will do.
    /// Calls `tell` when readers see the pages, and nobody can have changed them.
    ///
    /// # Errors
    /// [`SpaceError`]; nothing has changed then.
    pub(super) fn become_chain(
        &self,
        part: &Part,
        (old, entries): (&Old<'_>, &Entries<'_>),
        fill: Fullness,
        turnover: &Turnover,
        (changes, stamp): (&[Change<'_>], u64),
        tell: impl FnOnce(),
    ) -> Result<(), SpaceError> {
        let (block, guard) = (part.block(), &epoch::pin());
        let cuts = self.cuts(old, entries, turnover, fill);
        let pages = self.write_chain(old, entries, (&cuts, fill.course), turnover)?;
        let Some((left, right)) = pages.split_first() else {
            return Ok(());
        };
        self.install(left, &right.iter().collect::<Vec<_>>(), turnover);
        let kept = self.keep_superseded(part, changes, stamp);
        let right = cuts.iter().map(|cut| &cut.separator[..]).zip(right);
        self.show_chain(part, left, right, stamp, tell);
        // Nobody comes to the page before any more.
        self.drop_outers(&turnover.dropped, &kept, guard);
        self.retire_leaf(block, guard);
        Ok(())
    }

    /// Where all pages but the first begin.
    fn cuts(
        &self,
        old: &Old<'_>,
        entries: &Entries<'_>,
        turnover: &Turnover,
        fill: Fullness,
    ) -> Vec<Begin> {
        let n = entries.len();
        let tiny = self.pm().tiny();
        let (mut from, mut count) = (0, 1);
        let mut cuts: Vec<Begin> = Vec::new();
        loop {
            let rest = n - from;
            let low = cuts.last().map(|cut| &cut.separator[..]).or(old.low);
            let fits = |count: usize| {
                let to = from + count;
                let high = (to < n).then(|| self.separator(old, entries, to));
                let spec = Spec {
                    low,
                    high: high.as_deref().or(old.high),
                    dropped: if from == 0 { &turnover.dropped } else { &[] },
                    ..self.spec(old)
                };
                let words = spec.header(entries.part(from, to)).tail;
                let few = !tiny || count <= TINY_FILL || fill.course != Course::Chain;
                words * 100 <= self.page_words * fill.percent && few
            };
            let least = if tiny { 1 } else { FEW }.min(rest);
            // About as many as in the page before.
            count = count.clamp(least, rest);
            while count > least && !fits(count) {
                count -= 1;
            }
            while count < rest && fits(count + 1) {
                count += 1;
            }
            if count == rest {
                return cuts;
            }
            if fill.even && (rest - count) * 2 < count {
                count = rest / 2;
            }
            from += count;
            let separator = self.separator(old, entries, from);
            cuts.push(Begin { from, separator });
        }
    }

    /// Writes the pages that take the place of `old`. Reserves the numbers of all but the first.
    ///
    /// # Errors
    /// [`SpaceError`]; nothing has changed then.
    fn write_chain(
        &self,
        old: &Old<'_>,
        entries: &Entries<'_>,
        (cuts, course): (&[Begin], Course),
        turnover: &Turnover,
    ) -> Result<Vec<NewPage>, SpaceError> {
        self.ensure_memory(cuts.len())?;
        let (mut ids, mut pages) = (vec![old.header.id], Vec::new());
        let mut write = || {
            for _ in cuts {
                let of_page = Some(turnover.generation);
                ids.push(self.table.reserve(self.root(), &self.heap, of_page)?);
            }
            for (i, id) in ids.iter().enumerate() {
                let this = i.checked_sub(1).map(|before| &cuts[before]);
                let (next, from) = (cuts.get(i), this.map_or(0, |this| this.from));
                let (born_in, dropped) = match i {
                    0 => (old.header.born_in, &turnover.dropped[..]),
                    _ => (old.header.id, &[][..]),
                };
                let spec = Spec {
                    id: *id,
                    generation: turnover.generation,
                    born_in,
                    next: ids.get(i + 1).copied().unwrap_or(old.header.next),
                    low: this.map(|this| &this.separator[..]).or(old.low),
                    high: next.map(|next| &next.separator[..]).or(old.high),
                    dropped,
                    ..self.spec(old)
                };
                let range = (from, next.map_or(entries.len(), |next| next.from));
                pages.push(self.write_page_as(&spec, entries, range, 100, course)?);
            }
            Ok(())
        };
        match write() {
            Ok(()) => Ok(pages),
            Err(e) => {
                // PERSIST: the pages, though nothing leads to them: a journal takes fresh blocks at
                // the fence, and must not find in them what their next owners write.
                self.pm().fence();
                pages.iter().for_each(|page| self.discard(page));
                self.release(ids.drain(1..));
                Err(e)
            }
        }
    }

    /// Makes `part` that of the first page, and shows it and those to the right of it to readers at
    /// once; then adds their separators to the parent.
    fn show_chain<'n>(
        &self,
        part: &Part,
        left: &NewPage,
        right: impl Iterator<Item = (&'n [u8], &'n NewPage)>,
        stamp: u64,
        tell: impl FnOnce(),
    ) {
        let guard = &epoch::pin();
        let right: Vec<_> = right
            .map(|(separator, new)| {
                let slot = self.parts.allocate();
                let part = self.part(slot);
                // Until its separator is there it is not merged away.
                part.writer.lock();
                self.become_page(part, new, stamp, |_| {});
                (separator, new.header.id, slot)
            })
            .collect();
        self.become_page(part, left, stamp, |tree| {
            // From the right: what is not led to its page yet is led to the first one, where
            // readers wait.
            for (separator, _, slot) in right.iter().rev() {
                let added = K::with_value_of(separator, |separator| {
                    let right = Handle::Part(*slot).encode();
                    tree.inner.insert(separator, right, guard);
                });
                debug_assert!(added.is_some(), "separators are keys");
            }
        });
        // Before anybody else changes these keys.
        tell();
        for (separator, id, slot) in right {
            // Without room the separator is left out: the page is found from its neighbour when
            // the tree is opened again.
            let _ = self.post_leaf(separator, id);
            self.part(slot).writer.unlock();
        }
    }
}
