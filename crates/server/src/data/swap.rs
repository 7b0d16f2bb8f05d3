//! `SWAPDB`: which keyspace each database has.
//!
//! ```text
//! keyspace "databases"    "order" --> four bits for each database, its keyspace (8 bytes, big-endian)
//! ```
//!
//! Nothing is moved. Who swaps holds all locks, and makes the new order durable before anybody goes by it; readers, who hold none, begin
//! again if it has changed under them (`Data::swaps`). Entries in [`Space::Expiries`] have the number of the keyspace.

use super::keys::database;
use super::{DATABASES, Data, Space, Tx};
use crate::command::{Access, Arg, Command, Failed, Keys, Outcome, integer};
use crate::reply::Out;
use bristlecone_pmem::media::Auto;
use bristlecone_store::{Keyspace, ReadError, Store, WriteError};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// The command.
pub const COMMANDS: &[Command] = &[Command::new(
    "swapdb",
    3,
    Access::WriteAll,
    Keys::None,
    "keyspace",
    swapdb,
)];

/// Keyspace with the order of the databases.
pub const ORDER_KEYSPACE: &str = "databases";
/// Key of the order in it.
pub const ORDER_KEY: &[u8] = b"order";

/// Returns the number of the keyspace that a database has, by the record that is kept of the order, if there
/// is one.
#[must_use]
pub fn keyspace_of(order: Option<&[u8]>, db: usize) -> usize {
    Order::decode(order).unwrap_or(Order::FIRST).place(db)
}

/// The keyspaces of all databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order(u64);

const _: () = assert!(DATABASES * 4 == u64::BITS as usize);

impl Order {
    /// Each database has the keyspace of its number.
    const FIRST: Self = Self(0xfedc_ba98_7654_3210);

    /// What was kept; the first order, if nothing was.
    pub fn load(store: &Store<Auto>, keyspace: &Keyspace) -> Result<Self, ReadError> {
        let record = store.get(keyspace, ORDER_KEY)?;
        Ok(Self::decode(record.as_deref()).unwrap_or_else(|| {
            tracing::error!("the order of the databases is damaged: the first one is taken");
            Self::FIRST
        }))
    }

    /// The order that a record says, the first order if there is no record; none if it is damaged.
    fn decode(record: Option<&[u8]>) -> Option<Self> {
        let Some(record) = record else {
            return Some(Self::FIRST);
        };
        let order = Self(u64::from_be_bytes(record.try_into().ok()?));
        let places: BTreeSet<usize> = (0..DATABASES).map(|db| order.place(db)).collect();
        (places.len() == DATABASES).then_some(order)
    }

    pub fn of(bits: u64) -> Self {
        Self(bits)
    }

    pub fn bits(self) -> u64 {
        self.0
    }

    /// The number of a database's keyspace.
    pub fn place(self, db: usize) -> usize {
        (self.0 >> (4 * db) & 15) as usize
    }

    /// The database that has a keyspace.
    pub fn database(self, place: usize) -> usize {
        let mut all = 0..DATABASES;
        all.find(|db| self.place(*db) == place).unwrap_or(place)
    }

    fn swapped(self, one: usize, other: usize) -> Self {
        let change = (self.place(one) ^ self.place(other)) as u64;
        Self(self.0 ^ change << (4 * one) ^ change << (4 * other))
    }
}

impl Data {
    pub(super) fn order(&self) -> Order {
        // ORDERING: Acquire; pairs with the Release of `reorder`: who sees the new order sees what was durable before it.
        Order::of(self.order.load(Ordering::Acquire))
    }

    /// How often databases have been swapped. Who reads without locks has read what belongs together if this is the same
    /// before and after.
    pub(super) fn swaps(&self) -> u64 {
        // ORDERING: Acquire; pairs with the Release of `reorder`. Who reads what was written after a swap sees the swap.
        self.swaps.load(Ordering::Acquire)
    }

