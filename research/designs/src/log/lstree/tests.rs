//! Tests of this design alone; the scenarios that all designs share are in `tests/`.

use super::*;
use bristlecone_pmem::media::{Counting, Dram};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{MediaOptions, POff, PoolOptions};
use crossbeam_epoch as epoch;
use reserve::{Purpose, Refusal};
use std::borrow::Borrow;
use std::path::Path;

type Medium = Counting<Dram>;
type Numbers = LsTree<u64, u64, Medium>;

fn options(reserve: u64) -> PoolOptions {
    PoolOptions {
        media: MediaOptions {
            reserve,
            ..MediaOptions::default()
        },
    }
}

/// Maps u64 one to one to numbers that look random.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 31).wrapping_mul(0x7FB5_D329_728E_A185);
    let x = (x ^ x >> 27).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    x ^ x >> 33
}

fn tree(reserve: u64, ls: LsOptions) -> Numbers {
    let pool = Pool::create(Path::new("dram"), &options(reserve)).unwrap();
    LsTree::create(&pool, "t", &ls).unwrap()
}
fn filled(options: LsOptions, keys: u64) -> Numbers {
    let tree = tree(1 << 30, options);
    for i in 0..keys {
        tree.insert(&mix(i), &i).unwrap();
    }
    tree
}

#[test]
fn every_size_grows_and_shrinks() {
    for (leaf_bytes, cached_deltas) in [(256, 1), (512, 0), (1024, 64)] {
        let tree = filled(
            LsOptions {
                leaf_bytes,
                cached_deltas,
                ..LsOptions::default()
            },
            10_000,
        );
        assert_eq!(tree.verify().unwrap().entries, 10_000);
        for i in 0..10_000 {
            assert!(matches!(
                tree.insert(&mix(i), &0),
                Err(InsertError::KeyExists)
            ));
            assert_eq!(tree.get(&mix(i)), Some(i));
        }
        for i in 0..10_000 {
            assert!(tree.remove(&mix(i)).unwrap());
            assert!(!tree.remove(&mix(i)).unwrap());
        }
        let report = tree.verify().unwrap();
        assert_eq!((report.entries, report.leaves), (0, 1));
        let stats = tree.ls_stats();
        assert!(
            stats.splits > 100 && stats.unlinks == stats.splits,
            "{stats:?}"
        );
        assert!(
            stats.collected > 10 && stats.consolidated > 100,
            "{stats:?}"
        );
        assert!(stats.forgotten > 0, "{stats:?}");
    }
}

/// Superseded records are freed, down to a segment or so of each log.
#[test]
fn an_emptied_tree_is_small() {
    let tree = filled(LsOptions::default(), 50_000);
    for cycle in 0..3 {
        for i in 0..50_000 {
            assert!(tree.remove(&mix(i * 7919 % 50_000)).unwrap());
        }
        let segments: usize = tree
            .logs
            .all()
            .map(|log| log.state.lock().unwrap().segments.len())
            .sum();
        assert!(segments <= 4 + 3, "cycle {cycle}: {segments} segments");
        for i in 0..50_000 {
            tree.insert(&mix(i), &cycle).unwrap();
        }
        tree.verify().unwrap();
    }
}

/// If writers do not collect, garbage stays until another thread collects it.
#[test]
fn garbage_is_collected_by_whom_it_is_left_to() {
    let options = LsOptions {
        writers_collect: false,
        log_choice: LogChoice::Thread,
        ..LsOptions::default()
    };
    let tree = filled(options, 20_000);
    for round in 0..10 {
        for i in 0..20_000 {
            tree.update(&mix(i), &round).unwrap();
        }
    }
    let stats = tree.ls_stats();
    assert_eq!(stats.collected, 0);
    assert!(stats.garbage_bytes > 5 << 20, "{stats:?}");
    std::thread::scope(|scope| {
        scope.spawn(|| while tree.collect_garbage(16) > 0 {});
        for i in 0..20_000 {
            tree.update(&mix(i), &7).unwrap();
        }
    });
    while tree.collect_garbage(16) > 0 {}
    let stats = tree.ls_stats();
    assert!(
        stats.collected > 50 && stats.garbage_bytes < 1 << 20,
        "{stats:?}"
    );
    assert_eq!(tree.verify().unwrap().entries, 20_000);
    assert!((0..20_000).all(|i| tree.get(&mix(i)) == Some(7)));
}

