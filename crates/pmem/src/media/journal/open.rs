//! Opening replays the journal or makes a new one. A session begins when the pool is attached.

use super::checkpoint::zero;
use super::commit::{Core, Keeper};
use super::format::{self, FIRST_SEGMENTS, Frame, Header, Position};
use super::image::{Behind, DirtyPages, Image};
use super::log::Log;
use super::recover::{Chain, Discard, Owner, Source, ToImage, foreign, is_named, nameless, owner};
use super::stage::Stage;
use super::stats::Stats;
use super::storage::Shared;
use super::{Journal, Storage, journal_path};
use crate::error::{OpenError, Wrong};
use crate::media::mapping::{Mapping, Sharing};
use crate::media::{Access, LINE, MediaOptions, MediaRecovery, Recorder, Sections};
use crate::sync::lock;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Number of segments of a journal of its full length, unless they would be too small or too large.
const SEGMENTS: u64 = 64;
/// Largest segment in a new journal.
const LARGEST_SEGMENT: u64 = 1 << 20;

/// Returns the header that a new journal starts from.
fn new_header(uuid: [u8; 16], journal_max: u64) -> Header {
    let ideal = (journal_max / SEGMENTS).max(1);
    // Both bounds are powers of two that fit 32 bits.
    let segment_bytes = (1u64 << ideal.ilog2())
        .clamp(u64::from(*format::SEGMENT_BYTES.start()), LARGEST_SEGMENT)
        as u32;
    Header {
        version: format::FORMAT,
        uuid,
        generation: 0,
        epoch: 0,
        head: Position {
            seq: 1,
            segment: 0,
            offset: 0,
        },
        segment_bytes,
        segments: FIRST_SEGMENTS,
        required: 0,
        floor: 0,
    }
}

impl Journal {
    /// Opens a pool on two given files, filling anonymous memory from `pool`; `path` names it in
    /// errors.
    ///
    /// # Errors
    /// As [`Media::open`](crate::Media::open).
    pub fn open_on(
        pool: Arc<dyn Storage>,
        journal: Arc<dyn Storage>,
        path: &Path,
        initial: u64,
        options: &MediaOptions,
    ) -> Result<Self, OpenError> {
        let io = |e| OpenError::io(path, "read", e);
        if options.access == Access::Create {
            pool.allocate(0, initial)
                .map_err(|e| OpenError::io(path, "reserve space", e))?;
        }
        let len = pool.size().map_err(io)?;
        let mapping = Mapping::map(path, None, Sharing::Anonymous, options.reserve)?;
        mapping.extend(len)?;
        let image = Image::new(mapping);
        let mut page = vec![0; 1 << 20];
        let mut at = 0;
        while at < len {
            let n = pool.read_full(at, &mut page).map_err(io)?;
            if n == 0 {
                break;
            }
            // The pool is whole lines long. The odd end of a cut file is no line of it.
            image.restore(at / LINE as u64, &page[..n - n % LINE]);
            at += n as u64;
        }
        Self::start(image, pool, journal, path, options)
    }

