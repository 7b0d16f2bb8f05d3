//! Slots, records and their recovery.

use super::*;
use crate::media::{Counting, Dram, MediaOptions};
use crate::pool::{DataKind, PoolOptions, Root, RootKind};
use crossbeam_epoch as epoch;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

type Medium = Counting<Dram>;

fn root() -> Root<Medium> {
    let media = MediaOptions {
        reserve: 1 << 28,
        ..MediaOptions::default()
    };
    let pool = Pool::<Medium>::create(Path::new("dram"), &PoolOptions { media }).unwrap();
    let kind = RootKind {
        design: "test".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: 0,
    };
    let root = pool.create_root("r", &kind).unwrap();
    root.publish();
    root
}

fn set(logs: &Logs<Medium>, at: u64, words: impl IntoIterator<Item = u64>) {
    for (i, value) in words.into_iter().enumerate() {
        let word = logs.word(at + i as u64 * 8);
        word.store(logs.pm(), value, Ordering::Relaxed);
    }
}

fn get(logs: &Logs<Medium>, at: u64, words: u64) -> Vec<u64> {
    (0..words)
        .map(|i| logs.word(at + i * 8).load(logs.pm(), Ordering::Relaxed))
        .collect()
}

fn refuse(_: Record<'_>) -> Result<(), String> {
    Err("no record is armed".into())
}

#[test]
fn an_armed_undo_record_is_copied_back_and_a_disarmed_one_is_not() {
    let root = root();
    let heap = root.heap();
    let logs = Logs::create(&heap, 2, image_words(2, 4096 + 64)).unwrap();
    let (a, b) = (
        heap.alloc(4096).unwrap().get(),
        heap.alloc(256).unwrap().get(),
    );
    set(&logs, a, 0..512);
    set(&logs, b, 1000..1032);
    let ranges = [
        Range {
            off: a,
            bytes: 4096,
        },
        Range {
            off: b + 64,
            bytes: 64,
        },
    ];
    let mut slot = logs.take();
    slot.arm_images(&ranges);
    set(&logs, a, 500..1012);
    set(&logs, b, 0..32);
    slot.disarm();
    drop(slot);
    assert_eq!(logs.recover(refuse).unwrap(), 0);
    assert_eq!(get(&logs, a, 512), (500..1012).collect::<Vec<_>>());
    let mut slot = logs.take();
    slot.arm_images(&ranges);
    for _ in 0..2 {
        set(&logs, a, 0..512);
        set(&logs, b, 2000..2032);
        let reopened = Logs::open(&heap, logs.offset(), 4).unwrap();
        let mut seen = Vec::new();
        let records = reopened.recover(|record| {
            if let Record::Undo(ranges) = record {
                seen.extend_from_slice(ranges);
            }
            Ok(())
        });
        assert_eq!(records.unwrap(), 1);
        assert_eq!(seen, ranges);
        assert_eq!(get(&logs, a, 512), (500..1012).collect::<Vec<_>>());
        let mut expected: Vec<u64> = (2000..2032).collect();
        expected[8..16].copy_from_slice(&(8..16).collect::<Vec<_>>());
        assert_eq!(
            get(&logs, b, 32),
            expected,
            "outside the range nothing changed"
        );
        assert_eq!(reopened.recover(refuse).unwrap(), 0, "disarmed");
        // As a crash before the disarming would leave it.
        let mut again = Logs::open(&heap, logs.offset(), 4).unwrap();
        again.free = Mutex::new(vec![slot.slot]);
        again.take().arm_images(&ranges);
    }
}

#[test]
fn a_redo_record_is_handed_over_until_it_is_disarmed() {
    let root = root();
    let heap = root.heap();
    let logs = Logs::create(&heap, 3, 20).unwrap();
    for words in [0, 1, 6, 7, 8, 20] {
        let record: Vec<u64> = (0..words).map(|i| i * 3 + 1).collect();
        let mut slot = logs.take();
        slot.arm(&record);
        let failed = logs.recover(|_| Err("not now".into()));
        assert!(failed.unwrap_err().contains("not now"));
        let mut seen = Vec::new();
        let again = logs.recover(|found| {
            if let Record::Redo(words) = found {
                seen.push(words.to_vec());
            }
            Ok(())
        });
        assert_eq!(again.unwrap(), 1, "a refused record is still armed");
        assert_eq!(seen, [record]);
        slot.disarm();
    }
}

#[test]
fn slots_are_lines_of_their_own_and_counted() {
    let root = root();
    let heap = root.heap();
    for words in [1, 7, 8, 15, 16, 100] {
        let logs = Logs::create(&heap, 5, words).unwrap();
        let mut lines: Vec<u64> = (0..5)
            .flat_map(|slot| {
                let at = logs.slot_at(slot);
                assert_eq!(at % 64, 0);
                at / 64..(at + 8 + words as u64 * 8).div_ceil(64)
            })
            .collect();
        lines.push(logs.offset() / 64);
        let all = lines.len();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), all, "a line of two slots");
        let block = heap.block_bytes(logs.offset()).unwrap();
        assert!(lines[all - 1] * 64 < logs.offset() + block);
        logs.free(&heap);
    }
}

