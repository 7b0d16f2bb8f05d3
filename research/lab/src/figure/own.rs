//! A figure of a design of one's own: operations on the device model, beside designs of the
//! registry.

use super::lb_insertion::shrunk;
use super::{Figure, FigureError, On, Panel, Scale, Step};
use crate::model::{ModelError, ModelReport, RunSpec, Workload, run, run_own};
use bristlecone_designs::Design;
use bristlecone_designs::designs::OwnDesign;

/// The question that [`own`] answers.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// A shipped device, or the path of a device file.
    pub device: String,
    /// The operations, each with a tree of its own.
    pub workloads: Vec<Workload>,
    /// Designs of the registry to compare with: names of [`RunSpec::indexes`].
    pub beside: Vec<String>,
    /// Keys loaded before the operations.
    pub keys: u64,
    /// Operations of each run.
    pub ops: u64,
}

impl Default for Comparison {
    fn default() -> Self {
        Self {
            device: "optane".to_owned(),
            workloads: vec![
                Workload::Insert,
                Workload::Lookup,
                Workload::Update,
                Workload::Remove,
            ],
            beside: ["lbtree", "fptree"].map(str::to_owned).to_vec(),
            keys: 200_000,
            ops: 20_000,
        }
    }
}

/// A number of each run.
type Number = (&'static str, &'static str, fn(&ModelReport) -> f64);

/// The panels.
const NUMBERS: [Number; 3] = [
    ("simulated time", "ns an operation", |r| r.ns_per_op),
    ("flushes", "lines an operation", |r| r.flushes_per_op),
    ("fences", "an operation", |r| r.fences_per_op),
];

/// Makes the figure, in which the design comes first. Caches are as small beside the trees as in
/// figures of the papers.
///
/// # Errors
/// [`FigureError::Model`] if a name or a number is out of range, or a design refuses an operation
/// or gives a wrong answer.
pub fn own<D: Design>(
    own: &OwnDesign<D>,
    what: &Comparison,
    progress: &mut dyn FnMut(&Step<'_>),
) -> Result<Figure, FigureError> {
    let device = shrunk(&what.device, what.keys)?;
    let contenders = 1 + what.beside.len();
    let total = what.ops * (contenders * what.workloads.len()) as u64;
    let mut before = 0;
    let mut measured = |workload: Workload, contender: usize| -> Result<ModelReport, ModelError> {
        let other = contender.checked_sub(1).map(|i| what.beside[i].as_str());
        let spec = RunSpec {
            keys: what.keys,
            ops: what.ops,
            ..RunSpec::new(other.unwrap_or(own.name), device.clone(), workload)
        };
        let told = &mut |done| {
            progress(&Step {
                doing: &spec.index,
                done: before + done,
                total,
            });
        };
        let report = match other {
            None => run_own(&spec, own, told),
            Some(_) => run(&spec, told),
        };
        before += what.ops;
        report
    };
    let mut reports = Vec::new();
    for contender in 0..contenders {
        let runs = what.workloads.iter();
        let runs = runs.map(|workload| measured(*workload, contender));
        reports.push(runs.collect::<Result<Vec<_>, _>>()?);
    }
    let words: Vec<String> = what.workloads.iter().map(ToString::to_string).collect();
    let panel = |(title, unit, number): Number| {
        let empty = Panel::bars(title, "operations", unit, words.iter().map(String::as_str));
        let series = |panel: Panel, of: &Vec<ModelReport>| {
            let name = of.first().map_or("", |report| &report.index);
            panel.with(name, of.iter().map(number).collect())
        };
        reports.iter().fold(empty, series)
    };
    Ok(Figure {
        name: own.name,
        on: On::Model,
        scale: Scale::Small,
        claims: Vec::new(),
        svg: None,
        csv: None,
        title: "operations on the device model",
        paper: "no paper",
        place: "a design of one's own",
        panels: NUMBERS.map(panel).to_vec(),
        notes: vec![format!(
            "trees of {} random keys of 8 bytes with 8-byte values, leaves 70 % full; {} operations, 1 \
             thread; device {}, caches as small beside the trees as the papers'",
            what.keys,
            what.ops,
            device.name()
        )],
    })
}
