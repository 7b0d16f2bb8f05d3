//! Transfers between accounts in many threads: no money appears or disappears, and no account is
//! overdrawn.
//!
//! `cargo run --example bank_transfer`

use bristlecone::{Codec, Database, Error, ErrorKind, Result, TypedKeyspace};

type Accounts = TypedKeyspace<String, i64>;

fn transfer(db: &Database, accounts: &Accounts, from: &str, to: &str, amount: i64) -> Result<()> {
    // Run again by itself if another transfer of one of the two was first.
    db.transaction(|tx| {
        let mut change = |name: &str, by: i64| -> Result<()> {
            let key = accounts.key(&name.to_owned());
            let old = match tx.get(accounts.bytes(), &key)? {
                Some(bytes) => i64::decode(&bytes).map_err(Error::other)?,
                None => 0,
            };
            if old + by < 0 {
                return Err(Error::other(format!("{name} has only {old}")));
            }
            tx.insert(accounts.bytes(), key, accounts.value(&(old + by))?)
        };
        change(from, -amount)?;
        change(to, amount)
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let db = Database::open(folder.path().join("bank.db"))?;
    let accounts: Accounts = db.typed("accounts")?;
    let names = ["alice", "bob", "carol"];
    for name in names {
        accounts.insert(&name.to_owned(), &100)?;
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (db, accounts) = (&db, &accounts);
            scope.spawn(move || {
                for i in 0..50 {
                    let (from, to) = (names[(i + thread) % 3], names[(i + thread + 1) % 3]);
                    match transfer(db, accounts, from, to, 7) {
                        Err(e) if e.kind() != ErrorKind::Other => panic!("{e}"),
                        // Done, or refused for want of money.
                        _ => {}
                    }
                }
            });
        }
    });
    let mut total = 0;
    for entry in accounts.iter() {
        let (name, money) = entry?;
        println!("{name:6} {money}");
        total += money;
    }
    assert_eq!(total, 300);
    Ok(())
}
