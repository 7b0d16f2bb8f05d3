//! The clustered tree: a B-link tree whose leaf pages hold what they index, appended to with one
//! fence a change.
//!
//! ```text
//! DRAM   inner index: separator -> part, or page that is not loaded
//!          |                         part: locks, heads, fingerprints, places of one leaf page
//!          v
//! pool   root slot -> page table: number -> block      8 bytes a page, one store replaces a page
//!                       |
//!                       v
//!        leaf page | header, fences | sorted base | tail: group, group, ...
//!        inner page, of the same form: separator -> number of a page
//! ```
//!
//! It takes from the papers: one fence an insertion, fingerprints (LB+-Tree), leaves that are
//! appended to (NV-Tree), a sorted base and consolidation (BzTree), deltas, and a table of page
//! numbers (btree-LS). New are pages whose groups carry sums, so that a change needs no other
//! mark to count, and an inner index that is filled from inner pages as it is used.
//!
//! | file | holds |
//! | --- | --- |
//! | `index`, `open`, `verify`, `bulk` | the contract; making and opening; checking; loading sorted input |
//! | `write`, `modify`, `batch`, `changes`, `group`, `read`, `scan` | operations on leaf pages |
//! | `snapshot`, `serial` | reading at a time, and writing after that |
//! | `versions`, `shown` | what is kept for readers at a time; which changes have been shown |
//! | `load` | making a page known that is touched for the first time |
//! | `upper` | inner pages |
//! | `replace`, `merge`, `clear` | consolidation, split, growth of the root; merging and its log; removing a range by merging |
//! | `part`, `order` | what DRAM holds of a leaf page; a page in key order |
//! | `table`, `counter`, `root` | page table; generations and stamps; root words |
//! | `slots`, `sessions` | commit slots; what they said when a crash ended a session |
//! | `lazy`, `hosted` | a tree whose pages are loaded as they are touched; one under a store |
//! | `evict` | giving memory back |
//! | `scrub` | comparing pages and values with their sums while the tree is in use |
//! | `since` | pages that may have changed since a mark |
//! | `marks`, `observe` | up to when changes are durable; telling a store of changes |
//! | `outer` | long values, in blocks of their own |
//! | `page`, `tail`, `find`, `image` | reading a page, searching it, building one |
//! | `layout`, `place`, `stored` | the layout of a page; places in it; values in it |
//! | `checked`, `sum` | words with a check; CRC-32C |
//!
//! # Invariants
//! 1. Pages of a level are in key order and linked to the right. The high fence of each is the low
//!    fence of the next. The first has no low fence, the last no high one.
//! 2. Every key of a page is in `[low fence, high fence)`. The newest record of a key decides: the
//!    tail's last one, else the base's.
//! 3. The root is page 1, always. A separator leads to the page whose low fence it is, one level
//!    down. A page whose separator is missing is reached from the page to its left (B-link).
//! 4. Ownership and birth of pages: `table`; of outer values: `outer`.
//! 5. The inner index leads each key to the leaf page that the key belongs to, or to a page above
//!    it which is not loaded.
//!
//! # Concurrency
//! 1. *Readers* of pages that are loaded take no lock and store nothing that is persistent. They
//!    find the part through the inner index, read its version, validate the inner index, search,
//!    and validate the version (`part`, `inner`). Searches of numbers are not pinned; what they
//!    read is type-stable.
//! 2. *Writers* look first, and take the part's writer's lock at the version at which they looked,
//!    or look again under it. They hold it until the change is durable. So nobody acts on what a
//!    crash can undo, and at most the last group of a page is in flight.
//! 3. *Batches* and merges lock several pages, from left to right. A thread that holds a lock waits
//!    only for the page that a key to the right of it belongs to now.
//! 4. *Inner pages* are changed under one lock, `upper`, which is taken after a part's. Loading
//!    is done under it too. Its holder takes no stamp and waits for no page: threads that have
//!    a stamp that is not shown may wait for it.
//! 5. The locks of `versions` come last: `times`, then `history`.
//!
//! # Crash states
//! 1. *A group in flight*: nothing of it, a torn group, which its sum tells, or the group. Opening
//!    takes the head off a torn group: else the next append, if it had the same last lines, could
//!    make it whole again in another crash.
//! 2. *A replacement*, before its word is durable: blocks that no word names, newborn words
//!    (`table`).
//! 3. *A split*, before the separator is in the parent: a page that is found by going right. The
//!    thread that goes right adds the separator.
//! 4. *An atomic batch in several pages*: groups whose slot does not say their stamp (`slots`,
//!    `sessions`).
//! 5. *Making the tree*: chunks of a root that is not published.
//!
//! Groups are judged by their sums and not by the order of stores, so x86-64, AArch64 and durable
//! caches are alike here. Torn groups and damaged ones look alike in one place only: at the
//! end of a page, behind its seal.

