//! Backups of a pool that changes while it is copied.

use crate::pool_support::{Noting, dram, kind, load, options, store, with, word};
use bristlecone_pmem::media::Mapped;
use bristlecone_pmem::pool::BackupError;
use bristlecone_pmem::pool::layout::{CHUNK, INITIAL};
use bristlecone_pmem::{Access, Media, Pool};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

const MIB: u64 = 1 << 20;

fn noting(path: &Path) -> Arc<Pool<Noting>> {
    Pool::create(path, &options()).unwrap()
}

/// Does `work` once, when the pool asks for its length for the `turn`th time.
fn once(pm: &Noting, turn: usize, mut work: impl FnMut(&Mapped) + Send + 'static) {
    let mut turns = 0;
    pm.at_length(move |mapped| {
        turns += 1;
        if turns == turn {
            work(mapped);
        }
    });
}

/// Copying asks for the length twice for each MiB: by then, the first MiB has been copied.
const AFTER_FIRST: usize = 3;

fn names(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<PathBuf> = entries.map(|e| e.unwrap().file_name().into()).collect();
    names.sort();
    names
}

fn open(path: &Path) -> Arc<Pool<Mapped>> {
    Pool::open(path, &with(Access::ReadOnly)).unwrap()
}

#[test]
fn what_is_fenced_while_a_pool_is_copied_is_in_the_copy() {
    let dir = tempfile::tempdir().unwrap();
    let pool = noting(&dir.path().join("pool"));
    let root = pool.create_root("r", &kind()).unwrap();
    root.publish();
    let block = root.heap().alloc(40 * CHUNK).unwrap().get();
    // In what has been copied by then, and in what has not; the second line of a page too.
    let places = [block, block + 64, block + 8 * 1000, block + 39 * CHUNK];
    assert!(places[2] < MIB && places[3] > MIB);
    for at in places {
        store(pool.pm(), at, 1);
    }
    once(pool.pm(), AFTER_FIRST, move |pm| {
        for at in places {
            store(pm, at, at + 2);
            pm.flush_of(word(pm, at));
        }
        pm.fence();
    });
    let copy = dir.path().join("copy");
    let bytes = pool.backup(&copy).unwrap();
    assert_eq!(bytes, pool.size());
    assert_eq!(std::fs::metadata(&copy).unwrap().len(), bytes);
    assert_eq!(names(dir.path()), [PathBuf::from("copy"), "pool".into()]);
    let copy = open(&copy);
    for at in places {
        assert_eq!(load(copy.pm(), at), at + 2, "{at:#x}");
    }
    assert!(copy.info().was_clean, "it needs no recovery and no journal");
    assert_ne!(copy.uuid(), pool.uuid());
    assert_eq!(copy.size(), bytes);
    assert_eq!(copy.roots(), pool.roots());
    assert_eq!(copy.info().used_bytes, 41 * CHUNK);
    drop(copy);
    let writable = Pool::<Mapped>::open(&dir.path().join("copy"), &options()).unwrap();
    writable.verify().unwrap();
}

#[test]
fn a_pool_that_is_full_of_data_is_copied_to_its_last_byte() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let mut pm = <Noting as Media>::open(&path, INITIAL, &with(Access::Create).media).unwrap();
    // Not a whole number of the parts that are copied at a time.
    pm.capacity = 2 * INITIAL + 3 * CHUNK;
    let pool = Pool::create_on(pm, &path).unwrap();
    let root = pool.create_root("r", &kind()).unwrap();
    root.publish();
    let block = root.heap().alloc(66 * CHUNK).unwrap().get();
    assert_eq!(pool.size(), 67 * CHUNK);
    // No byte of whole parts is zero, and the last line is not like the others.
    for at in (block..pool.size()).step_by(8) {
        store(pool.pm(), at, 0x0101_0101_0101_0101 * (1 + at / 64 % 200));
    }
    store(pool.pm(), pool.size() - 8, 77);
    let copy = dir.path().join("copy");
    assert_eq!(pool.backup(&copy).unwrap(), 67 * CHUNK);
    let copied = std::fs::read(&copy).unwrap();
    let original = std::fs::read(&path).unwrap();
    assert!(copied[block as usize..] == original[block as usize..]);
}

