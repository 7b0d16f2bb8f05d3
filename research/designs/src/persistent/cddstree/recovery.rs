//! Opening: after a clean close the saved data are read. Otherwise a walk through the tree undoes
//! everything newer than the committed version.
//!
//! The walk descends from the committed root over live entries only, and checks everything before
//! it follows it: nodes and records must be blocks of this root that nothing else reached, and keys
//! must ascend and lie in the range that leads to them. So a corrupt pool ends in an error and not
//! in a loop. Several threads share the subtrees below the root.
//!
//! Each repair is a store of one word that can be repeated. All are fenced before the tree is used,
//! because the next version has the number of the one that is undone:
//!
//! * an entry that starts after the committed version becomes a hole;
//! * an end after the committed version is undone;
//! * of an entry in two neighbouring slots, one becomes a hole;
//! * a root that starts after the committed version is cleared.

use super::node::{Entry, LIVE, Node, VERSION_BITS, compare};
use super::{CddsOptions, CddsTree, ROOTS, RootNode, SAVED, VERSION, Writer, offset};
use crate::index::{RecoveryReport, TreeError};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use crate::saved;
use crate::threads::on_threads;
use bristlecone_pmem::Media;
use bristlecone_pmem::pool::Root;
use crossbeam_epoch::{self as epoch, Guard};
use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// Upper bound of version numbers: more than any tree commits.
const VERSIONS: u64 = 1 << VERSION_BITS;

/// Opens a published root.
pub(super) fn open<K, V, M>(
    root: Root<M>,
    options: &CddsOptions,
) -> Result<CddsTree<K, V, M>, TreeError>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    let started = Instant::now();
    let heap = root.heap();
    let pm = root.pool().pm();
    // ORDERING: Relaxed (all here); the tree is being opened.
    let word = |i: usize| link::offset(root.word(i).load(pm, Ordering::Relaxed));
    for i in [VERSION]
        .into_iter()
        .chain(ROOTS.into_iter().flat_map(|(node, start)| [node, start]))
    {
        let word = root.word(i).load(pm, Ordering::Relaxed);
        link::checked(word).map_err(|e| TreeError::Corrupt(format!("root word {i}: {e}")))?;
    }
    let version = word(VERSION);
    if version >= VERSIONS {
        return Err(TreeError::Corrupt(format!(
            "committed version {version:#x}"
        )));
    }
    let (mut root_slot, mut undone) = (None, 0);
    for (i, (node, start)) in ROOTS.into_iter().enumerate() {
        if word(start) > version {
            // This root is undone, and its start must not count when that version is committed
            // after all: of the next root that is written here, a crash may keep the node and not
            // the start. A removal commits by a store to the same line without a fence of its own,
            // so `rebuild` fences.
            root.word(start).store(pm, 0, Ordering::Relaxed);
            undone += 1;
            continue;
        }
        if word(node) != 0 && root_slot.is_none_or(|(_, latest)| word(start) > latest) {
            root_slot = Some((i, word(start)));
        }
    }
    let (root_slot, _) =
        root_slot.ok_or_else(|| TreeError::Corrupt("there is no root node".into()))?;
    let top_word = word(ROOTS[root_slot].0);
    let top = RootNode::of(top_word, options.node_bytes.into(), pm.len())
        .ok_or_else(|| TreeError::Corrupt(format!("no root node can be at {top_word:#x}")))?;
    let mut writer = Writer {
        version,
        root_slot,
        ..Writer::default()
    };
    heap.begin_recovery();
    if let Some([entries, leaves, inner_nodes]) = saved::load_marks(&root, &heap, SAVED) {
        heap.finish_recovery();
        (writer.entries, writer.leaves, writer.inner_nodes) = (entries, leaves, inner_nodes);
        let report = RecoveryReport {
            clean: true,
            elapsed: started.elapsed(),
            ..RecoveryReport::default()
        };
        let tree = CddsTree::assemble(top, writer, heap, root, options, report);
        tree.commit()?;
        return Ok(tree);
    }
    let mut tree: CddsTree<K, V, M> =
        CddsTree::assemble(top, writer, heap, root, options, RecoveryReport::default());
    match tree.rebuild(top, undone, options.recovery_threads.max(1)) {
        Ok(report) => {
            tree.report = report;
            tree.report.elapsed = started.elapsed();
            tree.commit()?;
            Ok(tree)
        }
        Err(e) => {
            // This tree is not whole, so nothing of it may be saved.
            tree.root = None;
            Err(e)
        }
    }
}

