//! Counts page views from several threads: increments of one key are atomic, and durable one by
//! one.
//!
//! `cargo run --example counter`

use bristlecone::Database;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let db = Database::open(folder.path().join("views.db"))?;
    let views = db.keyspace("views")?;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for page in ["/", "/about", "/"] {
                    views.increment(page, 1).expect("room for a number");
                }
            });
        }
    });
    for entry in &views {
        let (page, count) = entry?;
        println!("{:8} {}", page.escape_ascii(), count.escape_ascii());
    }
    assert_eq!(views.get("/")?.expect("it was counted"), "8");
    Ok(())
}
