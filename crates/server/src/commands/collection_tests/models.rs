//! Random commands against a model, in both encodings, with the pool reopened in between; and the
//! elements that deleted collections leave.

use crate::commands::collection_tests::{Bytes, Server, strings};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

const KEYS: usize = 2;

fn keys() -> Vec<Bytes> {
    (0..KEYS).map(|n| format!("key{n}").into_bytes()).collect()
}

fn integer(number: usize) -> Bytes {
    format!(":{number}\r\n").into_bytes()
}

fn bulk(text: Option<&Bytes>) -> Bytes {
    match text {
        Some(text) => [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat(),
        None => b"$-1\r\n".to_vec(),
    }
}

fn name(rng: &mut SmallRng) -> Bytes {
    match rng.random_range(0..100) {
        0 => vec![b'l'; rng.random_range(1000..1100)],
        1 => Vec::new(),
        2 => vec![0xff; rng.random_range(1..5)],
        _ => format!("n{}", rng.random_range(0..260)).into_bytes(),
    }
}

/// Returns true while more is added than removed.
fn growing(step: usize) -> bool {
    (step / 1500).is_multiple_of(2)
}

fn names(rng: &mut SmallRng, most: usize) -> Vec<Bytes> {
    (0..rng.random_range(1..=most)).map(|_| name(rng)).collect()
}

fn words<'a>(name: &'a [u8], key: &'a Bytes, rest: &'a [Bytes]) -> Vec<&'a [u8]> {
    let mut words: Vec<&[u8]> = vec![name, key];
    words.extend(rest.iter().map(Vec::as_slice));
    words
}

/// Every collection was small and large, and deleted ones leave nothing.
fn ended(server: &mut Server, seen: &BTreeSet<bool>) {
    assert_eq!(seen.len(), 2, "both encodings");
    for key in keys() {
        server.call(&[b"del", &key]);
    }
    assert_eq!(server.elements(), 0);
}

/// A server, and a model of what each key holds.
struct Trial<T> {
    rng: SmallRng,
    server: Server,
    keys: Vec<Bytes>,
    model: Vec<T>,
}

/// Executes random commands on two keys, with deleted collections and reopenings in between. `call`
/// executes one on the key of that number and on its model, and compares them; it adds elements if
/// its last argument is true. `elements` returns the number of element records of a large
/// collection.
fn compare<T: Clone + Default>(
    seed: u64,
    call: fn(&mut Trial<T>, usize, bool),
    elements: fn(&T) -> usize,
) {
    let mut trial = Trial {
        rng: SmallRng::seed_from_u64(seed),
        server: Server::new(),
        keys: keys(),
        model: vec![T::default(); KEYS],
    };
    let mut seen = BTreeSet::new();
    for step in 0..6000 {
        let at = trial.rng.random_range(0..KEYS);
        call(&mut trial, at, growing(step));
        if step % 500 == 0 {
            let large = trial.server.large(&trial.keys);
            seen.extend(&large);
            let counted = large.iter().zip(&trial.model).filter(|(large, _)| **large);
            let right: usize = counted.map(|(_, one)| elements(one)).sum();
            assert_eq!(trial.server.elements(), right as u64);
        }
    }
    ended(&mut trial.server, &seen);
}

#[test]
fn hashes_are_as_a_map() {
    compare(1, call_on_hash, BTreeMap::len);
}

fn call_on_hash(trial: &mut Trial<BTreeMap<Bytes, Bytes>>, at: usize, growing: bool) {
    let Trial {
        rng,
        server,
        keys,
        model,
    } = trial;
    let (key, map) = (&keys[at], &mut model[at]);
    match rng.random_range(0..10) {
        0..5 if growing => {
            let mut pairs = Vec::new();
            let mut new = 0;
            for name in names(rng, 3) {
                let value = vec![b'v'; rng.random_range(0..20)];
                new += usize::from(map.insert(name.clone(), value.clone()).is_none());
                pairs.extend([name, value]);
            }
            assert_eq!(server.call(&words(b"hset", key, &pairs)), integer(new));
        }
        0..5 => {
            let names = names(rng, 12);
            let gone = names
                .iter()
                .filter(|name| map.remove(*name).is_some())
                .count();
            assert_eq!(server.call(&words(b"hdel", key, &names)), integer(gone));
        }
        5 | 6 => {
            let name = name(rng);
            let reply = server.call(&[b"hget", key, &name]);
            assert_eq!(reply, bulk(map.get(&name)));
        }
        7 => assert_eq!(server.call(&[b"hlen", key]), integer(map.len())),
        8 => {
            let given = server.strings(&[b"hgetall", key]);
            let pairs = given
                .chunks(2)
                .map(|pair| (pair[0].clone(), pair[1].clone()));
            assert_eq!(given.len(), 2 * map.len());
            assert_eq!(&pairs.collect::<BTreeMap<_, _>>(), map);
        }
        _ => {
            let found = server.strings(&[b"hrandfield", key, b"5"]);
            assert_eq!(found.len(), map.len().min(5));
            assert!(found.iter().all(|name| map.contains_key(name)));
            assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), found.len());
        }
    }
}

