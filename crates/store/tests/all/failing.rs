//! A disk that fails under the journal: what commits return, what readers see, and what is left
//! afterwards.

use bristlecone_pmem::media::journal::fault::{FaultDisk, Which};
use bristlecone_pmem::media::{Auto, Journal};
use bristlecone_pmem::pool::layout::INITIAL;
use bristlecone_pmem::{Access, CommitError, MediaOptions, Pool};
use bristlecone_store::{
    Batch, Keyspace, Store, StoreOptions, TransactionOptions, Update, WriteError,
};
use std::path::Path;
use std::sync::Arc;

pub fn on(disk: &FaultDisk, access: Access) -> Arc<Pool<Auto>> {
    let path = Path::new("a disk in memory");
    let options = MediaOptions {
        access,
        reserve: 64 << 20,
        journal_max: 4 << 20,
        ..MediaOptions::default()
    };
    let [pool, journal] = [Which::Pool, Which::Journal].map(|which| disk.file(which));
    let pm = Journal::open_on(pool, journal, path, INITIAL, &options).unwrap();
    match access {
        Access::Create => Pool::create_on(Auto::from(pm), path),
        _ => Pool::open_on(Auto::from(pm), path),
    }
    .unwrap()
}

pub fn options() -> StoreOptions {
    StoreOptions::default().without_thread()
}

/// A store with keys `a` to `f`, whose values are `old`.
pub fn made(disk: &FaultDisk) -> (Store<Auto>, Keyspace) {
    let store = crate::common::make(&on(disk, Access::Create), "s", &options()).unwrap();
    let k = store.keyspace("k").unwrap();
    for key in KEYS {
        store.put(&k, key.as_bytes(), b"old").unwrap();
    }
    (store, k)
}

/// Opens the store on what a power cut leaves of the disk.
pub fn after_a_cut(disk: &FaultDisk, seed: u64) -> (Store<Auto>, Keyspace) {
    let pool = on(&disk.restart(seed), Access::ReadWrite);
    let store = crate::common::open(&pool, "s", &options()).unwrap();
    store.check().unwrap();
    let k = store.find_keyspace("k").unwrap();
    (store, k)
}

const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Each kind of write replaces `old` by `new` under a key of its own.
fn each_write(store: &Store<Auto>, k: &Keyspace) -> [Result<(), WriteError>; 6] {
    let mut batch = Batch::new();
    batch.put(k, b"d", b"new");
    batch.put(k, b"d too", b"new");
    let mut tx = store.begin(TransactionOptions::serializable());
    tx.put(k, b"e", b"new").unwrap();
    tx.put(k, b"e too", b"new").unwrap();
    let put = Update::Put {
        value: b"new".into(),
        expires_at: None,
    };
    [
        store.put(k, b"a", b"new"),
        store.update(k, b"b", |_| Ok((put.clone(), ()))),
        (store.multi_put(k, &[(b"c", b"new")], |_| true)).map(|put| assert_eq!(put, 1)),
        store.write(batch).map(drop),
        tx.commit().map(drop),
        store.delete(k, b"f").map(|there| assert!(there)),
    ]
}

/// The values of all keys, as text: of `a` to `f`, then of those that batch and transaction make.
fn values(store: &Store<Auto>, k: &Keyspace) -> Vec<Option<String>> {
    let keys = KEYS.into_iter().chain(["d too", "e too"]);
    keys.map(|key| crate::common::text(store.get(k, key.as_bytes()).unwrap()))
        .collect()
}

fn old() -> Vec<Option<String>> {
    let mut all = vec![Some("old".to_owned()); 6];
    all.extend([None, None]);
    all
}

fn new() -> Vec<Option<String>> {
    let mut all = vec![Some("new".to_owned()); 8];
    all[5] = None;
    all
}

