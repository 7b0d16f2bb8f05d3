//! Changing the index: insert, remove, splits, growth and shrinking of the root.
//!
//! Writers lock nodes at the version that their descent saw, from top to bottom, and never wait
//! while they hold one (module's head, Concurrency 3). An attempt that fails has changed nothing,
//! except that it may have split a full node, which does not change the content of the index.

use super::find::Step;
use super::node::Node;
use super::separator::Separator;
use super::{DramAccess, DramTrace, InnerIndex, ROOT};
use crate::sync::wait;
use crossbeam_epoch::Guard;
use crossbeam_utils::Backoff;

impl<S: Separator + ?Sized, const CAP: usize, D: DramTrace> InnerIndex<S, CAP, D> {
    /// Adds `right` as the leaf of the keys from `separator` on, as far as the leaf that covers
    /// `separator` now goes; that leaf keeps the keys below.
    ///
    /// The caller has split that leaf and holds its lock; `separator` is above the leaf's low end.
    /// Never fails; allocates when nodes split.
    pub fn insert(&self, separator: &S, right: u32, guard: &Guard) {
        Self::check_guard(guard);
        let full = self.allocate_separator(separator);
        Self::retry(|| self.try_insert(separator, full, right));
    }

    /// Reports that a node is locked and changed, as if all of it were written.
    fn report_change(handle: u32) {
        Self::report(DramAccess::Locked, handle, 0, 8);
        Self::report(DramAccess::Store, handle, 0, size_of::<Node<S>>());
    }

    fn try_insert(&self, separator: &S, full: S::Full, right: u32) -> Option<()> {
        loop {
            let mut parent = None;
            let mut full_node = None;
            let step = self.descend(
                // SAFETY: the caller of `insert` is pinned.
                |node, meta| unsafe { node.upper(meta, separator) },
                |step| {
                    if full_node.is_none() {
                        if step.meta.count >= CAP {
                            full_node = Some((parent, *step));
                        }
                        parent = Some(*step);
                    }
                },
            )?;
            if let Some((parent, node)) = full_node {
                // Split the highest full node, then start again: its parent has room.
                self.split(parent.as_ref(), &node)?;
                continue;
            }
            if !step.node.version.try_lock_at(step.version) {
                return None;
            }
            debug_assert!(
                step.at == 0
                    // SAFETY: locked, so the separators are in the index.
                    || step.node.separator(step.at - 1).is_some_and(|s| unsafe { S::view(&s) } < separator)
                    || bristlecone_pmem::heap::damage_is_expected::asked(),
                "{separator:?} is a separator already"
            );
            Self::report_change(step.handle);
            // SAFETY: `full` is new, the others are in the index.
            unsafe { step.node.insert(step.at, full, right) };
            step.node.version.unlock();
            return Some(());
        }
    }

    /// Splits a full node. Returns `None`, and nothing has happened, if a version changed.
    fn split(&self, parent: Option<&Step<'_, S>>, step: &Step<'_, S>) -> Option<()> {
        let Some(parent) = parent else {
            debug_assert_eq!(step.handle, ROOT, "only the root has no parent");
            return self.split_root(step);
        };
        if !parent.node.version.try_lock_at(parent.version) {
            return None;
        }
        if !step.node.version.try_lock_at(step.version) {
            parent.node.version.unlock_unchanged();
            return None;
        }
        let (handle, right) = self.new_node(step.meta.level, 0);
        for changed in [parent.handle, step.handle, handle] {
            Self::report_change(changed);
        }
        // SAFETY: both nodes are locked, so their separators are in the index.
        unsafe {
            let up = step.node.split(Self::middle(step), right);
            parent.node.insert(parent.at, up, handle);
        }
        step.node.version.unlock();
        parent.node.version.unlock();
        Some(())
    }

    /// Splits the root in place: its content moves to two new nodes below it.
    fn split_root(&self, step: &Step<'_, S>) -> Option<()> {
        let root = step.node;
        if !root.version.try_lock_at(step.version) {
            return None;
        }
        let (left_handle, left) = self.new_node(step.meta.level, 0);
        let (right_handle, right) = self.new_node(step.meta.level, 0);
        for changed in [ROOT, left_handle, right_handle] {
            Self::report_change(changed);
        }
        left.copy_from(root);
        // SAFETY: the root is locked, so its separators are in the index.
        unsafe {
            let up = left.split(Self::middle(step), right);
            root.grow(left_handle, up, right_handle);
        }
        root.version.unlock();
        Some(())
    }

