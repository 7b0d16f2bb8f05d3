//! Memory that clients hold, each and together, and the limit of `maxmemory-clients`.
//!
//! A connection reports the capacity of its buffers whenever it changes, before the buffer of a
//! reply grows, and within a command. The thread whose report makes the sum exceed the limit
//! *evicts* the largest client, and further ones until the others are within the limit. Replies of
//! an evicted client are discarded from then on, what it holds is freed at once, and its connection
//! ends.
//!
//! The small buffers that every connection has are free, and others count in steps, so that
//! connections with little traffic do not share a cache line.

use crate::error::{CommandError, Outcome};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Capacities up to this are not counted.
const FREE: usize = 4 << 10;
/// Larger ones count as multiples of this.
const STEP: usize = 16 << 10;
/// Capacity for messages that is kept when they are taken.
const KEPT_MESSAGES: usize = 4 << 10;

/// The purpose for which a client holds memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// Requests.
    Query,
    /// Commands that wait for `EXEC`.
    Queued,
    /// Watched keys.
    Watched,
    /// Keys that the client waits for.
    Waiting,
    /// Channels and patterns that it subscribed to.
    Names,
    /// Messages of channels.
    Messages,
    /// Replies.
    Output,
    /// Replies that are gathered before they are appended to the others.
    Gathered,
    /// Replies that are gathered for the gathered ones.
    GatheredWithin,
    /// Changes that are not committed yet.
    Changes,
    /// The Lua state of a script.
    Script,
    /// Intermediate results of a command.
    #[default]
    Scratch,
}

const PARTS: usize = Part::Scratch as usize + 1;

/// The memory of one client.
#[derive(Debug)]
pub struct Account {
    /// The client's number.
    id: u64,
    /// The client's address, for the log.
    address: String,
    parts: [AtomicUsize; PARTS],
    evicted: AtomicBool,
    exempt: AtomicBool,
    /// Messages of channels that the client has not been sent yet.
    messages: Mutex<Vec<u8>>,
    /// Notified when the client is to be disconnected.
    pub kill: Notify,
    budget: Arc<Budget>,
}

impl Account {
    /// Reports that the client now holds `bytes` for a part. Evicts clients if that is too much for
    /// all together.
    pub fn hold(&self, part: Part, bytes: usize) {
        self.budget.hold(self, part, bytes);
    }

    /// Returns the bytes of all parts.
    #[must_use]
    pub fn sum(&self) -> usize {
        // ORDERING: Relaxed; a sum of numbers that change meanwhile.
        let parts = self.parts.iter().map(|part| part.load(Ordering::Relaxed));
        parts.sum()
    }

    /// Returns the bytes of one part.
    #[must_use]
    pub fn of(&self, part: Part) -> usize {
        // ORDERING: Relaxed; as in `sum`.
        self.parts[part as usize].load(Ordering::Relaxed)
    }

    /// Returns true if the client was evicted: it may hold nothing any more.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        // ORDERING: Relaxed; the flag publishes nothing but itself.
        self.evicted.load(Ordering::Relaxed)
    }

    /// Exempts the client from eviction, or ends that: `CLIENT NO-EVICT`.
    pub fn set_exempt(&self, exempt: bool) {
        // ORDERING: Relaxed; as in `is_evicted`.
        self.exempt.store(exempt, Ordering::Relaxed);
    }

    fn messages(&self) -> MutexGuard<'_, Vec<u8>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message. A client with more than `limit` bytes of them is disconnected. Returns false
    /// if the message was discarded.
    pub fn deliver(&self, message: &[u8], limit: usize) -> bool {
        let mut messages = self.messages();
        if self.is_evicted() {
            return false;
        }
        if limit > 0 && messages.len().saturating_add(message.len()) > limit {
            self.discard(&mut messages);
            self.kill.notify_one();
            return false;
        }
        messages.extend_from_slice(message);
        self.hold(Part::Messages, messages.capacity());
        if self.is_evicted() {
            self.discard(&mut messages);
        }
        true
    }

    /// Appends the messages to `out` and removes them.
    pub fn take_messages(&self, out: &mut Vec<u8>) {
        let mut messages = self.messages();
        if !messages.is_empty() {
            out.append(&mut messages);
            messages.shrink_to(KEPT_MESSAGES);
            self.hold(Part::Messages, messages.capacity());
        }
    }

    /// Frees the messages of an evicted client before its connection ends, which may take a while.
    /// If another thread is just adding one, that thread frees them.
    fn discard_messages(&self) {
        if let Ok(mut messages) = self.messages.try_lock() {
            self.discard(&mut messages);
        }
    }

    fn discard(&self, messages: &mut Vec<u8>) {
        *messages = Vec::new();
        self.hold(Part::Messages, 0);
    }
}

