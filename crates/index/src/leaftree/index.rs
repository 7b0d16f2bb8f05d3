//! A leaf tree as an index: the contract's traits.

use super::design::LeafDesign;
use super::{LeafTree, recovery};
use crate::common::{self, commit_inserts};
use crate::content;
use crate::contract::{
    BulkLoad, DurableIndex, Fill, Hint, IfPresent, IndexStats, InsertError, OrderedIndex,
    RecoveryReport, RemoveError, ReverseScan, TreeError, UpdateError, VerifyReport, Violation,
};
use crate::inner::InnerIndex;
use crate::repr::{Stored, StoredKey};
use bristlecone_pmem::pool::RootKind;
use bristlecone_pmem::{CommitError, Media, POff, Pool};
use std::borrow::Borrow;
use std::ops::{ControlFlow, RangeBounds};
use std::sync::Arc;

/// Returns the root table's entry for a tree of these types and options.
fn root_kind<D, K, V, M>(options: &D::Options) -> Result<RootKind, TreeError>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    let node_bytes = D::node_bytes(options)? as u32;
    Ok(common::root_kind::<K, V>(D::name(options), node_bytes))
}

impl<D, K, V, M> DurableIndex<K, V, M> for LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    type Options = D::Options;

    fn create(pool: &Arc<Pool<M>>, name: &str, options: &D::Options) -> Result<Self, TreeError> {
        let root = pool.create_root(name, &root_kind::<D, K, V, M>(options)?)?;
        content::mark(&root, content::FORMAT);
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        // Replaced when there is a leaf.
        let inner = InnerIndex::new(0, 0).map_err(TreeError::Memory)?;
        let design = D::create(options, &root, &heap)?;
        let report = RecoveryReport::default();
        let mut tree = Self::assemble(design, inner, heap.clone(), root, report);
        let made = tree.make_first_leaf();
        if made.is_err() {
            for block in D::blocks(&tree) {
                heap.free(POff::new(block));
            }
            heap.trim();
            // There is no such tree, so nothing is saved.
            tree.root = None;
        }
        made.map(|()| tree)
    }
    fn open(pool: &Arc<Pool<M>>, name: &str, options: &D::Options) -> Result<Self, TreeError> {
        let root = pool.open_root(name, Some(&root_kind::<D, K, V, M>(options)?))?;
        content::check_version(&root, content::FORMAT)?;
        recovery::open(root, options)
    }

    fn recovery(&self) -> &RecoveryReport {
        &self.report
    }

    fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    fn close(mut self) -> Result<(), CommitError> {
        self.close_now()
    }
}

impl<D, K, V, M> OrderedIndex<K, V> for LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    fn insert(&self, key: &K, value: &V) -> Result<(), InsertError> {
        self.insert_uncommitted(key, value)?;
        self.commit()?;
        Ok(())
    }

    fn upsert(&self, key: &K, value: &V) -> Result<bool, InsertError> {
        self.check_pair(key, value)?;
        let was_there = self.put_uncommitted(key, value, IfPresent::Replace)?;
        self.commit()?;
        Ok(was_there)
    }

    fn update(&self, key: &K, value: &V) -> Result<(), UpdateError> {
        self.replace(key, value, None)?;
        self.commit()?;
        Ok(())
    }

    fn remove(&self, key: &K) -> Result<bool, RemoveError> {
        if self.read_only {
            return Err(RemoveError::ReadOnly);
        }
        self.take_out(key)
    }

    #[inline]
    fn get_with<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        self.find_value(key, f)
    }

    fn scan<R: RangeBounds<K>>(&self, range: R, visit: impl FnMut(&K, &V) -> ControlFlow<()>) {
        self.scan_up(&range, |_| {}, visit);
    }

    fn scan_ahead<R: RangeBounds<K>>(
        &self,
        range: R,
        ahead: impl FnMut(&V),
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.scan_up(&range, ahead, visit);
    }

    fn multi_get<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        self.get_batch(keys, out);
    }

    fn multi_get_hinted<Q: Borrow<K>>(
        &self,
        keys: &[Q],
        ahead: impl FnMut(&V),
        out: &mut Vec<(Option<V::Owned>, Hint)>,
    ) {
        self.find_together(keys, ahead, out);
    }

    fn update_unflushed(
        &self,
        hint: &Hint,
        key: &K,
        value: &V,
    ) -> Result<Option<u64>, UpdateError> {
        self.replace(key, value, Some(hint))
    }

    fn multi_insert<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        pairs: &[(Q, W)],
        out: &mut Vec<Result<(), InsertError>>,
    ) {
        out.clear();
        out.reserve(pairs.len());
        D::insert_batch(self, pairs, out);
        commit_inserts(out, || self.commit());
    }

    fn stats(&self) -> IndexStats {
        self.measure()
    }

    fn verify(&self) -> Result<VerifyReport, Violation> {
        self.check()
    }
}

impl<D, K, V, M> ReverseScan<K, V> for LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    fn scan_reverse<R: RangeBounds<K>>(
        &self,
        range: R,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.scan_down(&range, |_| {}, visit);
    }

    fn scan_reverse_ahead<R: RangeBounds<K>>(
        &self,
        range: R,
        ahead: impl FnMut(&V),
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.scan_down(&range, ahead, visit);
    }
}

impl<D, K, V, M> BulkLoad<K, V> for LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    fn bulk_load<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
    ) -> Result<u64, InsertError> {
        self.load_sorted(sorted, fill)
    }
}
