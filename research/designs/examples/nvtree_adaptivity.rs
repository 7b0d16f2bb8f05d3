//! Measures NV-Tree's workload adaptivity (sections 6.4 and 6.5 of its paper). The same operations
//! run in turns on a tree with a strategy and on one without, so that disturbances affect both
//! alike.
//!
//! ```text
//! nvtree_adaptivity [STRATEGY] [KEYS] [LEAF BYTES] [DIRECTORY]
//! ```

use bristlecone_designs::nvtree::{Adaptivity, NvOptions, NvStats, NvTree};
use bristlecone_designs::{DurableIndex, OrderedIndex};
use bristlecone_pmem::media::{Counting, Mapped};
use bristlecone_pmem::{MediaOptions, Pool, PoolOptions};
use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

/// Turns of a phase.
const TURNS: u64 = 40;

type Tree = NvTree<u64, u64, Counting<Mapped>>;
type Outcome<T> = Result<T, Box<dyn Error>>;

/// Maps u64 one to one to numbers that look random.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 31).wrapping_mul(0x7FB5_D329_728E_A185);
    let x = (x ^ x >> 27).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    x ^ x >> 33
}

struct Plan {
    strategy: Adaptivity,
    keys: u64,
    leaf_bytes: u32,
    dir: PathBuf,
}

impl Plan {
    /// Returns an empty tree without adaptivity, and one with the strategy.
    fn trees(&self) -> Outcome<[Tree; 2]> {
        Ok([self.tree(Adaptivity::Off)?, self.tree(self.strategy)?])
    }

    fn tree(&self, adaptivity: Adaptivity) -> Outcome<Tree> {
        let path = self.dir.join(format!("nvtree-{}", adaptivity.name()));
        let _ = std::fs::remove_file(&path);
        let options = PoolOptions {
            media: MediaOptions {
                reserve: 4 << 30,
                ..MediaOptions::default()
            },
        };
        let pool = Pool::create(&path, &options)?;
        // The file disappears when it is closed.
        std::fs::remove_file(&path)?;
        let options = NvOptions {
            leaf_bytes: self.leaf_bytes,
            adaptivity,
            ..NvOptions::default()
        };
        Ok(NvTree::create(&pool, "tree", &options)?)
    }
}

