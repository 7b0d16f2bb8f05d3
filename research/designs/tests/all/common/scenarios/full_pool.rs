//! A pool that cannot grow: refused calls change nothing, and freed space is used again.

use super::super::home::must;
use super::super::{PoolHome, Pooled, Rng};
use super::{Model, assert_holds, key, reclaim, take, value};
use bristlecone_designs::{InsertError, OrderedIndex, UpdateError};
use bristlecone_pmem::SpaceError;
use std::borrow::Borrow;
use std::thread;

/// Maximum size of the pool: small, and yet room for some leaves, chunks and records of every
/// design.
const CAPACITY: u64 = if cfg!(feature = "thorough") { 8 } else { 4 } << 20;

/// More keys than fit.
const TOO_MANY: u64 = CAPACITY / 8;

fn is_full(e: &InsertError) -> bool {
    matches!(e, InsertError::Space(SpaceError::Capacity { .. }))
}

/// Inserts random keys until `patience` of them have been refused. Returns how many went in.
fn fill<H: Pooled>(index: &H::Index, model: &mut Model<H>, rng: &mut Rng, patience: usize) -> u64 {
    let (mut added, mut refused) = (0, 0);
    for _ in 0..TOO_MANY {
        let n = rng.next() >> 1;
        let (k, v) = (key::<H>(n), value::<H>(n));
        match index.insert(k.borrow(), v.borrow()) {
            Ok(()) => {
                model.insert(k, v);
                added += 1;
            }
            Err(e) if is_full(&e) => {
                refused += 1;
                if refused == patience {
                    return added;
                }
            }
            Err(e) => panic!("after {added} keys: {e}"),
        }
    }
    panic!("{TOO_MANY} keys fitted into {CAPACITY} bytes");
}

/// Fills, is refused, reads, removes, and fills again.
pub fn refuses_and_goes_on<H: Pooled>() {
    let home = H::home_of(CAPACITY);
    let index = must("create", H::create(&home, "index"));
    let mut model = Model::<H>::new();
    let mut rng = Rng::new(31);
    let fitted = fill::<H>(&index, &mut model, &mut rng, 1);
    assert!(
        fitted > CAPACITY / 800,
        "{fitted} keys are few for {CAPACITY} bytes"
    );
    assert!(
        home.pool.info().pool_bytes <= CAPACITY,
        "the pool is larger than it may be"
    );
    assert_holds::<H>(&index, &model, "full");

    // Every kind of call on the full pool either works or changes nothing.
    let some: Vec<_> = model.keys().step_by(model.len() / 500).cloned().collect();
    for (i, k) in some.iter().enumerate() {
        let v = value::<H>(i as u64 + 40);
        match index.update(k.borrow(), v.borrow()) {
            Ok(()) => drop(model.insert(k.clone(), v)),
            Err(UpdateError::Space(_)) => {}
            Err(e) => panic!("update on a full pool: {e}"),
        }
        let v = value::<H>(i as u64 + 80);
        match index.upsert(k.borrow(), v.borrow()) {
            Ok(there) => {
                assert!(there, "the key is there");
                model.insert(k.clone(), v);
            }
            Err(e) if is_full(&e) => {}
            Err(e) => panic!("upsert on a full pool: {e}"),
        }
    }
    let pairs: Vec<_> = (0..200)
        .map(|_| rng.next() >> 1)
        .map(|n| (key::<H>(n), value::<H>(n)))
        .collect();
    let mut answers = Vec::new();
    index.multi_insert(&pairs, &mut answers);
    assert_eq!(answers.len(), pairs.len());
    for ((k, v), answer) in pairs.into_iter().zip(answers) {
        match answer {
            Ok(()) => drop(model.insert(k, v)),
            Err(e) if is_full(&e) => {}
            Err(e) => panic!("multi_insert on a full pool: {e}"),
        }
    }
    assert_holds::<H>(&index, &model, "after more calls on the full pool");

    // Removed keys make room again; three times, so that a leak would show.
    let at_most = model.len();
    for round in 0..3 {
        let mut keys: Vec<_> = model.keys().cloned().collect();
        if round == 2 {
            rng.shuffle(&mut keys);
            keys.truncate(at_most / 2);
        } else {
            // A stretch of keys, so that whole leaves become free.
            keys.truncate(at_most * 3 / 4);
        }
        for k in keys {
            assert!(index.remove(k.borrow()).expect("removal needs no space"));
            model.remove(k.borrow());
        }
        reclaim();
        assert_holds::<H>(&index, &model, "after removals");
        let left = model.len();
        // Space inside leaves serves the keys that belong there; others are refused.
        let patience = if round == 2 { at_most } else { 1 };
        fill::<H>(&index, &mut model, &mut rng, patience);
        assert_holds::<H>(&index, &model, "full again");
        let enough = left + (at_most - left) * 6 / 10;
        assert!(
            model.len() >= enough,
            "round {round}: {at_most} keys fitted at first, {} now, {left} of them from before",
            model.len()
        );
    }
    must("close", H::close(index));
}