#[test]
fn sets_are_as_a_set() {
    compare(2, call_on_set, BTreeSet::len);
}

fn call_on_set(trial: &mut Trial<BTreeSet<Bytes>>, at: usize, growing: bool) {
    let Trial {
        rng,
        server,
        keys,
        model,
    } = trial;
    let (key, set) = (&keys[at], &mut model[at]);
    match rng.random_range(0..12) {
        0..5 if growing => {
            let names = names(rng, 4);
            let new = names
                .iter()
                .filter(|name| set.insert((*name).clone()))
                .count();
            assert_eq!(server.call(&words(b"sadd", key, &names)), integer(new));
        }
        0..4 => {
            let names = names(rng, 12);
            let gone = names.iter().filter(|name| set.remove(*name)).count();
            assert_eq!(server.call(&words(b"srem", key, &names)), integer(gone));
        }
        4 => {
            let popped = server.strings(&[b"spop", key, b"7"]);
            assert_eq!(popped.len(), set.len().min(7));
            assert!(popped.iter().all(|name| set.remove(name)));
        }
        5 | 6 => {
            let name = name(rng);
            let reply = server.call(&[b"sismember", key, &name]);
            assert_eq!(reply, integer(usize::from(set.contains(&name))));
        }
        7 => assert_eq!(server.call(&[b"scard", key]), integer(set.len())),
        8 => {
            let found = server.strings(&[b"smembers", key]);
            assert_eq!(found.len(), set.len());
            assert_eq!(&found.into_iter().collect::<BTreeSet<_>>(), set);
        }
        9 => {
            let found = server.strings(&[b"srandmember", key, b"-9"]);
            assert_eq!(found.len(), if set.is_empty() { 0 } else { 9 });
            assert!(found.iter().all(|name| set.contains(name)));
        }
        10 => {
            let of = [b"sinter", b"sunion"][at];
            let found = server.strings(&[of, &keys[0], &keys[1]]);
            let found: BTreeSet<Bytes> = found.into_iter().collect();
            let right = if at == 0 {
                &model[0] & &model[1]
            } else {
                &model[0] | &model[1]
            };
            assert_eq!(found, right);
        }
        _ => {
            let reply = server.call(&[b"sdiffstore", key, key, &keys[1 - at]]);
            let diff = &model[at] - &model[1 - at];
            assert_eq!(reply, integer(diff.len()));
            model[at] = diff;
        }
    }
}

#[test]
fn sorted_sets_are_as_a_map_in_order_of_scores() {
    compare(3, call_on_sorted_set, |map| 2 * map.len());
}

fn call_on_sorted_set(trial: &mut Trial<BTreeMap<Bytes, i32>>, at: usize, growing: bool) {
    let mut order: Vec<(i32, Bytes)> = trial.model[at]
        .iter()
        .map(|(name, score)| (*score, name.clone()))
        .collect();
    order.sort();
    let range = [(); 2].map(|()| trial.rng.random_range(-60..60));
    match trial.rng.random_range(0..12) {
        choice @ 0..5 => change_sorted_set(trial, at, growing, choice, &order),
        choice => read_sorted_set(trial, at, choice, &order, range),
    }
}

