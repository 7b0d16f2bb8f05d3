//! Changes of a key by what it has.

use super::tests::{Medium, pool, tree};
use super::*;
use crate::contract::{DurableIndex, InsertError, OrderedIndex};

#[test]
fn each_modification_is_made_or_not() {
    let tree = tree::<[u8]>(1024);
    let put = |bytes: &[u8]| Modification::Put(bytes.to_vec());
    let long = vec![5; 3_000];
    assert!(!tree.modify(b"k", |_| Modification::Remove).unwrap());
    assert!(!tree.modify(b"k", |_| Modification::Keep).unwrap());
    let absent = tree.modify(b"k", |value| {
        assert_eq!(value, None);
        put(b"short")
    });
    assert!(absent.unwrap());
    let grown = tree.modify(b"k", |value| {
        assert_eq!(value, Some(&b"short"[..]));
        put(&long)
    });
    assert!(grown.unwrap());
    let doubled = tree.modify(b"k", |value| put(&value.unwrap().repeat(2)));
    assert!(doubled.unwrap());
    assert_eq!(tree.get(b"k").unwrap(), vec![5; 6_000]);
    assert!(!tree.modify(b"k", |_| Modification::Keep).unwrap());
    assert!(tree.modify(b"k", |_| Modification::Remove).unwrap());
    assert_eq!(tree.get(b"k"), None);
    let refused = tree.modify(&[1; MAX_KEY + 1], |_| Modification::Keep);
    assert!(matches!(refused, Err(InsertError::KeyTooLong { .. })));
    tree.verify().unwrap();
}

#[test]
fn nothing_comes_between_reading_and_writing() {
    const THREADS: u64 = 4;
    const TIMES: u64 = 2_000;
    const KEYS: u64 = 3;
    let tree = tree::<u64>(512);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for i in 0..TIMES {
                    let add_one = |n: Option<&u64>| Modification::Put(n.map_or(1, |n| n + 1));
                    assert!(tree.modify(&(i % KEYS), add_one).unwrap());
                }
            });
        }
    });
    let sum: u64 = (0..KEYS).map(|key| tree.get(&key).unwrap()).sum();
    assert_eq!(sum, THREADS * TIMES);
    tree.verify().unwrap();
}

#[test]
fn a_panic_lets_go_of_the_page() {
    let tree = tree::<u64>(512);
    tree.insert(&1, &1).unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        tree.modify(&1, |_| panic!("on purpose"))
    }));
    assert!(panicked.is_err());
    assert!(tree.modify(&1, |_| Modification::Put(2)).unwrap());
    assert_eq!(tree.get(&1), Some(2));
}

#[test]
fn without_space_nothing_changes() {
    let pool = pool(16 << 20);
    let options = ClusteredOptions::default();
    let tree: ClusteredTree<[u8], [u8], Medium> =
        ClusteredTree::create(&pool, "t", &options).unwrap();
    tree.insert(b"k", b"v").unwrap();
    let refused = tree.modify(b"k", |_| Modification::Put(vec![1; 20 << 20]));
    assert!(matches!(refused, Err(InsertError::Space(_))), "{refused:?}");
    assert_eq!(tree.get(b"k").as_deref(), Some(&b"v"[..]));
    tree.verify().unwrap();
}
