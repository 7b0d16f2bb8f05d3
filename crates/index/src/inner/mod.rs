//! The DRAM inner index: a cache-line-conscious B+-tree with optimistic lock coupling that leads
//! from a key to the leaf that holds it.
//!
//! It serves every design whose leaves are persistent and whose inner nodes are volatile. It knows
//! leaves only as 32-bit handles; what is in them, and their locks ([`crate::version_lock`]), is
//! the tree's business. It is rebuilt from the leaves when the index is opened.
//!
//! ```text
//!                  root (handle 0, always)          level = depth
//!                 /    |    \
//!           inner nodes, 30 separators each         level 2 ..
//!          /     |      |      \
//!        level-1 nodes: children are leaf handles   level 1
//!        /  |  \
//!     leaf leaf leaf                                (not here)
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | `node` | layout, search inside a node, shifting |
//! | `separator` | what a node keeps of a `u64` or byte-string separator |
//! | `find` | reading: one key, a batch, neighbours |
//! | `modify` | insert, remove, splits, root growth and shrinking |
//! | `build` | bulk building, walking, verification |
//!
//! # Invariants
//! 1. Leaf *L* of a key *k* is the child whose range `[low, high)` holds *k*; a separator is the
//!    smallest key routed to its right child. Ranges of neighbours touch; the first has no low end,
//!    the last no high one.
//! 2. All leaves are at one depth. There is always at least one leaf, and the root is always node
//!    0.
//! 3. A range grows when an emptied neighbour is removed and shrinks when its leaf splits; a change
//!    to *which child of its level-1 node* leads to a leaf changes that node's version, and so does
//!    every shrinking of a leaf's range.
//!
//! # Concurrency
//! Every node carries a version word (protocol and memory-model argument: [`crate::version_lock`]).
//!
//! 1. *Descent.* Read a node's version, search it, prefetch the child, validate the node (so the
//!    child's handle is true), read the child's version, validate the node again (so the child's
//!    version belongs to the range we came for). No lock is taken and no line dirtied. Any failure
//!    starts again at the root. The root never moves: it is split and collapsed in place.
//! 2. *Last step.* [`find`](InnerIndex::find) returns a leaf with the version of its level-1 node,
//!    *not yet validated*. The caller reads the leaf's own version, then calls
//!    [`validate`](InnerIndex::validate): true means that the leaf was the right one when its
//!    version was read, and from there the leaf's version alone guards the caller.
//! 3. *Writing.* A writer descends like a reader and locks at the version it saw, from top to
//!    bottom, never waiting for a lock while it holds one: if a lock cannot be had it lets go and
//!    starts again. Full nodes are split on the way down, so that a split never has to climb.
//! 4. *Leaf locks* are never taken here. A tree that splits or removes a leaf holds that leaf's
//!    lock around the call, which is what makes step 2 right.
//! 5. *Memory.* A removed node is marked obsolete, and reused only when the epoch collector says
//!    that no reader can be in it. A reused node goes on counting versions where it stopped, so a
//!    kept [`Located`] can never validate by accident.
//!
//! Guards must be of crossbeam's default collector (`crossbeam_epoch::pin`).

mod build;
mod find;
mod modify;
mod node;
mod separator;
#[cfg(test)]
mod tests;

pub use build::{BuildError, InnerStats};
pub use find::{Located, Neighbours, Ranged, Siblings};
pub use separator::Separator;

use crate::arena::{self, Arena};
use bristlecone_pmem::SpaceError;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace, Untraced, cpu};
use crossbeam_epoch::Guard;
use node::Node;
use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

/// Separators that a node has room for, and so the default of `CAP`.
pub const NODE_SEPARATORS: usize = node::SLOTS;

/// The root's handle.
const ROOT: u32 = 0;

/// Maps keys to leaf handles. See the module's head.
///
/// `CAP` is how many of a node's 30 separators are used; fewer make trees deeper, for tests. `D` is
/// how it reports its accesses: the [`Instrument::Dram`] of the medium that it serves.
///
/// [`Instrument::Dram`]: bristlecone_pmem::media::Instrument::Dram
pub struct InnerIndex<
    S: Separator + ?Sized,
    const CAP: usize = NODE_SEPARATORS,
    D: DramTrace = Untraced,
> {
    /// Address of node 0: `arena.base()`, without the indirection.
    base: NonNull<Node<S>>,
    /// Handles are below this: `arena.capacity()`, likewise.
    capacity: u32,
    arena: Arc<Arena<Node<S>>>,
    reports: PhantomData<D>,
}

// SAFETY: 1. `base` points into `arena`, which lives as long as this value and may be shared; 2.
// all that is reached through it is atomic.
unsafe impl<S: Separator + ?Sized, const CAP: usize, D: DramTrace> Send for InnerIndex<S, CAP, D> {}
// SAFETY: 1. and 2. as for `Send`.
unsafe impl<S: Separator + ?Sized, const CAP: usize, D: DramTrace> Sync for InnerIndex<S, CAP, D> {}

