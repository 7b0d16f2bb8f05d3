//! NVM line writes per insertion in a stable tree: the traditional design against entry moving
//! (LB+-Tree, Theorem 3.5).
//!
//! The theorem bounds insertions that do not split a leaf, in a tree whose leaves all come from
//! splits. Random insertions make such a tree, and further random insertions are then counted one
//! by one. An insertion without a split writes the header's line and at most one other, so more
//! than two lines show a split.

use super::{
    Claim, Entry, Expect, FigureError, Findings, NOT_IN_THE_PAPER, On, Panel, Setting, papers,
};
use crate::LabError;
use crate::workload::Keys;
use bristlecone_designs::DurableIndex;
use bristlecone_designs::OrderedIndex;
use bristlecone_designs::lbtree::{LbOptions, LbTree};
use bristlecone_pmem::media::sim::{Event, EventKind, Simulation, Sink};
use bristlecone_pmem::media::{Counting, Dram, Media, Sim};
use bristlecone_pmem::{Pool, PoolOptions};
use std::any::Any;
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

pub(super) const ENTRY: Entry = Entry {
    name: "lb-theorem-3.5",
    title: "NVM line writes per insertion in a stable tree, traditional and entry moving",
    paper: papers::LB,
    place: "section 3.5, Theorem 3.5",
    on: &[On::Counted, On::Model],
    run,
};

/// Lines per insertion in the theorem's proof: the traditional design's best case, entry moving's
/// worst case, and the least ratio of the two.
const TRADITIONAL: f64 = 1.77;
const MOVING: f64 = 1.31;
const RATIO: f64 = 1.35;
/// Largest number of lines of an insertion without a split.
const UNSPLIT: usize = 2;
/// Bytes reserved in the simulator, for leaves that are at least half full and the pool's own
/// tables.
const BYTES_PER_KEY: u64 = 128;
const SPARE: u64 = 16 << 20;
/// Insertions between two calls of `progress`.
const STRIDE: u64 = 10_000;

/// Number of counted insertions by the lines that they wrote. The last index stands for more lines
/// too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Histogram([u64; 16]);

impl Histogram {
    fn add(&mut self, lines: u64) {
        let last = self.0.len() - 1;
        self.0[usize::try_from(lines).map_or(last, |lines| lines.min(last))] += 1;
    }

    fn insertions(&self) -> u64 {
        self.0.iter().sum()
    }

    fn splits(&self) -> u64 {
        self.0[UNSPLIT + 1..].iter().sum()
    }

    /// Returns the lines per insertion without a split.
    fn lines(&self) -> f64 {
        let lines: u64 = (0..)
            .zip(&self.0[..=UNSPLIT])
            .map(|(n, times)| n * times)
            .sum();
        lines as f64 / (self.insertions() - self.splits()) as f64
    }

    /// Returns the number of insertions by which two counts differ. All splits count as equal: some
    /// also record a leaf for recovery, and on a simulated medium these are not the same ones.
    fn apart(&self, other: &Self) -> u64 {
        let unsplit = self.0.iter().zip(&other.0).take(UNSPLIT + 1);
        unsplit.map(|(a, b)| a.abs_diff(*b)).sum::<u64>() + self.splits().abs_diff(other.splits())
    }

    /// Returns the share of the insertions that wrote a number of lines.
    fn share(&self, lines: std::ops::RangeInclusive<usize>) -> f64 {
        self.0[lines].iter().sum::<u64>() as f64 / self.insertions() as f64
    }
}

/// Makes a stable tree of `keys` random keys and counts half as many further insertions. `flushed`
/// returns the number of lines flushed so far.
fn count<M: Media>(
    pool: &Arc<Pool<M>>,
    entry_moving: bool,
    keys: u64,
    flushed: impl Fn() -> u64,
    step: &mut dyn FnMut(u64),
) -> Result<Histogram, FigureError> {
    let refused = |e| LabError::index("inserting", e);
    let options = LbOptions {
        entry_moving,
        ..LbOptions::default()
    };
    let tree = LbTree::<u64, u64, M, 1>::create(pool, "index", &options)
        .map_err(|e| LabError::index("creating the index", e))?;
    let spread = Keys::Random { seed: 35 };
    for n in 0..keys {
        tree.insert(&spread.key(n), &n).map_err(refused)?;
        if n % STRIDE == 0 {
            step(n);
        }
    }
    let leaves = tree.stats().leaves;
    let mut histogram = Histogram::default();
    let mut before = flushed();
    for n in keys..keys + keys / 2 {
        tree.insert(&spread.key(n), &n).map_err(refused)?;
        let now = flushed();
        histogram.add(now - before);
        before = now;
        if n % STRIDE == 0 {
            step(n);
        }
    }
    // Each split makes one leaf, so the counted splits must agree with the tree.
    let made = tree.stats().leaves - leaves;
    if made != histogram.splits() {
        return Err(LabError::WrongAnswer {
            contender: "lbtree".to_owned(),
            phase: "telling splits by their lines",
            right: histogram.splits(),
            of: made,
        }
        .into());
    }
    Ok(histogram)
}

