//! The loop of a connection: read, execute what is complete, make it durable, reply.

use crate::budget::Part;
use crate::client::Client;
use crate::dispatch::ENOUGH_OUTPUT;
use crate::input::{Ended, Input, arguments, parse_ahead};
use crate::reply::{Out, Protocol};
use crate::server::{Server, stopped};
use crate::session::{Flow, Session};
use crate::table::add;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// How often other connections are served before writes are synced.
const MAX_ROUNDS: usize = 4;
/// Capacity for replies that is kept.
const KEPT_OUTPUT: usize = 64 << 10;
/// Buffers of more bytes are freed where other connections do not wait.
const MANY_BYTES: usize = 16 << 20;
/// How long a client has to read the last replies of a connection that ends.
const GOODBYE: Duration = Duration::from_secs(2);

/// A connection's session, which leaves the server when it is dropped.
struct Guest<'s> {
    session: Session,
    server: &'s Server,
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        self.session.leave(self.server);
    }
}

/// A connection between reading and replying.
struct Connection<'c, S> {
    server: &'c Server,
    session: &'c mut Session,
    stream: &'c mut S,
    client: Arc<Client>,
    input: Input,
    out: Vec<u8>,
}

/// Serves one client until it disconnects, or is disconnected. `user`: the user that it has proved
/// to be.
pub async fn serve<S>(
    server: &Arc<Server>,
    client: Arc<Client>,
    mut stream: S,
    user: Option<String>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // The session leaves however this ends, even when the runtime is dropped.
    let mut guest = Guest {
        session: Session::new(server, Arc::clone(&client)),
        server,
    };
    if let Some(user) = user {
        guest.session.enter_as(server, &user);
    }
    let mut connection = Connection {
        server,
        session: &mut guest.session,
        stream: &mut stream,
        client: Arc::clone(&client),
        input: Input::new(),
        out: Vec::new(),
    };
    let ended = tokio::select! {
        biased;
        () = client.account.kill.notified() => Ok(()),
        ended = connection.run() => ended,
    };
    if let Err(e) = ended {
        tracing::debug!(client = %client.address, error = %e, "connection lost");
    }
}

