//! `bench micro`, run on an index whose costs are known: an append-only log of 64-byte records with
//! a `BTreeMap` over it. Each change writes one record and the log's length: two lines, two fences.

use bristlecone_designs::{
    IndexStats, InsertError, OrderedIndex, RemoveError, UpdateError, VerifyReport, Violation,
};
use bristlecone_lab::LabError;
use bristlecone_lab::micro::{
    Against, Event, MicroParams, MicroReport, Op, Target, Usage, run_on, scaling_on,
};
use bristlecone_pmem::media::{Auto, Dram, Mapped, Media, MediaOptions};
use bristlecone_pmem::{Access, MediumKind};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, RangeBounds};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{RwLock, RwLockReadGuard};

const RECORD: u64 = 64;
const BYTES: u64 = 64 << 20;

struct Log<M> {
    media: M,
    map: RwLock<BTreeMap<u64, u64>>,
    /// True if lookups give wrong answers, for the test that this is noticed.
    lies: bool,
}

impl<M: Media> Log<M> {
    fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset + 8 <= self.media.len() && offset.is_multiple_of(8));
        // SAFETY: 1. the word is in bounds and aligned, as asserted (the base is page-aligned); 2.
        // every access to the medium goes through this function and is atomic; 3. the medium keeps
        // the mapping as long as `self`.
        unsafe { &*self.media.base().add(offset as usize).cast::<AtomicU64>() }
    }

    fn append(&self, key: u64, value: Option<u64>) {
        let records = self.word(0).load(Ordering::Acquire);
        let at = (records + 1) * RECORD;
        self.word(at).store(key, Ordering::Relaxed);
        self.word(at + 8)
            .store(value.unwrap_or(0), Ordering::Relaxed);
        self.word(at + 16)
            .store(u64::from(value.is_some()), Ordering::Relaxed);
        // PERSIST: the record, before the length that makes it count.
        self.media.persist(self.word(at));
        self.word(0).store(records + 1, Ordering::Release);
        // PERSIST: the length; the change is durable after it.
        self.media.persist(self.word(0));
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<u64, u64>> {
        self.map.read().unwrap()
    }
}

impl<M: Media> OrderedIndex<u64, u64> for Log<M> {
    fn insert(&self, key: &u64, value: &u64) -> Result<(), InsertError> {
        let mut map = self.map.write().unwrap();
        if map.contains_key(key) {
            return Err(InsertError::KeyExists);
        }
        self.append(*key, Some(*value));
        map.insert(*key, *value);
        Ok(())
    }

    fn upsert(&self, key: &u64, value: &u64) -> Result<bool, InsertError> {
        let mut map = self.map.write().unwrap();
        self.append(*key, Some(*value));
        Ok(map.insert(*key, *value).is_some())
    }

    fn update(&self, key: &u64, value: &u64) -> Result<(), UpdateError> {
        let mut map = self.map.write().unwrap();
        let slot = map.get_mut(key).ok_or(UpdateError::NotFound)?;
        self.append(*key, Some(*value));
        *slot = *value;
        Ok(())
    }

    fn remove(&self, key: &u64) -> Result<bool, RemoveError> {
        let mut map = self.map.write().unwrap();
        if map.remove(key).is_none() {
            return Ok(false);
        }
        self.append(*key, None);
        Ok(true)
    }

    fn get_with<R>(&self, key: &u64, f: impl FnOnce(&u64) -> R) -> Option<R> {
        if self.lies && key.is_multiple_of(2) {
            return None;
        }
        self.read().get(key).map(f)
    }

    fn scan<R: RangeBounds<u64>>(
        &self,
        range: R,
        mut visit: impl FnMut(&u64, &u64) -> ControlFlow<()>,
    ) {
        for (key, value) in self.read().range(range) {
            if visit(key, value).is_break() {
                return;
            }
        }
    }

    fn stats(&self) -> IndexStats {
        IndexStats {
            entries: self.read().len() as u64,
            ..IndexStats::default()
        }
    }

    fn verify(&self) -> Result<VerifyReport, Violation> {
        Ok(VerifyReport::default())
    }
}

struct Pool<M, const LIES: bool>(Log<M>);

impl<M: Media, const LIES: bool> Target<M> for Pool<M, LIES> {
    type Design = ();
    type Index = Log<M>;

    fn create((): &(), path: &Path, media: &MediaOptions) -> Result<Self, LabError> {
        let media = MediaOptions {
            access: Access::Create,
            reserve: 1 << 30,
            ..media.clone()
        };
        let media = M::open(path, BYTES, &media)?;
        Ok(Self(Log {
            media,
            map: RwLock::default(),
            lies: LIES,
        }))
    }

