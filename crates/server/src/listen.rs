//! Starting and stopping: the runtime, its listeners, and the housekeeping of clients once a
//! second.

use crate::config::Settings;
use crate::data::sweep::Sweeper;
use crate::data::{Data, sweep};
use crate::items::Items;
use crate::memcached::Memcached;
use crate::redis::Redis;
use crate::server::{self, PrepareError, Server, stopped};
use crate::table::add;
use crate::tls::{Certificate, common_name};
use crate::upkeep::Told;
use crate::{commands, http, log, serve};
use bristlecone_pmem::media::Auto;
use bristlecone_store::{CloseError, Store};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The stack of a thread, in bytes. Only what is used takes memory.
const STACK: usize = 16 << 20;
/// How long connections have to finish when the server stops.
const GRACE: Duration = Duration::from_secs(5);
/// How long a client has for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections that may wait to be accepted. The kernel drops further ones, and their clients try
/// again after a second: with a short backlog, many clients that connect at once would wait for
/// seconds.
const BACKLOG: u32 = 4096;
/// How long to wait after accepting a connection failed, as without file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a server cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Listening on an address failed.
    #[error("listening on {address} failed: {error}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        error: io::Error,
    },
    /// The threads of the runtime cannot be started.
    #[error("starting threads failed: {0}")]
    Runtime(io::Error),
    /// The store or the users are not usable.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The certificate or its key is not usable.
    #[error("TLS: {0}")]
    Tls(String),
}

impl StartError {
    /// Returns true if a setting is wrong: trying again does not help.
    #[must_use]
    pub fn is_wrong_setting(&self) -> bool {
        match self {
            Self::Listen { .. }
            | Self::Tls(_)
            | Self::Prepare(
                PrepareError::User { .. }
                | PrepareError::Users { .. }
                | PrepareError::Eviction { .. },
            ) => true,
            Self::Runtime(_) | Self::Prepare(_) => false,
        }
    }
}

/// The signals that a server [heeds](Running::heed_signals).
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// A running server.
#[derive(Debug)]
pub struct Running {
    runtime: Runtime,
    server: Arc<Server>,
    sweepers: Vec<Sweeper>,
    certificate: Option<Arc<Certificate>>,
    address: SocketAddr,
    tls_address: Option<SocketAddr>,
    metrics_address: Option<SocketAddr>,
    memcached_address: Option<SocketAddr>,
}

impl Running {
    /// Checks settings as far as possible without a store, before one is created.
    ///
    /// # Errors
    /// [`StartError::Tls`], [`StartError::Prepare`]
    pub fn check(settings: &Settings) -> Result<(), StartError> {
        Certificate::of(settings).map_err(StartError::Tls)?;
        Ok(server::check(settings)?)
    }

    /// Starts a server over a store.
    ///
    /// # Errors
    /// [`StartError`]
    pub fn start(store: Store<Auto>, settings: Settings) -> Result<Self, StartError> {
        server::check(&settings)?;
        let certificate = Certificate::of(&settings).map_err(StartError::Tls)?;
        let certificate = certificate.map(Arc::new);
        let mut builder = Builder::new_multi_thread();
        if settings.threads > 0 {
            builder.worker_threads(settings.threads);
        }
        let runtime = builder
            .thread_name("serve")
            // Scripts recurse, and the pattern matching of Lua does.
            .thread_stack_size(STACK)
            .enable_all()
            .build()
            .map_err(StartError::Runtime)?;
        let listener = listen(&runtime, &settings.listen)?;
        let tls_listener = listen_maybe(&runtime, settings.tls_listen.as_ref())?;
        let metrics_listener = listen_maybe(&runtime, settings.metrics.as_ref())?;
        let memcached_listener = listen_maybe(&runtime, settings.memcached.as_ref())?;
        let data = Data::open(store).map_err(PrepareError::Data)?;
        let data = Arc::new(data);
        let mut sweepers = vec![sweep::spawn(&data).map_err(StartError::Runtime)?];
        let mut server = Server::new(data, commands::table(), settings)?;
        if memcached_listener.is_some() {
            server.open_items()?;
            if let Some(items) = &server.items {
                let items = Arc::clone(items);
                let sweeper = sweep::spawn_stepping("items", move || items.sweep());
                sweepers.push(sweeper.map_err(StartError::Runtime)?);
            }
        }
        let server = Arc::new(server);
        let address = address(&listener)?;
        let tls_address = tls_listener.as_ref().map(self::address).transpose()?;
        let metrics_address = metrics_listener.as_ref().map(self::address).transpose()?;
        let memcached_address = memcached_listener.as_ref().map(self::address).transpose()?;
        runtime.spawn(accept(Arc::clone(&server), listener, Speaks::Redis(None)));
        if let Some(listener) = tls_listener {
            let speaks = Speaks::Redis(certificate.clone());
            runtime.spawn(accept(Arc::clone(&server), listener, speaks));
        }
        if let (Some(listener), Some(items)) = (memcached_listener, &server.items) {
            let speaks = Speaks::Memcached(Arc::clone(items));
            runtime.spawn(accept(Arc::clone(&server), listener, speaks));
        }
        if let Some(listener) = metrics_listener {
            runtime.spawn(serve_metrics(Arc::clone(&server), listener));
        }
        runtime.spawn(look_after(Arc::clone(&server)));
        Ok(Self {
            runtime,
            server,
            sweepers,
            certificate,
            address,
            tls_address,
            metrics_address,
            memcached_address,
        })
    }

