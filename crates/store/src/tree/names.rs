//! Names of keyspaces: the catalogue, and a second copy of it.
//!
//! ```text
//! 0 | name                       its number             the catalogue, among the first keys of the tree
//! 2^32 - 3 | number 32           'n', its name          the copy, among the last ones
//! 2^32 - 3 | number 32           'd'                    dropped; the sweep has not removed all of its keys
//! ```
//!
//! Both change in one commit, so each name can be had from either: if a page of one of them is
//! damaged, the other one says it. Only what is noted as dropped is taken away. Keys whose number
//! has no name any more in either are kept.

use super::long::{self, SPACES};
use super::parts::{self, PARTS};
use super::value::{decode, encode};
use super::{Core, write_error};
use crate::bounds::Bounds;
use crate::catalogue::{is_name, is_number, parse};
use crate::engine::Wait;
use crate::error::{Damage, DamagedRecord, StoreError, WriteError};
use crate::key::{CATALOGUE, IndexKey, split};
use crate::report::StoreRecovery;
use bristlecone_index::clustered::{self, Current, HostedTree, Lost};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, planted};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// The keyspace number of the copy.
pub(super) const COPY: u32 = u32::MAX - 2;
const NAMED: u8 = b'n';
const DROPPED: u8 = b'd';

const _: () = assert!(COPY == crate::key::FIRST_RESERVED);

/// Returns the keyspace that an entry of the copy is about; `None` if it is no such entry.
pub(super) fn number_in_copy(tree_key: &[u8]) -> Option<u32> {
    let (_, number) = split(tree_key).filter(|(number, _)| *number == COPY)?;
    Some(u32::from_be_bytes(number.try_into().ok()?))
}

fn copy_key(number: u32) -> IndexKey {
    IndexKey::new(COPY, &number.to_be_bytes())
}

/// Decodes an entry of the copy: a number with its name, or without one if it was dropped.
fn parse_copy(key: &[u8], value: &[u8]) -> Option<(u32, Option<Arc<str>>)> {
    let number = number_in_copy(key).filter(|number| is_number(*number))?;
    match value.split_first()? {
        (&NAMED, name) => {
            let name = std::str::from_utf8(name)
                .ok()
                .filter(|name| is_name(name))?;
            Some((number, Some(name.into())))
        }
        (&DROPPED, []) => Some((number, None)),
        _ => None,
    }
}

/// The names of keyspaces, from the catalogue and its copy.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// By number.
    pub named: BTreeMap<u32, Arc<str>>,
    /// Numbers that were dropped, and may have keys still.
    pub dropped: BTreeSet<u32>,
    /// Numbers whose name only one of the two has.
    single: BTreeSet<u32>,
    /// Entries that cannot be read.
    pub damage: Vec<DamagedRecord>,
    /// Pages with some that cannot be read, and entries that may have changed there.
    pub pages: Vec<DamagedRecord>,
    /// Both have some: a name may be lost.
    pub is_lost: bool,
}

