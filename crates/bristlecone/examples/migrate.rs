//! Moves from redb and from LMDB: every table, or every database of an environment, becomes a
//! keyspace.
//!
//! `cargo run --features import --example migrate`

use bristlecone::{Database, import};
use heed::types::Bytes;
use heed::{CommitOrAbort, EnvOpenOptions};
use redb::TableDefinition;
use std::path::Path;

type AnyError = Box<dyn std::error::Error>;

const ORDERS: TableDefinition<&str, &[u8]> = TableDefinition::new("orders");

/// A redb database, as another program has left it.
fn old_redb(path: &Path) -> Result<(), AnyError> {
    let db = redb::Database::create(path)?;
    let write = db.begin_write()?;
    write.open_table(ORDERS)?.insert("17", &b"packed"[..])?;
    write.commit()?;
    Ok(())
}

/// An LMDB environment, as another program has left it.
fn old_lmdb(path: &Path) -> Result<(), AnyError> {
    std::fs::create_dir(path)?;
    // SAFETY: 1. no flags are set; 2. nobody else has the files of a folder that was made just now.
    let env = unsafe { EnvOpenOptions::new().max_dbs(4).open(path)? };
    let customers = env
        .create_databases_and_commit(env.write_txn()?, |opener, write| {
            let made = opener.create_database::<Bytes, Bytes>(write, Some("customers"));
            made.map(CommitOrAbort::<_, ()>::Commit)
        })?
        .unwrap_commit();
    let mut write = env.write_txn()?;
    customers.put(&mut write, b"1", b"alice")?;
    customers.put(&mut write, b"2", b"bob")?;
    write.commit()?;
    Ok(())
}

fn main() -> Result<(), AnyError> {
    let folder = tempfile::tempdir()?;
    let [old_orders, old_customers] =
        ["orders.redb", "customers.lmdb"].map(|n| folder.path().join(n));
    old_redb(&old_orders)?;
    old_lmdb(&old_customers)?;

    let db = Database::open(folder.path().join("shop.db"))?;
    let mut imported = import::redb_tables(&old_orders, &db)?;
    imported.extend(import::lmdb_databases(&old_customers, &db)?);
    for (keyspace, entries) in &imported {
        println!("{keyspace}: {entries} entries");
    }
    assert_eq!(db.keyspace("orders")?.get("17")?.expect("moved"), "packed");
    assert_eq!(db.keyspace("customers")?.get("2")?.expect("moved"), "bob");
    Ok(())
}
