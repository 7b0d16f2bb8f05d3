//! The multi-word swap under all schedules of small programs, up to a number of preemptions.
//!
//! The search is exhaustive for these programs (two threads with two or three words, three threads
//! with two), sequentially consistent memory, thread switches before accesses to persistent memory,
//! and a number of *preemptions* (switches away from a thread that could have gone on). Most faults
//! take one or two. The replies and the final words of each schedule must be those of some order of
//! the operations that respects real time. The explorer covers random schedules without this bound,
//! with crashes (`crash --index pmwcas --threads 3`).

use bristlecone_pmem::media::Sim;
use bristlecone_pmem::media::sim::Simulation;
use bristlecone_pmem::pmwcas::{DescriptorPool, FLAGS, NoBlocks};
use bristlecone_pmem::pool::{DataKind, RootKind};
use bristlecone_pmem::{Heap, Media, PWord, Pool, PoolOptions};
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const WORDS: usize = 3;
/// Time limit of a program.
const LIMIT: Duration = Duration::from_secs(300);
const LINE: u64 = 64;

/// An operation of a thread: numbers of words, each with its expected and its desired value.
#[derive(Clone, Copy, Debug)]
enum Op {
    Swap(&'static [(usize, u64, u64)]),
    Read(usize),
}

impl Op {
    /// Applies the operation, and returns its reply (1 for a swap that succeeded).
    fn apply(self, words: &mut [u64; WORDS]) -> u64 {
        match self {
            Op::Read(i) => words[i],
            Op::Swap(swap) => {
                let done = swap.iter().all(|(i, old, _)| words[*i] == *old);
                if done {
                    swap.iter().for_each(|(i, _, new)| words[*i] = *new);
                }
                done.into()
            }
        }
    }
}

/// One call of a run. All words are 0 at the beginning of the run.
#[derive(Clone, Copy, Debug)]
struct Call {
    op: Op,
    called: u32,
    /// Time of the return, and the reply.
    returned: (u32, u64),
}

/// Returns true if some order of `calls` explains their replies and the final words.
fn explained(calls: &[Call], words: [u64; WORDS], end: &[u64; WORDS]) -> bool {
    if calls.is_empty() {
        return words == *end;
    }
    let first_return = calls.iter().map(|call| call.returned.0).min().unwrap_or(0);
    let may_be_next = |call: &Call| call.called < first_return;
    (0..calls.len())
        .filter(|i| may_be_next(&calls[*i]))
        .any(|i| {
            let mut after = words;
            let mut rest = calls.to_vec();
            let call = rest.remove(i);
            call.op.apply(&mut after) == call.returned.1 && explained(&rest, after, end)
        })
}

/// The state that the threads of a run share.
struct Run {
    sim: Simulation,
    pool: Arc<Pool<Sim>>,
    heap: Heap<Sim>,
    at: u64,
    words: u64,
    programs: &'static [&'static [Op]],
    swaps: RefCell<Option<Rc<DescriptorPool<Sim>>>>,
    calls: RefCell<Vec<Call>>,
    clock: Cell<u32>,
}

thread_local! {
    static RUN: RefCell<Option<Rc<Run>>> = const { RefCell::new(None) };
    static STATISTICS: Cell<(u64, bool)> = const { Cell::new((0, false)) };
    static FOUND: RefCell<Option<String>> = const { RefCell::new(None) };
}

fn run() -> Rc<Run> {
    RUN.with(|run| run.borrow().clone().expect("a run"))
}