#[test]
fn without_space_nothing_is_lost_and_with_it_the_store_goes_on() {
    let disk = FaultDisk::new(1);
    let (store, k) = made(&disk);
    let durable = store.durable();
    let before = store.snapshot();
    disk.set_full(true);
    for answer in each_write(&store, &k) {
        let error = answer.unwrap_err();
        assert!(
            matches!(error, WriteError::Commit(CommitError::NoSpace { .. })),
            "{error}"
        );
        assert!(error.to_string().contains("free some space"), "{error}");
    }
    let refused = store.keyspace("one").unwrap_err();
    assert!(matches!(refused, WriteError::Commit(_)), "{refused}");
    assert_eq!(store.durable(), durable);
    assert_eq!(values(&store, &k), old(), "none of it is durable");
    assert_eq!(
        values(&store.deferring(), &k),
        new(),
        "and all of it applied"
    );
    assert_eq!(
        store.vacuum_all().unwrap().versions,
        0,
        "what is old may be needed again"
    );
    let (cut, at) = after_a_cut(&disk, 2);
    assert_eq!(values(&cut, &at), old());
    drop(cut);

    disk.set_full(false);
    store.put(&k, b"after", b"1").unwrap();
    assert_eq!(store.durable(), store.applied());
    assert_eq!(values(&store, &k), new(), "made durable by the next commit");
    assert_eq!(
        crate::common::text(before.get(&k, b"f").unwrap()).as_deref(),
        Some("old")
    );
    // The refused keyspace exists by now, and no other one has its number or its name.
    let one = store.keyspace("one").unwrap();
    store.put(&one, b"a", b"1").unwrap();
    assert!(store.delete(&one, b"a").unwrap());
    let two = store.keyspace("two").unwrap();
    store.put(&two, b"a", b"2").unwrap();
    store.drop_keyspace(two.clone()).unwrap();
    disk.set_full(true);
    let dropped = store.drop_keyspace(store.keyspace("k").unwrap());
    assert!(matches!(dropped, Err(WriteError::Commit(_))), "{dropped:?}");
    assert_eq!(values(&store, &k), new(), "nor is that durable");
    assert_eq!(store.deferring().get(&k, b"a").unwrap(), None);
    assert!(store.make_durable(store.applied()).is_err());
    let (cut, at) = after_a_cut(&disk, 3);
    assert_eq!(values(&cut, &at), new());
    assert_eq!(cut.keyspaces().len(), 2, "{:?}", cut.keyspaces());
    let one = cut.keyspace("one").unwrap();
    assert!(cut.is_empty(&one));
    drop(cut);
    disk.set_full(false);
    store.make_durable(store.applied()).unwrap();
    assert_eq!(store.get(&k, b"a").unwrap(), None);
    drop(before);
    store.vacuum_all().unwrap();
    store.check().unwrap();
}

#[test]
fn a_disk_that_fails_for_good_takes_nothing_more_and_loses_nothing() {
    for failing in 0..6 {
        // What a failed sync has lost is lost for good, on each disk something else.
        let outcomes = (0..8).map(|disk| fails_for_good(failing, failing * 8 + disk));
        let outcomes = outcomes.fold([0, 0], |sum, each| [sum[0] + each[0], sum[1] + each[1]]);
        assert!(
            outcomes[1] == 16 || outcomes.iter().all(|n| *n > 0),
            "{outcomes:?}"
        );
    }
}