/// Several threads fill the pool at once.
pub fn many_threads<H: Pooled>() {
    let home = H::home_of(CAPACITY / 2);
    let index = must("create", H::create(&home, "index"));
    let mut model = Model::<H>::new();
    for round in 0..2u64 {
        let parts: Vec<Model<H>> = thread::scope(|scope| {
            let workers: Vec<_> = (0..3u64)
                .map(|t| {
                    let index = &index;
                    scope.spawn(move || {
                        let mut mine = Model::<H>::new();
                        let mut rng = Rng::new(round << 4 | t);
                        let mut refused = 0;
                        while refused < 200 {
                            let n = (rng.next() >> 1) / 8 * 8 + t;
                            let (k, v) = (key::<H>(n), value::<H>(n));
                            match index.insert(k.borrow(), v.borrow()) {
                                Ok(()) => drop(mine.insert(k, v)),
                                Err(e) if is_full(&e) => refused += 1,
                                Err(e) => panic!("{e}"),
                            }
                            assert!((mine.len() as u64) < TOO_MANY, "it never fills up");
                        }
                        mine
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|w| {
                    w.join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        });
        parts.into_iter().for_each(|part| model.extend(part));
        assert_holds::<H>(&index, &model, "full by three threads");
        let keys: Vec<_> = model.keys().cloned().collect();
        for k in keys.iter().take(keys.len() * 3 / 4) {
            assert!(index.remove(k.borrow()).expect("removal needs no space"));
            model.remove(k.borrow());
        }
        reclaim();
    }
    must("close", H::close(index));
}

/// A full pool can be closed, opened and recovered.
pub fn reopen<H: Pooled>() {
    let home = H::home_of(CAPACITY / 2);
    let index = must("create", H::create(&home, "index"));
    let mut model = Model::<H>::new();
    let mut rng = Rng::new(33);
    fill::<H>(&index, &mut model, &mut rng, 1);
    {
        let image = home.crash_image();
        let index = must("open", H::open(&image, "index"));
        assert_holds::<H>(&index, &model, "after a crash while full");
    }
    // Closing may have no room for what it would like to write, and must not need it.
    must("close", H::close(index));
    let home = home.reopen();
    let index = must("open", H::open(&home, "index"));
    assert_holds::<H>(&index, &model, "after closing while full");
    for n in model
        .keys()
        .take(model.len() / 2)
        .map(|k| super::super::TestKey::number(k.borrow()))
        .collect::<Vec<_>>()
    {
        take::<H>(&index, &mut model, n);
    }
    reclaim();
    assert!(
        fill::<H>(&index, &mut model, &mut rng, 1) > CAPACITY / 8_000,
        "space serves after reopening"
    );
    assert_holds::<H>(&index, &model, "filled after reopening");
    must("close", H::close(index));
}
