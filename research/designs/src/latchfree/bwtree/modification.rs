//! Structure modifications: consolidation with splits, merges, growth and shrinking of the tree.
//!
//! The module's head has the steps, and why each state between them is a sound tree. The follow-up
//! of a step is noted and done after it, so that nothing here recurses with the height of the tree.

use super::BwTree;
use super::find::{Entry, Place, Root};
use super::page::{self, Base, BaseNode, Head, IndexDelta, Kind, MergeDelta, Node, RemoveDelta};
use super::table::PageId;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use crossbeam_epoch::Guard;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A page to be checked: its level, and the word of a key in it.
pub(super) type Chore = (u8, u64);

/// Pages to be checked, the last first.
pub(super) type Chores = Vec<Chore>;

/// Result of checking whether a page can be merged.
enum Fit {
    /// It fits.
    Yes,
    /// It does not.
    No,
    /// Another thread has changed something: look again.
    Again,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> BwTree<K, V, M> {
    /// Returns the number of entries from which on a page is split.
    pub(super) fn most(&self, level: u8) -> usize {
        if level == 0 {
            self.most_entries
        } else {
            self.most_children
        }
    }

    /// Returns the number of entries below which a page is merged.
    fn least(&self, level: u8) -> usize {
        (self.most(level) / 4).max(2)
    }

    /// Returns the number of deltas from which on a chain is consolidated.
    pub(super) fn longest(&self, level: u8) -> usize {
        usize::from(if level == 0 {
            self.leaf_chain
        } else {
            self.inner_chain
        })
    }

    /// Consolidates the page of this level and key. Splits it if it is too large, merges it if it
    /// is too small, and does the follow-up.
    #[cold]
    pub(super) fn look_after(&self, level: u8, word: u64, guard: &Guard) {
        self.do_chores(vec![(level, word)], guard);
    }

    fn do_chores(&self, mut chores: Chores, guard: &Guard) {
        while let Some((level, word)) = chores.pop() {
            let Some(place) = self.descend(level, self.to_word(word), guard) else {
                continue;
            };
            let Some(base) = self.consolidate(place.page, level, true, &mut chores, guard) else {
                continue;
            };
            if base.len() < self.least(level) {
                self.try_merge(place.page, level, word, &mut chores, guard);
            }
        }
    }

    /// Replaces a page's chain by a base node, with a split on top if there are too many entries
    /// and `may_split`. Returns the base node, or `None` if the page is being removed or another
    /// thread was faster.
    fn consolidate<'g>(
        &self,
        page: PageId,
        level: u8,
        may_split: bool,
        chores: &mut Chores,
        guard: &'g Guard,
    ) -> Option<BaseNode<'g>> {
        let head = self.head(page, guard);
        if head.kind() == Kind::Remove {
            self.finish_removal(page, level, chores, guard);
            return None;
        }
        self.finish_split(page, level, head, chores, guard);
        let fresh = head.kind() != Kind::Base;
        let base = if fresh {
            self.base_of(head)
        } else {
            head.base().ptr().cast_mut()
        };
        // SAFETY: 1. the node was made above and no other thread has it, or it is in the chain; 2.
        // it is freed below if it was not installed.
        let base = unsafe { BaseNode::new(base) };
        let split = if may_split && base.len() > self.most(level) {
            self.split_of(base)
        } else {
            None
        };
        let top = split.map_or(base.node().ptr(), |split| split.cast_const().cast());
        if !fresh && split.is_none() {
            return Some(base);
        }
        let dead = self.dead(head);
        if !self.table.install(page, head.ptr(), top) {
            if let Some(split) = split {
                self.discard_split(split);
            }
            if fresh {
                // SAFETY: 1. made above by `Base::make`; 2. nothing leads to it.
                unsafe { page::free(base.node().ptr()) };
            }
            return None;
        }
        if fresh {
            self.retire_chain(head, guard);
            self.retire_dead(&dead, guard);
        }
        if split.is_some() {
            // SAFETY: 1. the node is in the table; 2. this thread is pinned.
            let top = unsafe { Node::new(top) };
            self.finish_split(page, level, top, chores, guard);
        }
        Some(base)
    }

    /// Consolidates a page until the base node `old` is gone.
    fn consolidate_past(
        &self,
        page: PageId,
        level: u8,
        old: *const Base,
        chores: &mut Chores,
        guard: &Guard,
    ) {
        while self.head(page, guard).bottom().ptr() == old {
            self.consolidate(page, level, false, chores, guard);
        }
    }

    /// Finishes a split that an operation meets.
    #[cold]
    pub(super) fn help_split(&self, page: PageId, level: u8, head: Node<'_>, guard: &Guard) {
        let mut chores = Chores::new();
        self.finish_split(page, level, head, &mut chores, guard);
        self.do_chores(chores, guard);
    }

    /// Finishes a removal that an operation meets.
    #[cold]
    pub(super) fn help_removal(&self, page: PageId, level: u8, guard: &Guard) {
        let mut chores = Chores::new();
        self.finish_removal(page, level, &mut chores, guard);
        self.do_chores(chores, guard);
    }

    /// If the page has been split, makes its parent lead to the right page.
    fn finish_split(
        &self,
        page: PageId,
        level: u8,
        head: Node<'_>,
        chores: &mut Chores,
        guard: &Guard,
    ) {
        let Some(node) = head.modification() else {
            return;
        };
        if node.kind() != Kind::Split {
            return;
        }
        let split = node.split();
        // ORDERING: Acquire; pairs with the Release below.
        if split.done.load(Ordering::Acquire) != 0 {
            return;
        }
        let is_wanted = || {
            let now = self.head(page, guard).modification();
            now.is_some_and(|now| ptr::eq(now.ptr(), node.ptr()))
        };
        let (separator, right) = (split.head.high, split.head.right);
        self.post(level + 1, separator, right, is_wanted, chores, guard);
        // ORDERING: Release; pairs with the Acquire above: a thread that sees this sees the
        // parent's entry.
        split.done.store(1, Ordering::Release);
    }

    /// Makes the node of a level have an entry for a child, while that is wanted.
    pub(super) fn post(
        &self,
        level: u8,
        separator: u64,
        child: PageId,
        is_wanted: impl Fn() -> bool,
        chores: &mut Chores,
        guard: &Guard,
    ) {
        loop {
            let Some(place) = self.descend(level, self.to_word(separator), guard) else {
                if self.grow(level, separator, child, &is_wanted) || !is_wanted() {
                    return;
                }
                continue;
            };
            let head = place.head;
            if head.kind() == Kind::Remove {
                self.finish_removal(place.page, level, chores, guard);
                continue;
            }
            let entry = self.entry(head, self.to_word(separator));
            // This comes after the parent was read. A thread that has consolidated the split away
            // since then may have removed the child again, and the parent's head would show that.
            if entry.low == separator || !is_wanted() {
                return;
            }
            let delta = page::new(IndexDelta {
                head: Head::on(head, Kind::IndexInsert).with_count(head.count() + 1),
                key: separator,
                low: separator,
                next: entry.next.unwrap_or(0),
                child,
                bounded: u32::from(entry.next.is_some()),
            });
            if self.table.install(place.page, head.ptr(), delta.cast()) {
                // SAFETY: 1. the delta is in the table; 2. this thread is pinned.
                let is_long = unsafe { (*delta).head.length() } >= self.longest(level);
                if is_long || head.count() >= self.most(level) {
                    chores.push((level, separator));
                }
                return;
            }
            // SAFETY: 1. made above by `page::new`; 2. nothing leads to it.
            unsafe { page::free(delta.cast()) };
        }
    }

    /// Gives the tree a root of this level, over the current root and a child to the right of it,
    /// while that is wanted. Returns true if it did. The first of the two leads to the pages
    /// between them.
    fn grow(&self, level: u8, separator: u64, child: PageId, is_wanted: impl Fn() -> bool) -> bool {
        let root = self.root();
        // This comes after the root was read, for the same reason as in `post`.
        if root.level() >= level || !is_wanted() {
            return false;
        }
        let base = Base::inner(&[0, separator], &[root.page(), child], 0, 0);
        let page = self.table.take();
        self.table.set(page, base.cast());
        let grown = self.exchange_root(root, page, level);
        if !grown {
            // SAFETY: 1. made above by `Base::make`; 2. nothing ever led to it or its page.
            unsafe { page::free(base.cast()) };
            self.table.release(page);
        }
        grown
    }

    fn exchange_root(&self, root: Root, page: PageId, level: u8) -> bool {
        let new = root.followed_by(page, level).0;
        // ORDERING: AcqRel; the Release pairs with the Acquire of `root`. Relaxed on failure, after
        // which it is read again.
        self.root
            .compare_exchange(root.0, new, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Merges a small page into its left sibling, or its right sibling into it, if they have the
    /// same parent and few enough entries.
    fn try_merge(&self, page: PageId, level: u8, word: u64, chores: &mut Chores, guard: &Guard) {
        loop {
            let root = self.root();
            if root.level() <= level {
                if root.page() == page && level > 0 {
                    self.try_shrink(page, level, chores, guard);
                }
                return;
            }
            let Some(parent) = self.descend(level + 1, self.to_word(word), guard) else {
                return;
            };
            let head = parent.head;
            if head.kind() == Kind::Remove {
                self.finish_removal(parent.page, level + 1, chores, guard);
                continue;
            }
            let own = self.entry(head, self.to_word(word));
            if own.child != page {
                return; // Half split off, or being removed.
            }
            let mut again = false;
            let first = head.bottom().keys()[0];
            let mut choices = [None, None];
            if own.low != first {
                choices[0] = Some(own);
            }
            if let Some(next) = own.next
                && (head.right == 0 || next != head.high)
            {
                choices[1] = Some(self.entry(head, self.to_word(next)));
            }
            for choice in choices.into_iter().flatten() {
                match self.fits(choice, level, chores, guard) {
                    Fit::Yes => {}
                    Fit::No => continue,
                    Fit::Again => {
                        again = true;
                        break;
                    }
                }
                if self.take_out(&parent, choice, level, chores, guard) {
                    return;
                }
                again = true;
                break;
            }
            if !again {
                return;
            }
        }
    }

    /// Checks whether the page of an entry, which is not its node's first, fits into its left
    /// sibling.
    fn fits(&self, entry: Entry, level: u8, chores: &mut Chores, guard: &Guard) -> Fit {
        let Some(left) = self.descend(level, self.before(entry.low), guard) else {
            return Fit::No;
        };
        if left.head.kind() == Kind::Remove {
            self.finish_removal(left.page, level, chores, guard);
            return Fit::Again;
        }
        if left.head.right != entry.child {
            return Fit::No;
        }
        if left.head.is_modified() {
            // It must not have a split that could still be posted.
            self.consolidate(left.page, level, false, chores, guard);
            return Fit::Again;
        }
        let right = self.head(entry.child, guard);
        if right.kind() == Kind::Remove {
            return Fit::No;
        }
        let (a, b) = (left.head.count(), right.count());
        let one_is_empty = a.min(b) <= usize::from(level > 0);
        let most = self.most(level);
        let most = if one_is_empty {
            most + self.longest(level)
        } else {
            most * 3 / 4
        };
        if a + b <= most { Fit::Yes } else { Fit::No }
    }

    /// Removes a page from the tree. Returns false if its parent has changed.
    fn take_out(
        &self,
        parent: &Place<'_>,
        entry: Entry,
        level: u8,
        chores: &mut Chores,
        guard: &Guard,
    ) -> bool {
        if !self.leave_parent(parent, entry, level, chores, guard) {
            return false;
        }
        // Only the thread that did the first step does the second.
        let Entry { low, child, .. } = entry;
        if self.close_page(child, low, level, chores, guard) {
            self.finish_removal(child, level, chores, guard);
        } else {
            self.post(level + 1, low, child, || true, chores, guard);
        }
        true
    }

    /// Step 1 of a merge: the page's parent leads past it, to its left sibling, as before the split
    /// between them. Returns false if the parent has changed.
    pub(super) fn leave_parent(
        &self,
        parent: &Place<'_>,
        entry: Entry,
        level: u8,
        chores: &mut Chores,
        guard: &Guard,
    ) -> bool {
        let head = parent.head;
        let before = self.entry(head, self.before(entry.low));
        let delta = page::new(IndexDelta {
            head: Head::on(head, Kind::IndexDelete).with_count(head.count().saturating_sub(1)),
            key: entry.low,
            low: before.low,
            next: entry.next.unwrap_or(0),
            child: before.child,
            bounded: u32::from(entry.next.is_some()),
        });
        let old = head.bottom().ptr();
        if !self.table.install(parent.page, head.ptr(), delta.cast()) {
            // SAFETY: 1. made above by `page::new`; 2. nothing leads to it.
            unsafe { page::free(delta.cast()) };
            return false;
        }
        self.consolidate_past(parent.page, level + 1, old, chores, guard);
        chores.push((level + 1, before.low));
        true
    }

    /// Step 2: nothing can be added to the page. Returns false if the page has grown meanwhile and
    /// stays.
    pub(super) fn close_page(
        &self,
        page: PageId,
        low: u64,
        level: u8,
        chores: &mut Chores,
        guard: &Guard,
    ) -> bool {
        loop {
            let head = self.head(page, guard);
            if head.count() > self.most(level) / 2 + self.longest(level) {
                return false;
            }
            if head.kind() != Kind::Base {
                self.consolidate(page, level, false, chores, guard);
                continue;
            }
            let delta = page::new(RemoveDelta {
                head: Head::on(head, Kind::Remove),
                low,
            });
            if self.table.install(page, head.ptr(), delta.cast()) {
                return true;
            }
            // SAFETY: 1. made above by `page::new`; 2. nothing leads to it.
            unsafe { page::free(delta.cast()) };
        }
    }

    /// Step 3: the left sibling takes over the entries of a page that is being removed.
    fn finish_removal(&self, page: PageId, level: u8, chores: &mut Chores, guard: &Guard) {
        let head = self.head(page, guard);
        if head.kind() != Kind::Remove {
            return;
        }
        let separator = head.remove().low;
        if separator == 0 {
            self.finish_shrinking(page, head, guard);
            return;
        }
        loop {
            let Some(left) = self.descend(level, self.before(separator), guard) else {
                return;
            };
            if left.head.right != page {
                return; // Another thread has done it.
            }
            if left.head.kind() == Kind::Remove {
                self.finish_removal(left.page, level, chores, guard);
                continue;
            }
            if left.head.is_modified() {
                self.consolidate(left.page, level, false, chores, guard);
                continue;
            }
            let count = left.head.count() + head.count();
            let mut merged = Head::on(left.head, Kind::Merge).with_count(count);
            (merged.high, merged.right) = (head.high, head.right);
            let delta = page::new(MergeDelta {
                head: merged,
                key: separator,
                from: head.below().base().ptr(),
            });
            if !self.table.install(left.page, left.head.ptr(), delta.cast()) {
                // SAFETY: 1. made above by `page::new`; 2. nothing leads to it.
                unsafe { page::free(delta.cast()) };
                continue;
            }
            self.retire_page(page, head, guard);
            let old = left.head.bottom().ptr();
            self.consolidate_past(left.page, level, old, chores, guard);
            if level == 0 {
                // Upper levels have lost the separator before, and the parent lost it before step
                // 2.
                K::retire(&self.heap, separator, guard);
            } else {
                // The first child of a node cannot be merged. This one is no longer the first.
                chores.push((level - 1, separator));
            }
            chores.push((level, separator));
            return;
        }
    }

    /// Frees the `Remove` of a page that has left the tree, and the page's number, once no thread
    /// can be at it.
    fn retire_page(&self, page: PageId, head: Node<'_>, guard: &Guard) {
        let (at, table) = (head.ptr(), Arc::clone(&self.table));
        // SAFETY: 1. the page can no longer be reached, so only threads that are pinned now can be
        // at it; 2. only the thread that removed it from the tree, by one exchange, comes here; 3.
        // the closure keeps the table alive.
        unsafe {
            guard.defer_unchecked(move || {
                page::free(at);
                table.release(page);
            });
        }
    }

    /// Replaces a root with one child by that child.
    fn try_shrink(&self, page: PageId, level: u8, chores: &mut Chores, guard: &Guard) {
        let head = self.head(page, guard);
        let is_lone = head.kind() == Kind::Base && head.count() == 1 && head.right == 0;
        if !is_lone {
            return;
        }
        let delta = page::new(RemoveDelta {
            head: Head::on(head, Kind::Remove),
            low: 0,
        });
        if !self.table.install(page, head.ptr(), delta.cast()) {
            // SAFETY: 1. made above by `page::new`; 2. nothing leads to it.
            unsafe { page::free(delta.cast()) };
            return;
        }
        // SAFETY: 1. the delta is in the table; 2. this thread is pinned.
        let head = unsafe { Node::new(delta.cast()) };
        self.finish_shrinking(page, head, guard);
        chores.push((level - 1, 0));
    }

    fn finish_shrinking(&self, page: PageId, head: Node<'_>, guard: &Guard) {
        let root = self.root();
        if root.page() != page {
            return; // Another thread has done it.
        }
        let child = head.below().base().children()[0];
        if self.exchange_root(root, child, root.level() - 1) {
            self.retire_chain(head.below(), guard);
            self.retire_page(page, head, guard);
        }
    }
}
