//! The records that must be in the pool after a kill, compared with those that are.

use super::Victim;
use super::plan::{self, Ack, Action, KEYS_PER_THREAD, KeyId, Plan, Step};
use crate::failure::Outcome;
use crate::records::Range;
use crate::text::quoted;
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

/// The version that a key has; `None` while it is not there.
type State = Option<u64>;

/// Every key's state, as acknowledged; carried from round to round.
pub struct Model {
    threads: u16,
    states: Vec<State>,
    /// The newest version that each key was ever acknowledged to have.
    newest: Vec<State>,
    ids: HashMap<Vec<u8>, KeyId>,
}

/// The findings of a round.
#[derive(Debug, Default)]
pub struct Findings {
    /// Operations acknowledged.
    pub acknowledged: u64,
    /// Acknowledged operations whose effect is not there.
    pub lost: u64,
    /// Things there that no operation can have left.
    pub phantom: u64,
    /// The first few of both, in words.
    pub details: Vec<String>,
}

impl Findings {
    fn note(&mut self, text: String) {
        const MOST: usize = 20;
        if self.details.len() < MOST {
            self.details.push(text);
        }
    }

    /// Counts something that is not there and has to be.
    pub fn lost(&mut self, text: String) {
        self.lost += 1;
        self.note(format!("lost: {text}"));
    }

    /// Counts something that is there and cannot be.
    pub fn phantom(&mut self, text: String) {
        self.phantom += 1;
        self.note(format!("phantom: {text}"));
    }
}

fn shown(state: State) -> String {
    match state {
        None => "absent".to_owned(),
        Some(v) => format!("version {}.{}", v >> 32, v & 0xFFFF_FFFF),
    }
}

impl Model {
    /// An empty pool, for writers of `threads` threads, whose keys have up to `longest` bytes.
    pub fn new(threads: u16, longest: usize) -> Self {
        let keys = KEYS_PER_THREAD * KeyId::from(threads);
        Self {
            threads,
            states: vec![None; keys as usize],
            newest: vec![None; keys as usize],
            ids: (0..keys).map(|id| (plan::key(id, longest), id)).collect(),
        }
    }

    /// Applies what was acknowledged in a round, and answers, for each key that a call may have
    /// been changing when the writer died, the other state that it may be in.
    pub fn replay(
        &mut self,
        acks: &[Ack],
        seed: u64,
        round: u32,
        findings: &mut Findings,
    ) -> Result<HashMap<KeyId, State>, String> {
        let mut plans: Vec<_> = (0..self.threads)
            .map(|t| Plan::new(seed, round, t, self.threads))
            .collect();
        for ack in acks {
            let plan = plans
                .get_mut(usize::from(ack.thread))
                .ok_or_else(|| format!("an acknowledgement of thread {}", ack.thread))?;
            let step = plan.next().ok_or("a plan ran out")?;
            if (step.sequence, step.version) != (ack.sequence, ack.version) {
                return Err(format!("{ack:?} where {step:?} was due"));
            }
            self.apply(&step, ack.outcome, findings);
            findings.acknowledged += 1;
        }
        let mut open = HashMap::new();
        for step in plans.iter_mut().filter_map(Iterator::next) {
            self.each(&step, |id, _, after| {
                open.insert(id, after);
            });
        }
        Ok(open)
    }

    /// Calls `f` with each key of a step, its bit in the outcome, and its state afterwards.
    fn each(&self, step: &Step, mut f: impl FnMut(KeyId, u8, State)) {
        let new = Some(step.version);
        let before = |id: KeyId| self.states[id as usize];
        match &step.action {
            Action::Upsert(id) => f(*id, 1, new),
            Action::Update(id) => f(*id, 1, before(*id).and(new)),
            Action::Remove(id) => f(*id, 1, None),
            Action::Insert(keys) => {
                for (i, id) in keys.iter().enumerate() {
                    f(*id, 1 << i, before(*id).or(new));
                }
            }
        }
    }

    /// Applies an acknowledged step and compares what it reported about the keys that it met.
    fn apply(&mut self, step: &Step, outcome: u8, findings: &mut Findings) {
        let mut changes = Vec::new();
        self.each(step, |id, bit, after| changes.push((id, bit, after)));
        let inserts = matches!(step.action, Action::Insert(_));
        for (id, bit, after) in changes {
            let before = self.states[id as usize];
            // A batch reports the keys that were not there, the other calls those that were.
            let said = (outcome & bit != 0) != inserts;
            if before.is_some() && !said {
                findings.lost(format!(
                    "{:?} met no key {id}, which was {}",
                    step,
                    shown(before)
                ));
            } else if before.is_none() && said {
                findings.phantom(format!("{step:?} met a key {id}, which was absent"));
            }
            self.states[id as usize] = after;
            self.newest[id as usize] = self.newest[id as usize].max(after);
        }
    }

