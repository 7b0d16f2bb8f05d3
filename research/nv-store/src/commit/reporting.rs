//! Commits and the change feed: each commit tells the feed what it changed, and what has become
//! durable.
//!
//! A change is queued under the lock of its stripe, before its time stamp is applied. Beginning a
//! watch holds all stripes, so each commit is applied by then or finds the subscriber
//! ([`Feed`](bristlecone_store::engine::Feed)).

use super::Committer;
use crate::record::{self, Meta};
use crate::stripes::LockedStripes;
use bristlecone_pmem::{CommitError, Media, planted};
use bristlecone_store::engine::{IndexKey, Wait, expires_at, split};
use bristlecone_store::{Keyspace, Watch, WatchEvent, WatchLimits, WriteError};
use crossbeam_epoch as epoch;

impl<M: Media> Committer<M> {
    /// Checks that no commit has failed, and tells subscribers if one has: no later change will be
    /// durable.
    ///
    /// # Errors
    /// The failure.
    pub(crate) fn sound(&self) -> Result<(), CommitError> {
        let sound = self.clock.sound();
        if let Err(e) = &sound
            && self.feed.is_watched()
        {
            self.feed.advance(self.clock.durable(), Some(e));
        }
        sound
    }

    /// Queues the change that the record at `off` is for whoever watches its key. The caller holds
    /// the key's stripe, and `ts` is not applied.
    #[cold]
    pub(super) fn report(&self, key: &[u8], off: u64, meta: &Meta, ts: u64) {
        let Some((keyspace, key)) = split(key) else {
            return;
        };
        let event = || self.event(key, off, meta, ts);
        self.feed.change((keyspace, key), meta.len(), ts, event);
        if planted!(self.pm(), "store-feed-at-once") {
            // The mistake: it is given before the changes of commits that are still in progress.
            self.feed.advance(ts, None);
        }
    }

    /// Returns the event of a record; `None` if its value cannot be read, which was written a
    /// moment ago.
    fn event(&self, key: &[u8], off: u64, meta: &Meta, ts: u64) -> Option<WatchEvent> {
        let key = key.into();
        if meta.is_tombstone() {
            return Some(WatchEvent::Delete { key, ts });
        }
        let value = record::value(self.pm(), off, meta).ok()?;
        Some(WatchEvent::Put {
            key,
            value: value.as_ref().into(),
            expires_at: expires_at(meta.expiry()),
            ts,
        })
    }

    /// Makes every commit up to `ts` durable, and says so to whoever watches.
    ///
    /// # Errors
    /// [`WriteError::Commit`]
    pub(crate) fn make_durable(&self, ts: u64) -> Result<(), CommitError> {
        let made = self.clock.make_durable(self.pm(), ts);
        if self.feed.is_watched() {
            let failed = self.clock.sound().err();
            self.feed.advance(self.clock.durable(), failed.as_ref());
        }
        made
    }

    /// Subscribes to the changes of the keys of a keyspace that begin with `prefix`.
    ///
    /// # Errors
    /// [`WriteError`]
    pub(crate) fn watch(
        &self,
        keyspace: &Keyspace,
        prefix: &[u8],
        limits: WatchLimits,
    ) -> Result<Watch, WriteError> {
        let number = self.catalogue.number(keyspace)?;
        if self.pm().read_only() {
            return Err(WriteError::ReadOnly);
        }
        let held = LockedStripes::lock(&self.stripes, 0..self.stripes.len());
        let any_key = IndexKey::new(number, b"");
        if let Err(dropped) = self.check_not_dropped(&any_key, &epoch::pin()) {
            drop(held);
            return Err(self.dropped_error(dropped, Wait::Durable));
        }
        let last = self.clock.last_taken();
        let watch = self.feed.subscribe(number, prefix, limits);
        drop(held);
        if !planted!(self.pm(), "store-feed-begins-early") {
            // Every snapshot from now on has what the subscriber is not told.
            self.make_durable(last)?;
        }
        Ok(watch)
    }
}
