//! The compared engines. Each is opened in its fastest setting in which a call returns when its
//! change is durable.

use super::array::Array;
use super::own::{Product, Tree};
use super::volatile::Volatile;
use crate::LabError;
use bristlecone::Database;
use bristlecone_peers::store::Store;
#[cfg(feature = "peers")]
use bristlecone_peers::{
    fjall::Fjall,
    lmdb::{Lmdb, Mode},
    redb::Redb,
    rocksdb::RocksDb,
    sqlite::Sqlite,
};
use bristlecone_pmem::MediumKind;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An embedded store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The product's `Database`, with its defaults.
    Store,
    /// The clustered tree by itself, which the product's store is to be built on.
    Tree,
    /// LMDB: `WRITEMAP` in memory, its default mode on a disk.
    Lmdb,
    /// redb.
    Redb,
    /// fjall.
    Fjall,
    /// RocksDB.
    RocksDb,
    /// SQLite.
    Sqlite,
    /// The standard library's `BTreeMap` in DRAM, which keeps nothing: a reference, not a peer.
    BTreeMap,
    /// A sorted array in DRAM: what the harness takes of reading in order.
    Array,
}

impl Engine {
    /// All engines; those of this project are the first.
    pub const ALL: [Self; 9] = [
        Self::Store,
        Self::Tree,
        Self::Lmdb,
        Self::Redb,
        Self::Fjall,
        Self::RocksDb,
        Self::Sqlite,
        Self::BTreeMap,
        Self::Array,
    ];

    /// Returns its name in commands and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Tree => "tree",
            Self::Lmdb => "lmdb",
            Self::Redb => "redb",
            Self::Fjall => "fjall",
            Self::RocksDb => "rocksdb",
            Self::Sqlite => "sqlite",
            Self::BTreeMap => "btreemap",
            Self::Array => "array",
        }
    }

    /// Returns its name for people.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Store => "bristlecone",
            Self::Lmdb => "LMDB",
            Self::RocksDb => "RocksDB",
            Self::Sqlite => "SQLite",
            Self::BTreeMap => "BTreeMap",
            Self::Tree | Self::Redb | Self::Fjall | Self::Array => self.name(),
        }
    }

    /// Returns true if it is another project's store.
    #[must_use]
    pub fn is_peer(self) -> bool {
        !matches!(self, Self::Store | Self::Tree) && !self.is_reference()
    }

    /// Returns true if it keeps nothing.
    #[must_use]
    pub fn is_reference(self) -> bool {
        matches!(self, Self::BTreeMap | Self::Array)
    }

    /// Returns those of all stores that this build and this system have.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let all = Self::ALL.into_iter();
        all.filter(|engine| !engine.is_reference() && engine.check().is_ok())
            .collect()
    }

    /// Checks that this build and this system have it.
    ///
    /// # Errors
    /// It needs the feature `peers`, or a library of the system, whose package the message names.
    pub fn check(self) -> Result<(), LabError> {
        #[cfg(feature = "peers")]
        match self {
            Self::RocksDb => RocksDb::library_version().map(|_| ())?,
            Self::Sqlite => Sqlite::library_version().map(|_| ())?,
            Self::Store | Self::Tree | Self::Lmdb | Self::Redb | Self::Fjall => {}
            Self::BTreeMap | Self::Array => {}
        }
        #[cfg(not(feature = "peers"))]
        if self.is_peer() {
            return Err(self.needs_feature());
        }
        Ok(())
    }

    #[cfg(not(feature = "peers"))]
    fn needs_feature(self) -> LabError {
        LabError::NeedsFeature {
            what: format!("the engine {self}"),
            feature: "peers",
        }
    }

    /// Returns the directory of its files, which is in `dir`.
    pub(super) fn directory(self, dir: &Path) -> PathBuf {
        dir.join(self.name())
    }

    /// Creates a store at `place`.
    pub(super) fn open(self, place: &Place<'_>) -> Result<Box<dyn Store>, LabError> {
        let dir = place.create(self)?;
        Ok(match self {
            Self::Store => Box::new(Product::open(&dir.join("pairs.db"), place.memory)?),
            Self::Tree => Box::new(Tree::open(&dir.join("pairs.pool"))?),
            Self::BTreeMap => Box::new(Volatile::default()),
            Self::Array => Box::new(Array::default()),
            #[cfg(feature = "peers")]
            Self::Lmdb => Box::new(Lmdb::open(&dir, place.lmdb_mode(), place.map_bytes()?)?),
            #[cfg(feature = "peers")]
            Self::Redb => Box::new(Redb::open(&dir.join("pairs.redb"), place.cache())?),
            #[cfg(feature = "peers")]
            Self::Fjall => Box::new(Fjall::open(&dir, place.cache())?),
            #[cfg(feature = "peers")]
            Self::RocksDb => Box::new(RocksDb::open(&dir, place.cache())?),
            #[cfg(feature = "peers")]
            Self::Sqlite => Box::new(Sqlite::open(&dir.join("pairs.sqlite"), place.cache())?),
            #[cfg(not(feature = "peers"))]
            _ => return Err(self.needs_feature()),
        })
    }
}

