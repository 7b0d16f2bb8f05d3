//! Filling an empty tree from sorted input.
//!
//! All pages but the root are born in the root's replacement: they are written with newborn words,
//! leaf pages first, and the root's word, stored last, makes all of them count at once. A crash
//! before that leaves the empty tree, and newborn words that opening clears.

use super::image::{Entries, Spec};
use super::outer::Outer;
use super::replace::{Course, NewPage, child_value, separator_between};
use super::scan::NOW;
use super::stored::{Reference, Stored};
use super::table::Table;
use super::upper::Upper;
use super::{ClusteredTree, Handle, ReadError};
use crate::contract::{Fill, InsertError};
use crate::inner::InnerIndex;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, POff, SpaceError};
use crossbeam_epoch as epoch;
use std::borrow::Borrow;

/// A key, and a value or the reference to an outer one.
struct Pair {
    key: Vec<u8>,
    value: Vec<u8>,
    outer: bool,
}

/// The pages of one level, on their way to the pool from left to right.
struct Level {
    level: u8,
    low: Option<Vec<u8>>,
    /// Of the page to come.
    id: u32,
    pairs: Vec<Pair>,
    /// Words that the page takes at most, as far as the pairs since it was last measured go.
    words: usize,
    /// The pages that are there: their low fences, and their numbers.
    pages: Vec<Pair>,
}

impl Level {
    fn new(level: u8, id: u32) -> Self {
        Self {
            level,
            low: None,
            id,
            pairs: Vec::new(),
            words: 0,
            pages: Vec::new(),
        }
    }
}

/// A load under way.
struct Load<'t, K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    tree: &'t ClusteredTree<K, V, M>,
    generation: u64,
    /// Words of a page that its header and entries may take.
    words: usize,
    born: Vec<NewPage>,
    /// Outer values, born with the pages.
    values: Vec<(Outer, Reference)>,
    reserved: Vec<u32>,
}

