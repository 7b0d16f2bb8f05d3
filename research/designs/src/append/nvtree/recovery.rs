//! Opening (section 4.6): instant recovery after a clean close, else rebuild-from-LN.
//!
//! Rebuild-from-LN walks the list (one line of each leaf), then reads the leaves, with several
//! threads if the options say so. It finds the live keys and marks blocks and records. The smallest
//! key of each leaf leads to it.
//!
//! Everything is checked before it is followed: leaves and records must be blocks of this root that
//! nothing else reached, a leaf's size must fit its block, and keys must ascend from leaf to leaf.
//! So a corrupt pool ends in an error and not in a loop.
//!
//! There is one repair: leaves without a live key, which a crash kept from being unlinked, are
//! unlinked.
//!
//! ```text
//! snapshot | magic "NVSNAP01" | nWrites, nReads (u64) | leaves (u64)
//!          | of each leaf: offset (u64), elements, live, lines, size (u32), nWrites_LN, nReads_LN (u64)
//!          | smallest keys of all leaves but the first | the allocator's marks
//! ```

use super::info::{LeafInfo, Traffic};
use super::inner::Entry;
use super::leaf::{ELEMENT, Leaf, Shape, block, plausible};
use super::{HEAD, NvOptions, NvTree, SNAPSHOT, TreeError};
use crate::damage;
use crate::index::RecoveryReport;
use crate::inner::Separator;
use crate::link;
use crate::repr::{KeyRepr, Repr};
use crate::saved;
use crate::threads::on_threads;
use bristlecone_pmem::media::LINE;
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::{Heap, Media};
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const MAGIC: [u8; 8] = *b"NVSNAP01";
/// Bytes of a leaf in a snapshot.
const SAVED: usize = 40;
/// Number of leaves that a thread takes at a time.
const SHARE: usize = 256;

/// Removes a fixed number of bytes from the front.
fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*first)
}

fn take_u32(from: &mut &[u8]) -> Option<u32> {
    take(from).map(u32::from_le_bytes)
}

fn take_u64(from: &mut &[u8]) -> Option<u64> {
    take(from).map(u64::from_le_bytes)
}

/// Frees the entries of a tree that is not opened after all.
fn discard<K: Separator + ?Sized>(entries: Vec<Entry<K>>) {
    for entry in entries {
        // SAFETY: 1. the pointer came from `Box::into_raw`; 2. no set of nodes leads to it.
        drop(unsafe { Box::from_raw(entry.info) });
        if let Some(low) = entry.low {
            // SAFETY: nothing else leads to the key.
            unsafe { K::free(low) };
        }
    }
}

