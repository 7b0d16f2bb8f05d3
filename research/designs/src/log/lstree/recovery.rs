//! Opening replays the logs.
//!
//! Threads share out the logs, then the leaves. Each log is read in the order in which it was
//! written, and every record is noted by leaf and sequence number. Of each leaf, the newest base
//! counts with the deltas whose numbers follow. Only their keys and values are read, because
//! superseded records may lead to freed blocks.
//!
//! Everything read is checked: segments are blocks of this root that nothing else reached, with
//! generations that were used; a sealed segment has as many whole records as its link says, and
//! they end where it says; strings are inside their records; numbers follow without a gap; keys
//! ascend, in leaves and from leaf to leaf. Only the end of a log, the first record of the last
//! segment that is not whole and has no whole one behind it, cannot be told from a crash. If one
//! wrong bit keeps it from being whole, that is turned back.
//!
//! Nothing else has to be repaired. `Logs::clear_ends` invalidates what is behind the ends of the
//! logs for good.

use super::log::{LOGS, Logs, SEGMENT_HEADER, Segment};
use super::record::{HALF_LINE, Kind};
use super::table::{Counts, Entry, LNIDS, Place, Table};
use super::{
    CHECK_BIT, DIRECTORY_WORD, LsOptions, LsTree, MAX_ENTRIES, SALT_WORD, SHAPE_WORD, Shape,
};
use crate::common::sort_by;
use crate::index::{Fill, RecoveryReport, TreeError};
use crate::inner::InnerIndex;
use crate::link;
use crate::repr::{KeyRepr, Repr};
use crate::threads::on_threads;
use bristlecone_pmem::Media;
use bristlecone_pmem::pool::Root;
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Fill of inner nodes after recovery.
pub(super) const INNER_FILL: Fill = match Fill::percent(85) {
    Some(fill) => fill,
    None => Fill::FULL,
};

/// Number of chains that a thread takes at a time.
const AT_A_TIME: usize = 256;

/// A record's part that concerns a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    lnid: u32,
    sequence: u64,
    pub(super) off: u64,
    log: u8,
    kind: Kind,
}

/// Content of a log.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    pub(super) generation: u64,
    pub(super) segments: VecDeque<Segment>,
    pub(super) parts: Vec<Part>,
}

/// The records of a leaf that count.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) lnid: u32,
    /// Number of records that name the leaf.
    pub(super) records: u64,
    pub(super) base: Part,
    pub(super) deltas: Vec<Part>,
}

impl Chain {
    /// Returns the newest record's number.
    pub(super) fn sequence(&self) -> u64 {
        self.deltas.last().unwrap_or(&self.base).sequence
    }
}

/// A leaf with keys.
struct Leaf<K: ToOwned + ?Sized> {
    lnid: u32,
    low: K::Owned,
    /// Word of the largest key.
    high: u64,
}

