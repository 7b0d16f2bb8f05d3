//! Clients as others see them: for `CLIENT LIST` and `CLIENT KILL`, messages, and limits.

use crate::budget::{Account, Budget, Part};
use crate::data::tx::Waiter;
use crate::reply::Protocol;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// The names of a client, its user and its last command.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// `CLIENT SETNAME`
    pub name: String,
    /// `CLIENT SETINFO LIB-NAME`
    pub library: String,
    /// `CLIENT SETINFO LIB-VER`
    pub version: String,
    /// The name of its user.
    pub user: String,
    /// The name of its last command.
    pub command: String,
}

/// A client.
#[derive(Debug)]
pub struct Client {
    /// Its number.
    pub id: u64,
    /// Its address.
    pub address: String,
    /// The address of the server that it is connected to.
    pub local: String,
    /// It is on this machine.
    pub on_loopback: bool,
    connected: Instant,
    names: Mutex<Names>,
    /// Its database.
    pub db: AtomicUsize,
    resp3: AtomicBool,
    /// The number of commands queued after `MULTI`, plus 1; 0 outside of a transaction.
    pub queued: AtomicUsize,
    /// The number of subscribed channels.
    pub channels: AtomicUsize,
    /// The number of subscribed patterns.
    pub patterns: AtomicUsize,
    /// The number of bytes received and not yet executed.
    pub query: AtomicUsize,
    /// The time of its last activity, in ms since it connected.
    active: AtomicU64,
    /// Set while it waits for a key.
    waiter: Mutex<Option<Arc<Waiter>>>,
    /// Notified when there are messages for it.
    pub wake: Notify,
    /// The memory that it holds, and its messages.
    pub account: Arc<Account>,
}

fn get(number: &AtomicUsize) -> usize {
    // ORDERING: Relaxed; shown only.
    number.load(Ordering::Relaxed)
}

impl Client {
    fn new(
        id: u64,
        address: String,
        local: String,
        on_loopback: bool,
        account: Arc<Account>,
    ) -> Self {
        Self {
            id,
            address,
            local,
            on_loopback,
            connected: Instant::now(),
            names: Mutex::default(),
            db: AtomicUsize::new(0),
            resp3: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
            channels: AtomicUsize::new(0),
            patterns: AtomicUsize::new(0),
            query: AtomicUsize::new(0),
            active: AtomicU64::new(0),
            waiter: Mutex::default(),
            wake: Notify::new(),
            account,
        }
    }

    /// Reports that it now holds `bytes` for a part; see [`Account::hold`].
    pub fn hold(&self, part: Part, bytes: usize) {
        self.account.hold(part, bytes);
    }

