//! The order in which simulated threads take their steps.

use super::machine::Machine;
use super::memory::Time;
use super::trace::Step;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The steps of a simulated thread's current operation, and how many the machine has taken.
#[derive(Default)]
struct Lane {
    steps: Vec<Step>,
    taken: usize,
}

/// Lets the machine take the threads' steps until no thread has an operation left. The thread with
/// the smallest (clock, number) goes next. `next` puts the steps of a thread's next operation into
/// the vector, or returns false if there is none.
pub(super) fn drive<E>(
    machine: &mut Machine,
    threads: usize,
    mut next: impl FnMut(usize, &mut Vec<Step>) -> Result<bool, E>,
) -> Result<(), E> {
    let mut lanes: Vec<Lane> = (0..threads).map(|_| Lane::default()).collect();
    let mut order: BinaryHeap<Reverse<(Time, usize)>> = (0..threads)
        .map(|t| Reverse((machine.clock(t), t)))
        .collect();
    while let Some(Reverse((_, t))) = order.pop() {
        let until = order.peek().map(|Reverse(next)| *next);
        let lane = &mut lanes[t];
        let more = loop {
            if lane.taken == lane.steps.len() {
                lane.taken = 0;
                lane.steps.clear();
                if !next(t, &mut lane.steps)? {
                    break false;
                }
            }
            machine.step(t, lane.steps[lane.taken]);
            lane.taken += 1;
            if until.is_some_and(|next| next < (machine.clock(t), t)) {
                break true;
            }
        };
        if more {
            order.push(Reverse((machine.clock(t), t)));
        }
    }
    Ok(())
}
