//! Several indexes in one pool.

use super::super::home::must;
use super::super::{PoolHome, Pooled, Rng};
use super::{Model, assert_holds, put, take};

const NAMES: [&str; 3] = ["first", "second", "a third, with a longer name"];

fn work<H: Pooled>(indexes: &[H::Index], models: &mut [Model<H>], rng: &mut Rng) {
    for _ in 0..6_000 {
        // The same keys with other values in each.
        let (which, n) = (rng.below(3) as usize, rng.below(2_000));
        if rng.below(3) < 2 {
            put::<H>(
                &indexes[which],
                &mut models[which],
                n,
                rng.below(1 << 30) * 3 + which as u64,
            );
        } else {
            take::<H>(&indexes[which], &mut models[which], n);
        }
    }
}

/// Each index holds its own keys, a name can be taken once, and an absent one is an error.
pub fn do_not_mix<H: Pooled>() {
    let home = H::home();
    let indexes: Vec<_> = NAMES
        .iter()
        .map(|n| must("create", H::create(&home, n)))
        .collect();
    let mut models: Vec<Model<H>> = NAMES.iter().map(|_| Model::<H>::new()).collect();
    work::<H>(&indexes, &mut models, &mut Rng::new(61));
    for (index, model) in indexes.iter().zip(&models) {
        assert_holds::<H>(index, model, "three indexes in one pool");
    }
    let mut names: Vec<String> = home.pool.roots().into_iter().map(|r| r.name).collect();
    names.sort();
    let mut expected = NAMES.map(String::from);
    expected.sort();
    assert_eq!(names, expected, "the pool's list of roots");

    let taken = H::create(&home, NAMES[0])
        .err()
        .expect("the name is taken")
        .to_string();
    assert!(
        taken.contains(NAMES[0]),
        "the message names the root: {taken}"
    );
    let absent = H::open(&home, "absent")
        .err()
        .expect("no such root")
        .to_string();
    assert!(
        absent.contains("absent"),
        "the message names the root: {absent}"
    );
    // Two handles on one root would have two sets of locks.
    let twice = H::open(&home, NAMES[1])
        .err()
        .expect("the root is open")
        .to_string();
    assert!(
        twice.contains(NAMES[1]),
        "the message names the root: {twice}"
    );
    for name in ["", &"n".repeat(10_000)] {
        assert!(H::create(&home, name).is_err(), "a root named {name:?}");
    }
    for (index, model) in indexes.iter().zip(&models) {
        assert_holds::<H>(index, model, "after refused roots");
    }
}

/// All of them are there again, whatever the order of opening.
pub fn reopen<H: Pooled>() {
    let home = H::home();
    let indexes: Vec<_> = NAMES
        .iter()
        .map(|n| must("create", H::create(&home, n)))
        .collect();
    let mut models: Vec<Model<H>> = NAMES.iter().map(|_| Model::<H>::new()).collect();
    let mut rng = Rng::new(62);
    work::<H>(&indexes, &mut models, &mut rng);
    {
        let image = home.crash_image();
        for which in [2, 0, 1] {
            let index = must("open", H::open(&image, NAMES[which]));
            assert_holds::<H>(&index, &models[which], "opened one at a time after a crash");
        }
    }
    {
        // One is opened and written while the others still wait for their recovery.
        let image = home.crash_image();
        let index = must("open", H::open(&image, NAMES[1]));
        let mut model = models[1].clone();
        for n in 0..5_000 {
            put::<H>(&index, &mut model, n * 5, n);
        }
        assert_holds::<H>(&index, &model, "the one that was written");
        for which in [0, 2] {
            let index = must("open", H::open(&image, NAMES[which]));
            assert_holds::<H>(&index, &models[which], "the ones that waited");
        }
        // The others are not opened at all before the next crash.
        let again = image.crash_image();
        for which in [2, 0] {
            let index = must("open", H::open(&again, NAMES[which]));
            assert_holds::<H>(&index, &models[which], "after the second crash");
        }
        let index = must("open", H::open(&again, NAMES[1]));
        assert_holds::<H>(&index, &model, "after the second crash");
    }
    for index in indexes {
        must("close", H::close(index));
    }
    let home = home.reopen();
    let indexes: Vec<_> = NAMES
        .iter()
        .map(|n| must("open", H::open(&home, n)))
        .collect();
    for (index, model) in indexes.iter().zip(&models) {
        assert_holds::<H>(index, model, "after a clean close");
    }
    work::<H>(&indexes, &mut models, &mut rng);
    for (index, model) in indexes.iter().zip(&models) {
        assert_holds::<H>(index, model, "after further work");
    }
}
