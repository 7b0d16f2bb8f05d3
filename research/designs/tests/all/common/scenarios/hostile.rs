//! Damaged pool files that hold trees.
//!
//! Whatever a file holds, opening it, verifying, scanning and looking up either work or report an
//! error. No case panics, takes unbounded time, or touches memory past the pool's end (the mapping
//! continues there without a file behind it, so that would kill the test).

use super::super::home::folder;
use super::super::{On, Place, Pooled, Rng, TestKey, TestValue};
use super::{key, value};
use bristlecone_designs::{DurableIndex, OrderedIndex, ReverseScan};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::{Pool, PoolOptions};
use bristlecone_pmem::{Access, OpenError};
use std::borrow::Borrow;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Two trees, so that damage to one may affect the other.
const ROOTS: [&str; 2] = ["index", "another"];
/// Number of keys that each tree has held; some were removed again.
const KEYS: u64 = 4_000;
/// No scan of a damaged tree may exceed this number of pairs: more than the slots of a pool this
/// small.
const BOUND: usize = 400_000;
/// One in so many cases is tried.
const SHARE: u32 = if cfg!(feature = "thorough") { 1 } else { 4 };
/// Of a pool with more used pages, about this many are lost, one after another.
const MAX_PAGES: usize = 600 / SHARE as usize;
/// This many pages are lost in any case.
const FIRST_PAGES: usize = 32;
/// Maximum time of a case.
const PATIENCE: Duration = Duration::from_secs(60);

fn options<H: Pooled>(access: Access) -> PoolOptions {
    let mut options = H::place().options();
    options.media.access = access;
    options.media.reserve = 64 << 20;
    options
}

/// Returns a pool with both trees: after a clean close, and as a crash would leave it.
fn samples<H: Pooled>() -> (Vec<u8>, Vec<u8>) {
    let folder = folder();
    let path = folder.path().join("pool");
    let pool = Pool::<Auto>::create(&path, &options::<H>(Access::Create)).expect("a new pool");
    let trees = ROOTS.map(|root| H::maker().create(&pool, root).expect("a new root"));
    let mut rng = Rng::new(1);
    let mut order: Vec<u64> = (0..KEYS).collect();
    rng.shuffle(&mut order);
    for n in &order {
        for tree in &trees {
            tree.insert(key::<H>(*n).borrow(), value::<H>(*n).borrow())
                .expect("a new key");
        }
    }
    // Free slots, freed records, emptied leaves.
    for n in order
        .iter()
        .filter(|n| **n % 5 == 0 || (1000..1300).contains(*n))
    {
        for tree in &trees {
            assert!(tree.remove(key::<H>(*n).borrow()).expect("removal"));
        }
    }
    let unclean = fs::read(&path).expect("the quiet pool");
    for tree in trees {
        tree.close().expect("close");
    }
    drop(pool);
    (fs::read(&path).expect("the closed pool"), unclean)
}

/// Counts of each kind of answer.
#[derive(Debug, Default)]
struct Tally {
    pool_refused: u32,
    tree_refused: u32,
    verify_reported: u32,
    served: u32,
}

/// Opens the pool at `path` and uses everything that opens.
fn use_pool<H: Pooled>(path: &Path, access: Access, tally: &mut Tally) {
    let pool = match Pool::<Auto>::open(path, &options::<H>(access)) {
        Ok(pool) => pool,
        Err(e) => {
            assert!(!e.to_string().is_empty());
            tally.pool_refused += 1;
            return;
        }
    };
    for root in pool.roots() {
        if !ROOTS.contains(&root.name.as_str()) {
            continue;
        }
        match H::maker().open(&pool, &root.name) {
            Ok(tree) => use_tree::<H>(&tree, access, tally),
            Err(e) => {
                assert!(!e.to_string().is_empty());
                tally.tree_refused += 1;
            }
        }
    }
}