impl<S> Connection<'_, S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    async fn run(&mut self) -> io::Result<()> {
        let mut stopping = self.server.stopping.subscribe();
        loop {
            let (flow, more) = self.execute();
            if self.client.is_evicted() {
                return Ok(());
            }
            if let Err(text) = self.settle().await {
                self.out.clear();
                Out::new(&mut self.out, Protocol::Resp2).error(&text);
                return self.goodbye().await;
            }
            if let Flow::Sleep(time) = flow {
                tokio::time::sleep(time).await;
            }
            self.client.account.take_messages(&mut self.out);
            self.client.hold(Part::Output, self.out.capacity());
            if flow == Flow::Shutdown {
                self.server.stop();
            }
            if matches!(flow, Flow::Close | Flow::Shutdown) {
                return self.goodbye().await;
            }
            if !self.out.is_empty() {
                add(&self.server.stats.output, self.out.len() as u64);
                self.send().await?;
            }
            if flow == Flow::Wait {
                if !self.wait().await? {
                    return Ok(());
                }
                continue;
            }
            if more {
                // The other connections of this thread get their turn.
                tokio::task::yield_now().await;
                continue;
            }
            release(self.input.bytes.capacity(), || self.input.make_room());
            self.input.note_held(&self.client);
            tokio::select! {
                read = self.stream.read_buf(&mut self.input.bytes) => {
                    if !self.received(read?) {
                        return Ok(());
                    }
                }
                () = self.client.wake.notified() => {}
                () = stopped(&mut stopping) => return Ok(()),
            }
        }
    }

    /// Makes durable what the replies rest on. The other connections of this thread are served
    /// first. Returns the error reply if that fails: no other reply may be sent then.
    async fn settle(&mut self) -> Result<(), String> {
        let unsettled = self.session.take_unsettled();
        let alone = self.server.clients.len() == 1;
        if !self.out.is_empty() && !alone {
            serve_others(self.server, unsettled.is_some()).await;
        }
        if let Some(commands) = unsettled {
            let applied = self.server.data.applied();
            let settled = self.server.committer.settle(applied, alone).await;
            settled.map_err(|e| format!("ERR what was written is not durable: {e}"))?;
            add(&self.server.stats.settles, 1);
            add(&self.server.stats.settled_commands, commands);
        }
        Ok(())
    }

    /// Notes what was read. Returns false if the connection has to end.
    fn received(&mut self, read: usize) -> bool {
        if read == 0 {
            return false;
        }
        self.input.note_read(read);
        add(&self.server.stats.input, read as u64);
        let limit = self.session.settings().client_query_buffer_limit;
        let within = self.input.bytes.len() <= limit;
        if !within {
            let client = &self.client.address;
            tracing::warn!(client = %client, "disconnected: its request is longer than client-query-buffer-limit");
        }
        within
    }

    /// Waits until the client has what it waits for, or its time is up. The reply goes to the
    /// output. Requests that come meanwhile are read for later. Returns false if the connection has
    /// to end.
    async fn wait(&mut self) -> io::Result<bool> {
        let Some(waiter) = self.session.waiter() else {
            return Ok(true);
        };
        let mut stopping = self.server.stopping.subscribe();
        let timeout = async {
            match waiter.timeout() {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(timeout);
        loop {
            self.input.make_room();
            self.input.note_held(&self.client);
            tokio::select! {
                biased;
                () = waiter.ended() => break,
                () = &mut timeout => {
                    // If the key has come meanwhile, this changes nothing.
                    self.server.data.waiting.give_up(&waiter, |out| out.null_array());
                    break;
                }
                read = self.stream.read_buf(&mut self.input.bytes) => {
                    if !self.received(read?) {
                        return Ok(false);
                    }
                }
                () = self.client.wake.notified() => {
                    self.client.account.take_messages(&mut self.out);
                    self.client.hold(Part::Output, self.out.capacity());
                    self.send().await?;
                }
                () = stopped(&mut stopping) => return Ok(false),
            }
        }
        self.session.waited(self.server, &mut self.out);
        Ok(true)
    }

    /// Sends the output, and frees the part of its memory that is not kept.
    async fn send(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.out).await?;
        self.stream.flush().await?;
        self.out.clear();
        release(self.out.capacity(), || self.out.shrink_to(KEPT_OUTPUT));
        self.client.hold(Part::Output, self.out.capacity());
        Ok(())
    }

    /// Sends the last replies, and gives the client time to read them: what it still sends is read
    /// and discarded, or the system might drop the replies.
    async fn goodbye(&mut self) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        add(&self.server.stats.output, self.out.len() as u64);
        let sent = async {
            self.stream.write_all(&self.out).await?;
            self.stream.shutdown().await?;
            let mut discarded = [0; 4096];
            while self.stream.read(&mut discarded).await? > 0 {}
            Ok(())
        };
        // A client that does not read them is disconnected all the same.
        tokio::time::timeout(GOODBYE, sent).await.unwrap_or(Ok(()))
    }

    /// Executes the complete commands, in order. Returns what the connection does next, and whether
    /// there may be more of them.
    fn execute(&mut self) -> (Flow, bool) {
        let (input, session, out) = (&mut self.input, &mut *self.session, &mut self.out);
        if input.rest().is_empty() {
            return (Flow::Go, false);
        }
        if !session.begin_batch(self.server) {
            return (Flow::Close, false);
        }
        let outcome = loop {
            let bytes = input.bytes.get(input.start..).unwrap_or_default();
            let (ahead, ended) = parse_ahead(&mut input.parser, bytes, session);
            let (flow, executed) = if ahead.is_empty() {
                let length = match ended {
                    Ended::Inline(length) => length,
                    Ended::Incomplete | Ended::More => break (Flow::Go, false),
                    Ended::Wrong(e) => {
                        let text = format!("ERR Protocol error: {e}");
                        Out::new(out, Protocol::Resp2).error(&text);
                        break (Flow::Close, false);
                    }
                };
                let args = input.parser.args(bytes);
                let flow = if args.is_empty() {
                    Flow::Go
                } else {
                    session.execute(self.server, &args, out)
                };
                drop(args);
                input.parser.clear();
                (flow, length)
            } else {
                let commands = arguments(&ahead);
                let (flow, done) = session.execute_batch(self.server, &commands, out);
                if done < ahead.len() || !matches!(ended, Ended::Incomplete) {
                    // Commands that were not executed are parsed again.
                    input.parser.clear();
                }
                (flow, ahead.get(done - 1).map_or(0, |last| last.end))
            };
            input.start += executed;
            if flow != Flow::Go || out.len() >= ENOUGH_OUTPUT {
                break (flow, true);
            }
        };
        // ORDERING: Relaxed; shown only.
        (self.client.query).store(input.rest().len(), std::sync::atomic::Ordering::Relaxed);
        session.end_batch();
        outcome
    }
}

/// Calls `free`, which may give so many bytes back to the system: that takes 50 ms for 512 MiB.
fn release(bytes: usize, free: impl FnOnce()) {
    if bytes > MANY_BYTES {
        tokio::task::block_in_place(free);
    } else {
        free();
    }
}

/// Lets the other connections of this thread that have sent something be served first. All replies
/// then go out together, and a client that waits for several connections is woken once. If writes
/// have to be synced, this repeats while the others write more, for a few rounds, so that one sync
/// covers all.
async fn serve_others(server: &Server, unsettled: bool) {
    let rounds = if unsettled && server.committer.waits() {
        MAX_ROUNDS
    } else {
        1
    };
    let mut applied = server.data.applied();
    for _ in 0..rounds {
        tokio::task::yield_now().await;
        let before = std::mem::replace(&mut applied, server.data.applied());
        if before == applied {
            return;
        }
    }
}
