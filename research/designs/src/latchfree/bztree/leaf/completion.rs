//! The last step of an insertion or replacement: the record in a reserved entry becomes visible,
//! unless another operation on the same key came before it.
//!
//! *Duplicates.* If an insertion met reserved entries on its way, it reads all entries before its
//! own again once its record is written. It waits for those that are still reserved, since they
//! come before it. After some time it gives them up for their owners, which then begin again (the
//! paper waits, and is not lock-free there). A duplicate found then is reported as any other. A
//! later entry may have replaced one of those entries meanwhile, so the whole leaf is searched once
//! more; any later change also changes the status.
//!
//! Once the leaf is frozen, the state of those entries is open: a thread may thaw the leaf, and
//! they become visible after all. So the insertion begins again. A thawed leaf has a new status, so
//! that no swap that was begun before succeeds.

use super::{Done, Mode, Next, Pair};
use crate::bztree::node::{Form, Meta, Node, Status};
use crate::bztree::reshape::Reserved;
use crate::bztree::room::no_room;
use crate::bztree::{BzTree, corrupt};
use crate::repr::{KeyRepr, Repr};
use crate::sync::wait;
use bristlecone_pmem::pmwcas::{Descriptor, Policy, WordError};
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_utils::Backoff;

/// Number of waits for a reserved entry before it is given up.
const PATIENCE: u32 = 64;
/// A reserved entry, with its record written.
pub(super) struct Added<'a, M> {
    pub leaf: Node<'a, M>,
    pub entry: usize,
    /// Its metadata once it is visible.
    pub meta: Meta,
    /// True if the key was present: its old entry is deleted with the same swap.
    pub replaces: bool,
    /// True if there were reserved entries before it.
    pub pending: bool,
}

/// The fate of an added entry.
enum Verdict {
    /// It may become visible, and replaces that entry if there is one.
    Visible(Option<(usize, Meta)>),
    /// It is given up, and the operation ends with this.
    GiveUp(Next<Done>),
    /// The leaf has changed: look again.
    Changed,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BzTree<K, V, M> {
    /// Makes the record of a reserved entry visible.
    pub(super) fn complete<'p>(
        &'p self,
        added: &Added<'_, M>,
        pair: &Pair<'_, K, V>,
        mode: Mode,
        swap: Descriptor<'p, M>,
        block: &mut Reserved<'_, M>,
    ) -> Result<Next<Done>, SpaceError> {
        let leaf = &added.leaf;
        let mut swap = Some(swap);
        loop {
            if pair.form == Form::Block && block.block().is_none() {
                // The swap before had the block.
                let made = block.hold(self.make_block(pair));
                match made {
                    Ok(_) => {}
                    // Without a pin, room may be made.
                    Err(e) if no_room(&e) => {
                        self.give_up(added, swap)?;
                        return Ok(Next::Again);
                    }
                    Err(e) => return Err(e),
                }
            }
            let status = self.status(leaf);
            if status.frozen() {
                return Ok(Next::Again);
            }
            let replaced = match self.judge(added, pair, mode, status, &mut swap)? {
                Verdict::Visible(replaced) => replaced,
                Verdict::Changed => continue,
                Verdict::GiveUp(next) => {
                    self.give_up(added, swap)?;
                    return Ok(next);
                }
            };
            let Some(mut words) = swap.take().or_else(|| self.swaps.try_allocate_descriptor())
            else {
                return Ok(Next::Two);
            };
            let made = self.add_completion(added, status, replaced, block, &mut words);
            let made = match made {
                Err(e) => {
                    self.give_up(added, Some(words))?;
                    return Err(e);
                }
                Ok(made) => made,
            };
            if self.swap_of(made, words)? {
                return Ok(Next::Done(if added.replaces {
                    Done::Replaced
                } else {
                    Done::Inserted
                }));
            }
            if Meta(self.swaps.read(leaf.meta(added.entry))) != self.reserved() {
                return Ok(Next::Again);
            }
        }
    }

