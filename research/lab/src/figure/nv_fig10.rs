//! Insertion on slower memories, and with flushes that leave the line in the caches (NV-Tree,
//! figure 10).

use super::nv::{CDDS, DESIGNS, LCB, NV, all, device, keys, note};
use super::trial::{measure, times_over, with_each};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};

pub(super) const ENTRY: Entry = Entry {
    name: "nv-fig10",
    title: "insertion on STT-RAM and PCM; with flushes that leave the line in the caches",
    paper: papers::NV,
    place: "section 6.7, figure 10",
    on: &[On::Model],
    run,
};

const BYTES: u32 = 4096;
const DEVICES: [&str; 3] = ["nvdimm", "stt-ram", "pcm"];
/// By design, the ratio of the time on STT-RAM and on PCM to that on NVDIMM.
const SLOWER: [[f64; 2]; 3] = [[1.51, 3.41], [1.87, 3.81], [1.05, 3.06]];

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = keys(setting);
    let mut groups = Vec::new();
    for name in DEVICES {
        groups.push(all(&DESIGNS, BYTES, &device(name, keys)?, &[keys]));
    }
    let keeping = device(DEVICES[0], keys)?.with_core(|core| core.flush_keeps_line = true)?;
    groups.push(all(&DESIGNS, BYTES, &keeping, &[keys]));
    let outcomes = measure(setting, "inserting", &groups)?;
    let (on_devices, kept) = outcomes.split_at(DEVICES.len());
    let kept = &kept[0];

    let mut findings = Findings::default();
    let panel = Panel::bars("(a) memories", "device", "ns an insertion", DEVICES);
    let ns = |design: usize| on_devices.iter().map(|d| d[design][0].ns()).collect();
    findings.panels.push(with_each(panel, &DESIGNS, ns));
    let words = ["takes the line out", "leaves it there"];
    let panel = Panel::bars("(b) what a flush does", "flush", "ns an insertion", words);
    let ns = |design: usize| vec![on_devices[0][design][0].ns(), kept[design][0].ns()];
    findings.panels.push(with_each(panel, &DESIGNS, ns));

    for (design, slower) in SLOWER.iter().enumerate() {
        for (number, paper) in (1..).zip(slower) {
            let ratio = times_over(&on_devices[number][design], &on_devices[0][design]);
            findings.claims.push(Claim::new(
                format!(
                    "{}: time on {} over nvdimm",
                    DESIGNS[design].name, DEVICES[number]
                ),
                *paper,
                ratio.median,
                Expect::level(*paper),
            ));
        }
    }
    for (other, paper) in [(LCB, 7.0), (CDDS, 9.0)] {
        findings.claims.push(Claim::new(
            format!(
                "flushes leave the line: {} over NV-Tree",
                DESIGNS[other].name
            ),
            paper,
            times_over(&kept[other], &kept[NV]).median,
            Expect::ratio(paper),
        ));
    }
    findings.notes = vec![
        note(setting, keys).replace("device nvdimm; ", ""),
        format!("nodes of {BYTES} bytes; (b) on nvdimm"),
    ];
    Ok(findings)
}
