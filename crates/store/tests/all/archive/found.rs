//! What a reading of the code found: each of these lost something without a word, or kept it for
//! ever.

use super::*;
use bristlecone_store::CloseError;

/// Keys that are longer than the tree's, which begin alike but for a letter.
fn long_key(letter: u8) -> Vec<u8> {
    [&[letter; 3_000][..], b"/1"].concat()
}

/// The first changes of a session: those that take numbers for spaces and parts.
fn take_numbers(store: &Store<Auto>, letters: std::ops::Range<u8>) {
    let keyspace = store.keyspace("k").unwrap();
    for letter in letters {
        store
            .put(&keyspace, &long_key(letter), &[letter; 4])
            .unwrap();
        let parts = vec![letter; 9 << 20];
        let key = format!("parts {letter}");
        store
            .put_from(&keyspace, key.as_bytes(), &mut &parts[..], None)
            .unwrap();
    }
}

/// The numbers of long keys and of values in parts come with an archive's entries. The store that
/// is made of it began to count anew, and gave them again: one key became another, and a value got
/// parts of another one.
#[test]
fn a_restored_store_gives_no_number_again() {
    let mut a = Archived::new(MediumKind::Mapped, |_| {});
    for session in 0..3 {
        a.close();
        a.open();
        take_numbers(a.store(), session * 3..session * 3 + 3);
    }
    a.wait();
    a.close();

    let path = a.dir.path().join("copy");
    let pool = Pool::<Auto>::create(&path, &on(MediumKind::Mapped, RESERVE)).unwrap();
    let options = a.options.clone().without_thread();
    let archive = a.archive();
    let from = (archive.as_path(), Until::End);
    let made = Store::restore_archive(&pool, "s", &options, from, &mut |_, _| {});
    let mut store = made.unwrap().0;
    let before = content(&store);
    for session in 0..4 {
        take_numbers(&store, 100 + session * 3..100 + session * 3 + 3);
        let mut now = content(&store);
        let there = now.get_mut("k").unwrap();
        for letter in 100..100 + session * 3 + 3 {
            let (value, _) = there.remove(&long_key(letter)).unwrap();
            assert_eq!(value, [letter; 4]);
            let key = format!("parts {letter}").into_bytes();
            let (value, _) = there.remove(&key).unwrap();
            assert!(value == brief(&vec![letter; 9 << 20]), "parts {letter}");
        }
        assert!(now == before, "session {session}");
        store.check().unwrap();
        store.close().map_err(|(_, e)| e).unwrap();
        store = Store::open(&pool, "s", &options).unwrap();
    }
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

/// Commits go on in the same file while a full state is written, and after it. When that file was
/// damaged before the state, restoring ended with the state.
#[test]
fn damage_before_a_full_state_does_not_hide_what_came_after_it() {
    let mut a = Archived::new(MediumKind::Mapped, |options| {
        options.full_every = Some(Duration::from_secs(1));
    });
    let keyspace = a.store().keyspace("k").unwrap();
    a.wait();
    for i in 0..3_u8 {
        a.store().put(&keyspace, &[i], b"before").unwrap();
        a.wait();
    }
    a.hands.set(5_000);
    let begun = Instant::now();
    while a.store().archive_stats().unwrap().full_states < 2 {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(2));
    }
    let at_the_state = content(a.store());
    for i in 0..3_u8 {
        a.store().put(&keyspace, &[i], b"after").unwrap();
        a.wait();
    }
    let last = content(a.store());
    a.close();
    let archive = Archive::open(a.archive()).unwrap();
    let kinds: Vec<_> = archive.files.iter().map(|file| file.kind).collect();
    let expected = [FileKind::FullState, FileKind::Commits, FileKind::FullState];
    assert_eq!(kinds, expected);
    let (commits, state) = (&archive.files[1], &archive.files[2]);
    assert_eq!(a.restored(Until::End).unwrap(), last);
    // In the first commits, and in the file's head.
    for at in [100, 20] {
        flip(&commits.path, at);
        for until in [Until::End, Until::Time(6_000)] {
            let e = a.restored(until).unwrap_err().to_string();
            assert!(e.contains(commits.path.to_str().unwrap()), "{at}: {e}");
        }
        let found = a.restored(Until::Timestamp(state.below - 1)).unwrap();
        assert_eq!(found, at_the_state);
        flip(&commits.path, at);
    }
    // Another file goes on behind a file whose end is damaged, so that hides nothing.
    a.open();
    let keyspace = a.store().keyspace("k").unwrap();
    a.hands.set(9_000);
    a.store().put(&keyspace, b"more", b"").unwrap();
    a.wait();
    let last = content(a.store());
    a.close();
    flip(&commits.path, 100);
    assert_eq!(a.restored(Until::End).unwrap(), last);
}

