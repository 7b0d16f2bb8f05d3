//! Pools: one file (or device), several named roots, growth in place.
//!
//! ```text
//! | chunk 0: superblocks, chunk table, root table | chunks of 64 KiB, assigned to roots ... |
//! ```
//!
//! The layout is in [`layout`]. A pool is opened by one writer, or by any number of readers (file
//! lock). A reader's mapping is private: recovery may repair what it sees, and nothing of that
//! reaches the file.
//!
//! # Opening
//! 1. The medium makes its content whole (the journal is replayed).
//! 2. The superblock copies are read; errors say what the file is instead.
//! 3. Chunk tables and roots are checked. A bad word there is an error that names it.
//! 4. A writer marks the pool in use, durably, and only then may anything else change.
//! 5. Chunks of roots that were never published are freed.
//!
//! Roots recover themselves when they are opened (their own clean flag says how).
//!
//! # Concurrency
//! All methods may be called from any thread. Space is managed under one lock, taken once per
//! chunk, not per block. Order of the locks: `open_roots` or `tail`, `blocks`, an allocator's own,
//! `space`, `superblock`.

mod backup;
mod blocks;
mod check;
mod roots;
mod space;
mod superblock;
mod write_back;

pub use crate::format::layout;
pub use crate::format::layout::MAX_RUN;
pub use crate::format::superblock::FORMAT;
pub use backup::BackupError;
pub use blocks::HeapStats;
pub(crate) use blocks::{Blocks, Freed, Held, choose};
pub use check::{PoolReport, PoolViolation};
pub use roots::{DataKind, ROOT_NAME, ROOT_WORDS, Root, RootError, RootInfo, RootKind};
pub use space::CompactReport;

use crate::cell::PWord;
use crate::error::{CommitError, OpenError, Wrong};
use crate::format::classes::CLASSES;
use crate::format::superblock::{MAGIC, Superblock};
use crate::format::{
    activated,
    layout::{CHUNK, ChunkUse, INITIAL, REGION, REGION_CHUNKS, ROOTS},
};
use crate::media::{Access, Media, MediaOptions, MediaRecovery, MediumKind};
use crate::planted;
use crate::sync::lock;
use space::Space;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use uuid::Uuid;

/// Options for creating or opening a pool.
#[derive(Clone, Debug, Default)]
pub struct PoolOptions {
    /// The medium's options; `access` is overridden by [`Pool::create`].
    pub media: MediaOptions,
}

impl PoolOptions {
    /// Options for a read-only open.
    #[must_use]
    pub fn read_only() -> Self {
        let mut options = Self::default();
        options.media.access = Access::ReadOnly;
        options
    }
}

/// Identity, size and state of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolInfo {
    /// Format version of the file.
    pub format: u32,
    /// Identity of the pool.
    pub uuid: Uuid,
    /// The pool's medium.
    pub medium: MediumKind,
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Bytes in use: blocks handed out, and the pool's own tables. A root that is not open counts
    /// with all of its chunks, less free activated blocks.
    pub used_bytes: u64,
    /// Bytes that can be handed out without growing.
    pub free_bytes: u64,
    /// Share of the assigned chunks that is not in use, 0 to 1.
    pub fragmentation: f64,
    /// True if the pool had been closed cleanly before this opening.
    pub was_clean: bool,
    /// The medium's repairs at this opening.
    pub media_recovery: MediaRecovery,
}

/// An open pool.
pub struct Pool<M: Media> {
    /// The allocator of each root, new at every opening of the root: frees that an earlier
    /// opening deferred must not reach it.
    blocks: Mutex<[Option<Arc<Blocks>>; ROOTS]>,
    freed: Arc<Freed>,
    space: Mutex<Space>,
    superblock: Mutex<Superblock>,
    open_roots: Mutex<u64>,
    /// Held while the end of the file is being cut off, and while the file is being copied.
    tail: Mutex<()>,
    path: PathBuf,
    was_clean: bool,
    /// False while it is being made or opened. Giving that up is no clean close.
    is_open: bool,
    /// It is [salvaged](Pool::salvage).
    is_salvaged: bool,
    /// Faults that its opening passed over.
    problems: Vec<String>,
    // Last, so that the mapping outlives everything that leads into it.
    pm: M,
}

