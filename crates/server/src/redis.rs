//! The protocol of Redis in the loop of a connection.

use crate::client::Client;
use crate::conversation::{Conversation, Flow, Turn};
use crate::data::tx::Waiter;
use crate::input::Input;
use crate::parse::Arg;
use crate::reply::{Out, Protocol};
use crate::resp::{Args, Parser, ProtocolError};
use crate::server::Server;
use crate::session::Session;
use std::sync::Arc;

/// Commands that are parsed before the first of them is executed.
const AHEAD: usize = 32;

/// A conversation with a Redis client.
#[derive(Debug)]
pub(crate) struct Redis {
    session: Session,
    parser: Parser,
}

impl Redis {
    /// Begins one. `user`: the user that the client has proved to be.
    pub fn new(server: &Server, client: Arc<Client>, user: Option<&str>) -> Self {
        let mut session = Session::new(server, client);
        if let Some(user) = user {
            session.enter_as(server, user);
        }
        Self {
            session,
            parser: Parser::default(),
        }
    }
}

/// A complete command.
#[derive(Debug)]
struct Ahead<'b> {
    args: Args<'b>,
    /// The start of the next one.
    end: usize,
}

/// The bytes after the commands that were parsed ahead.
#[derive(Debug)]
enum Ended {
    /// Nothing, or the beginning of a command, where the parser continues.
    Incomplete,
    /// An inline command of this many bytes. The parser has its arguments if it comes first.
    Inline(usize),
    /// Possibly further commands.
    More,
    /// Bytes that are not a command.
    Wrong(ProtocolError),
}

/// Parses the complete commands at the start of `bytes`, up to [`AHEAD`] of them.
fn parse_ahead<'b>(
    parser: &mut Parser,
    bytes: &'b [u8],
    session: &Session,
) -> (Vec<Ahead<'b>>, Ended) {
    // The limits change once the client has authenticated.
    let most = if session.is_authenticated() { AHEAD } else { 1 };
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

/// Returns the arguments of commands, in order.
fn arguments<'a, 'b>(ahead: &'a [Ahead<'b>]) -> Vec<&'a [Arg<'b>]> {
    ahead.iter().map(|one| &*one.args).collect()
}

impl Conversation for Redis {
    fn execute(&mut self, server: &Server, input: &mut Input, out: &mut Vec<u8>) -> (Flow, bool) {
        let Self { session, parser } = self;
        if !session.begin_batch(server) {
            return (Flow::Close, false);
        }
        let turn = Turn::begin();
        let outcome = loop {
            let bytes = input.bytes.get(input.start..).unwrap_or_default();
            let (ahead, ended) = parse_ahead(parser, bytes, session);
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
                let args = parser.args(bytes);
                let flow = if args.is_empty() {
                    Flow::Go
                } else {
                    session.execute(server, &args, out)
                };
                drop(args);
                parser.clear();
                (flow, length)
            } else {
                let commands = arguments(&ahead);
                let (flow, done) = session.execute_batch(server, &commands, out);
                if done < ahead.len() || !matches!(ended, Ended::Incomplete) {
                    // Commands that were not executed are parsed again.
                    parser.clear();
                }
                (flow, ahead.get(done - 1).map_or(0, |last| last.end))
            };
            input.start += executed;
            if flow != Flow::Go || turn.is_over(out) {
                break (flow, true);
            }
        };
        session.end_batch();
        outcome
    }

    fn take_unsettled(&mut self) -> Option<u64> {
        self.session.take_unsettled()
    }

    fn fail(&self, text: &str, out: &mut Vec<u8>) {
        Out::new(out, Protocol::Resp2).error(&format!("ERR {text}"));
    }

    fn needed(&self) -> usize {
        self.parser.needed()
    }

    fn held(&self) -> usize {
        self.parser.held()
    }

    fn most_input(&self) -> usize {
        self.session.settings().client_query_buffer_limit
    }

    fn waiter(&self) -> Option<Arc<Waiter>> {
        self.session.waiter()
    }

    fn waited(&mut self, server: &Server, out: &mut Vec<u8>) {
        self.session.waited(server, out);
    }

    fn leave(&mut self, server: &Server) {
        self.session.leave(server);
    }
}
