//! A connection's loop: read, execute what is complete, make it durable, answer.

use crate::budget::Part;
use crate::client::Client;
use crate::data::together::Plain;
use crate::reply::{Out, Protocol};
use crate::resp::{Args, Parser, ProtocolError};
use crate::server::{Server, stopped};
use crate::session::{Flow, Session};
use crate::table::add;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes that a buffer for reading begins with, and grows to while there are as many to read.
const READ_LEAST: usize = 2 << 10;
const READ_MOST: usize = 256 << 10;
/// Replies are sent when there are so many bytes of them, even if there are more commands.
const OUT_ENOUGH: usize = 1 << 20;
/// How often others are served before what was written is synced.
const ROUNDS_MOST: usize = 4;
/// Commands that are parsed before the first of them is executed.
const AHEAD: usize = 32;
/// Room for replies that is kept.
const OUT_KEPT: usize = 64 << 10;
/// How long a client that is told goodbye has to take it.
const GOODBYE: Duration = Duration::from_secs(2);

/// What a connection has read.
struct Input {
    bytes: Vec<u8>,
    /// Where the command begins that is not complete.
    start: usize,
    parser: Parser,
    /// How much to read at once.
    want: usize,
}

impl Input {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// Makes room for what comes.
    fn make_room(&mut self) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        let missing = self.parser.needed().saturating_sub(self.bytes.len());
        // What is announced is believed as far as there is as much already.
        let trusted = missing.min(self.bytes.len()).max(self.want);
        let room = self.bytes.len() + trusted;
        // One byte of the next request does not keep the room of a long one that is done.
        if self.bytes.capacity() > 4 * room {
            self.bytes.shrink_to(room);
        }
        self.bytes.reserve(trusted);
    }

    /// What it holds is the client's.
    fn note_held(&self, client: &Client) {
        client.hold(Part::Query, self.bytes.capacity() + self.parser.held());
    }

    fn note_read(&mut self, read: usize) {
        if self.bytes.len() == self.bytes.capacity() {
            self.want = (2 * self.want).min(READ_MOST);
        } else if read < self.want / 8 {
            self.want = (self.want / 2).max(READ_LEAST);
        }
    }
}

/// Serves one client until it is gone, or has to go.
pub async fn serve<S>(server: &Arc<Server>, client: Arc<Client>, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Whatever way it ends, also by the runtime's end.
    let mut guest = Guest {
        session: Session::new(server, Arc::clone(&client)),
        server,
    };
    let mut stream = stream;
    let ended = tokio::select! {
        biased;
        () = client.kill.notified() => Ok(()),
        ended = talk(server, &mut guest.session, &mut stream) => ended,
    };
    if let Err(e) = ended {
        tracing::debug!(client = %client.address, error = %e, "connection lost");
    }
}

struct Guest<'s> {
    session: Session,
    server: &'s Server,
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        self.session.leave(self.server);
    }
}

async fn talk<S>(server: &Server, session: &mut Session, stream: &mut S) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut stopping = server.stopping.subscribe();
    let client = Arc::clone(session.client());
    let mut input = Input {
        bytes: Vec::new(),
        start: 0,
        parser: Parser::default(),
        want: READ_LEAST,
    };
    let mut out = Vec::new();
    loop {
        let (flow, more) = execute(server, session, &mut input, &mut out);
        if client.is_evicted() {
            return Ok(());
        }
        let unsettled = session.take_unsettled();
        let alone = server.clients.len() == 1;
        if !out.is_empty() && !alone {
            others_first(server, unsettled.is_some()).await;
        }
        if let Some(commands) = unsettled {
            let applied = server.data.applied();
            if let Err(e) = server.committer.settle(applied, alone).await {
                out.clear();
                let text = format!("ERR what was written is not durable: {e}");
                Out::new(&mut out, Protocol::Resp2).error(&text);
                return goodbye(stream, &out).await;
            }
            add(&server.stats.settles, 1);
            add(&server.stats.settled_commands, commands);
        }
        if let Flow::Sleep(time) = flow {
            tokio::time::sleep(time).await;
        }
        client.take_pending(&mut out);
        client.hold(Part::Output, out.capacity());
        if !out.is_empty() {
            add(&server.stats.output, out.len() as u64);
            if matches!(flow, Flow::Close | Flow::Shutdown) {
                if flow == Flow::Shutdown {
                    server.stop();
                }
                return goodbye(stream, &out).await;
            }
            stream.write_all(&out).await?;
            stream.flush().await?;
            out.clear();
            out.shrink_to(OUT_KEPT);
            client.hold(Part::Output, out.capacity());
        }
        match flow {
            Flow::Wait => {
                if !wait(server, session, stream, &mut input, &mut out).await? {
                    return Ok(());
                }
                continue;
            }
            Flow::Close => return Ok(()),
            Flow::Shutdown => {
                server.stop();
                return Ok(());
            }
            Flow::Go | Flow::Sleep(_) => {}
        }
        if more {
            // Other connections of this thread are to have their turn.
            tokio::task::yield_now().await;
            continue;
        }
        input.make_room();
        input.note_held(&client);
        tokio::select! {
            read = stream.read_buf(&mut input.bytes) => {
                if !received(server, session, &mut input, read?) {
                    return Ok(());
                }
            }
            () = client.wake.notified() => {}
            () = stopped(&mut stopping) => return Ok(()),
        }
    }
}

