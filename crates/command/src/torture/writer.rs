//! The writer that torture kills: works until it dies.

use super::plan::{self, Ack, Action, Plan, READY};
use super::{Open, Victim};
use crate::args::WriterArgs;
use crate::failure::{Failure, Outcome};
use crate::pool::How;
use std::io;

/// Works through the plan in several threads and acknowledges each call that returned.
///
/// # Errors
/// The pool cannot be opened or refuses a write.
pub fn run(args: &WriterArgs, open: Open<'_>) -> Outcome {
    let victim = open(&args.pool, How::durable(Some(args.medium.kind())))?;
    send(&READY)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads)
            .map(|thread| {
                let plan = Plan::new(args.seed, args.round, thread, args.threads);
                let victim = &*victim;
                scope.spawn(move || work(victim, thread, plan))
            })
            .collect();
        threads.into_iter().try_for_each(|t| {
            t.join()
                .unwrap_or_else(|_| Err(Failure::new("a writer panicked")))
        })
    })
}

fn work(victim: &dyn Victim, thread: u16, plan: Plan) -> Outcome {
    for step in plan {
        let value = |key| plan::value(key, step.version);
        let bytes = |key| plan::key(key, victim.longest_key());
        let outcome = match &step.action {
            Action::Upsert(key) => victim.put(&bytes(*key), &value(*key))?.into(),
            Action::Update(key) => victim.update(&bytes(*key), &value(*key))?.into(),
            Action::Remove(key) => victim.remove(&bytes(*key))?.into(),
            Action::Insert(keys) => {
                let pairs: Vec<_> = keys.iter().map(|k| (bytes(*k), value(*k))).collect();
                let inserted = victim.insert_absent(&pairs)?;
                let bits = inserted.iter().enumerate();
                bits.map(|(i, there)| u8::from(*there) << i).sum()
            }
        };
        let ack = Ack {
            thread,
            sequence: step.sequence,
            version: step.version,
            outcome,
        };
        send(&ack.encode())?;
    }
    Ok(())
}

/// Writes to standard output at once: an acknowledgement in a buffer of this process would die with
/// it.
fn send(bytes: &[u8]) -> Outcome {
    let out = io::stdout();
    loop {
        match rustix::io::write(&out, bytes) {
            Ok(n) if n == bytes.len() => return Ok(()),
            Ok(n) => return Err(Failure::new(format!("acknowledging: {n} bytes went out"))),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Failure::output(&e.into())),
        }
    }
}
