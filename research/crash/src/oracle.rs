//! Oracles: the checks of a recovered image.

use crate::record::{apply, reopen};
use crate::subject::{Fault, FaultKind, Live, Op, Subject};
use bristlecone_pmem::media::sim::Simulation;
use std::collections::BTreeMap;

/// Accesses after which a recovery counts as hanging.
pub const RECOVERY_STEPS: u64 = 4_000_000;
/// Accesses after which an operation after recovery counts as hanging.
pub(crate) const OPERATION_STEPS: u64 = 400_000;

/// The contents that are right after a crash.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// Content before the operation in flight, ascending by key.
    pub before: &'a [(u64, u64)],
    /// Content after it; the same slice if none is in flight.
    pub after: &'a [(u64, u64)],
    /// True if the structure was being created, and may be absent.
    pub creating: bool,
}

impl Expected<'_> {
    /// Checks that every key has its value from before or from after the operation in flight.
    ///
    /// # Errors
    /// The first key whose value is lost, torn or a phantom.
    pub fn check(&self, observed: &[(u64, u64)]) -> Result<(), Fault> {
        if let Some(pair) = observed.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return Err(Fault::new(
                FaultKind::Structure,
                format!("key {} is followed by key {}", pair[0].0, pair[1].0),
            ));
        }
        if observed == self.before || observed == self.after {
            return Ok(());
        }
        let get = |entries: &[(u64, u64)], key| {
            let at = entries.binary_search_by_key(&key, |entry| entry.0);
            at.ok().map(|i| entries[i].1)
        };
        let keys = [self.before, self.after, observed];
        for (key, _) in keys.into_iter().flatten() {
            let (before, after) = (get(self.before, *key), get(self.after, *key));
            let found = get(observed, *key);
            if found == before || found == after {
                continue;
            }
            let kind = match (before == after, before, found) {
                (false, ..) => FaultKind::Torn,
                (true, Some(_), _) => FaultKind::Lost,
                (true, None, _) => FaultKind::Phantom,
            };
            let what = if before == after {
                format!("key {key}: {found:?} instead of {before:?}")
            } else {
                format!("key {key}: {found:?} instead of {before:?} or {after:?}")
            };
            return Err(Fault::new(kind, what));
        }
        Ok(())
    }
}

/// Reads all entries of `live` into `into`.
///
/// # Errors
/// The first entry that the subject cannot read.
pub fn observe(live: &dyn Live, into: &mut Vec<(u64, u64)>) -> Result<(), Fault> {
    into.clear();
    live.observe(&mut |key, value| into.push((key, value)))
}

/// Drops a structure as a power cut does: it writes nothing.
pub(crate) fn power_off(sim: &Simulation, live: Box<dyn Live>) {
    sim.set_frozen(true);
    drop(live);
    sim.set_frozen(false);
}

/// Checks that every kind of operation on every key range completes within its steps after
/// recovery, gives the right reply and leaves the structure whole, and that a clean close does too.
/// Consumes the structure.
///
/// # Errors
/// [`FaultKind::Progress`] with the operation that failed.
pub fn check_progress(
    subject: &dyn Subject,
    sim: &Simulation,
    live: Box<dyn Live>,
    content: &[(u64, u64)],
) -> Result<(), Fault> {
    let mut map: BTreeMap<u64, u64> = content.iter().copied().collect();
    let most = subject.max_key();
    let mut ops = Vec::new();
    let fresh = |key: u64| (key <= most && !content.iter().any(|c| c.0 == key)).then_some(key);
    let starts = content.iter().map(|entry| entry.0).step_by(3);
    for key in starts.chain([0, most / 2, most]) {
        if let Some(new) = fresh(key.saturating_add(1)).or_else(|| fresh(key)) {
            ops.extend([Op::Insert(new, 3), Op::Get(new), Op::Update(new, 4)]);
            ops.extend([Op::Insert(new, 5), Op::Remove(new), Op::Remove(new)]);
        }
        ops.extend([Op::Upsert(key, 6), Op::Get(key), Op::Update(key, 7)]);
    }
    for (key, _) in content.iter().rev() {
        ops.push(Op::Remove(*key));
    }
    ops.extend([Op::Upsert(1.min(most), 8), Op::Reopen, Op::Get(1.min(most))]);
    let mut live = live;
    for op in ops.iter().filter(|op| subject.can(op)) {
        sim.set_limit(OPERATION_STEPS);
        live = apply(subject, live, &mut map, op)
            .map_err(|e| Fault::new(FaultKind::Progress, format!("{op:?} after recovery: {e}")))?;
    }
    sim.set_limit(RECOVERY_STEPS);
    let mut observed = Vec::new();
    let right = observe(&*live, &mut observed).and_then(|()| {
        if !observed.iter().copied().eq(map) {
            return Err(Fault::new(
                FaultKind::Progress,
                format!("operations after recovery left {observed:?}"),
            ));
        }
        live.verify()
            .map_err(|e| Fault::new(FaultKind::Progress, format!("after operations: {e}")))
    });
    power_off(sim, live);
    right
}

/// Checks that a second recovery, after a crash that lost nothing, gives the same. Returns the
/// structure that it opened.
///
/// # Errors
/// [`FaultKind::NotIdempotent`].
pub fn check_idempotence(
    subject: &dyn Subject,
    sim: &Simulation,
    live: Box<dyn Live>,
    content: &[(u64, u64)],
) -> Result<Box<dyn Live>, Fault> {
    power_off(sim, live);
    sim.set_limit(RECOVERY_STEPS);
    let differs = |what: String| Fault::new(FaultKind::NotIdempotent, what);
    let live = reopen(subject).map_err(|e| differs(format!("the second time: {e}")))?;
    let mut observed = Vec::with_capacity(content.len());
    let right = observe(&*live, &mut observed).and_then(|()| {
        if observed != content {
            return Err(differs(format!("{observed:?} after {content:?}")));
        }
        live.verify()
            .map_err(|e| differs(format!("the second time: {e}")))
    });
    match right {
        Ok(()) => Ok(live),
        Err(fault) => {
            power_off(sim, live);
            Err(fault)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_difference_is_named() {
        let before = [(1, 10), (2, 20)];
        let after = [(1, 10), (2, 21), (3, 30)];
        let expected = Expected {
            before: &before,
            after: &after,
            creating: false,
        };
        let kind = |observed: &[(u64, u64)]| expected.check(observed).map_err(|e| e.kind);
        assert_eq!(kind(&before), Ok(()));
        assert_eq!(kind(&after), Ok(()));
        assert_eq!(
            kind(&[(1, 10), (2, 20), (3, 30)]),
            Ok(()),
            "part of a batch"
        );
        assert_eq!(kind(&[(2, 20)]), Err(FaultKind::Lost));
        assert_eq!(kind(&[(1, 11), (2, 20)]), Err(FaultKind::Lost));
        assert_eq!(kind(&[(1, 10), (2, 5)]), Err(FaultKind::Torn));
        assert_eq!(kind(&[(1, 10), (2, 20), (7, 1)]), Err(FaultKind::Phantom));
        assert_eq!(kind(&[(2, 20), (1, 10)]), Err(FaultKind::Structure));
    }
}