    /// Returns the address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address that it listens on for TLS.
    #[must_use]
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.tls_address
    }

    /// Returns the address that it serves metrics on.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Returns the address that it listens on for memcached clients.
    #[must_use]
    pub fn memcached_address(&self) -> Option<SocketAddr> {
        self.memcached_address
    }

    /// Returns the server.
    #[must_use]
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// From here on `SIGTERM`, `SIGINT` and `SIGHUP` do what [`wait`](Self::wait) says, and no
    /// longer end the process at once. Call it before anyone is told that the server is there.
    ///
    /// # Errors
    /// Waiting for signals is not possible.
    pub fn heed_signals(&self) -> io::Result<Signals> {
        let _runtime = self.runtime.enter();
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits until `SHUTDOWN`, `SIGTERM` or `SIGINT` stops it. `SIGHUP` [reloads](Self::reload).
    pub fn wait(&self, mut signals: Signals) {
        let mut stopping = self.server.stopping.subscribe();
        self.runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = signals.terminate.recv() => return,
                    _ = signals.interrupt.recv() => return,
                    () = stopped(&mut stopping) => return,
                    _ = signals.hangup.recv() => self.reload(),
                }
            }
        });
    }

    /// Reopens the log's file, as after it was renamed, and reads the certificate again. If that is
    /// not usable, the error is logged and the previous certificate stays.
    pub fn reload(&self) {
        log::reopen();
        match self
            .certificate
            .as_ref()
            .map(|certificate| certificate.reload())
        {
            None => tracing::info!("told to reload: the log goes on; there is no certificate"),
            Some(Ok(())) => tracing::info!("told to reload: the certificate was read again"),
            Some(Err(e)) => tracing::error!(
                error = e,
                "the certificate cannot be used: the one from before is kept"
            ),
        }
    }

    /// Stops: accepts no more clients, finishes and replies to what is under way, and closes the
    /// store.
    ///
    /// # Errors
    /// [`CloseError`]: writes without a reply may not be durable, or the store's vacuum has failed.
    pub fn stop(self) -> Result<(), CloseError> {
        self.server.stop();
        self.server.data.scripts.stop();
        let until = Instant::now() + GRACE;
        while !self.server.clients.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        for client in self.server.clients.all() {
            client.kill();
        }
        self.runtime.shutdown_timeout(GRACE);
        drop(self.sweepers);
        let data = Arc::clone(&self.server.data);
        drop(self.server);
        match data.close() {
            Err(CloseError::InUse) => {
                // A backup may be under way, for instance. Everything is durable.
                tracing::warn!("the store is still in use: it is closed when that ends");
                Ok(())
            }
            closed => closed,
        }
    }
}

/// The number of file descriptors that a server needs besides those of clients.
const OTHER_FILES: u64 = 64;