/// The choice of logs, their number and the length of chains may differ from one opening to the
/// next.
#[test]
fn options_may_change() {
    let pool = Pool::<Medium>::create(Path::new("dram"), &options(1 << 30)).unwrap();
    let mut ls = LsOptions {
        logs: 7,
        cached_deltas: 16,
        ..LsOptions::default()
    };
    drop(Numbers::create(&pool, "t", &ls).unwrap());
    for (round, (logs, deltas, threads)) in
        (0..).zip([(7, 16, 1), (1, 2, 3), (32, 31, 2), (3, 1, 8)])
    {
        ls.logs = logs;
        ls.cached_deltas = deltas;
        ls.recovery_threads = threads;
        ls.log_choice = [LogChoice::Leaf, LogChoice::Thread][round as usize % 2];
        let tree = Numbers::open(&pool, "t", &ls).unwrap();
        assert_eq!(tree.verify().unwrap().entries, round * 5_000);
        for i in round * 5_000..(round + 1) * 5_000 {
            tree.insert(&mix(i), &i).unwrap();
        }
        for i in 0..round * 5_000 {
            assert_eq!(tree.get(&mix(i)), Some(i));
        }
        tree.verify().unwrap();
        tree.close().unwrap();
    }
    ls.leaf_bytes = 300;
    let refused = Numbers::open(&pool, "t", &ls).unwrap_err().to_string();
    assert!(refused.contains("300"), "{refused}");
}

/// An emptied leaf stays empty when the record that says so has come to the front of its log while
/// another log has older ones of the leaf.
#[test]
fn what_is_gone_stays_gone() {
    let pool = Pool::<Medium>::create(Path::new("dram"), &options(1 << 30)).unwrap();
    let ls = LsOptions {
        log_choice: LogChoice::Thread,
        ..LsOptions::default()
    };
    let tree = Numbers::create(&pool, "t", &ls).unwrap();
    // This thread's log gets the insertions; another thread's log gets the removals and the copies.
    for i in 0..4_000 {
        tree.insert(&i, &i).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..4_000 {
                assert!(tree.remove(&i).unwrap());
            }
            for round in 0..30_000 {
                tree.upsert(&(1 << 40), &round).unwrap();
            }
        });
    });
    let stats = tree.ls_stats();
    assert!(stats.moved + stats.forgotten > 0, "{stats:?}");
    tree.verify().unwrap();
    tree.close().unwrap();
    let tree = Numbers::open(&pool, "t", &ls).unwrap();
    assert_eq!(tree.verify().unwrap().entries, 1);
    assert_eq!(tree.get(&(1 << 40)), Some(29_999));
}

/// A power cut comes after the first segment of a log was copied to make room, and before the log
/// has dropped it. Recovery needs nothing in that segment: in a full pool there may be no room to
/// copy it again.
#[test]
fn what_was_copied_before_a_power_cut_is_not_copied_again() {
    let pool = Pool::<Medium>::create(Path::new("dram"), &options(1 << 30)).unwrap();
    let ls = LsOptions {
        writers_collect: false,
        ..LsOptions::default()
    };
    let tree = Numbers::create(&pool, "t", &ls).unwrap();
    let mut keys = 0;
    let log = loop {
        if let Some(log) = tree.logs.fullest() {
            break log;
        }
        tree.insert(&mix(keys), &keys).unwrap();
        keys += 1;
    };
    let segment = lock(&tree.logs.log(log).state).segments[0];
    // Returns the records of the segment that leaves need, and how many of them are deltas.
    let needed = |tree: &Numbers| {
        let (mut all, mut deltas) = (0, 0);
        tree.each_record(&segment, |record| {
            for lnid in tree.leaves_of(&record) {
                let entry = tree.table.entry(lnid);
                if let Some(place) = entry.place_of(record.off) {
                    all += 1;
                    deltas += usize::from(place != entry.base());
                }
            }
        });
        (all, deltas)
    };
    let (all, deltas) = needed(&tree);
    assert!(deltas > 0 && all > deltas, "{all} of them {deltas}");
    let mut budget = collect::Budget {
        tight: true,
        credit: 0,
    };
    tree.copy_out(log, &segment, &mut budget).unwrap();
    assert_eq!(needed(&tree), (0, 0));
    drop(tree);
    let tree = Numbers::open(&pool, "t", &ls).unwrap();
    assert_eq!(needed(&tree), (0, 0));
    assert_eq!(tree.verify().unwrap().entries, keys);
    assert!((0..keys).all(|i| tree.get(&mix(i)) == Some(i)));
}

