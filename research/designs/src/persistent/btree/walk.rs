//! The walk through the whole tree that recovery and `verify` share, and measurements.

use super::BTree;
use super::kind::{Kind, Leaf};
use super::node::{MAX_LEVEL, Node, compare_words};
use crate::common::sort_by;
use crate::index::{IndexStats, VerifyReport, Violation};
use crate::link;
use crate::repr::{Stored, StoredKey, WordOf};
use crate::threads::on_threads;
use crate::version_lock::VersionLocks;
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::cmp::Ordering as Order;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// An item that a walk reaches.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reached<A, B> {
    /// A node, by its offset. Nothing of it has been read yet.
    Node(u64),
    /// The word of a key or a separator.
    Key(A),
    /// The word of a value.
    Value(B),
}

/// Counts of a walk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub entries: u64,
    pub leaves: u64,
    pub inner_nodes: u64,
    pub depth: u32,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.entries += other.entries;
        self.leaves += other.leaves;
        self.inner_nodes += other.inner_nodes;
    }
}

/// Separators that bound a node's keys, by key words: inclusive, exclusive.
type Range<A> = (Option<A>, Option<A>);

/// A subtree to be walked.
#[derive(Clone, Copy, Debug)]
struct Subtree<A> {
    off: u64,
    /// Level that its top must have.
    level: usize,
    range: Range<A>,
}

/// A walk of a subtree in progress.
struct Walk<'a, F> {
    each: &'a F,
    counts: Counts,
    /// The first leaf that it reached.
    first: Option<u64>,
    /// Link of the last leaf, once there was one.
    next: Option<u64>,
}

impl<'a, F> Walk<'a, F> {
    fn new(each: &'a F) -> Self {
        Self {
            each,
            counts: Counts::default(),
            first: None,
            next: None,
        }
    }
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind> BTree<K, V, M, D> {
    /// Walks all nodes and checks the invariants of the module's head. Passes every item that it
    /// reaches to `each` first, in key order if `threads` is 1. Everything that it follows was
    /// checked before, and the levels descend, so it ends whatever the pool holds. No thread may
    /// write meanwhile.
    ///
    /// # Errors
    /// The reason in words, whether a check or `each` failed.
    pub(super) fn walk<F>(&self, threads: usize, each: F) -> Result<Counts, String>
    where
        F: Fn(Reached<K::Word, V::Word>) -> Result<(), String> + Sync,
    {
        let top = self.node(self.top);
        let level = top.level(self.pm());
        if level > MAX_LEVEL {
            return Err(format!("node {:#x}: level {level}", top.offset()));
        }
        let mut above = Walk::new(&each);
        let mut subtrees = vec![Subtree {
            off: top.offset(),
            level,
            range: (None, None),
        }];
        // Enough subtrees that all threads get about equal shares.
        while threads > 1 && subtrees.len() < threads.saturating_mul(8) && subtrees[0].level > 0 {
            let mut below = Vec::new();
            for subtree in subtrees {
                self.walk_inner(&mut above, subtree, |_, child| {
                    below.push(child);
                    Ok(())
                })?;
            }
            subtrees = below;
        }
        let next = AtomicUsize::new(0);
        let worker = || {
            // Pins of `each` are then nested, which is cheap.
            let _pin = epoch::pin();
            let mut done = Vec::new();
            loop {
                // ORDERING: Relaxed; only the number matters.
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(subtree) = subtrees.get(number) else {
                    return Ok(done);
                };
                let mut walk = Walk::new(&each);
                self.walk_node(&mut walk, *subtree)?;
                done.push((number, walk.counts, walk.first, walk.next));
            }
        };
        let mut parts: Vec<_> = on_threads(self.pm(), threads, worker, |what| what)?
            .into_iter()
            .flatten()
            .collect();
        sort_by(&mut parts, &mut |a, b| a.0.cmp(&b.0));
        let mut counts = above.counts;
        counts.depth = level as u32 + 1;
        let mut leads_to: Option<u64> = None;
        for (_, part, first, next) in parts {
            counts.add(part);
            if leads_to.is_some() && leads_to != first {
                return Err(format!(
                    "leaf {first:#x?}: the leaf before it leads to {leads_to:#x?}"
                ));
            }
            leads_to = next;
        }
        match leads_to {
            Some(0) => Ok(counts),
            next => Err(format!("the last leaf leads on to {next:#x?}")),
        }
    }

    /// Walks the top of a subtree and everything below.
    fn walk_node<F: Fn(Reached<K::Word, V::Word>) -> Result<(), String>>(
        &self,
        walk: &mut Walk<'_, F>,
        subtree: Subtree<K::Word>,
    ) -> Result<(), String> {
        if subtree.level == 0 {
            return self.walk_leaf(walk, subtree);
        }
        self.walk_inner(walk, subtree, |walk, child| self.walk_node(walk, child))
    }

    /// Passes a subtree's top to the walk, then checks its place and level.
    fn walk_top<F: Fn(Reached<K::Word, V::Word>) -> Result<(), String>>(
        &self,
        walk: &Walk<'_, F>,
        subtree: Subtree<K::Word>,
    ) -> Result<Node<'_>, String> {
        let at = self
            .handle(subtree.off)
            .ok_or_else(|| String::from("no node can be there"))?;
        (walk.each)(Reached::Node(subtree.off))?;
        let node = self.node(at);
        let found = node.level(self.pm());
        if found == subtree.level {
            Ok(node)
        } else {
            Err(format!("level {found}, expected {}", subtree.level))
        }
    }

