//! Transactions of a program: their own changes, what they have read, and which have to fail.

use super::bench::{Bench, Outcome, ensure, same};
use super::looks::{shown, value_of};
use super::model::{Entries, Keys, Moment, Value};
use super::program::{Range, Step};
use crate::common::TREE;
use bristlecone_pmem::media::Auto;
use bristlecone_store::{Entry, Savepoint, Transaction, TransactionOptions, WriteError};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

/// Bytes of the longest key that a page has.
const LONGEST: usize = 2_043;

/// The changes of a transaction: of keys of keyspaces.
type Writes = BTreeMap<(usize, Vec<u8>), Option<Value>>;

/// A savepoint, which was not undone.
struct Saved {
    point: Savepoint,
    /// How many changes there were.
    changes: usize,
    writes: Writes,
}

pub struct Tx {
    pub inner: Transaction<Auto>,
    pub at: Moment,
    pub is_serializable: bool,
    writes: Writes,
    /// Changes that can be undone, and those that cannot any more.
    changes: usize,
    /// All savepoints: `Err` for those that were undone.
    saved: Vec<Result<Saved, Savepoint>>,
    has_forgotten: bool,
    reads: Vec<(usize, Keys)>,
}

impl Tx {
    /// Returns the entries of a keyspace with the transaction's own changes, over those of its
    /// snapshot.
    pub fn merged(&self, space: usize, stored: Entries) -> Entries {
        let mut all: BTreeMap<Vec<u8>, Value> = stored.into_iter().collect();
        for ((of, key), value) in &self.writes {
            if *of != space {
                continue;
            }
            match value {
                Some(value) if value.is_live(self.at.now) => {
                    all.insert(key.clone(), value.clone());
                }
                _ => {
                    all.remove(key);
                }
            }
        }
        all.into_iter().collect()
    }

    fn change(&mut self, space: usize, key: &[u8], value: Option<Value>) {
        self.writes.insert((space, key.to_vec()), value);
        self.changes += 1;
    }
}

