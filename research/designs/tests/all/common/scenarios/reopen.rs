//! Closing and opening, and opening crash images, again and again with work in between.

use super::super::home::must;
use super::super::{PoolHome, Pooled, Rng};
use super::{Model, assert_holds, key, put, take, value};
use bristlecone_designs::OrderedIndex;
use std::borrow::Borrow;
use std::thread;

const ROUNDS: u64 = 12;

/// Changes keys at random: even rounds grow the index, odd ones shrink it.
fn work<H: Pooled>(index: &H::Index, model: &mut Model<H>, rng: &mut Rng, round: u64) {
    let keys = 1 + rng.below(3_000);
    for _ in 0..1_500 {
        let n = rng.below(keys);
        if rng.below(10) < if round.is_multiple_of(2) { 8 } else { 3 } {
            put::<H>(index, model, n, rng.below(1 << 40));
        } else {
            take::<H>(index, model, n);
        }
    }
}

/// Clean closes.
pub fn clean<H: Pooled>() {
    let mut home = H::home();
    let mut index = must("create", H::create(&home, "index"));
    let mut model = Model::<H>::new();
    let mut rng = Rng::new(51);
    for round in 0..ROUNDS {
        work::<H>(&index, &mut model, &mut rng, round);
        // Alternately by the call and by dropping.
        if round % 3 == 2 {
            drop(index);
        } else {
            must("close", H::close(index));
        }
        home = home.reopen();
        assert!(home.pool.info().was_clean, "round {round}: closed cleanly");
        index = must("open", H::open(&home, "index"));
        let report = H::recovery(&index);
        assert_eq!(
            report.clean,
            H::maker().snapshot(),
            "round {round}: {report:?}"
        );
        assert_eq!(
            report.repaired, 0,
            "round {round}: nothing to repair after a clean close"
        );
        assert_holds::<H>(&index, &model, "after a clean close");
    }
    // Opened and closed without a change.
    for _ in 0..3 {
        must("close", H::close(index));
        home = home.reopen();
        index = must("open", H::open(&home, "index"));
        assert_holds::<H>(&index, &model, "opened and closed for nothing");
    }
    must("close", H::close(index));
}

/// Crashes between operations; each image becomes the pool that the next round works on.
pub fn crash_images<H: Pooled>() {
    let mut home = H::home();
    let mut index = must("create", H::create(&home, "index"));
    let mut model = Model::<H>::new();
    let mut rng = Rng::new(52);
    let mut used = 0;
    for round in 0..ROUNDS {
        work::<H>(&index, &mut model, &mut rng, round);
        let image = home.crash_image();
        assert!(
            !image.pool.info().was_clean,
            "round {round}: a crash is no clean close"
        );
        let opened = must("open", H::open(&image, "index"));
        let report = H::recovery(&opened);
        assert!(!report.clean, "round {round}: {report:?}");
        // A design that recovers without a walk counts nothing.
        if report.leaves_scanned > 0 {
            assert_eq!(
                report.entries,
                model.len() as u64,
                "round {round}: {report:?}"
            );
        }
        assert_holds::<H>(&opened, &model, "after a crash");
        // A crash before anything was changed, followed by another.
        let again = image.crash_image();
        let twice = must("open", H::open(&again, "index"));
        assert_holds::<H>(&twice, &model, "after two crashes");
        drop(opened);
        drop(image);
        drop(index);
        drop(home);
        (index, home) = (twice, again);
        used = home.pool.info().used_bytes;
    }
    // Nothing leaked on the way: once everything is removed, everything is free.
    let keys: Vec<_> = model.keys().cloned().collect();
    for k in keys {
        assert!(index.remove(k.borrow()).expect("removal"));
        model.remove(k.borrow());
    }
    super::reclaim();
    assert_holds::<H>(&index, &model, "emptied after crashes");
    let image = home.crash_image();
    let opened = must("open", H::open(&image, "index"));
    assert_holds::<H>(&opened, &model, "emptied, then a crash");
    let left = image.pool.info().used_bytes;
    assert!(
        left <= used,
        "{left} bytes used by an empty index, {used} by a filled one"
    );
}

/// An index that never held a key.
pub fn empty<H: Pooled>() {
    let home = H::home();
    let index = must("create", H::create(&home, "index"));
    let model = Model::<H>::new();
    {
        let image = home.crash_image();
        let opened = must("open", H::open(&image, "index"));
        assert_holds::<H>(&opened, &model, "made, then a crash");
    }
    must("close", H::close(index));
    let home = home.reopen();
    let index = must("open", H::open(&home, "index"));
    assert_holds::<H>(&index, &model, "made and closed");
    let (k, v) = (key::<H>(0), value::<H>(0));
    index.insert(k.borrow(), v.borrow()).expect("a first key");
    {
        let image = home.crash_image();
        let opened = must("open", H::open(&image, "index"));
        assert_eq!(
            opened.get(k.borrow()),
            Some(v.clone()),
            "one key, then a crash"
        );
    }
    assert!(index.remove(k.borrow()).expect("removal"));
    {
        let image = home.crash_image();
        let opened = must("open", H::open(&image, "index"));
        assert_holds::<H>(&opened, &model, "one key removed, then a crash");
    }
    must("close", H::close(index));
}

/// Threads work, all stop, and the power fails.
pub fn after_concurrent_work<H: Pooled>() {
    let home = H::home();
    let index = must("create", H::create(&home, "index"));
    let mut model = Model::<H>::new();
    for round in 0..4u64 {
        // Each thread owns the keys of its residue, so that the outcome is known.
        let parts: Vec<(u64, Vec<Option<u64>>)> = thread::scope(|scope| {
            let workers: Vec<_> = (0..3u64)
                .map(|t| {
                    let index = &index;
                    scope.spawn(move || {
                        let mut rng = Rng::new(round << 4 | t);
                        let mut mine = vec![None; 1_000];
                        for _ in 0..6_000 {
                            let n = rng.below(1_000);
                            let k = key::<H>(n * 3 + t);
                            if rng.below(5) < 3 {
                                let v = rng.below(1 << 40);
                                index
                                    .upsert(k.borrow(), value::<H>(v).borrow())
                                    .expect("upsert");
                                mine[n as usize] = Some(Some(v));
                            } else {
                                index.remove(k.borrow()).expect("removal");
                                mine[n as usize] = Some(None);
                            }
                        }
                        (t, mine)
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|w| {
                    w.join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .map(|(t, mine): (u64, Vec<Option<Option<u64>>>)| {
                    // Untouched keys keep their value in the model.
                    let known = mine.iter().enumerate().map(|(n, now)| match now {
                        Some(now) => *now,
                        None => model
                            .get(key::<H>(n as u64 * 3 + t).borrow())
                            .map(|v| super::super::TestValue::number(v.borrow())),
                    });
                    (t, known.collect())
                })
                .collect()
        });
        for (t, mine) in parts {
            for (n, now) in mine.into_iter().enumerate() {
                let k = key::<H>(n as u64 * 3 + t);
                match now {
                    Some(v) => drop(model.insert(k, value::<H>(v))),
                    None => drop(model.remove(k.borrow())),
                }
            }
        }
        assert_holds::<H>(&index, &model, "after concurrent work");
        let image = home.crash_image();
        let opened = must("open", H::open(&image, "index"));
        assert_holds::<H>(&opened, &model, "concurrent work, then a crash");
    }
    must("close", H::close(index));
    let home = home.reopen();
    let index = must("open", H::open(&home, "index"));
    assert_holds::<H>(&index, &model, "concurrent work, then a clean close");
    must("close", H::close(index));
}