impl<M: Media> std::fmt::Debug for Pool<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl<M: Media> Pool<M> {
    /// Makes a pool at `path`. It is there, clean and empty, from the moment this returns.
    ///
    /// # Errors
    /// [`OpenError::Exists`] and others; no file is left behind.
    pub fn create(path: &Path, options: &PoolOptions) -> Result<Arc<Self>, OpenError> {
        let mut media = options.media.clone();
        media.access = Access::Create;
        let made = Self::create_on(M::open(path, INITIAL, &media)?, path);
        if made.is_err() && std::fs::metadata(path).is_ok_and(|m| m.is_file()) {
            // The half-made file is useless; the first error is reported.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// As [`create`](Self::create), on a medium that was opened to make a pool, with
    /// [`layout::INITIAL`] bytes at least; `path` names it in errors.
    ///
    /// # Errors
    /// [`OpenError`]; what the medium has written is left behind.
    pub fn create_on(pm: M, path: &Path) -> Result<Arc<Self>, OpenError> {
        let size = pm.len() / CHUNK * CHUNK;
        if size < 2 * CHUNK {
            return Err(OpenError::Unsupported {
                path: path.to_path_buf(),
                what: format!("{} bytes are too few for a pool", pm.len()),
            });
        }
        let superblock = Superblock {
            generation: 1,
            size,
            uuid: Uuid::new_v4(),
            clean: false,
            medium: Some(pm.kind()),
            // No copy counts yet; A is written first, so that what an interrupted making leaves is
            // told from a pool that lost both.
            copy: 1,
        };
        let mut pool = Self::assemble(pm, path, superblock, true);
        Superblock::erase(&pool.pm);
        if pool.clear_tables() {
            // PERSIST: chunk tables and roots, before the superblock makes this a pool.
            pool.pm.fence();
        }
        // PERSIST: (in `write`) from here on this is a pool.
        pool.superblock
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .write(&pool.pm);
        pool.load_chunks(&mut Wrong::Refused)?;
        let uuid = pool.uuid();
        pool.pm.attach(*uuid.as_bytes())?;
        pool.pm.commit()?;
        pool.is_open = true;
        Ok(Arc::new(pool))
    }

    /// Opens the pool at `path` for writing, or for reading if the options say so.
    ///
    /// # Errors
    /// An [`OpenError`] that says what the file is. Nothing has changed.
    pub fn open(path: &Path, options: &PoolOptions) -> Result<Arc<Self>, OpenError> {
        if options.media.access == Access::Salvage {
            return Err(OpenError::Unsupported {
                path: path.to_path_buf(),
                what: "`Pool::salvage` opens pools so".into(),
            });
        }
        Self::open_on(M::open(path, INITIAL, &options.media)?, path)
    }

    /// Opens the pool at `path` for reading what is whole in it, past damage of its own tables, of
    /// its superblock and of its journal, and without the journal if that is missing or another
    /// pool's. [`problems`](Self::problems) says what was wrong. Nothing is written.
    ///
    /// # Errors
    /// There is no pool, or it is another build's, or so little of it that nothing can be read.
    ///
    /// ```
    /// use bristlecone_pmem::media::Auto;
    /// use bristlecone_pmem::{Pool, PoolOptions};
    /// # let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("pool");
    /// drop(Pool::<Auto>::create(&path, &PoolOptions::default())?);
    /// let pool = Pool::<Auto>::salvage(&path)?;
    /// assert!(pool.problems().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn salvage(path: &Path) -> Result<Arc<Self>, OpenError> {
        let options = MediaOptions {
            access: Access::Salvage,
            ..MediaOptions::default()
        };
        let pm = M::open(path, INITIAL, &options)?;
        let mut problems = pm.recovery().problems;
        let mut pool = Self::open_as(pm, path, &mut Wrong::Noted(&mut problems))?;
        pool.problems = problems;
        Ok(Arc::new(pool))
    }

    /// Whether it was opened by [`salvage`](Self::salvage): what leads to its blocks may be wrong.
    pub fn is_salvaged(&self) -> bool {
        self.is_salvaged
    }

    /// Returns what was wrong with a pool that was opened by [`salvage`](Self::salvage).
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// As [`open`](Self::open), on a medium that was opened on a pool; `path` names it in errors.
    ///
    /// # Errors
    /// As there.
    pub fn open_on(pm: M, path: &Path) -> Result<Arc<Self>, OpenError> {
        Self::open_as(pm, path, &mut Wrong::Refused).map(Arc::new)
    }

    /// As [`open_on`](Self::open_on); `wrong` says what becomes of damage.
    fn open_as(pm: M, path: &Path, wrong: &mut Wrong<'_>) -> Result<Self, OpenError> {
        let corrupt = |what: String| OpenError::Corrupt {
            path: path.to_path_buf(),
            what,
        };
        if pm.len() < 2 * CHUNK {
            return Err(short_file(path, pm.len()));
        }
        let mut superblock = match Superblock::read(&pm, path) {
            Ok(superblock) => superblock,
            // A file of something else.
            Err(e @ OpenError::NotAPool { .. }) if !roots::are_in(&pm) => return Err(e),
            Err(e) => {
                wrong.found(e)?;
                Superblock::guess(&pm)
            }
        };
        if superblock.size > pm.len() {
            wrong.found(OpenError::Truncated {
                path: path.to_path_buf(),
                expected: superblock.size,
                found: pm.len(),
            })?;
            // The missing end reads as zeros, as far as a block may go that begins before it.
            let size = superblock.size.min(pm.len().next_multiple_of(REGION)) / CHUNK * CHUNK;
            superblock.size = match pm.pad(size) {
                Ok(()) => size,
                Err(_) => pm.len() / CHUNK * CHUNK,
            };
        }
        if superblock.size % CHUNK != 0 || superblock.size < 2 * CHUNK {
            wrong.found(corrupt(format!(
                "superblock: a size of {} bytes",
                superblock.size
            )))?;
            superblock.size = pm.len() / CHUNK * CHUNK;
        }
        if let Some(written) = superblock.medium
            && !superblock.clean
            && written == MediumKind::Journal
            && pm.kind() != MediumKind::Journal
        {
            return Err(OpenError::WrongMedium {
                path: path.to_path_buf(),
                written: written.name(),
                asked: pm.kind().name(),
            });
        }
        if superblock.medium == Some(pm.kind()) && !superblock.clean && !pm.history_found() {
            wrong.found(corrupt(
                "it was not closed cleanly and its journal file is missing; put that back beside it"
                    .into(),
            ))?;
        }
        let was_clean = superblock.clean;
        let mut pool = Self::assemble(pm, path, superblock, was_clean);
        pool.is_salvaged = matches!(wrong, Wrong::Noted(_));
        for index in 0..ROOTS {
            if let Err(what) = pool.root_at(index) {
                let mended = pool.is_salvaged && pool.mend_root(index);
                let mended = if mended {
                    "; one wrong bit was turned back"
                } else {
                    ""
                };
                wrong.found(corrupt(format!("{what}{mended}")))?;
            }
        }
        let unowned = pool.load_chunks(wrong)?;
        if !pool.pm.read_only() {
            if pool.pm.keeps_unflushed() {
                pool.write_back();
            }
            if pool.pm.len() > pool.size() {
                // Crash state 2 or 3 of `space`: new space must start as zeros. A size that a
                // killed process wrote is durable by now.
                pool.pm.shrink(pool.size())?;
            }
        }
        {
            let mut superblock = lock(&pool.superblock);
            *superblock = superblock.clone().opened(pool.pm.kind());
            // PERSIST: (in `write`) the pool is in use, before anything else changes.
            superblock.write(&pool.pm);
        }
        if !pool.is_salvaged {
            pool.pm.attach(*pool.uuid().as_bytes())?;
        }
        for (first, chunks) in unowned {
            if planted!(pool.pm, "pool-unowned-kept") {
                break;
            }
            pool.release_chunks(first, chunks);
        }
        pool.is_open = true;
        Ok(pool)
    }

    fn assemble(pm: M, path: &Path, superblock: Superblock, was_clean: bool) -> Self {
        Self {
            blocks: Mutex::new([const { None }; ROOTS]),
            freed: Arc::default(),
            space: Mutex::new(Space::default()),
            superblock: Mutex::new(superblock),
            open_roots: Mutex::new(0),
            tail: Mutex::new(()),
            path: path.to_path_buf(),
            was_clean,
            is_open: false,
            is_salvaged: false,
            problems: Vec::new(),
            pm,
        }
    }

    /// Reads all chunk tables: fills the free set, returns runs that belong to no published root.
    fn load_chunks(&mut self, wrong: &mut Wrong<'_>) -> Result<Vec<(u32, u32)>, OpenError> {
        let path = self.path.clone();
        let corrupt = |chunk: u32, what: &str| OpenError::Corrupt {
            path: path.clone(),
            what: format!(
                "chunk {chunk} (offset {:#x}): {what}",
                u64::from(chunk) * CHUNK
            ),
        };
        let end = (self.size() / CHUNK) as u32;
        let (mut free, mut unowned) = (BTreeSet::new(), Vec::new());
        let absent: [bool; ROOTS] = std::array::from_fn(|i| matches!(self.root_at(i), Ok(None)));
        let mut chunk = 0;
        while chunk < end {
            let mut owned_by = |owner: u8, chunks: u32| {
                if absent[usize::from(owner)] {
                    unowned.push((chunk, chunks));
                }
                chunks
            };
            let chunks = match self.sound_use(chunk, end) {
                Ok(ChunkUse::Header) => 1,
                Ok(ChunkUse::Free) => {
                    free.insert(chunk);
                    1
                }
                Ok(ChunkUse::Blocks { owner, .. } | ChunkUse::Activated { owner, .. }) => {
                    owned_by(owner, 1)
                }
                Ok(ChunkUse::Run { owner, chunks }) => owned_by(owner, chunks),
                Err(what) => {
                    wrong.found(corrupt(chunk, what))?;
                    1
                }
            };
            for tail in chunk + 1..chunk + chunks {
                if self.chunk_use(tail) != Some(ChunkUse::Free) {
                    wrong.found(corrupt(tail, "in use inside another run"))?;
                }
            }
            chunk += chunks;
        }
        let space = self.space.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.pm.sparse() {
            space.holes = free.clone();
        }
        space.free = free;
        Ok(unowned)
    }

    /// Returns the use of `chunk`, of which there are `end`, if it can be.
    fn sound_use(&self, chunk: u32, end: u32) -> Result<ChunkUse, &'static str> {
        let used = (self.chunk_use(chunk)).ok_or("its chunk-table word fails its check")?;
        let header = u64::from(chunk) % REGION_CHUNKS == 0;
        match used {
            ChunkUse::Header if !header => Err("a header where none belongs"),
            _ if header && used != ChunkUse::Header => Err("no header where one belongs"),
            ChunkUse::Blocks { class, .. } if usize::from(class) >= CLASSES.len() => {
                Err("an unknown size class")
            }
            ChunkUse::Activated { class, .. } if !activated::is_class(class) => {
                Err("an unknown size class")
            }
            ChunkUse::Run { chunks, .. } => {
                let stop = u64::from(chunk) + u64::from(chunks);
                let region_end = u64::from(chunk).next_multiple_of(REGION_CHUNKS);
                if stop > u64::from(end) || stop > region_end {
                    return Err("a run that leaves its region");
                }
                Ok(used)
            }
            _ => Ok(used),
        }
    }

