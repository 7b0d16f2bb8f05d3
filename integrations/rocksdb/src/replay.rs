//! Replay: the entries of the last session that no file has, in the order in which they were
//! written.

use crate::error::Fault;
use crate::key::{Entry, with_comparator};
use crate::record;
use crate::session::{Old, Session, table_name};
use crate::table::{Kind, Order, entries, table};
use std::sync::Arc;

/// An entry of an old memtable: trailer, offset of the record, column family.
type Place = (u64, u64, u32);

/// The sequence numbers of a memtable's first and last entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequences {
    /// Number of entries.
    pub entries: u64,
    /// The lowest.
    pub first: u64,
    /// The highest.
    pub last: u64,
}

/// A replay that is being prepared, and then read.
pub struct Replay {
    old: Vec<Old>,
    entries: Vec<Place>,
    at: usize,
    session: Arc<Session>,
}

impl Replay {
    /// Begins a replay of what the session found.
    pub fn new(session: &Arc<Session>) -> Self {
        Self {
            old: session.old(),
            entries: Vec::new(),
            at: 0,
            session: Arc::clone(session),
        }
    }

    /// Returns the memtables.
    pub fn old(&self) -> &[Old] {
        &self.old
    }

    /// Opens the `i`-th of the [memtables](Self::old), and takes its entries if `take` says so of
    /// its sequence numbers. What is left of an unfinished batch is no entry.
    ///
    /// # Errors
    /// [`Fault`]: it is damaged.
    pub fn read(&mut self, i: usize, order: Order) -> Result<Sequences, Fault> {
        // The table is closed here, too.
        with_comparator(order, || self.read_in(i, order))
    }

    fn read_in(&mut self, i: usize, order: Order) -> Result<Sequences, Fault> {
        let Some(old) = self.old.get(i) else {
            return Ok(Sequences::default());
        };
        let pool = self.session.pool();
        let table = table(pool, &table_name(old.slot), Kind::Tree, order, false)?;
        // A word that leads nowhere would be passed over.
        let verified = table.verify();
        verified.map_err(|what| Fault::corrupt(pool.path(), what))?;
        let batch = self.session.old_batch().unwrap_or(u64::MAX);
        let mut found = entries(&*table, pool)?;
        found.retain(|(trailer, _)| trailer >> 8 <= batch);
        let sequences = found.iter().map(|(trailer, _)| trailer >> 8);
        let sequences = Sequences {
            entries: found.len() as u64,
            first: sequences.clone().min().unwrap_or(0),
            last: sequences.max().unwrap_or(0),
        };
        let family = old.family;
        let found = found.into_iter();
        self.entries
            .extend(found.map(|(trailer, off)| (trailer, off, family)));
        Ok(sequences)
    }

    /// Leaves out the entries of column family `family` with sequence numbers of `sequences`: they
    /// are in a file.
    pub fn leave_out(&mut self, family: u32, sequences: Sequences) {
        self.entries.retain(|(trailer, _, of)| {
            *of != family || !(sequences.first..=sequences.last).contains(&(trailer >> 8))
        });
    }

    /// Puts the entries in order. Returns their number.
    pub fn sort(&mut self) -> u64 {
        self.entries.sort_unstable();
        self.at = 0;
        self.entries.len() as u64
    }

    /// Returns the next entry, and its column family.
    pub fn next_entry(&mut self) -> Option<(Entry<'_>, u32)> {
        let &(_, off, family) = self.entries.get(self.at)?;
        self.at += 1;
        let pm = self.session.pool().pm();
        // `read` has checked it.
        let entry = record::entry(pm, off).and_then(Entry::parse)?;
        Some((entry, family))
    }
}
