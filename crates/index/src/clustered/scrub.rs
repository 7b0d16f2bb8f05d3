//! Scrubbing: comparing pages and long values with their sums while the tree is in use, a leaf page
//! at a time, in the order of keys.
//!
//! 1. A page that is *loaded* is read where it lies. Base and header do not change while the page
//!    is there, nor do the groups whose records its part counts. Whether it was replaced or dropped
//!    meanwhile tells the part's version.
//! 2. A page that is *not loaded* is not changed by anybody: it is read where it lies, or from the
//!    pool file, if it is not in memory. Whether it was loaded meanwhile tells the inner index. One
//!    that is not sound is loaded, which mends it, or says what is wrong.
//! 3. The *values* that a page leads to stay while this thread is pinned. One that was freed
//!    meanwhile counts as little as its page, which was replaced before.
//!
//! Pages and values that were evicted are read from the pool file and stay out of memory. Those
//! that nobody has touched since the tree was opened come to memory once.

use super::hosted::HostedTree;
use super::layout::{Header, Seed};
use super::page::Page;
use super::part::Part;
use super::place::{Base, Place};
use super::stored::{HEAD, Reference};
use super::table::{Kind, Table, Word};
use super::tail::Seen;
use super::{ClusteredTree, Handle, ReadError};
use crate::inner::Ranged;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch::{self as epoch, Guard};
use std::ops::Bound;

/// How often a page is looked at that changes meanwhile. It is written often, then, and its sums
/// are new.
const TRIES: usize = 8;
/// Bytes of a value that are read at once.
const PIECE: usize = 64 << 10;
/// Inner pages that are looked at while their lock is held.
const UPPER_AT_ONCE: usize = 32;

/// Counts of one step of scrubbing, and where the next one begins.
#[derive(Debug, Default)]
pub struct Scrubbed {
    /// Pages.
    pub pages: u64,
    /// Long values.
    pub values: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// The key that the next step begins at; `None` at the end.
    pub next: Option<Vec<u8>>,
    /// The keys that pages begin with which changed whenever they were looked at: nothing is known
    /// of them.
    pub passed: Vec<Vec<u8>>,
    /// There was no memory or space to go on, from `next`.
    pub stopped: Option<SpaceError>,
}

/// Called for each damaged page, with the key that the page begins with and a description.
type Found<'f> = dyn FnMut(&[u8], String) + 'f;

/// The outcome of a look at a page.
enum Looked {
    Sound,
    Damaged(String),
    /// It changed meanwhile.
    Changed,
    /// It has to be loaded.
    Load,
}

type Tree<M> = ClusteredTree<[u8], [u8], M>;

impl<M: Media> HostedTree<M> {
    /// Compares pages and long values with their sums, from the page of key `from` on, until at
    /// least `most` bytes were read. Others may go on meanwhile. `found` is told of what is
    /// damaged, with the key that its page begins with.
    pub fn scrub(&self, from: &[u8], most: u64, found: &mut Found<'_>) -> Scrubbed {
        let mut done = Scrubbed::default();
        let mut from = from.to_vec();
        loop {
            // Pinned for a page only: what others free meanwhile can be used again.
            let guard = epoch::pin();
            match self.0.scrub_at(&from, &mut done, found, &guard) {
                Some(next) if done.bytes < most && done.stopped.is_none() => from = next,
                next => {
                    done.next = next;
                    return done;
                }
            }
        }
    }