/// `order` has the elements in the order of their scores.
fn change_sorted_set(
    trial: &mut Trial<BTreeMap<Bytes, i32>>,
    at: usize,
    growing: bool,
    choice: u32,
    order: &[(i32, Bytes)],
) {
    let Trial {
        rng,
        server,
        keys,
        model,
    } = trial;
    let (key, map) = (&keys[at], &mut model[at]);
    match choice {
        _ if growing => {
            let mut pairs = Vec::new();
            let mut new = 0;
            for name in names(rng, 3) {
                let score = rng.random_range(-50..50);
                new += usize::from(map.insert(name.clone(), score).is_none());
                pairs.extend([score.to_string().into_bytes(), name]);
            }
            assert_eq!(server.call(&words(b"zadd", key, &pairs)), integer(new));
        }
        0..4 => {
            let names = names(rng, 12);
            let gone = names
                .iter()
                .filter(|name| map.remove(*name).is_some())
                .count();
            assert_eq!(server.call(&words(b"zrem", key, &names)), integer(gone));
        }
        _ => {
            let popped = server.strings(&[b"zpopmax", key, b"5"]);
            let right: Vec<Bytes> = order
                .iter()
                .rev()
                .take(5)
                .flat_map(|(score, name)| [name.clone(), score.to_string().into_bytes()])
                .collect();
            assert_eq!(popped, right);
            order.iter().rev().take(5).for_each(|(_, name)| {
                map.remove(name);
            });
        }
    }
}

/// `order` has the elements in the order of their scores.
fn read_sorted_set(
    trial: &mut Trial<BTreeMap<Bytes, i32>>,
    at: usize,
    choice: u32,
    order: &[(i32, Bytes)],
    [low, high]: [i32; 2],
) {
    let Trial {
        rng,
        server,
        keys,
        model,
    } = trial;
    let (key, map) = (&keys[at], &model[at]);
    let texts = [low, high].map(|number: i32| number.to_string().into_bytes());
    match choice {
        5 => {
            let name = name(rng);
            let rank = order.iter().position(|(_, other)| *other == name);
            let right = rank.map_or_else(|| bulk(None), integer);
            assert_eq!(server.call(&[b"zrank", key, &name]), right);
        }
        6 => {
            let name = name(rng);
            let right = map.get(&name).map(|score| score.to_string().into_bytes());
            assert_eq!(server.call(&[b"zscore", key, &name]), bulk(right.as_ref()));
        }
        7 | 8 => {
            let found = server.strings(&[b"zrange", key, &texts[0], &texts[1]]);
            let len = order.len() as i32;
            let index = |number: i32| if number < 0 { number + len } else { number };
            let right: Vec<Bytes> = (index(low).max(0)..=index(high).min(len - 1))
                .map(|index| order[index as usize].1.clone())
                .collect();
            assert_eq!(found, right);
        }
        9 => {
            let found = server.strings(&[b"zrevrangebyscore", key, &texts[1], &texts[0]]);
            let within = |one: &&(i32, Bytes)| (low..=high).contains(&one.0);
            let right: Vec<Bytes> = order
                .iter()
                .filter(within)
                .map(|one| one.1.clone())
                .rev()
                .collect();
            assert_eq!(found, right);
        }
        10 => {
            let reply = server.call(&[b"zcount", key, &texts[0], &texts[1]]);
            let within = order.iter().filter(|one| (low..=high).contains(&one.0));
            assert_eq!(reply, integer(within.count()));
        }
        _ => {
            let found = server.strings(&[b"zunion", b"2", &keys[0], &keys[1]]);
            let mut sums = model[0].clone();
            for (name, score) in &model[1] {
                *sums.entry(name.clone()).or_default() += score;
            }
            let mut right: Vec<(i32, Bytes)> = sums
                .into_iter()
                .map(|(name, score)| (score, name))
                .collect();
            right.sort();
            let right: Vec<Bytes> = right.into_iter().map(|one| one.1).collect();
            assert_eq!(found, right);
        }
    }
}

#[test]
fn lists_are_as_a_vector() {
    compare(4, call_on_list, Vec::len);
}

fn call_on_list(trial: &mut Trial<Vec<Bytes>>, at: usize, growing: bool) {
    let len = trial.model[at].len();
    let index = trial.rng.random_range(0..=len.max(1));
    match trial.rng.random_range(0..14) {
        choice @ 0..8 => add_or_remove_items(trial, at, growing, choice, index),
        choice => set_or_read_items(trial, at, choice, index),
    }
}

