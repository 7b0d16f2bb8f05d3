//! The keyspaces of the store, and which of them each database has.
//!
//! ```text
//! keyspace "0" to "15"   key --> tag, body              a string or a small collection, whole; the record itself expires
//!                        key --> tag | ITEM, flags, cas, marks, body    a string that a memcached client has stored
//!                        key --> tag | LARGE, id, expiry, body      the head of a large collection
//! keyspace "elements"    id, ... --> ...                its elements: big-endian id, then what the type adds
//! keyspace "expiries"    expiry, keyspace, key --> ""   expiries of large collections, for the sweeper
//!                        expiry, keyspace | 0x8000, SHA-256 of the key --> key     of keys too long for that
//! keyspace "garbage"     id --> ""                      ids whose elements the sweeper deletes
//! keyspace "databases"   "order" --> 4 bits for each database: its keyspace (8 bytes, big-endian)
//!                        "swept" --> see `clear.rs`
//!                        "format" --> version of all this (4 bytes, big-endian); version 1 has no such record
//! ```

use bristlecone_pmem::VersionError;
use bristlecone_pmem::media::Auto;
use bristlecone_store::{Keyspace, ReadError, Store};
use std::collections::BTreeSet;

/// The number of databases.
pub const DATABASES: usize = 16;

/// The place of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The keys of a database.
    Keys(usize),
    /// Elements of large collections.
    Elements,
    /// Expiries of large collections.
    Expiries,
    /// Ids of large collections that were deleted.
    Garbage,
    /// The order of the databases.
    Databases,
}

/// A key: its database and its name.
pub(crate) type Name = (usize, Vec<u8>);

/// All keyspaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keyspaces {
    pub databases: Vec<Keyspace>,
    pub elements: Keyspace,
    pub expiries: Keyspace,
    pub garbage: Keyspace,
    /// Records on the databases as a whole.
    pub orders: Keyspace,
}

impl Keyspaces {
    /// Returns the keyspace of a space under this order of the databases.
    pub fn of(&self, space: Space, order: Order) -> &Keyspace {
        match space {
            Space::Keys(db) => &self.databases[order.place(db)],
            Space::Elements => &self.elements,
            Space::Expiries => &self.expiries,
            Space::Garbage => &self.garbage,
            Space::Databases => &self.orders,
        }
    }

    /// Returns the numbers of the databases' keyspaces, as the record "swept" has them.
    pub fn numbers(&self) -> Vec<u8> {
        let numbers = self.databases.iter().map(Keyspace::number);
        numbers.flat_map(u32::to_be_bytes).collect()
    }
}

/// Records that no head refers to.
#[derive(Debug)]
pub(crate) struct Orphans {
    /// Ids of elements.
    pub ids: Vec<u64>,
    /// Keys in the keyspace of expiries.
    pub expiries: Vec<Vec<u8>>,
    /// The value of "swept" once all of these are deleted.
    pub numbers: Vec<u8>,
}

/// The keyspace of the order's record.
pub const ORDER_KEYSPACE: &str = "databases";
/// The keyspace of what the server notes about items of memcached clients: without it, none has
/// ever been stored.
pub(crate) const ITEMS_STATE: &str = "memcached-state";
/// The key of the order's record.
pub const ORDER_KEY: &[u8] = b"order";

/// Returns the number in the name of the keyspace that a database has, by the order's record, if
/// there is one.
#[must_use]
pub fn keyspace_of(order: Option<&[u8]>, db: usize) -> usize {
    Order::decode(order).unwrap_or(Order::FIRST).place(db)
}

/// Version of what a server keeps in its keyspaces: the one that this build writes, and the only
/// one that it reads.
pub const FORMAT: u32 = 1;
/// The key of the version's record.
pub const FORMAT_KEY: &[u8] = b"format";

/// Checks the version of a server's data, by the record under [`FORMAT_KEY`] in the keyspace
/// [`ORDER_KEYSPACE`], if there is one.
///
/// # Errors
/// [`VersionError`]
pub fn check_format(record: Option<&[u8]>) -> Result<(), VersionError> {
    let found = record.map_or(1, |record| {
        let record = record.first_chunk().copied();
        // One that is too short was never written.
        u32::from_be_bytes(record.unwrap_or_default())
    });
    let newest = u64::from(FORMAT);
    VersionError::check("server", found.into(), newest..=newest)
}

/// The keyspaces of all databases: four bits for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order(u64);

const _: () = assert!(DATABASES * 4 == u64::BITS as usize);

impl Order {
    /// The order of a new store: each database has the keyspace of its number.
    pub const FIRST: Self = Self(0xfedc_ba98_7654_3210);

    /// Reads the order; [`FIRST`](Self::FIRST) if none was written.
    pub fn load(store: &Store<Auto>, keyspace: &Keyspace) -> Result<Self, ReadError> {
        let record = store.get(keyspace, ORDER_KEY)?;
        Ok(Self::decode(record.as_deref()).unwrap_or_else(|| {
            tracing::error!("the order of the databases is damaged; the initial order is used");
            Self::FIRST
        }))
    }

    /// Returns the order in a record, [`FIRST`](Self::FIRST) without a record, and nothing if the
    /// record is damaged.
    fn decode(record: Option<&[u8]>) -> Option<Self> {
        let Some(record) = record else {
            return Some(Self::FIRST);
        };
        let order = Self(u64::from_be_bytes(record.try_into().ok()?));
        let places: BTreeSet<usize> = (0..DATABASES).map(|db| order.place(db)).collect();
        (places.len() == DATABASES).then_some(order)
    }

    /// Returns the order that these bits encode.
    pub fn of(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the bits of its record.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the number of a database's keyspace.
    pub fn place(self, db: usize) -> usize {
        (self.0 >> (4 * db) & 15) as usize
    }

    /// Returns the database that has a keyspace.
    pub fn database(self, place: usize) -> usize {
        let mut all = 0..DATABASES;
        all.find(|db| self.place(*db) == place).unwrap_or(place)
    }

    /// Returns this order with the keyspaces of two databases exchanged.
    pub fn swapped(self, one: usize, other: usize) -> Self {
        let change = (self.place(one) ^ self.place(other)) as u64;
        Self(self.0 ^ change << (4 * one) ^ change << (4 * other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_other_versions_is_refused() {
        assert_eq!(check_format(None), Ok(()));
        assert_eq!(check_format(Some(&1u32.to_be_bytes())), Ok(()));
        let newer = check_format(Some(&2u32.to_be_bytes())).unwrap_err();
        assert!(newer.is_newer() && newer.found == 2);
        for older in [&0u32.to_be_bytes()[..], b"?"] {
            assert!(!check_format(Some(older)).unwrap_err().is_newer());
        }
    }

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
}
