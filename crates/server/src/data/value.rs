//! Values of keys within a transaction: loading, saving and deleting them with all that belongs to
//! them. A large collection that is replaced or deleted leaves its id as garbage and its expiry is
//! removed, in the same commit.

use super::record::{Kind, STRING, Value, expiry_key};
use super::spaces::Space;
use super::tx::Tx;
use crate::error::{CommandError, Outcome};

impl Tx<'_> {
    /// Returns the value of `key` in database `db`, unless it has expired.
    ///
    /// # Errors
    /// [`CommandError::Read`] and [`CommandError::Reply`]
    pub fn load_from(&mut self, db: usize, key: &[u8]) -> Result<Option<Value>, CommandError> {
        let found = self.get_with(Space::Keys(db), key, |entry| {
            Value::decode(entry.value, entry.expires_at)
        })?;
        match found.transpose()? {
            Some(value) => self.living(db, key, value),
            None => Ok(None),
        }
    }

    /// As [`load_from`](Self::load_from), without the body, which is not read: its `body` is empty.
    ///
    /// # Errors
    /// As there.
    pub fn load_head_from(&mut self, db: usize, key: &[u8]) -> Result<Option<Value>, CommandError> {
        let found = self.get_with(Space::Keys(db), key, |entry| {
            Value::parts(entry.value, entry.expires_at).map(|(head, _)| head)
        })?;
        match found.transpose()? {
            Some(head) => self.living(db, key, head),
            None => Ok(None),
        }
    }

    /// As [`load_head_from`](Self::load_head_from), in the command's database.
    ///
    /// # Errors
    /// As there.
    pub fn load_head(&mut self, key: &[u8]) -> Result<Option<Value>, CommandError> {
        self.load_head_from(self.db, key)
    }

    /// `value`, which is that of `key`, unless it has expired.
    fn living(
        &mut self,
        db: usize,
        key: &[u8],
        value: Value,
    ) -> Result<Option<Value>, CommandError> {
        if value.lives(self.now) {
            return Ok(Some(value));
        }
        if self.writes {
            // Who puts something in its place knows nothing of its elements.
            // Who watches the key finds out by itself that it has expired.
            self.quietly(|tx| tx.erase_from(db, key, &value))?;
        }
        Ok(None)
    }

    /// Calls `f` with the string under `key` and its expiry, in place, if there is one.
    ///
    /// # Errors
    /// [`CommandError::wrong_type`] and others.
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

    /// Puts a string's record, made by [`string_record`], under `key`, in place of whatever is there.
    ///
    /// # Errors
    /// Those of [`put`](Self::put).
    pub fn put_string(&mut self, key: &[u8], record: Vec<u8>, expires_at: Option<u64>) -> Outcome {
        let db = self.db;
        // Only what is large leaves something behind.
        if self.data().any_large() {
            let before = self.load_head_from(db, key)?;
            self.unlink(db, key, before.as_ref(), None)?;
        }
        self.put(Space::Keys(db), key, record, expires_at)
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// As [`load_from`](Self::load_from).
    pub fn load(&mut self, key: &[u8]) -> Result<Option<Value>, CommandError> {
        self.load_from(self.db, key)
    }

    /// Returns the value of `key`, which is of that kind if it is there.
    ///
    /// # Errors
    /// [`CommandError::wrong_type`]
    pub fn load_kind(&mut self, key: &[u8], kind: Kind) -> Result<Option<Value>, CommandError> {
        match self.load(key)? {
            Some(value) if value.kind != kind => Err(CommandError::wrong_type()),
            value => Ok(value),
        }
    }

    /// Makes `value` that of `key` in database `db`, in place of `before`, which [`load_from`](Self::load_from) has given. An id that `before` has, and
    /// `value` has not, goes with its elements.
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
                self.put(Space::Expiries, &noted, Vec::new(), None)?;
            }
            return self.put(Space::Keys(db), key, value.encode(), None);
        }
        self.put(Space::Keys(db), key, value.encode(), value.expires_at)
    }

    /// As [`save_to`](Self::save_to), in the command's database.
    ///
    /// # Errors
    /// As there.
    pub fn save(&mut self, key: &[u8], before: Option<&Value>, value: &Value) -> Outcome {
        self.save_to(self.db, key, before, value)
    }

    /// Takes `key` away, whose value [`load_from`](Self::load_from) has given; with its elements.
    ///
    /// # Errors
    /// Those of [`delete`](Self::delete).
    pub fn erase_from(&mut self, db: usize, key: &[u8], before: &Value) -> Outcome {
        self.unlink(db, key, Some(before), None)?;
        self.delete(Space::Keys(db), key)
    }

    /// As [`erase_from`](Self::erase_from), in the command's database.
    ///
    /// # Errors
    /// As there.
    pub fn erase(&mut self, key: &[u8], before: &Value) -> Outcome {
        self.erase_from(self.db, key, before)
    }

    /// Takes `key` away, whose value goes on under another key: its elements stay.
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

    /// What a large value leaves behind when `after` takes its place under `key`.
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
