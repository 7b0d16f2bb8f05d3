//! A batch of changes: what is asked for, and what has been found of it.

use super::group::Record;
use super::modify::Modified;
use super::outer::Outer;
use super::page::key_word;
use super::serial::Reads;
use super::stored::{Reference, Stored};
use super::write::Expected;
use crate::repr::{KeyRepr, Repr};
use std::ops::Range;

/// One change of a batch.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) key: Range<usize>,
    /// Its first eight bytes.
    pub(super) word: u64,
    /// An outer value is here until it is in a block of its own, and a reference after that.
    pub(super) value: Option<Range<usize>>,
    pub(super) outer: Option<Outer>,
    pub(super) expected: Expected,
    /// Its place in the batch as it was given.
    pub(super) given: usize,
    pub(super) hash: u32,
    pub(super) was_there: bool,
    /// Bytes of the outer value that it supersedes.
    pub(super) superseded: usize,
    /// The weight of the value that it supersedes, for an observer.
    pub(super) was: Option<u64>,
    pub(super) refused: bool,
}

impl Change {
    /// Whether it is to be made: it is not refused, and there is something to remove.
    pub(super) fn is_made(&self) -> bool {
        !self.refused && (self.value.is_some() || self.was_there)
    }
}

/// A batch of changes.
#[derive(Debug)]
pub(super) struct Batch<'b, K: ToOwned + ?Sized> {
    /// As they were given.
    pub(super) keys: Vec<&'b K>,
    pub(super) bytes: Vec<u8>,
    pub(super) changes: Vec<Change>,
    /// None of the keys may have changed at this time or later.
    pub(super) unchanged_since: Option<u64>,
    /// Nor these.
    pub(super) reads: Option<&'b Reads<K>>,
    pub(super) conflict: Option<Conflict>,
    /// It may use spare blocks, since space is free after it.
    pub(super) frees: bool,
    /// Its changes have been made, but for those that are refused.
    pub(super) made: bool,
    /// The time stamp of its changes; 0 if there were none.
    pub(super) stamp: u64,
    /// No change that it saw has a later stamp.
    pub(super) seen: u64,
}

/// A key that has changed since a transaction began.
#[derive(Debug)]
pub(super) struct Conflict {
    pub(super) key: Vec<u8>,
    /// The transaction has read it, and does not write it.
    pub(super) read: bool,
}

impl<'b, K: KeyRepr + ?Sized> Batch<'b, K> {
    pub(super) fn new() -> Self {
        Self {
            keys: Vec::new(),
            bytes: Vec::new(),
            changes: Vec::new(),
            unchanged_since: None,
            reads: None,
            conflict: None,
            frees: false,
            made: false,
            stamp: 0,
            seen: 0,
        }
    }

    /// Makes no change if one of the keys, or of `reads`, has changed at `time` or later. Somebody
    /// reads at that time.
    pub(super) fn if_unchanged_since(mut self, time: u64, reads: Option<&'b Reads<K>>) -> Self {
        self.unchanged_since = Some(time);
        self.reads = reads;
        self
    }

    /// The key for which that was so.
    pub(super) fn conflict(self) -> Option<Conflict> {
        self.conflict
    }

    /// How it ended, once it has been made.
    pub(super) fn modified(&self) -> Modified {
        Modified {
            stamp: (self.stamp != 0).then_some(self.stamp),
            seen: self.seen.max(self.stamp),
        }
    }

    /// Adds a change.
    pub(super) fn add<V>(&mut self, key: &'b K, value: Option<&V>, expected: Expected)
    where
        V: Repr + ?Sized,
    {
        let mut push = |bytes: &[u8]| {
            let from = self.bytes.len();
            self.bytes.extend_from_slice(bytes);
            from..self.bytes.len()
        };
        let change = Change {
            key: key.with_bytes(&mut push),
            word: key.with_bytes(|key| key_word(key, 0)),
            value: value.map(|value| value.with_bytes(&mut push)),
            outer: None,
            expected,
            given: self.changes.len(),
            hash: key.hash(),
            was_there: false,
            superseded: 0,
            was: None,
            refused: false,
        };
        self.keys.push(key);
        self.changes.push(change);
    }

    /// Adds a look at a key, for [`execute_batch`](ClusteredTree::execute_batch).
    pub(super) fn look(&mut self, key: &'b K) {
        self.add(key, None::<&[u8]>, Expected::Either);
        if let Some(added) = self.changes.last_mut() {
            added.refused = true;
        }
    }

    /// Sorts the changes by key, and of each key in the order in which they were given.
    pub(super) fn sort(&mut self) {
        let bytes = &self.bytes;
        self.changes.sort_by(|a, b| {
            let key = |change: &Change| &bytes[change.key.clone()];
            a.word.cmp(&b.word).then_with(|| key(a).cmp(key(b)))
        });
    }

    /// Of each key only the last change stays.
    pub(super) fn keep_last(&mut self) {
        let bytes = &self.bytes;
        self.changes.reverse();
        self.changes
            .dedup_by(|earlier, later| bytes[earlier.key.clone()] == bytes[later.key.clone()]);
        self.changes.reverse();
    }

    /// Later insertions of a key are refused.
    pub(super) fn refuse_repeated(&mut self) {
        for i in 1..self.changes.len() {
            let repeated = self.key(i) == self.key(i - 1);
            self.changes[i].refused = repeated;
        }
    }

    pub(super) fn key(&self, i: usize) -> &[u8] {
        &self.bytes[self.changes[i].key.clone()]
    }

    /// The key of change `i`, as it was given.
    pub(super) fn given(&self, i: usize) -> &'b K {
        self.keys[self.changes[i].given]
    }

    /// The records of changes that are to be made.
    pub(super) fn records(
        &self,
        changes: Range<usize>,
    ) -> impl Iterator<Item = Record<'_>> + Clone {
        let changes = self.changes[changes].iter();
        let made = changes.filter(|change| change.is_made());
        made.map(|change| (&self.bytes[change.key.clone()], self.stored(change)))
    }

    /// The value that a change brings, as its page has it.
    pub(super) fn stored(&self, change: &Change) -> Option<Stored<'_>> {
        let value = change.value.clone()?;
        Some(Stored {
            bytes: &self.bytes[value],
            outer: change.outer.is_some(),
        })
    }

    /// Writes the references of the outer values among some changes, which are appended in that
    /// page, generation and place.
    pub(super) fn refer(
        &mut self,
        changes: Range<usize>,
        (born_in, generation, place): (u32, u64, usize),
        mut each: impl FnMut(&Reference),
    ) {
        for change in &mut self.changes[changes] {
            if let (true, Some(outer), Some(value)) =
                (change.is_made(), &change.outer, change.value.clone())
            {
                let reference = outer.reference(born_in, generation, place);
                each(&reference);
                self.bytes[value].copy_from_slice(&reference.encode());
            }
        }
    }

    /// The reference that change `i` has.
    pub(super) fn reference(&self, i: usize) -> Option<Reference> {
        let change = &self.changes[i];
        let value = change.value.clone().filter(|_| change.outer.is_some());
        Reference::decode(&self.bytes[value?])
    }

    /// The place of each change in the batch as it was given, and whether it was refused.
    pub(super) fn refused(&self) -> impl Iterator<Item = (usize, bool)> {
        let changes = self.changes.iter();
        changes.map(|change| (change.given, change.refused))
    }
}
