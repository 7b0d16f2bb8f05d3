//! Power cuts in the middle of operations.
//!
//! Each image that the [`Recorder`] says a power cut could leave is opened as a pool. The index
//! must be as it was before the operation or as it is after it, verify, and have no leaks.

use super::super::home::folder;
use super::super::recorder::Recorder;
use super::super::{Harness, On, Place, PoolHome, Recorded, Rng, TestKey};
use super::{Model, key, value};
use bristlecone_designs::{BulkLoad, DurableIndex, Fill, OrderedIndex};
use bristlecone_pmem::Access;
use bristlecone_pmem::pool::{Pool, PoolOptions};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// A call of one tree.
type Operation<H> = Box<dyn FnOnce(&mut On<H>)>;

/// A recorded pool with one tree, and a place to open its images.
struct Lab<H: Recorded> {
    pool: Arc<Pool<Recorder>>,
    tree: On<H>,
    model: Model<H>,
    folder: TempDir,
    images: u64,
    operations: u64,
}

/// Maximum size of the pool.
const RESERVE: u64 = 64 << 20;

fn options() -> PoolOptions {
    let mut options = PoolOptions::default();
    options.media.reserve = RESERVE;
    options
}

impl<H: Recorded> Lab<H> {
    fn new() -> Self {
        let pool = Pool::create(Path::new("recorded"), &options()).expect("memory");
        let tree = H::recorded().create(&pool, "index").expect("a new root");
        Self {
            pool,
            tree,
            model: BTreeMap::new(),
            folder: folder(),
            images: 0,
            operations: 0,
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("pool")
    }

    /// Runs `operation`. Each image of it must have content that `legal` allows.
    fn explore(
        &mut self,
        what: &str,
        operation: impl FnOnce(&mut On<H>),
        legal: impl Fn(&Model<H>) -> bool,
    ) {
        self.operations += 1;
        let pool = Arc::clone(&self.pool);
        let images = pool
            .pm()
            .record(self.operations, || operation(&mut self.tree));
        for (n, image) in images.iter().enumerate() {
            let at = format!(
                "operation {} ({what}), image {n} of {}",
                self.operations,
                images.len()
            );
            self.recover(image, &at, &legal);
        }
        self.images += images.len() as u64;
    }

    /// Opens an image, compares and verifies it, and works on it a little.
    fn recover(&self, image: &[u8], at: &str, legal: &impl Fn(&Model<H>) -> bool) {
        fs::write(self.path(), image).expect("writing the image");
        let mut options = H::place().options();
        options.media.reserve = RESERVE;
        options.media.access = Access::ReadWrite;
        let pool = Pool::open(&self.path(), &options)
            .unwrap_or_else(|e| panic!("{at}: opening the pool: {e}"));
        let tree = H::maker()
            .open(&pool, "index")
            .unwrap_or_else(|e| panic!("{at}: opening the tree: {e}"));
        let mut found = BTreeMap::new();
        tree.scan(.., |k: &H::Key, v: &H::Value| {
            found.insert(k.to_owned(), v.to_owned());
            ControlFlow::Continue(())
        });
        assert!(
            legal(&found),
            "{at}: {}",
            difference::<H>(&found, &self.model)
        );
        let report = tree.verify().unwrap_or_else(|v| panic!("{at}: {v}"));
        assert_eq!(report.entries, found.len() as u64, "{at}");
        let (k, v) = (key::<H>(1 << 40), value::<H>(7));
        tree.insert(k.borrow(), v.borrow())
            .unwrap_or_else(|e| panic!("{at}: {e}"));
        assert!(
            tree.remove(k.borrow())
                .unwrap_or_else(|e| panic!("{at}: {e}"))
        );
        if self.images.is_multiple_of(8) {
            // Fill and empty it: blocks that recovery calls free are free.
            for n in 0..40 {
                let _ = tree
                    .upsert(key::<H>(n * 5).borrow(), v.borrow())
                    .expect("room");
            }
            for n in 0..300 {
                tree.remove(key::<H>(n).borrow()).expect("removal");
            }
            tree.verify()
                .unwrap_or_else(|v| panic!("{at}, after work: {v}"));
        }
        drop(tree);
        drop(pool);
    }

    /// Executes one operation that changes one key from its value in the model to `to`.
    fn change(&mut self, n: u64, to: Option<u64>, upsert: bool) {
        let key = key::<H>(n);
        let before = self.model.clone();
        let mut after = before.clone();
        let what;
        let operation: Operation<H> = match to {
            Some(v) => {
                let (key, value) = (key.clone(), value::<H>(v));
                let there = after.insert(key.clone(), value.clone()).is_some();
                what = format!(
                    "{} {n}",
                    if upsert {
                        "upsert"
                    } else if there {
                        "update"
                    } else {
                        "insert"
                    }
                );
                Box::new(move |tree| {
                    let (key, value) = (key.borrow(), value.borrow());
                    match (upsert, there) {
                        (true, _) => assert_eq!(tree.upsert(key, value).expect("upsert"), there),
                        (false, true) => tree.update(key, value).expect("update"),
                        (false, false) => tree.insert(key, value).expect("insert"),
                    }
                })
            }
            None => {
                let there = after.remove::<H::Key>(key.borrow()).is_some();
                what = format!("remove {n}");
                Box::new(move |tree| {
                    assert_eq!(tree.remove(key.borrow()).expect("removal"), there);
                })
            }
        };
        self.explore(&what, operation, |found| {
            *found == before || *found == after
        });
        // A call that has returned survives whatever happens next.
        self.model = after;
    }

    fn durable_is_the_model(&mut self) {
        let model = self.model.clone();
        self.explore("nothing", |_| {}, |found| *found == model);
    }

    fn finish(&self, least: u64) {
        println!("{} operations, {} images", self.operations, self.images);
        assert!(
            self.images >= least,
            "only {} images of {} operations",
            self.images,
            self.operations
        );
    }
}

/// Describes the difference, in short.
fn difference<H: Harness>(found: &Model<H>, before: &Model<H>) -> String {
    let lost: Vec<u64> = before
        .iter()
        .filter(|(k, v)| found.get::<H::Key>((*k).borrow()) != Some(v))
        .map(|(k, _)| k.borrow().number())
        .collect();
    let new: Vec<u64> = found
        .iter()
        .filter(|(k, v)| before.get::<H::Key>((*k).borrow()) != Some(v))
        .map(|(k, _)| k.borrow().number())
        .collect();
    format!("against the keys before: {lost:?} lost or changed, {new:?} new or changed")
}

/// Returns the maximum number of entries of a leaf, for the number of keys that splits several.
fn leaf_entries<H: Recorded>() -> u64 {
    const MOST: u64 = 64;
    let home = H::home();
    let tree = H::maker().create(&home.pool, "index").expect("a new root");
    let split = (0..MOST).find(|n| {
        tree.insert(key::<H>(*n).borrow(), value::<H>(*n).borrow())
            .expect("a new key");
        tree.stats().leaves > 1
    });
    split.unwrap_or(MOST).max(4)
}

/// Random changes in few keys: fills, splits, updates, emptied leaves.
pub fn random_changes<H: Recorded>() {
    let mut lab = Lab::<H>::new();
    let leaf = leaf_entries::<H>();
    let mut rng = Rng::new(leaf);
    let keys = (3 * leaf).max(40);
    // Growing, mixed, shrinking to nothing.
    for (changes, grow) in [(80, 9), (60, 5), (110, 1)] {
        for _ in 0..changes {
            let n = rng.below(keys);
            let v = rng.below(1 << 40);
            if rng.below(10) < grow {
                lab.change(n, Some(v), rng.below(2) == 0);
            } else if let Some(key) = lab
                .model
                .keys()
                .nth(rng.below(keys) as usize % lab.model.len().max(1))
            {
                let there = key.borrow().number();
                lab.change(there, None, false);
            }
        }
        lab.durable_is_the_model();
    }
    let left: Vec<u64> = lab.model.keys().map(|k| k.borrow().number()).collect();
    for n in left {
        lab.change(n, None, false);
    }
    lab.durable_is_the_model();
    lab.finish(200);
}

/// Ascending and descending runs, then removal of whole leaves: splits on both sides, unlinking at
/// the start, in the middle and at the end of the chain.
pub fn runs<H: Recorded>() {
    let mut lab = Lab::<H>::new();
    let leaf = leaf_entries::<H>();
    for n in 0..leaf * 2 {
        lab.change(1_000 + n, Some(n), false);
    }
    for n in 0..leaf {
        lab.change(999 - n, Some(n), false);
    }
    let mut all: Vec<u64> = lab.model.keys().map(|k| k.borrow().number()).collect();
    let middle: Vec<u64> = all.drain(leaf as usize..leaf as usize * 2).collect();
    for n in middle.into_iter().chain(all) {
        lab.change(n, None, false);
    }
    lab.durable_is_the_model();
    lab.finish(150);
}

/// In a batch, each pair is wholly there or wholly absent, whatever the others are.
pub fn batches<H: Recorded>() {
    let mut lab = Lab::<H>::new();
    let mut rng = Rng::new(77);
    for size in [1, 3, 8, 20, 40, 12, 30, 25, 2, 35, 16] {
        let before = lab.model.clone();
        let pairs: Vec<_> = (0..size)
            .map(|_| rng.below(200))
            .map(|n| (key::<H>(n), value::<H>(n + 1_000)))
            .collect();
        let mut after = before.clone();
        for (k, v) in &pairs {
            after.entry(k.clone()).or_insert_with(|| v.clone());
        }
        let legal = |found: &Model<H>| {
            found
                .iter()
                .all(|(k, v)| after.get::<H::Key>(k.borrow()) == Some(v))
                && before
                    .keys()
                    .all(|k| found.contains_key::<H::Key>(k.borrow()))
        };
        let run = |tree: &mut On<H>| {
            let mut out = Vec::new();
            tree.multi_insert(&pairs, &mut out);
            assert_eq!(out.len(), pairs.len());
        };
        lab.explore("multi_insert", run, legal);
        lab.model = after;
        lab.durable_is_the_model();
    }
    lab.finish(100);
}

/// A bulk load is there wholly or not at all. A close then loses nothing.
pub fn load_and_close<H: Recorded>() {
    let mut lab = Lab::<H>::new();
    let loaded: Model<H> = (0..150).map(|n| (key::<H>(n * 3), value::<H>(n))).collect();
    let pairs: Vec<_> = loaded.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    let fill = Fill::USUAL;
    lab.explore(
        "bulk load",
        |tree| {
            assert_eq!(
                tree.bulk_load(pairs.into_iter(), fill).expect("bulk load"),
                150
            )
        },
        |found| found.is_empty() || *found == loaded,
    );
    lab.model = loaded;
    for n in 0..12 {
        lab.change(n, Some(n), true);
    }
    // Closed and opened twice, so that a snapshot is there to be discarded.
    for _ in 0..2 {
        let model = lab.model.clone();
        let pool = Arc::clone(&lab.pool);
        lab.explore(
            "close and open",
            |tree| {
                // A tree cannot be moved out of a reference, so another one stands in for it.
                let stand_in = H::recorded().create(&pool, "stand-in");
                let open = std::mem::replace(tree, stand_in.expect("a second root"));
                open.close().expect("close");
                let again = H::recorded().open(&pool, "index").expect("open");
                assert_eq!(
                    again.recovery().clean,
                    H::recorded().snapshot(),
                    "closed cleanly"
                );
                let stand_in = std::mem::replace(tree, again);
                drop(stand_in);
                pool.open_root("stand-in", None)
                    .expect("the root is free")
                    .unpublish();
            },
            |found| *found == model,
        );
        for n in 0..6 {
            lab.change(n * 7, Some(n + 50), true);
        }
    }
    lab.finish(100);
}
