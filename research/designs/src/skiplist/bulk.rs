//! Bulk load: a list of nodes is built beside the empty one, and one NAW of the head's link
//! switches to it.
//!
//! Nodes hold one pair each. There is nothing to leave room in, so the requested fill has no
//! effect.
//!
//! Persist cost: every line once (a line that two nodes share also once, if they are allocated one
//! after the other), and 2 fences in all.

use super::node::{MAX_HEIGHT, NODE_BYTES, target};
use super::{SkipList, Towers};
use crate::index::{Fill, InsertError};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::LINE;
use std::borrow::Borrow;

/// Links towers from the smallest key to the largest while no other thread is in the list.
pub(super) struct Raiser {
    /// The last tower of each level.
    last: [u64; MAX_HEIGHT],
    highest: usize,
}

impl Raiser {
    pub(super) fn new(head_tower: u64) -> Self {
        Self {
            last: [head_tower; MAX_HEIGHT],
            highest: 0,
        }
    }
}

impl<K, V, M, T> SkipList<K, V, M, T>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
    T: Towers<M>,
{
    /// Links the tower of the largest node so far.
    pub(super) fn raise_last(&self, raiser: &mut Raiser, node: u64, key: u64, height: usize) {
        if height == 1 {
            return;
        }
        let tower = self.towers.make(node, key, height);
        for (level, last) in raiser.last.iter_mut().enumerate().take(height).skip(1) {
            self.lead(*last, level, tower);
            *last = tower;
        }
        raiser.highest = raiser.highest.max(height - 1);
    }

    /// Ends every level.
    pub(super) fn raised(&mut self, raiser: Raiser) {
        for (level, last) in raiser.last.into_iter().enumerate().skip(1) {
            self.lead(last, level, 0);
        }
        *self.highest.get_mut() = raiser.highest;
    }

    /// Sets an upper link if it differs. In a pool that is open for reading each store would copy a
    /// page, and after a clean close all links are right.
    fn lead(&self, from: u64, level: usize, to: u64) {
        if !self.read_only || self.towers.link(&self.nodes, from, level) != to {
            self.towers.set_link(&self.nodes, from, level, to);
        }
    }

    pub(super) fn load_sorted<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        _fill: Fill,
    ) -> Result<u64, InsertError> {
        if self.read_only {
            return Err(InsertError::ReadOnly);
        }
        if target(self.nodes.next(self.head)) != 0 {
            return Err(InsertError::KeyExists);
        }
        let mut chain = Vec::new();
        if let Err(e) = self.build(sorted, &mut chain) {
            for (node, _) in chain {
                self.discard_node(node);
            }
            return Err(e);
        }
        let Some(&(first, _)) = chain.first() else {
            return Ok(0);
        };
        let pm = self.pm();
        // PERSIST: all nodes and records, before the link that leads to them.
        pm.fence();
        // PERSIST: (in `publish`) the head's link; the loaded nodes are the list.
        self.nodes.at(self.head).next.publish(pm, link::word(first));
        let mut raiser = Raiser::new(self.head_tower);
        for (node, height) in &chain {
            self.raise_last(&mut raiser, *node, self.nodes.key(*node), *height);
        }
        self.raised(raiser);
        self.pm().commit()?;
        Ok(chain.len() as u64)
    }

    fn build<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        sorted: impl Iterator<Item = (Q, W)>,
        chain: &mut Vec<(u64, usize)>,
    ) -> Result<(), InsertError> {
        let mut last: Option<Q> = None;
        for (key, value) in sorted {
            self.check_pair(key.borrow(), value.borrow())?;
            if last
                .as_ref()
                .is_some_and(|last| last.borrow() >= key.borrow())
            {
                return Err(InsertError::KeyExists);
            }
            let draft = self.draft(key.borrow())?;
            let word = match value.borrow().make(&self.heap) {
                Ok(word) => word,
                Err(e) => {
                    self.drop_draft(draft);
                    return Err(e.into());
                }
            };
            self.write_node(draft.node, draft.key, word, 0, draft.height);
            if let Some((before, _)) = chain.last() {
                // ORDERING: Relaxed; nothing leads to the node yet.
                let next = &self.nodes.at(*before).next;
                next.store(
                    self.pm(),
                    link::word(draft.node),
                    std::sync::atomic::Ordering::Relaxed,
                );
                self.flush_node(*before, Some(draft.node));
            }
            chain.push((draft.node, draft.height));
            last = Some(key);
        }
        if let Some((end, _)) = chain.last() {
            self.flush_node(*end, None);
        }
        Ok(())
    }

    /// Flushes a complete node, without the line in which the node after it begins, which is
    /// flushed with that node.
    fn flush_node(&self, node: u64, after: Option<u64>) {
        let line = LINE as u64;
        let last = (node + NODE_BYTES - 1) / line;
        let end = match after {
            Some(after) if after / line == last => last * line,
            _ => (last + 1) * line,
        };
        if end > node {
            let at = self.pm().base().wrapping_add(node as usize);
            // PERSIST: the node, fenced before the link to the first is published.
            self.pm().flush(at, (end - node) as usize);
        }
    }
}