impl<K, V, M> Load<'_, K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn id(&mut self) -> Result<u32, SpaceError> {
        let tree = self.tree;
        let of_page = Some(self.generation);
        let id = tree.table.reserve(tree.root(), &tree.heap, of_page)?;
        self.reserved.push(id);
        Ok(id)
    }

    /// The pair of a key and a value, which goes to a block of its own if it is long.
    fn pair(&mut self, key: Vec<u8>, value: &[u8]) -> Result<Pair, SpaceError> {
        let outer = self.tree.is_outer(value.len());
        let value = if outer {
            let outer = self.tree.write_outer(value)?;
            let reference = outer.reference(Table::FIRST_ID, self.generation, 0);
            self.tree.bear_outer(&reference);
            self.values.push((outer, reference));
            reference.encode().to_vec()
        } else {
            value.to_vec()
        };
        Ok(Pair { key, value, outer })
    }

    /// Adds a pair behind the others.
    fn add(&mut self, level: &mut Level, pair: Pair) -> Result<(), SpaceError> {
        // Lengths and an offset at most, besides key and value.
        level.words += 2 + super::layout::words_of(pair.key.len() + pair.value.len());
        level.pairs.push(pair);
        let n = level.pairs.len();
        if n < 2 || level.words + super::layout::HEADER <= self.words {
            return Ok(());
        }
        // The high fence is not known yet; it is about the last key.
        let high = &level.pairs[n - 1].key;
        let spec = self.spec(level, level.id, Some(high), 0);
        level.words = spec.header(self.entries(level).part(0, n)).tail;
        if level.words <= self.words || n < 3 {
            return Ok(());
        }
        let Some(last) = level.pairs.pop() else {
            return Ok(());
        };
        let before = &level.pairs[n - 2].key;
        let whole = level.level > 0 || ClusteredTree::<K, V, M>::NUMBER_KEYS;
        let high = separator_between(before, &last.key, whole);
        let next = self.id()?;
        self.write(level, Some(&high), next)?;
        level.low = Some(high);
        level.id = next;
        level.words = 2 + super::layout::words_of(last.key.len() + last.value.len());
        level.pairs.push(last);
        Ok(())
    }

    fn entries<'l>(&self, level: &'l Level) -> Entries<'l> {
        let mut entries = Entries::default();
        for pair in &level.pairs {
            let value = Stored {
                bytes: &pair.value,
                outer: pair.outer,
            };
            entries.push(&pair.key, &[], value);
        }
        entries
    }

    fn spec<'l>(&self, level: &'l Level, id: u32, high: Option<&'l [u8]>, next: u32) -> Spec<'l> {
        Spec {
            id,
            level: level.level,
            generation: self.generation,
            born_in: Table::FIRST_ID,
            next,
            low: level.low.as_deref(),
            high,
            dropped: &[],
            words: self.tree.page_words,
            numbers: self.tree.are_numbers(level.level),
        }
    }

    /// Writes the page that the pairs make, newborn.
    fn write(
        &mut self,
        level: &mut Level,
        high: Option<&[u8]>,
        next: u32,
    ) -> Result<(), SpaceError> {
        let page = self.page(level, level.id, high, next)?;
        self.tree.bear(&page);
        self.born.push(page);
        let low = level.low.take();
        let low = low.unwrap_or_else(|| ClusteredTree::<K, V, M>::lowest().to_vec());
        level.pages.push(Pair {
            key: low,
            value: child_value(level.id).to_vec(),
            outer: false,
        });
        level.pairs.clear();
        level.words = 0;
        Ok(())
    }

    fn page(
        &self,
        level: &Level,
        id: u32,
        high: Option<&[u8]>,
        next: u32,
    ) -> Result<NewPage, SpaceError> {
        let entries = self.entries(level);
        let spec = self.spec(level, id, high, next);
        (self.tree).write_page_as(&spec, &entries, (0, entries.len()), 100, Course::Chain)
    }

    /// Writes all pages of the tree but the root, and the root's block.
    fn pages(&mut self, mut level: Level, root: &mut Option<NewPage>) -> Result<(), SpaceError> {
        while !level.pages.is_empty() {
            self.write(&mut level, None, 0)?;
            let children = std::mem::take(&mut level.pages);
            let id = self.id()?;
            level = Level::new(level.level + 1, id);
            for child in children {
                self.add(&mut level, child)?;
            }
        }
        *root = Some(self.page(&level, Table::FIRST_ID, None, 0)?);
        Ok(())
    }

    /// Takes back all that was written.
    fn undo(self) {
        let pm = self.tree.pm();
        for page in &self.born {
            self.tree.table.clear(pm, page.header.id);
        }
        for (_, reference) in &self.values {
            self.tree.table.clear(pm, reference.id());
        }
        // PERSIST: cleared words, before their numbers and blocks are used again.
        pm.fence();
        for page in self.born {
            self.tree.heap.free(POff::new(page.block));
        }
        for (outer, _) in &self.values {
            self.tree.discard_outer(outer);
        }
        self.tree.release(self.reserved);
    }
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// As [`BulkLoad::bulk_load`](crate::BulkLoad::bulk_load).
    pub(super) fn load_sorted<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
    ) -> Result<u64, InsertError> {
        if self.read_only {
            return Err(InsertError::ReadOnly);
        }
        let mut empty = true;
        self.scan_pages(&.., crate::Direction::Up, NOW, |_, _| {
            empty = false;
            std::ops::ControlFlow::Break(())
        })
        .map_err(Self::space_of)?;
        if !empty {
            return Err(InsertError::KeyExists);
        }
        if !lock(&self.upper).levels.is_empty() {
            // A larger tree has left its inner pages.
            let collapsed = self.merge_all().and_then(|()| self.collapse());
            self.forget_pages()?;
            collapsed.map_err(Self::space_of)?;
            if !lock(&self.upper).levels.is_empty() {
                return Err(InsertError::KeyExists);
            }
        }
        self.renew_root().map_err(Self::space_of)?;
        let old = self.root_block()?;
        let mut load = Load {
            tree: self,
            generation: self.next_generation(),
            words: fill.of(self.page_words),
            born: Vec::new(),
            values: Vec::new(),
            reserved: Vec::new(),
        };
        if self.pm().tiny() {
            load.words = load.words.min(24);
        }
        let mut root = None;
        let loaded = self.load_pairs(&mut load, sorted, &mut root);
        let (n, root) = match (loaded, root) {
            (Ok(n), Some(root)) => (n, root),
            (loaded, _) => {
                load.undo();
                return loaded;
            }
        };
        self.fence_pages();
        self.name(&root);
        // The root's number was reserved for the level above it, which there is not.
        let unused: Vec<u32> = {
            let born: std::collections::BTreeSet<u32> =
                load.born.iter().map(|page| page.header.id).collect();
            load.reserved
                .iter()
                .filter(|id| !born.contains(id))
                .copied()
                .collect()
        };
        for page in &load.born {
            self.settle(page);
        }
        for (_, reference) in &load.values {
            self.settle_outer(reference);
        }
        self.release(unused);
        drop(load);
        self.heap.free(POff::new(old));
        self.forget_pages()?;
        self.commit()?;
        Ok(n)
    }

    fn load_pairs<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        load: &mut Load<'_, K, V, M>,
        sorted: impl Iterator<Item = (Q, W)>,
        root: &mut Option<NewPage>,
    ) -> Result<u64, InsertError> {
        let first = load.id()?;
        let mut level = Level::new(0, first);
        let mut n = 0;
        let mut last: Option<Vec<u8>> = None;
        for (key, value) in sorted {
            let (key, value) = (key.borrow(), value.borrow());
            Self::fits(key, value)?;
            let key = key.with_bytes(<[u8]>::to_vec);
            if last.as_ref().is_some_and(|last| *last >= key) {
                return Err(InsertError::KeyExists);
            }
            last = Some(key.clone());
            let pair = value.with_bytes(|value| load.pair(key, value))?;
            load.add(&mut level, pair)?;
            n += 1;
        }
        load.pages(level, root)?;
        Ok(n)
    }

    /// Writes the root anew, a leaf page without entries, if its records lead to outer values.
    fn renew_root(&mut self) -> Result<(), ReadError> {
        let at = self.inner.find_first(&epoch::pin());
        let Handle::Part(slot) = Handle::decode(at.located.leaf) else {
            return Ok(());
        };
        let part = self.part(slot);
        let (_, _, dropped) = self.content(part, &[])?;
        if dropped.is_empty() {
            return Ok(());
        }
        self.renew(part)
    }

    /// The block of the root, which is a leaf page.
    fn root_block(&self) -> Result<u64, InsertError> {
        let word = self.table.read(self.pm(), Table::FIRST_ID);
        let damaged = |what| InsertError::Space(Self::space_of(ReadError::Damaged(what)));
        let word = word.map_err(damaged)?;
        word.map(|word| word.block)
            .ok_or_else(|| damaged("the root is not in the page table".into()))
    }

    /// Forgets what DRAM holds of pages, and loads them anew.
    fn forget_pages(&mut self) -> Result<(), InsertError> {
        let mut slots = Vec::new();
        self.inner.for_each_leaf(|_, handle| {
            if let Handle::Part(slot) = Handle::decode(handle) {
                slots.push(slot);
            }
        });
        let first = Handle::Unloaded(Table::FIRST_ID).encode();
        let inner = InnerIndex::new(first, self.pm().capacity());
        self.inner = inner.map_err(|e| SpaceError::io("memory for inner nodes", e))?;
        for slot in slots {
            self.free_part(slot);
        }
        self.upper = std::sync::Mutex::new(Upper::default());
        self.memory = Self::new_memory(self.pm());
        let loaded = self.load_all();
        loaded.map_err(Self::space_of)?;
        Ok(())
    }
}