    /// Compares the page table and the inner pages that are known with their sums.
    pub fn scrub_inner(&self, found: &mut Found<'_>) -> Scrubbed {
        let (tree, mut done) = (&self.0, Scrubbed::default());
        for id in Table::FIRST_ID..tree.table.end() {
            if let Err(what) = tree.table.read(tree.pm(), id) {
                found(&[], format!("word {id} of the page table: {what}"));
            }
            done.bytes += 8;
        }
        let mut level = 0;
        let mut after: Bound<Vec<u8>> = Bound::Unbounded;
        loop {
            let upper = lock(&tree.upper);
            let Some(pages) = upper.levels.get(level) else {
                return done;
            };
            let from = (after.as_ref().map(Vec::as_slice), Bound::Unbounded);
            let mut last = None;
            for (low, known) in pages.range::<[u8], _>(from).take(UPPER_AT_ONCE) {
                if let Err(what) = tree.check_upper(low, known) {
                    let id = known.id;
                    found(low, format!("inner page {id}: {what}"));
                }
                done.pages += 1;
                done.bytes += known.words as u64 * 8;
                last = Some(low.clone());
            }
            match last {
                Some(last) => after = Bound::Excluded(last),
                None => {
                    level += 1;
                    after = Bound::Unbounded;
                }
            }
        }
    }
}

impl<M: Media> Tree<M> {
    /// Looks at the leaf page of a key. Returns the key that the next one begins with.
    fn scrub_at(
        &self,
        from: &[u8],
        done: &mut Scrubbed,
        found: &mut Found<'_>,
        guard: &Guard,
    ) -> Option<Vec<u8>> {
        let mut at = self.inner.find_range(from, guard);
        for _ in 0..TRIES {
            if !self.inner.validate(&at.located) {
                at = self.inner.find_range(from, guard);
                continue;
            }
            let looked = match Handle::decode(at.located.leaf) {
                Handle::Part(slot) => self.scrub_loaded(self.part(slot), &at, done),
                Handle::Unloaded(id) => self.scrub_unloaded(id, &at, done),
            };
            let low = at.low.as_deref().unwrap_or_default();
            match looked {
                Looked::Sound => return at.high,
                Looked::Damaged(what) => {
                    found(low, what);
                    return at.high;
                }
                Looked::Changed => {}
                Looked::Load => match self.load(from, guard) {
                    Ok(()) => {}
                    Err(ReadError::Space(e)) => {
                        done.stopped = Some(e);
                        return Some(from.to_vec());
                    }
                    Err(e) => {
                        found(low, e.to_string());
                        return at.high;
                    }
                },
            }
            at = self.inner.find_range(from, guard);
        }
        done.passed
            .push(at.low.as_deref().unwrap_or_default().to_vec());
        at.high
    }

    /// Looks at a page that is loaded.
    fn scrub_loaded(&self, part: &Part, at: &Ranged<[u8]>, done: &mut Scrubbed) -> Looked {
        let version = part.version.read();
        let (count, end) = part.count_and_end();
        let (id, generation, page) = (part.id(), part.generation(), self.page_of(part));
        if !part.version.validate(version) || !self.inner.validate(&at.located) {
            return Looked::Changed;
        }
        let look = || {
            let (header, seed) = page.header(self.salt)?;
            if header.id != id || header.level != 0 || header.generation != generation {
                return Err("its header is another page's".to_owned());
            }
            page.check_base(&header, seed)?;
            let places = self.groups_of(page, &header, seed, end)?;
            if places.len() < count {
                return Err(format!(
                    "its tail has {} records, not {count}",
                    places.len()
                ));
            }
            self.scrub_values(page, &header, places)
        };
        let looked = look();
        let (values, bytes) = *looked.as_ref().unwrap_or(&(0, 0));
        done.bytes += page.words() as u64 * 8 + bytes;
        let block = part.block();
        if !part.version.validate(version) {
            return Looked::Changed;
        }
        done.pages += 1;
        done.values += values;
        match looked {
            Ok(_) => Looked::Sound,
            Err(what) => Looked::Damaged(format!("page {id} at {block:#x}: {what}")),
        }
    }

