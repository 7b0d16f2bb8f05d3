//! A cache that outlives its process: entries live for a minute, and are computed once.
//!
//! `cargo run --example cache`

use bristlecone::{Database, Keyspace, Result};
use std::time::Duration;

const TTL: Duration = Duration::from_secs(60);

/// The cached answer, or one that is computed and kept.
fn cached(cache: &Keyspace, question: &str, compute: impl FnOnce() -> String) -> Result<Vec<u8>> {
    if let Some(answer) = cache.get(question)? {
        return Ok(answer.to_vec());
    }
    let answer = compute();
    cache.insert_expiring(question, &answer, TTL)?;
    Ok(answer.into())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("cache.db");
    let mut computed = 0;
    for _ in 0..2 {
        // The second time it is opened, the answer is there.
        let db = Database::open(&path)?;
        let cache = db.keyspace("answers")?;
        let answer = cached(&cache, "6 * 7", || {
            computed += 1;
            (6 * 7).to_string()
        })?;
        println!("6 * 7 = {}", answer.escape_ascii());
        assert_eq!(answer, b"42");
    }
    assert_eq!(computed, 1);
    Ok(())
}
