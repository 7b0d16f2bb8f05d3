//! The bare index of numbers, from outside.

use bristlecone::index::NumberIndex;
use bristlecone::{Database, ErrorKind};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;
use tempfile::TempDir;

fn index() -> (TempDir, NumberIndex) {
    let home = crate::home();
    let index = NumberIndex::open(home.path().join("numbers")).unwrap();
    (home, index)
}

#[test]
fn what_was_inserted_is_there_after_closing_and_after_dropping() {
    let (home, index) = index();
    assert!(!index.insert(7, 70).unwrap());
    assert!(index.insert(7, 71).unwrap());
    assert_eq!((index.get(7), index.get(8)), (Some(71), None));
    index.close().unwrap();

    let path = home.path().join("numbers");
    let index = NumberIndex::open(&path).unwrap();
    index.insert(8, 80).unwrap();
    assert!(index.remove(7).unwrap() && !index.remove(7).unwrap());
    let clone = index.clone();
    assert_eq!(index.close().unwrap_err().kind(), ErrorKind::InUse);
    drop(clone);

    let index = NumberIndex::open(&path).unwrap();
    assert_eq!(index.multi_get(&[7, 8]), [None, Some(80)]);
    assert_eq!(
        (index.first(), index.last()),
        (Some((8, 80)), Some((8, 80)))
    );
    assert_eq!(index.stats().entries, 1);
    index.check().unwrap();
}

#[test]
fn a_file_of_another_use_is_refused_and_left_alone() {
    let (home, index) = index();
    index.insert(1, 2).unwrap();
    index.close().unwrap();
    let path = home.path().join("numbers");
    let error = Database::open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotADatabase, "{error}");

    let shop = home.path().join("shop.db");
    let db = Database::open(&shop).unwrap();
    db.keyspace("k").unwrap().insert("a", "b").unwrap();
    db.close().unwrap();
    let error = NumberIndex::open(&shop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotADatabase, "{error}");
    assert!(error.to_string().contains("shop.db"), "{error}");
    let db = Database::open(&shop).unwrap();
    let k = db.find_keyspace("k").unwrap();
    assert_eq!(k.get("a").unwrap().unwrap(), "b");

    let options = Database::builder().create(false);
    let missing = NumberIndex::open_with(&options, home.path().join("missing")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    let options = Database::builder().read_only(true);
    let index = NumberIndex::open_with(&options, &path).unwrap();
    assert_eq!(index.get(1), Some(2));
    assert_eq!(index.insert(2, 3).unwrap_err().kind(), ErrorKind::ReadOnly);
}

#[test]
fn bulk_loading_takes_ascending_pairs_into_an_empty_index_alone() {
    let (_home, mut index) = index();
    let mut load = |pairs: &[(u64, u64)]| index.bulk_load(pairs.iter().copied());
    let error = load(&[(2, 0), (1, 0)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert_eq!(load(&[(1, 10), (2, 20), (u64::MAX, 30)]).unwrap(), 3);
    assert_eq!(load(&[(5, 0)]).unwrap_err().kind(), ErrorKind::InvalidInput);
    let all: Vec<_> = index.iter().collect();
    assert_eq!(all, [(1, 10), (2, 20), (u64::MAX, 30)]);
    let other = index.clone();
    let error = index.bulk_load([]).unwrap_err();
    assert!(error.to_string().contains("another handle"), "{error}");
    drop(other);
}

fn bound() -> impl Strategy<Value = Bound<u64>> {
    let key = prop_oneof![0..60u64, Just(u64::MAX), Just(u64::MAX - 1)];
    prop_oneof![
        Just(Bound::Unbounded),
        key.clone().prop_map(Bound::Included),
        key.prop_map(Bound::Excluded),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn iterators_give_what_a_map_gives_from_either_end(
        keys in proptest::collection::vec(prop_oneof![9 => 0..60u64, 1 => Just(u64::MAX)], 0..80),
        (start, end) in (bound(), bound()),
        steps in proptest::collection::vec(any::<bool>(), 0..90),
    ) {
        let (_home, index) = index();
        let mut model = BTreeMap::new();
        for (i, key) in (0..).zip(keys) {
            index.insert(key, i).unwrap();
            model.insert(key, i);
        }
        let mut expected: Vec<(u64, u64)> = model
            .into_iter()
            .filter(|(key, _)| std::ops::RangeBounds::contains(&(start, end), key))
            .collect();
        let mut found = index.range((start, end));
        for up in steps {
            if up {
                let next = (!expected.is_empty()).then(|| expected.remove(0));
                prop_assert_eq!(found.next(), next);
            } else {
                prop_assert_eq!(found.next_back(), expected.pop());
            }
        }
        prop_assert!(found.eq(expected));
    }
}
