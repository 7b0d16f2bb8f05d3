//! Changing items: storing, counting, touching, deleting.

use super::record::{BINARY, Record, STALE, WON, size};
use super::{Item, ItemError, Items};
use crate::parse::c_number::unsigned;
use crate::table::add;
use bristlecone_store::Update;

/// The longest batch of stores that is one commit, in bytes.
pub(crate) const MAX_BATCH_BYTES: usize = 1 << 20;

/// A change that was decided on.
#[derive(Debug)]
pub(crate) enum Change {
    /// None.
    Keep,
    /// An item that was stored anew.
    Store(Record),
    /// The same item with something changed.
    Alter(Record),
    /// The item goes.
    Delete,
}

/// The condition of a store, and the place of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// None.
    Set,
    /// If the item is not there.
    Add,
    /// If it is there.
    Replace,
    /// Behind the value that is there.
    Append,
    /// Before it.
    Prepend,
    /// If the item was not changed.
    Cas,
}

/// An item to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Put<'a> {
    pub mode: Mode,
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub flags: u32,
    /// In ms since 1970.
    pub expires_at: Option<u64>,
    /// The cas that the item has to have; 0 for any.
    pub cas: u64,
    /// An item that was changed since is replaced, too, and is stale then.
    pub stale: bool,
    /// The key was given in base64.
    pub binary: bool,
}

/// The outcome of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// It was stored, with this cas.
    Done(u64),
    /// The condition was not met.
    Refused,
    /// The item was changed.
    Exists,
    /// There is no item.
    NotFound,
}

/// An increment or a decrement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delta {
    /// It is an increment.
    pub adds: bool,
    pub by: u64,
    /// The cas that the item has to have; 0 for any.
    pub cas: u64,
    /// The number to store if there is no item, and its expiry.
    pub initial: Option<(u64, Option<u64>)>,
    /// The new expiry.
    pub expires_at: Option<Option<u64>>,
}

/// The outcome of an increment or a decrement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// The number now.
    Done {
        /// The number.
        value: u64,
        /// The item's cas.
        cas: u64,
        /// The expiry before the command changed it.
        expires_at: Option<u64>,
        /// There was no item.
        created: bool,
    },
    /// There is no item.
    NotFound,
    /// The item is no number.
    NotANumber,
    /// The item was changed.
    Exists,
}

/// The outcome of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deleted {
    /// It was deleted, or is stale now.
    Done,
    /// There is no item.
    NotFound,
    /// The item was changed.
    Exists,
}

