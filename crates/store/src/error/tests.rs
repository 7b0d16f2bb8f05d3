//! Messages and sources of errors.

use super::*;
use std::error::Error;

fn version() -> VersionError {
    VersionError {
        format: "store",
        found: 9,
        oldest: 1,
        newest: 2,
    }
}

fn damage() -> Damage {
    Damage::new("torn")
}

#[test]
fn a_version_that_is_not_read_is_told_from_other_reasons() {
    for error in [
        StoreError::Version(version()),
        StoreError::Index(TreeError::Version(version())),
    ] {
        assert_eq!(error.version(), Some(&version()));
        assert!(error.to_string().contains('9'), "{error}");
    }
    assert_eq!(StoreError::Damaged(damage()).version(), None);
}

fn space() -> SpaceError {
    SpaceError::io("growing", io::Error::other("no room"))
}

fn commit() -> CommitError {
    CommitError::Failed {
        doing: "syncing",
        source: io::Error::other("gone dead"),
    }
}

fn conflict(key: &[u8]) -> ConflictError {
    ConflictError::over("accounts".into(), key, true)
}

fn io_of_archive() -> ArchiveError {
    ArchiveError::io("/archive/1")(io::Error::other("refused"))
}

/// The source of an error is its cause, and the error's message includes it.
#[test]
fn errors_lead_to_what_caused_them() {
    let of_source = || WriteError::Source(io::Error::other("no more"));
    let read = || ReadError::Damaged(damage());
    let store = || StoreError::Damaged(damage());
    let errors: Vec<(Box<dyn Error>, &str)> = vec![
        (Box::new(WriteError::Conflict(conflict(b"kept"))), "kept"),
        (Box::new(WriteError::Space(space())), "no room"),
        (Box::new(WriteError::Commit(commit())), "gone dead"),
        (Box::new(StoreError::Root(RootError::Full)), "slots"),
        (
            Box::new(StoreError::Index(TreeError::Corrupt("a loop".into()))),
            "a loop",
        ),
        (
            Box::new(StoreError::Archive(io_of_archive().into())),
            "refused",
        ),
        (Box::new(CloseError::Commit(commit())), "gone dead"),
        (Box::new(CloseError::Vacuum(of_source())), "no more"),
        (Box::new(CloseError::Archive(io_of_archive())), "refused"),
        (Box::new(io_of_archive()), "refused"),
        (
            Box::new(ArchiveError::Version {
                path: "1".into(),
                version: version(),
            }),
            "9",
        ),
        (Box::new(ArchiveError::Commit(commit())), "gone dead"),
        (Box::new(ArchiveError::Read(read())), "torn"),
        (Box::new(ArchiveError::Store(store().into())), "torn"),
        (Box::new(ArchiveError::Write(of_source())), "no more"),
        (
            Box::new(BackupError::Io(io::Error::other("refused"))),
            "refused",
        ),
        (Box::new(BackupError::Version(version())), "9"),
        (Box::new(BackupError::Read(read())), "torn"),
        (Box::new(BackupError::Store(store())), "torn"),
        (Box::new(BackupError::Write(of_source())), "no more"),
        (Box::new(of_source()), "no more"),
        (Box::new(WriteError::Damaged(damage())), "torn"),
        (Box::new(StoreError::Version(version())), "9"),
        (Box::new(StoreError::Damaged(damage())), "torn"),
        (Box::new(StoreError::Write(of_source().into())), "no more"),
        (
            Box::new(StoreError::Thread(io::Error::other("no threads"))),
            "no threads",
        ),
        (
            Box::new(SalvageError::From(StoreError::Damaged(damage()))),
            "torn",
        ),
        (Box::new(SalvageError::Into(of_source())), "no more"),
    ];
    for (error, cause) in errors {
        assert!(error.to_string().contains(cause), "{error}");
        let source = error.source().unwrap();
        assert!(source.to_string().contains(cause), "{error}: {source}");
    }
    let without: [Box<dyn Error>; 5] = [
        Box::new(WriteError::ReadOnly),
        Box::new(StoreError::Unfinished("s".into())),
        Box::new(CloseError::InUse),
        Box::new(ArchiveError::NotAnArchive { dir: "a".into() }),
        Box::new(BackupError::NotABackup),
    ];
    for error in without {
        assert!(error.source().is_none(), "{error}");
    }
}

#[test]
fn damage_says_where_it_is_and_what_to_do() {
    let catalogue = [&CATALOGUE.to_be_bytes()[..], b"orders"].concat();
    let of_user = [&7_u32.to_be_bytes()[..], b"order 1"].concat();
    assert_eq!(damage().to_string(), "the store is damaged: torn");
    assert_eq!(damage().into_what(), "torn");
    let of_page = |key: &[u8]| Damage::of_page(key, &damage()).into_what();
    assert!(of_page(&catalogue).starts_with("the name of keyspace \"orders\": torn;"));
    assert!(of_page(&of_user).starts_with("of keyspace number 7, key \"order 1\": torn;"));
    // Too short to have a number.
    assert!(of_page(b"ab").starts_with("the name of keyspace \"ab\": torn;"));
    let of_key = |key: &[u8]| Damage::of_key(key, &damage()).into_what();
    let name = of_key(&catalogue);
    assert!(
        name.starts_with("the name of keyspace \"orders\": torn;"),
        "{name}"
    );
    assert!(name.contains("restore the store from a backup"), "{name}");
    let key = of_key(&of_user);
    assert!(
        key.starts_with("key \"order 1\" of keyspace number 7: torn;"),
        "{key}"
    );
    assert!(key.contains("put or delete the key"), "{key}");
}

