//! Making, opening and closing a store of version records.

use crate::NvStore;
use crate::clock::Clock;
use crate::commit::Committer;
use crate::damaged::DamagedEntries;
use crate::engine::Records;
use crate::horizon::Snapshots;
use crate::index::{self, Opened};
use crate::read::Reader;
use crate::record::MIN_BLOCK;
use crate::recovery::Walk;
use crate::slots::Slots;
use crate::stripes::Stripes;
use crate::vacuum::{self, Vacuum};
use bristlecone_index::engine::{Engine, EngineKind};
use bristlecone_index::{TreeError, content};
use bristlecone_pmem::pool::{Root, RootError};
use bristlecone_pmem::{Heap, Media, POff, Pool};
use bristlecone_store::engine::{
    Dropped, NV_STORE, Shares, StoreRoot, WORD_OPEN, WORD_OWN, create_root, index_root,
    publish_root, root_word,
};
use bristlecone_store::{StoreError, StoreOptions, StoreRecovery};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// [`WORD_OPEN`] while the store is open for writing, and afterwards unless it was closed in order.
const OPEN: u64 = 1;
/// [`WORD_OPEN`] of a store that was closed in order. In one that only earlier builds have written
/// the word is 0, which says neither.
const CLOSED_IN_ORDER: u64 = 2;

/// The parts of a store that differ between a new one and one that is opened.
struct Parts<M: Media> {
    index: Box<dyn Engine>,
    clock: Clock,
    stripes: Stripes,
    slots: Slots,
    damaged: DamagedEntries,
    heap: Heap<M>,
}

impl<M: Media> Parts<M> {
    fn assemble(self, options: &StoreOptions, shares: Shares) -> Committer<M> {
        let reader = Reader {
            index: self.index,
            clock: self.clock,
            snapshots: Snapshots::new(),
            slots: self.slots,
            dropped: Dropped::default(),
            damaged: self.damaged,
            wall: options.clock.clone(),
            heap: self.heap,
        };
        Committer {
            vacuum: Arc::new(Vacuum::new(reader, self.stripes)),
            catalogue: shares.catalogue,
            feed: shares.feed,
        }
    }
}

impl<M: Media> Records<M> {
    /// Makes an empty store, as the roots `name` and that of its index. With `unfinished` it cannot
    /// be opened until that mark is removed.
    ///
    /// # Errors
    /// [`StoreError`]; no store is left behind.
    pub(crate) fn create(
        format: &NvStore<'_, M>,
        pool: &Arc<Pool<M>>,
        (name, unfinished): (&str, bool),
        options: &StoreOptions,
        shares: Shares,
    ) -> Result<Self, StoreError> {
        let engine = *format.kinds.first().ok_or_else(|| StoreError::NoDesign {
            design: "any".to_owned(),
            there: Vec::new(),
        })?;
        let index_name = index_root(name)?;
        let info = engine.info();
        let node_bytes = index::node_bytes(info, options.node_bytes)?;
        if pool.roots().iter().all(|root| root.name != name) {
            clear_remains(pool, &index_name, engine)?;
        }
        let root = create_root(pool, name)?;
        let index = engine.create(pool, &index_name, node_bytes, format.recovery_threads)?;
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let pm = pool.pm();
        let (slots, table) = Slots::create(&heap)?;
        publish_root(&root, NV_STORE, table, unfinished)?;
        let parts = Parts {
            index,
            clock: Clock::on(pm, 0),
            stripes: Stripes::new(pm),
            slots,
            damaged: DamagedEntries::default(),
            heap,
        };
        let committer = parts.assemble(options, shares);
        committer.load_catalogue(0, 0)?;
        let index = (info.name.to_owned(), node_bytes);
        Self::run(committer, (root, index), options, StoreRecovery::default())
    }