#[test]
fn what_is_empty_takes_no_space_in_a_copy() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let pool = noting(&dir.path().join("pool"));
    let root = pool.create_root("r", &kind()).unwrap();
    let run = root.heap().alloc(100 * CHUNK).unwrap();
    store(pool.pm(), run.get() + 50 * CHUNK, 5);
    let copy = dir.path().join("copy");
    pool.backup(&copy).unwrap();
    let found = std::fs::metadata(&copy).unwrap();
    assert!(found.len() > 100 * CHUNK);
    // The part with the tables, and that with the word.
    assert!(found.blocks() * 512 <= 3 * MIB, "{}", found.blocks());
}

#[test]
fn a_pool_may_grow_while_it_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    let pool = noting(&dir.path().join("pool"));
    let root = pool.create_root("r", &kind()).unwrap();
    root.publish();
    let (before, heap) = (pool.size(), root.heap());
    let grown: Arc<Mutex<Option<u64>>> = Arc::default();
    let place = Arc::clone(&grown);
    let weak: Weak<Pool<Noting>> = Arc::downgrade(&pool);
    once(pool.pm(), AFTER_FIRST, move |_| {
        let pool = weak.upgrade().unwrap();
        let run = heap.alloc(60 * CHUNK).unwrap().get();
        store(pool.pm(), run, 9);
        pool.pm().flush_of(word(pool.pm(), run));
        pool.pm().fence();
        *place.lock().unwrap() = Some(run);
    });
    let copy = dir.path().join("copy");
    assert_eq!(pool.backup(&copy).unwrap(), pool.size());
    assert!(pool.size() > before);
    let run = grown.lock().unwrap().take().unwrap();
    let copy = open(&copy);
    assert_eq!(load(copy.pm(), run), 9);
    assert_eq!(copy.info().used_bytes, 61 * CHUNK);
    assert_eq!(copy.verify().unwrap().owned_chunks, 60);
    pool.pm().at_length(|_| {});
}

#[test]
fn one_backup_of_a_pool_is_made_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let pool = noting(&dir.path().join("pool"));
    let weak = Arc::downgrade(&pool);
    let second = dir.path().join("second");
    let told: Arc<Mutex<Option<BackupError>>> = Arc::default();
    let place = Arc::clone(&told);
    once(pool.pm(), AFTER_FIRST, move |_| {
        let refused = weak.upgrade().unwrap().backup(&second);
        *place.lock().unwrap() = refused.err();
    });
    pool.backup(&dir.path().join("first")).unwrap();
    let error = told.lock().unwrap().take().expect("the second is refused");
    assert!(matches!(error, BackupError::Busy));
    assert_eq!(
        error.to_string(),
        "another backup of this pool is under way"
    );
    assert_eq!(names(dir.path()), [PathBuf::from("first"), "pool".into()]);
    pool.pm().at_length(|_| {});
    pool.backup(&dir.path().join("second")).unwrap();
}

#[test]
fn a_file_that_appears_meanwhile_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let pool = noting(&dir.path().join("pool"));
    let to = dir.path().join("to");
    let mine = to.clone();
    once(pool.pm(), AFTER_FIRST, move |_| {
        std::fs::write(&mine, "mine").unwrap()
    });
    let error = pool.backup(&to).unwrap_err();
    assert!(
        matches!(&error, BackupError::Exists(path) if *path == to),
        "{error}"
    );
    let told = format!("{}: there already; it was left alone", to.display());
    assert_eq!(error.to_string(), told);
    assert_eq!(std::fs::read(&to).unwrap(), b"mine");
    assert_eq!(names(dir.path()), [PathBuf::from("pool"), "to".into()]);
}

#[test]
fn errors_name_the_file_and_the_step() {
    let dir = tempfile::tempdir().unwrap();
    let pool = noting(&dir.path().join("pool"));
    let to = dir.path().join("absent").join("to");
    let told = pool.backup(&to).unwrap_err().to_string();
    assert!(told.starts_with(to.to_str().unwrap()), "{told}");
    assert!(told.contains("create failed: "), "{told}");
    let told = dram()
        .backup(&dir.path().join("to"))
        .unwrap_err()
        .to_string();
    assert_eq!(told, "a pool in memory cannot be backed up");
    // And the next one is not refused as if one were under way.
    pool.backup(&dir.path().join("to")).unwrap();
}
