//! Customers by number, and an index of them by city that never disagrees: both are changed in one
//! transaction.
//!
//! `cargo run --example secondary_index`

use bristlecone::{Database, Keyspace, Result};

struct Customers {
    db: Database,
    by_number: Keyspace,
    /// (city, number) to nothing.
    by_city: Keyspace,
}

/// Cities have no zero byte, so it ends them.
fn city_key(city: &[u8], number: u32) -> Vec<u8> {
    [city, b"\0", &number.to_be_bytes()].concat()
}

impl Customers {
    fn open(db: &Database) -> Result<Self> {
        Ok(Self {
            db: db.clone(),
            by_number: db.keyspace("customers")?,
            by_city: db.keyspace("customers by city")?,
        })
    }

    fn put(&self, number: u32, city: &str) -> Result<()> {
        let key = number.to_be_bytes();
        self.db.transaction(|tx| {
            if let Some(old) = tx.get(&self.by_number, key)? {
                tx.remove(&self.by_city, city_key(&old, number))?;
            }
            tx.insert(&self.by_number, key, city)?;
            tx.insert(&self.by_city, city_key(city.as_bytes(), number), "")
        })
    }

    fn in_city(&self, city: &str) -> Result<Vec<u32>> {
        let entries = self.by_city.prefix([city.as_bytes(), b"\0"].concat());
        let number = |key: &[u8]| key.last_chunk().map_or(0, |n| u32::from_be_bytes(*n));
        entries.map(|entry| Ok(number(&entry?.0))).collect()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let db = Database::open(folder.path().join("customers.db"))?;
    let customers = Customers::open(&db)?;
    for (number, city) in [(1, "Lyon"), (2, "Oslo"), (3, "Lyon")] {
        customers.put(number, city)?;
    }
    customers.put(1, "Oslo")?;
    println!(
        "Lyon: {:?}, Oslo: {:?}",
        customers.in_city("Lyon")?,
        customers.in_city("Oslo")?
    );
    assert_eq!(customers.in_city("Lyon")?, [3]);
    assert_eq!(customers.in_city("Oslo")?, [1, 2]);
    Ok(())
}
