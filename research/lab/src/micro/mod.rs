//! Single operations on one index, beside its peers in the same run (`bench micro`).
//!
//! ```text
//! phase    slice 1            slice 2            slice 3
//! load     index  map  lmdb   map  lmdb  index   lmdb  index  map   ...
//! insert   index  map  lmdb   ...
//! ```
//!
//! Every contender does the same operations on the same keys. A phase is cut into slices, and the
//! contenders take turns in a rotating order, so that a machine whose speed drifts slows all of
//! them alike. Speeds are medians over slices, and ratios are taken within a slice. Space and
//! reopening are measured right after the load. A pass of its own counts flushes and fences
//! (`count.rs`).
//!
//! # Concurrency
//! Several threads share each slice's keys, start together behind a barrier, and the slice ends
//! with the last of them. Between slices no thread runs.

mod against;
mod count;
pub(crate) mod designs;
mod drive;
mod params;
mod plan;
pub(crate) mod reopen;
mod report;
mod target;

pub use designs::{run, run_own, scaling};
pub use params::{Against, BATCH, MicroParams, Op, SCAN_LENGTH, VALUE_BYTES};
pub use report::{
    MicroReport, OpReport, PeerReport, Peers, PerOp, Ratio, Scaled, ScalingReport, Speed,
};
pub use target::{Target, Usage};

use crate::{LabError, limits};
use bristlecone_command::scratch::{Purpose, Scratch};
use bristlecone_pmem::media::{Access, Auto, Media, MediaOptions};
use drive::Slice;
use plan::Plan;
use target::{Maker, Subject};

/// The progress of a run. One event comes after each slice of each contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The contender that runs (the index or a peer), or a part of the runner itself.
    pub contender: &'a str,
    /// The phase that it runs.
    pub phase: &'a str,
    /// Operations done in this phase by this contender.
    pub done: u64,
    /// Operations of this phase.
    pub total: u64,
}

/// A contender, which runs slices. It is called once a slice, so dynamic dispatch costs nothing.
pub(crate) trait Contender {
    fn name(&self) -> &'static str;

    fn slice(
        &mut self,
        op: Op,
        keys: &[u64],
        threads: usize,
        batch: usize,
    ) -> Result<Slice, LabError>;

    /// Returns the stored bytes, if the contender can tell.
    fn stored_bytes(&self) -> Result<Option<u64>, LabError> {
        Ok(None)
    }
}

fn media_options(params: &MicroParams) -> MediaOptions {
    MediaOptions {
        durability: params.durability,
        medium: Some(params.medium),
        ..MediaOptions::default()
    }
}

fn scratch(params: &MicroParams) -> Result<Scratch, LabError> {
    Scratch::new(&params.path, Purpose::Bench)
        .map_err(|e| LabError::io(&params.path, "making a directory for the run", e))
}

