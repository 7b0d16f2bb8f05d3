//! Named roots: where each structure in a pool begins.
//!
//! ```text
//! root slot (1 KiB)
//!   0 | state: 0 = empty, "ROOTLIVE" = published (changed by NAW)
//!   8 | CRC-32C of bytes 16..128
//!  16 | name length (1 byte), name (47 bytes)
//!  64 | design name (16 bytes, zero-padded)
//!  80 | key kind (1 byte) | value kind (1 byte) | 2 unused | node bytes (u32) | unused
//! 128 | 112 words for the design's own use
//! ```
//!
//! # Crash states
//! A slot whose state is 0 is empty whatever else it holds; chunks that belong to such a slot are
//! freed at open. So a structure is built in full under an unpublished slot and appears with one
//! NAW.

use super::Pool;
use crate::cell::PWord;
use crate::error::SpaceError;
use crate::format::layout::{ROOT_SLOT, ROOT_TABLE, ROOTS};
use crate::media::Media;
use crate::planted;
use crate::sync::lock;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of words of a root slot that are the design's own.
pub const ROOT_WORDS: usize = 112;
/// Longest root name in bytes.
pub const ROOT_NAME: usize = 47;
const DESCRIPTOR: usize = 112;
/// State of a published slot: far from 0, so that no few flipped bits make a root vanish.
const PUBLISHED: u64 = u64::from_le_bytes(*b"ROOTLIVE");

const _: () = assert!(128 + ROOT_WORDS as u64 * 8 == ROOT_SLOT);
const _: () = assert!(16 + DESCRIPTOR == 128);

/// Type of keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataKind {
    /// 8-byte unsigned integers, in the node.
    U64,
    /// Byte strings, as records.
    Bytes,
    /// 16-byte unsigned integers, in the node.
    U128,
}

impl DataKind {
    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::U64 => "u64",
            Self::Bytes => "bytes",
            Self::U128 => "u128",
        }
    }
}

/// The kind of a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootKind {
    /// Name of the design ("lbtree"), at most 16 bytes.
    pub design: String,
    /// Type of the keys.
    pub keys: DataKind,
    /// Type of the values.
    pub values: DataKind,
    /// Bytes in a leaf.
    pub node_bytes: u32,
}

impl fmt::Display for RootKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} to {} in {}-byte nodes",
            self.design,
            self.keys.name(),
            self.values.name(),
            self.node_bytes
        )
    }
}

/// A root's name and kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootInfo {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: RootKind,
}

/// Why a root could not be had.
#[derive(Debug)]
#[non_exhaustive]
pub enum RootError {
    /// There is no root of that name.
    NotFound(String),
    /// There is one already.
    Exists(String),
    /// It is open already in this process.
    Busy(String),
    /// The name is empty or too long.
    BadName(String),
    /// All root slots are taken.
    Full,
    /// The root is of another kind than asked for.
    WrongKind {
        /// The root.
        name: String,
        /// The kind found.
        found: RootKind,
        /// The kind or size asked for.
        asked: RootKind,
    },
    /// The pool is open for reading only.
    ReadOnly,
    /// There is no room.
    Space(SpaceError),
}

