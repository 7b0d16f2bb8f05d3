//! Opening, and the walk through the whole tree that recovery and `verify` share: level by level,
//! from the root down.
//!
//! A level is a list of children in the level above, and a list by `next`. A node that only the
//! second list has is an *orphan*: a split or a merge was cut short there. The parent of an
//! orphan's left neighbour was locked. Therefore at most one orphan is behind each node, and its
//! parent has room.
//!
//! Recovery repairs in this order, each step repeatable:
//!
//! 1. during the walk, entries that an orphan has too are cut off its left neighbour, and shifts
//!    are finished;
//! 2. once all blocks in use are known, an orphan becomes a child of its neighbour's parent, or of
//!    a new root; an orphan that is an empty leaf is unlinked;
//! 3. at last, emptied leaves are merged, and a root with one child is removed.
//!
//! The walk checks everything before it follows it: nodes and records must be blocks of this root
//! that nothing else reached, levels must descend, and keys must ascend within the bounds that the
//! parents give. So a corrupt pool ends in an error and not in a loop.

use super::node::{child, to_child};
use super::read::{Corrupt, Goal};
use super::{FastFair, FastFairOptions, MARKS, MAX_LEVEL, ROOT, offset};
use crate::btree::node::compare_words;
use crate::common::sort_by;
use crate::index::{RecoveryReport, TreeError};
use crate::link;
use crate::repr::{PairOf, Stored, StoredKey, WordOf};
use crate::saved;
use crate::threads::on_threads;
use bristlecone_pmem::Media;
use bristlecone_pmem::pool::Root;
use crossbeam_epoch as epoch;
use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// Number of nodes that a thread takes at a time.
const TAKE: usize = 64;

/// An item that a walk reaches.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reached<A, B> {
    /// A node, by its offset. Nothing of it has been read yet.
    Node(u64),
    /// The word of a key, or of a leaf's low key.
    Key(A),
    /// The word of a value.
    Value(B),
}

/// A node as its parent has it.
#[derive(Clone, Copy, Debug)]
struct Child<A> {
    off: u64,
    low: A,
    /// Offset of the parent; 0 for the root.
    parent: u64,
}

/// The successor of a node in its level.
#[derive(Clone, Copy, Debug)]
struct Follows<A> {
    /// Offset of the next node; 0 if there is none.
    next: u64,
    /// Its low word.
    high: Option<A>,
    /// True if an orphan may come before it.
    orphan: bool,
}

/// A node in the list of its level that no parent has.
#[derive(Clone, Copy, Debug)]
struct Orphan<A> {
    child: Child<A>,
    level: usize,
    /// Offset of the left neighbour.
    left: u64,
    empty: bool,
}

/// Result of a walk.
#[derive(Debug)]
pub(super) struct Walked<A> {
    pub entries: u64,
    pub leaves: u64,
    repaired: u64,
    children: Vec<Child<A>>,
    orphans: Vec<Orphan<A>>,
    /// Low words of empty leaves that have parents.
    empty: Vec<A>,
}

// Not derived, because that would require `A: Default`.
impl<A> Default for Walked<A> {
    fn default() -> Self {
        Self {
            entries: 0,
            leaves: 0,
            repaired: 0,
            children: Vec::new(),
            orphans: Vec::new(),
            empty: Vec::new(),
        }
    }
}

/// A thread's result for some nodes, and the index of the first of them.
type Part<A> = (usize, Walked<A>);