    /// Walks an inner node and passes its children, in order, to `below`.
    fn walk_inner<'a, F: Fn(Reached<K::Word, V::Word>) -> Result<(), String>>(
        &self,
        walk: &mut Walk<'a, F>,
        subtree: Subtree<K::Word>,
        mut below: impl FnMut(&mut Walk<'a, F>, Subtree<K::Word>) -> Result<(), String>,
    ) -> Result<(), String> {
        let wrong = |what: String| format!("node {:#x}: {what}", subtree.off);
        let (pm, range) = (self.pm(), subtree.range);
        let node = self.walk_top(walk, subtree).map_err(wrong)?.inner::<K>();
        walk.counts.inner_nodes += 1;
        node.sound(pm).map_err(wrong)?;
        let n = node.count(pm);
        let separators: Vec<K::Word> = (0..n).map(|i| node.key(pm, i)).collect();
        for separator in &separators {
            (walk.each)(Reached::Key(*separator)).map_err(wrong)?;
        }
        self.check_order(&separators, range).map_err(wrong)?;
        for i in 0..=n {
            let low = if i == 0 {
                range.0
            } else {
                Some(separators[i - 1])
            };
            let high = if i == n { range.1 } else { Some(separators[i]) };
            let child = Subtree {
                off: node.child(pm, i),
                level: subtree.level - 1,
                range: (low, high),
            };
            below(walk, child)?;
        }
        Ok(())
    }

    fn walk_leaf<F: Fn(Reached<K::Word, V::Word>) -> Result<(), String>>(
        &self,
        walk: &mut Walk<'_, F>,
        subtree: Subtree<K::Word>,
    ) -> Result<(), String> {
        let (pm, range) = (self.pm(), subtree.range);
        let wrong = |what: String| format!("leaf {:#x}: {what}", subtree.off);
        let leaf = self.walk_top(walk, subtree).map_err(wrong)?;
        let is_root = leaf.offset() == self.node(self.top).offset();
        walk.first.get_or_insert(leaf.offset());
        if walk.next.is_some_and(|next| next != leaf.offset()) {
            let next = walk.next;
            return Err(wrong(format!("the leaf before it leads to {next:#x?}")));
        }
        D::Leaf::sound::<K::Word, V::Word, M>(leaf, pm).map_err(wrong)?;
        walk.next = Some(link::checked(leaf.load(pm, 1)).map_err(wrong)?);
        let mut entries: Vec<(K::Word, V::Word)> = Vec::new();
        D::Leaf::entries(leaf, pm, &mut entries);
        let len = D::Leaf::len::<K::Word, V::Word, M>(leaf, pm);
        if entries.len() != len {
            return Err(wrong(format!(
                "{len} entries, and {} are there",
                entries.len()
            )));
        }
        if entries.is_empty() && !is_root {
            return Err(wrong("it is empty".into()));
        }
        for (key, value) in &entries {
            (walk.each)(Reached::Key(*key)).map_err(wrong)?;
            (walk.each)(Reached::Value(*value)).map_err(wrong)?;
        }
        let mut keys: Vec<WordOf<K>> = entries.iter().map(|entry| entry.0).collect();
        if !D::Leaf::SORTED {
            sort_by(&mut keys, &mut |a, b| compare_words::<K, M>(pm, *a, *b));
        }
        self.check_order(&keys, range).map_err(wrong)?;
        walk.counts.entries += keys.len() as u64;
        walk.counts.leaves += 1;
        Ok(())
    }