mod ascend;
mod away;
mod batch;
mod bulk;
mod changes;
mod checked;
mod clear;
mod closed;
mod compact;
mod counter;
mod damaged;
mod evict;
mod find;
mod group;
mod hosted;
mod image;
mod index;
mod layout;
mod lazy;
mod load;
mod marks;
mod memory;
mod mend;
mod merge;
mod modify;
mod observe;
mod open;
mod order;
mod outer;
mod page;
mod part;
mod place;
mod read;
mod replace;
mod rescue;
mod room;
mod root;
mod salvaged;
mod scan;
mod scrub;
mod serial;
mod sessions;
mod shown;
mod since;
mod slots;
mod snapshot;
mod spread;
mod stored;
mod sum;
mod table;
mod tail;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_clear;
#[cfg(test)]
mod tests_closed;
#[cfg(test)]
mod tests_compact;
#[cfg(test)]
mod tests_evict;
#[cfg(test)]
mod tests_hosted;
#[cfg(test)]
mod tests_lazy;
#[cfg(test)]
mod tests_modify;
#[cfg(test)]
mod tests_outer;
#[cfg(test)]
mod tests_rescue;
#[cfg(test)]
mod tests_salvaged;
#[cfg(test)]
mod tests_scrub;
#[cfg(test)]
mod tests_serial;
#[cfg(test)]
mod tests_since;
#[cfg(test)]
mod tests_snapshots;
#[cfg(test)]
mod tests_spread;
mod times;
mod upper;
mod verify;
mod versions;
mod visit;
mod write;
mod wrong;

use crate::arena::Arena;
use crate::contract::RecoveryReport;
use crate::inner::{InnerIndex, NODE_SEPARATORS};
use crate::repr::{KeyRepr, Repr};
use crate::sync::Retired;
use bristlecone_pmem::log::Logs;
use bristlecone_pmem::media::Instrument;
use bristlecone_pmem::pool::{DataKind, Root};
use bristlecone_pmem::{CommitError, Heap, Media, Pool, SpaceError, planted};
pub use compact::Compacted;
use counter::Counter;
pub use damaged::Lost;
pub use hosted::{ChangeError, Current, HostedTree, KeyRange, Pinned, Step, When};
use layout::Seed;
pub use lazy::LazyTree;
use marks::Marks;
pub use merge::Gone;
pub use modify::{Modification, Modified};
pub use observe::{Glimpse, Observed, Observer};
use page::Page;
use part::Part;
pub use root::FORMAT;
pub use scrub::Scrubbed;
pub use serial::Reads;
use sessions::Sessions;
use shown::Shown;
pub use since::{Mark, PageRange};
use slots::Slots;
pub use snapshot::{Snapshot, WriteError};
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use table::Table;
use upper::Upper;
use versions::Versions;
pub use visit::{EntryVisitor, Visits};

/// Page sizes in bytes.
pub const PAGE_BYTES: &[u32] = &[512, 1024, 2048, 4096, 8192, 16384];
/// The page size where none is asked for.
pub const DEFAULT_PAGE_BYTES: u32 = 4096;

/// The latest stamp of a part that is no page's: later than those of all changes, and not
/// [`NOW`](scan::NOW).
const FREE: u64 = u64::MAX - 1;

/// Longest byte-string key in bytes. Three of them, and their values, fit the largest page.
pub const MAX_KEY: usize = 2 << 10;

/// Longest byte-string value in bytes: 24 less than 64 MiB less 64 KiB.
pub const MAX_VALUE: usize = outer::MAX_OUTER;

/// How a clustered tree is made and opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusteredOptions {
    /// Bytes of a page: one of [`PAGE_BYTES`].
    pub page_bytes: u32,
}

impl Default for ClusteredOptions {
    fn default() -> Self {
        Self {
            page_bytes: DEFAULT_PAGE_BYTES,
        }
    }
}

/// The inner index of a tree on medium `M`.
type Inner<K, M> = InnerIndex<K, NODE_SEPARATORS, <M as Instrument>::Dram>;

/// A clustered tree. See the module's head.
pub struct ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    // Before the pool, so that they are dropped first.
    inner: Inner<K, M>,
    parts: Arena<Part>,
    table: Table,
    upper: Mutex<Upper>,
    generations: Counter,
    stamps: Counter,
    /// Which stamps' changes have been shown.
    shown: Shown,
    versions: Versions,
    marks: Marks,
    /// Told of each change.
    observer: Option<Arc<dyn Observer>>,
    salt: u64,
    page_words: usize,
    /// Whether the sums of outer values are compared when they are read: not if opening has
    /// compared all of them.
    sums_on_read: bool,
    read_only: bool,
    report: RecoveryReport,
    retired: Retired,
    /// Blocks that are kept back for removals.
    spare: Mutex<Vec<u64>>,
    /// Until all pages are loaded: newborn pages that cannot be read, and their blocks.
    unreadable: Mutex<Vec<(u32, u64)>>,
    /// Damage that the opening passed over (`salvaged`).
    passed: Vec<String>,
    /// On a medium that can give memory back.
    memory: Option<memory::Memory>,
    /// Inner pages that were damaged, and made again.
    made_again: AtomicU64,
    /// Made or opened with the tree.
    log: Option<Logs<M>>,
    slots: Slots,
    sessions: Sessions,
    heap: Heap<M>,
    /// `None` once closed.
    root: Option<Root<M>>,
    pool: Arc<Pool<M>>,
    kinds: PhantomData<fn(&K, &V)>,
}

