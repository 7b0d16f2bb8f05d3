//! Tests of this design alone; the scenarios that all designs share are in `research/designs`.

use super::*;
use crate::contract::{DurableIndex, InsertError, OrderedIndex, ReverseScan};
use bristlecone_pmem::media::{Counting, Dram};
use bristlecone_pmem::{MediaOptions, PoolOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::Path;

/// One medium for all of these tests, so that the tree is compiled for it alone.
pub(super) type Medium = Counting<Dram>;

pub(super) fn tree<K: KeyRepr + ?Sized>(page_bytes: u32) -> ClusteredTree<K, K, Medium> {
    ClusteredTree::create(&pool(1 << 30), "t", &ClusteredOptions { page_bytes }).unwrap()
}

/// Changes a tree and a map alike, and compares scans between all kinds of bounds after some of the
/// changes: so the order of tails is extended, and forgotten, at any point.
fn scans_agree_with_a_map<K>(page_bytes: u32, mut any: impl FnMut(&mut StdRng) -> K::Owned)
where
    K: KeyRepr + ?Sized,
    K::Owned: Ord + Clone + std::fmt::Debug,
{
    let rng = &mut StdRng::seed_from_u64(26);
    let tree = tree::<K>(page_bytes);
    let mut model: BTreeMap<K::Owned, K::Owned> = BTreeMap::new();
    for round in 0..600 {
        for _ in 0..rng.random_range(0..30) {
            let (key, value) = (any(rng), any(rng));
            if rng.random_bool(0.3) {
                let removed = model.remove::<K::Owned>(&key).is_some();
                assert_eq!(tree.remove(key.borrow()).unwrap(), removed);
            } else {
                let there = tree.upsert(key.borrow(), value.borrow()).unwrap();
                assert_eq!(there, model.insert(key, value).is_some());
            }
        }
        let mut bound = || {
            let key = any(rng);
            match rng.random_range(0..5) {
                0 => Bound::Unbounded,
                1 | 2 => Bound::Included(key),
                _ => Bound::Excluded(key),
            }
        };
        let (from, to) = (bound(), bound());
        let expected = model.iter().filter(|(key, _)| {
            let above = match &from {
                Bound::Included(from) => *key >= from,
                Bound::Excluded(from) => *key > from,
                Bound::Unbounded => true,
            };
            above
                && match &to {
                    Bound::Included(to) => *key <= to,
                    Bound::Excluded(to) => *key < to,
                    Bound::Unbounded => true,
                }
        });
        let expected: Vec<_> = expected.map(|(k, v)| (k.clone(), v.clone())).collect();
        let range = (borrowed::<K>(&from), borrowed::<K>(&to));
        let most = rng.random_range(0..40);
        let mut seen = Vec::new();
        let mut visit = |key: &K, value: &K| {
            seen.push((key.to_owned(), value.to_owned()));
            if round % 2 == 0 && seen.len() >= most {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let most = if round % 2 == 0 {
            most.max(1)
        } else {
            usize::MAX
        };
        if round % 3 == 0 {
            tree.scan_reverse(range, &mut visit);
            assert!(
                seen.iter().eq(expected.iter().rev().take(most)),
                "{range:?}"
            );
        } else {
            tree.scan(range, &mut visit);
            assert!(seen.iter().eq(expected.iter().take(most)), "{range:?}");
        }
    }
    assert_eq!(tree.verify().unwrap().entries, model.len() as u64);
}

pub(super) fn borrowed<K: KeyRepr + ?Sized>(bound: &Bound<K::Owned>) -> Bound<&K> {
    match bound {
        Bound::Included(key) => Bound::Included(key.borrow()),
        Bound::Excluded(key) => Bound::Excluded(key.borrow()),
        Bound::Unbounded => Bound::Unbounded,
    }
}

#[test]
fn scans_of_numbers_agree_with_a_map() {
    scans_agree_with_a_map::<u64>(512, |rng| rng.random_range(0..400) << 40);
    scans_agree_with_a_map::<u64>(4096, |rng| rng.random_range(0..2000));
}

/// Keys with prefixes, of one length or not, so that pages are of either form and cut prefixes.
#[test]
fn scans_of_strings_agree_with_a_map() {
    let alike = |rng: &mut StdRng| {
        format!(
            "key/{:04}/{:02}",
            rng.random_range(0..40),
            rng.random_range(0..20)
        )
    };
    scans_agree_with_a_map::<[u8]>(512, move |rng| alike(rng).into_bytes());
    scans_agree_with_a_map::<[u8]>(1024, |rng| {
        let len = rng.random_range(0..12);
        (0..len).map(|_| rng.random_range(b'a'..=b'c')).collect()
    });
    // Each key begins like all that are longer, so pages of one key have it as their prefix.
    scans_agree_with_a_map::<[u8]>(512, |rng| vec![1; rng.random_range(0..120)]);
    // Keys whose rest is a word in most pages, as of a store with keyspaces.
    scans_agree_with_a_map::<[u8]>(1024, |rng| {
        let number = rng.random_range(0..4u32).to_be_bytes();
        let len = if rng.random_bool(0.01) { 5 } else { 8 };
        let rest = (rng.random_range(0..600u64) << 30).to_be_bytes();
        [&number[..], &rest[..len]].concat()
    });
    // Keys of eight bytes, which are compared as numbers, with others between them.
    scans_agree_with_a_map::<[u8]>(4096, |rng| {
        let len = if rng.random_bool(0.01) { 9 } else { 8 };
        let mut key = b"aaaaaaaa0"[..len].to_vec();
        key[6] = rng.random_range(b'a'..=b'z');
        key[7] = rng.random_range(b'a'..=b'z');
        key
    });
}

/// Batches of any size and spread, with removals and repeated keys, and after each the tree is what
/// a map is.
fn batches_agree_with_a_map<K>(page_bytes: u32, mut any: impl FnMut(&mut StdRng, u64) -> K::Owned)
where
    K: KeyRepr + ?Sized,
    K::Owned: Ord + Clone + std::fmt::Debug,
{
    let rng = &mut StdRng::seed_from_u64(27);
    let tree = tree::<K>(page_bytes);
    let mut model: BTreeMap<K::Owned, K::Owned> = BTreeMap::new();
    for round in 0..60 {
        let n = rng.random_range(0..if round % 10 == 0 { 400 } else { 40 });
        // Next to each other, or anywhere.
        let first = rng.random_range(0..100_000);
        let dense = rng.random_bool(0.5);
        let mut one = |i: u64| {
            let at = if dense {
                first + i / 2
            } else {
                rng.random_range(0..100_000)
            };
            let value = rng.random_range(0..1000);
            let value = any(rng, value);
            (any(rng, at), rng.random_bool(0.7).then_some(value))
        };
        let changes: Vec<_> = (0..n).map(&mut one).collect();
        if round % 3 == 0 {
            let pairs: Vec<(K::Owned, K::Owned)> = changes
                .into_iter()
                .filter_map(|(key, value)| Some((key, value?)))
                .collect();
            let mut out = Vec::new();
            let borrowed: Vec<(&K, &K)> =
                (pairs.iter().map(|(k, v)| (k.borrow(), v.borrow()))).collect();
            tree.multi_insert(&borrowed, &mut out);
            for ((key, value), out) in pairs.into_iter().zip(out) {
                let refused = matches!(out, Err(InsertError::KeyExists));
                assert!(refused || out.is_ok());
                assert_eq!(refused, model.contains_key::<K::Owned>(&key));
                model.entry(key).or_insert(value);
            }
        } else {
            let borrowed = changes
                .iter()
                .map(|(k, v)| (k.borrow(), v.as_ref().map(Borrow::borrow)));
            tree.write_batch(borrowed).unwrap();
            for (key, value) in changes {
                match value {
                    Some(value) => drop(model.insert(key, value)),
                    None => drop(model.remove::<K::Owned>(&key)),
                }
            }
        }
        let mut seen = Vec::new();
        tree.scan(.., |key, value| {
            seen.push((key.to_owned(), value.to_owned()));
            ControlFlow::Continue(())
        });
        assert!(seen.iter().map(|(k, v)| (k, v)).eq(&model), "round {round}");
        assert_eq!(tree.verify().unwrap().entries, model.len() as u64);
    }
}

#[test]
fn batches_of_numbers_agree_with_a_map() {
    for page_bytes in [512, 4096] {
        batches_agree_with_a_map::<u64>(page_bytes, |_, i| i << 20);
    }
}

#[test]
fn batches_of_strings_agree_with_a_map() {
    batches_agree_with_a_map::<[u8]>(512, |_, i| format!("{i:06}").into_bytes());
    batches_agree_with_a_map::<[u8]>(4096, |rng, i| {
        let longest = if i < 1000 && rng.random_bool(0.05) {
            1500
        } else {
            30
        };
        let mut key = format!("a/{i:06}").into_bytes();
        key.resize(key.len() + rng.random_range(0..longest), b'x');
        key
    });
}

/// The persist costs that `write_batch` states.
#[test]
fn a_batch_is_a_fence_and_one_more_for_several_pages() {
    let pool = pool(1 << 30);
    let tree: ClusteredTree<u64, u64, _> =
        ClusteredTree::create(&pool, "t", &ClusteredOptions::default()).unwrap();
    for i in 0..2000 {
        tree.insert(&(i << 32), &i).unwrap();
    }
    let cost = |keys: &[u64]| {
        let pages_before = tree.stats().leaves;
        let before = pool.pm().counts();
        tree.write_batch(keys.iter().map(|key| (key, Some(key))))
            .unwrap();
        assert_eq!(tree.stats().leaves, pages_before, "no page was split");
        pool.pm().counts() - before
    };
    // Two records and what comes before them are six words: padded to a line, from a line on.
    let one_page = cost(&[5, 6]);
    assert_eq!(one_page.fences, 1);
    assert!(one_page.lines <= 2, "{one_page:?}");
    let three_pages = cost(&[7, (900 << 32) + 1, (1800 << 32) + 1]);
    assert_eq!((three_pages.fences, three_pages.lines), (2, 4));
}

pub(super) fn pool(reserve: u64) -> Arc<Pool<Medium>> {
    let options = PoolOptions {
        media: MediaOptions {
            reserve,
            ..MediaOptions::default()
        },
    };
    Pool::create(Path::new("dram"), &options).unwrap()
}

/// Ends as a crash does: nothing is sealed.
pub(super) fn crash<K: KeyRepr + ?Sized>(mut tree: ClusteredTree<K, K, Medium>) {
    tree.root = None;
}

pub(super) fn part_of(tree: &ClusteredTree<u64, u64, Medium>, key: u64) -> &Part {
    match Handle::decode(tree.inner.find(&key, &crossbeam_epoch::pin()).leaf) {
        Handle::Part(slot) => tree.part(slot),
        unloaded => panic!("{unloaded:?}"),
    }
}

/// Opening left a torn group's head as it was. The application tried the batch again, with another
/// value in the first line, and a second crash kept all lines but that one: the first batch was
/// whole then, although it had been answered as absent.
#[test]
fn a_torn_group_is_not_made_whole_by_the_next_one() {
    let pool = pool(1 << 30);
    let options = ClusteredOptions::default();
    let mut tree: ClusteredTree<u64, u64, Medium> =
        ClusteredTree::create(&pool, "t", &options).unwrap();
    for i in 0..40 {
        tree.insert(&(i * 2), &0).unwrap();
    }
    let write = |tree: &ClusteredTree<u64, u64, Medium>, value: u64| {
        let others: Vec<u64> = (101..119).step_by(2).collect();
        let others = others.iter().map(|key| (key, Some(&7)));
        tree.write_batch(std::iter::once((&5, Some(&value))).chain(others))
            .unwrap();
    };
    let at = part_of(&tree, 5).end();
    let next_line = (at / 8 + 1) * 8;
    let (mut first_line, mut end) = (Vec::new(), at);
    for value in [5, 6] {
        let part = part_of(&tree, 5);
        assert_eq!(part.end(), at);
        let page = tree.page_of(part);
        page.copy(at, next_line, &mut first_line);
        write(&tree, value);
        end = end.max(part.end());
        let lost = if value == 5 {
            next_line..end
        } else {
            at..next_line
        };
        for (i, word) in lost.enumerate() {
            let old = if value == 5 { 0 } else { first_line[i] };
            // ORDERING: Relaxed; there is one thread.
            page.cell(word)
                .store(pool.pm(), old, std::sync::atomic::Ordering::Relaxed);
        }
        crash(tree);
        tree = ClusteredTree::open(&pool, "t", &options).unwrap();
        assert_eq!(tree.get(&5), None, "after the crash of {value}");
        assert_eq!(tree.verify().unwrap().entries, 40);
    }
}

/// Sets a flag when it goes.
struct Stop<'s>(&'s std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed; nothing else depends on it.
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// A scan went beyond the end that had led it to a page, where the page had taken over the next one
/// meanwhile: it saw keys twice, and keys above its bound.
#[test]
fn scans_beside_merges_ascend_and_end_at_their_bounds() {
    const KEYS: u64 = 4000;
    const STAY: u64 = 61;
    let tree = tree::<u64>(512);
    for key in 0..KEYS {
        tree.insert(&key, &key).unwrap();
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Also where an assertion fails.
            let _stop = Stop(&stop);
            for round in 0..200 {
                let from = round * 331 % KEYS;
                let keys = || (from..(from + 700).min(KEYS)).filter(|key| key % STAY != 0);
                keys().for_each(|key| assert!(tree.remove(&key).unwrap()));
                keys().for_each(|key| tree.insert(&key, &key).unwrap());
            }
        });
        let rng = &mut StdRng::seed_from_u64(3);
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let last = rng.random_range(0..KEYS);
            for reverse in [false, true] {
                let mut seen = Vec::new();
                let visit = |key: &u64, _: &u64| {
                    seen.push(*key);
                    ControlFlow::Continue(())
                };
                if reverse {
                    tree.scan_reverse(..=last, visit);
                    seen.reverse();
                } else {
                    tree.scan(..=last, visit);
                }
                assert!(seen.is_sorted_by(|a, b| a < b), "keys ascend");
                assert!(seen.last().is_none_or(|key| *key <= last));
                let stayed = seen.iter().copied().filter(|key| key % STAY == 0);
                assert!(stayed.eq((0..=last).step_by(STAY as usize)));
            }
        }
    });
    tree.verify().unwrap();
}

