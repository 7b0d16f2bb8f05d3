//! A change feed: a count of orders by state that follows the orders, whoever changes them.
//!
//! `cargo run --example change_feed`

use bristlecone::{Batch, Database, Event, Keyspace, Result, Slice, Watch};
use std::collections::BTreeMap;

/// How many orders are in each state.
struct Counts {
    state_of: BTreeMap<Slice, Slice>,
    by_state: BTreeMap<Slice, usize>,
    /// Changes with this time stamp or an earlier one are counted.
    as_of: u64,
}

impl Counts {
    /// Counts what is there. A watch that was made before has everything else.
    fn of(orders: &Keyspace) -> Result<Self> {
        let snapshot = orders.database().snapshot();
        let mut counts = Self {
            state_of: BTreeMap::new(),
            by_state: BTreeMap::new(),
            as_of: snapshot.timestamp(),
        };
        for entry in orders.at(&snapshot)?.iter() {
            let (order, state) = entry?;
            counts.set(order, Some(state));
        }
        Ok(counts)
    }

    fn set(&mut self, order: Slice, state: Option<Slice>) {
        let before = match &state {
            Some(state) => self.state_of.insert(order, state.clone()),
            None => self.state_of.remove(&order),
        };
        if let Some(count) = before.and_then(|before| self.by_state.get_mut(&before)) {
            *count -= 1;
        }
        if let Some(state) = state {
            *self.by_state.entry(state).or_default() += 1;
        }
    }

    /// Follows the changes until the database is closed.
    fn follow(mut self, orders: Watch) -> Result<Self> {
        for event in orders {
            let event = event?;
            if event.timestamp().is_some_and(|at| at <= self.as_of) {
                continue;
            }
            match event {
                Event::Insert { key, value, .. } => self.set(key, Some(value)),
                Event::Remove { key, .. } => self.set(key, None),
                Event::Clear { .. } | Event::Drop { .. } => {
                    self.state_of.clear();
                    self.by_state.clear();
                }
                // A program that goes on counts again here, with `Counts::of`.
                other => panic!("too slow: {other:?}"),
            }
        }
        Ok(self)
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let db = Database::open(folder.path().join("orders.db"))?;
    let orders = db.keyspace("orders")?;
    orders.insert("17", "new")?;

    let watch = orders.watch()?;
    let counts = Counts::of(&orders)?;
    let following = std::thread::spawn(move || counts.follow(watch));

    orders.insert("18", "new")?;
    orders.insert("17", "packed")?;
    let mut batch = Batch::new();
    batch.insert(&orders, "19", "new");
    batch.insert(&orders, "20", "new");
    batch.remove(&orders, "18");
    db.write(batch)?;

    // The watch has all of it, and ends.
    drop(orders);
    db.close()?;
    let counts = following.join().expect("it does not panic")?;
    for (state, count) in &counts.by_state {
        println!("{:7} {count}", state.escape_ascii());
    }
    let expected = [("new".into(), 2), ("packed".into(), 1)];
    assert_eq!(counts.by_state, expected.into());
    Ok(())
}
