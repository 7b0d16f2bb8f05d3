//! Durable linearizability of a history of calls on a map.
//!
//! A history up to a crash is durably linearizable if an order of its calls respects real time,
//! contains every completed call and any of the pending ones, explains every reply, and ends in the
//! content that recovery found. Linearizability is *local*, and so is its durable form, since one
//! crash cuts the parts of all objects: a history has such an order iff its part for each object
//! has one. A map is one object per key, since no call here concerns two keys. So keys are checked
//! one by one, which keeps the search small.
//!
//! The possible contents of a key after a crash do not depend on the image. They are computed once
//! for a crash point ([`Outcomes`]) and looked up for every image.

use crate::subject::{Op, Reply};
use std::collections::{BTreeMap, BTreeSet};

/// A call of an operation, and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The simulated thread that called.
    pub thread: u8,
    /// The operation.
    pub op: Op,
    /// Time of the call, by a clock that ticks at every call and return.
    pub called: u32,
    /// Time of the return, and the reply; `None` if it never returned.
    pub returned: Option<(u32, Reply)>,
    /// Events of the trace before the call.
    pub from: usize,
    /// Events of the trace before the return; `usize::MAX` if it never returned.
    pub to: usize,
}

impl Call {
    /// Returns true if the call had returned after `point` events.
    #[must_use]
    pub fn completed_at(&self, point: usize) -> bool {
        self.returned.is_some() && self.to <= point
    }

    /// Returns the call as it stood after `point` events.
    #[must_use]
    pub fn at(mut self, point: usize) -> Self {
        if !self.completed_at(point) {
            self.returned = None;
        }
        self
    }

    /// Returns true if the call was running at event number `event`.
    #[must_use]
    pub fn was_running_at(&self, event: usize) -> bool {
        self.from <= event && event < self.to
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "thread {}: {:?}", self.thread, self.op)?;
        match self.returned {
            Some((_, Reply::Done)) => f.write_str(" -> done"),
            Some((_, Reply::Refused)) => f.write_str(" -> refused"),
            Some((_, Reply::Found(Some(value)))) => write!(f, " -> found {value}"),
            Some((_, Reply::Found(None))) => f.write_str(" -> found nothing"),
            None => f.write_str(" (did not return)"),
        }
    }
}

impl Call {
    /// Returns true if the call may change the map.
    #[must_use]
    pub fn writes(&self) -> bool {
        !matches!(self.op, Op::Get(_))
    }

    /// Returns true if the call had returned by `point` and changed nothing: its reply only tells
    /// what it saw.
    #[must_use]
    pub fn observed_by(&self, point: usize) -> bool {
        let changed = matches!(self.returned, Some((_, Reply::Done)));
        self.completed_at(point) && !(changed && self.writes())
    }
}

/// A call that saw a change which a crash then undid. Both calls are named by their index in the
/// history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// A call that had returned without changing anything.
    pub observer: usize,
    /// A call on the same key that had not returned.
    pub writer: usize,
}

/// Returns the sighting that explains a mismatch. There is one if the content that was found would
/// be right without the completed calls that only observed. Then no completed change is lost, but a
/// change was visible before it was durable.
#[must_use]
pub fn sighting(
    history: &[Call],
    start: &BTreeMap<u64, u64>,
    point: usize,
    mismatch: &Mismatch,
) -> Option<Sighting> {
    let of_key = |call: &Call| call.from <= point && key_of(&call.op) == Some(mismatch.key);
    let allowed = |keep: &dyn Fn(usize, &Call) -> bool| {
        let calls: Vec<Call> = (history.iter().enumerate())
            .filter(|(i, call)| of_key(call) && keep(*i, call))
            .map(|(_, call)| call.at(point))
            .collect();
        let start = start.get(&mismatch.key).copied();
        contents_after(&calls, start).contains(&mismatch.found)
    };
    if !allowed(&|_, call| !call.observed_by(point)) {
        return None;
    }
    let mut observers = (history.iter().enumerate())
        .filter(|(_, call)| of_key(call) && call.observed_by(point))
        .map(|(i, _)| i);
    // Picks the first one that contradicts the content even without the other observers.
    let observer = observers
        .find(|&only| !allowed(&|i, call: &Call| i == only || !call.observed_by(point)))?;
    let writer = history.iter().position(|call| {
        of_key(call)
            && call.writes()
            && !call.completed_at(point)
            && call.thread != history[observer].thread
    })?;
    Some(Sighting { observer, writer })
}

