//! Particularities of FAST/FAIR: equal values in neighbouring entries are no duplicates, processors
//! without total store order need the store fences, and wide keys need a failure-atomic unit of 16
//! bytes.

use crate::common::Narrow;
use bristlecone_crash::explore::{Options, explore};
use bristlecone_crash::record::{Mutation, record};
use bristlecone_crash::subject::Op;
use bristlecone_crash::subjects::named;
use bristlecone_crash::workload::{Kind, Workload};
use bristlecone_pmem::media::sim::Model;

const SUBJECTS: [&str; 5] = [
    "fastfair-256-u64",
    "fastfair-256-u64-high",
    "fastfair-sp-256-u64",
    "fastfair-256-u128",
    "fastfair-sp-256-u128",
];

/// Explores a workload, and returns the number of images.
fn clean(subject: &str, workload: &Workload, model: Model) -> u64 {
    let subject = named(subject).unwrap_or_else(|| panic!("{subject}"));
    let recording = record(subject.as_ref(), workload, &Mutation::default())
        .unwrap_or_else(|fault| panic!("{}: {fault}", subject.name()));
    let options = Options {
        bound: 100,
        samples: 8,
        ..Options::new(model)
    };
    let totals = explore(subject.as_ref(), &recording, &options, &|_| ());
    let found: Vec<String> = (totals.found.iter())
        .map(|violation| format!("{} ({})", violation.fault, violation.last_site))
        .collect();
    assert!(
        found.is_empty(),
        "{}, {}: {found:?}",
        subject.name(),
        model.name()
    );
    totals.images
}

/// The published design recognises the duplicate of a shift by two equal pointers in a row. Here
/// values may be any numbers. The test uses equal values, zero among them, with keys 0 and 1 at the
/// front.
#[test]
fn equal_values_in_neighbouring_entries_are_no_duplicates() {
    for value in [0, 7] {
        let mut workload = Workload::default();
        let insert = |key| Op::Insert(key, value);
        workload.setup.extend((0..12).map(|n| insert(n * 4)));
        // Shifts over all lines at the front and behind entry 0, a split, and removals that shift
        // back.
        workload
            .ops
            .extend([5, 1, 2, 30, 3, 46, 47, 45].map(insert));
        workload.ops.extend([1, 0, 2, 24, 46].map(Op::Remove));
        workload.ops.extend([0, 1].map(insert));
        workload.ops.extend((0..48).map(Op::Remove));
        for subject in SUBJECTS {
            for model in Model::ALL {
                assert!(clean(subject, &workload, model) > 20, "{subject}");
            }
        }
    }
}

/// The faults of the plants without store fences (`fastfair-unordered`, `fastfair-unordered-sp`) do
/// not occur with them.
#[test]
fn with_its_store_fences_no_order_inside_a_line_is_missed() {
    for subject in SUBJECTS {
        for seed in 0..2 {
            let known = named(subject).unwrap_or_else(|| panic!("{subject}"));
            let workload = Workload::generate(Kind::Split, 30, seed, known.as_ref());
            clean(subject, &workload, Model::ArmV8);
        }
    }
}

/// With 8 failure-atomic bytes, shifted keys that differ in both halves tear, and so does an update
/// of a value.
#[test]
fn wide_keys_and_values_take_a_medium_that_writes_16_bytes_as_one() {
    for name in ["fastfair-256-u128", "fastfair-sp-256-u128"] {
        let subject = Narrow(named(name).unwrap_or_else(|| panic!("{name}")));
        assert_eq!(subject.0.unit(), 16);
        let shift = [Op::Insert(2, 1), Op::Insert(40, 1), Op::Insert(20, 1)];
        let update = [Op::Insert(2, 1), Op::Update(2, 5)];
        for ops in [&shift[..], &update[..]] {
            let mut workload = Workload::default();
            workload.ops.extend_from_slice(ops);
            let recording = record(&subject, &workload, &Mutation::default()).expect("a recording");
            let options = Options::new(Model::X86Tso);
            let torn = explore(&subject, &recording, &options, &|_| ());
            assert!(!torn.found.is_empty(), "{name}: {ops:?}");
            clean(name, &workload, Model::X86Tso);
        }
    }
}
