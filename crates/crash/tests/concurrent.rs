//! Concurrent exploration: a right tree passes, planted faults are found and repeated.

use bristlecone_crash::concurrent::{ConcurrentOptions, ConcurrentReport, explore, replay};
use bristlecone_crash::subject::{Fault, FaultKind, Live, Op, Opened, Reply, Subject};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::sim::{Model, Sim};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_trees::index::{InsertError, OrderedIndex, UpdateError};
use bristlecone_trees::lbtree::{LbOptions, LbTree, TreeError};
use std::cell::Cell;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Mutex;

type Tree = LbTree<u64, u64, Sim, 1>;

/// What is wrong with the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// Upserts of new keys are two steps that others may come between.
    LosesUpdates,
    /// A removal panics if another one is under way.
    Panics,
    /// A lookup waits for a key to be there.
    Waits,
    /// Insertions and removals take two locks in opposite orders.
    Deadlocks,
    /// A lock is never given back.
    KeepsLock,
}

struct Lb(Wrong);

struct Open {
    tree: Tree,
    wrong: Wrong,
    removing: Cell<bool>,
    locks: [Mutex<()>; 2],
}

/// Explorations repeat to the last address only if they do not run at once.
static ALONE: Mutex<()> = Mutex::new(());

fn wrong(what: impl std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Wrong, what.to_string())
}

impl Lb {
    fn opened(&self, tree: Result<Tree, TreeError>) -> Result<Box<dyn Live>, Fault> {
        let tree = tree.map_err(|e| Fault::new(FaultKind::Recovery, e.to_string()))?;
        Ok(Box::new(Open {
            tree,
            wrong: self.0,
            removing: Cell::new(false),
            locks: Default::default(),
        }))
    }
}

impl Subject for Lb {
    fn name(&self) -> String {
        "lbtree".into()
    }

    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        let pool = Pool::<Sim>::create(Path::new("sim"), &PoolOptions::default()).map_err(wrong)?;
        self.opened(Tree::create(&pool, "index", &LbOptions::default()))
    }

    fn open(&self) -> Result<Opened, Fault> {
        let pool = Pool::<Sim>::open(Path::new("sim"), &PoolOptions::default())
            .map_err(|e| Fault::new(FaultKind::Recovery, e.to_string()))?;
        self.opened(Tree::open(&pool, "index", &LbOptions::default()))
            .map(Opened::Live)
    }
}

impl Live for Open {
    fn apply(&self, op: &Op) -> Result<Reply, Fault> {
        let done = |done| if done { Reply::Done } else { Reply::Refused };
        if self.wrong == Wrong::Deadlocks {
            let order = match op {
                Op::Remove(_) => [1, 0],
                _ => [0, 1],
            };
            let _first = lock(&self.locks[order[0]]);
            self.tree.pool().pm().interleave();
            let _second = lock(&self.locks[order[1]]);
            self.tree.pool().pm().interleave();
        }
        if self.wrong == Wrong::KeepsLock && matches!(op, Op::Remove(_)) {
            std::mem::forget(lock(&self.locks[0]));
        }
        Ok(match *op {
            Op::Remove(key) if self.wrong == Wrong::Panics => {
                assert!(!self.removing.replace(true), "two removals at once");
                let removed = self.tree.remove(&key).map_err(wrong)?;
                self.removing.set(false);
                done(removed)
            }
            Op::Get(key) if self.wrong == Wrong::Waits => loop {
                if let Some(value) = self.tree.get(&key) {
                    break Reply::Found(Some(value));
                }
            },
            Op::Insert(key, value) => match self.tree.insert(&key, &value) {
                Ok(()) => Reply::Done,
                Err(InsertError::KeyExists) => Reply::Refused,
                Err(e) => return Err(wrong(e)),
            },
            Op::Upsert(key, value) if self.wrong == Wrong::LosesUpdates => {
                // Another thread's value may come in between, and this one's be dropped.
                if self.tree.get(&key).is_none() {
                    let _ = self.tree.insert(&key, &value);
                } else {
                    self.tree.upsert(&key, &value).map_err(wrong)?;
                }
                Reply::Done
            }
            Op::Upsert(key, value) => {
                self.tree.upsert(&key, &value).map_err(wrong)?;
                Reply::Done
            }
            Op::Update(key, value) => match self.tree.update(&key, &value) {
                Ok(()) => Reply::Done,
                Err(UpdateError::NotFound) => Reply::Refused,
                Err(e) => return Err(wrong(e)),
            },
            Op::Remove(key) => done(self.tree.remove(&key).map_err(wrong)?),
            Op::Get(key) => Reply::Found(self.tree.get(&key)),
            _ => return Err(wrong(format!("{op:?} is not a concurrent operation"))),
        })
    }

    fn observe(&self, each: &mut dyn FnMut(u64, u64)) -> Result<(), Fault> {
        self.tree.scan(.., |key, value| {
            each(*key, *value);
            ControlFlow::Continue(())
        });
        Ok(())
    }

