//! One run of simulated threads under one schedule.
//!
//! The threads are coroutines of the calling thread (`shuttle`). They take turns before every
//! access to persistent memory (the simulation's switch function) and wherever one waits for
//! another (the give-way function of [`bristlecone_pmem::sync`]). In between, a thread runs alone.
//! The programs and the scheduler's seed determine the run.
//!
//! There are two kinds of schedules. In a *random* one, a thread keeps its turn with some
//! probability. In a *PCT* one (Burckhardt et al., ASPLOS 2010), the thread of highest priority
//! runs until one of a few random steps lowers its priority. So one thread rests in the middle of
//! an operation while others do several.

use crate::deferred::collect;
use crate::history::Call;
use crate::quiet::{self, Caught};
use crate::rng::Rng;
use crate::subject::{Fault, FaultKind, Live, Op};
use bristlecone_pmem::media::sim::{Event, OutOfSteps, Simulation, Sink};
use bristlecone_pmem::sync::set_give_way;
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Accesses of one run, and turns yielded in it, after which it counts as stuck.
const STEPS: u64 = 100_000;
/// Turns in a row after which the priority of a thread is lowered: several operations.
const TURNS: usize = 1000;
/// Bytes of a simulated thread's stack.
const STACK: usize = 256 << 10;

/// A sink that keeps every event, in order. The run's threads count them.
pub(super) struct Log(pub(super) Rc<RefCell<Vec<Event>>>);

impl Sink for Log {
    fn event(&mut self, event: &Event) {
        self.0.borrow_mut().push(*event);
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// The state that the threads of a run share.
struct Run {
    sim: Simulation,
    live: Box<dyn Live>,
    programs: Vec<Vec<Op>>,
    log: Rc<RefCell<Vec<Event>>>,
    calls: RefCell<Vec<Call>>,
    clock: Cell<u32>,
    fault: RefCell<Option<Fault>>,
    /// Turns yielded while waiting.
    waits: Cell<u64>,
}

thread_local! {
    /// The run, while its threads run.
    static RUN: RefCell<Option<Rc<Run>>> = const { RefCell::new(None) };
    /// The simulated thread whose turn it is.
    static CURRENT: Cell<u8> = const { Cell::new(0) };
}

/// Offers a switch to another thread before an access. The simulation keeps track of the thread
/// itself.
fn switch() {
    let me = CURRENT.get();
    shuttle::thread::sleep(Duration::ZERO);
    CURRENT.set(me);
}

/// Sleeps after every thousandth wait. A deferred function of another exploration may hold an
/// allocator's lock while the machine does not run it.
pub(super) fn wait_for_others(waits: u64) {
    if waits.is_multiple_of(1_000) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Yields to another thread while waiting.
fn give_way() {
    let me = CURRENT.get();
    shuttle::thread::yield_now();
    CURRENT.set(me);
    let stuck = RUN.with(|run| {
        let run = run.borrow();
        let Some(run) = run.as_ref() else {
            return false;
        };
        run.sim.set_thread(me);
        run.waits.set(run.waits.get() + 1);
        wait_for_others(run.waits.get());
        run.waits.get() > STEPS
    });
    if stuck && !std::thread::panicking() {
        std::panic::panic_any(OutOfSteps);
    }
}

impl Run {
    fn tick(&self) -> u32 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    /// Runs the program of the thread of that number (from 1).
    fn thread(&self, thread: u8) {
        for op in &self.programs[usize::from(thread) - 1] {
            switch();
            if self.fault.borrow().is_some() {
                return;
            }
            CURRENT.set(thread);
            self.sim.set_thread(thread);
            let number = self.calls.borrow().len();
            self.calls.borrow_mut().push(Call {
                thread,
                op: *op,
                called: self.tick(),
                returned: None,
                from: self.log.borrow().len(),
                to: usize::MAX,
            });
            let fault = match quiet::catch(|| self.live.apply(op)) {
                Ok(Ok(reply)) => {
                    let call = &mut self.calls.borrow_mut()[number];
                    call.returned = Some((self.tick(), reply));
                    call.to = self.log.borrow().len();
                    None
                }
                Ok(Err(fault)) => Some(fault),
                Err(Caught::OutOfSteps) => Some(Fault::new(
                    FaultKind::Progress,
                    format!(
                        "thread {thread}: {op:?} did not end within {STEPS} steps of all threads"
                    ),
                )),
                Err(Caught::Panic(text)) => Some(Fault::new(
                    FaultKind::Wrong,
                    format!("thread {thread}: {op:?} panicked: {text}"),
                )),
            };
            if let Some(fault) = fault {
                self.fault.borrow_mut().get_or_insert(fault);
                return;
            }
            // Freed blocks come back into use between operations, as they do in time on a real
            // machine.
            if number % 4 == 3 {
                collect();
            }
        }
    }
}

/// The result of a run.
pub(super) struct Ran {
    pub(super) calls: Vec<Call>,
    pub(super) live: Option<Box<dyn Live>>,
    pub(super) fault: Option<Fault>,
}

/// Runs `programs` on `live`, one thread each.
pub(super) fn run(
    sim: &Simulation,
    live: Box<dyn Live>,
    programs: Vec<Vec<Op>>,
    log: &Rc<RefCell<Vec<Event>>>,
    chooser: Chooser,
) -> Ran {
    /// Detaches the scheduler, even after a panic.
    struct Reset<'s>(&'s Simulation);
    impl Drop for Reset<'_> {
        fn drop(&mut self) {
            set_give_way(None);
            self.0.set_switch(None);
            self.0.set_thread(0);
            self.0.set_limit(u64::MAX);
        }
    }

    let threads = programs.len() as u8;
    let run = Rc::new(Run {
        sim: sim.clone(),
        live,
        programs,
        log: Rc::clone(log),
        calls: RefCell::default(),
        clock: Cell::new(0),
        fault: RefCell::default(),
        waits: Cell::new(0),
    });
    RUN.set(Some(Rc::clone(&run)));
    sim.set_limit(STEPS);
    let reset = Reset(sim);
    set_give_way(Some(give_way));
    sim.set_switch(Some(switch));
    // All threads catch their own panics, so a panic here is the scheduler's.
    let ended = quiet::catch(|| {
        shuttle::Runner::new(chooser, config()).run(move || {
            let threads: Vec<_> = (1..=threads)
                .map(|thread| {
                    shuttle::thread::spawn(move || {
                        let run = RUN.with(|run| run.borrow().clone());
                        if let Some(run) = run {
                            run.thread(thread);
                        }
                    })
                })
                .collect();
            for thread in threads {
                // Its panic was caught and noted inside.
                let _ = thread.join();
            }
        })
    });
    drop(reset);
    RUN.set(None);
    let mut fault = run.fault.take();
    if let Err(caught) = ended {
        fault.get_or_insert(Fault::new(
            FaultKind::Progress,
            format!("the schedule did not end: {caught:?}"),
        ));
    }
    Ran {
        calls: run.calls.take(),
        // A thread that could not be ended keeps its reference.
        live: Rc::into_inner(run).map(|run| run.live),
        fault,
    }
}

fn config() -> shuttle::Config {
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    config.failure_persistence = shuttle::FailurePersistence::None;
    config.max_steps = shuttle::MaxSteps::None;
    config
}

/// Chooses the next thread, for one run.
#[derive(Debug)]
pub(super) struct Chooser {
    rng: Rng,
    kind: Kind,
    ran: bool,
}

#[derive(Debug)]
enum Kind {
    /// The running thread keeps its turn with a probability of `stay` / 16.
    Random { stay: usize },
    Pct {
        /// Priority by thread; the smallest number runs.
        priority: Vec<usize>,
        lowest: usize,
        /// Steps after which the running thread gets the lowest priority.
        changes: Vec<usize>,
        step: usize,
        /// Turns since the last change. A thread that waits for another by loading a word over and
        /// over must not keep the other from running.
        turns: usize,
    },
}

impl Chooser {
    pub(super) fn random(rng: Rng, stay: usize) -> Self {
        Self {
            rng,
            kind: Kind::Random { stay },
            ran: false,
        }
    }