impl<M: Media> Logs<M> {
    /// Walks a log. Calls `reached` with each segment's offset before reading it. If `mend`, one
    /// wrong bit of the last record is turned back.
    ///
    /// # Errors
    /// The fault, in words.
    pub(super) fn replay(
        &self,
        log: usize,
        mend: bool,
        mut reached: impl FnMut(u64) -> Result<(), String>,
    ) -> Result<Replayed, String> {
        let (mut at, used_up) = self
            .read_directory(log)
            .map_err(|e| format!("log {log}: {e}"))?;
        let ours = |generation: u64| generation % LOGS as u64 == log as u64;
        if !ours(used_up) {
            return Err(format!("log {log}: its generation is {used_up}"));
        }
        let reader = self.reader();
        let mut found = Replayed {
            generation: used_up,
            ..Replayed::default()
        };
        let mut before = 0;
        while at != 0 {
            let broken = |what: String| format!("log {log}, segment {at:#x}: {what}");
            if !at.is_multiple_of(self.segment) {
                return Err(broken("no segment can be there".into()));
            }
            reached(at).map_err(broken)?;
            let (generation, link) = self.read_segment(at).map_err(broken)?;
            if !ours(generation) || generation > used_up || generation <= before {
                return Err(broken(format!(
                    "generation {generation} after {before}, up to {used_up}"
                )));
            }
            before = generation;
            let end = link.map_or(self.segment, |link| link.used);
            if !(SEGMENT_HEADER..=self.segment).contains(&end) {
                return Err(broken(format!("its records end at {end}")));
            }
            let (mut next, mut used, mut records) = (SEGMENT_HEADER, SEGMENT_HEADER, 0);
            while next < end {
                let salt = self.salt_of(generation);
                let whole = reader.record_at(at, next, salt);
                let last = mend && link.is_none();
                let mended = || last.then(|| reader.mend_at(at, next, salt)).flatten();
                let Some(record) = whole.or_else(mended) else {
                    if next.is_multiple_of(2 * HALF_LINE) {
                        break;
                    }
                    // The half of a line that the next record did not fit into.
                    next += HALF_LINE;
                    continue;
                };
                let right = reader.right_leaf(&record);
                for lnid in std::iter::once(record.lnid).chain(right) {
                    if lnid >= LNIDS || right == Some(record.lnid) {
                        return Err(broken(format!("a record at {next} names leaf {lnid}")));
                    }
                    found.parts.push(Part {
                        lnid,
                        sequence: record.sequence,
                        off: record.off,
                        log: log as u8,
                        kind: record.kind,
                    });
                }
                next += record.footprint();
                used = next;
                records += 1;
            }
            let salt = self.salt_of(generation);
            let mut behind = (next..end).step_by(HALF_LINE as usize);
            if let Some(record) = behind.find_map(|next| reader.record_at(at, next, salt)) {
                return Err(broken(format!(
                    "the record at {next} is damaged: there is one at {:#x}",
                    record.off
                )));
            }
            if let Some(link) = link
                && (link.used != used || link.records != records)
            {
                return Err(broken(format!(
                    "{records} records up to {used}, where it had {} up to {}",
                    link.records, link.used
                )));
            }
            found.segments.push_back(Segment {
                off: at,
                generation,
                used,
                records,
            });
            at = link.map_or(0, |link| link.next);
        }
        Ok(found)
    }
}

/// Returns the chains of the leaves whose number is `rest` modulo `of`, in the order of their
/// numbers. If `by_number`, a leaf's records are in the order of their sequence numbers; otherwise
/// (a planted fault) in that of the logs.
///
/// # Errors
/// The fault, in words.
pub(super) fn chains(
    logs: &[Replayed],
    (of, rest): (usize, usize),
    by_number: bool,
) -> Result<Vec<Chain>, String> {
    let all = logs.iter().flat_map(|log| &log.parts);
    let mut parts: Vec<Part> = all
        .filter(|part| part.lnid as usize % of == rest)
        .copied()
        .collect();
    if by_number {
        // Records with equal numbers stay in the order of their log.
        parts.sort_by_key(|part| (part.lnid, part.sequence));
    } else {
        parts.sort_by_key(|part| part.lnid);
    }
    let mut chains = Vec::new();
    for of_leaf in parts.chunk_by(|a, b| a.lnid == b.lnid) {
        let lnid = of_leaf[0].lnid;
        let broken = |what: String| format!("leaf {lnid}: {what}");
        let base = of_leaf
            .iter()
            .rposition(|part| part.kind.whole())
            .ok_or_else(|| broken("no record holds all of it".into()))?;
        let mut chain = Chain {
            lnid,
            records: of_leaf.len() as u64,
            base: of_leaf[base],
            deltas: Vec::new(),
        };
        for part in &of_leaf[base + 1..] {
            let newest = chain.sequence();
            // A record that was being moved is there twice. The copy counts, as it does for bases,
            // so that collecting the segment again need not copy it again: in a full pool there may
            // be no room for that.
            if part.sequence == newest
                && part.kind == chain.newest_kind()
                && let Some(last) = chain.deltas.last_mut()
            {
                *last = *part;
                continue;
            }
            if part.sequence != newest + 1 || chain.deltas.len() == MAX_ENTRIES {
                return Err(broken(format!(
                    "a delta has number {} after {newest}",
                    part.sequence
                )));
            }
            chain.deltas.push(*part);
        }
        chains.push(chain);
    }
    Ok(chains)
}

