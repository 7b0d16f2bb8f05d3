//! Opening a tree past damage of what leads to its pages, in a pool that is salvaged
//! ([`Pool::salvage`](bristlecone_pmem::Pool::salvage)). What is made good is so in memory only.
//!
//! 1. *Commit slots.* A slot neither of whose words is sound says the last stamp: all that was
//!    committed through it counts, and so does what there is of a change that a crash cut short.
//! 2. *The log of merges*, and *ended sessions*. One that cannot be read counts as empty: a merge
//!    that a crash cut short may be half done, and a change may be there in part.
//! 3. *Words of the page table* that are damaged, or gone although a page leads to their number.
//!    Pages say which number they have: the newest one in the pool has it. If that is damaged
//!    itself, it is an earlier page, with the values of then.
//! 4. *Inner pages* say only which numbers are in use: which keys a leaf page has, it says itself.
//!    Keys that no page has lead to the next page of the one before them. It is damaged, and
//!    reading them says so.
//!
//! The first three are listed in `passed`.

use super::layout::MIN_PAGE;
use super::load::Sound;
use super::replace::NewPage;
use super::table::{Kind, Table, Word};
use super::upper::Known;
use super::{ClusteredTree, Handle, ReadError};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::LINE;
use crossbeam_epoch::{self as epoch, Guard};
use std::collections::{BTreeMap, BTreeSet};

/// The number that no page has.
const NOWHERE: u32 = 0;

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
        for (slot, what) in self.slots.lost(self.pm()) {
            let what = format!("{what}: a change that was being made may be there in part");
            self.or_passed::<()>(Err(what))?;
            self.slots.assume(self.pm(), slot, self.stamps.ceiling());
        }
        Ok(())
    }

    /// Leads to pages whose words of the table are damaged or gone.
    pub(super) fn lead_again(&mut self, guard: &Guard) {
        let numbers = Table::FIRST_ID..self.table.end();
        let words = numbers.filter_map(|id| Some((id, self.word_of(id).ok()??)));
        let pages: BTreeMap<u32, u64> = words
            .filter(|(_, word)| word.kind == Kind::Page)
            .map(|(id, word)| (id, word.block))
            .collect();
        let others = self.newest_pages(&pages.values().copied().collect());
        let mut to_do: Vec<u32> = pages.into_keys().chain([Table::FIRST_ID]).collect();
        let mut done = BTreeSet::new();
        while let Some(id) = to_do.pop() {
            if !done.insert(id) {
                continue;
            }
            let block = match self.word_of(id) {
                Ok(Some(word)) if word.kind == Kind::Page => word.block,
                // A value has the number.
                Ok(Some(_)) => continue,
                lost => {
                    let gone = || format!("word {id} of the table is gone");
                    let lost = lost.err().unwrap_or_else(gone);
                    let found = others.get(&id).filter(|(generation, block)| {
                        let word = Word::new(Kind::Page, *block, *generation, false);
                        self.table.assume(self.pm(), id, word)
                    });
                    let Some((_, block)) = found else {
                        self.passed.push(lost);
                        continue;
                    };
                    // It may be marked as another's.
                    let _ = self.marked(*block, MIN_PAGE as u64, guard);
                    self.passed.push(format!(
                        "{lost}; the newest page {id} that can be read is at {block:#x}"
                    ));
                    *block
                }
            };
            to_do.extend(self.led_to(id, block));
        }
        // Those of values: references lead to these by themselves.
        let others = (Table::FIRST_ID..self.table.end()).filter(|id| !done.contains(id));
        let lost = others.filter_map(|id| self.word_of(id).err());
        self.passed.extend(lost.collect::<Vec<_>>());
    }

    /// The word of a number, if what it leads to may be there: of words that are something else,
    /// one in 2^12 passes its check. What a newborn word leads to need not be.
    fn word_of(&self, id: u32) -> Result<Option<Word>, String> {
        let word = self.table.read(self.pm(), id)?;
        let leads = |word: Word| match word.kind {
            Kind::Page => self.heap.check(word.block, MIN_PAGE as u64).is_ok(),
            Kind::Outer => self.is_value_of(id, word),
        };
        match word {
            Some(word) if !word.newborn && !leads(word) => {
                Err(format!("word {id} of the table leads nowhere"))
            }
            word => Ok(word),
        }
    }

    /// Leads keys to the leaf pages that have them.
    pub(super) fn lead_to_leaves(&self) -> Result<(), ReadError> {
        let guard = &epoch::pin();
        let numbers = Table::FIRST_ID..self.table.end();
        let leaves = numbers.filter_map(|id| {
            let Sound { page, header, .. } = self.sound(id).ok()?;
            let owned = |fence: Option<&[u8]>| fence.map(<[u8]>::to_vec);
            let (low, high) = (owned(page.low(&header)), owned(page.high(&header)));
            (header.level == 0).then_some((low, header.generation, id, high, header.next))
        });
        let mut leaves: Vec<_> = leaves.collect();
        leaves.sort();
        // The last of those that begin alike is the newest.
        leaves.reverse();
        leaves.dedup_by(|one, newer| one.0 == newer.0);
        leaves.reverse();
        let mut first = Table::FIRST_ID;
        // Where the pages so far end; `None` at the end of all keys.
        let (mut end, mut next) = (Some(Vec::new()), NOWHERE);
        for (low, _, id, high, following) in leaves {
            let low = low.unwrap_or_default();
            if let Some(end) = end.filter(|end| *end < low) {
                self.lead(&end, next, &mut first, guard)?;
            }
            self.lead(&low, id, &mut first, guard)?;
            (end, next) = (high, following);
        }
        match end {
            Some(end) => self.lead(&end, next, &mut first, guard),
            None => Ok(()),
        }
    }

    /// Leads keys from `low` on to a page. `first`: the one that all keys lead to at first.
    fn lead(&self, low: &[u8], id: u32, first: &mut u32, guard: &Guard) -> Result<(), ReadError> {
        let to = Handle::Unloaded(id);
        if !low.is_empty() {
            return self.route(low, to, guard);
        }
        match std::mem::replace(first, id) {
            before if before == id => Ok(()),
            before => self.put_in_place(before, to, None, guard),
        }
    }

    /// The newest page of each number that is in none of the blocks `named`: its generation, and
    /// its block.
    fn newest_pages(&self, named: &BTreeSet<u64>) -> BTreeMap<u32, (u64, u64)> {
        let mut newest = BTreeMap::<u32, (u64, u64)>::new();
        for extent in self.heap.extents().into_iter().chain(self.heap.lost()) {
            for block in extent.step_by(LINE).filter(|block| !named.contains(block)) {
                if let Ok((_, header, _)) = self.checked_page(block) {
                    let known = newest.entry(header.id).or_default();
                    *known = (*known).max((header.generation, block));
                }
            }
        }
        newest
    }

    /// The numbers of the pages that the page in `block` leads to, if it is `id`.
    fn led_to(&self, id: u32, block: u64) -> Vec<u32> {
        let Ok((page, header, _)) = self.checked_page(block) else {
            return Vec::new();
        };
        if header.id != id {
            return Vec::new();
        }
        let mut all: Vec<u32> = Some(header.next)
            .filter(|next| *next != 0)
            .into_iter()
            .collect();
        if header.level > 0 {
            let mut known = Known::of(&NewPage { header, block });
            let children = self.children(page, &mut known).unwrap_or_default();
            all.extend(children.into_iter().map(|(_, child)| child));
        }
        all
    }
}