/// Measurements of a phase on a tree.
struct Seen {
    /// Nanoseconds of an operation, for each turn.
    nanos: Vec<f64>,
    before: NvStats,
    after: NvStats,
    lines: u64,
    fences: u64,
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// Runs operations `0 .. ops` on both trees, in turns.
fn phase(
    what: &str,
    trees: &[Tree; 2],
    ops: u64,
    each: impl Fn(&Tree, u64) -> Outcome<()>,
) -> Outcome<()> {
    let mut seen = Vec::new();
    let mut counts = Vec::new();
    for tree in trees {
        counts.push(tree.pool().pm().counts());
        seen.push(Seen {
            nanos: Vec::new(),
            before: tree.nv_stats(),
            after: tree.nv_stats(),
            lines: 0,
            fences: 0,
        });
    }
    let per_turn = ops / TURNS;
    for turn in 0..TURNS {
        for which in [turn % 2, 1 - turn % 2] {
            let (tree, seen) = (&trees[which as usize], &mut seen[which as usize]);
            let started = Instant::now();
            for i in turn * per_turn..(turn + 1) * per_turn {
                each(tree, i)?;
            }
            let took = started.elapsed().as_nanos() as f64;
            seen.nanos.push(took / per_turn as f64);
        }
    }
    for ((tree, seen), before) in trees.iter().zip(&mut seen).zip(counts) {
        let paid = tree.pool().pm().counts() - before;
        (seen.lines, seen.fences) = (paid.lines, paid.fences);
        seen.after = tree.nv_stats();
    }
    let ratios = seen[0].nanos.iter().zip(&seen[1].nanos);
    let speedup = median(ratios.map(|(plain, adaptive)| plain / adaptive).collect());
    println!("{what}: {speedup:.2} times the throughput");
    for (name, seen) in ["off", "on"].iter().zip(seen) {
        let (a, b) = (&seen.after, &seen.before);
        println!(
            "  {name:<3} {:>5.0} ns  {:.2} lines {:.2} fences  {} splits {} replaces {} merges  \
             {} rebuilds in {:.1?}  {} enlarged {} shrunk",
            median(seen.nanos),
            seen.lines as f64 / ops as f64,
            seen.fences as f64 / ops as f64,
            a.splits - b.splits,
            a.replaces - b.replaces,
            a.merges - b.merges,
            a.rebuilds - b.rebuilds,
            a.rebuild_time - b.rebuild_time,
            a.enlarged - b.enlarged,
            a.shrunk - b.shrunk,
        );
    }
    Ok(())
}

fn sizes(trees: &[Tree; 2]) {
    println!("  leaves of each size: {:?}", trees[1].leaf_sizes());
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let strategy = args.next().unwrap_or_else(|| "balanced".into());
    let plan = Plan {
        strategy: [
            Adaptivity::Conservative,
            Adaptivity::Aggressive,
            Adaptivity::Balanced,
        ]
        .into_iter()
        .find(|known| known.name() == strategy)
        .ok_or_else(|| format!("no strategy {strategy:?}"))?,
        keys: args.next().map_or(Ok(1_000_000), |s| s.parse())?,
        leaf_bytes: args.next().map_or(Ok(1024), |s| s.parse())?,
        dir: args.next().unwrap_or_else(|| "/dev/shm".into()).into(),
    };
    let n = plan.keys;
    let mut sorted: Vec<u64> = (0..n).map(mix).collect();
    sorted.sort_unstable();
    let hot = sorted.len() / 200;
    let update = |zone: &[u64], tree: &Tree, i: u64| -> Outcome<()> {
        tree.update(&zone[(mix(i << 20) % zone.len() as u64) as usize], &i)?;
        Ok(())
    };
    let insert = |tree: &Tree, i: u64| -> Outcome<()> { Ok(tree.insert(&mix(i), &i)?) };

    let trees = plan.trees()?;
    phase("random insertion", &trees, n, insert)?;
    let last = &sorted[sorted.len() - hot..];
    phase("updates of the last 0.5 %", &trees, n, |t, i| {
        update(last, t, i)
    })?;
    phase("the same, warm", &trees, n, |t, i| update(last, t, n + i))?;
    sizes(&trees);
    let first = &sorted[..hot];
    phase("then of the first 0.5 %", &trees, n, |t, i| {
        update(first, t, i)
    })?;
    phase("the same, warm", &trees, n, |t, i| update(first, t, n + i))?;
    sizes(&trees);
    drop(trees);

    let trees = plan.trees()?;
    phase("random insertion", &trees, n, insert)?;
    phase("uniform updates", &trees, n, |t, i| update(&sorted, t, i))?;
    phase("the same, warm", &trees, n, |t, i| {
        update(&sorted, t, n + i)
    })?;
    // New keys, all of them in one place.
    let (low, span) = (sorted[n as usize / 2], sorted[n as usize / 2 + hot]);
    let step = (span - low) / (n / 4 + 1);
    phase("insertion into 0.5 %", &trees, n / 4, |tree, i| {
        let place = mix(i << 30) % step;
        let spread = (i * 0x9E37_79B1) % (n / 4);
        match tree.insert(&(low + spread * step + place), &i) {
            Ok(()) | Err(bristlecone_designs::InsertError::KeyExists) => Ok(()),
            Err(e) => Err(e.into()),
        }
    })?;
    sizes(&trees);
    drop(trees);

    let trees = plan.trees()?;
    phase("sequential insertion", &trees, n, |t, i| {
        Ok(t.insert(&i, &i)?)
    })?;
    sizes(&trees);
    Ok(())
}