    /// Clears the words that decide about chunks and roots: a device may hold anything, while a
    /// file holds zeros already. That includes all of a region's table, since the pool may grow
    /// into the rest of the region. Flushes and does not fence. Returns true if something had to be
    /// changed.
    fn clear_tables(&self) -> bool {
        let mut changed = false;
        let mut clear = |word: &PWord, value: u64| {
            // ORDERING (both): Relaxed; the pool is not shared yet.
            if word.load(&self.pm, Ordering::Relaxed) != value {
                word.store(&self.pm, value, Ordering::Relaxed);
                // PERSIST: fenced by the caller.
                self.pm.flush_of(word);
                changed = true;
            }
        };
        for chunk in 0..(self.size().div_ceil(REGION) * REGION_CHUNKS) as u32 {
            let header = u64::from(chunk).is_multiple_of(REGION_CHUNKS);
            let used = if header {
                ChunkUse::Header
            } else {
                ChunkUse::Free
            };
            clear(self.chunk_word(chunk), used.encode());
        }
        for index in 0..ROOTS as u64 {
            let state = self.word_at(layout::ROOT_TABLE + index * layout::ROOT_SLOT);
            clear(state, 0);
        }
        changed
    }

    /// Returns true if some chunk belongs to root slot `owner`.
    fn owned(&self, owner: u8) -> bool {
        !self.chunks_of(owner).is_empty()
    }

