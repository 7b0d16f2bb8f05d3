//! Power cuts in the middle of operations.
//!
//! A medium that remembers what is durable: a line counts as written back when it was flushed and a
//! fence followed, with the content it had at the flush. At every flush, fence and store fence of an
//! operation the test builds images that persistent memory could hold if power failed there (each
//! line that differs from what is durable may have reached memory or not), opens each as a pool, and
//! finds the index as it was before the operation or as it is after it, verified and without leaks.
//!
//! Exhaustive for up to three such lines at a moment; beyond that all, none, each alone, all but one,
//! and random sets. One thread; stores of one line persist in program order (x86).

mod common;

use bristlecone_pmem::media::{Dram, Mapped, Untraced};
use bristlecone_pmem::pool::{Pool, PoolOptions};
use bristlecone_pmem::{
    Access, CommitError, Media, MediaOptions, MediumKind, OpenError, SpaceError,
};
use bristlecone_trees::DurableIndex;
use bristlecone_trees::lbtree::{LbOptions, LbTree};
use bristlecone_trees::{BulkLoad, Fill, KeyRepr, OrderedIndex, Repr};
use common::home::folder;
use common::{Rng, TestKey, TestValue, within_patience};
use std::borrow::Borrow;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

const LINE: usize = 64;
type Line = [u8; LINE];

/// Memory whose durable content is known.
struct Recorder {
    memory: Dram,
    state: Mutex<State>,
}

struct State {
    durable: Vec<u8>,
    /// Flushed, not fenced: line number and content at the flush.
    pending: Vec<(usize, Line)>,
    images: Option<Images>,
}

/// What power cuts during one operation could leave.
struct Images {
    found: Vec<Vec<u8>>,
    seen: HashSet<u64>,
    rng: Rng,
}

impl Recorder {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, line: usize) -> Line {
        let mut bytes = [0; LINE];
        let from = self.memory.base().wrapping_add(line * LINE);
        // SAFETY: 1. callers name lines inside the mapping, which `memory` keeps alive; 2. this test
        // has one thread, so no one writes meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), LINE) };
        bytes
    }

    /// Adds the images that a power cut now could leave.
    fn power_could_fail_here(&self) {
        let state = &mut *self.state();
        let Some(images) = &mut state.images else {
            return;
        };
        let lines = state.durable.len() / LINE;
        let differ: Vec<(usize, Line)> = (0..lines)
            .map(|line| (line, self.line(line)))
            .filter(|(line, now)| state.durable[line * LINE..][..LINE] != *now)
            .collect();
        let n = differ.len();
        let all = if n >= 64 { u64::MAX } else { (1u64 << n) - 1 };
        let mut sets: Vec<u64> = if n <= 3 {
            (0..=all).collect()
        } else {
            let bits = n.min(64);
            let one = |i: usize| 1u64 << i;
            let few = (0..3)
                .map(|_| images.rng.below(bits as u64) as usize)
                .collect::<Vec<_>>();
            let mut sets = vec![0, all];
            sets.extend(few.iter().map(|i| one(*i)));
            sets.extend(few.iter().map(|i| all & !one(*i)));
            sets.extend((0..2).map(|_| images.rng.next() & all));
            sets
        };
        sets.dedup();
        for set in sets {
            let reached = |i: usize| i >= 64 && set == u64::MAX || i < 64 && set >> i & 1 == 1;
            let mut image = state.durable.clone();
            for (i, (line, now)) in differ.iter().enumerate() {
                if reached(i) {
                    image[line * LINE..][..LINE].copy_from_slice(now);
                }
            }
            let mut hasher = DefaultHasher::new();
            image.hash(&mut hasher);
            if images.seen.insert(hasher.finish()) {
                images.found.push(image);
            }
        }
    }

    /// Runs `operation` and returns the images that power cuts in it could leave.
    fn record(&self, seed: u64, operation: impl FnOnce()) -> Vec<Vec<u8>> {
        let images = Images {
            found: Vec::new(),
            seen: HashSet::new(),
            rng: Rng::new(seed),
        };
        self.state().images = Some(images);
        self.power_could_fail_here();
        operation();
        self.power_could_fail_here();
        self.state().images.take().expect("put there above").found
    }
}

impl Media for Recorder {
    type Dram = Untraced;

    fn open(path: &Path, initial: u64, options: &MediaOptions) -> Result<Self, OpenError> {
        let memory = Dram::open(path, initial, options)?;
        let durable = vec![0; memory.len() as usize];
        Ok(Self {
            memory,
            state: Mutex::new(State {
                durable,
                pending: Vec::new(),
                images: None,
            }),
        })
    }

    fn kind(&self) -> MediumKind {
        // What the images are opened on.
        MediumKind::Mapped
    }

