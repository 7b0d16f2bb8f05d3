//! Making, opening and closing a store on a tree.

use super::counts::Counts;
use super::gate::Gate;
use super::ledger::Ledger;
use super::long::{self, SPACES};
use super::parts::{self, PARTS};
use super::sweep::{self, Sweep};
use super::{Core, TreeEngine};
use crate::bounds::Bounds;
use crate::catalogue::parse;
use crate::control::Control;
use crate::engine::Shares;
use crate::error::{Damage, StoreError, WriteError};
use crate::key::{CATALOGUE, split};
use crate::options::StoreOptions;
use crate::report::StoreRecovery;
use crate::root::{self, Format, StoreRoot};
use bristlecone_index::clustered::{
    self, ClusteredOptions, DEFAULT_PAGE_BYTES, HostedTree, PAGE_BYTES,
};
use bristlecone_pmem::pool::{Root, RootError};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, Pool};
use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};
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
    let counts = Arc::new(Counts::new::<M>(Arc::default()));
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
fn ready<M: Media>(root: &Root<M>, shares: &Shares) -> Arc<Counts> {
    let heap = root.heap();
    heap.begin_recovery();
    heap.finish_recovery();
    Arc::new(Counts::new::<M>(Arc::clone(&shares.feed)))
}

impl<M: Media> TreeEngine<M> {
    /// Makes an empty store, as the roots `name` and that of its tree. With `unfinished` it cannot
    /// be opened until that mark is removed.
    ///
    /// # Errors
    /// [`StoreError`]; no store is left behind.
    pub(crate) fn create(
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
        let root = root::create(pool, name)?;
        let counts = ready(&root, &shares);
        let observer = Arc::clone(&counts);
        let tree_options = ClusteredOptions { page_bytes };
        let tree = HostedTree::create(pool, index_name, &tree_options, observer)?;
        root::publish(&root, Format::Tree, 0, unfinished)?;
        Self::over((tree, counts), root, page_bytes, options, shares)
    }

    /// Opens the store of that root.
    ///
    /// # Errors
    /// [`StoreError`]
    pub(crate) fn open(
        pool: &Arc<Pool<M>>,
        store: StoreRoot<M>,
        options: &StoreOptions,
        shares: Shares,
    ) -> Result<Self, StoreError> {
        let StoreRoot {
            root, index_name, ..
        } = store;
        let page_bytes = page_bytes_of(pool, &index_name);
        let counts = ready(&root, &shares);
        let observer = Arc::clone(&counts);
        let tree_options = ClusteredOptions { page_bytes };
        let tree = HostedTree::open(pool, &index_name, &tree_options, observer)?;
        Self::over((tree, counts), root, page_bytes, options, shares)
    }

    fn over(
        (tree, counts): (HostedTree<M>, Arc<Counts>),
        root: Root<M>,
        page_bytes: u32,
        options: &StoreOptions,
        shares: Shares,
    ) -> Result<Self, StoreError> {
        let recovery = StoreRecovery {
            index: tree.recovery().clone(),
            in_order: tree.pool().info().was_clean,
            ..StoreRecovery::default()
        };
        let core = Arc::new(Core {
            tree,
            counts,
            ledger: Ledger::default(),
            gate: Gate::new(),
            sweep: Sweep::default(),
            control: Control::default(),
            catalogue: shares.catalogue,
            feed: shares.feed,
            wall: options.clock.clone(),
            now: AtomicU64::new(0),
        });
        core.load_catalogue()?;
        core.load_counts();
        // What cannot be read is reported by a check; its parts stay.
        let _ = core.find_lost_parts();
        let writable = !core.pm().read_only();
        let thread = match options.vacuum_every.filter(|_| writable) {
            Some(every) => Some(sweep::spawn(&core, every).map_err(StoreError::Thread)?),
            None => None,
        };
        Ok(Self {
            core,
            thread,
            recovery,
            page_bytes,
            root,
        })
    }
}

