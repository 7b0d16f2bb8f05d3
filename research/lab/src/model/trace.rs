//! The trace of an operation: reports of the simulator and of the inner index become steps of the
//! machine.
//!
//! An operation really runs, on the simulator, and its reported accesses are recorded as steps. The
//! machine takes the steps one by one, always of the thread whose clock is furthest behind. So the
//! threads' accesses meet in the caches and in the device in the order of simulated time, although
//! one operating-system thread does all the work and an operation takes effect as a whole.
//!
//! Lines of the pool keep their numbers (offset / 64). DRAM has lines of its own, with a range for
//! each kind of structure, numbered from the structure's start. Unlike addresses, these numbers are
//! the same in every run.

use bristlecone_pmem::media::sim::{Event, EventKind, Simulation, Sink};
use bristlecone_pmem::media::{DramAccess, DramObserver, DramRegion, DramTouch, Traced};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The first line of DRAM.
pub(crate) const DRAM: u64 = 1 << 48;
/// Lines of a DRAM region.
const REGION: u64 = 1 << 40;

/// A step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An operation begins.
    Operation,
    /// Loads of `words` words of one line.
    Load { line: u64, words: u32 },
    /// Stores of `words` words of one line.
    Store { line: u64, words: u32 },
    /// Prefetch the line.
    Prefetch { line: u64 },
    /// A locked instruction on the line.
    Locked { line: u64 },
    /// Flush the line.
    Flush { line: u64 },
    /// Write a whole line past the caches. Only streams that measure a device do this.
    NonTemporal { line: u64 },
    /// Wait for stores and flushes.
    Fence,
    /// Keep the stores before it before the stores after it.
    StoreFence,
}

/// Steps of one operation.
#[derive(Debug, Default)]
pub(crate) struct Steps(pub Vec<Step>);

impl Steps {
    /// Adds loads of the 8-byte words in `at..at + bytes` of the memory that starts at line `base`.
    pub(crate) fn load(&mut self, base: u64, at: u64, bytes: u64) {
        for (line, words) in lines(base, at, bytes) {
            if let Some(Step::Load {
                line: last,
                words: n,
            }) = self.0.last_mut()
                && *last == line
            {
                *n += words;
            } else {
                self.0.push(Step::Load { line, words });
            }
        }
    }

    /// Adds stores to the 8-byte words in the same way.
    pub(crate) fn store(&mut self, base: u64, at: u64, bytes: u64) {
        for (line, words) in lines(base, at, bytes) {
            if let Some(Step::Store {
                line: last,
                words: n,
            }) = self.0.last_mut()
                && *last == line
            {
                *n += words;
            } else {
                self.0.push(Step::Store { line, words });
            }
        }
    }

    /// Adds an event of the simulator.
    fn event(&mut self, kind: &EventKind) {
        match *kind {
            EventKind::Load { at, bytes } => self.load(0, at, bytes.into()),
            EventKind::Store { at, .. } => self.store(0, at, 8),
            EventKind::Store16 { at, .. } => self.store(0, at, 16),
            EventKind::Flush { line } => self.0.push(Step::Flush { line: line / 64 }),
            EventKind::Fence => self.0.push(Step::Fence),
            EventKind::StoreFence => self.0.push(Step::StoreFence),
            // The work of the operating system is not modelled.
            EventKind::Resize { .. } | EventKind::Zero { .. } => {}
        }
    }

    /// Adds an access to a structure in DRAM.
    pub(crate) fn dram(&mut self, touch: &DramTouch) {
        let base = match touch.region {
            DramRegion::Inner => DRAM,
            DramRegion::Locks => DRAM + REGION,
            DramRegion::Mapping => DRAM + 2 * REGION,
            // The pool itself. The simulator sees all of its accesses but prefetches.
            DramRegion::Pool => 0,
        };
        match touch.access {
            DramAccess::Load => self.load(base, touch.at, touch.bytes),
            DramAccess::Store => self.store(base, touch.at, touch.bytes),
            DramAccess::Locked => self.0.push(Step::Locked {
                line: base + touch.at / 64,
            }),
            DramAccess::Prefetch => {
                let steps = lines(base, touch.at, touch.bytes);
                self.0
                    .extend(steps.map(|(line, _)| Step::Prefetch { line }));
            }
        }
    }
}

