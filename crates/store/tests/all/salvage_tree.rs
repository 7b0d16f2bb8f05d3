//! What salvage of a store on a clustered tree saves without the words that usually lead to it.

use crate::common::{Fixture, TREE};
use crate::salvage::filled;
use bristlecone_index::clustered::{
    ClusteredOptions, Glimpse, HostedTree, Modification, Observed, Observer,
};
use bristlecone_pmem::heap::damage_is_expected;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::layout::{ROOT_SLOT, ROOT_TABLE};
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{MAX_KEY_BYTES, Store, StoreOptions};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Values by keyspace and key.
type Content = BTreeMap<(String, Vec<u8>), Vec<u8>>;

/// Entries of a pool that is salvaged by its own method, as a new store has them, and what is told.
fn saved(f: &Fixture, path: &Path) -> (Content, Vec<String>) {
    let damaged = Pool::<Auto>::salvage(path).unwrap();
    let new = f.new_pool();
    let options = StoreOptions::default().without_thread();
    let store = Store::create(&new, "s", &options).unwrap();
    let mut told = damaged.problems().to_vec();
    let report = Store::salvage_into(&damaged, "s", 0, &store, &mut |salvaged| {
        told.extend(salvaged.found.as_ref().err().map(ToString::to_string));
    });
    told.extend(report.unwrap().passed);
    (content(&store), told)
}

fn content(store: &Store<Auto>) -> Content {
    let mut all = Content::new();
    for keyspace in store.keyspaces() {
        all.insert(
            (keyspace.name().to_owned(), b"there is".to_vec()),
            Vec::new(),
        );
        let snapshot = store.snapshot();
        let scanned = snapshot.scan::<Vec<u8>>(&keyspace, .., |key, entry| {
            let key = (keyspace.name().to_owned(), key.to_vec());
            all.insert(key, entry.value.to_vec());
            ControlFlow::Continue(())
        });
        scanned.unwrap();
    }
    all
}

/// One wrong bit of the root words of the store, or of its tree, made the whole of it unreadable.
#[test]
fn one_wrong_bit_of_the_roots_costs_nothing() {
    damage_is_expected::here();
    let f = filled(TREE);
    let expected = content(&f.store);
    for (closed, step) in [(false, 53), (true, 59)] {
        let path = f.copy();
        if closed {
            let pool = Pool::<Auto>::open(&path, &PoolOptions::default()).unwrap();
            let store = Store::open(&pool, "s", &f.options).unwrap();
            store.close().map_err(|(_, e)| e).unwrap();
        }
        let file = std::fs::read(&path).unwrap();
        assert_eq!(saved(&f, &path), (expected.clone(), Vec::new()));
        let slots = ROOT_TABLE..ROOT_TABLE + 2 * ROOT_SLOT;
        let mut told_of = 0;
        for bit in (slots.start * 8..slots.end * 8).step_by(step) {
            let word = bit as usize / 64 * 8;
            if file[word..word + 8] == 3_u64.to_le_bytes() && bit % 64 < 8 {
                // Another version of the store's format, for all one knows.
                continue;
            }
            let mut file = file.clone();
            file[bit as usize / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, file).unwrap();
            let (all, told) = saved(&f, &path);
            assert!(all == expected, "bit {bit}: {told:?}");
            told_of += usize::from(!told.is_empty());
        }
        assert!(told_of > 20, "{told_of}");
    }
}

#[derive(Debug)]
struct Nobody;

impl Observer for Nobody {
    fn weigh(&self, _: Glimpse<'_>) -> u64 {
        0
    }

