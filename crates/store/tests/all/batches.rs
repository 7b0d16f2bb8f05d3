//! Batches of steps: `multi_get`, `multi_put` and `execute_batch`.

use crate::common::{ALL, Fixture, text};
use bristlecone_store::{Entry, Step, WriteError};
use std::ops::ControlFlow;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

fn put(f: &Fixture, keys: &[&str], value: &str, replaces: impl Fn(Entry<'_>) -> bool) -> usize {
    let puts: Vec<_> = keys.iter().map(|key| (key.as_bytes(), value)).collect();
    f.store.multi_put(&f.k, &puts, replaces).unwrap()
}

#[test]
fn they_are_there_after_a_kill_and_snapshots_see_all_or_none() {
    for design in ALL {
        let f = Fixture::new(design);
        let names: Vec<String> = (0..500).map(|i| format!("key {i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        // New keys and existing ones.
        for few in names.chunks(30) {
            assert_eq!(put(&f, &few[..few.len() / 2], "1", |_| true), few.len() / 2);
        }
        let between = f.store.snapshot();
        for many in names.chunks(100) {
            assert_eq!(put(&f, many, "2", |before| before.value == b"1"), 100);
        }
        for (i, name) in names.iter().enumerate() {
            assert_eq!(f.get(name).as_deref(), Some("2"));
            let old = text(between.get(&f.k, name.as_bytes()).unwrap());
            let few = names.len().min((i / 30 + 1) * 30) - i / 30 * 30;
            assert_eq!(old.as_deref(), (i % 30 < few / 2).then_some("1"), "{name}");
        }
        assert_eq!(f.store.len(&f.k), 500);
        drop(between);
        f.store.vacuum_all().unwrap();
        f.store.check().unwrap();
        let killed = f.killed();
        let k = killed.find_keyspace("k").unwrap();
        for name in &names {
            let found = killed.get(&k, name.as_bytes()).unwrap();
            assert_eq!(found.as_deref(), Some(&b"2"[..]), "{design}");
        }
        killed.check().unwrap();
    }
}

#[test]
fn they_end_before_a_key_that_comes_again_and_before_what_is_not_to_be_replaced() {
    for design in ALL {
        let f = Fixture::new(design);
        assert_eq!(put(&f, &["a", "b", "a", "c"], "1", |_| true), 2);
        assert_eq!(f.get("c"), None);
        f.put("c", "kept");
        let replaces = |before: Entry<'_>| before.value != b"kept";
        assert_eq!(put(&f, &["a", "c", "b"], "2", replaces), 1);
        assert_eq!(put(&f, &["c", "b"], "2", replaces), 0);
        assert_eq!(put(&f, &[], "2", |_| true), 0);
        let values = ["a", "b", "c"].map(|key| f.get(key).unwrap());
        assert_eq!(values, ["2", "1", "kept"]);
        // A deleted value refuses nothing, and expiries are not kept.
        assert!(f.store.delete(&f.k, b"c").unwrap());
        f.store
            .put_expiring(&f.k, b"b", b"x", Some(u64::MAX))
            .unwrap();
        assert_eq!(put(&f, &["c", "b"], "3", replaces), 2);
        let expiry = f.store.get_with(&f.k, b"b", |entry| entry.expires_at);
        assert_eq!(expiry.unwrap(), Some(None));
        f.store.check().unwrap();
    }
}

#[test]
fn gets_and_puts_are_one_step_after_the_other() {
    for design in ALL {
        let f = Fixture::new(design);
        f.hands.set(1000);
        f.put("a", "1");
        f.store.put_expiring(&f.k, b"old", b"x", Some(1)).unwrap();
        let seen = |steps: &[(&str, Option<&str>)], enough: usize| {
            let steps = steps.iter().map(|(key, value)| match value {
                Some(value) => (key.as_bytes(), Step::Put(value.as_bytes())),
                None => (key.as_bytes(), Step::Get),
            });
            let steps: Vec<_> = steps.collect();
            let mut seen = Vec::new();
            let done = f.store.execute_batch(&f.k, &steps, |entry| {
                if seen.len() == enough {
                    return ControlFlow::Break(());
                }
                seen.push(text(entry.map(|entry| entry.value.to_vec())));
                ControlFlow::Continue(())
            });
            assert_eq!(done.unwrap(), seen.len());
            let seen = seen.into_iter().map(Option::unwrap_or_default);
            seen.collect::<Vec<_>>().join(",")
        };
        // A key may be read twice, but a put of it ends the batch, before or after.
        let steps = [
            ("a", None),
            ("b", Some("2")),
            ("old", None),
            ("a", None),
            ("c", None),
            ("b", None),
        ];
        assert_eq!(seen(&steps, 9), "1,,,1,");
        assert_eq!(seen(&[("b", None), ("b", Some("3"))], 9), "2");
        // The value to be replaced is shown even if it has expired.
        assert_eq!(seen(&[("old", Some("4")), ("b", None)], 9), "x,2");
        assert_eq!(seen(&[("c", Some("5")), ("b", Some("6"))], 1), "");
        assert_eq!(seen(&[("a", None), ("b", None)], 1), "1");
        assert_eq!(seen(&[("a", None)], 0), "");
        let values = ["a", "b", "c", "old"].map(|key| f.get(key).unwrap());
        assert_eq!(values, ["1", "2", "5", "4"]);
        f.store.check().unwrap();
    }
}

#[test]
fn steps_of_two_threads_do_not_mix() {
    for design in ALL {
        let f = Fixture::new(design);
        // In round n each thread puts n under its own key and gets the other's key, before or after
        // that. One of them is first.
        let run = |own: &str, other: &str, round: u32| {
            let value = round.to_string();
            let mut steps = [
                (own.as_bytes(), Step::Put(value.as_bytes())),
                (other.as_bytes(), Step::Get),
            ];
            if round.is_multiple_of(2) {
                steps.reverse();
            }
            let mut got = 0;
            let mut at = steps.iter();
            let done = f.store.execute_batch(&f.k, &steps, |entry| {
                if let (Some((_, Step::Get)), Some(entry)) = (at.next(), entry) {
                    got = text(Some(entry.value.to_vec())).unwrap().parse().unwrap();
                }
                ControlFlow::Continue(())
            });
            assert_eq!(done.unwrap(), 2);
            got
        };
        let got = [const { AtomicU32::new(0) }; 2];
        let turn = Barrier::new(2);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (run, got, turn) = (&run, &got, &turn);
                scope.spawn(move || {
                    for round in 1..3000 {
                        turn.wait();
                        let names = ["a", "b"];
                        let found = run(names[thread], names[1 - thread], round);
                        got[thread].store(found, Ordering::SeqCst);
                        turn.wait();
                        if thread == 0 {
                            let [a, b] = [0, 1].map(|i: usize| got[i].load(Ordering::SeqCst));
                            // One thread is first, and does not see the other's put.
                            assert_eq!([a, b].iter().filter(|got| **got == round).count(), 1);
                            assert_eq!(a.min(b), round - 1);
                        }
                    }
                });
            }
        });
        f.store.check().unwrap();
    }
}

