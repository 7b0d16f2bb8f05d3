//! The Bw-Tree (Levandoski, Lomet, Sengupta, ICDE 2013), volatile, with which the BzTree paper
//! compares BzTree.
//!
//! The Bw-Tree is a lock-free B-link tree. Pages have numbers, and a *mapping table* leads from
//! number to page. One compare-and-swap of its slot replaces a page, wherever that lies. A change
//! is a *delta* on top of the page's old content. When a chain of deltas has become long, it is
//! *consolidated* into a new base node. No memory that other threads can see is ever stored to,
//! except slots.
//!
//! ```text
//!            mapping table        root -> | inner node: children are page numbers |
//!            | slot 1 | -> delta -> delta -> base node                   (page.rs)
//!            | slot 2 | -> base node             | high key, right sibling (a number) |
//! ```
//!
//! All of it is in DRAM, outside of the pool. The pool has the records of byte strings, and a root
//! that says that there was a tree. The tree cannot be opened again.
//!
//! | file | holds |
//! | --- | --- |
//! | `table` | the mapping table |
//! | `page` | deltas and base nodes |
//! | `find` | searching chains, the descent |
//! | `modify` | insert, upsert, update, remove |
//! | `consolidate` | replacing a chain by one base node, and a large base node by two |
//! | `modification` | splits, merges, growth and shrinking, as steps between pages |
//! | `scan`, `bulk`, `check` | scans and batches; bulk load; statistics, verification, freeing |
//!
//! # Structure modifications
//! Each step is one compare-and-swap of one page and leaves a sound tree.
//!
//! *Split* of page L, which has too many entries when it is consolidated:
//! 1. A new page R gets the upper half. A `Split` delta on L, in the same exchange as the new base
//!    node, ends L's range at separator S and makes R its right sibling. A search for keys from S
//!    on goes right from L.
//! 2. An `IndexInsert` delta (S, R) goes on the parent. If L was the root, a new root of both is
//!    made.
//!
//! A thread that is about to consolidate L, or that goes right from L to write, does step 2 first
//! if it is not done. So a chain has at most one `Split` or `Merge`, and nothing is left to do for
//! a page whose chain has none.
//!
//! *Merge* of page R, with few entries, into its left sibling L, where R is not its parent's first
//! child (a first child takes over its right sibling's entries instead) and L's chain has no
//! `Split`:
//! 1. An `IndexDelete` delta goes on the parent: it leads to L for keys from S on, and L leads on
//!    to R, as if R had been split off L and step 2 had not been done yet. The exchanged chain
//!    itself shows that R is not the first child. The parent is consolidated.
//! 2. A `Remove` delta goes on R's base node, so that nothing can be added. Readers read the
//!    content below it. If R has grown meanwhile, its entry is put back into the parent instead.
//! 3. A `Merge` delta on L leads to R's base node, and L's range ends where R's did. L is
//!    consolidated.
//!
//! A writer that comes to R between 2 and 3 does step 3. A root with one child gets a `Remove`, and
//! the root word is changed to its child. Removed pages are freed, and their numbers reused, once
//! no pinned thread can know them.
//!
//! *Where this differs from the Bw-Tree of the paper.* The paper merges in the order `Remove`,
//! `Merge`, parent. There the parent may be split at S while R is being removed. R is then the
//! parent's first child, so that no entry of this node can take over its keys; the open Bw-Tree
//! (Wang et al. 2018) locks the parent with an abort delta to prevent it. With the parent first,
//! nothing has to be locked, and each page still needs one exchange. A split is installed together
//! with the base node that was found to be too large, and not on top of it by another exchange. The
//! root is a word that names a page, and not a page with a fixed number. There is no log-structured
//! store below: this is the Bw-Tree as a main-memory index, as the BzTree paper uses it.
//!
//! # Invariants
//! 1. Pages of a level form a list by right siblings; each begins where the one before it ends. A
//!    level's ranges cover all keys.
//! 2. The entries of an inner node lead to pages of the level below; the page of an entry (S, P)
//!    begins at S. Pages without an entry are reached through their left siblings. At rest, every
//!    page has its entry.
//! 3. A page's number belongs to one level until it is released.
//! 4. A byte-string separator is a record of its own. It is freed when the leaves on both its sides
//!    are merged and no chain in the table has it. Upper levels have lost it before, since a first
//!    child is not merged.
//!
//! # Concurrency
//! No operation waits for another: an exchange fails only because another has succeeded. All
//! threads are pinned (`crossbeam-epoch`) while they are in the tree. Replaced chains are freed
//! when every thread that was pinned then has left. So within one operation a page's number means
//! one page, and an address one node.
//!
//! *Step 2 of a split is never done late.* A delayed helper could put R's entry into the parent
//! after R was removed. Therefore a helper reads the parent first, and then whether L's chain still
//! has that `Split`. The thread that removes R has seen that it has not, before it changes the
//! parent. So a helper either sees that the `Split` is gone, or its exchange of the parent fails
//! because the parent has changed meanwhile.
//!
//! *Readers of removed pages.* A reader that has R's number got it from L or the parent before R
//! was merged. The content under R's `Remove` is what R had until that moment, which lies within
//! the reader's operation.
//!
//! # Crash states
//! None: nothing of the tree survives its process.

mod bulk;
mod check;
mod consolidate;
mod find;
mod modification;
mod modify;
mod page;
mod scan;
mod table;

#[cfg(test)]
mod tests;

