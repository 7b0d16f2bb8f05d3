//! Where items are: in a keyspace of their own, or among the strings of a database, where Redis
//! clients have them, too.
//!
//! In a database an item is a string with a head ([`ITEM`]). A string without one, as `SET` makes
//! it, is an item whose flags are 0, and whose cas is a hash of its value: the same value has the
//! same cas. A key with another value, a list for example, is none, and every command that names it
//! fails.
//!
//! A change there is what a command of Redis is: a transaction under the lock of the key.

use super::record::{Item, Record, kept_until};
use super::{ItemError, Items};
use crate::data::clear;
use crate::data::locks::{Held, Patience};
use crate::data::record::{ITEM, Kind, STRING, Value, string_of};
use crate::data::spaces::Space;
use crate::data::tx::SHORT_WORK;
use crate::data::{Data, Reads};
use crate::error::CommandError;
use ahash::RandomState;
use bristlecone_store::{Batch, Entry, Keyspace, Update};

/// The place of items.
#[derive(Debug)]
pub(super) enum Place {
    /// A keyspace.
    Own(Keyspace),
    /// A database.
    Database(usize),
}

impl Place {
    /// Returns its number in the record of a flush.
    pub fn number(&self) -> u8 {
        match self {
            Self::Own(_) => 0,
            Self::Database(db) => 1 + *db as u8,
        }
    }
}

impl From<CommandError> for ItemError {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Read(e) => Self::Read(e),
            CommandError::Write(e) => Self::Write(e),
            CommandError::Reply(_)
            | CommandError::Long
            | CommandError::Unlocked(_)
            | CommandError::Killed
            | CommandError::Late => Self::Database(error.to_string()),
        }
    }
}

/// Numbers from here on are hashes: none that is counted comes to it. Clients may read a cas as a
/// signed number.
const HASHES: u64 = 1 << 62;

/// Returns the cas of a string that no memcached client has stored.
fn cas_of(value: &[u8]) -> u64 {
    let hash = RandomState::with_seeds(1, 2, 3, 4).hash_one(value);
    HASHES | hash >> 2
}

/// Returns the item in a record of a database.
fn in_database(entry: Entry<'_>) -> Result<Item<'_>, CommandError> {
    let Some(value) = string_of(entry.value) else {
        let head = Value::head(&entry)?;
        return match head.kind {
            Kind::String => Err(CommandError::damaged("an item")),
            _ => Err(CommandError::wrong_type()),
        };
    };
    if entry.value.first() == Some(&STRING) {
        return Ok(Item {
            flags: 0,
            cas: cas_of(value),
            marks: 0,
            expires_at: entry.expires_at,
            value,
        });
    }
    let rest = Entry {
        value: entry.value.get(1..).unwrap_or_default(),
        ..entry
    };
    let item = Item::decode(rest).map_err(|_| CommandError::damaged("an item"))?;
    Ok(Item {
        expires_at: entry.expires_at,
        ..item
    })
}

/// Returns the cas of a record of a database that was counted; 0 if it has none.
pub(super) fn counted_cas(entry: Entry<'_>) -> u64 {
    let is_item = entry.value.first() == Some(&ITEM);
    let item = is_item.then(|| in_database(entry).ok()).flatten();
    let cas = item.map_or(0, |item| item.cas);
    if cas < HASHES { cas } else { 0 }
}

/// The locks of keys of a database. Waits where no other connection does.
fn lock<'d>(data: &'d Data, db: usize, keys: &[&[u8]]) -> Option<Held<'d>> {
    let keys = || keys.iter().map(|key| (db, *key));
    let short = data.lock(keys(), Patience::Short);
    short.or_else(|| tokio::task::block_in_place(|| data.lock(keys(), Patience::Any)))
}

impl Items {
    /// Returns the keyspace that items are in at the moment.
    pub(super) fn keyspace(&self) -> &Keyspace {
        match &self.place {
            Place::Own(keyspace) => keyspace,
            Place::Database(db) => {
                let data = &self.data;
                data.keyspace(Space::Keys(*db), data.order())
            }
        }
    }

    /// Returns true if they are in a keyspace of their own.
    pub(super) fn are_apart(&self) -> bool {
        matches!(self.place, Place::Own(_))
    }