/// Lets a disk fail at a write, and all that follows. Returns how often a cut has left the state
/// before that write, and the one after it.
fn fails_for_good(failing: u64, seed: u64) -> [u32; 2] {
    let disk = FaultDisk::new(seed);
    let (store, k) = made(&disk);
    let other = store.keyspace("other").unwrap();
    let durable = store.durable();
    disk.fail_sync(1);
    let cannot = |answer: Result<(), WriteError>, what: &str| {
        let error = answer.expect_err(what);
        assert!(
            matches!(error, WriteError::Commit(CommitError::Failed { .. })),
            "{what}: {error}"
        );
        let says = "takes no more writes until it is reopened";
        assert!(error.to_string().contains(says), "{what}: {error}");
    };
    // The first write fails, whichever it is, and so do all later ones.
    let (mut lost, mut others) = (old(), 1);
    match failing {
        0 => cannot(store.put(&k, b"a", b"new"), "put"),
        1 => cannot(store.increment(&k, b"number", 1).map(drop), "increment"),
        2 => cannot(store.keyspace("one").map(drop), "a keyspace"),
        3 => cannot(store.drop_keyspace(other), "a drop"),
        4 => {
            store.deferring().put(&k, b"a", b"new").unwrap();
            cannot(store.make_durable(store.applied()), "a settling");
        }
        _ => {
            let mut batch = Batch::new();
            for key in KEYS {
                batch.put(&k, key.as_bytes(), b"new");
            }
            cannot(store.write(batch).map(drop), "a batch");
        }
    }
    for answer in each_write(&store, &k) {
        cannot(answer, "a later write");
    }
    cannot(store.keyspace("two").map(drop), "a later keyspace");
    cannot(store.vacuum_all().map(drop), "a vacuum");
    cannot(store.make_durable(store.applied()), "a later settling");
    assert_eq!(values(&store, &k), old(), "readers go on");
    assert_eq!(store.durable(), durable);
    drop(store);

    match failing {
        0 | 4 => lost[0] = Some("new".into()),
        2 => others = 2,
        3 => others = 0,
        5 => lost[..6].fill(Some("new".into())),
        _ => {}
    }
    let (before, after) = ((old(), 1), (lost, others));
    let mut outcomes = [0, 0];
    for seed in 0..2 {
        let (store, k) = after_a_cut(&disk, seed);
        let found = (values(&store, &k), store.keyspaces().len() - 1);
        assert!(found == before || found == after, "{found:?}");
        outcomes[usize::from(found == after)] += 1;
        assert!(each_write(&store, &k)[..5].iter().all(Result::is_ok));
        store.vacuum_all().unwrap();
        store.check().unwrap();
    }
    outcomes
}

#[test]
fn threads_that_write_while_the_disk_fails_lose_nothing_that_was_acknowledged() {
    for seed in 0..24u64 {
        let disk = FaultDisk::new(seed);
        let (store, k) = made(&disk);
        let for_good = seed % 2 == 0;
        if for_good {
            disk.fail_sync(5 + seed);
        }
        let key = |thread: u32, copy: u8| [&thread.to_be_bytes()[..], &[copy]].concat();
        let acknowledged: Vec<u32> = std::thread::scope(|scope| {
            let threads = [0u32, 1, 2].map(|thread| {
                let (store, k, disk) = (&store, &k, &disk);
                scope.spawn(move || {
                    let mut last = 0;
                    for n in 1..=40u32 {
                        let mut batch = Batch::new();
                        for copy in [0, 1] {
                            batch.put(k, &key(thread, copy), &n.to_le_bytes());
                        }
                        if !for_good && thread == 0 {
                            // Space comes and goes.
                            disk.set_full(n % 8 == 5);
                        }
                        match store.write(batch) {
                            Ok(_) => last = n,
                            Err(WriteError::Commit(CommitError::NoSpace { .. })) => {
                                assert!(!for_good);
                            }
                            Err(WriteError::Commit(CommitError::Failed { .. })) => {
                                assert!(for_good);
                                break;
                            }
                            Err(e) => panic!("{e}"),
                        }
                    }
                    last
                })
            });
            threads.map(|thread| thread.join().unwrap()).to_vec()
        });
        drop(store);
        let (store, k) = after_a_cut(&disk, seed);
        for (thread, last) in (0..).zip(acknowledged) {
            let found = [0, 1].map(|copy| store.get(&k, &key(thread, copy)).unwrap());
            assert_eq!(found[0], found[1], "all of a batch or nothing");
            let found = found[0].as_ref().map_or(0, |bytes| {
                u32::from_le_bytes(bytes.as_slice().try_into().unwrap())
            });
            assert!(found >= last, "{found} where {last} was acknowledged");
        }
        assert_eq!(values(&store, &k), old());
    }
}
