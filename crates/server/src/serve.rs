//! The loop of a connection: read, execute what is complete, make it durable, reply. It is the same
//! for every protocol.

use crate::budget::Part;
use crate::client::Client;
use crate::conversation::{Conversation, Flow};
use crate::input::Input;
use crate::server::{Server, stopped};
use crate::table::add;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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

/// A connection's part of a conversation, which leaves the server when it is dropped.
struct Guest<'s, C: Conversation> {
    conversation: C,
    server: &'s Server,
}

impl<C: Conversation> Drop for Guest<'_, C> {
    fn drop(&mut self) {
        self.conversation.leave(self.server);
    }
}

/// A connection between reading and replying.
struct Connection<'c, S, C> {
    server: &'c Server,
    conversation: &'c mut C,
    stream: &'c mut S,
    client: Arc<Client>,
    input: Input,
    out: Vec<u8>,
}

/// Serves one client until it disconnects, or is disconnected.
pub async fn serve<S, C>(server: &Arc<Server>, client: Arc<Client>, mut stream: S, conversation: C)
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Conversation,
{
    // The client leaves however this ends, even when the runtime is dropped.
    let mut guest = Guest {
        conversation,
        server,
    };
    let mut connection = Connection {
        server,
        conversation: &mut guest.conversation,
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

impl<S, C> Connection<'_, S, C>
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Conversation,
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
                self.conversation.fail(&text, &mut self.out);
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
            self.make_room();
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
        let unsettled = self.conversation.take_unsettled();
        let alone = self.server.clients.len() == 1;
        if !self.out.is_empty() && !alone {
            serve_others(self.server, unsettled.is_some()).await;
        }
        if let Some(commands) = unsettled {
            let applied = self.server.data.applied();
            let settled = self.server.committer.settle(applied, alone).await;
            settled.map_err(|e| format!("what was written is not durable: {e}"))?;
            add(&self.server.stats.settles, 1);
            add(&self.server.stats.settled_commands, commands);
        }
        Ok(())
    }

    /// Makes room for the next read.
    fn make_room(&mut self) {
        let needed = self.conversation.needed();
        release(self.input.bytes.capacity(), || self.input.make_room(needed));
        self.input.note_held(&self.client, self.conversation.held());
    }

    /// Notes what was read. Returns false if the connection has to end.
    fn received(&mut self, read: usize) -> bool {
        if read == 0 {
            return false;
        }
        self.input.note_read(read);
        add(&self.server.stats.input, read as u64);
        let limit = self.conversation.most_input();
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
        let Some(waiter) = self.conversation.waiter() else {
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
            self.make_room();
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
        self.conversation.waited(self.server, &mut self.out);
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
        if self.input.rest().is_empty() {
            return (Flow::Go, false);
        }
        let done = (self.conversation).execute(self.server, &mut self.input, &mut self.out);
        // ORDERING: Relaxed; shown only.
        (self.client.query).store(self.input.rest().len(), Ordering::Relaxed);
        done
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
