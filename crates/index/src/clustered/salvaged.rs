//! Opening a tree past damage of what leads to its pages, in a pool that is salvaged
//! ([`Pool::salvage`](bristlecone_pmem::Pool::salvage)). What is made good is so in memory only.
//!
//! 1. *Commit slots.* A slot neither of whose words is sound says the last stamp: all that was
//!    committed through it counts, and so does what there is of a change that a crash cut short.
//! 2. *The log of merges*, and *ended sessions*. One that cannot be read counts as empty: a merge
//!    that a crash cut short may be half done, and a change may be there in part.
//! 3. *Words of the page table* that are damaged, or that lead to another page, or are gone
//!    although a page leads to their number. Pages say which number they have and where they begin,
//!    which stays so for as long as they have it: of those that do as the page says which leads
//!    there, the newest one has the number. If that is damaged itself, it is an earlier page, with
//!    the values of then.
//! 4. *Inner pages* say only which numbers are in use: which keys a leaf page has, it says itself.
//!    A word of the table may lead to a page of an earlier time, which is gone by now: a key is
//!    that of the newest page which has it. Keys that no page has lead to the next page of the one
//!    before them. It is damaged, and reading them says so.
//!
//! The first three are listed in `passed`, and so is a page table that is not as it was when the
//! tree was closed.

use super::layout::MIN_PAGE;
use super::load::Sound;
use super::replace::NewPage;
use super::table::{Kind, Table, Word};
use super::upper::Known;
use super::{ClusteredTree, Handle, ReadError};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::LINE;
use crossbeam_epoch as epoch;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The number that no page has.
const NOWHERE: u32 = 0;

/// A page's number, and the key that it begins at.
type Begun = (u32, Vec<u8>);

