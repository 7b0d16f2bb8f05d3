//! A pool and its index `main`, of any design and node size.
//!
//! A pool records the design that it holds. The index is an [`Engine`] of that design.

use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::pool::{How, about, damaged, open_pool};
use bristlecone_command::records::{Range, Records, Shown, Visit, Written};
use bristlecone_command::text::quoted;
use bristlecone_command::torture::Victim;
use bristlecone_designs::damage::{self, Damage, collecting_damage};
use bristlecone_designs::designs::{Choice, DesignInfo, UnknownDesign};
use bristlecone_designs::engines::{Engine, maker};
use bristlecone_designs::index::Direction;
use bristlecone_designs::{
    IndexStats, InsertError, RecoveryReport, UpdateError, VerifyReport, Violation,
};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::{DataKind, Pool, PoolInfo, RootKind};
use bristlecone_pmem::{Access, Media, MediumKind};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the root that the command works on.
pub const ROOT: &str = "main";

/// An index of byte strings, of any design.
type AnyIndex = Box<dyn Engine<[u8], [u8]>>;

/// An open pool with its index.
pub struct Index {
    path: PathBuf,
    // The index comes before the pool, so that it is dropped first.
    index: AnyIndex,
    longest_key: usize,
    pool: Arc<Pool<Auto>>,
    design: &'static DesignInfo,
    node_bytes: u32,
}

impl Index {
    /// Makes a pool with an empty index of the chosen design.
    pub fn create(path: &Path, how: How, choice: &Choice<'_>) -> Outcome<Self> {
        let unknown = |e: UnknownDesign| Failure::Usage(e.to_string());
        let (design, node_bytes) = choice.resolve().map_err(unknown)?;
        let pool = Pool::create(path, &how.options(Access::Create))
            .map_err(|e| Failure::new(e.to_string()))?;
        let maker = maker::<[u8], [u8], Auto>(choice).map_err(unknown)?;
        let index = maker.create(&pool, ROOT).map_err(|e| {
            // A pool without its index is useless, so its file is removed. A device stays.
            if path.is_file() {
                let _ = std::fs::remove_file(path);
            }
            about(path, &e)
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            index,
            longest_key: maker.longest_key(),
            pool,
            design,
            node_bytes,
        })
    }

    /// Opens a pool and its index.
    pub fn open(path: &Path, how: How) -> Outcome<Self> {
        Self::open_in(&open_pool(path, how)?, path)
    }

    /// Opens the index of an open pool for reading and verifies it, past its damage. Returns the
    /// damage and, if the index could be opened, the index with the fault of its structure as a
    /// whole.
    pub fn survey(
        pool: &Arc<Pool<Auto>>,
        path: &Path,
    ) -> (Outcome<(Self, Option<Violation>)>, Damage) {
        let opened = || Self::open_in(pool, path);
        let verified = |index: Self| {
            let violation = index.verify().err();
            (index, violation)
        };
        if pool.pm().read_only() {
            return collecting_damage(|| opened().map(verified));
        }
        // On a device, the changes of opening a damaged index would be durable.
        match opened() {
            Ok(index) => {
                let (surveyed, damage) = collecting_damage(|| verified(index));
                (Ok(surveyed), damage)
            }
            Err(e) => (Err(e), Damage::default()),
        }
    }

    /// Returns the kind of a pool's index, if it has one.
    pub fn kind_in(pool: &Pool<Auto>) -> Option<RootKind> {
        let roots = pool.roots().into_iter();
        let mut named = roots.filter(|root| root.name == ROOT);
        named.next().map(|root| root.kind)
    }

    /// Opens the index of an open pool.
    pub fn open_in(pool: &Arc<Pool<Auto>>, path: &Path) -> Outcome<Self> {
        let named = |e: &dyn Display| about(path, e);
        let Some(kind) = Self::kind_in(pool) else {
            return Err(named(&without_index(pool)));
        };
        if kind.keys != DataKind::Bytes || kind.values != DataKind::Bytes {
            return Err(named(&format_args!(
                "root \"{ROOT}\" is {kind}; this command works on an index of bytes to bytes"
            )));
        }
        let choice = Choice {
            node_bytes: Some(kind.node_bytes),
            ..Choice::of(&kind.design)
        };
        let unknown = |e: UnknownDesign| {
            named(&match e {
                UnknownDesign::NodeBytes { .. } => {
                    format!("corrupt: root \"{ROOT}\" is {kind}, but {e}")
                }
                UnknownDesign::Name(_) | UnknownDesign::Narrow { .. } => {
                    format!("root \"{ROOT}\" is {kind}, and {e}")
                }
            })
        };
        let (design, node_bytes) = choice.resolve().map_err(unknown)?;
        let maker = maker::<[u8], [u8], Auto>(&choice).map_err(unknown)?;
        let index = maker.open(pool, ROOT).map_err(|e| named(&e))?;
        Ok(Self {
            path: path.to_path_buf(),
            index,
            longest_key: maker.longest_key(),
            pool: Arc::clone(pool),
            design,
            node_bytes,
        })
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Arc<Pool<Auto>> {
        &self.pool
    }

    /// Returns the index's design.
    pub fn design(&self) -> &'static DesignInfo {
        self.design
    }

    /// Returns the bytes of a leaf.
    pub fn node_bytes(&self) -> u32 {
        self.node_bytes
    }

    /// Returns the pool's description.
    pub fn info(&self) -> PoolInfo {
        self.pool.info()
    }

    /// Returns the report of opening the index.
    pub fn recovery(&self) -> RecoveryReport {
        self.index.recovery().clone()
    }

    /// Returns shape and size of the index.
    pub fn stats(&self) -> IndexStats {
        self.index.stats()
    }