impl Run {
    fn new(programs: &'static [&'static [Op]]) -> Self {
        let sim = Simulation::new(1 << 22);
        let attached = sim.attach();
        let pool = Pool::<Sim>::create(Path::new("simulated pool"), &PoolOptions::default())
            .expect("a pool");
        let kind = RootKind {
            design: "schedules".into(),
            keys: DataKind::U64,
            values: DataKind::U64,
            node_bytes: 0,
        };
        let root = pool.create_root("r", &kind).expect("a root");
        let heap = root.heap();
        let swaps = DescriptorPool::create(&heap, 1, 16, WORDS, Box::new(NoBlocks));
        let words = heap.alloc(WORDS as u64 * LINE).expect("room").get();
        let at = swaps.expect("room").offset();
        root.publish();
        std::mem::forget((root, attached));
        Self {
            sim,
            pool,
            heap,
            at,
            words,
            programs,
            swaps: RefCell::default(),
            calls: RefCell::default(),
            clock: Cell::new(0),
        }
    }

    fn word(&self, i: usize) -> &PWord {
        let at = self.words as usize + i * LINE as usize;
        // SAFETY: 1. the block has a line for each word; 2. it is 8-aligned; 3. any bits are a
        // valid PWord;
        // 4. the mapping lives as long as the pool, which `self` holds.
        unsafe { &*self.pool.pm().base().wrapping_add(at).cast_const().cast() }
    }

    fn tick(&self) -> u32 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    /// Runs the program of one thread.
    fn thread(&self, thread: usize) {
        let swaps = self.swaps.borrow().clone().expect("descriptors");
        for op in self.programs[thread] {
            let called = self.tick();
            let answer = match op {
                Op::Read(i) => swaps.read(self.word(*i)),
                Op::Swap(words) => {
                    let mut swap = swaps.allocate_descriptor().expect("there are enough");
                    for (i, old, new) in *words {
                        swap.add_word(self.word(*i), *old, *new).expect("a word");
                    }
                    swap.execute().expect("an operation").into()
                }
            };
            self.calls.borrow_mut().push(Call {
                op: *op,
                called,
                returned: (self.tick(), answer),
            });
        }
    }
}

/// Enumerates the schedules with up to `max_preemptions` preemptions, depth first.
struct Bounded {
    max_preemptions: usize,
    /// The choices of the present schedule: at each step with a choice, the one made and their
    /// number.
    path: Vec<(usize, usize)>,
    depth: usize,
    left: usize,
    begun: bool,
    until: Instant,
}

impl Scheduler for Bounded {
    fn new_execution(&mut self) -> Option<Schedule> {
        let (runs, _) = STATISTICS.get();
        if self.begun {
            while self
                .path
                .pop_if(|(chosen, of)| *chosen + 1 == *of)
                .is_some()
            {}
            let Some((chosen, _)) = self.path.last_mut() else {
                STATISTICS.set((runs, true));
                return None;
            };
            *chosen += 1;
        }
        if Instant::now() > self.until || FOUND.with_borrow(Option::is_some) {
            return None;
        }
        STATISTICS.set((runs + 1, false));
        self.begun = true;
        self.depth = 0;
        self.left = self.max_preemptions;
        Some(Schedule::new(0))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        _yielding: bool,
    ) -> Option<TaskId> {
        let first = runnable.first()?.id();
        // Task 0 starts the threads and waits for them.
        if usize::from(first) == 0 {
            return Some(first);
        }
        let mut ids: Vec<TaskId> = runnable.iter().map(|task| task.id()).collect();
        let at = ids.iter().position(|id| Some(*id) == current);
        if let Some(at) = at {
            ids.swap(0, at);
            if self.left == 0 {
                ids.truncate(1);
            }
        }
        if ids.len() == 1 {
            return Some(ids[0]);
        }
        if self.depth == self.path.len() {
            self.path.push((0, ids.len()));
        }
        let (chosen, of) = self.path[self.depth];
        assert_eq!(of, ids.len(), "a run follows from its schedule");
        self.depth += 1;
        if at.is_some() && chosen > 0 {
            self.left -= 1;
        }
        Some(ids[chosen])
    }

    fn next_u64(&mut self) -> u64 {
        0
    }
}

/// Runs all schedules of `programs` with up to `preemptions` preemptions, up to the first that no
/// order explains. Returns their number, and whether these were all.
fn all_schedules(
    programs: &'static [&'static [Op]],
    preemptions: usize,
    planted: Option<&'static str>,
) -> (u64, bool) {
    let new = Rc::new(Run::new(programs));
    let sim = new.sim.clone();
    sim.plant(planted);
    sim.note_changes(true);
    let prepared = sim.mark();
    RUN.set(Some(new));
    STATISTICS.set((0, false));
    let scheduler = Bounded {
        max_preemptions: preemptions,
        path: Vec::new(),
        depth: 0,
        left: 0,
        begun: false,
        until: Instant::now() + LIMIT,
    };
    let mut config = shuttle::Config::new();
    config.stack_size = 256 << 10;
    config.failure_persistence = shuttle::FailurePersistence::None;
    config.max_steps = shuttle::MaxSteps::FailAfter(100_000);
    shuttle::Runner::new(scheduler, config).run(move || {
        let run = run();
        run.sim.set_switch(None);
        run.sim.roll_back(prepared);
        let (swaps, _) =
            DescriptorPool::open(&run.heap, run.at, Box::new(NoBlocks)).expect("descriptors");
        run.swaps.replace(Some(Rc::new(swaps)));
        run.calls.take();
        run.clock.set(0);
        let pm = run.pool.pm();
        (0..WORDS).for_each(|i| run.word(i).store(pm, 0, Ordering::Relaxed));
        run.sim
            .set_switch(Some(|| shuttle::thread::sleep(Duration::ZERO)));
        let threads: Vec<_> = (0..run.programs.len())
            .map(|thread| shuttle::thread::spawn(move || self::run().thread(thread)))
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        run.sim.set_switch(None);
        let end = std::array::from_fn(|i| run.word(i).load(pm, Ordering::Relaxed));
        let calls = run.calls.take();
        if end.iter().any(|word| word & FLAGS != 0) || !explained(&calls, [0; WORDS], &end) {
            FOUND.set(Some(format!("{end:x?} after {calls:#?}")));
        }
    });
    RUN.set(None);
    STATISTICS.get()
}