/// Content of a snapshot.
struct Saved<K: Separator + ?Sized> {
    entries: Vec<Entry<K>>,
    all: Traffic,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> NvTree<K, V, M> {
    /// Saves the volatile part. If there is no room for it, the next opening rebuilds.
    pub(super) fn save_snapshot(&self, root: &Root<M>) {
        let guard = epoch::pin();
        let (mut leaves, mut lows) = (Vec::new(), Vec::new());
        let mut count = 0u64;
        self.inner(&guard).for_each(|_, low, info| {
            count += 1;
            leaves.extend(info.off.to_le_bytes());
            for word in [
                info.elements() as u32,
                info.live(),
                info.shape.lines,
                info.size,
            ] {
                leaves.extend(word.to_le_bytes());
            }
            let traffic = info.traffic();
            leaves.extend(traffic.writes.to_le_bytes());
            leaves.extend(traffic.reads.to_le_bytes());
            if let Some(low) = low {
                // SAFETY: the tree is being closed, so the key is not freed meanwhile.
                unsafe { K::view(&low) }.save(&mut lows);
            }
        });
        let all = self.totals.sum();
        let mut payload = Vec::with_capacity(32 + leaves.len() + lows.len() + 65_536);
        payload.extend(MAGIC);
        payload.extend(all.writes.to_le_bytes());
        payload.extend(all.reads.to_le_bytes());
        payload.extend(count.to_le_bytes());
        payload.append(&mut leaves);
        payload.append(&mut lows);
        self.heap.save_marks(&mut payload);
        saved::save_linked(root, &self.heap, SNAPSHOT, payload);
    }
}

/// Reads a snapshot and marks the heap.
fn parse<K: KeyRepr + ?Sized, M: Media>(payload: &[u8], heap: &Heap<M>) -> Option<Saved<K>> {
    let mut rest = payload.strip_prefix(&MAGIC)?;
    let all = Traffic {
        writes: take_u64(&mut rest)?,
        reads: take_u64(&mut rest)?,
    };
    let count = usize::try_from(take_u64(&mut rest)?).ok()?;
    let (mut leaves, mut rest) = rest.split_at_checked(count.checked_mul(SAVED)?)?;
    let end = heap.pool().pm().len();
    let mut entries: Vec<Entry<K>> = Vec::with_capacity(count);
    let mut one = |first: bool| -> Option<Entry<K>> {
        let off = take_u64(&mut leaves)?;
        let [elements, live, lines, size] = [(); 4].map(|()| take_u32(&mut leaves));
        let (elements, live, lines, size) = (elements?, live?, lines?, size?);
        let traffic = Traffic {
            writes: take_u64(&mut leaves)?,
            reads: take_u64(&mut leaves)?,
        };
        // A checksum does not prove that this program wrote the snapshot: an offset must at least
        // be inside the pool.
        let shape = shape_of(off, lines, elements, end).ok()?;
        let info = LeafInfo::new(off, shape, size.into(), elements, live).with_traffic(traffic);
        let low = if first {
            None
        } else {
            let low = K::restore(&mut rest)?;
            let low: &K = low.borrow();
            Some(low.allocate().0)
        };
        Some(Entry {
            low,
            info: Box::into_raw(Box::new(info)),
            units: 1,
        })
    };
    for i in 0..count {
        match one(i == 0) {
            Some(entry) => entries.push(entry),
            None => {
                discard(entries);
                return None;
            }
        }
    }
    if entries.is_empty() || heap.load_marks(rest) != Some(rest.len()) {
        discard(entries);
        return None;
    }
    Some(Saved { entries, all })
}

/// Returns the layout of a leaf at `off` with these numbers of lines and elements, if there can be
/// one.
fn shape_of(off: u64, lines: u32, elements: u32, end: u64) -> Result<Shape, String> {
    let bytes = u64::from(lines) * LINE as u64;
    if !plausible(off) || off < CHUNK || off.checked_add(bytes).is_none_or(|to| to > end) {
        return Err(format!("a leaf of {lines} lines does not fit"));
    }
    if bytes < 4 * LINE as u64 || bytes > super::leaf::MAX_BYTES {
        return Err(format!("a leaf has no {lines} lines"));
    }
    let shape = Shape::of(bytes);
    if elements > shape.capacity {
        return Err(format!(
            "{elements} elements of {ELEMENT} bytes in {lines} lines"
        ));
    }
    Ok(shape)
}

/// Opens a published root.
pub(super) fn open<K, V, M>(
    root: Root<M>,
    options: &NvOptions,
) -> Result<NvTree<K, V, M>, TreeError>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    let started = Instant::now();
    let heap = root.heap();
    heap.begin_recovery();
    let pm = root.pool().pm();
    // ORDERING: Relaxed; the tree is being opened.
    let tried = root.word(SNAPSHOT).load(pm, Ordering::Relaxed) != 0;
    if let Some(saved) = saved::load_linked(&root, SNAPSHOT, |bytes| parse::<K, M>(bytes, &heap)) {
        heap.finish_recovery();
        let report = RecoveryReport {
            clean: true,
            elapsed: started.elapsed(),
            ..RecoveryReport::default()
        };
        let tree = NvTree::assemble(heap, root, options, saved.entries, report);
        tree.totals.start_at(saved.all);
        tree.commit()?;
        return Ok(tree);
    }
    if tried {
        heap.begin_recovery();
    }
    let walk: Walk<'_, K, V, M> = Walk {
        heap: &heap,
        pm,
        kinds: std::marker::PhantomData,
    };
    // ORDERING: Relaxed; the tree is being opened.
    let head = root.word(HEAD).load(pm, Ordering::Relaxed);
    let head = link::checked(head).map_err(TreeError::Corrupt)?;
    let listed = walk.list(head)?;
    let threads = options.recovery_threads.max(1);
    let mut report = RecoveryReport {
        leaves_scanned: listed.len() as u64,
        threads: threads.min(listed.len()),
        ..RecoveryReport::default()
    };
    let walked = walk.look_through(&listed, report.threads)?;
    report.entries = walked.iter().map(|leaf| u64::from(leaf.live)).sum();
    walk.check_order(&walked)?;
    heap.finish_recovery();
    let walked = walk.unlink_emptied(walked, &mut report)?;
    let first = walked.first().map(|leaf| leaf.off);
    let entries = walked
        .into_iter()
        .map(|leaf| {
            let size = u64::from(leaf.shape.lines) * LINE as u64;
            let info = LeafInfo::new(leaf.off, leaf.shape, size, leaf.elements, leaf.live);
            Entry {
                low: leaf
                    .low
                    .filter(|_| Some(leaf.off) != first)
                    .map(|low| Borrow::<K>::borrow(&low).allocate().0),
                info: Box::into_raw(Box::new(info)),
                units: 1,
            }
        })
        .collect();
    report.elapsed = started.elapsed();
    let tree = NvTree::assemble(heap, root, options, entries, report);
    tree.commit()?;
    Ok(tree)
}

