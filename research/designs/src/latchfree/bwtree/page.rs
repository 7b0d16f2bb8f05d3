//! A page is a chain of deltas that ends in a base node.
//!
//! ```text
//! slot -> Put -> Delete -> Split -> Base
//! slot -> Put -> Merge -> Put -> Base            Merge.from -> Base of the page that was merged into this one
//!
//! head    (24 bytes)  | next in the chain | high key | right sibling:32 count:16 kind:8 length:8 |     every node's first
//! leaf delta     (40) | head | key | value |
//! index delta    (56) | head | key | low | next | child:32 bounded:32 |
//! Split          (32) | head | bound:32 done:32 |
//! Merge          (40) | head | key | from |
//! Remove         (32) | head | low |
//! Base           (32) | head | len:32 | slots:16 taken:16 | then len keys, and len values or (inner nodes) len children of 32 bits |
//!
//! a leaf's base node, as it is allocated:
//! | ... slot 2 | slot 1 | slot 0 | Base | keys | values |        a slot takes a leaf delta; slot 0 is taken first
//! ```
//!
//! So a leaf's deltas lie before its base node, the newest first, in the order in which they are
//! searched. A search reads one range of memory, which is prefetched at once. Deltas of a chain
//! with more deltas than slots are allocated one by one, as in Wang et al. 2018.
//!
//! The head has the page's properties *with this node on top*, so that no search has to look
//! further down for them: its keys end at `high` (which counts unless `right` is 0), its number of
//! entries, and the length of the chain.
//!
//! # Invariants
//! 1. A node does not change once it is in the table, except `Split.done`.
//! 2. Keys of a base node ascend strictly. An inner node's first key is the low end of the page's
//!    range. In the leftmost page of a level that key is 0, and nothing is compared with it. A
//!    separator's word is never 0.
//! 3. A chain has at most one `Split` or `Merge`, and a `Split` or `Remove` lies directly on the
//!    base node.

use super::table::PageId;
use crate::sync::AtomicU32;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::Deref;
use std::slice;
use std::sync::atomic::Ordering;

/// Kind of a node of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// The sorted entries that all other nodes modify.
    Base,
    /// Leaf: a key that was absent.
    Insert,
    /// Leaf: another value of a key that was present.
    Update,
    /// Leaf: a key that is absent now.
    Delete,
    /// Inner node: a child that was split off another one.
    IndexInsert,
    /// Inner node: a child whose keys the one before it takes over.
    IndexDelete,
    /// The upper half is in another page.
    Split,
    /// The right sibling's entries are in this page.
    Merge,
    /// The page is being merged into its left sibling: nothing may be added.
    Remove,
}

/// Bits of `Head::kind` that are the [`Kind`].
const KIND: u8 = 0xF;
/// Set for an inner node.
const INNER: u8 = 0x40;
/// Set if there is a `Split` or `Merge` in the chain.
const MODIFIED: u8 = 0x80;
/// Set if the node is in a slot of the base node.
const SLOT: u8 = 0x20;

/// Head of every node. See the module's head.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Head {
    /// Null in a base node.
    pub next: *const Head,
    pub high: u64,
    pub right: PageId,
    count: u16,
    kind: u8,
    length: u8,
}

/// A change of a leaf's entry. A deletion has the value that the entry had.
#[derive(Debug)]
#[repr(C)]
pub(super) struct LeafDelta {
    pub head: Head,
    pub key: u64,
    pub value: u64,
}

/// A change of an inner node's entry.
#[derive(Debug)]
#[repr(C)]
pub(super) struct IndexDelta {
    pub head: Head,
    /// The separator that was inserted or deleted.
    pub key: u64,
    /// Keys from here (0: from the first) ...
    pub low: u64,
    /// ... to here, if `bounded`, are now `child`'s.
    pub next: u64,
    pub child: PageId,
    pub bounded: u32,
}

/// The page now ends at `head.high`; `head.right` has the rest.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SplitDelta {
    pub head: Head,
    /// Number of entries of the base node that are still this page's.
    pub bound: u32,
    /// Not 0 once the parent leads to the right page.
    pub done: AtomicU32,
}

/// The page's entries from `key` on are those of `from`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct MergeDelta {
    pub head: Head,
    pub key: u64,
    pub from: *const Base,
}

/// The page is being removed.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RemoveDelta {
    pub head: Head,
    /// The low end of its range; 0 in a root whose only child replaces it.
    pub low: u64,
}

/// Fixed part of a base node.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Base {
    pub head: Head,
    len: u32,
    /// Number of slots before it (high half), and of taken ones.
    slots: AtomicU32,
}

/// Number of bytes before a base node's keys.
pub(super) const BASE_BYTES: usize = size_of::<Base>();