/// Measures the index that `T` makes on medium `M`. `C` is the same design on the medium
/// that can count.
/// Reports name it `params.index`.
///
/// # Errors
/// [`LabError`] if a parameter is out of range, or a contender refuses an operation or gives a
/// wrong answer. Files are removed in any case.
pub fn run_on<M, T, C>(
    params: &MicroParams,
    design: T::Design,
    progress: &mut dyn FnMut(&Event<'_>),
) -> Result<MicroReport, LabError>
where
    M: Media,
    T: Target<M>,
    C: Target<Auto, Design = T::Design>,
{
    let (info, node_bytes) = params.check()?;
    let maker = Maker::of::<M, T, C>(design);
    run_made(params, info.name, node_bytes, &maker, progress)
}

/// Measures what `maker` makes, with parameters that have been checked.
fn run_made(
    params: &MicroParams,
    name: &'static str,
    node_bytes: u32,
    maker: &Maker,
    progress: &mut dyn FnMut(&Event<'_>),
) -> Result<MicroReport, LabError> {
    let (plan, phases) = (Plan::new(params), params.phases());
    let dir = scratch(params)?;
    let pool = dir.path().join("micro.pool");
    let media = media_options(params);
    let mut peers = against::contenders(params, dir.path())?;
    let mut event = |contender: &str, phase: &str, done, total| {
        progress(&Event {
            contender,
            phase,
            done,
            total,
        });
    };

    event("limits", "persist", 0, 1);
    let flush_fence_ns = limits::flush_fence_ns()?;
    event("limits", "persist", 1, 1);
    event(name, "count", 0, 1);
    let (counted, counted_keys) = count::count(maker, &plan, &phases)?;
    event(name, "count", 1, 1);

    let created = MediaOptions {
        access: Access::Create,
        ..media.clone()
    };
    let target = (maker.create)(&pool, &created)?;
    let mut measured = Measurements::new(&peers);
    for op in phases {
        let mut subject = Subject {
            name,
            target: &*target,
        };
        let mut contenders: Vec<&mut dyn Contender> = vec![&mut subject];
        contenders.extend(
            peers
                .iter_mut()
                .map(|peer| &mut **peer as &mut dyn Contender),
        );
        let slices = phase(op, &plan, &mut contenders, params.threads, &mut event)?;
        measured.add(op, &slices, params.threads);
        if op == Op::Load {
            measured.weigh(&*target, &peers)?;
            event(name, "reopen", 0, 1);
            measured.reopened = reopen::reopen(maker, &*target, &pool, &media, &plan)?;
            event(name, "reopen", 1, 1);
        }
    }
    let medium = target.medium().name().to_owned();
    target.close()?;

    let entries = measured.usage.entries.max(1) as f64;
    let reopened = measured.reopened.as_ref();
    Ok(MicroReport {
        index: name.to_owned(),
        medium,
        durability: params.durability_name(),
        node_bytes,
        keys: params.keys,
        value_bytes: VALUE_BYTES,
        threads: params.threads,
        seed: params.seed,
        pm_bytes_per_entry: measured.usage.pm_bytes as f64 / entries,
        dram_bytes_per_entry: measured.usage.dram_bytes as f64 / entries,
        recovery_ms: reopened.map(|r| r.killed_ms),
        clean_open_ms: reopened.map(|r| r.clean_ms),
        flush_fence_ns,
        ops: index_report(measured.index, counted),
        against: Peers(
            measured
                .peers
                .into_iter()
                .map(|p| p.report(params))
                .collect(),
        ),
        notes: notes(params, &plan, counted_keys),
    })
}

/// Figures of a run while its phases go on.
struct Measurements {
    index: PerOp<Speed>,
    peers: Vec<PeerMeasurements>,
    /// Space that the index takes after the load.
    usage: Usage,
    /// Reopening after the load.
    reopened: Option<reopen::Reopened>,
}

struct PeerMeasurements {
    name: &'static str,
    speeds: PerOp<Speed>,
    ratios: PerOp<Ratio>,
    /// Bytes stored after the load, if the peer can tell.
    stored: Option<u64>,
}

impl Measurements {
    fn new(peers: &[Box<dyn Contender>]) -> Self {
        let peers = peers.iter().map(|peer| PeerMeasurements {
            name: peer.name(),
            speeds: PerOp::default(),
            ratios: PerOp::default(),
            stored: None,
        });
        Self {
            index: PerOp::default(),
            peers: peers.collect(),
            usage: Usage::default(),
            reopened: None,
        }
    }

    /// Adds a phase: the slices of the index, then those of each peer.
    fn add(&mut self, op: Op, slices: &[Vec<Slice>], threads: usize) {
        let Some((ours, theirs)) = slices.split_first() else {
            return;
        };
        let mops = |slices: &[Slice]| slices.iter().map(Slice::mops).collect::<Vec<_>>();
        self.index.0.push((op, Speed::of(op, ours, threads)));
        for (peer, slices) in self.peers.iter_mut().zip(theirs) {
            peer.speeds.0.push((op, Speed::of(op, slices, threads)));
            if let Some(ratio) = Ratio::of(&mops(ours), &mops(slices)) {
                peer.ratios.0.push((op, ratio));
            }
        }
    }

    /// Notes the space that the index and its peers take.
    fn weigh(
        &mut self,
        target: &dyn target::Measured,
        peers: &[Box<dyn Contender>],
    ) -> Result<(), LabError> {
        self.usage = target.usage();
        for (measured, peer) in self.peers.iter_mut().zip(peers) {
            measured.stored = peer.stored_bytes()?;
        }
        Ok(())
    }
}

impl PeerMeasurements {
    fn report(self, params: &MicroParams) -> PeerReport {
        PeerReport {
            name: self.name,
            ops: self.speeds,
            ratios: self.ratios,
            bytes_per_entry: self.stored.map(|bytes| bytes as f64 / params.keys as f64),
        }
    }
}

/// Returns the index's speeds beside the lines and fences of the counting pass, which had the same
/// phases.
fn index_report(speeds: PerOp<Speed>, counted: Vec<(Op, count::Counted)>) -> PerOp<OpReport> {
    let report = |((op, speed), (_, counted)): ((Op, Speed), (Op, count::Counted))| {
        let (lines_per_op, fences_per_op) = (counted.lines, counted.fences);
        let report = OpReport {
            speed,
            lines_per_op,
            fences_per_op,
        };
        (op, report)
    };
    PerOp(speeds.0.into_iter().zip(counted).map(report).collect())
}

/// Runs all slices of one phase. Returns a list of slices per contender.
fn phase(
    op: Op,
    plan: &Plan,
    contenders: &mut [&mut dyn Contender],
    threads: usize,
    event: &mut impl FnMut(&str, &str, u64, u64),
) -> Result<Vec<Vec<Slice>>, LabError> {
    let mut slices: Vec<Vec<Slice>> = contenders.iter().map(|_| Vec::new()).collect();
    let (count, total) = (contenders.len(), plan.ops(op));
    for contender in contenders.iter() {
        event(contender.name(), op.name(), 0, total);
    }
    let mut done = 0;
    for number in 0..plan.slices(op) {
        let keys = plan.keys(op, number);
        done += keys.len() as u64;
        for turn in 0..count {
            let index = (number + turn) % count;
            let contender = &mut *contenders[index];
            slices[index].push(contender.slice(op, &keys, threads, plan.load_batch())?);
            event(contender.name(), op.name(), done, total);
        }
    }
    Ok(slices)
}

fn notes(params: &MicroParams, plan: &Plan, counted_keys: u64) -> Vec<String> {
    let mut notes = vec![
        format!(
            "lines and fences were counted in a separate pass on one thread over {counted_keys} keys"
        ),
        "p50 and p99 are of every 64th call (every 8th scan or batch), timed by itself".to_owned(),
        format!("batched operations count keys; their p50 and p99 are of a whole call of {BATCH}"),
    ];
    if plan.load_batch() > 1 {
        notes.push(format!(
            "each commit waits for the disk, so the load was done {} keys at a time",
            plan.load_batch()
        ));
    }
    if params.against.contains(&Against::BTreeMap) {
        notes.push(if params.threads > 1 {
            "btreemap is volatile and, on several threads, behind one RwLock".to_owned()
        } else {
            "btreemap is volatile".to_owned()
        });
    }
    if params.against.iter().any(|peer| *peer != Against::BTreeMap) {
        notes.push("lmdb commits and syncs once per call; its update is a plain put".to_owned());
    }
    notes
}

/// Compares one thread with `threads` on the index that `T` makes. One half of each slice's keys is
/// done by one thread and the other by all, in alternating order.
///
/// # Errors
/// As [`run_on`].
pub fn scaling_on<M, T, C>(
    params: &MicroParams,
    design: T::Design,
    threads: usize,
    progress: &mut dyn FnMut(&Event<'_>),
) -> Result<ScalingReport, LabError>
where
    M: Media,
    T: Target<M>,
    C: Target<Auto, Design = T::Design>,
{
    scale_made(params, &Maker::of::<M, T, C>(design), threads, progress)
}

fn scale_made(
    params: &MicroParams,
    maker: &Maker,
    threads: usize,
    progress: &mut dyn FnMut(&Event<'_>),
) -> Result<ScalingReport, LabError> {
    let params = MicroParams {
        threads,
        ..params.clone()
    };
    let (design, _) = params.check()?;
    let (name, plan) = (design.name, Plan::new(&params));
    let dir = scratch(&params)?;
    let media = MediaOptions {
        access: Access::Create,
        ..media_options(&params)
    };
    let target = (maker.create)(&dir.path().join("micro.pool"), &media)?;
    let mut subject = Subject {
        name,
        target: &*target,
    };
    let mut ops = PerOp::default();
    for op in params.phases() {
        let (mut one, mut many) = (Vec::new(), Vec::new());
        let (mut done, total) = (0, plan.ops(op));
        progress(&Event {
            contender: name,
            phase: op.name(),
            done,
            total,
        });
        for number in 0..plan.slices(op) {
            let keys = plan.keys(op, number);
            let (low, high) = keys.split_at(keys.len() / 2);
            let mut part = |keys: &[u64], threads| -> Result<f64, LabError> {
                subject
                    .slice(op, keys, threads, plan.load_batch())
                    .map(|slice| slice.mops())
            };
            if number % 2 == 0 {
                one.push(part(low, 1)?);
                many.push(part(high, threads)?);
            } else {
                many.push(part(low, threads)?);
                one.push(part(high, 1)?);
            }
            done += keys.len() as u64;
            progress(&Event {
                contender: name,
                phase: op.name(),
                done,
                total,
            });
        }
        if let Some(ratio) = Ratio::of(&many, &one) {
            let (one_mops, many_mops) = (limits::median(one), limits::median(many));
            ops.0.push((
                op,
                Scaled {
                    one_mops,
                    many_mops,
                    ratio,
                },
            ));
        }
    }
    let medium = target.medium().name().to_owned();
    target.close()?;
    Ok(ScalingReport {
        index: name.to_owned(),
        medium,
        keys: params.keys,
        threads,
        seed: params.seed,
        ops,
    })
}
