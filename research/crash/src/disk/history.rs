//! What a run began and what was acknowledged to it, by the disk's events.

use bristlecone_pmem::media::journal::fault::FaultDisk;
use bristlecone_pmem::sync::lock;
use std::sync::Mutex;

/// A step of one thread of a run.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its number, from 1 on. After a kill a number may come again.
    pub number: u64,
    /// Events of the disk before it began.
    pub began: u64,
    /// Events of the disk when it was acknowledged as durable.
    pub acknowledged: Option<u64>,
}

/// The steps of a run, which its threads note.
#[derive(Debug, Default)]
pub struct History {
    threads: Mutex<Vec<Vec<Step>>>,
    /// Events of the disk when what is explored was made.
    made: Mutex<Option<u64>>,
    /// What has been found, wholly and durable, and the events of the disk then.
    exactly: Mutex<Option<(u64, Vec<u64>)>>,
}

impl History {
    /// Returns the history of a run of so many threads.
    #[must_use]
    pub fn of(threads: usize) -> Self {
        let history = Self::default();
        history.has(threads);
        history
    }

    /// Sets the number of threads.
    pub fn has(&self, threads: usize) {
        lock(&self.threads).resize(threads, Vec::new());
    }

    /// Notes that everything is there to work with.
    pub fn made(&self, disk: &FaultDisk) {
        lock(&self.made).get_or_insert(disk.events());
    }

    /// Returns the events of the disk when everything was there.
    #[must_use]
    pub fn made_at(&self) -> Option<u64> {
        *lock(&self.made)
    }

    /// Notes that a thread begins a step.
    pub fn began(&self, disk: &FaultDisk, thread: usize, number: u64) {
        let began = disk.events();
        lock(&self.threads)[thread].push(Step {
            number,
            began,
            acknowledged: None,
        });
    }

    /// Notes that all steps that a thread has begun are durable.
    pub fn acknowledged(&self, disk: &FaultDisk, thread: usize) {
        let now = disk.events();
        for step in lock(&self.threads)[thread].iter_mut().rev() {
            if step.acknowledged.is_some() {
                break;
            }
            step.acknowledged = Some(now);
        }
    }

    /// Notes what a recovery has found: what is not there was never done.
    pub fn found(&self, disk: &FaultDisk, found: &[u64]) {
        let now = disk.events();
        for (steps, found) in lock(&self.threads).iter_mut().zip(found) {
            steps.push(Step {
                number: *found,
                began: 0,
                acknowledged: Some(now),
            });
        }
    }

    /// Notes all that a recovery has found, which nothing changes any more.
    pub fn found_exactly(&self, disk: &FaultDisk, what: Vec<u64>) {
        *lock(&self.exactly) = Some((disk.events(), what));
    }

    /// Returns what a cut may leave: after `events` events, or in the one after these.
    #[must_use]
    pub fn allowed(&self, events: u64) -> Allowed {
        let threads = lock(&self.threads);
        let last = |f: &dyn Fn(&Step) -> bool| {
            let of = |steps: &Vec<Step>| {
                let numbers = steps.iter().filter(|step| f(step)).map(|step| step.number);
                numbers.max().unwrap_or(0)
            };
            threads.iter().map(of).collect()
        };
        let exactly = lock(&self.exactly);
        Allowed {
            least: last(&|step| step.acknowledged.is_some_and(|at| at <= events)),
            most: last(&|step| step.began <= events),
            made: lock(&self.made).is_some_and(|at| at <= events),
            exactly: (exactly.as_ref())
                .filter(|(at, _)| *at <= events)
                .map(|(_, what)| what.clone()),
        }
    }
}

/// What a cut may leave.
#[derive(Clone, Debug)]
pub struct Allowed {
    /// Steps of each thread that must be there, and that may be there.
    pub least: Vec<u64>,
    /// See [`least`](Self::least).
    pub most: Vec<u64>,
    /// Whether what is explored must be there.
    pub made: bool,
    /// What an earlier recovery found and has made durable, if this says it all.
    pub exactly: Option<Vec<u64>>,
}

/// The result of a recovery.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Events of the disk when it was open; `None` if nothing was there.
    pub opened: Option<u64>,
    /// What was found, and the steps that followed.
    pub history: History,
}

impl Recovered {
    /// Returns what a cut after `events` events of the recovery may leave, of a disk of which
    /// `before` was allowed.
    #[must_use]
    pub fn allowed(&self, before: &Allowed, events: u64) -> Allowed {
        match self.opened {
            Some(opened) if opened <= events => self.history.allowed(events),
            _ => before.clone(),
        }
    }
}
