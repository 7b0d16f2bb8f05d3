//! The state that a clean close saves: which blocks and numbers are in use. With it the next
//! opening need not decode every word of the page table.
//!
//! ```text
//! CRC-32C of the table's words 4 | first unused number 4 | a bit for each number below, set if it is unused | marks of the heap
//! ```
//!
//! [`saved`] stores it. It says what a scan of these very words would find out, so it counts only
//! while the table is as it was: a word that was damaged since makes the opening scan, and mend it.

use super::ClusteredTree;
use super::root;
use super::table::Table;
use crate::repr::{KeyRepr, Repr};
use crate::saved;
use bristlecone_pmem::Media;
use std::sync::atomic::Ordering;

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
            // As when a close failed that had saved it, and is tried again.
            return;
        }
        self.table.flush(self.pm());
        let mut state = self.table.crc(self.pm()).to_le_bytes().to_vec();
        state.extend(end.to_le_bytes());
        let mut bits = vec![0; end.div_ceil(8) as usize];
        for id in unused {
            bits[id as usize / 8] |= 1 << (id % 8);
        }
        state.extend(bits);
        self.heap.save_marks(&mut state);
        saved::save(self.root(), &self.heap, root::CLOSED, state);
    }

    /// The checksum that the table's words had at the last close, if that saved it and nobody has
    /// had the tree open for writing since.
    pub(super) fn closed_sum(&self) -> Option<u32> {
        saved::load(self.root(), root::CLOSED, |state| {
            Some(u32::from_le_bytes(*state.first_chunk()?))
        })
    }

    /// Takes over what the last close saved, if it is whole and the table is as it was then: the
    /// numbers, and the marks of all blocks. Otherwise no block is marked.
    pub(super) fn load_closed(&self) -> bool {
        // ORDERING: Relaxed; nobody else has the tree.
        if self
            .root()
            .word(root::CLOSED)
            .load(self.pm(), Ordering::Relaxed)
            == 0
        {
            return false;
        }
        let loaded = saved::load(self.root(), root::CLOSED, |state| {
            let (crc, rest) = state.split_first_chunk()?;
            let (end, rest) = rest.split_first_chunk()?;
            if u32::from_le_bytes(*crc) != self.table.crc(self.pm()) {
                return None;
            }
            let end = u32::from_le_bytes(*end);
            let (bits, marks) = rest.split_at_checked(end.div_ceil(8) as usize)?;
            let is_unused = |id: &u32| bits[*id as usize / 8] & 1 << (id % 8) != 0;
            let unused = (Table::FIRST_ID..end).filter(is_unused).collect();
            (self.heap.load_marks(marks)? == marks.len()).then_some((end, unused))
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
