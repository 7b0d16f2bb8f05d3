//! Keyspaces: what the catalogue says when a store is opened, and dropping one.
//!
//! Entries of a number without a name belong to a [dropped](bristlecone_store::engine::Dropped)
//! keyspace. The catalogue's records are verified before that is believed, since the vacuum removes
//! such entries.

use crate::commit::Committer;
use crate::stripes::LockedStripes;
use bristlecone_index::Direction;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, planted};
use bristlecone_store::engine::{Bounds, CATALOGUE, IndexKey, KeyWrite, Wait, parse_name};
use bristlecone_store::{Damage, StoreError, WriteError};
use crossbeam_epoch as epoch;
use std::ops::{Bound, ControlFlow};

impl<M: Media> Committer<M> {
    /// Reads the catalogue of a recovered store. `largest` is the largest number that an index key
    /// begins with, `damaged` the count of damaged records that recovery found.
    ///
    /// # Errors
    /// [`StoreError::Damaged`]
    pub(crate) fn load_catalogue(&self, largest: u32, damaged: u64) -> Result<(), StoreError> {
        let ticket = self.snapshots.enter(&self.clock, Wait::Durable, || 0);
        let mut known = lock(&self.catalogue.known);
        known.next = largest + 1;
        let bounds = Bounds::new(CATALOGUE, Bound::Unbounded, Bound::Unbounded);
        let read = self.scan_at(ticket, bounds.range(), Direction::Up, &mut |key, found| {
            let Some((name, id)) = parse_name(key, &found.value(key)?) else {
                return Err(Damage::new(format!(
                    "the catalogue's entry \"{}\" is none",
                    key.escape_ascii()
                )));
            };
            if known.by_name.values().any(|other| *other == id) {
                return Err(Damage::new(format!(
                    "keyspace {name:?} has number {id}, which another one has"
                )));
            }
            known.next = known.next.max(id + 1);
            known.by_name.insert(name, id);
            Ok(ControlFlow::Continue(()))
        });
        drop(known);
        self.snapshots.leave(ticket);
        read.map_err(WriteError::from)?;
        let mut nameless = self.stripes.counts().keys;
        nameless.retain(|(id, keys)| *keys > 0 && !self.catalogue.has(*id));
        if nameless.is_empty() {
            return Ok(());
        }
        // Its name may be among the damaged records. Then its keys must not be removed.
        let broken = match damaged {
            0 => self
                .index
                .verify()
                .err()
                .map(|violation| violation.to_string()),
            some => Some(format!("{some} records are damaged")),
        };
        if let Some(broken) = broken {
            return Err(StoreError::Damaged(Damage::new(format!(
                "keys of keyspace number {} have no name in the catalogue, and {broken}; `bristlecone \
                 export --skip-damaged` saves what can be read",
                nameless[0].0
            ))));
        }
        for (id, _) in nameless {
            self.dropped_ranges.add(id, self.clock.floor());
        }
        Ok(())
    }

    /// Gives keyspace `number` the name `to`, in place of `from`.
    ///
    /// # Errors
    /// [`WriteError`]
    pub(super) fn name_number(
        &self,
        number: u32,
        from: Option<&str>,
        to: &str,
    ) -> Result<u64, WriteError> {
        let of = |name: &str| IndexKey::new(CATALOGUE, name.as_bytes());
        let (old, new) = (from.map(of), of(to));
        let number = number.to_le_bytes();
        let write = |key, value| KeyWrite {
            key,
            value,
            expiry: 0,
        };
        let old = old.as_deref().map(|key| write(key, None));
        let mut writes: Vec<_> = old
            .into_iter()
            .chain([write(&*new, Some(&number[..]))])
            .collect();
        if planted!(self.pm(), "store-rename-in-two") && from.is_some() {
            // The mistake: a crash before the commit below leaves no name at all.
            self.commit_many(&writes[..1], None, None, Wait::Applied)?;
        }
        writes.sort_by_key(|write| write.key);
        self.commit_many(&writes, None, None, Wait::Applied)
    }

    /// With all stripes locked: drops keyspace `number`, whose name goes, or becomes that of number
    /// `empty`.
    ///
    /// # Errors
    /// [`WriteError`]
    pub(super) fn drop_number(
        &self,
        name: &str,
        number: u32,
        empty: Option<u32>,
    ) -> Result<u64, WriteError> {
        let key = &*IndexKey::new(CATALOGUE, name.as_bytes());
        let value = empty.map(u32::to_le_bytes);
        let value = value.as_ref().map(<[u8; 4]>::as_slice);
        let ts = self.retry_for_space(|| {
            let record = self.prepare(key, value, 0)?;
            let mut held = LockedStripes::lock(&self.stripes, 0..self.stripes.len());
            let before = self.newest(key, &epoch::pin());
            let taken = self.clock.take()?;
            let stripe = held.get(self.stripes.of(key));
            self.publish(stripe, key, &before, record, taken.ts)?;
            self.dropped.add(number, taken.ts);
            self.feed.keyspace_dropped(number, empty, taken.ts);
            Ok(taken.ts)
        })?;
        // Without the stripes' locks: the vacuum takes them while it holds the lock of the ranges.
        self.dropped_ranges.add(number, ts);
        Ok(ts)
    }
}
