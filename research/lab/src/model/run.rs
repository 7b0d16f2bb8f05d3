//! A run: an index, a device, a workload.
//!
//! 1. The index is created on the simulator and bulk-loaded, and then closed and reopened, so that
//!    its allocator starts with only the leaves. None of this is charged.
//! 2. Lookups warm the caches. Then clocks and counters start at zero.
//! 3. The simulated threads' operations are charged (`trace.rs`, `machine/mod.rs`). A wrong answer
//!    ends the run.
//!
//! Time follows from the recorded steps, so this code need not be compiled for each design: it
//! calls an index as an [engine](bristlecone_designs::engines).

use super::drive::drive;
use super::executes::{Executes, Index, Number};
use super::machine::{CAUSES, Cause, Machine};
use super::source::Source;
use super::spec::{Phase, RunSpec};
use super::trace::{Flushes, Issued, Persistence, Recording, Step};
use super::tuning::{Tuning, tuned};
use super::workload::Op;
use super::{Device, ModelError, ModelReport, Stalls};
use crate::LabError;
use crate::workload::{Random, value_of};
use bristlecone_designs::designs::{DESIGNS, OwnDesign};
use bristlecone_designs::engines::{Compiled, Maker};
use bristlecone_designs::{BulkLoad, Design, Fill};
use bristlecone_pmem::media::sim::{Sim, Simulation};
use bristlecone_pmem::sync::set_worker;
use bristlecone_pmem::{Pool, PoolOptions};
use std::path::Path;

/// The report of a phase.
#[derive(Clone, Debug)]
pub(crate) struct PhaseReport {
    pub report: ModelReport,
    /// Its flushes by purpose.
    pub flushes: Flushes,
    /// Its flushes and fences, by the way in which a Crab-tree's leaves were changed.
    pub issued: Issued,
}

const ROOT: &str = "model";
/// Operations between two calls of `progress`.
const PROGRESS: u64 = 4096;

/// Runs `spec`. Calls `progress` with the number of operations done, every few thousand operations
/// and at the end.
///
/// # Errors
/// [`ModelError`] if a parameter is out of range, or the index refuses an operation or gives a
/// wrong answer.
pub fn run(spec: &RunSpec, progress: &mut dyn FnMut(u64)) -> Result<ModelReport, ModelError> {
    let phases = [Phase::of(spec.workload, spec.ops)];
    let (usual, kept) = (Tuning::Usual, Persistence::Kept);
    only(run_phases(spec, &phases, usual, kept, progress)?)
}

/// As [`run`], with the index tuned by `tuning`, and with several phases, one after the other, on
/// the same index. Returns a report for each. `spec.ops` must be the operations of all phases.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_phases(
    spec: &RunSpec,
    phases: &[Phase],
    tuning: Tuning,
    persistence: Persistence,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<PhaseReport>, ModelError> {
    let node_bytes = spec.leaf_bytes()?;
    let fill = spec.check(node_bytes)?;
    debug_assert_eq!(spec.ops, phases.iter().map(|p| p.ops).sum::<u64>());
    let design = tuned(&spec.index, spec.node_bytes, 1, tuning).map_err(LabError::from)?;
    let run = Run {
        spec,
        node_bytes,
        durable: DESIGNS.iter().any(|d| d.name == spec.design()),
        phases,
        persistence,
        fill,
        progress,
    };
    if spec.is_wide() {
        run.on::<u128>(&*Sim::maker_of(design).ok_or_else(|| spec.wide_only())?)
    } else {
        run.on::<u64>(&*Sim::maker_of(design).ok_or_else(|| spec.wide_only())?)
    }
}

/// As [`run`], for a design that is not in the registry. Its name and leaf size take the place of
/// `spec.index` and `spec.node_bytes`. Keys and values have 8 bytes each, whatever
/// `spec.entry_bytes` says.
///
/// # Errors
/// As [`run`].
pub fn run_own<D: Design>(
    spec: &RunSpec,
    own: &OwnDesign<D>,
    progress: &mut dyn FnMut(u64),
) -> Result<ModelReport, ModelError> {
    let spec = &RunSpec {
        index: own.name.to_owned(),
        node_bytes: Some(own.node_bytes),
        entry_bytes: 16,
        ..spec.clone()
    };
    let run = Run {
        spec,
        node_bytes: own.node_bytes,
        durable: true,
        phases: &[Phase::of(spec.workload, spec.ops)],
        persistence: Persistence::Kept,
        fill: spec.check(own.node_bytes)?,
        progress,
    };
    only(run.on::<u64>(&own.design)?)
}