/// Lets others of this thread that have sent something be served before: then replies go out at once, and who reads them
/// is woken once. Where what was written has to be synced, for as long as they write more, but for some rounds only: one sync is
/// for all of it.
async fn others_first(server: &Server, unsettled: bool) {
    let rounds = if unsettled && server.committer.waits() {
        ROUNDS_MOST
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

/// Notes what was read. False if the connection ends.
fn received(server: &Server, session: &Session, input: &mut Input, read: usize) -> bool {
    if read == 0 {
        return false;
    }
    input.note_read(read);
    add(&server.stats.input, read as u64);
    let within = input.bytes.len() <= session.settings().client_query_buffer_limit;
    if !within {
        let client = &session.client().address;
        tracing::warn!(client = %client, "disconnected: its request is longer than client-query-buffer-limit");
    }
    within
}

/// Waits until the client has what it waits for, or has waited long enough; the reply goes to `out`. What the client sends
/// meanwhile is for later. False if the connection ends.
async fn wait<S>(
    server: &Server,
    session: &mut Session,
    stream: &mut S,
    input: &mut Input,
    out: &mut Vec<u8>,
) -> io::Result<bool>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Some(waiter) = session.waiter() else {
        return Ok(true);
    };
    let client = Arc::clone(session.client());
    let mut stopping = server.stopping.subscribe();
    let timeout = async {
        match waiter.timeout() {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(timeout);
    loop {
        input.make_room();
        input.note_held(&client);
        tokio::select! {
            biased;
            () = waiter.ended() => break,
            () = &mut timeout => {
                // It may have come meanwhile.
                server.data.give_up(&waiter, |out| out.null_array());
                break;
            }
            read = stream.read_buf(&mut input.bytes) => {
                if !received(server, session, input, read?) {
                    return Ok(false);
                }
            }
            () = client.wake.notified() => {
                client.take_pending(out);
                client.hold(Part::Output, out.capacity());
                stream.write_all(out).await?;
                stream.flush().await?;
                out.clear();
                out.shrink_to(OUT_KEPT);
                client.hold(Part::Output, out.capacity());
            }
            () = stopped(&mut stopping) => return Ok(false),
        }
    }
    session.waited(server, out);
    Ok(true)
}

/// Sends the last replies, and lets the client see them: what it goes on to send is thrown away for a moment.
async fn goodbye<S>(stream: &mut S, out: &[u8]) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let sent = async {
        stream.write_all(out).await?;
        stream.shutdown().await?;
        let mut scrap = [0; 4096];
        while stream.read(&mut scrap).await? > 0 {}
        Ok(())
    };
    // A client that does not take it is let down.
    tokio::time::timeout(GOODBYE, sent).await.unwrap_or(Ok(()))
}

/// Executes the commands that are complete, in order. How to go on, and whether there are more.
fn execute(
    server: &Server,
    session: &mut Session,
    input: &mut Input,
    out: &mut Vec<u8>,
) -> (Flow, bool) {
    if input.rest().is_empty() {
        return (Flow::Go, false);
    }
    if !session.begin_batch(server) {
        return (Flow::Close, false);
    }
    let outcome = loop {
        let bytes = input.bytes.get(input.start..).unwrap_or_default();
        let (ahead, ended) = parse_ahead(&mut input.parser, bytes, session);
        if ahead.is_empty() {
            break match ended {
                Ended::Incomplete => (Flow::Go, false),
                Ended::Inline(length) => {
                    let args = input.parser.args(bytes);
                    let flow = if args.is_empty() {
                        Flow::Go
                    } else {
                        session.execute(server, &args, out)
                    };
                    drop(args);
                    input.start += length;
                    input.parser.clear();
                    if flow == Flow::Go && out.len() < OUT_ENOUGH {
                        continue;
                    }
                    (flow, true)
                }
                Ended::More => unreachable!("there is one command ahead"),
                Ended::Wrong(e) => {
                    let text = format!("ERR Protocol error: {e}");
                    Out::new(out, Protocol::Resp2).error(&text);
                    (Flow::Close, false)
                }
            };
        }
        let (flow, done) = execute_ahead(server, session, &ahead, out);
        let all = done == ahead.len();
        input.start += ahead.get(done - 1).map_or(0, |last| last.end);
        if !all || !matches!(ended, Ended::Incomplete) {
            // What is not executed is parsed again.
            input.parser.clear();
        }
        if flow != Flow::Go || out.len() >= OUT_ENOUGH {
            break (flow, true);
        }
    };
    // ORDERING: Relaxed; shown only.
    session
        .client()
        .query
        .store(input.rest().len(), std::sync::atomic::Ordering::Relaxed);
    session.end_batch();
    outcome
}

/// A command that is complete.
struct Ahead<'b> {
    args: Args<'b>,
    /// Where the next one begins.
    end: usize,
}

/// What comes after the commands that were parsed ahead.
enum Ended {
    /// Nothing, or the beginning of a command: the parser goes on there.
    Incomplete,
    /// An inline command of so many bytes. If it is the first one, the parser has its arguments.
    Inline(usize),
    /// Perhaps more.
    More,
    /// No command.
    Wrong(ProtocolError),
}

/// Parses commands that are complete, up to [`AHEAD`] of them.
fn parse_ahead<'b>(
    parser: &mut Parser,
    bytes: &'b [u8],
    session: &Session,
) -> (Vec<Ahead<'b>>, Ended) {
    // What a stranger may send is another matter once it has said who it is.
    let most = if session.is_known() { AHEAD } else { 1 };
    let (mut ahead, mut start) = (Vec::new(), 0);
    while ahead.len() < most {
        let rest = bytes.get(start..).unwrap_or_default();
        let length = match parser.parse(rest, session.limits()) {
            Ok(Some(length)) => length,
            Ok(None) => return (ahead, Ended::Incomplete),
            Err(e) => return (ahead, Ended::Wrong(e)),
        };
        let Some(args) = parser.array_args(rest) else {
            return (ahead, Ended::Inline(length));
        };
        parser.clear();
        start += length;
        if ahead.is_empty() {
            ahead.reserve(most.min(1 + rest.len() / length));
        }
        ahead.push(Ahead { args, end: start });
    }
    (ahead, Ended::More)
}

