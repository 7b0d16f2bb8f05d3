//! A pool with the memtables of one database: from its opening to its closing.
//!
//! ```text
//! root "rocksdb"    words 0: generation that is valid
//!                         1, 2: 1 + last sequence number before a batch that is being written,
//!                            of even and odd generations; 0 if there is none
//!                         3: hash of the database's identity, 0 for none yet
//!                         8 + 2 i: memtable in slot i, 0 if there is none:
//!                            | column family (32) | generation (30) | flushed (1) | 1 |
//!                         9 + 2 i: number of the file that its flush writes, 0 if none has begun
//! root "records-P"  the records of the memtables of even (P = 0) or odd generations
//! root "table-I"    the index of the memtable in slot I
//! ```
//!
//! # Generations
//! Each opening begins a generation, one above the valid one. What the memtables of the valid one
//! hold is written to the database anew (`replay.rs`), and so into memtables of the new generation.
//! One NAW of word 0 then makes the new ones valid and the old ones garbage. A process that is
//! killed before it leaves the old ones, which are replayed again, and new ones that the next
//! opening throws away.
//!
//! # Flushes
//! A memtable that is flushed notes the file's number before a byte of it is read. RocksDB says
//! that the flush is in its manifest (`MarkFlushed`) before any compaction can take the file, and
//! the memtable is marked durably then. After a crash in between, the file itself is among the live
//! ones, which is found out before compactions begin.
//!
//! # Batches
//! A batch of several entries is written alone: its base is noted before, and cleared after it.
//! What a crash leaves of such a batch is left out at replay.
//!
//! # Crash states
//! 1. *New memtable*: a root without a slot's word. Opening removes it.
//! 2. *Freed memtable*: the slot's word is cleared first, so the same.
//! 3. *Opening*: memtables of a generation above the valid one. Opening removes them.

use crate::error::{Fault, FaultKind};
use crate::table::remove_root;
use bristlecone_pmem::media::journal::journal_path;
use bristlecone_pmem::media::{Auto, MediaOptions};
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::pool::{DataKind, Root, RootError, RootKind};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Heap, Media, OpenError, POff, PWord, Pool, PoolOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Maximum number of memtables with entries, of all column families.
pub const SLOTS: usize = 45;

const DIRECTORY: &str = "rocksdb";
/// Version of what this crate keeps in a pool, as the node size of its directory.
const FORMAT: u32 = 1;
const VALID: usize = 0;
const BATCH: usize = 1;
const OWNER: usize = 3;
const TABLES: usize = 8;
const FLUSHED: u64 = 2;
const GENERATIONS: u64 = (1 << 30) - 1;

/// Bytes that are kept free for entries of writes that had begun when the pool became full.
const SPARE: u64 = 4 << 20;

/// How a pool is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file.
    pub path: PathBuf,
    /// Maximum number of bytes of the pool; 0 for as many as there are.
    pub max_bytes: u64,
    /// The pool is made for one process, which nothing survives. Its file has no name once it is
    /// open.
    pub scratch: bool,
}

/// A memtable of an earlier generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Old {
    /// Its slot.
    pub slot: usize,
    /// Its column family.
    pub family: u32,
    /// The number of the file that its flush wrote; 0 if none had begun.
    pub file: u64,
}

/// An open pool. See the module's head.
pub struct Session {
    directory: Root<Auto>,
    records: Root<Auto>,
    generation: u64,
    /// The valid generation is this one.
    published: AtomicBool,
    scratch: bool,
    taken: Mutex<[bool; SLOTS]>,
    /// Chunks that are kept free.
    spare: Mutex<Vec<POff<u8>>>,
    has_spare: AtomicBool,
    /// Highest sequence number inserted.
    highest: AtomicU64,
    /// Last sequence number before the batch that is being written.
    batch: AtomicU64,
    dropped: Mutex<Vec<u32>>,
    pool: Arc<Pool<Auto>>,
}

const NO_BATCH: u64 = u64::MAX;

fn records_name(generation: u64) -> String {
    format!("records-{}", generation & 1)
}

/// Returns the name of the root of the index in a slot.
pub fn table_name(slot: usize) -> String {
    format!("table-{slot}")
}

fn kind(design: &str) -> RootKind {
    RootKind {
        design: design.into(),
        keys: DataKind::Bytes,
        values: DataKind::U64,
        node_bytes: FORMAT,
    }
}

