//! Values of keys within a transaction: loading, saving and deleting them with all that belongs to
//! them. A large collection that is replaced or deleted leaves its id as garbage and its expiry is
//! removed, in the same commit.

use super::record::{Kind, STRING, Value, expiry_key, expiry_value};
use super::spaces::Space;
use super::tx::Tx;
use crate::error::{CommandError, Outcome};

impl Tx<'_> {
    /// Returns the value of `key` in database `db`, unless it has expired.
    ///
    /// # Errors
    /// [`CommandError::Read`], [`CommandError::damaged`]
    pub fn load_from(&mut self, db: usize, key: &[u8]) -> Result<Option<Value>, CommandError> {
        let found = self.get_with(Space::Keys(db), key, |entry| {
            Value::decode(entry.value, entry.expires_at)
        })?;
        match found.transpose()? {
            Some(value) => self.living(db, key, value),
            None => Ok(None),
        }
    }

    /// Returns the head of the value of `key`: its `body` is empty.
    ///
    /// # Errors
    /// Those of [`load_from`](Self::load_from).
    pub fn load_head_from(&mut self, db: usize, key: &[u8]) -> Result<Option<Value>, CommandError> {
        let found = self.get_with(Space::Keys(db), key, |entry| {
            Value::parts(entry.value, entry.expires_at).map(|(head, _)| head)
        })?;
        match found.transpose()? {
            Some(head) => self.living(db, key, head),
            None => Ok(None),
        }
    }

    /// Returns the head of the value of `key` in the command's database.
    ///
    /// # Errors
    /// Those of [`load_from`](Self::load_from).
    pub fn load_head(&mut self, key: &[u8]) -> Result<Option<Value>, CommandError> {
        self.load_head_from(self.db, key)
    }

    /// Returns `value`, which `key` holds, unless it has expired. A transaction that writes deletes
    /// an expired one.
    fn living(
        &mut self,
        db: usize,
        key: &[u8],
        value: Value,
    ) -> Result<Option<Value>, CommandError> {
        if value.lives(self.now) {
            return Ok(Some(value));
        }
        if self.counts {
            self.count_as_miss();
        }
        if self.writes {
            // The command that puts something in its place does not know of its elements.
            // Watchers of the key notice by themselves that it has expired.
            self.quietly(|tx| tx.erase_from(db, key, &value))?;
        }
        Ok(None)
    }

    /// Calls `f` with the string under `key` and its expiry, without copying the string.
    ///
    /// # Errors
    /// [`CommandError::wrong_type`], and those of [`load_from`](Self::load_from).
    pub fn string_with<R>(
        &mut self,
        key: &[u8],
        f: impl FnOnce(&[u8], Option<u64>) -> R,
    ) -> Result<Option<R>, CommandError> {
        let db = self.db;
        let found = self.get_with(Space::Keys(db), key, |entry| {
            match entry.value.split_first() {
                Some((&STRING, bytes)) => Ok(f(bytes, entry.expires_at)),
                _ => Err(Value::parts(entry.value, entry.expires_at).map(|(head, _)| head)),
            }
        })?;
        match found {
            None => Ok(None),
            Some(Ok(answer)) => Ok(Some(answer)),
            Some(Err(head)) => match self.living(db, key, head?)? {
                Some(_) => Err(CommandError::wrong_type()),
                None => Ok(None),
            },
        }
    }

    /// Puts the record of a string, made by [`string_record`](super::record::string_record), under
    /// `key`. It replaces any value.
    ///
    /// # Errors
    /// Those of [`put`](Self::put).
    pub fn put_string(&mut self, key: &[u8], record: Vec<u8>, expires_at: Option<u64>) -> Outcome {
        let db = self.db;
        // Only a large collection leaves other records behind.
        if self.data().any_large() {
            let before = self.load_head_from(db, key)?;
            self.unlink(db, key, before.as_ref(), None)?;
        }
        self.put(Space::Keys(db), key, record, expires_at)
    }

    /// Returns the value of `key` in the command's database.
    ///
    /// # Errors
    /// Those of [`load_from`](Self::load_from).
    pub fn load(&mut self, key: &[u8]) -> Result<Option<Value>, CommandError> {
        self.load_from(self.db, key)
    }

    /// Returns the value of `key`, which must be of this kind.
    ///
    /// # Errors
    /// [`CommandError::wrong_type`], and those of [`load_from`](Self::load_from).
    pub fn load_kind(&mut self, key: &[u8], kind: Kind) -> Result<Option<Value>, CommandError> {
        match self.load(key)? {
            Some(value) if value.kind != kind => Err(CommandError::wrong_type()),
            value => Ok(value),
        }
    }

    /// Puts `value` under `key` in database `db`. It replaces `before`, which
    /// [`load_from`](Self::load_from) returned. If `before` has an id that `value` has not, its
    /// elements are deleted, too.
    ///
    /// # Errors
    /// Those of [`put`](Self::put).
    pub fn save_to(
        &mut self,
        db: usize,
        key: &[u8],
        before: Option<&Value>,
        value: &Value,
    ) -> Outcome {
        self.unlink(db, key, before, Some(value))?;
        if value.id.is_some() {
            let noted = before.is_some_and(|before| {
                before.id == value.id && before.expires_at == value.expires_at
            });
            if let Some(at) = value.expires_at.filter(|_| !noted) {
                let noted = expiry_key(at, self.order.place(db), key);
                self.put(Space::Expiries, &noted, expiry_value(key).to_vec(), None)?;
            }
            return self.put(Space::Keys(db), key, value.encode(), None);
        }
        self.put(Space::Keys(db), key, value.encode(), value.expires_at)
    }

    /// Puts `value` under `key` in the command's database; see [`save_to`](Self::save_to).
    ///
    /// # Errors
    /// Those of [`put`](Self::put).
    pub fn save(&mut self, key: &[u8], before: Option<&Value>, value: &Value) -> Outcome {
        self.save_to(self.db, key, before, value)
    }

    /// Deletes `key` with its elements. `before` is its value, or its head.
    ///
    /// # Errors
    /// Those of [`delete`](Self::delete).
    pub fn erase_from(&mut self, db: usize, key: &[u8], before: &Value) -> Outcome {
        self.unlink(db, key, Some(before), None)?;
        self.delete(Space::Keys(db), key)
    }

    /// Deletes `key` in the command's database; see [`erase_from`](Self::erase_from).
    ///
    /// # Errors
    /// Those of [`delete`](Self::delete).
    pub fn erase(&mut self, key: &[u8], before: &Value) -> Outcome {
        self.erase_from(self.db, key, before)
    }

    /// Deletes the record of `key`, whose value moves to another key: its elements stay.
    ///
    /// # Errors
    /// Those of [`delete`](Self::delete).
    pub fn forget(&mut self, db: usize, key: &[u8], value: &Value) -> Outcome {
        if let Some(at) = value.expires_at.filter(|_| value.id.is_some()) {
            let noted = expiry_key(at, self.order.place(db), key);
            self.delete(Space::Expiries, &noted)?;
        }
        self.delete(Space::Keys(db), key)
    }

    /// Deletes what a large value leaves behind when `after` replaces it under `key`.
    fn unlink(
        &mut self,
        db: usize,
        key: &[u8],
        before: Option<&Value>,
        after: Option<&Value>,
    ) -> Outcome {
        let Some((before, id)) = before.and_then(|before| Some((before, before.id?))) else {
            return Ok(());
        };
        let same = after.filter(|after| after.id == Some(id));
        if same.is_none() {
            self.put(Space::Garbage, &id.to_be_bytes(), Vec::new(), None)?;
        }
        if let Some(at) = before.expires_at
            && same.is_none_or(|after| after.expires_at != Some(at))
        {
            let noted = expiry_key(at, self.order.place(db), key);
            self.delete(Space::Expiries, &noted)?;
        }
        Ok(())
    }

    /// Sets or removes the expiry of `key`, whose head is `before`.
    ///
    /// # Errors
    /// Those of [`save`](Self::save).
    pub fn set_expiry(&mut self, key: &[u8], before: &Value, expires_at: Option<u64>) -> Outcome {
        let Some(value) = self.load(key)? else {
            return Ok(());
        };
        let value = Value {
            expires_at,
            ..value
        };
        self.save(key, Some(before), &value)
    }
}