/// A leaf of the list.
struct Listed {
    off: u64,
    shape: Shape,
    elements: u32,
}

/// A leaf that was read.
struct Walked<K: ToOwned + ?Sized> {
    off: u64,
    shape: Shape,
    elements: u32,
    live: u32,
    /// Smallest and largest live keys.
    low: Option<K::Owned>,
    high: Option<K::Owned>,
}

struct Walk<'t, K: ?Sized, V: ?Sized, M: Media> {
    heap: &'t Heap<M>,
    pm: &'t M,
    kinds: std::marker::PhantomData<fn(&K, &V)>,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> Walk<'_, K, V, M> {
    fn leaf(&self, off: u64, shape: Shape) -> Leaf<'_, M> {
        // SAFETY: `shape_of` has checked that `off` and `shape` describe lines inside the pool.
        unsafe { Leaf::at(self.pm, off, shape) }
    }

    /// Returns the leaves from `head` on. Each is marked, so that none comes twice.
    fn list(&self, head: u64) -> Result<Vec<Listed>, TreeError> {
        let guard = epoch::pin();
        let mut listed = Vec::new();
        let mut off = head;
        while off != 0 || listed.is_empty() {
            let corrupt = |what: String| TreeError::Corrupt(format!("leaf {off:#x}: {what}"));
            if !plausible(off) {
                return Err(corrupt("no leaf can be there".into()));
            }
            self.heap.check(off, LINE as u64).map_err(corrupt)?;
            // SAFETY: the allocator has a block there that holds a line.
            let counter = unsafe { Leaf::counter_at(self.pm, off) };
            let shape =
                shape_of(off, counter.lines, counter.elements, self.pm.len()).map_err(corrupt)?;
            let bytes = u64::from(counter.lines) * LINE as u64;
            self.heap.mark(off, bytes, &guard).map_err(corrupt)?;
            listed.push(Listed {
                off,
                shape,
                elements: counter.elements,
            });
            off = self.leaf(off, shape).next_offset();
        }
        Ok(listed)
    }

    fn look_through(&self, listed: &[Listed], threads: usize) -> Result<Vec<Walked<K>>, TreeError> {
        let next = AtomicUsize::new(0);
        let worker = || {
            let mut done: Vec<(usize, Vec<Walked<K>>)> = Vec::new();
            loop {
                // ORDERING: Relaxed; only the number matters.
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(share) = listed.chunks(SHARE).nth(number) else {
                    return Ok(done);
                };
                let walked: Result<_, TreeError> =
                    share.iter().map(|leaf| self.look(leaf)).collect();
                done.push((number, walked?));
            }
        };
        let mut parts: Vec<_> = on_threads(self.pm, threads, worker, TreeError::Corrupt)?
            .into_iter()
            .flatten()
            .collect();
        parts.sort_unstable_by_key(|(number, _)| *number);
        Ok(parts.into_iter().flat_map(|(_, walked)| walked).collect())
    }

    /// Reads a leaf's elements and marks the records that they lead to (invariant 5).
    fn look(&self, listed: &Listed) -> Result<Walked<K>, TreeError> {
        let guard = epoch::pin();
        let corrupt = |what: String| TreeError::Corrupt(format!("leaf {:#x}: {what}", listed.off));
        let leaf = self.leaf(listed.off, listed.shape);
        leaf.sound()
            .or_else(|what| damage::note(listed.off, what))
            .map_err(corrupt)?;
        // Words that lead nowhere must not be compared.
        if K::RECORDS {
            let mut words: Vec<u64> = (0..listed.elements as usize).map(|i| leaf.key(i)).collect();
            words.sort_unstable();
            words.dedup();
            for word in words {
                K::mark(self.heap, word, &guard)
                    .or_else(|what| damage::note(K::block(word).unwrap_or(listed.off), what))
                    .map_err(corrupt)?;
            }
        }
        let mut all: Vec<(K::Owned, u32)> = Vec::with_capacity(listed.elements as usize);
        for i in 0..listed.elements {
            let word = leaf.key(i as usize);
            // A damaged key tells nothing about the order of the others.
            if K::RECORDS && damage::collecting() && K::check(self.heap, word) != Ok(1) {
                continue;
            }
            let key = K::read(self.pm, word, ToOwned::to_owned)
                .ok_or_else(|| corrupt(format!("element {i} has no key")))?;
            all.push((key, i));
        }
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        let mut walked = Walked {
            off: listed.off,
            shape: listed.shape,
            elements: listed.elements,
            live: 0,
            low: None,
            high: None,
        };
        for elements in all.chunk_by(|a, b| a.0 == b.0) {
            let (key, newest) = &elements[0];
            if leaf.is_negative(*newest as usize) {
                continue;
            }
            let value = leaf.value(*newest as usize);
            V::mark(self.heap, value, &guard)
                .or_else(|what| damage::note(V::block(value).unwrap_or(listed.off), what))
                .map_err(corrupt)?;
            walked.live += 1;
            if walked.low.is_none() {
                walked.low = Some(key.clone());
            }
            walked.high = Some(key.clone());
        }
        Ok(walked)
    }

    fn check_order(&self, walked: &[Walked<K>]) -> Result<(), TreeError> {
        let mut high: Option<&K::Owned> = None;
        for leaf in walked.iter().filter(|leaf| leaf.live > 0) {
            if high.is_some() && high >= leaf.low.as_ref() {
                return Err(TreeError::Corrupt(format!(
                    "leaf {:#x}: its keys are not above those of the leaf before",
                    leaf.off
                )));
            }
            high = leaf.high.as_ref();
        }
        Ok(())
    }

    /// Unlinks the leaves without live keys, except the first leaf.
    fn unlink_emptied(
        &self,
        walked: Vec<Walked<K>>,
        report: &mut RecoveryReport,
    ) -> Result<Vec<Walked<K>>, TreeError> {
        let mut kept: Vec<Walked<K>> = Vec::with_capacity(walked.len());
        for leaf in walked {
            let Some(before) = kept.last().filter(|_| leaf.live == 0) else {
                kept.push(leaf);
                continue;
            };
            let next = self.leaf(leaf.off, leaf.shape).next_offset();
            let link = self.leaf(before.off, before.shape).next();
            // PERSIST: (in `publish`) the link past the leaf, before its block is used again.
            link.publish(self.pm, link::word(next));
            // A record behind a damaged word may not belong to the leaf.
            if K::RECORDS && !damage::any() {
                let gone = self.leaf(leaf.off, leaf.shape);
                let mut words: Vec<u64> =
                    (0..leaf.elements as usize).map(|i| gone.key(i)).collect();
                words.sort_unstable();
                words.dedup();
                for word in words {
                    K::discard(self.heap, word);
                }
            }
            self.heap.free(block(leaf.off));
            report.repaired += 1;
        }
        Ok(kept)
    }
}
