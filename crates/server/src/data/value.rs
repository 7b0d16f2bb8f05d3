//! Values of keys within a transaction: loading, saving and deleting them with all that belongs to
//! them. A large collection that is replaced or deleted leaves its id as garbage and its expiry is
//! removed, in the same commit.

use super::bounds::Range;
use super::record::{
    Kind, MAX_OF_OTHERS, Value, expiry_key, expiry_value, head_len, is_string, string_of,
};
use super::spaces::Space;
use super::tx::Tx;
use crate::error::{CommandError, Outcome};
use bristlecone_store::{Direction, Entry, Longer};
use std::ops::{self, ControlFlow};

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
        self.short_from(db, key, |entry| Value::head(&entry))
    }

    /// Returns what `decode` makes of the record of `key`, or the head of a string that is longer
    /// than anything else is, mostly without reading it.
    fn short_from(
        &mut self,
        db: usize,
        key: &[u8],
        decode: impl FnOnce(Entry<'_>) -> Result<Value, CommandError>,
    ) -> Result<Option<Value>, CommandError> {
        match self.get_within(Space::Keys(db), key, MAX_OF_OTHERS, decode)? {
            Some(Ok(value)) => self.living(db, key, value?),
            Some(Err(longer)) => Ok(Some(Value::long_string(&longer))),
            None => Ok(None),
        }
    }

    /// Visits the heads of all values in a range of a database, expired collections included,
    /// mostly without reading long strings.
    ///
    /// # Errors
    /// [`CommandError::Read`]
    pub fn scan_heads(
        &mut self,
        db: usize,
        range: Range<'_>,
        direction: Direction,
        mut visit: impl FnMut(&[u8], Result<Value, CommandError>) -> ControlFlow<()>,
    ) -> Outcome {
        let way = (direction, MAX_OF_OTHERS);
        self.scan_within(Space::Keys(db), range, way, |key, found| {
            let head = match found {
                Ok(entry) => Value::head(&entry),
                Err(longer) => Ok(Value::long_string(&longer)),
            };
            visit(key, head)
        })
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
        let found = self.string_within(key, u64::MAX, f)?;
        Ok(found.and_then(Result::ok))
    }

    /// As [`string_with`](Self::string_with), if the string's record has at most `most` bytes.
    /// Returns what a longer one is as the error inside, mostly without reading it.
    ///
    /// # Errors
    /// Those of [`string_with`](Self::string_with).
    fn string_within<R>(
        &mut self,
        key: &[u8],
        most: u64,
        f: impl FnOnce(&[u8], Option<u64>) -> R,
    ) -> Result<Option<Result<R, Longer>>, CommandError> {
        let db = self.db;
        let found = self.get_within(Space::Keys(db), key, most, |entry| {
            match string_of(entry.value) {
                Some(bytes) => Ok(f(bytes, entry.expires_at)),
                None => Err(Value::head(&entry)),
            }
        })?;
        match found {
            None => Ok(None),
            Some(Err(longer)) => Ok(Some(Err(longer))),
            Some(Ok(Ok(answer))) => Ok(Some(Ok(answer))),
            Some(Ok(Err(head))) => match self.living(db, key, head?)? {
                Some(_) => Err(CommandError::wrong_type()),
                None => Ok(None),
            },
        }
    }

    /// Calls `f` with the string under `key`, unless it is longer than anything else is. Returns
    /// the length of a longer one as the error inside, mostly without reading it.
    ///
    /// # Errors
    /// Those of [`string_with`](Self::string_with).
    pub fn short_string_with<R>(
        &mut self,
        key: &[u8],
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<Result<R, u64>>, CommandError> {
        match self.string_within(key, MAX_OF_OTHERS, |bytes, _| f(bytes))? {
            None => Ok(None),
            Some(Ok(answer)) => Ok(Some(Ok(answer))),
            Some(Err(_)) if self.data().any_items() => {
                let first = self.first_byte(Space::Keys(self.db), key)?;
                Ok(first.map(|(tag, len)| Err(len.saturating_sub(head_len(tag)))))
            }
            // The tag is a byte.
            Some(Err(longer)) => Ok(Some(Err(longer.len - 1))),
        }
    }

    /// Calls `f` with a part of the string under `key`: `part` gets its length and returns which of
    /// its bytes, no more than it has. Of a long string no others are read.
    ///
    /// # Errors
    /// Those of [`string_with`](Self::string_with).
    pub fn string_part<R>(
        &mut self,
        key: &[u8],
        part: impl Fn(u64) -> ops::Range<u64>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, CommandError> {
        let mut f = Some(f);
        let mut whole = |bytes: &[u8]| {
            let part = part(bytes.len() as u64);
            // Neither is more than the length, which is one of memory.
            let bytes = &bytes[part.start as usize..part.end as usize];
            f.take().map(|f| f(bytes))
        };
        match self.short_string_with(key, &mut whole)? {
            None => return Ok(None),
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(_)) => {}
        }
        // Length, type and bytes of one moment: another client may replace the string meanwhile.
        self.snapshot();
        let space = Space::Keys(self.db);
        let head = match self.first_byte(space, key)? {
            None => return Ok(None),
            Some((tag, len)) if is_string(tag) => (head_len(tag), len),
            // It is another value by now.
            Some(_) => {
                let answer = self.string_with(key, |bytes, _| whole(bytes))?;
                return Ok(answer.flatten());
            }
        };
        let (head, part) = (head.0, part(head.1.saturating_sub(head.0)));
        // It is at most as long as a value may be, which fits memory.
        self.work((part.end - part.start) as usize)?;
        let mut bytes = Vec::new();
        let range = part.start + head..part.end + head;
        let found = self.range(space, key, range, &mut bytes)?;
        Ok(found.and(f).map(|f| f(&bytes)))
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

    /// Returns the value of `key` in the command's database, or the head of a long string.
    ///
    /// # Errors
    /// Those of [`load_from`](Self::load_from).
    pub fn load_collection(&mut self, key: &[u8]) -> Result<Option<Value>, CommandError> {
        self.short_from(self.db, key, |entry| {
            Value::decode(entry.value, entry.expires_at)
        })
    }

    /// Returns the collection under `key`, which must be of this kind.
    ///
    /// # Errors
    /// [`CommandError::wrong_type`], and those of [`load_from`](Self::load_from).
    pub fn load_kind(&mut self, key: &[u8], kind: Kind) -> Result<Option<Value>, CommandError> {
        match self.load_collection(key)? {
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

#[cfg(test)]
mod tests {
    use crate::data::tx::SHORT_WORK;
    use crate::data::watch::Watch;
    use crate::data::{Data, Reads};
    use crate::execute::Haste;
    use crate::fixture::{Fixture, words};
    use crate::reply::{Out, Protocol};

    /// Returns the reply to a command that takes no long time. One that reads more than
    /// [`SHORT_WORK`] bytes gives up without a reply.
    fn short(data: &Data, line: &str) -> Option<String> {
        let words = words(line);
        let args: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let command = crate::commands::data().find(|known| known.spec.name == words[0]);
        let command = command.unwrap();
        let mut reply = Vec::new();
        let mut out = Out::new(&mut reply, Protocol::Resp2);
        let place = (0, Haste::Short);
        let done = data.run_or_wait(command, place, &args, Reads::Applied, (None, &mut out));
        (!done.long).then(|| String::from_utf8(reply).unwrap())
    }

    /// They read, and copied, up to 512 MiB for it.
    #[test]
    fn what_needs_only_the_type_or_the_length_of_a_string_reads_no_more() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let len = SHORT_WORK + 1;
        let make = |data: &Data| {
            fixture.call(data, &format!("setrange long {SHORT_WORK} x"));
            fixture.call(data, "pexpire long 5000");
        };
        make(&data);
        fixture.call(&data, "set short x");
        let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value";
        for (line, reply) in [
            ("exists long none", ":1"),
            ("touch long", ":1"),
            ("type long", "+string"),
            ("strlen long", &format!(":{len}")),
            ("ttl long", ":5"),
            ("pttl long", ":5000"),
            ("pexpiretime long", ":5001"),
            ("expire long 9 nx", ":0"),
            ("object encoding long", "$3\r\nraw"),
            ("object encoding short", "$6\r\nembstr"),
            ("set long x nx", "$-1"),
            ("setnx long x", ":0"),
            ("msetnx none x long x", ":0"),
            ("hget long n", wrong),
            ("rpush long n", wrong),
            ("sadd long n", wrong),
            ("zadd long 1 n", wrong),
            ("zunion 1 long", wrong),
            ("smove short long n", wrong),
            ("renamenx short long", ":0"),
            ("copy short long", ":0"),
            ("keys *", "*2\r\n$4\r\nlong\r\n$5\r\nshort"),
            ("keys l*", "*1\r\n$4\r\nlong"),
            (
                "scan 0 type string",
                "*2\r\n$1\r\n0\r\n*2\r\n$4\r\nlong\r\n$5\r\nshort",
            ),
            ("scan 0 type list", "*2\r\n$1\r\n0\r\n*0"),
            ("bc.count - +", ":2"),
            ("getrange long 0 0", "$1\r\n\0"),
            ("getrange long -2 -1", "$2\r\n\0x"),
            ("getrange long 5 4", "$0\r\n"),
            ("getbit long 0", ":0"),
            (&format!("getbit long {}", SHORT_WORK * 8 + 1), ":1"),
            (&format!("getbit long {}", SHORT_WORK * 8 + 8), ":0"),
        ] {
            assert_eq!(short(&data, line), Some(format!("{reply}\r\n")), "{line}");
        }
        assert!(short(&data, "randomkey").unwrap().starts_with('$'));
        data.watch_within(Haste::Short, &mut Watch::default(), (0, b"long"))
            .unwrap();
        for line in [
            "get long",
            "getrange long 0 -1",
            "append long x",
            "rename long other",
        ] {
            assert_eq!(short(&data, line), None, "{line}");
        }
        for (line, reply) in [
            ("del long", ":1"),
            ("sunionstore long none", ":0"),
            ("zunionstore long 1 none", ":0"),
            ("sort none store long", ":0"),
            ("rename short long", "+OK"),
            ("pexpireat long 1", ":1"),
            ("flushdb", "+OK"),
        ] {
            fixture.call(&data, "set short x");
            make(&data);
            assert_eq!(short(&data, line), Some(format!("{reply}\r\n")), "{line}");
            let expected = if line.starts_with("rename") {
                ":1\r\n"
            } else {
                ":0\r\n"
            };
            assert_eq!(fixture.call(&data, "exists long"), expected, "{line}");
        }
    }
}