    /// Opens the store of that root, whose index is of a design of the format.
    ///
    /// # Errors
    /// [`StoreError`]
    pub(crate) fn open(
        format: &NvStore<'_, M>,
        pool: &Arc<Pool<M>>,
        store: StoreRoot<M>,
        options: &StoreOptions,
        shares: Shares,
    ) -> Result<Self, StoreError> {
        let StoreRoot { root, index_name } = store;
        let pm = pool.pm();
        let table = root_word(pm, root.word(WORD_OWN));
        let Opened {
            index,
            design,
            node_bytes,
            differs,
        } = index::open(
            pool,
            &index_name,
            &format.kinds,
            format.recovery_threads.max(1),
        )?;
        let heap = root.heap();
        heap.begin_recovery();
        let slots = Slots::open(pm, table)?;
        let stripes = Stripes::new(pm);
        let threads = format.recovery_threads;
        let in_order = root_word(pm, root.word(WORD_OPEN)) == CLOSED_IN_ORDER;
        let closed = pool.info().was_clean && in_order;
        let mut walk = Walk::of(&*index, &heap, &slots, &stripes, (table, threads), closed)?;
        if let Some(what) = differs {
            if walk.report.damaged == 0 {
                return Err(TreeError::Corrupt(what).into());
            }
            if !pm.read_only() {
                // The walk has found it, and the damage stays where it is. The index is opened
                // again without that sum.
                drop((walk, index));
                content::forget(&pool.open_root(&index_name, None)?);
                let store = StoreRoot { root, index_name };
                return Self::open(format, pool, store, options, shares);
            }
        }
        walk.apply_fixes(&*index, &stripes)?;
        let damaged = DamagedEntries::new(std::mem::take(&mut walk.damaged_entries));
        let (floor, largest, mut report) = (walk.floor, walk.largest, walk.report);
        report.index = index.recovery().clone();
        let parts = Parts {
            index,
            clock: Clock::on(pm, floor),
            stripes,
            slots,
            damaged,
            heap,
        };
        let committer = parts.assemble(options, shares);
        committer.load_catalogue(largest, report.damaged)?;
        Self::run(committer, (root, (design, node_bytes)), options, report)
    }

    /// Starts the vacuum's thread of a store that is otherwise open.
    fn run(
        committer: Committer<M>,
        (root, (design, node_bytes)): (Root<M>, (String, u32)),
        options: &StoreOptions,
        recovery: StoreRecovery,
    ) -> Result<Self, StoreError> {
        let writable = !committer.pm().read_only();
        if writable {
            // PERSIST: (in `publish`) the store is open, and the stamps that recovery wrote, before
            // any commit of it can be in progress.
            root.word(WORD_OPEN).publish(committer.pm(), OPEN);
        }
        let thread = match options.vacuum_every.filter(|_| writable) {
            Some(every) => {
                Some(vacuum::spawn(&committer.vacuum, every).map_err(StoreError::Thread)?)
            }
            None => None,
        };
        let deletion_reserve = reserve_for_deletions(&committer.heap);
        Ok(Self {
            committer,
            thread,
            recovery,
            design,
            node_bytes,
            deletion_reserve,
            root,
        })
    }
}

impl<M: Media> Drop for Records<M> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.control.stop();
            // It ends. A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
        if !self.pm().read_only() {
            // `Store::close` reports the error. Subscribers get the last changes before the end.
            let _ = self.make_durable(self.clock.applied());
        }
        self.feed.close();
        // After a failed commit, or a panic, uncommitted records may be left, as after a crash.
        if !self.pm().read_only() && self.clock.sound().is_ok() {
            let word = self.root.word(WORD_OPEN);
            // ORDERING: Relaxed; nobody else has the store.
            word.store(self.pm(), CLOSED_IN_ORDER, Ordering::Relaxed);
            // PERSIST: the store was closed in order. The index fences it when it closes, before
            // the pool counts as clean. Without that the next opening would take damage for what a
            // crash left, as it does after a crash.
            self.pm().flush_of(word);
        }
    }
}

/// Allocates [`Records::deletion_reserve`].
fn reserve_for_deletions<M: Media>(heap: &Heap<M>) -> u64 {
    if heap.pool().pm().read_only() {
        return 0;
    }
    heap.alloc(MIN_BLOCK).map_or(0, POff::get)
}

/// Removes the index that a crash left while a store was being made.
fn clear_remains<M: Media>(
    pool: &Arc<Pool<M>>,
    index_name: &str,
    kind: &dyn EngineKind<M>,
) -> Result<(), StoreError> {
    if !pool.roots().iter().any(|root| root.name == index_name) {
        return Ok(());
    }
    let Opened { index, differs, .. } = index::open(pool, index_name, &[kind], 1)?;
    if let Some(what) = differs {
        return Err(TreeError::Corrupt(what).into());
    }
    // Such an index is empty. This one belongs to somebody else.
    if !index::is_empty(&*index) {
        return Err(RootError::Exists(index_name.to_owned()).into());
    }
    drop(index);
    pool.open_root(index_name, None)?.unpublish();
    Ok(())
}
