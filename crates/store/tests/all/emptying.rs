//! Full pools of stores on a clustered tree, which deletions and drops empty.

use crate::common::TREE;
use crate::full::{long, small};
use bristlecone_pmem::media::Auto;
use bristlecone_store::{Keyspace, Store, TransactionOptions};

/// Removing many keys at once, and dropping a keyspace, work in a full pool.
#[test]
fn a_full_pool_is_emptied_by_batches_and_drops() {
    let _alone = crate::common::alone();
    let fill = |store: &Store<Auto>, k: &Keyspace| {
        let mut there = 0;
        for bytes in [4000, 1000, 200, 40, 1] {
            while store.put(k, &long(there), &vec![1; bytes]).is_ok() {
                there += 1;
            }
        }
        there
    };
    let store = small(TREE);
    let mut k = store.keyspace("k").unwrap();
    for round in 0..3 {
        let there = fill(&store, &k);
        assert!(there > 500, "{round}: {there}");
        let mut deleted = 0;
        while deleted + 10 <= there / 2 {
            let mut tx = store.begin(TransactionOptions::default());
            (deleted..deleted + 10).for_each(|i| tx.delete(&k, &long(i)).unwrap());
            tx.commit()
                .unwrap_or_else(|e| panic!("{round}: {deleted}: {e}"));
            deleted += 10;
        }
        assert_eq!(store.len(&k), u64::from(there - deleted));
        store.check().unwrap();
        let there = fill(&store, &k);
        assert!(there > 0, "{round}");
        k = store.clear(k).unwrap();
        let report = store.vacuum_all().unwrap();
        assert!(report.dropped > 500, "{report:?}");
        store.check().unwrap();
    }
    fill(&store, &k);
    store.drop_keyspace(k).unwrap();
    let report = store.vacuum_all().unwrap();
    assert!(report.dropped > 500, "{report:?}");
    assert_eq!(store.stats().keys, 0);
    store.check().unwrap();
}
