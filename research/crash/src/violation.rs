//! An image that recovery or an oracle failed on: the crash, the stores that it lost, and a report.

use crate::record::Action;
use crate::subject::{Fault, Op};
use bristlecone_pmem::media::sim::{Decision, Pending, PendingStore};
use std::fmt::Write as _;

/// A crash: its place in a trace, and the stores that it kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Events before the crash.
    pub events: usize,
    /// True if the operation of the last event had returned.
    pub completed: bool,
    /// True if the process was killed there and the power stayed on, so that the next one saw all
    /// of its stores. There are no decisions then: the second crash, a power cut, takes them.
    pub killed: bool,
    /// The stores that the crash kept, for each word that recovery read. Recovery read no other
    /// word.
    pub decisions: Vec<Decision>,
}

/// A store that a crash lost.
#[derive(Clone, Debug)]
pub struct Lost {
    /// Byte offset of the stored word.
    pub at: u64,
    /// The stored value.
    pub value: u64,
    /// Place of the store in the source: file:line:column.
    pub site: String,
    /// The simulated thread that stored.
    pub thread: u8,
}

/// An image that recovery or an oracle failed on.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The fault.
    pub fault: Fault,
    /// Number of the step in which the crash was (0 is the creation).
    pub step: usize,
    /// The action of that step.
    pub action: Action,
    /// The crash.
    pub point: Point,
    /// The second crash, in the recovery from the first or after it.
    pub nested: Option<Point>,
    /// The call site of the last event before the crash.
    pub last_site: String,
    /// Lost stores to words that recovery read.
    pub lost: Vec<Lost>,
}

/// Returns the stores of `pending` that the decisions lost.
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

/// Returns the report of a violation, without its replay token. The text ends with a newline.
pub(crate) fn explanation(v: &Violation, ops: &[Op]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", v.fault);
    let action = match v.action {
        Action::Create => "the creation".to_string(),
        Action::Op(op) => format!("{op:?}"),
    };
    let killed = v.point.killed;
    let what = if killed { "kill" } else { "crash" };
    let when = if v.point.completed {
        "right after"
    } else {
        "during"
    };
    let _ = writeln!(
        text,
        "  {what} {when} {action} (step {}), after event {} at {}",
        v.step, v.point.events, v.last_site
    );
    if let Some(nested) = &v.nested {
        let _ = writeln!(
            text,
            "  and {} in the recovery from it or the operation after that, after event {}",
            if killed { "a power cut" } else { "again" },
            nested.events
        );
    }
    let _ = writeln!(text, "  operations:");
    for (i, op) in ops.iter().enumerate() {
        let _ = writeln!(text, "    {:>3}  {op:?}", i + 1);
    }
    if v.lost.is_empty() {
        let which = match (killed, v.nested.is_some()) {
            (true, true) => "the power cut lost no",
            (true, false) => "a kill loses no",
            (false, true) => "the first crash lost no",
            (false, false) => "the crash lost no",
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
