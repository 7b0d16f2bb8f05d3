//! Mending a change with one wrong bit.
//!
//! Behind the seal a change that is not whole may be one that a power cut tore, which nobody was
//! told of. With one wrong bit, one that was acknowledged looks the same, and would go in silence.
//! So it is tried whether turning one bit makes it whole, and it counts then. A change that a power
//! cut left one bit short of what was written was in flight: it may count, too. Before the seal, or
//! before another change, it was durable, and it is mended likewise.
//!
//! Of what a power cut tore otherwise, one in 2^40 / its bits passes for such a change (`wrong`).
//! And it has to be a change of this page.

use super::ClusteredTree;
use super::load::Sound;
use super::page::Page;
use super::place::Base;
use super::slots::{SLOTS, split_word};
use super::tail::SoundTail;
use super::wrong::wrong_bit;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use std::sync::atomic::Ordering;

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Mends the first change of a page that is not whole, if one bit of it is wrong: durably, but
    /// for a medium that is open for reading. Returns whether it did. Nobody else knows the page
    /// yet. Whether the change counts is for the caller to find out.
    pub(super) fn mend_tail(&self, sound: &Sound<'_, M>) -> bool {
        let (page, header, seed) = (sound.page, &sound.header, sound.seed);
        let base = Base::of(header);
        let (mut at, mut before) = (base.aligned(header.tail), 0);
        while let Some(seen) = page.seen(seed, at) {
            before = split_word(seen.stamp_word).0;
            at = base.aligned(at + seen.words());
        }
        let mut words = Vec::new();
        page.copy(0, page.words(), &mut words);
        let group = words.get(at..).unwrap_or(&[]);
        let Some((word, bit)) = wrong_bit(seed, at, group) else {
            return false;
        };
        words[at + word] ^= bit;
        let mended = words[at + word];
        if !self.is_change(Page::copied(self.pm(), &mut words), sound, at, before) {
            return false;
        }
        // ORDERING: Relaxed; nobody else knows the page.
        (page.cell(at + word)).store(self.pm(), mended, Ordering::Relaxed);
        // PERSIST: the whole change, of which a kill may have left lines in the caches, before
        // somebody is told of it.
        page.flush(at, at + page.seen(seed, at).map_or(1, |seen| seen.words()));
        self.pm().fence();
        true
    }

    /// Reads the tail of a page with `read`, and again if a change of it could be mended.
    ///
    /// # Errors
    /// That of `read`.
    pub(super) fn or_mended(
        &self,
        sound: &Sound<'_, M>,
        mut read: impl FnMut() -> Result<SoundTail, String>,
    ) -> Result<SoundTail, String> {
        let first = read();
        let is_suspect = first.as_ref().map_or(true, |tail| tail.is_suspect);
        if !is_suspect || !self.mend_tail(sound) {
            return first;
        }
        let before = first.map_or(0, |tail| tail.end);
        let again = read();
        let counts = again.as_ref().is_ok_and(|tail| tail.end > before);
        // ORDERING: Relaxed; a count.
        self.made_again.fetch_add(counts.into(), Ordering::Relaxed);
        again
    }

    /// Whether what was mended is a change of that page, after one with the stamp `before`.
    fn is_change(&self, page: Page<'_, M>, sound: &Sound<'_, M>, at: usize, before: u64) -> bool {
        let Some(seen) = page.seen(sound.seed, at) else {
            return false;
        };
        let header = &sound.header;
        let (stamp, slot) = split_word(seen.stamp_word);
        // Those of inner pages are generations, and count by themselves.
        let (ceiling, slots) = match header.level {
            0 => (self.stamps.ceiling(), SLOTS),
            _ => (self.generations.ceiling(), 0),
        };
        if slot.is_some_and(|slot| slot >= slots) || stamp < before || stamp >= ceiling {
            return false;
        }
        let (low, high) = (page.low(header), page.high(header));
        let base = Base::of(header);
        let mut all = true;
        let records = page.records(&base, &seen, &mut |place, key| {
            let inside = low.is_none_or(|low| low <= key) && high.is_none_or(|high| key < high);
            let is_key = K::with_value_of(key, |_| ()).is_some();
            let value = || page.stored(page.record(&base, place).1);
            let is_value = header.level > 0 || place.removed || Self::is_stored(value());
            all &= inside && is_key && is_value;
        });
        records.is_ok() && all
    }
}
