//! Transactions of a store in a file: transfers that keep the total, a conflict, serialisable
//! transactions, a snapshot, and opening the store again.
//!
//! `cargo run -p bristlecone-store --example transactions`

use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{
    Keyspace, Store, StoreOptions, Transaction, TransactionOptions, WriteError,
};
use std::error::Error;
use std::ops::ControlFlow;

type Bank = Store<Auto>;

fn balance(
    bank: &mut Transaction<Auto>,
    accounts: &Keyspace,
    who: &str,
) -> Result<i64, Box<dyn Error>> {
    let text = bank.get(accounts, who.as_bytes())?.unwrap_or_default();
    Ok(String::from_utf8(text)?.parse().unwrap_or(0))
}

/// Moves money, and begins again after a conflict.
fn transfer(
    bank: &Bank,
    accounts: &Keyspace,
    from: &str,
    to: &str,
    sum: i64,
) -> Result<(), Box<dyn Error>> {
    loop {
        let mut moving = bank.begin(TransactionOptions::default());
        let left = balance(&mut moving, accounts, from)? - sum;
        if left < 0 {
            return Err(format!("{from} has not got {sum}").into());
        }
        let there = balance(&mut moving, accounts, to)? + sum;
        moving.put(accounts, from.as_bytes(), left.to_string().as_bytes())?;
        moving.put(accounts, to.as_bytes(), there.to_string().as_bytes())?;
        match moving.commit() {
            Ok(_) => return Ok(()),
            Err(WriteError::Conflict(_)) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

fn total(bank: &Bank, accounts: &Keyspace) -> Result<i64, Box<dyn Error>> {
    let mut total = 0;
    bank.snapshot().scan::<Vec<u8>>(accounts, .., |_, entry| {
        total += std::str::from_utf8(entry.value).map_or(0, |text| text.parse().unwrap_or(0));
        ControlFlow::Continue(())
    })?;
    Ok(total)
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("transactions-{}.pool", std::process::id()));
    let pool = Pool::<Auto>::create(&path, &PoolOptions::default())?;
    let bank = Store::create(&pool, "bank", &StoreOptions::default())?;
    let accounts = bank.keyspace("accounts")?;
    for who in ["alice", "bob", "carol"] {
        bank.put(&accounts, who.as_bytes(), b"100")?;
    }
    let before = bank.snapshot();

    std::thread::scope(|scope| {
        for (from, to) in [("alice", "bob"), ("bob", "carol"), ("carol", "alice")] {
            let (bank, accounts) = (&bank, &accounts);
            scope.spawn(move || {
                for _ in 0..100 {
                    // An account without money waits for the others.
                    while transfer(bank, accounts, from, to, 1).is_err() {}
                }
            });
        }
    });
    println!(
        "after 300 transfers there are {} in all",
        total(&bank, &accounts)?
    );
    assert_eq!(total(&bank, &accounts)?, 300);

    // Both wrote alice's account: the first one to commit wins.
    let (mut one, mut two) = (
        bank.begin(TransactionOptions::default()),
        bank.begin(TransactionOptions::default()),
    );
    one.put(&accounts, b"alice", b"1")?;
    two.put(&accounts, b"alice", b"2")?;
    one.commit()?;
    println!("{}", two.commit().unwrap_err());

    // Each reads what the other writes. Serialisable transactions do not allow that.
    let (mut one, mut two) = (
        bank.begin(TransactionOptions::serializable()),
        bank.begin(TransactionOptions::serializable()),
    );
    one.get(&accounts, b"bob")?;
    two.get(&accounts, b"carol")?;
    one.put(&accounts, b"carol", b"0")?;
    two.put(&accounts, b"bob", b"0")?;
    one.commit()?;
    println!("{}", two.commit().unwrap_err());

    println!(
        "the snapshot still has alice's {}",
        String::from_utf8(before.get(&accounts, b"alice")?.unwrap_or_default())?
    );
    drop(before);
    bank.close().map_err(|(_, e)| e)?;
    drop(pool);

    let pool = Pool::<Auto>::open(&path, &PoolOptions::default())?;
    let bank = Store::open(&pool, "bank", &StoreOptions::default())?;
    let accounts = bank.keyspace("accounts")?;
    println!(
        "after opening it again, alice has {}",
        String::from_utf8(bank.get(&accounts, b"alice")?.unwrap_or_default())?
    );
    bank.check()?;
    bank.close().map_err(|(_, e)| e)?;
    drop(pool);
    std::fs::remove_file(&path)?;
    // The journal, where the file system needs one.
    let _ = std::fs::remove_file(path.with_extension("pool.journal"));
    Ok(())
}
