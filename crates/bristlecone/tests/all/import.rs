//! Imports from redb and LMDB: what comes along, and what is refused.

use bristlecone::{Database, ErrorKind, import};
use heed::types::Bytes;
use heed::{CommitOrAbort, DatabaseFlags, EnvFlags, EnvOpenOptions};
use redb::TableDefinition;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn database() -> (TempDir, Database) {
    let home = tempfile::tempdir().unwrap();
    let db = Database::open(home.path().join("new.db")).unwrap();
    (home, db)
}

fn entries(db: &Database, keyspace: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let keyspace = db.find_keyspace(keyspace).unwrap();
    keyspace
        .iter()
        .map(|entry| entry.unwrap())
        .map(|(key, value)| (key.into(), value.into()))
        .collect()
}

fn redb_at(home: &TempDir) -> PathBuf {
    let path = home.path().join("old.redb");
    let db = redb::Database::create(&path).unwrap();
    let write = db.begin_write().unwrap();
    {
        let bytes = TableDefinition::<&[u8], &[u8]>::new("bytes");
        let mut bytes = write.open_table(bytes).unwrap();
        for n in 0..3000u32 {
            let key = n.to_be_bytes();
            bytes.insert(&key[..], &vec![n as u8; 100][..]).unwrap();
        }
        let text = TableDefinition::<&str, &str>::new("text");
        let mut text = write.open_table(text).unwrap();
        text.insert("key", "value").unwrap();
        let mixed = TableDefinition::<&[u8], &str>::new("mixed");
        let mut mixed = write.open_table(mixed).unwrap();
        mixed.insert(&b"\xff"[..], "value").unwrap();
    }
    write.commit().unwrap();
    path
}

#[test]
fn tables_of_bytes_and_text_become_keyspaces() {
    let (home, db) = database();
    let path = redb_at(&home);
    let imported = import::redb_tables(&path, &db).unwrap();
    let expected = [("bytes", 3000), ("mixed", 1), ("text", 1)];
    assert_eq!(imported, expected.map(|(k, n)| (k.to_owned(), n)).into());
    let bytes = entries(&db, "bytes");
    assert_eq!(bytes.len(), 3000);
    for (n, (key, value)) in (0u32..).zip(bytes) {
        assert_eq!((key, value), (n.to_be_bytes().to_vec(), vec![n as u8; 100]));
    }
    assert_eq!(entries(&db, "text"), [(b"key".to_vec(), b"value".to_vec())]);
    assert_eq!(entries(&db, "mixed"), [(vec![255], b"value".to_vec())]);
    // Into a keyspace that has something: what has the same key is replaced.
    let k = db.keyspace("k").unwrap();
    k.insert("key", "old").unwrap();
    k.insert("other", "stays").unwrap();
    assert_eq!(import::redb_table(&path, "text", &k).unwrap(), 1);
    assert_eq!(k.get("key").unwrap().unwrap(), "value");
    assert_eq!(k.approximate_len(), 2);
}

#[test]
fn what_is_no_table_of_bytes_or_no_redb_is_refused() {
    let (home, db) = database();
    let path = redb_at(&home);
    let k = db.keyspace("k").unwrap();
    let old = redb::Database::open(&path).unwrap();
    let write = old.begin_write().unwrap();
    let numbers = TableDefinition::<u64, u64>::new("numbers");
    write.open_table(numbers).unwrap().insert(1, 2).unwrap();
    write.commit().unwrap();
    drop(old);
    let kind = |path: &Path, table: &str| import::redb_table(path, table, &k).unwrap_err().kind();
    assert_eq!(kind(&path, "none"), ErrorKind::NotFound);
    assert_eq!(kind(&path, "numbers"), ErrorKind::InvalidInput);
    assert_eq!(kind(&home.path().join("none"), "t"), ErrorKind::NotFound);
    let text = home.path().join("text");
    std::fs::write(&text, "no database at all").unwrap();
    assert_eq!(kind(&text, "t"), ErrorKind::NotADatabase);
    assert!(k.is_empty().unwrap());
}

/// An environment with database `one`, `many` values of one key in `dup`, and an entry of its own.
fn lmdb_at(path: &Path, file: bool) {
    let mut options = EnvOpenOptions::new();
    options.max_dbs(8).map_size(16 << 20);
    // SAFETY: 1. the flag is none that LMDB calls unsafe; 2. nobody else has the files, which are
    // made here.
    let env = unsafe {
        if file {
            options.flags(EnvFlags::NO_SUB_DIR);
        } else {
            std::fs::create_dir(path).unwrap();
        }
        options.open(path).unwrap()
    };
    let write = env.write_txn().unwrap();
    let (unnamed, one, dup) = env
        .create_databases_and_commit(write, |opener, write| {
            let unnamed = opener.create_database::<Bytes, Bytes>(write, None)?;
            let one = opener.create_database::<Bytes, Bytes>(write, Some("one"))?;
            let mut many = opener.database_options().types::<Bytes, Bytes>();
            many.name("dup").flags(DatabaseFlags::DUP_SORT);
            let all = (unnamed, one, many.create(write)?);
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(all))
        })
        .unwrap()
        .unwrap_commit();
    let mut write = env.write_txn().unwrap();
    unnamed.put(&mut write, b"own", b"entry").unwrap();
    for n in 0..2000u32 {
        one.put(&mut write, &n.to_be_bytes(), &n.to_le_bytes())
            .unwrap();
    }
    dup.put(&mut write, b"key", b"1").unwrap();
    if file {
        dup.put(&mut write, b"key", b"2").unwrap();
    }
    write.commit().unwrap();
}

#[test]
fn databases_of_an_environment_become_keyspaces() {
    let (home, db) = database();
    let path = home.path().join("env");
    lmdb_at(&path, false);
    let imported = import::lmdb_databases(&path, &db).unwrap();
    assert_eq!(
        imported,
        [("dup".to_owned(), 1), ("one".to_owned(), 2000)].into()
    );
    let one = entries(&db, "one");
    for (n, (key, value)) in (0u32..).zip(one) {
        assert_eq!(
            (key, value),
            (n.to_be_bytes().to_vec(), n.to_le_bytes().to_vec())
        );
    }
    let k = db.keyspace("k").unwrap();
    assert_eq!(import::lmdb_database(&path, None, &k).unwrap(), 1);
    assert_eq!(entries(&db, "k"), [(b"own".to_vec(), b"entry".to_vec())]);
    let none = import::lmdb_database(&path, Some("none"), &k).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound, "{none}");
    let none = import::lmdb_databases(home.path().join("none"), &db).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound, "{none}");
}

#[test]
fn several_values_of_a_key_are_refused_by_name() {
    let (home, db) = database();
    let path = home.path().join("env.mdb");
    lmdb_at(&path, true);
    let k = db.keyspace("k").unwrap();
    assert_eq!(import::lmdb_database(&path, Some("one"), &k).unwrap(), 2000);
    let refused = import::lmdb_database(&path, Some("dup"), &k).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("\"key\""), "{refused}");
}
