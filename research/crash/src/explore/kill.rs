//! Kills of the process, and the power cut after that.
//!
//! Stores that a killed process had not flushed are in the caches. The next process sees them,
//! recovers, and goes on from there. A power cut may then take them away, as well as stores that
//! the second process has not made durable.
//!
//! So a kill leaves two things: memory in which every store counts, on which the next session runs
//! and is recorded, and what was pending, from which the power cuts of that session go on. Durable
//! memory is the same as before the kill. What the next opening showed must last from then on.

use super::recovery::{AFTER_A_KILL, Nested, Rerun, Seen};
use super::worker::{Crash, Worker};
use crate::record::sites_of;
use crate::rng::Rng;
use crate::subject::Fault;
use crate::violation::Point;
use bristlecone_pmem::media::sim::{Model, Pending, Strategy};

impl Worker<'_> {
    /// Returns true if a kill at a crash point is tried.
    pub(super) fn kills_at(&self, crash: &Crash<'_>) -> bool {
        let one_in = self.options.kills;
        if one_in == 0 || self.options.model == Model::Eadr || crash.pending.is_empty() {
            return false;
        }
        // The same points whichever worker visits them.
        let (seq, completed) = (crash.pending.newest(), crash.completed);
        let mut rng = Rng::of(crash.events as u64, seq.into(), completed.into());
        rng.below(one_in) == 0 && !self.enough()
    }

    /// Kills the process at a crash point, runs the next session on what it left, and explores
    /// the power cuts in that.
    pub(super) fn visit_kill(&mut self, crash: &Crash<'_>) {
        let sim = self.sim.clone();
        self.tries(crash, true);
        sim.note_changes(true);
        let start = sim.mark();
        let outer = Point {
            events: crash.events,
            completed: crash.completed,
            killed: true,
            decisions: Vec::new(),
        };
        self.totals.kills += 1;
        self.totals.images += 1;
        self.totals.killed_images += 1;
        match self.next_session(crash) {
            Err(fault) => {
                let violation = self.violation(crash, fault, outer, None);
                self.totals.count(violation);
            }
            Ok(rerun) => {
                for site in sites_of(rerun.recovery()) {
                    let steps = self.totals.killed_sites.entry(site).or_default();
                    steps.insert(crash.step);
                }
                sim.set_strategy(Strategy::DepthFirst);
                sim.forget_below(0);
                let mut nested = Nested {
                    crash,
                    outer,
                    pending: after_kill(crash.pending),
                    rerun: &rerun,
                    limits: &AFTER_A_KILL,
                    from: 0,
                    base: 0,
                    first: 0,
                    domains: 0,
                    // The images of the crash point itself were visited there.
                    covered: true,
                    seen: Seen::default(),
                };
                if !self.options.survey {
                    self.crash_again(&mut nested);
                }
                self.totals.killed_points += nested.seen.points;
                self.totals.killed_exhaustive_points += nested.seen.exhaustive;
                self.totals.killed_images += nested.seen.images;
            }
        }
        sim.roll_back(start);
        sim.note_changes(false);
    }

    /// Checks what the next process finds after a kill, and runs its session. Restores memory.
    fn next_session(&mut self, crash: &Crash<'_>) -> Result<Rerun, Fault> {
        let sim = self.sim.clone();
        let start = sim.mark();
        for store in crash.pending.domains().flatten() {
            sim.set_word(store.word, store.value);
        }
        let killed = sim.mark();
        sim.set_keeps_unflushed(true);
        let found = self.check(&crash.expected, false);
        sim.roll_back(killed);
        let rerun = found.and_then(|()| {
            let mut rerun = self.rerun(crash);
            match rerun.fault.take() {
                Some(fault) => Err(fault),
                None => Ok(rerun),
            }
        });
        sim.set_keeps_unflushed(false);
        sim.roll_back(start);
        rerun
    }

    /// Kills the process at a crash point and cuts the power at `inner` of the next session, which
    /// leaves one image. Counts its violation, or that of the kill, if it has one.
    ///
    /// # Errors
    /// There is no such image.
    pub(super) fn replay_kill(
        &mut self,
        crash: &Crash<'_>,
        outer: &Point,
        inner: Option<&Point>,
    ) -> Result<(), String> {
        let rerun = match self.next_session(crash) {
            Ok(rerun) => rerun,
            Err(fault) => {
                let found = self.violation(crash, fault, outer.clone(), None);
                self.totals.count(found);
                return Ok(());
            }
        };
        match inner {
            Some(inner) => {
                self.replay_second(crash, outer, inner, after_kill(crash.pending), &rerun)
            }
            None => Ok(()),
        }
    }
}

/// Returns what is pending when the process has been killed.
fn after_kill(pending: &Pending) -> Pending {
    let mut pending = pending.clone();
    pending.kill();
    pending
}