/// Whoever opens a store only to bring its archive up to date got an incremental state each time,
/// and never a full one.
#[test]
fn a_full_state_that_is_due_comes_first() {
    let mut a = Archived::new(MediumKind::Mapped, |options| {
        options.full_every = Some(Duration::from_secs(1));
    });
    a.wait();
    a.close();
    for (i, changes) in [(1_u64, true), (2, false), (3, true)] {
        let archive = a.options.archive.take();
        a.open();
        if changes {
            let keyspace = a.store().keyspace("k").unwrap();
            a.store().put(&keyspace, &i.to_le_bytes(), b"").unwrap();
        }
        a.close();
        a.options.archive = archive;
        a.hands.set(i * 10_000);
        a.open();
        a.wait();
        let stats = a.store().archive_stats().unwrap();
        let states = (stats.full_states, stats.incremental_states);
        assert_eq!(states, (1, 0), "{i}");
        let there = content(a.store());
        a.close();
        assert_eq!(a.restored(Until::End).unwrap(), there);
    }
}

/// An archive that ends with a state, which no commit follows.
#[test]
fn a_state_alone_says_when_it_was() {
    let mut a = Archived::new(MediumKind::Mapped, |_| {});
    let keyspace = a.store().keyspace("k").unwrap();
    a.store().put(&keyspace, b"k", b"v").unwrap();
    a.wait();
    a.close();
    // Another archive of it begins with all that there is.
    let archive = a.dir.path().join("another");
    a.options.archive = Some(ArchiveOptions::new(archive.clone()));
    a.open();
    a.wait();
    let ts = a.store().applied();
    let expected = content(a.store());
    a.close();
    let pool = Pool::<Dram>::create("restored".as_ref(), &PoolOptions::default()).unwrap();
    let options = a.options.clone().without_thread();
    let from = (&*archive, Until::End);
    let restored = Store::restore_archive(&pool, "r", &options, from, &mut |_, _| {});
    let (store, report) = restored.unwrap();
    assert_eq!((report.timestamp, report.at), (ts, 1_000));
    assert_eq!(content(&store), expected);
}

/// A clock that was ahead for a while ended the restoring to a later time there.
#[test]
fn a_time_is_ambiguous_where_the_clock_went_back() {
    let a = Archived::new(MediumKind::Mapped, |_| {});
    let keyspace = a.store().keyspace("k").unwrap();
    a.wait();
    let mut known = Vec::new();
    // The last but one goes back by less than what commits at the same time may.
    for at in [100_000, 900_000, 110_000, 105_000, 130_000] {
        a.hands.set(at);
        a.store().put(&keyspace, &at.to_le_bytes(), b"").unwrap();
        known.push((a.store().applied(), content(a.store())));
    }
    a.wait();
    let ambiguous = |until, reached: Option<u64>| {
        let e = a.restored(until).unwrap_err();
        let text = e.to_string();
        assert!(text.contains("clock went back"), "{text}");
        let ArchiveError::Unreachable { reached: found, .. } = e else {
            panic!("{e}");
        };
        assert_eq!(found, reached);
    };
    assert_eq!(a.restored(Until::Time(101_000)).unwrap(), known[0].1);
    ambiguous(Until::Time(107_000), Some(known[0].0));
    ambiguous(Until::Time(200_000), Some(known[0].0));
    assert_eq!(a.restored(Until::Time(900_000)).unwrap(), known[4].1);
    for (timestamp, there) in &known {
        assert_eq!(a.restored(Until::Timestamp(*timestamp)).unwrap(), *there);
    }
}

