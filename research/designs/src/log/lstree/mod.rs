//! The log-structured B+-tree, btree-LS (Ni, Chen, Lu, Litz, Pang, Miller, Wu, UCSC-CRSS-20-01,
//! section 6.3): random writes become sequential ones.
//!
//! ```text
//! DRAM | inner nodes (`crate::inner`) --LNID--> mapping table --places--+
//! pool |                                                                v
//!      | log 0:  | segment |-->| segment |-->| segment: base(7) put(3) remove(7) split(3, 9) put(9) ...
//!      | log 1:  | segment |-->| segment: ...
//! ```
//!
//! A leaf is a number (LNID) and a chain of records in the logs: a base, which holds all of the
//! leaf, and the deltas after it. Every operation appends one record with one flush and one fence,
//! and persists nothing else. A full chain is replaced by a new base, or by one record with the
//! bases of two leaves.
//!
//! | file | holds | paper |
//! | --- | --- | --- |
//! | `record` | records | 6.3.1 |
//! | `log` | segments, appending | multiple logs |
//! | `table` | the mapping table | indirection for leaves only, prefetching |
//! | `read`, `scan` | searching a chain; scans | |
//! | `write` | insertion, update, removal, splits, emptied leaves | |
//! | `collect`, `reserve` | garbage collection, room in a full pool | GC tasks |
//! | `recovery`, `verify` | replay of the logs, and comparison with the table | replay threads |
//! | `bulk` | bulk load | |
//!
//! # Invariants
//! 1. A leaf's content is its newest record that holds the whole leaf (by sequence number), with
//!    the deltas whose numbers follow without a gap. The mapping table has the places of exactly
//!    these records.
//! 2. Keys of different leaves do not interleave, and inner nodes are built from the smallest keys.
//!    So no record needs a leaf's range, and unlinking an emptied leaf persists nothing.
//! 3. A removed leaf does not come back: a leaf without keys has an empty base, newer than all its
//!    other records, for as long as one of these is in a log.
//!
//! # Concurrency
//! As in [`crate::leaftree`]: version locks by LNID; readers validate, and writers lock, append,
//! change the mapping table and unlock. An append is durable before the table leads to it, so that
//! no thread acts on what a crash can undo. Lock order: leaf, log, spares, allocator. A collecting
//! thread takes the log's `collecting` first, and a thread that makes room in a full pool takes
//! `hopeless` before that. Two leaves are locked by a split, which alone knows the second leaf, and
//! by the move of a split's record, in the order of their locks. Segments are freed through the
//! epoch. Trees of numbers read without pinning, as ADR 5 says.
//!
//! # Crash states
//! 1. *Operation*: its record is whole or not there. A split is one record, so both leaves are
//!    there or neither.
//! 2. *Emptied leaf*: its chain ends in an empty base, so that recovery leaves it out.
//! 3. *Collection*: some records are there twice, with equal numbers; see `log`.
//! 4. *Long strings*: recovery frees the blocks that no chain's newest content leads to.
//! 5. *Bulk load*, before the root's word: the new directory and logs are free, because nothing
//!    leads to them.
//! 6. *Create*, before the root is published: opening frees the chunks of an unpublished root.

mod bulk;
mod collect;
mod log;
mod read;
mod record;
mod recovery;
mod reserve;
mod scan;
mod table;
mod verify;
mod write;

#[cfg(test)]
mod tests;

use crate::common::{self, check_node_bytes, check_pair, check_value};
use crate::content;
use crate::forward::{forward, forward_impls};
use crate::index::{
    DurableIndex, InsertError, OrderedIndex, RecoveryReport, RemoveError, TreeError, UpdateError,
};
use crate::inner::{InnerIndex, NODE_SEPARATORS};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use crate::version_lock::VersionLocks;
use bristlecone_pmem::pool::{Root, RootKind};
use bristlecone_pmem::{CommitError, Heap, Media, Pool, SpaceError};
use log::{DIRECTORY, LOGS, Logs, SEGMENT_HEADER};
use record::Reader;
use reserve::RESERVE;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use table::Table;
use write::Mode;

/// Root word: offset of the logs' directory.
const DIRECTORY_WORD: usize = 0;
/// Root word: bytes of a segment, and of the longest inline string (upper half).
const SHAPE_WORD: usize = 1;
/// Root word: a number that no other tree has, which salts checksums.
const SALT_WORD: usize = 2;
/// The bit that makes the number of bits set in the latter two words even.
const CHECK_BIT: u32 = 63;

/// Leaf sizes in bytes: 16 make an entry.
pub const NODE_BYTES: &[u32] = &[256, 512, 1024];
/// Maximum number of entries of a leaf.
const MAX_ENTRIES: usize = 64;