impl Names {
    /// Reads both. Nobody changes them meanwhile.
    pub(super) fn read<M: Media>(tree: &HostedTree<M>) -> Self {
        let mut names = Self::default();
        let (mut catalogue, mut copy) = (BTreeMap::new(), BTreeMap::new());
        let mut wrong = Vec::new();
        names.read_range(tree, CATALOGUE, |key, value| {
            let none = || Damage::new("no entry of the catalogue is like that");
            let (name, number) = parse(key, value).ok_or_else(none)?;
            if let Some(other) = catalogue.insert(number, Arc::clone(&name)) {
                let what = format!("keyspaces {other:?} and {name:?} have the same number");
                return Err(Damage::new(what));
            }
            Ok(())
        });
        let count = |names: &Self| names.damage.len() + names.pages.len();
        let damaged = count(&names);
        names.read_range(tree, COPY, |key, value| {
            let none = || Damage::new("no entry of the catalogue's copy is like that");
            let (number, name) = parse_copy(key, value).ok_or_else(none)?;
            copy.insert(number, name);
            Ok(())
        });
        names.is_lost = damaged > 0 && count(&names) > damaged;
        let taken: BTreeSet<Arc<str>> = catalogue.values().cloned().collect();
        for (number, name) in copy {
            match (name, catalogue.get(&number)) {
                (Some(name), Some(same)) if name == *same => {
                    names.named.insert(number, name);
                }
                (None, None) => {
                    names.dropped.insert(number);
                }
                (Some(name), None) if !taken.contains(&name) => {
                    names.named.insert(number, name);
                    names.single.insert(number);
                }
                (name, there) => wrong.push((number, name, there.cloned())),
            }
        }
        // Nothing is taken away where they do not agree.
        for (number, name) in catalogue {
            let is_new = names.named.insert(number, name).is_none();
            if is_new && wrong.iter().all(|(other, ..)| *other != number) {
                names.single.insert(number);
            }
        }
        for (number, copy, catalogue) in wrong {
            let said = |name: Option<Arc<str>>| match name {
                Some(name) => format!("says that its name is {name:?}"),
                None => "has no name of it".to_owned(),
            };
            let (catalogue, copy) = (said(catalogue), said(copy));
            let what = format!(
                "of keyspace number {number}, the catalogue {catalogue}, and its copy {copy}"
            );
            let key = copy_key(number);
            names.damage.push(DamagedRecord::in_tree(Some(&key), what));
        }
        names
    }

    fn read_range<M: Media>(
        &mut self,
        tree: &HostedTree<M>,
        number: u32,
        mut entry: impl FnMut(&[u8], &[u8]) -> Result<(), Damage>,
    ) {
        let bounds = Bounds::new(number, Bound::Unbounded, Bound::Unbounded);
        let (damage, pages) = (&mut self.damage, &mut self.pages);
        let found = |key: &[u8], what: &str| DamagedRecord::in_tree(Some(key), what);
        let is_ledger =
            |key: &[u8]| number == CATALOGUE && split(key).is_some_and(|(_, name)| name.is_empty());
        let mut uncertain = Vec::new();
        // Nothing in it fails.
        let _ = tree.rescue(
            bounds.range(),
            |key, current: &Current<'_, M>| {
                if is_ledger(key) {
                    return Ok(ControlFlow::Continue(()));
                }
                let value = current.value().map_err(|e| Damage::new(e.to_string()));
                let read = value.and_then(|stored| entry(key, &decode(&stored)?.0));
                if let Err(e) = read {
                    damage.push(found(key, &e.0));
                }
                Ok(ControlFlow::Continue(()))
            },
            |lost, what| {
                if let Lost::Key(key, before) = lost {
                    if is_ledger(key) {
                        return;
                    }
                    uncertain.extend(before.map(|before| (key.to_vec(), before.to_vec())));
                }
                pages.push(found(lost.key(), what));
            },
        );
        // Names seldom change, and it is reported.
        for (key, before) in uncertain {
            if let Err(e) = decode(&before).and_then(|(value, _)| entry(&key, &value)) {
                damage.push(found(&key, &e.0));
            }
        }
    }

    /// Checks that all names are in both.
    ///
    /// # Errors
    /// A message that says which is not.
    pub(super) fn agree(&self) -> Result<(), String> {
        if let Some(damaged) = self.damage.first() {
            return Err(damaged.to_string());
        }
        let Some(number) = self.single.first() else {
            return Ok(());
        };
        let name = self.named.get(number);
        Err(format!(
            "only one of the two copies of the catalogue has keyspace {name:?}, number {number}; \
             opening the store for writing mends that"
        ))
    }
}

