//! Named roots: as many as a pool has slots, each with its own name, kind, words and chunks.

use crate::pool_support::{dram, kind, load, options, store, with};
use bristlecone_pmem::media::{Dram, Mapped};
use bristlecone_pmem::pool::layout::{CHUNK, ROOT_SLOT, ROOT_TABLE, ROOTS};
use bristlecone_pmem::pool::{DataKind, ROOT_WORDS, Root, RootError, RootInfo, RootKind};
use bristlecone_pmem::{Access, Pool, SpaceError};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Name and kind of the root that is made as number `i`.
fn info(i: usize) -> RootInfo {
    let kinds = [DataKind::U64, DataKind::Bytes, DataKind::U128];
    RootInfo {
        name: format!("root {i}"),
        kind: RootKind {
            design: ["a", "lbtree", "0123456789abcdef"][i / 9 % 3].into(),
            keys: kinds[i % 3],
            values: kinds[i / 3 % 3],
            node_bytes: 256 << (i % 5),
        },
    }
}

fn create(pool: &Arc<Pool<Mapped>>, i: usize) -> Root<Mapped> {
    let RootInfo { name, kind } = info(i);
    pool.create_root(&name, &kind).unwrap()
}

#[track_caller]
fn is_busy(pool: &Arc<Pool<Mapped>>, i: usize) {
    match pool.open_root(&info(i).name, None) {
        Err(RootError::Busy(name)) => assert_eq!(name, info(i).name),
        other => panic!("{i}: {other:?}"),
    }
}

#[test]
fn a_pool_has_as_many_roots_as_slots() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = Pool::<Mapped>::create(&path, &options()).unwrap();
    // None of them is published while the others are made.
    let roots: Vec<_> = (0..ROOTS).map(|i| create(&pool, i)).collect();
    let full = pool.create_root("one more", &kind()).unwrap_err();
    assert!(matches!(full, RootError::Full), "{full}");
    assert!(full.to_string().contains("48"), "{full}");
    assert_eq!(pool.roots(), []);
    for (i, root) in roots.iter().enumerate() {
        let taken = pool.create_root(&info(i).name, &kind()).unwrap_err();
        assert!(matches!(taken, RootError::Busy(name) if name == info(i).name));
        root.word(0).publish(pool.pm(), i as u64 + 1);
        root.word(ROOT_WORDS - 1).publish(pool.pm(), !(i as u64));
        root.publish();
    }
    let all: Vec<RootInfo> = (0..ROOTS).map(info).collect();
    assert_eq!(pool.roots(), all);
    drop(roots);
    drop(pool);
    let pool = Pool::<Mapped>::open(&path, &options()).unwrap();
    assert_eq!(pool.roots(), all);
    let mut open: Vec<_> = (all.iter())
        .map(|root| Some(pool.open_root(&root.name, Some(&root.kind)).unwrap()))
        .collect();
    for (i, root) in open.iter().enumerate() {
        let root = root.as_ref().unwrap();
        let word = |at| root.word(at).load(pool.pm(), Ordering::Relaxed);
        assert_eq!((word(0), word(ROOT_WORDS - 1)), (i as u64 + 1, !(i as u64)));
        is_busy(&pool, i);
    }
    // Closing one leaves the others open.
    for i in [30, 0, 47] {
        open[i] = None;
        (0..ROOTS)
            .filter(|j| open[*j].is_some())
            .for_each(|j| is_busy(&pool, j));
        open[i] = Some(pool.open_root(&info(i).name, None).unwrap());
        is_busy(&pool, i);
    }
    let full = pool.create_root("one more", &kind()).unwrap_err();
    assert!(matches!(full, RootError::Full), "{full}");
}

#[test]
fn a_closed_root_is_free_to_open_and_one_that_was_never_open_too() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::<Mapped>::create(&dir.path().join("pool"), &options()).unwrap();
    for i in 0..5 {
        create(&pool, i).publish();
    }
    let second = pool.open_root(&info(2).name, None).unwrap();
    for i in [0, 1, 3, 4] {
        for _ in 0..2 {
            drop(pool.open_root(&info(i).name, None).unwrap());
            is_busy(&pool, 2);
        }
    }
    drop(second);
    drop(pool.open_root(&info(2).name, None).unwrap());
}

#[test]
fn a_root_of_another_kind_is_not_opened() {
    let pool = dram();
    pool.create_root("r", &kind()).unwrap().publish();
    let others = [
        RootKind {
            design: "u".into(),
            ..kind()
        },
        RootKind {
            keys: DataKind::Bytes,
            ..kind()
        },
        RootKind {
            values: DataKind::U128,
            ..kind()
        },
        RootKind {
            node_bytes: 257,
            ..kind()
        },
    ];
    let told = others.map(|other| {
        let error = pool.open_root("r", Some(&other)).unwrap_err();
        match &error {
            RootError::WrongKind { name, found, asked } => {
                assert_eq!((name.as_str(), found, asked), ("r", &kind(), &other));
            }
            other => panic!("{other:?}"),
        }
        error.to_string()
    });
    let is = r#"root "r" is t of u64 to u64 in 256-byte nodes, not "#;
    let asked = [
        "u of u64 to u64 in 256-byte nodes",
        "t of bytes to u64 in 256-byte nodes",
        "t of u64 to u128 in 256-byte nodes",
        "t of u64 to u64 in 257-byte nodes",
    ];
    assert_eq!(told, asked.map(|asked| format!("{is}{asked}")));
    pool.open_root("r", Some(&kind())).unwrap();
}

