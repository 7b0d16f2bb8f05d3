//! The replay of one image.

use super::recovery::Rerun;
use super::worker::{Crash, Worker};
use crate::violation::Point;
use bristlecone_pmem::media::sim::{Mark, Pending, Strategy};

impl Worker<'_> {
    /// Recovers exactly one image, and counts its violation if it has one.
    ///
    /// # Errors
    /// There is no such image.
    pub(super) fn replay(&mut self, point: &Point, nested: Option<&Point>) -> Result<(), String> {
        let sim = self.sim.clone();
        let _attached = sim.attach();
        let recording = self.recording;
        let mut pending = Pending::new(self.options.model, self.subject.unit());
        for (number, step) in recording.steps.iter().enumerate() {
            let to = step.end.min(point.events);
            for event in &recording.events[step.begin..to.max(step.begin)] {
                Self::advance(&sim, &mut pending, event);
            }
            let here = point.events > step.begin && point.events <= step.end;
            let ends_empty = point.completed && point.events == step.end;
            let begins = !point.completed && point.events == 0;
            if !(here || ends_empty || begins) {
                continue;
            }
            if point.completed && point.events != step.end {
                return Err(format!(
                    "no operation ends with event {}: {:?} ends with {}",
                    point.events, step.action, step.end
                ));
            }
            let crash = Crash::at(
                &recording.steps,
                number,
                point.events,
                point.completed,
                &pending,
            );
            self.tries(&crash, point.killed);
            sim.note_changes(true);
            let start = sim.mark();
            if point.killed {
                self.replay_kill(&crash, point, nested)?;
                sim.roll_back(start);
                sim.note_changes(false);
                return Ok(());
            }
            let from = sim.expose(&pending, None);
            sim.set_strategy(Strategy::Oldest);
            if !sim.impose(&point.decisions) {
                return Err(format!(
                    "other stores are pending after event {}",
                    point.events
                ));
            }
            match nested {
                Some(inner) => self.replay_nested(&crash, point, inner, start)?,
                None => self.replay_image(&crash, point, start),
            }
            sim.roll_back(start);
            sim.close(from);
            sim.note_changes(false);
            return Ok(());
        }
        Err(format!(
            "the workload has {} events, not {}",
            recording.events.len(),
            point.events
        ))
    }

    /// Recovers the image in memory, which the crash at `point` left.
    fn replay_image(&mut self, crash: &Crash<'_>, point: &Point, start: Mark) {
        let sim = self.sim.clone();
        let mut fault = self.check(&crash.expected, true).err();
        if fault.is_none() {
            sim.roll_back(start);
            sim.impose(&point.decisions);
            fault = self.rerun(crash).fault;
        }
        if let Some(fault) = fault {
            let found = self.violation(crash, fault, point.clone(), None);
            self.totals.count(found);
        }
    }

    /// Recovers the image in memory, which the crash at `point` left, crashes again at `inner`, and
    /// recovers the image of that crash.
    fn replay_nested(
        &mut self,
        crash: &Crash<'_>,
        point: &Point,
        inner: &Point,
        start: Mark,
    ) -> Result<(), String> {
        let sim = self.sim.clone();
        let rerun = self.rerun(crash);
        sim.roll_back(start);
        sim.impose(&point.decisions);
        let pending = Pending::new(self.options.model, self.subject.unit());
        self.replay_second(crash, point, inner, pending, &rerun)?;
        sim.roll_back(start);
        Ok(())
    }

    /// Recovers the image that a second crash leaves at `inner` of a run that began with `pending`,
    /// on the memory that the first crash left at `point`.
    pub(super) fn replay_second(
        &mut self,
        crash: &Crash<'_>,
        point: &Point,
        inner: &Point,
        mut pending: Pending,
        rerun: &Rerun,
    ) -> Result<(), String> {
        let sim = self.sim.clone();
        let start = sim.mark();
        let Some(before) = rerun.events().get(..inner.events) else {
            return Err(format!(
                "recovery has {} events, not {}",
                rerun.events().len(),
                inner.events
            ));
        };
        for event in before {
            Self::advance(&sim, &mut pending, event);
        }
        let expected = rerun.expected(crash.expected, inner.events, inner.completed);
        let first = point.decisions.len();
        (self.watch).nested(Some((inner.events, inner.completed, first)));
        let again = sim.expose(&pending, None);
        if !sim.impose(&inner.decisions) {
            return Err(format!(
                "other stores are pending after event {} of recovery",
                inner.events
            ));
        }
        if let Err(fault) = self.check(&expected, false) {
            let nested = Some((inner.clone(), &pending));
            let found = self.violation(crash, fault, point.clone(), nested);
            self.totals.count(found);
        }
        sim.roll_back(start);
        sim.close(again);
        Ok(())
    }
}
