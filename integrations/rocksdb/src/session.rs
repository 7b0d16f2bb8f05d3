//! A pool with the memtables of one database: from its opening to its closing.
//!
//! ```text
//! root "rocksdb"    words, each with a check (`word.rs`)
//!                         0: generation that is valid
//!                         1, 2: 1 + last sequence number before a batch that is being written,
//!                            of even and odd generations; 0 if there is none
//!                         3: hash of the database's identity, 0 for none yet
//!                         8 + 2 i: memtable in slot i, 0 if there is none:
//!                            | column family (32) | generation's low bits (22) | flushed | 1 |
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
//! The new ones take slots while the old ones have theirs, one for each column family. So a
//! memtable is made only if slots for that would be left: whatever a kill leaves can be opened.
//!
//! # Flushes
//! A memtable that is flushed notes the file's number before a byte of it is read. RocksDB says
//! that the flush is in its manifest (`MarkFlushed`) before any compaction can take the file, and
//! the memtable is marked durably then. After a crash in between, the file itself is among the live
//! ones, which is found out before compactions begin. No record gets into the manifest before the
//! notes and marks until then are durable (`cpp/files.h`), so neither a flush whose note the disk
//! refuses is in it, nor a compaction of a file whose memtable has no mark.
//!
//! # Batches
//! A batch of several entries is written alone: its base is noted before, and cleared after it.
//! Replay skips the entries after a noted base, so a batch that a crash interrupted has no effect.
//! The note of a batch that fails half-way stays, and no batch can begin after it.
//!
//! # Crash states
//! 1. *New memtable*: a root without a slot's word. Opening removes it.
//! 2. *Freed memtable*: the slot's word is cleared first, so the same.
//! 3. *Opening*: memtables of a generation above the valid one. Opening removes them.

use crate::error::{Fault, FaultKind};
use crate::table::remove_root;
use crate::word::{self, VALUE};
use bristlecone_pmem::media::journal::journal_path;
use bristlecone_pmem::media::{Auto, MediaOptions};
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::pool::{DataKind, Root, RootError, RootKind};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Heap, Media, OpenError, POff, Pool, PoolOptions};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Maximum number of memtables with entries and of their column families, together.
pub const SLOTS: usize = 45;

const DIRECTORY: &str = "rocksdb";
/// Version of what this crate keeps in a pool, as the node size of its directory.
const FORMAT: u32 = 2;
const VALID: usize = 0;
const BATCH: usize = 1;
const OWNER: usize = 3;
const TABLES: usize = 8;
const PRESENT: u64 = 1;
const FLUSHED: u64 = 2;
const GENERATION_SHIFT: u32 = 2;
/// The bits of a generation that a slot's word has.
const GENERATION: u64 = (1 << 22) - 1;
const FAMILY_SHIFT: u32 = 24;

/// Bytes that are kept free for entries of writes that had begun when the pool became full.
const SPARE: u64 = 4 << 20;
/// The spare room is in so many runs, because a large record needs one.
const RUNS: u64 = 8;

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
    /// No pool is made if there is none.
    pub must_exist: bool,
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
    /// The column families of the memtables in the slots.
    taken: Mutex<[Option<u32>; SLOTS]>,
    /// Runs of chunks that are kept free.
    spare: Mutex<Vec<POff<u8>>>,
    has_spare: AtomicBool,
    /// Highest sequence number inserted.
    highest: AtomicU64,
    batch: Mutex<Batch>,
    dropped: Mutex<Vec<u32>>,
    pool: Arc<Pool<Auto>>,
}