impl fmt::Display for RootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(name) => write!(f, "no root {name:?} in this pool"),
            Self::Exists(name) => write!(f, "root {name:?} exists already"),
            Self::Busy(name) => write!(f, "root {name:?} is open already in this process"),
            Self::BadName(name) => {
                write!(f, "root name {name:?}: must have 1 to {ROOT_NAME} bytes")
            }
            Self::Full => write!(f, "all {ROOTS} root slots of this pool are taken"),
            Self::WrongKind { name, found, asked } => {
                write!(f, "root {name:?} is {found}, not {asked}")
            }
            Self::ReadOnly => write!(f, "the pool is open for reading only"),
            Self::Space(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for RootError {}

impl From<SpaceError> for RootError {
    fn from(e: SpaceError) -> Self {
        match e {
            SpaceError::ReadOnly => Self::ReadOnly,
            e => Self::Space(e),
        }
    }
}

/// The persistent image of a slot.
#[repr(C)]
struct Slot {
    state: PWord,
    crc: PWord,
    descriptor: [PWord; DESCRIPTOR / 8],
    words: [PWord; ROOT_WORDS],
}

const _: () = assert!(size_of::<Slot>() as u64 == ROOT_SLOT);

/// A root that this process has open. Dropping it lets it be opened again.
pub struct Root<M: Media> {
    pool: Arc<Pool<M>>,
    index: usize,
}

impl<M: Media> fmt::Debug for Root<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Root")
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

impl<M: Media> Drop for Root<M> {
    fn drop(&mut self) {
        let mut open = lock(&self.pool.open_roots);
        self.pool.drop_blocks(self.index);
        *open &= !(1 << self.index);
    }
}

impl<M: Media> Root<M> {
    /// Returns the pool.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    /// The design's word number `i`.
    ///
    /// # Panics
    /// If `i` is not below [`ROOT_WORDS`]: a bug in the design.
    pub fn word(&self, i: usize) -> &PWord {
        &self.pool.slot(self.index).words[i]
    }

    /// Returns the number of the root's slot.
    pub(crate) fn number(&self) -> u8 {
        self.index as u8
    }

    /// Makes the root findable. Everything that the calling thread flushed is durable before: the
    /// descriptor, and what the root leads to.
    pub fn publish(&self) {
        let pm = &self.pool.pm;
        // PERSIST: descriptor and structure, before the state word that makes them count.
        pm.fence();
        // PERSIST: the root exists from here on.
        self.pool.slot(self.index).state.publish(pm, PUBLISHED);
    }

    /// Takes an unpublished (or no longer wanted) root back and frees its slot. Its chunks are
    /// freed when the pool is next opened.
    pub fn unpublish(&self) {
        // PERSIST: the root no longer exists.
        self.pool.slot(self.index).state.publish(&self.pool.pm, 0);
    }
}

/// Whether a medium, which is two chunks long at least, has the published root of a pool, to within
/// a bit.
pub(super) fn are_in<M: Media>(pm: &M) -> bool {
    // ORDERING: Relaxed; the pool is being opened, by this thread.
    let state = |index| slot(pm, index).state.load(pm, Ordering::Relaxed);
    (0..ROOTS).any(|index| (state(index) ^ PUBLISHED).count_ones() <= 1)
}

fn slot<M: Media>(pm: &M, index: usize) -> &Slot {
    assert!(index < ROOTS, "root slots are numbered by this module");
    let at = ROOT_TABLE + index as u64 * ROOT_SLOT;
    // SAFETY: 1. the root table is inside chunk 0, which opening checked to be there; 2. slots are
    // 1 KiB apart, so 8-aligned; 3. every bit pattern is a valid Slot (it is all words); 4. the
    // mapping lives as long as `pm`.
    unsafe { &*pm.base().wrapping_add(at as usize).cast::<Slot>() }
}

impl<M: Media> Pool<M> {
    fn slot(&self, index: usize) -> &Slot {
        slot(&self.pm, index)
    }

    /// Returns the published root in slot `index`: `Ok(None)` if the slot is empty, `Err` if it is
    /// corrupt.
    pub(super) fn root_at(&self, index: usize) -> Result<Option<RootInfo>, String> {
        let slot = self.slot(index);
        // ORDERING: Acquire; pairs with the Release of `publish`.
        match slot.state.load(&self.pm, Ordering::Acquire) {
            0 => return Ok(None),
            PUBLISHED => {}
            other => return Err(format!("root slot {index}: state {other:#x}")),
        }
        let bytes = self.descriptor(slot);
        // ORDERING: Relaxed; written before `state` was published.
        if slot.crc.load(&self.pm, Ordering::Relaxed) != u64::from(crc32c::crc32c(&bytes)) {
            return Err(format!("root slot {index}: descriptor fails its checksum"));
        }
        decode(&bytes)
            .map(Some)
            .ok_or_else(|| format!("root slot {index}: descriptor names unknown kinds"))
    }

    /// Turns one wrong bit of a root slot's state, checksum or descriptor back, in memory that is
    /// this process's own. Returns false if more than one is wrong, or the slot is empty but for
    /// one bit.
    pub(super) fn mend_root(&self, index: usize) -> bool {
        let slot = self.slot(index);
        let mended = |slot: &Slot| {
            // ORDERING: Relaxed; the pool is being opened, by this thread.
            let word = slot.crc.load(&self.pm, Ordering::Relaxed);
            let bytes = self.descriptor(slot);
            word == u64::from(crc32c::crc32c(&bytes)) && decode(&bytes).is_some()
        };
        // ORDERING (all): Relaxed; as above.
        let state = slot.state.load(&self.pm, Ordering::Relaxed);
        if state != PUBLISHED {
            if (state ^ PUBLISHED).count_ones() > 1 || !mended(slot) {
                return false;
            }
            slot.state.store(&self.pm, PUBLISHED, Ordering::Relaxed);
            return true;
        }
        for word in std::iter::once(&slot.crc).chain(&slot.descriptor) {
            let was = word.load(&self.pm, Ordering::Relaxed);
            for bit in 0..64 {
                word.store(&self.pm, was ^ 1 << bit, Ordering::Relaxed);
                if mended(slot) {
                    return true;
                }
            }
            word.store(&self.pm, was, Ordering::Relaxed);
        }
        false
    }

    fn descriptor(&self, slot: &Slot) -> [u8; DESCRIPTOR] {
        let mut bytes = [0; DESCRIPTOR];
        for (word, out) in slot.descriptor.iter().zip(bytes.chunks_exact_mut(8)) {
            // ORDERING: Relaxed; written before `state` was published.
            out.copy_from_slice(&word.load(&self.pm, Ordering::Relaxed).to_le_bytes());
        }
        bytes
    }

    /// Returns the roots in this pool.
    pub fn roots(&self) -> Vec<RootInfo> {
        (0..ROOTS)
            .filter_map(|i| self.root_at(i).ok().flatten())
            .collect()
    }

    /// Starts a new root. It is not there after a crash until [`Root::publish`].
    ///
    /// # Errors
    /// [`RootError`]; nothing has changed then.
    pub fn create_root(
        self: &Arc<Self>,
        name: &str,
        kind: &RootKind,
    ) -> Result<Root<M>, RootError> {
        if self.pm.read_only() {
            return Err(RootError::ReadOnly);
        }
        if name.is_empty() || name.len() > ROOT_NAME || kind.design.len() > 16 {
            return Err(RootError::BadName(name.to_owned()));
        }
        let mut open = lock(&self.open_roots);
        if self.roots().iter().any(|root| root.name == name) {
            return Err(RootError::Exists(name.to_owned()));
        }
        // Or one that is being made under this name and is not published yet.
        let being_made = (0..ROOTS)
            .filter(|i| *open & (1 << i) != 0)
            .filter_map(|i| decode(&self.descriptor(self.slot(i))));
        if being_made.into_iter().any(|root| root.name == name) {
            return Err(RootError::Busy(name.to_owned()));
        }
        let index = (0..ROOTS)
            .find(|&i| {
                // ORDERING: Relaxed; under the lock.
                *open & (1 << i) == 0
                    && self.slot(i).state.load(&self.pm, Ordering::Relaxed) == 0
                    && !self.owned(i as u8)
            })
            .ok_or(RootError::Full)?;
        let slot = self.slot(index);
        if planted!(self.pm, "pool-root-first") {
            slot.state.publish(&self.pm, PUBLISHED);
        }
        let bytes = encode(name, kind);
        for (word, value) in slot.descriptor.iter().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(value);
            // ORDERING: Relaxed; `publish` orders it.
            word.store(&self.pm, u64::from_le_bytes(eight), Ordering::Relaxed);
        }
        slot.crc
            .store(&self.pm, crc32c::crc32c(&bytes).into(), Ordering::Relaxed);
        for word in &slot.words {
            word.store(&self.pm, 0, Ordering::Relaxed);
        }
        // PERSIST: the slot's content; `publish` fences it.
        self.pm.flush_of(slot);
        *open |= 1 << index;
        Ok(Root {
            pool: Arc::clone(self),
            index,
        })
    }

    /// Opens a published root.
    ///
    /// # Errors
    /// [`RootError::NotFound`], [`RootError::Busy`], or [`RootError::WrongKind`] when `kind` is
    /// given and differs.
    pub fn open_root(
        self: &Arc<Self>,
        name: &str,
        kind: Option<&RootKind>,
    ) -> Result<Root<M>, RootError> {
        let mut open = lock(&self.open_roots);
        for index in 0..ROOTS {
            let Ok(Some(info)) = self.root_at(index) else {
                continue;
            };
            if info.name != name {
                continue;
            }
            if let Some(asked) = kind
                && *asked != info.kind
            {
                return Err(RootError::WrongKind {
                    name: name.to_owned(),
                    found: info.kind,
                    asked: asked.clone(),
                });
            }
            if *open & (1 << index) != 0 {
                return Err(RootError::Busy(name.to_owned()));
            }
            *open |= 1 << index;
            return Ok(Root {
                pool: Arc::clone(self),
                index,
            });
        }
        Err(RootError::NotFound(name.to_owned()))
    }
}