    /// Compares the pool with the model, and takes over what the open calls left.
    pub fn compare(
        &mut self,
        victim: &dyn Victim,
        open: &HashMap<KeyId, State>,
        findings: &mut Findings,
    ) -> Outcome {
        let mut found = BTreeMap::new();
        let mut last: Option<Vec<u8>> = None;
        victim.scan(&Range::ALL, false, &mut |key, shown| {
            let value = shown.value.unwrap_or_default();
            if last.as_deref().is_some_and(|l| l >= key) {
                findings.phantom(format!(
                    "{} comes twice or out of order in a scan",
                    quoted(key)
                ));
            }
            last = Some(key.to_vec());
            match self.ids.get(key) {
                Some(&id) => {
                    let version = plan::version_of(value).filter(|v| plan::value(id, *v) == value);
                    if version.is_none() {
                        findings.phantom(format!(
                            "key {id} has a value that was never written: {}",
                            quoted(value)
                        ));
                    }
                    found.insert(id, (version, value.to_vec()));
                }
                None => findings.phantom(format!("{} was never a key", quoted(key))),
            }
            ControlFlow::Continue(())
        })?;
        let mut backwards = 0;
        victim.scan(&Range::ALL, true, &mut |_, _| {
            backwards += 1;
            ControlFlow::Continue(())
        })?;
        if backwards != found.len() {
            findings.phantom(format!(
                "{} keys upwards, {backwards} downwards",
                found.len()
            ));
        }
        for id in 0..self.states.len() as KeyId {
            let got = victim.get(&plan::key(id, victim.longest_key()))?;
            let scanned = found.get(&id);
            if got.as_ref() != scanned.map(|(_, value)| value) {
                findings.phantom(format!("key {id}: a look-up and a scan disagree"));
            }
            let is = match scanned {
                None => None,
                Some((Some(version), _)) => Some(*version),
                Some((None, _)) => continue, // counted above
            };
            let expected = self.states[id as usize];
            if is != expected && open.get(&id) != Some(&is) {
                let text = format!(
                    "key {id} is {}, acknowledged {}",
                    shown(is),
                    shown(expected)
                );
                // Nothing, or a version of old: what came later, be it a removal, is gone.
                if is <= self.newest[id as usize] {
                    findings.lost(text);
                } else {
                    findings.phantom(text);
                }
            }
            self.states[id as usize] = is;
            self.newest[id as usize] = self.newest[id as usize].max(is);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acks(seed: u64, n: usize, there: impl Fn(&mut HashMap<KeyId, ()>, &Step) -> u8) -> Vec<Ack> {
        let mut keys = HashMap::new();
        Plan::new(seed, 1, 0, 1)
            .take(n)
            .map(|s| Ack {
                thread: 0,
                sequence: s.sequence,
                version: s.version,
                outcome: there(&mut keys, &s),
            })
            .collect()
    }

    fn truthful(keys: &mut HashMap<KeyId, ()>, step: &Step) -> u8 {
        match &step.action {
            Action::Upsert(k) => keys.insert(*k, ()).is_some().into(),
            Action::Update(k) => keys.contains_key(k).into(),
            Action::Remove(k) => keys.remove(k).is_some().into(),
            Action::Insert(ks) => ks
                .iter()
                .enumerate()
                .map(|(i, k)| u8::from(keys.insert(*k, ()).is_none()) << i)
                .sum(),
        }
    }

    #[test]
    fn a_truthful_history_has_no_findings() {
        let mut model = Model::new(1, 64 << 10);
        let mut findings = Findings::default();
        let open = model
            .replay(&acks(5, 3_000, truthful), 5, 1, &mut findings)
            .unwrap();
        assert_eq!(
            (findings.acknowledged, findings.lost, findings.phantom),
            (3_000, 0, 0)
        );
        assert!(!open.is_empty() && open.len() <= plan::BATCH);
    }

    #[test]
    fn a_lie_is_found() {
        for lie in [0x00, 0xFF] {
            let mut model = Model::new(1, 64 << 10);
            let mut findings = Findings::default();
            model
                .replay(&acks(5, 3_000, |_, _| lie), 5, 1, &mut findings)
                .unwrap();
            assert!(findings.lost > 0 && findings.phantom > 0, "{findings:?}");
        }
    }

    #[test]
    fn a_gap_in_the_acknowledgements_is_an_error() {
        let mut model = Model::new(1, 64 << 10);
        let mut list = acks(5, 10, truthful);
        list.remove(4);
        assert!(model.replay(&list, 5, 1, &mut Findings::default()).is_err());
    }
}