impl Items {
    /// Changes an item to what `f` decides on. `f` runs under a lock: it is short, and does not use
    /// the store; it may be called again.
    ///
    /// # Errors
    /// [`ItemError`]; nothing has changed then.
    pub(crate) fn change<R>(
        &self,
        now: u64,
        key: &[u8],
        mut f: impl FnMut(Option<Item<'_>>) -> (Change, R),
    ) -> Result<R, ItemError> {
        // Deletions take no number, so they go on when a full pool gives none.
        let reserved = self.reserve();
        let (mut gone, mut noted, mut before) = (None, Change::Keep, 0);
        let _no_flush = self.flushes.changing();
        let flushed = self.flushes.before_of_changes();
        let answer = self.update(key, |entry| {
            // It may be asked again, of another item.
            gone = None;
            let item = match entry.map(|entry| self.living(entry, now, flushed)) {
                None => None,
                Some(Ok(Ok(item))) => Some(item),
                Some(Ok(Err(why))) => {
                    gone = Some(why);
                    None
                }
                Some(Err(e)) => return (Update::Keep, Err(e)),
            };
            if self.lru.is_some() {
                let old = entry.and_then(|entry| self.item(entry, now).ok());
                before = old.map_or(0, |item| item.cas);
            }
            let (change, answer) = f(item);
            noted = change;
            if reserved.is_err() && matches!(noted, Change::Store(_) | Change::Alter(_)) {
                return (Update::Keep, Ok(None));
            }
            let update = match &mut noted {
                Change::Keep if gone.is_some() => Update::Delete,
                Change::Keep => Update::Keep,
                Change::Store(record) | Change::Alter(record) => Update::Put {
                    value: std::mem::take(&mut record.bytes),
                    expires_at: record.expires_at,
                },
                Change::Delete => Update::Delete,
            };
            (update, Ok(Some(answer)))
        })??;
        let Some(answer) = answer else {
            // Nothing was decided on for want of a number only.
            reserved?;
            return Err(ItemError::Damaged);
        };
        self.count_gone(gone);
        match &noted {
            Change::Store(record) => {
                add(&self.counters.reclaimed, u64::from(gone.is_some()));
                self.note_stored(now, key, record, false);
            }
            Change::Alter(record) => self.note_stored(now, key, record, true),
            Change::Keep if gone.is_none() => {}
            Change::Delete | Change::Keep => {
                if let Some(lru) = &self.lru {
                    lru.deleted(key, before);
                }
            }
        }
        Ok(answer)
    }

    /// Returns the record of an item that is stored whatever there is.
    fn new_record(&self, put: &Put<'_>) -> Record {
        let item = Item {
            flags: put.flags,
            cas: self.next_cas(),
            marks: if put.binary { BINARY } else { 0 },
            expires_at: put.expires_at,
            value: b"",
        };
        Record::new(&item, &[put.value])
    }

    /// Stores an item.
    ///
    /// # Errors
    /// [`ItemError`]
    pub(crate) fn store(&self, now: u64, put: &Put<'_>) -> Result<Stored, ItemError> {
        let counters = &self.counters;
        add(&counters.cmd_set, 1);
        let stored = self.change(now, put.key, |item| {
            let Some(old) = item else {
                return match put.mode {
                    Mode::Set | Mode::Add => {
                        let record = self.new_record(put);
                        let cas = record.cas;
                        (Change::Store(record), Stored::Done(cas))
                    }
                    Mode::Cas => (Change::Keep, Stored::NotFound),
                    _ => (Change::Keep, Stored::Refused),
                };
            };
            let is_same = put.cas == old.cas;
            let record = match put.mode {
                Mode::Add => return (Change::Keep, Stored::Refused),
                Mode::Set | Mode::Replace => self.new_record(put),
                Mode::Cas if put.cas != 0 && is_same => self.new_record(put),
                Mode::Cas if put.stale && put.cas != 0 && put.cas < old.cas => {
                    let binary = if put.binary { BINARY } else { 0 };
                    let item = Item {
                        flags: put.flags,
                        cas: self.next_cas(),
                        marks: STALE | old.marks & WON | binary,
                        expires_at: old.expires_at,
                        value: b"",
                    };
                    Record::new(&item, &[put.value])
                }
                Mode::Cas => return (Change::Keep, Stored::Exists),
                Mode::Append | Mode::Prepend => {
                    if put.cas != 0 && !is_same {
                        return (Change::Keep, Stored::Exists);
                    }
                    let len = old.value.len() + put.value.len();
                    if size(put.key.len(), old.flags, len) > self.limits.item {
                        return (Change::Keep, Stored::Refused);
                    }
                    let parts = if put.mode == Mode::Append {
                        [old.value, put.value]
                    } else {
                        [put.value, old.value]
                    };
                    let item = Item {
                        cas: self.next_cas(),
                        marks: 0,
                        ..old
                    };
                    Record::new(&item, &parts)
                }
            };
            let cas = record.cas;
            (Change::Store(record), Stored::Done(cas))
        })?;
        if put.mode == Mode::Cas {
            match stored {
                Stored::Done(_) => add(&counters.cas_hits, 1),
                Stored::Exists => add(&counters.cas_badval, 1),
                Stored::NotFound => add(&counters.cas_misses, 1),
                Stored::Refused => {}
            }
        }
        Ok(stored)
    }

    /// Stores items whatever there is, in one commit.
    ///
    /// # Errors
    /// [`ItemError`]; nothing was stored then.
    pub(crate) fn store_all(&self, now: u64, puts: &[Put<'_>]) -> Result<Vec<u64>, ItemError> {
        self.reserve()?;
        let _no_flush = self.flushes.changing();
        let records: Vec<Record> = puts.iter().map(|put| self.new_record(put)).collect();
        let keys: Vec<&[u8]> = puts.iter().map(|put| put.key).collect();
        self.put_all(&keys, &records)?;
        let count = puts.len() as u64;
        add(&self.counters.cmd_set, count);
        add(&self.counters.total_items, count);
        let all = puts.iter().zip(&records);
        for (put, _) in all.clone() {
            self.seen.stored(put.key, now);
        }
        if let Some(lru) = &self.lru {
            lru.stored(all.map(|(put, record)| (put.key, record.len, record.cas)));
        }
        Ok(records.iter().map(|record| record.cas).collect())
    }

    /// Deletes an item that has this cas, or any if that is `None`.
    ///
    /// # Errors
    /// [`ItemError`]
    pub(crate) fn delete(
        &self,
        now: u64,
        key: &[u8],
        cas: Option<u64>,
    ) -> Result<Deleted, ItemError> {
        self.change(now, key, |item| match item {
            None => (Change::Keep, Deleted::NotFound),
            Some(item) if cas.is_some_and(|cas| cas != item.cas) => (Change::Keep, Deleted::Exists),
            Some(_) => (Change::Delete, Deleted::Done),
        })
    }

    /// Marks an item as stale: the next client that reads it is told to make it anew.
    ///
    /// # Errors
    /// [`ItemError`]
    pub(crate) fn make_stale(
        &self,
        now: u64,
        key: &[u8],
        cas: Option<u64>,
        expires_at: Option<Option<u64>>,
    ) -> Result<Deleted, ItemError> {
        self.change(now, key, |item| match item {
            None => (Change::Keep, Deleted::NotFound),
            Some(item) if cas.is_some_and(|cas| cas != item.cas) => (Change::Keep, Deleted::Exists),
            Some(item) => {
                let marks = item.marks & !WON | STALE;
                let expires_at = expires_at.unwrap_or(item.expires_at);
                let record = item.with(self.next_cas(), marks, expires_at);
                (Change::Alter(record), Deleted::Done)
            }
        })
    }

    /// Sets the expiry of an item, and returns what `f` makes of the item.
    ///
    /// # Errors
    /// [`ItemError`]
    pub(crate) fn touch<R>(
        &self,
        now: u64,
        key: &[u8],
        expires_at: Option<u64>,
        mut f: impl FnMut(&Item<'_>) -> R,
    ) -> Result<Option<R>, ItemError> {
        let touched = self.change(now, key, |item| {
            let Some(item) = item else {
                return (Change::Keep, None);
            };
            let answer = Some(f(&item));
            if item.expires_at == expires_at {
                return (Change::Keep, answer);
            }
            (
                Change::Alter(item.with(item.cas, item.marks, expires_at)),
                answer,
            )
        })?;
        self.counters.count_touch(touched.is_some());
        Ok(touched)
    }

    /// Increments or decrements a number.
    ///
    /// # Errors
    /// [`ItemError`]
    pub(crate) fn count(&self, now: u64, key: &[u8], delta: &Delta) -> Result<Counted, ItemError> {
        let counted = self.change(now, key, |item| {
            let Some(old) = item else {
                let Some((value, expires_at)) = delta.initial else {
                    return (Change::Keep, Counted::NotFound);
                };
                let new = Item {
                    flags: 0,
                    cas: self.next_cas(),
                    marks: 0,
                    expires_at,
                    value: b"",
                };
                let record = Record::new(&new, &[value.to_string().as_bytes()]);
                let counted = Counted::Done {
                    value,
                    cas: new.cas,
                    expires_at: None,
                    created: true,
                };
                return (Change::Store(record), counted);
            };
            if old.value.is_empty() {
                return (Change::Keep, Counted::NotANumber);
            }
            if delta.cas != 0 && delta.cas != old.cas {
                return (Change::Keep, Counted::Exists);
            }
            let Some(before) = unsigned(old.value) else {
                return (Change::Keep, Counted::NotANumber);
            };
            let value = if delta.adds {
                before.wrapping_add(delta.by)
            } else {
                before.saturating_sub(delta.by)
            };
            let expires_at = delta.expires_at.unwrap_or(old.expires_at);
            let counted = |cas| Counted::Done {
                value,
                cas,
                expires_at: old.expires_at,
                created: false,
            };
            let cas = self.next_cas();
            let mut digits = value.to_string();
            if digits.len() <= old.value.len() {
                // A number that gets shorter keeps its length: memcached changes it in its place.
                // To Redis it would be none any more.
                if self.are_apart() {
                    digits.push_str(&" ".repeat(old.value.len() - digits.len()));
                }
                let new = Item {
                    cas,
                    expires_at,
                    ..old
                };
                let record = Record::new(&new, &[digits.as_bytes()]);
                return (Change::Alter(record), counted(cas));
            }
            let new = Item {
                cas,
                expires_at,
                marks: 0,
                ..old
            };
            let record = Record::new(&new, &[digits.as_bytes()]);
            (Change::Store(record), counted(cas))
        })?;
        match counted {
            Counted::Done { created: false, .. } => self.counters.count_delta(delta.adds, true),
            Counted::NotFound => self.counters.count_delta(delta.adds, false),
            _ => {}
        }
        Ok(counted)
    }
}
