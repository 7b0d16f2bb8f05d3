//! The extremes of the key types, and keys that are hard to tell apart.

use super::super::kinds::bound_ref;
use super::super::reference::is_void;
use super::super::{Harness, Rng, TestKey};
use super::{Model, assert_holds, key, short, value};
use bristlecone_designs::{InsertError, OrderedIndex, ReverseScan, UpdateError};
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};

fn filled<H: Harness>(
    index: &H::Index,
    mut keys: Vec<<H::Key as ToOwned>::Owned>,
    seed: u64,
) -> Model<H> {
    let mut model = Model::<H>::new();
    Rng::new(seed).shuffle(&mut keys);
    for (n, k) in keys.into_iter().enumerate() {
        let v = value::<H>(n as u64);
        index
            .insert(k.borrow(), v.borrow())
            .unwrap_or_else(|e| panic!("{}: {e}", short(&k)));
        let again = index.insert(k.borrow(), v.borrow());
        assert!(
            matches!(again, Err(InsertError::KeyExists)),
            "{}: {again:?}",
            short(&k)
        );
        model.insert(k, v);
    }
    model
}

/// Inserts, looks up, scans between, updates and removes at each boundary. One more byte is an
/// error.
pub fn every_boundary_key<H: Harness>() {
    for seed in 0..3 {
        let fresh = H::fresh();
        let index = &fresh.index;
        let keys = H::Key::boundaries(H::longest_key());
        let mut model = filled::<H>(index, keys.clone(), seed);
        assert_holds::<H>(index, &model, "the boundary keys alone");
        // Neighbours, which force splits between them.
        for n in 0..400 {
            let (k, v) = (key::<H>(n * 7), value::<H>(n));
            if model.insert(k.clone(), v.clone()).is_none() {
                index
                    .insert(k.borrow(), v.borrow())
                    .expect("a key that is not there");
            } else {
                index
                    .update(k.borrow(), v.borrow())
                    .expect("a key that is there");
            }
        }
        assert_holds::<H>(index, &model, "boundary keys among others");
        for k in &keys {
            let v = value::<H>(77);
            index
                .update(k.borrow(), v.borrow())
                .unwrap_or_else(|e| panic!("{}: {e}", short(k)));
            assert!(
                index.upsert(k.borrow(), v.borrow()).expect("upsert"),
                "{}",
                short(k)
            );
            model.insert(k.clone(), v);
        }
        assert_holds::<H>(index, &model, "after updates");
        too_long::<H>(index);
        assert_holds::<H>(index, &model, "after a key that is too long");
        for k in &keys {
            assert!(index.remove(k.borrow()).expect("removal"), "{}", short(k));
            assert!(
                !index.remove(k.borrow()).expect("removal"),
                "{} twice",
                short(k)
            );
            let gone = index.update(k.borrow(), value::<H>(1).borrow());
            assert!(
                matches!(gone, Err(UpdateError::NotFound)),
                "{}: {gone:?}",
                short(k)
            );
            model.remove(k.borrow());
        }
        assert_holds::<H>(index, &model, "without the boundary keys");
    }
}

fn too_long<H: Harness>(index: &H::Index) {
    let Some(long) = H::Key::too_long(H::longest_key()) else {
        return;
    };
    let bytes = size_of_val::<H::Key>(long.borrow());
    let v = value::<H>(1);
    let answers = [
        index.insert(long.borrow(), v.borrow()),
        index.upsert(long.borrow(), v.borrow()).map(drop),
    ];
    for answer in answers {
        match answer {
            Err(e @ InsertError::KeyTooLong { len, most }) => {
                assert_eq!((len, most), (bytes, bytes - 1));
                let text = e.to_string();
                assert!(
                    text.contains(&len.to_string()) && text.contains(&most.to_string()),
                    "{text}"
                );
            }
            other => panic!("{other:?} for a key of {bytes} bytes"),
        }
    }
    let mut out = Vec::new();
    index.multi_insert(&[(long.clone(), v.clone())], &mut out);
    assert!(
        matches!(out[..], [Err(InsertError::KeyTooLong { .. })]),
        "{out:?}"
    );
    assert!(
        index.get(long.borrow()).is_none(),
        "no such key can be there"
    );
    assert!(!index.remove(long.borrow()).expect("nothing to remove"));
    let update = index.update(long.borrow(), v.borrow());
    assert!(matches!(update, Err(UpdateError::NotFound)), "{update:?}");
    // As a bound it is an ordinary key.
    let from = (Bound::Included(long.borrow()), Bound::Unbounded);
    index.scan(from, |k: &H::Key, _| {
        assert!(k > long.borrow(), "{} is below the bound", short(k));
        ControlFlow::Continue(())
    });
}

