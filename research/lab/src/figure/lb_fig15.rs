//! Rebuilding the non-leaf nodes after a crash, by node size and threads (LB+-Tree, figure 15).
//!
//! Each tree is loaded and left open. Its pool's files are copied, as a kill would leave them, and
//! the copy is opened. The time is the one that the design reports for its recovery.

use super::tree::{Crashed, Design, FPTREE, LBTREE, WBTREE};
use super::trial::{speedup, with_each};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::limits::median;
use std::thread::available_parallelism;

pub(super) const ENTRY: Entry = Entry {
    name: "lb-fig15",
    title: "time to rebuild the non-leaf nodes, by node size and threads",
    paper: papers::LB,
    place: "section 4.2, figure 15",
    on: &[On::Host],
    run,
};

const DESIGNS: [Design; 3] = [WBTREE, FPTREE, LBTREE];
const LB: usize = 2;
const SIZES: [u32; 3] = [256, 512, 1024];
const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
/// Openings of each copy, of which the median counts.
const TIMES: usize = 5;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = setting.scale.amount(2_000_000, 40_000_000);
    let cores = available_parallelism().map_or(1, usize::from);
    let threads: Vec<usize> = THREADS.into_iter().filter(|n| *n <= cores).collect();
    let most = threads.last().copied().unwrap_or(1);
    let total = (SIZES.len() * (DESIGNS.len() - 1 + threads.len())) as u64;
    let mut done = 0;

    // Milliseconds by design and size with one thread, and of the LB+-Tree by size and threads.
    let mut alone = vec![Vec::new(); DESIGNS.len()];
    let mut together = vec![Vec::new(); SIZES.len()];
    for (size, together) in SIZES.into_iter().zip(&mut together) {
        for (number, design) in DESIGNS.iter().enumerate() {
            let crashed = Crashed::new(design.sized(size), keys)?;
            for threads in threads
                .iter()
                .take(if number == LB { threads.len() } else { 1 })
            {
                let times: Result<Vec<f64>, _> = (0..TIMES)
                    .map(|_| Ok::<_, FigureError>(crashed.recover(*threads)?.as_secs_f64() * 1e3))
                    .collect();
                let ms = median(times?);
                if *threads == 1 {
                    alone[number].push(ms);
                }
                if number == LB {
                    together.push(ms);
                }
                done += 1;
                setting.step("recovering", done, total);
            }
        }
    }

    let sizes = Panel::lines(
        "(a) one thread",
        "bytes of a node",
        "ms",
        SIZES.map(f64::from),
    );
    let places = threads.iter().map(|n| *n as f64);
    let mut by_threads = Panel::lines("(b) LB+-Tree", "threads", "ms", places);
    for (size, ms) in SIZES.iter().zip(&together) {
        by_threads = by_threads.with(&format!("{size} bytes"), ms.clone());
    }
    let mut findings = Findings {
        panels: vec![
            with_each(sizes, &DESIGNS, |design| alone[design].clone()),
            by_threads,
        ],
        ..Findings::default()
    };
    for (larger, smaller) in [(1, 0), (2, 1)] {
        findings.claims.push(Claim::new(
            format!(
                "LB+-Tree, one thread: time at {} over {} bytes",
                SIZES[smaller], SIZES[larger]
            ),
            "decreases as the leaf node size increases",
            alone[LB][smaller] / alone[LB][larger],
            Expect::more(),
        ));
    }
    let paper = speedup((12.0, 16), most);
    findings.claims.push(
        Claim::new(
            format!("LB+-Tree, 256 bytes: time of one thread over that of {most}"),
            "12x with 16 threads (1.2 s to 0.1 s)",
            together[0][0] / together[0].last().copied().unwrap_or(f64::NAN),
            Expect::ratio(paper),
        )
        .note(format!(
            "by Amdahl's law, the paper's would be {paper:.2} with {most} threads; {cores} cores"
        )),
    );
    findings.notes = vec![format!(
        "trees of {keys} random keys of 8 bytes with 8-byte values, leaves 70 % full; copies of pools in \
         use, in shared memory; median of {TIMES} openings"
    )];
    Ok(findings)
}