    /// Decides, by the other entries, what becomes of an added entry. `swap` serves to give up an
    /// entry that is waited for.
    fn judge<'p>(
        &'p self,
        added: &Added<'_, M>,
        pair: &Pair<'_, K, V>,
        mode: Mode,
        status: Status,
        swap: &mut Option<Descriptor<'p, M>>,
    ) -> Result<Verdict, SpaceError> {
        let leaf = &added.leaf;
        let find = || self.search(leaf, pair.key, status.entries()).found;
        if added.replaces {
            let replaced = find();
            return Ok(match replaced {
                // It was removed meanwhile, unless it moved to an entry added since.
                None if self.status(leaf).entries() != status.entries() => Verdict::Changed,
                None if mode == Mode::Update => Verdict::GiveUp(Next::Done(Done::Absent)),
                // Replacements take later entries (see `find`).
                Some((entry, _)) if entry < added.entry => Verdict::Visible(replaced),
                _ => Verdict::GiveUp(Next::Again),
            });
        }
        if !added.pending {
            return Ok(Verdict::Visible(None));
        }
        let before = self.exists_before(leaf, pair.key, added.entry, swap)?;
        // Another record, in a later entry, may have replaced one of those meanwhile.
        Ok(match before.map(|found| found || find().is_some()) {
            Some(false) => Verdict::Visible(None),
            Some(true) if self.pm().planted("bztree-duplicate-unseen") => Verdict::Visible(None),
            Some(true) if self.pm().planted("bztree-duplicate-inserted") => {
                Verdict::GiveUp(Next::Done(Done::Inserted))
            }
            Some(true) if mode == Mode::Insert => Verdict::GiveUp(Next::Done(Done::Exists)),
            _ => Verdict::GiveUp(Next::Again),
        })
    }

    /// Adds the words that make a record visible.
    fn add_completion(
        &self,
        added: &Added<'_, M>,
        status: Status,
        replaced: Option<(usize, Meta)>,
        block: &mut Reserved<'_, M>,
        swap: &mut Descriptor<'_, M>,
    ) -> Result<Result<(), WordError>, SpaceError> {
        let leaf = &added.leaf;
        let mut old_block = None;
        if let Some((_, meta)) = replaced
            && meta.form() == Form::Block
        {
            let word = leaf.word(meta.value_at());
            let block = self.swaps.read(word);
            // If the word is 0, the record was deleted meanwhile, and the swap fails.
            if !leaf.holds(meta) || block != 0 && !self.blocks.is_active(block) {
                return Err(corrupt());
            }
            old_block = Some((word, block));
        }
        let mut words = || -> Result<(), WordError> {
            let after = replaced.map_or(status, |(_, meta)| status.delete(meta.words() + 1));
            swap.add_word(leaf.status(), status.0, after.0)?;
            if let Some((entry, meta)) = replaced {
                swap.add_word(leaf.meta(entry), meta.0, meta.deleted().0)?;
            }
            swap.add_word(leaf.meta(added.entry), self.reserved().0, added.meta.0)?;
            if let Some(new) = block.block() {
                let word = leaf.word(added.meta.value_at());
                swap.add_word_with(word, 0, new, Policy::FreeNewOnFailure)?;
                block.pass_on();
            }
            if let Some((word, block)) = old_block {
                swap.add_word_with(word, block, 0, Policy::FreeOldOnSuccess)?;
            }
            Ok(())
        };
        Ok(words())
    }

    /// Gives up the reserved entry. If another operation comes in between, the next thread that
    /// meets the entry gives it up.
    fn give_up(
        &self,
        added: &Added<'_, M>,
        swap: Option<Descriptor<'_, M>>,
    ) -> Result<(), SpaceError> {
        let leaf = &added.leaf;
        let status = self.status(leaf);
        if status.frozen() {
            return Ok(());
        }
        let Some(mut swap) = swap.or_else(|| self.swaps.try_allocate_descriptor()) else {
            return Ok(());
        };
        let mut words = || -> Result<(), WordError> {
            let after = status.delete(added.meta.words() + 1);
            swap.add_word(leaf.status(), status.0, after.0)?;
            swap.add_word(leaf.meta(added.entry), self.reserved().0, Meta::GIVEN_UP.0)
        };
        self.swap_of(words(), swap).map(|_| ())
    }

    /// Returns true if an added entry before `own` has `key`. Waits for entries that may become the
    /// key's. Returns `None` if that is open, because the leaf is frozen or there was no descriptor
    /// to go on with. `swap` serves to give one of them up.
    pub(in crate::latchfree::bztree) fn exists_before<'p>(
        &'p self,
        leaf: &Node<'_, M>,
        key: &K,
        own: usize,
        swap: &mut Option<Descriptor<'p, M>>,
    ) -> Result<Option<bool>, SpaceError> {
        for entry in leaf.sorted..own {
            let backoff = Backoff::new();
            let mut turns = 0;
            loop {
                let meta = Meta(self.swaps.read(leaf.meta(entry)));
                if meta.visible() && self.compare(leaf, meta, key).is_eq() {
                    return Ok(Some(true));
                }
                if meta != self.reserved() {
                    break;
                }
                if self.status(leaf).frozen() {
                    return Ok(None);
                }
                turns += 1;
                if turns < if self.pm().tiny() { 2 } else { PATIENCE } {
                    wait(&backoff);
                    continue;
                }
                let Some(mut words) = swap.take().or_else(|| self.swaps.try_allocate_descriptor())
                else {
                    return Ok(None);
                };
                let word = words.add_word(leaf.meta(entry), meta.0, Meta::GIVEN_UP.0);
                self.swap_of(word, words)?;
            }
        }
        Ok(Some(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bztree::tests::{leaf, reserve, volatile};
    use crate::index::OrderedIndex;
    use crossbeam_epoch as epoch;

    /// A stopped insertion is overtaken by another one of the same key. An update then replaces
    /// that record by a later one.
    #[test]
    fn a_duplicate_that_was_replaced_is_found() {
        let tree = volatile();
        let entries = [reserve(&tree, 5), reserve(&tree, 5)];
        let leaf = leaf(&tree, 5);
        let complete = |entry: usize, value: u64, pending: bool| {
            let pair = tree.pair(&5, &value);
            let offset = leaf.size - 2 * (entry + 1);
            tree.write_pair(&leaf, offset, &pair);
            let added = Added {
                leaf,
                entry,
                meta: tree.meta_of(&pair, offset),
                replaces: false,
                pending,
            };
            let swap = tree.descriptor().unwrap();
            let _guard = epoch::pin();
            tree.complete(&added, &pair, Mode::Insert, swap, &mut tree.reservation())
        };
        // A number too large for a word that swaps change.
        let first = complete(entries[0], u64::MAX, false);
        assert!(matches!(first, Ok(Next::Done(Done::Inserted))), "{first:?}");
        tree.update(&5, &1).unwrap();
        let second = complete(entries[1], 7, true);
        assert!(matches!(second, Ok(Next::Done(Done::Exists))), "{second:?}");
        assert_eq!(tree.get(&5), Some(1));
        assert_eq!(tree.verify().unwrap().entries, 1);
    }
}