fn check(name: &str, programs: &'static [&'static [Op]], preemptions: usize) {
    let started = Instant::now();
    let (runs, all) = all_schedules(programs, preemptions, None);
    if let Some(found) = FOUND.take() {
        panic!("{name}, schedule {runs}: {found}");
    }
    println!(
        "{name}: {runs} schedules with up to {preemptions} preemptions, {:?}",
        started.elapsed()
    );
    assert!(
        all,
        "{name}: {runs} schedules in {:?}, and there are more",
        started.elapsed()
    );
    assert!(runs > 1_000, "{name}: {runs} schedules");
}

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

#[test]
fn two_operations_on_the_same_two_words() {
    check(
        "two on two words",
        &[
            &[Op::Swap(&[(A, 0, 1), (B, 0, 1)])],
            &[Op::Swap(&[(B, 0, 2), (A, 0, 2)])],
        ],
        3,
    );
}

#[test]
fn two_operations_on_three_words() {
    check(
        "two on three words",
        &[
            &[Op::Swap(&[(A, 0, 1), (B, 0, 1), (C, 0, 1)])],
            &[Op::Swap(&[(C, 0, 2), (B, 0, 2)]), Op::Read(A)],
        ],
        3,
    );
}

/// A word leaves its expected value and returns to it while another thread is changing it (ABA).
#[test]
fn a_value_that_comes_back() {
    check(
        "a value comes back",
        &[
            &[Op::Swap(&[(A, 0, 1), (B, 0, 1)])],
            &[Op::Swap(&[(A, 0, 2)]), Op::Swap(&[(A, 2, 0)])],
        ],
        3,
    );
    check(
        "values come back",
        &[
            &[Op::Swap(&[(A, 0, 1), (B, 0, 1)])],
            &[
                Op::Swap(&[(A, 0, 2), (B, 0, 2)]),
                Op::Swap(&[(A, 2, 0), (B, 2, 0)]),
            ],
        ],
        2,
    );
}

/// A thread undoes the change of another before that one goes on.
const UNDONE: &[&[Op]] = &[
    &[Op::Swap(&[(A, 0, 1), (B, 0, 1)])],
    &[Op::Swap(&[(A, 1, 0), (B, 1, 0)])],
];

#[test]
fn what_was_done_is_undone() {
    check("done and undone", UNDONE, 3);
}

/// The search would find the mistake: the pointer of an ended operation is installed again.
#[test]
fn a_late_install_is_found() {
    let (runs, _) = all_schedules(UNDONE, 2, Some("pmwcas-unconditional"));
    let found = FOUND
        .take()
        .unwrap_or_else(|| panic!("not in {runs} schedules"));
    println!("schedule {runs}: {found}");
}

/// One operation fails, and another relies on its words.
#[test]
fn one_fails_and_another_helps() {
    check(
        "one fails",
        &[
            &[Op::Swap(&[(A, 0, 1), (B, 7, 1)])],
            &[Op::Swap(&[(A, 0, 2), (C, 0, 2)]), Op::Read(A)],
        ],
        3,
    );
}

#[test]
fn three_operations_in_a_ring() {
    check(
        "three in a ring",
        &[
            &[Op::Swap(&[(A, 0, 1), (B, 0, 1)])],
            &[Op::Swap(&[(B, 0, 2), (C, 0, 2)])],
            &[Op::Swap(&[(C, 0, 3), (A, 0, 3)])],
        ],
        2,
    );
}

#[test]
fn two_operations_and_a_reader() {
    check(
        "two and a reader",
        &[
            &[Op::Swap(&[(A, 0, 1), (B, 0, 1)])],
            &[Op::Swap(&[(B, 1, 2), (A, 1, 2)])],
            &[Op::Read(B), Op::Read(A)],
        ],
        2,
    );
}
