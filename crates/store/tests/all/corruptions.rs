//! Sectors of a closed file that were zeroed, swapped, torn, or that hold something else, and files
//! that were cut short, on both media: what is read is right, or it is an error, or the file is
//! refused; and a salvaged copy has every record that lies in whole sectors.

use crate::common::{RESERVE, USUAL, create, directory, looked_at, on};
use bristlecone_index::damage::collecting_damage;
use bristlecone_pmem::Pool;
use bristlecone_pmem::heap::damage_is_expected;
use bristlecone_pmem::media::journal::journal_path;
use bristlecone_pmem::media::{Auto, MediumKind};
use bristlecone_store::{Salvaged, Store, StoreOptions, TransactionOptions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

const SECTOR: u64 = 512;
/// Bytes of the largest page of the tree: a record depends on what is closer to it.
const PAGE: u64 = 16 << 10;
/// The roots: without them nobody knows what there is.
const ROOTS: Range<u64> = 0x4000..0x1_0000;

/// Begins what is said of files some sectors of which are as they were.
const EARLIER: &str = "sectors of an earlier time";

/// A value, and the places in the file that it and its key lie at.
type Placed = (Vec<u8>, Vec<Range<u64>>);
/// The keys of each keyspace.
type Content = BTreeMap<String, BTreeMap<Vec<u8>, Placed>>;

fn random_bytes(draw: &mut SmallRng, n: usize) -> Vec<u8> {
    (0..n).map(|_| draw.random()).collect()
}

/// A file that was changed.
struct Corrupted {
    file: Vec<u8>,
    journal: Option<Vec<u8>>,
    changed: Vec<Range<u64>>,
    what: String,
}

impl Corrupted {
    fn write(&self, path: &Path) {
        std::fs::write(path, &self.file).unwrap();
        if let Some(journal) = &self.journal {
            std::fs::write(journal_path(path), journal).unwrap();
        }
    }
}

/// A file that was closed, and what is in it.
struct Subject {
    dir: TempDir,
    medium: MediumKind,
    file: Vec<u8>,
    journal: Option<Vec<u8>>,
    options: StoreOptions,
    content: Content,
    /// The first value of each key, also of those that were removed.
    earlier: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The file when it had these.
    before: Vec<u8>,
}

impl Subject {
    fn new(medium: MediumKind) -> Self {
        let dir = directory();
        let path = dir.path().join("pool");
        let options = StoreOptions::default().without_thread();
        let pool = Pool::<Auto>::create(&path, &on(medium, RESERVE)).unwrap();
        let store = create(&pool, "s", USUAL, &options).unwrap();
        let mut draw = SmallRng::seed_from_u64(7);
        let mut content = Content::new();
        let mut earlier = BTreeMap::new();
        let mut before = Vec::new();
        for name in ["k", "others"] {
            let keyspace = store.keyspace(name).unwrap();
            let of = content.entry(name.into()).or_default();
            for i in 0..1_500 {
                // No two share what a page keeps of them.
                let key = format!("{:03}/{:016x}", i % 1000, draw.random::<u64>()).into_bytes();
                let len = match i {
                    0 => 300_000,
                    i if i % 50 == 1 => 1_000 + i * 3,
                    i => 16 + i % 60,
                };
                let value = random_bytes(&mut draw, len);
                store.put(&keyspace, &key, &value).unwrap();
                earlier.insert(key.clone(), value.clone());
                of.insert(key, (value, Vec::new()));
            }
            before = std::fs::read(&path).unwrap();
            let (all, mut n): (Vec<_>, _) = (of.keys().cloned().collect(), 0);
            let mut tx = store.begin(TransactionOptions::default());
            for key in all {
                n += 1;
                if n % 7 == 0 {
                    let value = random_bytes(&mut draw, 40);
                    tx.put(&keyspace, &key, &value).unwrap();
                    of.insert(key, (value, Vec::new()));
                } else if n % 11 == 0 {
                    tx.delete(&keyspace, &key).unwrap();
                    of.remove(&key);
                }
            }
            tx.commit().unwrap();
        }
        store.close().map_err(|(_, e)| e).unwrap();
        drop(pool);
        let file = std::fs::read(&path).unwrap();
        let journal = std::fs::read(journal_path(&path)).ok();
        assert_eq!(journal.is_some(), medium == MediumKind::Journal);
        place(&file, &mut content);
        Self {
            dir,
            medium,
            file,
            journal,
            options,
            content,
            earlier,
            before,
        }
    }

    /// Changes the file. Returns what was changed, and how.
    fn corrupt(&self, file: &mut Vec<u8>, draw: &mut SmallRng) -> (Vec<Range<u64>>, String) {
        // Where there is something.
        let used: Vec<u64> = (0..file.len() as u64 / SECTOR)
            .filter(|sector| self.sector(*sector).iter().any(|byte| *byte != 0))
            .collect();
        let mut what = String::new();
        let mut changed = Vec::new();
        if draw.random_ratio(1, 20) {
            let end =
                used[draw.random_range(0..used.len())] * SECTOR + draw.random_range(0..SECTOR);
            file.truncate(end as usize);
            changed.push(end..u64::MAX);
            return (changed, format!("cut at byte {end:#x}"));
        }
        for _ in 0..draw.random_range(1..4) {
            let first = used[draw.random_range(0..used.len())];
            // A sector, a page of memory, or more.
            let sectors = [1, 1, 8, 24][draw.random_range(0..4)];
            let first = first / sectors * sectors;
            let end = (first + sectors).min(file.len() as u64 / SECTOR);
            let bytes = first * SECTOR..end * SECTOR;
            let at = bytes.start as usize..bytes.end as usize;
            let from = used[draw.random_range(0..used.len())] * SECTOR;
            let from = from.min(file.len() as u64 - (bytes.end - bytes.start)) as usize;
            let other = from..from + at.len();
            let kind = match draw.random_range(0..4) {
                0 => {
                    file[at].fill(0);
                    "zeroed".into()
                }
                1 => {
                    let (one, two) = (file[at.clone()].to_vec(), file[other.clone()].to_vec());
                    file[at].copy_from_slice(&two);
                    file[other.clone()].copy_from_slice(&one);
                    changed.push(other.start as u64..other.end as u64);
                    format!("swapped with {from:#x}")
                }
                2 => {
                    // The rest did not arrive.
                    let torn = 8 * draw.random_range(0..at.len() / 8);
                    file[at.start + torn..at.end].fill(if draw.random() { 0 } else { 0xFF });
                    format!("torn at its byte {torn}")
                }
                _ => {
                    file[at.clone()].copy_from_slice(&random_bytes(draw, at.len()));
                    "something else".into()
                }
            };
            let _ = write!(what, "{bytes:#x?} {kind}; ");
            changed.push(bytes);
        }
        (changed, what)
    }

    fn sector(&self, n: u64) -> &[u8] {
        let from = (n * SECTOR) as usize;
        &self.file[from..self.file.len().min(from + SECTOR as usize)]
    }

    /// Case `number`, in files of that name.
    fn case(&self, path: &Path, number: u64, counts: &Counts) {
        let mut draw = SmallRng::seed_from_u64(number);
        let mut file = self.file.clone();
        let (changed, what) = self.corrupt(&mut file, &mut draw);
        let mut journal = self.journal.clone();
        if let Some(journal) = &mut journal
            && draw.random_ratio(1, 10)
        {
            // Nothing in it counts any more: the file has all.
            let at = draw.random_range(0..journal.len() / SECTOR as usize) * SECTOR as usize;
            journal[at..][..SECTOR as usize]
                .copy_from_slice(&random_bytes(&mut draw, SECTOR as usize));
        }
        let corrupted = Corrupted {
            file,
            journal,
            changed,
            what: format!("{:?}, corruption {number}: {what}", self.medium),
        };
        self.look_and_save(path, &corrupted, number.is_multiple_of(4), counts);
    }

    /// Looks at a corrupted file, also for writing if it is to be `written`, and saves what is
    /// whole of it.
    fn look_and_save(&self, path: &Path, of: &Corrupted, written: bool, counts: &Counts) {
        let what = &of.what;
        of.write(path);
        let noticed = self.look(path, false, what);
        if written {
            self.look(path, true, what);
            // Opening it has lost nothing.
            self.look(path, false, &format!("{what} again"));
            of.write(path);
        }
        let saved = self.salvage(path, &of.changed, what);
        // ORDERING: Relaxed; counts.
        let add = |count: &AtomicU64, n: u64| {
            count.fetch_add(n, Ordering::Relaxed);
        };
        add(&counts.noticed, u64::from(noticed));
        add(&counts.harmless, u64::from(!noticed));
        add(&counts.saved, saved.map_or(0, |(saved, _)| saved));
        add(&counts.refused, u64::from(saved.is_none()));
    }

    /// Reads all of a file. Returns whether damage was noticed.
    fn look(&self, path: &Path, writable: bool, what: &str) -> bool {
        let Some(store) = looked_at(path, writable, &self.options) else {
            return true;
        };
        let reported = store.recovery().damaged > 0;
        let mut failed = false;
        for (name, of) in &self.content {
            let Some(keyspace) = store.find_keyspace(name) else {
                assert!(reported, "{what}: keyspace {name} is gone");
                continue;
            };
            for (key, (value, _)) in of {
                match store.get(&keyspace, key) {
                    Ok(found) => {
                        assert!(found.as_ref() == Some(value), "{what}: {}", shown(key));
                    }
                    Err(_) => failed = true,
                }
            }
            let mut expected = of.iter();
            let scanned = store
                .snapshot()
                .scan::<Vec<u8>>(&keyspace, .., |key, entry| {
                    let (of, (value, _)) = expected.next().expect("no more");
                    assert!(
                        key == of && entry.value == value,
                        "{what}: scan has {} where there was {}",
                        shown(key),
                        shown(of)
                    );
                    ControlFlow::Continue(())
                });
            match scanned {
                Ok(()) => assert!(expected.next().is_none(), "{what}: scan is short"),
                Err(_) => failed = true,
            }
        }
        let checked = store.check();
        assert!(!failed || checked.is_err(), "{what}: `check` finds nothing");
        failed || reported || checked.is_err() || store.stats().mended > 0
    }

    /// Saves what is whole of a file of which `changed` was changed. Returns how many records that
    /// is, and whether damage is told; `None` if the file is beyond saving.
    fn salvage(&self, path: &Path, changed: &[Range<u64>], what: &str) -> Option<(u64, bool)> {
        let meet = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
        let leads = changed.iter().any(|bytes| meet(bytes, &ROOTS));
        let (mut found, mut told) = (BTreeMap::new(), Vec::new());
        let (salvaged, _) = collecting_damage(|| {
            let damaged = Pool::<Auto>::salvage(path).map_err(|e| e.to_string())?;
            let visit = &mut |salvaged: Salvaged<'_>| {
                match &salvaged.found {
                    Ok(entry) => drop(found.insert(salvaged.key.to_vec(), entry.value.to_vec())),
                    Err(e) => told.push(format!("{}: {e}", shown(salvaged.key))),
                }
                ControlFlow::Continue(())
            };
            Store::salvage(&damaged, "s", 0, visit).map_err(|e| e.to_string())
        });
        let is_refused = salvaged.is_err();
        match salvaged {
            Ok(report) => told.extend(report.passed),
            Err(e) => told.push(e),
        }
        let mut known: BTreeMap<&[u8], &Placed> = BTreeMap::new();
        known.extend((self.content.values().flatten()).map(|(key, of)| (&key[..], of)));
        let saved = found.len() as u64;
        // Where the newest page and the word that led to it are both gone, and that is told.
        let may_be_older =
            what.contains(EARLIER) || told.iter().any(|what| what.contains("the newest page"));
        for (key, value) in &found {
            let is_now = known.get(&key[..]).is_some_and(|(now, _)| now == value);
            let is_older = may_be_older && self.earlier.get(key) == Some(value);
            assert!(is_now || is_older, "{what}: saved {}", shown(key));
        }
        let near = |place: &Range<u64>| {
            let around = place.start.saturating_sub(PAGE)..place.end + PAGE;
            changed.iter().any(|bytes| meet(bytes, &around))
        };
        let mut lost = (known.iter())
            .filter(|(key, (_, places))| !found.contains_key(**key) && !places.iter().any(near));
        let first = lost.next();
        assert!(
            leads || first.is_none(),
            "{what}: {} and {} others are lost, at {:#x?}; {told:#?}",
            shown(first.unwrap().0),
            lost.count(),
            first.unwrap().1.1,
        );
        (!is_refused).then_some((saved, !told.is_empty()))
    }
}