/// Which page each key belongs to, by what the pages say, the newest one first.
#[derive(Debug, Default)]
struct Claims {
    /// From these keys on: up to the next one, or the end of `covered`.
    pages: BTreeMap<Vec<u8>, u32>,
    /// The ranges whose keys have a page: where each begins, and where it ends unless that is the
    /// end of all keys.
    covered: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Claims {
    /// Gives page `id` the keys from `low` to `high` that have no page yet.
    fn add(&mut self, low: &[u8], high: Option<&[u8]>, id: u32) {
        let is_inside = |key: &[u8]| high.is_none_or(|high| key < high);
        let (mut start, mut at) = (low.to_vec(), low.to_vec());
        if !is_inside(low) {
            return;
        }
        while is_inside(&at) {
            // A range that has the key, or ends there, becomes a part of this one.
            let until = (Bound::Unbounded, Bound::Included(&at[..]));
            let before = self.covered.range::<[u8], _>(until).next_back();
            let before = before.filter(|(_, end)| end.as_ref().is_none_or(|end| *end >= at));
            if let Some(from) = before.map(|(from, _)| from.clone()) {
                let end = self.covered.remove(&from).flatten();
                start = start.min(from);
                match end {
                    None => return drop(self.covered.insert(start, None)),
                    Some(end) => at = end,
                }
                continue;
            }
            self.pages.insert(at.clone(), id);
            let behind = (Bound::Excluded(&at[..]), Bound::Unbounded);
            let next = self.covered.range::<[u8], _>(behind).next();
            let next = next.map(|(from, _)| from).filter(|from| is_inside(from));
            match (next, high) {
                (Some(next), _) => at = next.clone(),
                (None, Some(high)) => at = high.to_vec(),
                (None, None) => return drop(self.covered.insert(start, None)),
            }
        }
        self.covered.insert(start, Some(at));
    }

    /// Where the keys begin that have no page.
    fn gaps(&self) -> Vec<Vec<u8>> {
        let mut gaps = Vec::new();
        let mut end = Some(Vec::new());
        for (from, to) in &self.covered {
            gaps.extend(end.filter(|end| end < from));
            end = to.clone();
        }
        gaps.extend(end);
        gaps
    }
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// What was read; in a pool that is salvaged `None` for what could not be, which is noted.
    ///
    /// # Errors
    /// Those of the reading, in any other pool.
    pub(super) fn or_passed<T>(&mut self, read: Result<T, String>) -> Result<Option<T>, String> {
        match read {
            Err(e) if self.pool.is_salvaged() => {
                self.passed.push(e);
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// Looks at the commit slots.
    ///
    /// # Errors
    /// A message that names the slot that is lost.
    pub(super) fn assume_slots(&mut self) -> Result<(), String> {
        let ceiling = self.stamps.ceiling();
        for (slot, what) in self.slots.lost(self.pm(), ceiling) {
            let what = format!("{what}: a change that was being made may be there in part");
            self.or_passed::<()>(Err(what))?;
            self.slots.assume(self.pm(), slot, ceiling);
        }
        Ok(())
    }

    /// Leads to pages whose words of the table are damaged or gone.
    pub(super) fn lead_again(&mut self) {
        let numbers = Table::FIRST_ID..self.table.end();
        // A newborn page counts if another one leads to it.
        let is_settled = |id: &u32| {
            let word = self.word_of(*id).ok().flatten();
            word.is_some_and(|word| word.kind == Kind::Page && !word.newborn)
        };
        let mut to_do: Vec<u32> = numbers.clone().filter(is_settled).collect();
        let mut done: BTreeSet<u32> = to_do.iter().copied().collect();
        let mut led = vec![(Table::FIRST_ID, Vec::new())];
        let (mut newest, mut lost) = (None, BTreeMap::new());
        loop {
            for id in to_do.drain(..) {
                let others = self.led_to(id).into_iter();
                led.extend(others.filter(|(id, _)| !done.contains(id)));
            }
            // The keys that numbers without a word are led to by.
            let mut sought = BTreeMap::<u32, Vec<Vec<u8>>>::new();
            for (id, low) in led.drain(..) {
                match self.word_of(id) {
                    Ok(Some(word)) if word.kind == Kind::Page => {
                        if done.insert(id) {
                            to_do.push(id);
                        }
                    }
                    // A value has the number.
                    Ok(Some(_)) => {}
                    _ => sought.entry(id).or_default().push(low),
                }
            }
            for (id, lows) in sought {
                let gone = || format!("word {id} of the table is gone");
                let what = self.word_of(id).err().unwrap_or_else(gone);
                let newest = newest.get_or_insert_with(|| self.newest_pages());
                let found = lows.into_iter().filter_map(|low| newest.get(&(id, low)));
                let found = found.max().filter(|(generation, block)| {
                    let word = Word::new(Kind::Page, *block, *generation, false);
                    self.table.assume(self.pm(), id, word)
                });
                let Some((_, block)) = found else {
                    lost.insert(id, what);
                    continue;
                };
                lost.remove(&id);
                done.insert(id);
                to_do.push(id);
                self.passed.push(format!(
                    "{what}; the newest page {id} that can be read is at {block:#x}"
                ));
            }
            if to_do.is_empty() {
                break;
            }
        }
        // Those of values: references lead to these by themselves.
        let others = numbers.filter(|id| !done.contains(id));
        let others = others.filter_map(|id| Some((id, self.word_of(id).err()?)));
        lost.extend(others.collect::<Vec<_>>());
        self.passed.extend(lost.into_values());
        let closed = self.closed_sum();
        if closed.is_some_and(|sum| sum != self.table.crc(self.pm())) {
            let what = "the page table is not as it was when it was closed: some of what it leads \
                        to may be of an earlier time";
            self.passed.push(what.into());
        }
    }

    /// The word of a number, if what it leads to may be there: of words that are something else,
    /// one in 2^12 passes its check, and one may be of an earlier time. What a newborn word leads
    /// to need not be.
    fn word_of(&self, id: u32) -> Result<Option<Word>, String> {
        let word = self.table.read(self.pm(), id)?;
        let leads = |word: Word| match word.kind {
            Kind::Page => match self.checked_page(word.block) {
                Ok((_, header, _)) => header.id == id && word.is_of(header.generation),
                // It may be damaged.
                Err(_) => self.heap.check(word.block, MIN_PAGE as u64).is_ok(),
            },
            Kind::Outer => self.is_value_of(id, word),
        };
        match word {
            Some(word) if !word.newborn && !leads(word) => {
                Err(format!("word {id} of the table leads to something else"))
            }
            word => Ok(word),
        }
    }

    /// Leads keys to the leaf pages that have them.
    pub(super) fn lead_to_leaves(&self) -> Result<(), ReadError> {
        let guard = &epoch::pin();
        let numbers = Table::FIRST_ID..self.table.end();
        let leaves = numbers.filter_map(|id| {
            let header = self.sound(id).ok()?.header;
            (header.level == 0).then_some((header.generation, id))
        });
        let mut leaves: Vec<(u64, u32)> = leaves.collect();
        leaves.sort_unstable();
        // The newest one first.
        let leaves = || {
            let leaves = leaves.iter().rev();
            leaves.filter_map(|(_, id)| self.sound(*id).ok())
        };
        let mut claims = Claims::default();
        for Sound { page, header, .. } in leaves() {
            let low = page.low(&header).unwrap_or_default();
            claims.add(low, page.high(&header), header.id);
        }
        let mut gaps: BTreeMap<Vec<u8>, Option<u32>> = BTreeMap::new();
        gaps.extend(claims.gaps().into_iter().map(|gap| (gap, None)));
        if !gaps.is_empty() {
            for Sound { page, header, .. } in leaves() {
                if let Some(behind) = page.high(&header).and_then(|high| gaps.get_mut(high)) {
                    behind.get_or_insert(header.next);
                }
            }
        }
        let gaps = gaps.into_iter();
        claims
            .pages
            .extend(gaps.map(|(gap, next)| (gap, next.unwrap_or(NOWHERE))));
        for (low, id) in &claims.pages {
            let to = Handle::Unloaded(*id);
            match &low[..] {
                [] if *id == Table::FIRST_ID => {}
                [] => self.put_in_place(Table::FIRST_ID, to, None, guard)?,
                low => self.route(low, to, guard)?,
            }
        }
        Ok(())
    }

    /// Of the numbers without a word, the newest page that begins at each key: its generation, and
    /// its block.
    fn newest_pages(&self) -> BTreeMap<Begun, (u64, u64)> {
        let mut newest = BTreeMap::<Begun, (u64, u64)>::new();
        let all = self.heap.extents().into_iter();
        for block in all.flat_map(|extent| extent.step_by(LINE)) {
            let Ok((page, header, _)) = self.checked_page(block) else {
                continue;
            };
            if !matches!(self.word_of(header.id), Ok(Some(_))) {
                let low = page.low(&header).unwrap_or_default();
                let known = newest.entry((header.id, low.to_vec())).or_default();
                *known = (*known).max((header.generation, block));
            }
        }
        newest
    }

    /// The pages that a page leads to, and where each begins.
    fn led_to(&self, id: u32) -> Vec<Begun> {
        let Ok(sound) = self.sound(id) else {
            return Vec::new();
        };
        let (page, header, block) = (sound.page, sound.header, sound.block);
        let mut all = Vec::new();
        if header.next != NOWHERE {
            let end = page.high(&header).unwrap_or_default();
            all.push((header.next, end.to_vec()));
        }
        if header.level > 0 {
            let mut known = Known::of(&NewPage { header, block });
            let children = self.children(page, &mut known).unwrap_or_default();
            all.extend(children.into_iter().map(|(low, child)| match low {
                low if low == Self::lowest() => (child, Vec::new()),
                low => (child, low),
            }));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By each key alone.
    #[test]
    fn keys_belong_to_the_first_page_that_claims_them() {
        use rand::rngs::SmallRng;
        use rand::{RngExt, SeedableRng};
        let mut draw = SmallRng::seed_from_u64(5);
        for _ in 0..2_000 {
            let (mut claims, mut expected) = (Claims::default(), [None; 40]);
            for id in 1..draw.random_range(1..9) {
                let low = draw.random_range(0..40);
                let high = Some(draw.random_range(0..48)).filter(|high| *high < 40);
                let key = |at: usize| match at {
                    0 => Vec::new(),
                    at => vec![at as u8],
                };
                claims.add(&key(low), high.map(key).as_deref(), id);
                let all = expected.iter_mut().take(high.unwrap_or(40)).skip(low);
                all.for_each(|page| *page = page.or(Some(id)));
            }
            for gap in claims.gaps() {
                assert_eq!(claims.pages.insert(gap, NOWHERE), None);
            }
            for (at, id) in expected.into_iter().enumerate() {
                let key = if at == 0 { vec![] } else { vec![at as u8] };
                let (_, found) = claims.pages.range(..=key).next_back().unwrap();
                assert_eq!(*found, id.unwrap_or(NOWHERE), "{at}: {claims:?}");
            }
        }
    }
}