    /// Replays the journal, if there is one. Starts no thread.
    pub(super) fn start(
        image: Image,
        pool: Arc<dyn Storage>,
        journal: Arc<dyn Storage>,
        path: &Path,
        options: &MediaOptions,
    ) -> Result<Self, OpenError> {
        let read_only = options.access.reads_only();
        let journal_name = journal_path(path);
        let mut dirty = DirtyPages::default();
        let mut problems = Vec::new();
        let mut wrong = match options.access {
            Access::Salvage => Wrong::Noted(&mut problems),
            _ => Wrong::Refused,
        };
        let replayed = replay(
            &image, &*pool, &*journal, path, options, &mut dirty, &mut wrong,
        )?;
        let had_journal = replayed.is_some();
        let (header, slot, chain) = replayed.unwrap_or_else(|| {
            let header = new_header([0; 16], options.journal_max);
            let chain = Chain {
                end: header.head,
                live: vec![header.head.segment],
                unsure: VecDeque::new(),
                report: MediaRecovery::default(),
            };
            (header, 0, chain)
        });
        let recovery = MediaRecovery {
            journal_format: had_journal.then_some(header.version),
            problems,
            ..chain.report.clone()
        };
        let unsure = chain.unsure.clone();
        let log = log_after(&header, chain);
        let behind = Behind {
            dirty,
            writing: DirtyPages::default(),
        };
        let core = Core {
            image,
            pool,
            journal,
            aside: std::sync::OnceLock::new(),
            pool_aside: std::sync::OnceLock::new(),
            durability: options.durability,
            journal_max: options.journal_max,
            // Four chunks to a segment, so that little of one stays unused.
            stage: Stage::new(header.segment_bytes as usize / 4),
            chunk_lines: u64::from(header.segment_bytes) / 4 / (LINE as u64 + 8),
            sections: Sections::default(),
            dirty_most: AtomicU64::new(u64::MAX),
            recording: AtomicBool::new(!read_only),
            keeper: Mutex::new(Keeper {
                header,
                slot,
                unsure,
                last: None,
                copy: Vec::new(),
            }),
            log: Mutex::new(log),
            behind: Mutex::new(behind),
            progress: Mutex::default(),
            done: Condvar::new(),
            work: Condvar::new(),
            write: Condvar::new(),
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            trouble: AtomicBool::new(false),
            stats: Stats::default(),
        };
        {
            let log = lock(&core.log);
            let tight =
                !read_only && recovery.batches_replayed > 0 && log.free.len() <= log.reserve();
            drop(log);
            if tight {
                // The image is exactly the content of the journal, so it may go to the pool file
                // now. Later, the first frame might find no segment on a full disk.
                let mut keeper = lock(&core.keeper);
                core.settle(&*core.journal, &mut keeper, &journal_name)?;
                core.checkpoint(&mut keeper)?;
            }
        }
        Ok(Self {
            core: Arc::new(core),
            path: path.to_path_buf(),
            read_only,
            had_journal,
            recovery,
            begun: AtomicBool::new(false),
            attached: AtomicBool::new(false),
            recorder: Recorder::default(),
            threads: Mutex::default(),
        })
    }

    /// Makes a new journal file, or turns a foreign one without live frames into this pool's.
    pub(super) fn create_journal(
        &self,
        keeper: &mut Keeper,
        uuid: [u8; 16],
    ) -> Result<(), OpenError> {
        let path = journal_path(&self.path);
        let error = |doing| move |e| OpenError::io(&path, doing, e);
        let storage = &*self.core.journal;
        let header = Header {
            uuid,
            ..new_header(uuid, self.core.journal_max)
        };
        let end = header.file_offset(header.segments, 0);
        storage.truncate(0).map_err(error.clone()("empty"))?;
        storage
            .allocate(0, end)
            .map_err(error.clone()("reserve space"))?;
        // Beginning a session syncs them, before a header says that this is a journal.
        zero(storage, 0, end).map_err(error("zero"))?;
        keeper.header = header;
        self.begun.store(false, Ordering::Relaxed);
        let mut log = lock(&self.core.log);
        let chain = Chain {
            end: header.head,
            live: vec![0],
            unsure: VecDeque::new(),
            report: MediaRecovery::default(),
        };
        *log = log_after(&header, chain);
        Ok(())
    }

