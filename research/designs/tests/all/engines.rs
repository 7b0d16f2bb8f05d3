//! Every design exists by name, as an engine, in every leaf size that it lists.

use crate::common::counted;
use bristlecone_designs::designs::{Choice, DESIGNS, VOLATILE, WIDE};
use bristlecone_designs::engines::maker;
use bristlecone_pmem::media::Sim;
use bristlecone_pmem::media::sim::Simulation;
use bristlecone_pmem::{Pool, PoolOptions};
use std::path::Path;

#[test]
fn every_design_runs_in_every_leaf_size() {
    for design in DESIGNS.iter().chain(VOLATILE) {
        assert!(design.node_bytes.is_sorted_by(|a, b| a < b));
        assert!(design.node_bytes.contains(&design.default_node_bytes));
        for bytes in design.explored() {
            assert!(design.node_bytes.contains(bytes), "{design:?}");
        }
        for bytes in design.node_bytes {
            let choice = Choice {
                node_bytes: Some(*bytes),
                ..Choice::of(design.name)
            };
            let maker = maker::<u64, u64, _>(&choice).unwrap();
            let index = maker.create(&counted::pool(), "index").unwrap();
            index.insert(&1, &2).unwrap();
            assert_eq!(
                (index.get(&1), index.get(&2)),
                (Some(2), None),
                "{choice:?}"
            );
        }
    }
}

#[test]
fn wide_designs_are_those_that_are_listed() {
    for design in DESIGNS.iter().chain(VOLATILE) {
        match maker::<u128, u128, Sim>(&Choice::of(design.name)) {
            Ok(maker) => {
                assert!(WIDE.contains(&design.name), "{}", design.name);
                let simulation = Simulation::new(16 << 20);
                let _attached = simulation.attach();
                let pool = Pool::create(Path::new("none"), &PoolOptions::default()).unwrap();
                let (index, key) = (maker.create(&pool, "index").unwrap(), 1 << 100);
                index.insert(&key, &u128::MAX).unwrap();
                assert_eq!((index.get(&key), index.get(&0)), (Some(u128::MAX), None));
            }
            Err(error) => {
                assert!(!WIDE.contains(&design.name), "{}", design.name);
                let error = error.to_string();
                assert!(
                    error.contains(design.name) && error.contains("btree-wal"),
                    "{error}"
                );
            }
        }
    }
}
