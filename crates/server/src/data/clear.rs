//! Clearing databases, and deleting the elements that this leaves behind.
//!
//! ```text
//! few keys, or part of EXEC    they are deleted, in one commit
//! otherwise                    the database's keyspace is cleared: one commit, which needs hardly any room
//! no room even for that        keys are deleted in small commits, until there is
//! ```
//!
//! The heads of large collections disappear with a cleared keyspace, and noting their ids as
//! garbage would need room. The sweeper therefore looks for elements without a head: after a
//! keyspace was cleared, and after opening if that was not finished before.
//!
//! ```text
//! keyspace "databases"    "swept" --> the number of each database's keyspace (4 bytes each, big-endian) when all elements had heads
//! ```
//!
//! Clearing a keyspace gives it a new number. "swept" is therefore right until then, and nothing
//! has to be written first.
//!
//! # Concurrency
//! Clearing holds all locks. The holder of any lock sees the keyspaces unchanged. Readers hold
//! none; they start over if the keyspaces have changed (`Data::swaps`). An element without a head
//! on one snapshot never gets one: ids are not reused.

use crate::data::Data;
use crate::data::locks::Patience;
use crate::data::record::{Value, expiry_key, is_large};
use crate::data::spaces::{DATABASES, Keyspaces, Orphans};
use crate::data::sweep::AT_ONCE;
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use bristlecone_store::{Batch, Direction, Keyspace, ReadError, WriteError};
use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering;

/// The most keys that are deleted in one commit, which is faster than clearing a keyspace.
pub(crate) const FEW: usize = 4096;
/// The number of keys deleted in one commit where there is no room. A full pool has room for this
/// many deletions.
const SOME: usize = 512;

pub(super) const SWEPT: &[u8] = b"swept";

/// Deletes all keys of these databases. All locks are held.
pub(crate) fn flush(tx: &mut Tx<'_>, dbs: &[usize]) -> Outcome {
    let data = tx.data();
    if tx.queued {
        return (dbs.iter()).try_for_each(|db| flush_some(tx, *db, usize::MAX).map(drop));
    }
    let keys: u64 = dbs.iter().map(|db| data.len(*db)).sum();
    // ORDERING: Relaxed; it is set with all locks held, as they are now, and either value is right.
    let unswept = data.unswept.load(Ordering::Relaxed);
    if keys <= FEW as u64 && !unswept {
        // If there is no room, or a key is damaged, the databases are cleared instead; and where
        // records have expired, which nobody sees, but which count until the store removes them.
        let done = data.flush_few(dbs);
        if done.is_ok() && dbs.iter().all(|db| data.len(*db) == 0) {
            return Ok(());
        }
    }
    loop {
        match data.clear(dbs) {
            Err(CommandError::Write(WriteError::Space(e))) => {
                if !data.delete_some(dbs)? {
                    return Err(CommandError::Write(WriteError::Space(e)));
                }
            }
            done => return done,
        }
    }
}