impl<A> Walked<A> {
    fn add(&mut self, other: Self) {
        self.entries += other.entries;
        self.leaves += other.leaves;
        self.repaired += other.repaired;
        self.children.extend(other.children);
        self.orphans.extend(other.orphans);
        self.empty.extend(other.empty);
    }
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media> FastFair<K, V, M> {
    /// Walks all nodes and checks the invariants of the module's head. Passes every item that it
    /// reaches to `each` first. `repair` is true after a crash; otherwise nothing is stored. No
    /// thread may write meanwhile.
    ///
    /// # Errors
    /// The reason in words, whether a check or `each` failed.
    pub(super) fn walk<F>(
        &self,
        threads: usize,
        repair: bool,
        each: F,
    ) -> Result<Walked<K::Word>, String>
    where
        F: Fn(Reached<K::Word, V::Word>) -> Result<(), String> + Sync,
    {
        let top = offset(self.top());
        let top_level = self.node(self.top()).level(self.pm());
        if top_level > MAX_LEVEL {
            return Err(format!("node {top:#x}: level {top_level}"));
        }
        let mut total = Walked::default();
        let mut nodes = vec![Child {
            off: top,
            low: K::Word::default(),
            parent: 0,
        }];
        for level in (0..=top_level).rev() {
            let mut walked = self.walk_level(threads, level, &nodes, repair, &each)?;
            nodes = std::mem::take(&mut walked.children);
            total.add(walked);
        }
        Ok(total)
    }

    /// Visits the nodes of one level. Returns their children in order.
    fn walk_level<F>(
        &self,
        threads: usize,
        level: usize,
        nodes: &[Child<K::Word>],
        repair: bool,
        each: &F,
    ) -> Result<Walked<K::Word>, String>
    where
        F: Fn(Reached<K::Word, V::Word>) -> Result<(), String> + Sync,
    {
        let taken = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let worker = || -> Result<Vec<Part<WordOf<K>>>, String> {
            // Pins of `each` are then nested, which is cheap.
            let _pin = epoch::pin();
            let mut parts = Vec::new();
            loop {
                // ORDERING: Relaxed (both); only the number matters, and a hint to stop early.
                let first = taken.fetch_add(TAKE, Ordering::Relaxed);
                if first >= nodes.len() || failed.load(Ordering::Relaxed) {
                    break;
                }
                let mut part = Walked::default();
                for i in first..(first + TAKE).min(nodes.len()) {
                    let after = nodes.get(i + 1);
                    let follows = Follows {
                        next: after.map_or(0, |after| after.off),
                        high: after.map(|after| after.low),
                        orphan: repair,
                    };
                    self.visit(level, nodes[i], follows, repair, each, &mut part)
                        .inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                }
                parts.push((first, part));
            }
            Ok(parts)
        };
        // More threads would have nothing to take.
        let threads = threads.min(nodes.len().div_ceil(TAKE));
        let mut parts: Vec<_> = on_threads(self.pm(), threads, worker, |what| what)?
            .into_iter()
            .flatten()
            .collect();
        sort_by(&mut parts, &mut |a, b| a.0.cmp(&b.0));
        let mut walked = Walked::default();
        for (_, part) in parts {
            walked.add(part);
        }
        Ok(walked)
    }

    /// Visits a node, and an orphan behind it.
    fn visit(
        &self,
        level: usize,
        child: Child<K::Word>,
        follows: Follows<K::Word>,
        repair: bool,
        each: &impl Fn(Reached<K::Word, V::Word>) -> Result<(), String>,
        out: &mut Walked<K::Word>,
    ) -> Result<(), String> {
        let wrong = |what: String| format!("node {:#x} of level {level}: {what}", child.off);
        let Some(orphan) = self
            .visit_one(level, child, follows, repair, each, out)
            .map_err(wrong)?
        else {
            return Ok(());
        };
        let empty = out.empty.len();
        let alone = Follows {
            orphan: false,
            ..follows
        };
        self.visit(level, orphan, alone, repair, each, out)?;
        let is_empty = out.empty.len() > empty;
        out.empty.truncate(empty);
        out.orphans.push(Orphan {
            child: orphan,
            level,
            left: child.off,
            empty: is_empty,
        });
        Ok(())
    }

    /// Visits a node. Returns the orphan behind it, if there is one.
    fn visit_one(
        &self,
        level: usize,
        child: Child<K::Word>,
        follows: Follows<K::Word>,
        repair: bool,
        each: &impl Fn(Reached<K::Word, V::Word>) -> Result<(), String>,
        out: &mut Walked<K::Word>,
    ) -> Result<Option<Child<K::Word>>, String> {
        let pm = self.pm();
        let at = (self.handle(child.off)).ok_or("no node can be there")?;
        each(Reached::Node(child.off))?;
        let node = self.node(at);
        node.sound(pm)?;
        let (found, low) = (node.level(pm), node.low(pm));
        if found != level || low != child.low {
            let expected = child.low;
            return Err(format!(
                "level {found}, low key {low:#x}; its parent says {expected:#x}"
            ));
        }
        if level == 0 && low != K::Word::default() {
            each(Reached::Key(low))?;
        }
        let next = node.next(pm);
        let orphan = if next == follows.next {
            None
        } else if follows.orphan {
            Some(self.check_orphan(level, next, child, follows)?)
        } else {
            return Err(format!(
                "it leads to {next:#x}, and {:#x} follows",
                follows.next
            ));
        };
        let raw = node.raw::<K, M>(pm, orphan.map(|orphan| orphan.low));
        if !raw.is_whole() {
            if !repair {
                return Err("a shift was not finished".into());
            }
            out.repaired += node.repair(pm, &raw);
        }
        let high = orphan.map_or(follows.high, |orphan| Some(orphan.low));
        self.check_order(&raw.entries, low, high)?;
        if level == 0 {
            Self::visit_entries(child, &raw.entries, each, out)?;
        } else {
            let first = raw.entries.first().map(|entry| entry.0);
            if first != Some(low) {
                return Err(format!(
                    "its first key is {first:#x?}, its low key {low:#x}"
                ));
            }
            out.children
                .extend(raw.entries.iter().map(|(low, value)| Child {
                    off: self::child(*value),
                    low: *low,
                    parent: child.off,
                }));
        }
        Ok(orphan)
    }

    /// Checks that the keys of a node ascend and are at least `low` and below `high`.
    fn check_order(
        &self,
        entries: &[PairOf<K, V>],
        low: K::Word,
        high: Option<K::Word>,
    ) -> Result<(), String> {
        let order = |a: K::Word, b: K::Word| self.order(a, b);
        let ascends = entries
            .windows(2)
            .all(|pair| order(pair[0].0, pair[1].0).is_lt());
        let first = entries.first().map(|entry| entry.0);
        let last = entries.last().map(|entry| entry.0);
        let above = first.is_none_or(|first| order(first, low).is_ge());
        let below = match (last, high) {
            (Some(last), Some(high)) => order(last, high).is_lt(),
            _ => true,
        };
        if ascends && above && below {
            Ok(())
        } else {
            Err(format!(
                "keys are out of order, or not between {low:#x} and {high:#x?}"
            ))
        }
    }

    /// Visits the entries of a leaf.
    fn visit_entries(
        leaf: Child<K::Word>,
        entries: &[PairOf<K, V>],
        each: &impl Fn(Reached<K::Word, V::Word>) -> Result<(), String>,
        out: &mut Walked<K::Word>,
    ) -> Result<(), String> {
        for (key, value) in entries {
            each(Reached::Key(*key))?;
            each(Reached::Value(*value))?;
        }
        out.leaves += 1;
        out.entries += entries.len() as u64;
        // An empty root has nothing to merge with.
        if entries.is_empty() && (leaf.parent != 0 || leaf.low != K::Word::default()) {
            out.empty.push(leaf.low);
        }
        Ok(())
    }

    /// Returns the order of two key words, of which 0 is below all others.
    fn order(&self, a: K::Word, b: K::Word) -> Order {
        let none = K::Word::default();
        if a == none || b == none {
            a.cmp(&b)
        } else {
            compare_words::<K, M>(self.pm(), a, b)
        }
    }

    /// Checks that the node at `off`, which no parent has, can be the right sibling of `left`.
    fn check_orphan(
        &self,
        level: usize,
        off: u64,
        left: Child<K::Word>,
        follows: Follows<K::Word>,
    ) -> Result<Child<K::Word>, String> {
        let pm = self.pm();
        self.heap.check(off, self.node_bytes())?;
        let at = self.handle(off).ok_or("it leads to what is no node")?;
        let node = self.node(at);
        let low = node.low(pm);
        let order = |a: K::Word, b: K::Word| self.order(a, b);
        let fits = node.level(pm) == level
            && node.next(pm) == follows.next
            && low != K::Word::default()
            && order(left.low, low).is_lt()
            && follows.high.is_none_or(|high| order(low, high).is_lt());
        if fits {
            Ok(Child {
                off,
                low,
                parent: left.parent,
            })
        } else {
            Err(format!("it leads to {off:#x}, which does not belong there"))
        }
    }

    /// Opens a published root.
    pub(super) fn recover(root: Root<M>, options: &FastFairOptions) -> Result<Self, TreeError> {
        let started = Instant::now();
        let heap = root.heap();
        heap.begin_recovery();
        // ORDERING: Relaxed; the tree is being opened.
        let top = root.word(ROOT).load(root.pool().pm(), Ordering::Relaxed);
        let top = link::checked(top).map_err(TreeError::Corrupt)?;
        heap.check(top, options.node_bytes.into())
            .map_err(|e| TreeError::Corrupt(format!("root node: {e}")))?;
        let clean = saved::load_marks::<M, 0>(&root, &heap, MARKS).is_some();
        let mut tree = Self::assemble(root, heap, options);
        match tree.rebuild(top, clean, options.recovery_threads.max(1)) {
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

    fn rebuild(
        &mut self,
        top: u64,
        clean: bool,
        threads: usize,
    ) -> Result<RecoveryReport, TreeError> {
        let at = self.handle(top);
        *self.top.get_mut() =
            at.ok_or_else(|| TreeError::Corrupt(format!("no root node can be at {top:#x}")))?;
        if clean {
            self.heap.finish_recovery();
            return Ok(RecoveryReport {
                clean: true,
                threads: 1,
                ..RecoveryReport::default()
            });
        }
        let mark = |reached| {
            let guard = epoch::pin();
            match reached {
                Reached::Node(off) => self.heap.mark(off, self.node_bytes(), &guard),
                Reached::Key(word) => K::mark(&self.heap, word, &guard),
                Reached::Value(word) => V::mark(&self.heap, word, &guard),
            }
        };
        let walked = self.walk(threads, true, mark).map_err(TreeError::Corrupt)?;
        self.heap.finish_recovery();
        let mut report = RecoveryReport {
            clean: false,
            leaves_scanned: walked.leaves,
            entries: walked.entries,
            repaired: walked.repaired + walked.orphans.len() as u64,
            threads,
            ..RecoveryReport::default()
        };
        for orphan in &walked.orphans {
            self.adopt(orphan)?;
        }
        report.repaired += self.merge_emptied(&walked.empty);
        Ok(report)
    }

    /// Makes an orphan a child, or unlinks it.
    fn adopt(&self, orphan: &Orphan<K::Word>) -> Result<(), TreeError> {
        let pm = self.pm();
        let Child { off, low, parent } = orphan.child;
        // Both have been visited.
        let handles = self.handle(off).zip(self.handle(orphan.left));
        let (at, left) = handles.ok_or_else(|| TreeError::Corrupt("no node".into()))?;
        if orphan.empty {
            // PERSIST: (in `publish`) the link past the empty leaf.
            let next = link::word(self.node(at).next(pm));
            self.node(left).link().publish(pm, next);
            self.retire_node(at, 0, low, &epoch::pin());
            return Ok(());
        }
        if parent == 0 {
            let root = self.new_node()?;
            let first = (K::Word::default(), to_child(orphan.left));
            let children = [first, (low, to_child(off))];
            self.fill_new(root, orphan.level + 1, 0, first.0, &children);
            // PERSIST: the new root, before the root word leads to it.
            pm.fence();
            self.publish_top(root);
            return Ok(());
        }
        let above = self.handle(parent).map(|parent| self.node(parent));
        let Some(above) = above.filter(|above| above.count(pm) < above.slots()) else {
            return Err(TreeError::Corrupt(format!(
                "node {parent:#x}: no room for a child that it should have"
            )));
        };
        let place = K::read(pm, low, |key| above.route(pm, key, false) + 1);
        let place = place.ok_or_else(|| TreeError::Corrupt(format!("no key at {low:#x}")))?;
        above.insert(pm, above.count(pm), place, (low, to_child(off)), true);
        Ok(())
    }

    /// Merges empty leaves, given by their low words, and removes a root with one child. Returns
    /// how many nodes were freed.
    fn merge_emptied(&self, empty: &[K::Word]) -> u64 {
        let before = self.heap.live_blocks();
        let guard = epoch::pin();
        let merge = || -> Result<(), Corrupt> {
            for low in empty {
                if *low == K::Word::default() {
                    self.shrink(Goal::First, &guard)?;
                    continue;
                }
                // A key of its own, because the record may be freed with a leaf.
                let key = K::read(self.pm(), *low, ToOwned::to_owned).ok_or(Corrupt)?;
                self.shrink(Goal::Key(key.borrow()), &guard)?;
            }
            self.collapse(&guard)
        };
        // The walk found the tree to be whole, and unfinished merges lose nothing.
        let _ = merge();
        before.saturating_sub(self.heap.live_blocks())
    }
}
