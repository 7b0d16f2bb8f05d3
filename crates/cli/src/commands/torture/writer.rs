//! The writer that torture kills: works until it dies.

use super::plan::{self, Ack, Action, Plan, READY};
use crate::args::TortureWriter;
use crate::failure::{Failure, Outcome};
use crate::store::{How, Store};
use bristlecone_designs::InsertError;
use std::io;

/// Works through the plan in several threads and acknowledges each call that returned.
pub fn run(args: &TortureWriter) -> Outcome {
    let store = Store::open(&args.pool, How::durable(args.medium.choice().kind()))?;
    send(&READY)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads)
            .map(|thread| {
                let plan = Plan::new(args.seed, args.round, thread, args.threads);
                let store = &store;
                scope.spawn(move || work(store, thread, plan))
            })
            .collect();
        threads.into_iter().try_for_each(|t| {
            t.join()
                .unwrap_or_else(|_| Err(Failure::new("a writer panicked")))
        })
    })
}

fn work(store: &Store, thread: u16, plan: Plan) -> Outcome {
    for step in plan {
        let value = |key| plan::value(key, step.version);
        let bytes = |key| plan::key(key, store.longest_key());
        let outcome = match &step.action {
            Action::Upsert(key) => store.upsert(&bytes(*key), &value(*key))?.into(),
            Action::Update(key) => store.update(&bytes(*key), &value(*key))?.into(),
            Action::Remove(key) => store.remove(&bytes(*key))?.into(),
            Action::Insert(keys) => {
                let pairs: Vec<_> = keys.iter().map(|k| (bytes(*k), value(*k))).collect();
                let mut results = Vec::with_capacity(pairs.len());
                store.multi_insert(&pairs, &mut results);
                let mut inserted = 0;
                for (i, result) in results.iter().enumerate() {
                    match result {
                        Ok(()) => inserted |= 1 << i,
                        Err(InsertError::KeyExists) => {}
                        Err(e) => return Err(Failure::new(format!("batch insert: {e}"))),
                    }
                }
                inserted
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
