//! Keys that have keyspaces of their own: those are made, cleared, dropped and renamed.
//!
//! | key | keyspace | value | put | removed |
//! | --- | --- | --- | --- | --- |
//! | 1 mod 5 | `k` | that of its entries | a transaction on its entries | dropped if `k` is even, else cleared |
//! | 3 mod 5 | `k=v` | the one in the name; the entries never change | renamed; a new one is filled under the name `k:new` before | dropped |
//!
//! A crash while a keyspace is being renamed leaves the old name or the new one, so two keyspaces
//! of one key, or one without all its entries, are a fault, as is a name that was never given.

use super::{LiveStore, Pair, STEP, View, copies, name, progress, value};
use crate::subject::{Fault, FaultKind};
use bristlecone_pmem::sync::{give_way, lock};
use bristlecone_store::{Batch, Keyspace, TransactionOptions, WriteError};

/// Where the entries of a key are, and what its value is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Home {
    /// In keyspaces `a` and `b`.
    Shared,
    /// In keyspace `k`.
    Own,
    /// In keyspace `k=v`.
    Named,
}

impl Home {
    pub(super) fn of(key: u64) -> Self {
        match key % 5 {
            1 => Self::Own,
            3 => Self::Named,
            _ => Self::Shared,
        }
    }
}

/// The name of a keyspace whose name says the value of `key`.
fn named(key: u64, number: u64) -> String {
    format!("{key}={number}")
}

/// The name of a keyspace that is being filled.
fn unfinished(key: u64) -> String {
    format!("{key}:new")
}

/// Takes the key and the value out of a name.
fn parse(name: &str) -> Option<(u64, u64)> {
    let (key, number) = name.split_once('=')?;
    let (key, number) = (key.parse().ok()?, number.parse().ok()?);
    (named(key, number) == name && Home::of(key) == Home::Named).then_some((key, number))
}

impl View {
    /// The keyspace whose name says the value of `key`, and the value.
    fn named(&self, key: u64) -> Result<Option<(&Keyspace, u64)>, Fault> {
        let all = self.keyspaces.iter();
        let mut own = all.filter_map(|keyspace| {
            let (of, number) = parse(keyspace.name())?;
            (of == key).then_some((keyspace, number))
        });
        let first = own.next();
        match (first, own.next()) {
            (Some((first, _)), Some((second, _))) => {
                let what = format!(
                    "key {key}: keyspaces {:?} and {:?}",
                    first.name(),
                    second.name()
                );
                Err(Fault::new(FaultKind::Torn, what))
            }
            _ => Ok(first),
        }
    }

    /// The value of a key whose keyspace's name says it.
    pub(super) fn value_in_name(&self, key: u64) -> Result<Option<u64>, Fault> {
        let Some((keyspace, number)) = self.named(key)? else {
            return Ok(None);
        };
        let found = self.entries(keyspace)?;
        if found != entries(key) {
            let what = format!(
                "keyspace {:?} has {} entries: {found:?}",
                keyspace.name(),
                found.len()
            );
            return Err(Fault::new(FaultKind::Torn, what));
        }
        Ok(Some(number))
    }

    /// Checks that a keyspace is one that was made. Returns whether its entries count.
    pub(super) fn counts(&self, keyspace: &Keyspace) -> Result<bool, Fault> {
        let name = keyspace.name();
        if name == "a" || name == "b" || parse(name).is_some() {
            return Ok(true);
        }
        let key = name.trim_end_matches(":new").parse().unwrap_or(0);
        if name == key.to_string() && Home::of(key) == Home::Own {
            return Ok(true);
        }
        if name != unfinished(key) || Home::of(key) != Home::Named {
            let what = format!("no keyspace was ever called {name:?}");
            return Err(Fault::new(FaultKind::Phantom, what));
        }
        // One commit fills it.
        let found = self.entries(keyspace)?;
        if !found.is_empty() && found != entries(key) {
            let what = format!("keyspace {name:?} has {} entries: {found:?}", found.len());
            return Err(Fault::new(FaultKind::Torn, what));
        }
        Ok(false)
    }
}

/// The entries of a keyspace whose name says the value of `key`.
fn entries(key: u64) -> Vec<Pair> {
    (0..copies(key))
        .map(|copy| (name(key, copy), value(key)))
        .collect()
}