/// The same where files were begun meanwhile, which restoring does not look into.
#[test]
fn a_time_is_ambiguous_where_files_were_begun_with_the_wrong_clock() {
    let mut a = Archived::new(MediumKind::Mapped, |_| {});
    let mut known = Vec::new();
    for at in [100_000, 900_000, 910_000, 920_000, 110_000] {
        a.hands.set(at);
        let keyspace = a.store().keyspace("k").unwrap();
        a.store().put(&keyspace, &at.to_le_bytes(), b"").unwrap();
        known.push((a.store().applied(), content(a.store())));
        a.wait();
        a.close();
        a.open();
    }
    let e = a.restored(Until::Time(120_000)).unwrap_err().to_string();
    assert!(e.contains("clock went back between"), "{e}");
    assert_eq!(a.restored(Until::End).unwrap(), known[4].1);
    for (timestamp, there) in &known {
        assert_eq!(a.restored(Until::Timestamp(*timestamp)).unwrap(), *there);
    }
}

/// Files of states that a crash had cut off stayed for ever under another name.
#[test]
fn a_state_that_was_cut_off_is_removed() {
    let mut a = Archived::new(MediumKind::Mapped, |_| {});
    let keyspace = a.store().keyspace("k").unwrap();
    a.store().put(&keyspace, b"key", b"value").unwrap();
    a.wait();
    a.close();
    let archive = Archive::open(a.archive()).unwrap();
    let state = &archive.files[0];
    assert_eq!(state.kind, FileKind::FullState);
    let bytes = std::fs::read(&state.path).unwrap();
    std::fs::write(&state.path, &bytes[..bytes.len() - 10]).unwrap();
    a.open();
    a.wait();
    let there = content(a.store());
    a.close();
    assert!(!state.path.exists());
    let names = std::fs::read_dir(a.archive()).unwrap();
    for name in names.map(|entry| entry.unwrap().file_name()) {
        let name = name.to_str().unwrap();
        let known = name == "lock" || name.ends_with(".state") || name.ends_with(".commits");
        assert!(known, "{name}");
    }
    assert_eq!(a.restored(Until::End).unwrap(), there);
}

/// A store was closed without a word about commits that had not come to the archive.
#[test]
fn closing_tells_that_the_archive_lacks_the_last_commits() {
    let mut a = Archived::new(MediumKind::Mapped, |options| {
        options.every = Duration::from_secs(600);
    });
    a.wait_for_the_state();
    let store = a.store.take().unwrap();
    let keyspace = store.keyspace("k").unwrap();
    let moved = a.dir.path().join("moved");
    std::fs::rename(a.archive(), &moved).unwrap();
    std::fs::write(a.archive(), b"no directory").unwrap();
    store.put(&keyspace, b"key", b"value").unwrap();
    let (store, e) = store.close().unwrap_err();
    assert!(matches!(e, CloseError::Archive(_)), "{e}");
    let text = e.to_string();
    assert!(
        text.contains("the archive lacks the last commits"),
        "{text}"
    );
    // It is open still, and tries again.
    std::fs::remove_file(a.archive()).unwrap();
    std::fs::rename(&moved, a.archive()).unwrap();
    let there = content(&store);
    store.close().map_err(|(_, e)| e).unwrap();
    assert_eq!(a.restored(Until::End).unwrap(), there);
}
