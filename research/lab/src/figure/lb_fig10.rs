//! Three skip lists: in DRAM, in persistent memory, and divided (LB+-Tree, figure 10).
//!
//! The original in DRAM is the skip list in persistent memory on the device `dram`: the same nodes,
//! links and towers, on another memory. As in the paper, flushes and fences are not charged.

use super::lb_insertion::shrunk;
use super::tree::Design;
use super::trial::{Trial, measure, times_over, with_each};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::{Persistence, Phase, Tuning, Workload};
use bristlecone_designs::Fill;

pub(super) const ENTRY: Entry = Entry {
    name: "lb-fig10",
    title: "skip lists in DRAM, in NVM and divided: lookup, insertion, deletion",
    paper: papers::LB,
    place: "section 4.1, figure 10",
    on: &[On::Model],
    run,
};

const LISTS: [Design; 3] = [
    list("skiplist-nvm", "dram-skiplist"),
    list("skiplist-nvm", "nvm-skiplist"),
    list("skiplist-divided", "divided-skiplist"),
];
const DEVICES: [&str; 3] = ["dram", "optane", "optane"];
const DRAM: usize = 0;
const NVM: usize = 1;
const DIVIDED: usize = 2;

const OPERATIONS: [(&str, Workload); 3] = [
    ("lookup", Workload::Lookup),
    ("insertion", Workload::Insert),
    ("deletion", Workload::Remove),
];

const fn list(index: &'static str, name: &'static str) -> Design {
    Design {
        index,
        name,
        node_bytes: None,
        tuning: Tuning::Usual,
    }
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = setting.scale.amount(1_000_000, 10_000_000);
    let ops = setting.scale.amount(10_000, 100_000);
    let phases = OPERATIONS.map(|(_, workload)| Phase::of(workload, ops));
    let mut group = Vec::new();
    for (design, device) in LISTS.into_iter().zip(DEVICES) {
        group.push(Trial {
            persistence: Persistence::None,
            ..Trial::new(design, &shrunk(device, keys)?, keys, Fill::FULL, &phases)
        });
    }
    let outcomes = measure(setting, "looking up, inserting, deleting", &[group])?;
    let by_list = &outcomes[0];

    let words = OPERATIONS.map(|(operation, _)| operation);
    let panel = Panel::bars("throughput", "operation", "10^6 operations/s", words);
    let mops = |list: usize| by_list[list].iter().map(|phase| phase.mops()).collect();
    let mut findings = Findings {
        panels: vec![with_each(panel, &LISTS, mops)],
        ..Findings::default()
    };
    for (place, (operation, _)) in OPERATIONS.iter().enumerate() {
        let faster = |of: usize, than: usize| {
            let phase = |list: usize| std::slice::from_ref(&by_list[list][place]);
            times_over(phase(than), phase(of)).median
        };
        findings.claims.push(Claim::new(
            format!("{operation}: throughput, divided-skiplist over nvm-skiplist"),
            1.5,
            faster(DIVIDED, NVM),
            Expect::ratio(1.5),
        ));
        findings.claims.push(Claim::new(
            format!("{operation}: throughput, divided-skiplist over dram-skiplist"),
            "slightly slower",
            faster(DIVIDED, DRAM),
            Expect::slightly_less(),
        ));
    }
    findings.notes = vec![
        format!(
            "lists of {keys} random keys of 8 bytes with 8-byte values, loaded in bulk; {ops} operations, \
             1 thread; devices dram and optane, caches as small beside the list as the paper's"
        ),
        "as in the paper, operations do not persist what they change".to_owned(),
    ];
    Ok(findings)
}
