//! Stores of NV-Store and of the product's format beside each other: each is opened by its own
//! format alone, and a backup of one becomes a store of the other.

use crate::common::{ALL, Fixture, create, open, text};
use bristlecone::{Database, ErrorKind};
use bristlecone_nv_store::{LbEngine, NvStore};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{Store, StoreError, StoreOptions};
use std::ops::ControlFlow;

/// Checks that an error names the store and its format, and says what to do.
fn names_the_format(error: &StoreError) {
    assert!(
        matches!(error, StoreError::OtherFormat { store, version: 2, .. } if store == "s"),
        "{error}"
    );
    let text = error.to_string();
    for part in [
        "\"s\"",
        "NV-Store",
        "does not open",
        "bristlecone-nv-store",
        "restore",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_product_refuses_a_store_of_records_says_why_and_changes_nothing() {
    for design in ALL {
        let f = Fixture::new(design);
        f.put("key", "value");
        let (dir, options) = f.ended(true);
        let path = dir.path().join("pool");
        let before = std::fs::read(&path).unwrap();
        let pool = Pool::<Auto>::open(&path, &PoolOptions::read_only()).unwrap();
        names_the_format(&Store::open(&pool, "s", &options).unwrap_err());
        let visit = &mut |_: bristlecone_store::Salvaged<'_>| ControlFlow::Continue(());
        names_the_format(&Store::salvage(&pool, "s", 0, visit).unwrap_err());
        assert_eq!(Store::names(&pool), ["s"], "it is listed all the same");
        drop(pool);
        assert!(before == std::fs::read(&path).unwrap());
        let pool = Pool::<Auto>::open(&path, &PoolOptions::default()).unwrap();
        names_the_format(&Store::open(&pool, "s", &options).unwrap_err());
        let store = open(&pool, "s", &options).unwrap();
        let k = crate::common::k(&store);
        assert_eq!(text(store.get(&k, b"key").unwrap()).unwrap(), "value");
        store.check().unwrap();
    }
}

#[test]
fn a_database_of_records_is_no_database_of_this_build() {
    let dir = crate::common::directory();
    let path = dir.path().join("test.db");
    drop(Database::open(&path).unwrap());
    let pool = Pool::<Auto>::open(&path, &PoolOptions::default()).unwrap();
    let names = Store::names(&pool);
    let [name] = &names[..] else {
        panic!("{names:?}")
    };
    Store::remove(&pool, name).unwrap();
    let options = StoreOptions::default().without_thread();
    drop(create(&pool, name, "lbtree", &options).unwrap());
    drop(pool);
    let error = Database::open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotADatabase, "{error}");
    assert!(error.to_string().contains("NV-Store"), "{error}");
}

#[test]
fn nv_store_refuses_a_store_on_a_clustered_tree() {
    let f = Fixture::new("lbtree");
    let pool = f.new_pool();
    drop(Store::create(&pool, "s", &f.options).unwrap());
    let error = open(&pool, "s", &f.options).unwrap_err();
    assert!(
        matches!(&error, StoreError::OtherFormat { store, version: 3, .. } if store == "s"),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("clustered") && text.contains("Store::open"),
        "{text}"
    );
    Store::open(&pool, "s", &f.options)
        .unwrap()
        .check()
        .unwrap();
}

#[test]
fn a_format_without_designs_makes_and_opens_nothing() {
    let f = Fixture::new("lbtree");
    let pool = f.new_pool();
    let none = NvStore::over(&[]);
    let error = Store::create_as(&pool, "r", &f.options, &none).unwrap_err();
    assert!(matches!(error, StoreError::NoDesign { .. }), "{error}");
    assert!(pool.roots().is_empty());
    let format = NvStore::over(&[&LbEngine]);
    drop(Store::create_as(&pool, "r", &f.options, &format).unwrap());
    let error = Store::open_with(&pool, "r", &f.options, &[&none]).unwrap_err();
    assert!(matches!(error, StoreError::NoDesign { .. }), "{error}");
}

#[test]
fn a_backup_of_either_format_becomes_a_store_of_the_other() {
    for design in ALL {
        let f = Fixture::new(design);
        for i in 0..300 {
            f.put(&format!("key {i}"), &format!("value {i}"));
        }
        f.store.put(&f.k, b"large", &vec![7; 3 << 20]).unwrap();
        let mut stream = Vec::new();
        f.store.backup(&mut stream).unwrap();
        let (clustered, report) =
            Store::restore(&f.new_pool(), "r", &f.options, &mut &stream[..]).unwrap();
        assert_eq!((report.entries, clustered.design().0), (301, "clustered"));
        let mut again = Vec::new();
        clustered.backup(&mut again).unwrap();
        let back = crate::common::restore(&f.new_pool(), "r", design, &f.options, &mut &again[..]);
        let (back, _) = back.unwrap();
        assert_eq!(back.design().0, design);
        for store in [&clustered, &back] {
            let k = crate::common::k(store);
            assert_eq!(store.len(&k), 301);
            assert_eq!(
                text(store.get(&k, b"key 299").unwrap()).unwrap(),
                "value 299"
            );
            assert_eq!(store.get(&k, b"large").unwrap().unwrap(), vec![7; 3 << 20]);
            store.check().unwrap();
        }
    }
}