/// Removals of keys that are not there were written.
#[test]
fn a_batch_that_removes_nothing_writes_nothing() {
    let tree = tree::<u64>(512);
    for key in 0..500 {
        tree.insert(&(key * 2), &key).unwrap();
    }
    let (before, end) = (tree.stats(), part_of(&tree, 9).end());
    let absent: Vec<u64> = (0..500).map(|key| key * 2 + 1).collect();
    tree.write_batch(absent.iter().map(|key| (key, None)))
        .unwrap();
    assert_eq!(part_of(&tree, 9).end(), end);
    assert_eq!(tree.stats().pm_bytes, before.pm_bytes);
    assert_eq!(tree.verify().unwrap().entries, 500);
}

/// A batch for which there is no space took all that there was, for pages that it had split.
#[test]
fn a_batch_without_space_changes_nothing_and_gives_space_back() {
    let pool = pool(16 << 20);
    let tree: ClusteredTree<[u8], [u8], Medium> =
        ClusteredTree::create(&pool, "t", &ClusteredOptions::default()).unwrap();
    let value = vec![1; 16 << 10];
    tree.insert(b"before", &value).unwrap();
    let keys: Vec<[u8; 4]> = (0..3000u32).map(u32::to_be_bytes).collect();
    let changes = || keys.iter().map(|key| (&key[..], Some(&value[..])));
    let refused = tree.write_batch(changes());
    assert!(matches!(refused, Err(InsertError::Space(_))), "{refused:?}");
    assert_eq!(tree.verify().unwrap().entries, 1);
    // As many as a quarter of the pool holds.
    tree.write_batch(changes().take(200)).unwrap();
    assert_eq!(tree.verify().unwrap().entries, 201);
}

