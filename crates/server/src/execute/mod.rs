//! Execution of commands on data: locks, the transaction, its commit, and what follows it.
//!
//! ```text
//! consecutive GETs and SETs --> batch: one call of the store -----+
//! any other command         --> its function, on a transaction ---+--> watchers, waiters --> reply
//! EXEC                      --> the functions, on one transaction +
//! ```

pub mod batch;
pub mod exec;
mod waiters;

use crate::command::{Access, Command, ONE};
use crate::data::tx::{Tx, Waiter};
use crate::data::{Data, Reads};
use crate::error::CommandError;
use crate::parse::Arg;
use crate::reply::Out;
use std::sync::Arc;

/// The result of a command. Its reply, or that of its error, is in the output.
#[derive(Debug)]
pub struct Executed {
    /// The command may have changed something, or has read what may not be durable yet.
    pub unsettled: bool,
    /// The client waits, and has no reply yet.
    pub waiter: Option<Arc<Waiter>>,
}

impl Data {
    /// Executes one command on database `db`. An error has changed nothing, and is the whole reply. A
    /// command that would wait replies that there is nothing.
    ///
    /// Returns true if the reply has to wait until [`applied`](Self::applied) is durable.
    pub fn run(
        &self,
        command: &Command,
        db: usize,
        args: &[Arg<'_>],
        reads: Reads,
        out: &mut Out<'_>,
    ) -> bool {
        self.execute(command, (db, false), args, reads, out)
            .unsettled
    }

    /// Executes one command like [`run`](Self::run), for a client that can wait.
    pub fn run_or_wait(
        &self,
        command: &Command,
        db: usize,
        args: &[Arg<'_>],
        reads: Reads,
        out: &mut Out<'_>,
    ) -> Executed {
        self.execute(command, (db, true), args, reads, out)
    }

    fn execute(
        &self,
        command: &Command,
        place: (usize, bool),
        args: &[Arg<'_>],
        reads: Reads,
        out: &mut Out<'_>,
    ) -> Executed {
        let mark = out.mark();
        let done = match command.access() {
            Access::ReadOne | Access::Read => {
                self.read(command, place.0, args, reads, out).map(|()| None)
            }
            Access::Write | Access::WriteAll => self.write(command, place, args, out),
        };
        let waiter = done.unwrap_or_else(|e| {
            out.truncate(mark);
            out.error(&e.to_string());
            None
        });
        let writes = matches!(command.access(), Access::Write | Access::WriteAll);
        Executed {
            unsettled: reads == Reads::Applied || writes,
            waiter,
        }
    }

    /// Executes a command that only reads, without locks.
    fn read(
        &self,
        command: &Command,
        db: usize,
        args: &[Arg<'_>],
        reads: Reads,
        out: &mut Out<'_>,
    ) -> Result<(), CommandError> {
        loop {
            let (mark, swaps) = (out.mark(), self.swaps());
            let mut tx = Tx::new(self, self.reader(reads), db);
            if command.access() == Access::Read {
                tx.snapshot();
            }
            let done = (command.run)(&mut tx, args, out);
            if self.swaps() == swaps {
                return done;
            }
            // The databases were swapped meanwhile: this may have read another one's keys.
            out.truncate(mark);
        }
    }

    /// Executes a command that may write, under the locks of its keys.
    fn write(
        &self,
        command: &Command,
        (db, may_wait): (usize, bool),
        args: &[Arg<'_>],
        out: &mut Out<'_>,
    ) -> Result<Option<Arc<Waiter>>, CommandError> {
        let _held = if command.access() == Access::WriteAll {
            self.locks.all()
        } else if command.spec.keys == ONE {
            self.lock(args.get(1).into_iter().map(|key| (db, *key)))
        } else {
            let places = command.spec.keys.places(args);
            self.lock(places.iter().map(|at| (db, args[*at])))
        };
        let mut tx = self.begin(db);
        tx.may_wait = may_wait;
        (command.run)(&mut tx, args, out)?;
        let wants = tx.wants.take();
        let put = tx.commit()?;
        self.serve(put);
        Ok(wants.map(|wants| self.waiting.enter(db, *wants, out.protocol())))
    }
}