/// Choice of the log that a record is appended to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogChoice {
    /// The leaf's number decides, as in the paper.
    #[default]
    Leaf,
    /// Each thread has its own (threads share logs only if there are more threads than logs).
    Thread,
}

/// Options of a log-structured B+-tree. The pool stores only `leaf_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LsOptions {
    /// Bytes of a leaf, one of [`NODE_BYTES`]. A chain has an item for each 16 of them.
    pub leaf_bytes: u32,
    /// Number of logs that are appended to, 1 to 32.
    pub logs: u32,
    /// Choice of a record's log.
    pub log_choice: LogChoice,
    /// Number of deltas whose places the mapping table has room for; a longer chain is
    /// consolidated. 0 means half the leaf's entries. More deltas cost memory, make scans slower,
    /// and save writes where keys are updated.
    pub cached_deltas: u32,
    /// If true, a search reads only the deltas whose cached tag matches its key. Otherwise it reads
    /// all of them, newest first, as in the paper.
    pub tags: bool,
    /// Garbage that is tolerated, in percent of the live bytes.
    pub garbage_percent: u32,
    /// Garbage that is always tolerated, in bytes.
    pub garbage_bytes: u64,
    /// If true, writers collect garbage when there is more than that. Otherwise a thread of the
    /// program has to call [`LsTree::collect_garbage`] now and then, and writers collect only in a
    /// full pool.
    pub writers_collect: bool,
    /// True if an insertion appends its key without looking for it first, as the paper's Fill does.
    /// It then never refuses: of a key that is present the new value counts. Only for keys and
    /// values without records.
    pub blind: bool,
    /// Number of threads that replay the logs.
    pub recovery_threads: usize,
}

impl Default for LsOptions {
    fn default() -> Self {
        Self {
            leaf_bytes: 512,
            logs: 4,
            log_choice: LogChoice::Leaf,
            cached_deltas: 0,
            tags: true,
            garbage_percent: 50,
            garbage_bytes: 32 << 10,
            writers_collect: true,
            blind: false,
            recovery_threads: 1,
        }
    }
}

/// Counts since the tree was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LsStats {
    /// Deltas appended by operations.
    pub deltas: u64,
    /// Chains that an operation replaced by one base.
    pub rewrites: u64,
    /// Splits.
    pub splits: u64,
    /// Emptied leaves that were unlinked.
    pub unlinks: u64,
    /// Segments that were collected.
    pub collected: u64,
    /// Chains that collection replaced by one base.
    pub consolidated: u64,
    /// Records that collection moved as they were.
    pub moved: u64,
    /// Empty bases that were dropped with the last record of their leaf.
    pub forgotten: u64,
    /// Bytes of all appended records.
    pub appended_bytes: u64,
    /// Current number of sealed bytes that are not live (an estimate).
    pub garbage_bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    deltas: AtomicU64,
    rewrites: AtomicU64,
    splits: AtomicU64,
    unlinks: AtomicU64,
    collected: AtomicU64,
    consolidated: AtomicU64,
    moved: AtomicU64,
    forgotten: AtomicU64,
}

fn count(counter: &AtomicU64) {
    // ORDERING: Relaxed; a statistic.
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Dimensions that do not change while a tree is open.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Maximum number of items of a chain: pairs of its base, and deltas.
    entries: usize,
    /// Maximum number of deltas of a chain.
    deltas: usize,
    /// Bytes of a segment, a power of two.
    segment: u64,
    /// Bytes of the longest string that is kept in records.
    inline: usize,
    /// Number of logs that are appended to.
    logs: usize,
}

/// Returns the bytes of a segment, and of the longest inline string, of a new tree.
///
/// On a simulated medium a few dozen operations fill several segments.
fn new_shape(tiny: bool) -> (u64, usize) {
    if tiny { (1024, 32) } else { (64 << 10, 256) }
}

impl Shape {
    fn of(options: &LsOptions, tiny: bool, segment: u64, inline: usize) -> Self {
        let entries = options.leaf_bytes as usize / if tiny { 32 } else { 16 };
        let deltas = match options.cached_deltas as usize {
            0 => entries / 2,
            asked => asked.clamp(1, MAX_ENTRIES),
        };
        let logs = options.logs.clamp(1, LOGS as u32) as usize;
        Self {
            entries,
            deltas,
            segment,
            inline,
            logs: if tiny { logs.min(2) } else { logs },
        }
    }

    /// Returns true if a full leaf and another pair fit into a segment, in one record.
    fn fits(&self) -> bool {
        let pair = 16 + 2 * (8 + self.inline as u64).next_multiple_of(8);
        let most = record::HEADER + 8 + (self.entries as u64 + 1) * pair;
        most <= record::MAX_RECORD && most <= self.segment - SEGMENT_HEADER
    }

    fn word(&self) -> u64 {
        self.segment | (self.inline as u64) << 32
    }
}