#[test]
fn what_cannot_be_put_changes_nothing() {
    for design in ALL {
        let f = Fixture::new(design);
        let long = vec![b'k'; bristlecone_store::MAX_KEY_BYTES + 1];
        let puts = [(&b"a"[..], b"1"), (&long[..], b"1")];
        assert!(matches!(
            f.store.multi_put(&f.k, &puts, |_| true),
            Err(WriteError::KeyTooLong { .. })
        ));
        assert_eq!(f.get("a"), None);
        f.store.check().unwrap();
    }
}

#[test]
fn threads_that_put_the_same_keys_together_leave_whole_groups_to_readers() {
    for design in ALL {
        let f = Fixture::new(design);
        let names: Vec<String> = (0..8).map(|i| format!("key {i}")).collect();
        let group = |offset: usize, value: &str| {
            let keys = (0..8).map(|i| names[(i * 3 + offset) % 8].as_bytes());
            let puts: Vec<_> = keys.map(|key| (key, value)).collect();
            assert_eq!(f.store.multi_put(&f.k, &puts, |_| true).unwrap(), 8);
        };
        group(0, "start");
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|thread| {
                    let group = &group;
                    scope.spawn(move || {
                        for turn in 0..300 {
                            group(thread + turn, &format!("{thread} {turn}"));
                        }
                    })
                })
                .collect();
            while !writers.iter().all(|writer| writer.is_finished()) {
                let snapshot = f.store.snapshot();
                let values: Vec<_> = (names.iter())
                    .map(|name| snapshot.get(&f.k, name.as_bytes()).unwrap())
                    .collect();
                assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
            }
        });
        f.store.check().unwrap();
    }
}