    /// Checks every invariant.
    pub fn verify(&self) -> Result<VerifyReport, Violation> {
        self.index.verify()
    }

    /// As [`verify`](Self::verify), but continues past damage. Returns all damage that it finds.
    pub fn verify_all(&self) -> (Result<VerifyReport, Violation>, Damage) {
        collecting_damage(|| self.verify())
    }

    /// Reads the index. Fails if damage was met, unless damage is collected and so handed over.
    fn read<R>(&self, work: impl FnOnce() -> R) -> Outcome<R> {
        match damage::reading(work) {
            (_, Some(met)) if !damage::collecting() => {
                Err(damaged(&self.path, &met, "the rest can be read"))
            }
            (result, _) => Ok(result),
        }
    }

    fn refused(&self, key: &[u8], error: &dyn Display) -> Failure {
        about(&self.path, &format_args!("key {}: {error}", quoted(key)))
    }

    /// Upserts the pairs of `which` from several threads, so that their commits share a sync on a
    /// journal. Returns those that failed.
    fn replace(&self, pairs: &[(Vec<u8>, Vec<u8>)], which: &[usize]) -> Vec<(usize, Failure)> {
        const THREADS: usize = 64;
        let upsert = |part: &[usize]| -> Vec<(usize, Failure)> {
            part.iter()
                .filter_map(|&i| {
                    self.put(&pairs[i].0, &pairs[i].1)
                        .err()
                        .map(|failure| (i, failure))
                })
                .collect()
        };
        if which.len() < 4 || self.info().medium != MediumKind::Journal {
            return upsert(which);
        }
        std::thread::scope(|scope| {
            let parts: Vec<_> = which
                .chunks(which.len().div_ceil(THREADS))
                .map(|part| scope.spawn(|| upsert(part)))
                .collect();
            parts
                .into_iter()
                .flat_map(|p| p.join().unwrap_or_default())
                .collect()
        })
    }

    fn insert_new(&self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<Result<(), InsertError>> {
        let pairs: Vec<(&[u8], &[u8])> = pairs.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        self.index.insert_many(&pairs)
    }
}

/// Returns the error of a command on a pool without an index.
fn without_index(pool: &Pool<Auto>) -> String {
    let roots = pool.roots();
    let names: Vec<_> = roots.iter().map(|r| quoted(r.name.as_bytes())).collect();
    let there = if names.is_empty() {
        "it has no roots at all; its creation was cut short, so delete it and create it again"
            .to_owned()
    } else if roots.iter().any(|root| root.name == "store") {
        "it is a database: `bristlecone` has the commands for it".to_owned()
    } else {
        format!(
            "it has {}; a program of its own made it, and this command reads only \"{ROOT}\"",
            names.join(", ")
        )
    };
    format!("no root named \"{ROOT}\": {there}")
}

impl Records for Index {
    fn path(&self) -> &Path {
        &self.path
    }

    fn typed(&self) -> bool {
        false
    }

    fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        self.read(|| self.index.get(key))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Outcome<bool> {
        self.index
            .upsert(key, value)
            .map_err(|e| self.refused(key, &e))
    }

    fn remove(&self, key: &[u8]) -> Outcome<bool> {
        self.index.remove(key).map_err(|e| self.refused(key, &e))
    }

    /// New keys go in one batch.
    fn put_all(&self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<Outcome<Written>> {
        let mut written: Vec<Outcome<Written>> = Vec::with_capacity(pairs.len());
        let mut there = Vec::new();
        for (i, result) in self.insert_new(pairs).into_iter().enumerate() {
            written.push(match result {
                Ok(()) => Ok(Written::New),
                Err(InsertError::KeyExists) => {
                    if self.index.get(&pairs[i].0).as_deref() == Some(&*pairs[i].1) {
                        Ok(Written::Same)
                    } else {
                        there.push(i);
                        Ok(Written::Replaced)
                    }
                }
                Err(e) => Err(self.refused(&pairs[i].0, &e)),
            });
        }
        for (i, error) in self.replace(pairs, &there) {
            written[i] = Err(error);
        }
        written
    }

    fn scan(&self, range: &Range, reverse: bool, visit: Visit<'_>) -> Outcome {
        if range.is_empty() {
            return Ok(());
        }
        let direction = if reverse {
            Direction::Down
        } else {
            Direction::Up
        };
        self.read(|| {
            self.index
                .scan(range.bounds(), direction, None, &mut |key, value| {
                    visit(key, &Shown::bytes(value))
                })
        })
    }

    fn close(self: Box<Self>) -> Outcome {
        let Self {
            path, index, pool, ..
        } = *self;
        let closed = index.close();
        drop(pool);
        closed.map_err(|e| about(&path, &format_args!("closing: {e}")))
    }
}

impl Victim for Index {
    fn longest_key(&self) -> usize {
        self.longest_key
    }

    fn update(&self, key: &[u8], value: &[u8]) -> Outcome<bool> {
        match self.index.update(key, value) {
            Ok(()) => Ok(true),
            Err(UpdateError::NotFound) => Ok(false),
            Err(e) => Err(self.refused(key, &e)),
        }
    }

    fn insert_absent(&self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Outcome<Vec<bool>> {
        let inserted = self.insert_new(pairs).into_iter().zip(pairs);
        let inserted = inserted.map(|(result, (key, _))| match result {
            Ok(()) => Ok(true),
            Err(InsertError::KeyExists) => Ok(false),
            Err(e) => Err(self.refused(key, &e)),
        });
        inserted.collect()
    }

    fn check(&self) -> Result<(), String> {
        self.verify().map(drop).map_err(|e| e.to_string())
    }

    fn entries(&self) -> u64 {
        self.stats().entries
    }
}
