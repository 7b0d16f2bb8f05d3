//! A batch of changes: what is asked for, and what has been found of it.

use super::group::Record;
use super::modify::Modified;
use super::outer::Outer;
use super::serial::Reads;
use super::stored::{REFERENCE, Reference, Stored};
use super::write::Expected;
use crate::repr::{KeyRepr, Repr};
use crate::sorted::order_of;
use std::ops::Range;

/// One change of a batch.
#[derive(Debug)]
pub(super) struct Change {
    /// Where its bytes begin: those of the key, and then those of the value.
    at: usize,
    /// Bytes of the value; that of an outer one is here until it is in a block of its own, and a
    /// reference after that.
    value: u32,
    key: u16,
    puts: bool,
    pub(super) refused: bool,
    pub(super) was_there: bool,
    pub(super) expected: Expected,
    pub(super) hash: u32,
    /// The entry of the base whose value it removes.
    pub(super) entry: Option<u16>,
    /// Its place in the batch as it was given.
    pub(super) given: u32,
    pub(super) outer: Option<Box<Outer>>,
    /// Bytes of the outer value that it supersedes.
    pub(super) superseded: usize,
    /// The weight of the value that it supersedes, for an observer.
    pub(super) was: Option<u64>,
}

// Many of them are sorted and looked at together.
const _: () = assert!(size_of::<Change>() <= 64);

impl Change {
    /// Where the bytes of its key are.
    #[inline(always)]
    pub(super) fn key(&self) -> Range<usize> {
        self.at..self.at + usize::from(self.key)
    }

    /// Where the bytes of its value are; `None` if it removes.
    #[inline(always)]
    pub(super) fn value(&self) -> Option<Range<usize>> {
        let from = self.key().end;
        self.puts.then_some(from..from + self.value as usize)
    }

    /// Whether it removes.
    #[inline(always)]
    pub(super) fn removes(&self) -> bool {
        !self.puts
    }

    /// Whether it is to be made: it is not refused, and there is something to remove.
    #[inline(always)]
    pub(super) fn is_made(&self) -> bool {
        !self.refused && (self.puts || self.was_there)
    }

    /// The value is an outer one, which is in a block of its own now.
    pub(super) fn move_out(&mut self, outer: Outer) {
        self.value = REFERENCE as u32;
        self.outer = Some(Box::new(outer));
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
    /// Its changes are of one page, and are to be [spread](super::spread) over many.
    pub(super) spreads: bool,
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
            spreads: false,
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

    /// Adds a change, of a key and a value that [fit](ClusteredTree::fits).
    pub(super) fn add<V>(&mut self, key: &'b K, value: Option<&V>, expected: Expected)
    where
        V: Repr + ?Sized,
    {
        let at = self.bytes.len();
        key.with_bytes(|key| self.bytes.extend_from_slice(key));
        let end = self.bytes.len();
        if let Some(value) = value {
            value.with_bytes(|value| self.bytes.extend_from_slice(value));
        }
        debug_assert!(end - at <= super::MAX_KEY && self.bytes.len() - end <= super::MAX_VALUE);
        self.changes.push(Change {
            at,
            value: (self.bytes.len() - end) as u32,
            key: (end - at) as u16,
            puts: value.is_some(),
            refused: false,
            was_there: false,
            expected,
            hash: key.hash(),
            entry: None,
            given: self.changes.len() as u32,
            outer: None,
            superseded: 0,
            was: None,
        });
        self.keys.push(key);
    }

    /// None, with room for so many.
    pub(super) fn with_room(changes: usize) -> Self {
        let mut batch = Self::new();
        batch.keys.reserve_exact(changes);
        batch.changes.reserve_exact(changes);
        batch
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
        let Some(order) = order_of(self.changes.len(), |i| self.key(i)) else {
            return;
        };
        let mut changes: Vec<Option<Change>> = self.changes.drain(..).map(Some).collect();
        let sorted = order.into_iter().filter_map(|i| changes[i as usize].take());
        self.changes.extend(sorted);
    }

    /// Of each key only the last change stays.
    pub(super) fn keep_last(&mut self) {
        let bytes = &self.bytes;
        self.changes.reverse();
        self.changes
            .dedup_by(|earlier, later| bytes[earlier.key()] == bytes[later.key()]);
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
        &self.bytes[self.changes[i].key()]
    }

    /// The key of change `i`, as it was given.
    pub(super) fn given(&self, i: usize) -> &'b K {
        self.keys[self.changes[i].given as usize]
    }

    /// The records of changes that are to be made.
    pub(super) fn records(
        &self,
        changes: Range<usize>,
    ) -> impl Iterator<Item = Record<'_>> + Clone {
        let changes = self.changes[changes].iter();
        let made = changes.filter(|change| change.is_made());
        made.map(|change| Record {
            key: &self.bytes[change.key()],
            value: self.stored(change),
            entry: change.entry,
        })
    }

    /// The value that a change brings, as its page has it.
    pub(super) fn stored(&self, change: &Change) -> Option<Stored<'_>> {
        let value = change.value()?;
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
                (change.is_made(), &change.outer, change.value())
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
        let value = change.value().filter(|_| change.outer.is_some());
        Reference::decode(&self.bytes[value?])
    }

    /// The place of each change in the batch as it was given, and whether it was refused.
    pub(super) fn refused(&self) -> impl Iterator<Item = (usize, bool)> {
        let changes = self.changes.iter();
        changes.map(|change| (change.given as usize, change.refused))
    }
}
