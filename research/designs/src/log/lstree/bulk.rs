//! Bulk load: the logs are built beside the tree, and one NAW of the root's word that leads to the
//! directory switches to them.
//!
//! Persist cost: every line of the bases once, 3 lines and 1 fence for each segment, and 2 fences.

use super::log::{DIRECTORY, Logs};
use super::record::{Draft, Field};
use super::recovery::INNER_FILL;
use super::reserve::{Purpose, RESERVE, Refusal};
use super::table::{Place, Table};
use super::{DIRECTORY_WORD, LsTree};
use crate::index::{Fill, InsertError};
use crate::inner::InnerIndex;
use crate::link;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::{Media, SpaceError};
use std::borrow::Borrow;
use std::sync::PoisonError;

/// Structures built beside the tree.
struct Beside<K: ToOwned + ?Sized, M: Media> {
    logs: Logs<M>,
    table: Table<M::Dram>,
    /// The smallest key of each leaf; leaf numbers ascend from 0.
    lows: Vec<K::Owned>,
    /// Blocks of long strings.
    keys: Vec<u64>,
    values: Vec<u64>,
    entries: u64,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> LsTree<K, V, M> {
    pub(super) fn load_sorted<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
    ) -> Result<u64, InsertError> {
        if self.read_only {
            return Err(InsertError::ReadOnly);
        }
        let only = self.inner.find_first(&crossbeam_epoch::pin());
        let live = self.table.entry(only.located.leaf).counts().live;
        if only.high.is_some() || live > 0 {
            return Err(InsertError::KeyExists);
        }
        let directory = self.heap.alloc(DIRECTORY)?.get();
        let mut beside: Beside<K, M> = Beside {
            logs: self.logs.replacement(directory),
            table: Table::new(self.shape.deltas),
            lows: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
            entries: 0,
        };
        beside.logs.write_directory();
        let built = self.build(sorted, fill.of(self.shape.entries), &mut beside);
        let built = built.and_then(|()| {
            if !beside.logs.fill_reserve() {
                return Err(InsertError::Space(SpaceError::Capacity {
                    wanted: RESERVE as u64 * self.shape.segment,
                    capacity: self.pm().capacity(),
                }));
            }
            let leaves = (1u32..).zip(beside.lows.drain(..).skip(1));
            let rest = leaves.map(|(leaf, low)| (low, leaf));
            InnerIndex::from_sorted(0, rest, INNER_FILL, self.pm().capacity()).map_err(|e| {
                let e = std::io::Error::other(e.to_string());
                InsertError::Space(SpaceError::io("building the inner nodes", e))
            })
        });
        let inner = match built {
            Ok(inner) => inner,
            Err(e) => {
                beside
                    .keys
                    .iter()
                    .for_each(|word| K::discard(&self.heap, *word));
                beside
                    .values
                    .iter()
                    .for_each(|word| V::discard(&self.heap, *word));
                self.logs.skip_generations_of(&beside.logs);
                beside.logs.discard(None);
                return Err(e);
            }
        };
        if beside.entries == 0 {
            self.logs.skip_generations_of(&beside.logs);
            beside.logs.discard(None);
            return Ok(0);
        }
        let pm = self.pm();
        // PERSIST: the directory, all segments and long strings, before the root's word that leads
        // to them.
        pm.fence();
        // PERSIST: (in `publish`) the root's word; the loaded logs are the tree.
        self.root()
            .word(DIRECTORY_WORD)
            .publish(pm, link::word(directory));
        self.inner = inner;
        self.table = beside.table;
        let old = std::mem::replace(&mut self.logs, beside.logs);
        *self
            .hopeless
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner) = None;
        old.discard(Some(&crossbeam_epoch::pin()));
        self.commit()?;
        Ok(beside.entries)
    }

    fn build<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        sorted: impl Iterator<Item = (Q, W)>,
        per_leaf: usize,
        beside: &mut Beside<K, M>,
    ) -> Result<(), InsertError> {
        let mut pairs: Vec<(Q, W)> = Vec::with_capacity(per_leaf);
        // The last pair of the leaf before.
        let mut before = None;
        for (key, value) in sorted {
            self.check_pair(key.borrow(), value.borrow())?;
            let last = pairs.last().or(before.as_ref());
            if last.is_some_and(|(last, _)| last.borrow() >= key.borrow()) {
                return Err(InsertError::KeyExists);
            }
            if pairs.len() == per_leaf {
                self.seal(&pairs, beside)?;
                before = pairs.pop();
                pairs.clear();
            }
            pairs.push((key, value));
        }
        if pairs.is_empty() {
            return Ok(());
        }
        self.seal(&pairs, beside)
    }

    /// Appends the pairs as the next leaf.
    fn seal<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        pairs: &[(Q, W)],
        beside: &mut Beside<K, M>,
    ) -> Result<(), InsertError> {
        let (pm, inline) = (self.pm(), self.shape.inline);
        let (lnid, _) = beside.table.take(&self.locks, None)?;
        let mut draft = Draft::base(lnid, 1, pairs.len());
        for (key, value) in pairs {
            let (key, value) = (key.borrow(), value.borrow());
            let word = self.make_for_load(key)?;
            if self.is_long(key) {
                beside.keys.push(word);
            }
            draft.push(pm, &Field::New { given: key, word }, inline);
            let word = self.make_for_load(value)?;
            if self.is_long(value) {
                beside.values.push(word);
            }
            draft.push(pm, &Field::New { given: value, word }, inline);
        }
        let written = beside
            .logs
            .append(self.home_of_load(lnid), &mut draft, Purpose::Load)
            .map_err(Refusal::into_error)?;
        let entry = beside.table.entry(lnid);
        entry.set_base(Place::new(written.off, written.log, 0), pairs.len());
        entry.set_sequence(1);
        entry.add_records(1);
        beside.entries += pairs.len() as u64;
        beside
            .lows
            .extend(pairs.first().map(|(key, _)| key.borrow().to_owned()));
        Ok(())
    }

    /// Returns the word of a number, or of the new block of a long string; 0 for a short string.
    fn make_for_load<T: Repr + ?Sized>(&self, value: &T) -> Result<u64, SpaceError> {
        if T::RECORDS && !self.is_long(value) {
            return Ok(0);
        }
        value.make(&self.heap)
    }

    /// Returns the log of a loaded leaf. All logs get their share, whichever thread loads.
    fn home_of_load(&self, lnid: u32) -> usize {
        lnid as usize % self.shape.logs
    }
}