const _: () = assert!(size_of::<Head>() == 24 && BASE_BYTES == 32);
const _: () = assert!(size_of::<LeafDelta>() == 40 && size_of::<IndexDelta>() == 56);

/// A node of a chain that lives as long as `'g`: as the guard, or as the tree's exclusive borrow.
///
/// This is a pointer and not a reference to the head, because it also leads to what is behind the
/// head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'g>(*const Head, PhantomData<&'g Head>);

/// A base node that lives as long as `'g`.
#[derive(Clone, Copy, Debug)]
pub(super) struct BaseNode<'g>(*const Base, PhantomData<&'g Base>);

impl Deref for Node<'_> {
    type Target = Head;

    #[inline(always)]
    fn deref(&self) -> &Head {
        // SAFETY: `Node::new`'s caller promised that the node is not freed before `'g` ends.
        unsafe { &*self.0 }
    }
}

impl Deref for BaseNode<'_> {
    type Target = Base;

    #[inline(always)]
    fn deref(&self) -> &Base {
        // SAFETY: `BaseNode::new`'s caller promised that the node is not freed before `'g` ends.
        unsafe { &*self.0 }
    }
}

impl Head {
    /// Returns the head of a delta of this kind on top of `next` that changes neither range nor
    /// count.
    pub fn on(next: Node<'_>, kind: Kind) -> Self {
        let modified = matches!(kind, Kind::Split | Kind::Merge);
        Self {
            next: next.0,
            high: next.high,
            right: next.right,
            count: next.count,
            kind: kind as u8
                | (next.kind & (INNER | MODIFIED))
                | if modified { MODIFIED } else { 0 },
            length: next.length.saturating_add(1),
        }
    }

    /// Returns the head with that many entries.
    pub fn with_count(mut self, count: usize) -> Self {
        self.count = u16::try_from(count).unwrap_or(u16::MAX);
        self
    }

    /// Returns the head of a delta in a slot of its base node.
    pub fn in_slot(mut self) -> Self {
        self.kind |= SLOT;
        self
    }

    #[inline(always)]
    pub fn kind(&self) -> Kind {
        match self.kind & KIND {
            0 => Kind::Base,
            1 => Kind::Insert,
            2 => Kind::Update,
            3 => Kind::Delete,
            4 => Kind::IndexInsert,
            5 => Kind::IndexDelete,
            6 => Kind::Split,
            7 => Kind::Merge,
            _ => Kind::Remove,
        }
    }

    #[inline(always)]
    pub fn is_inner(&self) -> bool {
        self.kind & INNER != 0
    }

    /// Returns true if there is a `Split` or `Merge` in the chain.
    #[inline(always)]
    pub fn is_modified(&self) -> bool {
        self.kind & MODIFIED != 0
    }

    /// Returns the number of entries of the page, at most 65,535.
    #[inline(always)]
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// Returns the number of deltas from here on, at most 255.
    #[inline(always)]
    pub fn length(&self) -> usize {
        usize::from(self.length)
    }
}

impl<'g> Node<'g> {
    /// Returns the node at `at`.
    ///
    /// # Safety
    /// It is a node of a chain, and is freed no earlier than `'g` ends: it was in the table when
    /// the caller, which stays pinned for `'g`, was pinned, or no other thread can free it.
    #[inline(always)]
    pub unsafe fn new(at: *const Head) -> Self {
        Self(at, PhantomData)
    }

    /// Returns the node's address.
    #[inline(always)]
    pub fn ptr(self) -> *const Head {
        self.0
    }

    /// Returns the next node of a delta.
    #[inline(always)]
    pub fn below(self) -> Self {
        // The thread that unlinked a chain frees it as a whole, so the nodes below live as long.
        Self(self.next, PhantomData)
    }

    /// Returns this node as a base node.
    #[inline(always)]
    pub fn base(self) -> BaseNode<'g> {
        debug_assert!(self.kind() == Kind::Base);
        BaseNode(self.0.cast(), PhantomData)
    }

    /// Returns the base node at the end of the chain; the left one where another page was merged
    /// in.
    pub fn bottom(mut self) -> BaseNode<'g> {
        while self.kind() != Kind::Base {
            self = self.below();
        }
        self.base()
    }

    /// Returns the `Split` or `Merge` of the chain.
    pub fn modification(mut self) -> Option<Self> {
        if !self.is_modified() {
            return None;
        }
        while !matches!(self.kind(), Kind::Split | Kind::Merge) {
            self = self.below();
        }
        Some(self)
    }
}

