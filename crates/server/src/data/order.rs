//! The order of the databases, which `SWAPDB` changes.
//!
//! Nothing is moved: two databases exchange their keyspaces. A swap holds all locks, and makes the
//! new order durable before anyone uses it. Readers hold no locks; they start over if the order has
//! changed under them (`Data::swaps`). Entries in `Space::Expiries` have the number of the keyspace,
//! not of the database.

use super::Data;
use super::spaces::{ORDER, Order};
use bristlecone_store::WriteError;
use std::sync::atomic::Ordering;

impl Data {
    pub(crate) fn order(&self) -> Order {
        // ORDERING: Acquire; pairs with the Release of `reorder`: who sees the new order sees what was durable before it.
        Order::of(self.order.load(Ordering::Acquire))
    }

    /// Returns how often databases have been swapped. Who reads without locks has read what belongs together if this is the same
    /// before and after.
    pub(crate) fn swaps(&self) -> u64 {
        // ORDERING: Acquire; pairs with the Release of `reorder`. Who reads what was written after a swap sees the swap.
        self.swaps.load(Ordering::Acquire)
    }

    /// From now on the databases have this order, which was put. All locks are held.
    ///
    /// # Errors
    /// It cannot be made durable; the order is what it was.
    pub(crate) fn reorder(&self, order: Order) -> Result<(), WriteError> {
        // Nobody goes by an order that may be undone.
        let settled = self.settle(self.applied());
        if settled.is_err() {
            let before = self.order().bits().to_be_bytes();
            match self.deferring.put(&self.spaces().orders, ORDER, &before) {
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