/// Another tree's records in reused memory do not count.
#[test]
fn records_of_another_tree_are_no_records() {
    let pool = Pool::<Medium>::create(Path::new("dram"), &options(64 << 20)).unwrap();
    for round in 0..4 {
        let tree = Numbers::create(&pool, "t", &LsOptions::default()).unwrap();
        for i in 0..5_000 + round {
            tree.insert(&mix(i), &round).unwrap();
        }
        tree.close().unwrap();
        let tree = Numbers::open(&pool, "t", &LsOptions::default()).unwrap();
        assert_eq!(tree.verify().unwrap().entries, 5_000 + round);
        drop(tree);
        pool.open_root("t", None).unwrap().unpublish();
    }
}

/// Long and short strings replace each other, and their blocks are freed.
#[test]
fn strings_of_all_lengths() {
    let pool = Pool::<Medium>::create(Path::new("dram"), &options(1 << 30)).unwrap();
    type Strings = LsTree<[u8], [u8], Medium>;
    let tree = Strings::create(&pool, "t", &LsOptions::default()).unwrap();
    let blocks = tree.heap.live_blocks();
    let string = |n: u64, len: usize| {
        mix(n)
            .to_le_bytes()
            .into_iter()
            .cycle()
            .take(len)
            .collect::<Vec<u8>>()
    };
    let lengths = [8, 255, 256, 257, 300, 5_000];
    for round in 0..lengths.len() as u64 {
        for n in 0..600 {
            let key = string(n, lengths[n as usize % 6]);
            let value = string(n + round, lengths[(n + round) as usize % 6]);
            assert_eq!(tree.upsert(&key, &value).unwrap(), round > 0);
            assert_eq!(tree.get(&key), Some(value));
        }
        assert_eq!(tree.verify().unwrap().entries, 600);
    }
    for n in 0..600 {
        assert!(tree.remove(&string(n, lengths[n as usize % 6])).unwrap());
    }
    tree.verify().unwrap();
    assert!(
        tree.heap.live_blocks() <= blocks + 8,
        "{}",
        tree.heap.live_blocks()
    );
}

