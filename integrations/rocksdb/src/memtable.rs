//! A memtable: records, and an index over them that is made with the first entry.

use crate::error::{Fault, FaultKind};
use crate::key::with_comparator;
use crate::record::Records;
use crate::session::{Session, table_name};
use crate::table::{Kind, Order, Start, Table, table};
use bristlecone_index::InsertError;
use bristlecone_pmem::sync::lock;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Bytes of leaves that an entry takes, about.
const LEAF_BYTES: u64 = 26;

/// A memtable's index, and its slot in the directory.
struct Indexed {
    table: Box<dyn Table>,
    slot: usize,
}

/// A memtable. See the module's head.
pub struct Memtable {
    family: u32,
    kind: Kind,
    order: Order,
    records: Records,
    index: OnceLock<Indexed>,
    making: Mutex<()>,
    entries: AtomicU64,
    flushed: AtomicBool,
    session: Arc<Session>,
}

impl Memtable {
    /// Returns an empty memtable.
    pub fn new(session: &Arc<Session>, family: u32, kind: Kind, order: Order) -> Self {
        Self {
            family,
            kind,
            order,
            records: Records::new(session.records()),
            index: OnceLock::new(),
            making: Mutex::new(()),
            entries: AtomicU64::new(0),
            flushed: AtomicBool::new(false),
            session: Arc::clone(session),
        }
    }

    fn table(&self) -> Option<&dyn Table> {
        self.index.get().map(|index| &*index.table)
    }

    /// Returns the index, which is made if there is none.
    fn made(&self) -> Result<&Indexed, Fault> {
        if let Some(index) = self.index.get() {
            return Ok(index);
        }
        let _making = lock(&self.making);
        if let Some(index) = self.index.get() {
            return Ok(index);
        }
        let slot = self.session.take_slot(self.family)?;
        let pool = self.session.pool();
        let make = || table(pool, &table_name(slot), self.kind, self.order, true);
        let table = make().or_else(|fault| match self.session.use_spare() {
            true => make(),
            false => Err(fault),
        });
        let table = table.inspect_err(|_| self.session.return_slot(slot))?;
        self.session.keep(slot, self.family);
        Ok(self.index.get_or_init(|| Indexed { table, slot }))
    }

    /// Returns the place for an entry of `len` bytes.
    ///
    /// # Errors
    /// [`Fault`]: there is no room.
    pub fn allocate(&self, len: usize) -> Result<*mut u8, Fault> {
        self.made()?;
        let allocated = self.records.allocate(len);
        Ok(allocated.or_else(|e| match self.session.use_spare() {
            true => self.records.allocate(len),
            false => Err(e),
        })?)
    }

    /// Inserts the entry at a place that was [allocated](Self::allocate). Returns false if its key
    /// is there.
    ///
    /// # Errors
    /// [`Fault`]: there is no room, or the disk refused.
    ///
    /// # Safety
    /// 1. `at` is such a place. 2. The entry has been written.
    pub unsafe fn insert(&self, at: *const u8) -> Result<bool, Fault> {
        let index = self.made()?;
        // SAFETY: 1. and 2. as the caller promises.
        let entry = unsafe { self.records.written(at) }
            .filter(|entry| crate::key::key_bytes(entry).is_some())
            .ok_or_else(|| Fault::new(FaultKind::Invalid, "what RocksDB inserts is no entry"))?;
        self.records.seal(entry);
        if let Some(parsed) = crate::key::Entry::parse(entry) {
            self.session.inserting(parsed.trailer >> 8);
        }
        let inserted = match index.table.insert(entry) {
            Err(InsertError::Space(_)) if self.session.use_spare() => index.table.insert(entry),
            inserted => inserted,
        }?;
        if inserted {
            // ORDERING: Relaxed; an estimate.
            self.entries.fetch_add(1, Ordering::Relaxed);
        }
        Ok(inserted)
    }

    /// Returns the first entry from `key` on, if it has the same user key.
    pub fn get(&self, key: &[u8]) -> Option<*const u8> {
        self.table()?.get(key)
    }

    /// Calls `visit` with entries in order, upwards or downwards, until it breaks.
    pub fn scan(
        &self,
        from: Start<'_>,
        up: bool,
        visit: &mut dyn FnMut(*const u8) -> ControlFlow<()>,
    ) {
        if let Some(table) = self.table() {
            table.scan(from, up, visit);
        }
    }

    /// Returns the bytes in the pool, about.
    pub fn bytes(&self) -> u64 {
        // ORDERING: Relaxed; an estimate.
        self.records.bytes() + LEAF_BYTES * self.entries.load(Ordering::Relaxed)
    }

    /// Returns the number of entries.
    pub fn entries(&self) -> u64 {
        // ORDERING: Relaxed; an estimate.
        self.entries.load(Ordering::Relaxed)
    }

    /// Checks the index. Returns the number of its entries.
    ///
    /// # Errors
    /// What is wrong.
    pub fn verify(&self) -> Result<u64, String> {
        self.table().map_or(Ok(0), Table::verify)
    }

    /// Notes that no entry will follow. Returns true if a batch has failed half-way, some entries
    /// of which the memtable may have.
    pub fn read_only(&self) -> bool {
        self.session.switching()
    }

    /// Notes that a flush writes the entries to a file.
    ///
    /// # Errors
    /// [`Fault`]: the disk refused.
    pub fn flushing(&self, file: u64) -> Result<(), Fault> {
        self.index
            .get()
            .map_or(Ok(()), |index| self.session.flushing(index.slot, file))
    }

    /// Notes that all entries are in files.
    ///
    /// # Errors
    /// [`Fault`]: the disk refused.
    pub fn flushed(&self) -> Result<(), Fault> {
        // ORDERING: Relaxed; the last reference is let go after this.
        self.flushed.store(true, Ordering::Relaxed);
        self.index
            .get()
            .map_or(Ok(()), |index| self.session.flushed(index.slot))
    }
}

impl Drop for Memtable {
    fn drop(&mut self) {
        let flushed = *self.flushed.get_mut();
        let Some(Indexed { table, slot }) = self.index.take() else {
            return;
        };
        // An index that is closed may read its keys in order.
        with_comparator(self.order, || {
            if flushed || !self.session.keeps(self.family) {
                self.session.forget(slot);
                table.destroy();
                self.records.free();
                self.session.return_slot(slot);
            } else {
                drop(table);
            }
        });
    }
}
