//! Shared parts of the tests of pools: the kind of a root, words of a pool, and a medium that notes
//! what a pool asks of it.
#![allow(dead_code, reason = "each test file uses a part")]

use bristlecone_pmem::cell::PWord;
use bristlecone_pmem::media::{Dram, Instrument, Mapped, MediaOptions, Recorder, Untraced};
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::pool::{DataKind, RootKind};
use bristlecone_pmem::{
    Access, CommitError, Media, MediumKind, OpenError, Pool, PoolOptions, SpaceError,
};
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Address space of the pools.
pub const RESERVE: u64 = 1 << 30;

pub fn kind() -> RootKind {
    RootKind {
        design: "t".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: 256,
    }
}

pub fn options() -> PoolOptions {
    with(Access::ReadWrite)
}

pub fn with(access: Access) -> PoolOptions {
    let mut options = PoolOptions::default();
    options.media.reserve = RESERVE;
    options.media.access = access;
    options
}

/// Returns a new pool in memory.
pub fn dram() -> Arc<Pool<Dram>> {
    Pool::create(Path::new("dram"), &options()).unwrap()
}

/// Returns a word of a pool.
pub fn word<M: Media>(pm: &M, at: u64) -> &PWord {
    assert!(at.is_multiple_of(8) && at + 8 <= pm.len(), "word {at:#x}");
    // SAFETY: 1. inside the pool, and aligned (just checked); 2. every bit pattern is a PWord; 3.
    // the mapping lives as long as the medium.
    unsafe { &*pm.base().wrapping_add(at as usize).cast() }
}

pub fn load<M: Media>(pm: &M, at: u64) -> u64 {
    word(pm, at).load(pm, Ordering::Relaxed)
}

pub fn store<M: Media>(pm: &M, at: u64, value: u64) {
    word(pm, at).store(pm, value, Ordering::Relaxed);
}

/// Fills a block with words that no other block has.
pub fn fill<M: Media>(pm: &M, block: u64, bytes: u64) {
    (block..block + bytes)
        .step_by(8)
        .for_each(|at| store(pm, at, !at));
}

/// Whether a block holds what [`fill`] wrote.
pub fn is_filled<M: Media>(pm: &M, block: u64, bytes: u64) -> bool {
    (block..block + bytes)
        .step_by(8)
        .all(|at| load(pm, at) == !at)
}

/// What a pool asks its medium to do with its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Grow(u64),
    Shrink(u64),
    Punch { at: u64, bytes: u64 },
    Back { at: u64, bytes: u64 },
    Commit,
    Sync,
}

type Hook = Box<dyn FnMut(&Mapped) + Send>;

/// Says whether something that is asked for is refused.
type Refuses = fn(Asked) -> bool;

/// `Mapped`, which notes what is asked of it, has as much capacity as a test gives it, and refuses
/// when told. A new file whose name ends in `.short` is too short for a pool.
pub struct Noting {
    mapped: Mapped,
    pub capacity: u64,
    /// Whether some of it may have no space behind it.
    pub sparse: bool,
    asked: Mutex<Vec<Asked>>,
    refuse: Mutex<Option<Refuses>>,
    at_length: Mutex<Option<Hook>>,
}

impl Noting {
    /// Returns what was asked since the last call.
    pub fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    /// Refuses what `refuse` is true for, from now on.
    pub fn refuse(&self, refuse: fn(Asked) -> bool) {
        *self.refuse.lock().unwrap() = Some(refuse);
    }

    /// Refuses nothing.
    pub fn allow(&self) {
        *self.refuse.lock().unwrap() = None;
    }

    /// Calls `hook` whenever the pool asks how long it is.
    /// Not while the hook itself runs.
    pub fn at_length(&self, hook: impl FnMut(&Mapped) + Send + 'static) {
        *self.at_length.lock().unwrap() = Some(Box::new(hook));
    }

    fn note(&self, asked: Asked) -> Result<(), io::Error> {
        self.asked.lock().unwrap().push(asked);
        match *self.refuse.lock().unwrap() {
            Some(refuse) if refuse(asked) => Err(io::Error::other(format!("{asked:?} refused"))),
            _ => Ok(()),
        }
    }

    fn space(&self, asked: Asked) -> Result<(), SpaceError> {
        self.note(asked)
            .map_err(|e| SpaceError::io("asking the medium", e))
    }
}

impl Instrument for Noting {
    type Dram = Untraced;
}

// SAFETY: 1 to 6. as of `Mapped`, which it wraps; its capacity is constant, and not below a length.
unsafe impl Media for Noting {
    fn open(path: &Path, initial: u64, options: &MediaOptions) -> Result<Self, OpenError> {
        let is_short = path.extension().is_some_and(|end| end == "short");
        let mapped = Mapped::open(path, if is_short { CHUNK } else { initial }, options)?;
        Ok(Self {
            capacity: mapped.capacity(),
            sparse: false,
            mapped,
            asked: Mutex::default(),
            refuse: Mutex::default(),
            at_length: Mutex::default(),
        })
    }

    fn kind(&self) -> MediumKind {
        self.mapped.kind()
    }

    fn flush(&self, addr: *const u8, len: usize) {
        self.mapped.flush(addr, len);
    }

    fn fence(&self) {
        self.mapped.fence();
    }

    fn commit(&self) -> Result<(), CommitError> {
        self.note(Asked::Commit)
            .map_err(|source| CommitError::Failed {
                doing: "commit",
                source,
            })
    }

    fn base(&self) -> *mut u8 {
        self.mapped.base()
    }

    fn len(&self) -> u64 {
        let hook = self.at_length.lock().unwrap().take();
        if let Some(mut hook) = hook {
            hook(&self.mapped);
            self.at_length.lock().unwrap().get_or_insert(hook);
        }
        self.mapped.len()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn grow(&self, len: u64) -> Result<(), SpaceError> {
        self.space(Asked::Grow(len))?;
        if len > self.capacity {
            return Err(SpaceError::Capacity {
                wanted: len,
                capacity: self.capacity,
            });
        }
        self.mapped.grow(len)
    }

    fn shrink(&self, len: u64) -> Result<(), SpaceError> {
        self.space(Asked::Shrink(len))?;
        self.mapped.shrink(len)
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<(), SpaceError> {
        self.space(Asked::Punch { at, bytes })?;
        self.mapped.punch(at, bytes)
    }

    fn back(&self, at: u64, bytes: u64) -> Result<(), SpaceError> {
        self.space(Asked::Back { at, bytes })?;
        self.mapped.back(at, bytes)
    }

    fn sparse(&self) -> bool {
        self.sparse
    }

    fn read_only(&self) -> bool {
        self.mapped.read_only()
    }

    fn sync(&self) -> Result<(), CommitError> {
        let failed = |source| CommitError::Failed {
            doing: "sync",
            source,
        };
        self.note(Asked::Sync).map_err(failed)?;
        self.mapped.sync()
    }

    fn recorder(&self) -> Option<&Recorder> {
        self.mapped.recorder()
    }
}
