//! Full pools: errors that change nothing, transactions that are undone half-way, and space after
//! deletions.

use crate::common::{ALL, TREE, create, on};
use bristlecone_pmem::Pool;
use bristlecone_pmem::media::{Auto, MediumKind};
use bristlecone_store::{Keyspace, Step, Store, StoreOptions, TransactionOptions, WriteError};
use std::ops::ControlFlow;

pub fn small(design: &str) -> Store<Auto> {
    let options = on(MediumKind::Dram, 6 << 20);
    let pool = Pool::<Auto>::create("small".as_ref(), &options).unwrap();
    create(
        &pool,
        "s",
        design,
        &StoreOptions::default().without_thread(),
    )
    .unwrap()
}

type Writes = fn(&Store<Auto>, &Keyspace) -> Result<(), WriteError>;

/// A key that is not there.
const NEW: [u8; 200] = [b'n'; 200];

pub fn long(number: u32) -> Vec<u8> {
    [&key(number)[..], &[b'k'; 196]].concat()
}

fn key(number: u32) -> [u8; 4] {
    number.wrapping_mul(2_654_435_761).to_be_bytes()
}

#[test]
fn a_full_pool_refuses_whole_commits_and_takes_deletions() {
    let _alone = crate::common::alone();
    for design in ALL {
        for value in [300usize, 5000] {
            let store = small(design);
            let k = store.keyspace("k").unwrap();
            let bytes = |round: u8| vec![round; value];
            let mut there = 0;
            let refused = loop {
                // Several keys at a time, so that sometimes it is the index that has no space.
                let mut tx = store.begin(TransactionOptions::default());
                for i in 0..5 {
                    tx.put(&k, &key(there + i), &bytes(1)).unwrap();
                }
                match tx.commit() {
                    Ok(_) => there += 5,
                    Err(e) => break e,
                }
            };
            assert!(matches!(refused, WriteError::Space(_)), "{refused}");
            assert!(there > 100, "{there}");
            let mut more = Vec::new();
            for attempt in 1..200u32 {
                let mut tx = store.begin(TransactionOptions::default());
                for i in 0..1 + attempt % 7 {
                    tx.put(&k, &key(there + 1000 * attempt + i), &bytes(2))
                        .unwrap();
                }
                if tx.commit().is_ok() {
                    more.extend((0..1 + attempt % 7).map(|i| there + 1000 * attempt + i));
                }
            }
            for i in 0..there {
                assert_eq!(store.get(&k, &key(i)).unwrap().unwrap(), bytes(1));
            }
            for number in &more {
                let found = store.get(&k, &key(*number)).unwrap();
                assert_eq!(found.unwrap(), bytes(2));
            }
            assert_eq!(store.len(&k), u64::from(there) + more.len() as u64);
            store.check().unwrap();
            let mut deleted = 0;
            for i in 0..there {
                match store.delete(&k, &key(i)) {
                    Ok(true) => deleted += 1,
                    Ok(false) => unreachable!("key {i} is there"),
                    Err(WriteError::Space(_)) => {}
                    Err(e) => unreachable!("{e}"),
                }
            }
            // An NV-Tree's update takes space in a leaf.
            let all = design != "nvtree";
            assert!(
                if all {
                    deleted == there
                } else {
                    deleted > there / 2
                },
                "{deleted} of {there}"
            );
            store.vacuum_all().unwrap();
            store.check().unwrap();
            if all {
                store.put(&k, b"again", &bytes(3)).unwrap();
                assert_eq!(store.get(&k, b"again").unwrap().unwrap(), bytes(3));
            }
        }
    }
}

#[test]
fn what_commits_that_were_undone_leave_is_vacuumed() {
    let _alone = crate::common::alone();
    for design in ALL {
        let store = small(design);
        let k = store.keyspace("k").unwrap();
        let put = |numbers: &[u32]| {
            let mut tx = store.begin(TransactionOptions::default());
            for number in numbers {
                tx.put(&k, &key(*number), &[1; 300]).unwrap();
            }
            tx.commit()
        };
        let mut there = 0;
        while put(&[there, there + 1, there + 2]).is_ok() {
            there += 3;
        }
        // A key that was just deleted, and others for which there is no space any more.
        for number in 0..300 {
            let _ = store.delete(&k, &key(number));
            let new = 10_000 * (1 + number);
            let _ = put(&[number, new, new + 1, new + 2, new + 3, new + 4]);
        }
        loop {
            let mut keys = Vec::new();
            let snapshot = store.snapshot();
            let done = snapshot.scan::<Vec<u8>>(&k, .., |key, _| {
                keys.push(key.to_vec());
                ControlFlow::Continue(())
            });
            done.unwrap();
            drop(snapshot);
            if keys.is_empty() {
                break;
            }
            let deleted = keys.iter().filter(|key| store.delete(&k, key).is_ok());
            assert!(deleted.count() > 0, "{design}");
            store.vacuum_all().unwrap();
        }
        store.vacuum_all().unwrap();
        let stats = store.stats();
        // The keyspace's own name.
        assert_eq!((stats.versions, stats.garbage_bytes), (1, 0), "{design}");
        store.check().unwrap();
    }
}

