//! Trees under a store: times, the durable mark, observers, batches of steps.

use super::*;
use crate::contract::Direction;
use bristlecone_pmem::MediumKind;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{MediaOptions, PoolOptions};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

pub(super) type Tree = HostedTree<Auto>;

/// A change as an observer was told of it: key, stamp, weight of the old value, new value.
pub(super) type Told = (Vec<u8>, u64, Option<u64>, Option<Vec<u8>>);

#[derive(Debug, Default)]
pub(super) struct Witness(Mutex<Vec<Told>>);

impl Observer for Witness {
    fn weigh(&self, value: Glimpse<'_>) -> u64 {
        assert!(value.bytes.len() >= value.len.min(64));
        value.len as u64
    }

    fn changed(&self, change: Observed<'_>) {
        let is = change.is.map(|is| {
            assert_eq!(is.bytes.len(), is.len);
            is.bytes.to_vec()
        });
        let told = (change.key.to_vec(), change.stamp, change.was, is);
        self.0.lock().unwrap().push(told);
    }
}

impl Witness {
    pub(super) fn take(&self) -> Vec<Told> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

const OPTIONS: ClusteredOptions = ClusteredOptions { page_bytes: 512 };

pub(super) fn made_on(medium: MediumKind) -> (TempDir, Tree, Arc<Witness>) {
    let dir = tempfile::tempdir().unwrap();
    let options = PoolOptions {
        media: MediaOptions {
            medium: Some(medium),
            reserve: 1 << 30,
            ..MediaOptions::default()
        },
    };
    let pool = Pool::<Auto>::create(&dir.path().join("pool"), &options).unwrap();
    let witness = Arc::new(Witness::default());
    let observer: Arc<dyn Observer> = Arc::clone(&witness) as _;
    let tree = Tree::create(&pool, "t", &OPTIONS, observer).unwrap();
    (dir, tree, witness)
}

fn get(tree: &Tree, when: When, key: &[u8]) -> Option<Vec<u8>> {
    let value = tree.get(when, key, <[u8]>::to_vec).unwrap();
    let pinned = tree.get_pinned(when, key).unwrap();
    assert_eq!(pinned.as_deref(), value.as_deref());
    value
}

pub(super) fn all_at(tree: &Tree, time: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut all = BTreeMap::new();
    let range = (Bound::Unbounded, Bound::Unbounded);
    let scanned = tree.scan(
        time,
        range,
        (Direction::Up, Visits::Values),
        |key, current| {
            all.insert(key.to_vec(), current.value()?.to_vec());
            Ok(ControlFlow::Continue(()))
        },
    );
    scanned.unwrap();
    all
}

/// On a journal what is not durable is not read at the mark, however often its pages are replaced.
#[test]
fn the_mark_shows_what_is_durable() {
    let (_dir, tree, _) = made_on(MediumKind::Journal);
    let key = |i: u32| format!("key{i:04}").into_bytes();
    let long = vec![7; 2_000];
    for i in 0..300 {
        let value = if i % 10 == 0 { &long[..] } else { b"old" };
        tree.put(&key(i), value).unwrap();
    }
    assert_eq!(get(&tree, When::Durable, &key(10)), None);
    assert_eq!(get(&tree, When::Now, &key(10)).as_ref(), Some(&long));
    let last = tree.put(b"last", b"").unwrap();
    assert!(tree.durable() <= last && tree.applied() > last);
    tree.make_durable(last).unwrap();
    assert!(tree.durable() > last);
    let durable = tree.begin(true);
    let before = all_at(&tree, durable);
    assert_eq!(before.len(), 301);
    tree.end(durable);
    // Each page is replaced several times.
    let mut stamp = 0;
    for round in 0..5 {
        for i in 0..300 {
            let changed = tree.modify(&key(i), |current| {
                assert!(i % 7 != 3 || round > 0 || current.is_some());
                Ok(if i % 7 == 3 {
                    Modification::Remove
                } else {
                    Modification::Put(format!("{round}").into_bytes())
                })
            });
            stamp = stamp.max(changed.unwrap().seen);
        }
        let durable = tree.begin(true);
        assert_eq!(all_at(&tree, durable), before);
        assert_eq!(
            get(&tree, When::At(durable), &key(3)).as_deref(),
            Some(&b"old"[..])
        );
        tree.end(durable);
        for i in [0, 3, 10, 299] {
            assert_eq!(
                get(&tree, When::Durable, &key(i)).as_ref(),
                before.get(&key(i))
            );
        }
        assert_eq!(get(&tree, When::Now, &key(3)), None);
    }
    assert_eq!(tree.readers(), (None, 0));
    tree.make_durable(stamp).unwrap();
    assert_eq!(
        get(&tree, When::Durable, &key(0)).as_deref(),
        Some(&b"4"[..])
    );
    assert_eq!(get(&tree, When::Durable, &key(3)), None);
    tree.verify().unwrap();
}

/// Elsewhere a change that has returned is durable.
#[test]
fn without_a_journal_the_mark_is_the_present() {
    let (_dir, tree, _) = made_on(MediumKind::Mapped);
    let stamp = tree.put(b"k", b"v").unwrap();
    assert_eq!((tree.durable(), tree.applied()), (stamp + 1, stamp + 1));
    assert_eq!(get(&tree, When::Durable, b"k").as_deref(), Some(&b"v"[..]));
    let time = tree.begin(true);
    assert_eq!((time, tree.readers()), (stamp + 1, (Some(time), 1)));
    tree.begin_again(time);
    tree.put(b"k", b"w").unwrap();
    tree.end(time);
    assert_eq!(get(&tree, When::At(time), b"k").as_deref(), Some(&b"v"[..]));
    tree.end(time);
    assert_eq!(tree.readers(), (None, 0));
    tree.make_durable(stamp + 1).unwrap();
}

#[test]
fn an_observer_is_told_of_each_change() {
    let (_dir, tree, witness) = made_on(MediumKind::Mapped);
    let long = vec![9; 5_000];
    let a = tree.put(b"a", &long).unwrap();
    let again = tree.put(b"a", b"short").unwrap();
    let kept = tree.modify(b"a", |_| Ok(Modification::Keep)).unwrap();
    assert_eq!((kept.stamp, kept.seen), (None, again));
    let gone = tree.modify(b"a", |_| Ok(Modification::Remove)).unwrap();
    let gone = gone.stamp.unwrap();
    tree.modify(b"a", |_| Ok(Modification::Remove)).unwrap();
    assert_eq!(
        witness.take(),
        [
            (b"a".to_vec(), a, None, Some(long.clone())),
            (b"a".to_vec(), again, Some(5_000), Some(b"short".to_vec())),
            (b"a".to_vec(), gone, Some(5), None),
        ]
    );
    let changes: [(&[u8], Option<&[u8]>); 3] =
        [(b"x", Some(&long)), (b"a", None), (b"y", Some(b"1"))];
    let written = tree.write(changes, None, None).unwrap();
    let stamp = written.stamp.unwrap();
    assert_eq!(
        witness.take(),
        [
            (b"x".to_vec(), stamp, None, Some(long)),
            (b"y".to_vec(), stamp, None, Some(b"1".to_vec())),
        ]
    );
    let nothing = tree.write([(&b"a"[..], None)], None, None).unwrap();
    assert_eq!((nothing.stamp, nothing.seen), (None, stamp));
    assert_eq!(witness.take(), []);
}

#[test]
fn a_conflict_names_its_key() {
    let (_dir, tree, witness) = made_on(MediumKind::Mapped);
    tree.put(b"a", b"1").unwrap();
    let time = tree.begin(true);
    tree.put(b"a", b"2").unwrap();
    witness.take();
    let mut reads = Reads::new();
    let range: KeyRange<'_> = (Bound::Unbounded, Bound::Excluded(b"b"));
    reads.range(range);
    for (key, reads, read) in [(b"a", None, false), (b"z", Some(&reads), true)] {
        match tree.write([(&key[..], Some(&b"3"[..]))], Some(time), reads) {
            Err(ChangeError::Conflict { key, read: r }) => {
                assert_eq!((&key[..], r), (&b"a"[..], read))
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(witness.take(), []);
    let written = tree.write([(&b"z"[..], Some(&b"3"[..]))], Some(time), None);
    assert!(written.unwrap().stamp.is_some());
    tree.end(time);
    let long = [0; MAX_KEY + 1];
    let refused = tree.put(&long, b"").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the key has 2049 bytes; the most is 2048"
    );
}

#[test]
fn steps_are_executed_up_to_the_first_that_breaks() {
    let (_dir, tree, witness) = made_on(MediumKind::Mapped);
    for i in 0..200_u32 {
        tree.put(format!("k{i:03}").as_bytes(), &i.to_le_bytes())
            .unwrap();
    }
    let long = vec![3; 1_000];
    witness.take();
    let steps: [Step<'_>; 6] = [
        (b"k150", Some(b"new")),
        (b"k003", None),
        (b"absent", Some(&long)),
        (b"k003", None),
        (b"k007", Some(b"never")),
        (b"k199", None),
    ];
    let mut seen = Vec::new();
    let (done, executed) = tree
        .execute(&steps, &mut |current| {
            seen.push(current.map(|current| current.value().unwrap().to_vec()));
            Ok(if seen.len() == 5 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })
        .unwrap();
    let number = |i: u32| Some(i.to_le_bytes().to_vec());
    assert_eq!(seen, [number(150), number(3), None, number(3), number(7)]);
    assert_eq!(done, 4);
    let stamp = executed.stamp.unwrap();
    let mut told = witness.take();
    told.sort();
    assert_eq!(
        told,
        [
            (b"absent".to_vec(), stamp, None, Some(long.clone())),
            (b"k150".to_vec(), stamp, Some(4), Some(b"new".to_vec())),
        ]
    );
    assert_eq!(get(&tree, When::Now, b"k007"), number(7));
    assert_eq!(get(&tree, When::Now, b"absent"), Some(long.clone()));
    // Looking alone changes nothing.
    let (done, looked) = tree
        .execute(&steps[1..2], &mut |_| Ok(ControlFlow::Continue(())))
        .unwrap();
    assert_eq!((done, looked.stamp), (1, None));
    // A step that fails leaves all as it was, and nothing locked.
    let failed = tree.execute(&steps, &mut |_| Err(ReadError::Value("as planned".into())));
    assert_eq!(failed.unwrap_err().to_string(), "as planned");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        tree.execute(&steps[..2], &mut |_| panic!("as planned"))
    }));
    assert!(panicked.is_err());
    tree.put(b"k150", b"after").unwrap();
    assert_eq!(
        get(&tree, When::Now, b"k150").as_deref(),
        Some(&b"after"[..])
    );
    tree.verify().unwrap();
}

/// Whoever sees one change of a batch sees all of them, without a snapshot.
#[test]
fn batches_are_shown_as_one() {
    let (_dir, tree, _) = made_on(MediumKind::Mapped);
    let key = |i: u32| format!("key{i:04}").into_bytes();
    for i in 0..400 {
        tree.put(&key(i), &0_u64.to_le_bytes()).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..4_000_u64 {
                let value = round.to_le_bytes();
                // Many pages, of which the readers look at the first and the last that is shown.
                let keys: Vec<_> = (0..40).rev().map(|i| key(i * 10)).collect();
                let changes = keys.iter().map(|key| (&key[..], Some(&value[..])));
                tree.write(changes, None, None).unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        for order in [[0, 390], [390, 0]] {
            let (tree, done) = (&tree, &done);
            scope.spawn(move || {
                let keys = order.map(key);
                while !done.load(Ordering::SeqCst) {
                    let mut last = 0;
                    for key in &keys {
                        let now = tree.get(When::Now, key, |v| {
                            u64::from_le_bytes(v.try_into().unwrap())
                        });
                        let now = now.unwrap().unwrap();
                        assert!(now >= last, "{now} after {last}");
                        last = now;
                    }
                }
            });
        }
    });
}