/// The only key of a page may be what all of its keys begin with, and its value be empty: such an
/// entry takes no bytes.
#[test]
fn an_entry_without_bytes_is_visited() {
    let rng = &mut StdRng::seed_from_u64(27);
    let tree = tree::<[u8]>(512);
    let mut model = BTreeMap::new();
    let mut without_bytes = 0;
    for _ in 0..4_000 {
        let first = [b'a', rng.random_range(b'a'..=b'c')];
        let key = match rng.random_range(0..8) {
            0 => first.to_vec(),
            _ => [&first[..], &[rng.random_range(b'a'..=b'z')]].concat(),
        };
        if rng.random_bool(0.4) {
            assert_eq!(tree.remove(&key).unwrap(), model.remove(&key).is_some());
        } else {
            let value = vec![7; if key.len() == 2 { 0 } else { 200 }];
            tree.upsert(&key, &value).unwrap();
            model.insert(key, value);
        }
        let at = tree.inner.find(&first, &crossbeam_epoch::pin());
        let Handle::Part(slot) = Handle::decode(at.leaf) else {
            unreachable!("all pages are loaded");
        };
        let base = tree.part(slot).base();
        let words = base.form.map(|form| base.entry_words(form));
        if base.entries == 0 || words != Some(0) {
            continue;
        }
        without_bytes += 1;
        let all: Vec<_> = model.clone().into_iter().collect();
        let mut seen = Vec::new();
        let mut visit = |key: &[u8], value: &[u8]| {
            seen.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        tree.scan::<(Bound<&[u8]>, Bound<&[u8]>)>((Bound::Unbounded, Bound::Unbounded), &mut visit);
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);
        tree.scan_reverse(range, &mut visit);
        let there_and_back = all.iter().chain(all.iter().rev());
        assert!(seen.iter().eq(there_and_back));
    }
    assert!(without_bytes > 10, "{without_bytes} times");
}

