//! A run: an index, a device, a workload.
//!
//! 1. The index is made on the simulator and bulk-loaded, then closed and opened again, so that its
//!    allocator starts from the leaves alone. None of this is charged.
//! 2. Lookups warm the caches; then clocks and counters start at zero.
//! 3. The simulated threads' operations are charged (`trace.rs`, `machine/mod.rs`). An operation that is
//!    answered wrongly ends the run.
//!
//! Time follows from what is recorded, so nothing here needs to be compiled for the design: an index is
//! called as an [engine](bristlecone_designs::engines).

use super::executes::{Executes, Index, Number};
use super::machine::{CAUSES, Cause, Machine};
use super::memory::Time;
use super::source::{Op, Source};
use super::trace::{Flushes, Issued, Persistence, Recording, Step};
use super::tuning::{TRADITIONAL, Tuning, tuned};
use super::{Device, ModelError, ModelReport, Stalls, Workload};
use crate::LabError;
use crate::workload::{Keys, Random, value_of};
use bristlecone_designs::designs::{AnyDesign, Choice, DESIGNS, UnknownDesign, VOLATILE, WIDE};
use bristlecone_designs::engines::Compiled;
use bristlecone_designs::{BulkLoad, Fill};
use bristlecone_pmem::media::sim::{Sim, Simulation};
use bristlecone_pmem::sync::set_worker;
use bristlecone_pmem::{Pool, PoolOptions};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;

/// What to run.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// The design: one of [`RunSpec::indexes`].
    pub index: String,
    /// Bytes of a leaf; `None` for the design's usual.
    pub node_bytes: Option<u32>,
    /// Bytes of a key and a value, 16 or, for the designs of [`WIDE`], 32.
    pub entry_bytes: u32,
    /// On what.
    pub device: Device,
    /// What is done.
    pub workload: Workload,
    /// Simulated threads, 1 to 64.
    pub threads: usize,
    /// Keys that are loaded before, uncharged.
    pub keys: u64,
    /// Operations, of all threads together.
    pub ops: u64,
    /// How full the load leaves the leaves, above 0 to 1; whole percents count.
    pub fill: f64,
    /// What keys and their order follow from.
    pub seed: u64,
}

/// One stretch of a run, with a report of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase {
    /// What is done.
    pub workload: Workload,
    /// Operations, of all threads together.
    pub ops: u64,
    /// It begins with empty caches.
    pub cold: bool,
    /// Lookups that a thread gives to the index at a time; everything else comes one by one.
    pub batch: usize,
}

impl Phase {
    /// A phase that finds the caches as they were left.
    pub(crate) const fn of(workload: Workload, ops: u64) -> Self {
        Self {
            workload,
            ops,
            cold: false,
            batch: 1,
        }
    }

    /// The phase with its lookups given in batches.
    pub(crate) const fn batched(self, batch: usize) -> Self {
        Self { batch, ..self }
    }
}

/// What came of a phase.
#[derive(Clone, Debug)]
pub(crate) struct PhaseReport {
    pub report: ModelReport,
    /// What its flushes were for.
    pub flushes: Flushes,
    /// What it flushed and fenced, by how a Crab-tree's leaves were changed.
    pub issued: Issued,
}

const MAX_THREADS: usize = 64;
const MAX_KEYS: u64 = 200_000_000;
/// A simulation numbers its 8-byte words with 32 bits.
const MAX_BYTES: u64 = 16 << 30;
/// Bytes of an entry of two wide words.
const WIDE_BYTES: u32 = 32;
const ROOT: &str = "model";
/// Operations between two reports of progress.
const PROGRESS: u64 = 4096;

