//! The state that all handles of an open store share.

use crate::commit::Committer;
use crate::recovery::StoreRecovery;
use bristlecone_pmem::Media;
use bristlecone_pmem::pool::Root;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// Root word: 1 while the store is open for writing, and afterwards unless it was closed in order,
/// which makes it 2. In a store that only earlier builds have written it is 0, which says neither.
pub(crate) const WORD_OPEN: usize = 3;
/// The word of a store that was closed in order.
pub(crate) const CLOSED_IN_ORDER: u64 = 2;

/// An open store. It is closed when the last handle is dropped.
pub(crate) struct Shared<M: Media> {
    // Fields are dropped in this order: the index and the heap close before the root.
    pub committer: Committer<M>,
    /// The vacuum's thread.
    pub thread: Option<JoinHandle<()>>,
    pub recovery: StoreRecovery,
    pub name: String,
    /// The design of the index.
    pub design: String,
    /// Bytes in a leaf of the index.
    pub node_bytes: u32,
    /// A block of a tombstone's size that nothing leads to. It keeps its chunk, so that a full pool
    /// has room for deletions. 0 if it could not be allocated.
    pub deletion_reserve: u64,
    pub root: Root<M>,
}

impl<M: Media> Deref for Shared<M> {
    type Target = Committer<M>;

    fn deref(&self) -> &Committer<M> {
        &self.committer
    }
}

impl<M: Media> Drop for Shared<M> {
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
