//! `MULTI` and what belongs to it.

use super::{Context, Done, Flow, InMulti, LARGE, Session, SessionCommand};
use crate::budget::Part;
use crate::command::{ALL, Access, Arg, Command, Failed, Keys};
use crate::data::keys::database;
use crate::data::multi::Queued;
use crate::reply::{Out, REPLIES_MOST};
use crate::resp::reply_length;
use crate::server::Server;
use crate::table::{Does, Entry, add};
use std::sync::atomic::Ordering;

/// A transaction of more commands may take long.
const STEPS_FEW: usize = 100;

/// Memory that a queued command takes besides its arguments, and each of these besides its bytes.
const STEP_HELD: usize = 160;
const ARGUMENT_HELD: usize = 56;

/// In the place of commands that a user may no longer use: their argument says why.
const DENIED_DATA: Command = Command::new(
    "denied",
    1,
    Access::ReadOne,
    Keys::None,
    "transaction",
    |_, args, _| Err(denied(args)),
);
const DENIED_SESSION: SessionCommand =
    SessionCommand::new("denied", 1, &["transaction"], |_, args, _| {
        Err(denied(args))
    });

fn denied(args: &[Arg<'_>]) -> Failed {
    let reason = String::from_utf8_lossy(args.first().copied().unwrap_or_default());
    Failed::reply(format!(
        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. \
         This command is no longer allowed for the following reason: {reason}"
    ))
}

/// The command's place in a transaction.
#[derive(Debug)]
enum Step {
    /// The next one of the data layer's.
    Data,
    /// One on the session.
    Session(&'static SessionCommand, Vec<Vec<u8>>),
}

/// A transaction that is being queued.
#[derive(Debug, Default)]
pub struct Multi {
    steps: Vec<Step>,
    data: Vec<Queued>,
    bytes: usize,
    /// Bytes of memory that it takes, about.
    held: usize,
    spoilt: bool,
    /// It may take long.
    long: bool,
    /// The database that the next command is for.
    db: usize,
}

impl Multi {
    /// A command was refused: `EXEC` will be, too.
    pub(super) fn spoil(&mut self) {
        self.spoilt = true;
    }
}

pub(super) const COMMANDS: &[SessionCommand] = &[
    SessionCommand::new("multi", 1, &["fast", "transaction"], multi).in_multi(InMulti::Now),
    SessionCommand::new("exec", 1, &["slow", "transaction"], exec).in_multi(InMulti::Now),
    SessionCommand::new("discard", 1, &["fast", "transaction"], discard).in_multi(InMulti::Now),
    SessionCommand {
        keys: ALL,
        ..SessionCommand::new("watch", -2, &["fast", "transaction"], watch).in_multi(InMulti::Now)
    },
    SessionCommand::new("unwatch", 1, &["fast", "transaction"], unwatch),
];

impl Session {
    /// Queues a command for `EXEC`.
    pub(super) fn queue(&mut self, entry: &Entry, args: &[Arg<'_>]) -> Result<(), Failed> {
        let limit = self.settings.client_query_buffer_limit;
        let Some(multi) = &mut self.multi else {
            return Ok(());
        };
        let bytes: usize = args.iter().map(|arg| arg.len() + 32).sum();
        if multi.bytes.saturating_add(bytes) > limit {
            multi.spoil();
            return Err(Failed::reply(
                "ERR the transaction is longer than client-query-buffer-limit",
            ));
        }
        multi.bytes += bytes;
        multi.long |= entry.long || bytes > LARGE || multi.steps.len() >= STEPS_FEW;
        if multi.spoilt {
            // It is not going to run.
            return Ok(());
        }
        multi.held += STEP_HELD + args.len() * ARGUMENT_HELD;
        multi.held += args.iter().map(|arg| arg.len()).sum::<usize>();
        self.client.hold(Part::Queued, multi.held);
        let owned = args.iter().map(|arg| arg.to_vec()).collect();
        match entry.does {
            Does::Data(command) => {
                multi.steps.push(Step::Data);
                multi.data.push(Queued {
                    command,
                    db: multi.db,
                    args: owned,
                });
            }
            Does::Session(command) => {
                if command.name == "select"
                    && let Some(Ok(db)) = args.get(1).map(|text| database(text))
                {
                    multi.db = db;
                }
                multi.steps.push(Step::Session(command, owned));
            }
        }
        let steps = multi.steps.len();
        self.note_queued(steps + 1);
        Ok(())
    }

    /// Takes commands out that the user may no longer use.
    fn recheck(&self, server: &Server, multi: &mut Multi) {
        let why = |name: &str, args: &[Vec<u8>]| {
            let args: Vec<Arg<'_>> = args.iter().map(Vec::as_slice).collect();
            let entry = server.table.find(name.as_bytes())?;
            let refused = self.permit(entry, &args).err()?.to_string();
            add(&server.stats.denied, 1);
            Some(vec![refused.trim_start_matches("NOPERM ").into()])
        };
        let mut of_data = multi.data.iter_mut();
        for step in &mut multi.steps {
            match step {
                Step::Data => {
                    if let Some(queued) = of_data.next()
                        && let Some(reason) = why(queued.command.name, &queued.args)
                    {
                        (queued.command, queued.args) = (&DENIED_DATA, reason);
                    }
                }
                Step::Session(command, args) => {
                    if let Some(reason) = why(command.name, args) {
                        (*command, *args) = (&DENIED_SESSION, reason);
                    }
                }
            }
        }
    }

    fn note_queued(&self, number: usize) {
        // ORDERING: Relaxed; shown only.
        self.client.queued.store(number, Ordering::Relaxed);
    }

    /// Forgets the transaction and the watched keys.
    pub(super) fn discard(&mut self) {
        self.multi = None;
        self.watch.clear();
        self.note_queued(0);
        self.client.hold(Part::Queued, 0);
        self.client.hold(Part::Watched, 0);
    }
}

fn multi(context: &mut Context<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let session = &mut context.session;
    if session.multi.is_some() {
        return Err(Failed::reply("ERR MULTI calls can not be nested"));
    }
    session.multi = Some(Multi {
        db: session.db,
        ..Multi::default()
    });
    session.note_queued(1);
    out.status("OK");
    Ok(Flow::Go)
}

fn discard(context: &mut Context<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    if context.session.multi.is_none() {
        return Err(Failed::reply("ERR DISCARD without MULTI"));
    }
    context.session.discard();
    out.status("OK");
    Ok(Flow::Go)
}

fn watch(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let Context { server, session } = context;
    if session.multi.is_some() {
        return Err(Failed::reply("ERR WATCH inside MULTI is not allowed"));
    }
    // What is watched may have changed without being durable yet: who was told OK is to read that change, or EXEC would
    // take what was before it as what was watched.
    session.unsettled = true;
    for key in args.iter().skip(1) {
        server.data.watch(&mut session.watch, session.db, key)?;
        let held = session.watch.held();
        session.client.hold(Part::Watched, held);
    }
    out.status("OK");
    Ok(Flow::Go)
}

fn unwatch(context: &mut Context<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    context.session.watch.clear();
    context.session.client.hold(Part::Watched, 0);
    out.status("OK");
    Ok(Flow::Go)
}

fn exec(context: &mut Context<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let Context { server, session } = context;
    let Some(mut multi) = session.multi.take() else {
        return Err(Failed::reply("ERR EXEC without MULTI"));
    };
    session.note_queued(0);
    if multi.spoilt {
        session.discard();
        return Err(Failed::reply(
            "EXECABORT Transaction discarded because of previous errors.",
        ));
    }
    if !session.user.everything {
        session.recheck(server, &mut multi);
    }
    let done = if multi.long {
        tokio::task::block_in_place(|| run(context, &multi, out))
    } else {
        run(context, &multi, out)
    };
    drop(multi);
    context.session.discard();
    done
}

fn run(context: &mut Context<'_>, multi: &Multi, out: &mut Out<'_>) -> Done {
    let Context { server, session } = context;
    if multi.steps.len() == multi.data.len() {
        session.unsettled |= server.data.exec(&multi.data, &mut session.watch, out);
        return Ok(Flow::Go);
    }
    // The replies to commands on data come together, and those of the session go between them.
    let mut replies = Vec::new();
    let mut gathered = out.beside(&mut replies);
    let waits = server
        .data
        .exec(&multi.data, &mut session.watch, &mut gathered);
    session.unsettled |= waits;
    let header = format!("*{}\r\n", multi.data.len());
    let Some(mut rest) = replies.strip_prefix(header.as_bytes()) else {
        // A watched key has changed, or nothing was committed.
        out.raw(&replies);
        return Ok(Flow::Go);
    };
    if replies.len() > REPLIES_MOST || session.client.is_evicted() {
        // Some are missing, and the connection has to end.
        out.raw(&replies);
        return Ok(Flow::Close);
    }
    out.array(multi.steps.len());
    let mut flow = Flow::Go;
    for step in &multi.steps {
        match step {
            Step::Data => {
                let length = reply_length(rest).unwrap_or(rest.len());
                let (reply, after) = rest.split_at(length);
                out.raw(reply);
                rest = after;
            }
            Step::Session(command, args) => {
                let args: Vec<Arg<'_>> = args.iter().map(Vec::as_slice).collect();
                let then = context
                    .session
                    .run_session(context.server, command, &args, out);
                if then != Flow::Go {
                    flow = then;
                }
            }
        }
    }
    Ok(flow)
}