/// Executes commands, of which there is one at least, in order. How to go on, and how many were executed.
fn execute_ahead(
    server: &Server,
    session: &mut Session,
    ahead: &[Ahead<'_>],
    out: &mut Vec<u8>,
) -> (Flow, usize) {
    let mut done = 0;
    let mut asked = false;
    while let Some(one) = ahead.get(done) {
        let rest = &ahead[done..];
        let rest = || rest.iter().map(|one| &*one.args);
        let together = session.run_together(server, rest().map_while(Plain::of), out);
        done += together;
        if together == 0 && !asked && rest().len() > 1 {
            asked = true;
            session.prefetch(server, rest());
        }
        if together == 0 {
            done += 1;
            if !one.args.is_empty() {
                let flow = session.execute(server, &one.args, out);
                if flow != Flow::Go {
                    return (flow, done);
                }
            }
        }
        if session.client().is_evicted() {
            return (Flow::Close, done);
        }
        if out.len() >= OUT_ENOUGH {
            break;
        }
    }
    (Flow::Go, done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_of_a_long_request_is_given_back_though_a_byte_is_left() {
        let mut input = Input {
            bytes: vec![b'x'; 64 << 20],
            start: (64 << 20) - 1,
            parser: Parser::default(),
            want: READ_LEAST,
        };
        input.make_room();
        assert_eq!(input.bytes, b"x");
        let room = input.bytes.capacity();
        assert!((READ_LEAST..=16 * READ_LEAST).contains(&room), "{room}");
        // But it is not given back and taken again all the time.
        input.bytes.reserve_exact(3 * READ_LEAST);
        let before = input.bytes.capacity();
        input.make_room();
        assert_eq!(input.bytes.capacity(), before);
    }
}