#[test]
fn errors_name_the_root_and_say_what_is_wrong_with_it() {
    let pool = dram();
    let root = pool.create_root("there", &kind()).unwrap();
    root.publish();
    let told = |result: Result<Root<Dram>, RootError>| result.unwrap_err().to_string();
    assert_eq!(
        told(pool.open_root("absent", None)),
        r#"no root "absent" in this pool"#
    );
    assert_eq!(
        told(pool.open_root("there", None)),
        r#"root "there" is open already in this process"#
    );
    assert_eq!(
        told(pool.create_root("there", &kind())),
        r#"root "there" exists already"#
    );
    let long = "n".repeat(48);
    assert_eq!(
        told(pool.create_root(&long, &kind())),
        format!("root name {long:?}: must have 1 to 47 bytes")
    );
    let read_only = RootError::from(SpaceError::ReadOnly);
    assert!(matches!(read_only, RootError::ReadOnly));
    assert_eq!(read_only.to_string(), "the pool is open for reading only");
    let too_large = || SpaceError::TooLarge { wanted: 9, most: 8 };
    let space = RootError::from(too_large());
    assert!(matches!(space, RootError::Space(_)));
    assert_eq!(space.to_string(), too_large().to_string());
}

#[test]
fn a_reader_makes_no_roots() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    drop(Pool::<Mapped>::create(&path, &options()).unwrap());
    let pool = Pool::<Mapped>::open(&path, &with(Access::ReadOnly)).unwrap();
    let error = pool.create_root("r", &kind()).unwrap_err();
    assert!(matches!(error, RootError::ReadOnly), "{error}");
    assert_eq!(pool.roots(), []);
}

/// What was in the slot of a root is nothing to the next one there.
#[test]
fn a_root_that_was_never_published_leaves_its_name_and_slot_free() {
    let pool = dram();
    let first = pool.create_root("first", &kind()).unwrap();
    for i in 0..ROOT_WORDS {
        first.word(i).publish(pool.pm(), u64::MAX);
    }
    drop(first);
    assert_eq!(pool.roots(), []);
    assert!(matches!(
        pool.open_root("first", None),
        Err(RootError::NotFound(_))
    ));
    let longer = RootKind {
        design: "longer".into(),
        ..kind()
    };
    let again = pool.create_root("first", &longer).unwrap();
    for i in 0..ROOT_WORDS {
        assert_eq!(
            again.word(i).load(pool.pm(), Ordering::Relaxed),
            0,
            "word {i}"
        );
    }
    again.publish();
    assert_eq!(
        load(pool.pm(), ROOT_TABLE + ROOT_SLOT),
        0,
        "the second slot is free"
    );
    assert_eq!(pool.roots()[0].kind, longer);
}

/// A slot whose chunks are not freed yet would give them to a new root.
#[test]
fn a_root_that_is_taken_back_keeps_its_slot_until_its_chunks_are_freed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = Pool::<Mapped>::create(&path, &options()).unwrap();
    let gone = pool.create_root("gone", &kind()).unwrap();
    gone.heap().alloc(3 * CHUNK).unwrap();
    gone.heap().alloc(64).unwrap();
    gone.publish();
    gone.unpublish();
    drop(gone);
    assert_eq!(pool.roots(), []);
    let report = pool.verify().unwrap();
    assert_eq!((report.owned_chunks, report.ownerless_chunks), (4, 2));
    let next = pool.create_root("next", &kind()).unwrap();
    next.publish();
    assert_eq!(load(pool.pm(), ROOT_TABLE), 0, "not in the first slot");
    assert_ne!(load(pool.pm(), ROOT_TABLE + ROOT_SLOT), 0);
    next.heap().alloc(CHUNK).unwrap();
    drop((next, pool));
    let pool = Pool::<Mapped>::open(&path, &options()).unwrap();
    let report = pool.verify().unwrap();
    assert_eq!((report.owned_chunks, report.ownerless_chunks), (1, 0));
    assert_eq!(pool.info().used_bytes, 2 * CHUNK);
    pool.create_root("third", &kind()).unwrap().publish();
    assert_ne!(load(pool.pm(), ROOT_TABLE), 0, "in the first slot");
    let names: Vec<_> = pool.roots().into_iter().map(|root| root.name).collect();
    assert_eq!(names, ["third", "next"]);
}

/// A root that is damaged while the pool is open is not served as another.
#[test]
fn a_descriptor_that_fails_its_checksum_is_no_root() {
    let pool = dram();
    for name in ["a", "b"] {
        pool.create_root(name, &kind()).unwrap().publish();
    }
    let name = ROOT_TABLE + ROOT_SLOT + 16;
    let was = load(pool.pm(), name);
    store(pool.pm(), name, was ^ 1 << 9);
    let names: Vec<_> = pool.roots().into_iter().map(|root| root.name).collect();
    assert_eq!(names, ["a"]);
    assert!(matches!(
        pool.open_root("b", None),
        Err(RootError::NotFound(_))
    ));
    pool.open_root("a", None).unwrap();
    let violation = pool.verify().unwrap_err();
    assert!(violation.what.contains("root slot 1"), "{violation}");
    store(pool.pm(), name, was);
    pool.open_root("b", None).unwrap();
}
