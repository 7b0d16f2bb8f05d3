//! Making, opening and closing a tree.
//!
//! Opening reads the root words and the page table, 8 bytes a page: that says which blocks are in
//! use, and it decides about pages whose birth a crash has cut short. After a clean close the table
//! need only be as it was (`closed`). Then every page is loaded, so that damage is an error of the
//! opening; or none is, until it is touched (`lazy`).

use super::counter::Counter;
use super::layout::{Header, MIN_PAGE};
use super::marks::Marks;
use super::merge;
use super::sessions::{self, Sessions};
use super::shown::Shown;
use super::slots::{self, Slots};
use super::table::{Kind, Table, Word};
use super::upper::Upper;
use super::versions::Versions;
use super::{ClusteredOptions, ClusteredTree, Handle, Inner, PAGE_BYTES, ReadError, outer, root};
use crate::arena::Arena;
use crate::common::{self, check_node_bytes};
use crate::contract::{RecoveryReport, TreeError};
use crate::inner::InnerIndex;
use crate::repr::{KeyRepr, Repr};
use crate::sync::Retired;
use bristlecone_pmem::log::Logs;
use bristlecone_pmem::pool::{Root, RootKind};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{CommitError, Heap, Media, POff, Pool, planted};
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The verdict on a newborn page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Birth {
    /// It counts.
    Counts,
    /// A crash came before it was to count.
    Void,
    /// It is not there, or is damaged.
    Unreadable,
}

/// When pages are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loading {
    /// All of them when the tree is opened.
    AtOnce,
    /// Each when it is touched.
    WhenTouched,
}

/// The name in root tables.
const DESIGN: &str = "clustered";