impl<M: Media> Core<M> {
    /// Reads the names of the keyspaces, and finds the numbers that have keys and no name: those of
    /// dropped keyspaces.
    ///
    /// # Errors
    /// [`StoreError::Damaged`]: a name cannot be read. Without it a keyspace cannot be told from a
    /// dropped one.
    fn load_catalogue(&self) -> Result<(), StoreError> {
        let mut known = lock(&self.catalogue.known);
        let bounds = Bounds::new(CATALOGUE, Bound::Unbounded, Bound::Unbounded);
        let mut wrong = None;
        // Nobody changes anything yet.
        let scanned = self.tree.scan_present(bounds.range(), |key, current| {
            if split(key).is_some_and(|(_, name)| name.is_empty()) {
                // The ledger's.
                return Ok(ControlFlow::Continue(()));
            }
            let (value, _) = super::value::decode(current.value()?).map_err(super::damaged)?;
            let entry = parse(key, value);
            let known_number = |id| known.by_name.values().any(|other| *other == id);
            match entry {
                Some((name, id)) if !known_number(id) => {
                    known.next = known.next.max(id + 1);
                    known.by_name.insert(name, id);
                    Ok(ControlFlow::Continue(()))
                }
                other => {
                    wrong = Some(match other {
                        Some((name, id)) => {
                            format!("keyspace {name:?} has number {id}, which another one has")
                        }
                        None => {
                            let key = key.escape_ascii();
                            format!("the catalogue's entry \"{key}\" is none")
                        }
                    });
                    Ok(ControlFlow::Break(()))
                }
            }
        });
        let damage = |what: String| {
            StoreError::Damaged(Damage::new(format!(
                "{what}; without the names of all keyspaces their keys cannot be told from dropped \
                 ones: nothing was taken away; `bristlecone export --skip-damaged` saves what can \
                 be read"
            )))
        };
        match scanned {
            Err(clustered::ReadError::Damaged(what)) => return Err(damage(what)),
            Err(e) => return Err(WriteError::from(super::read_error(None, e)).into()),
            Ok(()) => {}
        }
        if let Some(what) = wrong {
            return Err(damage(what));
        }
        known.next = known.next.max(CATALOGUE + 1);
        let named: BTreeSet<u32> = known.by_name.values().copied().collect();
        let numbers = self.numbers_with_keys();
        for number in numbers.iter().filter(|number| !named.contains(number)) {
            known.next = known.next.max(number.saturating_add(1));
            self.counts.dropped.add(*number, 0);
            self.sweep.add(*number, 0);
        }
        Ok(())
    }

    /// Returns the numbers of the keyspaces that have keys, the catalogue excepted: from each to
    /// the first key behind its own. Those in pages that cannot be read may be missing.
    fn numbers_with_keys(&self) -> BTreeSet<u32> {
        let mut numbers = BTreeSet::new();
        let mut next = (CATALOGUE + 1).to_be_bytes().to_vec();
        loop {
            let mut first = None;
            let range = (Bound::Included(&next[..]), Bound::Unbounded);
            // Nothing in it fails.
            let _ = self.tree.salvage(
                range,
                |key, _| {
                    first = Some(key.to_vec());
                    Ok(ControlFlow::Break(()))
                },
                |_, _| {},
            );
            let Some(first) = first else {
                return numbers;
            };
            let (number, after) = match split(&first) {
                Some((SPACES, rest)) => {
                    let number = split(rest).map_or(0, |(number, _)| number);
                    let [_, after] = long::spaces_of(number);
                    (number, after)
                }
                Some((PARTS, rest)) => {
                    let number = split(rest).map_or(0, |(number, _)| number);
                    let [_, after] = parts::parts_of(number);
                    (number, after)
                }
                Some((number, _)) => (number, (number + 1).to_be_bytes().to_vec()),
                None => return numbers,
            };
            numbers.insert(number);
            next = after;
        }
    }
}

impl<M: Media> Drop for TreeEngine<M> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.core.control.stop();
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
            // Without them the next session counts the keys.
            let _ = core.save_counts();
        }
    }
}
