//! Rates of the journal medium on a real disk. Slow and machine-dependent, so not part of an
//! ordinary run: `cargo test --release -p bristlecone-pmem --test journal_rates -- --ignored
//! --nocapture`.

use crate::journal_support::{format, word};
use bristlecone_pmem::media::{Access, Durability, Journal, Media, MediaOptions};
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn folder() -> tempfile::TempDir {
    let at = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    tempfile::tempdir_in(at).expect("a folder")
}

fn pool(folder: &tempfile::TempDir, durability: Durability, bytes: u64) -> Journal {
    let o = MediaOptions {
        access: Access::Create,
        durability,
        ..MediaOptions::default()
    };
    let pm = Journal::open(&folder.path().join("pool"), bytes, &o).expect("creates");
    format(&pm, *b"a pool for rates");
    pm.attach(*b"a pool for rates").expect("attaches");
    pm
}

/// Commits per second of `writers` threads that each persist one line and commit.
fn commits(pm: &Journal, writers: u64, length: Duration) -> f64 {
    let barrier = Barrier::new(writers as usize);
    let total: u64 = std::thread::scope(|scope| {
        let all: Vec<_> = (0..writers)
            .map(|writer| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let began = Instant::now();
                    let mut n = 0;
                    while began.elapsed() < length {
                        word(pm, writer * 64, 0).publish(pm, n);
                        pm.commit().expect("commits");
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        all.into_iter()
            .map(|one| one.join().expect("no panics"))
            .sum()
    });
    total as f64 / length.as_secs_f64()
}

#[test]
#[ignore = "measures this machine's disk"]
fn group_commit_multiplies_the_rate() {
    let folder = folder();
    let pm = pool(&folder, Durability::Immediate, 4 << 20);
    let length = Duration::from_millis(1500);
    let mut best: f64 = 0.0;
    for _ in 0..3 {
        let one = commits(&pm, 1, length);
        let many = commits(&pm, 32, length);
        println!(
            "1 writer {one:.0}/s, 32 writers {many:.0}/s: {:.1} x",
            many / one
        );
        best = best.max(many / one);
    }
    println!("{:?}", pm.stats());
    assert!(
        best >= 8.0,
        "32 writers reach {best:.1} times one writer's commits"
    );
}

#[test]
#[ignore = "measures this machine"]
fn fences_without_durability() {
    let folder = folder();
    let bytes: u64 = 256 << 20;
    let pm = pool(&folder, Durability::None, bytes);
    let lines = bytes / 64 - 256;
    let n = 4_000_000u64;
    let mut at = 1u64;
    let mut run = |touch_only: bool| {
        let began = Instant::now();
        for i in 0..n {
            at = at
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let cell = word(&pm, (at >> 33) % lines, 0);
            cell.store(&pm, i, Ordering::Relaxed);
            if !touch_only {
                pm.persist(cell);
                pm.commit().expect("commits");
            }
        }
        began.elapsed().as_nanos() as f64 / n as f64
    };
    run(true);
    for _ in 0..3 {
        let (store, fenced) = (run(true), run(false));
        println!(
            "random line: store {store:.0} ns, with flush, fence and commit {fenced:.0} ns ({:.2} M/s)",
            1e3 / fenced
        );
    }
    let hot = Instant::now();
    for i in 0..n {
        word(&pm, i % 64, 0).publish(&pm, i);
    }
    println!(
        "hot line: {:.0} ns a publish",
        hot.elapsed().as_nanos() as f64 / n as f64
    );
    println!("{:?}", pm.stats());
}
