//! The cost of each step on a machine, in whole nanoseconds.

use super::*;
use crate::model::memory::Traffic;
use crate::workload::Random;

fn machine(device: &str, threads: usize, change: impl FnOnce(&mut Core)) -> Machine {
    let device = Device::load(device).unwrap().with_core(change).unwrap();
    Machine::new(&device, &Device::load("dram").unwrap(), threads)
}

fn optane() -> Machine {
    machine("optane", 1, |_| {})
}

/// Does the steps as thread 0. Returns their time in whole nanoseconds.
fn cost(machine: &mut Machine, steps: impl IntoIterator<Item = Step>) -> u64 {
    let before = machine.clock(0);
    for step in steps {
        machine.step(0, step);
    }
    let total: Time = machine.spent(0).by_cause.iter().sum();
    assert_eq!(total, machine.clock(0), "causes add up");
    (machine.clock(0) - before + 500) / 1000
}

fn spent(machine: &Machine, cause: Cause) -> u64 {
    machine.spent(0).by_cause[cause as usize] / 1000
}

const fn load(line: u64) -> Step {
    Step::Load { line, words: 1 }
}

const fn store(line: u64) -> Step {
    Step::Store { line, words: 1 }
}

#[test]
fn loads_wait_for_each_other_and_what_is_prefetched_comes_together() {
    // The lines of one leaf: one media read, and three from its buffer.
    let apart = cost(&mut optane(), [load(0), load(3), load(1), load(2)]);
    assert_eq!(apart, 305 + 3 * 124 + 1);
    let together = (0..4).map(|line| Step::Prefetch { line });
    let together = cost(&mut optane(), together.chain((0..4).map(load)));
    assert!((305..320).contains(&together), "{together}");
    let mut hits = optane();
    cost(&mut hits, [load(0)]);
    assert_eq!(cost(&mut hits, [load(0), load(0)]), 1, "level 1");
}

#[test]
fn each_cache_has_its_latency() {
    let mut machine = machine("optane", 1, |core| core.stream_lines = 0);
    // Level 1 holds 512 lines, level 2 holds 16,384.
    cost(&mut machine, (0..1024).map(load));
    let read = machine.pm().traffic().lines_read;
    assert_eq!(cost(&mut machine, [load(0)]), 5, "0.5 + 4");
    cost(&mut machine, (1024..40_000).map(load));
    assert_eq!(cost(&mut machine, [load(0)]), 21, "0.5 + 20");
    assert_eq!(machine.pm().traffic().lines_read, read + 40_000 - 1024);
    assert!(spent(&machine, Cause::Cache) >= 24);
}

#[test]
fn fill_buffers_bound_what_is_outstanding() {
    let far = |i: u64| Step::Prefetch {
        line: i * 1_000_003,
    };
    let loads = |n: u64| (0..n).map(|i| load(i * 1_000_003));
    let few = cost(&mut optane(), (0..12).map(far).chain(loads(12)));
    let many = cost(&mut optane(), (0..24).map(far).chain(loads(24)));
    assert!((305..400).contains(&few), "{few}");
    assert!((610..750).contains(&many), "{many}");
    let mut one = machine("optane", 1, |core| core.line_fill_buffers = 1);
    let alone = cost(&mut one, (0..12).map(far).chain(loads(12)));
    assert!((12 * 305..13 * 305).contains(&alone), "{alone}");
}

#[test]
fn the_stream_prefetcher_runs_ahead_of_ascending_and_descending_lines() {
    let time = |ahead: u64, step: u64| {
        let mut machine = machine("optane", 1, |core| core.stream_lines = ahead);
        let lines = (0..64).map(|i| load(i * step % 64));
        (cost(&mut machine, lines), machine.pm().traffic().lines_read)
    };
    let (off, on) = (time(0, 1), time(8, 1));
    assert!(on.0 * 2 < off.0, "{on:?} {off:?}");
    assert_eq!((off.1, on.1), (64, 64), "and stays in the page");
    let (off, on) = (time(0, 63), time(8, 63));
    assert!(on.0 * 2 < off.0, "{on:?} {off:?}");
    assert_eq!((off.1, on.1), (64, 64), "0, then 63 down to 1");
    // Every other line is no stream, and neither is every third one downwards.
    for step in [2, 61] {
        assert_eq!(time(0, step), time(8, step));
    }
}

#[test]
fn serial_flushes_wait_for_each_other() {
    let flushes = |serial| {
        let mut machine = machine("optane", 1, |core| core.serial_flush = serial);
        cost(&mut machine, (0..8).map(store));
        cost(&mut machine, [Step::Fence]);
        let flushes = (0..8).map(|line| Step::Flush { line });
        cost(&mut machine, flushes.chain([Step::Fence]))
    };
    let (serial, not) = (flushes(true), flushes(false));
    assert!((61..61 + 40).contains(&not), "{not}");
    assert!((8 * 61..8 * 61 + 40).contains(&serial), "{serial}");
}

#[test]
fn stores_wait_in_their_buffer_and_a_fence_for_them() {
    let far = |i: u64| i * 1_000_003;
    let mut machine = machine("optane", 1, |core| core.store_buffer = 8);
    let few = cost(&mut machine, (0..8).map(|i| store(far(i))));
    assert_eq!(few, 4, "eight stores that miss cost their issue only");
    let more = cost(&mut machine, [store(far(8))]);
    assert!((250..305).contains(&more), "{more}");
    assert!(spent(&machine, Cause::Store) >= 250);
    cost(&mut machine, [Step::Fence]);
    assert_eq!(cost(&mut machine, [Step::Fence]), 1, "nothing left");
}