    /// Returns the chunks of root slot `owner`: first chunk and use of each.
    pub(crate) fn chunks_of(&self, owner: u8) -> Vec<(u32, ChunkUse)> {
        // Locked, so that the tables are not cut off meanwhile.
        let _space = lock(&self.space);
        let end = (self.size() / CHUNK) as u32;
        (0..end)
            .filter_map(|chunk| Some((chunk, self.sound_use(chunk, end).ok()?)))
            .filter(|(_, used)| match used {
                ChunkUse::Blocks { owner: o, .. }
                | ChunkUse::Activated { owner: o, .. }
                | ChunkUse::Run { owner: o, .. } => *o == owner,
                ChunkUse::Free | ChunkUse::Header => false,
            })
            .collect()
    }

    /// Returns the durable use of each of these chunks.
    pub(crate) fn chunk_uses(&self, chunks: std::ops::Range<u32>) -> Vec<(u32, ChunkUse)> {
        // Locked: a word that is being changed is not durable before the lock is free again.
        let _space = lock(&self.space);
        chunks
            .filter_map(|chunk| Some((chunk, self.chunk_use(chunk)?)))
            .collect()
    }

    /// Returns the bytes of chunks of activated blocks that are in no active one.
    fn free_activated_bytes(&self) -> u64 {
        // Locked, so that the tables are not cut off meanwhile.
        let _space = lock(&self.space);
        let end = (self.size() / CHUNK) as u32;
        let chunks = (0..end).map(|chunk| match self.sound_use(chunk, end) {
            Ok(ChunkUse::Activated { class, .. }) => self.free_bytes_of_activated(chunk, class),
            _ => 0,
        });
        chunks.sum()
    }