fn encode(name: &str, kind: &RootKind) -> [u8; DESCRIPTOR] {
    let mut bytes = [0; DESCRIPTOR];
    // The caller checked both lengths.
    bytes[0] = name.len() as u8;
    bytes[1..=name.len()].copy_from_slice(name.as_bytes());
    bytes[48..48 + kind.design.len()].copy_from_slice(kind.design.as_bytes());
    let code = |kind: DataKind| match kind {
        DataKind::U64 => 1,
        DataKind::Bytes => 2,
        DataKind::U128 => 3,
    };
    bytes[64] = code(kind.keys);
    bytes[65] = code(kind.values);
    bytes[68..72].copy_from_slice(&kind.node_bytes.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; DESCRIPTOR]) -> Option<RootInfo> {
    let kind = |code: u8| match code {
        1 => Some(DataKind::U64),
        2 => Some(DataKind::Bytes),
        3 => Some(DataKind::U128),
        _ => None,
    };
    let name = std::str::from_utf8(bytes.get(1..1 + usize::from(bytes[0]))?).ok()?;
    let design = std::str::from_utf8(&bytes[48..64])
        .ok()?
        .trim_end_matches('\0');
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[68..72]);
    Some(RootInfo {
        name: name.to_owned(),
        kind: RootKind {
            design: design.to_owned(),
            keys: kind(bytes[64])?,
            values: kind(bytes[65])?,
            node_bytes: u32::from_le_bytes(four),
        },
    })
}