    fn flush(&self, addr: *const u8, len: usize) {
        self.power_could_fail_here();
        if len == 0 {
            return;
        }
        let at = addr.addr() - self.memory.base().addr();
        let mut state = self.state();
        for line in at / LINE..=(at + len - 1) / LINE {
            let now = self.line(line);
            state.pending.push((line, now));
        }
    }

    fn fence(&self) {
        self.power_could_fail_here();
        let state = &mut *self.state();
        for (line, bytes) in state.pending.drain(..) {
            state.durable[line * LINE..][..LINE].copy_from_slice(&bytes);
        }
    }

    fn store_fence(&self) {
        self.power_could_fail_here();
    }

    fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn capacity(&self) -> u64 {
        self.memory.capacity()
    }

    fn grow(&self, len: u64) -> Result<(), SpaceError> {
        self.memory.grow(len)?;
        self.state().durable.resize(len as usize, 0);
        Ok(())
    }

    fn shrink(&self, len: u64) -> Result<(), SpaceError> {
        self.memory.shrink(len)?;
        self.state().durable.truncate(len as usize);
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        self.memory.punch(offset, len)?;
        self.state().durable[offset as usize..][..len as usize].fill(0);
        Ok(())
    }

    fn read_only(&self) -> bool {
        false
    }

    fn sync(&self) -> Result<(), CommitError> {
        Ok(())
    }
}

type Model<K, V> = BTreeMap<<K as ToOwned>::Owned, <V as ToOwned>::Owned>;

/// A call of one tree.
type Operation<K, V, const B: usize> = Box<dyn FnOnce(&mut LbTree<K, V, Recorder, B>)>;

/// A recorded pool with one tree, and where its images are opened.
struct Lab<K: TestKey + KeyRepr + ?Sized, V: TestValue + Repr + ?Sized, const B: usize> {
    pool: Arc<Pool<Recorder>>,
    tree: LbTree<K, V, Recorder, B>,
    model: Model<K, V>,
    folder: TempDir,
    images: u64,
    operations: u64,
}

fn options() -> PoolOptions {
    let mut options = PoolOptions::default();
    options.media.reserve = 64 << 20;
    options
}