/// Returns the key that an operation concerns; `None` if it does not concern exactly one.
#[must_use]
pub fn key_of(op: &Op) -> Option<u64> {
    match *op {
        Op::Insert(key, _)
        | Op::Upsert(key, _)
        | Op::Update(key, _)
        | Op::Remove(key)
        | Op::Get(key) => Some(key),
        Op::Batch { .. } | Op::Reopen | Op::Compact => None,
    }
}

/// Returns the reply of an operation on a key with this content, and the content afterwards.
fn effect(op: &Op, content: Option<u64>) -> (Reply, Option<u64>) {
    let there = content.is_some();
    match *op {
        Op::Insert(..) if there => (Reply::Refused, content),
        Op::Update(..) | Op::Remove(_) if !there => (Reply::Refused, content),
        Op::Insert(_, value) | Op::Upsert(_, value) | Op::Update(_, value) => {
            (Reply::Done, Some(value))
        }
        Op::Remove(_) => (Reply::Done, None),
        Op::Get(_) => (Reply::Found(content), content),
        Op::Batch { .. } | Op::Reopen | Op::Compact => (Reply::Done, content),
    }
}

/// Returns the possible contents of a key at the end of a history: none if no order explains the
/// replies.
///
/// `calls` concern one key. A call without a return is pending.
///
/// # Panics
/// If there are more than 64 calls.
#[must_use]
pub fn contents_after(calls: &[Call], start: Option<u64>) -> BTreeSet<Option<u64>> {
    assert!(calls.len() <= 64, "{} calls on one key", calls.len());
    let completed = (0..calls.len())
        .filter(|&i| calls[i].returned.is_some())
        .fold(0, |set, i| set | 1 << i);
    let mut search = Search {
        calls,
        completed,
        seen: BTreeSet::new(),
        ends: BTreeSet::new(),
    };
    search.extend(0, start);
    search.ends
}

struct Search<'a> {
    calls: &'a [Call],
    completed: u64,
    /// Sets of ordered calls, with the content they led to.
    seen: BTreeSet<(u64, Option<u64>)>,
    ends: BTreeSet<Option<u64>>,
}

impl Search<'_> {
    /// Extends an order of the calls `done` that led to `content`.
    fn extend(&mut self, done: u64, content: Option<u64>) {
        if !self.seen.insert((done, content)) {
            return;
        }
        if self.completed & !done == 0 {
            self.ends.insert(content);
        }
        // A call must not come before one that had returned when it was called.
        let first_return = (self.calls.iter().enumerate())
            .filter(|(i, _)| done & 1 << i == 0)
            .filter_map(|(_, call)| call.returned.map(|(at, _)| at))
            .min()
            .unwrap_or(u32::MAX);
        for (i, call) in self.calls.iter().enumerate() {
            if done & 1 << i != 0 || call.called > first_return {
                continue;
            }
            let (reply, after) = effect(&call.op, content);
            if call.returned.is_none_or(|(_, given)| given == reply) {
                self.extend(done | 1 << i, after);
            }
        }
    }
}

/// The contents of every key that a crash at one point may leave.
#[derive(Clone, Debug)]
pub struct Outcomes<'a> {
    start: &'a BTreeMap<u64, u64>,
    called: BTreeMap<u64, BTreeSet<Option<u64>>>,
}

/// A key whose content no order of the calls explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The key.
    pub key: u64,
    /// The content that recovery found.
    pub found: Option<u64>,
    /// The contents that would have been right.
    pub allowed: Vec<Option<u64>>,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = |content: &Option<u64>| match content {
            Some(value) => format!("value {value}"),
            None => "nothing".to_owned(),
        };
        write!(f, "key {}: found {}", self.key, word(&self.found))?;
        if self.allowed.is_empty() {
            return f.write_str(", and no order of the calls explains the replies");
        }
        let allowed: Vec<String> = self.allowed.iter().map(word).collect();
        write!(f, ", allowed {}", allowed.join(" or "))
    }
}