    /// Checks that the keys behind these words ascend strictly, from `low` (inclusive) to `high`
    /// (exclusive).
    fn check_order(&self, keys: &[K::Word], (low, high): Range<K::Word>) -> Result<(), String> {
        let order = |a: K::Word, b: K::Word| compare_words::<K, M>(self.pm(), a, b);
        if let Some(pair) = keys
            .windows(2)
            .find(|pair| order(pair[0], pair[1]) != Order::Less)
        {
            return Err(format!("key {:#x} does not follow {:#x}", pair[1], pair[0]));
        }
        if let (Some(first), Some(low)) = (keys.first(), low)
            && order(*first, low) == Order::Less
        {
            return Err(format!("key {first:#x} is below separator {low:#x}"));
        }
        if let (Some(last), Some(high)) = (keys.last(), high)
            && order(*last, high) != Order::Less
        {
            return Err(format!("key {last:#x} is not below separator {high:#x}"));
        }
        Ok(())
    }

    /// Checks every invariant, and that every live block is reached exactly once, and no other
    /// block.
    pub(super) fn check(&self) -> Result<VerifyReport, Violation> {
        /// Items that the walk reached.
        #[derive(Default)]
        struct Seen {
            blocks: HashSet<u64>,
            leak: bool,
            records: u64,
        }

        let seen = Mutex::new(Seen::default());
        let logs = self.logs.offset();
        let walked = self.walk(1, |reached| {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            let block = match reached {
                Reached::Node(off) => {
                    self.heap.check(off, self.node_bytes())?;
                    Some(off)
                }
                Reached::Key(word) => {
                    seen.records += K::check(&self.heap, word)?;
                    K::block(word)
                }
                Reached::Value(word) => {
                    seen.records += V::check(&self.heap, word)?;
                    V::block(word)
                }
            };
            let Some(block) = block else { return Ok(()) };
            if block == logs || !self.heap.is_live(block) || !seen.blocks.insert(block) {
                seen.leak = true;
                return Err(format!("block {block:#x} is free, or reached twice"));
            }
            Ok(())
        });
        let Seen {
            blocks,
            leak,
            records,
        } = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
        let counts = walked.map_err(|what| Violation { what, leak })?;
        let armed = self.logs.recover(|_| Err("it is armed".into()));
        armed.map_err(Violation::new)?;
        // The log area is reached through its root word.
        let (live, reached) = (self.heap.live_blocks(), blocks.len() as u64 + 1);
        if live != reached || !self.heap.is_live(logs) {
            return Err(Violation::leak(format!(
                "{live} blocks are in use but {reached} are reached: {} leaked",
                live.abs_diff(reached)
            )));
        }
        Ok(VerifyReport {
            entries: counts.entries,
            leaves: counts.leaves,
            records,
        })
    }

    pub(super) fn measure(&self) -> IndexStats {
        // Pinned, so that everything reached is a node, even if it may have left the tree.
        let _pin = epoch::pin();
        let mut counts = Counts::default();
        let pm = self.pm();
        let level = loop {
            let top = self.start();
            let level = self.node(top.at).level(pm);
            if self.locks.validate(top.at, top.version) {
                break level.min(MAX_LEVEL);
            }
        };
        counts.depth = level as u32 + 1;
        self.count_below(self.top, level, &mut counts, &mut HashSet::new());
        let heap = self.heap.stats();
        let slots = counts.leaves.max(1) * self.leaf_capacity() as u64;
        IndexStats {
            entries: counts.entries,
            depth: counts.depth,
            leaves: counts.leaves,
            inner_nodes: counts.inner_nodes,
            leaf_fill: counts.entries as f64 / slots as f64,
            pm_bytes: heap.chunk_bytes,
            dram_bytes: heap.dram_bytes + VersionLocks::BYTES,
        }
    }

    /// Counts the nodes below a node of level `level`, as they are found; other threads may write
    /// meanwhile. An inner node counts once, however many others lead to it in a corrupt pool.
    fn count_below(&self, at: u32, level: usize, counts: &mut Counts, seen: &mut HashSet<u32>) {
        let (pm, node) = (self.pm(), self.node(at));
        if level > 0 && !seen.insert(at) {
            return;
        }
        let children: Vec<u64> = loop {
            let version = self.version(at);
            if node.level(pm) != level {
                return;
            }
            let children = match level {
                0 => Vec::new(),
                _ => {
                    let node = node.inner::<K>();
                    (0..=node.count(pm)).map(|i| node.child(pm, i)).collect()
                }
            };
            let len = if level == 0 {
                D::Leaf::len::<K::Word, V::Word, M>(node, pm)
            } else {
                0
            };
            if self.locks.validate(at, version) {
                counts.entries += len as u64;
                break children;
            }
        };
        match level {
            0 => counts.leaves += 1,
            _ => counts.inner_nodes += 1,
        }
        for child in children.into_iter().filter_map(|off| self.handle(off)) {
            self.count_below(child, level - 1, counts, seen);
        }
    }
}
