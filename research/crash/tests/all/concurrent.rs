//! Concurrent exploration: right trees pass, planted faults are found and repeated.

use crate::common::SHARE;
use bristlecone_crash::concurrent::{ConcurrentOptions, ConcurrentReport, explore, replay};
use bristlecone_crash::subject::{Fault, FaultKind, Live, Op, Opened, Reply, Subject};
use bristlecone_crash::subjects;
use bristlecone_crash::subjects::reference::{Flaw, Reference};
use bristlecone_pmem::media::sim::{EventKind, Model, Simulation, Site, SiteKind};
use bristlecone_pmem::sync::lock;
use std::cell::Cell;
use std::sync::Mutex;

/// Held by each exploration, since explorations repeat exactly only if they do not run at the same
/// time.
static ALONE: Mutex<()> = Mutex::new(());

/// Schedules of each right structure, model and number of threads.
const SCHEDULES: u64 = 120 / (SHARE * SHARE);

fn lbtree() -> Box<dyn Subject> {
    let all = subjects::matching("lbtree");
    all.into_iter().next().expect("there is an LB+-Tree")
}

/// The fault of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// An upsert of a new key is two steps, and other threads may run in between.
    LosesUpdates,
    /// A removal panics if another one is running.
    Panics,
    /// A lookup waits until its key exists.
    Waits,
    /// Insertions and removals take two locks in opposite orders.
    Deadlocks,
    /// A lock is never released.
    KeepsLock,
}

/// An LB+-Tree with a fault in the code around it.
struct Faulty {
    tree: Box<dyn Subject>,
    wrong: Wrong,
}

struct Open {
    tree: Box<dyn Live>,
    wrong: Wrong,
    removing: Cell<bool>,
    locks: [Mutex<()>; 2],
}

impl Faulty {
    fn new(wrong: Wrong) -> Self {
        let tree = lbtree();
        Self { tree, wrong }
    }

    fn around(&self, tree: Box<dyn Live>) -> Box<dyn Live> {
        Box::new(Open {
            tree,
            wrong: self.wrong,
            removing: Cell::new(false),
            locks: Default::default(),
        })
    }
}

impl Subject for Faulty {
    fn name(&self) -> String {
        format!("{:?}", self.wrong)
    }

    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        Ok(self.around(self.tree.create()?))
    }

    fn open(&self) -> Result<Opened, Fault> {
        Ok(match self.tree.open()? {
            Opened::Live(tree) => Opened::Live(self.around(tree)),
            Opened::Absent => Opened::Absent,
        })
    }

    fn can(&self, op: &Op) -> bool {
        self.tree.can(op)
    }
}

impl Live for Open {
    fn apply(&self, op: &Op) -> Result<Reply, Fault> {
        match (self.wrong, *op) {
            (Wrong::LosesUpdates, Op::Upsert(key, value)) => {
                // Another thread may insert in between, and this thread's value is lost.
                if self.tree.apply(&Op::Get(key))? == Reply::Found(None) {
                    self.tree.apply(&Op::Insert(key, value))?;
                } else {
                    self.tree.apply(op)?;
                }
                Ok(Reply::Done)
            }
            (Wrong::Panics, Op::Remove(_)) => {
                assert!(!self.removing.replace(true), "two removals at once");
                let reply = self.tree.apply(op);
                self.removing.set(false);
                reply
            }
            (Wrong::Waits, Op::Get(_)) => loop {
                let reply = self.tree.apply(op)?;
                if reply != Reply::Found(None) {
                    return Ok(reply);
                }
            },
            (Wrong::Deadlocks, Op::Insert(key, _) | Op::Remove(key)) => {
                let (first, second) = match op {
                    Op::Remove(_) => (1, 0),
                    _ => (0, 1),
                };
                let _first = lock(&self.locks[first]);
                // Other threads may run in between.
                self.tree.apply(&Op::Get(key))?;
                let _second = lock(&self.locks[second]);
                self.tree.apply(op)
            }
            (Wrong::KeepsLock, Op::Update(..)) => {
                std::mem::forget(lock(&self.locks[0]));
                self.tree.apply(op)
            }
            _ => self.tree.apply(op),
        }
    }