#[test]
fn a_multi_put_in_a_full_pool_is_complete_or_absent() {
    let _alone = crate::common::alone();
    // Every third key is the first for which there is no space while there still is some for
    // records.
    let name = |number: u32| {
        let more = if number.is_multiple_of(3) { 700 } else { 20 };
        [&key(number)[..], &vec![b'k'; more]].concat()
    };
    for design in ALL {
        let store = small(design);
        let k = store.keyspace("k").unwrap();
        let (mut there, mut refused) = (0, 0);
        while refused < 200 {
            // Some are there already.
            let group: Vec<_> = (0..12).map(|i| name(there + i)).collect();
            let value = vec![there as u8; 1 + refused % 20];
            let puts: Vec<_> = group.iter().map(|key| (&key[..], &value)).collect();
            let before: Vec<_> = puts.iter().map(|put| store.get(&k, put.0)).collect();
            match store.multi_put(&k, &puts, |_| true) {
                Ok(put) => {
                    assert_eq!(put, 12);
                    for (key, _) in &puts {
                        assert_eq!(store.get(&k, key).unwrap().unwrap(), value);
                    }
                    there += 5;
                }
                Err(WriteError::Space(_)) => {
                    for ((key, _), before) in puts.iter().zip(before) {
                        assert_eq!(store.get(&k, key).unwrap(), before.unwrap());
                    }
                    refused += 1;
                }
                Err(e) => unreachable!("{e}"),
            }
            if refused > 0 && refused % 5 == 0 {
                // Space for short ones.
                let old = name(3 * refused as u32 + 1);
                assert!(store.delete(&k, &old).is_ok());
                store.vacuum_all().unwrap();
            }
        }
        assert!(there > 100, "{there}");
        let present = (0..there + 12).filter(|i| store.get(&k, &name(*i)).unwrap().is_some());
        assert_eq!(present.count() as u64, store.len(&k));
        store.check().unwrap();
    }
}

#[test]
fn every_kind_of_write_makes_the_room_that_its_index_needs() {
    let _alone = crate::common::alone();
    for design in ALL {
        let writes: [(&str, Writes); 6] = [
            ("put", |store, k| store.put(k, &NEW, b"v")),
            ("put together", |store, k| {
                store.multi_put(k, &[(&NEW[..], b"v")], |_| true)?;
                Ok(())
            }),
            ("compare and swap", |store, k| {
                store.compare_and_swap(k, &NEW, None, Some(b"v"))?.unwrap();
                Ok(())
            }),
            ("increment", |store, k| {
                store.increment(k, &NEW, 1).map(drop)
            }),
            ("transaction", |store, k| {
                let mut tx = store.begin(TransactionOptions::default());
                tx.put(k, &NEW, b"v")?;
                tx.put(k, &key(1), b"v")?;
                tx.commit().map(drop)
            }),
            ("keyspace", |store, _| {
                store.keyspace(&"n".repeat(200)).map(drop)
            }),
        ];
        for (name, write) in writes {
            let store = small(design);
            let k = store.keyspace("k").unwrap();
            // Records of all sizes, so that no block of any size is left. Keys of 200 bytes have
            // blocks too.
            let mut there = 0;
            for bytes in [4000, 1000, 200, 40, 1] {
                while store.put(&k, &long(there), &vec![1; bytes]).is_ok() {
                    there += 1;
                }
            }
            // A page may have room for it still.
            let refused = matches!(write(&store, &k), Err(WriteError::Space(_)));
            assert!(refused || design == TREE, "{design}: {name}");
            if !refused && name != "keyspace" {
                store.delete(&k, &NEW).unwrap();
            }
            // Deleted values are space once they are vacuumed and readers have left.
            for number in 0..200 {
                assert!(store.delete(&k, &long(number)).unwrap());
            }
            write(&store, &k).unwrap_or_else(|e| panic!("{design}: {name}: {e}"));
            store.check().unwrap();
        }
    }
}

/// Steps with a put that has no room are refused together, and change nothing; reads are executed.
#[test]
fn steps_in_a_full_pool_are_refused_together_and_reads_are_not() {
    let _alone = crate::common::alone();
    for design in ALL {
        let store = small(design);
        let k = store.keyspace("k").unwrap();
        let mut there = 0;
        for bytes in [4096, 1000, 200, 1] {
            while store.put(&k, &long(there), &vec![1; bytes]).is_ok() {
                there += 1;
            }
        }
        let together = |steps: &[(&[u8], Step<'_>)]| {
            let mut found = Vec::new();
            let done = store.execute_batch(&k, steps, |entry| {
                found.push(entry.is_some());
                ControlFlow::Continue(())
            });
            (done, found)
        };
        let (last, absent) = (long(there - 1), long(there));
        let commands: [(&[u8], _); 3] = [
            (&last, Step::Get),
            (&absent, Step::Put(b"v")),
            (&absent, Step::Get),
        ];
        for refused in [&commands[..], &commands[1..]] {
            let (done, _) = together(refused);
            assert!(
                matches!(done, Err(WriteError::Space(_))),
                "{design}: {done:?}"
            );
        }
        let (done, found) = together(&[commands[0], commands[2]]);
        assert_eq!((done.unwrap(), found), (2, vec![true, false]), "{design}");
        assert_eq!(store.len(&k), u64::from(there), "nothing is lost by that");
        for number in 0..there / 2 {
            match store.delete(&k, &long(number)) {
                Ok(there) => assert!(there),
                Err(e) => assert!(
                    design == "nvtree" && matches!(e, WriteError::Space(_)),
                    "{design}: {e}"
                ),
            }
        }
        // Room that was made is used. An NV-Tree's updates take space in its leaves, even those of
        // deletions.
        if design != "nvtree" {
            store.put(&k, &absent, b"v").unwrap();
            let (done, found) = together(&commands);
            assert_eq!((done.unwrap(), found), (2, vec![true, true]), "{design}");
        }
        store.check().unwrap();
    }
}
