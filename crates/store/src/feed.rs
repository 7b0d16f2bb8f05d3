//! Change feed: the committed changes of a keyspace, for subscribers, once they are durable.
//!
//! ```text
//! commit      under the locks of its stripes, before its time stamp is applied: each change goes
//!             into the queue of every subscriber that it concerns
//! settle      the durable watermark has risen: subscribers learn how far, and are woken
//! next        takes the changes at or below that watermark from the queue, by time stamp
//! ```
//!
//! A subscriber that does not read loses its oldest changes, and is told how many
//! ([`WatchEvent::Lagged`]). Writers never wait for it.
//!
//! Expiry is no commit, so it is not reported: a reader knows from [`WatchEvent::Put`] when a value
//! expires.
//!
//! # Invariants
//! 1. A queue has every change of its keyspace and prefix at or below the durable watermark that is
//!    not counted as missed: changes are queued before their time stamp is applied, and the durable
//!    watermark never passes the applied one.
//! 2. A queue is within its limits whenever its lock is free.
//! 3. Missed changes are older than all that are queued, but for those of commits that were slower
//!    than a newer one.
//!
//! # Concurrency
//! Subscribing takes the locks of all stripes. So each commit is either applied by then, or finds
//! the subscriber: committers look under their stripe's lock, and a relaxed load is enough for
//! them. The locks here come after the stripes', first the list's, then a queue's.

use bristlecone_pmem::CommitError;
use bristlecone_pmem::sync::lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes, about, that a queued change takes beside its key and its value.
const ENTRY: usize = 96;

/// How much a [`Watch`] queues for a subscriber that does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchLimits {
    /// Changes; by default 1,024.
    pub events: usize,
    /// Bytes of keys and values, with 96 more for each change; by default 16 MiB.
    pub bytes: usize,
}

impl Default for WatchLimits {
    fn default() -> Self {
        Self {
            events: 1024,
            bytes: 16 << 20,
        }
    }
}

/// An item of a [`Watch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// A value was put.
    Put {
        /// The key.
        key: Arc<[u8]>,
        /// The value.
        value: Arc<[u8]>,
        /// When it expires, in ms since 1970, if it does.
        expires_at: Option<u64>,
        /// Time stamp of the commit.
        ts: u64,
    },
    /// A key was deleted.
    Delete {
        /// The key.
        key: Arc<[u8]>,
        /// Time stamp of the commit.
        ts: u64,
    },
    /// The keyspace was cleared. The watch goes on with the empty one.
    Cleared {
        /// Time stamp of the commit.
        ts: u64,
    },
    /// The keyspace was dropped. This is the last event.
    Dropped {
        /// Time stamp of the commit.
        ts: u64,
    },
    /// The subscriber was too slow: so many changes, which come before the next event, are lost to
    /// it. They are durable: a snapshot that is taken now has them.
    Lagged {
        /// How many.
        missed: u64,
    },
}

/// A change that waits for its commit to be durable, or for its subscriber.
#[derive(Debug)]
struct Queued {
    ts: u64,
    event: WatchEvent,
    bytes: usize,
}

/// Why no more changes come.
#[derive(Debug)]
enum End {
    /// The store is closed.
    Closed,
    /// The medium has failed, and the subscriber is to be told.
    Failed(CommitError),
    /// The subscriber has been told that it is the end.
    Told,
}

#[derive(Debug)]
struct Queue {
    keyspace: u32,
    prefix: Vec<u8>,
    limits: WatchLimits,
    /// By time stamp; those of one commit in the order of its changes.
    events: VecDeque<Queued>,
    /// Their bytes.
    bytes: usize,
    /// How many changes were lost since the subscriber was last told, and the highest time stamp of
    /// these.
    missed: u64,
    missed_until: u64,
    /// When the keyspace was dropped.
    dropped: Option<u64>,
    /// Events from here on are not given yet: the names in memory are older. `u64::MAX` if there
    /// are none.
    hidden_from: u64,
    /// Every change at or below it is durable.
    durable: u64,
    end: Option<End>,
}

impl Queue {
    /// Whether this subscriber is to be told of a change. Once its keyspace is dropped it is not:
    /// the keys that a vacuum then removes come after its last event.
    fn concerns(&self, keyspace: u32, key: &[u8]) -> bool {
        self.dropped.is_none() && self.keyspace == keyspace && key.starts_with(&self.prefix)
    }

    /// Queues a change of so many bytes. `event` is `None` where it has more than the queue may
    /// have in all, or cannot be had.
    fn push(&mut self, ts: u64, bytes: usize, event: Option<WatchEvent>) {
        let at = self.events.partition_point(|queued| queued.ts <= ts);
        let Some(event) = event else {
            // It is lost; what is older would come after the news of that.
            self.forget(at);
            self.lose(ts);
            return;
        };
        self.bytes += bytes;
        self.events.insert(at, Queued { ts, event, bytes });
        while self.events.len() > self.limits.events.max(1) || self.bytes > self.limits.bytes {
            self.forget(1);
        }
    }

