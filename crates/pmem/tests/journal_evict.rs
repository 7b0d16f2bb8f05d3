//! Giving memory back: pages that the pool file has are dropped, and read again when touched.

mod journal_support;

use bristlecone_pmem::media::{Access, Durability, Journal, Media, MediaOptions, Section};
use bristlecone_pmem::{PWord, Pool, PoolOptions};
use journal_support::{UUID, format, options};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
const PAGES: u64 = 512;

fn opened(path: &Path, access: Access) -> Journal {
    let options = MediaOptions {
        journal_max: 64 << 20,
        ..options(access, Durability::Immediate)
    };
    let pm = Journal::open(path, PAGES * PAGE, &options).unwrap();
    if access == Access::Create {
        format(&pm, UUID);
    }
    pm.attach(UUID).unwrap();
    pm
}

fn word(pm: &Journal, offset: u64) -> &PWord {
    assert!(offset.is_multiple_of(8) && offset < pm.len());
    // SAFETY: 1. in bounds and 8-byte aligned (just checked); 2. a `PWord` is an atomic, so shared
    // references are all that is ever made; 3. the mapping outlives the borrow of `pm`.
    unsafe { &*pm.base().add(offset as usize).cast::<PWord>() }
}

fn put(pm: &Journal, offset: u64, value: u64) {
    let _section = Section::enter(pm.sections());
    word(pm, offset).publish(pm, value);
}

fn get(pm: &Journal, offset: u64) -> u64 {
    word(pm, offset).load(pm, Ordering::Acquire)
}

/// Pages that have data: the first two are the superblocks'.
fn pages() -> impl Iterator<Item = u64> {
    2..PAGES
}

/// Bytes of the pool's memory that are its own, and not the file's.
fn own_bytes(pm: &Journal) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (from, to) = (pm.base().addr() as u64, pm.base().addr() as u64 + pm.len());
    let (mut inside, mut kib) = (false, 0);
    for line in maps.lines() {
        let range = line
            .split(' ')
            .next()
            .and_then(|range| range.split_once('-'));
        let hex = |text| u64::from_str_radix(text, 16).ok();
        if let Some((Some(start), Some(end))) = range.map(|(start, end)| (hex(start), hex(end))) {
            inside = start < to && from < end;
        } else if inside && let Some(size) = line.strip_prefix("Private_Dirty:") {
            let size = size.trim().trim_end_matches(" kB");
            kib += size.parse::<u64>().unwrap();
        }
    }
    kib * 1024
}

#[test]
fn what_the_file_has_goes_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pm = opened(&path, Access::Create);
    // As in a server with bounded memory: pages of their own, and no huge ones.
    pm.bound_ahead(PAGES * PAGE);
    pages().for_each(|page| put(&pm, page * PAGE + 8, page));
    pm.commit().unwrap();
    let whole = 0..PAGES * PAGE;
    let all = std::slice::from_ref(&whole);
    // The journal has them, and the pool file not yet.
    let evicted = pm.evict(all, &|_| true).unwrap();
    assert!(!evicted.busy);
    assert_eq!(evicted.bytes + evicted.dirty, PAGES * PAGE);
    assert!(evicted.dirty >= (PAGES - 2) * PAGE, "{evicted:?}");
    assert!(own_bytes(&pm) >= (PAGES - 2) * PAGE);
    pm.sync().unwrap();
    assert_eq!(pm.ahead(), Some(0));

    // Every other page, then the rest: of ranges what are whole pages of the pool.
    let odd = |at: u64| (at / PAGE) % 2 == 1;
    let evicted = pm.evict(all, &odd).unwrap();
    assert_eq!((evicted.bytes, evicted.dirty), (PAGES / 2 * PAGE, 0));
    let left = own_bytes(&pm);
    assert!(left.abs_diff(PAGES / 2 * PAGE) <= 8 * PAGE, "{left}");
    let parts = [
        100..3 * PAGE + 100,
        5 * PAGE..5 * PAGE,
        (PAGES - 1) * PAGE..2 * PAGES * PAGE,
    ];
    let evicted = pm.evict(&parts, &|_| true).unwrap();
    assert_eq!(evicted.bytes, 3 * PAGE, "pages 1, 2 and the last one");
    pm.evict(all, &|_| true).unwrap();
    assert!(own_bytes(&pm) <= 8 * PAGE, "{}", own_bytes(&pm));
    for page in pages() {
        assert_eq!(get(&pm, page * PAGE + 8), page);
    }

    // A page with a later store stays, captured or committed.
    put(&pm, 7 * PAGE, 70);
    let evicted = pm.evict(all, &|_| true).unwrap();
    assert_eq!((evicted.bytes, evicted.dirty), ((PAGES - 1) * PAGE, PAGE));
    put(&pm, 9 * PAGE, 90);
    pm.commit().unwrap();
    let evicted = pm.evict(all, &|_| true).unwrap();
    assert_eq!(
        (evicted.bytes, evicted.dirty),
        ((PAGES - 2) * PAGE, 2 * PAGE)
    );
    assert_eq!(pm.ahead(), Some(2 * PAGE));
    assert_eq!((get(&pm, 7 * PAGE), get(&pm, 7 * PAGE + 8)), (70, 7));
    assert_eq!((get(&pm, 9 * PAGE), get(&pm, 9 * PAGE + 8)), (90, 9));

    // Nobody who stores is waited for for long.
    std::thread::scope(|scope| {
        let (in_section, entered) = std::sync::mpsc::channel();
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let pm = &pm;
        scope.spawn(move || {
            let _section = Section::enter(pm.sections());
            in_section.send(()).unwrap();
            // An assertion that fails ends it, too.
            let _ = end.recv();
        });
        entered.recv().unwrap();
        let evicted = pm.evict(all, &|_| true).unwrap();
        assert!(evicted.busy && evicted.bytes == 0, "{evicted:?}");
        drop(ended);
    });
    drop(pm);
    let pm = opened(&path, Access::ReadWrite);
    for page in pages() {
        assert_eq!(get(&pm, page * PAGE + 8), page);
    }
}