/// Returns the lines of a range, each with the number of the range's words in it.
fn lines(base: u64, at: u64, bytes: u64) -> impl Iterator<Item = (u64, u32)> {
    let end = at + bytes;
    (at / 64..end.div_ceil(64)).map(move |line| {
        let bytes = end.min((line + 1) * 64) - at.max(line * 64);
        (base + line, bytes.div_ceil(8) as u32)
    })
}

/// The persistence instructions that are charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Persistence {
    /// Returns the sum.
    #[default]
    Kept,
    /// Flushes but no fences, so nothing waits for the flushes.
    Unfenced,
    /// No flushes and no fences: the design in volatile memory, if it does not log.
    None,
}

impl Persistence {
    /// Returns true if an event of the simulator is charged.
    fn charges(self, kind: &EventKind) -> bool {
        match kind {
            EventKind::Flush { .. } => self != Self::None,
            EventKind::Fence | EventKind::StoreFence => self == Self::Kept,
            _ => true,
        }
    }
}

/// The source file that logs before-images.
const LOG: &str = "log/mod.rs";
/// The source file in which the LCB+-Tree moves entries (any change of its log's segment), and
/// those of the designs without a log.
const CHANGE: &str = "btree/change.rs";
const SHIFTS: [&str; 3] = ["cddstree/node.rs", CRAB_SHIFT, "fastfair/node.rs"];
/// The source files of Crab-tree's two ways to change a leaf.
const CRAB_SHIFT: &str = "crabtree/shift.rs";
const CRAB_COPY: &str = "crabtree/copy.rs";
/// The source files that split nodes. (The Crab-tree copies and splits in the same file.)
const SPLITS: [&str; 6] = [
    "btree/structure.rs",
    "cddstree/split.rs",
    "fastfair/fair.rs",
    "leaftree/split.rs",
    "lbtree/split.rs",
    "nvtree/reshape.rs",
];

/// Flushed lines by purpose, which follows from the source file of the flush.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Flushes {
    /// Shifts of entries that keep a leaf sorted. In a design that logs, this includes the log and
    /// the rest of that change (NV-Tree, figure 1d: "Sort LN").
    pub sort_leaf: u64,
    /// The rest of operations, or of parts of them, without a split.
    pub leaf: u64,
    /// Splits: new nodes, written whole.
    pub new_nodes: u64,
    /// Splits: everything else, which is parents, logs and changes to the old node.
    pub parents: u64,
}

impl Flushes {
    /// Adds an operation that flushed in these source files, in this order.
    fn add(&mut self, files: &[&str]) {
        let is = |file: &str, what: &str| file.ends_with(what);
        let splits = |file: &str| SPLITS.iter().any(|split| file.ends_with(split));
        let shifts = |file: &str| SHIFTS.iter().any(|shift| file.ends_with(shift));
        // A change under a log begins with the log's flushes. Each such change is a part of its
        // own.
        let mut rest = files;
        while !rest.is_empty() {
            let begins = |pair: &[&str]| is(pair[0], CHANGE) && is(pair[1], LOG);
            let end = rest
                .windows(2)
                .position(begins)
                .map_or(rest.len(), |i| i + 1);
            let (part, after) = rest.split_at(end);
            let split = part.iter().any(|file| splits(file));
            let logged = part.iter().any(|file| is(file, LOG));
            for file in part {
                *match split {
                    true if is(file, "btree/structure.rs") => &mut self.new_nodes,
                    // The insertion that the split made room for, in a leaf that needs no log.
                    true if logged && !is(file, LOG) && !is(file, CHANGE) => &mut self.leaf,
                    true => &mut self.parents,
                    false if logged || shifts(file) => &mut self.sort_leaf,
                    false => &mut self.leaf,
                } += 1;
            }
            rest = after;
        }
    }

    /// Returns the sum.
    pub(crate) fn all(self) -> u64 {
        self.sort_leaf + self.leaf + self.new_nodes + self.parents
    }
}

/// Persistence instructions of some operations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Instructions {
    pub flushes: u64,
    pub fences: u64,
    /// Fences between stores, which are instructions on processors that do not keep stores in
    /// order.
    pub store_fences: u64,
}

impl Instructions {
    /// Counts an event of the simulator.
    fn count(&mut self, kind: &EventKind) {
        match kind {
            EventKind::Flush { .. } => self.flushes += 1,
            EventKind::Fence => self.fences += 1,
            EventKind::StoreFence => self.store_fences += 1,
            _ => {}
        }
    }

