//! Linearizability check of a concurrent history of one key.
//!
//! A key is a register that may be empty. Every operation took effect at one moment between its
//! start and its end stamp. The history is linearizable if some order of those moments explains
//! every answer. The search walks the orders depth first. A state is the position of each thread
//! and the register's content, and each state is visited once. With a handful of threads that is
//! linear in the history's length for all practical histories.

use std::collections::HashSet;

/// An operation with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `insert(value)`; `false` is `KeyExists`.
    Insert { value: u64, done: bool },
    /// `upsert(value)`; `replaced` if the key was present.
    Upsert { value: u64, replaced: bool },
    /// `update(value)`; `false` is `NotFound`.
    Update { value: u64, done: bool },
    /// `remove()`; `found` if the key was present.
    Remove { found: bool },
    /// `get`, or the result of a scan.
    Read(Option<u64>),
}

impl Action {
    /// Returns the register after the action, or `None` if the answer does not fit `state`.
    fn apply(self, state: Option<u64>) -> Option<Option<u64>> {
        let there = state.is_some();
        match self {
            Self::Insert { value, done } => {
                (done != there).then_some(if done { Some(value) } else { state })
            }
            Self::Upsert { value, replaced } => (replaced == there).then_some(Some(value)),
            Self::Update { value, done } => {
                (done == there).then_some(if done { Some(value) } else { state })
            }
            Self::Remove { found } => (found == there).then_some(None),
            Self::Read(seen) => (seen == state).then_some(state),
        }
    }

    fn changes_nothing(self) -> bool {
        matches!(
            self,
            Self::Read(_)
                | Self::Insert { done: false, .. }
                | Self::Update { done: false, .. }
                | Self::Remove { found: false }
        )
    }
}

/// An operation with the stamps taken before and after it.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Taken before the call.
    pub start: u64,
    /// Taken after it.
    pub end: u64,
    /// The call and its answer.
    pub action: Action,
}

/// Maximum number of threads of a history.
pub const MAX_THREADS: usize = 17;

type Positions = [u32; MAX_THREADS];

/// Looks for an order that explains `threads`, each in its own program order.
///
/// # Errors
/// The part of the history that no order explains.
pub fn check(initial: Option<u64>, threads: &[Vec<Event>]) -> Result<(), String> {
    assert!(
        threads.len() <= MAX_THREADS,
        "a position is kept for {MAX_THREADS} threads"
    );
    let mut seen: HashSet<(Positions, Option<u64>)> = HashSet::new();
    let mut stack = vec![([0; MAX_THREADS], initial)];
    let mut furthest = ([0; MAX_THREADS], initial);
    while let Some((mut at, state)) = stack.pop() {
        take_what_changes_nothing(threads, &mut at, state);
        if !seen.insert((at, state)) {
            continue;
        }
        let done: u32 = at.iter().sum();
        if done >= furthest.0.iter().sum() {
            furthest = (at, state);
        }
        let mut left = false;
        for (thread, event) in candidates(threads, &at) {
            left = true;
            if let Some(next) = event.action.apply(state) {
                let mut further = at;
                further[thread] += 1;
                stack.push((further, next));
            }
        }
        if !left {
            return Ok(());
        }
    }
    Err(explain(threads, furthest))
}

/// An action that fits and changes nothing may come first: every order that has it later also works
/// with it here.
fn take_what_changes_nothing(threads: &[Vec<Event>], at: &mut Positions, state: Option<u64>) {
    loop {
        let harmless = candidates(threads, at)
            .find(|(_, e)| e.action.changes_nothing() && e.action.apply(state).is_some());
        match harmless {
            Some((thread, _)) => at[thread] += 1,
            None => return,
        }
    }
}

/// Returns the pending operations that may come next: those that no other pending operation
/// precedes.
fn candidates<'a>(
    threads: &'a [Vec<Event>],
    at: &Positions,
) -> impl Iterator<Item = (usize, &'a Event)> + use<'a> {
    let at = *at;
    let pending = move || {
        threads
            .iter()
            .enumerate()
            .filter_map(move |(t, events)| events.get(at[t] as usize).map(|e| (t, e)))
    };
    let first_end = pending().map(|(_, e)| e.end).min().unwrap_or(u64::MAX);
    pending().filter(move |(_, e)| e.start <= first_end)
}

fn explain(threads: &[Vec<Event>], (at, state): (Positions, Option<u64>)) -> String {
    let mut text = format!("no order explains the history; it came as far as {state:?}, then:\n");
    for (t, events) in threads.iter().enumerate() {
        let from = (at[t] as usize).saturating_sub(3);
        for (i, e) in events.iter().enumerate().skip(from).take(7) {
            let mark = if i == at[t] as usize { "->" } else { "  " };
            text += &format!(
                "{mark} thread {t} #{i} {}..{} {:?}\n",
                e.start, e.end, e.action
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(start: u64, end: u64, action: Action) -> Event {
        Event { start, end, action }
    }

    #[test]
    fn sequential_histories() {
        let good = vec![
            event(
                1,
                2,
                Action::Insert {
                    value: 7,
                    done: true,
                },
            ),
            event(3, 4, Action::Read(Some(7))),
            event(
                5,
                6,
                Action::Update {
                    value: 8,
                    done: true,
                },
            ),
            event(7, 8, Action::Remove { found: true }),
            event(
                9,
                10,
                Action::Update {
                    value: 9,
                    done: false,
                },
            ),
            event(
                11,
                12,
                Action::Upsert {
                    value: 9,
                    replaced: false,
                },
            ),
            event(
                13,
                14,
                Action::Insert {
                    value: 5,
                    done: false,
                },
            ),
            event(15, 16, Action::Read(Some(9))),
        ];
        assert_eq!(check(None, std::slice::from_ref(&good)), Ok(()));
        check(Some(3), &[good]).expect_err("the first insert would have been refused");
    }

    #[test]
    fn overlap_may_be_ordered_either_way_and_only_so() {
        let insert = vec![event(
            1,
            10,
            Action::Insert {
                value: 7,
                done: true,
            },
        )];
        for seen in [None, Some(7)] {
            assert_eq!(
                check(
                    None,
                    &[insert.clone(), vec![event(2, 3, Action::Read(seen))]]
                ),
                Ok(())
            );
        }
        check(
            None,
            &[insert.clone(), vec![event(11, 12, Action::Read(None))]],
        )
        .expect_err("a stale read");
        let twice = vec![
            event(2, 3, Action::Read(Some(7))),
            event(4, 5, Action::Read(None)),
        ];
        check(None, &[insert, twice]).expect_err("seen, then unseen");
    }

    #[test]
    fn a_lost_update_is_found() {
        let a = vec![event(
            1,
            5,
            Action::Upsert {
                value: 1,
                replaced: false,
            },
        )];
        let b = vec![event(
            2,
            6,
            Action::Upsert {
                value: 2,
                replaced: false,
            },
        )];
        check(None, &[a, b]).expect_err("both cannot have been first");
    }

    #[test]
    fn two_removals_of_one_insert() {
        let a = vec![event(3, 8, Action::Remove { found: true })];
        let b = vec![event(4, 9, Action::Remove { found: true })];
        check(Some(1), &[a, b]).expect_err("only one of them can have found it");
    }
}
