//! The engines of this project as embedded stores: the product, and the clustered tree by itself.

use super::Engine;
use bristlecone::{Batch, Database, Keyspace};
use bristlecone_designs::clustered::{ClusteredOptions, ClusteredTree};
use bristlecone_designs::{DurableIndex, OrderedIndex};
use bristlecone_peers::PeerError;
use bristlecone_peers::store::Store;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::path::Path;

/// The product.
pub(super) struct Product {
    pub(super) pairs: Keyspace,
}

pub(super) fn failed(doing: &'static str) -> impl Fn(bristlecone::Error) -> PeerError {
    move |e| PeerError {
        peer: "store",
        doing,
        message: e.to_string(),
    }
}

impl Product {
    /// Creates it in a new file, with so many bytes of memory if that is bounded.
    pub(super) fn open(path: &Path, memory: Option<u64>) -> Result<Self, PeerError> {
        let mut options = Database::builder();
        if memory.is_some() {
            options = options.memory(memory);
        }
        let db = options.open(path).map_err(failed("opening"))?;
        let pairs = db.keyspace("pairs").map_err(failed("opening"))?;
        Ok(Self { pairs })
    }
}

/// Shows `visit` the numbers that keys are.
fn numbered(visit: &mut dyn FnMut(u64, &[u8])) -> impl FnMut(&[u8], &[u8]) {
    move |key, value| visit(key.try_into().map_or(0, u64::from_be_bytes), value)
}

/// Shows `visit` the first `limit` entries, at least one.
pub(super) fn first(
    limit: usize,
    visit: &mut dyn FnMut(&[u8], &[u8]),
) -> impl FnMut(&[u8], &[u8]) -> ControlFlow<()> {
    let mut seen = 0;
    move |key, value| {
        visit(key, value);
        seen += 1;
        if seen >= limit {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

impl Store for Product {
    fn name(&self) -> &'static str {
        Engine::Store.name()
    }

    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").to_owned()
    }

    fn setting(&self) -> &'static str {
        "Durability::Immediate, the default"
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<(), PeerError> {
        let put = self.pairs.insert(key.to_be_bytes(), value);
        put.map_err(failed("insert"))
    }

    fn put_batch(&self, pairs: &[(u64, Vec<u8>)]) -> Result<(), PeerError> {
        let mut batch = Batch::new();
        for (key, value) in pairs {
            batch.insert(&self.pairs, key.to_be_bytes(), value);
        }
        let written = self.pairs.database().write(batch);
        written.map(|_| ()).map_err(failed("batch"))
    }

    fn get(&self, key: u64, visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
        let found = self.pairs.get_with(key.to_be_bytes(), visit);
        Ok(found.map_err(failed("get"))?.is_some())
    }

    fn scan(
        &self,
        from: u64,
        limit: usize,
        visit: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), PeerError> {
        let mut visit = numbered(visit);
        let scanned = (self.pairs).scan(from.to_be_bytes().., first(limit, &mut visit));
        scanned.map_err(failed("scan"))
    }

    fn remove(&self, key: u64) -> Result<(), PeerError> {
        let removed = self.pairs.remove(key.to_be_bytes());
        removed.map(|_| ()).map_err(failed("delete"))
    }
}

/// The clustered tree.
pub(super) struct Tree(ClusteredTree<[u8], [u8], Auto>);

fn failed_in_tree<E: fmt::Display>(doing: &'static str) -> impl Fn(E) -> PeerError {
    move |e| PeerError {
        peer: "tree",
        doing,
        message: e.to_string(),
    }
}

impl Tree {
    /// Creates it in a new file.
    pub(super) fn open(path: &Path) -> Result<Self, PeerError> {
        let pool =
            Pool::create(path, &PoolOptions::default()).map_err(failed_in_tree("opening"))?;
        let tree = ClusteredTree::create(&pool, "pairs", &ClusteredOptions::default());
        tree.map(Self).map_err(failed_in_tree("opening"))
    }
}

impl Store for Tree {
    fn name(&self) -> &'static str {
        Engine::Tree.name()
    }

    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").to_owned()
    }

    fn setting(&self) -> &'static str {
        "each call fences and commits"
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<(), PeerError> {
        let put = self.0.upsert(&key.to_be_bytes(), value);
        put.map(|_| ()).map_err(failed_in_tree("upsert"))
    }

    fn put_batch(&self, pairs: &[(u64, Vec<u8>)]) -> Result<(), PeerError> {
        let keys: Vec<[u8; 8]> = pairs.iter().map(|(key, _)| key.to_be_bytes()).collect();
        let pairs = keys.iter().zip(pairs);
        let changes = pairs.map(|(key, (_, value))| (&key[..], Some(&value[..])));
        self.0.write_batch(changes).map_err(failed_in_tree("batch"))
    }

    fn get(&self, key: u64, visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
        Ok(self.0.get_with(&key.to_be_bytes(), visit).is_some())
    }

    fn scan(
        &self,
        from: u64,
        limit: usize,
        visit: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), PeerError> {
        let from = from.to_be_bytes();
        let range = (Bound::Included(&from[..]), Bound::Unbounded);
        let mut visit = numbered(visit);
        self.0
            .scan::<(Bound<&[u8]>, Bound<&[u8]>)>(range, first(limit, &mut visit));
        Ok(())
    }

    fn remove(&self, key: u64) -> Result<(), PeerError> {
        let removed = self.0.remove(&key.to_be_bytes());
        removed.map(|_| ()).map_err(failed_in_tree("delete"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bristlecone_peers::store::Model;

    #[test]
    fn both_answer_as_the_model() {
        let dir = tempfile::tempdir().unwrap();
        let product = Product::open(&dir.path().join("store"), None).unwrap();
        let tree = Tree::open(&dir.path().join("tree")).unwrap();
        for store in [&product as &dyn Store, &tree] {
            let mut model = Model::new(5);
            model.steps(store, 1000).unwrap();
            model.holds(store).unwrap();
            assert!(!store.version().is_empty() && !store.setting().is_empty());
        }
    }
}