impl Chain {
    fn newest_kind(&self) -> Kind {
        self.deltas.last().unwrap_or(&self.base).kind
    }
}

/// Opens a published root.
pub(super) fn open<K, V, M>(
    root: Root<M>,
    options: &LsOptions,
) -> Result<LsTree<K, V, M>, TreeError>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    let started = Instant::now();
    let heap = root.heap();
    heap.begin_recovery();
    let pm = root.pool().pm();
    // ORDERING (both): Relaxed; the tree is being opened.
    let word = |i: usize| root.word(i).load(pm, Ordering::Relaxed);
    let directory = link::checked(word(DIRECTORY_WORD)).map_err(TreeError::Corrupt)?;
    let (word, salt) = (word(SHAPE_WORD), word(SALT_WORD));
    if !link::is_even(word) || !link::is_even(salt) {
        return Err(TreeError::Corrupt(format!(
            "the root words {word:#x} and {salt:#x} fail their checks"
        )));
    }
    let word = word & !(1 << CHECK_BIT);
    let (segment, inline) = (word & 0xFFFF_FFFF, (word >> 32) as usize);
    let shape = Shape::of(options, pm.tiny(), segment, inline);
    let possible = segment.is_power_of_two()
        && (512..=64 << 10).contains(&segment)
        && inline <= 4096
        && shape.fits();
    if !possible {
        return Err(TreeError::Corrupt(format!(
            "segments of {segment} bytes, strings of {inline} in them"
        )));
    }
    heap.mark(directory, super::DIRECTORY, &epoch::pin())
        .map_err(|what| TreeError::Corrupt(format!("the logs' directory: {what}")))?;
    let mut logs = Logs::new(
        &heap,
        directory,
        (segment, salt),
        Logs::<M>::no_generations(),
    );
    let threads = options.recovery_threads.max(1);
    let mut replayed = replay_all(&logs, &heap, threads)?;
    let by_number = !pm.planted("lstree-replay-unordered");
    let parted = shared(pm, threads, threads, |part| {
        chains(&replayed, (threads, part), by_number)
    })?;
    let mut chains: Vec<Chain> = parted.into_iter().flatten().collect();
    sort_by(&mut chains, &mut |a, b| a.lnid.cmp(&b.lnid));
    let longest = chains.iter().map(|chain| chain.deltas.len()).max();
    for (log, found) in replayed.iter_mut().enumerate() {
        logs.adopt(log, found.generation, std::mem::take(&mut found.segments));
    }
    let table = Table::new(shape.deltas.max(longest.unwrap_or(0)));
    // Replaced when the leaves are known.
    let inner = InnerIndex::new(0, 0).map_err(TreeError::Memory)?;
    let mut tree = LsTree::assemble(inner, table, logs, *options, shape, root, heap);
    tree.report = match tree.rebuild(&chains, threads) {
        Ok(report) => report,
        Err(e) => {
            tree.root = None;
            return Err(e);
        }
    };
    tree.heap.finish_recovery();
    if !tree.read_only {
        tree.logs.clear_ends();
        // As many as the pool has. A thread that finds too few makes room.
        tree.logs.fill_reserve();
    }
    tree.report.elapsed = started.elapsed();
    tree.commit()?;
    Ok(tree)
}

