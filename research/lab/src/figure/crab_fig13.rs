//! Time to rebuild a Crab-tree's inner nodes, by node size, of smaller and of larger trees
//! (Crab-tree, figure 13).

use super::crab::{SIZES, keys, more_keys};
use super::tree::{CRABTREE, Crashed};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::limits::median;

pub(super) const ENTRY: Entry = Entry {
    name: "crab-fig13",
    title: "rebuilding time by node size, one and ten million keys",
    paper: papers::CRAB,
    place: "section 6.5, figure 13",
    on: &[On::Host],
    run,
};

/// Openings of each copy, of which the median counts.
const TIMES: usize = 5;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let trees = [keys(setting), more_keys(setting)];
    let total = (trees.len() * SIZES.len()) as u64;
    let mut done = 0;
    // Nanoseconds a key, by tree and node size.
    let mut each = Vec::new();
    for keys in trees {
        let mut sizes = Vec::new();
        for size in SIZES {
            let crashed = Crashed::new(CRABTREE.sized(size), keys)?;
            let times: Result<Vec<f64>, FigureError> = (0..TIMES)
                .map(|_| Ok(crashed.recover(1)?.as_secs_f64() * 1e9))
                .collect();
            sizes.push(median(times?) / keys as f64);
            done += 1;
            setting.step("rebuilding", done, total);
        }
        each.push(sizes);
    }
    let mean = |tree: usize| each[tree].iter().sum::<f64>() / SIZES.len() as f64;
    let panel = |title: &str, y: &str, of: &dyn Fn(usize, f64) -> f64| {
        let panel = Panel::lines(title, "bytes of a node", y, SIZES.map(f64::from));
        (0..).zip(trees).fold(panel, |panel, (tree, keys)| {
            let values = each[tree].iter().map(|ns| of(tree, *ns));
            panel.with(&format!("{keys} keys"), values.collect())
        })
    };
    Ok(Findings {
        claims: vec![Claim::new(
            format!(
                "time for a key, in trees {} times as large",
                trees[1] / trees[0]
            ),
            "16.9 % more at ten times the size",
            mean(1) / mean(0),
            Expect::between(0.9, 1.22),
        )],
        panels: vec![
            panel("rebuilding time", "ms", &|tree, ns| {
                ns * trees[tree] as f64 / 1e6
            }),
            panel("time for a key", "ns", &|_, ns| ns),
        ],
        notes: vec![format!(
            "trees of random keys of 8 bytes with 8-byte values, loaded to 70 %; copies of pools in use, in shared memory \
             (the paper: read from a memory card after a shutdown); median of {TIMES} openings, 1 thread"
        )],
    })
}