    /// Loses the oldest `count`.
    fn forget(&mut self, count: usize) {
        for _ in 0..count {
            let Some(oldest) = self.events.pop_front() else {
                return;
            };
            self.bytes -= oldest.bytes;
            self.lose(oldest.ts);
        }
    }

    fn lose(&mut self, ts: u64) {
        self.missed += 1;
        self.missed_until = self.missed_until.max(ts);
    }

    /// Up to which time stamp events are given.
    fn given(&self) -> u64 {
        self.durable.min(self.hidden_from.saturating_sub(1))
    }

    /// The next event, if it is durable.
    fn take(&mut self) -> Result<Option<WatchEvent>, CommitError> {
        if matches!(self.end, Some(End::Told)) {
            return Ok(None);
        }
        let given = self.given();
        if self.missed > 0 {
            // Not before all of it is durable: whoever hears it looks there.
            if self.missed_until <= given {
                let missed = std::mem::take(&mut self.missed);
                return Ok(Some(WatchEvent::Lagged { missed }));
            }
        } else if let Some(first) = self.events.front() {
            if first.ts <= given
                && let Some(first) = self.events.pop_front()
            {
                self.bytes -= first.bytes;
                return Ok(Some(first.event));
            }
        } else if let Some(ts) = self.dropped
            && ts <= given
        {
            self.end = Some(End::Told);
            return Ok(Some(WatchEvent::Dropped { ts }));
        }
        match self.end.take() {
            Some(End::Failed(e)) => {
                self.end = Some(End::Told);
                Err(e)
            }
            end => {
                self.end = end;
                Ok(None)
            }
        }
    }
}

#[derive(Debug)]
struct Subscriber {
    queue: Mutex<Queue>,
    /// There may be something to take.
    woken: Condvar,
}

/// The subscribers of a store.
#[derive(Debug, Default)]
pub struct Feed {
    /// How many there are.
    watched: AtomicUsize,
    all: Mutex<Vec<Arc<Subscriber>>>,
}

impl Feed {
    /// Returns whether there is a subscriber.
    #[inline]
    pub fn is_watched(&self) -> bool {
        // ORDERING: Relaxed; a committer holds a stripe's lock, which each subscriber has held
        // since it was counted.
        self.watched.load(Ordering::Relaxed) != 0
    }

    /// Everything at or below `durable` is; `failed`: nothing more ever will be.
    pub fn advance(&self, durable: u64, failed: Option<&CommitError>) {
        for subscriber in lock(&self.all).iter() {
            let mut queue = lock(&subscriber.queue);
            if let Some(e) = failed
                && queue.end.is_none()
            {
                queue.end = Some(End::Failed(e.duplicate()));
            } else if durable <= queue.durable {
                continue;
            }
            queue.durable = queue.durable.max(durable);
            subscriber.woken.notify_all();
        }
    }

    /// No more changes come, as the store is closed.
    pub fn close(&self) {
        for subscriber in lock(&self.all).iter() {
            lock(&subscriber.queue).end.get_or_insert(End::Closed);
            subscriber.woken.notify_all();
        }
    }

    /// A keyspace was dropped at that time, or cleared: then `empty` is the number of the new one.
    /// The caller holds all stripes.
    pub fn keyspace_dropped(&self, number: u32, empty: Option<u32>, ts: u64) {
        if !self.is_watched() {
            return;
        }
        for subscriber in lock(&self.all).iter() {
            let mut queue = lock(&subscriber.queue);
            if queue.keyspace != number {
                continue;
            }
            queue.hidden_from = ts;
            match empty {
                None => queue.dropped = Some(ts),
                Some(empty) => {
                    queue.keyspace = empty;
                    queue.push(ts, ENTRY, Some(WatchEvent::Cleared { ts }));
                }
            }
        }
    }

    /// The names in memory are those from after the drop at `ts`: its event may be given.
    pub fn drop_is_known(&self, ts: u64) {
        if !self.is_watched() {
            return;
        }
        for subscriber in lock(&self.all).iter() {
            let mut queue = lock(&subscriber.queue);
            if queue.hidden_from == ts {
                queue.hidden_from = u64::MAX;
                subscriber.woken.notify_all();
            }
        }
    }