/// Merging was tried at every eighth removal, and pages that hold fewer entries kept their space.
#[test]
fn pages_of_few_entries_are_merged() {
    let tree = tree::<[u8]>(4096);
    let value = [7; 256];
    for i in 0..700u32 {
        tree.insert(&i.to_be_bytes(), &value).unwrap();
    }
    let full = tree.stats().leaves;
    for i in (0..700u32).filter(|i| i % 7 != 0) {
        assert!(tree.remove(&i.to_be_bytes()).unwrap());
    }
    let left = tree.stats().leaves;
    assert!(left * 3 < full, "{left} of {full} pages");
    tree.verify().unwrap();
}

/// The sums of a hostile file are right. A base out of order was searched, and panicked elsewhere.
#[test]
fn a_base_out_of_order_is_damage() {
    let pool = pool(1 << 30);
    let options = ClusteredOptions { page_bytes: 512 };
    let tree: ClusteredTree<u64, u64, Medium> =
        ClusteredTree::create(&pool, "t", &options).unwrap();
    for key in 0..100 {
        tree.insert(&key, &key).unwrap();
    }
    let page = tree.page_of(part_of(&tree, 0));
    let (header, _) = page.header(tree.salt).unwrap();
    let numbers = (true, true);
    page.check_entries(&header, numbers).unwrap();
    assert!(header.entries > 2 && page.check_entries(&header, (false, false)).is_ok());
    let swap = |i: usize, j: usize| {
        let (a, b) = (
            page.cell(header.base + 2 * i),
            page.cell(header.base + 2 * j),
        );
        let ordering = std::sync::atomic::Ordering::Relaxed;
        let (x, y) = (a.load(pool.pm(), ordering), b.load(pool.pm(), ordering));
        a.store(pool.pm(), y, ordering);
        b.store(pool.pm(), x, ordering);
    };
    swap(0, 1);
    assert!(page.check_entries(&header, numbers).is_err());
    swap(0, 1);
    let other = super::layout::Header {
        form: None,
        ..header
    };
    assert!(page.check_entries(&other, numbers).is_err());
}

