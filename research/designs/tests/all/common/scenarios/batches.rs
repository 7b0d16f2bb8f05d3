//! `multi_get` and `multi_insert` return one answer per key, in order, whatever the batch.

use super::super::{Harness, Rng};
use super::{Model, assert_holds, key, value};
use bristlecone_designs::{InsertError, OrderedIndex};
use std::borrow::Borrow;

/// Empty, large, repeated and unsorted batches.
pub fn answers_in_order<H: Harness>() {
    let fresh = H::fresh();
    let index = &fresh.index;
    let mut model = Model::<H>::new();
    let mut rng = Rng::new(21);
    let mut answers = vec![Ok(())];
    index.multi_insert::<<H::Key as ToOwned>::Owned, <H::Value as ToOwned>::Owned>(
        &[],
        &mut answers,
    );
    assert!(
        answers.is_empty(),
        "an empty batch has no answers, and old ones go"
    );
    let mut found = vec![None];
    index.multi_get::<<H::Key as ToOwned>::Owned>(&[], &mut found);
    assert!(
        found.is_empty(),
        "an empty batch has no answers, and old ones go"
    );

    // From one pair to far more than the window of a leaf or a batch holds.
    for (round, size) in [1usize, 2, 7, 15, 64, 65, 1000, 1, 300, 5000]
        .into_iter()
        .enumerate()
    {
        let numbers: Vec<u64> = (0..size).map(|_| rng.below(6_000)).collect();
        let pairs: Vec<_> = numbers
            .iter()
            .enumerate()
            .map(|(i, n)| (key::<H>(*n), value::<H>((round as u64) << 32 | i as u64)))
            .collect();
        index.multi_insert(&pairs, &mut answers);
        assert_eq!(answers.len(), size);
        for ((k, v), answer) in pairs.iter().zip(&answers) {
            // The first of two equal keys wins, within a batch as between batches.
            match answer {
                Ok(()) => assert!(
                    model.insert(k.clone(), v.clone()).is_none(),
                    "{k:?} was there"
                ),
                Err(InsertError::KeyExists) => {
                    assert!(model.contains_key(k.borrow()), "{k:?} was not there")
                }
                Err(e) => panic!("{k:?}: {e}"),
            }
        }
        let asked: Vec<_> = (0..size).map(|_| key::<H>(rng.below(7_000))).collect();
        index.multi_get(&asked, &mut found);
        let expected: Vec<_> = asked
            .iter()
            .map(|k| model.get(k.borrow()).cloned())
            .collect();
        assert_eq!(found, expected, "round {round}");
        assert_holds::<H>(index, &model, "between batches");
    }

    // One batch, one key.
    let same: Vec<_> = (0..20).map(|n| (key::<H>(9_999), value::<H>(n))).collect();
    index.multi_insert(&same, &mut answers);
    assert!(answers[0].is_ok(), "{:?}", answers[0]);
    assert!(
        answers[1..]
            .iter()
            .all(|a| matches!(a, Err(InsertError::KeyExists))),
        "{answers:?}"
    );
    assert_eq!(index.get(key::<H>(9_999).borrow()), Some(value::<H>(0)));
}