    /// Queues a change of one key, at a time stamp that is not applied, for whoever watches the
    /// key. `event` makes it if somebody does, and returns `None` if its value cannot be read. The
    /// caller holds the key's stripe.
    pub fn change(
        &self,
        (keyspace, key): (u32, &[u8]),
        value_bytes: usize,
        ts: u64,
        event: impl Fn() -> Option<WatchEvent>,
    ) {
        let bytes = ENTRY + key.len() + value_bytes;
        let mut made: Option<WatchEvent> = None;
        for subscriber in lock(&self.all).iter() {
            let mut queue = lock(&subscriber.queue);
            if !queue.concerns(keyspace, key) {
                continue;
            }
            if made.is_none() && bytes <= queue.limits.bytes {
                made = event();
            }
            let event = made.clone().filter(|_| bytes <= queue.limits.bytes);
            queue.push(ts, bytes, event);
        }
    }

    /// Subscribes to the changes of the keys of a keyspace that begin with `prefix`. The caller
    /// holds all stripes.
    pub fn subscribe(self: &Arc<Self>, keyspace: u32, prefix: &[u8], limits: WatchLimits) -> Watch {
        let subscriber = Arc::new(Subscriber {
            queue: Mutex::new(Queue {
                keyspace,
                prefix: prefix.to_vec(),
                limits,
                events: VecDeque::new(),
                bytes: 0,
                missed: 0,
                missed_until: 0,
                dropped: None,
                hidden_from: u64::MAX,
                durable: 0,
                end: None,
            }),
            woken: Condvar::new(),
        });
        lock(&self.all).push(Arc::clone(&subscriber));
        // ORDERING: Relaxed; the caller holds the lock of every stripe (`is_watched`).
        self.watched.fetch_add(1, Ordering::Relaxed);
        Watch {
            feed: Arc::clone(self),
            subscriber,
        }
    }
}

/// The changes of a keyspace, from the time on at which it was made by
/// [`Store::watch`](crate::Store::watch), each once it is durable.
///
/// Changes come in the order of their commits' time stamps, whatever keys they are of, and those of
/// one commit one after the other. As an iterator it waits for the next one. It ends after
/// [`WatchEvent::Dropped`], after an error, and when the store is closed, which it does not keep
/// open.
#[derive(Debug)]
#[must_use = "changes are queued for it until it is dropped"]
pub struct Watch {
    feed: Arc<Feed>,
    subscriber: Arc<Subscriber>,
}

impl Watch {
    /// Returns the number of the keyspace that it watches, which clearing changes, if it is a watch
    /// of this feed.
    pub(crate) fn number_in(&self, feed: &Arc<Feed>) -> Option<u32> {
        let number = lock(&self.subscriber.queue).keyspace;
        Arc::ptr_eq(&self.feed, feed).then_some(number)
    }

    /// Returns the next event if there is one; `None` if there is none yet, or it has
    /// [ended](Self::is_ended).
    ///
    /// # Errors
    /// The failure of the medium, once: no later change is durable.
    pub fn try_next(&mut self) -> Result<Option<WatchEvent>, CommitError> {
        lock(&self.subscriber.queue).take()
    }

    /// As [`try_next`](Self::try_next), but waits so long for an event.
    ///
    /// # Errors
    /// As there.
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<WatchEvent>, CommitError> {
        self.wait(Instant::now().checked_add(timeout))
    }

    /// Returns whether no event comes any more.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        let queue = lock(&self.subscriber.queue);
        match queue.end {
            Some(End::Told) => true,
            Some(End::Closed) => {
                // As `take` decides it.
                let given = queue.given();
                match (queue.missed, queue.events.front()) {
                    (0, Some(first)) => first.ts > given,
                    (0, None) => queue.dropped.is_none_or(|ts| ts > given),
                    _ => queue.missed_until > given,
                }
            }
            Some(End::Failed(_)) | None => false,
        }
    }

    /// Waits until `deadline`, or for ever.
    fn wait(&mut self, deadline: Option<Instant>) -> Result<Option<WatchEvent>, CommitError> {
        let mut queue = lock(&self.subscriber.queue);
        loop {
            if let Some(event) = queue.take()? {
                return Ok(Some(event));
            }
            if queue.end.is_some() {
                return Ok(None);
            }
            queue = match deadline {
                None => {
                    let woken = self.subscriber.woken.wait(queue);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    self.wait_for(queue, left)
                }
            };
        }
    }

    fn wait_for<'q>(
        &'q self,
        queue: MutexGuard<'q, Queue>,
        left: Duration,
    ) -> MutexGuard<'q, Queue> {
        let woken = self.subscriber.woken.wait_timeout(queue, left);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Iterator for Watch {
    type Item = Result<WatchEvent, CommitError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.wait(None).transpose()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut all = lock(&self.feed.all);
        all.retain(|other| !Arc::ptr_eq(other, &self.subscriber));
        // ORDERING: Relaxed; a committer that still sees it finds one subscriber less in the list.
        self.feed.watched.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
