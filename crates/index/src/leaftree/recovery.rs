//! Opening: after a clean close, reading the volatile part; otherwise rebuilding it by walking the
//! leaves.
//!
//! The walk is cut into segments at the *recorded positions* (section 4.2): leaves, roughly equally
//! spaced, whose offsets are in root words. Every thread walks several segments in turns, so that
//! the cache misses of their chains overlap even with one thread.
//!
//! The walk checks everything before it follows it: leaves and records must be blocks of this root
//! that nothing else reached, and keys must ascend from leaf to leaf. So a corrupt pool ends in an
//! error and not in a loop.
//!
//! Repairs (each can be repeated): changes of a leaf that were cut short, empty leaves unlinked.

use super::layout::{HEAD, INNER_FILL, POSITIONS, UNIT, offset};
use super::positions::{Positions, recorded};
use super::{LeafDesign, LeafTree, TreeError, snapshot};
use crate::content;
use crate::contract::RecoveryReport;
use crate::damage;
use crate::inner::InnerIndex;
use crate::link;
use crate::repr::{Stored, StoredKey};
use crate::threads::on_threads;
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, POff};
use crossbeam_epoch as epoch;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Instant;

/// Number of segments that a thread walks in turns.
const LANES: usize = 12;
impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    /// Records `leaf`, which a split made and which is in the chain durably, if it is time.
    pub fn record_position(&self, leaf: u32) {
        // ORDERING: Relaxed (both); a count that only spaces the positions.
        if self.until_position.fetch_sub(1, Ordering::Relaxed) != 1 {
            return;
        }
        let mut positions = lock(&self.positions);
        if let Some(slot) = positions.add(leaf) {
            self.publish_position(slot, leaf);
        }
        self.until_position
            .fetch_add(positions.interval as i64, Ordering::Relaxed);
    }

    /// Records `leaf`, which is in the chain durably, in place of one that was
    /// [forgotten](Self::forget_position). The caller holds its lock, or that of the leaf before
    /// it.
    pub fn record_again(&self, leaf: u32) {
        let mut positions = lock(&self.positions);
        if let Some(slot) = positions.again(leaf) {
            self.publish_position(slot, leaf);
        }
    }

    /// Makes a position of `positions` durable. The caller has locked `positions`.
    fn publish_position(&self, slot: usize, leaf: u32) {
        // PERSIST: (in `publish`) the position, before the leaf can be unlinked (which needs the
        // lock of `positions`).
        self.root()
            .word(POSITIONS + slot)
            .publish(self.pm(), link::word(offset(leaf)));
    }

    /// Adopts the positions in the root words.
    pub(super) fn set_positions(&mut self, positions: Positions) {
        self.until_position = AtomicI64::new(positions.interval as i64);
        self.positions = Mutex::new(positions);
    }
}

/// Opens a published root.
pub(super) fn open<D, K, V, M>(
    root: Root<M>,
    options: &D::Options,
) -> Result<LeafTree<D, K, V, M>, TreeError>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    let started = Instant::now();
    let heap = root.heap();
    heap.begin_recovery();
    let saved = snapshot::load::<K, M>(&root, &heap, D::node_bytes(options)?)?;
    let clean = saved.is_some();
    let design = D::open(options, &root, &heap, clean)?;
    let (inner, leaves) = match saved {
        Some(saved) => saved,
        // Replaced by the result of the walk.
        None => (InnerIndex::new(0, 0).map_err(TreeError::Memory)?, 0),
    };
    let mut tree = LeafTree::assemble(design, inner, heap, root, RecoveryReport::default());
    if clean {
        tree.heap.finish_recovery();
        tree.set_positions(Positions::load(tree.root(), leaves));
        tree.report.clean = true;
    } else {
        match tree.rebuild(D::recovery_threads(options).max(1)) {
            Ok(report) => tree.report = report,
            Err(e) => {
                // This tree is not whole, so nothing of it may be saved.
                tree.root = None;
                return Err(e);
            }
        }
    }
    if let Err(e) = content::compare::<K, V, M>(tree.root(), &tree) {
        // The snapshot has been read and is freed. The sum stays for the next opening.
        tree.root = None;
        return Err(e);
    }
    tree.report.elapsed = started.elapsed();
    tree.commit()?;
    Ok(tree)
}

/// A leaf that the walk found; `low` is its smallest key, `None` if it is empty.
struct Walked<K: ToOwned + ?Sized> {
    low: Option<K::Owned>,
    leaf: u32,
}

/// The leaves from one start to the next.
struct Segment<K: Stored + ?Sized> {
    start: u32,
    leaves: Vec<Walked<K>>,
    /// Word of the largest key.
    high: Option<K::Word>,
    /// The next leaf of the chain; 0 at its end.
    next: u64,
    entries: u64,
    repaired: u64,
}

impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    /// Walks the leaves and builds everything volatile.
    fn rebuild(&mut self, threads: usize) -> Result<RecoveryReport, TreeError> {
        // ORDERING: Relaxed; the tree is being opened.
        let head = self.root().word(HEAD).load(self.pm(), Ordering::Relaxed);
        let mut starts = vec![head];
        starts.extend(recorded(self.root()).into_iter().filter(|off| *off != 0));
        let mut starts = starts
            .into_iter()
            .map(|word| self.checked_handle(link::checked(word).map_err(TreeError::Corrupt)?))
            .collect::<Result<Vec<u32>, _>>()?;
        let head = starts[0];
        starts.sort_unstable();
        starts.dedup();
        // More threads would have nothing to walk.
        let threads = threads.min(starts.len());
        let segments = self.walk(&starts, threads)?;
        let report = RecoveryReport {
            clean: false,
            leaves_scanned: segments.iter().map(|s| s.leaves.len() as u64).sum(),
            entries: segments.iter().map(|s| s.entries).sum(),
            repaired: segments.iter().map(|s| s.repaired).sum(),
            threads,
            elapsed: std::time::Duration::ZERO,
        };
        let leaves = self.join(head, segments)?;
        self.heap.finish_recovery();
        self.adopt(leaves, report)
    }

    fn checked_handle(&self, off: u64) -> Result<u32, TreeError> {
        let unit = UNIT;
        match u32::try_from(off / unit) {
            Ok(leaf) if off.is_multiple_of(unit) && leaf != 0 => Ok(leaf),
            _ => Err(TreeError::Corrupt(format!("no leaf can be at {off:#x}"))),
        }
    }

    /// Walks from each start to the next start that the chain meets.
    fn walk(&self, starts: &[u32], threads: usize) -> Result<Vec<Segment<K>>, TreeError> {
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let worker = || -> Result<Vec<Segment<K>>, TreeError> {
            let mut done = Vec::new();
            let mut lanes: Vec<(Segment<K>, u64)> = Vec::with_capacity(LANES);
            loop {
                while lanes.len() < LANES {
                    // ORDERING: Relaxed; only the number matters.
                    let Some(start) = starts.get(next.fetch_add(1, Ordering::Relaxed)) else {
                        break;
                    };
                    self.prefetch_checked(offset(*start));
                    let segment = Segment {
                        start: *start,
                        leaves: Vec::new(),
                        high: None,
                        next: 0,
                        entries: 0,
                        repaired: 0,
                    };
                    lanes.push((segment, offset(*start)));
                }
                // ORDERING: Relaxed; a hint to stop early.
                if lanes.is_empty() || failed.load(Ordering::Relaxed) {
                    if done.iter().any(|segment: &Segment<K>| segment.repaired > 0) {
                        // PERSIST: this thread's repairs (a fence covers the flushes of its own
                        // thread), before operations and clean closes that rely on them.
                        self.pm().fence();
                    }
                    return Ok(done);
                }
                let mut i = 0;
                while i < lanes.len() {
                    let (segment, at) = &mut lanes[i];
                    let next = self.visit(*at, segment).inspect_err(|_| {
                        failed.store(true, Ordering::Relaxed);
                    })?;
                    let at_end = next == 0
                        || u32::try_from(next / UNIT)
                            .is_ok_and(|leaf| starts.binary_search(&leaf).is_ok());
                    if at_end {
                        segment.next = next;
                        done.push(lanes.swap_remove(i).0);
                    } else {
                        *at = next;
                        i += 1;
                    }
                }
            }
        };
        let segments = on_threads(self.pm(), threads, worker, TreeError::Corrupt)?;
        Ok(segments.into_iter().flatten().collect())
    }

    /// Prefetches a leaf whose offset has not been checked yet.
    fn prefetch_checked(&self, off: u64) {
        if off < self.pm().len() {
            let at = self.base.wrapping_add(off as usize);
            bristlecone_pmem::media::cpu::prefetch(at, self.design.leaf_bytes() as usize);
        }
    }

    /// Visits a leaf of the chain: marks it and its records, and notes its keys. Returns the offset
    /// of the next.
    fn visit(&self, off: u64, segment: &mut Segment<K>) -> Result<u64, TreeError> {
        let guard = epoch::pin();
        let corrupt = |what: String| TreeError::Corrupt(format!("leaf {off:#x}: {what}"));
        let leaf_handle = self.checked_handle(off)?;
        self.heap
            .mark(off, self.design.leaf_bytes(), &guard)
            .map_err(corrupt)?;
        let pm = self.pm();
        let leaf = self.leaf(leaf_handle);
        D::sound(self, leaf).or_else(|what| damage::note(off, corrupt(what)))?;
        segment.repaired += D::repair(self, leaf).map_err(corrupt)?;
        let next = D::next(self, leaf);
        self.prefetch_checked(next);
        let (mut low, mut high): (Option<K::Word>, Option<K::Word>) = (None, None);
        let mut result = Ok(());
        let mut visited = false;
        D::for_each(self, leaf, |slot, key, value| {
            visited = true;
            if result.is_err() {
                return;
            }
            let noted = |block: Option<u64>| move |what| damage::note(block.unwrap_or(off), what);
            let marked = K::mark(&self.heap, key, &guard)
                .or_else(noted(K::block(key)))
                .and_then(|()| V::mark(&self.heap, value, &guard).or_else(noted(V::block(value))));
            result = marked.map_err(|e| corrupt(format!("{}: {e}", D::place(slot))));
            segment.entries += 1;
            // A damaged key tells nothing about the order of the others.
            if K::RECORDS && damage::collecting() && K::check(&self.heap, key) != Ok(1) {
                return;
            }
            if low.is_none_or(|low| self.compare_words(key, low).is_lt()) {
                low = Some(key);
            }
            if high.is_none_or(|high| self.compare_words(key, high).is_gt()) {
                high = Some(key);
            }
        });
        result?;
        // An empty leaf will be unlinked.
        let lost = if visited { 0 } else { D::count(self, leaf) };
        if lost > 0 {
            return Err(corrupt(format!("it has {lost} entries, and leads to none")));
        }
        if let (Some(low), Some(before)) = (low, segment.high)
            && self.compare_words(low, before).is_le()
        {
            return Err(corrupt(
                "its keys do not follow those of the leaf before it".into(),
            ));
        }
        let low = low.and_then(|word| K::read(pm, word, ToOwned::to_owned));
        segment.high = high.or(segment.high);
        segment.leaves.push(Walked {
            low,
            leaf: leaf_handle,
        });
        Ok(next)
    }

    /// Puts the segments into chain order.
    fn join(&self, head: u32, segments: Vec<Segment<K>>) -> Result<Vec<Walked<K>>, TreeError> {
        let mut by_start: HashMap<u32, Segment<K>> = segments
            .into_iter()
            .map(|segment| (segment.start, segment))
            .collect();
        let mut leaves = Vec::new();
        let (mut start, mut high): (u32, Option<K::Word>) = (head, None);
        loop {
            let segment = by_start.remove(&start).ok_or_else(|| {
                TreeError::Corrupt(format!(
                    "the chain comes to leaf {:#x} twice",
                    offset(start)
                ))
            })?;
            let low = segment.leaves.iter().find_map(|walked| walked.low.as_ref());
            if let (Some(low), Some(before)) = (low, high)
                && self
                    .compare_to_word(std::borrow::Borrow::borrow(low), before)
                    .is_le()
            {
                return Err(TreeError::Corrupt(format!(
                    "leaf {:#x}: its keys do not follow those of the leaf before it",
                    offset(start)
                )));
            }
            high = segment.high.or(high);
            if leaves.is_empty() {
                leaves = segment.leaves;
            } else {
                leaves.extend(segment.leaves);
            }
            if segment.next == 0 {
                break;
            }
            start = self.checked_handle(segment.next)?;
        }
        match by_start.keys().next() {
            None => Ok(leaves),
            Some(lost) => Err(TreeError::Corrupt(format!(
                "recorded leaf {:#x} is not in the chain",
                offset(*lost)
            ))),
        }
    }

    /// Unlinks empty leaves, builds the inner index, records positions.
    fn adopt(
        &mut self,
        mut leaves: Vec<Walked<K>>,
        mut report: RecoveryReport,
    ) -> Result<RecoveryReport, TreeError> {
        let first = leaves[0].leaf;
        let empty: Vec<u32> = leaves
            .iter()
            .skip(1)
            .filter(|w| w.low.is_none())
            .map(|w| w.leaf)
            .collect();
        let kept = |walked: &Walked<K>| walked.leaf == first || walked.low.is_some();
        let positions = {
            let kept: Vec<u32> = leaves.iter().filter(|w| kept(w)).map(|w| w.leaf).collect();
            Positions::spread::<M>(kept.into_iter())
        };
        // Before anything is unlinked, since positions may name only leaves that are kept.
        positions.save(self.root());
        if !empty.is_empty() {
            let mut before = first;
            for walked in &leaves[1..] {
                if walked.low.is_some() {
                    before = walked.leaf;
                } else {
                    D::unlink(self, self.leaf(before), self.leaf(walked.leaf), false);
                }
            }
            for leaf in &empty {
                self.heap.free(POff::new(offset(*leaf)));
            }
            report.repaired += empty.len() as u64;
            leaves.retain(|walked| walked.leaf == first || walked.low.is_some());
        }
        let rest = leaves
            .into_iter()
            .skip(1)
            .filter_map(|walked| Some((walked.low?, walked.leaf)));
        self.inner = InnerIndex::from_sorted(first, rest, INNER_FILL, self.pm().capacity())
            .map_err(|e| TreeError::Corrupt(e.to_string()))?;
        self.set_positions(positions);
        Ok(report)
    }
}
