//! The report of an image on which code hangs.

use super::options::Options;
use crate::record::{Action, Recording};
use crate::subject::{Fault, FaultKind, Op, Subject};
use crate::token::Token;
use crate::violation::{Point, Violation, explanation, lost};
use crate::watchdog::watched;
use bristlecone_pmem::media::sim::{Decision, Pending};
use bristlecone_pmem::sync::lock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The current work of an explorer, for its watchdog.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    beats: AtomicU64,
    doing: Mutex<Option<Doing>>,
}

/// The crash point whose images are being tried.
#[derive(Clone, Debug)]
pub(crate) struct Doing {
    pub(crate) step: usize,
    pub(crate) events: usize,
    pub(crate) completed: bool,
    /// True if the process is killed there and the power is not cut.
    pub(crate) killed: bool,
    /// The decisions on the image so far.
    pub(crate) decided: Arc<Mutex<Vec<Decision>>>,
    /// A crash in the recovery from it: events, whether the operation had returned, and the number
    /// of decisions that belong to the first crash.
    pub(crate) nested: Option<(usize, bool, usize)>,
}

impl Watch {
    /// Notes that another image begins.
    pub(crate) fn beat(&self) {
        // ORDERING: Relaxed; only whether it changes matters.
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn begins(&self, doing: Doing) {
        *lock(&self.doing) = Some(doing);
    }

    /// Notes that the next images are of a crash in recovery, or of the first crash again (`None`).
    pub(crate) fn nested(&self, nested: Option<(usize, bool, usize)>) {
        if let Some(doing) = &mut *lock(&self.doing) {
            doing.nested = nested;
        }
    }

    /// Runs `work`, which explores `recording`, under a watchdog.
    pub(crate) fn over<R>(
        &self,
        subject: &dyn Subject,
        recording: &Recording,
        options: &Options,
        work: impl FnOnce() -> R,
    ) -> R {
        let describe = || {
            let doing = lock(&self.doing).clone();
            let what = doing.map_or_else(
                || "it hangs before the first crash".into(),
                |doing| describe_hang(subject, recording, options, &doing),
            );
            format!("{} under {}: {what}", subject.name(), options.model.name())
        };
        watched(options.patience, &self.beats, &describe, work)
    }
}

/// Describes the image on which code hangs.
fn describe_hang(
    subject: &dyn Subject,
    recording: &Recording,
    options: &Options,
    doing: &Doing,
) -> String {
    let decided = lock(&doing.decided).clone();
    let first = doing.nested.map_or(decided.len(), |(_, _, first)| first);
    let (outer, inner) = decided.split_at(first.min(decided.len()));
    let mut pending = Pending::new(options.model, subject.unit());
    for event in &recording.events[..doing.events] {
        pending.apply(event, &mut |_, _| {});
    }
    let point = Point {
        events: doing.events,
        completed: doing.completed,
        killed: doing.killed,
        decisions: outer.to_vec(),
    };
    let nested = doing.nested.map(|(events, completed, _)| Point {
        events,
        completed,
        killed: false,
        decisions: inner.to_vec(),
    });
    let seconds = options.patience;
    let what = format!("no end after {seconds} s, nor any access to persistent memory that counts");
    let action = |step: usize| recording.steps[step].action;
    let violation = Violation {
        fault: Fault::new(FaultKind::Progress, what),
        step: doing.step,
        action: action(doing.step),
        lost: lost(outer, &pending),
        last_site: match doing.events {
            0 => String::new(),
            n => recording.events[n - 1].site.to_string(),
        },
        point: point.clone(),
        nested: nested.clone(),
    };
    let ops: Vec<Op> = (recording.steps.iter())
        .filter_map(|step| match step.action {
            Action::Create => None,
            Action::Op(op) => Some(op),
        })
        .collect();
    let mut text = explanation(&violation, &ops);
    if let Some(workload) = &options.workload {
        let token = Token {
            subject: subject.name(),
            model: options.model,
            workload: workload.clone(),
            mutation: options.mutation.clone(),
            point,
            nested,
        };
        text += &format!("  replay: bristlecone-lab crash --replay '{token}'");
    }
    text
}
