//! The durable mark: the time below which all changes are as durable as the medium promises.
//!
//! On most media a change is durable before it is shown, so the mark is the present. On a
//! [journal](MediumKind::Journal) whose commits wait, changes are shown when they are captured, and
//! durable after the next sync. A store that shows nobody what a power cut could undo reads at the
//! mark there.
//!
//! # Concurrency
//! 1. The mark's time is always registered with [`versions`](super::versions), so what a read at
//!    the mark needs is kept. A time must be registered while it is the present: so a commit
//!    registers one, waits for the changes below it to be shown, commits, and then makes it the
//!    mark.
//! 2. The mark changes before its old time is given back. Whoever registers at the mark does so
//!    under the lock of the times, and so finds it registered.

use super::ClusteredTree;
use super::versions::Versions;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::media::Durability;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{CommitError, Media, MediumKind, planted};
use crossbeam_epoch as epoch;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the module's head.
#[derive(Debug)]
pub(super) struct Marks {
    /// Changes are shown before they are durable.
    pub(super) waits: bool,
    /// The mark, if changes wait.
    durable: AtomicU64,
    moving: Mutex<()>,
    failed: AtomicBool,
    error: Mutex<Option<CommitError>>,
}

impl Marks {
    /// None: the tree commits each change before it returns.
    pub(super) fn none() -> Self {
        Self::at(0, false)
    }

    /// All changes below `time`, the present, are durable.
    pub(super) fn new<M: Media>(pm: &M, versions: &Versions, time: u64) -> Self {
        let waits = pm.kind() == MediumKind::Journal
            && pm.durability() == Durability::Immediate
            && !pm.read_only();
        if waits {
            versions.begin(|| time);
        }
        Self::at(time, waits)
    }

    fn at(time: u64, waits: bool) -> Self {
        Self {
            waits,
            durable: AtomicU64::new(time),
            moving: Mutex::new(()),
            failed: AtomicBool::new(false),
            error: Mutex::default(),
        }
    }

    /// The mark, where changes wait.
    #[inline]
    pub(super) fn durable(&self) -> u64 {
        // ORDERING: Acquire; pairs with the Release of `advance`: who sees the mark sees all
        // changes below it.
        self.durable.load(Ordering::Acquire)
    }

    /// Moves the mark to `time`, which the caller has registered and gives up. Returns the blocks
    /// that nobody reads any more.
    fn advance(&self, versions: &Versions, time: u64) -> Vec<(u64, usize)> {
        let moving = lock(&self.moving);
        // ORDERING: Relaxed; changed under the lock only.
        let before = self.durable.load(Ordering::Relaxed);
        let left = if time > before {
            // ORDERING: Release; pairs with the Acquire of `durable`.
            self.durable.store(time, Ordering::Release);
            before
        } else {
            time
        };
        drop(moving);
        versions.end(left)
    }

    fn fail(&self, e: &CommitError) {
        lock(&self.error).get_or_insert_with(|| e.duplicate());
        // ORDERING: Release; pairs with the Acquire in `sound`.
        self.failed.store(true, Ordering::Release);
    }

    /// # Errors
    /// The failure of a commit of the medium, after which none succeeds.
    pub(super) fn sound(&self) -> Result<(), CommitError> {
        // ORDERING: Acquire; pairs with the Release in `fail`.
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        match lock(&self.error).as_ref() {
            Some(e) => Err(e.duplicate()),
            None => Ok(()),
        }
    }
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// A time below which all changes have been shown, and that is above whatever has been read.
    /// Waits for changes that have begun: they can be read before they are noted as shown.
    pub(super) fn applied_time(&self) -> u64 {
        let time = self.stamps.coming();
        self.shown.wait_for(time);
        time
    }

    /// The time below which all changes are durable.
    pub(super) fn durable_time(&self) -> u64 {
        if self.marks.waits {
            self.marks.durable()
        } else {
            self.applied_time()
        }
    }

    /// Makes the change of that stamp durable, and all before it.
    pub(super) fn make_stamp_durable(&self, stamp: u64) -> Result<(), CommitError> {
        if self.marks.waits && self.marks.durable() > stamp {
            return Ok(());
        }
        self.marks.sound()?;
        if !self.marks.waits {
            self.shown.wait_for(stamp + 1);
            return self.commit_all();
        }
        let time = self.versions.begin(|| self.stamps.coming());
        let committed = self.commit_below(time);
        let freed = match committed {
            Ok(()) => self.marks.advance(&self.versions, time),
            Err(_) => self.versions.end(time),
        };
        self.retire_blocks(freed);
        committed
    }

    /// Commits all changes below `time`, the present a moment ago.
    fn commit_below(&self, time: u64) -> Result<(), CommitError> {
        self.shown.wait_for(time);
        // Others may see what is shown and not durable.
        self.pm().interleave();
        if self.marks.durable() >= time {
            return Ok(());
        }
        self.commit_all()
    }

    fn commit_all(&self) -> Result<(), CommitError> {
        let committed = self.pm().commit_all();
        // After a lack of space a later commit makes these changes durable too.
        if let Err(e @ CommitError::Failed { .. }) = &committed {
            self.marks.fail(e);
        }
        committed
    }

    /// Begins to read at the durable mark, or at the present, with all changes before it shown.
    /// [`end_reading`](Self::end_reading) ends it.
    pub(super) fn begin_reading(&self, durable: bool) -> u64 {
        if durable && self.marks.waits {
            return self.versions.begin(|| self.marks.durable());
        }
        let time = self.versions.begin(|| self.stamps.coming());
        if !planted!(self.pm(), "clustered-snapshot-early") {
            self.shown.wait_for(time);
        }
        time
    }

    /// Ends one reading at that time.
    pub(super) fn end_reading(&self, time: u64) {
        let freed = self.versions.end(time);
        self.retire_blocks(freed);
    }

    /// Drops all old values that nobody can read any more.
    pub(super) fn sweep_history(&self) {
        self.retire_blocks(self.versions.sweep());
    }

    fn retire_blocks(&self, freed: Vec<(u64, usize)>) {
        if !freed.is_empty() {
            self.retire_outers(freed.into_iter(), &epoch::pin());
        }
    }
}