    fn changed(&self, _: Observed<'_>) {}
}

/// The tree of a store that is closed.
fn tree(path: &Path) -> HostedTree<Auto> {
    let pool = Pool::open(path, &PoolOptions::default()).unwrap();
    let options = ClusteredOptions::default();
    HostedTree::open(&pool, "s.index", &options, Arc::new(Nobody)).unwrap()
}

fn remove(tree: &HostedTree<Auto>, key: &[u8]) {
    let removed = tree.modify(key, |current| {
        assert!(current.is_some(), "{key:?}");
        Ok(Modification::Remove)
    });
    removed.unwrap();
}

/// A keyspace whose name was lost, and one that was called as it was to be called, became one.
#[test]
fn keyspaces_without_names_are_not_mixed_with_others() {
    let f = Fixture::new(TREE);
    let names = [
        "number 3",
        "three",
        "four",
        "number 4",
        "number 4'",
        "six",
        "number 6",
    ];
    let mut numbers = BTreeMap::new();
    for name in names {
        let keyspace = f.store.keyspace(name).unwrap();
        numbers.insert(name, keyspace.number());
        if name != "number 6" {
            f.store.put(&keyspace, b"of", name.as_bytes()).unwrap();
        }
    }
    let new = f.new_pool();
    let options = StoreOptions::default().without_thread();
    let into = Store::create(&new, "s", &options).unwrap();
    let (dir, _) = f.ended(true);
    let path = dir.path().join("pool");
    let tree = tree(&path);
    for (name, called) in [("three", 3u32), ("four", 4), ("six", 7)] {
        let number = numbers[name];
        assert!(name == "six" || number == called, "{name} is {number}");
        remove(&tree, &[&[0; 4], name.as_bytes()].concat());
        remove(
            &tree,
            &[(u32::MAX - 2).to_be_bytes(), number.to_be_bytes()].concat(),
        );
    }
    drop(tree);
    let damaged = Pool::<Auto>::salvage(&path).unwrap();
    Store::salvage_into(&damaged, "s", 0, &into, &mut |_| {}).unwrap();
    let of = |name: &str| {
        let all = content(&into);
        let value = all.get(&(name.to_owned(), b"of".to_vec()));
        value.map(|value| String::from_utf8(value.clone()).unwrap())
    };
    for (called, name) in [
        ("number 3", "number 3"),
        ("number 3'", "three"),
        ("number 4", "number 4"),
        ("number 4'", "number 4'"),
        ("number 4''", "four"),
    ] {
        assert_eq!(of(called).as_deref(), Some(name), "{called}");
    }
}

/// Markers of long keys that led from one to the next took memory by the square of their number,
/// and made keys that no store takes: nothing was saved.
#[test]
fn keys_that_are_longer_than_any_are_told_and_the_rest_is_saved() {
    let f = filled(TREE);
    let expected = content(&f.store);
    let path = f.copy();
    {
        let tree = tree(&path);
        let space = |id: u64| {
            let number = f.k.number().to_be_bytes();
            [&u32::MAX.to_be_bytes()[..], &number, &id.to_be_bytes()].concat()
        };
        let marker = |at: &[u8], to: u64| {
            let mut key = [at, &[b'x'; 2048]].concat();
            key.truncate(2047);
            key.push(0);
            let value = [&[0xC1, 0x9E, 0x5B, 0xF6, 1][..], &to.to_le_bytes()].concat();
            tree.put(&key, &value).unwrap();
        };
        let from = f.k.number().to_be_bytes().to_vec();
        for id in 1_000..1_100 {
            marker(
                &if id == 1_000 {
                    from.clone()
                } else {
                    space(id - 1)
                },
                id,
            );
        }
        // One leads to itself.
        marker(&space(2_000), 2_000);
        for id in [1_010, 1_099, 2_000] {
            tree.put(&[&space(id)[..], b"z end"].concat(), b"value")
                .unwrap();
        }
    }
    let (mut all, told) = saved(&f, &path);
    let is_long = |(_, key): &(String, Vec<u8>)| key.ends_with(b"end");
    let long: Vec<_> = all.keys().filter(|key| is_long(key)).cloned().collect();
    assert_eq!(long.len(), 1);
    assert!((20_000..MAX_KEY_BYTES).contains(&long[0].1.len()));
    all.retain(|key, _| !is_long(key));
    assert!(all == expected);
    assert_eq!(told.len(), 2, "{told:?}");
    let is_it = |told: &String| told.contains("longer than any");
    assert!(told.iter().all(is_it), "{told:?}");
}

/// A name that was longer than any, with a right sum, kept everything from being saved; the number
/// behind the last one was counted on from.
#[test]
fn names_and_numbers_that_no_keyspace_has_cost_nothing_else() {
    let f = filled(TREE);
    let expected = content(&f.store);
    let path = f.copy();
    let (long, copy) = ([b'n'; 1_500], (u32::MAX - 2).to_be_bytes());
    {
        let tree = tree(&path);
        let put = |key: &[&[u8]], value: &[u8]| tree.put(&key.concat(), value).unwrap();
        put(&[&[0; 4], &long], &70_u32.to_le_bytes());
        put(&[&copy, &71_u32.to_be_bytes()], &[b"n", &long[..]].concat());
        put(&[&copy, &72_u32.to_be_bytes()], b"n");
        put(&[&copy, &u32::MAX.to_be_bytes()], b"nlast");
        for reserved in [u32::MAX, u32::MAX - 1].map(u32::to_be_bytes) {
            put(&[&reserved, &[0xFF; 4], &[0; 8], b"x"], b"value");
        }
    }
    let (all, told) = saved(&f, &path);
    assert!(all == expected);
    assert!(told.len() > 3, "{told:?}");
    let pool = Pool::<Auto>::open(&path, &PoolOptions::read_only()).unwrap();
    let store = Store::open(&pool, "s", &f.options).unwrap();
    assert!(store.recovery().damaged > 3);
}
