//! Records of a keyspace, as commands read and write them.

use crate::client::{Reply, reply};
use crate::database::{self, DEFAULT, Place};
use bristlecone::{Batch, Database, Keyspace};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::pool::{How, about};
use bristlecone_command::records::{Range, Records, Visit, Written};
use bristlecone_command::text::quoted;
use bristlecone_command::torture::Victim;
use bristlecone_server::Local;
use std::fmt::Display;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A keyspace of an open database.
pub struct Contents {
    path: PathBuf,
    place: Place,
    /// None where it is not there and is not to be made.
    keyspace: Option<Keyspace>,
    db: Database,
}

impl Contents {
    /// Opens the keyspace that was asked for, or the usual one, for reading.
    ///
    /// # Errors
    /// The database cannot be opened, or has no such keyspace.
    pub fn read(path: &Path, how: How, asked: Option<&str>) -> Outcome<Self> {
        let db = database::open(path, how)?;
        let there = database::keyspaces(&db);
        let place = Place::choose(path, asked, &there)?;
        place.check_format(path, &db)?;
        let keyspace = place.find(&db).map_err(|e| database::named(path, &e))?;
        match &place {
            Place::Named(name) if keyspace.is_none() && asked.is_some() => {
                return Err(about(
                    path,
                    &format_args!(
                        "no keyspace {}; {}",
                        quoted(name.as_bytes()),
                        database::list(&there)
                    ),
                ));
            }
            _ => {}
        }
        Ok(Self {
            path: path.to_path_buf(),
            place,
            keyspace,
            db,
        })
    }

    /// Opens the keyspace that was asked for, or the usual one, for writing; it is made if it is
    /// not there.
    ///
    /// # Errors
    /// The database cannot be opened, or the keyspace cannot be made.
    pub fn write(path: &Path, how: How, asked: Option<&str>) -> Outcome<Box<dyn Records>> {
        let db = database::open(path, how)?;
        let there = database::keyspaces(&db);
        let place = Place::choose(path, asked, &there)?;
        database::check_served(path, &place, &there)?;
        match place {
            Place::Named(name) => Ok(Box::new(Self::named(path, db, &name)?)),
            Place::Served(number) => Ok(Box::new(Served::open(path, db, number)?)),
            Place::Nameless(name) => Err(about(
                path,
                &format_args!("keyspace {} can only be read", quoted(name.as_bytes())),
            )),
        }
    }

    /// A keyspace of bytes, made if it is not there.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn named(path: &Path, db: Database, name: &str) -> Outcome<Self> {
        let keyspace = db.keyspace(name).map_err(|e| database::named(path, &e))?;
        Ok(Self {
            path: path.to_path_buf(),
            place: Place::Named(name.to_owned()),
            keyspace: Some(keyspace),
            db,
        })
    }

    /// Opens the keyspace `default`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn default_of(path: &Path, how: How) -> Outcome<Self> {
        let db = database::open(path, how)?;
        if how.reads_only(path) {
            return Ok(Self {
                path: path.to_path_buf(),
                place: Place::Named(DEFAULT.into()),
                keyspace: db.find_keyspace(DEFAULT),
                db,
            });
        }
        Self::named(path, db, DEFAULT)
    }

    /// The database.
    pub fn database(&self) -> &Database {
        &self.db
    }

    fn failed(&self, error: &bristlecone::Error) -> Failure {
        database::named(&self.path, error)
    }

    fn refused(&self, key: &[u8], error: &dyn Display) -> Failure {
        about(&self.path, &format_args!("key {}: {error}", quoted(key)))
    }

    /// The keyspace, to be written to.
    fn keyspace(&self) -> Outcome<&Keyspace> {
        (self.keyspace.as_ref()).ok_or_else(|| about(&self.path, &"opened for reading only"))
    }
}

/// The bounds of a range, as copies.
fn owned(range: &Range) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let (from, to) = range.bounds();
    (from.map(<[u8]>::to_vec), to.map(<[u8]>::to_vec))
}

impl Records for Contents {
    fn path(&self) -> &Path {
        &self.path
    }