use crate::common::{self, check_node_bytes, check_pair, check_value};
use crate::forward::{forward, forward_impls};
use crate::index::{
    DurableIndex, IfPresent, InsertError, OrderedIndex, RecoveryReport, RemoveError, TreeError,
    UpdateError,
};
use crate::repr::{KeyRepr, Repr};
use crate::sync::AtomicU64;
use bristlecone_pmem::pool::{Root as PoolRoot, RootKind};
use bristlecone_pmem::{CommitError, Heap, Media, Pool};
use page::BASE_BYTES;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use table::Table;

/// Bytes of a full base node.
pub const NODE_BYTES: &[u32] = &[128, 256, 512, 1024, 2048, 4096, 8192];

/// Options of a Bw-Tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BwOptions {
    /// Bytes of a full base node, one of [`NODE_BYTES`]. The BzTree paper has 1 KB (section 7).
    pub node_bytes: u32,
    /// Number of deltas from which on a leaf is consolidated (1 to 200).
    pub leaf_chain: u8,
    /// Number of deltas from which on an inner node is consolidated (1 to 200).
    pub inner_chain: u8,
    /// Maximum number of entries of a page, at least 3; `None` for as many as fit. A small maximum
    /// makes small trees high, for tests.
    pub most_entries: Option<usize>,
}

impl Default for BwOptions {
    fn default() -> Self {
        Self {
            node_bytes: 1024,
            leaf_chain: 8,
            inner_chain: 2,
            most_entries: None,
        }
    }
}

/// A volatile Bw-Tree. See the module's head.
pub struct BwTree<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> {
    /// A [`find::Root`].
    root: AtomicU64,
    table: Arc<Table>,
    most_entries: usize,
    most_children: usize,
    leaf_chain: u8,
    inner_chain: u8,
    report: RecoveryReport,
    heap: Heap<M>,
    /// Reserves the name.
    _named: PoolRoot<M>,
    pool: Arc<Pool<M>>,
    kinds: PhantomData<fn(&K, &V)>,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> fmt::Debug for BwTree<K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BwTree")
            .field("root", &self.root())
            .field("most_entries", &self.most_entries)
            .finish_non_exhaustive()
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BwTree<K, V, M> {
    fn root_kind(options: &BwOptions) -> RootKind {
        common::root_kind::<K, V>("bwtree", options.node_bytes)
    }

    fn check_options(options: &BwOptions) -> Result<(), TreeError> {
        check_node_bytes(options.node_bytes, NODE_BYTES)
    }

    #[inline(always)]
    fn pm(&self) -> &M {
        self.pool.pm()
    }

    #[inline(always)]
    fn check_pair(&self, key: &K, value: &V) -> Result<(), InsertError> {
        check_pair(false, key, value)
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> Drop for BwTree<K, V, M> {
    fn drop(&mut self) {
        self.free_pages();
    }
}

impl<K, V, M> DurableIndex<K, V, M> for BwTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    type Options = BwOptions;

    const SNAPSHOT: bool = false;

    /// As [`DurableIndex::create`], but nothing of the index survives this value.
    fn create(pool: &Arc<Pool<M>>, name: &str, options: &BwOptions) -> Result<Self, TreeError> {
        Self::check_options(options)?;
        let named = pool.create_root(name, &Self::root_kind(options))?;
        let heap = named.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        named.publish();
        if let Err(e) = pool.pm().commit() {
            named.unpublish();
            return Err(e.into());
        }
        let table = Arc::new(Table::new());
        let most = options.most_entries.unwrap_or(usize::MAX).max(3);
        let bytes = options.node_bytes as usize - BASE_BYTES;
        Ok(Self {
            root: AtomicU64::new(Self::empty_leaf(&table).0),
            table,
            most_entries: most.min(bytes / 16),
            most_children: most.min(bytes / 12),
            leaf_chain: options.leaf_chain.clamp(1, 200),
            inner_chain: options.inner_chain.clamp(1, 200),
            report: RecoveryReport::default(),
            heap,
            _named: named,
            pool: Arc::clone(pool),
            kinds: PhantomData,
        })
    }

    /// # Errors
    /// [`TreeError::Volatile`] if there was such a tree.
    fn open(pool: &Arc<Pool<M>>, name: &str, options: &BwOptions) -> Result<Self, TreeError> {
        Self::check_options(options)?;
        pool.open_root(name, Some(&Self::root_kind(options)))?;
        Err(TreeError::Volatile)
    }

    fn recovery(&self) -> &RecoveryReport {
        &self.report
    }

    fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    fn close(self) -> Result<(), CommitError> {
        Ok(())
    }
}

impl<K, V, M> OrderedIndex<K, V> for BwTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn insert(&self, key: &K, value: &V) -> Result<(), InsertError> {
        self.check_pair(key, value)?;
        self.put(key, value, IfPresent::Refuse).map(|_| ())
    }

    fn upsert(&self, key: &K, value: &V) -> Result<bool, InsertError> {
        self.check_pair(key, value)?;
        self.put(key, value, IfPresent::Replace)
    }

    fn update(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        check_value(false, value)?;
        self.replace(key, value)
    }

    fn remove(&self, key: &K) -> Result<bool, RemoveError> {
        self.take_away(key)
    }

    #[inline]
    fn get_with<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        let guard = &crossbeam_epoch::pin();
        let (_, head) = self.leaf(self.to_key(key), guard);
        let (_, value) = self.find(head, key, key.hash())?;
        V::read(self.pm(), value, f)
    }

    forward!(lookup_batches, scans, checks);
}

forward_impls!(BwTree<K, V, M>, KeyRepr, Repr);
