//! Every design, medium and leaf size can be measured, and its flushes and fences are those of the
//! paper.

use bristlecone_designs::designs::{DESIGNS, VOLATILE};
use bristlecone_lab::micro::{Against, MicroParams, Op, run, scaling};
use bristlecone_pmem::{Durability, MediumKind};

fn params(keys: u64) -> MicroParams {
    MicroParams {
        keys,
        slices: 5,
        ..MicroParams::default()
    }
}

#[test]
fn every_leaf_size_runs_every_operation() {
    for design in DESIGNS.iter().chain(VOLATILE) {
        let index = design.name;
        for node_bytes in design.node_bytes.iter().copied() {
            let medium = MediumKind::Dram;
            let params = MicroParams {
                index: index.into(),
                node_bytes: Some(node_bytes),
                medium,
                ..params(5_000)
            };
            let report = run(&params, &mut |_| ()).unwrap();
            assert_eq!(
                (report.index.as_str(), report.node_bytes),
                (index, node_bytes)
            );
            assert_eq!(report.ops.0.len(), Op::ALL.len());
            for (op, figures) in &report.ops.0 {
                let issued = (figures.lines_per_op, figures.fences_per_op);
                let holds = match (op.changes(), VOLATILE.contains(design)) {
                    (true, false) => issued.0 >= 0.5 && issued.1 > 0.0,
                    // The allocator assigns chunks, and group flushes are never fenced.
                    (true, true) => (issued.0 < 0.01 || index == "btree-gf") && issued.1 < 0.01,
                    (false, _) => issued == (0.0, 0.0),
                };
                assert!(holds, "{index} {op}: {issued:?}");
            }
            let entries_in = match index {
                "bwtree" => report.dram_bytes_per_entry,
                _ => report.pm_bytes_per_entry,
            };
            assert!(entries_in > 16.0, "{index}: {entries_in}");
            assert!(
                report.dram_bytes_per_entry > 0.0,
                "{}",
                report.dram_bytes_per_entry
            );
        }
    }
}

#[test]
fn durable_media_are_reopened_after_a_kill_and_after_a_close() {
    for (medium, durability) in [
        (MediumKind::Mapped, Durability::Immediate),
        (MediumKind::Journal, Durability::Immediate),
        (MediumKind::Journal, Durability::None),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let params = MicroParams {
            medium,
            durability,
            path: dir.path().to_path_buf(),
            ops: vec![Op::Insert, Op::Lookup],
            ops_limit: Some(100),
            ..params(20_000)
        };
        let report = run(&params, &mut |_| ()).unwrap();
        assert_eq!(report.medium, medium.name());
        assert!(report.recovery_ms.unwrap() > 0.0 && report.clean_open_ms.unwrap() > 0.0);
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            0,
            "nothing is left behind"
        );
    }
}

#[test]
fn the_counted_pass_follows_from_the_seed() {
    let params = MicroParams {
        medium: MediumKind::Dram,
        against: vec![Against::BTreeMap],
        ops_limit: Some(2_000),
        ..params(30_000)
    };
    let counts = || -> Vec<(Op, f64, f64)> {
        let report = run(&params, &mut |_| ()).unwrap();
        report
            .ops
            .0
            .iter()
            .map(|(op, f)| (*op, f.lines_per_op, f.fences_per_op))
            .collect()
    };
    assert_eq!(counts(), counts());
}

#[test]
fn threads_are_compared_on_one_tree() {
    let params = MicroParams {
        medium: MediumKind::Dram,
        ops: vec![Op::Lookup, Op::Insert, Op::Delete],
        ..params(20_000)
    };
    let report = scaling(&params, 2, &mut |_| ()).unwrap();
    assert_eq!((report.threads, report.ops.0.len()), (2, 4));
    assert!(
        report
            .ops
            .0
            .iter()
            .all(|(_, scaled)| scaled.many_mops > 0.0)
    );
}