/// A batch of several entries.
#[derive(Default)]
struct Batch {
    /// The last sequence number before the batch that is being written, or that failed half-way.
    base: Option<u64>,
    /// The sequence number of its last entry.
    last: u64,
    /// It failed half-way, and stays noted.
    failed: bool,
}

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
                Err(e @ OpenError::NotFound(_)) if options.must_exist => {
                    let what = format!(
                        "{e}; the database has a pool: name that one, or set new_pool to go on \
                         without what it holds"
                    );
                    return Err(Fault::new(FaultKind::Invalid, what));
                }
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
            Err(e @ RootError::WrongKind { .. }) => {
                let path = options.path.display();
                let what = format!(
                    "pool {path} is of another version: {e}; flush its database with that version, \
                     and name a new pool"
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
        // Nothing is removed before all words are known to be whole.
        let valid = read(&pool, &directory, VALID, "its valid generation")?;
        for (at, what) in [
            (BATCH, "a batch"),
            (BATCH + 1, "a batch"),
            (OWNER, "its owner"),
        ] {
            read(&pool, &directory, at, what)?;
        }
        let mut kept = [None; SLOTS];
        for (slot, kept) in kept.iter_mut().enumerate() {
            let state = read(&pool, &directory, TABLES + 2 * slot, "a memtable")?;
            read(
                &pool,
                &directory,
                TABLES + 2 * slot + 1,
                "a memtable's file",
            )?;
            if state == 0 {
                continue;
            }
            let age = valid.wrapping_sub(state >> GENERATION_SHIFT) & GENERATION;
            if state & PRESENT == 0 || !matches!(age, 0 | 1 | GENERATION) {
                let what = format!("slot {slot} of its memtables is {state:#x} at {valid}");
                return Err(Fault::corrupt(pool.path(), what));
            }
            *kept = (age == 0 && state & FLUSHED == 0).then_some((state >> FAMILY_SHIFT) as u32);
        }
        let generation = valid + 1;
        for slot in (0..SLOTS).filter(|slot| kept[*slot].is_none()) {
            // PERSIST: (in `publish`) the memtable is gone, before its space serves another.
            directory.word(TABLES + 2 * slot).publish(pm, 0);
            remove_root(&pool, &table_name(slot));
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
            batch: Mutex::default(),
            dropped: Mutex::default(),
            pool,
        });
        session.make_room(0, &[])?;
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

    /// Returns what a word says, whose check `begin` has looked at.
    fn value(&self, at: usize) -> u64 {
        // ORDERING: Relaxed; the callers say who else writes to it.
        self.directory.word(at).load(self.pm(), Ordering::Relaxed) & VALUE
    }

    /// Publishes a word: durable once the medium is committed. The caller says why in this order.
    fn put(&self, at: usize, value: u64) {
        // PERSIST: (in `publish`) as the caller says.
        self.directory
            .word(at)
            .publish(self.pm(), word::seal(value));
    }

    /// Makes all that was inserted durable.
    ///
    /// # Errors
    /// [`Fault`]: the disk refused.
    pub fn commit(&self) -> Result<(), Fault> {
        Ok(self.pm().commit_all()?)
    }

    /// Returns whether slots are enough for `more` memtables, of these column families, and then
    /// for the replay after a kill.
    fn has_slots(&self, taken: &[Option<u32>; SLOTS], more: &[u32]) -> bool {
        let held = taken.iter().flatten();
        let memtables = held.clone().count() + more.len();
        // There are no more families than memtables.
        if 2 * memtables <= SLOTS {
            return true;
        }
        let families: BTreeSet<&u32> = held.chain(more).collect();
        // ORDERING: Relaxed; as for `keeps`.
        match self.published.load(Ordering::Relaxed) && !self.scratch {
            true => memtables + families.len() <= SLOTS,
            false => memtables <= SLOTS,
        }
    }

    fn no_slot(&self) -> Fault {
        let path = self.pool.path().display();
        let what = format!(
            "pool {path} has places for {SLOTS} memtables with entries and their column families, \
             and no more; flush some, or lower max_write_buffer_number"
        );
        Fault::new(FaultKind::Io, what)
    }

    /// Takes a slot for a memtable whose index is to be made.
    ///
    /// # Errors
    /// [`Fault`]: all are taken.
    pub fn take_slot(&self, family: u32) -> Result<usize, Fault> {
        let mut taken = lock(&self.taken);
        let free = taken.iter().position(Option::is_none);
        let slot = free.filter(|_| self.has_slots(&taken, &[family]));
        let slot = slot.ok_or_else(|| self.no_slot())?;
        taken[slot] = Some(family);
        Ok(slot)
    }

    /// Gives back a slot whose index was not made.
    pub fn return_slot(&self, slot: usize) {
        lock(&self.taken)[slot] = None;
    }

    /// Makes the memtable in `slot` one of the session's: it survives a crash from here on.
    pub fn keep(&self, slot: usize, family: u32) {
        // PERSIST: no flush has begun.
        self.put(TABLES + 2 * slot + 1, 0);
        let generation = self.generation & GENERATION;
        let state = u64::from(family) << FAMILY_SHIFT | generation << GENERATION_SHIFT | PRESENT;
        // PERSIST: the memtable, before any of its entries.
        self.put(TABLES + 2 * slot, state);
    }

    /// Notes that a flush writes the memtable in `slot` to a file.
    ///
    /// # Errors
    /// [`Fault`]: the disk refused.
    pub fn flushing(&self, slot: usize, file: u64) -> Result<(), Fault> {
        // PERSIST: the file's number, before the file is made.
        self.put(TABLES + 2 * slot + 1, file);
        self.commit()
    }

    /// Notes that the memtable in `slot` has been flushed.
    ///
    /// # Errors
    /// [`Fault`]: the disk refused.
    pub fn flushed(&self, slot: usize) -> Result<(), Fault> {
        // Only this memtable's flush changes the word.
        let state = self.value(TABLES + 2 * slot);
        // PERSIST: the mark, before a compaction can take the file.
        self.put(TABLES + 2 * slot, state | FLUSHED);
        self.commit()
    }

    /// Forgets the memtable in `slot`. Its index and records may be freed after this.
    pub fn forget(&self, slot: usize) {
        // PERSIST: the memtable is gone, before its space serves another.
        self.put(TABLES + 2 * slot, 0);
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
        let old = |slot| {
            // Before the session is published only this thread changes these.
            let state = self.value(TABLES + 2 * slot);
            let valid = self.generation - 1;
            let is_old = state != 0 && (valid ^ state >> GENERATION_SHIFT) & GENERATION == 0;
            is_old.then(|| Old {
                slot,
                family: (state >> FAMILY_SHIFT) as u32,
                file: self.value(TABLES + 2 * slot + 1),
            })
        };
        // ORDERING: Relaxed; as for `keeps`.
        match self.published.load(Ordering::Relaxed) {
            true => Vec::new(),
            false => (0..SLOTS).filter_map(old).collect(),
        }
    }

    /// Returns the last sequence number before the batch that the last session was writing.
    pub fn old_batch(&self) -> Option<u64> {
        // Nothing writes to it.
        self.value(BATCH + (self.generation as usize + 1) % 2)
            .checked_sub(1)
    }

    /// Checks that memtables of the last session, if there are any, are of the database with this
    /// identity.
    ///
    /// # Errors
    /// [`Fault`]: they are of another.
    pub fn check_owner(&self, owner: u64) -> Result<(), Fault> {
        // Nothing writes to it meanwhile.
        let found = self.value(OWNER);
        if found == owner & VALUE || found == 0 || self.old().is_empty() {
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
        // PERSIST: the owner, before memtables of its count. It is the same one if there are any
        // before.
        self.put(OWNER, owner);
        // PERSIST: the new memtables, before they count.
        pm.fence();
        // PERSIST: the new memtables count, and the old ones no longer do.
        self.put(VALID, self.generation);
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

    /// Begins a batch of several entries, with sequence numbers after `base` up to `last`. No other
    /// write is under way until it ends.
    ///
    /// # Errors
    /// [`Fault`]: an earlier one failed half-way, which stays noted.
    pub fn begin_batch(&self, base: u64, last: u64) -> Result<(), Fault> {
        let mut batch = lock(&self.batch);
        if batch.failed {
            let what = "a batch failed half-way; open the database again";
            return Err(Fault::new(FaultKind::Io, what));
        }
        (batch.base, batch.last) = (Some(base), last);
        // PERSIST: the batch has begun, before its first entry.
        self.put(self.batch_word(), base + 1);
        Ok(())
    }

    fn batch_word(&self) -> usize {
        BATCH + (self.generation & 1) as usize
    }

    fn whole(&self, batch: &mut Batch) {
        batch.base = None;
        // PERSIST: what the batch inserted is fenced; it is whole.
        self.put(self.batch_word(), 0);
    }

    /// Ends the batch. Returns false if it `failed` with some entries inserted: then it stays
    /// noted, and a replay leaves them out.
    #[must_use]
    pub fn end_batch(&self, failed: bool) -> bool {
        let mut batch = lock(&self.batch);
        let Some(base) = batch.base else {
            return true; // a switch has ended it
        };
        // ORDERING: Relaxed; the batch's entries were inserted before its writer came here.
        batch.failed |= failed && self.highest.load(Ordering::Relaxed) > base;
        if !batch.failed {
            self.whole(&mut batch);
        }
        !batch.failed
    }

    /// Notes that an entry could not be inserted. If it is of a batch, that stays noted, and the
    /// result is true.
    pub fn spilled(&self) -> bool {
        let mut batch = lock(&self.batch);
        batch.failed |= batch.base.is_some();
        batch.failed
    }

    /// Ends a batch whose entries are all inserted, because a memtable with them may be flushed
    /// before its writer goes on. RocksDB switches memtables between writes only, so a batch of
    /// which some are inserted has failed half-way: then it stays noted, and the result is true.
    pub fn switching(&self) -> bool {
        let mut batch = lock(&self.batch);
        if let Some(base) = batch.base {
            // ORDERING: Relaxed; RocksDB orders insertions and switches.
            let highest = self.highest.load(Ordering::Relaxed);
            batch.failed |= highest > base && highest < batch.last;
            if highest >= batch.last && !batch.failed {
                self.whole(&mut batch);
            }
        }
        batch.failed
    }

    /// Makes sure that there is room for a write of `bytes`, and slots for a new memtable of each
    /// of `families`, because RocksDB may switch any of them before the write.
    ///
    /// # Errors
    /// [`Fault`]: the pool is full.
    pub fn make_room(&self, bytes: u64, families: &[u32]) -> Result<(), Fault> {
        if !families.is_empty() && !self.has_slots(&lock(&self.taken), families) {
            return Err(self.no_slot());
        }
        // ORDERING: Relaxed; a thread that sees it late writes into the spare room.
        if bytes <= SPARE / RUNS && self.has_spare.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut spare = lock(&self.spare);
        let heap = self.records();
        let mut asked = Vec::new();
        let mut result = Ok(());
        while result.is_ok() && spare.len() < RUNS as usize {
            result = heap.alloc(SPARE / RUNS).map(|run| spare.push(run));
        }
        if bytes > SPARE / RUNS {
            // One record may need all of it in one run; if there are many, they need more.
            let chunks = (0..=bytes / CHUNK).map(|_| CHUNK);
            for wanted in [bytes].into_iter().chain(chunks) {
                result = result.and_then(|()| heap.alloc(wanted).map(|run| asked.push(run)));
            }
        }
        for run in asked {
            heap.free(run);
        }
        self.has_spare
            .store(spare.len() == RUNS as usize, Ordering::Relaxed);
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

/// Returns what a word of the directory says.
fn read(pool: &Pool<Auto>, directory: &Root<Auto>, at: usize, what: &str) -> Result<u64, Fault> {
    // ORDERING: Relaxed; this thread is alone.
    let found = directory.word(at).load(pool.pm(), Ordering::Relaxed);
    word::open(found).ok_or_else(|| {
        let what = format!("word {at} of its directory ({what}) is {found:#x}: its check is wrong");
        Fault::corrupt(pool.path(), what)
    })
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
