//! A durable queue of jobs: keys in the order of arrival, each job taken by exactly one worker.
//!
//! `cargo run --example queue`

use bristlecone::{Database, Result};
use std::sync::Mutex;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let db = Database::open(folder.path().join("jobs.db"))?;
    let jobs = db.keyspace("jobs")?;

    // The number and the job are one commit, so no number is used twice and none is lost.
    let meta = db.keyspace("meta")?;
    let push = |job: &str| -> Result<()> {
        db.transaction(|tx| {
            let next = tx.get(&meta, "next")?;
            let next = next.map_or(0, |n| u64::from_be_bytes(n.try_into().unwrap_or_default()));
            tx.insert(&meta, "next", (next + 1).to_be_bytes())?;
            tx.insert(&jobs, next.to_be_bytes(), job)
        })
    };
    for job in ["mail alice", "resize 17.png", "mail bob", "rotate logs"] {
        push(job)?;
    }

    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Ok(Some((_, job))) = jobs.pop_first() {
                    done.lock().expect("no worker panics").push(job.to_vec());
                }
            });
        }
    });
    let mut done = done.into_inner()?;
    done.sort();
    for job in &done {
        println!("done: {}", job.escape_ascii());
    }
    assert_eq!(done.len(), 4);
    Ok(())
}