fn add_or_remove_items(
    trial: &mut Trial<Vec<Bytes>>,
    at: usize,
    growing: bool,
    choice: u32,
    index: usize,
) {
    let Trial {
        rng,
        server,
        keys,
        model,
    } = trial;
    let (key, list) = (&keys[at], &mut model[at]);
    let len = list.len();
    match choice {
        0..4 if growing => {
            let names = names(rng, 4);
            let left = rng.random();
            let (push, at): (&[u8], usize) = if left { (b"lpush", 0) } else { (b"rpush", len) };
            let items = names.iter().cloned();
            if left {
                list.splice(at..at, items.rev());
            } else {
                list.splice(at..at, items);
            }
            assert_eq!(server.call(&words(push, key, &names)), integer(list.len()));
        }
        0..3 => {
            let left = rng.random();
            let name: &[u8] = if left { b"lpop" } else { b"rpop" };
            let popped: Vec<Bytes> = if left {
                list.drain(..len.min(5)).collect()
            } else {
                list.drain(len - len.min(5)..).rev().collect()
            };
            let reply = server.call(&[name, key, b"5"]);
            if popped.is_empty() {
                assert_eq!(reply, b"*-1\r\n");
            } else {
                assert_eq!(strings(&reply), popped);
            }
        }
        3 => {
            let stop = len.saturating_sub(3).max(index).to_string().into_bytes();
            assert_eq!(server.call(&[b"ltrim", key, b"1", &stop]), b"+OK\r\n");
            list.truncate(len.saturating_sub(3).max(index) + 1);
            list.drain(..list.len().min(1));
        }
        4 | 5 => {
            let (pivot, item) = (name(rng), name(rng));
            let reply = server.call(&[b"linsert", key, b"after", &pivot, &item]);
            match list.iter().position(|other| *other == pivot) {
                Some(found) => {
                    list.insert(found + 1, item);
                    assert_eq!(reply, integer(list.len()));
                }
                None if len == 0 => assert_eq!(reply, integer(0)),
                None => assert_eq!(reply, b":-1\r\n"),
            }
        }
        _ => {
            let item = if len > 0 {
                list[rng.random_range(0..len)].clone()
            } else {
                name(rng)
            };
            let from_right = rng.random();
            let count: &[u8] = if from_right { b"-2" } else { b"2" };
            let mut found: Vec<usize> = (0..len).filter(|at| list[*at] == item).collect();
            if from_right {
                found.reverse();
            }
            found.truncate(2);
            let reply = server.call(&[b"lrem", key, count, &item]);
            assert_eq!(reply, integer(found.len()));
            found.sort_unstable();
            found.into_iter().rev().for_each(|at| {
                list.remove(at);
            });
        }
    }
}

fn set_or_read_items(trial: &mut Trial<Vec<Bytes>>, at: usize, choice: u32, index: usize) {
    let Trial {
        rng,
        server,
        keys,
        model,
    } = trial;
    let (key, list) = (&keys[at], &mut model[at]);
    let len = list.len();
    let text = index.to_string().into_bytes();
    match choice {
        8 => {
            let item = name(rng);
            let reply = server.call(&[b"lset", key, &text, &item]);
            match list.get_mut(index) {
                Some(place) => {
                    *place = item;
                    assert_eq!(reply, b"+OK\r\n");
                }
                None => assert!(reply.starts_with(b"-ERR")),
            }
        }
        9 => {
            let reply = server.call(&[b"lindex", key, &text]);
            assert_eq!(reply, bulk(list.get(index)));
        }
        10 => {
            let found = server.strings(&[b"lrange", key, &text, b"-2"]);
            let right = list.get(index..len.saturating_sub(1)).unwrap_or_default();
            assert_eq!(found, right);
        }
        11 => {
            let other = 1 - at;
            let reply = server.call(&[b"lmove", key, &keys[other], b"left", b"right"]);
            let moved = (len > 0).then(|| list.remove(0));
            assert_eq!(reply, bulk(moved.as_ref()));
            model[other].extend(moved);
        }
        _ => {
            let found = server.strings(&[b"lrange", key, b"0", b"-1"]);
            assert_eq!(&found, list);
        }
    }
}