    /// Returns the 8-byte word at `at`, which is inside the pool and 8-aligned.
    pub(crate) fn word_at(&self, at: u64) -> &PWord {
        debug_assert!(
            at.is_multiple_of(8) && at + 8 <= self.pm.len(),
            "word at {at:#x}"
        );
        // SAFETY: 1. callers pass places inside the pool; 2. 8-aligned; 3. every bit pattern is a
        // valid PWord; 4. the mapping outlives the borrow of `self`.
        unsafe { &*self.pm.base().wrapping_add(at as usize).cast::<PWord>() }
    }

    /// Which blocks are in use of root slot `owner`, which is open.
    pub(crate) fn blocks_of(&self, owner: u8) -> Arc<Blocks> {
        let mut all = lock(&self.blocks);
        let chunks = (self.pm.capacity().max(self.pm.len()) / CHUNK) as usize;
        let new = || Arc::new(Blocks::new(owner, chunks, Arc::clone(&self.freed)));
        Arc::clone(all[usize::from(owner)].get_or_insert_with(new))
    }

    /// Forgets the blocks of root slot `owner`, which is being closed.
    fn drop_blocks(&self, owner: usize) {
        lock(&self.blocks)[owner] = None;
    }

    fn open_blocks(&self) -> Vec<Arc<Blocks>> {
        let all = lock(&self.blocks);
        all.iter().flatten().map(Arc::clone).collect()
    }

