//! Stores on ordinary files behind the journal: whatever was acknowledged or read is in the
//! journal.

use bristlecone_pmem::media::{Auto, MediumKind};
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{Batch, StoreOptions};
use std::path::Path;
use std::sync::Arc;

fn options() -> PoolOptions {
    crate::common::on(MediumKind::Journal, 1 << 30)
}

/// Copies every file of a pool, the journal first, so that the copy lacks what is in the pool file
/// only, as after a power cut.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn commits_of_threads_share_syncs_and_survive() {
    for design in crate::common::ALL {
        let dir = crate::common::directory();
        let home = dir.path().join("home");
        std::fs::create_dir(&home).unwrap();
        let pool: Arc<Pool<Auto>> = Pool::create(&home.join("pool"), &options()).unwrap();
        let made = StoreOptions::default().without_thread();
        let store = crate::common::create(&pool, "s", design, &made).unwrap();
        let k = store.keyspace("k").unwrap();
        let syncs = pool.pm().journal_stats().unwrap().syncs;
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let (store, k) = (&store, &k);
                scope.spawn(move || {
                    for i in 0..50u32 {
                        let mut batch = Batch::new();
                        for copy in 0..8 {
                            batch.put(k, format!("{thread}/{copy}").as_bytes(), &i.to_le_bytes());
                        }
                        let ts = store.write(batch).unwrap();
                        assert!(store.durable() >= ts);
                        store
                            .put(k, &thread.to_le_bytes(), &i.to_le_bytes())
                            .unwrap();
                        let read = store.get(k, &thread.to_le_bytes()).unwrap();
                        assert_eq!(read.unwrap(), i.to_le_bytes());
                    }
                });
            }
        });
        // 200 batches of 8 keys and 200 single ones: at most a sync for each, however many keys.
        let syncs = pool.pm().journal_stats().unwrap().syncs - syncs;
        assert!(syncs <= 400 + 10, "{syncs} syncs");
        copy(&home, &dir.path().join("cut"));
        let cut: Arc<Pool<Auto>> = Pool::open(&dir.path().join("cut/pool"), &options()).unwrap();
        let cut = crate::common::open(&cut, "s", &made).unwrap();
        let k = cut.find_keyspace("k").unwrap();
        for thread in 0..4u32 {
            for copy in 0..8 {
                let found = cut.get(&k, format!("{thread}/{copy}").as_bytes()).unwrap();
                assert_eq!(found.unwrap(), 49u32.to_le_bytes());
            }
        }
        cut.check().unwrap();
    }
}