/// A disk that answered for writes that it had not made: sectors are as they were. Nobody can tell
/// that of a whole page, but nothing else is lost with it.
#[test]
fn sectors_of_an_earlier_time_cost_what_they_had() {
    let subject = Subject::new(MediumKind::Mapped);
    damage_is_expected::here();
    let path = subject.dir.path().join("case");
    let (mut told, mut saved) = (0, 0);
    for number in 0..150 {
        let mut draw = SmallRng::seed_from_u64(number);
        let (mut file, mut changed) = (subject.file.clone(), Vec::new());
        let sectors = subject.before.len().min(file.len()) / SECTOR as usize;
        for _ in 0..draw.random_range(1..4) {
            let run = [1, 8, 24, 400][draw.random_range(0..4)];
            // Tables, as often as all else.
            let first = match draw.random() {
                true => draw.random_range(0..0x800),
                false => draw.random_range(0..sectors),
            };
            let bytes = first * SECTOR as usize..(first + run).min(sectors) * SECTOR as usize;
            if bytes.is_empty() || ROOTS.contains(&(bytes.start as u64)) {
                continue;
            }
            file[bytes.clone()].copy_from_slice(&subject.before[bytes.clone()]);
            changed.push(bytes.start as u64..bytes.end as u64);
        }
        std::fs::write(&path, file).unwrap();
        let what = format!("{EARLIER}, {number}: {changed:#x?}");
        let (found, tells) = subject.salvage(&path, &changed, &what).unwrap();
        saved += found;
        told += u64::from(tells);
    }
    println!("{told} told, {saved} records");
    assert!(told > 10);
}

