//! Clients that wait for an element, and who gives it to them.
//!
//! A command that finds nothing puts its client on the list of each of its keys, in the order of coming, while it holds their locks.
//! Who then makes such a key takes the element for the client that has waited longest, in a commit of its own, before the locks
//! are given back: nobody comes between. What a waiter wants to have put elsewhere needs the lock of that place, too;
//! `Data::lock` takes it with the others.
//!
//! Locks are taken in this order: stripes of keys, a waiter's state, the lists.

use super::Data;
use super::blocking::Take;
use super::locks::Held;
use super::tx::Name;
use crate::command::Failed;
use crate::reply::{Out, Protocol, REPLIES_MOST};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// What a command waits for.
#[derive(Debug)]
pub(super) struct Wants {
    /// Under any of these keys.
    pub keys: Vec<Vec<u8>>,
    /// What it takes.
    pub take: Take,
    /// For how long; `None`: until it comes.
    pub timeout: Option<Duration>,
}

/// A client that waits.
#[derive(Debug)]
pub struct Waiter {
    /// Its number in the order of coming.
    number: u64,
    db: usize,
    wants: Wants,
    protocol: Protocol,
    end: Mutex<End>,
    ended: Notify,
}

/// How a client's waiting ends.
#[derive(Debug, Default)]
struct End {
    /// It waits no longer.
    reached: bool,
    /// What it is answered.
    reply: Vec<u8>,
}

/// What a key that is waited for takes beside its name.
const QUEUED: usize = 400;

impl Waiter {
    /// About how many bytes of memory it takes, with its places in the queues.
    #[must_use]
    pub fn held(&self) -> usize {
        // A key is here and in its queue, which is an entry of a map with a map of its own.
        let keys = self.wants.keys.iter().map(|key| 2 * key.len() + QUEUED);
        keys.sum::<usize>() + self.wants.take.destination().map_or(0, <[u8]>::len)
    }

    /// How long it waits at most.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.wants.timeout
    }

    /// Waits until there is a reply. For one task alone.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }

    fn end(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the reply.
    pub fn take_reply(&self) -> Vec<u8> {
        std::mem::take(&mut self.end().reply)
    }

    /// The reply that `f` makes.
    fn encoded(&self, f: impl FnOnce(&mut Out<'_>)) -> Vec<u8> {
        let mut reply = Vec::new();
        f(&mut Out::new(&mut reply, self.protocol));
        reply
    }
}

/// Those who wait for a key of some name, by their numbers; for that in any database, as locks are.
#[derive(Debug, Default)]
struct Queue {
    waiters: BTreeMap<u64, Arc<Waiter>>,
    /// How many of them want to put what they get under another key.
    moving: usize,
}

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    by_name: HashMap<Vec<u8>, Queue>,
}

/// All who wait.
#[derive(Debug, Default)]
pub struct Waiting {
    /// How many keys are waited for: who writes looks at this first.
    names: AtomicUsize,
    inner: Mutex<Inner>,
}

impl Waiting {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if anybody waits. Who holds a key's lock misses nobody who waits for the key.
    #[must_use]
    pub fn any(&self) -> bool {
        // ORDERING: Relaxed; who comes to wait for a key holds its lock, which orders this.
        self.names.load(Ordering::Relaxed) > 0
    }