/// The inner index of a tree on medium `M`.
type Inner<K, M> = InnerIndex<K, NODE_SEPARATORS, <M as bristlecone_pmem::media::Instrument>::Dram>;

/// A durable ordered index. See the module's head.
pub struct LsTree<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> {
    // The inner index comes first, so that it is dropped before the pool can be.
    inner: Inner<K, M>,
    locks: VersionLocks,
    table: Table<M::Dram>,
    logs: Logs<M>,
    options: LsOptions,
    shape: Shape,
    counters: Counters,
    /// Held by the thread that makes room: the bytes that had been appended when collecting
    /// everything made none.
    hopeless: Mutex<Option<u64>>,
    /// Number of removals that wait for a thread that makes room.
    waiting_removals: AtomicUsize,
    read_only: bool,
    report: RecoveryReport,
    heap: Heap<M>,
    /// `None` once closed.
    root: Option<Root<M>>,
    pool: Arc<Pool<M>>,
    kinds: PhantomData<fn(&K, &V)>,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> fmt::Debug for LsTree<K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LsTree")
            .field("pool", &self.pool)
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

/// Returns the entry of a tree of these types in the root table.
fn root_kind<K: Repr + ?Sized, V: Repr + ?Sized>(
    options: &LsOptions,
) -> Result<RootKind, TreeError> {
    let bytes = options.leaf_bytes;
    check_node_bytes(bytes, NODE_BYTES)?;
    Ok(common::root_kind::<K, V>("lstree", bytes))
}

/// Returns this thread's number.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // ORDERING: Relaxed; any distribution of numbers will do.
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    MINE.with(|mine| *mine)
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> LsTree<K, V, M> {
    /// True if readers follow words into logs or blocks.
    const RECORDS: bool = K::RECORDS || V::RECORDS;

    #[inline(always)]
    fn pm(&self) -> &M {
        self.pool.pm()
    }

    #[inline(always)]
    fn reader(&self) -> Reader<'_, M> {
        Reader::new(self.pool.pm(), self.shape.segment)
    }

    fn root(&self) -> &Root<M> {
        // Only `close_now` takes `root`, after which the tree is not used.
        self.root
            .as_ref()
            .unwrap_or_else(|| unreachable!("the tree is open"))
    }

    /// Returns the log of a leaf's records.
    #[inline]
    fn home(&self, lnid: u32) -> usize {
        match self.options.log_choice {
            // The high bits of the product with 2^32 divided by the golden ratio.
            LogChoice::Leaf => {
                let hash = u64::from(lnid.wrapping_mul(0x9E37_79B9));
                ((hash * self.shape.logs as u64) >> 32) as usize
            }
            LogChoice::Thread => thread_number() % self.shape.logs,
        }
    }

    fn close_now(&mut self) -> Result<(), CommitError> {
        let Some(root) = self.root.take() else {
            return Ok(());
        };
        if self.pm().read_only() {
            return Ok(());
        }
        content::seal::<K, V, M>(&root, self);
        // PERSIST: the sum, before the pool says that it was closed cleanly.
        self.pm().fence();
        self.pm().commit()
    }

    /// Makes what this thread fenced as durable as the pool's durability level promises.
    #[inline(always)]
    fn commit(&self) -> Result<(), CommitError> {
        self.pm().commit()
    }

    /// Returns counts since the tree was opened.
    pub fn ls_stats(&self) -> LsStats {
        // ORDERING: Relaxed; statistics.
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.counters;
        LsStats {
            deltas: get(&c.deltas),
            rewrites: get(&c.rewrites),
            splits: get(&c.splits),
            unlinks: get(&c.unlinks),
            collected: get(&c.collected),
            consolidated: get(&c.consolidated),
            moved: get(&c.moved),
            forgotten: get(&c.forgotten),
            appended_bytes: get(&self.logs.appended),
            garbage_bytes: self.logs.garbage().0,
        }
    }

    fn check_pair(&self, key: &K, value: &V) -> Result<(), InsertError> {
        check_pair(self.read_only, key, value)
    }