    fn observe(&self, each: &mut dyn FnMut(u64, u64)) -> Result<(), Fault> {
        self.tree.observe(each)
    }

    fn verify(&self) -> Result<(), Fault> {
        drop(lock(&self.locks[0]));
        self.tree.verify()
    }

    fn close(self: Box<Self>) -> Result<(), Fault> {
        self.tree.close()
    }
}

fn first_of(report: &ConcurrentReport) -> String {
    let first = report.violations.first();
    first.map_or_else(String::new, ToString::to_string)
}

/// Explores every design with its models and numbers of threads, two designs at a time.
#[test]
fn right_structures_pass() {
    let _alone = lock(&ALONE);
    std::thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || {
                let all = subjects::all().into_iter().filter(|s| s.concurrent());
                let concurrent: Vec<_> = all.enumerate().collect();
                assert!(concurrent.len() >= 4);
                let these = concurrent.iter().skip(half).step_by(2);
                these.for_each(|(i, subject)| passes(*i, &**subject));
            });
        }
    });
}

fn passes(i: usize, subject: &dyn Subject) {
    for (j, model) in Model::ALL.into_iter().enumerate() {
        let options = ConcurrentOptions {
            model,
            threads: 2 + usize::from(!(i + j).is_multiple_of(3)),
            schedules: SCHEDULES,
            seed: (10 * i + j) as u64,
            ..ConcurrentOptions::default()
        };
        let report = explore(subject, &options, &mut |_| {});
        eprintln!("{} {} {report:?}", subject.name(), model.name());
        assert_eq!(
            report.violation_count,
            0,
            "{}: {}",
            subject.name(),
            first_of(&report)
        );
        assert_eq!(report.schedules, SCHEDULES);
        let operations = SCHEDULES * 4 * options.threads as u64;
        assert_eq!(report.operations, operations, "all operations return");
        assert!(report.crash_points >= 3 * SCHEDULES && report.images >= report.crash_points);
    }
}

#[test]
fn unlocking_before_the_fence_is_visible_before_durable() {
    let _alone = lock(&ALONE);
    let subject = lbtree();
    let options = ConcurrentOptions {
        schedules: 2000,
        planted: Some("unlock before fence"),
        stop_at_first: true,
        ..ConcurrentOptions::default()
    };
    let report = explore(&*subject, &options, &mut |_| {});
    let violation = report.violations.first().expect("the fault is found");
    eprintln!("after {} schedules: {violation}", report.schedules);
    assert_eq!(violation.fault.kind, FaultKind::VisibleBeforeDurable);
    let crash = violation.crash.as_ref().expect("it takes a crash");
    let dependence = crash.dependence.expect("who saw what");
    let store = dependence.store.expect("it was loaded");
    let observer = violation.history[dependence.observer];
    let writer = violation.history[dependence.writer];
    assert!(observer.completed_at(crash.point) && !writer.completed_at(crash.point));
    assert_ne!(observer.thread, writer.thread);
    assert_eq!(store.thread, writer.thread);
    assert!(store.site.file().contains("lbtree"));
    assert!(
        (crash.lost.iter()).any(|lost| lost.seq == store.seq),
        "what was seen is among what was lost"
    );

    // The schedule's number alone repeats the violation.
    let again = replay(&*subject, &options, violation.schedule).expect("again");
    assert_eq!(again.to_string(), violation.to_string());

    // With durable caches, a visible store is durable.
    let options = ConcurrentOptions {
        model: Model::Eadr,
        schedules: 300,
        ..options
    };
    let report = explore(&*subject, &options, &mut |_| {});
    assert_eq!(report.violation_count, 0, "{}", first_of(&report));
}