    /// From now on the databases have this order, which was put. All locks are held.
    ///
    /// # Errors
    /// It cannot be made durable; the order is what it was.
    pub(super) fn reorder(&self, order: Order) -> Result<(), WriteError> {
        // Nobody goes by an order that may be undone.
        let settled = self.settle(self.applied());
        if settled.is_err() {
            let before = self.order().bits().to_be_bytes();
            match self
                .deferring
                .put(&self.spaces().orders, ORDER_KEY, &before)
            {
                // What is written from now on, by the order before, becomes durable after that; or nothing is written any more,
                // and what is durable has the order before.
                Ok(()) | Err(WriteError::Commit(_)) => return settled,
                // The record is as it is: it is gone by.
                Err(_) => {}
            }
        }
        // ORDERING: Release; pairs with `order`.
        self.order.store(order.bits(), Ordering::Release);
        // ORDERING: Release; pairs with `swaps`.
        self.swaps.fetch_add(1, Ordering::Release);
        settled
    }
}

fn swapdb(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    for (text, which) in [(args[1], "first"), (args[2], "second")] {
        if integer(text)
            .ok()
            .and_then(|number| i32::try_from(number).ok())
            .is_none()
        {
            return Err(Failed::reply(format!("ERR invalid {which} DB index")));
        }
    }
    let (one, other) = (database(args[1])?, database(args[2])?);
    out.status("OK");
    if one == other {
        return Ok(());
    }
    let order = tx.order.swapped(one, other);
    tx.put(
        Space::Databases,
        ORDER_KEY,
        order.bits().to_be_bytes().to_vec(),
        None,
    )?;
    tx.reorder(order);
    for db in [one, other] {
        let heard = tx.data().touched.keys_of(db).into_iter();
        let keys: BTreeSet<Vec<u8>> = heard.chain(tx.data().waiting.keys_of(db)).collect();
        for key in keys {
            let is_there = tx.load_head_from(one, &key)?.is_some()
                || tx.load_head_from(other, &key)?.is_some();
            if is_there {
                tx.appears(db, &key);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::fixture::{Fixture, on_disk, put_large};
    use crate::data::multi::Watch;
    use crate::reply::Protocol;
    use bristlecone_pmem::media::journal::fault::FaultDisk;

    #[test]
    fn orders_are_swapped_and_found_again() {
        let order = Order::FIRST.swapped(0, 15).swapped(15, 3).swapped(4, 4);
        let places: Vec<usize> = (0..DATABASES).map(|db| order.place(db)).collect();
        assert_eq!(
            places,
            [15, 1, 2, 0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 3]
        );
        for db in 0..DATABASES {
            assert_eq!(order.database(order.place(db)), db);
        }
    }

    #[test]
    fn databases_stay_swapped_and_what_expires_goes() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let call = |data: &Data, line: &str| fixture.call(data, line);
        call(&data, "set a zero");
        put_large(&data, 3, b"large", 10, Some(5000));
        assert_eq!(call(&data, "swapdb 0 3"), "+OK\r\n");
        assert_eq!(call(&data, "get a"), "$-1\r\n");
        assert_eq!(call(&data, "dbsize"), ":1\r\n");
        assert_eq!(call(&data, "pttl large"), ":4999\r\n");
        assert_eq!((data.len(0), data.len(3)), (1, 1));
        data.settle(data.applied()).unwrap();
        drop(data);
        let data = fixture.open();
        assert_eq!(call(&data, "exists a large"), ":1\r\n");
        assert_eq!(call(&data, "pexpire large 3000"), ":1\r\n");
        assert_eq!(data.store.len(&data.spaces().expiries), 1);
        fixture.at(3001);
        while data.sweep().unwrap() {}
        assert_eq!((data.len(0), data.len(3)), (0, 1));
        assert_eq!(data.store.len(&data.spaces().elements), 0);
        assert_eq!(data.store.len(&data.spaces().expiries), 0);
        assert_eq!(call(&data, "swapdb 3 0"), "+OK\r\n");
        assert_eq!(call(&data, "get a"), "$4\r\nzero\r\n");
        for (line, error) in [
            ("swapdb x 99", "-ERR invalid first DB index\r\n"),
            ("swapdb 99 x", "-ERR invalid second DB index\r\n"),
            ("swapdb 0 16", "-ERR DB index is out of range\r\n"),
            ("swapdb -1 0", "-ERR DB index is out of range\r\n"),
        ] {
            assert_eq!(call(&data, line), error);
        }
    }

    #[test]
    fn a_swap_that_finds_no_space_is_undone() {
        let (fixture, disk) = (Fixture::new(), FaultDisk::new(1));
        let data = on_disk(&disk, true);
        let call = |data: &Data, line: &str| fixture.call(data, line);
        call(&data, "set a zero");
        data.settle(data.applied()).unwrap();
        disk.set_full(true);
        let refused = call(&data, "swapdb 0 1");
        assert!(
            refused.starts_with('-') && refused.contains("free some space"),
            "{refused}"
        );
        // It is as if it had not been, also for what is written from now on.
        assert_eq!(data.order(), Order::FIRST);
        assert_eq!(call(&data, "get a"), "$4\r\nzero\r\n");
        call(&data, "set b zero");
        assert_eq!((data.len(0), data.len(1)), (2, 0));
        let cut = on_disk(&disk.restart(2), false);
        assert_eq!(call(&cut, "exists a b"), ":1\r\n");
        drop(cut);
        disk.set_full(false);
        data.settle(data.applied()).unwrap();
        assert_eq!(call(&data, "exists a b"), ":2\r\n");
        let cut = on_disk(&disk.restart(3), false);
        assert_eq!(cut.order(), Order::FIRST);
        assert_eq!(call(&cut, "exists a b"), ":2\r\n");
        drop(cut);
        assert_eq!(call(&data, "swapdb 0 1"), "+OK\r\n");
        assert_eq!(call(&data, "exists a b"), ":0\r\n");
        let cut = on_disk(&disk.restart(4), false);
        assert_eq!((cut.order(), cut.len(1)), (data.order(), 2));
    }

    #[test]
    fn a_swap_on_a_disk_that_fails_for_good_is_none_until_the_store_is_opened_again() {
        let (fixture, disk) = (Fixture::new(), FaultDisk::new(1));
        let data = on_disk(&disk, true);
        fixture.call(&data, "set a zero");
        data.settle(data.applied()).unwrap();
        disk.fail_sync(1);
        for _ in 0..2 {
            let refused = fixture.call(&data, "swapdb 0 1");
            assert!(refused.contains("until it is reopened"), "{refused}");
            assert_eq!(data.order(), Order::FIRST);
            assert_eq!(fixture.call(&data, "get a"), "$4\r\nzero\r\n");
        }
        drop(data);
        let mut swapped = 0;
        for seed in 0..16 {
            let cut = on_disk(&disk.restart(seed), false);
            let here = cut.order() == Order::FIRST;
            swapped += u32::from(!here);
            assert_eq!(
                (cut.len(0), cut.len(1)),
                (u64::from(here), u64::from(!here))
            );
            assert_eq!(fixture.call(&cut, "swapdb 0 1"), "+OK\r\n");
            assert_eq!(
                (cut.len(0), cut.len(1)),
                (u64::from(!here), u64::from(here))
            );
        }
        assert!((1..16).contains(&swapped), "either is possible: {swapped}");
    }

    #[test]
    fn who_watches_a_key_of_a_swapped_database_is_told() {
        let fixture = Fixture::new();
        let data = fixture.open();
        fixture.call(&data, "set a zero");
        for (db, key, told) in [
            (0, "a", true),
            (5, "a", true),
            (1, "a", false),
            (0, "b", false),
        ] {
            let mut watch = Watch::default();
            data.watch(&mut watch, db, key.as_bytes()).unwrap();
            fixture.call(&data, "swapdb 0 5");
            let mut reply = Vec::new();
            data.exec(&[], &mut watch, &mut Out::new(&mut reply, Protocol::Resp2));
            assert_eq!(reply == b"*-1\r\n", told, "{db} {key}");
        }
    }
}
