//! Read-only opens: everything can be read and nothing written, and the files do not change.

use super::super::home::must;
use super::super::{PoolHome, Pooled, Rng};
use super::{Model, assert_holds, key, put, take, value};
use bristlecone_designs::{InsertError, OrderedIndex, RemoveError, UpdateError};
use bristlecone_pmem::OpenError;
use std::borrow::Borrow;

fn filled<H: Pooled>() -> (PoolHome, H::Index, Model<H>) {
    let home = H::home();
    let index = must("create", H::create(&home, "index"));
    let mut model = Model::<H>::new();
    let mut rng = Rng::new(71);
    for _ in 0..6_000 {
        let n = rng.below(3_000);
        if rng.below(4) < 3 {
            put::<H>(&index, &mut model, n, n);
        } else {
            take::<H>(&index, &mut model, n);
        }
    }
    (home, index, model)
}

fn reads_and_refuses<H: Pooled>(home: &PoolHome, model: &Model<H>) {
    let index = must("open", H::open(home, "index"));
    assert_holds::<H>(&index, model, "read-only");
    let (there, absent, v) = (
        model.keys().next().expect("a key"),
        key::<H>(1 << 50),
        value::<H>(1),
    );
    let insert = index.insert(absent.borrow(), v.borrow());
    assert!(matches!(insert, Err(InsertError::ReadOnly)), "{insert:?}");
    for k in [there, &absent] {
        let upsert = index.upsert(k.borrow(), v.borrow());
        assert!(matches!(upsert, Err(InsertError::ReadOnly)), "{upsert:?}");
    }
    let update = index.update(there.borrow(), v.borrow());
    assert!(matches!(update, Err(UpdateError::ReadOnly)), "{update:?}");
    let remove = index.remove(there.borrow());
    assert!(matches!(remove, Err(RemoveError::ReadOnly)), "{remove:?}");
    let mut out = Vec::new();
    index.multi_insert(&[(absent.clone(), v.clone())], &mut out);
    assert!(matches!(out[..], [Err(InsertError::ReadOnly)]), "{out:?}");
    assert!(
        H::create(home, "another").is_err(),
        "a new root in a read-only pool"
    );
    assert_holds::<H>(&index, model, "read-only, after refused writes");
    must("close", H::close(index));
}

/// A pool that was closed cleanly.
pub fn clean<H: Pooled>() {
    let (home, index, model) = filled::<H>();
    let in_use = home.open_read_only().map(drop);
    assert!(
        matches!(in_use, Err(OpenError::Locked(_))),
        "while a writer has it: {in_use:?}"
    );
    must("close", H::close(index));
    let home = home.reopen_read_only();
    let before = home.files();
    reads_and_refuses::<H>(&home, &model);
    // Readers do not exclude each other.
    let second = home.open_read_only().expect("a second reader");
    reads_and_refuses::<H>(&second, &model);
    assert!(home.files() == before, "reading changed the files");
    drop((home, second));
}

/// In a crash image, recovery works in memory only.
pub fn unclean<H: Pooled>() {
    let (home, index, model) = filled::<H>();
    let files = home.files();
    for _ in 0..2 {
        let image = home.open_files_read_only(&files);
        assert!(!image.pool.info().was_clean, "a crash image");
        reads_and_refuses::<H>(&image, &model);
        assert!(image.files() == files, "reading changed the files");
        let second = image.open_read_only().expect("a second reader");
        reads_and_refuses::<H>(&second, &model);
        drop(image);
        assert!(second.files() == files, "closing changed the files");
    }
    must("close", H::close(index));
}