/// Approximate memory of one string in a collection of intermediate results, besides its bytes.
const STRING_OVERHEAD: usize = 48;

/// Counts the memory that a command takes for intermediate results, which are not part of its
/// reply, or for its changes. Dropping it gives that memory back.
#[derive(Debug, Default)]
pub struct Scratch<'a> {
    account: Option<&'a Account>,
    part: Part,
    bytes: usize,
}

impl<'a> Scratch<'a> {
    /// Begins to count a part of what this client holds; `None` counts nothing.
    #[must_use]
    pub fn new(account: Option<&'a Account>, part: Part) -> Self {
        Self {
            account,
            part,
            bytes: 0,
        }
    }

    /// Counts a string that is kept. Breaks if the client was evicted: then
    /// [`check`](Self::check) fails.
    pub fn add(&mut self, string: &[u8]) -> ControlFlow<()> {
        self.add_bytes(string.len() + STRING_OVERHEAD)
    }

    /// Counts bytes that are kept, like [`add`](Self::add).
    pub fn add_bytes(&mut self, bytes: usize) -> ControlFlow<()> {
        self.reset(self.bytes.saturating_add(bytes));
        if self.is_evicted() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Returns what is counted now, for [`reset`](Self::reset).
    #[must_use]
    pub fn mark(&self) -> usize {
        self.bytes
    }

    /// Gives back what was counted since `mark`.
    pub fn reset(&mut self, mark: usize) {
        self.bytes = mark;
        if let Some(account) = self.account {
            account.hold(self.part, mark);
        }
    }

    /// Returns true if the client was evicted.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.account.is_some_and(Account::is_evicted)
    }

    /// Fails if the client was evicted.
    ///
    /// # Errors
    /// [`CommandError::Reply`]: the command has to end. Its reply is discarded.
    pub fn check(&self) -> Outcome {
        if self.is_evicted() {
            return Err(CommandError::reply(
                "ERR the client was evicted because of maxmemory-clients",
            ));
        }
        Ok(())
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.reset(0);
        }
    }
}

/// The accounts of all clients, and their limit.
#[derive(Debug, Default)]
pub struct Budget {
    accounts: Mutex<BTreeMap<u64, Arc<Account>>>,
    total: AtomicUsize,
    /// 0 for none.
    limit: AtomicUsize,
    evicted: AtomicU64,
}