impl<K: TestKey + KeyRepr + ?Sized, V: TestValue + Repr + ?Sized, const B: usize> Lab<K, V, B> {
    fn new() -> Self {
        let pool = Pool::create(Path::new("recorded"), &options()).expect("memory");
        let tree = LbTree::create(&pool, "index", &LbOptions::default()).expect("a new root");
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

    /// Runs `operation`; each image of it must hold what `legal` allows.
    fn explore(
        &mut self,
        what: &str,
        operation: impl FnOnce(&mut LbTree<K, V, Recorder, B>),
        legal: impl Fn(&Model<K, V>) -> bool,
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

    /// Opens an image, compares, verifies, and works on it a little.
    fn recover(&self, image: &[u8], at: &str, legal: &impl Fn(&Model<K, V>) -> bool) {
        fs::write(self.path(), image).expect("writing the image");
        let mut options = options();
        options.media.access = Access::ReadWrite;
        let pool = Pool::<Mapped>::open(&self.path(), &options)
            .unwrap_or_else(|e| panic!("{at}: opening the pool: {e}"));
        let tree = LbTree::<K, V, Mapped, B>::open(&pool, "index", &LbOptions::default())
            .unwrap_or_else(|e| panic!("{at}: opening the tree: {e}"));
        let mut found = BTreeMap::new();
        tree.scan(.., |k: &K, v: &V| {
            found.insert(k.to_owned(), v.to_owned());
            ControlFlow::Continue(())
        });
        assert!(
            legal(&found),
            "{at}: {}",
            difference::<K, V>(&found, &self.model)
        );
        let report = tree.verify().unwrap_or_else(|v| panic!("{at}: {v}"));
        assert_eq!(report.entries, found.len() as u64, "{at}");
        let (k, v) = (K::of(1 << 40), V::of(7));
        tree.insert(k.borrow(), v.borrow())
            .unwrap_or_else(|e| panic!("{at}: {e}"));
        assert!(
            tree.remove(k.borrow())
                .unwrap_or_else(|e| panic!("{at}: {e}"))
        );
        if self.images.is_multiple_of(8) {
            // Fill it and empty it: what recovery calls free is free.
            for n in 0..40 {
                let _ = tree
                    .upsert(K::of(n * 5).borrow(), v.borrow())
                    .expect("room");
            }
            for n in 0..300 {
                tree.remove(K::of(n).borrow()).expect("removal");
            }
            tree.verify()
                .unwrap_or_else(|v| panic!("{at}, after work: {v}"));
        }
        drop(tree);
        drop(pool);
    }

    /// One operation that changes one key from what the model says to `to`.
    fn change(&mut self, n: u64, to: Option<u64>, upsert: bool) {
        let key = K::of(n);
        let before = self.model.clone();
        let mut after = before.clone();
        let what;
        let operation: Operation<K, V, B> = match to {
            Some(v) => {
                let (key, value) = (key.clone(), V::of(v));
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
                let there = after.remove::<K>(key.borrow()).is_some();
                what = format!("remove {n}");
                Box::new(move |tree| {
                    assert_eq!(tree.remove(key.borrow()).expect("removal"), there);
                })
            }
        };
        self.explore(&what, operation, |found| {
            *found == before || *found == after
        });
        // What the call returned for is there whatever happens next.
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

/// What differs, shortly.
fn difference<K: TestKey + ?Sized, V: TestValue + ?Sized>(
    found: &Model<K, V>,
    before: &Model<K, V>,
) -> String {
    let lost: Vec<u64> = before
        .iter()
        .filter(|(k, v)| found.get::<K>((*k).borrow()) != Some(v))
        .map(|(k, _)| k.borrow().number())
        .collect();
    let new: Vec<u64> = found
        .iter()
        .filter(|(k, v)| before.get::<K>((*k).borrow()) != Some(v))
        .map(|(k, _)| k.borrow().number())
        .collect();
    format!("against the keys before: {lost:?} lost or changed, {new:?} new or changed")
}

/// Random changes in few keys: fills, splits, updates, emptied leaves.
fn random_changes<K, V, const B: usize>()
where
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
{
    let mut lab = Lab::<K, V, B>::new();
    let mut rng = Rng::new(B as u64);
    let keys = 40 * B as u64;
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

/// Ascending and descending runs, then whole leaves removed: splits on both sides, unlinking at the
/// start, in the middle and at the end of the chain.
fn runs<K, V, const B: usize>()
where
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
{
    let mut lab = Lab::<K, V, B>::new();
    let leaf = 14 * B as u64;
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

/// A batch: each pair wholly there or wholly absent, whatever the others are.
fn batches<K, V, const B: usize>()
where
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
{
    let mut lab = Lab::<K, V, B>::new();
    let mut rng = Rng::new(77);
    for size in [1, 3, 8, 20, 40, 12, 30] {
        let before = lab.model.clone();
        let pairs: Vec<_> = (0..size)
            .map(|_| rng.below(200))
            .map(|n| (K::of(n), V::of(n + 1_000)))
            .collect();
        let mut after = before.clone();
        for (k, v) in &pairs {
            after.entry(k.clone()).or_insert_with(|| v.clone());
        }
        let legal = |found: &Model<K, V>| {
            found
                .iter()
                .all(|(k, v)| after.get::<K>(k.borrow()) == Some(v))
                && before.keys().all(|k| found.contains_key::<K>(k.borrow()))
        };
        let run = |tree: &mut LbTree<K, V, Recorder, B>| {
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

/// Bulk load: nothing or everything. Then a close, in which nothing may get lost.
fn load_and_close<K, V, const B: usize>()
where
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
{
    let mut lab = Lab::<K, V, B>::new();
    let loaded: Model<K, V> = (0..150).map(|n| (K::of(n * 3), V::of(n))).collect();
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
    // Closed and opened again twice, so that a snapshot is there to be thrown away.
    for _ in 0..2 {
        let model = lab.model.clone();
        let pool = Arc::clone(&lab.pool);
        lab.explore(
            "close and open",
            |tree| {
                // A tree cannot be taken out of a reference; another one stands in for it.
                let stand_in = LbTree::create(&pool, "stand-in", &LbOptions::default());
                let open = std::mem::replace(tree, stand_in.expect("a second root"));
                open.close().expect("close");
                let again = LbTree::open(&pool, "index", &LbOptions::default()).expect("open");
                assert!(again.recovery().clean, "closed cleanly");
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

macro_rules! power_cuts {
    ($($name:ident: $key:ty, $value:ty, $blocks:literal;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn random_changes() {
                within_patience(super::random_changes::<$key, $value, $blocks>);
            }

            #[test]
            fn runs() {
                within_patience(super::runs::<$key, $value, $blocks>);
            }

            #[test]
            fn batches() {
                within_patience(super::batches::<$key, $value, $blocks>);
            }

            #[test]
            fn load_and_close() {
                within_patience(super::load_and_close::<$key, $value, $blocks>);
            }
        }
    )*};
}

power_cuts! {
    numbers_256: u64, u64, 1;
    numbers_512: u64, u64, 2;
    strings_256: [u8], [u8], 1;
    strings_768: [u8], u64, 3;
}