impl Bench<'_> {
    pub fn transaction(&mut self, step: &Step) -> Outcome {
        match *step {
            Step::Begin(t, is_serializable) => {
                let at = self.model.snapshot();
                let options = match is_serializable {
                    true => TransactionOptions::serializable(),
                    false => TransactionOptions::default(),
                };
                self.txs[t] = Some(Tx {
                    inner: self.store().begin(options),
                    at,
                    is_serializable,
                    writes: Writes::new(),
                    changes: 0,
                    saved: Vec::new(),
                    has_forgotten: false,
                    reads: Vec::new(),
                });
                Ok(())
            }
            Step::Commit(t) => match self.txs[t].take() {
                Some(tx) => self.commit(tx),
                None => Ok(()),
            },
            Step::Abandon(t) => {
                if let Some(tx) = self.txs[t].take() {
                    tx.inner.rollback();
                }
                Ok(())
            }
            Step::TxPut(t, which, key, give, expires_at) => {
                let (key, value) = (self.key(key), self.value(give, expires_at));
                let (Some((space, k)), Some(tx)) = (self.resolve(which), &mut self.txs[t]) else {
                    return Ok(());
                };
                let put = tx.inner.put_expiring(&k, key, &value.bytes, expires_at);
                put.map_err(|e| e.to_string())?;
                tx.change(space, key, Some(value));
                Ok(())
            }
            Step::TxDelete(t, which, key) => {
                let key = self.key(key);
                let (Some((space, k)), Some(tx)) = (self.resolve(which), &mut self.txs[t]) else {
                    return Ok(());
                };
                tx.inner.delete(&k, key).map_err(|e| e.to_string())?;
                tx.change(space, key, None);
                Ok(())
            }
            Step::TxGet(t, which, key) => {
                let key = self.key(key);
                let (Some((space, k)), Some(tx)) = (self.resolve(which), &mut self.txs[t]) else {
                    return Ok(());
                };
                if !tx.writes.contains_key(&(space, key.to_vec())) {
                    let one = Bound::Included(key.to_vec());
                    tx.reads.push((space, Keys::Between(one.clone(), one)));
                }
                let found = tx.inner.get_with(&k, key, value_of);
                let found = found.map_err(|e| e.to_string())?;
                let stored = self.model.spaces[space].all(tx.at);
                let all = tx.merged(space, stored);
                let expected = all.into_iter().find(|(other, _)| other == key);
                ensure!(
                    found == expected.map(|(_, value)| value),
                    "transaction {t} read something else"
                );
                Ok(())
            }
            Step::TxScan(t, which, range, down, most) => {
                let keys = self.keys(range);
                let (Some((space, k)), Some(tx)) = (self.resolve(which), &mut self.txs[t]) else {
                    return Ok(());
                };
                let stored = self.model.spaces[space].all(tx.at);
                let down = down && !matches!(range, Range::Prefix(_));
                let mut expected = tx.merged(space, stored);
                expected.retain(|(key, _)| keys.contains(key));
                if down {
                    expected.reverse();
                }
                let stopped = expected.len() >= most;
                expected.truncate(most);
                let mut found = Entries::new();
                let visit = |key: &[u8], entry: Entry<'_>| {
                    found.push((key.to_vec(), value_of(entry)));
                    if found.len() == most {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                };
                let scanned = match keys.clone() {
                    Keys::Prefix(prefix) => tx.inner.prefix(&k, &prefix, visit),
                    Keys::Between(from, to) if down => {
                        (tx.inner).scan_reverse::<Vec<u8>>(&k, (from, to), visit)
                    }
                    Keys::Between(from, to) => tx.inner.scan::<Vec<u8>>(&k, (from, to), visit),
                };
                scanned.map_err(|e| e.to_string())?;
                ensure!(
                    found == expected,
                    "transaction {t} scanned {}, and should have seen {}",
                    shown(&found),
                    shown(&expected)
                );
                // Only the part of the range that the scan went through.
                let last = expected.last().map(|(key, _)| key).filter(|_| stopped);
                if !keys.are_none() {
                    tx.reads.push((space, until(keys, last, down)));
                }
                Ok(())
            }
            Step::Savepoint(_) | Step::Rollback(..) | Step::Forget(_) => self.savepoint(step),
            _ => unreachable!("{step:?}"),
        }
    }

    fn savepoint(&mut self, step: &Step) -> Outcome {
        let (Step::Savepoint(t) | Step::Rollback(t, _) | Step::Forget(t)) = *step else {
            unreachable!("{step:?}")
        };
        let Some(tx) = &mut self.txs[t] else {
            return Ok(());
        };
        match *step {
            Step::Rollback(_, before) => {
                let len = tx.saved.len();
                let Some(at) = len.checked_sub(1 + before) else {
                    return Ok(());
                };
                match &tx.saved[at] {
                    // One that was itself undone does nothing.
                    Err(point) => tx.inner.rollback_to(*point),
                    Ok(saved) => {
                        tx.inner.rollback_to(saved.point);
                        tx.writes = saved.writes.clone();
                        tx.changes = saved.changes;
                    }
                }
                let changes = tx.changes;
                for one in &mut tx.saved {
                    if let Ok(saved) = one
                        && saved.changes > changes
                    {
                        *one = Err(saved.point);
                    }
                }
            }
            Step::Forget(_) => {
                tx.inner.forget_savepoints();
                tx.has_forgotten = true;
                // An earlier one undoes what comes from now on.
                tx.saved.retain(Result::is_ok);
                for saved in tx.saved.iter_mut().flatten() {
                    saved.writes = tx.writes.clone();
                    saved.changes = tx.changes;
                }
            }
            _ => tx.saved.push(Ok(Saved {
                point: tx.inner.savepoint(),
                changes: tx.changes,
                writes: tx.writes.clone(),
            })),
        }
        same("changes", &tx.inner.changes(), &tx.writes.len())?;
        let has_none = tx.changes == 0 && !tx.has_forgotten;
        ensure!(
            !has_none || tx.inner.held() == 0,
            "{} bytes are held of no change",
            tx.inner.held()
        );
        Ok(())
    }

    fn commit(&mut self, tx: Tx) -> Outcome {
        let before = self.store().applied();
        let answer = tx.inner.commit();
        let is_dropped = |space: &usize| self.model.spaces[*space].name().is_none();
        if tx.writes.is_empty() {
            // It takes place at its snapshot, whatever it has read.
            return same("time stamp", &answer.map_err(|e| e.to_string())?, &0);
        }
        if tx.writes.keys().any(|(space, _)| is_dropped(space)) {
            let refused = matches!(answer, Err(WriteError::Dropped { .. }));
            ensure!(refused, "wrote to a dropped keyspace: {answer:?}");
            return Ok(());
        }
        // Keys that have changed since, and whether the transaction has only read them.
        let mut conflicts: Vec<(Vec<u8>, bool)> = Vec::new();
        let mut among = |space: usize, keys: &Keys, is_read: bool| {
            for (key, version) in self.model.since(space, keys, tx.at.commit) {
                // Of version records, what the vacuum removes is no change.
                if !version.is_swept || self.design == TREE {
                    conflicts.push((key.to_vec(), is_read));
                }
            }
        };
        for (space, key) in tx.writes.keys() {
            let one = Bound::Included(key.clone());
            among(*space, &Keys::Between(one.clone(), one), false);
        }
        let mut lost_reads = false;
        if tx.is_serializable {
            for (space, keys) in &tx.reads {
                among(*space, keys, true);
                let dropped = self.model.spaces[*space].dropped();
                lost_reads |= dropped.is_some_and(|dropped| dropped > tx.at.commit);
            }
        }
        match answer {
            Err(WriteError::Conflict(e)) => {
                let known = conflicts.iter().any(|(key, is_read)| {
                    // Of one that is long and new, its beginning.
                    let is_it = *key == e.key || is_long(key) && key.starts_with(&e.key);
                    is_it && e.read == *is_read
                });
                let about_long = conflicts.is_empty()
                    && tx.is_serializable
                    && self.may_conflict(tx.at, &tx.reads, &tx.writes);
                ensure!(known || lost_reads || about_long, "no conflict: {e}");
            }
            Ok(ts) => {
                // One that only deletes what is not there, and was not, takes place at its
                // snapshot.
                let deletes_nothing = tx.writes.iter().all(|((space, key), value)| {
                    value.is_none() && self.model.spaces[*space].newest(key).is_none()
                });
                let has_none = deletes_nothing && conflicts.iter().all(|(_, is_read)| *is_read);
                ensure!(
                    (has_none || conflicts.is_empty()) && !lost_reads,
                    "committed over {}, dropped keyspace read: {lost_reads}",
                    shown_keys(&conflicts)
                );
                let changes = tx.writes.into_iter();
                let changes = changes.map(|((space, key), value)| (space, key, value));
                if self.model.change(changes, false) {
                    ensure!(ts > before, "time stamp {ts} after {before}");
                }
            }
            Err(e) => return Err(e.to_string()),
        }
        Ok(())
    }
}