impl LiveStore {
    /// Changes a key that has a keyspace of its own, which others may drop meanwhile. As
    /// [`change`](Self::change).
    pub(super) fn change_own(
        &self,
        key: u64,
        new: Option<u64>,
        there: Option<bool>,
    ) -> Result<bool, WriteError> {
        loop {
            let done = match (Home::of(key), new) {
                (Home::Named, Some(number)) => self.put_name(key, number, there),
                (Home::Named, None) => self.remove_named(key),
                (_, Some(number)) => self.put_own(key, number, there),
                (_, None) => self.remove_own(key),
            };
            match done {
                Err(WriteError::Conflict(_) | WriteError::Dropped { .. }) => {
                    give_way();
                }
                done => return done,
            }
        }
    }

    fn put_own(&self, key: u64, number: u64, there: Option<bool>) -> Result<bool, WriteError> {
        let own = match there {
            Some(true) => self.store.find_keyspace(&key.to_string()),
            _ => Some(self.store.keyspace(&key.to_string())?),
        };
        let Some(own) = own else {
            return Ok(false);
        };
        let mut tx = self.store.begin(TransactionOptions::default());
        for copy in 0..copies(key) {
            let name = name(key, copy);
            let found = tx.get_with(&own, &name, |_| ())?.is_some();
            if there.is_some_and(|there| there != found) {
                return Ok(false);
            }
            tx.put(&own, &name, &value(number))?;
        }
        tx.commit().map(|_| true)
    }

    fn remove_own(&self, key: u64) -> Result<bool, WriteError> {
        let Some(own) = self.store.find_keyspace(&key.to_string()) else {
            return Ok(false);
        };
        if self.store.get(&own, &name(key, 0))?.is_none() {
            return Ok(false);
        }
        if key.is_multiple_of(2) {
            self.store.drop_keyspace(own)?;
        } else {
            self.store.clear(own)?;
        }
        self.store.vacuum(STEP)?;
        Ok(true)
    }

    /// The keyspace whose name says the value of `key`, as a snapshot has it: one that is being
    /// dropped has its name in memory until nothing of it can be read.
    fn find_named(&self, key: u64) -> Result<Option<Keyspace>, WriteError> {
        let keyspaces = self.store.snapshot().keyspaces()?;
        let mut all = keyspaces.into_iter();
        Ok(all.find(|keyspace| parse(keyspace.name()).is_some_and(|(of, _)| of == key)))
    }

    fn put_name(&self, key: u64, number: u64, there: Option<bool>) -> Result<bool, WriteError> {
        let new = named(key, number);
        if let Some(own) = self.find_named(key)? {
            if there != Some(false) {
                self.store.rename_keyspace(&own, &new)?;
            }
            return Ok(there != Some(false));
        }
        if there == Some(true) {
            return Ok(false);
        }
        // Two keyspaces of one key have different names, so the store refuses neither.
        let only = lock(&self.naming);
        if self.find_named(key)?.is_some() {
            drop(only);
            return self.put_name(key, number, there);
        }
        let own = self.store.keyspace(&unfinished(key))?;
        let mut batch = Batch::new();
        for (name, value) in entries(key) {
            batch.put(&own, &name, &value);
        }
        self.store.write(batch)?;
        self.store.rename_keyspace(&own, &new)?;
        Ok(true)
    }

    fn remove_named(&self, key: u64) -> Result<bool, WriteError> {
        let Some(own) = self.find_named(key)? else {
            return Ok(false);
        };
        self.store.drop_keyspace(own)?;
        self.store.vacuum(STEP)?;
        Ok(true)
    }
}

/// Checks that a keyspace that was renamed or dropped is found under no other name.
pub(super) fn check_names(live: &LiveStore) -> Result<(), Fault> {
    let view = live.view()?;
    let memory = live.store.keyspaces();
    let names = |all: &[Keyspace]| -> Vec<(String, u32)> {
        all.iter()
            .map(|keyspace| (keyspace.name().to_owned(), keyspace.number()))
            .collect()
    };
    let (read, known) = (names(&view.keyspaces), names(&memory));
    if read != known {
        return Err(progress(format!(
            "the catalogue has {read:?}, memory {known:?}"
        )));
    }
    Ok(())
}
