//! Bulk load: nodes are reserved and written, then activated, and one swap makes them the tree.
//!
//! A crash would leak active blocks that no descriptor names. Therefore a root word says that a
//! load is under way while there may be any. The next opening that finds it set keeps what the tree
//! reaches and frees the rest. Only then does the time of an opening grow with the tree.
//!
//! Persist cost: every line once, and a line for each block's bit; 3 fences, and those of the swap.

use super::build::Image;
use super::node::{Form, HEADER, next_version};
use super::{BzTree, LOADING, corrupt};
use crate::index::{Fill, InsertError};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::pmwcas::{Descriptor, Policy, Recycle, WordError};
use bristlecone_pmem::{Media, POff, SpaceError};
use std::borrow::Borrow;

/// A new node, with the smallest key that is routed to it.
type Made<K> = (K, u64);

/// State of a load. Blocks that do not become the tree's are freed.
struct Load<K> {
    /// All blocks, of nodes and of values.
    blocks: Vec<u64>,
    leaves: Vec<Made<K>>,
    pairs: u64,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BzTree<K, V, M> {
    pub(super) fn load_sorted<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
    ) -> Result<u64, InsertError> {
        if self.read_only {
            return Err(InsertError::ReadOnly);
        }
        let before = self.walk(false).map_err(|_| corrupt())?;
        if before.entries > 0 {
            return Err(InsertError::KeyExists);
        }
        let mut load = Load {
            blocks: Vec::new(),
            leaves: Vec::new(),
            pairs: 0,
        };
        let root = match self.build_all(sorted, fill, &mut load) {
            Ok(Some(root)) => root,
            Ok(None) => return Ok(0),
            Err(e) => {
                for block in load.blocks {
                    self.blocks.cancel(POff::new(block));
                }
                return Err(e);
            }
        };
        // After this, no block without a way to it can be active: nothing can fail any more.
        let taken = if (before.blocks.iter()).all(|block| self.blocks.is_active(*block)) {
            self.descriptor()
        } else {
            Err(corrupt())
        };
        let swap = match taken {
            Ok(swap) => swap,
            Err(e) => {
                for block in load.blocks {
                    self.blocks.cancel(POff::new(block));
                }
                return Err(e.into());
            }
        };
        self.say_loading(1);
        for block in load.blocks.iter().filter(|block| **block != root) {
            // PERSIST: (in `activate_unowned`) the block's bit; the swap's descriptor fences it,
            // unless that happens before.
            self.blocks.activate_unowned(POff::new(*block));
        }
        self.take_over(root, swap)?;
        // The old tree was an anchor, which stays, a root node, which the swap frees, and perhaps
        // empty nodes below.
        for block in before.blocks {
            if block != self.anchor && block != before.root {
                self.blocks.release(block);
                self.blocks.reuse(block);
            }
        }
        self.say_loading(0);
        self.pm().commit()?;
        Ok(load.pairs)
    }

    /// Records durably whether a load is under way.
    pub(super) fn say_loading(&self, loading: u64) {
        // PERSIST: (in `publish`) the loading word, before the first block is active that nothing
        // leads to, and after the last one.
        self.root_slot().word(LOADING).publish(self.pm(), loading);
    }

    /// Makes a node the root node. Its whole tree is built.
    fn take_over(&self, root: u64, mut swap: Descriptor<'_, M>) -> Result<(), SpaceError> {
        let (old, version) = (self.root_node(), self.swaps.read(self.root_status()));
        let mut words = || -> Result<(), WordError> {
            swap.add_word_with(self.root_word(), old, root, Policy::FreeOne)?;
            swap.add_word(self.root_status(), version, next_version(version))
        };
        if self.swap_of(words(), swap)? {
            Ok(())
        } else {
            // No other thread changes the tree while it is loaded.
            Err(corrupt())
        }
    }

    /// Builds leaves, then the levels above them. Returns the root node, or `None` if there are no
    /// pairs.
    fn build_all<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
        load: &mut Load<K::Owned>,
    ) -> Result<Option<u64>, InsertError> {
        self.build_leaves(sorted, fill, load)?;
        let mut level = std::mem::take(&mut load.leaves);
        let mut height = 0;
        while level.len() > 1 {
            height += 1;
            level = self.build_level(level, height, load)?;
        }
        Ok(level.pop().map(|(_, node)| node))
    }

    fn build_leaves<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
        load: &mut Load<K::Owned>,
    ) -> Result<(), InsertError> {
        let most = fill.of(self.sizes.node - HEADER);
        let mut last: Option<Q> = None;
        let mut image = Image::new(self.sizes.node, 0);
        let mut first: Option<K::Owned> = None;
        for (key, value) in sorted {
            let (k, v) = (key.borrow(), value.borrow());
            self.check_pair(k, v)?;
            if last.as_ref().is_some_and(|last| last.borrow() >= k) {
                return Err(InsertError::KeyExists);
            }
            if image.entries() > 0 && image.data() + self.record_words(k, v) > most {
                let full = std::mem::replace(&mut image, Image::new(self.sizes.node, 0));
                self.add_leaf(full, &mut first, load)?;
            }
            if first.is_none() {
                first = Some(k.to_owned());
            }
            let block = match v.byte_string() {
                Some(bytes) if self.form_of(v) == Form::Block => {
                    let block = self.block_of(bytes)?.get();
                    load.blocks.push(block);
                    block
                }
                _ => 0,
            };
            self.push_pair(&mut image, k, v, block);
            load.pairs += 1;
            last = Some(key);
        }
        if image.entries() > 0 {
            self.add_leaf(image, &mut first, load)?;
        }
        Ok(())
    }

    fn add_leaf(
        &self,
        image: Image,
        first: &mut Option<K::Owned>,
        load: &mut Load<K::Owned>,
    ) -> Result<(), SpaceError> {
        let leaf = self.seal(image, true)?;
        load.blocks.push(leaf);
        load.leaves.extend(first.take().map(|first| (first, leaf)));
        Ok(())
    }

    /// Builds the level above one.
    fn build_level(
        &self,
        below: Vec<Made<K::Owned>>,
        level: u8,
        load: &mut Load<K::Owned>,
    ) -> Result<Vec<Made<K::Owned>>, SpaceError> {
        let mut made = Vec::new();
        let mut image = Image::new(0, level);
        let mut first: Option<K::Owned> = None;
        for (key, node) in below {
            let words = Self::child_words(key.borrow());
            if image.entries() > 1 && HEADER + image.data() + words > self.sizes.node {
                let full = std::mem::replace(&mut image, Image::new(0, level));
                let node = self.seal(full, true)?;
                load.blocks.push(node);
                made.extend(first.take().map(|first| (first, node)));
            }
            self.push_child(&mut image, key.borrow(), node);
            first.get_or_insert(key);
        }
        let node = self.seal(image, true)?;
        load.blocks.push(node);
        made.extend(first.take().map(|first| (first, node)));
        Ok(made)
    }
}