    fn add(&mut self, other: &Self) {
        self.flushes += other.flushes;
        self.fences += other.fences;
        self.store_fences += other.store_fences;
    }
}

/// Persistence instructions, by the way in which a Crab-tree's leaf was changed (other designs do
/// not copy), and by who issued them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Issued {
    /// Operations that copied a leaf without a shift.
    pub copying: Instructions,
    /// All others.
    pub other: Instructions,
    /// Those of both that are the pool's and its allocator's, not the design's.
    pub of_pool: Instructions,
}

/// Directories of the pool's own source files.
const POOL: [&str; 2] = ["/pmem/src/heap/", "/pmem/src/pool/"];

impl Issued {
    /// Adds an operation with its instructions and the source files of its flushes.
    fn add(&mut self, what: &Instructions, of_pool: &Instructions, files: &[&str]) {
        let from = |source: &str| files.iter().any(|file| file.ends_with(source));
        let to = if from(CRAB_COPY) && !from(CRAB_SHIFT) {
            &mut self.copying
        } else {
            &mut self.other
        };
        to.add(what);
        self.of_pool.add(of_pool);
    }

    /// Returns the sum.
    pub(crate) fn all(&self) -> Instructions {
        let mut all = self.copying;
        all.add(&self.other);
        all
    }
}

/// Records the accesses of this thread to a simulation, until it is dropped.
pub(crate) struct Recording {
    simulation: Simulation,
    steps: Rc<RefCell<Steps>>,
    /// The source file of each line that the current operation has flushed.
    flushed: Rc<RefCell<Vec<&'static str>>>,
    flushes: Cell<Flushes>,
    /// Of the current operation: all, and the pool's.
    issuing: Rc<Cell<[Instructions; 2]>>,
    issued: Cell<Issued>,
    sink_before: Option<Box<dyn Sink>>,
    observer_before: Option<DramObserver>,
}

struct Recorder {
    steps: Rc<RefCell<Steps>>,
    flushed: Rc<RefCell<Vec<&'static str>>>,
    issuing: Rc<Cell<[Instructions; 2]>>,
    persistence: Persistence,
}