impl Session {
    /// Opens the pool of a database, or makes it.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn open(options: &Options) -> Result<Arc<Self>, Fault> {
        let mut media = MediaOptions::default();
        if options.max_bytes > 0 {
            media.reserve = options.max_bytes;
        }
        let pool_options = PoolOptions { media };
        let path = &options.path;
        let pool = if options.scratch {
            Pool::<Auto>::create(path, &pool_options)?
        } else {
            match Pool::<Auto>::open(path, &pool_options) {
                Err(OpenError::NotFound(_)) => {
                    make_pool(path, &pool_options)?;
                    Pool::open(path, &pool_options)?
                }
                opened => opened?,
            }
        };
        let directory = match pool.open_root(DIRECTORY, Some(&kind(DIRECTORY))) {
            Ok(root) => root,
            Err(RootError::NotFound(_)) if pool.roots().is_empty() => {
                let root = pool.create_root(DIRECTORY, &kind(DIRECTORY))?;
                root.publish();
                pool.pm().commit()?;
                root
            }
            Err(RootError::NotFound(_)) => {
                let path = options.path.display();
                let what = format!(
                    "pool {path} holds other indexes and no memtables of RocksDB; name a file of its own"
                );
                return Err(Fault::new(FaultKind::Invalid, what));
            }
            Err(e) => return Err(e.into()),
        };
        Self::begin(pool, directory, options.scratch)
    }

    fn begin(
        pool: Arc<Pool<Auto>>,
        directory: Root<Auto>,
        scratch: bool,
    ) -> Result<Arc<Self>, Fault> {
        let pm = pool.pm();
        // ORDERING: Relaxed; this thread is alone.
        let valid = directory.word(VALID).load(pm, Ordering::Relaxed);
        if valid > GENERATIONS {
            let what = format!("its generation is {valid}, the most is {GENERATIONS}");
            return Err(Fault::corrupt(pool.path(), what));
        }
        let generation = valid + 1;
        let mut kept = [false; SLOTS];
        for (slot, kept) in kept.iter_mut().enumerate() {
            let word = directory.word(TABLES + 2 * slot);
            let state = word.load(pm, Ordering::Relaxed);
            if state != 0 && state & 1 == 0 {
                let what = format!("slot {slot} of its memtables is {state:#x}");
                return Err(Fault::corrupt(pool.path(), what));
            }
            *kept = state & FLUSHED == 0 && state != 0 && state >> 2 & GENERATIONS == valid;
            if !*kept {
                // PERSIST: (in `publish`) the memtable is gone, before its space serves another.
                word.publish(pm, 0);
                remove_root(&pool, &table_name(slot));
            }
        }
        remove_root(&pool, &records_name(generation));
        let records = pool.create_root(&records_name(generation), &kind("records"))?;
        records.publish();
        let heap = records.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        // PERSIST: (in `publish`) no batch of the new generation is being written.
        directory
            .word(BATCH + (generation & 1) as usize)
            .publish(pm, 0);
        let session = Arc::new(Self {
            directory,
            records,
            generation,
            published: AtomicBool::new(false),
            scratch,
            taken: Mutex::new(kept),
            spare: Mutex::default(),
            has_spare: AtomicBool::new(false),
            highest: AtomicU64::new(0),
            batch: AtomicU64::new(NO_BATCH),
            dropped: Mutex::default(),
            pool,
        });
        session.make_room(0)?;
        session.commit()?;
        if scratch {
            session.publish(0)?;
            // The open file stays. Its space is free when the process ends, however it does.
            remove_pool(session.pool.path());
        }
        Ok(session)
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Arc<Pool<Auto>> {
        &self.pool
    }

    fn pm(&self) -> &Auto {
        self.pool.pm()
    }

    /// Returns where the records of new memtables are.
    pub fn records(&self) -> Heap<Auto> {
        self.records.heap()
    }

    fn state(&self, slot: usize) -> &PWord {
        self.directory.word(TABLES + 2 * slot)
    }

    fn file(&self, slot: usize) -> &PWord {
        self.directory.word(TABLES + 2 * slot + 1)
    }

    /// Makes all that was inserted durable.
    ///
    /// # Errors
    /// [`Fault`]: the disk refused.
    pub fn commit(&self) -> Result<(), Fault> {
        Ok(self.pm().commit_all()?)
    }

    /// Takes a slot for a memtable whose index is to be made.
    ///
    /// # Errors
    /// [`Fault`]: all are taken.
    pub fn take_slot(&self) -> Result<usize, Fault> {
        let mut taken = lock(&self.taken);
        let slot = taken.iter().position(|taken| !taken).ok_or_else(|| {
            let path = self.pool.path().display();
            let what = format!(
                "pool {path} holds {SLOTS} memtables with entries, which is the most; flush some, \
                 or lower max_write_buffer_number"
            );
            Fault::new(FaultKind::Io, what)
        })?;
        taken[slot] = true;
        Ok(slot)
    }

    /// Gives back a slot whose index was not made.
    pub fn return_slot(&self, slot: usize) {
        lock(&self.taken)[slot] = false;
    }

    /// Makes the memtable in `slot` one of the session's: it survives a crash from here on.
    pub fn keep(&self, slot: usize, family: u32) {
        // PERSIST: (in `publish`) no flush has begun.
        self.file(slot).publish(self.pm(), 0);
        let state = u64::from(family) << 32 | self.generation << 2 | 1;
        // PERSIST: (in `publish`) the memtable, before any of its entries.
        self.state(slot).publish(self.pm(), state);
    }

    /// Notes that a flush writes the memtable in `slot` to a file.
    ///
    /// # Errors
    /// [`Fault`]: the disk refused.
    pub fn flushing(&self, slot: usize, file: u64) -> Result<(), Fault> {
        // PERSIST: (in `publish`) the file's number, before the file is made.
        self.file(slot).publish(self.pm(), file);
        self.commit()
    }

    /// Notes that the memtable in `slot` has been flushed.
    ///
    /// # Errors
    /// [`Fault`]: the disk refused.
    pub fn flushed(&self, slot: usize) -> Result<(), Fault> {
        // ORDERING: Relaxed; only this memtable's flush changes the word.
        let state = self.state(slot).load(self.pm(), Ordering::Relaxed);
        // PERSIST: (in `publish`) the mark, before a compaction can take the file.
        self.state(slot).publish(self.pm(), state | FLUSHED);
        self.commit()
    }

    /// Forgets the memtable in `slot`. Its index and records may be freed after this.
    pub fn forget(&self, slot: usize) {
        // PERSIST: (in `publish`) the memtable is gone, before its space serves another.
        self.state(slot).publish(self.pm(), 0);
    }

    /// Returns whether what is left of a memtable that was not flushed is kept when RocksDB lets go
    /// of it.
    pub fn keeps(&self, family: u32) -> bool {
        // ORDERING: Relaxed; the database is being closed, or the family was dropped by this
        // thread.
        !self.scratch
            && self.published.load(Ordering::Relaxed)
            && !lock(&self.dropped).contains(&family)
    }

    /// Notes that a column family was dropped.
    pub fn drop_family(&self, family: u32) {
        lock(&self.dropped).push(family);
    }

    /// Returns the memtables of the valid generation, which the session found.
    pub fn old(&self) -> Vec<Old> {
        let pm = self.pm();
        let old = |slot| {
            // ORDERING: Relaxed; before the session is published only this thread changes these.
            let state = self.state(slot).load(pm, Ordering::Relaxed);
            let is_old = state != 0 && state >> 2 & GENERATIONS == self.generation - 1;
            is_old.then(|| Old {
                slot,
                family: (state >> 32) as u32,
                file: self.file(slot).load(pm, Ordering::Relaxed),
            })
        };
        match self.published.load(Ordering::Relaxed) {
            true => Vec::new(),
            false => (0..SLOTS).filter_map(old).collect(),
        }
    }

    /// Returns the last sequence number before the batch that the last session was writing.
    pub fn old_batch(&self) -> Option<u64> {
        let word = self
            .directory
            .word(BATCH + (self.generation as usize + 1) % 2);
        // ORDERING: Relaxed; nothing writes to it.
        word.load(self.pm(), Ordering::Relaxed).checked_sub(1)
    }

    /// Checks that memtables of the last session, if there are any, are of the database with this
    /// identity.
    ///
    /// # Errors
    /// [`Fault`]: they are of another.
    pub fn check_owner(&self, owner: u64) -> Result<(), Fault> {
        // ORDERING: Relaxed; nothing writes to it meanwhile.
        let found = self
            .directory
            .word(OWNER)
            .load(self.pm(), Ordering::Relaxed);
        if found == owner || found == 0 || self.old().is_empty() {
            return Ok(());
        }
        let path = self.pool.path().display();
        let what = format!(
            "pool {path} holds writes of another database, which that has not flushed; name another \
             pool, or remove this one if they are not wanted"
        );
        Err(Fault::new(FaultKind::Invalid, what))
    }

    /// Makes the session's memtables valid, as those of the database with this identity, and frees
    /// those before. What these held is in the new ones, or in files.
    ///
    /// # Errors
    /// [`Fault`]: the disk refused.
    pub fn publish(&self, owner: u64) -> Result<(), Fault> {
        let old = self.old();
        let pm = self.pm();
        // PERSIST: (in `publish`) the owner, before memtables of its count. It is the same one if
        // there are any before.
        self.directory.word(OWNER).publish(pm, owner);
        // PERSIST: the new memtables, before they count.
        pm.fence();
        // PERSIST: (in `publish`) the new memtables count, and the old ones no longer do.
        self.directory.word(VALID).publish(pm, self.generation);
        self.commit()?;
        // ORDERING: Relaxed; the database is used once its opening has returned.
        self.published.store(true, Ordering::Relaxed);
        for Old { slot, .. } in old {
            self.forget(slot);
            remove_root(&self.pool, &table_name(slot));
            self.return_slot(slot);
        }
        remove_root(&self.pool, &records_name(self.generation - 1));
        Ok(())
    }

    /// Notes a sequence number that is being inserted.
    #[inline]
    pub fn inserting(&self, sequence: u64) {
        // ORDERING: Relaxed; RocksDB orders insertions before the switch that reads it.
        if self.highest.load(Ordering::Relaxed) < sequence {
            self.highest.fetch_max(sequence, Ordering::Relaxed);
        }
    }

    /// Begins a batch of several entries after sequence number `base`. No other write is under way
    /// until it ends.
    pub fn begin_batch(&self, base: u64) {
        // ORDERING: Relaxed; the caller's lock orders batches.
        self.batch.store(base, Ordering::Relaxed);
        let word = self.directory.word(BATCH + (self.generation & 1) as usize);
        // PERSIST: (in `publish`) the batch has begun, before its first entry.
        word.publish(self.pm(), base + 1);
    }

    /// Ends the batch. Returns false if it `failed` with some entries inserted: then it stays
    /// noted, and a replay leaves them out.
    #[must_use]
    pub fn end_batch(&self, failed: bool) -> bool {
        // ORDERING: Relaxed (all); the caller's lock orders batches.
        let base = self.batch.load(Ordering::Relaxed);
        if base == NO_BATCH {
            return true; // a switch has ended it
        }
        if failed && self.highest.load(Ordering::Relaxed) > base {
            return false;
        }
        self.batch.store(NO_BATCH, Ordering::Relaxed);
        let word = self.directory.word(BATCH + (self.generation & 1) as usize);
        // PERSIST: what the batch inserted is fenced; (in `publish`) it is whole.
        word.publish(self.pm(), 0);
        true
    }

    /// Ends a batch whose entries are inserted, because a memtable with them may be flushed before
    /// its writer goes on. RocksDB switches memtables between writes only.
    pub fn switching(&self) {
        // ORDERING: Relaxed (both); RocksDB orders insertions and switches.
        if self.highest.load(Ordering::Relaxed) > self.batch.load(Ordering::Relaxed) {
            let _ = self.end_batch(false);
        }
    }

    /// Makes sure that there is room for a write of `bytes`.
    ///
    /// # Errors
    /// [`Fault`]: the pool is full.
    pub fn make_room(&self, bytes: u64) -> Result<(), Fault> {
        // ORDERING: Relaxed; a thread that sees it late writes into the spare room.
        if bytes <= SPARE / 8 && self.has_spare.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut spare = lock(&self.spare);
        let heap = self.records();
        let mut asked = Vec::new();
        let wanted = (SPARE / CHUNK) as usize;
        let mut result = Ok(());
        while result.is_ok() && spare.len() < wanted {
            result = heap.alloc(CHUNK).map(|chunk| spare.push(chunk));
        }
        let more = if bytes > SPARE / 8 {
            2 * bytes / CHUNK + 1
        } else {
            0
        };
        for _ in 0..more {
            result = result.and_then(|()| heap.alloc(CHUNK).map(|chunk| asked.push(chunk)));
        }
        for chunk in asked {
            heap.free(chunk);
        }
        self.has_spare
            .store(spare.len() == wanted, Ordering::Relaxed);
        result.map_err(|e| self.full(&e))
    }

    /// Gives the spare room to writes that are under way. Returns false if there is none.
    pub fn use_spare(&self) -> bool {
        let mut spare = lock(&self.spare);
        self.has_spare.store(false, Ordering::Relaxed);
        let heap = self.records();
        let some = !spare.is_empty();
        for chunk in spare.drain(..) {
            heap.free(chunk);
        }
        some
    }

    fn full(&self, e: &impl std::fmt::Display) -> Fault {
        let path = self.pool.path().display();
        let what = format!(
            "pool {path} is full: {e}; flush memtables, or give the pool more room and open it again"
        );
        Fault::new(FaultKind::Io, what)
    }
}

/// Makes an empty pool, which is at `path` once it is whole: a kill leaves none there.
fn make_pool(path: &Path, options: &PoolOptions) -> Result<(), Fault> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    // What an earlier attempt left, which nothing has been written to.
    remove_pool(&new);
    drop(Pool::<Auto>::create(&new, options)?);
    // The pool was closed, so its journal holds nothing more.
    let _ = std::fs::remove_file(journal_path(&new));
    let failed = |e| Fault::from(OpenError::io(path, "rename", e));
    std::fs::rename(&new, path).map_err(failed)?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::File::open(folder.unwrap_or(Path::new("."))).map_err(failed)?;
    folder.sync_all().map_err(failed)
}

/// Removes the files of a pool.
fn remove_pool(path: &Path) {
    // A file that is left is in the way of the next scratch pool there, which says so.
    let _ = std::fs::remove_file(path);
    let _ = std::fs::remove_file(journal_path(path));
}