/// Continues unless a scan has seen more pairs than there can be.
fn bounded(seen: usize) -> ControlFlow<()> {
    if seen > BOUND {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

fn use_tree<H: Pooled>(tree: &On<H>, access: Access, tally: &mut Tally) {
    let verified = tree.verify();
    let mut up = Vec::new();
    tree.scan(.., |k: &H::Key, v: &H::Value| {
        up.push((k.to_owned(), v.to_owned()));
        bounded(up.len())
    });
    assert!(up.len() <= BOUND, "the scan does not end");
    let mut down = 0;
    tree.scan_reverse(.., |_: &H::Key, _: &H::Value| {
        down += 1;
        bounded(down)
    });
    assert!(down <= BOUND, "the reverse scan does not end");
    for n in (0..KEYS).step_by(37) {
        tree.get(key::<H>(n).borrow());
    }
    tree.stats();
    match verified {
        Ok(report) => {
            tally.served += 1;
            assert_eq!(
                report.entries,
                up.len() as u64,
                "verified, but the scan differs"
            );
            assert_eq!(up.len(), down, "verified, but the directions differ");
            assert!(
                up.is_sorted_by(|a, b| a.0 < b.0),
                "verified, but out of order"
            );
            for (k, v) in up.iter().step_by(29) {
                assert!(
                    tree.get(k.borrow()).as_ref() == Some(v),
                    "verified, but {k:?} is not found"
                );
            }
            // Records carry checksums, so everything that verifies was written by `samples`.
            for (k, v) in up.iter().filter(|_| H::sums()) {
                let n = TestKey::made(k.borrow());
                let n = n.unwrap_or_else(|| panic!("verified, but {k:?} was never written"));
                assert!(
                    !H::Value::CHECKED || *v == value::<H>(n),
                    "verified, but {k:?} has {v:?}"
                );
            }
        }
        Err(_) => tally.verify_reported += 1,
    }
    if access == Access::ReadWrite {
        for n in (0..KEYS).step_by(101) {
            // Both answers are right on a damaged tree; it only must not break.
            let _ = tree.upsert(key::<H>(n).borrow(), value::<H>(1).borrow());
            let _ = tree.remove(key::<H>(n + 1).borrow());
            let _ = tree.insert(key::<H>(n + (1 << 40)).borrow(), value::<H>(2).borrow());
        }
    }
}

/// Ends the process with the case's name if one takes too long, since a hung case cannot be
/// unwound.
struct Watchdog {
    case: Mutex<(Instant, String)>,
    done: AtomicBool,
}

impl Watchdog {
    fn watch<R>(body: impl FnOnce(&Self) -> R) -> R {
        let dog = Self {
            case: Mutex::new((Instant::now(), String::new())),
            done: AtomicBool::new(false),
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                while !dog.done.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(50));
                    let case = dog.case.lock().expect("never poisoned");
                    if case.0.elapsed() > PATIENCE {
                        eprintln!("{}: still busy after {PATIENCE:?}", case.1);
                        std::process::abort();
                    }
                }
            });
            bristlecone_pmem::heap::damage_is_expected::here();
            let result = catch_unwind(AssertUnwindSafe(|| body(&dog)));
            dog.done.store(true, Ordering::Relaxed);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn case(&self, name: &str, run: impl FnOnce()) {
        *self.case.lock().expect("never poisoned") = (Instant::now(), name.to_owned());
        assert!(
            catch_unwind(AssertUnwindSafe(run)).is_ok(),
            "{name}: panicked, see above"
        );
    }
}

/// Returns the pages with bytes other than zero. Damage elsewhere is in unused space.
fn used_pages(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len() / 4096)
        .filter(|p| bytes[p * 4096..][..4096].iter().any(|b| *b != 0))
        .collect()
}

/// Changes some random bytes of the used part, tries everything, and restores the bytes; `cases`
/// times, or its share of them.
fn flips<H: Pooled>(bytes: &[u8], access: Access, cases: u32, seed: u64) {
    let cases = cases / SHARE;
    let folder = folder();
    let path = folder.path().join("pool");
    fs::write(&path, bytes).expect("writing the sample");
    let pages = used_pages(bytes);
    let mut rng = Rng::new(seed);
    let mut tally = Tally::default();
    Watchdog::watch(|dog| {
        for case in 0..cases {
            let count = if rng.below(4) == 0 {
                2 + rng.below(6)
            } else {
                1
            };
            let damage: Vec<(usize, u8)> = (0..count)
                .map(|_| {
                    let page = pages[rng.below(pages.len() as u64) as usize];
                    let at = page * 4096 + rng.below(4096) as usize;
                    // A bit, or any other byte.
                    let flip = if rng.below(2) == 0 {
                        1 << rng.below(8)
                    } else {
                        1 + rng.below(255) as u8
                    };
                    (at, bytes[at] ^ flip)
                })
                .collect();
            let file = fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .expect("the case");
            for (at, byte) in &damage {
                file.write_all_at(&[*byte], *at as u64)
                    .expect("damaging the case");
            }
            let name = format!("seed {seed}, case {case}, {access:?}, {damage:x?}");
            dog.case(&name, || use_pool::<H>(&path, access, &mut tally));
            if access == Access::ReadOnly {
                for (at, _) in &damage {
                    file.write_all_at(&bytes[*at..=*at], *at as u64)
                        .expect("mending the case");
                }
            } else {
                fs::write(&path, bytes).expect("writing the sample");
            }
        }
    });
    if access == Access::ReadOnly {
        assert!(
            fs::read(&path).expect("the sample") == bytes,
            "a read-only open wrote"
        );
    }
    // Each case opens both trees.
    check(&tally, 2 * cases);
}

/// Damage was found, and everything that it did not reach was served. `trees` is how often a tree
/// was opened.
fn check(tally: &Tally, trees: u32) {
    println!("{tally:?}");
    let Tally {
        tree_refused,
        verify_reported,
        served,
        ..
    } = tally;
    assert!(
        tree_refused + verify_reported > 0,
        "no damage was ever reported: {tally:?}"
    );
    assert!(
        *served > trees / 10,
        "much damage is in unused bytes: {tally:?}"
    );
}