    /// A new one, for keys of a database whose locks the caller holds.
    pub(super) fn enter(&self, db: usize, wants: Wants, protocol: Protocol) -> Arc<Waiter> {
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
            let queue = inner.by_name.entry(name.clone()).or_default();
            queue.waiters.insert(waiter.number, Arc::clone(&waiter));
            queue.moving += usize::from(waiter.wants.take.destination().is_some());
        }
        // ORDERING: Relaxed; see `any`.
        self.names.store(inner.by_name.len(), Ordering::Relaxed);
        waiter
    }

    /// Takes one from the lists.
    fn leave(&self, waiter: &Waiter) {
        let mut inner = self.inner();
        for name in &waiter.wants.keys {
            let Some(queue) = inner.by_name.get_mut(name) else {
                continue;
            };
            if queue.waiters.remove(&waiter.number).is_some() {
                queue.moving -= usize::from(waiter.wants.take.destination().is_some());
            }
            if queue.waiters.is_empty() {
                inner.by_name.remove(name);
            }
        }
        // ORDERING: Relaxed; see `any`.
        self.names.store(inner.by_name.len(), Ordering::Relaxed);
    }

    /// Who has waited longest for a key, of those whose number is higher.
    fn next(&self, (db, key): (usize, &[u8]), after: u64) -> Option<Arc<Waiter>> {
        let inner = self.inner();
        let mut waiters = inner.by_name.get(key)?.waiters.range(after + 1..);
        let found = waiters.find(|(_, waiter)| waiter.db == db);
        found.map(|(_, waiter)| Arc::clone(waiter))
    }

    /// Keys of a database that are waited for.
    pub(super) fn keys_of(&self, db: usize) -> Vec<Vec<u8>> {
        let inner = self.inner();
        let waited = |(name, queue): (&Vec<u8>, &Queue)| {
            let here = queue.waiters.values().any(|waiter| waiter.db == db);
            here.then(|| name.clone())
        };
        inner.by_name.iter().filter_map(waited).collect()
    }

    /// Where those who wait for keys of these names want to have put what they get; where those who wait for that want it; and so on.
    fn destinations<'k>(&self, names: impl Iterator<Item = &'k [u8]>) -> BTreeSet<Vec<u8>> {
        let inner = self.inner();
        let from = |name: &[u8]| -> Vec<Vec<u8>> {
            let queue = inner.by_name.get(name).filter(|queue| queue.moving > 0);
            let waiters = queue.into_iter().flat_map(|queue| queue.waiters.values());
            let places = waiters.filter_map(|waiter| waiter.wants.take.destination());
            places.map(<[u8]>::to_vec).collect()
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

impl Data {
    /// Locks keys that are to be written, with those that may be written for who waits for them.
    pub(super) fn lock<'k>(&self, keys: impl Iterator<Item = Key<'k>> + Clone) -> Held<'_> {
        let mut held = self.locks.keys(keys.clone());
        if !self.waiting.any() {
            return held;
        }
        let mut others = BTreeSet::new();
        loop {
            // While the keys are locked, nobody comes to wait for them.
            let names = keys.clone().map(|(_, name)| name);
            let found = self.waiting.destinations(names);
            if found.is_subset(&others) {
                return held;
            }
            drop(held);
            others.extend(found);
            held = self.lock_all(&keys.clone().collect::<Vec<_>>(), &others);
        }
    }

    fn lock_all<'k>(&self, keys: &[Key<'k>], others: &'k BTreeSet<Vec<u8>>) -> Held<'_> {
        // Locks are those of a name in all databases.
        let others = others.iter().map(|name| (0, name.as_slice()));
        self.locks.keys(keys.iter().copied().chain(others))
    }

    /// Gives what is under keys that were just put to who waits for it, in the order in which they were. The caller has the locks of
    /// [`lock`](Self::lock).
    pub(super) fn serve(&self, put: Vec<Name>) {
        let mut put = VecDeque::from(put);
        while let Some((db, key)) = put.pop_front() {
            let mut last = 0;
            while let Some(waiter) = self.waiting.next((db, &key), last) {
                last = waiter.number;
                match self.serve_one(&waiter, &key) {
                    Ok(Some(more)) => put.extend(more),
                    Ok(None) => break,
                    Err(e) => {
                        tracing::error!(error = %e, "what clients wait for cannot be read");
                        break;
                    }
                }
            }
        }
    }

    /// Gives a waiter what it wants from `key`, if that is there; the keys that were put then. `None` if the key is not there.
    fn serve_one(&self, waiter: &Waiter, key: &[u8]) -> Result<Option<Vec<Name>>, Failed> {
        let mut tx = self.begin(waiter.db);
        let Some(head) = tx.load_head_from(waiter.db, key)? else {
            return Ok(None);
        };
        let end = waiter.end();
        if end.reached || head.kind != waiter.wants.take.kind() {
            return Ok(Some(Vec::new()));
        }
        let mut put = Ok(Vec::new());
        let mut encoded = waiter.encoded(|out| {
            put = waiter.wants.take.run(&mut tx, key, out).and_then(|_| {
                if out.overflowed() {
                    let text = format!("ERR the reply takes more than {REPLIES_MOST} bytes");
                    return Err(Failed::reply(text));
                }
                tx.commit()
            });
        });
        if let Err(e) = &put {
            encoded = waiter.encoded(|out| out.error(&e.to_string()));
        }
        self.finish(waiter, end, encoded);
        Ok(Some(put.unwrap_or_default()))
    }

    /// Ends the waiting of one who has nothing yet, with the reply that `f` makes; false if it has ended already.
    pub fn give_up(&self, waiter: &Waiter, f: impl FnOnce(&mut Out<'_>)) -> bool {
        let end = waiter.end();
        let waits = !end.reached;
        if waits {
            self.finish(waiter, end, waiter.encoded(f));
        }
        waits
    }

    fn finish(&self, waiter: &Waiter, mut end: MutexGuard<'_, End>, reply: Vec<u8>) {
        *end = End {
            reached: true,
            reply,
        };
        drop(end);
        self.waiting.leave(waiter);
        waiter.ended.notify_one();
    }
}

/// A key: its database and name.
type Key<'k> = (usize, &'k [u8]);
