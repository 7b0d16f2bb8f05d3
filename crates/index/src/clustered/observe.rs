//! Telling somebody of the changes of a tree: a store counts its keys, and feeds who watches them.

use super::ClusteredTree;
use super::away::Room;
use super::find::Found;
use super::outer::Given;
use super::part::Part;
use super::stored::Stored;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use std::fmt::Debug;

/// A value, or the beginning of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glimpse<'v> {
    /// Its first bytes: all of them, or at least 64. They have not been verified if the value is
    /// longer than pages hold.
    pub bytes: &'v [u8],
    /// Its length.
    pub len: usize,
}

/// A change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed<'o> {
    /// The key.
    pub key: &'o [u8],
    /// The change's time stamp.
    pub stamp: u64,
    /// The weight of the value that it had, if it had one.
    pub was: Option<u64>,
    /// The value that it has, if it has one; all bytes of it.
    pub is: Option<Glimpse<'o>>,
}

/// Told of each change of a tree.
///
/// It is told of the changes of a key in their order, of each before readers at a later time see
/// it, and under a lock that other changes wait for. So it must be quick, must not use the tree,
/// and must not panic: others would wait for its change for ever.
pub trait Observer: Debug + Send + Sync {
    /// Returns what it wants to know of a value when the value goes.
    fn weigh(&self, value: Glimpse<'_>) -> u64;

    /// Returns whether nobody who reads at a time will ask for what this key had: its old values
    /// need not be kept.
    fn forgets(&self, key: &[u8]) -> bool {
        let _ = key;
        false
    }

    /// Tells it of a change, which nobody can refuse any more.
    fn changed(&self, change: Observed<'_>);
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// The weight of the value that was found in the page of a part, whose lock the caller holds.
    #[inline(always)]
    pub(super) fn weigh(&self, part: &Part, found: Found) -> Option<u64> {
        let observer = self.observer.as_ref()?;
        match found {
            Found::Absent => None,
            Found::Value(value) => {
                let stored = self.page_of(part).stored(value);
                Some(observer.weigh(self.glimpse(stored, &Room::new())))
            }
        }
    }

    /// Tells the observer of a change with that stamp, before it is shown.
    #[inline(always)]
    pub(super) fn tell(
        &self,
        (key, stamp): (&[u8], u64),
        was: Option<u64>,
        value: Option<Given<'_>>,
    ) {
        if let Some(observer) = &self.observer {
            let is = value.map(|value| {
                let bytes = match value {
                    Given::Here(bytes) => bytes,
                    Given::Outer(outer) => self.content_of_new(outer),
                };
                let len = bytes.len();
                Glimpse { bytes, len }
            });
            observer.changed(Observed {
                key,
                stamp,
                was,
                is,
            });
        }
    }

    /// As [`tell`](Self::tell), of a value as its page has it.
    pub(super) fn tell_stored(
        &self,
        (key, stamp): (&[u8], u64),
        was: Option<u64>,
        value: Option<Stored<'_>>,
    ) {
        if let Some(observer) = &self.observer {
            let room = Room::new();
            let is = value.map(|value| self.glimpse(value, &room));
            observer.changed(Observed {
                key,
                stamp,
                was,
                is,
            });
        }
    }

    /// A value as a page has it. The caller holds the page's lock.
    pub(super) fn glimpse<'v>(&'v self, stored: Stored<'v>, room: &'v Room) -> Glimpse<'v> {
        let Some(reference) = stored.reference() else {
            let bytes = stored.bytes;
            return Glimpse {
                bytes,
                len: bytes.len(),
            };
        };
        let away = self.seen_away(&reference, room);
        // Of a damaged one there is nothing to see; its readers get the error.
        let content = away.or_else(|| self.content_of(&reference, false).ok());
        Glimpse {
            bytes: content.unwrap_or(&[]),
            len: reference.len(),
        }
    }
}