#[test]
fn values_are_got_together_at_one_time_until_it_is_enough() {
    for design in ALL {
        let f = Fixture::new(design);
        f.hands.set(1000);
        for i in 0..100 {
            f.put(&format!("key {i:02}"), &i.to_string());
        }
        f.store
            .put_expiring(&f.k, b"key 07", b"x", Some(2000))
            .unwrap();
        assert!(f.store.delete(&f.k, b"key 13").unwrap());
        let long = vec![b'k'; bristlecone_store::MAX_KEY_BYTES + 1];
        let names: Vec<_> = (0..100).map(|i| format!("key {i:02}")).collect();
        let mut keys: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        keys.extend([&b"none"[..], &long, b"key 00"]);
        let got = |most: usize| {
            let mut got = Vec::new();
            let read = f.store.multi_get(&f.k, &keys, |entry| {
                got.push(entry.map(|entry| String::from_utf8(entry.value.to_vec()).unwrap()));
                if got.len() < most {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
            read.unwrap();
            got
        };
        let expected = |i: usize| match i {
            7 => Some("x".to_owned()),
            13 | 100 | 101 => None,
            102 => Some("0".to_owned()),
            _ => Some(i.to_string()),
        };
        assert_eq!(got(1000), (0..103).map(expected).collect::<Vec<_>>());
        assert_eq!(got(9), (0..9).map(expected).collect::<Vec<_>>());
        f.hands.set(2000);
        assert_eq!(got(8)[7], None);
        f.store
            .multi_get(&f.k, &[], |_| unreachable!("there is no key"))
            .unwrap();
        f.store.prefetch(&f.k, &keys);
    }
}

#[test]
fn who_gets_together_what_is_written_and_vacuumed_meanwhile_finds_it() {
    for design in ALL {
        let f = Fixture::new(design);
        let names: Vec<_> = (0..40).map(|i| format!("key {i}")).collect();
        let keys: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        let all = |value: u64| {
            let value = value.to_string();
            let puts: Vec<_> = keys.iter().map(|key| (*key, &value)).collect();
            assert_eq!(f.store.multi_put(&f.k, &puts, |_| true).unwrap(), 40);
        };
        all(0);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for turn in 1..2000 {
                    all(turn);
                    if turn % 10 == 0 {
                        f.store.vacuum_all().unwrap();
                    }
                }
            });
            let mut last = 0;
            while !writer.is_finished() {
                let mut found = Vec::new();
                let read = f.store.multi_get(&f.k, &keys, |entry| {
                    let value = entry.expect("it is always there").value;
                    found.push(std::str::from_utf8(value).unwrap().parse().unwrap());
                    ControlFlow::Continue(())
                });
                read.unwrap();
                assert_eq!(found.len(), 40);
                assert!(found[0] >= last, "{} after {last}", found[0]);
                assert!(found.is_sorted(), "time goes back: {found:?}");
                last = found[39];
            }
        });
    }
}