/// Returns the report of a run of one phase.
fn only(mut reports: Vec<PhaseReport>) -> Result<ModelReport, ModelError> {
    let last = reports.pop().map(|phase| phase.report);
    last.ok_or_else(|| ModelError::parameter("phases", 0, "one at the least"))
}

/// Creates the index, loads it, and charges the operations on it.
struct Run<'a> {
    spec: &'a RunSpec,
    /// Bytes of a leaf.
    node_bytes: u32,
    /// False for a design that keeps nothing, and cannot be reopened.
    durable: bool,
    phases: &'a [Phase],
    persistence: Persistence,
    fill: Fill,
    progress: &'a mut dyn FnMut(u64),
}

impl Run<'_> {
    fn on<N: Number>(self, maker: &dyn Maker<N, N, Sim>) -> Result<Vec<PhaseReport>, ModelError> {
        let (spec, fill) = (self.spec, self.fill);
        let mut sorted: Vec<u64> = (0..spec.keys)
            .map(|i| spec.keys_by_number().key(i))
            .collect();
        sorted.sort_unstable();
        let simulation = Simulation::new(spec.pool_bytes(self.node_bytes, fill));
        // The device sees a tree with its normal thresholds, not with the small ones of the
        // explorer.
        simulation.set_tiny(false);
        let _attached = simulation.attach();
        let pool = Pool::<Sim>::create(Path::new("model"), &PoolOptions::default())
            .map_err(LabError::from)?;
        let mut index = maker
            .create(&pool, ROOT)
            .map_err(|e| LabError::index("creating the index", e))?;
        let pairs = (sorted.iter()).map(|key| (N::key(*key), N::value(value_of(*key))));
        index
            .bulk_load(pairs, fill)
            .map_err(|e| LabError::index("loading the index", e))?;
        if self.durable {
            index
                .close()
                .map_err(|e| LabError::index("closing the index", e))?;
            index = maker
                .open(&pool, ROOT)
                .map_err(|e| LabError::index("opening the index", e))?;
        }
        self.charge(&simulation, &Index(index), &sorted)
    }
}

impl Run<'_> {
    fn charge(
        self,
        simulation: &Simulation,
        index: &dyn Executes,
        sorted: &[u64],
    ) -> Result<Vec<PhaseReport>, ModelError> {
        let spec = self.spec;
        let threads = spec.threads;
        let mut machine = Machine::new(&spec.device, &Device::load("dram")?, threads);
        let recording = Recording::start(simulation, self.persistence);
        let recorded = |t: usize, steps: &mut Vec<Step>, op: Op| -> Result<(), ModelError> {
            simulation.set_thread(t as u8);
            set_worker(t);
            recording.of(steps, || index.execute(op))
        };
        let looked_up = |t: usize, steps: &mut Vec<Step>, keys: &[u64]| {
            simulation.set_thread(t as u8);
            set_worker(t);
            recording.of(steps, || index.multi_get(keys))?;
            // Each key is an operation. The recording already has the instructions of the first
            // one.
            steps.extend(keys.iter().skip(1).map(|_| Step::Operation));
            Ok::<_, ModelError>(())
        };

        // As many lookups as it takes to fill the shared cache with leaves.
        let core = spec.device.core();
        let warming = spec.keys.min(core.l3_bytes / u64::from(self.node_bytes));
        let mut random = Random::new(spec.seed ^ 0x7761_726d);
        let mut warmed = 0;
        drive(&mut machine, threads, |t, steps| {
            warmed += 1;
            let key = sorted[random.below(sorted.len() as u64) as usize];
            recorded(t, steps, Op::Lookup { key })?;
            Ok::<_, ModelError>(warmed <= warming)
        })?;
        recording.take_flushes();
        recording.take_issued();

        let mut source = Source::new(spec, self.phases, spec.keys_by_number(), sorted)?;
        let mut done = 0;
        let mut reports = Vec::new();
        for phase in self.phases {
            source.begin(phase);
            machine.restart();
            if phase.cold {
                machine.empty_caches();
            }
            let mut keys = Vec::new();
            drive(&mut machine, threads, |t, steps| {
                let before = done;
                keys.clear();
                while keys.len() < phase.batch {
                    match source.next(t) {
                        Some(Op::Lookup { key }) if phase.batch > 1 => keys.push(key),
                        Some(op) => {
                            debug_assert!(keys.is_empty(), "a phase of batches looks up");
                            recorded(t, steps, op)?;
                            done += 1;
                            break;
                        }
                        None => break,
                    }
                }
                if !keys.is_empty() {
                    looked_up(t, steps, &keys)?;
                    done += keys.len() as u64;
                }
                if before / PROGRESS < done / PROGRESS {
                    (self.progress)(done);
                }
                Ok::<_, ModelError>(before < done)
            })?;
            (self.progress)(done);
            reports.push(PhaseReport {
                report: report(spec, self.node_bytes, phase, &machine),
                flushes: recording.take_flushes(),
                issued: recording.take_issued(),
            });
        }
        Ok(reports)
    }
}