#[test]
fn a_persist_costs_the_devices_accepting_it() {
    for (device, accept) in [("dram", 56), ("optane", 61), ("pcm", 221)] {
        let mut machine = machine(device, 1, |_| {});
        cost(&mut machine, [load(0)]);
        let persist = [store(0), Step::Flush { line: 0 }, Step::Fence];
        assert_eq!(cost(&mut machine, persist), accept + 1, "{device}");
        assert_eq!(spent(&machine, Cause::Fence), accept - 1, "{device}");
        let counts = (machine.spent(0).flushes, machine.spent(0).fences);
        assert_eq!(counts, (1, 1));
        assert_eq!(machine.pm().traffic().lines_written, 1);
        // The line is clean now, so there is nothing to write or to wait for.
        let again = cost(&mut machine, [Step::Flush { line: 0 }, Step::Fence]);
        assert!(again <= 2, "{again}");
        assert_eq!(machine.pm().traffic().lines_written, 1);
    }
}

#[test]
fn flushes_before_one_fence_overlap_up_to_a_bound() {
    let mut machine = optane();
    cost(&mut machine, (0..24).map(load));
    let flush = |line| Step::Flush { line };
    let stores = (0..24).map(store).chain((0..24).map(flush));
    let all = cost(&mut machine, stores.chain([Step::Fence]));
    assert!(
        (122..24 * 61 / 4).contains(&all),
        "two rounds of twelve: {all}"
    );
    assert!(spent(&machine, Cause::Flush) + spent(&machine, Cause::Bandwidth) > 20);
}

#[test]
fn a_flush_evicts_the_line_unless_told_to_keep_it() {
    for (keeps, after) in [(true, 1), (false, 124)] {
        let mut machine = machine("optane", 1, |core| core.flush_keeps_line = keeps);
        cost(&mut machine, [load(0), store(0)]);
        cost(&mut machine, [Step::Flush { line: 0 }, Step::Fence]);
        assert_eq!(cost(&mut machine, [load(0)]), after, "keeps: {keeps}");
    }
}

#[test]
fn a_locked_instruction_drains_the_store_buffer() {
    let mut machine = optane();
    cost(&mut machine, [load(DRAM), store(1_000_003)]);
    let locked = cost(&mut machine, [Step::Locked { line: DRAM }]);
    assert!((305..320).contains(&locked), "{locked}");
    assert!(spent(&machine, Cause::Store) >= 300);
    assert_eq!(cost(&mut machine, [Step::Locked { line: DRAM }]), 6);
}

#[test]
fn dram_is_charged_as_dram_and_leaves_the_device_alone() {
    let mut machine = optane();
    assert_eq!(cost(&mut machine, [load(DRAM + 7)]), 102);
    assert_eq!(spent(&machine, Cause::Dram), 101);
    assert_eq!(machine.pm().traffic().lines_read, 0);
}

#[test]
fn dirty_lines_that_leave_the_caches_are_written() {
    let mut machine = machine("optane", 1, |core| {
        (core.l1_bytes, core.l2_bytes, core.l3_bytes) = (4 << 10, 8 << 10, 16 << 10);
        core.stream_lines = 0;
    });
    // 128 + 256 lines fit in levels 2 and 3. The rest of 1000 dirty lines is evicted.
    cost(&mut machine, (0..1000).map(store));
    let written = machine.pm().traffic().lines_written;
    assert!((1000 - 128 - 256..=1000).contains(&written), "{written}");
}

#[test]
fn a_line_that_another_core_wrote_comes_from_there_and_is_still_dirty() {
    let mut machine = machine("optane", 2, |_| {});
    cost(&mut machine, [load(0), load(0), store(0)]);
    machine.step(1, load(0));
    assert_eq!(machine.clock(1), time(50.5));
    assert_eq!(machine.pm().traffic().lines_read, 1);
    machine.step(1, Step::Flush { line: 0 });
    assert_eq!(
        machine.pm().traffic().lines_written,
        1,
        "the store is not lost"
    );
    // Thread 0 no longer has the line, since the flush removed it from all caches.
    assert_eq!(cost(&mut machine, [load(0)]), 124);
    // A store removes the other core's copy.
    machine.step(1, load(0));
    cost(&mut machine, [store(0)]);
    let before = machine.clock(1);
    machine.step(1, load(0));
    assert_eq!(machine.clock(1) - before, time(50.5));
}

#[test]
fn flushed_random_lines_are_amplified_fourfold_and_sequential_ones_are_not() {
    for (device, sequential, low, high) in [
        ("optane", false, 3.8, 4.0),
        ("optane", true, 0.95, 1.0),
        ("dram", false, 0.95, 1.0),
    ] {
        let mut machine = machine(device, 1, |_| {});
        let mut random = Random::new(11);
        for i in 0..60_000 {
            let line = if sequential { i } else { random.below(1 << 22) };
            cost(
                &mut machine,
                [store(line), Step::Flush { line }, Step::Fence],
            );
        }
        let traffic = machine.pm().traffic();
        assert_eq!(traffic.lines_written, 60_000);
        let amplification = traffic.media_written as f64 / (60_000.0 * 64.0);
        assert!(
            (low..=high).contains(&amplification),
            "{device}: {amplification}"
        );
    }
}

#[test]
fn a_restart_keeps_what_the_caches_hold() {
    let mut machine = optane();
    cost(&mut machine, [load(0), store(5), Step::Flush { line: 5 }]);
    machine.restart();
    assert_eq!((machine.clock(0), machine.spent(0)), (0, Spent::default()));
    assert_eq!(machine.pm().traffic(), Traffic::default());
    assert_eq!(cost(&mut machine, [load(0), Step::Fence]), 2);
}
