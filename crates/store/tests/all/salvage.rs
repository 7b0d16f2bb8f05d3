//! `Store::salvage` returns all undamaged entries of a damaged store without opening it.

use crate::common::{ALL, Fixture};
use bristlecone_index::damage::collecting_damage;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{SalvageReport, TransactionOptions};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

/// Undamaged entries by keyspace and key, and the damaged keys with their errors.
type Found = (BTreeMap<(String, String), Vec<u8>>, Vec<(String, String)>);

pub fn salvage(path: &Path, now: u64) -> (SalvageReport, Found) {
    let pool = Pool::<Auto>::open(path, &PoolOptions::read_only()).unwrap();
    let (mut whole, mut damaged) = (BTreeMap::new(), Vec::new());
    let (report, _) = collecting_damage(|| {
        crate::common::salvage(&pool, "s", now, &mut |salvaged| {
            let key = String::from_utf8(salvaged.key.to_vec()).unwrap();
            let keyspace = match salvaged.keyspace {
                Some(name) => name.to_owned(),
                None => salvaged.number.to_string(),
            };
            match salvaged.found {
                Ok(entry) => drop(whole.insert((keyspace, key), entry.value.to_vec())),
                Err(e) => damaged.push((key, e.to_string())),
            }
            ControlFlow::Continue(())
        })
    });
    (report.unwrap(), (whole, damaged))
}

pub fn filled(design: &str) -> Fixture {
    let f = Fixture::new(design);
    for i in 0..300 {
        f.put(&format!("key {i}"), &format!("a value to be found, {i:03}"));
    }
    f.store
        .put(&f.k, b"large", &vec![9; (2 << 20) + 5])
        .unwrap();
    let other = f.store.keyspace("other").unwrap();
    f.store
        .put(&other, b"key 0", b"of another keyspace")
        .unwrap();
    f.store.delete(&f.k, b"key 7").unwrap();
    let mut tx = f.store.begin(TransactionOptions::default());
    for i in 10..20 {
        tx.put(&f.k, format!("key {i}").as_bytes(), b"by a transaction")
            .unwrap();
    }
    tx.commit().unwrap();
    f
}

#[test]
fn of_a_whole_store_everything_is_given_as_opening_finds_it() {
    for design in ALL {
        let f = filled(design);
        let gone = f.store.keyspace("gone").unwrap();
        f.store.put(&gone, b"k", b"v").unwrap();
        f.store.drop_keyspace(gone).unwrap();
        let (report, (whole, damaged)) = salvage(&f.copy(), f.store.now());
        assert_eq!(damaged, []);
        assert_eq!((report.design.as_str(), report.violation), (design, None));
        assert_eq!(report.keyspaces, ["k", "other"]);
        assert_eq!(report.indexed, report.walked);
        let mut expected = BTreeMap::new();
        let killed = f.killed();
        for keyspace in killed.keyspaces() {
            let scanned = killed
                .snapshot()
                .scan::<Vec<u8>>(&keyspace, .., |key, entry| {
                    let key = String::from_utf8(key.to_vec()).unwrap();
                    expected.insert((keyspace.name().to_owned(), key), entry.value.to_vec());
                    ControlFlow::Continue(())
                });
            scanned.unwrap();
        }
        assert_eq!(expected.len(), 301);
        assert!(whole == expected, "{design}");
    }
}
