//! Embedded stores behind one trait, by transactions: what redb's published benchmark calls.
//!
//! [`Store`](crate::store::Store) makes each call durable by itself and has keys of 8 bytes.
//! [`Table`] has keys of any bytes, commits as many changes at once as it is given, and reads any
//! number of times in one transaction: no call pays for a transaction of its own.
//!
//! | engine | a write is | reads see | `len` |
//! | --- | --- | --- | --- |
//! | `lmdb::LmdbTable` | a write transaction, synced | a read transaction | is kept |
//! | `redb::Redb` | a write transaction with `Durability::Immediate` | a read transaction | is kept |
//! | `fjall::Fjall` | a batch with `persist(SyncData)` | a snapshot | walks the entries |
//! | `rocksdb::RocksDb` | a `WriteBatch` with `WriteOptions.sync` | a snapshot | walks the entries |
//!
//! SQLite has none.

use crate::PeerError;

/// Puts the changes of one commit into a [`Writer`].
pub type Fill<'a> = dyn FnMut(&mut dyn Writer) -> Result<(), PeerError> + 'a;
/// Reads by a [`Reader`].
pub type Look<'a> = dyn FnMut(&mut dyn Reader) -> Result<(), PeerError> + 'a;

/// A durable map from byte strings to byte strings, in the order of the keys.
///
/// Any number of threads may call.
pub trait Table: Send + Sync {
    /// Makes the changes of `fill` in one atomic and durable commit.
    ///
    /// # Errors
    /// [`PeerError`] of `fill`, or with the engine's own message. Nothing has changed then.
    fn write(&self, fill: &mut Fill<'_>) -> Result<(), PeerError>;

    /// Calls `look` with a view of the table that no commit changes meanwhile.
    ///
    /// # Errors
    /// [`PeerError`] of `look`, or with the engine's own message.
    fn read(&self, look: &mut Look<'_>) -> Result<(), PeerError>;

    /// Makes the files as small as the engine can.
    ///
    /// # Errors
    /// [`PeerError`] with the engine's own message.
    fn compact(&mut self) -> Result<(), PeerError>;
}

/// The changes of a commit.
pub trait Writer {
    /// Adds `key` or replaces its value.
    ///
    /// # Errors
    /// [`PeerError`] with the engine's own message.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), PeerError>;

    /// Removes `key`, if it is there.
    ///
    /// # Errors
    /// [`PeerError`] with the engine's own message.
    fn remove(&mut self, key: &[u8]) -> Result<(), PeerError>;
}

/// A view of a table.
pub trait Reader {
    /// Returns the number of entries.
    ///
    /// # Errors
    /// [`PeerError`] with the engine's own message.
    fn count(&mut self) -> Result<u64, PeerError>;

    /// Calls `visit` with the value of `key`. Returns true if there is one.
    ///
    /// # Errors
    /// [`PeerError`] with the engine's own message.
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError>;

    /// Visits up to `limit` entries in ascending order of keys, from `from` on.
    ///
    /// # Errors
    /// [`PeerError`] with the engine's own message.
    fn range(
        &mut self,
        from: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), PeerError>;
}

/// Checks that `table`, which is new, does what the traits say, also after it was compacted.
///
/// # Errors
/// Says what it does instead.
pub fn keeps_its_contract(table: &mut dyn Table) -> Result<(), String> {
    let key = |number: u16| [b"key ".as_slice(), &number.to_be_bytes()].concat();
    let value = |number: u16| number.to_le_bytes().repeat(usize::from(number % 200));
    let made = table.write(&mut |writer| {
        (0..1000).try_for_each(|number| writer.put(&key(number), &value(number)))
    });
    made.map_err(|e| e.to_string())?;
    let refused = table.write(&mut |writer| {
        writer.put(&key(1000), b"never")?;
        Err(PeerError {
            peer: "test",
            doing: "filling",
            message: "changed my mind".to_owned(),
        })
    });
    let message = refused.err().map(|e| e.to_string()).unwrap_or_default();
    if !message.contains("changed my mind") {
        return Err(format!("a commit that is given up says {message:?}"));
    }
    let changed = table.write(&mut |writer| {
        writer.put(&key(7), b"seven")?;
        writer.remove(&key(2000))?;
        (500..1000).try_for_each(|number| writer.remove(&key(number)))
    });
    changed.map_err(|e| e.to_string())?;
    let expected = |number: u16| match number {
        7 => Some(b"seven".to_vec()),
        0..500 => Some(value(number)),
        _ => None,
    };
    for compacted in [false, true] {
        if compacted {
            table.compact().map_err(|e| e.to_string())?;
        }
        let mut wrong = Vec::new();
        let read = table.read(&mut |reader| {
            let count = reader.count()?;
            if count != 500 {
                wrong.push(format!("{count} entries"));
            }
            for number in 0..=1000 {
                let mut found = None;
                let there = reader.get(&key(number), &mut |value| found = Some(value.to_vec()))?;
                if found != expected(number) || there != found.is_some() {
                    wrong.push(format!("{number} has {there}, {found:?}"));
                }
            }
            for (from, limit) in [(0, 10), (490, 100), (600, 1)] {
                let (mut visited, mut number) = (0, from);
                reader.range(&key(from), limit, &mut |found, value| {
                    if found != key(number) || Some(value) != expected(number).as_deref() {
                        wrong.push(format!("{found:?}, {value:?} visited for {number}"));
                    }
                    number += 1;
                    visited += 1;
                })?;
                if visited != limit.min(500_usize.saturating_sub(usize::from(from))) {
                    wrong.push(format!("{visited} visited from {from}, at most {limit}"));
                }
            }
            Ok(())
        });
        read.map_err(|e| e.to_string())?;
        if !wrong.is_empty() {
            return Err(format!("compacted: {compacted}: {}", wrong.join("; ")));
        }
    }
    Ok(())
}