impl<K, V, M> fmt::Debug for ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusteredTree")
            .field("page_words", &self.page_words)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

/// A handle of the inner index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handle {
    /// A part: its number in the arena.
    Part(u32),
    /// A page that is not loaded, of any level.
    Unloaded(u32),
}

const UNLOADED: u32 = 1 << 31;

impl Handle {
    fn encode(self) -> u32 {
        match self {
            Self::Part(slot) => slot,
            Self::Unloaded(id) => id | UNLOADED,
        }
    }

    #[inline(always)]
    fn decode(bits: u32) -> Self {
        if bits & UNLOADED == 0 {
            Self::Part(bits)
        } else {
            Self::Unloaded(bits & !UNLOADED)
        }
    }
}

/// Reason why a page could not be read. Nothing has changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The page is damaged: says where and how. What it has cannot be read or changed.
    Damaged(String),
    /// The value is damaged. Another one can be put in its place.
    Value(String),
    /// There is no memory for what DRAM holds of it.
    Space(SpaceError),
}

impl From<SpaceError> for ReadError {
    fn from(e: SpaceError) -> Self {
        Self::Space(e)
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Damaged(_) | Self::Value(_) => None,
            Self::Space(e) => e.source(),
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(what) | Self::Value(what) => f.write_str(what),
            Self::Space(e) => write!(f, "{e}"),
        }
    }
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Keys and values are numbers.
    const NUMBERS: bool = matches!(K::KIND, DataKind::U64) && matches!(V::KIND, DataKind::U64);

    /// The medium.
    #[inline(always)]
    fn pm(&self) -> &M {
        self.pool.pm()
    }

    /// The root of the tree in its pool.
    fn root(&self) -> &Root<M> {
        // `root` is taken when the tree is closed, after which it is gone.
        self.root
            .as_ref()
            .unwrap_or_else(|| unreachable!("the tree is open"))
    }

    /// The part number `slot`, which came from the inner index or the arena.
    #[inline(always)]
    fn part(&self, slot: u32) -> &Part {
        debug_assert!(slot < self.parts.capacity());
        // SAFETY: 1. slots come from the arena, whose mapping lives as long as `self`; 2. a part is
        // all atomics, valid for any bits, whatever other threads do.
        unsafe { self.parts.base().add(slot as usize).as_ref() }
    }

    /// Frees a part that nothing leads to. It still names the block of its page, so its stamp tells
    /// whoever looks for parts to drop that it is not in use.
    fn free_part(&self, slot: u32) {
        self.part(slot).set_latest(FREE);
        self.parts.free(slot);
    }

    /// The page of so many words in the block at `block`, as a part, a known inner page or a header
    /// says.
    #[inline(always)]
    fn page(&self, block: u64, words: usize) -> Page<'_, M> {
        // SAFETY: only blocks of this tree's pages, checked when they were loaded or allocated
        // here, come to be named by parts and known inner pages, with the words that they have;
        // they are word-aligned and stay mapped.
        unsafe { Page::new(self.pm(), block, words) }
    }

    /// The page of a part.
    #[inline(always)]
    fn page_of(&self, part: &Part) -> Page<'_, M> {
        let (block, words) = part.block_and_words();
        self.page(block, words)
    }

    /// The seed of the sums of a page of that generation.
    #[inline(always)]
    fn seed(&self, generation: u64) -> Seed {
        Seed {
            salt: self.salt,
            generation,
        }
    }

    /// Whether a group with this stamp's word counts, in a leaf page.
    #[inline]
    fn counts(&self, stamp_word: u64) -> bool {
        planted!(self.pm(), "clustered-void-kept")
            || self.sessions.counts(self.pm(), &self.slots, stamp_word)
    }

    /// A generation that no page has had.
    fn next_generation(&self) -> u64 {
        let word = self.root().word(root::GENERATIONS);
        self.generations.next(self.pm(), word)
    }

    /// Takes numbers of pages or outer values back: no word names anything under them, durably.
    fn release(&self, ids: impl IntoIterator<Item = u32>) {
        self.table.release(ids, self.generations.coming());
    }

    /// A time stamp above all that were given before.
    fn next_stamp(&self) -> u64 {
        self.stamps.next(self.pm(), self.root().word(root::STAMPS))
    }

    /// Makes what this thread fenced as durable as the pool's durability level promises.
    #[inline(always)]
    fn commit(&self) -> Result<(), CommitError> {
        self.pm().commit()
    }

    /// Sees to it that memory for the parts and inner nodes to come is there: for a few pages, and
    /// `more`.
    fn ensure_memory(&self, more: usize) -> Result<(), SpaceError> {
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        self.inner.ensure_room(more)?;
        let asked = self.parts.ensure(more);
        asked.map_err(|e| SpaceError::io("memory for parts of pages", e))
    }
}
