//! 2,000 power cuts over seeded workloads, in the middle of commits, checkpoints and recoveries:
//! what is found afterwards is always a state that persistent memory could have been left in,
//! and holds everything that was acknowledged.

use crate::journal_support::{Acknowledged, create, open, options, run, verify};
use bristlecone_pmem::media::journal::fault::FaultDisk;
use bristlecone_pmem::media::{Access, Durability, Media};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A small generator, so that a seed replays a test's choices.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// One pool's life of several cuts; returns how many cuts happened.
fn life(seed: u64, cuts: u64) -> u64 {
    let mut random = Random(seed);
    let threads = if random.below(2) == 0 { 1 } else { 3 };
    let durability = match random.below(4) {
        0 => Durability::None,
        1 => Durability::Interval(Duration::from_millis(1)),
        _ => Durability::Immediate,
    };
    let o = options(Access::ReadWrite, durability);
    let acknowledged = Acknowledged::new(threads);
    let mut disk = FaultDisk::new(seed);
    disk.set_short_writes(random.below(4) == 0);
    drop(create(&disk, &o).expect("creates"));
    let mut happened = 0;
    let mut found = 0;
    while happened < cuts {
        // Either the opening itself is cut short, or the work after it.
        let early = random.below(4) == 0;
        if early {
            disk.cut_after(1 + random.below(12));
        }
        match open(&disk, &o) {
            Ok(pm) => {
                let steps = verify(&pm, threads, &acknowledged)
                    .unwrap_or_else(|e| panic!("seed {seed}, cut {happened}: {e}"));
                assert!(
                    steps >= found,
                    "seed {seed}: {steps} steps, {found} were opened before"
                );
                // Some cuts come late enough for the journal to be checkpointed and used again.
                let events = [20, 120, 120, 2500][random.below(4) as usize];
                if !disk.is_cut() {
                    disk.cut_after(1 + random.below(events));
                }
                let every = 1 + random.below(4);
                let steps = events * 2 + random.below(600);
                let checkpoints = random.below(3) == 0;
                let trims = random.below(2) == 0;
                let working = AtomicBool::new(true);
                std::thread::scope(|scope| {
                    scopeguard::defer!(working.store(false, Ordering::SeqCst));
                    if checkpoints {
                        scope.spawn(|| {
                            while working.load(Ordering::SeqCst) && pm.sync().is_ok() {
                                if trims && pm.trim().is_err() {
                                    break;
                                }
                                std::thread::yield_now();
                            }
                        });
                    }
                    // Levels that do not wait for the disk go on until it is gone.
                    let until = Instant::now() + Duration::from_millis(20);
                    while run(&pm, threads, steps, every, &acknowledged).is_none()
                        && durability != Durability::Immediate
                        && !disk.is_cut()
                        && Instant::now() < until
                    {}
                });
                if random.below(8) == 0 && pm.sync().is_ok() {
                    found = verify(&pm, threads, &acknowledged).expect("the live image");
                }
            }
            Err(e) => assert!(disk.is_cut(), "seed {seed}, cut {happened}: {e}"),
        }
        if !disk.is_cut() {
            disk.cut_now();
        }
        happened += 1;
        if random.below(5) == 0 {
            // A kill first: what was written stays visible, and may still be lost by the next cut.
            disk = disk.after_kill(random.below(u64::MAX));
            if let Ok(pm) = open(&disk, &o) {
                verify(&pm, threads, &acknowledged)
                    .unwrap_or_else(|e| panic!("seed {seed}, killed at {happened}: {e}"));
                disk.cut_after(1 + random.below(40));
                run(&pm, threads, 100, 2, &acknowledged);
                disk.cut_now();
            }
        }
        disk = disk.restart(random.below(u64::MAX));
    }
    let pm = open(&disk, &o).expect("opens after the last cut");
    verify(&pm, threads, &acknowledged).unwrap_or_else(|e| panic!("seed {seed}, at the end: {e}"));
    happened
}

#[test]
fn two_thousand_cuts_leave_no_violation() {
    let cuts: u64 = std::thread::scope(|scope| {
        let halves: Vec<_> = (0..2)
            .map(|half| {
                scope.spawn(move || (0..100).map(|i| life(1000 + i * 2 + half, 10)).sum::<u64>())
            })
            .collect();
        halves
            .into_iter()
            .map(|half| half.join().expect("no violation"))
            .sum()
    });
    assert_eq!(cuts, 2000);
}
