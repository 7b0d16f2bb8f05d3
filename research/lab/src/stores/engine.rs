//! The compared engines. Each is opened in its fastest setting in which a call returns when its
//! change is durable.

use crate::LabError;
use bristlecone::{Batch, Database, Keyspace};
use bristlecone_designs::clustered::{ClusteredOptions, ClusteredTree};
use bristlecone_designs::{DurableIndex, OrderedIndex};
use bristlecone_peers::PeerError;
use bristlecone_peers::fjall::Fjall;
use bristlecone_peers::lmdb::{Lmdb, Mode};
use bristlecone_peers::redb::Redb;
use bristlecone_peers::store::Store;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::str::FromStr;

/// An embedded store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The product's `Database`, with its defaults.
    Bristlecone,
    /// The clustered tree by itself, which the product's store is to be built on.
    Tree,
    /// LMDB in the mode `WRITEMAP`.
    Lmdb,
    /// redb.
    Redb,
    /// fjall.
    Fjall,
}

impl Engine {
    /// All engines; the product is the first.
    pub const ALL: [Self; 5] = [
        Self::Bristlecone,
        Self::Tree,
        Self::Lmdb,
        Self::Redb,
        Self::Fjall,
    ];
    /// The databases: those that are compared if none are named.
    pub const DATABASES: [Self; 4] = [Self::Bristlecone, Self::Lmdb, Self::Redb, Self::Fjall];

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bristlecone => "bristlecone",
            Self::Tree => "tree",
            Self::Lmdb => "LMDB",
            Self::Redb => "redb",
            Self::Fjall => "fjall",
        }
    }

    /// Creates a store in `dir`, for `keys` keys and as many again.
    pub(super) fn open(
        self,
        dir: &Path,
        keys: u64,
        value_bytes: usize,
    ) -> Result<Box<dyn Store>, LabError> {
        let path = dir.join(self.name());
        let made = |path: &Path| {
            std::fs::create_dir(path).map_err(|e| LabError::io(path, "making a directory", e))
        };
        Ok(match self {
            Self::Bristlecone => Box::new(Product::open(&path)?),
            Self::Tree => Box::new(Tree::open(&path)?),
            Self::Lmdb => {
                made(&path)?;
                Box::new(Lmdb::open(
                    &path,
                    Mode::WriteMap,
                    map_bytes(keys, value_bytes)?,
                )?)
            }
            Self::Redb => Box::new(Redb::open(&path)?),
            Self::Fjall => {
                made(&path)?;
                Box::new(Fjall::open(&path)?)
            }
        })
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Engine {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let named = |engine: &Self| engine.name().eq_ignore_ascii_case(text);
        let found = Self::ALL.into_iter().find(named);
        found.ok_or_else(|| {
            LabError::parameter("engine", text, Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// Reserved address space of LMDB's mapping: several times what it needs.
fn map_bytes(keys: u64, value_bytes: usize) -> Result<usize, LabError> {
    const STEP: u64 = 1 << 30;
    let entry = 256 + 4 * value_bytes as u64;
    let bytes = keys.saturating_mul(2 * entry).next_multiple_of(STEP);
    usize::try_from(bytes)
        .map_err(|_| LabError::parameter("keys", keys, "what this machine can address"))
}

/// Returns the medium of the product's databases in `dir`, which their path chooses.
pub(super) fn medium_of(dir: &Path) -> &'static str {
    let probe = tempfile::tempdir_in(dir).ok();
    let opened = probe.and_then(|probe| {
        let db = Database::open(probe.path().join("probe")).ok()?;
        Some(db.medium().name())
    });
    opened.unwrap_or("unknown")
}

/// The product.
struct Product {
    pairs: Keyspace,
}

fn failed(doing: &'static str) -> impl Fn(bristlecone::Error) -> PeerError {
    move |e| PeerError {
        peer: "bristlecone",
        doing,
        message: e.to_string(),
    }
}

impl Product {
    fn open(path: &Path) -> Result<Self, PeerError> {
        let db = Database::open(path).map_err(failed("opening"))?;
        let pairs = db.keyspace("pairs").map_err(failed("opening"))?;
        Ok(Self { pairs })
    }
}

impl Store for Product {
    fn name(&self) -> &'static str {
        Engine::Bristlecone.name()
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
        let found = self.pairs.get(key.to_be_bytes()).map_err(failed("get"))?;
        Ok(found.map(|value| visit(&value)).is_some())
    }

    fn scan(
        &self,
        from: u64,
        limit: usize,
        visit: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), PeerError> {
        for entry in self.pairs.range(from.to_be_bytes()..).take(limit) {
            let (key, value) = entry.map_err(failed("scan"))?;
            visit(
                key.as_ref().try_into().map_or(0, u64::from_be_bytes),
                &value,
            );
        }
        Ok(())
    }

    fn remove(&self, key: u64) -> Result<(), PeerError> {
        let removed = self.pairs.remove(key.to_be_bytes());
        removed.map(|_| ()).map_err(failed("delete"))
    }
}

/// The clustered tree.
struct Tree(ClusteredTree<[u8], [u8], Auto>);

fn failed_in_tree<E: fmt::Display>(doing: &'static str) -> impl Fn(E) -> PeerError {
    move |e| PeerError {
        peer: "tree",
        doing,
        message: e.to_string(),
    }
}

impl Tree {
    fn open(path: &Path) -> Result<Self, PeerError> {
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
        let mut left = limit;
        self.0
            .scan::<(Bound<&[u8]>, Bound<&[u8]>)>(range, |key, value| {
                visit(key.try_into().map_or(0, u64::from_be_bytes), value);
                left -= 1;
                if left == 0 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
        Ok(())
    }

    fn remove(&self, key: u64) -> Result<(), PeerError> {
        let removed = self.0.remove(&key.to_be_bytes());
        removed.map(|_| ()).map_err(failed_in_tree("delete"))
    }
}