/// Returns a node by the type of its kind.
macro_rules! cast {
    ($($(#[$doc:meta])* $name:ident -> $type:ty, if $($kind:ident)|+;)*) => {
        impl<'g> Node<'g> {
            $($(#[$doc])*
            #[inline(always)]
            pub fn $name(self) -> &'g $type {
                debug_assert!(matches!(self.kind(), $(Kind::$kind)|+));
                // SAFETY: 1. nodes of this kind are made as this type, `repr(C)` with the head
                // first, and are reached by pointers to all of them; 2. callers have checked the
                // kind; 3. the node lives for `'g`.
                unsafe { &*self.0.cast() }
            })*
        }
    };
}

cast! {
    /// Returns this node as a change of a leaf's entry.
    leaf_delta -> LeafDelta, if Insert | Update | Delete;
    /// Returns this node as a change of an inner node's entry.
    index_delta -> IndexDelta, if IndexInsert | IndexDelete;
    /// Returns this node as a split.
    split -> SplitDelta, if Split;
    /// Returns this node as a merge.
    merge -> MergeDelta, if Merge;
    /// Returns this node as a removal.
    remove -> RemoveDelta, if Remove;
}

impl MergeDelta {
    /// Returns the base node of the page that was merged in.
    #[inline(always)]
    pub fn from(&self) -> BaseNode<'_> {
        // It is freed with the chain of this node, like the nodes below.
        BaseNode(self.from, PhantomData)
    }
}

impl Base {
    /// Returns the number of bytes before the base node.
    const fn front(slots: usize) -> usize {
        (slots * size_of::<LeafDelta>()).next_multiple_of(64)
    }

    fn layout(len: usize, inner: bool, slots: usize) -> Layout {
        let bytes = Self::front(slots) + BASE_BYTES + len * if inner { 12 } else { 16 };
        // A page has far less than 2^48 entries.
        Layout::from_size_align(bytes, 64).unwrap_or_else(|_| Layout::new::<Self>())
    }

    /// Returns the node's bytes in DRAM.
    pub fn bytes(&self) -> usize {
        Self::layout(self.len(), self.head.is_inner(), self.slots()).size()
    }

    /// Returns the number of slots for deltas before it.
    pub fn slots(&self) -> usize {
        // ORDERING: Relaxed; this half does not change.
        (self.slots.load(Ordering::Relaxed) >> 16) as usize
    }

    /// Makes a base node of `len` entries, which the caller writes.
    pub fn make(len: usize, inner: bool, high: u64, right: PageId, slots: usize) -> *mut Self {
        let slots = slots.min(usize::from(u8::MAX));
        let layout = Self::layout(len, inner, slots);
        // SAFETY: the layout is never empty.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        let front = Self::front(slots);
        // Inside the allocation, and as aligned as its start.
        let made = start.wrapping_add(front).cast::<Self>();
        let head = Head {
            next: std::ptr::null(),
            high,
            right,
            count: u16::try_from(len).unwrap_or(u16::MAX),
            kind: Kind::Base as u8 | if inner { INNER } else { 0 },
            length: 0,
        };
        // SAFETY: 1. the layout begins with this type; 2. no other thread has it.
        unsafe {
            made.write(Self {
                head,
                len: len as u32,
                slots: AtomicU32::new((slots as u32) << 16),
            });
            // Memory that is written piece by piece is no slice of integers before that.
            made.cast::<u8>()
                .add(BASE_BYTES)
                .write_bytes(0, layout.size() - front - BASE_BYTES);
        }
        made
    }

    /// Makes a leaf's base node of these entries.
    pub fn leaf(keys: &[u64], values: &[u64], high: u64, right: PageId, slots: usize) -> *mut Self {
        let made = Self::make(keys.len(), false, high, right, slots);
        // SAFETY: 1. made above for this many entries; 2. no other thread has it.
        let (to_keys, to_values) = unsafe { leaf_parts(made) };
        to_keys.copy_from_slice(keys);
        to_values.copy_from_slice(values);
        made
    }

    /// Makes an inner base node of these entries.
    pub fn inner(keys: &[u64], children: &[PageId], high: u64, right: PageId) -> *mut Self {
        let made = Self::make(keys.len(), true, high, right, 0);
        let at = behind(made);
        // SAFETY: 1. made above for this many entries, keys and then children, and zeroed; 2. no
        // other thread has it.
        unsafe {
            slice::from_raw_parts_mut(at, keys.len()).copy_from_slice(keys);
            let at = at.add(keys.len()).cast::<PageId>();
            slice::from_raw_parts_mut(at, keys.len()).copy_from_slice(children);
        }
        made
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len as usize
    }
}

/// Returns the address of the part behind the fixed one.
#[inline(always)]
fn behind(base: *const Base) -> *mut u64 {
    base.cast::<u8>().wrapping_add(BASE_BYTES).cast_mut().cast()
}

/// Returns the keys and values of a leaf's base node under construction.
///
/// # Safety
/// It is from [`Base::make`], for a leaf, and no other thread has it.
pub(super) unsafe fn leaf_parts<'a>(base: *mut Base) -> (&'a mut [u64], &'a mut [u64]) {
    // SAFETY: 1. `make` allocated and zeroed `len` keys and as many values there; 2. the caller
    // promises that the node is a leaf's and that no other thread has it.
    unsafe {
        let len = (*base).len();
        let at = behind(base);
        (
            slice::from_raw_parts_mut(at, len),
            slice::from_raw_parts_mut(at.add(len), len),
        )
    }
}