impl Bench<'_> {
    /// Whether a serialisable transaction may fail without a conflict: of long keys, a change of
    /// one may count as one of others that begin alike, or that it has read in a range.
    fn may_conflict(&self, at: Moment, reads: &[(usize, Keys)], writes: &Writes) -> bool {
        let all = Keys::Prefix(Vec::new());
        reads.iter().any(|(space, _)| {
            let since = self.model.since(*space, &all, at.commit);
            let mut own = writes.keys().filter(|(of, _)| of == space);
            since.iter().any(|(key, _)| is_long(key)) || own.any(|(_, key)| is_long(key))
        })
    }
}

fn shown_keys(conflicts: &[(Vec<u8>, bool)]) -> String {
    let shown = conflicts.iter().map(|(key, is_read)| {
        let end = key[key.len().saturating_sub(8)..].escape_ascii();
        format!("{end} of {} bytes, only read: {is_read}", key.len())
    });
    shown.collect::<Vec<_>>().join("; ")
}

/// Whether a key is longer than those that a page has.
fn is_long(key: &[u8]) -> bool {
    key.len() > LONGEST
}

/// The keys that a scan has seen that ended at `last`.
fn until(keys: Keys, last: Option<&Vec<u8>>, down: bool) -> Keys {
    let Some(last) = last.cloned() else {
        return keys;
    };
    match keys {
        Keys::Between(_, to) if down => Keys::Between(Bound::Included(last), to),
        Keys::Between(from, _) => Keys::Between(from, Bound::Included(last)),
        Keys::Prefix(prefix) => Keys::Between(Bound::Included(prefix), Bound::Included(last)),
    }
}
