//! Giving memory back: pages that the pool file has are dropped, and read again when touched.

use crate::journal_support::{UUID, format, options};
use bristlecone_pmem::media::{Access, Durability, Journal, Media, MediaOptions, Section};
use bristlecone_pmem::{PWord, Pool, PoolOptions};
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
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
    let below = 5 * PAGE..7 * PAGE;
    let evicted = pm.evict(&[below], &|_| true).unwrap();
    assert_eq!((evicted.bytes, evicted.dirty), (2 * PAGE, 0));
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

/// Changes each page of the file behind the pool's back. Returns the pages of which that is seen:
/// those that memory has no copy of.
fn away(pm: &Journal, path: &Path, stamp: u64) -> Vec<u64> {
    let file = File::options().write(true).open(path).unwrap();
    let word = |page| page * PAGE + 2048;
    for page in pages() {
        file.write_all_at(&stamp.to_le_bytes(), word(page)).unwrap();
    }
    pages()
        .filter(|page| get(pm, word(*page)) == stamp)
        .collect()
}

#[test]
fn the_pages_that_are_chosen_leave_memory_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pm = opened(&path, Access::Create);
    pm.bound_ahead(PAGES * PAGE);
    pages().for_each(|page| put(&pm, page * PAGE + 8, page));
    pm.sync().unwrap();
    assert_eq!(away(&pm, &path, 1), [0; 0]);
    let asked = RefCell::new(Vec::new());
    let evict = |ranges: &[std::ops::Range<u64>]| {
        asked.borrow_mut().clear();
        let goes = |at: u64| {
            asked.borrow_mut().push(at);
            ![13, 17, 33].contains(&(at / PAGE))
        };
        let evicted = pm.evict(ranges, &goes).unwrap();
        assert!(!evicted.busy);
        let mut asked = asked.borrow().clone();
        asked.dedup();
        (evicted.bytes / PAGE, evicted.dirty / PAGE, asked)
    };
    // Only whole pages of a range are.
    let ranges = [
        10 * PAGE..20 * PAGE,
        30 * PAGE + 1..40 * PAGE - 1,
        50 * PAGE..51 * PAGE,
        60 * PAGE..60 * PAGE + 4000,
        70 * PAGE + 1..72 * PAGE - 1,
    ];
    let whole: Vec<u64> = (10..20).chain(31..39).chain([50]).collect();
    let (bytes, dirty, asked_of) = evict(&ranges);
    let offsets: Vec<u64> = whole.iter().map(|page| page * PAGE).collect();
    assert_eq!(asked_of, offsets);
    let chosen: Vec<u64> = whole
        .into_iter()
        .filter(|page| ![13, 17, 33].contains(page))
        .collect();
    assert_eq!((bytes, dirty), (chosen.len() as u64, 0));
    assert_eq!(away(&pm, &path, 2), chosen);

    // One that the journal has and one that only the stage has stay; so does what is behind them.
    for page in [101, 104, 110] {
        put(&pm, page * PAGE + 8, page);
    }
    pm.commit().unwrap();
    put(&pm, 107 * PAGE + 8, 107);
    let (bytes, dirty, asked_of) = evict(std::slice::from_ref(&(100 * PAGE..110 * PAGE)));
    assert_eq!((bytes, dirty), (7, 3));
    let chosen = [100, 102, 103, 105, 106, 108, 109];
    assert_eq!(asked_of, chosen.map(|page| page * PAGE));
    let found = away(&pm, &path, 3);
    assert!(chosen.iter().all(|page| found.contains(page)));
    assert!((100..120).all(|page| found.contains(&page) == chosen.contains(&page)));
}

/// Whether the system is asked for no huge pages in all of the pool's memory.
fn pages_are_small(pm: &Journal) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (from, to) = (pm.base().addr() as u64, pm.base().addr() as u64 + pm.len());
    let (mut inside, mut small) = (false, Vec::new());
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|all| all.split_once('-'));
        let hex = |text| u64::from_str_radix(text, 16).ok();
        if let Some((Some(start), Some(end))) = range.map(|(start, end)| (hex(start), hex(end))) {
            inside = start < to && from < end;
        } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
            small.push(flags.split(' ').any(|flag| flag == "nh"));
        }
    }
    assert!(!small.is_empty());
    small.into_iter().all(|small| small)
}

/// Else a page that is touched would come together with 2 MiB of others.
#[test]
fn pages_are_small_where_memory_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let pm = opened(&dir.path().join("pool"), Access::Create);
    assert!(!pages_are_small(&pm));
    pm.bound_ahead(64 * PAGE);
    // Not every system knows huge pages.
    let known = Path::new("/sys/kernel/mm/transparent_hugepage").exists();
    assert_eq!(pages_are_small(&pm), known);
    pm.bound_ahead(32 * PAGE);
    assert_eq!(pages_are_small(&pm), known);
}

/// Whether the system can bring pages as if they were stored to.
fn populates() -> bool {
    use rustix::mm::{Advice, MapFlags, ProtFlags};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: it is new memory, which nobody else has and which is not used.
    unsafe {
        let at = rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            PAGE as usize,
            access,
            MapFlags::PRIVATE,
        );
        rustix::mm::madvise(at.unwrap(), PAGE as usize, Advice::LinuxPopulateWrite).is_ok()
    }
}

#[test]
fn pages_are_brought_to_memory_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pm = opened(&path, Access::Create);
    pages().for_each(|page| put(&pm, page * PAGE + 8, page));
    pm.sync().unwrap();
    let end = PAGES * PAGE;
    let all_away = || {
        pm.evict(std::slice::from_ref(&(0..end)), &|_| true)
            .unwrap()
    };
    // Memory is not bounded: whether a page comes alone is of no interest.
    all_away();
    pm.touch_to_store(5 * PAGE);
    let everything: Vec<u64> = pages().collect();
    assert_eq!(away(&pm, &path, 1), everything);
    pm.bound_ahead(end);
    all_away();
    for offset in [5 * PAGE, 7 * PAGE + 8, 9 * PAGE - 8, end - 8] {
        pm.touch_to_store(offset);
    }
    let none = [20 * PAGE + 4, 22 * PAGE + 1, end - 4, end, end + 8];
    for offset in none.into_iter().chain([u64::MAX - 7, u64::MAX]) {
        pm.touch_to_store(offset);
    }
    let found = away(&pm, &path, 2);
    let missing: Vec<u64> = pages().filter(|page| !found.contains(page)).collect();
    assert_eq!(missing, [5, 7, 8, PAGES - 1]);
    assert_eq!(get(&pm, 7 * PAGE + 8), 7, "nothing was stored");

    if populates() {
        all_away();
        pm.bring_alone(5 * PAGE + 100..7 * PAGE + 1);
        pm.bring_alone(30 * PAGE + 4000..30 * PAGE + 4001);
        pm.bring_alone(40 * PAGE..40 * PAGE);
        pm.bring_alone(end - 1..end + 3 * PAGE);
        pm.bring_alone(end + PAGE..end + 3 * PAGE);
        let found = away(&pm, &path, 3);
        let missing: Vec<u64> = pages().filter(|page| !found.contains(page)).collect();
        assert_eq!(missing, [5, 6, 7, 30, PAGES - 1]);
    }
}
