//! Backups while others write, restoring with another engine, and streams that are not backups.

use crate::common::{ALL, Fixture, restore, text};
use bristlecone_store::{BackupError, Store, StoreError};
use std::sync::atomic::{AtomicBool, Ordering};

fn filled(design: &str) -> Fixture {
    let f = Fixture::new(design);
    let other = f.store.keyspace("other").unwrap();
    for i in 0..3000 {
        f.put(&format!("key {i}"), &format!("value {i}"));
    }
    f.store.put(&other, b"large", &vec![7; 3 << 20]).unwrap();
    f.hands.set(10);
    f.store
        .put_expiring(&other, b"brief", b"1", Some(100))
        .unwrap();
    f.store
        .put_expiring(&other, b"over", b"1", Some(10))
        .unwrap();
    f
}

#[test]
fn a_backup_is_of_one_time_and_comes_back_in_another_design() {
    for (from, to) in ALL.into_iter().flat_map(|from| ALL.map(|to| (from, to))) {
        let f = filled(from);
        let snapshot = f.store.snapshot();
        let done = AtomicBool::new(false);
        let mut stream = Vec::new();
        let report = std::thread::scope(|scope| {
            scopeguard::defer!(done.store(true, Ordering::Relaxed));
            scope.spawn(|| {
                let mut i = 0;
                while !done.load(Ordering::Relaxed) {
                    f.put(&format!("key {}", i % 3000), "changed meanwhile");
                    f.store.vacuum(100).unwrap();
                    i += 1;
                }
            });
            snapshot.backup(&mut stream).unwrap()
        });
        assert_eq!((report.keyspaces, report.entries), (2, 3002));
        assert_eq!(report.bytes, stream.len() as u64);
        let pool = f.new_pool();
        let from = &mut stream.as_slice();
        let restored = restore(&pool, "r", to, &f.options, from);
        let (restored, again) = restored.unwrap();
        assert_eq!(again, report);
        assert_eq!(restored.design().0, to);
        let check = |store: &Store<_>| {
            let k = store.find_keyspace("k").unwrap();
            for i in 0..3000 {
                let found = text(store.get(&k, format!("key {i}").as_bytes()).unwrap());
                assert_eq!(found.unwrap(), format!("value {i}"));
            }
            let other = store.find_keyspace("other").unwrap();
            assert_eq!(
                store.get(&other, b"large").unwrap().unwrap(),
                vec![7; 3 << 20]
            );
            let brief = store.get_with(&other, b"brief", |entry| entry.expires_at);
            assert_eq!(brief.unwrap(), Some(Some(100)));
            assert_eq!(store.len(&other), 2);
            store.check().unwrap();
        };
        check(&restored);
        drop((restored, pool));
    }
}

#[test]
fn a_stream_that_is_no_whole_backup_leaves_no_store() {
    for design in ALL {
        let f = filled(design);
        let mut stream = Vec::new();
        f.store.backup(&mut stream).unwrap();
        let refused = |bytes: &[u8]| {
            let pool = f.new_pool();
            let error = restore(&pool, "r", design, &f.options, &mut &bytes[..]).unwrap_err();
            assert!(pool.roots().is_empty(), "{:?}", pool.roots());
            error
        };
        assert!(matches!(refused(b""), BackupError::NotABackup));
        assert!(matches!(
            refused(b"BCSTORY\n and more of it"),
            BackupError::NotABackup
        ));
        assert!(matches!(
            refused(&stream[..20]),
            BackupError::Damaged { .. }
        ));
        for cut in [stream.len() - 1, stream.len() - 30, 100, 30, 24] {
            let error = refused(&stream[..cut]);
            assert!(
                matches!(error, BackupError::Damaged { .. }),
                "{cut}: {error}"
            );
            assert!(error.to_string().contains("bytes in"), "{error}");
        }
        for at in [9, 15, 24, 26, 40, stream.len() / 2, stream.len() - 10] {
            let mut bad = stream.clone();
            bad[at] ^= 0x40;
            let error = refused(&bad);
            assert!(
                matches!(error, BackupError::Damaged { .. }),
                "{at}: {error}"
            );
        }
        // A length of 4 GiB that is not there.
        let mut bad = stream[..24].to_vec();
        bad.extend([2, 0xFF, 0xFF, 0xFF, 0xFF, 1, 2, 3]);
        assert!(matches!(refused(&bad), BackupError::Damaged { .. }));
    }
}

/// A frame that claims 4 GiB took as much memory before it was found to be damaged.
#[test]
fn a_frame_that_claims_more_than_an_entry_can_have_is_not_read() {
    let f = filled(ALL[0]);
    let mut stream = Vec::new();
    f.store.backup(&mut stream).unwrap();
    let mut hostile = stream[..24].to_vec();
    hostile.push(2);
    hostile.extend(u32::MAX.to_le_bytes());
    let read = std::cell::Cell::new(0_usize);
    struct Zeros<'r>(&'r std::cell::Cell<usize>);
    impl std::io::Read for Zeros<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.0.set(self.0.get() + into.len());
            into.fill(0);
            Ok(into.len())
        }
    }
    let mut from = std::io::Read::chain(hostile.as_slice(), Zeros(&read));
    let pool = f.new_pool();
    let e = restore(&pool, "r", ALL[0], &f.options, &mut from).unwrap_err();
    assert!(matches!(e, BackupError::Damaged { at: 29, .. }), "{e}");
    assert!(e.to_string().contains("claims more bytes"), "{e}");
    assert!(read.get() < 1 << 20, "{}", read.get());
}

#[test]
fn a_restore_that_was_cut_short_cannot_be_opened_only_removed() {
    for design in ALL {
        let f = filled(design);
        let mut stream = Vec::new();
        f.store.backup(&mut stream).unwrap();
        // A stream that copies the pool as a kill would leave it, half-way.
        struct Halfway<'a> {
            rest: &'a [u8],
            at: usize,
            file: std::path::PathBuf,
        }
        impl std::io::Read for Halfway<'_> {
            fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
                if self.rest.len() < self.at {
                    self.at = 0;
                    std::fs::copy(&self.file, self.file.with_extension("killed"))?;
                }
                let n = out.len().min(self.rest.len()).min(64 << 10);
                out[..n].copy_from_slice(&self.rest[..n]);
                self.rest = &self.rest[n..];
                Ok(n)
            }
        }
        let pool = f.new_pool();
        let mut halfway = Halfway {
            rest: &stream,
            at: stream.len() / 2,
            file: pool.path().to_owned(),
        };
        let (restored, _) = restore(&pool, "r", design, &f.options, &mut halfway).unwrap();
        restored.check().unwrap();
        let killed: std::sync::Arc<bristlecone_pmem::Pool<bristlecone_pmem::media::Auto>> =
            bristlecone_pmem::Pool::open(
                &pool.path().with_extension("killed"),
                &Default::default(),
            )
            .unwrap();
        let error = crate::common::open(&killed, "r", &f.options).unwrap_err();
        assert!(matches!(error, StoreError::Unfinished(_)), "{error}");
        Store::remove(&killed, "r").unwrap();
        let (restored, _) =
            restore(&killed, "r", design, &f.options, &mut stream.as_slice()).unwrap();
        restored.check().unwrap();
    }
}
