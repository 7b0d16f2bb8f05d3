//! The report of `bench micro`, as JSON for scripts and as a table for people.

use super::Op;
use super::drive::{Slice, histogram, mops};
use crate::limits::median;
use serde::{Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// A figure for each operation that ran, in the order of the phases. In JSON, an object.
#[derive(Clone, Debug, PartialEq)]
pub struct PerOp<T>(pub Vec<(Op, T)>);

impl<T> Default for PerOp<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> PerOp<T> {
    /// Returns the figure of `op`, if it ran.
    #[must_use]
    pub fn get(&self, op: Op) -> Option<&T> {
        self.0
            .iter()
            .find(|(o, _)| *o == op)
            .map(|(_, figure)| figure)
    }
}

impl<T: Serialize> Serialize for PerOp<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(op, figure)| (op.name(), figure)))
    }
}

/// The speed of one operation of one contender.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Number of operations; of keys, for batched operations.
    pub ops: u64,
    /// Million operations a second of all threads together: for `load` over the whole phase, since
    /// the tree grows, and otherwise the median of the slices.
    pub mops: f64,
    /// Million operations a second of the slowest slice.
    pub mops_min: f64,
    /// Million operations a second of the fastest slice.
    pub mops_max: f64,
    /// Time of an operation on one thread.
    pub ns_per_op: f64,
    /// Median latency of the calls timed by themselves; for batched operations, of a whole call.
    pub p50_ns: u64,
    /// Their 99th percentile.
    pub p99_ns: u64,
}

impl Speed {
    pub(crate) fn of(op: Op, slices: &[Slice], threads: usize) -> Self {
        let each: Vec<f64> = slices.iter().map(Slice::mops).collect();
        let ops = slices.iter().map(|slice| slice.ops).sum();
        let elapsed: Duration = slices.iter().map(|slice| slice.elapsed).sum();
        let mut latencies = histogram();
        for slice in slices {
            // Both histograms have the same bounds, so this cannot fail.
            let _ = latencies.add(&slice.latencies);
        }
        let (min, max) = bounds(&each);
        let mops = if op == Op::Load {
            mops(ops, elapsed)
        } else {
            median(each)
        };
        Self {
            ops,
            mops,
            mops_min: min,
            mops_max: max,
            ns_per_op: if mops > 0.0 {
                threads as f64 * 1e3 / mops
            } else {
                0.0
            },
            p50_ns: latencies.value_at_quantile(0.5),
            p99_ns: latencies.value_at_quantile(0.99),
        }
    }
}

fn bounds(figures: &[f64]) -> (f64, f64) {
    let fold = |pick: fn(f64, f64) -> f64| figures.iter().copied().reduce(pick).unwrap_or(0.0);
    (fold(f64::min), fold(f64::max))
}

/// The figures of one operation of the index.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpReport {
    /// Its speed.
    #[serde(flatten)]
    pub speed: Speed,
    /// Flushed cache lines per key, counted in a separate pass.
    pub lines_per_op: f64,
    /// Fences per key, counted in the same pass.
    pub fences_per_op: f64,
}

/// The ratio of the index's speed to a peer's, over the slices of one phase. Each slice is compared
/// with the peer's slice beside it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The median.
    pub median: f64,
    /// The least favourable ratio.
    pub min: f64,
    /// The most favourable ratio.
    pub max: f64,
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}-{})",
            digits(self.median),
            digits(self.min),
            digits(self.max)
        )
    }
}

/// Formats a figure with three significant digits, since commits on a disk are thousands of times
/// slower than loads from memory.
fn digits(figure: f64) -> String {
    let decimals = match figure.abs() {
        f if f >= 100.0 || f == 0.0 => 0,
        f if f >= 10.0 => 1,
        f if f >= 1.0 => 2,
        f if f >= 0.1 => 3,
        f if f >= 0.01 => 4,
        f if f >= 0.001 => 5,
        _ => 6,
    };
    format!("{figure:.decimals$}")
}

impl Ratio {
    /// Returns the ratio of `these` to `those`, pair by pair. Pairs without a speed are left out;
    /// `None` if no pair is left.
    #[must_use]
    pub fn of(these: &[f64], those: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = these
            .iter()
            .zip(those)
            .filter(|(this, that)| **this > 0.0 && **that > 0.0)
            .map(|(this, that)| this / that)
            .collect();
        let (min, max) = bounds(&ratios);
        (!ratios.is_empty()).then(|| Self {
            median: median(ratios),
            min,
            max,
        })
    }
}

/// A peer in the same run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeerReport {
    /// The peer's name.
    #[serde(skip)]
    pub name: &'static str,
    /// Its speeds.
    pub ops: PerOp<Speed>,
    /// Ratios of the index's speed to the peer's.
    pub ratios: PerOp<Ratio>,
    /// Stored bytes per entry after the load, if the peer can tell.
    pub bytes_per_entry: Option<f64>,
}

/// Peers by name. In JSON, an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peers(pub Vec<PeerReport>);

impl Serialize for Peers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|peer| (peer.name, peer)))
    }
}

/// The report of `bench micro`. Field names are fixed, since scripts read them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MicroReport {
    /// The design.
    pub index: String,
    /// The medium's name.
    pub medium: String,
    /// Durability of commits, which matters on the journal medium.
    pub durability: String,
    /// Bytes of a leaf.
    pub node_bytes: u32,
    /// Keys loaded.
    pub keys: u64,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Threads.
    pub threads: usize,
    /// Seed of the keys and their orders.
    pub seed: u64,
    /// The index's figures.
    pub ops: PerOp<OpReport>,
    /// Bytes on the medium per entry, after the load.
    pub pm_bytes_per_entry: f64,
    /// Bytes of DRAM per entry, after the load.
    pub dram_bytes_per_entry: f64,
    /// Milliseconds of opening after a kill right after the load; `None` on DRAM, where nothing
    /// survives.
    pub recovery_ms: Option<f64>,
    /// Milliseconds of opening after a clean close.
    pub clean_open_ms: Option<f64>,
    /// Cost of persisting one line, measured in the same run.
    pub flush_fence_ns: f64,
    /// The peers.
    pub against: Peers,
    /// Notes on the measurement, in sentences.
    pub notes: Vec<String>,
}