impl<S: Separator + ?Sized, const CAP: usize, D: DramTrace> std::fmt::Debug
    for InnerIndex<S, CAP, D>
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InnerIndex")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl<S: Separator + ?Sized, const CAP: usize, D: DramTrace> InnerIndex<S, CAP, D> {
    const CHECK: () = assert!(
        CAP >= 3 && CAP <= node::SLOTS,
        "3 to 30 separators in a node"
    );

    /// Bytes that a descent prefetches at a time: everything that most searches read. Whole
    /// separators, and the part of a prefix beyond the first line, seldom decide.
    const PREFETCH: usize = if S::EXACT {
        size_of::<Node<S>>()
    } else {
        Node::<S>::PREFIX_AT + 64
    };

    /// Returns an index whose only leaf is `first_leaf`. `leaf_bytes` is the maximum size of all
    /// leaves; address space is reserved for the nodes over them.
    ///
    /// # Errors
    /// The system's error if it granted no address space (at most 64 GiB are asked for, 64 MiB are
    /// enough).
    pub fn new(first_leaf: u32, leaf_bytes: u64) -> io::Result<Self> {
        let index = Self::without_root(leaf_bytes)?;
        // SAFETY: node 0 was just handed out and no one else knows the index yet.
        unsafe { index.node(ROOT) }.reset(1, first_leaf);
        Ok(index)
    }

    /// Makes sure that the next insertions, and `more`, find memory for their nodes. For use before
    /// a leaf is split, which cannot be undone for want of memory.
    ///
    /// # Errors
    /// [`SpaceError::Io`] if the system grants no more memory.
    pub fn ensure_room(&self, more: u32) -> Result<(), SpaceError> {
        let asked = self.arena.ensure(more);
        asked.map_err(|e| SpaceError::io("memory for inner nodes", e))
    }

    /// Returns an index whose root is handed out but not set.
    fn without_root(leaf_bytes: u64) -> io::Result<Self> {
        const { Self::CHECK };
        let arena = Arc::new(Arena::reserve(arena::room_for(leaf_bytes))?);
        let root = arena.allocate();
        debug_assert_eq!(root, ROOT, "a fresh arena starts at 0");
        Ok(Self {
            base: arena.base(),
            capacity: arena.capacity(),
            arena,
            reports: PhantomData,
        })
    }

    /// Returns the node of a handle.
    ///
    /// # Safety
    /// `handle` was handed out by the arena: it is the root, was just allocated, or was read from a
    /// node above level 1 that has been validated since.
    #[inline(always)]
    unsafe fn node(&self, handle: u32) -> &Node<S> {
        debug_assert!(handle < self.capacity);
        // SAFETY: 1. handles that were handed out are inside the mapping, which lives as long as
        // `self`; 2. node memory always holds a node (zero or initialised), and nodes are all
        // atomic, so shared references to it are fine whatever other threads do.
        unsafe { self.base.add(handle as usize).as_ref() }
    }

    #[inline(always)]
    fn root(&self) -> &Node<S> {
        // SAFETY: the root always exists.
        unsafe { self.node(ROOT) }
    }

    /// Prefetches a node's lines. Any handle is allowed, even a torn one.
    #[inline(always)]
    fn prefetch(&self, handle: u32) {
        let at = self.base.as_ptr().wrapping_add(handle as usize);
        cpu::prefetch(at.cast(), Self::PREFETCH);
        Self::report(DramAccess::Prefetch, handle, 0, Self::PREFETCH);
    }

    /// Reports an access to `bytes` of a node, from its byte `from` on.
    #[inline(always)]
    fn report(access: DramAccess, handle: u32, from: usize, bytes: usize) {
        let at = u64::from(handle) * size_of::<Node<S>>() as u64 + from as u64;
        D::touch(DramRegion::Inner, access, at, bytes as u64);
    }

    /// Reports a search in a node that leads to child `at`.
    #[inline(always)]
    fn report_search(handle: u32, at: usize) {
        let access = DramAccess::Load;
        Self::report(access, handle, 0, Node::<S>::CHILDREN_AT);
        Self::report(access, handle, Node::<S>::CHILDREN_AT + at * 4, 4);
    }

    /// Returns a node that no other thread can reach, with a single child.
    fn new_node(&self, level: u32, child: u32) -> (u32, &Node<S>) {
        let handle = self.arena.allocate();
        // SAFETY: the handle was just handed out.
        let node = unsafe { self.node(handle) };
        node.reset(level, child);
        (handle, node)
    }

    /// Frees a node once no reader can be in it. It is obsolete: no node leads there.
    fn retire_node(&self, handle: u32, guard: &Guard) {
        let arena = Arc::clone(&self.arena);
        // SAFETY: 1. the closure owns what it uses and may run on any thread (the arena is Sync);
        // 2. the node is out of reach for threads pinned from now on.
        unsafe { guard.defer_unchecked(move || arena.free(handle)) };
    }

    /// Returns a copy of `separator` that the index owns.
    fn allocate_separator(&self, separator: &S) -> S::Full {
        let (full, bytes) = separator.allocate();
        self.arena.count_separator_bytes(bytes.cast_signed());
        full
    }

    /// Frees a separator once no reader can use it. No reachable node has it.
    fn retire_separator(&self, full: S::Full, guard: &Guard) {
        if !S::HEAP {
            return;
        }
        let arena = Arc::clone(&self.arena);
        // SAFETY: 1. the closure owns what it uses, and freeing is fine on any thread; 2. threads
        // pinned from now on cannot reach the separator, and the collector runs the closure when
        // those pinned before have left; 3. it is retired once, by the writer that removed it under
        // the node's lock.
        unsafe {
            guard.defer_unchecked(move || {
                let bytes = S::free(full);
                arena.count_separator_bytes(-bytes.cast_signed());
            });
        }
    }
}

impl<S: Separator + ?Sized, const CAP: usize, D: DramTrace> Drop for InnerIndex<S, CAP, D> {
    fn drop(&mut self) {
        if !S::HEAP {
            return;
        }
        // Nodes go with the arena; the separators that are still in the tree are freed one by one.
        let mut free = |full| {
            // SAFETY: 1. `&mut self`: no thread reads; 2. each separator is in one slot of the
            // tree, and those that left it were retired instead.
            unsafe { S::free(full) };
        };
        self.each_separator(ROOT, &mut free);
    }
}