/// Counts of a walk.
#[derive(Clone, Copy, Default)]
struct Tally {
    entries: u64,
    leaves: u64,
    inner_nodes: u64,
    repaired: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.entries += other.entries;
        self.leaves += other.leaves;
        self.inner_nodes += other.inner_nodes;
        self.repaired += other.repaired;
    }
}

/// A subtree to be walked, and what leads there.
pub(super) struct Below {
    pub node: u64,
    pub level: u8,
    /// Key words that bound its keys; `None` is unbounded.
    pub low: Option<u64>,
    pub high: Option<u64>,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> CddsTree<K, V, M> {
    /// Walks the tree, undoes what is not committed, and marks the heap. `undone` is the number of
    /// cleared roots.
    fn rebuild(
        &mut self,
        top: RootNode,
        undone: u64,
        threads: usize,
    ) -> Result<RecoveryReport, TreeError> {
        let version = self.writer_mut().version;
        let mut tally = Tally {
            repaired: undone,
            ..Tally::default()
        };
        let below = Below {
            node: offset(top.handle),
            level: top.level,
            low: None,
            high: None,
        };
        let children = self.visit(&below, true, version, &mut tally)?;
        let threads = threads.min(children.len()).max(1);
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let worker = || -> Result<Tally, TreeError> {
            let mut tally = Tally::default();
            // ORDERING: Relaxed (both); only the number matters, and a hint to stop early.
            while let Some(child) = children.get(next.fetch_add(1, Ordering::Relaxed)) {
                if failed.load(Ordering::Relaxed) {
                    break;
                }
                (self.walk(child, version, &mut tally))
                    .inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            }
            if tally.repaired > 0 {
                // PERSIST: this thread's repairs (a fence covers the flushes of its own thread).
                self.pm().fence();
            }
            Ok(tally)
        };
        if tally.repaired > 0 {
            // PERSIST: repairs in the root node, and the cleared start of an undone root, before a
            // version is committed in its line.
            self.pm().fence();
        }
        for part in on_threads(self.pm(), threads, worker, TreeError::Corrupt)? {
            tally.add(part);
        }
        self.heap.finish_recovery();
        let writer = self.writer_mut();
        writer.entries = tally.entries;
        writer.leaves = tally.leaves;
        writer.inner_nodes = tally.inner_nodes;
        Ok(RecoveryReport {
            clean: false,
            leaves_scanned: tally.leaves,
            entries: tally.entries,
            repaired: tally.repaired,
            threads,
            elapsed: std::time::Duration::ZERO,
        })
    }

    /// Walks a subtree. Recurses to the depth of the tree, which is small.
    fn walk(&self, below: &Below, version: u64, tally: &mut Tally) -> Result<(), TreeError> {
        for child in self.visit(below, false, version, tally)? {
            self.walk(&child, version, tally)?;
        }
        Ok(())
    }

    /// Marks a node and its records, and undoes what is not committed in it. Returns its children.
    fn visit(
        &self,
        below: &Below,
        is_root: bool,
        version: u64,
        tally: &mut Tally,
    ) -> Result<Vec<Below>, TreeError> {
        let guard = &epoch::pin();
        let corrupt = |what: String| {
            TreeError::Corrupt(format!(
                "node {:#x} of level {}: {what}",
                below.node, below.level
            ))
        };
        let handle = self
            .child(below.node)
            .ok_or_else(|| corrupt("no node can be there".into()))?;
        self.heap
            .mark(below.node, self.node_bytes.into(), guard)
            .map_err(corrupt)?;
        let entries = self
            .undo_uncommitted(self.node(handle), version, tally)
            .map_err(corrupt)?;
        self.mark_records(below.level, &entries, guard)
            .map_err(corrupt)?;
        let children = self.children(below, is_root, &entries).map_err(corrupt)?;
        if below.level == 0 {
            tally.leaves += 1;
            tally.entries += entries.len() as u64;
        } else {
            tally.inner_nodes += 1;
        }
        Ok(children)
    }

    /// Checks the slots of a node and undoes what is newer than `version`. Returns the live
    /// entries.
    ///
    /// # Errors
    /// The fault, in words.
    fn undo_uncommitted(
        &self,
        node: Node<'_>,
        version: u64,
        tally: &mut Tally,
    ) -> Result<Vec<Entry>, String> {
        let pm = self.pm();
        let mut entries = Vec::new();
        let mut unused = false;
        // Key and start of the entry in the slot before, to find an entry that stands twice.
        let mut before = None;
        for i in 0..node.slots.len() {
            node.sound(pm, i)?;
            let mut entry = node.entry(pm, i);
            let slot = &node.slots[i];
            let wrong = |what: &str| {
                format!(
                    "slot {i} [{:#x}, {:#x}) under version {version:#x}: {what}",
                    entry.start, entry.end
                )
            };
            if entry.is_unused() {
                unused = true;
                continue;
            }
            if unused {
                return Err(wrong("in use behind one that is not"));
            }
            let start = entry.start;
            if start != 0 && entry.end <= start {
                return Err(wrong("ends before it starts"));
            }
            if start != 0 && entry.end > version {
                if entry.end != LIVE && start <= version {
                    entry.end = LIVE;
                    // ORDERING: Relaxed; the tree is being opened.
                    slot.end.store(pm, LIVE, Ordering::Relaxed);
                    // PERSIST: the undone end; fenced before the tree is used (also below).
                    pm.flush_of(slot);
                    tally.repaired += 1;
                }
                if start > version || before == Some((entry.key, start)) {
                    entry.start = 0;
                    slot.start.store(pm, 0, Ordering::Relaxed);
                    // PERSIST: the hole.
                    pm.flush_of(slot);
                    tally.repaired += 1;
                }
            }
            before = (start != 0).then_some((entry.key, start));
            if entry.is_live() {
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    /// Marks the records of the live entries of a node.
    ///
    /// # Errors
    /// The fault, in words.
    fn mark_records(&self, level: u8, entries: &[Entry], guard: &Guard) -> Result<(), String> {
        for (n, entry) in entries.iter().enumerate() {
            let wrong = |e| format!("key {:#x}, value {:#x}: {e}", entry.key, entry.value);
            let first_separator = level > 0 && n == 0;
            if !(first_separator && entry.key == 0) {
                K::mark(&self.heap, entry.key, guard).map_err(wrong)?;
            }
            if level == 0 {
                V::mark(&self.heap, entry.value, guard).map_err(wrong)?;
            }
        }
        Ok(())
    }

    /// Checks the live entries of a node against what leads there (invariants 2 to 4). Returns the
    /// children.
    ///
    /// # Errors
    /// The fault, in words.
    pub(super) fn children(
        &self,
        below: &Below,
        is_root: bool,
        entries: &[Entry],
    ) -> Result<Vec<Below>, String> {
        let leaf = below.level == 0;
        if entries.is_empty() && !(is_root && leaf) {
            return Err("nothing in it is live".into());
        }
        if is_root && !leaf && entries.len() < 2 {
            return Err("a root with one child".into());
        }
        let mut children = Vec::new();
        let mut last = None;
        for (n, entry) in entries.iter().enumerate() {
            let order = |word| compare_words::<K, M>(self.pm(), word, entry.key);
            // An inner node's first separator counts as below all keys, whatever it is.
            let first = !leaf && n == 0;
            let ascends = last.is_none_or(|last| order(last).is_lt());
            let above = below.low.is_none_or(|low| match leaf {
                true => order(low).is_le(),
                false => order(low).is_lt(),
            });
            let under = below.high.is_none_or(|high| order(high).is_gt());
            let fits = first || ascends && above && under;
            if !fits {
                return Err(format!(
                    "key {:#x} is out of order, or outside the range that led here",
                    entry.key
                ));
            }
            last = Some(entry.key);
            if !leaf {
                children.push(Below {
                    node: entry.value,
                    level: below.level - 1,
                    low: if first { below.low } else { Some(entry.key) },
                    high: (entries.get(n + 1)).map_or(below.high, |next| Some(next.key)),
                });
            }
        }
        Ok(children)
    }
}

/// Returns the order of two key words.
pub(super) fn compare_words<K: KeyRepr + ?Sized, M: Media>(pm: &M, a: u64, b: u64) -> Order {
    // A word that leads nowhere sorts below all keys (`compare`).
    K::read(pm, b, |b| compare(pm, a, b)).unwrap_or(Order::Greater)
}
