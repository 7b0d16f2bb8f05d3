//! The device model's own characteristics against those of the modelled hardware (Table 1 of the
//! paper on the gap between DRAM and persistent memory).
//!
//! Streams of loads, stores and flushes measure the model, as the paper's authors measured their
//! server. No figure is read back from the device's description.

use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::{Characteristics, Device, characterise};

pub(super) const ENTRY: Entry = Entry {
    name: "gap-table1",
    title: "the device model's bandwidth and latency, DRAM and Optane DCPMM",
    paper: papers::GAP,
    place: "section 2.1, table 1",
    on: &[On::Model],
    run,
};

/// Allowed deviation of a figure, as a share.
const TOLERANCE: f64 = 0.15;
const BANDWIDTH: [&str; 4] = ["seq. read", "rand. read", "seq. write", "rand. write"];
const LATENCY: [&str; 3] = ["seq. read", "rand. read", "store, clwb, fence"];

/// A row of the table: device, the paper's name for it, GB/s, and nanoseconds on the idle device.
struct Line {
    device: &'static str,
    name: &'static str,
    bandwidth: [f64; 4],
    latency: [f64; 3],
}

const TABLE: [Line; 2] = [
    Line {
        device: "dram",
        name: "DRAM",
        bandwidth: [105.9, 70.4, 52.3, 52.0],
        latency: [81.0, 101.0, 57.0],
    },
    Line {
        device: "optane",
        name: "DCPMM",
        bandwidth: [38.9, 10.3, 11.5, 2.8],
        latency: [169.0, 305.0, 62.0],
    },
];

fn bandwidth(of: &Characteristics) -> [f64; 4] {
    let peak = of.peak();
    [
        peak.sequential_read_gbps,
        peak.random_read_gbps,
        peak.sequential_write_gbps,
        peak.random_write_gbps,
    ]
}

fn latency(of: &Characteristics) -> [f64; 3] {
    [of.sequential_read_ns, of.random_read_ns, of.flush_ns]
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let mut findings = Findings::default();
    for (number, line) in (0..).zip(&TABLE) {
        setting.step(line.name, number, TABLE.len() as u64);
        let measured = characterise(&Device::load(line.device)?);
        let halves = [
            (
                "bandwidth",
                "GB/s",
                &BANDWIDTH[..],
                &line.bandwidth[..],
                bandwidth(&measured).to_vec(),
            ),
            (
                "idle latency",
                "ns",
                &LATENCY[..],
                &line.latency[..],
                latency(&measured).to_vec(),
            ),
        ];
        for (what, unit, names, paper, model) in halves {
            let rows = names.iter().zip(paper).zip(&model);
            findings.claims.extend(rows.map(|((name, paper), model)| {
                let claim = format!("{} {what}, {name}, {unit}", line.name);
                Claim::new(
                    claim,
                    *paper,
                    *model,
                    Expect::number(*paper).within(TOLERANCE),
                )
            }));
            let panel = Panel::bars(
                &format!("{} {what}", line.name),
                "",
                unit,
                names.iter().copied(),
            );
            findings
                .panels
                .push(panel.with("paper", paper.to_vec()).with("model", model));
        }
    }
    findings.notes.push(
        "bandwidth is the best over 1 to 28 simulated threads; of the latencies, that of a \
         non-temporal store is left out: no design here uses one"
            .to_owned(),
    );
    Ok(findings)
}