/// A change that is seen through volatile memory, and found by the replies of the calls.
#[test]
fn showing_readers_what_is_not_durable_is_visible_before_durable() {
    let _alone = lock(&ALONE);
    let subject = Reference::flawed(Flaw::VisibleFirst);
    for model in Model::ALL {
        let options = ConcurrentOptions {
            model,
            threads: 2,
            schedules: 200,
            ..ConcurrentOptions::default()
        };
        let report = explore(&subject, &options, &mut |_| {});
        assert!(report.violation_count > 0);
        for violation in &report.violations {
            assert_eq!(
                violation.fault.kind,
                FaultKind::VisibleBeforeDurable,
                "{violation}"
            );
        }
    }
}

/// Returns the sites of the fences of one insertion.
fn fences_of_an_insert(subject: &dyn Subject) -> Vec<Site> {
    let sim = Simulation::new(subject.capacity());
    let _attached = sim.attach();
    let live = subject.create().expect("a tree");
    sim.start_trace();
    assert_eq!(live.apply(&Op::Insert(1, 2)), Ok(Reply::Done));
    let trace = sim.take_trace();
    let fences = trace.iter().filter(|e| matches!(e.kind, EventKind::Fence));
    fences.map(|e| Site::new(e.site, SiteKind::Fence)).collect()
}

/// Without its fence an insertion is lost to its own caller, which is no matter of visibility.
#[test]
fn a_missing_fence_loses_what_had_completed() {
    let _alone = lock(&ALONE);
    let subject = lbtree();
    for model in Model::ALL {
        let options = ConcurrentOptions {
            model,
            schedules: 200,
            stop_at_first: true,
            off: fences_of_an_insert(&*subject),
            ..ConcurrentOptions::default()
        };
        assert!(!options.off.is_empty());
        let report = explore(&*subject, &options, &mut |_| {});
        let violation = report.violations.first().expect("the fault is found");
        assert_eq!(violation.fault.kind, FaultKind::Lost, "{violation}");
        let crash = violation.crash.as_ref().expect("it takes a crash");
        assert!(crash.dependence.is_none() && !crash.lost.is_empty());
        let again = replay(&*subject, &options, violation.schedule).expect("again");
        assert_eq!(again.to_string(), violation.to_string());
    }
}

#[test]
fn a_lost_update_is_a_wrong_answer_without_any_crash() {
    let _alone = lock(&ALONE);
    let subject = Faulty::new(Wrong::LosesUpdates);
    let options = ConcurrentOptions {
        threads: 2,
        schedules: 4000,
        ..ConcurrentOptions::default()
    };
    let report = explore(&subject, &options, &mut |_| {});
    // A crash shows it too, as a lost operation.
    let mut found = report.violations.iter();
    let violation = found
        .find(|v| v.crash.is_none())
        .expect("the fault is found");
    eprintln!("of {} violations: {violation}", report.violation_count);
    assert_eq!(violation.fault.kind, FaultKind::Wrong);
    let again = replay(&subject, &options, violation.schedule).expect("again");
    assert_eq!(again.history, violation.history);
    assert_eq!(again.fault, violation.fault);
}

/// Panics, endless operations, deadlocks and locks that are never released are findings, and the
/// exploration goes on.
#[test]
fn what_does_not_return_is_reported() {
    let _alone = lock(&ALONE);
    for (wrong, kind, what) in [
        (Wrong::Panics, FaultKind::Wrong, "two removals at once"),
        (Wrong::Waits, FaultKind::Progress, "did not end"),
        (Wrong::Deadlocks, FaultKind::Progress, "did not end"),
        (Wrong::KeepsLock, FaultKind::Progress, "did not end"),
        (Wrong::KeepsLock, FaultKind::Progress, "no one holds"),
    ] {
        let subject = Faulty::new(wrong);
        let options = ConcurrentOptions {
            schedules: 40,
            ..ConcurrentOptions::default()
        };
        let report = explore(&subject, &options, &mut |_| {});
        assert_eq!(report.schedules, 40);
        let found = (report.violations.iter())
            .find(|v| v.fault.kind == kind && v.fault.what.contains(what))
            .unwrap_or_else(|| panic!("{wrong:?}: {}", first_of(&report)));
        let again = replay(&subject, &options, found.schedule).expect("again");
        assert_eq!(again.fault, found.fault, "{wrong:?}");
        assert_eq!(again.history, found.history, "{wrong:?}");
    }
}