    /// Returns where to split: in the middle, or near the end if the new separator goes there, so
    /// that ascending insertion leaves nearly full nodes behind.
    fn middle(step: &Step<'_, S>) -> usize {
        let count = step.meta.count;
        if step.at == count {
            count - 2
        } else {
            count / 2
        }
    }

    /// Removes `leaf`; `key` is any key that is routed to it. Its range goes to its left neighbour,
    /// or to its right one if it is the first below its parent (or, if parents are removed with it,
    /// below the lowest ancestor that stays).
    ///
    /// The caller has emptied the leaf and holds its lock. Returns false if `key` is not routed to
    /// `leaf`, or if it is the only leaf, which stays.
    pub fn remove(&self, leaf: u32, key: &S, guard: &Guard) -> bool {
        Self::check_guard(guard);
        Self::retry(|| self.try_remove(leaf, key, guard))
    }

    fn try_remove(&self, leaf: u32, key: &S, guard: &Guard) -> Option<bool> {
        let mut path = Vec::with_capacity(8);
        let last = self.descend(
            // SAFETY: the caller of `remove` is pinned.
            |node, meta| unsafe { node.upper(meta, key) },
            |step| path.push(*step),
        )?;
        let routed = last.node.child(last.at) == leaf;
        // The lowest ancestor with another child. The nodes below it have only this leaf.
        let stays = path.iter().rposition(|step| step.meta.count > 0);
        let (true, Some(stays)) = (routed, stays) else {
            // A version each was read before its child's: if all hold now, they held together.
            return path
                .iter()
                .all(|step| step.node.version.validate(step.version))
                .then_some(false);
        };
        let path = &path[stays..];
        for (i, step) in path.iter().enumerate() {
            if !step.node.version.try_lock_at(step.version) {
                for locked in path[..i].iter().rev() {
                    locked.node.version.unlock_unchanged();
                }
                return None;
            }
        }
        let (ancestor, emptied) = path.split_first()?;
        Self::report_change(ancestor.handle);
        let separator = ancestor.node.remove(ancestor.at);
        for step in emptied.iter().rev() {
            step.node.version.unlock_obsolete();
        }
        ancestor.node.version.unlock();
        self.retire_separator(separator, guard);
        for step in emptied {
            self.retire_node(step.handle, guard);
        }
        if ancestor.handle == ROOT {
            self.shrink_root(guard);
        }
        Some(true)
    }

    /// Replaces `old`, which `key` is routed to, by `new`. The caller holds `old`'s lock.
    ///
    /// Returns false, with nothing changed, if `key` is not routed to `old`.
    pub fn replace(&self, old: u32, new: u32, key: &S, guard: &Guard) -> bool {
        let step = self.lock_node(key, guard);
        let routed = step.node.child(step.at) == old;
        if routed {
            step.node.set_leaf(step.at, new);
        }
        Self::unlock_node(&step, routed)
    }

    /// Gives the range of `right`, which `key` is routed to, to `left`, the leaf just before it.
    /// The caller holds both locks.
    ///
    /// Returns false, with nothing changed, if the two are not below one level-1 node.
    pub fn absorb(&self, left: u32, right: u32, key: &S, guard: &Guard) -> bool {
        let step = self.lock_node(key, guard);
        let siblings = Self::are_siblings(&step, left, right);
        if siblings {
            self.retire_separator(step.node.remove(step.at), guard);
        }
        Self::unlock_node(&step, siblings)
    }

    /// Takes `right` out, which `key` is routed to, and gives its range to the leaf just before it,
    /// wherever that is. The caller holds the locks of both.
    ///
    /// False, with nothing changed, if `key` is not routed to `right`, or if there is no leaf
    /// before it.
    pub fn remove_to_left(&self, right: u32, key: &S, guard: &Guard) -> bool {
        Self::check_guard(guard);
        Self::retry(|| self.try_remove_to_left(right, key, guard))
    }