impl Budget {
    fn accounts(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Account>>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the account of a client.
    pub fn open(self: &Arc<Self>, id: u64, address: String) -> Arc<Account> {
        let account = Arc::new(Account {
            id,
            address,
            parts: Default::default(),
            evicted: AtomicBool::new(false),
            exempt: AtomicBool::new(false),
            messages: Mutex::default(),
            kill: Notify::new(),
            budget: Arc::clone(self),
        });
        self.accounts().insert(id, Arc::clone(&account));
        account
    }

    /// Closes an account and releases all that its client held.
    pub fn close(&self, account: &Account) {
        self.accounts().remove(&account.id);
        for part in &account.parts {
            // ORDERING: Relaxed; as in `hold`.
            let bytes = part.swap(0, Ordering::Relaxed);
            // ORDERING: Relaxed; as in `hold`.
            self.total.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the bytes that all clients hold together.
    pub fn total(&self) -> usize {
        // ORDERING: Relaxed; a number that changes all the time.
        self.total.load(Ordering::Relaxed)
    }

    /// Returns the count of evicted clients.
    pub fn evicted(&self) -> &AtomicU64 {
        &self.evicted
    }

    /// Returns the most that clients may hold together; 0 for no limit.
    pub fn limit(&self) -> usize {
        // ORDERING: Relaxed; as in `total`.
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit, and evicts clients that exceed it.
    pub fn set_limit(&self, limit: usize) {
        // ORDERING: Relaxed; a thread that has not seen it yet uses the previous one.
        self.limit.store(limit, Ordering::Relaxed);
        self.evict();
    }

    fn hold(&self, account: &Account, part: Part, bytes: usize) {
        let bytes = if bytes <= FREE {
            0
        } else {
            bytes.checked_next_multiple_of(STEP).unwrap_or(bytes)
        };
        let part = &account.parts[part as usize];
        // ORDERING: Relaxed; numbers that need not agree at any moment. The swap loses none of
        // them.
        if part.load(Ordering::Relaxed) == bytes {
            return;
        }
        // ORDERING: Relaxed; as above.
        let before = part.swap(bytes, Ordering::Relaxed);
        if bytes <= before {
            // ORDERING: Relaxed; as above.
            self.total.fetch_sub(before - bytes, Ordering::Relaxed);
            return;
        }
        let more = bytes - before;
        // ORDERING: Relaxed; as above.
        let total = self.total.fetch_add(more, Ordering::Relaxed) + more;
        let limit = self.limit();
        if limit > 0 && total > limit {
            self.evict();
        }
    }

    /// Evicts the largest clients, until the others hold no more than the limit.
    fn evict(&self) {
        let mut evicted = Vec::new();
        {
            let accounts = self.accounts();
            while let Some((bytes, account)) = self.next_to_evict(&accounts) {
                // ORDERING: Relaxed; see `Account::is_evicted`.
                account.evicted.store(true, Ordering::Relaxed);
                account.kill.notify_one();
                // ORDERING: Relaxed; statistics.
                self.evicted.fetch_add(1, Ordering::Relaxed);
                evicted.push((bytes, Arc::clone(account)));
            }
        }
        for (bytes, account) in evicted {
            account.discard_messages();
            tracing::warn!(
                client = %account.address,
                bytes,
                limit = self.limit(),
                "disconnected: all clients together hold more than maxmemory-clients, and this one the most"
            );
        }
    }

    /// Returns the largest account that may be evicted, and its bytes, if the accounts exceed the
    /// limit.
    fn next_to_evict<'a>(
        &self,
        accounts: &'a BTreeMap<u64, Arc<Account>>,
    ) -> Option<(usize, &'a Arc<Account>)> {
        let limit = self.limit();
        // The memory of evicted clients is about to be freed. The sum is computed anew: the total
        // may still include what a client has just released.
        let (mut staying, mut largest) = (0, None);
        for account in accounts.values().filter(|account| !account.is_evicted()) {
            let bytes = account.sum();
            staying += bytes;
            // ORDERING: Relaxed; see `Account::set_exempt`.
            if !account.exempt.load(Ordering::Relaxed)
                && largest.is_none_or(|(most, _)| bytes > most)
            {
                largest = Some((bytes, account));
            }
        }
        let within = limit == 0 || staying <= limit;
        largest.filter(|(bytes, _)| !within && *bytes > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Client, Clients};

    fn clients(limit: usize, number: usize) -> (Clients, Vec<Arc<Client>>) {
        let clients = Clients::default();
        clients.budget().set_limit(limit);
        let enter = |_| {
            clients
                .enter(100, "a:1".into(), "b:2".into(), true)
                .unwrap()
        };
        let all = (0..number).map(enter).collect();
        (clients, all)
    }

    #[test]
    fn the_largest_goes_first_and_what_it_holds_counts_until_it_has_left() {
        let (clients, all) = clients(1 << 20, 3);
        all[0].hold(Part::Output, 300 << 10);
        all[1].hold(Part::Messages, 200 << 10);
        all[1].hold(Part::Query, 200 << 10);
        assert!(!all.iter().any(|client| client.is_evicted()));
        all[2].hold(Part::Queued, 350 << 10);
        let evicted: Vec<bool> = all.iter().map(|client| client.is_evicted()).collect();
        assert_eq!(evicted, [false, true, false]);
        // More is allowed: clients that are about to leave do not count.
        all[2].hold(Part::Queued, 400 << 10);
        assert!(!all[2].is_evicted());
        clients.leave(all[1].id);
        assert!(clients.budget().total() < 1 << 20);
        all[2].hold(Part::Queued, 4 << 20);
        assert!(all[2].is_evicted() && !all[0].is_evicted());
        assert_eq!(clients.budget().evicted().load(Ordering::Relaxed), 2);
        for client in all {
            clients.leave(client.id);
        }
        assert_eq!(clients.budget().total(), 0);
    }

    #[test]
    fn who_is_to_stay_stays_and_a_lower_limit_holds_at_once() {
        let (clients, all) = clients(0, 2);
        all[0].account.set_exempt(true);
        all[0].hold(Part::Output, 1 << 30);
        all[1].hold(Part::Output, 1 << 20);
        assert!(!all[1].is_evicted());
        clients.budget().set_limit(1 << 20);
        assert!(all[1].is_evicted() && !all[0].is_evicted());
    }

    #[test]
    fn small_buffers_are_free() {
        let (clients, all) = clients(1, 1);
        all[0].hold(Part::Output, FREE);
        assert_eq!(clients.budget().total(), 0);
        all[0].hold(Part::Output, FREE + 1);
        assert_eq!(clients.budget().total(), STEP);
    }
}
