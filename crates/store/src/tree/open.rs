//! Making, opening and closing a store on a tree.

use super::archive::{self, Archiving, Recorder};
use super::compact::Compaction;
use super::counts::Counts;
use super::gate::Gate;
use super::ledger::Ledger;
use super::memory;
use super::salvage::salvage;
use super::scrub::{self, Scrub};
use super::sweep::{self, Sweep};
use super::{Core, TreeEngine};
use crate::archive::Directory;
use crate::control::Control;
use crate::engine::{Shares, StorageEngine};
use crate::error::StoreError;
use crate::format::{self, StoreFormat};
use crate::options::StoreOptions;
use crate::report::{SalvageReport, Salvaged, StoreRecovery};
use crate::root::{self, StoreRoot};
use crate::wall::WallClock;
use bristlecone_index::clustered::{ClusteredOptions, DEFAULT_PAGE_BYTES, HostedTree, PAGE_BYTES};
use bristlecone_pmem::pool::{Root, RootError};
use bristlecone_pmem::{Media, Pool};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Name of the tree's design.
pub(crate) const DESIGN: &str = "clustered";

/// Returns the page size of a new tree: the one `asked` for, or the default.
///
/// # Errors
/// [`StoreError::NodeBytes`]
pub(crate) fn page_bytes(asked: Option<u32>) -> Result<u32, StoreError> {
    let asked = asked.unwrap_or(DEFAULT_PAGE_BYTES);
    if PAGE_BYTES.contains(&asked) {
        return Ok(asked);
    }
    Err(StoreError::NodeBytes {
        design: DESIGN,
        asked,
        there: PAGE_BYTES,
    })
}

/// Returns the page size of the tree in root `index_name`.
pub(super) fn page_bytes_of<M: Media>(pool: &Pool<M>, index_name: &str) -> u32 {
    let roots = pool.roots();
    let there = roots.iter().find(|info| info.name == index_name);
    there.map_or(DEFAULT_PAGE_BYTES, |info| info.kind.node_bytes)
}

/// Removes the tree that a crash left while a store was being made.
fn clear_remains<M: Media>(pool: &Arc<Pool<M>>, index_name: &str) -> Result<(), StoreError> {
    let roots = pool.roots();
    let Some(there) = roots.iter().find(|root| root.name == index_name) else {
        return Ok(());
    };
    let options = ClusteredOptions {
        page_bytes: there.kind.node_bytes,
    };
    let recorder = Recorder::new(None, WallClock::default());
    let counts = Counts::new::<M>(Arc::default(), recorder, WallClock::default());
    let counts = Arc::new(counts);
    let tree = HostedTree::<M>::open(pool, index_name, &options, counts)?;
    let empty = tree.is_empty();
    drop(tree);
    // Such a tree is empty. This one belongs to somebody else.
    if !empty.unwrap_or(false) {
        return Err(RootError::Exists(index_name.to_owned()).into());
    }
    pool.open_root(index_name, None)?.unpublish();
    Ok(())
}

/// Readies the heap of a store's root, which has no blocks, and returns the tree's observer.
fn ready<M: Media>(root: &Root<M>, options: &StoreOptions, shares: &Shares) -> Arc<Counts> {
    let heap = root.heap();
    heap.begin_recovery();
    heap.finish_recovery();
    let feed = Arc::clone(&shares.feed);
    let archive = options
        .archive
        .as_ref()
        .filter(|_| !root.pool().pm().read_only());
    let recorder = Recorder::new(archive, options.clock.clone());
    Arc::new(Counts::new::<M>(feed, recorder, options.clock.clone()))
}

/// Opens the archive of the store over that index, if it is to have one. `tokens`: those that the
/// store has of the archive with a number.
fn directory<M: Media>(
    pool: &Pool<M>,
    index_name: &str,
    options: &StoreOptions,
    tokens: &dyn Fn(u64) -> [u64; 2],
) -> Result<Option<Directory>, StoreError> {
    let writable = !pool.pm().read_only();
    let Some(archive) = options.archive.as_ref().filter(|_| writable) else {
        return Ok(None);
    };
    // Of all stores in the pool, this one.
    let mut identity = *pool.uuid().as_bytes();
    let name = crc32c::crc32c(index_name.as_bytes()).to_le_bytes();
    for (byte, by) in identity.iter_mut().zip(name) {
        *byte ^= by;
    }
    let opened = Directory::open(&archive.dir, identity, tokens);
    opened
        .map(Some)
        .map_err(|e| StoreError::Archive(Box::new(e)))
}

/// The format of a store on a clustered tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clustered;

impl<M: Media> StoreFormat<M> for Clustered {
    fn version(&self) -> u64 {
        format::CLUSTERED
    }

    fn create(
        &self,
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
        unfinished: bool,
        shares: Shares,
    ) -> Result<Box<dyn StorageEngine<M>>, StoreError> {
        let made = TreeEngine::create(pool, name, options, unfinished, shares)?;
        Ok(Box::new(made))
    }

    fn open(
        &self,
        pool: &Arc<Pool<M>>,
        store: StoreRoot<M>,
        options: &StoreOptions,
        shares: Shares,
    ) -> Result<Box<dyn StorageEngine<M>>, StoreError> {
        Ok(Box::new(TreeEngine::open(pool, store, options, shares)?))
    }