    fn try_remove_to_left(&self, right: u32, key: &S, guard: &Guard) -> Option<bool> {
        let mut path = Vec::with_capacity(8);
        let last = self.descend(
            // SAFETY: the caller of `remove_to_left` is pinned.
            |node, meta| unsafe { node.upper(meta, key) },
            |step| path.push(*step),
        )?;
        // The node whose separator is the boundary between the two leaves, and the lowest node that
        // has another child; what is below that has only this leaf.
        let boundary = path.iter().rposition(|step| step.at > 0);
        let stays = path.iter().rposition(|step| step.meta.count > 0);
        let (true, Some(boundary), Some(stays)) =
            (last.node.child(last.at) == right, boundary, stays)
        else {
            return path
                .iter()
                .all(|step| step.node.version.validate(step.version))
                .then_some(false);
        };
        // Everything from the boundary down has another range afterwards.
        let path = &path[boundary..];
        for (i, step) in path.iter().enumerate() {
            if !step.node.version.try_lock_at(step.version) {
                for locked in path[..i].iter().rev() {
                    locked.node.version.unlock_unchanged();
                }
                return None;
            }
        }
        let (kept, emptied) = path.split_at(stays - boundary + 1);
        let (top, bottom) = (&kept[0], &kept[kept.len() - 1]);
        let separator = bottom.node.remove(bottom.at);
        let unused = if kept.len() == 1 {
            separator
        } else {
            // The first child of `bottom` is gone. The separator behind it becomes the boundary.
            let child = top.node.child(top.at);
            let old = top.node.remove(top.at);
            // SAFETY: both separators are in the index until they are retired below.
            unsafe { top.node.insert(top.at - 1, separator, child) };
            old
        };
        for step in emptied.iter().rev() {
            step.node.version.unlock_obsolete();
        }
        for step in kept.iter().rev() {
            Self::report_change(step.handle);
            step.node.version.unlock();
        }
        self.retire_separator(unused, guard);
        for step in emptied {
            self.retire_node(step.handle, guard);
        }
        if kept.iter().any(|step| step.handle == ROOT) {
            self.shrink_root(guard);
        }
        Some(true)
    }

    /// Makes `boundary` the smallest key that is routed to `right`, which `key` is routed to now.
    /// Keys below it go to `left`, the leaf just before. The caller holds both locks, and
    /// `boundary` is inside the range of the two.
    ///
    /// Returns false, with nothing changed, if the two are not below one level-1 node.
    pub fn move_boundary(
        &self,
        left: u32,
        right: u32,
        key: &S,
        boundary: &S,
        guard: &Guard,
    ) -> bool {
        let full = self.allocate_separator(boundary);
        let step = self.lock_node(key, guard);
        let siblings = Self::are_siblings(&step, left, right);
        let unused = if siblings {
            let old = step.node.remove(step.at);
            // SAFETY: `full` is new, the others are in the index.
            unsafe { step.node.insert(step.at - 1, full, right) };
            old
        } else {
            full
        };
        self.retire_separator(unused, guard);
        Self::unlock_node(&step, siblings)
    }

    fn are_siblings(step: &Step<'_, S>, left: u32, right: u32) -> bool {
        step.at > 0 && step.node.child(step.at) == right && step.node.child(step.at - 1) == left
    }

    /// Returns the level-1 node of `key`, locked.
    fn lock_node<'i>(&'i self, key: &S, guard: &Guard) -> Step<'i, S> {
        Self::check_guard(guard);
        Self::retry(|| {
            // SAFETY: the caller is pinned.
            let step = self.descend(|node, meta| unsafe { node.upper(meta, key) }, |_| {})?;
            // The step saw a consistent node if the version that it began with can be locked.
            step.node.version.try_lock_at(step.version).then_some(step)
        })
    }

    fn unlock_node(step: &Step<'_, S>, changed: bool) -> bool {
        if changed {
            Self::report_change(step.handle);
            step.node.version.unlock();
        } else {
            step.node.version.unlock_unchanged();
        }
        changed
    }

    /// While the root's only child is an inner node, makes the root take over its content.
    fn shrink_root(&self, guard: &Guard) {
        let root = self.root();
        let backoff = Backoff::new();
        loop {
            let version = root.version.read();
            let meta = root.meta();
            let handle = root.child(0);
            if !root.version.validate(version) {
                continue;
            }
            if meta.count > 0 || meta.level == 1 {
                return;
            }
            // SAFETY: the handle was read from a node above level 1 that was validated just now.
            let child: &Node<S> = unsafe { self.node(handle) };
            let child_version = child.version.read();
            if !root.version.try_lock_at(version) {
                continue;
            }
            if !child.version.try_lock_at(child_version) {
                root.version.unlock_unchanged();
                wait(&backoff);
                continue;
            }
            root.copy_from(child);
            child.version.unlock_obsolete();
            root.version.unlock();
            self.retire_node(handle, guard);
        }
    }
}
