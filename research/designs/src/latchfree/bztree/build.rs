//! Making nodes: an image in DRAM is written to a reserved block in one go and flushed, before
//! anything leads to it.

use super::BzTree;
use super::node::{Form, HEADER, Meta, Node, Status, shape};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::cell::write_bytes;
use bristlecone_pmem::{Media, SpaceError};

/// A node under construction, in the order of keys.
pub(super) struct Image {
    /// Number of its words, if that is enough.
    size: usize,
    level: u8,
    /// Metadata, with offsets that count from the first record.
    metas: Vec<Meta>,
    records: Vec<u64>,
}

impl Image {
    /// Begins a node of `size` words, or more if needed.
    pub fn new(size: usize, level: u8) -> Self {
        Self {
            size,
            level,
            metas: Vec::with_capacity(size / 3),
            records: Vec::with_capacity(size),
        }
    }

    /// Returns the number of words of records and their metadata.
    pub fn data(&self) -> usize {
        self.metas.len() + self.records.len()
    }

    pub fn entries(&self) -> usize {
        self.metas.len()
    }

    /// Adds a record. Returns its words, which are zero.
    fn push(&mut self, form: Form, key_bytes: usize, value_bytes: usize) -> &mut [u64] {
        let at = self.records.len();
        let meta = Meta::of(form, at, key_bytes, value_bytes);
        self.metas.push(meta);
        self.records.resize(at + meta.words(), 0);
        &mut self.records[at..]
    }
}

/// Packs bytes into words.
fn pack(bytes: &[u8], into: &mut [u64]) {
    for (word, bytes) in into.iter_mut().zip(bytes.chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(eight);
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BzTree<K, V, M> {
    /// Copies a record of a frozen leaf.
    pub(super) fn copy_record(&self, image: &mut Image, from: &Node<'_, M>, meta: Meta) {
        let to = image.push(meta.form(), meta.key_bytes(), meta.value_bytes());
        for (i, word) in to.iter_mut().enumerate() {
            *word = from.fixed(meta.offset() + i);
        }
        if meta.form() != Form::Inline {
            to[meta.key_words()] = self.swaps.read(from.word(meta.value_at()));
        }
    }

    /// Copies an entry of an inner node, with another child.
    pub(super) fn copy_child(
        &self,
        image: &mut Image,
        from: &Node<'_, M>,
        slot: usize,
        child: u64,
    ) {
        let meta = from.fixed_meta(slot);
        let key_bytes = if image.metas.is_empty() {
            0
        } else {
            meta.key_bytes()
        };
        let to = image.push(Form::Word, key_bytes, 0);
        let (last, key) = to.split_last_mut().expect("a child is a word");
        for (i, word) in key.iter_mut().enumerate() {
            *word = from.fixed(meta.offset() + i);
        }
        *last = child;
    }

    /// Adds an entry of an inner node. The first entry's key is left out.
    pub(super) fn push_child(&self, image: &mut Image, key: &K, child: u64) {
        let key_bytes = if image.metas.is_empty() {
            0
        } else {
            key.bytes()
        };
        let to = image.push(Form::Word, key_bytes, 0);
        let (last, words) = to.split_last_mut().expect("a child is a word");
        if key_bytes > 0 {
            match key.byte_string() {
                Some(bytes) => pack(bytes, words),
                None => words[0] = key.make(&self.heap).unwrap_or_default(),
            }
        }
        *last = child;
    }

    /// Adds a pair to a leaf. `block` is the value's word, if the value has a block.
    pub(super) fn push_pair(&self, image: &mut Image, key: &K, value: &V, block: u64) {
        let form = self.form_of(value);
        let value_bytes = if form == Form::Inline {
            value.bytes()
        } else {
            0
        };
        let to = image.push(form, key.bytes(), value_bytes);
        let (key_words, value_words) = to.split_at_mut(key.bytes().div_ceil(8));
        match key.byte_string() {
            Some(bytes) => pack(bytes, key_words),
            None => key_words[0] = key.make(&self.heap).unwrap_or_default(),
        }
        match (form, value.byte_string()) {
            (Form::Block, _) => value_words[0] = block,
            (Form::Inline, Some(bytes)) => pack(bytes, value_words),
            _ => value_words[0] = self.number(value),
        }
    }

    /// Writes an image into a block. Flushes it and does not fence. If `owned`, the node's memory
    /// word holds its own offset from the beginning, else 0. If this fails, nothing stays reserved.
    pub(super) fn seal(&self, mut image: Image, owned: bool) -> Result<u64, SpaceError> {
        let size = image.size.max(HEADER + image.data());
        // All nodes that fit have blocks of one size, since a full pool has no chunks for others.
        let block = self.blocks.reserve(size.max(self.sizes.node) as u64 * 8)?;
        let status = if image.level == 0 {
            Status::of(image.entries(), image.records.len()).0
        } else {
            0
        };
        let first = size - image.records.len();
        let own = if owned { block.get() } else { 0 };
        let mut words = vec![status, shape(size, image.entries(), image.level), own];
        let bytes: Vec<u8> = image.records.iter().flat_map(|w| w.to_le_bytes()).collect();
        words.extend(image.metas.iter().map(|meta| {
            let (key, value) = (meta.offset() * 8, meta.value_at() * 8);
            let value = match meta.form() {
                Form::Inline => &bytes[value..value + meta.value_bytes()],
                Form::Word | Form::Block => &[],
            };
            let checked = meta.checked(&bytes[key..key + meta.key_bytes()], value);
            checked.moved(first).0
        }));
        words.resize(first, 0);
        words.append(&mut image.records);
        let pm = self.pm();
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let at = pm.base().wrapping_add(block.get() as usize);
        // SAFETY: 1. the block was reserved with that much room, at the start of a line; 2. no
        // other thread has its offset.
        unsafe { write_bytes(pm, at, &bytes) };
        if pm.planted("bztree-node-lost") {
            return Ok(block.get());
        }
        // PERSIST: the node, by the fence of the descriptor, before a word leads to it (crash state
        // 3).
        pm.flush(at, bytes.len());
        Ok(block.get())
    }

    /// Returns the words of an inner node's entry with that separator.
    pub(super) fn child_words(key: &K) -> usize {
        1 + key.bytes().div_ceil(8) + 1
    }
}