#[derive(Default)]
struct Counts {
    noticed: AtomicU64,
    harmless: AtomicU64,
    saved: AtomicU64,
    refused: AtomicU64,
    wrong: AtomicU64,
}

fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

/// Notes where the file has the records of `content`.
fn place(file: &[u8], content: &mut Content) {
    // The end of a key and the beginning of a value occur nowhere else.
    let mut places: BTreeMap<Vec<u8>, Vec<u64>> = BTreeMap::new();
    for (key, (value, _)) in content.values().flatten() {
        places.insert(key[key.len() - 16..].to_vec(), Vec::new());
        places.insert(value[..16].to_vec(), Vec::new());
    }
    for at in 0..file.len() - 16 {
        if let Some(found) = places.get_mut(&file[at..at + 16]) {
            found.push(at as u64);
        }
    }
    for (key, (value, of)) in content.values_mut().flatten() {
        for (part, len) in [(&key[key.len() - 16..], 16), (&value[..16], value.len())] {
            let found = &places[part];
            assert!(!found.is_empty(), "{}", shown(key));
            of.extend(found.iter().map(|at| *at..at + len as u64));
        }
    }
}

/// That many corruptions a medium, from `first` on.
fn corrupt_all(first: u64, number: u64) {
    let mut wrong = 0;
    for medium in [MediumKind::Mapped, MediumKind::Journal] {
        let subject = &Subject::new(medium);
        let path: PathBuf = subject.dir.path().join("pool");
        assert!(!subject.look(&path, false, "nothing"));
        let all: usize = subject.content.values().map(BTreeMap::len).sum();
        let whole = Some((all as u64, false));
        assert_eq!(subject.salvage(&path, &[], "nothing"), whole);
        let counts = &Counts::default();
        std::thread::scope(|scope| {
            for thread in 0..2 {
                scope.spawn(move || {
                    damage_is_expected::here();
                    let path = subject.dir.path().join(format!("case-{thread}"));
                    for n in (first..first + number).skip(thread).step_by(2) {
                        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                            subject.case(&path, n, counts);
                        }));
                        counts
                            .wrong
                            .fetch_add(done.is_err().into(), Ordering::Relaxed);
                    }
                });
            }
        });
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        println!(
            "{medium:?}: {} noticed, {} harmless; {} records saved of {}, {} files beyond saving",
            count(&counts.noticed),
            count(&counts.harmless),
            count(&counts.saved),
            all as u64 * number,
            count(&counts.refused)
        );
        wrong += count(&counts.wrong);
        assert!(count(&counts.noticed) * 2 > number);
        assert!(count(&counts.saved) * 2 > all as u64 * number);
    }
    assert_eq!(wrong, 0, "see above");
}