/// Batches of threads lock the same pages, in the same order, and split and merge them meanwhile.
#[test]
fn batches_of_threads_do_not_wait_for_each_other_for_ever() {
    let (done, ended) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || {
        let _done: std::sync::mpsc::Sender<()> = done;
        batches_of_threads();
    });
    // It disconnects when it ends, also in a panic.
    let ended = ended.recv_timeout(std::time::Duration::from_secs(300));
    assert_eq!(ended, Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
    worker.join().unwrap();
}

fn batches_of_threads() {
    const THREADS: u64 = 3;
    let tree = tree::<u64>(512);
    let work = |thread: u64| {
        let rng = &mut StdRng::seed_from_u64(thread);
        let mut model = BTreeMap::new();
        for round in 0..60 {
            let of_thread = |i: u64| i * THREADS + thread;
            let changes: BTreeMap<u64, Option<u64>> = (0..rng.random_range(1..60))
                .map(|_| {
                    let value = rng.random_bool(0.5).then_some(round);
                    (of_thread(rng.random_range(0..300)), value)
                })
                .collect();
            tree.write_batch(changes.iter().map(|(key, value)| (key, value.as_ref())))
                .unwrap();
            for (key, value) in changes {
                match value {
                    Some(value) => drop(model.insert(key, value)),
                    None => drop(model.remove(&key)),
                }
            }
            let one = of_thread(rng.random_range(0..300));
            tree.upsert(&one, &round).unwrap();
            model.insert(one, round);
        }
        model
    };
    let models: Vec<BTreeMap<u64, u64>> = std::thread::scope(|scope| {
        let work = &work;
        let threads = (0..THREADS).map(|thread| scope.spawn(move || work(thread)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let expected: BTreeMap<u64, u64> = models.into_iter().flatten().collect();
    let mut seen = BTreeMap::new();
    tree.scan(.., |key, value| {
        seen.insert(*key, *value);
        ControlFlow::Continue(())
    });
    assert_eq!(seen, expected);
    assert_eq!(tree.verify().unwrap().entries, expected.len() as u64);
}

/// A page whose generation was taken before its number was free would have made a crash take what
/// was born in the page before for void.
#[test]
fn a_number_is_used_again_by_later_generations_only() {
    let tree = tree::<u64>(512);
    let reserve = |generation| tree.table.reserve(tree.root(), &tree.heap, generation);
    let id = reserve(None).unwrap();
    tree.release([id]);
    let next = tree.generations.coming();
    let other = reserve(Some(next - 1)).unwrap();
    assert_ne!(other, id);
    assert_eq!(reserve(Some(next)).unwrap(), id);
    tree.release([id]);
    assert_eq!(reserve(None).unwrap(), id, "an outer value's");
    tree.release([id, other]);
}

/// Ascending keys fill pages, also where other keys are above them, of another length.
#[test]
fn ascending_keys_fill_pages_whatever_is_above_them() {
    const KEYS: u32 = 20_000;
    for above in [0u32, 1, 50] {
        let tree = tree::<[u8]>(4096);
        for i in 0..above {
            let key = [&[0xFF; 4][..], &vec![i as u8; 3 + i as usize % 9]].concat();
            tree.insert(&key[..], &b"another value"[..]).unwrap();
        }
        for i in 0..KEYS {
            let key = [&1u32.to_be_bytes()[..], &u64::from(i).to_be_bytes()].concat();
            let value = i.to_le_bytes().repeat(2);
            tree.insert(&key[..], &value[..]).unwrap();
        }
        let leaves = tree.stats().leaves;
        let bytes = leaves as f64 * 4096.0 / f64::from(KEYS);
        assert!(bytes < 19.0, "{above} above: {bytes} bytes an entry");
        tree.verify().unwrap();
    }
}