impl<M: Media> Core<M> {
    /// Reads the names of the keyspaces, and notes those that were dropped for the sweep. Names
    /// that only one of the copies has are given to the other one.
    ///
    /// # Errors
    /// [`StoreError::Damaged`]: both copies are damaged, and there are keys whose keyspace has no
    /// name.
    pub(super) fn load_names(&self, recovery: &mut StoreRecovery) -> Result<(), StoreError> {
        let names = Names::read(&self.tree);
        let numbers = self.numbers_with_keys();
        let has_no_name =
            |number: &&u32| !names.named.contains_key(number) && !names.dropped.contains(number);
        let nameless: Vec<u32> = numbers.iter().filter(has_no_name).copied().collect();
        if names.is_lost && !nameless.is_empty() {
            let all = names.damage.iter().chain(&names.pages);
            let all: Vec<String> = all.map(ToString::to_string).collect();
            return Err(StoreError::Damaged(Damage::new(format!(
                "{}; a store whose names of keyspaces are not all known is not opened: nothing was \
                 taken away; `bristlecone export --skip-damaged` saves what can be read",
                all.join("; ")
            ))));
        }
        let damage = names.damage.into_iter().chain(names.pages);
        damage.for_each(|damaged| recovery.found(damaged));
        let mut known = lock(&self.catalogue.known);
        let highest = [
            numbers.last(),
            names.named.keys().last(),
            names.dropped.last(),
        ];
        let highest = highest.into_iter().flatten().max();
        known.next = highest.map_or(CATALOGUE, |number| *number) + 1;
        for (number, name) in &names.named {
            known.by_name.insert(Arc::clone(name), *number);
        }
        drop(known);
        for number in &names.dropped {
            self.counts.dropped.add(*number, 0);
            self.sweep.add(*number, 0);
        }
        for number in &names.single {
            let name = &names.named[number];
            let what = format!(
                "only one of the two copies of the catalogue had keyspace {name:?}, number {number}; \
                 it may have been dropped"
            );
            recovery.found(DamagedRecord::in_tree(Some(&copy_key(*number)), what));
            if !self.pm().read_only() {
                // It is known all the same; a damaged page stays as it is.
                let _ = self.write_name(*number, None, name);
            }
        }
        for number in nameless {
            let what = format!(
                "the name of keyspace number {number} is lost; its keys are kept, and \
                 `bristlecone export --skip-damaged` saves them"
            );
            recovery.found(DamagedRecord::in_tree(Some(&copy_key(number)), what));
        }
        Ok(())
    }

    /// Returns the numbers of the keyspaces that have keys, catalogue and copy excepted: from each
    /// to the first key behind its own. Those in pages that cannot be read may be missing.
    fn numbers_with_keys(&self) -> BTreeSet<u32> {
        let mut numbers = BTreeSet::new();
        let mut next = (CATALOGUE + 1).to_be_bytes().to_vec();
        loop {
            let mut first = None;
            let range = (Bound::Included(&next[..]), Bound::Unbounded);
            // Nothing in it fails.
            let _ = self.tree.rescue(
                range,
                |key, _| {
                    first = Some(key.to_vec());
                    Ok(ControlFlow::Break(()))
                },
                |_, _| {},
            );
            let Some(first) = first else {
                return numbers;
            };
            let (first, rest) = match split(&first) {
                Some((COPY, _)) => {
                    next = (COPY + 1).to_be_bytes().to_vec();
                    continue;
                }
                Some((first, rest)) => (first, rest),
                None => return numbers,
            };
            let number = match first {
                SPACES | PARTS => split(rest).map_or(CATALOGUE, |(number, _)| number),
                number => number,
            };
            // No keyspace has it, nor what is behind it.
            if !is_number(number) {
                return numbers;
            }
            numbers.insert(number);
            let [_, after] = match first {
                SPACES => long::spaces_of(number),
                PARTS => parts::parts_of(number),
                number => [number, number + 1].map(|number| number.to_be_bytes().to_vec()),
            };
            next = after;
        }
    }

