//! `MULTI`, `EXEC`, `WATCH` and their relatives.

use crate::budget::Part;
use crate::caller::SessionCaller;
use crate::command::{ALL, Access, Command, InMulti, Keys};
use crate::data::watch::Watch;
use crate::error::CommandError;
use crate::execute::Haste;
use crate::parse::Arg;
use crate::reply::{MAX_REPLY_BYTES, Out};
use crate::resp::reply_length;
use crate::rights::permit;
use crate::server::Server;
use crate::session::{Context, Done, Flow, SessionCommand, Step, Transaction};
use crate::table::add;
use crate::users::User;

/// Replace queued commands that the user may no longer use. Their argument is the reason.
static DENIED_DATA: Command = Command::new(
    "denied",
    1,
    Access::ReadOne,
    Keys::None,
    &["transaction"],
    |_, args, _| Err(denied(args)),
);
static DENIED_SESSION: SessionCommand =
    SessionCommand::new("denied", 1, &["transaction"], |_, args, _| {
        Err(denied(args))
    });

fn denied(args: &[Arg<'_>]) -> CommandError {
    let reason = String::from_utf8_lossy(args.first().copied().unwrap_or_default());
    CommandError::reply(format!(
        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. \
         This command is no longer allowed for the following reason: {reason}"
    ))
}

const WATCH: SessionCommand = {
    let mut command =
        SessionCommand::new("watch", -2, &["fast", "transaction"], watch).in_multi(InMulti::Now);
    command.spec.keys = ALL;
    command
};

/// The commands.
pub const COMMANDS: &[SessionCommand] = &[
    SessionCommand::new("multi", 1, &["fast", "transaction"], multi).in_multi(InMulti::Now),
    SessionCommand::new("exec", 1, &["slow", "transaction"], exec).in_multi(InMulti::Now),
    SessionCommand::new("discard", 1, &["fast", "transaction"], discard).in_multi(InMulti::Now),
    WATCH,
    SessionCommand::new("unwatch", 1, &["fast", "transaction"], unwatch),
];

/// Replaces queued commands that the user may no longer use.
fn recheck(server: &Server, user: &User, transaction: &mut Transaction) {
    let why = |name: &str, args: &[Vec<u8>]| {
        let args: Vec<Arg<'_>> = args.iter().map(Vec::as_slice).collect();
        let entry = server.table.find(name.as_bytes())?;
        let refused = permit(user, entry, &args).err()?.to_string();
        add(&server.stats.denied, 1);
        Some(vec![refused.trim_start_matches("NOPERM ").into()])
    };
    let mut of_data = transaction.data.iter_mut();
    for step in &mut transaction.steps {
        match step {
            Step::Data => {
                if let Some(queued) = of_data.next()
                    && let Some(reason) = why(queued.command.spec.name, &queued.args)
                {
                    (queued.command, queued.args) = (&DENIED_DATA, reason);
                }
            }
            Step::Session(command, args) => {
                if let Some(reason) = why(command.spec.name, args) {
                    (*command, *args) = (&DENIED_SESSION, reason);
                }
            }
        }
    }
}

fn multi(context: &mut Context<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let session = &mut context.session;
    if session.transaction.is_some() {
        return Err(CommandError::reply("ERR MULTI calls can not be nested"));
    }
    session.transaction = Some(Transaction::new(session.db));
    session.note_queued(1);
    out.status("OK");
    Ok(Flow::Go)
}

fn discard(context: &mut Context<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    if context.session.transaction.is_none() {
        return Err(CommandError::reply("ERR DISCARD without MULTI"));
    }
    context.session.discard();
    out.status("OK");
    Ok(Flow::Go)
}

fn watch(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let Context { server, session } = context;
    if session.transaction.is_some() {
        return Err(CommandError::reply("ERR WATCH inside MULTI is not allowed"));
    }
    // A watched key may have changed without that being durable yet. The reply waits for it, so
    // that the client reads the changed value: otherwise EXEC would accept a value that the client
    // has not seen.
    session.unsettled = true;
    for key in args.iter().skip(1) {
        let (name, watch) = ((session.db, *key), &mut session.watch);
        match server.data.watch_within(Haste::Short, watch, name) {
            Err(CommandError::Long) => {
                tokio::task::block_in_place(|| server.data.watch_within(Haste::None, watch, name))?
            }
            done => done?,
        }
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
    let Some(mut transaction) = session.transaction.take() else {
        return Err(CommandError::reply("ERR EXEC without MULTI"));
    };
    session.note_queued(0);
    if transaction.spoilt {
        session.discard();
        return Err(CommandError::reply(
            "EXECABORT Transaction discarded because of previous errors.",
        ));
    }
    if !session.current.user.everything {
        recheck(server, &session.current.user, &mut transaction);
    }
    let done = if transaction.long {
        tokio::task::block_in_place(|| run(context, &transaction, out))
    } else {
        run(context, &transaction, out)
    };
    drop(transaction);
    context.session.discard();
    done
}

fn run(context: &mut Context<'_>, transaction: &Transaction, out: &mut Out<'_>) -> Done {
    let Context { server, session } = context;
    let caller = SessionCaller::new(server, &session.current.user);
    let exec = |watch: &mut Watch, out: &mut Out<'_>| {
        let (data, queued) = (&server.data, &transaction.data);
        let run = |haste, watch: &mut Watch, out: &mut Out<'_>| {
            data.exec_within(haste, queued, watch, (Some(&caller), out))
        };
        let short = match transaction.long {
            true => None,
            false => run(Haste::Short, watch, out),
        };
        let long = || tokio::task::block_in_place(|| run(Haste::None, watch, out));
        short.or_else(long).unwrap_or(true)
    };
    if transaction.steps.len() == transaction.data.len() {
        session.unsettled |= exec(&mut session.watch, out);
        let messages = caller.into_messages();
        session.publish(server, messages);
        return Ok(Flow::Go);
    }
    // The commands on data reply together; the replies of the session's commands are inserted
    // between theirs.
    let mut replies = Vec::new();
    let mut gathered = out.beside(&mut replies);
    session.unsettled |= exec(&mut session.watch, &mut gathered);
    let messages = caller.into_messages();
    session.publish(server, messages);
    let header = format!("*{}\r\n", transaction.data.len());
    let Some(mut rest) = replies.strip_prefix(header.as_bytes()) else {
        // A watched key has changed, or nothing was committed.
        out.raw(&replies);
        return Ok(Flow::Go);
    };
    if replies.len() > MAX_REPLY_BYTES || session.client.is_evicted() {
        // Replies are missing, and the connection has to end.
        out.raw(&replies);
        return Ok(Flow::Close);
    }
    out.array(transaction.steps.len());
    let mut flow = Flow::Go;
    for step in &transaction.steps {
        match step {
            Step::Data => {
                let length = reply_length(rest).unwrap_or(rest.len());
                let (reply, after) = rest.split_at(length);
                out.raw(reply);
                rest = after;
            }
            Step::Session(command, args) => {
                let args: Vec<Arg<'_>> = args.iter().map(Vec::as_slice).collect();
                let then = command.call(context, &args, out);
                if then != Flow::Go {
                    flow = then;
                }
            }
        }
    }
    Ok(flow)
}