/// Keys with long shared prefixes, embedded zeros, or a bit of difference.
pub fn neighbours_and_long_prefixes<H: Harness>() {
    let fresh = H::fresh();
    let index = &fresh.index;
    let keys = H::Key::look_alikes();
    let mut model = filled::<H>(index, keys.clone(), 5);
    assert_holds::<H>(index, &model, "look-alikes");
    for k in keys.iter().step_by(2) {
        assert!(index.remove(k.borrow()).expect("removal"), "{}", short(k));
        model.remove(k.borrow());
    }
    assert_holds::<H>(index, &model, "every second look-alike");
    for k in keys.iter().step_by(2) {
        assert!(index.get(k.borrow()).is_none(), "{} was removed", short(k));
    }
}

fn in_range<H: Harness>(
    model: &Model<H>,
    range: (Bound<&H::Key>, Bound<&H::Key>),
) -> Vec<<H::Key as ToOwned>::Owned> {
    if is_void::<H::Key>(&range) {
        return Vec::new();
    }
    model
        .range::<H::Key, _>(range)
        .map(|(k, _)| k.clone())
        .collect()
}

type Range<'a, H> = (
    Bound<&'a <H as Harness>::Key>,
    Bound<&'a <H as Harness>::Key>,
);

/// Every pair of bounds, inverted and empty ones included.
fn ranges<H: Harness>(
    mut scan: impl FnMut(&H::Index, Range<'_, H>) -> Vec<<H::Key as ToOwned>::Owned>,
) {
    let fresh = H::fresh();
    let bounds: Vec<Bound<<H::Key as ToOwned>::Owned>> = H::Key::boundaries(H::longest_key())
        .into_iter()
        .chain((0..60).step_by(7).map(key::<H>))
        .flat_map(|k| [Bound::Included(k.clone()), Bound::Excluded(k)])
        .chain([Bound::Unbounded])
        .collect();
    let mut model = Model::<H>::new();
    for stage in ["an empty index", "a full one", "an emptied one"] {
        match stage {
            "a full one" => {
                let mut keys = H::Key::boundaries(H::longest_key());
                keys.extend((0..60).map(key::<H>));
                keys.sort();
                keys.dedup();
                model = filled::<H>(&fresh.index, keys, 9);
            }
            "an emptied one" => {
                for k in std::mem::take(&mut model).into_keys() {
                    assert!(fresh.index.remove(k.borrow()).expect("removal"));
                }
            }
            _ => {}
        }
        for a in &bounds {
            for b in &bounds {
                let range = (bound_ref::<H::Key>(a), bound_ref::<H::Key>(b));
                let (found, expected) = (scan(&fresh.index, range), in_range::<H>(&model, range));
                assert!(
                    found == expected,
                    "{stage}, {} to {}: {} keys where {} belong",
                    short(a),
                    short(b),
                    found.len(),
                    expected.len()
                );
            }
        }
    }
}

/// Upwards.
pub fn odd_ranges<H: Harness>() {
    ranges::<H>(|index, range| {
        let mut found = Vec::new();
        index.scan(range, |k: &H::Key, _| {
            found.push(k.to_owned());
            ControlFlow::Continue(())
        });
        found
    });
}

/// Downwards.
pub fn odd_ranges_descending<H: Harness>()
where
    H::Index: ReverseScan<H::Key, H::Value>,
{
    ranges::<H>(|index, range| {
        let mut found = Vec::new();
        index.scan_reverse(range, |k: &H::Key, _| {
            found.push(k.to_owned());
            ControlFlow::Continue(())
        });
        found.reverse();
        found
    });
}