    /// Returns a PCT chooser with `changes` priority changes in the first `steps` steps.
    pub(super) fn pct(mut rng: Rng, threads: usize, changes: usize, steps: usize) -> Self {
        let mut priority: Vec<usize> = (0..=threads).collect();
        for i in (1..priority.len()).rev() {
            priority.swap(i, rng.index(i + 1));
        }
        let kind = Kind::Pct {
            priority,
            lowest: threads + 1,
            changes: (0..changes).map(|_| rng.index(steps)).collect(),
            step: 0,
            turns: 0,
        };
        Self {
            rng,
            kind,
            ran: false,
        }
    }
}

impl Scheduler for Chooser {
    fn new_execution(&mut self) -> Option<Schedule> {
        (!std::mem::replace(&mut self.ran, true)).then(|| Schedule::new(0))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        yielding: bool,
    ) -> Option<TaskId> {
        let first = runnable.first()?.id();
        // Task 0 starts the threads and waits for them.
        if usize::from(first) == 0 || runnable.len() == 1 {
            return Some(first);
        }
        let current = current.filter(|current| runnable.iter().any(|task| task.id() == *current));
        match &mut self.kind {
            Kind::Random { stay } => {
                if let Some(current) = current {
                    if !yielding && self.rng.index(16) < *stay {
                        return Some(current);
                    }
                    if yielding {
                        let others = runnable.len() - 1;
                        let mut others_of = runnable.iter().filter(|task| task.id() != current);
                        return others_of.nth(self.rng.index(others)).map(|task| task.id());
                    }
                }
                Some(runnable[self.rng.index(runnable.len())].id())
            }
            Kind::Pct {
                priority,
                lowest,
                changes,
                step,
                turns,
            } => {
                *step += 1;
                *turns += 1;
                let lower = yielding || changes.contains(step) || *turns > TURNS;
                if lower {
                    *turns = 0;
                }
                if let Some(current) = current
                    && lower
                    && let Some(priority) = priority.get_mut(usize::from(current))
                {
                    *priority = *lowest;
                    *lowest += 1;
                }
                let of = |task: &&&Task| priority.get(usize::from(task.id())).copied();
                runnable.iter().min_by_key(of).map(|task| task.id())
            }
        }
    }

    fn next_u64(&mut self) -> u64 {
        self.rng.next_u64()
    }
}