impl fmt::Display for MicroReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = if self.threads == 1 {
            "thread"
        } else {
            "threads"
        };
        writeln!(
            f,
            "{} ({}-byte leaves) on {}, {} random 8/8-byte keys, {} {threads}, seed {}\n",
            self.index, self.node_bytes, self.medium, self.keys, self.threads, self.seed
        )?;
        write!(
            f,
            "{:<12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "operation", "Mops/s", "ns/op", "p50 ns", "p99 ns", "lines/op", "fences/op"
        )?;
        for peer in &self.against.0 {
            write!(f, "  {:>24}", format!("x {} (min-max)", peer.name))?;
        }
        writeln!(f)?;
        for (op, report) in &self.ops.0 {
            let speed = &report.speed;
            write!(
                f,
                "{:<12} {:>9} {:>9.0} {:>9} {:>9} {:>9.2} {:>9.2}",
                op.name(),
                digits(speed.mops),
                speed.ns_per_op,
                speed.p50_ns,
                speed.p99_ns,
                report.lines_per_op,
                report.fences_per_op
            )?;
            for peer in &self.against.0 {
                match peer.ratios.get(*op) {
                    Some(r) => write!(f, "  {:>24}", r.to_string())?,
                    None => write!(f, "  {:>24}", "-")?,
                }
            }
            writeln!(f)?;
        }
        writeln!(
            f,
            "\nspace     {:.2} bytes per entry on the medium, {:.2} in DRAM",
            self.pm_bytes_per_entry, self.dram_bytes_per_entry
        )?;
        if let (Some(killed), Some(clean)) = (self.recovery_ms, self.clean_open_ms) {
            writeln!(
                f,
                "reopen    {killed:.1} ms after a kill, {clean:.1} ms after a clean close"
            )?;
        }
        write!(
            f,
            "hardware  {:.0} ns to persist one line",
            self.flush_fence_ns
        )?;
        for note in &self.notes {
            write!(f, "\nnote      {note}")?;
        }
        Ok(())
    }
}

/// The gain of an operation from threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scaled {
    /// Million operations a second on one thread.
    pub one_mops: f64,
    /// The same on all threads together.
    pub many_mops: f64,
    /// Ratio of the second to the first, slice by slice.
    pub ratio: Ratio,
}

/// The report of a comparison of numbers of threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScalingReport {
    /// The design.
    pub index: String,
    /// The medium's name.
    pub medium: String,
    /// Keys loaded.
    pub keys: u64,
    /// Threads compared with one.
    pub threads: usize,
    /// Seed of the keys and their orders.
    pub seed: u64,
    /// The gain of each operation.
    pub ops: PerOp<Scaled>,
}

impl fmt::Display for ScalingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} on {}, {} random 8/8-byte keys, one thread against {}, seed {}\n\n{:<12} {:>9} {:>9}  {:>24}",
            self.index,
            self.medium,
            self.keys,
            self.threads,
            self.seed,
            "operation",
            "1: Mops",
            format!("{}: Mops", self.threads),
            "gain (min-max)"
        )?;
        for (op, scaled) in &self.ops.0 {
            let r = scaled.ratio;
            write!(
                f,
                "\n{:<12} {:>9} {:>9}  {:>24}",
                op.name(),
                digits(scaled.one_mops),
                digits(scaled.many_mops),
                r.to_string()
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        // The machine slowed down for the third pair, whose ratio is still valid.
        let ratio = Ratio::of(&[4.0, 6.0, 1.0], &[2.0, 2.0, 0.4]).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (2.5, 2.0, 3.0));
        assert_eq!(Ratio::of(&[0.0], &[1.0]), None);
        assert_eq!(Ratio::of(&[], &[]), None);
        assert_eq!(Ratio::of(&[1.0, 3.0], &[0.0, 2.0]).unwrap().median, 1.5);
    }

    #[test]
    fn figures_of_every_size_show_three_digits() {
        let shown = [0.0, 212.4, 21.24, 2.124, 0.2124, 0.02124, 0.000_212_4].map(digits);
        assert_eq!(
            shown,
            ["0", "212", "21.2", "2.12", "0.212", "0.0212", "0.000212"]
        );
    }

    #[test]
    fn a_load_counts_whole_and_other_phases_by_their_median() {
        let slice = |ops, micros| {
            let mut latencies = histogram();
            latencies.saturating_record(micros);
            Slice {
                ops,
                elapsed: Duration::from_micros(micros),
                latencies,
            }
        };
        let slices = [slice(100, 100), slice(100, 50), slice(100, 400)];
        let update = Speed::of(Op::Update, &slices, 2);
        assert_eq!((update.ops, update.mops), (300, 1.0));
        assert_eq!((update.mops_min, update.mops_max), (0.25, 2.0));
        assert_eq!((update.ns_per_op, update.p50_ns), (2_000.0, 100));
        let load = Speed::of(Op::Load, &slices, 1);
        assert!((load.mops - 300.0 / 550.0).abs() < 1e-12);
        assert_eq!(Speed::of(Op::Load, &[], 1).ns_per_op, 0.0);
    }
}
