//! A thread is stopped at any of its steps, and another one at any of its own: the rest continues,
//! and finishes what they have begun. Other threads never come back: they panic at any step.
//!
//! On the simulated medium a *step* is an access to persistent memory, a flush or a fence. The
//! threads are all this one: where one is to be stopped, the others' work is done before its next
//! step, and then it continues, late.

use super::*;
use crate::media::Sim;
use crate::media::sim::{OutOfSteps, Simulation};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Steps that an operation and the reads before it may take, whatever state others left: with each
/// word it may have to end one operation of three words, and to take a late pointer out again.
const BOUND: u64 = 400;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(0) };
    static OTHER: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

fn step() {
    let left = LEFT.get();
    if left > 0 {
        LEFT.set(left - 1);
        if left == 1 {
            let other = OTHER.take().expect("a stop has what is done meanwhile");
            other();
        }
    }
}

/// Does `work`, with `other` done before its step of that number (from 1). False if there is no
/// such step; `other` is not done then.
fn stopped<R>(at: u64, work: impl FnOnce() -> R, other: impl FnOnce() + 'static) -> (R, bool) {
    let reached = Rc::new(Cell::new(false));
    let note = Rc::clone(&reached);
    OTHER.set(Some(Box::new(move || {
        note.set(true);
        other();
    })));
    LEFT.set(at);
    let result = work();
    if !reached.get() {
        LEFT.set(0);
        OTHER.set(None);
    }
    (result, reached.get())
}

fn field(descriptors: usize) -> (Simulation, crate::media::sim::Attached, Field<Sim>) {
    let sim = Simulation::new(1 << 24);
    let attached = sim.attach();
    let field = Field::new(1, descriptors, 3);
    (sim, attached, field)
}

impl Field<Sim> {
    /// Waits until that many descriptors are free. Other tests may hold the epoch back. A pinned
    /// thread cannot wait.
    fn ready(&self, descriptors: usize) {
        let held: Vec<_> = (0..descriptors).map(|_| self.descriptor()).collect();
        drop(held);
    }

    /// Reads the words, then adds `amount` to each; one try.
    fn add(&self, words: &[usize], amount: u64) -> bool {
        let words: Vec<_> = (words.iter())
            .map(|i| {
                let value = self.swaps.read(self.word(*i));
                (*i, value, value + amount)
            })
            .collect();
        self.swap(&words)
    }
}

/// Whatever step a thread is stopped at, in an operation of one to three words or in a read:
/// another one on the same words succeeds at every try, in a bounded number of steps each. Then the
/// stopped one goes on: its operation was done, or fails.
#[test]
fn others_go_on_whatever_step_a_thread_is_stopped_at() {
    const TIMES: u64 = 5;
    let (sim, _attached, field) = field(64);
    let field = Rc::new(field);
    sim.set_switch(Some(step));
    let mut stops = 0;
    for words in 1..=3 {
        for at in 1.. {
            field.ready(16);
            (0..3).for_each(|i| field.set(i, 0));
            let all: Vec<usize> = (0..words).collect();
            let own: Vec<_> = (0..words).map(|i| (i, 0, 100)).collect();
            let (others, of, on) = (Rc::clone(&field), sim.clone(), all.clone());
            let (done, reached) = stopped(
                at,
                || field.swap(&own),
                move || {
                    for _ in 0..TIMES {
                        let before = of.steps();
                        assert!(others.add(&on, 1), "stopped at step {at} of {words} words");
                        let took = of.steps() - before;
                        assert!(took <= BOUND, "{took} steps");
                    }
                },
            );
            let expected = u64::from(done) * 100 + u64::from(reached) * TIMES;
            for i in all {
                assert_eq!(
                    field.get(i),
                    expected,
                    "word {i} of {words}, stopped at {at}"
                );
            }
            if !reached {
                assert!(done && at > 10, "{at} steps");
                break;
            }
            stops += 1;
        }
    }
    sim.set_switch(None);
    assert!(stops > 60, "{stops}");
    let (_, recovered) = field.reopen().unwrap();
    assert_eq!(recovered, Recovered::default(), "nothing was left behind");
}

/// Two threads stopped, each at every step, in operations that overlap; a third one goes on on all
/// words.
#[test]
fn a_third_one_goes_on_whatever_steps_two_are_stopped_at() {
    let (sim, _attached, field) = field(64);
    let field = Rc::new(field);
    sim.set_switch(Some(step));
    let mut stops = 0;
    'all: for first in 1.. {
        let mut second = 0;
        loop {
            second += 1;
            field.ready(16);
            (0..3).for_each(|i| field.set(i, 0));
            let (of, counted) = (sim.clone(), Rc::new(Cell::new(false)));
            let (b, c, both) = (Rc::clone(&field), Rc::clone(&field), Rc::clone(&counted));
            let ended = Rc::new(Cell::new(false));
            let note = Rc::clone(&ended);
            let (a, reached) = stopped(
                first,
                || field.swap(&[(1, 0, 100), (0, 0, 100)]),
                move || {
                    let (done, reached) = stopped(
                        second,
                        || b.add(&[2, 1], 10),
                        move || {
                            for _ in 0..2 {
                                let before = of.steps();
                                assert!(c.add(&[0, 1, 2], 1), "{first}, {second}");
                                let took = of.steps() - before;
                                assert!(took <= 2 * BOUND, "{took} steps");
                            }
                        },
                    );
                    note.set(done);
                    both.set(reached);
                },
            );
            let (a, b, c) = (
                u64::from(a) * 100,
                u64::from(ended.get()) * 10,
                u64::from(counted.get()) * 2,
            );
            let expected = [a + c, a + b + c, b + c];
            let found = [0, 1, 2].map(|i| field.get(i));
            assert_eq!(found, expected, "stopped at {first} and {second}");
            stops += 1;
            if !reached {
                break 'all;
            }
            if !counted.get() {
                break;
            }
        }
    }
    sim.set_switch(None);
    assert!(stops > 2_000, "{stops}");
}