#[test]
fn what_is_away_is_read_from_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pm = opened(&path, Access::Create);
    pages().for_each(|page| put(&pm, page * PAGE + 8, page));
    pm.sync().unwrap();
    let read = |pm: &Journal, offset| {
        let mut word = [0; 8];
        pm.read_away(offset, &mut word)
            .then(|| u64::from_le_bytes(word))
    };
    assert_eq!(read(&pm, 5 * PAGE + 8), Some(5));
    put(&pm, 5 * PAGE + 8, 55);
    pm.commit().unwrap();
    assert_eq!(
        read(&pm, 5 * PAGE + 8),
        Some(5),
        "a checkpoint has to come first"
    );
    pm.sync().unwrap();
    assert_eq!(read(&pm, 5 * PAGE + 8), Some(55));
    let mut much = vec![0; 2 * PAGE as usize];
    assert!(
        !pm.read_away((PAGES - 1) * PAGE, &mut much),
        "the file ends before that"
    );
    assert!(!pm.read_away(2 * PAGES * PAGE, &mut [0; 8]));
    put(&pm, 6 * PAGE + 8, 66);
    pm.commit().unwrap();
    drop(pm);
    let read_only = Journal::open(
        &path,
        PAGES * PAGE,
        &options(Access::ReadOnly, Durability::None),
    );
    let read_only = read_only.unwrap();
    assert_eq!(get(&read_only, 6 * PAGE + 8), 66);
    assert_eq!(
        read(&read_only, 6 * PAGE + 8),
        None,
        "its memory may be ahead of the file"
    );
    assert_eq!(
        read_only
            .evict(std::slice::from_ref(&(0..PAGES * PAGE)), &|_| true)
            .unwrap()
            .bytes,
        0
    );
}

/// A checkpoint begins at half of the bound, and not before.
#[test]
fn as_much_as_is_said_is_ahead_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let pm = opened(&dir.path().join("pool"), Access::Create);
    pm.sync().unwrap();
    pm.bound_ahead(128 * PAGE);
    let write = |range: std::ops::Range<u64>| {
        for page in range {
            put(&pm, page * PAGE + 8, page);
            pm.commit().unwrap();
        }
    };
    write(2..50);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(pm.ahead(), Some(48 * PAGE), "less than half of the bound");
    write(50..PAGES);
    let until = Instant::now() + Duration::from_secs(20);
    while pm.ahead().is_none_or(|ahead| ahead > 64 * PAGE) {
        assert!(Instant::now() < until, "{:?} are ahead", pm.ahead());
        std::thread::sleep(Duration::from_millis(10));
    }
    for page in pages() {
        assert_eq!(get(&pm, page * PAGE + 8), page);
    }
}

/// The journal of a pool that was closed has nothing that another pool could miss.
#[test]
fn the_empty_journal_of_another_pool_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let mut of = PoolOptions::default();
    of.media.reserve = 1 << 30;
    let paths = ["one", "two"].map(|name| dir.path().join(name));
    let uuids = paths
        .each_ref()
        .map(|path| Pool::<Journal>::create(path, &of).unwrap().uuid());
    let journal = |path: &Path| bristlecone_pmem::media::journal::journal_path(path);
    std::fs::copy(journal(&paths[0]), journal(&paths[1])).unwrap();
    for (path, uuid) in paths.iter().zip(uuids) {
        let pool = Pool::<Journal>::open(path, &of).unwrap();
        assert_eq!(pool.uuid(), uuid);
        assert!(pool.info().was_clean);
    }
}