/// Without damage, both trees are served.
pub fn undamaged_samples_are_served<H: Pooled>() {
    let (clean, unclean) = samples::<H>();
    let folder = folder();
    let path = folder.path().join("pool");
    for bytes in [&clean, &unclean] {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            fs::write(&path, bytes).expect("writing the sample");
            let mut tally = Tally::default();
            use_pool::<H>(&path, access, &mut tally);
            assert_eq!(tally.served, 2, "{tally:?}");
        }
    }
}

/// Changes bytes of a crash image and opens it for reading.
pub fn flips_in_a_crash_image_read_only<H: Pooled>() {
    flips::<H>(&samples::<H>().1, Access::ReadOnly, 1_200, 101);
}

/// Changes bytes of a closed pool and opens it for reading.
pub fn flips_in_a_closed_pool_read_only<H: Pooled>() {
    flips::<H>(&samples::<H>().0, Access::ReadOnly, 1_000, 102);
}

/// Changes bytes of a crash image and works on it.
pub fn flips_in_a_crash_image_writing<H: Pooled>() {
    flips::<H>(&samples::<H>().1, Access::ReadWrite, 500, 103);
}

/// Changes bytes of a closed pool and works on it.
pub fn flips_in_a_closed_pool_writing<H: Pooled>() {
    flips::<H>(&samples::<H>().0, Access::ReadWrite, 500, 104);
}

/// Loses whole pages (as zeros), duplicates them over others, or fills them with noise.
pub fn lost_pages<H: Pooled>() {
    let (clean, unclean) = samples::<H>();
    let folder = folder();
    let path = folder.path().join("pool");
    let mut tally = Tally::default();
    let mut rng = Rng::new(105);
    Watchdog::watch(|dog| {
        for (which, bytes) in [("closed", &clean), ("crashed", &unclean)] {
            let pages = used_pages(bytes);
            // The time of a case grows with the pool. Of a long pool (of logs) only some pages are
            // tried: those in which the pool describes itself, and any others.
            let every = pages.len().div_ceil(MAX_PAGES) as u64;
            for (i, page) in pages.iter().enumerate() {
                if every > 1 && i >= FIRST_PAGES && rng.below(every) > 0 {
                    continue;
                }
                let mut damaged = bytes[page * 4096..][..4096].to_vec();
                let other = pages[rng.below(pages.len() as u64) as usize];
                let what = ["zeros", "noise", "another page", "another page"][i % 4];
                match what {
                    "zeros" => damaged.fill(0),
                    "noise" => damaged.fill_with(|| rng.next() as u8),
                    _ => damaged.copy_from_slice(&bytes[other * 4096..][..4096]),
                }
                fs::write(&path, bytes).expect("writing the sample");
                let file = fs::OpenOptions::new().write(true).open(&path);
                let file = file.expect("the case");
                file.write_all_at(&damaged, *page as u64 * 4096)
                    .expect("damaging the case");
                drop(file);
                // Reading changes nothing.
                for access in [Access::ReadOnly, Access::ReadWrite] {
                    let name = format!("{which}, page {page} becomes {what} ({other}), {access:?}");
                    dog.case(&name, || use_pool::<H>(&path, access, &mut tally));
                }
            }
        }
    });
    assert!(tally.tree_refused + tally.verify_reported > 0, "{tally:?}");
}

/// Takes the first half of the pool from one moment and the second from another.
pub fn images_of_two_moments<H: Pooled>() {
    let (clean, unclean) = samples::<H>();
    let folder = folder();
    let path = folder.path().join("pool");
    let mut tally = Tally::default();
    Watchdog::watch(|dog| {
        let len = clean.len().min(unclean.len());
        for cut in (1..len / 4096).step_by(16) {
            for (head, tail) in [(&clean, &unclean), (&unclean, &clean)] {
                let mut mixed = head[..cut * 4096].to_vec();
                mixed.extend_from_slice(&tail[cut * 4096..]);
                fs::write(&path, &mixed).expect("writing the case");
                dog.case(&format!("cut at page {cut}"), || {
                    use_pool::<H>(&path, Access::ReadOnly, &mut tally);
                });
            }
        }
    });
}

/// Cuts the pool off at any page.
pub fn a_pool_cut_at_any_page_is_refused<H: Pooled>() {
    let (clean, _) = samples::<H>();
    let folder = folder();
    let path = folder.path().join("pool");
    for pages in 0..clean.len() / 4096 {
        fs::write(&path, &clean[..pages * 4096]).expect("writing the case");
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let error = Pool::<Auto>::open(&path, &options::<H>(access))
                .map(drop)
                .expect_err("cut");
            match error {
                OpenError::NotAPool { .. } if pages == 0 => {}
                OpenError::Truncated { found, .. } => assert_eq!(found, pages as u64 * 4096),
                e => panic!("cut to {pages} pages: {e:?}"),
            }
        }
    }
}
