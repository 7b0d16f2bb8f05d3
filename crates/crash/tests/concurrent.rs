//! Concurrent exploration: a right tree passes, planted faults are found and repeated.

use bristlecone_crash::concurrent::{ConcurrentOptions, ConcurrentReport, explore, replay};
use bristlecone_crash::subject::{Fault, FaultKind, Live, Op, Opened, Reply, Subject};
use bristlecone_pmem::media::sim::{Model, Sim};
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_trees::index::{InsertError, OrderedIndex, UpdateError};
use bristlecone_trees::lbtree::{LbOptions, LbTree, TreeError};
use std::ops::ControlFlow;
use std::path::Path;

type Tree = LbTree<u64, u64, Sim, 1>;

/// The LB+-Tree, or one whose upserts of new keys are two steps that others may come between.
struct Lb {
    loses_updates: bool,
}

struct Open {
    tree: Tree,
    loses_updates: bool,
}

fn wrong(what: impl std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Wrong, what.to_string())
}

impl Lb {
    fn opened(&self, tree: Result<Tree, TreeError>) -> Result<Box<dyn Live>, Fault> {
        let tree = tree.map_err(|e| Fault::new(FaultKind::Recovery, e.to_string()))?;
        Ok(Box::new(Open {
            tree,
            loses_updates: self.loses_updates,
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
        Ok(match *op {
            Op::Insert(key, value) => match self.tree.insert(&key, &value) {
                Ok(()) => Reply::Done,
                Err(InsertError::KeyExists) => Reply::Refused,
                Err(e) => return Err(wrong(e)),
            },
            Op::Upsert(key, value) if self.loses_updates => {
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
    let subject = Lb {
        loses_updates: false,
    };
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
    let subject = Lb {
        loses_updates: false,
    };
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
    let subject = Lb {
        loses_updates: true,
    };
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
