//! `EXEC` in the data layer: queued commands as one commit, unless a watched key has changed.

use super::Data;
use super::touched::{Listener, Touched};
use crate::command::{Access, Arg, Command};
use crate::reply::Out;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A command that waits for `EXEC`.
#[derive(Debug)]
pub struct Queued {
    /// The command.
    pub command: &'static Command,
    /// The database that it is for.
    pub db: usize,
    /// Its arguments, its name first.
    pub args: Vec<Vec<u8>>,
}

/// Keys that a connection watches; dropping it ends that.
#[derive(Default)]
pub struct Watch {
    changed: Arc<AtomicBool>,
    keys: Vec<(usize, Vec<u8>, Listener)>,
    touched: Option<Arc<Touched>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({})", self.keys.len())
    }
}

impl Watch {
    /// Watches nothing any more.
    pub fn clear(&mut self) {
        for (db, key, listener) in self.keys.drain(..) {
            if let Some(touched) = &self.touched {
                touched.leave(db, &key, &listener);
            }
        }
        self.changed = Arc::default();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Data {
    /// Lets `watch` know of every change of the key from now on.
    pub fn watch(&self, watch: &mut Watch, db: usize, key: &[u8]) {
        let there = |(at, name, _): &(usize, Vec<u8>, Listener)| *at == db && name == key;
        if watch.keys.iter().any(there) {
            return;
        }
        let changed = Arc::clone(&watch.changed);
        // ORDERING: SeqCst; looked at under the locks of the keys.
        let listener: Listener = Arc::new(move || changed.store(true, Ordering::SeqCst));
        self.touched.listen(db, key, Arc::clone(&listener));
        watch.touched = Some(Arc::clone(&self.touched));
        watch.keys.push((db, key.to_vec(), listener));
    }

    /// Runs the commands as one commit, and answers them in an array: a null one, with nothing done, if a watched key has changed. A
    /// command that fails changes nothing, and the others go on. Ends the watching. True if the answer has to wait for
    /// durability.
    pub fn exec(&self, queued: &[Queued], watch: &mut Watch, out: &mut Out<'_>) -> bool {
        let args: Vec<Vec<Arg<'_>>> = queued
            .iter()
            .map(|one| one.args.iter().map(Vec::as_slice).collect())
            .collect();
        let all = queued
            .iter()
            .any(|one| one.command.access == Access::WriteAll);
        let _held = if all {
            self.locks.all()
        } else {
            let of_commands = queued.iter().zip(&args).flat_map(|(one, args)| {
                let places = one.command.keys.places(args).into_iter();
                places.filter_map(move |at| Some((one.db, *args.get(at)?)))
            });
            let watched = watch.keys.iter().map(|(db, key, _)| (*db, key.as_slice()));
            self.locks.keys(of_commands.chain(watched))
        };
        // ORDERING: SeqCst; as in `watch`.
        let changed = watch.changed.load(Ordering::SeqCst);
        watch.clear();
        if changed {
            out.null_array();
            return true;
        }
        let start = out.mark();
        out.array(queued.len());
        let mut tx = self.begin(0);
        for (one, args) in queued.iter().zip(&args) {
            tx.db = one.db;
            let (before, mark) = (tx.mark(), out.mark());
            if let Err(e) = (one.command.run)(&mut tx, args, out) {
                tx.rollback(&before);
                out.truncate(mark);
                out.error(&e.to_string());
            }
        }
        if let Err(e) = tx.commit() {
            out.truncate(start);
            out.error(&e.to_string());
        }
        true
    }
}