#[test]
fn arming_costs_what_the_head_says() {
    let root = root();
    let heap = root.heap();
    let logs = Logs::create(&heap, 1, image_words(1, 1024)).unwrap();
    let node = heap.alloc(1024).unwrap().get();
    let pm = logs.pm();
    let cost = |work: &mut dyn FnMut()| {
        let before = pm.counts();
        work();
        let after = pm.counts();
        (after.lines - before.lines, after.fences - before.fences)
    };
    let mut slot = logs.take();
    assert_eq!(cost(&mut || slot.arm(&[1; 7])), (1, 1));
    assert_eq!(cost(&mut || slot.disarm()), (1, 1));
    assert_eq!(cost(&mut || slot.arm(&[1; 8])), (2, 2));
    slot.disarm();
    // 1 head, 2 words of place, 128 of content: 131 words in 17 lines.
    let whole = [Range {
        off: node,
        bytes: 1024,
    }];
    assert_eq!(cost(&mut || slot.arm_images(&whole)), (17, 2));
    slot.disarm();
}

#[test]
fn taking_waits_for_a_free_slot() {
    let root = root();
    let heap = root.heap();
    let logs = Logs::create(&heap, 2, 4).unwrap();
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (logs, taken) = (&logs, &taken);
            scope.spawn(move || {
                for i in 0..500 {
                    let mut slot = logs.take();
                    let others = taken.fetch_add(1, Ordering::SeqCst);
                    assert!(others < 2, "{others} others have a slot of two");
                    slot.arm(&[thread, i]);
                    slot.disarm();
                    taken.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(logs.recover(refuse).unwrap(), 0);
}

#[test]
fn a_corrupt_area_is_refused() {
    let root = root();
    let heap = root.heap();
    let logs = Logs::create(&heap, 2, 20).unwrap();
    let node = heap.alloc(256).unwrap().get();
    let (at, len) = (logs.offset(), logs.pm().len());
    assert!(Logs::open(&heap, at + 64, 4).is_err(), "no block");
    assert!(Logs::open(&heap, node, 4).unwrap_err().contains("magic"));
    assert!(Logs::open(&heap, len, 4).is_err() && Logs::open(&heap, 0, 4).is_err());
    assert!(Logs::open(&heap, at, 20).is_ok());
    let short = Logs::open(&heap, at, 21).unwrap_err();
    assert!(
        short.contains("slots of 20 words, where records take 21"),
        "{short}"
    );
    for (word, bad) in [
        (0, 1),
        (8, 0),
        (8, 1),
        (8, 20 << 32),
        (8, u64::MAX),
        (8, 3000 | 20 << 32),
        (8, 60 | 20 << 32),
    ] {
        let good = get(&logs, at + word, 1);
        set(&logs, at + word, [bad]);
        assert!(Logs::open(&heap, at, 4).is_err(), "{bad:#x} at {word}");
        set(&logs, at + word, good);
    }
    let head = logs.slot_at(0);
    let accept = |_: Record<'_>| Ok(());
    for bad in [
        1,
        TAG,
        TAG | 3,
        TAG | 1 | 21 << 8,
        TAG | 2,
        TAG << 1 | 1,
        TAG | 2 | 2 << 8,
    ] {
        set(&logs, head, [bad, 0, 0]);
        assert!(logs.recover(accept).is_err(), "head {bad:#x}");
    }
    let undo = |words: u64| TAG | 2 | words << 8;
    for (off, bytes, words) in [
        (0, 8, 3),
        (node, 16, 3),
        (node, 0, 2),
        (node, u64::MAX - 7, 3),
        (u64::MAX - 7, 8, 3),
        (node + 4, 8, 3),
        (node, 4, 3),
        (len, 8, 3),
        (at, 8, 3),
        (at - 8, 16, 4),
        (node, 8, 4),
    ] {
        set(&logs, head, [undo(words), off, bytes, 7, 7]);
        let refused = logs.recover(accept);
        assert!(refused.is_err(), "{bytes} bytes at {off:#x}: {refused:?}");
    }
    set(&logs, head, [undo(3), node, 8, 7]);
    set(&logs, node, [1, 2]);
    let refused = logs.recover(|_| Err("not a node".into()));
    assert!(refused.unwrap_err().contains("not a node"));
    assert_eq!(get(&logs, node, 2), [1, 2], "refused, so not copied");
    assert_eq!(logs.recover(accept), Ok(1));
    assert_eq!(get(&logs, node, 2), [7, 2]);
}

#[test]
fn the_area_is_marked_once() {
    let root = root();
    let heap = root.heap();
    let at = Logs::create(&heap, 4, 30).unwrap().offset();
    heap.begin_recovery();
    let logs = Logs::open(&heap, at, 4).unwrap();
    let guard = epoch::pin();
    logs.mark(&heap, &guard).unwrap();
    assert!(logs.mark(&heap, &guard).is_err());
    heap.finish_recovery();
    assert!(heap.is_live(at) && heap.live_blocks() == 1);
}