#[test]
fn a_damaged_record_says_which_it_is() {
    let of_user = [&7_u32.to_be_bytes()[..], b"order 1"].concat();
    let at = |key: Option<&[u8]>, offset| {
        DamagedRecord::at(key.map(<[u8]>::to_vec), offset, "torn").to_string()
    };
    assert_eq!(
        at(Some(&of_user), 0x40),
        "key \"order 1\" of keyspace number 7, at 0x40: torn"
    );
    assert_eq!(
        at(Some(&of_user), 0),
        "key \"order 1\" of keyspace number 7: torn"
    );
    assert_eq!(at(Some(b"ab"), 0x40), "index entry \"ab\", at 0x40: torn");
    assert_eq!(at(None, 0x40), "commit table, at 0x40: torn");
    // The first page.
    assert_eq!(at(Some(b""), 0), "torn");
    assert_eq!(at(None, 0), "torn");
    let record = DamagedRecord::in_tree(Some(&of_user), "torn");
    assert_eq!(record.key(), Some((7, &b"order 1"[..])));
    assert_eq!(DamagedRecord::in_tree(Some(b"ab"), "torn").key(), None);
    assert_eq!(DamagedRecord::in_tree(None, "torn").key(), None);
}

#[test]
fn a_conflict_shows_the_beginning_of_its_key() {
    let whole = conflict(&[b'k'; 40]).to_string();
    let expected = format!("key \"{}\" of keyspace \"accounts\"", "k".repeat(40));
    assert!(whole.contains(&expected), "{whole}");
    let cut = conflict(&[b'k'; 41]).to_string();
    let expected = format!("key \"{}...\" of keyspace", "k".repeat(40));
    assert!(cut.contains(&expected), "{cut}");
    let short = conflict(b"key").to_string();
    assert!(short.contains("key \"key\" of keyspace"), "{short}");
}

#[test]
fn a_handle_of_another_store_is_named() {
    let from = || OtherStore("orders".into());
    for e in [
        ReadError::from(from()).to_string(),
        WriteError::from(from()).to_string(),
        WriteError::from(ReadError::from(from())).to_string(),
    ] {
        assert!(
            e.contains("the handle of keyspace \"orders\" is another store's"),
            "{e}"
        );
    }
}

/// An error of the index keeps its kind on its way to the caller.
#[test]
fn errors_of_the_index_become_those_of_writes() {
    let too_long = InsertError::KeyTooLong { len: 9, most: 8 };
    let e = WriteError::from(too_long);
    assert!(
        matches!(e, WriteError::KeyTooLong { len: 9, most: 8 }),
        "{e}"
    );
    let of_space: [WriteError; 3] = [
        InsertError::Space(space()).into(),
        UpdateError::Space(space()).into(),
        RemoveError::Space(space()).into(),
    ];
    for e in of_space {
        assert!(matches!(e, WriteError::Space(_)), "{e}");
    }
    let of_commits: [WriteError; 3] = [
        InsertError::Commit(commit()).into(),
        UpdateError::Commit(commit()).into(),
        RemoveError::Commit(commit()).into(),
    ];
    for e in of_commits {
        assert!(matches!(e, WriteError::Commit(_)), "{e}");
    }
    let for_reading: [WriteError; 4] = [
        InsertError::ReadOnly.into(),
        UpdateError::ReadOnly.into(),
        RemoveError::ReadOnly.into(),
        SpaceError::ReadOnly.into(),
    ];
    for e in for_reading {
        assert!(matches!(e, WriteError::ReadOnly), "{e}");
    }
    // None of these can be, unless the index is damaged.
    let damaged: [(WriteError, &str); 2] = [
        (InsertError::KeyExists.into(), "the key exists"),
        (UpdateError::NotFound.into(), "no such key"),
    ];
    for (e, what) in damaged {
        assert!(matches!(e, WriteError::Damaged(_)), "{e}");
        assert!(
            e.to_string()
                .contains(&format!("the index answered: {what}")),
            "{e}"
        );
    }
}

#[test]
fn damage_found_by_a_write_is_damage_of_the_store() {
    let e = StoreError::from(WriteError::Damaged(damage()));
    assert!(matches!(e, StoreError::Damaged(_)), "{e}");
    let e = StoreError::from(space());
    assert!(matches!(e, StoreError::Write(_)), "{e}");
}

#[test]
fn messages_have_the_names_and_numbers_of_the_case() {
    let messages: Vec<(Box<dyn Error>, &[&str])> = vec![
        (
            Box::new(ReadError::Memory {
                what: "9 GiB".into(),
            }),
            &["no memory", "9 GiB"],
        ),
        (
            Box::new(StoreError::NodeBytes {
                design: "fptree",
                asked: 100,
                there: &[256, 512],
            }),
            &["fptree", "100", "256, 512"],
        ),
        (
            Box::new(CloseError::InUse),
            &["the store is in use", "a snapshot"],
        ),
        (
            Box::new(ArchiveError::InUse {
                dir: "/archive".into(),
            }),
            &["/archive", "another process"],
        ),
        (
            Box::new(ArchiveError::Unreachable {
                what: "nothing leads on".into(),
                reached: Some(77),
            }),
            &["nothing leads on", "time stamp 77"],
        ),
        (
            Box::new(BackupError::Damaged {
                what: "it ends early".into(),
                at: 99,
            }),
            &["99 bytes in", "it ends early"],
        ),
        (Box::new(BackupError::NotABackup), &["not a backup"]),
    ];
    for (error, parts) in messages {
        for part in parts {
            assert!(error.to_string().contains(part), "{error}: {part}");
        }
    }
}
