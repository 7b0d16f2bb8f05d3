//! Queues of clients that wait for a key: `BLPOP` and its relatives.
//!
//! A command that finds nothing enters its client into the queue of each of its keys, in order of
//! arrival, while it holds their locks. `execute/waiters.rs` serves the queues.
//!
//! Locks are taken in this order: stripes of keys, a waiter's state, the queues.

use super::spaces::Name;
use crate::reply::{Out, Protocol};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// The demand of a waiting client.
#[derive(Debug)]
pub struct Wants<T> {
    /// Any of these keys.
    pub keys: Vec<Vec<u8>>,
    /// The elements that it takes from the key.
    pub take: T,
    /// The key under which the taken element is put, if it is moved.
    pub destination: Option<Vec<u8>>,
    /// How long it waits; `None`: for ever.
    pub timeout: Option<Duration>,
}

/// A waiting client.
#[derive(Debug)]
pub struct Waiter<T> {
    /// Its number in order of arrival.
    pub(crate) number: u64,
    /// Its database.
    pub(crate) db: usize,
    /// Its demand.
    pub(crate) wants: Wants<T>,
    protocol: Protocol,
    end: Mutex<End>,
    ended: Notify,
}

/// The end of a client's waiting.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// It no longer waits.
    pub reached: bool,
    /// Its reply.
    reply: Vec<u8>,
}

/// Approximate memory of a key in its queue, besides its name.
const QUEUED: usize = 400;

impl<T> Waiter<T> {
    /// Returns the memory in bytes that it takes, about, with its places in the queues.
    #[must_use]
    pub fn held(&self) -> usize {
        // A key is here and in its queue, which is an entry of a map with a map of its own.
        let keys = self.wants.keys.iter().map(|key| 2 * key.len() + QUEUED);
        keys.sum::<usize>() + self.wants.destination.as_ref().map_or(0, Vec::len)
    }

    /// Returns how long it waits at most.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.wants.timeout
    }

    /// Waits until there is a reply. Only one task may wait.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Locks its end: while this is held, no other thread serves it.
    pub(crate) fn end(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes its reply.
    pub fn take_reply(&self) -> Vec<u8> {
        std::mem::take(&mut self.end().reply)
    }

    /// Returns the reply that `f` writes, in the client's protocol.
    pub(crate) fn encoded(&self, f: impl FnOnce(&mut Out<'_>)) -> Vec<u8> {
        let mut reply = Vec::new();
        f(&mut Out::new(&mut reply, self.protocol));
        reply
    }
}

/// The waiters for keys of one name, by their numbers; in all databases, as locks are.
#[derive(Debug)]
struct Queue<T> {
    waiters: BTreeMap<u64, Arc<Waiter<T>>>,
    /// How many of them have a destination.
    moving: usize,
}

#[derive(Debug)]
struct Inner<T> {
    last: u64,
    by_name: HashMap<Vec<u8>, Queue<T>>,
}

/// All waiting clients.
#[derive(Debug)]
pub struct Waiting<T> {
    /// The number of queues, which writers check first.
    names: AtomicUsize,
    inner: Mutex<Inner<T>>,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        let inner = Inner {
            last: 0,
            by_name: HashMap::new(),
        };
        Self {
            names: AtomicUsize::new(0),
            inner: Mutex::new(inner),
        }
    }
}