fn report(spec: &RunSpec, node_bytes: u32, phase: &Phase, machine: &Machine) -> ModelReport {
    let mut causes = [0; CAUSES];
    let (mut total, mut longest, mut flushes, mut fences) = (0, 0, 0, 0);
    let (mut loads, mut misses) = (0, 0);
    for t in 0..spec.threads {
        let spent = machine.spent(t);
        for (sum, part) in causes.iter_mut().zip(spent.by_cause) {
            *sum += part;
        }
        total += machine.clock(t);
        longest = longest.max(machine.clock(t));
        flushes += spent.flushes;
        fences += spent.fences;
        loads += spent.loads;
        misses += spent.misses;
    }
    let per_op = |n: u64| n as f64 / phase.ops as f64;
    let ns = |cause: Cause| causes[cause as usize] as f64 / 1e3 / phase.ops as f64;
    let ratio = |media: u64, lines: u64| {
        if lines == 0 {
            0.0
        } else {
            media as f64 / (lines * 64) as f64
        }
    };
    let traffic = machine.pm().traffic();
    ModelReport {
        index: spec.index.clone(),
        node_bytes,
        entry_bytes: spec.entry_bytes,
        device: spec.device.name().into(),
        workload: phase.workload,
        threads: spec.threads,
        keys: spec.keys,
        fill: spec.fill,
        ops: phase.ops,
        seed: spec.seed,
        ns_per_op: per_op(total) / 1e3,
        // Operations per picosecond, times 10^12 / 10^6.
        mops: phase.ops as f64 * 1e6 / longest as f64,
        lines_read_per_op: per_op(traffic.lines_read),
        lines_written_per_op: per_op(traffic.lines_written),
        media_bytes_read_per_op: per_op(traffic.media_read),
        media_bytes_written_per_op: per_op(traffic.media_written),
        read_amplification: ratio(traffic.media_read, traffic.lines_read),
        write_amplification: ratio(traffic.media_written, traffic.lines_written),
        flushes_per_op: per_op(flushes),
        fences_per_op: per_op(fences),
        loads_per_op: per_op(loads),
        misses_per_op: per_op(misses),
        stalls: Stalls {
            compute_ns: ns(Cause::Compute),
            cache_ns: ns(Cause::Cache),
            dram_ns: ns(Cause::Dram),
            pm_read_ns: ns(Cause::PmRead),
            store_ns: ns(Cause::Store),
            flush_ns: ns(Cause::Flush),
            fence_ns: ns(Cause::Fence),
            bandwidth_ns: ns(Cause::Bandwidth),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::Workload;
    use super::*;

    #[test]
    fn lookups_in_batches_are_as_many_and_overlap() {
        let device = Device::load("optane").unwrap();
        let device = device.with_core(|core| {
            core.l2_bytes = 32 << 10;
            core.l3_bytes = 64 << 10;
        });
        // 7 does not divide the operations of a thread.
        let phases = [1, 8, 7].map(|batch| Phase::of(Workload::Lookup, 3_000).batched(batch));
        let spec = RunSpec {
            index: "btree".into(),
            node_bytes: Some(256),
            entry_bytes: 16,
            device: device.unwrap(),
            workload: Workload::Lookup,
            threads: 2,
            keys: 50_000,
            ops: 9_000,
            fill: 0.7,
            seed: 5,
        };
        let mut told = Vec::new();
        let reports = run_phases(
            &spec,
            &phases,
            Tuning::Usual,
            Persistence::Kept,
            &mut |done| told.push(done),
        );
        let reports = reports.unwrap();
        assert_eq!(told.last(), Some(&9_000));
        let [single, eight, seven] = [0, 1, 2].map(|i| &reports[i].report);
        for report in [single, eight, seven] {
            assert_eq!(report.ops, 3_000);
            // Batches do not change the number of instructions of an operation.
            assert!((report.stalls.compute_ns / single.stalls.compute_ns - 1.0).abs() < 0.2);
        }
        let gain = |report: &ModelReport| single.ns_per_op / report.ns_per_op;
        assert!(gain(eight) > 2.0, "{}", gain(eight));
        assert!(gain(seven) > 1.8, "{}", gain(seven));
    }
}
