//! Finding the pages whose entries may have changed since a mark, to bring a copy of the tree up to
//! date.
//!
//! A page is written once and changes by groups after that. So the stamps of the groups and the
//! generation of the page tell, and nothing else is kept:
//!
//! 1. Every group has the stamp of its change.
//! 2. A replacement takes the stamps of all changes that it writes to a base before it takes the
//!    page's generation. A mark looks at the generations first and at the stamps then: so a base of
//!    an earlier generation than the mark's has no change with the mark's stamp or a later one.
//!
//! The other way round nothing holds: a page that was written anew may have the same entries. Nor
//! do generations or stamps ever repeat, so a mark counts in later sessions too.

use super::hosted::HostedTree;
use super::part::Part;
use super::slots::split_word;
use super::table::Kind;
use super::{ClusteredTree, Handle};
use crate::inner::Ranged;
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::cell::Cell;

/// How often a page is looked at that changes meanwhile, before it counts as changed.
const TRIES: usize = 8;

/// A moment in the life of a tree, in all of its sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Pages of earlier generations had been begun.
    pub generation: u64,
    /// Changes with earlier stamps had been begun.
    pub stamp: u64,
}

impl Mark {
    /// Before all changes.
    pub const BEGINNING: Self = Self {
        generation: 0,
        stamp: 0,
    };
}

/// The keys of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRange {
    /// The first key that belongs there, or a later one that was asked for.
    pub low: Vec<u8>,
    /// The first key that belongs to the next page; `None` if no key does.
    pub high: Option<Vec<u8>>,
}

impl<M: Media> HostedTree<M> {
    /// Returns a mark that all changes begun from now on come after. Changes that are under way,
    /// with stamps below the mark's, count as before it: a reader at a time not below the stamp
    /// sees them.
    pub fn mark(&self) -> Mark {
        // In this order (module head).
        // A crash before the ceiling is raised gives generations above it again.
        let generations = &self.0.generations;
        let generation = generations.coming().min(generations.ceiling());
        Mark {
            generation,
            stamp: self.0.stamps.coming(),
        }
    }

    /// Returns the first page, from the one of key `from` on, that may have changes with the mark's
    /// stamp or a later one; `None` if no other page has. Pages that cannot be read are among them.
    pub fn changed_since(&self, mark: Mark, from: &[u8]) -> Option<PageRange> {
        let mut from = from.to_vec();
        loop {
            let (changed, high) = self.0.has_changed_since(mark, &from);
            match (changed, high) {
                (true, high) => return Some(PageRange { low: from, high }),
                (false, Some(high)) => from = high,
                (false, None) => return None,
            }
        }
    }
}

impl<M: Media> ClusteredTree<[u8], [u8], M> {
    /// Whether the page of a key may have changed since; and where the next one begins.
    fn has_changed_since(&self, mark: Mark, from: &[u8]) -> (bool, Option<Vec<u8>>) {
        // Pinned for a page only: what others free meanwhile can be used again.
        let guard = &epoch::pin();
        let mut at = self.inner.find_range(from, guard);
        if mark == Mark::BEGINNING {
            return (true, at.high);
        }
        for _ in 0..TRIES {
            let changed = match Handle::decode(at.located.leaf) {
                Handle::Part(slot) => self.loaded_has_changed(self.part(slot), mark),
                Handle::Unloaded(id) => match self.unloaded_has_changed(id, &at, mark) {
                    // An inner page, which leads to pages that may not have changed. One that
                    // cannot be read counts as changed, so whoever reads it gets the error.
                    None if self.load(from, guard).is_err() => Some(true),
                    changed => changed,
                },
            };
            if let Some(changed) = changed
                && self.inner.validate(&at.located)
            {
                return (changed, at.high);
            }
            at = self.inner.find_range(from, guard);
        }
        (true, at.high)
    }

    /// As [`has_changed_since`](Self::has_changed_since), of a page that is loaded; `None` if it
    /// changed meanwhile.
    fn loaded_has_changed(&self, part: &Part, mark: Mark) -> Option<bool> {
        let version = part.version.read();
        let (count, _) = part.count_and_end();
        let (generation, page) = (part.generation(), self.page_of(part));
        if !part.version.validate(version) {
            return None;
        }
        if generation >= mark.generation {
            return Some(true);
        }
        if count == 0 {
            return part.version.validate(version).then_some(false);
        }
        let stamps = page.stamps(part, self.seed(generation), count);
        if !part.version.validate(version) {
            return None;
        }
        // Stamps that cannot be read are damage, which reading it reports.
        Some(stamps.is_none_or(|stamps| stamps.iter().any(|stamp| *stamp >= mark.stamp)))
    }

    /// As [`has_changed_since`](Self::has_changed_since), of a page that is not loaded, and that
    /// nobody changes therefore; `None` if it has to be loaded: it is an inner page, or not as the
    /// way there promised.
    fn unloaded_has_changed(&self, id: u32, at: &Ranged<[u8]>, mark: Mark) -> Option<bool> {
        let word = self.table.read(self.pm(), id).ok().flatten();
        let word = word.filter(|word| word.kind == Kind::Page)?;
        let mut copy = Vec::new();
        let page = self.unloaded_page(word.block, &mut copy)?;
        let (header, seed) = page.header(self.salt).ok()?;
        // It has other fences, too, if a crash came in the midst of a split.
        let is_it = header.id == id
            && word.is_of(header.generation)
            && header.level == 0
            && page.low(&header) == at.low.as_deref()
            && page.high(&header) == at.high.as_deref();
        if !is_it {
            return None;
        }
        if header.generation >= mark.generation {
            return Some(true);
        }
        let latest = Cell::new(0);
        let tail = page.tail(
            &header,
            seed,
            |seen| {
                latest.set(latest.get().max(split_word(seen.stamp_word).0));
                true
            },
            |_, _| {},
        );
        // One that may have to be mended is loaded.
        let sound = tail.is_ok_and(|tail| !tail.is_suspect);
        sound.then(|| latest.get() >= mark.stamp)
    }
}