impl<T> Waiting<T> {
    fn inner(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a client waits. The holder of a key's lock misses no client that waits for
    /// it.
    #[must_use]
    pub fn any(&self) -> bool {
        // ORDERING: Relaxed; a client enters under the lock of its key, which orders this.
        self.names.load(Ordering::Relaxed) > 0
    }

    /// Enters a client. The caller holds the locks of its keys.
    pub(crate) fn enter(&self, db: usize, wants: Wants<T>, protocol: Protocol) -> Arc<Waiter<T>> {
        let mut inner = self.inner();
        inner.last += 1;
        let waiter = Arc::new(Waiter {
            number: inner.last,
            db,
            wants,
            protocol,
            end: Mutex::default(),
            ended: Notify::new(),
        });
        for name in waiter.wants.keys.iter().collect::<BTreeSet<_>>() {
            let queue = inner.by_name.entry(name.clone()).or_insert_with(|| Queue {
                waiters: BTreeMap::new(),
                moving: 0,
            });
            queue.waiters.insert(waiter.number, Arc::clone(&waiter));
            queue.moving += usize::from(waiter.wants.destination.is_some());
        }
        // ORDERING: Relaxed; see `any`.
        self.names.store(inner.by_name.len(), Ordering::Relaxed);
        waiter
    }

    /// Removes a client from its queues.
    fn leave(&self, waiter: &Waiter<T>) {
        let mut inner = self.inner();
        for name in &waiter.wants.keys {
            let Some(queue) = inner.by_name.get_mut(name) else {
                continue;
            };
            if queue.waiters.remove(&waiter.number).is_some() {
                queue.moving -= usize::from(waiter.wants.destination.is_some());
            }
            if queue.waiters.is_empty() {
                inner.by_name.remove(name);
            }
        }
        // ORDERING: Relaxed; see `any`.
        self.names.store(inner.by_name.len(), Ordering::Relaxed);
    }

    /// Ends a client's waiting with this reply.
    pub(crate) fn finish(&self, waiter: &Waiter<T>, mut end: MutexGuard<'_, End>, reply: Vec<u8>) {
        *end = End {
            reached: true,
            reply,
        };
        drop(end);
        self.leave(waiter);
        waiter.ended.notify_one();
    }

    /// Ends the waiting of a client that has no reply yet, with the one that `f` writes. Returns
    /// false if it has one.
    pub fn give_up(&self, waiter: &Waiter<T>, f: impl FnOnce(&mut Out<'_>)) -> bool {
        let end = waiter.end();
        let waits = !end.reached;
        if waits {
            self.finish(waiter, end, waiter.encoded(f));
        }
        waits
    }

    /// Returns the client that has waited longest for a key, of those with a number above `after`.
    pub(crate) fn next(&self, (db, key): &Name, after: u64) -> Option<Arc<Waiter<T>>> {
        let inner = self.inner();
        let mut waiters = inner.by_name.get(key)?.waiters.range(after + 1..);
        let found = waiters.find(|(_, waiter)| waiter.db == *db);
        found.map(|(_, waiter)| Arc::clone(waiter))
    }

    /// Returns the keys of a database for which clients wait.
    pub(crate) fn keys_of(&self, db: usize) -> Vec<Vec<u8>> {
        let inner = self.inner();
        let waited = |(name, queue): (&Vec<u8>, &Queue<T>)| {
            let here = queue.waiters.values().any(|waiter| waiter.db == db);
            here.then(|| name.clone())
        };
        inner.by_name.iter().filter_map(waited).collect()
    }

    /// Returns the destinations of the clients that wait for keys of these names, the destinations
    /// of the clients that wait for those, and so on.
    pub(crate) fn destinations<'k>(
        &self,
        names: impl Iterator<Item = &'k [u8]>,
    ) -> BTreeSet<Vec<u8>> {
        let inner = self.inner();
        let from = |name: &[u8]| -> Vec<Vec<u8>> {
            let queue = inner.by_name.get(name).filter(|queue| queue.moving > 0);
            let waiters = queue.into_iter().flat_map(|queue| queue.waiters.values());
            let destinations = waiters.filter_map(|waiter| waiter.wants.destination.clone());
            destinations.collect()
        };
        let mut found = BTreeSet::new();
        let mut next: Vec<Vec<u8>> = names.flat_map(from).collect();
        while let Some(name) = next.pop() {
            if !found.contains(&name) {
                next.extend(from(&name));
                found.insert(name);
            }
        }
        found
    }
}