    /// Begins a session on the existing journal. Until then no frame may be written, and no page
    /// that was replayed from frames that may only be in the page cache.
    pub(super) fn begin(&self, keeper: &mut Keeper) -> Result<(), OpenError> {
        // ORDERING: Relaxed; only looked at under the keeper's lock.
        if self.begun.load(Ordering::Relaxed) {
            return Ok(());
        }
        let path = journal_path(&self.path);
        let aside = (self.core.journal.another()).map_err(|e| OpenError::io(&path, "open", e))?;
        let aside = self.core.aside.get_or_init(|| Arc::new(Shared::new(aside)));
        // Where the file cannot be opened again, as after a renaming, all goes into the journal.
        if let Ok(pool) = self.core.pool.another() {
            let _ = self.core.pool_aside.set(pool);
        }
        self.core.settle(&**aside, keeper, &path)?;
        let header = Header {
            epoch: keeper.header.epoch + 1,
            ..keeper.header
        };
        // PERSIST: the new epoch in both slots, before a frame carries it: a slot that is damaged
        // later takes no frame with it.
        self.core.write_header(keeper, header)?;
        self.core.write_header(keeper, header)?;
        lock(&self.core.log).epoch = header.epoch;
        self.begun.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Core {
    /// Makes every replayed frame durable. Those of a killed writer may never have been synced. And
    /// where a sync has failed, the page cache takes what the disk lacks for written: the frames
    /// that nothing calls durable are written once more.
    fn settle(
        &self,
        journal: &dyn Storage,
        keeper: &mut Keeper,
        path: &Path,
    ) -> Result<(), OpenError> {
        let salt = format::salt(&keeper.header.uuid);
        let mut bytes = Vec::new();
        for frame in &keeper.unsure {
            bytes.resize(frame.bytes, 0);
            let read = journal.read_full(frame.at, &mut bytes);
            let read = read.map_err(|e| OpenError::io(path, "read", e))?;
            let found = Frame::open(salt, &bytes[..read]).map(|(found, _)| found.seq);
            if found != Some(frame.seq) || read != frame.bytes {
                return Err(OpenError::Corrupt {
                    path: path.to_path_buf(),
                    what: format!(
                        "frame {} was there when it was replayed and now is not: the disk has not kept what was written; open the pool again, which goes on from what the disk has",
                        frame.seq
                    ),
                });
            }
            let again = journal.write_all(frame.at, &bytes);
            again.map_err(|e| OpenError::io(path, "write", e))?;
        }
        // PERSIST: every replayed frame, before frames are written behind it, or pages that are
        // ahead of those before it.
        journal.sync().map_err(|e| OpenError::io(path, "sync", e))?;
        keeper.unsure.clear();
        Ok(())
    }
}

/// Replays the journal into the image, if there is one of this pool. Returns its header, the slot
/// of that, and the replayed chain.
fn replay(
    image: &Image,
    pool: &dyn Storage,
    journal: &dyn Storage,
    path: &Path,
    options: &MediaOptions,
    dirty: &mut DirtyPages,
    wrong: &mut Wrong<'_>,
) -> Result<Option<(Header, usize, Chain)>, OpenError> {
    let journal_name = journal_path(path);
    let source = Source {
        storage: journal,
        path: &journal_name,
    };
    let found = match source.header() {
        Ok(found) => found,
        Err(e) => wrong.found(e).map(|()| None)?,
    };
    let Some((header, slot)) = found else {
        return Ok(None);
    };
    if options.access == Access::Create {
        // The journal is left from a pool that no longer exists; attaching the new pool replaces
        // it.
        return Ok(None);
    }
    let mut whose = owner(pool, &header).map_err(|e| OpenError::io(path, "read", e))?;
    if whose == Owner::Other
        && options.access == Access::Salvage
        && !is_named(pool).map_err(|e| OpenError::io(path, "read", e))?
    {
        wrong.found(nameless(&journal_name))?;
        whose = Owner::Same;
    }
    if whose == Owner::Other {
        let chain = source.replay(&header, &mut Discard, wrong)?;
        if chain.report.batches_replayed > 0 {
            wrong.found(foreign(&journal_name, &header, &chain))?;
        }
        return Ok(None);
    }
    let mut to = ToImage {
        image,
        pool,
        extends: !options.access.reads_only(),
        path,
        dirty,
    };
    let chain = source.replay(&header, &mut to, wrong)?;
    Ok(Some((header, slot, chain)))
}

/// Returns the log that continues where `chain` ends.
fn log_after(header: &Header, chain: Chain) -> Log {
    let live = std::collections::VecDeque::from(chain.live);
    let free = (0..header.segments).filter(|s| !live.contains(s)).collect();
    Log {
        salt: format::salt(&header.uuid),
        epoch: header.epoch,
        segment_bytes: header.segment_bytes,
        segments: header.segments,
        at: chain.end,
        next_seq: chain.end.seq,
        durable: chain.end.seq,
        written_lines: 0,
        durable_lines: 0,
        live,
        free,
        pending: std::collections::VecDeque::new(),
    }
}
