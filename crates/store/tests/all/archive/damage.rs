//! Damaged archives, and archives of other stores: an error each.

use super::*;

/// Any bit that flips is found, and no archive is taken for what it is not.
#[test]
fn damage_is_an_error() {
    let mut a = Archived::new(MediumKind::Mapped, |_| {});
    let mut rng = SmallRng::seed_from_u64(7);
    a.wait();
    for _ in 0..3 {
        let keyspace = some_keyspace(a.store(), &mut rng);
        for _ in 0..40 {
            a.store()
                .put(&keyspace, &some_key(&mut rng), &some_value(&mut rng))
                .unwrap();
        }
        a.kill();
        a.wait();
    }
    let keyspace = some_keyspace(a.store(), &mut rng);
    a.store().put(&keyspace, b"the last", b"one").unwrap();
    a.close();
    let last = a.restored(Until::End).unwrap();
    let archive = Archive::open(a.archive()).unwrap();
    let (mut right, mut wrong) = (0, 0);
    for file in &archive.files {
        let whole = std::fs::read(&file.path).unwrap();
        for _ in 0..80 {
            let mut damaged = whole.clone();
            let bit = rng.random_range(0..damaged.len() * 8);
            damaged[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&file.path, &damaged).unwrap();
            match a.restored(Until::End) {
                Ok(found) => {
                    assert!(found == last, "bit {bit} of {}", file.path.display());
                    right += 1;
                }
                Err(e) => {
                    assert!(e.to_string().contains(file.path.to_str().unwrap()), "{e}");
                    wrong += 1;
                }
            }
        }
        // Cut off anywhere: as a crash leaves the last file, and only that.
        for _ in 0..20 {
            let len = rng.random_range(0..whole.len());
            std::fs::write(&file.path, &whole[..len]).unwrap();
            if let Ok(found) = a.restored(Until::End) {
                let is_last = file.number == archive.files.last().unwrap().number;
                assert!(
                    found == last || is_last,
                    "{} cut to {len}",
                    file.path.display()
                );
            }
        }
        std::fs::write(&file.path, &whole).unwrap();
    }
    assert!(wrong > right, "{right} right, {wrong} reported");
    assert_eq!(a.restored(Until::End).unwrap(), last);
}

#[test]
fn an_archive_belongs_to_one_store() {
    let mut a = Archived::new(MediumKind::Mapped, |_| {});
    let keyspace = a.store().keyspace("k").unwrap();
    a.store().put(&keyspace, b"key", b"value").unwrap();
    a.wait();
    let options = a.options.clone();
    let refused = |pool: &Arc<Pool<Auto>>| match Store::create(pool, "s", &options) {
        Err(StoreError::Archive(e)) => *e,
        other => panic!("{other:?}"),
    };
    let path = a.dir.path().join("other");
    let other = Pool::<Auto>::create(&path, &on(MediumKind::Mapped, RESERVE)).unwrap();
    let e = refused(&other);
    assert!(matches!(e, ArchiveError::InUse { .. }), "{e}");
    assert!(Store::names(&other).is_empty());
    // The pool as it was before some commits.
    let before = a.dir.path().join("before");
    std::fs::copy(a.dir.path().join("pool"), &before).unwrap();
    for i in 0..3 {
        a.store().put(&keyspace, b"key", &[i]).unwrap();
        a.wait();
    }
    // As after a kill, and it has lost commits.
    let copied = a.dir.path().join("copied");
    std::fs::create_dir(&copied).unwrap();
    write_files(&copied, files(&a.archive()));
    let of_copy = StoreOptions {
        archive: Some(ArchiveOptions::new(&copied)),
        ..options.clone()
    };
    let parted = |pool: &Path| {
        let pool = Pool::<Auto>::open(pool, &PoolOptions::default()).unwrap();
        let opened = Store::open(&pool, "s", &of_copy);
        let Err(StoreError::Archive(e)) = opened else {
            panic!("{opened:?}");
        };
        assert!(matches!(*e, ArchiveError::Parted { .. }), "{e}");
    };
    parted(&before);
    // The same after it was closed in order, which gives it as high time stamps.
    a.close();
    std::fs::remove_dir_all(&copied).unwrap();
    std::fs::create_dir(&copied).unwrap();
    write_files(&copied, files(&a.archive()));
    parted(&before);
    // Closed, and a session of the original further.
    std::fs::copy(a.dir.path().join("pool"), &before).unwrap();
    a.open();
    a.wait();
    a.close();
    // It has changed nothing, so nothing is missing.
    let closed = Pool::<Auto>::open(&before, &PoolOptions::default()).unwrap();
    let store = Store::open(&closed, "s", &of_copy).unwrap();
    store.close().map_err(|(_, e)| e).unwrap();
    drop(closed);
    a.open();
    let keyspace = a.store().keyspace("k").unwrap();
    a.store().put(&keyspace, b"more", b"").unwrap();
    a.close();
    std::fs::remove_dir_all(&copied).unwrap();
    std::fs::create_dir(&copied).unwrap();
    write_files(&copied, files(&a.archive()));
    parted(&before);
    // Another store of the same name, in the same pool.
    a.open();
    let same = Arc::clone(a.store().pool());
    a.close();
    Store::<Auto>::remove(&same, "s").unwrap();
    let e = refused(&same);
    assert!(matches!(e, ArchiveError::Parted { .. }), "{e}");
    drop(same);
    let e = refused(&other);
    assert!(matches!(e, ArchiveError::OtherPool { .. }), "{e}");
    // Of another store in the same pool it is none either.
    let same = Pool::<Auto>::open(&a.dir.path().join("pool"), &PoolOptions::default()).unwrap();
    let second = Store::create(&same, "second", &a.options);
    let Err(StoreError::Archive(e)) = second else {
        panic!("{second:?}");
    };
    assert!(matches!(*e, ArchiveError::OtherPool { .. }), "{e}");
    let empty = a.dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let e = Archive::open(&empty).unwrap_err();
    assert!(matches!(e, ArchiveError::NotAnArchive { .. }), "{e}");
    let e = Archive::open(a.dir.path().join("nowhere")).unwrap_err();
    assert!(matches!(e, ArchiveError::Io { .. }), "{e}");
}