    /// Returns true if it was evicted: `maxmemory-clients`.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.account.is_evicted()
    }

    /// Disconnects it.
    pub fn kill(&self) {
        self.account.kill.notify_one();
    }

    /// Returns its names.
    pub fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its protocol.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        // ORDERING: Relaxed; a message that crosses a change of protocols may have either.
        if self.resp3.load(Ordering::Relaxed) {
            Protocol::Resp3
        } else {
            Protocol::Resp2
        }
    }

    /// Notes a change of its protocol.
    pub fn set_protocol(&self, protocol: Protocol) {
        // ORDERING: Relaxed; as in `protocol`.
        self.resp3
            .store(protocol == Protocol::Resp3, Ordering::Relaxed);
    }

    /// Notes that it waits for a key, or has stopped waiting.
    pub fn set_waiter(&self, waiter: Option<Arc<Waiter>>) {
        let bytes = waiter.as_ref().map_or(0, |waiter| waiter.held());
        self.hold(Part::Waiting, bytes);
        *self.waiter.lock().unwrap_or_else(PoisonError::into_inner) = waiter;
    }

    /// Returns the state of its waiting, while it waits for a key.
    #[must_use]
    pub fn waiter(&self) -> Option<Arc<Waiter>> {
        let waiter = self.waiter.lock();
        waiter.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends it a message. A client that does not read its messages is disconnected.
    pub fn deliver(&self, message: &[u8], limit: usize) {
        if self.account.deliver(message, limit) {
            self.wake.notify_one();
        }
    }

    /// Notes that it is active.
    pub fn touch(&self) {
        let now = u64::try_from(self.connected.elapsed().as_millis()).unwrap_or(u64::MAX);
        // ORDERING: Relaxed; a time for people, and for limits in seconds.
        self.active.store(now, Ordering::Relaxed);
    }

    /// Returns the seconds since it connected.
    #[must_use]
    pub fn age(&self) -> u64 {
        self.connected.elapsed().as_secs()
    }

    /// Returns the seconds since it was last active.
    #[must_use]
    pub fn idle(&self) -> u64 {
        let now = u64::try_from(self.connected.elapsed().as_millis()).unwrap_or(u64::MAX);
        // ORDERING: Relaxed; as in `touch`.
        now.saturating_sub(self.active.load(Ordering::Relaxed)) / 1000
    }

    /// Returns true if it is subscribed to a channel or a pattern.
    #[must_use]
    pub fn subscribed(&self) -> bool {
        get(&self.channels) + get(&self.patterns) > 0
    }

    /// Returns its type: `normal` or `pubsub`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        if self.subscribed() {
            "pubsub"
        } else {
            "normal"
        }
    }

    /// Returns its line in `CLIENT LIST`.
    #[must_use]
    pub fn line(&self) -> String {
        let names = self.names().clone();
        let queued = get(&self.queued);
        let mut flags = String::new();
        if self.subscribed() {
            flags.push('P');
        }
        if queued > 0 {
            flags.push('x');
        }
        if self.waiter().is_some() {
            flags.push('b');
        }
        if flags.is_empty() {
            flags.push('N');
        }
        let multi = queued as i64 - 1;
        let mut line = String::new();
        // Writing to a string does not fail.
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags={flags} db={} sub={} psub={} ssub=0 multi={multi} \
             qbuf={} qbuf-free=0 argv-mem=0 multi-mem={} rbs=0 rbp=0 obl=0 oll=0 omem={} tot-mem={} events=r cmd={} user={} redir=-1 resp={} \
             lib-name={} lib-ver={}",
            self.id,
            self.address,
            self.local,
            names.name,
            self.age(),
            self.idle(),
            get(&self.db),
            get(&self.channels),
            get(&self.patterns),
            get(&self.query),
            self.account.of(Part::Queued),
            self.account.of(Part::Output) + self.account.of(Part::Messages),
            self.account.sum(),
            names.command,
            names.user,
            if self.protocol() == Protocol::Resp3 {
                3
            } else {
                2
            },
            names.library,
            names.version,
        );
        line
    }
}

/// All clients.
#[derive(Debug, Default)]
pub struct Clients {
    by_id: Mutex<BTreeMap<u64, Arc<Client>>>,
    budget: Arc<Budget>,
    /// The number of clients, for frequent readers.
    count: AtomicUsize,
    last: AtomicU64,
}

impl Clients {
    fn by_id(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the budget of their memory.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Enters a client. Returns `None` if there are `most` already.
    pub fn enter(
        &self,
        most: usize,
        address: String,
        local: String,
        on_loopback: bool,
    ) -> Option<Arc<Client>> {
        let mut by_id = self.by_id();
        if by_id.len() >= most {
            return None;
        }
        // ORDERING: Relaxed; the numbers only have to differ.
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let account = self.budget.open(id, address.clone());
        let client = Arc::new(Client::new(id, address, local, on_loopback, account));
        by_id.insert(id, Arc::clone(&client));
        self.note(&by_id);
        Some(client)
    }

    /// Removes a client.
    pub fn leave(&self, id: u64) {
        let mut by_id = self.by_id();
        if let Some(client) = by_id.remove(&id) {
            self.budget.close(&client.account);
        }
        self.note(&by_id);
    }

    fn note(&self, by_id: &BTreeMap<u64, Arc<Client>>) {
        // ORDERING: Relaxed; a number for statistics, and for choices that are right either way.
        self.count.store(by_id.len(), Ordering::Relaxed);
    }

    /// Returns their number.
    #[must_use]
    pub fn len(&self) -> usize {
        // ORDERING: Relaxed; as in `note`.
        self.count.load(Ordering::Relaxed)
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all of them, by number.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Client>> {
        self.by_id().values().cloned().collect()
    }
}