/// Inserts until the pool is full. Returns how many keys went in.
fn fill(tree: &Numbers) -> u64 {
    let mut n = 0;
    loop {
        match tree.insert(&mix(n), &n) {
            Ok(()) => n += 1,
            Err(InsertError::Space(_)) => return n,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Segments freed in a full pool go to the reserve until that is full.
#[test]
fn the_reserve_is_filled_first() {
    let tree = tree(4 << 20, LsOptions::default());
    let keys = fill(&tree);
    let logs = &tree.logs;
    assert!(logs.ready() > RESERVE / 2, "{}", logs.ready());
    let mut taken = Vec::new();
    while let Ok(off) = logs.take_segment(Purpose::Collect) {
        taken.push(off);
    }
    assert!(logs.take_segment(Purpose::Remove).is_err());
    for (free, off) in (1..).zip(taken) {
        // Frees it to the pool, or as a collected segment.
        if free % 2 == 0 {
            tree.heap.free(POff::new(off));
        } else {
            logs.keep_or_free(off, None);
        }
        assert!(logs.take_segment(Purpose::Put).is_err());
        assert_eq!(logs.ready(), free);
        assert_eq!(logs.has_room(Purpose::Remove), free > RESERVE / 2);
    }
    tree.verify().unwrap();
    for n in 0..keys {
        assert!(tree.remove(&mix(n)).unwrap());
    }
    assert!(logs.has_room(Purpose::Put));
    assert!(fill(&tree) > keys * 9 / 10);
    tree.verify().unwrap();
}

/// A collected segment becomes a spare once readers have left it.
#[test]
fn readers_leave_a_segment_before_it_is_spare() {
    let tree = tree(64 << 20, LsOptions::default());
    let logs = &tree.logs;
    let taken = [(); 2].map(|()| logs.take_segment(Purpose::Collect).unwrap());
    // The pool has free chunks, so that the reserve is whole again: make room in it.
    lock(&logs.spares).forget_ready(&tree.heap, 2);
    let reader = epoch::pin();
    logs.keep_or_free(taken[0], Some(&epoch::pin()));
    logs.keep_or_free(taken[1], None);
    assert_eq!(logs.ready(), RESERVE - 1);
    tree.verify().unwrap();
    drop(reader);
    for _ in 0..10_000 {
        epoch::pin().flush();
        if logs.ready() == RESERVE {
            break;
        }
        std::thread::yield_now();
    }
    assert_eq!(logs.ready(), RESERVE);
    tree.verify().unwrap();
}

/// The thread that makes room excludes others. They wait, and continue when it is done.
#[test]
fn others_wait_for_who_makes_room() {
    let tree = tree(64 << 20, LsOptions::default());
    tree.insert(&1, &1).unwrap();
    std::thread::scope(|scope| {
        let making = lock(&tree.hopeless);
        let alone = tree.logs.alone();
        for purpose in [Purpose::Put, Purpose::Remove, Purpose::Copy] {
            let mut draft = record::Draft::put(0, 9);
            let refused = tree.logs.append(0, &mut draft, purpose);
            assert!(matches!(refused, Err(Refusal::Busy)), "{refused:?}");
        }
        let writers = [
            scope.spawn(|| tree.insert(&2, &2).is_ok()),
            scope.spawn(|| tree.remove(&1).unwrap()),
        ];
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(writers.iter().all(|writer| !writer.is_finished()));
        assert_eq!((tree.get(&1), tree.get(&2)), (Some(1), None));
        drop(alone);
        drop(making);
        for writer in writers {
            assert!(writer.join().unwrap());
        }
    });
    assert_eq!((tree.get(&1), tree.get(&2)), (None, Some(2)));
}

/// Threads insert, which may be refused, and remove, which must not be, all the time.
fn removes_beside_insertions<K, V>(
    options: &LsOptions,
    key: impl Fn(u64) -> K::Owned + Sync,
    value: impl Fn(u64) -> V::Owned + Sync,
) where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
{
    let pool = Pool::<Medium>::create(Path::new("dram"), &self::options(4 << 20)).unwrap();
    let tree = LsTree::<K, V, Medium>::create(&pool, "t", options).unwrap();
    std::thread::scope(|scope| {
        for t in 0..3u64 {
            let (tree, key, value) = (&tree, &key, &value);
            scope.spawn(move || {
                let (mut mine, mut refused, mut next) = (Vec::new(), 0, 0);
                while refused < 150 {
                    let n = mix(next << 2 | t);
                    next += 1;
                    match tree.insert(key(n).borrow(), value(n).borrow()) {
                        Ok(()) => mine.push(n),
                        Err(InsertError::Space(_)) => {
                            refused += 1;
                            for _ in 0..(1 << (refused % 8)).min(mine.len()) {
                                let n = mine.swap_remove(next as usize % mine.len());
                                assert!(tree.remove(key(n).borrow()).unwrap(), "key {n}");
                            }
                        }
                        Err(e) => panic!("{e}"),
                    }
                }
                for n in mine {
                    assert!(tree.remove(key(n).borrow()).unwrap(), "key {n}");
                }
            });
        }
    });
    assert_eq!(tree.verify().unwrap().entries, 0);
}

#[test]
fn a_full_pool_lets_numbers_go() {
    let by_thread = LsOptions {
        leaf_bytes: 256,
        logs: 3,
        log_choice: LogChoice::Thread,
        ..LsOptions::default()
    };
    for options in [LsOptions::default(), by_thread] {
        removes_beside_insertions::<u64, u64>(&options, |n| n, |n| n);
    }
}

#[test]
fn a_full_pool_lets_strings_go() {
    let key = |n: u64| n.to_be_bytes().to_vec();
    // Some values have blocks of their own.
    let value = |n: u64| vec![n as u8; [8, 100, 300, 2_000][n as usize % 4]];
    removes_beside_insertions::<[u8], [u8]>(&LsOptions::default(), key, value);
}

#[test]
fn a_blind_insertion_appends_and_the_newest_counts() {
    let options = LsOptions {
        leaf_bytes: 256,
        blind: true,
        ..LsOptions::default()
    };
    let tree = filled(options, 10_000);
    assert_eq!(tree.verify().unwrap().entries, 10_000);
    for i in 0..10_000 {
        assert_eq!(tree.get(&mix(i)), Some(i));
    }
    // It does not look, so it does not refuse.
    tree.insert(&mix(7), &77).unwrap();
    assert_eq!(tree.get(&mix(7)), Some(77));
    // Other ways to put a key do look.
    assert!(tree.upsert(&mix(7), &78).unwrap());
    assert!(tree.remove(&mix(8)).unwrap() && !tree.remove(&mix(8)).unwrap());
    assert_eq!((tree.get(&mix(7)), tree.get(&mix(8))), (Some(78), None));
}
