//! Clients as others see them: for `CLIENT LIST` and `KILL`, messages, and limits.

use crate::budget::{Held, Part, Registry};
use crate::data::waiting::Waiter;
use crate::reply::Protocol;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// What clients say of themselves.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// `CLIENT SETNAME`
    pub name: String,
    /// `CLIENT SETINFO LIB-NAME`
    pub library: String,
    /// `CLIENT SETINFO LIB-VER`
    pub version: String,
    /// The user.
    pub user: String,
    /// The last command.
    pub command: String,
}

/// A client.
#[derive(Debug)]
pub struct Client {
    /// Its number.
    pub id: u64,
    /// Its address.
    pub address: String,
    /// The server's, that it is connected to.
    pub local: String,
    /// It is on this machine.
    pub on_loopback: bool,
    connected: Instant,
    names: Mutex<Names>,
    /// Database, protocol, commands queued (plus 1; 0 without `MULTI`), channels, patterns.
    pub db: AtomicUsize,
    resp3: AtomicBool,
    /// Commands in `MULTI` plus 1.
    pub queued: AtomicUsize,
    /// Channels that it listens to.
    pub channels: AtomicUsize,
    /// Patterns that it listens to.
    pub patterns: AtomicUsize,
    /// Bytes that it has sent and that are not executed.
    pub query: AtomicUsize,
    /// When it was last active, in ms since it was connected.
    active: AtomicU64,
    /// It waits for an element.
    waiter: Mutex<Option<Arc<Waiter>>>,
    /// Messages for it.
    pending: Mutex<Vec<u8>>,
    /// There are some.
    pub wake: Notify,
    /// It is to be disconnected.
    pub kill: Notify,
    /// The memory that it holds.
    pub held: Held,
    registry: Arc<Registry>,
}

/// Room for messages that is kept when they are taken.
const PENDING_KEPT: usize = 4 << 10;

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
        registry: Arc<Registry>,
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
            pending: Mutex::default(),
            wake: Notify::new(),
            kill: Notify::new(),
            held: Held::default(),
            registry,
        }
    }

    /// It holds so many bytes for this from now on. Whoever holds the most is evicted, if that is too much for all together.
    pub fn hold(&self, part: Part, bytes: usize) {
        self.registry.hold(&self.held, part, bytes);
    }

    /// It has to go, and may hold nothing more: `maxmemory-clients`.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.held.evicted()
    }

    /// What it says of itself.
    pub fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The protocol that it speaks.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        // ORDERING: Relaxed; a message that crosses a change of protocols may come in either.
        if self.resp3.load(Ordering::Relaxed) {
            Protocol::Resp3
        } else {
            Protocol::Resp2
        }
    }

    /// It speaks another protocol now.
    pub fn set_protocol(&self, protocol: Protocol) {
        // ORDERING: Relaxed; as in `protocol`.
        self.resp3
            .store(protocol == Protocol::Resp3, Ordering::Relaxed);
    }

    /// It waits for an element now, or it waits no more.
    pub fn set_waiter(&self, waiter: Option<Arc<Waiter>>) {
        let bytes = waiter.as_ref().map_or(0, |waiter| waiter.held());
        self.hold(Part::Waiting, bytes);
        *self.waiter.lock().unwrap_or_else(PoisonError::into_inner) = waiter;
    }

    /// What it waits with, if it waits for an element.
    #[must_use]
    pub fn waiter(&self) -> Option<Arc<Waiter>> {
        let waiter = self.waiter.lock();
        waiter.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn pending(&self) -> MutexGuard<'_, Vec<u8>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message for it. Who does not take them is disconnected.
    pub fn deliver(&self, message: &[u8], limit: usize) {
        let mut pending = self.pending();
        if self.is_evicted() {
            return;
        }
        if limit > 0 && pending.len().saturating_add(message.len()) > limit {
            self.forget(&mut pending);
            self.kill.notify_one();
            return;
        }
        pending.extend_from_slice(message);
        self.hold(Part::Messages, pending.capacity());
        if self.is_evicted() {
            self.forget(&mut pending);
        }
        self.wake.notify_one();
    }

    /// Frees the messages for one who is to be disconnected: that may take a while, and the next of many listeners is to
    /// find their room. Where somebody is just adding one, that thread does it.
    pub fn forget_messages(&self) {
        if let Ok(mut pending) = self.pending.try_lock() {
            self.forget(&mut pending);
        }
    }

    fn forget(&self, pending: &mut Vec<u8>) {
        *pending = Vec::new();
        self.hold(Part::Messages, 0);
    }

    /// Puts the messages for it at the end of `out`.
    pub fn take_pending(&self, out: &mut Vec<u8>) {
        let mut pending = self.pending();
        if !pending.is_empty() {
            out.append(&mut pending);
            pending.shrink_to(PENDING_KEPT);
            self.hold(Part::Messages, pending.capacity());
        }
    }

    /// It does something.
    pub fn touch(&self) {
        let now = u64::try_from(self.connected.elapsed().as_millis()).unwrap_or(u64::MAX);
        // ORDERING: Relaxed; a time for people, and for limits in seconds.
        self.active.store(now, Ordering::Relaxed);
    }

    /// Seconds since it was last active.
    #[must_use]
    pub fn idle(&self) -> u64 {
        let now = u64::try_from(self.connected.elapsed().as_millis()).unwrap_or(u64::MAX);
        // ORDERING: Relaxed; as in `touch`.
        now.saturating_sub(self.active.load(Ordering::Relaxed)) / 1000
    }

    /// True if it listens to channels.
    #[must_use]
    pub fn subscribed(&self) -> bool {
        get(&self.channels) + get(&self.patterns) > 0
    }

    /// Its type: `normal` or `pubsub`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        if self.subscribed() {
            "pubsub"
        } else {
            "normal"
        }
    }

    /// The line of `CLIENT LIST`.
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
            self.connected.elapsed().as_secs(),
            self.idle(),
            get(&self.db),
            get(&self.channels),
            get(&self.patterns),
            get(&self.query),
            self.held.of(Part::Queued),
            self.held.of(Part::Output) + self.held.of(Part::Messages),
            self.held.sum(),
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
    registry: Arc<Registry>,
    /// How many there are, for those who ask often.
    count: AtomicUsize,
    last: AtomicU64,
}

impl Clients {
    /// What they hold together.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// A new one; `None` if there are `most`.
    pub fn enter(
        &self,
        most: usize,
        address: String,
        local: String,
        on_loopback: bool,
    ) -> Option<Arc<Client>> {
        let mut by_id = self.registry.by_id();
        if by_id.len() >= most {
            return None;
        }
        // ORDERING: Relaxed; only that it is new matters.
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let registry = Arc::clone(&self.registry);
        let client = Arc::new(Client::new(id, address, local, on_loopback, registry));
        by_id.insert(id, Arc::clone(&client));
        self.note(&by_id);
        Some(client)
    }

    /// One is gone.
    pub fn leave(&self, id: u64) {
        let mut by_id = self.registry.by_id();
        if let Some(client) = by_id.remove(&id) {
            self.registry.release(&client.held);
        }
        self.note(&by_id);
    }

    fn note(&self, by_id: &BTreeMap<u64, Arc<Client>>) {
        // ORDERING: Relaxed; a number for statistics, and for choices that are right either way.
        self.count.store(by_id.len(), Ordering::Relaxed);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        // ORDERING: Relaxed; as in `note`.
        self.count.load(Ordering::Relaxed)
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, by number.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Client>> {
        self.registry.by_id().values().cloned().collect()
    }
}
