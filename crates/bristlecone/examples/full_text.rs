//! Full text by prefix: each word of a document is a key that ends with the document's number.
//!
//! `cargo run --example full_text`

use bristlecone::{Batch, Database, Keyspace, Result};
use std::collections::BTreeSet;

fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_lowercase)
}

/// Documents that have a word with this beginning.
fn find(index: &Keyspace, beginning: &str) -> Result<BTreeSet<u32>> {
    let entries = index.prefix(beginning.to_lowercase());
    let number = |key: &[u8]| key.last_chunk().map_or(0, |n| u32::from_be_bytes(*n));
    entries.map(|entry| Ok(number(&entry?.0))).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let db = Database::open(folder.path().join("notes.db"))?;
    let (notes, index) = (db.keyspace("notes")?, db.keyspace("words")?);
    let texts = [
        "Bristlecone pines are the oldest living trees",
        "B+-trees keep their keys in order",
        "The bristles of a brush",
    ];
    for (number, text) in (1u32..).zip(texts) {
        // A note and its words appear together.
        let mut batch = Batch::new();
        batch.insert(&notes, number.to_be_bytes(), text);
        for word in words(text) {
            let key = [word.as_bytes(), b"\0", &number.to_be_bytes()].concat();
            batch.insert(&index, key, "");
        }
        db.write(batch)?;
    }
    for beginning in ["bristle", "tree", "order"] {
        println!("{beginning}*: notes {:?}", find(&index, beginning)?);
    }
    assert_eq!(find(&index, "Bristle")?, [1, 3].into());
    assert_eq!(find(&index, "trees")?, [1, 2].into());
    Ok(())
}