/// Deletes up to `most` keys. Returns how many it has deleted.
fn flush_some(tx: &mut Tx<'_>, db: usize, most: usize) -> Result<usize, CommandError> {
    let mut keys: Vec<(Vec<u8>, Result<Value, CommandError>)> = Vec::new();
    let all = (Bound::Unbounded, Bound::Unbounded);
    tx.scan_heads(db, all, Direction::Up, |key, head| {
        keys.push((key.to_vec(), head));
        if keys.len() < most {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    let deleted = keys.len();
    for (key, head) in keys {
        tx.erase_from(db, &key, &head?)?;
    }
    Ok(deleted)
}

impl Data {
    /// Deletes some keys of these databases to make room. Returns false if there are none; expired
    /// records that wait for the vacuum do not count. All locks are held.
    fn delete_some(&self, dbs: &[usize]) -> Result<bool, CommandError> {
        for db in dbs {
            let (deleted, _) = self.transact(*db, |some| flush_some(some, *db, SOME))?;
            if deleted > 0 {
                // Deletions make room once they are durable.
                self.settle(self.applied())?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Deletes all keys of these databases in one commit. All locks are held.
    fn flush_few(&self, dbs: &[usize]) -> Outcome {
        let done = self.transact(0, |few| {
            dbs.iter()
                .try_for_each(|db| flush_some(few, *db, usize::MAX).map(drop))
        });
        done.map(drop)
    }

    /// Clears the keyspaces of these databases, each in one commit. If all databases are empty
    /// then, the keyspaces of elements are cleared, too. All locks are held.
    ///
    /// # Errors
    /// [`CommandError::Write`]; some databases may be empty then.
    fn clear(&self, dbs: &[usize]) -> Outcome {
        let mut reader = Tx::new(self, &self.deferring, 0);
        let mut gone = Vec::new();
        for db in dbs {
            for key in self.watchers.keys_of(*db) {
                // A key that cannot be read is deleted, too.
                let head = reader.load_head_from(*db, &key);
                if head.map_or(true, |head| head.is_some()) {
                    gone.push((*db, key));
                }
            }
        }
        drop(reader);
        let order = self.order();
        let mut spaces = self.spaces().clone();
        let mut done =
            (dbs.iter()).try_for_each(|db| self.clear_one(&mut spaces.databases[order.place(*db)]));
        if done.is_ok() && (0..DATABASES).all(|place| self.store.is_empty(&spaces.databases[place]))
        {
            let rest = [
                &mut spaces.elements,
                &mut spaces.expiries,
                &mut spaces.garbage,
            ];
            done = rest.into_iter().try_for_each(|space| self.clear_one(space));
        }
        // Each set of keyspaces is kept.
        if spaces != *self.spaces() {
            self.use_spaces(spaces);
        }
        // This includes keys that are still there after a failure: a spurious notification does no
        // harm.
        for (db, key) in gone {
            self.watchers.touch(db, &key);
        }
        done
    }

    fn clear_one(&self, space: &mut Keyspace) -> Outcome {
        if self.store.is_empty(space) {
            return Ok(());
        }
        let done = self.store.clear(space.clone());
        // It may be empty, but not durably so. The previous keyspace accepts no writes any more.
        let now = match &done {
            Ok(now) => Some(now.clone()),
            Err(_) => self.store.find_keyspace(space.name()),
        };
        *space = now.unwrap_or_else(|| space.clone());
        done.map(drop).map_err(CommandError::Write)
    }

    /// Makes these the current keyspaces. All locks are held.
    fn use_spaces(&self, spaces: Keyspaces) {
        // ORDERING: Release; pairs with the Acquire of `sweep_orphans`.
        self.unswept.store(true, Ordering::Release);
        let at = self.all_spaces.push(spaces);
        // Counted before the keyspaces are exchanged: a reader that finds the new ones, and began
        // before, starts over. They are cleared already, so that a reader that begins from here on
        // is right with either.
        // ORDERING: Release; pairs with `swaps`.
        self.swaps.fetch_add(1, Ordering::Release);
        // ORDERING: Release; pairs with `spaces`.
        self.current_spaces.store(at, Ordering::Release);
    }

    /// Returns whether a keyspace has no key, as far as that is durable. Looks for the first one:
    /// after a crash the store may have yet to count them, which opening is not to wait for. What
    /// is damaged may be a key.
    fn has_no_key(&self, keyspace: &Keyspace) -> bool {
        let mut none = true;
        let all = (Bound::<&[u8]>::Unbounded, Bound::<&[u8]>::Unbounded);
        let looked = self.store.snapshot().scan::<&[u8]>(keyspace, all, |_, _| {
            none = false;
            ControlFlow::Break(())
        });
        looked.is_ok() && none
    }

    /// Returns true if there may be elements without a head, as far as that is durable: for
    /// instance, a sweep for them was cut short when the process was killed.
    pub(crate) fn needs_sweep(&self) -> Result<bool, ReadError> {
        let spaces = self.spaces();
        if self.has_no_key(&spaces.elements) && self.has_no_key(&spaces.expiries) {
            return Ok(false);
        }
        let swept = self.store.get(&spaces.orders, SWEPT)?;
        Ok(swept.is_none_or(|numbers| numbers != spaces.numbers()))
    }

    /// Takes one step: deletes a bounded number of elements that have no head. Returns true if
    /// there may be more.
    ///
    /// # Errors
    /// The first [`CommandError`]. The search for them starts over then.
    pub(crate) fn sweep_orphans(&self) -> Result<bool, CommandError> {
        let mut orphans = self.orphans.lock().unwrap_or_else(|e| e.into_inner());
        if orphans.is_none() {
            // ORDERING: Acquire; pairs with the Release of `use_spaces`.
            if !self.unswept.swap(false, Ordering::Acquire) {
                return Ok(false);
            }
        }
        let mut step = || {
            let found = match orphans.take() {
                Some(found) => found,
                None => self.find_orphans()?,
            };
            *orphans = self.take_orphans(found)?;
            Ok(true)
        };
        step().inspect_err(|_| {
            // ORDERING: Release; as in `use_spaces`.
            self.unswept.store(true, Ordering::Release);
        })
    }

    fn find_orphans(&self) -> Result<Orphans, CommandError> {
        let (spaces, snapshot) = {
            // Clearing holds all locks: these are the keyspaces of that snapshot.
            let _held = self
                .locks
                .keys(std::iter::once((0, &b""[..])), Patience::Any);
            (self.spaces(), self.deferring.snapshot())
        };
        let mut orphans = Orphans {
            ids: Vec::new(),
            expiries: Vec::new(),
            numbers: spaces.numbers(),
        };
        if self.store.is_empty(&spaces.elements) && self.store.is_empty(&spaces.expiries) {
            return Ok(orphans);
        }
        let (mut ids, mut expiries) = (HashSet::new(), HashSet::new());
        let all = (Bound::<&[u8]>::Unbounded, Bound::<&[u8]>::Unbounded);
        for (place, database) in spaces.databases.iter().enumerate() {
            let mut whole = Ok(());
            snapshot.scan::<&[u8]>(database, all, |key, entry| {
                if is_large(entry.value) {
                    match Value::head(&entry) {
                        Ok(head) => {
                            ids.extend(head.id);
                            expiries.extend(head.expires_at.map(|at| expiry_key(at, place, key)));
                        }
                        Err(e) => whole = Err(e),
                    }
                }
                if whole.is_ok() {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
            // The elements of a damaged head must stay.
            whole?;
        }
        snapshot.scan::<&[u8]>(&spaces.expiries, all, |entry, _| {
            if !expiries.contains(entry) {
                orphans.expiries.push(entry.to_vec());
            }
            ControlFlow::Continue(())
        })?;
        let mut next = Some(0_u64);
        while let Some(from) = next {
            let mut found = None;
            let from = from.to_be_bytes();
            let range = (Bound::Included(&from[..]), Bound::Unbounded);
            snapshot.scan::<&[u8]>(&spaces.elements, range, |key, _| {
                found = Some(key.first_chunk().copied());
                ControlFlow::Break(())
            })?;
            let Some(found) = found else { break };
            let id = found.ok_or_else(|| CommandError::damaged("key of an element"))?;
            next = u64::from_be_bytes(id).checked_add(1);
            // Garbage is deleted as such.
            let is_garbage = snapshot.get_with(&spaces.garbage, &id, |_| ())?.is_some();
            let id = u64::from_be_bytes(id);
            if !is_garbage && !ids.contains(&id) {
                orphans.ids.push(id);
            }
        }
        Ok(orphans)
    }

    /// Deletes some of them. Returns those that are left.
    fn take_orphans(&self, mut orphans: Orphans) -> Result<Option<Orphans>, CommandError> {
        let at = orphans.expiries.len().saturating_sub(AT_ONCE);
        for entry in orphans.expiries.split_off(at) {
            // The entry may be that of another key by now.
            self.expire(&entry)?;
        }
        let mut batch = Batch::new();
        let mut room = AT_ONCE;
        let spaces = self.spaces();
        while let Some(id) = orphans.ids.last() {
            let snapshot = self.deferring.snapshot();
            let mut elements = snapshot.cursor_prefix(&spaces.elements, &id.to_be_bytes());
            let elements = elements.next_keys(room)?;
            for element in &elements {
                batch.delete(&spaces.elements, element);
            }
            room -= elements.len();
            if room == 0 {
                break;
            }
            orphans.ids.pop();
        }
        if !batch.is_empty() {
            self.deferring.write(batch)?;
        }
        if orphans.ids.is_empty() && orphans.expiries.is_empty() {
            self.deferring
                .put(&spaces.orders, SWEPT, &orphans.numbers)?;
            return Ok(None);
        }
        Ok(Some(orphans))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::watch::Watch;
    use crate::fixture::{Fixture, on_disk, put_large};
    use crate::reply::Out;
    use bristlecone_pmem::media::journal::fault::FaultDisk;
    use bristlecone_store::MAX_KEY_BYTES;

    fn sweep_all(data: &Data) {
        while data.sweep().unwrap() {}
    }

    fn elements(data: &Data) -> u64 {
        data.store().len(&data.spaces().elements)
    }

    fn clear(data: &Data, dbs: &[usize]) {
        let _held = data.locks.all();
        data.clear(dbs).unwrap();
    }

    /// Records that have expired counted until the store removed them, also after a flush.
    #[test]
    fn nothing_counts_after_a_flush() {
        for command in ["flushdb", "flushall"] {
            let fixture = Fixture::new();
            let data = fixture.open();
            fixture.call(&data, "set a x pxat 1000");
            fixture.call(&data, "set b x");
            put_large(&data, 0, b"large", 3, Some(1000));
            fixture.at(1000);
            assert_eq!(fixture.call(&data, "dbsize"), ":3\r\n");
            assert_eq!(fixture.call(&data, command), "+OK\r\n");
            assert_eq!(fixture.call(&data, "dbsize"), ":0\r\n");
            sweep_all(&data);
            assert_eq!(elements(&data), 0);
        }
    }

    /// `FLUSHALL` in a full pool failed: its deletions, thousands in one commit, needed room.
    #[test]
    fn a_full_pool_is_flushed() {
        for command in ["flushdb", "flushall"] {
            let (fixture, disk) = (Fixture::new(), FaultDisk::new(1));
            let data = on_disk(&disk, true);
            put_large(&data, 0, b"large", 2000, None);
            let mut keys = 0;
            for bytes in [4000, 1000, 200, 20, 1] {
                let value = "v".repeat(bytes);
                let set = |n| fixture.call(&data, &format!("set key{n} {value}"));
                while set(keys) == "+OK\r\n" {
                    keys += 1;
                }
            }
            assert!(keys > 3 * FEW as u64, "{keys}");
            assert!(!data.takes_writes());
            // The disk has no more room, either.
            disk.set_capacity(Some(0));
            assert_eq!(fixture.call(&data, command), "+OK\r\n");
            assert_eq!(data.len(0), 0);
            sweep_all(&data);
            assert_eq!(elements(&data), 0);
            assert_eq!(fixture.call(&data, "set key value"), "+OK\r\n");
            data.settle(data.applied()).unwrap();
            assert!(data.takes_writes());
            let cut = on_disk(&disk.restart(2), false);
            assert_eq!(fixture.call(&cut, "keys *"), "*1\r\n$3\r\nkey\r\n");
        }
    }

    #[test]
    fn elements_of_cleared_databases_go_and_those_of_others_stay() {
        let fixture = Fixture::new();
        let data = fixture.open();
        sweep_all(&data);
        assert!(!data.needs_sweep().unwrap());
        put_large(&data, 0, b"a", 3000, Some(9000));
        put_large(&data, 0, b"deleted", 500, None);
        put_large(&data, 1, b"b", 700, Some(8000));
        // The entries of their expiries have digests.
        let long = [b'k'; MAX_KEY_BYTES];
        put_large(&data, 0, &long, 10, Some(9000));
        put_large(&data, 1, &long, 20, Some(8000));
        fixture.call(&data, "del deleted");
        clear(&data, &[0]);
        assert_eq!((data.len(0), data.len(1)), (0, 2));
        assert!(data.needs_sweep().unwrap());
        // The same name and expiry, of another collection.
        put_large(&data, 0, b"a", 10, Some(9000));
        sweep_all(&data);
        assert_eq!(elements(&data), 730);
        assert_eq!(data.store().len(&data.spaces().expiries), 3);
        assert!(!data.needs_sweep().unwrap());
        fixture.at(9000);
        sweep_all(&data);
        assert_eq!((elements(&data), data.len(0), data.len(1)), (0, 0, 0));
    }

    /// While elements were to be looked for, each flush of empty databases kept another set of
    /// keyspaces in memory.
    #[test]
    fn clearing_what_is_empty_changes_nothing() {
        let fixture = Fixture::new();
        let data = fixture.open();
        fixture.call(&data, "set a 1");
        clear(&data, &[0]);
        let before = (data.all_spaces.count(), data.swaps());
        for _ in 0..10 {
            assert_eq!(fixture.call(&data, "flushall"), "+OK\r\n");
            clear(&data, &[0, 1]);
        }
        assert_eq!((data.all_spaces.count(), data.swaps()), before);
        fixture.call(&data, "set a 1");
        clear(&data, &[0]);
        let more = (before.0 + 1, before.1 + 1);
        assert_eq!((data.all_spaces.count(), data.swaps()), more);
    }

    #[test]
    fn what_a_crash_leaves_of_a_cleared_database_is_found_by_the_next_opening() {
        let fixture = Fixture::new();
        let data = fixture.open();
        put_large(&data, 2, b"a", 3000, Some(9000));
        put_large(&data, 3, b"b", 100, None);
        fixture.call(&data, "swapdb 2 5");
        clear(&data, &[5]);
        // One step only.
        assert!(data.sweep().unwrap());
        data.settle(data.applied()).unwrap();
        drop(data);
        let data = fixture.open();
        assert!(elements(&data) > 100);
        sweep_all(&data);
        assert_eq!(elements(&data), 100);
        assert_eq!(data.store().len(&data.spaces().expiries), 0);
        drop(data);
        assert!(!fixture.open().needs_sweep().unwrap());
    }

    #[test]
    fn all_databases_are_cleared_with_what_they_have_elsewhere() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let all: Vec<usize> = (0..DATABASES).collect();
        for db in [0, 7] {
            put_large(&data, db, b"large", 3000, Some(9000));
            put_large(&data, db, b"other", 3000, None);
        }
        fixture.call(&data, "del other");
        clear(&data, &all);
        let spaces = data.spaces();
        for space in [&spaces.elements, &spaces.expiries, &spaces.garbage] {
            assert!(data.store().is_empty(space));
        }
        assert_eq!(fixture.call(&data, "dbsize"), ":0\r\n");
        assert_eq!(fixture.call(&data, "sadd s a b"), ":2\r\n");
        sweep_all(&data);
        drop(data);
        let data = fixture.open();
        assert_eq!(fixture.call(&data, "scard s"), ":2\r\n");
    }

    #[test]
    fn who_watches_a_key_is_told_of_a_clear_if_the_key_was_there() {
        let fixture = Fixture::new();
        let data = fixture.open();
        for (key, told) in [("a", true), ("absent", false)] {
            fixture.call(&data, "set a 1");
            let mut watch = Watch::default();
            data.watch(&mut watch, 0, key.as_bytes()).unwrap();
            clear(&data, &[0]);
            let mut reply = Vec::new();
            let mut out = Out::new(&mut reply, crate::reply::Protocol::Resp2);
            data.exec(&[], &mut watch, &mut out);
            assert_eq!(reply == b"*-1\r\n", told, "{key}");
        }
    }
}