impl<'a> Outcomes<'a> {
    /// Computes what a crash after `point` events of the trace may leave. `start` is the content of
    /// the map before the first call.
    #[must_use]
    pub fn of(history: &[Call], start: &'a BTreeMap<u64, u64>, point: usize) -> Self {
        let mut by_key: BTreeMap<u64, Vec<Call>> = BTreeMap::new();
        for call in history.iter().filter(|call| call.from <= point) {
            if let Some(key) = key_of(&call.op) {
                by_key.entry(key).or_default().push(call.at(point));
            }
        }
        let called = by_key
            .into_iter()
            .map(|(key, calls)| (key, contents_after(&calls, start.get(&key).copied())))
            .collect();
        Self { start, called }
    }

    /// Returns a key whose replies no order of the calls explains, whatever its content.
    #[must_use]
    pub fn unexplained(&self) -> Option<Mismatch> {
        let (key, _) = self.called.iter().find(|(_, allowed)| allowed.is_empty())?;
        Some(Mismatch {
            key: *key,
            found: self.start.get(key).copied(),
            allowed: Vec::new(),
        })
    }

    /// Checks a whole map, ascending by key.
    ///
    /// # Errors
    /// The first key whose content is not allowed.
    pub fn check(&self, found: &[(u64, u64)]) -> Result<(), Mismatch> {
        let get = |key: u64| {
            let at = found.binary_search_by_key(&key, |(key, _)| *key).ok()?;
            Some(found[at].1)
        };
        let keys = (found.iter().map(|(key, _)| key))
            .chain(self.start.keys())
            .chain(self.called.keys());
        for &key in keys {
            let content = get(key);
            let allowed = match self.called.get(&key) {
                Some(allowed) if allowed.contains(&content) => continue,
                Some(allowed) => allowed.iter().copied().collect(),
                None if self.start.get(&key).copied() == content => continue,
                None => vec![self.start.get(&key).copied()],
            };
            return Err(Mismatch {
                key,
                found: content,
                allowed,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a call from tick `called` to tick `returned` (0: pending).
    fn call(op: Op, called: u32, returned: u32, reply: Reply) -> Call {
        Call {
            thread: 1,
            op,
            called,
            returned: (returned > 0).then_some((returned, reply)),
            from: called as usize,
            to: if returned > 0 {
                returned as usize
            } else {
                usize::MAX
            },
        }
    }

    fn after(calls: &[Call], start: Option<u64>) -> Vec<Option<u64>> {
        contents_after(calls, start).into_iter().collect()
    }

    const ANY: Reply = Reply::Done;

    #[test]
    fn calls_one_after_the_other_have_one_order() {
        let calls = [
            call(Op::Insert(1, 10), 1, 2, Reply::Done),
            call(Op::Update(1, 11), 3, 4, Reply::Done),
            call(Op::Get(1), 5, 6, Reply::Found(Some(11))),
            call(Op::Insert(1, 12), 7, 8, Reply::Refused),
        ];
        assert_eq!(after(&calls, None), [Some(11)]);
        assert_eq!(
            after(&calls, Some(5)),
            [],
            "the first insert was not refused"
        );
        let stale = [
            call(Op::Upsert(1, 10), 1, 2, Reply::Done),
            call(Op::Get(1), 3, 4, Reply::Found(None)),
        ];
        assert_eq!(after(&stale, None), [], "a completed upsert is not seen");
    }

    #[test]
    fn calls_at_once_may_be_ordered_either_way() {
        let calls = [
            call(Op::Upsert(1, 10), 1, 4, Reply::Done),
            call(Op::Upsert(1, 20), 2, 3, Reply::Done),
        ];
        assert_eq!(after(&calls, None), [Some(10), Some(20)]);
        let mut seen = calls.to_vec();
        seen.push(call(Op::Get(1), 5, 6, Reply::Found(Some(20))));
        assert_eq!(after(&seen, None), [Some(20)]);
        let both = [
            call(Op::Insert(1, 10), 1, 4, Reply::Done),
            call(Op::Insert(1, 20), 2, 3, Reply::Done),
        ];
        assert_eq!(after(&both, None), [], "one of two inserts must be refused");
    }

    #[test]
    fn pending_calls_count_or_not_unless_someone_saw_them() {
        let pending = call(Op::Insert(1, 10), 1, 0, ANY);
        assert_eq!(after(&[pending], None), [None, Some(10)]);
        let seen = [pending, call(Op::Get(1), 2, 3, Reply::Found(Some(10)))];
        assert_eq!(after(&seen, None), [Some(10)], "a completed call saw it");
        let refused = [pending, call(Op::Insert(1, 20), 2, 3, Reply::Refused)];
        assert_eq!(after(&refused, None), [Some(10)]);
        let removed = [pending, call(Op::Remove(1), 2, 3, Reply::Done)];
        assert_eq!(after(&removed, None), [None]);
        let late = [
            call(Op::Get(1), 1, 2, Reply::Found(Some(10))),
            call(Op::Insert(1, 10), 3, 0, ANY),
        ];
        assert_eq!(after(&late, None), [], "seen before it was called");
    }

    #[test]
    fn a_sighting_is_told_from_a_loss() {
        let start = BTreeMap::new();
        let by = |thread, call: Call| Call { thread, ..call };
        let history = [
            by(1, call(Op::Insert(1, 10), 1, 9, Reply::Done)),
            by(2, call(Op::Get(1), 2, 3, Reply::Found(None))),
            by(2, call(Op::Insert(1, 20), 4, 5, Reply::Refused)),
        ];
        let at = |point, found| {
            let lost = Mismatch {
                key: 1,
                found,
                allowed: Vec::new(),
            };
            sighting(&history, &start, point, &lost)
        };
        let (observer, writer) = (2, 0);
        assert_eq!(at(6, None), Some(Sighting { observer, writer }));
        assert_eq!(at(9, None), None, "the insert had completed: it is lost");
        assert_eq!(at(6, Some(7)), None, "no one put that there");
    }

    #[test]
    fn a_crash_point_decides_what_is_pending() {
        let start = BTreeMap::from([(1, 5), (2, 6)]);
        let history = [
            call(Op::Update(1, 10), 1, 4, Reply::Done),
            call(Op::Remove(2), 2, 8, Reply::Done),
            call(Op::Insert(3, 30), 9, 12, Reply::Done),
        ];
        let check =
            |point, found: &[(u64, u64)]| Outcomes::of(&history, &start, point).check(found);
        assert_eq!(check(0, &[(1, 5), (2, 6)]), Ok(()));
        assert_eq!(check(3, &[(1, 10), (2, 6)]), Ok(()));
        assert_eq!(check(3, &[(1, 5)]), Ok(()));
        let lost = check(4, &[(1, 5), (2, 6)]).expect_err("the update had completed");
        assert_eq!((lost.key, lost.found), (1, Some(5)));
        assert_eq!(lost.allowed, [Some(10)]);
        let back = check(8, &[(1, 10), (2, 6)]).expect_err("the removal had completed");
        assert_eq!((back.key, back.allowed), (2, vec![None]));
        let early = check(5, &[(1, 10), (3, 30)]).expect_err("not called yet");
        assert_eq!((early.key, early.allowed), (3, vec![None]));
        let phantom = check(12, &[(1, 10), (3, 30), (4, 1)]).expect_err("no one put it there");
        assert_eq!(phantom.key, 4);
        let gone = Outcomes::of(&[], &start, 0).check(&[(2, 6)]);
        assert_eq!(gone.expect_err("key 1 was there").key, 1);
        assert!(Outcomes::of(&history, &start, 12).unexplained().is_none());
        let wrong = [call(Op::Get(1), 1, 2, Reply::Found(Some(9)))];
        let wrong = Outcomes::of(&wrong, &start, 2).unexplained();
        assert_eq!(wrong.expect("9 was never there").key, 1);
    }
}