impl<'g> BaseNode<'g> {
    /// Takes a slot for a delta, which no other thread has then. Returns `None` if all are taken.
    /// The delta's head must be one of [`Head::in_slot`], and it must be installed in a chain that
    /// ends here, or nowhere.
    #[inline(always)]
    pub fn take_slot(self) -> Option<*mut LeafDelta> {
        // ORDERING: Relaxed (all); only the number matters. The table publishes what is written
        // there.
        let mut now = self.slots.load(Ordering::Relaxed);
        loop {
            let (slots, taken) = (now >> 16, now & 0xFFFF);
            if taken >= slots {
                return None;
            }
            let change =
                self.slots
                    .compare_exchange(now, now + 1, Ordering::Relaxed, Ordering::Relaxed);
            match change {
                Ok(_) => {
                    let at = self.0.cast_mut().cast::<LeafDelta>();
                    return Some(at.wrapping_sub(taken as usize + 1));
                }
                Err(other) => now = other,
            }
        }
    }
    /// As [`Node::new`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn new(at: *const Base) -> Self {
        Self(at, PhantomData)
    }

    /// Returns the base node's address.
    pub fn ptr(self) -> *const Base {
        self.0
    }

    /// Returns this as a node.
    pub fn node(self) -> Node<'g> {
        Node(self.0.cast(), PhantomData)
    }

    #[inline(always)]
    pub fn keys(self) -> &'g [u64] {
        // SAFETY: 1. `make` allocated and zeroed `len` keys there; 2. they do not change once the
        // node is shared; 3. it lives for `'g`.
        unsafe { slice::from_raw_parts(behind(self.0), self.len()) }
    }

    /// Returns a leaf's values.
    #[inline(always)]
    pub fn values(self) -> &'g [u64] {
        debug_assert!(!self.head.is_inner());
        // SAFETY: as in `keys`, of a leaf's values behind the keys.
        unsafe { slice::from_raw_parts(behind(self.0).add(self.len()), self.len()) }
    }

    /// Returns an inner node's children.
    #[inline(always)]
    pub fn children(self) -> &'g [PageId] {
        debug_assert!(self.head.is_inner());
        // SAFETY: as in `keys`, of an inner node's children behind the keys.
        unsafe { slice::from_raw_parts(behind(self.0).add(self.len()).cast(), self.len()) }
    }
}

/// Allocates a delta.
#[inline]
pub(super) fn new<T>(delta: T) -> *mut T {
    Box::into_raw(Box::new(delta))
}

/// Frees one node.
///
/// # Safety
/// It was made by [`new`] or [`Base::make`], no other thread can be at it, and nothing leads to it.
pub(super) unsafe fn free(node: *const Head) {
    // SAFETY: 1. the caller promises that nothing uses the node any more; 2. its kind tells how it
    // was made.
    unsafe {
        match (*node).kind() {
            Kind::Base => {
                let base = node.cast::<Base>();
                let slots = (*base).slots();
                let layout = Base::layout((*base).len(), (*node).is_inner(), slots);
                let start = node.cast::<u8>().wrapping_sub(Base::front(slots));
                dealloc(start.cast_mut(), layout);
            }
            // It is freed with the base node below it.
            _ if (*node).kind & SLOT != 0 => {}
            Kind::Insert | Kind::Update | Kind::Delete => {
                drop(Box::from_raw(node.cast_mut().cast::<LeafDelta>()));
            }
            Kind::IndexInsert | Kind::IndexDelete => {
                drop(Box::from_raw(node.cast_mut().cast::<IndexDelta>()));
            }
            Kind::Split => drop(Box::from_raw(node.cast_mut().cast::<SplitDelta>())),
            Kind::Merge => drop(Box::from_raw(node.cast_mut().cast::<MergeDelta>())),
            Kind::Remove => drop(Box::from_raw(node.cast_mut().cast::<RemoveDelta>())),
        }
    }
}

/// Frees a chain with its base nodes.
///
/// # Safety
/// As [`free`], for all of its nodes.
pub(super) unsafe fn free_chain(mut node: *const Head) {
    while !node.is_null() {
        // SAFETY: the caller promises that nothing uses any node of the chain any more.
        unsafe {
            let next = (*node).next;
            if (*node).kind() == Kind::Merge {
                free((*node.cast::<MergeDelta>()).from.cast());
            }
            free(node);
            node = next;
        }
    }
}