/// Calls `work` with the numbers below `n`, on threads that share them.
fn shared<M: Media, R: Send>(
    pm: &M,
    threads: usize,
    n: usize,
    work: impl Fn(usize) -> Result<R, String> + Sync,
) -> Result<Vec<R>, TreeError> {
    let next = AtomicUsize::new(0);
    let worker = || -> Result<Vec<R>, String> {
        let mut done = Vec::new();
        loop {
            // ORDERING: Relaxed; only the number matters.
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= n {
                return Ok(done);
            }
            done.push(work(i)?);
        }
    };
    let all = on_threads(pm, threads.min(n), worker, |what| what).map_err(TreeError::Corrupt)?;
    Ok(all.into_iter().flatten().collect())
}

fn replay_all<M: Media>(
    logs: &Logs<M>,
    heap: &bristlecone_pmem::Heap<M>,
    threads: usize,
) -> Result<Vec<Replayed>, TreeError> {
    let mut all = shared(logs.pm(), threads, LOGS, |log| {
        let guard = epoch::pin();
        let found = logs.replay(log, true, |off| heap.mark(off, logs.segment, &guard))?;
        Ok((log, found))
    })?;
    sort_by(&mut all, &mut |a, b| a.0.cmp(&b.0));
    Ok(all.into_iter().map(|(_, found)| found).collect())
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> LsTree<K, V, M> {
    /// Fills the mapping table and builds the inner index.
    fn rebuild(&mut self, chains: &[Chain], threads: usize) -> Result<RecoveryReport, TreeError> {
        let lots = chains.len().div_ceil(AT_A_TIME);
        let found = shared(self.pm(), threads, lots, |lot| {
            let end = chains.len().min((lot + 1) * AT_A_TIME);
            let mut leaves = Vec::new();
            let mut entries = 0;
            for chain in &chains[lot * AT_A_TIME..end] {
                let what = |what| format!("leaf {}: {what}", chain.lnid);
                let (leaf, keys) = self.adopt(chain).map_err(what)?;
                leaves.extend(leaf);
                entries += keys;
            }
            Ok((leaves, entries))
        })?;
        let entries = found.iter().map(|(_, entries)| entries).sum();
        let mut leaves: Vec<Leaf<K>> = found.into_iter().flat_map(|(leaves, _)| leaves).collect();
        sort_by(&mut leaves, &mut |a, b| a.low.borrow().cmp(b.low.borrow()));
        for pair in leaves.windows(2) {
            if self
                .compare_to_word(pair[1].low.borrow(), pair[0].high)
                .is_le()
            {
                return Err(TreeError::Corrupt(format!(
                    "leaves {} and {} have keys between each other's",
                    pair[0].lnid, pair[1].lnid
                )));
            }
        }
        let report = RecoveryReport {
            clean: false,
            leaves_scanned: leaves.len().max(1) as u64,
            entries,
            repaired: 0,
            threads,
            elapsed: std::time::Duration::ZERO,
        };
        let mut live: Vec<u32> = leaves.iter().map(|leaf| leaf.lnid).collect();
        if live.is_empty() {
            // Some leaf has to be the first.
            live.push(chains.first().map_or(0, |chain| chain.lnid));
        }
        let first = live[0];
        let rest = leaves.into_iter().skip(1).map(|leaf| (leaf.low, leaf.lnid));
        self.inner = InnerIndex::from_sorted(first, rest, INNER_FILL, self.pm().capacity())
            .map_err(|e| TreeError::Corrupt(e.to_string()))?;
        self.number_leaves(live);
        Ok(report)
    }

    /// Sets which LNIDs are free. (In a damaged pool numbers may be far apart, and then not all of
    /// them are set.)
    fn number_leaves(&self, mut live: Vec<u32>) {
        live.sort_unstable();
        let (mut free, mut next) = (Vec::new(), 0);
        let most = 4 * live.len() + 4096;
        for lnid in live {
            let gap = (next..lnid).take(most.saturating_sub(free.len()));
            free.extend(gap);
            next = lnid + 1;
        }
        // The lowest comes first.
        free.reverse();
        self.table.set_numbers(next, free);
    }

    /// Makes the entry of a chain and checks its records. Returns the leaf, if it has keys, and
    /// their number.
    fn adopt(&self, chain: &Chain) -> Result<(Option<Leaf<K>>, u64), String> {
        let (reader, lnid) = (self.reader(), chain.lnid);
        let entry = self.table.entry(lnid);
        let mut pairs_in_base = 0;
        for part in std::iter::once(&chain.base).chain(&chain.deltas) {
            let record = reader.record(part.off).ok_or("a record is gone")?;
            let pairs = reader
                .pairs(&record, lnid)
                .ok_or("a record contradicts itself")?;
            reader.check_pairs::<K, V>(&record, &pairs, self.shape.inline)?;
            let mut place = Place::new(part.off, usize::from(part.log), 0);
            let share = if part.kind.whole() {
                pairs_in_base = pairs.n as usize;
                if pairs.n > 2 * MAX_ENTRIES as u64 {
                    return Err(format!("{} pairs in a base", pairs.n));
                }
                entry.set_base(place, 0);
                match part.kind {
                    Kind::Split => record.footprint() / 2,
                    _ => record.footprint(),
                }
            } else {
                let hash = K::read(self.pm(), reader.key::<K>(&pairs, 0), |key| key.hash());
                let hash = hash.ok_or("a delta without a key")?;
                place = Place::new(part.off, usize::from(part.log), hash);
                entry.push(place, 0);
                record.footprint()
            };
            // ORDERING: Relaxed; an estimate.
            let live = &self.logs.log(place.log()).live;
            live.fetch_add(share as i64, Ordering::Relaxed);
        }
        entry.set_sequence(chain.sequence());
        entry.add_records(chain.records);
        let mut words = Vec::new();
        self.contents(entry, lnid, &mut words);
        entry.set_counts(Counts {
            live: words.len(),
            pairs: pairs_in_base,
            deltas: chain.deltas.len(),
        });
        for (key, value) in &words {
            self.mark_long::<K>(*key, entry)?;
            self.mark_long::<V>(*value, entry)?;
        }
        let ascend = |pair: &[(u64, u64)]| self.compare_words(pair[0].0, pair[1].0).is_lt();
        if !words.windows(2).all(ascend) {
            return Err("its keys do not ascend".into());
        }
        let (Some(low), Some(high)) = (words.first(), words.last()) else {
            if chain.deltas.is_empty() {
                return Ok((None, 0));
            }
            return Err("it is empty, but for deltas".into());
        };
        let low = K::read(self.pm(), low.0, ToOwned::to_owned).ok_or("a leaf without a key")?;
        let leaf = Leaf {
            lnid,
            low,
            high: high.0,
        };
        Ok((Some(leaf), words.len() as u64))
    }

    /// Marks the block of a word of a chain, if the word leads to one.
    fn mark_long<T: Repr + ?Sized>(
        &self,
        word: u64,
        entry: Entry<'_, M::Dram>,
    ) -> Result<(), String> {
        if !T::RECORDS || self.is_in_chain::<T>(word, entry) {
            return Ok(());
        }
        if !self.leads_to_block::<T>(word) {
            return Err(format!("word {word:#x} leads to no string"));
        }
        T::mark(&self.heap, word, &epoch::pin())
    }

    /// Returns true if a word leads into one of the chain's records, whose strings have been
    /// checked.
    pub(super) fn is_in_chain<T: Repr + ?Sized>(
        &self,
        word: u64,
        entry: Entry<'_, M::Dram>,
    ) -> bool {
        let Some(off) = T::block(word) else {
            return false;
        };
        entry.places().any(|place| {
            let record = self.reader().record(place.off());
            record.is_some_and(|record| (record.off..record.off + record.bytes).contains(&off))
        })
    }
}
