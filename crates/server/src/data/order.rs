//! The order of the databases, which `SWAPDB` changes.
//!
//! Nothing is moved: two databases exchange their keyspaces. A swap holds all locks, and makes the
//! new order durable before it is used. Readers hold no locks; they start over if the order has
//! changed under them (`Data::swaps`). Entries in `Space::Expiries` have the number of the
//! keyspace, not of the database.

use super::Data;
use super::spaces::{ORDER_KEY, Order};
use bristlecone_store::WriteError;
use std::sync::atomic::Ordering;

impl Data {
    pub(crate) fn order(&self) -> Order {
        // ORDERING: Acquire; pairs with the Release of `reorder`: a reader of the new order sees
        // what was durable before it.
        Order::of(self.order.load(Ordering::Acquire))
    }

    /// Returns how often databases were swapped or cleared. A reader without locks has read
    /// consistent data if this is the same before and after.
    pub(crate) fn swaps(&self) -> u64 {
        // ORDERING: Acquire; pairs with the Release of `reorder`: a reader of what was written
        // after a swap sees the swap.
        self.swaps.load(Ordering::Acquire)
    }

    /// Adopts an order, whose record was put. All locks are held.
    ///
    /// # Errors
    /// [`WriteError`]: it cannot be made durable. The order is the previous one.
    pub(crate) fn reorder(&self, order: Order) -> Result<(), WriteError> {
        // No command may use an order that might be undone.
        let settled = self.settle(self.applied());
        if settled.is_err() {
            let before = self.order().bits().to_be_bytes();
            match self
                .deferring
                .put(&self.spaces().orders, ORDER_KEY, &before)
            {
                // Later writes use the previous order, and become durable after this record; or no
                // write succeeds any more, and the durable order is the previous one.
                Ok(()) | Err(WriteError::Commit(_)) => return settled,
                // The record stays as it is, so the new order is used.
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