impl Sink for Recorder {
    fn event(&mut self, event: &Event) {
        if !self.persistence.charges(&event.kind) {
            return;
        }
        let file = event.site.file();
        if matches!(event.kind, EventKind::Flush { .. }) {
            self.flushed.borrow_mut().push(file);
        }
        let [mut all, mut of_pool] = self.issuing.get();
        all.count(&event.kind);
        if POOL.iter().any(|directory| file.contains(directory)) {
            of_pool.count(&event.kind);
        }
        self.issuing.set([all, of_pool]);
        self.steps.borrow_mut().event(&event.kind);
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Recording {
    pub(crate) fn start(simulation: &Simulation, persistence: Persistence) -> Self {
        let steps = Rc::new(RefCell::new(Steps::default()));
        let into = Rc::clone(&steps);
        let flushed = Rc::new(RefCell::new(Vec::new()));
        let issuing = Rc::new(Cell::default());
        Self {
            simulation: simulation.clone(),
            sink_before: simulation.set_sink(Some(Box::new(Recorder {
                steps: Rc::clone(&steps),
                flushed: Rc::clone(&flushed),
                issuing: Rc::clone(&issuing),
                persistence,
            }))),
            observer_before: Traced::observe(Some(Box::new(move |touch| {
                into.borrow_mut().dram(touch);
            }))),
            steps,
            flushed,
            flushes: Cell::default(),
            issuing,
            issued: Cell::default(),
        }
    }

    /// Runs `operation`, replaces the content of `into` with its steps, and returns its result.
    pub(crate) fn of<R>(&self, into: &mut Vec<Step>, operation: impl FnOnce() -> R) -> R {
        into.clear();
        into.push(Step::Operation);
        std::mem::swap(into, &mut self.steps.borrow_mut().0);
        let result = operation();
        std::mem::swap(into, &mut self.steps.borrow_mut().0);
        let mut flushed = self.flushed.borrow_mut();
        let mut flushes = self.flushes.get();
        flushes.add(&flushed);
        self.flushes.set(flushes);
        let mut issued = self.issued.get();
        let [all, of_pool] = self.issuing.take();
        issued.add(&all, &of_pool, &flushed);
        self.issued.set(issued);
        flushed.clear();
        result
    }

    /// Returns the flushes since the last call, by purpose.
    pub(crate) fn take_flushes(&self) -> Flushes {
        self.flushes.take()
    }

    /// Returns the persistence instructions since the last call.
    pub(crate) fn take_issued(&self) -> Issued {
        self.issued.take()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.simulation.set_sink(self.sink_before.take());
        Traced::observe(self.observer_before.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_are_told_apart_by_where_they_come_from() {
        let [log, change, structure] =
            ["a/log/mod.rs", "a/btree/change.rs", "a/btree/structure.rs"];
        let of = |files: &[&str]| {
            let mut flushes = Flushes::default();
            flushes.add(files);
            assert_eq!(flushes.all(), files.len() as u64);
            let Flushes {
                sort_leaf,
                leaf,
                new_nodes,
                parents,
            } = flushes;
            [sort_leaf, leaf, new_nodes, parents]
        };
        assert_eq!(of(&[log, log, change, change]), [4, 0, 0, 0]);
        // A split, and then the insertion that it made room for.
        let split = [log, log, structure, structure, change, log, change, change];
        assert_eq!(of(&split), [3, 0, 2, 3]);
        let append = "b/trees/src/nvta.rs";
        let split = [log, structure, change, append, append];
        assert_eq!(of(&split), [0, 2, 1, 2]);
        let [shift, insert] = ["b/cddstree/node.rs", "b/cddstree/insert.rs"];
        assert_eq!(of(&[shift, shift, insert, "b/pmem/cell.rs"]), [2, 2, 0, 0]);
        assert_eq!(of(&["b/cddstree/split.rs", shift, insert]), [0, 0, 0, 3]);
        assert_eq!(of(&[]), [0; 4]);
        let [copy, crab, reshape] = [CRAB_COPY, CRAB_SHIFT, "t/crabtree/reshape.rs"];
        let mut issued = Issued::default();
        let one = Instructions {
            flushes: 1,
            fences: 1,
            store_fences: 1,
        };
        for files in [&[copy, reshape][..], &[copy, crab], &[crab], &[]] {
            issued.add(&one, &one, files);
        }
        assert_eq!((issued.copying, issued.other.fences), (one, 3));
        assert_eq!(issued.of_pool.flushes, 4);
        assert_eq!(issued.all().store_fences, 4);
    }

    #[test]
    fn words_are_gathered_by_line() {
        let mut steps = Steps::default();
        steps.event(&EventKind::Load { at: 48, bytes: 8 });
        steps.event(&EventKind::Load { at: 56, bytes: 16 });
        steps.event(&EventKind::Load { at: 72, bytes: 8 });
        let (old, new) = (0, 1);
        steps.event(&EventKind::Store { at: 128, old, new });
        steps.event(&EventKind::StoreFence);
        steps.event(&EventKind::Store { at: 136, old, new });
        steps.event(&EventKind::Flush { line: 128 });
        steps.event(&EventKind::Fence);
        let expected = [
            Step::Load { line: 0, words: 2 },
            Step::Load { line: 1, words: 2 },
            Step::Store { line: 2, words: 1 },
            Step::StoreFence,
            Step::Store { line: 2, words: 1 },
            Step::Flush { line: 2 },
            Step::Fence,
        ];
        assert_eq!(steps.0, expected);
    }

    #[test]
    fn dram_has_lines_of_its_own_and_the_pool_is_prefetched_where_it_is() {
        let mut steps = Steps::default();
        for (region, access) in [
            (DramRegion::Inner, DramAccess::Load),
            (DramRegion::Locks, DramAccess::Locked),
            (DramRegion::Pool, DramAccess::Prefetch),
        ] {
            steps.dram(&DramTouch {
                region,
                access,
                at: 256,
                bytes: 72,
            });
        }
        let expected = [
            Step::Load {
                line: DRAM + 4,
                words: 8,
            },
            Step::Load {
                line: DRAM + 5,
                words: 1,
            },
            Step::Locked {
                line: DRAM + REGION + 4,
            },
            Step::Prefetch { line: 4 },
            Step::Prefetch { line: 5 },
        ];
        assert_eq!(steps.0, expected);
    }
}