    fn typed(&self) -> bool {
        self.place.typed()
    }

    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        let Some(keyspace) = &self.keyspace else {
            return Ok(None);
        };
        if !self.place.typed() {
            let value = keyspace.get(key).map_err(|e| self.refused(key, &e))?;
            return Ok(value.map(|value| value.to_vec()));
        }
        let range = Range::new(Some(key), None, None);
        let mut found = Ok(None);
        self.scan(&range, false, &mut |at, shown| {
            if at == key {
                found = match shown.value {
                    Some(value) => Ok(Some(value.to_vec())),
                    None => Err(self.refused(
                        key,
                        &format_args!(
                            "holds a {}; `serve` the database and read it with a client",
                            shown.kind.unwrap_or("collection")
                        ),
                    )),
                };
            }
            ControlFlow::Break(())
        })?;
        found
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Outcome<bool> {
        let mut was_there = false;
        self.keyspace()?
            .merge(key, |old| {
                was_there = old.is_some();
                Some(value.to_vec())
            })
            .map_err(|e| self.refused(key, &e))?;
        Ok(was_there)
    }

    fn remove(&self, key: &[u8]) -> Outcome<bool> {
        let removed = self.keyspace()?.remove(key);
        removed.map_err(|e| self.refused(key, &e))
    }

    /// All of them in one commit, or none.
    fn put_all(&self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<Outcome<Written>> {
        let write = || -> Outcome<Vec<Written>> {
            let keyspace = self.keyspace()?;
            let keys = pairs.iter().map(|(key, _)| key);
            let before = keyspace.multi_get(keys).map_err(|e| self.failed(&e))?;
            let mut batch = Batch::default();
            let mut written = Vec::with_capacity(pairs.len());
            for ((key, value), before) in pairs.iter().zip(before) {
                let became = match before {
                    None => Written::New,
                    Some(before) if before == *value => Written::Same,
                    Some(_) => Written::Replaced,
                };
                if became != Written::Same {
                    batch.insert(keyspace, key, value);
                }
                written.push(became);
            }
            self.db.write(batch).map_err(|e| self.failed(&e))?;
            Ok(written)
        };
        match write() {
            Ok(written) => written.into_iter().map(Ok).collect(),
            Err(failure) => {
                let what = failure.message().unwrap_or("failed");
                let all = pairs.iter().map(|_| Err(Failure::new(what)));
                all.collect()
            }
        }
    }

    fn scan(&self, range: &Range, reverse: bool, visit: Visit<'_>) -> Outcome {
        let Some(keyspace) = &self.keyspace else {
            return Ok(());
        };
        let store = self.db.store();
        let Some(handle) = store.find_keyspace(keyspace.name()) else {
            return Ok(());
        };
        let (snapshot, now) = (store.snapshot(), store.now());
        let mut strange = None;
        let mut show =
            |key: &[u8], entry: bristlecone_store::Entry<'_>| match self.place.show(&entry, now) {
                Ok(Some(shown)) => visit(key, &shown),
                Ok(None) => ControlFlow::Continue(()),
                Err(e) => {
                    strange = Some(self.refused(key, &e));
                    ControlFlow::Break(())
                }
            };
        let scanned = if range.is_empty() {
            Ok(())
        } else if reverse {
            snapshot.scan_reverse(&handle, owned(range), &mut show)
        } else {
            snapshot.scan(&handle, owned(range), &mut show)
        };
        scanned.map_err(|e| about(&self.path, &e))?;
        strange.map_or(Ok(()), Err)
    }

    fn close(self: Box<Self>) -> Outcome {
        let Self {
            path, keyspace, db, ..
        } = *self;
        drop(keyspace);
        close(&path, db)
    }
}

/// Closes a database.
///
/// # Errors
/// The written changes are not durable.
pub fn close(path: &Path, db: Database) -> Outcome {
    db.close()
        .map_err(|e| about(path, &format_args!("closing: {e}")))
}

impl Victim for Contents {
    fn longest_key(&self) -> usize {
        bristlecone_command::MAX_KEY
    }

    fn update(&self, key: &[u8], value: &[u8]) -> Outcome<bool> {
        let mut was_there = false;
        self.keyspace()?
            .merge(key, |old| {
                was_there = old.is_some();
                old.map(|_| value.to_vec())
            })
            .map_err(|e| self.refused(key, &e))?;
        Ok(was_there)
    }