    /// Returns the item of a record.
    pub(super) fn item<'a>(&self, entry: Entry<'a>, now: u64) -> Result<Item<'a>, ItemError> {
        match self.place {
            Place::Own(_) => Item::decode(entry).map_err(|_| ItemError::Damaged),
            Place::Database(_) => match Value::head(&entry) {
                // An expired value of any type counts as an expired item.
                Ok(head) if !head.lives(now) => Ok(Item {
                    flags: 0,
                    cas: 0,
                    marks: 0,
                    expires_at: head.expires_at,
                    value: b"",
                }),
                _ => Ok(in_database(entry)?),
            },
        }
    }

    /// Returns a change of an item's record as the store is told of it.
    fn stored(&self, update: Update) -> Update {
        match (update, &self.place) {
            (Update::Put { value, expires_at }, Place::Own(_)) => Update::Put {
                value,
                expires_at: kept_until(expires_at),
            },
            (Update::Put { value, expires_at }, Place::Database(_)) => Update::Put {
                value: [&[ITEM], &value[..]].concat(),
                expires_at,
            },
            (update, _) => update,
        }
    }

    /// Changes a key's record as `decide` says, which may be asked again: it returns the change, to
    /// the record of an item and its expiry, and an answer.
    pub(super) fn update<R>(
        &self,
        key: &[u8],
        mut decide: impl FnMut(Option<Entry<'_>>) -> (Update, R),
    ) -> Result<R, ItemError> {
        let db = match &self.place {
            Place::Own(keyspace) => {
                let mut run = || {
                    self.data.writer().update(keyspace, key, |entry| {
                        let (update, answer) = decide(entry);
                        Ok((self.stored(update), answer))
                    })
                };
                // A long value is changed where other connections do not wait.
                let done = if self.is_long(keyspace, key)? {
                    tokio::task::block_in_place(run)
                } else {
                    run()
                };
                self.data.note_write(&done);
                return Ok(done?);
            }
            Place::Database(db) => *db,
        };
        let mut run = |short| self.update_in(db, short, key, &mut decide);
        match run(Some(SHORT_WORK)) {
            // A long value is changed where other connections do not wait.
            Err(CommandError::Long) => Ok(tokio::task::block_in_place(|| run(None))?),
            done => Ok(done?),
        }
    }

    /// Returns true if the record of a key is so long that changing it takes milliseconds.
    fn is_long(&self, keyspace: &Keyspace, key: &[u8]) -> Result<bool, ItemError> {
        if self.limits.item <= SHORT_WORK {
            return Ok(false);
        }
        let store = self.data.reader(Reads::Applied);
        let found = store.get_within(keyspace, key, SHORT_WORK as u64, |_| ())?;
        Ok(matches!(found, Some(Err(_longer))))
    }

    fn update_in<R>(
        &self,
        db: usize,
        short: Option<usize>,
        key: &[u8],
        decide: &mut impl FnMut(Option<Entry<'_>>) -> (Update, R),
    ) -> Result<R, CommandError> {
        let _held = lock(&self.data, db, &[key]);
        let (answer, put) = self.data.transact(db, |tx| {
            tx.short = short;
            let found = tx.get_with(Space::Keys(db), key, |entry| decide(Some(entry)))?;
            let (update, answer) = found.unwrap_or_else(|| decide(None));
            match self.stored(update) {
                Update::Keep => {}
                Update::Delete => {
                    // Its elements go with a collection that has expired.
                    if let Some(head) = tx.load_head(key)? {
                        tx.erase(key, &head)?;
                    }
                }
                Update::Put { value, expires_at } => tx.put_string(key, value, expires_at)?,
            }
            Ok(answer)
        })?;
        self.data.serve(put);
        Ok(answer)
    }

    /// Stores items whatever there is, in one commit.
    pub(super) fn put_all(&self, keys: &[&[u8]], records: &[Record]) -> Result<(), ItemError> {
        let db = match &self.place {
            Place::Own(keyspace) => {
                let mut batch = Batch::new();
                for (key, record) in keys.iter().zip(records) {
                    batch.put_expiring(keyspace, key, &record.bytes, kept_until(record.expires_at));
                }
                let done = self.data.writer().write(batch);
                self.data.note_write(&done);
                done?;
                return Ok(());
            }
            Place::Database(db) => *db,
        };
        let _held = lock(&self.data, db, keys);
        let ((), put) = self.data.transact(db, |tx| {
            for (key, record) in keys.iter().zip(records) {
                if tx
                    .load_head(key)?
                    .is_some_and(|head| head.kind != Kind::String)
                {
                    return Err(CommandError::wrong_type());
                }
                let value = [&[ITEM], &record.bytes[..]].concat();
                tx.put_string(key, value, record.expires_at)?;
            }
            Ok(())
        })?;
        self.data.serve(put);
        Ok(())
    }

    /// Calls `f` with a copy of the item of a key in a database, if it is there: only afterwards it
    /// is known that databases were not swapped meanwhile.
    pub(super) fn read_copy<R>(
        &self,
        now: u64,
        key: &[u8],
        reads: Reads,
        f: impl FnOnce(&Item<'_>) -> R,
    ) -> Result<Option<R>, ItemError> {
        let store = self.data.reader(reads);
        let copy = |entry: Entry<'_>| (entry.value.to_vec(), entry.expires_at);
        let found = loop {
            let (swaps, keyspace) = (self.data.swaps(), self.keyspace());
            let found = match store.get_within(keyspace, key, SHORT_WORK as u64, copy)? {
                None => None,
                Some(Ok(found)) => Some(found),
                // No memcached client has stored it.
                Some(Err(longer)) if longer.len > self.limits.item as u64 => {
                    return Err(ItemError::Database("object too large for cache".into()));
                }
                // A long value is read where other connections do not wait.
                Some(Err(_longer)) => {
                    tokio::task::block_in_place(|| store.get_with(keyspace, key, copy))?
                }
            };
            if self.data.swaps() == swaps {
                break found;
            }
        };
        let Some((value, expires_at)) = &found else {
            return Ok(None);
        };
        let (value, expires_at) = (value.as_slice(), *expires_at);
        match self.living(Entry { value, expires_at }, now, 0)? {
            Ok(item) => Ok(Some(f(&item))),
            Err(gone) => {
                self.count_gone(Some(gone));
                Ok(None)
            }
        }
    }

    /// Deletes everything in the database: a `FLUSHDB`. `then` is done before other writers go on.
    pub(super) fn clear_database(
        &self,
        db: usize,
        then: impl FnOnce() -> Result<(), ItemError>,
    ) -> Result<(), ItemError> {
        let _held = self.data.lock_everything();
        let ((), put) = self.data.transact(db, |tx| clear::flush(tx, &[db]))?;
        self.data.serve(put);
        then()
    }
}