    /// The records of the groups of a tail up to word `end`, all of which are sound.
    fn groups_of(
        &self,
        page: Page<'_, M>,
        header: &Header,
        seed: Seed,
        end: usize,
    ) -> Result<Vec<Place>, String> {
        if page.sealed_end(seed).is_none() {
            return Err("the seal fails its check".into());
        }
        let base = Base::of(header);
        let mut at = base.aligned(header.tail);
        let mut places = Vec::new();
        while at < end {
            let damaged = || format!("the change at byte {} is damaged", at * 8);
            let seen = page.seen(seed, at).ok_or_else(damaged)?;
            page.records(&base, &seen, &mut |place, _| places.push(place))?;
            at = base.aligned(at + seen.words());
        }
        Ok(places)
    }

    /// Looks at a page that is not loaded. Loading it says what is wrong with it.
    fn scrub_unloaded(&self, id: u32, at: &Ranged<[u8]>, done: &mut Scrubbed) -> Looked {
        let word = self.table.read(self.pm(), id).ok().flatten();
        let Some(word) = word.filter(|word| word.kind == Kind::Page) else {
            return Looked::Load;
        };
        let mut copy = Vec::new();
        let Some(page) = self.unloaded_page(word.block, &mut copy) else {
            return Looked::Load;
        };
        let looked = self.look_at_unloaded(page, (id, word), at);
        let (values, bytes) = looked.unwrap_or_default();
        done.bytes += page.words() as u64 * 8 + bytes;
        if !self.inner.validate(&at.located) {
            return Looked::Changed;
        }
        if looked.is_none() {
            // An inner page too: it is the way to those below it.
            return Looked::Load;
        }
        done.pages += 1;
        done.values += values;
        Looked::Sound
    }

    /// The number of values that a leaf page leads to which nobody changes, and their bytes; `None`
    /// if it is not sound, or does not have all keys that lead to it: a crash may have come before
    /// the separator of the page to its right.
    fn look_at_unloaded(
        &self,
        page: Page<'_, M>,
        (id, word): (u32, Word),
        at: &Ranged<[u8]>,
    ) -> Option<(u64, u64)> {
        let (header, seed) = page.header(self.salt).ok()?;
        let is_it = header.id == id && word.is_of(header.generation) && header.level == 0;
        let has_all =
            page.low(&header) == at.low.as_deref() && page.high(&header) == at.high.as_deref();
        if !is_it || !has_all {
            return None;
        }
        page.check_base(&header, seed).ok()?;
        let mut places = Vec::new();
        let counts = |seen: &Seen| self.group_counts(page, &header, seen);
        let tail = page.tail(&header, seed, counts, |place, _| places.push(place));
        // One that may have to be mended is loaded.
        tail.ok().filter(|tail| !tail.is_suspect)?;
        self.scrub_values(page, &header, places).ok()
    }

    /// Whether a value has left memory and is sound in the pool file, which is read piece by piece.
    fn is_sound_away(&self, one: &Reference) -> bool {
        let end = one.block + (HEAD + one.len()) as u64;
        if !self.is_away(one.block..end) {
            return false;
        }
        let mut head = [0; HEAD];
        if !self.pm().read_away(one.block, &mut head) || head != one.encode()[..HEAD] {
            return false;
        }
        let mut piece = vec![0; PIECE.min(one.len())];
        let (mut sum, mut at) = (self.salt as u32, one.block + HEAD as u64);
        while at < end {
            let len = PIECE.min((end - at) as usize);
            if !self.pm().read_away(at, &mut piece[..len]) {
                return false;
            }
            sum = crc32c::crc32c_append(sum, &piece[..len]);
            at += len as u64;
        }
        one.has_sum(sum)
    }

    /// Compares the values that a page leads to. Returns how many there are, and their bytes.
    fn scrub_values(
        &self,
        page: Page<'_, M>,
        header: &Header,
        places: Vec<Place>,
    ) -> Result<(u64, u64), String> {
        let (mut values, mut bytes) = (0, 0);
        for one in self.references(page, header, places) {
            if !self.is_sound_away(&one) {
                self.check_outer(&one)?;
            }
            values += 1;
            bytes += (HEAD + one.len()) as u64;
        }
        Ok((values, bytes))
    }
}