    /// Returns the medium.
    #[inline]
    pub fn pm(&self) -> &M {
        &self.pm
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the bytes of the pool.
    pub fn size(&self) -> u64 {
        lock(&self.superblock).size
    }

    /// Identity of the pool.
    pub fn uuid(&self) -> Uuid {
        lock(&self.superblock).uuid
    }

    /// Returns identity, size and state of the pool.
    pub fn info(&self) -> PoolInfo {
        let (size, uuid, unassigned) = {
            // Both at once, or the pool may grow in between.
            let space = lock(&self.space);
            let superblock = lock(&self.superblock);
            (
                superblock.size,
                superblock.uuid,
                space.free.len() as u64 * CHUNK,
            )
        };
        let assigned = size - unassigned;
        let free_blocks: u64 = self
            .open_blocks()
            .iter()
            .map(|blocks| blocks.free_bytes())
            .sum();
        let free_blocks = free_blocks + self.free_activated_bytes();
        // Chunks assigned meanwhile may bring more free blocks than there was room for.
        let free_blocks = free_blocks.min(assigned);
        PoolInfo {
            format: FORMAT,
            uuid,
            medium: self.pm.kind(),
            pool_bytes: size,
            used_bytes: assigned - free_blocks,
            free_bytes: unassigned + free_blocks,
            fragmentation: if assigned == 0 {
                0.0
            } else {
                free_blocks as f64 / assigned as f64
            },
            was_clean: self.was_clean,
            media_recovery: self.pm.recovery(),
        }
    }

    /// Makes the content durable in the pool file itself, whatever the durability level.
    ///
    /// # Errors
    /// [`CommitError`] when the disk refuses.
    pub fn sync(&self) -> Result<(), CommitError> {
        self.pm.sync()
    }
}

impl<M: Media> Drop for Pool<M> {
    /// Marks the pool clean. Roots have been closed by then, since each holds the pool.
    fn drop(&mut self) {
        if self.pm.read_only() || !self.is_open {
            return;
        }
        // PERSIST: (in `sync`) everything that was fenced, before the pool counts as clean.
        if self.pm.sync().is_err() {
            return; // stays marked in use; the next opening recovers
        }
        let superblock = self
            .superblock
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        superblock.generation += 1;
        superblock.clean = true;
        // PERSIST: (in `write`) the pool is clean; nothing follows.
        superblock.write(&self.pm);
        // A failure leaves the old mark, which costs a recovery and nothing else.
        let _ = self.pm.sync();
    }
}

fn short_file(path: &Path, len: u64) -> OpenError {
    use std::io::Read;
    let mut start = [0; 8];
    let magic = std::fs::File::open(path)
        .and_then(|mut f| f.read_exact(&mut start))
        .is_ok()
        && start == MAGIC;
    if magic {
        OpenError::Truncated {
            path: path.to_path_buf(),
            expected: 2 * CHUNK,
            found: len,
        }
    } else {
        OpenError::NotAPool {
            path: path.to_path_buf(),
            found: if len == 0 {
                "the file is empty".into()
            } else {
                format!("only {len} bytes")
            },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