    fn open((): &(), path: &Path, media: &MediaOptions) -> Result<Self, LabError> {
        let media = M::open(
            path,
            BYTES,
            &MediaOptions {
                reserve: 1 << 30,
                ..media.clone()
            },
        )?;
        let log = Log {
            media,
            map: RwLock::default(),
            lies: LIES,
        };
        let mut map = BTreeMap::new();
        for record in 0..log.word(0).load(Ordering::Acquire) {
            let at = (record + 1) * RECORD;
            let word = |offset| log.word(at + offset).load(Ordering::Relaxed);
            if word(16) == 1 {
                map.insert(word(0), word(8))
            } else {
                map.remove(&word(0))
            };
        }
        *log.map.write().unwrap() = map;
        Ok(Self(log))
    }

    fn index(&self) -> &Log<M> {
        &self.0
    }

    fn media(&self) -> &M {
        &self.0.media
    }

    fn usage(&self) -> Usage {
        let records = self.0.word(0).load(Ordering::Acquire);
        let entries = self.0.read().len() as u64;
        Usage {
            entries,
            pm_bytes: (records + 1) * RECORD,
            dram_bytes: entries * 32,
        }
    }

    fn close(self) -> Result<(), LabError> {
        Ok(())
    }
}

fn params(keys: u64) -> MicroParams {
    MicroParams {
        keys,
        slices: 5,
        path: std::env::temp_dir(),
        seed: 7,
        ..MicroParams::default()
    }
}

fn run<M: Media>(params: &MicroParams) -> MicroReport {
    run_on::<M, Pool<M, false>, Pool<Auto, false>>(params, (), &mut |_| ()).unwrap()
}

#[test]
fn the_report_has_every_field_that_scripts_rely_on() {
    let dir = tempfile::tempdir().unwrap();
    let params = MicroParams {
        against: vec![Against::BTreeMap],
        path: dir.path().to_path_buf(),
        ..params(3_000)
    };
    let report = run::<Mapped>(&params);
    let json = serde_json::to_value(&report).unwrap();
    for (name, value) in [("index", "lbtree"), ("medium", "mapped")] {
        assert_eq!(json[name], value);
    }
    for (name, value) in [
        ("keys", 3_000),
        ("value_bytes", 8),
        ("threads", 1),
        ("seed", 7),
    ] {
        assert_eq!(json[name], value, "{name}");
    }
    let ops = json["ops"].as_object().unwrap();
    assert_eq!(ops.len(), Op::ALL.len());
    for op in Op::ALL {
        let figures = &ops[op.name()];
        for name in ["mops", "ns_per_op", "p50_ns", "p99_ns"] {
            assert!(
                figures[name].as_f64().unwrap() > 0.0,
                "{op}: {name}: {figures}"
            );
        }
        // A change takes two lines and two fences, and other operations take none.
        let expected = if op.changes() { 2.0 } else { 0.0 };
        for name in ["lines_per_op", "fences_per_op"] {
            assert_eq!(figures[name], expected, "{op}: {name}");
        }
        let peer = &json["against"]["btreemap"];
        assert!(peer["ops"][op.name()]["mops"].as_f64().unwrap() > 0.0);
        let ratio = |name: &str| peer["ratios"][op.name()][name].as_f64().unwrap();
        assert!(
            0.0 < ratio("min") && ratio("min") <= ratio("median"),
            "{op}"
        );
        assert!(ratio("median") <= ratio("max"), "{op}");
    }
    assert_eq!(json["pm_bytes_per_entry"], 3_001.0 * 64.0 / 3_000.0);
    assert_eq!(json["dram_bytes_per_entry"], 32.0);
    for name in ["recovery_ms", "clean_open_ms", "flush_fence_ns"] {
        assert!(json[name].as_f64().unwrap() > 0.0, "{name}");
    }
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 0, "the run's files are removed");
    let table = report.to_string();
    for word in ["lbtree", "multi_insert", "x btreemap", "after a kill"] {
        assert!(table.contains(word), "{word} in\n{table}");
    }
}

#[test]
fn a_run_follows_from_its_seed() {
    let limited = MicroParams {
        ops_limit: Some(500),
        ..params(2_000)
    };
    let (one, two) = (run::<Dram>(&limited), run::<Dram>(&limited));
    let counts = |report: &MicroReport| -> Vec<(Op, u64, f64, f64)> {
        let figures = report.ops.0.iter();
        figures
            .map(|(op, f)| (*op, f.speed.ops, f.lines_per_op, f.fences_per_op))
            .collect()
    };
    assert_eq!(counts(&one), counts(&two));
    assert_eq!(one.ops.get(Op::Update).unwrap().speed.ops, 500);
    assert_eq!(
        (one.recovery_ms, one.clean_open_ms),
        (None, None),
        "nothing survives on DRAM"
    );
}