/// A way of counting, with or without entry moving, in a tree of a number of keys. The last
/// argument is called with the number of insertions.
type By = fn(bool, u64, &mut dyn FnMut(u64)) -> Result<Histogram, FigureError>;

/// Counts on the counting medium.
fn by_medium(
    entry_moving: bool,
    keys: u64,
    step: &mut dyn FnMut(u64),
) -> Result<Histogram, FigureError> {
    let pool = Pool::<Counting<Dram>>::create(Path::new("counted"), &PoolOptions::default())?;
    count(&pool, entry_moving, keys, || pool.pm().counts().lines, step)
}

/// Counts the events of the simulator, which reports one for every flushed line.
fn by_simulator(
    entry_moving: bool,
    keys: u64,
    step: &mut dyn FnMut(u64),
) -> Result<Histogram, FigureError> {
    let simulation = Simulation::new(BYTES_PER_KEY * keys + SPARE);
    let _attached = simulation.attach();
    let pool = Pool::<Sim>::create(Path::new("simulated"), &PoolOptions::default())?;
    let flushed = Rc::new(Cell::new(0));
    simulation.set_sink(Some(Box::new(Flushes(Rc::clone(&flushed)))));
    let histogram = count(&pool, entry_moving, keys, || flushed.get(), step);
    simulation.set_sink(None);
    histogram
}

/// A sink that counts flushed lines.
struct Flushes(Rc<Cell<u64>>);

impl Sink for Flushes {
    fn event(&mut self, event: &Event) {
        if let EventKind::Flush { .. } = event.kind {
            self.0.set(self.0.get() + 1);
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys: u64 = setting.scale.pick(200_000, 2_000_000);
    let each = keys + keys / 2;
    let mut counted = |run: u64, entry_moving: bool, by: By| {
        let mut step = |n| setting.step("inserting", run * each + n, 4 * each);
        by(entry_moving, keys, &mut step)
    };
    let traditional = [
        counted(0, false, by_medium)?,
        counted(1, false, by_simulator)?,
    ];
    let moving = [
        counted(2, true, by_medium)?,
        counted(3, true, by_simulator)?,
    ];
    let apart: u64 = [traditional, moving]
        .iter()
        .map(|[medium, simulator]| medium.apart(simulator))
        .sum();
    let which = usize::from(setting.on == On::Model);
    let (traditional, moving) = (traditional[which], moving[which]);

    let (t, m) = (traditional.lines(), moving.lines());
    let note = |histogram: &Histogram| {
        let unsplit = histogram.insertions() - histogram.splits();
        format!(
            "{unsplit} of {} insertions did not split",
            histogram.insertions()
        )
    };
    let claims = vec![
        Claim::new(
            "lines per insertion, traditional: not below the best case",
            TRADITIONAL,
            t,
            Expect::at_least(TRADITIONAL),
        )
        .note(note(&traditional)),
        Claim::new(
            "lines per insertion, entry moving: not above the worst case",
            MOVING,
            m,
            Expect::at_most(MOVING),
        )
        .note(note(&moving)),
        Claim::new(
            "traditional over entry moving",
            RATIO,
            t / m,
            Expect::at_least(RATIO),
        ),
        Claim::new(
            "insertions that the simulator counts otherwise than the medium",
            NOT_IN_THE_PAPER,
            apart as f64,
            Expect::at_most(0.0),
        )
        .note(
            "this checks the counting: insertions with 1 line, with 2, and with more (splits) are \
             compared, in both designs",
        ),
    ];
    let shares = |h: &Histogram| vec![h.share(1..=1), h.share(2..=2), h.share(UNSPLIT + 1..=15)];
    let panels = vec![
        Panel::bars(
            "Insertions that do not split",
            "",
            "lines per insertion",
            ["traditional", "entry moving"],
        )
        .with("bound in the proof", vec![TRADITIONAL, MOVING])
        .with("counted", vec![t, m]),
        Panel::bars(
            "All insertions by lines written",
            "lines",
            "share of insertions",
            ["1", "2", "more (splits)"],
        )
        .with("traditional", shares(&traditional))
        .with("entry moving", shares(&moving)),
    ];
    Ok(Findings {
        claims,
        panels,
        notes: vec![format!(
            "tree of {keys} random keys, all leaves from splits; then {} random insertions counted",
            keys / 2
        )],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        lines.iter().for_each(|n| histogram.add(*n));
        histogram
    }

    #[test]
    fn lines_are_averaged_over_insertions_that_do_not_split() {
        let histogram = of(&[1, 1, 1, 2, 7, 99]);
        assert_eq!((histogram.insertions(), histogram.splits()), (6, 2));
        assert_eq!(histogram.lines(), 1.25);
        assert_eq!(histogram.share(1..=1), 0.5);
    }

    #[test]
    fn counts_that_differ_are_noticed() {
        let histogram = of(&[1, 1, 2, 7]);
        assert_eq!(histogram.apart(&of(&[1, 1, 2, 8])), 0, "both split");
        assert_eq!(histogram.apart(&of(&[1, 2, 2, 7])), 2);
        assert_eq!(histogram.apart(&of(&[1, 1, 2])), 1);
        assert_eq!(histogram.apart(&of(&[1, 1, 2, 0])), 2);
    }
}