    fn verify(&self) -> Result<(), Fault> {
        drop(lock(&self.locks[0]));
        self.tree
            .verify()
            .map(|_| ())
            .map_err(|e| Fault::new(FaultKind::Structure, e.to_string()))
    }

    fn close(self: Box<Self>) -> Result<(), Fault> {
        self.tree.close().map_err(wrong)
    }
}

fn first_of(report: &ConcurrentReport) -> String {
    report
        .violations
        .first()
        .map_or_else(String::new, ToString::to_string)
}

#[test]
fn a_right_tree_passes_under_all_models() {
    let _alone = lock(&ALONE);
    let subject = Lb(Wrong::Nothing);
    for (model, threads) in Model::ALL.into_iter().zip([3, 2, 3]) {
        let options = ConcurrentOptions {
            model,
            threads,
            schedules: 400,
            ..ConcurrentOptions::default()
        };
        let report = explore(&subject, &options, &mut |_| {});
        eprintln!("{} {report:?}", model.name());
        assert_eq!(report.violation_count, 0, "{}", first_of(&report));
        assert_eq!(report.schedules, 400);
        assert_eq!(
            report.operations,
            400 * threads as u64 * 4,
            "all operations return"
        );
        assert!(report.crash_points >= 800 && report.images >= report.crash_points);
    }
}

#[test]
fn unlocking_before_the_fence_is_visible_before_durable() {
    let _alone = lock(&ALONE);
    let subject = Lb(Wrong::Nothing);
    let options = ConcurrentOptions {
        schedules: 4000,
        planted: Some("unlock before fence"),
        stop_at_first: true,
        ..ConcurrentOptions::default()
    };
    let report = explore(&subject, &options, &mut |_| {});
    let violation = report.violations.first().expect("the fault is found");
    eprintln!("after {} schedules: {violation}", report.schedules);
    assert_eq!(violation.fault.kind, FaultKind::VisibleBeforeDurable);
    let crash = violation.crash.as_ref().expect("it takes a crash");
    let dependence = crash.dependence.expect("who saw what");
    let (observer, writer) = (
        violation.history[dependence.observer],
        violation.history[dependence.writer],
    );
    assert!(observer.completed_at(crash.point) && !writer.completed_at(crash.point));
    assert_ne!(observer.thread, writer.thread);
    assert_eq!(dependence.store.thread, writer.thread);
    assert!(
        dependence.store.site.file().ends_with("leaf.rs")
            || dependence.store.site.file().ends_with("insert.rs")
    );
    assert!(
        (crash.lost.iter()).any(|lost| lost.seq == dependence.store.seq),
        "what was seen is among what was lost"
    );

    // The schedule's number alone repeats it.
    let again = replay(&subject, &options, violation.schedule).expect("again");
    assert_eq!(again.to_string(), violation.to_string());
}

#[test]
fn a_lost_update_is_a_wrong_answer_without_any_crash() {
    let _alone = lock(&ALONE);
    let subject = Lb(Wrong::LosesUpdates);
    let options = ConcurrentOptions {
        threads: 2,
        schedules: 4000,
        stop_at_first: true,
        ..ConcurrentOptions::default()
    };
    let report = explore(&subject, &options, &mut |_| {});
    let violation = report.violations.first().expect("the fault is found");
    eprintln!("after {} schedules: {violation}", report.schedules);
    assert_eq!(violation.fault.kind, FaultKind::Wrong);
    assert!(violation.crash.is_none());
    let again = replay(&subject, &options, violation.schedule).expect("again");
    assert_eq!(again.history, violation.history);
    assert_eq!(again.fault, violation.fault);
}

/// Panics, endless operations, deadlocks and locks that are kept are findings; the exploration goes on.
#[test]
fn what_does_not_return_is_reported() {
    let _alone = lock(&ALONE);
    for (fault, kind, what) in [
        (Wrong::Panics, FaultKind::Wrong, "two removals at once"),
        (Wrong::Waits, FaultKind::Progress, "did not end"),
        (Wrong::Deadlocks, FaultKind::Progress, "did not end"),
        (Wrong::KeepsLock, FaultKind::Progress, ""),
    ] {
        let subject = Lb(fault);
        let options = ConcurrentOptions {
            schedules: 40,
            ..ConcurrentOptions::default()
        };
        let report = explore(&subject, &options, &mut |_| {});
        assert_eq!(report.schedules, 40);
        let found = (report.violations.iter())
            .find(|v| v.fault.kind == kind && v.fault.what.contains(what))
            .unwrap_or_else(|| panic!("{fault:?}: {}", first_of(&report)));
        let again = replay(&subject, &options, found.schedule).expect("again");
        assert_eq!(again.fault, found.fault, "{fault:?}");
        assert_eq!(again.history, found.history, "{fault:?}");
    }
}