/// A thread that stays pinned keeps all descriptors that are used after that. As many operations
/// end as there are other descriptors, and then there is an error, at once. When the thread
/// continues, they come back.
#[test]
fn a_pinned_thread_lets_as_many_operations_end_as_there_are_descriptors() {
    const DESCRIPTORS: usize = 8;
    let (sim, _attached, field) = field(DESCRIPTORS);
    let field = Rc::new(field);
    for at in 1.. {
        (0..3).for_each(|i| field.set(i, 0));
        field.ready(DESCRIPTORS);
        let mut swap = field.descriptor();
        swap.add_word(field.word(0), 0, 100).unwrap();
        swap.add_word(field.word(1), 0, 100).unwrap();
        let others = Rc::clone(&field);
        sim.set_switch(Some(step));
        let (_, reached) = stopped(
            at,
            || swap.execute().unwrap(),
            move || {
                for _ in 1..DESCRIPTORS {
                    assert!(others.add(&[0, 1, 2], 1), "stopped at {at}");
                }
                let none = others.swaps.allocate_descriptor().unwrap_err();
                assert_eq!(
                    none,
                    Exhausted {
                        descriptors: DESCRIPTORS
                    }
                );
            },
        );
        sim.set_switch(None);
        if !reached {
            assert!(at > 30, "{at} steps");
            break;
        }
    }
    assert!(field.add(&[0, 1, 2], 1));
}

/// A panic at any step of an operation (out of steps, here): the next thread that meets the
/// operation ends it, or [`quiesce`] does, and its blocks are recycled once.
///
/// [`quiesce`]: DescriptorPool::quiesce
#[test]
fn a_panic_at_any_step_leaves_nothing_undone() {
    // These panics are meant; a backtrace for each takes its time, with the thread pinned.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<OutOfSteps>() {
            hook(info);
        }
    }));
    let (old, new) = (1 << 20, 1 << 21);
    for (words, policy) in [
        (1, Policy::None),
        (1, Policy::FreeOne),
        (2, Policy::FreeOne),
        (3, Policy::None),
    ] {
        for (at, met) in (0..).flat_map(|at| [(at, false), (at, true)]) {
            let (sim, _attached, mut field) = field(4);
            (0..3).for_each(|i| field.set(i, old));
            let mut swap = field.policy(old, new, policy);
            for i in 1..words {
                swap.add_word(field.word(i), old, new).unwrap();
            }
            sim.set_limit(at);
            let result = catch_unwind(AssertUnwindSafe(|| swap.execute()));
            sim.set_limit(u64::MAX);
            match result {
                Ok(done) => {
                    assert_eq!(done, Ok(true));
                    assert!(at > 10, "{at} steps");
                    break;
                }
                Err(panic) => assert!(panic.is::<OutOfSteps>()),
            }
            let read = met.then(|| field.swaps.read(field.word(0)));
            field.swaps.quiesce();
            let found = field.get(0);
            assert!(found == old || found == new, "{found:#x} after {at} steps");
            assert!(read.is_none_or(|read| read == found));
            assert!(
                (0..words).all(|i| field.get(i) == found),
                "after {at} steps"
            );
            let (released, reused) = field.seen.take();
            assert_eq!(released, reused, "after {at} steps");
            // None was named before the descriptor counted.
            let goes = if found == new { old } else { new };
            let none = policy == Policy::None;
            assert!(
                released == [goes] || released.is_empty() && (none || found == old),
                "{released:x?}"
            );
            // The structure that is left works, and is whole.
            assert!(field.swap(&[(0, found, 5), (1, field.get(1), 6)]));
            let (_, recovered) = field.reopen().unwrap();
            assert_eq!(recovered, Recovered::default());
        }
    }
}

/// Reading a word that no operation is under way on is one load.
#[test]
fn reading_is_one_load() {
    let (sim, _attached, field) = field(4);
    assert!(field.add(&[0, 1], 7));
    let before = sim.steps();
    assert_eq!(field.swaps.read(field.word(1)), 107);
    assert_eq!(sim.steps() - before, 1);
}

/// A word of a damaged file holds the pointer of the next operation, of which it is no part.
#[test]
fn a_stray_pointer_to_an_operation_under_way_leads_nowhere() {
    let (sim, _attached, field) = field(4);
    let field = Rc::new(field);
    for at in 1.. {
        (0..4).for_each(|i| field.set(i, 0));
        let swap = {
            let mut swap = field.descriptor();
            swap.add_word(field.word(0), 0, 1).unwrap();
            swap.add_word(field.word(1), 0, 1).unwrap();
            swap
        };
        let number = swap.number();
        let next = field.swaps.next[number].load(Ordering::Relaxed);
        let strays = [pointer(number, next), conditional(number, next, 0, 9)];
        let others = Rc::clone(&field);
        sim.set_switch(Some(step));
        let (done, reached) = stopped(
            at,
            || swap.execute().unwrap(),
            move || {
                for stray in strays {
                    others.set(2, stray);
                    assert_eq!(others.swaps.read(others.word(2)), stray & !FLAGS);
                    assert_eq!(others.get(2), stray & !FLAGS);
                }
            },
        );
        sim.set_switch(None);
        assert!(done);
        assert_eq!((field.get(0), field.get(1)), (1, 1));
        if !reached {
            break;
        }
    }
}