#[test]
fn several_threads_share_the_work() {
    let params = MicroParams {
        threads: 3,
        against: vec![Against::BTreeMap],
        ..params(3_000)
    };
    let report = run::<Dram>(&params);
    assert_eq!(report.threads, 3);
    let lookup = report.ops.get(Op::Lookup).unwrap().speed.clone();
    assert_eq!(lookup.ops, 3_000);
    assert!((lookup.ns_per_op - 3e3 / lookup.mops).abs() < 1e-6);
    assert!(report.notes.iter().any(|note| note.contains("RwLock")));
}

#[test]
fn scaling_compares_the_same_operations() {
    let mut phases = BTreeSet::new();
    let params = MicroParams {
        ops: vec![Op::Lookup, Op::Insert],
        ..params(3_000)
    };
    let report =
        scaling_on::<Dram, Pool<Dram, false>, Pool<Auto, false>>(&params, (), 2, &mut |event| {
            phases.insert(event.phase.to_owned());
        })
        .unwrap();
    assert_eq!(
        phases,
        ["insert", "load", "lookup"].map(str::to_owned).into()
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["threads"], 2);
    let lookup = &json["ops"]["lookup"];
    for name in ["one_mops", "many_mops"] {
        assert!(lookup[name].as_f64().unwrap() > 0.0, "{name}");
    }
    let r = report.ops.get(Op::Lookup).unwrap().ratio;
    assert!(r.min <= r.median && r.median <= r.max);
    assert!(report.to_string().contains("insert"));
}

#[test]
fn progress_reaches_the_end_of_every_phase() {
    let params = MicroParams {
        against: vec![Against::BTreeMap],
        ..params(1_000)
    };
    let mut last: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
    let mut progress = |event: &Event<'_>| {
        let at = last
            .entry((event.contender.into(), event.phase.into()))
            .or_default();
        assert!(at.0 <= event.done && event.done <= event.total);
        *at = (event.done, event.total);
    };
    run_on::<Dram, Pool<Dram, false>, Pool<Auto, false>>(&params, (), &mut progress).unwrap();
    assert!(last.values().all(|(done, total)| done == total), "{last:?}");
    for contender in ["lbtree", "btreemap"] {
        for op in Op::ALL {
            assert!(
                last.contains_key(&(contender.to_owned(), op.to_string())),
                "{contender} {op}"
            );
        }
    }
}

#[test]
fn an_index_that_answers_wrongly_gets_no_figures() {
    let outcome =
        run_on::<Dram, Pool<Dram, true>, Pool<Auto, true>>(&params(1_000), (), &mut |_| ());
    match outcome {
        Err(LabError::WrongAnswer {
            phase, right, of, ..
        }) => {
            assert_eq!((phase, of), ("lookup", 1_000));
            assert!(right < of);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn parameters_are_refused_before_anything_is_made() {
    let wrong = MicroParams {
        path: "/no/such/directory".into(),
        ..params(10)
    };
    let message = run_on::<Dram, Pool<Dram, false>, Pool<Auto, false>>(&wrong, (), &mut |_| {
        panic!("nothing was begun")
    })
    .unwrap_err()
    .to_string();
    assert!(message.contains("/no/such/directory"), "{message}");
    assert_eq!(params(10).medium, MediumKind::Mapped);
}

#[cfg(not(feature = "peers"))]
#[test]
fn a_peer_that_is_not_built_in_names_the_feature() {
    let wanted = MicroParams {
        against: vec![Against::Lmdb],
        ..params(10)
    };
    let message = run_on::<Dram, Pool<Dram, false>, Pool<Auto, false>>(&wanted, (), &mut |_| ())
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("lmdb") && message.contains("--features peers"),
        "{message}"
    );
}

#[cfg(feature = "peers")]
#[test]
fn lmdb_does_all_that_is_asked_of_a_peer() {
    let wanted = MicroParams {
        against: vec![Against::Lmdb, Against::LmdbNoWriteMap],
        ..params(500)
    };
    let report = run::<Dram>(&wanted);
    for peer in &report.against.0 {
        assert_eq!(peer.ops.0.len(), Op::ALL.len());
        assert_eq!(peer.ratios.0.len(), Op::ALL.len());
        assert!(peer.bytes_per_entry.unwrap() > 16.0);
    }
}
