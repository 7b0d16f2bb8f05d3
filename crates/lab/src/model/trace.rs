//! From what the simulator and the inner index report to steps that the machine takes.
//!
//! An operation is executed for real, on the simulator; what it reports is kept as the operation's
//! steps, and the machine takes them one by one, each when its thread is the one furthest behind. So
//! the threads' accesses meet in the caches and in the device in the order of simulated time, although
//! one operating-system thread does all the work and an operation's effect is whole at once.
//!
//! Lines of the pool keep their numbers (offset / 64). DRAM has lines of its own, a range for each kind
//! of structure, numbered from the structure's start: addresses differ from run to run, these do not.

use bristlecone_pmem::media::{DramAccess, DramRegion, DramTouch};

/// The first line of DRAM.
pub(crate) const DRAM: u64 = 1 << 48;
/// Lines of a DRAM region.
const REGION: u64 = 1 << 40;

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An operation begins.
    Operation,
    /// Loads of `words` words of one line.
    Load { line: u64, words: u32 },
    /// Stores of `words` words of one line.
    Store { line: u64, words: u32 },
    /// The line will be wanted.
    Prefetch { line: u64 },
    /// A locked instruction on the line.
    Locked { line: u64 },
    /// Write back the line.
    Flush { line: u64 },
    /// Wait for stores and flushes.
    Fence,
}

/// Steps of one operation.
#[derive(Debug, Default)]
pub(crate) struct Steps(pub Vec<Step>);

impl Steps {
    /// Adds loads of the 8-byte words in `at..at + bytes` of the memory that starts at line `base`.
    pub(crate) fn load(&mut self, base: u64, at: u64, bytes: u64) {
        for (line, words) in lines(base, at, bytes) {
            if let Some(Step::Load { line: last, words: n }) = self.0.last_mut()
                && *last == line
            {
                *n += words;
            } else {
                self.0.push(Step::Load { line, words });
            }
        }
    }

    /// Adds stores likewise.
    pub(crate) fn store(&mut self, base: u64, at: u64, bytes: u64) {
        for (line, words) in lines(base, at, bytes) {
            if let Some(Step::Store { line: last, words: n }) = self.0.last_mut()
                && *last == line
            {
                *n += words;
            } else {
                self.0.push(Step::Store { line, words });
            }
        }
    }

    /// Adds what a structure in DRAM reports.
    pub(crate) fn dram(&mut self, touch: &DramTouch) {
        let base = match touch.region {
            DramRegion::Inner => DRAM,
            DramRegion::Locks => DRAM + REGION,
            // The pool itself: a prefetch is the one thing that the simulator does not see.
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
                self.0.extend(steps.map(|(line, _)| Step::Prefetch { line }));
            }
        }
    }
}

/// The lines of a range, with how many of its words are in each.
fn lines(base: u64, at: u64, bytes: u64) -> impl Iterator<Item = (u64, u32)> {
    let end = at + bytes;
    (at / 64..end.div_ceil(64)).map(move |line| {
        let bytes = end.min((line + 1) * 64) - at.max(line * 64);
        (base + line, bytes.div_ceil(8) as u32)
    })
}