/// Raises the number of files that this process may open to what `maxclients` needs, as far as that
/// is allowed. Returns the number of clients that there is room for. Call it before
/// [`Running::start`].
pub fn raise_open_files(settings: &Settings) -> u64 {
    let wanted = settings.maxclients as u64 + OTHER_FILES;
    let limit = getrlimit(Resource::Nofile);
    let allowed = limit.maximum.unwrap_or(u64::MAX);
    let mut open = limit.current.unwrap_or(u64::MAX);
    if open < wanted {
        let raised = Rlimit {
            current: Some(wanted.min(allowed)),
            maximum: limit.maximum,
        };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => open = wanted.min(allowed),
            Err(e) => tracing::warn!(error = %e, "raising the limit of open files failed"),
        }
    }
    let room = open.saturating_sub(OTHER_FILES);
    if room < settings.maxclients as u64 {
        tracing::warn!(
            maxclients = settings.maxclients,
            room,
            "fewer files may be open than maxclients needs; raise the hard limit (ulimit -Hn)"
        );
    }
    room
}

fn listen(runtime: &Runtime, address: &str) -> Result<TcpListener, StartError> {
    runtime
        .block_on(bind(address))
        .map_err(|error| StartError::Listen {
            address: address.into(),
            error,
        })
}

/// Listens on the first address of that name where this succeeds.
async fn bind(address: &str) -> io::Result<TcpListener> {
    let mut ended = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
    for address in tokio::net::lookup_host(address).await? {
        match bind_to(address) {
            Ok(listener) => return Ok(listener),
            Err(e) => ended = e,
        }
    }
    Err(ended)
}

fn bind_to(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // A killed server leaves connections in the state TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn listen_maybe(
    runtime: &Runtime,
    address: Option<&String>,
) -> Result<Option<TcpListener>, StartError> {
    address.map(|address| listen(runtime, address)).transpose()
}

fn address(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(StartError::Runtime)
}

/// The protocol of a listener's clients.
#[derive(Clone, Debug)]
enum Speaks {
    /// Redis'; with a certificate, over TLS.
    Redis(Option<Arc<Certificate>>),
    /// Memcached's.
    Memcached(Arc<Items>),
}

impl Speaks {
    /// Returns what a client is told that is not served in protected mode.
    fn protected(&self) -> &'static [u8] {
        match self {
            Self::Redis(_) => PROTECTED,
            Self::Memcached(_) => MEMCACHED_PROTECTED,
        }
    }

    /// Returns what a client is told that there is no room for.
    fn full(&self) -> &'static [u8] {
        match self {
            Self::Redis(_) => FULL,
            Self::Memcached(_) => MEMCACHED_FULL,
        }
    }

    /// Returns true if only clients with a certificate get in.
    fn knows_its_clients(&self) -> bool {
        match self {
            Self::Redis(Some(certificate)) => certificate.is_required_of_clients(),
            _ => false,
        }
    }
}

/// Serves every client in a task of its own.
async fn accept(server: Arc<Server>, listener: TcpListener, speaks: Speaks) {
    let mut stopping = server.stopping.subscribe();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(e) => {
                    tracing::warn!(error = %e, "accepting a connection failed");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
            () = stopped(&mut stopping) => return,
        };
        let (server, speaks) = (Arc::clone(&server), speaks.clone());
        tokio::spawn(async move { welcome(&server, stream, peer, speaks).await });
    }
}

const PROTECTED: &[u8] = b"-DENIED Protected mode: no password is set for the default user, and only clients on this machine are served. Set requirepass, or protected-mode no if the network is trusted.\r\n";
const FULL: &[u8] = b"-ERR max number of clients reached\r\n";
const MEMCACHED_PROTECTED: &[u8] = b"SERVER_ERROR protected mode: no password is set for the default user, and only clients on this machine are served. Set requirepass, or protected-mode no if the network is trusted\r\n";
const MEMCACHED_FULL: &[u8] = b"ERROR Too many open connections\r\n";

