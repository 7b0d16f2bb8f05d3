//! Persistent multi-word compare-and-swap (PMwCAS, after section 2.3 of the BzTree paper): up to
//! [`MAX_WORDS`] words of a pool change together or not at all, for all threads and after any
//! crash.
//!
//! ```text
//! area        | magic "PMWCAS01" | descriptors (u32), words of each (u16), of a thread (u16) | unused ... to 64 |
//!             | descriptor 0 | descriptor 1 | ...
//! descriptor  | status     | entry 0 (place, old, new) | entry 1 | unused |     whole lines, none shared
//!             | generation | entry 2                   | entry 3 | unused |     one line for every two words
//! status      dirty (bit 63) | generation (36 bits from 24) | policies (2 bits each from 8) | words (4 bits from 3) |
//!             state (0..3): free, undecided, succeeded, failed
//!
//! word        bit 63 dirty | 62 descriptor | 61 conditional | 61 bits of value
//! descriptor  62       | generation (36 bits from 16) | number of the descriptor (16 bits)
//! conditional 61       | generation (20 bits from 41) | attempt (22 bits from 19) | number (16 from 3) | entry (3 bits)
//! ```
//!
//! The area is one block of a root's heap, whose offset the owner keeps. A word's *value* has 61
//! bits. The three above them are this module's, and [`DescriptorPool::read`] never returns them.
//!
//! # Protocol
//! | step | lines | fences | why there |
//! | --- | --- | --- | --- |
//! | entries in order of place; store fence; generation and status "undecided" | one per two words | 1 | recovery finds the descriptor of any pointer |
//! | phase 1: a pointer into the first word, RDCSS of one into each other, then all flushed | the words' | 1 | recovery finds all words of an operation that succeeded |
//! | status "succeeded", dirty; flushed; dirty bit cleared | 1 | 1 | no new value is seen of an operation that a crash undoes |
//! | phase 2: pointers replaced by values, flushed | the words' | 1 | the descriptor may be used again |
//!
//! All words share a fence in either phase. One word without a recycling policy needs no status:
//! its descriptor says "succeeded" from the start, and the pointer in the word decides (three
//! lines, three fences). An operation that fails does not persist that, since "undecided" and
//! "failed" are rolled back alike. It takes the first fence, and a second one if a pointer was
//! installed.
//!
//! The paper sets the dirty bit on pointers and on new values too, and a thread that meets it
//! flushes. Here only statuses have it (invariant 3 says why that is enough). That saves two
//! compare-and-swaps per word. It also avoids a mistake that the bit invites where no descriptor
//! stands behind the value: a thread that flushed a value late may clear the bit of an equal value
//! that was stored since and not flushed. Pointers are never equal again.
//!
//! # Invariants
//! 1. Words hold pointers to a descriptor only between its flush (with entries sorted) and the
//!    fence that ends phase 2. The thread that removed the last pointer has flushed and fenced the
//!    word while pinned.
//! 2. A descriptor's entries change only when no thread that could have met a pointer to it is
//!    pinned any more.
//! 3. A status "succeeded" is durable before the first new value is stored. So values that phase 2
//!    stores need no dirty bit: until they are durable, the descriptor, which is not used again,
//!    stands for them. Pointers have none for the same reason: the thread that decides the status
//!    has flushed all of them itself.
//! 4. A line of a descriptor after the first counts only if its generation is the status's. This
//!    tells a use that was not durable as a whole from one that was, with one fence for all lines.
//! 5. A descriptor with a policy is durably free before its blocks may be used again, and before
//!    its entries change.
//! 6. Each attempt to install has a conditional pointer of its own, so that completing one attempt
//!    late cannot complete another one, made after the operation was decided (Harris et al. have a
//!    descriptor for each). The operation's own thread uses none for the first word: before a
//!    pointer is there, no other thread can decide.
//!
//! # Concurrency
//! Nothing here waits, except that functions deferred by other threads, which the epochs run on
//! this one, may wait for a heap's lock. A thread that meets a pointer helps the operation to its
//! end, in order of places. A thread that meets a dirty status, or the pointer of a single word,
//! flushes and fences it itself before it continues. Late helpers do no harm: phase 1 installs only
//! what RDCSS finds undecided, and a thread that meets the pointer of a late attempt removes it,
//! flushes and fences.
//!
//! Descriptors come back through epochs, *twice*: a thread pinned when an operation ended may still
//! put a pointer to it into a word for a moment, where a thread pinned an epoch later meets it.
//! After the second grace period that thread has left too. A thread that is stopped for ever while
//! pinned keeps descriptors from coming back, but no operation from ending. When none is left,
//! [`DescriptorPool::allocate_descriptor`] moves the epoch on a bounded number of times and then
//! returns [`Exhausted`].
//!
//! Blocks that hold target words must be freed by a [`Policy`], or after *two* grace periods of
//! their own, once no word leads to them: a late helper may still compare them, and put a
//! conditional pointer into one that has the old value. One
//! [`Heap::retire`](crate::heap::Heap::retire) is too little. A thread that reads a word in such a
//! block, or adds it to an operation, stays pinned from when it learnt of the block until
//! [`Descriptor::execute`] returns, whose own pin begins too late for that.
//!
//! All operations on a word go through one pool of descriptors.
//!
//! On a medium that is made durable by commits, the next commit covers what is called "durable"
//! here. An operation's caller commits before it acknowledges, and so does a thread that acts on a
//! value from [`read`](DescriptorPool::read).
//!
//! # Crash states
//! 1. *Before the descriptor's fence*: its lines may not belong together (invariant 4) and no word
//!    leads to it.
//! 2. *Undecided or failed*: any subset of the words holds pointers; recovery puts old values back.
//! 3. *Succeeded*: recovery puts new values for pointers and old ones for conditional pointers,
//!    which only a late attempt can have left.
//! 4. *Ended, not used again*: no word leads there, and recovery changes no word. If a place has
//!    become something else since, recovery compares it and does not change it: a pointer carries
//!    the generation, which begins at random.
//! 5. *In recovery*: nothing is changed before all descriptors were checked. Every step may be
//!    repeated; policies' blocks are released before their descriptor is free. At the end all
//!    descriptors are free. So the words of a damaged file, whatever they hold, lead only to
//!    operations that began since, and to none that the word is not part of.

mod area;
mod descriptor;
mod encoding;
mod error;
mod lists;
mod operation;
mod protocol;
mod recovery;
#[cfg(test)]
mod tests;

pub use crate::heap::Recycle;
pub use area::{DescriptorPool, NoBlocks, bytes};
pub use descriptor::Descriptor;
pub use encoding::{FLAGS, MAX_PER_THREAD, MAX_THREADS, MAX_WORDS, Policy};
pub use error::{ExecuteError, Exhausted, WordError};
pub use lists::Counts;
pub use recovery::Recovered;
