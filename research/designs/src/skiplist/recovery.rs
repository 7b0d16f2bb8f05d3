//! Recovery walks the bottom list, marks everything that it reaches, and links the towers anew.

use super::bulk::Raiser;
use super::node::{MAX_HEIGHT, Nodes};
use super::{HEAD, SkipList, Towers};
use crate::index::{RecoveryReport, TreeError};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{Heap, Media};
use crossbeam_epoch as epoch;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Opens a published root.
pub(super) fn open<K, V, M, T>(root: Root<M>) -> Result<SkipList<K, V, M, T>, TreeError>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
    T: Towers<M>,
{
    let started = Instant::now();
    let heap = root.heap();
    heap.begin_recovery();
    // ORDERING: Relaxed; the list is being opened.
    let head = root.word(HEAD).load(root.pool().pm(), Ordering::Relaxed);
    let head = link::checked(head).map_err(TreeError::Corrupt)?;
    let nodes = Nodes::new(root.pool());
    let height = mark::<M, T>(&heap, &nodes, head).map_err(TreeError::Corrupt)?;
    if height != MAX_HEIGHT {
        return Err(TreeError::Corrupt(format!(
            "the head at {head:#x} has {height} levels, not {MAX_HEIGHT}"
        )));
    }
    let mut list = SkipList::assemble(heap, root, head);
    let entries = list.rebuild().map_err(TreeError::Corrupt)?;
    list.heap.finish_recovery();
    list.report = RecoveryReport {
        clean: false,
        leaves_scanned: entries,
        entries,
        repaired: 0,
        threads: 1,
        elapsed: started.elapsed(),
    };
    list.pm().commit()?;
    Ok(list)
}

/// Checks that there is a node at `off` and marks it as reached. Returns its height.
fn mark<M: Media, T: Towers<M>>(
    heap: &Heap<M>,
    nodes: &Nodes<M>,
    off: u64,
) -> Result<usize, String> {
    // First as a node of the smallest height, so that the height may be read.
    heap.check(off, T::node_bytes(1))?;
    nodes
        .sound(off)
        .map_err(|e| format!("node {off:#x}: {e}"))?;
    let height = nodes.height(off);
    if !(1..=MAX_HEIGHT as u64).contains(&height) {
        return Err(format!("node {off:#x}: no node has {height} levels"));
    }
    let height = height as usize;
    heap.mark(off, T::node_bytes(height), &epoch::pin())
        .map_err(|e| format!("node {off:#x}: {e}"))?;
    Ok(height)
}

impl<K, V, M, T> SkipList<K, V, M, T>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
    T: Towers<M>,
{
    /// Walks the list and links the towers. Returns the number of nodes, or what is wrong.
    fn rebuild(&mut self) -> Result<u64, String> {
        let mut raiser = Raiser::new(self.head_tower);
        let mut entries = 0;
        let mut before: Option<u64> = None;
        let mut at = self.nodes.next(self.head);
        while at != 0 {
            let height = mark::<M, T>(&self.heap, &self.nodes, at)?;
            let next = self.nodes.next(at);
            self.nodes.prefetch_checked(next);
            let (key, value) = (self.nodes.key(at), self.nodes.value(at));
            let guard = &epoch::pin();
            let wrong = |e| format!("node {at:#x}: {e}");
            K::mark(&self.heap, key, guard).map_err(wrong)?;
            V::mark(&self.heap, value, guard).map_err(wrong)?;
            if before.is_some_and(|before| self.compare_words(before, key).is_ge()) {
                return Err(wrong("its key does not follow the one before".into()));
            }
            self.raise_last(&mut raiser, at, key, height);
            before = Some(key);
            entries += 1;
            at = next;
        }
        self.raised(raiser);
        Ok(entries)
    }
}
