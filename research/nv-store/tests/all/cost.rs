//! Persist cost of operations: lines, fences, the index's own, and one commit of the medium each.

use crate::common;
use bristlecone_pmem::Pool;
use bristlecone_pmem::media::{Auto, MediumKind, PersistCounts};
use bristlecone_store::{Batch, Keyspace, Store, StoreOptions, TransactionOptions};

fn store(design: &str) -> (Store<Auto>, Keyspace) {
    let options = common::on(MediumKind::Dram, 1 << 30);
    let pool = Pool::<Auto>::create("counted".as_ref(), &options).unwrap();
    let options = StoreOptions::default().without_thread();
    let store = common::create(&pool, "s", design, &options).unwrap();
    let k = store.keyspace("k").unwrap();
    for key in [b"a", b"b", b"c"] {
        store.put(&k, key, b"0").unwrap();
    }
    // From here on blocks come from chunks that are assigned already.
    store.put(&k, b"a", b"1").unwrap();
    store.put(&k, b"d", b"1").unwrap();
    store.delete(&k, b"d").unwrap();
    (store, k)
}

fn cost(store: &Store<Auto>, work: impl FnOnce()) -> PersistCounts {
    let pm = store.pool().pm();
    let before = pm.counts().unwrap();
    work();
    let after = pm.counts().unwrap();
    PersistCounts {
        lines: after.lines - before.lines,
        fences: after.fences - before.fences,
        commits: after.commits - before.commits,
    }
}

fn counts(lines: u64, fences: u64) -> PersistCounts {
    PersistCounts {
        lines,
        fences,
        commits: 1,
    }
}

#[test]
fn a_put_is_its_record_a_fence_and_the_index() {
    let (store, k) = store("lbtree");
    // The index's update is one NAW.
    assert_eq!(
        cost(&store, || store.put(&k, b"a", b"2").unwrap()),
        counts(2, 2)
    );
    let four_lines = [7; 4 * 64 - 32];
    let put = || store.put(&k, b"a", &four_lines).unwrap();
    put();
    assert_eq!(cost(&store, put), counts(1 + 4, 2));
    // A deletion is a record too.
    let delete = || assert!(store.delete(&k, b"a").unwrap());
    assert_eq!(cost(&store, delete), counts(2, 2));
    let reads = cost(&store, || {
        assert_eq!(store.get(&k, b"a").unwrap(), None);
        assert!(!store.delete(&k, b"a").unwrap());
    });
    assert_eq!(reads, PersistCounts::default());
}

#[test]
fn several_keys_share_a_fence_and_one_commit_and_no_value_is_written_twice() {
    let (store, k) = store("lbtree");
    let commit = || {
        let mut tx = store.begin(TransactionOptions::default());
        for key in [b"a", b"b", b"c"] {
            tx.put(&k, key, b"3").unwrap();
        }
        tx.commit().unwrap();
    };
    // Three records, three updates of the index, the slot.
    assert_eq!(cost(&store, commit), counts(3 + 3 + 1, 1 + 3 + 1));
    // The stamps of the commit before, which share a fence.
    assert_eq!(cost(&store, commit), counts(3 + 3 + 3 + 1, 1 + 3 + 1));
    let batch = || {
        let mut batch = Batch::new();
        batch.put(&k, b"a", b"4");
        batch.delete(&k, b"b");
        batch.delete(&k, b"not there");
        store.write(batch).unwrap();
    };
    assert_eq!(cost(&store, batch), counts(3 + 2 + 2 + 1, 1 + 2 + 1));
    // A batch of one key needs no slot.
    let one = || {
        let mut batch = Batch::new();
        batch.put(&k, b"a", b"5");
        store.write(batch).unwrap();
    };
    assert_eq!(cost(&store, one), counts(2, 2));
}

#[test]
fn values_of_a_multi_put_share_two_fences_and_a_commit() {
    let (store, k) = store("lbtree");
    let together = |value: &[u8]| {
        let puts = [b"a", b"b", b"c"].map(|key| (&key[..], value));
        assert_eq!(store.multi_put(&k, &puts, |_| true).unwrap(), 3);
    };
    // Three records, three updates of the index.
    assert_eq!(cost(&store, || together(b"6")), counts(3 + 3, 1 + 1));
}

#[test]
fn versions_are_vacuumed_without_persisting_anything() {
    let (store, k) = store("lbtree");
    store.vacuum_all().unwrap();
    for _ in 0..10 {
        store.put(&k, b"a", b"6").unwrap();
    }
    let vacuum = || assert_eq!(store.vacuum_all().unwrap().versions, 10);
    assert_eq!(cost(&store, vacuum), PersistCounts::default());
}

#[test]
fn dropping_and_clearing_a_keyspace_is_one_change_however_many_keys_it_has() {
    let (store, k) = store("lbtree");
    for i in 0..1000u32 {
        store.put(&k, &i.to_be_bytes(), b"1").unwrap();
    }
    let mut empty = None;
    let clear = || empty = Some(store.clear(k).unwrap());
    assert_eq!(cost(&store, clear), counts(2, 2));
    let drop = || store.drop_keyspace(empty.unwrap()).unwrap();
    assert_eq!(cost(&store, drop), counts(2, 2));
}