/// Where engines keep their files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// The directory.
    pub(super) dir: &'a Path,
    /// The product's medium there.
    #[cfg_attr(not(feature = "peers"), expect(dead_code))]
    pub(super) medium: MediumKind,
    /// Room for an engine whose file has a largest size.
    #[cfg_attr(not(feature = "peers"), expect(dead_code))]
    pub(super) most_bytes: u64,
    /// Bytes of memory that an engine may use, if that is bounded.
    pub(super) memory: Option<u64>,
}

impl Place<'_> {
    /// Creates an engine's directory.
    pub(super) fn create(&self, engine: Engine) -> Result<PathBuf, LabError> {
        let dir = engine.directory(self.dir);
        std::fs::create_dir(&dir).map_err(|e| LabError::io(&dir, "making a directory", e))?;
        Ok(dir)
    }

    /// Returns the bytes of an engine's cache.
    #[cfg(feature = "peers")]
    pub(super) fn cache(&self) -> u64 {
        self.memory.unwrap_or(bristlecone_peers::CACHE_BYTES)
    }

    /// Returns LMDB's faster way to write here.
    #[cfg(feature = "peers")]
    pub(super) fn lmdb_mode(&self) -> Mode {
        match self.medium {
            MediumKind::Journal => Mode::Write,
            _ => Mode::WriteMap,
        }
    }

    /// Returns the address space that LMDB reserves for its mapping.
    #[cfg(feature = "peers")]
    pub(super) fn map_bytes(&self) -> Result<usize, LabError> {
        let bytes = self.most_bytes.next_multiple_of(1 << 30);
        usize::try_from(bytes)
            .map_err(|_| LabError::parameter("keys", bytes, "what this machine can address"))
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
        let found = Self::ALL.into_iter().find(|engine| engine.name() == text);
        found.ok_or_else(|| {
            LabError::parameter("engine", text, Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// Returns the medium of the product's databases in `dir`, which their path chooses.
pub(super) fn medium_of(dir: &Path) -> Result<MediumKind, LabError> {
    let probe = super::scratch(dir)?;
    let db = Database::open(probe.path().join("probe"))
        .map_err(|e| LabError::index("opening a database to see its medium", e))?;
    Ok(db.medium())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_are_those_of_json() {
        for engine in Engine::ALL {
            assert_eq!(engine.name().parse::<Engine>().unwrap(), engine);
            let json = serde_json::to_string(&engine).unwrap();
            assert_eq!(json, format!("{:?}", engine.name()));
        }
        let error = "oracle".parse::<Engine>().unwrap_err().to_string();
        assert!(
            error.contains("oracle") && error.contains("sqlite"),
            "{error}"
        );
    }

    #[test]
    fn engines_that_are_not_there_say_what_they_need() {
        for engine in Engine::ALL {
            let Err(error) = engine.check() else { continue };
            assert!(engine.is_peer());
            let text = error.to_string();
            let needs = if cfg!(feature = "peers") {
                "apt-get install"
            } else {
                "--features peers"
            };
            assert!(text.contains(needs), "{text}");
        }
        assert!(Engine::available().starts_with(&[Engine::Store, Engine::Tree]));
    }
}
