//! A map that is made of the change feed alone.
//!
//! It begins with what a snapshot has and goes on with the changes. So each must come once, in the
//! order of the commits, and none may be missing. Lookups answered from it
//! (`store-lbtree-256-watched`) are held against the history of all calls, before and after a
//! crash: what was answered must not be lost with it.

use super::{NOW, progress};
use crate::subject::{Fault, FaultKind};
use bristlecone_pmem::media::Sim;
use bristlecone_store::{Keyspace, Store, Watch, WatchEvent, WatchLimits};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

pub(super) struct Follower {
    watch: Watch,
    map: Map,
    /// The map had changes up to this time stamp when it was begun.
    since: u64,
    /// The time stamp of the last change, and the keys that were changed at that time.
    last: u64,
    changed: BTreeSet<Arc<[u8]>>,
}

/// The content of a keyspace, and the time stamp of the snapshot that has it.
fn content(store: &Store<Sim>, keyspace: &Keyspace) -> Result<(Map, u64), Fault> {
    let snapshot = store.snapshot();
    let mut map = Map::new();
    let seen = snapshot.scan::<Vec<u8>>(keyspace, .., |key, entry| {
        map.insert(key.to_vec(), entry.value.to_vec());
        ControlFlow::Continue(())
    });
    seen.map_err(progress)?;
    Ok((map, snapshot.timestamp()))
}

impl Follower {
    /// Watches a keyspace, whatever commits are under way.
    pub(super) fn begin(store: &Store<Sim>, keyspace: &Keyspace) -> Result<Self, Fault> {
        let limits = WatchLimits {
            events: usize::MAX,
            bytes: usize::MAX,
        };
        let watch = store.watch(keyspace, b"", limits).map_err(progress)?;
        let (map, since) = content(store, keyspace)?;
        Ok(Self {
            watch,
            map,
            since,
            last: 0,
            changed: BTreeSet::new(),
        })
    }

    /// Takes the changes that there are.
    pub(super) fn catch_up(&mut self, store: &Store<Sim>) -> Result<(), Fault> {
        while let Some(event) = self.watch.try_next().map_err(progress)? {
            let wrong = |what| Err(Fault::new(FaultKind::Wrong, format!("{event:?} {what}")));
            let (key, value, ts) = match &event {
                WatchEvent::Put {
                    key,
                    value,
                    expires_at,
                    ts,
                } => {
                    let value = expires_at.is_none_or(|at| at > NOW).then_some(value);
                    (key, value, *ts)
                }
                WatchEvent::Delete { key, ts } => (key, None, *ts),
                _ => return wrong("was given by a keyspace that lasts, with room for all"),
            };
            if ts > store.durable() {
                return wrong("was given before it was durable");
            }
            if ts < self.last {
                return wrong("was given after a later one");
            }
            if ts > self.last {
                self.changed.clear();
                self.last = ts;
            }
            if !self.changed.insert(Arc::clone(key)) {
                return wrong("was given twice");
            }
            // The map has the changes of the snapshot.
            if ts <= self.since {
                continue;
            }
            match value {
                Some(value) => drop(self.map.insert(key.to_vec(), value.to_vec())),
                None => drop(self.map.remove(&**key)),
            }
        }
        Ok(())
    }

    /// The value of a key after the changes that were taken.
    pub(super) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.map.get(key).map(Vec::as_slice)
    }

    /// Checks that the changes lead to what the keyspace has now. Nobody changes it meanwhile.
    pub(super) fn check(&mut self, store: &Store<Sim>, keyspace: &Keyspace) -> Result<(), Fault> {
        self.catch_up(store)?;
        let (found, _) = content(store, keyspace)?;
        let keys = self.map.keys().chain(found.keys());
        let mut differing = keys.filter(|key| self.map.get(*key) != found.get(*key));
        let Some(key) = differing.next() else {
            return Ok(());
        };
        let (given, there) = (self.map.get(key), found.get(key));
        let what = format!("key {key:?}: the changes lead to {given:?}, there is {there:?}");
        Err(Fault::new(FaultKind::Wrong, what))
    }
}