fn root_kind<K: KeyRepr + ?Sized, V: Repr + ?Sized>(
    options: &ClusteredOptions,
) -> Result<RootKind, TreeError> {
    check_node_bytes(options.page_bytes, PAGE_BYTES)?;
    Ok(common::root_kind::<K, V>(DESIGN, options.page_bytes))
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn assemble(
        root: Root<M>,
        heap: Heap<M>,
        options: &ClusteredOptions,
        salt: u64,
        ceilings: (u64, u64),
        slots: Slots,
    ) -> Result<Self, TreeError> {
        let pool = Arc::clone(root.pool());
        let first = Handle::Unloaded(Table::FIRST_ID).encode();
        let capacity = pool.pm().capacity();
        let inner: Inner<K, M> = InnerIndex::new(first, capacity).map_err(TreeError::Memory)?;
        // A part for every page that the pool could hold.
        let parts = Arena::reserve(Self::parts_bytes(capacity, options));
        Ok(Self {
            inner,
            parts: parts.map_err(TreeError::Memory)?,
            table: Table::new(),
            upper: Mutex::new(Upper::default()),
            generations: Counter::new(root::GENERATIONS, ceilings.0),
            stamps: Counter::new(root::STAMPS, ceilings.1),
            shown: Shown::new(ceilings.1),
            marks: Marks::none(),
            versions: Versions::new(),
            observer: None,
            salt,
            page_words: options.page_bytes as usize / 8,
            sums_on_read: false,
            read_only: pool.pm().read_only(),
            report: RecoveryReport::default(),
            retired: Retired::default(),
            spare: Mutex::default(),
            unreadable: Mutex::default(),
            passed: Vec::new(),
            memory: Self::new_memory(pool.pm()),
            made_again: AtomicU64::new(0),
            log: None,
            sessions: Sessions::new(&slots, salt, ceilings.1),
            slots,
            heap,
            root: Some(root),
            pool,
            kinds: PhantomData,
        })
    }

    fn parts_bytes(capacity: u64, options: &ClusteredOptions) -> usize {
        let pages = capacity / u64::from(options.page_bytes);
        usize::try_from(pages * size_of::<super::Part>() as u64).unwrap_or(usize::MAX / 4)
    }

    /// As [`DurableIndex::create`](crate::DurableIndex::create).
    pub(super) fn make(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &ClusteredOptions,
    ) -> Result<Self, TreeError> {
        let root = pool.create_root(name, &root_kind::<K, V>(options)?)?;
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let salt = root::new_salt::<M>();
        let pm = pool.pm();
        // The ceilings are those of what was never used.
        for (i, value) in [
            (root::SALT, salt),
            (root::SALT_AGAIN, salt),
            (root::GENERATIONS, 1),
            (root::STAMPS, 1),
            (root::SESSION, 0),
            (root::ENDED, 0),
        ] {
            let cell = root.word(i);
            // ORDERING: Relaxed; the root is not published.
            cell.store(pm, root::word(i, value), Ordering::Relaxed);
            // PERSIST: the root words; `publish` fences them.
            pm.flush_of(cell);
        }
        let slots = Slots::create(&heap, pm)?;
        let cell = root.word(root::SLOTS);
        // ORDERING: Relaxed; the root is not published.
        cell.store(
            pm,
            root::word(root::SLOTS, slots.block() / 64),
            Ordering::Relaxed,
        );
        // PERSIST: the root word of the slots; `publish` fences it, and the slots.
        pm.flush_of(cell);
        let block = slots.block();
        let assembled = Self::assemble(root, heap.clone(), options, salt, (1, 1), slots);
        let mut tree = assembled.inspect_err(|_| heap.free(POff::new(block)))?;
        match tree.make_first() {
            Ok(()) => Ok(tree),
            Err(e) => {
                // Nothing to close: there is no such tree. Its blocks go with the root.
                let log = tree.log.as_ref().map(Logs::offset);
                let blocks: Vec<u64> = tree
                    .table
                    .blocks()
                    .map(|(block, _)| block)
                    .chain(log)
                    .chain([block])
                    .collect();
                for block in blocks {
                    tree.heap.free(POff::new(block));
                }
                tree.heap.trim();
                tree.root = None;
                Err(e)
            }
        }
    }

    fn make_first(&mut self) -> Result<(), TreeError> {
        if planted!(self.pm(), "clustered-root-first") {
            self.root().publish();
        }
        let log = Logs::create(&self.heap, 1, merge::RECORD)?;
        let cell = self.root().word(root::LOG);
        // ORDERING: Relaxed; the root is not published.
        cell.store(
            self.pm(),
            root::word(root::LOG, log.offset() / 64),
            Ordering::Relaxed,
        );
        // PERSIST: the root word of the log; `publish` fences it, and the log.
        self.pm().flush_of(cell);
        self.log = Some(log);
        let first = self.write_first()?;
        let published = self.publish_root();
        if published.is_err() {
            self.heap.free(POff::new(first.block));
        }
        published?;
        let loaded = self.load_all().map_err(Self::not_opened);
        loaded.inspect_err(|_| self.root().unpublish())?;
        self.sessions.begin(self.root());
        Ok(())
    }

    fn publish_root(&self) -> Result<(), TreeError> {
        self.root().publish();
        let committed = self.commit();
        committed.inspect_err(|_| self.root().unpublish())?;
        Ok(())
    }

    /// As [`DurableIndex::open`](crate::DurableIndex::open).
    pub(super) fn reopen(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &ClusteredOptions,
        loading: Loading,
    ) -> Result<Self, TreeError> {
        let started = Instant::now();
        let root = pool.open_root(name, Some(&root_kind::<K, V>(options)?))?;
        let heap = root.heap();
        heap.begin_recovery();
        root::check_version(&root).map_err(TreeError::Version)?;
        let corrupt = TreeError::Corrupt;
        let mended = match pool.is_salvaged() {
            true => root::mend(&root),
            false => Vec::new(),
        };
        let salt = root::salt(&root).map_err(corrupt)?;
        let generations = root::required(&root, root::GENERATIONS).map_err(corrupt)?;
        let stamps = root::required(&root, root::STAMPS).map_err(corrupt)?;
        let slots = Slots::at(root::required(&root, root::SLOTS).map_err(corrupt)? * 64);
        let ceilings = (generations, stamps);
        let mut tree = Self::assemble(root, heap, options, salt, ceilings, slots)?;
        tree.sums_on_read = loading == Loading::WhenTouched;
        tree.passed = mended;
        let opened = tree.recover(loading);
        if let Err(e) = opened {
            // Nothing of this tree may be changed at its end.
            tree.root = None;
            return Err(e);
        }
        tree.report.elapsed = started.elapsed();
        tree.commit()?;
        Ok(tree)
    }

    fn recover(&mut self, loading: Loading) -> Result<(), TreeError> {
        let corrupt = TreeError::Corrupt;
        let (repaired, values) = self.read_table(loading).map_err(corrupt)?;
        let full = self.sessions.read(self.root(), &self.slots);
        let full = self.or_passed(full).map_err(corrupt)?.unwrap_or(false);
        self.decide_values(values, loading).map_err(corrupt)?;
        if self.pool.is_salvaged() {
            self.lead_to_leaves().map_err(Self::not_opened)?;
        }
        self.heap.finish_recovery();
        if !self.read_only {
            self.fill_spare();
        }
        self.report.threads = 1;
        self.report.repaired = repaired;
        if loading == Loading::AtOnce || full && !self.read_only {
            match self.load_rest() {
                Ok(loaded) => (self.report.leaves_scanned, self.report.entries) = loaded,
                // Undamaged pages can be read. Writes need the slots, whose content has no room.
                Err(ReadError::Damaged(_)) if loading == Loading::WhenTouched => {
                    self.read_only = true;
                }
                Err(e) => return Err(Self::not_opened(e)),
            }
        } else if !self.read_only {
            self.sessions.keep(self.root()).map_err(corrupt)?;
        }
        if !self.read_only {
            self.sessions.begin(self.root());
        }
        if self.retired.wait() {
            // Loading has replaced inner pages; the old ones may have had chunks of their own.
            self.heap.trim();
        }
        Ok(())
    }

    fn not_opened(e: ReadError) -> TreeError {
        match e {
            ReadError::Damaged(what) | ReadError::Value(what) => TreeError::Corrupt(what),
            ReadError::Space(e) => TreeError::Space(e),
        }
    }

    /// Loads all pages that are not, and forgets what was kept until then. Returns the number of
    /// leaf pages, and of entries.
    pub(super) fn load_rest(&self) -> Result<(u64, u64), ReadError> {
        let loaded = self.load_all()?;
        self.clear_unreadable();
        if !self.read_only {
            self.sessions.forget(self.root());
        }
        Ok(loaded)
    }

    /// Reads the page table: marks the blocks that it names, and decides about newborn pages.
    /// Returns how many there were, and the newborn values.
    fn read_table(&mut self, loading: Loading) -> Result<(u64, Vec<(u32, Word)>), String> {
        let guard = epoch::pin();
        let (mut newborn, mut values) = (Vec::new(), Vec::new());
        self.table
            .attach(self.root(), |block, bytes| self.heap.check(block, bytes))?;
        let log = root::required(self.root(), root::LOG)
            .and_then(|block| Logs::open(&self.heap, block * 64, merge::RECORD));
        let log = self.or_passed(log)?;
        let slots = (self.slots.block(), slots::BYTES + sessions::BYTES);
        let in_slots = |e| format!("the commit slots: {e}");
        self.heap.check(slots.0, slots.1).map_err(in_slots)?;
        self.assume_slots()?;
        let mut merges = 0;
        if let Some(log) = &log {
            let recovered = log.recover(|record| self.apply(record));
            merges = self.or_passed(recovered)?.unwrap_or_default();
        }
        let is_salvaged = self.pool.is_salvaged();
        // A saved state would hide damage of what it was saved from.
        self.report.clean = !is_salvaged && self.load_closed();
        if !self.report.clean
            && let Some(log) = &log
        {
            log.mark(&self.heap, &guard)?;
        }
        self.log = log;
        if self.report.clean {
            return Ok((merges, Vec::new()));
        }
        for (block, bytes) in self.table.blocks() {
            let marked = self.heap.mark(block, bytes, &guard);
            marked.map_err(|e| format!("the page table: {e}"))?;
        }
        let marked = self.heap.mark(slots.0, slots.1, &guard);
        marked.map_err(in_slots)?;
        let is_sound = |id, word: Word| match word.kind {
            Kind::Page => self.page_of_word(id, word).is_some(),
            Kind::Outer => self.is_value_of(id, word),
        };
        let mut marked = Ok(());
        let each = |id, word: Word| match (word.kind, word.newborn) {
            (kind, false) => {
                let (what, bytes) = match kind {
                    Kind::Page => ("page", MIN_PAGE as u64),
                    Kind::Outer => ("value", outer::MIN_BLOCK),
                };
                if let Err(e) = self.marked(word.block, bytes, &guard)
                    && marked.is_ok()
                {
                    marked = Err(format!("{what} {id}: {e}"));
                }
            }
            (Kind::Page, true) => newborn.push((id, word)),
            (Kind::Outer, true) => values.push((id, word)),
        };
        let (mended, damaged) = self.table.scan(self.pm(), is_sound, each);
        if mended > 0 {
            // PERSIST: words that were mended, before what they name changes.
            self.pm().fence();
        }
        // ORDERING: Relaxed; a count.
        self.made_again.fetch_add(mended, Ordering::Relaxed);
        if is_salvaged {
            self.lead_again();
        } else if let Some(damaged) = damaged {
            if loading == Loading::AtOnce {
                return Err(damaged);
            }
            // A block that no word names any more must not be used for anything else.
            self.read_only = true;
        }
        marked?;
        let (mut cleared, mut unreadable, mut unsure) = (Vec::new(), Vec::new(), Vec::new());
        let pm = self.pm();
        let decided = newborn.iter().map(|(id, word)| {
            let birth = self.birth(*id, *word);
            // It is left as it is until all pages are loaded, which fails.
            birth.or_else(|e| match loading {
                Loading::AtOnce => Err(e),
                Loading::WhenTouched => {
                    unsure.push(e);
                    Ok(Birth::Unreadable)
                }
            })
        });
        let decided = decided.collect::<Result<Vec<Birth>, _>>()?;
        for ((id, word), birth) in newborn.iter().zip(decided) {
            if birth != Birth::Void {
                let marked = self.marked(word.block, MIN_PAGE as u64, &guard);
                marked.map_err(|e| format!("page {id}: {e}"))?;
            }
            match birth {
                Birth::Counts => self.table.settle(pm, *id, *word),
                Birth::Void => {
                    self.table.clear(pm, *id);
                    cleared.push(*id);
                }
                // If a page leads to it, it is damaged: then nothing of it is to be changed.
                Birth::Unreadable => unreadable.push((*id, word.block)),
            }
        }
        if !newborn.is_empty() {
            // PERSIST: settled words, before the pages that they were born in change; cleared
            // words, before their numbers and blocks are used again.
            pm.fence();
        }
        self.release(cleared);
        *lock(&self.unreadable) = unreadable;
        if is_salvaged {
            self.passed.extend(unsure);
        }
        Ok(((newborn.len() + values.len()) as u64 + merges, values))
    }

    /// Marks a block that the page table names. In a pool that is salvaged it may be one that is
    /// not there: then it is damaged for whoever comes to it.
    pub(super) fn marked(
        &self,
        block: u64,
        bytes: u64,
        guard: &epoch::Guard,
    ) -> Result<(), String> {
        let marked = self.heap.mark(block, bytes, guard);
        marked.or_else(|e| match self.root().pool().is_salvaged() {
            true => Ok(()),
            false => Err(e),
        })
    }

    /// Decides about newborn values: those about pages have been decided, and which stamps count is
    /// known.
    fn decide_values(&mut self, newborn: Vec<(u32, Word)>, loading: Loading) -> Result<(), String> {
        let guard = epoch::pin();
        let mut decided = Vec::with_capacity(newborn.len());
        // None is marked before all are decided: groups count by what all of their values are.
        for (id, word) in newborn {
            let counts = self.outer_counts(id, word);
            let counts = self.or_passed(counts)?.flatten();
            if counts.is_none() && loading == Loading::AtOnce {
                let block = word.block;
                return Err(format!(
                    "newborn value {id} at {block:#x}: the page that it was born in is damaged"
                ));
            }
            decided.push((id, word, counts));
        }
        let pm = self.pm();
        let mut cleared = Vec::new();
        for (id, word, counts) in &decided {
            if *counts != Some(false) {
                let marked = self.marked(word.block, outer::MIN_BLOCK, &guard);
                marked.map_err(|e| format!("value {id}: {e}"))?;
            }
            match counts {
                Some(true) => self.table.settle(pm, *id, *word),
                Some(false) if planted!(pm, "clustered-outer-uncleared") => {}
                Some(false) => {
                    self.table.clear(pm, *id);
                    cleared.push(*id);
                }
                // It stays as it is: the next opening may find out.
                None => {}
            }
        }
        if !decided.is_empty() {
            // PERSIST: settled words, before the pages that they were born in change; cleared
            // words, before their numbers and blocks are used again.
            pm.fence();
        }
        self.release(cleared);
        Ok(())
    }

    /// Whether a newborn page counts: the page that it was born in was replaced by one of its
    /// generation.
    fn birth(&self, id: u32, word: Word) -> Result<Birth, String> {
        let about = |e: String| format!("newborn page {id} at {:#x}: {e}", word.block);
        let Some(header) = self.page_of_word(id, word) else {
            return Ok(Birth::Unreadable);
        };
        let parent = header.born_in;
        let parent_word = self.table.read(self.pm(), parent)?;
        let Some(parent_word) = parent_word.filter(|word| word.kind == Kind::Page) else {
            return Ok(Birth::Counts);
        };
        let Some(parent) = self.page_of_word(parent, parent_word) else {
            // A newborn page that never counted has the number now, so the one that had it is gone.
            return if parent_word.newborn {
                Ok(Birth::Counts)
            } else {
                Err(about(format!(
                    "page {parent}, which it was born in, is damaged"
                )))
            };
        };
        let counts = if planted!(self.pm(), "clustered-born-cleared") {
            parent.generation > header.generation
        } else {
            parent.generation >= header.generation
        };
        Ok(if counts { Birth::Counts } else { Birth::Void })
    }

    /// The header of the page that a word names, if it is sound and that page's.
    fn page_of_word(&self, id: u32, word: Word) -> Option<Header> {
        let (_, header, _) = self.checked_page(word.block).ok()?;
        (header.id == id && word.is_of(header.generation)).then_some(header)
    }

    /// Clears newborn words whose pages cannot be read and that no page leads to: they were not
    /// durable when the power went, so nothing that would make them count is.
    fn clear_unreadable(&self) {
        let pm = self.pm();
        let unreadable = std::mem::take(&mut *lock(&self.unreadable));
        for (id, _) in &unreadable {
            self.table.clear(pm, *id);
        }
        if !unreadable.is_empty() {
            // PERSIST: cleared words, before their numbers and blocks are used again.
            pm.fence();
        }
        for (id, block) in unreadable {
            self.heap.free(POff::new(block));
            self.release([id]);
        }
    }

    /// Loads every page. Returns the number of leaf pages, and of entries.
    pub(super) fn load_all(&self) -> Result<(u64, u64), ReadError> {
        let mut guard = epoch::pin();
        let (mut leaves, mut entries) = (0, 0);
        let mut at = self.inner.find_first(&guard);
        loop {
            // Lets blocks that other threads replace be used again.
            guard.repin();
            let low = at.low.as_ref().map(Borrow::borrow);
            match Handle::decode(at.located.leaf) {
                Handle::Unloaded(_) => {
                    self.load_at(&at, &guard)?;
                    at = match low {
                        Some(low) => self.inner.find_range(low, &guard),
                        None => self.inner.find_first(&guard),
                    };
                    continue;
                }
                Handle::Part(slot) => {
                    leaves += 1;
                    entries += self.part(slot).live() as u64;
                }
            }
            let Some(high) = &at.high else {
                return Ok((leaves, entries));
            };
            at = self.inner.find_range(high.borrow(), &guard);
        }
    }

    /// Closes the tree: moves every seal to the end of its tail.
    pub(super) fn close_now(&mut self) -> Result<(), CommitError> {
        if self.root.is_none() {
            return Ok(());
        }
        if !self.read_only {
            self.seal_all();
            self.sessions.close(self.root());
            self.empty_spare();
            // Nobody reads any more; moving the durable mark need not have swept history.
            for block in self.versions.clear() {
                self.heap.free(POff::new(block));
            }
            self.save_closed();
            self.commit()?;
        }
        self.root = None;
        Ok(())
    }

    /// Says in each page where its tail ends, so that damage of its last group is told from a group
    /// that a power cut tore.
    fn seal_all(&self) {
        let pm = self.pm();
        let mut sealed = false;
        let mut seal = |block: u64, generation: u64, end: usize| {
            let seed = self.seed(generation);
            let cell = self.page(block, 8).cell(super::layout::SEAL);
            let seal = seed.seal(end);
            // ORDERING: Relaxed (both); nobody else is left.
            if cell.load(pm, Ordering::Relaxed) != seal {
                cell.store(pm, seal, Ordering::Relaxed);
                // PERSIST: the seal; all of them share the fence below.
                pm.flush_of(cell);
                sealed = true;
            }
        };
        self.inner.for_each_leaf(|_, handle| {
            if let Handle::Part(slot) = Handle::decode(handle) {
                let part = self.part(slot);
                seal(part.block(), part.generation(), part.end());
            }
        });
        for known in lock(&self.upper)
            .levels
            .iter()
            .flat_map(|level| level.values())
        {
            seal(known.block, known.generation, known.end);
        }
        if sealed {
            // PERSIST: the seals, before the pool counts as closed cleanly.
            pm.fence();
        }
    }
}

impl<K, V, M> Drop for ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A change may be half done: the next opening looks.
            self.root = None;
        }
        // A failure leaves seals as they were; `close` reports it.
        let _ = self.close_now();
    }
}
