//! An image that recovery or an oracle failed on: where the crash was, what it lost, and how to say so.

use crate::record::Action;
use crate::subject::{Fault, Op};
use bristlecone_pmem::media::sim::{Decision, Pending, PendingStore};
use std::fmt::Write as _;

/// Where in a trace a crash is, and what it kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Events that had happened.
    pub events: usize,
    /// The operation in which the last of them was had ended.
    pub completed: bool,
    /// What the crash kept of each word that was read. Words not named were not read.
    pub decisions: Vec<Decision>,
}

/// A store that a crash lost.
#[derive(Clone, Debug)]
pub struct Lost {
    /// Byte offset of the word.
    pub at: u64,
    /// What was to be there.
    pub value: u64,
    /// What stored it: file:line:column.
    pub site: String,
    /// The simulated thread that did.
    pub thread: u8,
}

/// An image that recovery or an oracle failed on.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What is wrong.
    pub fault: Fault,
    /// Number of the step (0 is the creation).
    pub step: usize,
    /// The step.
    pub action: Action,
    /// The crash.
    pub point: Point,
    /// The crash in the recovery from it.
    pub nested: Option<Point>,
    /// The call site of the last event before the crash.
    pub last_site: String,
    /// Stores that the crash lost, of words that were read.
    pub lost: Vec<Lost>,
}

/// The stores of `pending` that these decisions lost.
pub(crate) fn lost(decisions: &[Decision], pending: &Pending) -> Vec<Lost> {
    let stores: Vec<&PendingStore> = pending.domains().flatten().collect();
    let mut lost = Vec::new();
    for decision in decisions {
        let of_word = stores.iter().filter(|store| store.word == decision.word);
        lost.extend(of_word.skip(usize::from(decision.kept)).map(|store| Lost {
            at: u64::from(store.word) * 8,
            value: store.value,
            site: store.site.to_string(),
            thread: store.thread,
        }));
    }
    lost
}

/// What happened, but for how to replay it; ends with a line's end.
pub(crate) fn explanation(v: &Violation, ops: &[Op]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", v.fault);
    let action = match v.action {
        Action::Create => "the creation".to_string(),
        Action::Op(op) => format!("{op:?}"),
    };
    let when = if v.point.completed {
        "right after"
    } else {
        "during"
    };
    let _ = writeln!(
        text,
        "  crash {when} {action} (step {}), after event {} at {}",
        v.step, v.point.events, v.last_site
    );
    if let Some(nested) = &v.nested {
        let _ = writeln!(
            text,
            "  and again in the recovery from it or the operation after that, after event {}",
            nested.events
        );
    }
    let _ = writeln!(text, "  operations:");
    for (i, op) in ops.iter().enumerate() {
        let _ = writeln!(text, "    {:>3}  {op:?}", i + 1);
    }
    if v.lost.is_empty() {
        let which = if v.nested.is_some() {
            "the first crash lost no"
        } else {
            "the crash lost no"
        };
        let _ = writeln!(text, "  {which} store that recovery read");
    } else {
        let _ = writeln!(text, "  stores that the crash lost:");
    }
    for lost in &v.lost {
        let _ = writeln!(
            text,
            "    line {:#x}, word {:#x} = {:#x}, stored at {} (thread {})",
            lost.at / 64 * 64,
            lost.at,
            lost.value,
            lost.site,
            lost.thread
        );
    }
    text
}
