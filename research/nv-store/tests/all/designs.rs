//! The designs that an index of a store can have.

use crate::common::{Fixture, k};
use bristlecone_index::engine::LbEngine;
use bristlecone_nv_store::NvStore;
use bristlecone_pmem::media::{Auto, MediumKind};
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{Store, StoreError, StoreOptions};
use std::path::Path;

#[test]
fn an_index_that_a_store_was_not_opened_for_is_named() {
    let f = Fixture::new("nvtree");
    f.put("key", "value");
    let (dir, options) = f.ended(true);
    let pool = Pool::<Auto>::open(&dir.path().join("pool"), &PoolOptions::default()).unwrap();
    let error =
        Store::open_with(&pool, "s", &options, &[&NvStore::over(&[&LbEngine])]).unwrap_err();
    assert!(
        matches!(&error, StoreError::NoDesign { design, there } if design == "nvtree" && there == &["lbtree"]),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains("nvtree") && text.contains("lbtree"), "{text}");
    let store = crate::common::open(&pool, "s", &options).unwrap();
    assert_eq!(store.get(&k(&store), b"key").unwrap().unwrap(), b"value");
}

#[test]
fn a_store_is_made_over_lbtree_and_of_its_leaf_sizes_alone() {
    let f = Fixture::new("lbtree");
    assert_eq!(f.store.design(), ("lbtree", 256));
    let options = crate::common::on(MediumKind::Dram, 1 << 30);
    let volatile = Pool::<Auto>::create(Path::new("none"), &options).unwrap();
    let odd = StoreOptions {
        node_bytes: Some(300),
        ..StoreOptions::default()
    };
    let error = crate::common::create(&volatile, "s", "lbtree", &odd).unwrap_err();
    assert!(error.to_string().contains("300"), "{error}");
}