/// Superblocks, the chunk table, commit slots, the log and the page table.
#[test]
fn what_leads_to_records_may_be_gone() {
    damage_is_expected::here();
    let subject = Subject::new(MediumKind::Mapped);
    let path = subject.dir.path().join("case");
    let counts = Counts::default();
    let mut draw = SmallRng::seed_from_u64(3);
    for sector in (0..ROOTS.start / SECTOR).chain(ROOTS.end / SECTOR..0x4_0000 / SECTOR) {
        let bytes = sector * SECTOR..(sector + 1) * SECTOR;
        let at = bytes.start as usize..bytes.end as usize;
        if subject.sector(sector).iter().all(|byte| *byte == 0) {
            continue;
        }
        for (kind, content) in [
            ("zeroed", vec![0; SECTOR as usize]),
            ("something else", random_bytes(&mut draw, SECTOR as usize)),
        ] {
            let mut file = subject.file.clone();
            file[at.clone()].copy_from_slice(&content);
            let corrupted = Corrupted {
                file,
                journal: None,
                changed: vec![bytes.clone()],
                what: format!("{bytes:#x?} {kind}"),
            };
            subject.look_and_save(&path, &corrupted, true, &counts);
        }
    }
    let [noticed, harmless, refused] =
        [counts.noticed, counts.harmless, counts.refused].map(AtomicU64::into_inner);
    println!("{noticed} noticed, {harmless} harmless");
    assert_eq!(refused, 0);
    // Second copies, and an empty log, are not missed.
    // Which slots and blocks are in use depends on the number of the thread.
    assert!(noticed > 20, "{noticed} noticed, {harmless} harmless");
}

#[test]
fn what_is_read_of_a_corrupted_file_is_right_and_the_rest_is_saved() {
    corrupt_all(1, 100);
}

#[test]
#[ignore = "20,000 files; CI_FULL runs it"]
fn what_is_read_of_many_corrupted_files_is_right_and_the_rest_is_saved() {
    corrupt_all(1_000_000, 10_000);
}