    /// Gives keyspace `number` the name `to`, in place of `from` if it has one. Returns the
    /// timestamp, which may not be durable.
    ///
    /// # Errors
    /// [`WriteError`]; nothing has changed then.
    pub(super) fn name_keyspace(
        &self,
        number: u32,
        from: Option<&str>,
        to: &str,
    ) -> Result<u64, WriteError> {
        self.writable()?;
        self.retry_for_space(|| {
            self.change([], Wait::Applied, || self.write_name(number, from, to))
        })
    }

    fn write_name(&self, number: u32, from: Option<&str>, to: &str) -> Result<u64, WriteError> {
        let from = from.map(|name| IndexKey::new(CATALOGUE, name.as_bytes()));
        let key = IndexKey::new(CATALOGUE, to.as_bytes());
        let copy_key = copy_key(number);
        let old = from.as_deref().map(|key| (key, None));
        if planted!(self.pm(), "store-rename-in-two") {
            // The mistake: a crash before the change below leaves no name at all.
            let copy = old.map(|_| (&*copy_key, None));
            self.tree
                .write(old.into_iter().chain(copy), None, None)
                .map_err(|e| write_error(Some(&key), e))?;
        }
        let number_bytes = number.to_le_bytes();
        let value = encode(&number_bytes, 0);
        let copy = named(to.as_bytes());
        let new = [(&*key, Some(&*value)), (&*copy_key, Some(&copy[..]))];
        let changes = old.into_iter().chain(new);
        let written = self.tree.write(changes, None, None);
        let written = written.map_err(|e| write_error(Some(&key), e))?;
        Ok(written.seen)
    }

    /// With all writers kept out: drops keyspace `number`, whose name goes, or becomes that of
    /// number `empty`. Returns the timestamp, which may not be durable.
    ///
    /// # Errors
    /// [`WriteError`]; nothing has changed then.
    pub(super) fn drop_keyspace(
        &self,
        name: &str,
        number: u32,
        empty: Option<u32>,
    ) -> Result<u64, WriteError> {
        self.writable()?;
        let key = IndexKey::new(CATALOGUE, name.as_bytes());
        let value = empty.map(u32::to_le_bytes);
        let value = value.as_ref().map(|number| encode(number, 0));
        let copy = empty.map(|number| (copy_key(number), named(name.as_bytes())));
        let dropped = copy_key(number);
        let changes = [(&*key, value.as_deref()), (&*dropped, Some(&[DROPPED][..]))];
        let copy = copy.as_ref().map(|(key, name)| (&**key, Some(&name[..])));
        let changes = || changes.into_iter().chain(copy);
        self.retry_for_space(|| {
            let closed = self.gate.close();
            *lock(&self.counts.dropping) = Some(number);
            let written = self.tree.write_to_free(changes());
            *lock(&self.counts.dropping) = None;
            let modified = written.map_err(|e| write_error(Some(&key), e))?;
            self.feed.keyspace_dropped(number, empty, modified.seen);
            drop(closed);
            self.sweep.add(number, modified.seen);
            Ok(modified.seen)
        })
    }

    /// Forgets that a keyspace was dropped, none of whose keys is left.
    ///
    /// # Errors
    /// [`WriteError`]
    pub(super) fn forget_dropped(&self, number: u32) -> Result<(), WriteError> {
        let key = copy_key(number);
        let removed = self
            .tree
            .modify(&key, |_| Ok(clustered::Modification::Remove));
        removed.map_err(|e| write_error(Some(&key), e))?;
        Ok(())
    }
}

/// An entry of the copy.
fn named(name: &[u8]) -> Vec<u8> {
    [&[NAMED], name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_comes_back() {
        let key = copy_key(70_000);
        let name = Some((70_000, Some("näme".into())));
        assert_eq!(parse_copy(&key, &named("näme".as_bytes())), name);
        assert_eq!(parse_copy(&key, &[DROPPED]), Some((70_000, None)));
        for wrong in [&b""[..], b"dd", b"x", b"n\xff"] {
            assert_eq!(parse_copy(&key, wrong), None);
        }
        assert_eq!(parse_copy(&key[..7], &[DROPPED]), None);
    }
}