    /// Builds an empty tree in an unpublished root, and publishes it.
    fn publish_empty(&mut self) -> Result<(), TreeError> {
        let pm = self.pool.pm();
        if !self.logs.fill_reserve() {
            return Err(TreeError::Space(SpaceError::Capacity {
                wanted: RESERVE as u64 * self.shape.segment,
                capacity: pm.capacity(),
            }));
        }
        self.logs.write_directory();
        self.logs.begin(self.shape.logs)?;
        for (word, value) in [
            (DIRECTORY_WORD, link::word(self.logs.directory)),
            (SHAPE_WORD, link::evened(self.shape.word(), CHECK_BIT)),
            (SALT_WORD, self.logs.salt),
        ] {
            let word = self.root().word(word);
            // ORDERING: Relaxed; the root is not published.
            word.store(pm, value, Ordering::Relaxed);
            // PERSIST: as the directory; `publish` fences both.
            pm.flush_of(word);
        }
        self.root().publish();
        pm.commit().inspect_err(|_| self.root().unpublish())?;
        Ok(())
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> Drop for LsTree<K, V, M> {
    fn drop(&mut self) {
        // There is nothing to save; `close` reports a failure.
        let _ = self.close_now();
    }
}

impl<K, V, M> DurableIndex<K, V, M> for LsTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    type Options = LsOptions;

    /// Opening reads the logs in sequence; a snapshot would be nearly as long.
    const SNAPSHOT: bool = false;

    fn create(pool: &Arc<Pool<M>>, name: &str, options: &LsOptions) -> Result<Self, TreeError> {
        let root = pool.create_root(name, &root_kind::<K, V>(options)?)?;
        content::mark(&root, content::FORMAT_CHECKED);
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let tiny = pool.pm().tiny();
        let (segment, inline) = new_shape(tiny);
        let shape = Shape::of(options, tiny, segment, inline);
        debug_assert!(shape.fits(), "{shape:?}");
        let inner = InnerIndex::new(0, pool.pm().capacity()).map_err(TreeError::Memory)?;
        let directory = heap.alloc(DIRECTORY)?.get();
        // Memory may hold records that another tree left. (A simulation must be repeatable, so its
        // salt is fixed.)
        let salt = if M::TRACED {
            0x7A3C_59E1_0D62_B4F8
        } else {
            RandomState::new().hash_one(pool.uuid().as_bytes())
        };
        let salt = link::evened(salt, CHECK_BIT);
        let generations = Logs::<M>::no_generations();
        let logs = Logs::new(&heap, directory, (segment, salt), generations);
        let table = Table::new(shape.deltas);
        table.set_numbers(1, Vec::new());
        let mut tree = Self::assemble(inner, table, logs, *options, shape, root, heap);
        let made = tree.publish_empty();
        if made.is_err() {
            tree.logs.discard(None);
            tree.heap.trim();
            // There is no such tree.
            tree.root = None;
        }
        made.map(|()| tree)
    }

    fn open(pool: &Arc<Pool<M>>, name: &str, options: &LsOptions) -> Result<Self, TreeError> {
        let root = pool.open_root(name, Some(&root_kind::<K, V>(options)?))?;
        content::check_version(&root, content::FORMAT_CHECKED)?;
        let mut tree = recovery::open::<K, V, M>(root, options)?;
        if let Err(e) = content::compare::<K, V, M>(tree.root(), &tree) {
            // The sum stays for the next opening.
            tree.root = None;
            return Err(e);
        }
        Ok(tree)
    }

    fn recovery(&self) -> &RecoveryReport {
        &self.report
    }

    fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    fn close(mut self) -> Result<(), CommitError> {
        self.close_now()
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> LsTree<K, V, M> {
    fn assemble(
        inner: Inner<K, M>,
        table: Table<M::Dram>,
        logs: Logs<M>,
        options: LsOptions,
        shape: Shape,
        root: Root<M>,
        heap: Heap<M>,
    ) -> Self {
        let pool = Arc::clone(root.pool());
        Self {
            inner,
            locks: VersionLocks::new(),
            table,
            logs,
            options,
            shape,
            counters: Counters::default(),
            hopeless: Mutex::new(None),
            waiting_removals: AtomicUsize::new(0),
            read_only: pool.pm().read_only(),
            report: RecoveryReport::default(),
            heap,
            root: Some(root),
            pool,
            kinds: PhantomData,
        }
    }
}

impl<K, V, M> OrderedIndex<K, V> for LsTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn insert(&self, key: &K, value: &V) -> Result<(), InsertError> {
        self.check_pair(key, value)?;
        if self.write(key, value, Mode::Insert)? {
            return Err(InsertError::KeyExists);
        }
        Ok(self.commit()?)
    }

    fn upsert(&self, key: &K, value: &V) -> Result<bool, InsertError> {
        self.check_pair(key, value)?;
        let there = self.write(key, value, Mode::Upsert)?;
        self.commit()?;
        Ok(there)
    }

    fn update(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        check_value(self.read_only, value)?;
        if !self.write(key, value, Mode::Update)? {
            return Err(UpdateError::NotFound);
        }
        Ok(self.commit()?)
    }

    fn remove(&self, key: &K) -> Result<bool, RemoveError> {
        if self.read_only {
            return Err(RemoveError::ReadOnly);
        }
        self.take_out(key)
    }

    forward!(lookups, lookup_batches, insert_batches, scans, checks);
}

forward_impls!(LsTree<K, V, M>, KeyRepr, Repr);