async fn welcome(server: &Arc<Server>, mut stream: TcpStream, peer: SocketAddr, speaks: Speaks) {
    add(&server.stats.connections, 1);
    let settings = server.settings();
    let on_loopback = peer.ip().to_canonical().is_loopback();
    let open = server.users.get(b"default").is_some_and(|user| user.nopass);
    let local = stream
        .local_addr()
        .map_or_else(|_| String::new(), |local| local.to_string());
    let client = if settings.protected_mode && open && !on_loopback && !speaks.knows_its_clients() {
        Err(speaks.protected())
    } else {
        let entered =
            server
                .clients
                .enter(settings.maxclients, peer.to_string(), local, on_loopback);
        entered.ok_or(speaks.full())
    };
    let client = match client {
        Ok(client) => client,
        Err(text) => {
            add(&server.stats.rejected, 1);
            // A client that does not read it is disconnected all the same.
            let _ = tokio::time::timeout(PAUSE, stream.write_all(text)).await;
            return;
        }
    };
    if let Err(e) = prepare(&stream, settings.tcp_keepalive) {
        tracing::debug!(error = %e, "setting options of a connection failed");
    }
    tracing::debug!(client = %client.address, id = client.id, "connected");
    let id = client.id;
    match speaks {
        Speaks::Redis(None) => {
            let redis = Redis::new(server, Arc::clone(&client), None);
            serve::serve(server, client, stream, redis).await;
        }
        Speaks::Redis(Some(certificate)) => {
            let accepted = certificate.acceptor().accept(stream);
            match tokio::time::timeout(HANDSHAKE, accepted).await {
                Ok(Ok(stream)) => {
                    let name = settings
                        .tls_user_of_certificate
                        .then(|| common_name(stream.get_ref().1.peer_certificates()))
                        .flatten();
                    let redis = Redis::new(server, Arc::clone(&client), name.as_deref());
                    serve::serve(server, client, stream, redis).await;
                }
                Ok(Err(e)) => tracing::debug!(error = %e, "no TLS handshake"),
                Err(_) => tracing::debug!("no TLS handshake in time"),
            }
            server.clients.leave(id);
        }
        Speaks::Memcached(items) => {
            let memcached = Memcached::new(server, Arc::clone(&client), items);
            serve::serve(server, client, stream, memcached).await;
        }
    }
    tracing::debug!(id, "disconnected");
}

fn prepare(stream: &TcpStream, keepalive: u64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if keepalive > 0 {
        let every = Duration::from_secs(keepalive);
        let probes = TcpKeepalive::new()
            .with_time(every)
            .with_interval((every / 3).max(Duration::from_secs(1)))
            .with_retries(3);
        SockRef::from(stream).set_tcp_keepalive(&probes)?;
    }
    Ok(())
}

/// Disconnects clients that have been idle for too long, and reports lines that were left out of
/// the log.
async fn look_after(server: Arc<Server>) {
    let mut stopping = server.stopping.subscribe();
    let mut told = Told::default();
    loop {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = stopped(&mut stopping) => return,
        }
        log::report();
        told.tell(&server);
        if server.data.io_error().is_none() && !server.data.takes_writes() {
            let server = Arc::clone(&server);
            // That it works is noted there, and that it does not is known.
            let _ = tokio::task::spawn_blocking(move || server.data.try_to_write()).await;
        }
        if server.data.io_error().is_some() && server.settings().exit_on_io_error {
            // Why is in the log.
            server.stop();
            return;
        }
        let timeout = server.settings().timeout;
        if timeout > 0 {
            for client in server.clients.all() {
                let waits = client.subscribed() || client.waiter().is_some();
                if client.idle() >= timeout && !waits {
                    add(&server.stats.idle, 1);
                    client.kill();
                }
            }
        }
    }
}

async fn serve_metrics(server: Arc<Server>, listener: TcpListener) {
    let mut stopping = server.stopping.subscribe();
    // A few at a time are enough for monitors, also beside some that say nothing.
    let places = Arc::new(tokio::sync::Semaphore::new(64));
    let monitor = Arc::new(http::Monitor::new(server));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stopping) => return,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let monitor = Arc::clone(&monitor);
        tokio::spawn(async move {
            monitor.answer(stream).await;
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::on_disk;
    use bristlecone_pmem::media::journal::fault::FaultDisk;
    use std::io::{Read, Write};

    #[test]
    fn a_server_whose_disk_has_failed_ends_if_it_is_told_to() {
        let disk = FaultDisk::new(1);
        let store = on_disk(&disk, true).store().clone();
        let settings = Settings {
            listen: "127.0.0.1:0".into(),
            exit_on_io_error: true,
            ..Settings::default()
        };
        let running = Running::start(store, settings).unwrap();
        let mut client = std::net::TcpStream::connect(running.address()).unwrap();
        let mut reply = [0; 5];
        client.write_all(b"SET a 1\r\n").unwrap();
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+OK\r\n");
        disk.fail_sync(1);
        client.write_all(b"SET a 2\r\n").unwrap();
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"-ERR ");
        let stopping = running.server().stopping.subscribe();
        let until = Instant::now() + Duration::from_secs(20);
        while !*stopping.borrow() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(running.server().data.io_error().is_some());
        running.stop().unwrap_err();
    }
}