impl RunSpec {
    /// The designs that can be run: those of the registry, volatile ones included but for the Bw-Tree, whose nodes are
    /// outside of what is simulated, and `lbtree-traditional`, the LB+-Tree without entry moving.
    pub fn indexes() -> impl Iterator<Item = &'static str> {
        let designs = DESIGNS.iter().chain(VOLATILE).map(|design| design.name);
        let designs = designs.filter(|name| *name != "bwtree");
        designs.chain([TRADITIONAL])
    }

    fn choice(&self) -> Choice<'_> {
        let name = match self.index.as_str() {
            TRADITIONAL => "lbtree",
            name => name,
        };
        Choice {
            node_bytes: self.node_bytes,
            ..Choice::of(name)
        }
    }

    /// Bytes of a leaf.
    ///
    /// # Errors
    /// [`ModelError::Lab`], naming the design or the size, and what there is.
    pub fn leaf_bytes(&self) -> Result<u32, ModelError> {
        let unknown = || {
            let there: Vec<_> = Self::indexes().collect();
            ModelError::parameter("index", &self.index, there.join(" or "))
        };
        if !Self::indexes().any(|name| name == self.index) {
            return Err(unknown());
        }
        let choice = self.choice();
        choice
            .resolve()
            .map(|(_, bytes)| bytes)
            .map_err(|e| match e {
                UnknownDesign::NodeBytes { asked, there, .. } => {
                    let there: Vec<_> = there.iter().map(ToString::to_string).collect();
                    ModelError::parameter("the node size", asked, there.join(" or "))
                }
                UnknownDesign::Name(_) => unknown(),
                // Not of `resolve`.
                UnknownDesign::Narrow { design } => {
                    ModelError::parameter("index", design, WIDE.join(" or "))
                }
            })
    }

    fn check(&self) -> Result<Fill, ModelError> {
        self.leaf_bytes()?;
        if ![16, WIDE_BYTES].contains(&self.entry_bytes) {
            let asked = self.entry_bytes;
            return Err(ModelError::parameter("entry bytes", asked, "16 or 32"));
        }
        if self.entry_bytes == WIDE_BYTES && !WIDE.contains(&self.index.as_str()) {
            return Err(wide_only(self));
        }
        if !(1..=MAX_THREADS).contains(&self.threads) {
            let may_be = format!("1 to {MAX_THREADS}");
            return Err(ModelError::parameter("threads", self.threads, may_be));
        }
        if !(1..=MAX_KEYS).contains(&self.keys) {
            let may_be = format!("1 to {MAX_KEYS}");
            return Err(ModelError::parameter("keys", self.keys, may_be));
        }
        if !(1..=MAX_KEYS).contains(&self.ops) {
            let may_be = format!("1 to {MAX_KEYS}");
            return Err(ModelError::parameter("ops", self.ops, may_be));
        }
        if self.workload == Workload::Remove && self.ops > self.keys {
            let may_be = "no more than there are keys, as each is removed once";
            return Err(ModelError::parameter("ops", self.ops, may_be));
        }
        // Also catches what is no number: NaN becomes 0.
        let fill = Fill::percent((self.fill * 100.0).round() as u8)
            .filter(|_| self.fill <= 1.0)
            .ok_or_else(|| ModelError::parameter("fill", self.fill, "0.01 to 1"))?;
        let bytes = pool_bytes(self, fill)?;
        if bytes > MAX_BYTES {
            let may_be = format!(
                "fewer, as with {} operations the pool may take {} GiB of at most {}; fuller leaves \
                 help as well",
                self.ops,
                bytes >> 30,
                MAX_BYTES >> 30
            );
            return Err(ModelError::parameter("keys", self.keys, may_be));
        }
        Ok(fill)
    }
}

/// Runs `spec`; `progress` hears, every few thousand operations and at the end, how many were done.
///
/// # Errors
/// [`ModelError`] when a parameter makes no sense, or the index refuses or answers wrongly.
pub fn run(spec: &RunSpec, progress: &mut dyn FnMut(u64)) -> Result<ModelReport, ModelError> {
    let phases = [Phase::of(spec.workload, spec.ops)];
    let (usual, kept) = (Tuning::Usual, Persistence::Kept);
    let mut reports = run_phases(spec, &phases, usual, kept, progress)?;
    reports
        .pop()
        .map(|phase| phase.report)
        .ok_or_else(|| ModelError::parameter("phases", 0, "one at the least"))
}

/// As [`run`], but the index is run as `tuning` says, and what is done is `phases`, one after the other on the
/// same index; a report for each. `spec.ops` is to be the operations of all of them.
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
    let fill = spec.check()?;
    debug_assert_eq!(spec.ops, phases.iter().map(|p| p.ops).sum::<u64>());
    let design = tuned(&spec.index, spec.node_bytes, 1, tuning).map_err(LabError::from)?;
    let run = Run {
        spec,
        phases,
        persistence,
        fill,
        progress,
    };
    if spec.entry_bytes == WIDE_BYTES {
        run.on::<u128>(design)
    } else {
        run.on::<u64>(design)
    }
}

/// Makes the index, loads it, and charges what is done on it.
struct Run<'a> {
    spec: &'a RunSpec,
    phases: &'a [Phase],
    persistence: Persistence,
    fill: Fill,
    progress: &'a mut dyn FnMut(u64),
}

