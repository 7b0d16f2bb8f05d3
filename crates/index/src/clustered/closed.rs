//! What a clean close saves, so that the next opening need not look at every word of the page
//! table: which blocks and numbers are in use.
//!
//! ```text
//! CRC-32C of the table's words 4 | first unused number 4 | unused ones below it: count 4, each 4 | marks of the heap
//! ```
//!
//! [`saved`] stores it. It says what a scan of these very words would find out, so it counts only
//! while the table is as it was: a word that was damaged since makes the opening scan, and mend it.

use super::ClusteredTree;
use super::root;
use super::table::Table;
use crate::repr::{KeyRepr, Repr};
use crate::saved;
use bristlecone_pmem::{Media, planted};

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Saves the state of a tree that nobody uses any more. It saves nothing if a scan would have
    /// to decide something, or there is no room.
    pub(super) fn save_closed(&self) {
        let Some(unused) = self.table.unused(self.pm()) else {
            return;
        };
        let end = self.table.end();
        // Every number in use has one block.
        let named = u64::from(end - Table::FIRST_ID) - unused.len() as u64;
        let others = self.table.blocks().count() as u64 + u64::from(self.log.is_some()) + 1;
        if self.heap.live_blocks() != named + others {
            // History that a snapshot keeps which nobody dropped.
            return;
        }
        let mut state = self.table.crc(self.pm()).to_le_bytes().to_vec();
        for word in [end, unused.len() as u32].into_iter().chain(unused) {
            state.extend(word.to_le_bytes());
        }
        self.heap.save_marks(&mut state);
        saved::save(self.root(), &self.heap, root::CLOSED, state);
    }

    /// Takes over what the last close saved, if it is whole and the table is as it was then: the
    /// numbers, and the marks of all blocks. Otherwise no block is marked.
    pub(super) fn load_closed(&self) -> bool {
        let loaded = saved::load(self.root(), root::CLOSED, |state| {
            let mut rest = state;
            let mut next = || {
                let (word, after) = rest.split_first_chunk()?;
                rest = after;
                Some(u32::from_le_bytes(*word))
            };
            let (crc, end, count) = (next()?, next()?, next()?);
            let is_same = crc == self.table.crc(self.pm());
            if !is_same && !planted!(self.pm(), "clustered-closed-unchecked") {
                return None;
            }
            let unused = (0..count).map(|_| next()).collect::<Option<Vec<u32>>>()?;
            (self.heap.load_marks(rest)? == rest.len()).then_some((end, unused))
        });
        let Some((end, unused)) = loaded else {
            // Some may be marked.
            self.heap.begin_recovery();
            return false;
        };
        self.table.restore(end, unused);
        true
    }
}
