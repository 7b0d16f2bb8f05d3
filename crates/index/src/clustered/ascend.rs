//! Keys that come in ascending order: pages that get no more are to be full.
//!
//! The last page of an ascent has no high fence that is near, so it has no prefix to leave out, and
//! other keys may be above it. It may grow larger than others, until what it has by now fills a
//! page by itself.

use super::ClusteredTree;
use super::image::{Entries, Spec};
use super::page::{Page, partition};
use super::part::Part;
use super::replace::{FULL, Old, SPLIT_ASCENDING_ABOVE};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;

/// Pages' words that the entries of one page may take while they ascend.
const MOST_PAGES: usize = 3;
/// Words that such entries have on average, at most.
pub(super) const SHORT_ENTRY: usize = 8;
/// Percent of a page that entries may take which ascended, and of which it gets no more.
const FULL_ASCENDING: usize = 97;

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Where to split a full page whose entries come in ascending order, the last one at `at`: so
    /// that the left page is as full as can be, since it gets no more. Returns how full it may be;
    /// or `None`, if the page is to grow before.
    pub(super) fn cut_ascending(
        &self,
        old: &Old<'_>,
        entries: &Entries<'_>,
        at: usize,
        whole: usize,
    ) -> Option<(usize, usize)> {
        let n = entries.len();
        // By themselves, and with a high fence, they may have a prefix to leave out, or one length.
        let left = |at: usize| {
            let separator = self.separator(old, entries, at);
            let spec = Spec {
                high: Some(&separator),
                ..self.spec(old)
            };
            spec.header(entries.part(0, at)).tail
        };
        let fits = |words: usize, percent| words * 100 <= self.page_words * percent;
        if at + 1 < n && fits(left(at + 1), FULL) {
            // Split off the keys above, so that this page stays the last of the ascent.
            return Some((at + 1, FULL));
        }
        // Of long entries there is little that they leave out.
        let short = whole <= n * SHORT_ENTRY;
        let large = whole <= self.page_words * MOST_PAGES;
        if short && large && fits(left(at), SPLIT_ASCENDING_ABOVE) {
            return None;
        }
        if fits(left(at), FULL_ASCENDING) {
            return Some((at, 100));
        }
        if !short {
            return Some((self.middle(old, entries), FULL));
        }
        let most = partition(at - 1, |i| fits(left(i + 2), FULL_ASCENDING));
        Some((most + 1, 100))
    }

    /// Whether `key` is above all keys of the page, if they came in key order.
    #[cold]
    pub(super) fn is_last(page: Page<'_, M>, part: &Part, key: &[u8]) -> bool {
        let base = part.base();
        let (last, _) = match (part.count(), base.entries) {
            (0, 0) => return true,
            (0, entries) => page.entry(&base, entries - 1),
            (count, _) => page.record(&base, part.place(count - 1)),
        };
        page.bytes(last) < base.rest(key)
    }

    /// Where `key` is among `entries`, if it and the records of the tail came in key order, with
    /// nothing in between: what others have above them does not matter.
    pub(super) fn ascending_at(
        &self,
        page: Page<'_, M>,
        part: &Part,
        entries: &Entries<'_>,
        key: &[u8],
    ) -> Option<usize> {
        let (base, count) = (part.base(), part.count());
        let tail = (0..count).map(|i| page.bytes(page.record(&base, part.place(i)).0));
        let (first, rest) = (tail.clone().next()?, base.rest(key));
        if count < 2 || !tail.chain([rest]).is_sorted_by(|a, b| a < b) {
            return None;
        }
        let below = |rest| partition(entries.len(), |i| base.rest(entries.key(i)) < rest);
        let at = below(rest);
        (below(first) + count == at).then_some(at)
    }
}