    /// In one transaction.
    fn insert_absent(&self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Outcome<Vec<bool>> {
        let keyspace = self.keyspace()?;
        let inserted = self.db.transaction(|tx| {
            let mut inserted = Vec::with_capacity(pairs.len());
            for (key, value) in pairs {
                let absent = tx.get(keyspace, key)?.is_none();
                if absent {
                    tx.insert(keyspace, key, value)?;
                }
                inserted.push(absent);
            }
            Ok(inserted)
        });
        inserted.map_err(|e| self.failed(&e))
    }

    fn check(&self) -> Result<(), String> {
        self.db.check().map(drop).map_err(|e| e.to_string())
    }

    fn entries(&self) -> u64 {
        self.keyspace.as_ref().map_or(0, Keyspace::approximate_len)
    }
}

/// A server's database, written with the server's commands.
struct Served {
    contents: Contents,
    local: Mutex<Local>,
}

impl Served {
    fn open(path: &Path, db: Database, number: usize) -> Outcome<Self> {
        let local = Local::open(db.store().clone()).map_err(|e| about(path, &e))?;
        let place = Place::Served(number);
        let keyspace = place.find(&db).map_err(|e| database::named(path, &e))?;
        let served = Self {
            contents: Contents {
                path: path.to_path_buf(),
                place,
                keyspace,
                db,
            },
            local: Mutex::new(local),
        };
        served.call(&[b"SELECT", number.to_string().as_bytes()])?;
        Ok(served)
    }

    fn local(&self) -> MutexGuard<'_, Local> {
        let local = self.local.lock();
        local.unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes a command, which is not durable yet.
    fn call(&self, args: &[&[u8]]) -> Outcome<Reply> {
        let bytes = self.local().execute(args);
        let path = &self.contents.path;
        match reply(&mut &bytes[..], 0) {
            Ok(Reply::Error(text)) => Err(about(path, &String::from_utf8_lossy(&text))),
            Ok(reply) => Ok(reply),
            Err(e) => Err(about(path, &e)),
        }
    }

    fn settle(&self) -> Outcome {
        let settled = self.local().settle();
        settled.map_err(|e| about(&self.contents.path, &e))
    }

    /// Stores a string, which is not durable yet.
    fn set(&self, key: &[u8], value: &[u8]) -> Outcome<bool> {
        let there = self.call(&[b"EXISTS", key])? == Reply::Integer(1);
        self.call(&[b"SET", key, value])?;
        Ok(there)
    }
}

impl Records for Served {
    fn path(&self) -> &Path {
        &self.contents.path
    }

    fn typed(&self) -> bool {
        true
    }

    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        match self.call(&[b"GET", key])? {
            Reply::Bulk(value) => Ok(Some(value)),
            _ => Ok(None),
        }
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Outcome<bool> {
        let there = self.set(key, value)?;
        self.settle()?;
        Ok(there)
    }

    fn remove(&self, key: &[u8]) -> Outcome<bool> {
        let removed = self.call(&[b"DEL", key])? == Reply::Integer(1);
        self.settle()?;
        Ok(removed)
    }

    fn put_all(&self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<Outcome<Written>> {
        let put = |(key, value): &(Vec<u8>, Vec<u8>)| -> Outcome<Written> {
            let kind = self.call(&[b"TYPE", key])?;
            let before = match kind {
                Reply::Status(kind) if kind == b"string" => self.get(key)?,
                Reply::Status(kind) if kind == b"none" => {
                    self.call(&[b"SET", key, value])?;
                    return Ok(Written::New);
                }
                _ => None,
            };
            // What SET would leave: this value, without an expiry.
            if before.as_ref() == Some(value) && self.call(&[b"PTTL", key])? == Reply::Integer(-1) {
                return Ok(Written::Same);
            }
            self.call(&[b"SET", key, value])?;
            Ok(Written::Replaced)
        };
        let written: Vec<_> = pairs.iter().map(put).collect();
        match self.settle() {
            Ok(()) => written,
            Err(failure) => {
                let what = failure.message().unwrap_or("failed");
                let all = written.iter().map(|_| Err(Failure::new(what)));
                all.collect()
            }
        }
    }

    fn scan(&self, range: &Range, reverse: bool, visit: Visit<'_>) -> Outcome {
        self.settle()?;
        self.contents.scan(range, reverse, visit)
    }

    fn close(self: Box<Self>) -> Outcome {
        let Self { contents, local } = *self;
        let Contents {
            path, keyspace, db, ..
        } = contents;
        drop((keyspace, db));
        let local = local.into_inner();
        let local = local.unwrap_or_else(PoisonError::into_inner);
        local
            .close()
            .map_err(|e| about(&path, &format_args!("closing: {e}")))
    }
}
