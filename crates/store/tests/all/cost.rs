//! Persist cost of operations: lines, fences, the index's own, and one commit of the medium each.

use crate::common;
use bristlecone_pmem::Pool;
use bristlecone_pmem::media::{Auto, MediumKind, PersistCounts};
use bristlecone_store::{Batch, Keyspace, Store, StoreOptions};

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

/// A change of one page is one group, and so are all changes of a page that are made together.
#[test]
fn on_a_tree_changes_of_a_page_share_a_fence() {
    let (store, k) = store(common::TREE);
    let one_fence = |what: &str, done: PersistCounts| {
        let lines = 1..=4;
        assert!(lines.contains(&done.lines), "{what}: {done:?}");
        assert_eq!((done.fences, done.commits), (1, 1), "{what}: {done:?}");
    };
    one_fence("put", cost(&store, || store.put(&k, b"a", b"2").unwrap()));
    one_fence(
        "delete",
        cost(&store, || assert!(store.delete(&k, b"a").unwrap())),
    );
    let puts = [b"a", b"b", b"c"].map(|key| (&key[..], &b"3"[..]));
    let steps = || assert_eq!(store.multi_put(&k, &puts, |_| true).unwrap(), 3);
    one_fence("steps", cost(&store, steps));
    let batch = || {
        let mut batch = Batch::new();
        for (key, value) in puts {
            batch.put(&k, key, value);
        }
        store.write(batch).unwrap();
    };
    one_fence("batch", cost(&store, batch));
    let mut empty = None;
    one_fence(
        "clear",
        cost(&store, || empty = Some(store.clear(k).unwrap())),
    );
    let drop = || store.drop_keyspace(empty.unwrap()).unwrap();
    one_fence("drop", cost(&store, drop));
}

#[test]
fn on_a_tree_a_batch_of_several_pages_takes_two_fences() {
    let (store, k) = store(common::TREE);
    for i in 0..1000u32 {
        store.put(&k, &i.to_be_bytes(), &[1; 100]).unwrap();
    }
    let batch = || {
        let mut batch = Batch::new();
        for i in [0u32, 300, 600, 900] {
            batch.put(&k, &i.to_be_bytes(), b"4");
        }
        store.write(batch).unwrap();
    };
    let done = cost(&store, batch);
    assert_eq!((done.fences, done.commits), (2, 1), "{done:?}");
    // A group each, and the slot.
    assert!((4 + 1..=4 * 2 + 1).contains(&done.lines), "{done:?}");
}