    fn salvage(
        &self,
        pool: &Arc<Pool<M>>,
        store: &StoreRoot<M>,
        now: u64,
        visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>,
    ) -> Result<SalvageReport, StoreError> {
        salvage(pool, store, now, visit)
    }
}

impl<M: Media> TreeEngine<M> {
    /// Makes an empty store, as the roots `name` and that of its tree. With `unfinished` it cannot
    /// be opened until that mark is removed.
    ///
    /// # Errors
    /// [`StoreError`]; no store is left behind.
    pub(super) fn create(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
        unfinished: bool,
        shares: Shares,
    ) -> Result<Self, StoreError> {
        let index_name = &root::index_root(name)?;
        let page_bytes = page_bytes(options.node_bytes)?;
        if pool.roots().iter().all(|root| root.name != name) {
            clear_remains(pool, index_name)?;
        }
        let directory = directory(pool, index_name, options, &|_| [0; 2])?;
        let root = root::create(pool, name)?;
        let counts = ready(&root, options, &shares);
        let observer = Arc::clone(&counts);
        let tree_options = ClusteredOptions { page_bytes };
        let tree = HostedTree::create(pool, index_name, &tree_options, observer)?;
        root::publish(&root, format::CLUSTERED, 0, unfinished)?;
        Self::over(
            (tree, counts),
            (root, page_bytes),
            directory,
            options,
            shares,
        )
    }

    /// Opens the store of that root.
    ///
    /// # Errors
    /// [`StoreError`]
    fn open(
        pool: &Arc<Pool<M>>,
        store: StoreRoot<M>,
        options: &StoreOptions,
        shares: Shares,
    ) -> Result<Self, StoreError> {
        let StoreRoot { root, index_name } = store;
        let page_bytes = page_bytes_of(pool, &index_name);
        let counts = ready(&root, options, &shares);
        let observer = Arc::clone(&counts);
        let tree_options = ClusteredOptions { page_bytes };
        let tree = HostedTree::open(pool, &index_name, &tree_options, observer)?;
        let tokens = |archive| root::tokens(&root, archive);
        let directory = directory(pool, &index_name, options, &tokens)?;
        Self::over(
            (tree, counts),
            (root, page_bytes),
            directory,
            options,
            shares,
        )
    }

    fn over(
        (tree, counts): (HostedTree<M>, Arc<Counts>),
        (root, page_bytes): (Root<M>, u32),
        directory: Option<Directory>,
        options: &StoreOptions,
        shares: Shares,
    ) -> Result<Self, StoreError> {
        let mut recovery = StoreRecovery {
            index: tree.recovery().clone(),
            in_order: tree.pool().info().was_clean,
            ..StoreRecovery::default()
        };
        let next = tree.first_stamp();
        let archive = options.archive.clone().zip(directory);
        let now = options.clock.now();
        let archiving = archive.map(|(options, there)| Archiving::new(options, there, next, now));
        let core = Arc::new(Core {
            tree,
            archiving,
            counts,
            ledger: Ledger::default(),
            gate: Gate::new(),
            sweep: Sweep::default(),
            compaction: Compaction::default(),
            scrub: Scrub::default(),
            control: Control::default(),
            catalogue: shares.catalogue,
            feed: shares.feed,
            wall: options.clock.clone(),
            compression: options.compression,
            now: AtomicU64::new(0),
            root,
        });
        core.load_names(&mut recovery)?;
        core.load_counts();
        core.find_lost_parts();
        let writable = !core.pm().read_only();
        // Dropping it ends the threads.
        let mut engine = Self {
            core,
            threads: Vec::new(),
            recovery,
            page_bytes,
        };
        let core = &engine.core;
        if let Some(every) = options.vacuum_every.filter(|_| writable) {
            let thread = sweep::spawn(core, every).map_err(StoreError::Thread)?;
            engine.threads.push(thread);
        }
        if let Some(most) = options.memory.filter(|_| writable) {
            let thread = memory::spawn(&engine.core, most).map_err(StoreError::Thread)?;
            engine.threads.extend(thread);
        }
        if let Some(bytes) = options.scrub.filter(|bytes| writable && *bytes > 0) {
            let thread = scrub::spawn(&engine.core, bytes).map_err(StoreError::Thread)?;
            engine.threads.push(thread);
        }
        let thread = archive::spawn(&engine.core).map_err(StoreError::Thread)?;
        engine.threads.extend(thread);
        Ok(engine)
    }
}

impl<M: Media> Drop for TreeEngine<M> {
    fn drop(&mut self) {
        self.core.control.stop();
        for thread in self.threads.drain(..) {
            // It ends. A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
        let core = &self.core;
        if !core.pm().read_only() {
            // `Store::close` reports the error. Subscribers get the last changes before the end.
            let _ = core.make_durable(core.applied());
        }
        core.feed.close();
        if !core.pm().read_only() && core.sound().is_ok() && !std::thread::panicking() {
            core.finish_archive();
            // Without them the next session counts the keys.
            let _ = core.save_counts();
        }
    }
}
