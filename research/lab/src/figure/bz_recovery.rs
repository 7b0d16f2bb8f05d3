//! The time to reopen a killed BzTree, by its size (BzTree, section 2.3.2).

use super::tree::{new_pool, scratch, sorted_keys};
use super::trial::SEED;
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::LabError;
use crate::limits::median;
use crate::micro::designs::Inlined;
use crate::workload::{Random, value_of};
use bristlecone_designs::{
    BulkLoad, BzOptions, BzTree, DurableIndex, Fill, OrderedIndex, RecoveryReport,
};
use bristlecone_pmem::media::{Media, MediaOptions};
use bristlecone_pmem::{MediumKind, Pool, PoolOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(super) const ENTRY: Entry = Entry {
    name: "bz-recovery",
    title: "recovery after a crash amid writes, by size",
    paper: papers::BZ,
    place: "section 2.3.2",
    on: &[On::Host],
    run,
};

type Tree = BzTree<u64, u64, Inlined>;

/// Writers at the time of the crash, as in the paper.
const WRITERS: u64 = 48;
/// Crashes of each size.
const CRASHES: usize = 7;

/// Milliseconds of the index's recovery, and of opening the pool and mapping its pages before it.
struct Opened {
    index: f64,
    pool: f64,
    pages: f64,
    first: f64,
    repaired: u64,
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Maps every page of the pool by reading a byte of it.
fn map_pages<M: Media>(pm: &M) {
    /// Bytes of the smallest pages.
    const PAGE: usize = 4096;
    for at in (0..pm.len() as usize).step_by(PAGE) {
        // SAFETY: 1. `len` bytes from the medium's `base` are mapped, and they do not move while it
        // is open; 2. only this process has the pool open and no index in it is open yet, so no
        // thread writes meanwhile.
        std::hint::black_box(unsafe { pm.base().wrapping_add(at).read_volatile() });
    }
}

/// Opens the image of a crash, and reads one key.
fn open(path: &Path, key: u64) -> Result<Opened, FigureError> {
    let media = MediaOptions {
        medium: Some(MediumKind::Mapped),
        ..MediaOptions::default()
    };
    let started = Instant::now();
    let pool = Pool::<Inlined>::open(path, &PoolOptions { media })?;
    let opened = started.elapsed();
    let mapping = Instant::now();
    map_pages(pool.pm());
    let pages = mapping.elapsed();
    let index = Tree::open(&pool, "index", &BzOptions::default())
        .map_err(|e| LabError::index("opening the index", e))?;
    let report: &RecoveryReport = index.recovery();
    let asked = Instant::now();
    if index.get(&key).is_none() {
        return Err(LabError::WrongAnswer {
            contender: "BzTree".to_owned(),
            phase: "recovering after a crash",
            right: 0,
            of: 1,
        }
        .into());
    }
    Ok(Opened {
        index: ms(report.elapsed),
        pool: ms(opened),
        pages: ms(pages),
        first: ms(asked.elapsed()),
        repaired: report.repaired,
    })
}

/// Takes copies as crashes amid writes leave them, and opens each.
fn crashes(
    setting: &mut Setting<'_>,
    keys: u64,
    before: u64,
    total: u64,
) -> Result<Vec<Opened>, FigureError> {
    let dir = scratch()?;
    let pool = new_pool(&dir.path().join("pool"))?;
    let mut tree = Tree::create(&pool, "index", &BzOptions::default())
        .map_err(|e| LabError::index("creating the index", e))?;
    let sorted = sorted_keys(SEED, keys);
    let pairs = sorted.iter().map(|key| (*key, value_of(*key)));
    tree.bulk_load(pairs, Fill::USUAL)
        .map_err(|e| LabError::index("loading in bulk", e))?;
    let stop = AtomicBool::new(false);
    let write = |writer: u64| -> Result<(), LabError> {
        let mut random = Random::new(SEED ^ writer);
        // ORDERING: Relaxed; the writers only need to stop at some time.
        while !stop.load(Ordering::Relaxed) {
            let old = sorted[random.below(keys) as usize];
            let key = if random.below(2) == 0 {
                old
            } else {
                random.word()
            };
            tree.upsert(&key, &(random.word() >> 4))
                .map_err(|e| LabError::index("upserting", e))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|n| scope.spawn(move || write(n)))
            .collect();
        let mut copied = || -> Result<Vec<Opened>, FigureError> {
            let mut opened = Vec::new();
            for (crash, key) in sorted.iter().take(CRASHES).enumerate() {
                let copy = dir.path().join(format!("copy-{crash}"));
                pool.backup(&copy).map_err(|e| {
                    LabError::io(&copy, "copying the pool", std::io::Error::other(e))
                })?;
                opened.push(open(&copy, *key)?);
                // The next copy needs its space.
                let _ = std::fs::remove_file(&copy);
                setting.step("crashing and recovering", before + crash as u64 + 1, total);
            }
            Ok(opened)
        };
        let opened = copied();
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        opened
    })
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let sizes = [1, 10, 100].map(|n| setting.scale.amount(n * 10_000, n * 100_000));
    let total = (sizes.len() * CRASHES) as u64;
    let mut all = Vec::new();
    for (i, keys) in sizes.into_iter().enumerate() {
        all.push(crashes(setting, keys, (i * CRASHES) as u64, total)?);
    }
    let of = |what: fn(&Opened) -> f64| -> Vec<f64> {
        let medians = all.iter().map(|of| median(of.iter().map(what).collect()));
        medians.collect()
    };
    let (index, pool, pages, first) = (
        of(|o| o.index),
        of(|o| o.pool),
        of(|o| o.pages),
        of(|o| o.first),
    );
    let largest = *index.last().unwrap_or(&f64::NAN);
    let smallest = *index.first().unwrap_or(&f64::NAN);
    let repaired: u64 = all.iter().flatten().map(|o| o.repaired).sum();
    let claims = vec![
        Claim::new(
            "milliseconds to recover the largest tree",
            0.145,
            largest,
            Expect::number(0.145).less_is_better(),
        )
        .note(format!(
            "median of {CRASHES} crashes; descriptors, allocator and index epoch; the pool's own tables and mapping are \
             other series"
        )),
        Claim::new(
            "recovery, largest tree over smallest",
            "independent of size",
            largest / smallest,
            Expect::between(0.75, 1.3),
        ),
    ];
    let places = sizes.map(|keys| keys as f64);
    let panel = Panel::lines("Opening after a crash", "records", "ms", places)
        .with("recovery of the index", index)
        .with("opening the pool: mapping, tables", pool)
        .with("faulting its pages in", pages)
        .with("first lookup after it", first);
    Ok(Findings {
        claims,
        panels: vec![panel],
        notes: vec![
            format!(
                "copies taken while {WRITERS} threads write, each an image that a crash at that moment could have left; \
                 {repaired} words and blocks were rolled back or forward in all"
            ),
            "the paper's time is without mapping: before the index is opened, a byte of each page of the pool is read, so \
             that recovery meets none that the system has yet to map"
                .to_owned(),
        ],
    })
}