impl Run<'_> {
    fn on<N: Number>(self, design: AnyDesign) -> Result<Vec<PhaseReport>, ModelError>
    where
        Sim: Compiled<N, N>,
    {
        let (spec, fill) = (self.spec, self.fill);
        let mut sorted: Vec<u64> = (0..spec.keys).map(|i| keys_of(spec).key(i)).collect();
        sorted.sort_unstable();
        let simulation = Simulation::new(pool_bytes(spec, fill)?);
        // The device sees a tree as it is, not one that is made for exploring.
        simulation.set_tiny(false);
        let _attached = simulation.attach();
        let maker = Sim::maker_of(design).ok_or_else(|| wide_only(spec))?;
        let pool = Pool::<Sim>::create(Path::new("model"), &PoolOptions::default())
            .map_err(LabError::from)?;
        let mut index = maker
            .create(&pool, ROOT)
            .map_err(|e| LabError::index("creating the index", e))?;
        let pairs = (sorted.iter()).map(|key| (N::key(*key), N::value(value_of(*key))));
        index
            .bulk_load(pairs, fill)
            .map_err(|e| LabError::index("loading the index", e))?;
        // A volatile design cannot be opened again.
        if DESIGNS.iter().any(|d| d.name == spec.choice().name) {
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

/// The error for a design that holds no entries of 32 bytes.
fn wide_only(spec: &RunSpec) -> ModelError {
    let may_be = format!("{} with entries of 32 bytes", WIDE.join(" or "));
    ModelError::parameter("index", &spec.index, may_be)
}

fn keys_of(spec: &RunSpec) -> Keys {
    Keys::Random { seed: spec.seed }
}

/// Room for the load and for what it splits into, twice over: six times over for designs whose
/// slots are larger than the LB+-Tree's, or that have more than leaves. Untouched memory costs nothing.
fn pool_bytes(spec: &RunSpec, fill: Fill) -> Result<u64, ModelError> {
    let node = u64::from(spec.leaf_bytes()?);
    let slots = node * 14 / (16 * u64::from(spec.entry_bytes));
    let loaded = spec.keys.div_ceil(fill.of(slots as usize) as u64);
    // Each leaf may split at once, and then after half a leaf of operations at the earliest.
    let leaves = loaded + spec.ops.min(loaded) + spec.ops / (slots / 2).max(1);
    let times = if spec.choice().name == "lbtree" { 2 } else { 6 };
    Ok((leaves * node * times).next_multiple_of(2 << 20) + (64 << 20))
}

/// A simulated thread's operation: its steps, and how many the machine has taken.
#[derive(Default)]
struct Lane {
    steps: Vec<Step>,
    taken: usize,
}

/// Lets the machine take the threads' steps, always of the thread that is furthest behind, until
/// `next` has no operation for any. `next` puts the steps of a thread's next operation into the
/// vector, or returns false.
pub(super) fn drive<E>(
    machine: &mut Machine,
    threads: usize,
    mut next: impl FnMut(usize, &mut Vec<Step>) -> Result<bool, E>,
) -> Result<(), E> {
    let mut lanes: Vec<Lane> = (0..threads).map(|_| Lane::default()).collect();
    let mut order: BinaryHeap<Reverse<(Time, usize)>> = (0..threads)
        .map(|t| Reverse((machine.clock(t), t)))
        .collect();
    while let Some(Reverse((_, t))) = order.pop() {
        let until = order.peek().map(|Reverse(next)| *next);
        let lane = &mut lanes[t];
        let more = loop {
            if lane.taken == lane.steps.len() {
                lane.taken = 0;
                lane.steps.clear();
                if !next(t, &mut lane.steps)? {
                    break false;
                }
            }
            machine.step(t, lane.steps[lane.taken]);
            lane.taken += 1;
            if until.is_some_and(|next| next < (machine.clock(t), t)) {
                break true;
            }
        };
        if more {
            order.push(Reverse((machine.clock(t), t)));
        }
    }
    Ok(())
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
            recording.of(steps, || index.look_up_together(keys))?;
            // Each key is an operation; the first one's instructions are there.
            steps.extend(keys.iter().skip(1).map(|_| Step::Operation));
            Ok::<_, ModelError>(())
        };

        // As many as fill the shared cache with leaves.
        let core = spec.device.core();
        let warming = spec.keys.min(core.l3_bytes / u64::from(spec.leaf_bytes()?));
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

        let mut source = Source::new(spec, self.phases, keys_of(spec), sorted)?;
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
                report: report(spec, phase, &machine)?,
                flushes: recording.take_flushes(),
                issued: recording.take_issued(),
            });
        }
        Ok(reports)
    }
}

fn report(spec: &RunSpec, phase: &Phase, machine: &Machine) -> Result<ModelReport, ModelError> {
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
    Ok(ModelReport {
        index: spec.index.clone(),
        node_bytes: spec.leaf_bytes()?,
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
    })
}

#[cfg(test)]
mod tests {
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
            // As many instructions an operation, whatever waits for whom.
            assert!((report.stalls.compute_ns / single.stalls.compute_ns - 1.0).abs() < 0.2);
        }
        let gain = |report: &ModelReport| single.ns_per_op / report.ns_per_op;
        assert!(gain(eight) > 2.0, "{}", gain(eight));
        assert!(gain(seven) > 1.8, "{}", gain(seven));
    }
}
