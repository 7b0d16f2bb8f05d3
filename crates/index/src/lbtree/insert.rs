//! Insertion (Algorithm 2) with entry moving.
//!
//! Persist cost of an insert that finds an empty slot: in the header line, 1 line and 1 fence (2
//! fences where the pair has records); in another line, 2 lines and 2 fences.

use super::LbDesign;
use super::leaf::{Block, Header, Place, line_of, slots, slots_in};
use crate::leaftree::{LeafTree, Pair, UNLOCK_FIRST};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use bristlecone_pmem::planted;

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize>
    LeafTree<LbDesign<B>, K, V, M>
{
    /// Puts a pair into a block that has an empty slot (`LBTreeLeafInsert`). `header` is what the
    /// block's durable header says. Unless `fenced`, the pair leads to records that no
    /// fence has made durable yet.
    pub(super) fn insert_in_block(
        &self,
        block: &Block,
        place: Place,
        header: Header,
        pair: Pair,
        fenced: bool,
    ) {
        let pm = self.pm();
        let usable = header.empty();
        let mut header = header;
        let line = self.place(block, place, &mut header, usable, pair);
        if line != place.line() {
            // PERSIST: the new and the moved entries, before the header that makes them count.
            pm.flush(block.line(line), 64);
            pm.fence();
        } else if !fenced {
            // PERSIST: the records, before the header that leads to them.
            pm.fence();
        }
        block.store_header(pm, place, header);
        if planted!(pm, UNLOCK_FIRST) {
            return; // `put_uncommitted` persists after it has unlocked
        }
        // PERSIST: the NAW that makes the insert count; with it, an entry in the same line.
        pm.flush(block.line(place.line()), 64);
        pm.fence();
    }

    /// Writes a pair into a slot of `usable` (slots that neither the durable header nor `header`
    /// counts; not empty), moves entries if that pays, and notes both in `header`. Returns the line
    /// that was written; nothing is flushed.
    pub(super) fn place(
        &self,
        block: &Block,
        place: Place,
        header: &mut Header,
        usable: u32,
        pair: Pair,
    ) -> usize {
        let pm = self.pm();
        let home = slots_in(place.line());
        let candidates = if usable & home != 0 {
            usable & home
        } else {
            usable
        };
        let slot = candidates.trailing_zeros() as usize;
        if planted!(pm, "lbtree-header-first") {
            let mut early = *header;
            early.set(slot, pair.fingerprint);
            block.store_header(pm, place, early);
            pm.persist(block);
        }
        block.store_entry(pm, slot, pair.key, pair.value);
        header.set(slot, pair.fingerprint);
        let line = line_of(slot);
        if line != place.line() && self.design.entry_moving {
            // The line is to be written anyway: move what fits out of the header line, so that the
            // next inserts write that line only (Algorithm 2, lines 24 to 31).
            let room = usable & slots_in(line) & !(1 << slot);
            let mut without = *header;
            without.clear(slot);
            for (from, to) in slots(header.bitmap() & home).zip(slots(room)) {
                let (key, value) = block.entry(pm, from);
                if planted!(pm, "lbtree-delete-then-insert") {
                    without.clear(from);
                    block.store_header(pm, place, without);
                    pm.persist(block);
                }
                block.store_entry(pm, to, key, value);
                header.set(to, header.fingerprint(from));
                header.clear(from);
            }
        }
        line
    }
}
