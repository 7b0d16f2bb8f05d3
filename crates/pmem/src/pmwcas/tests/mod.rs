//! Operations, their errors and costs, what becomes of blocks, threads.
//!
//! Crash states and schedules are the explorer's (`crash --index pmwcas`).

mod recovery;
mod suspended;

use super::encoding::{CONDITIONAL, DIRTY, GENERATION, MULTI, State, Status, conditional, pointer};
use super::*;
use crate::cell::PWord;
use crate::heap::Heap;
use crate::media::{Counting, Dram, LINE, Media, MediaOptions};
use crate::pool::{DataKind, Pool, PoolOptions, Root, RootKind};
use crate::sync::lock;
use crossbeam_epoch as epoch;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

type Medium = Counting<Dram>;

fn root<M: Media>() -> Root<M> {
    let media = MediaOptions {
        reserve: 1 << 28,
        ..MediaOptions::default()
    };
    let pool = Pool::<M>::create(Path::new("dram"), &PoolOptions { media }).unwrap();
    let kind = RootKind {
        design: "test".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: 0,
    };
    let root = pool.create_root("r", &kind).unwrap();
    root.publish();
    root
}

/// The blocks that were released and reused.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<(Vec<u64>, Vec<u64>)>>);

impl Seen {
    fn take(&self) -> (Vec<u64>, Vec<u64>) {
        std::mem::take(&mut lock(&self.0))
    }
}

impl Recycle for Seen {
    fn release(&self, block: u64) {
        lock(&self.0).0.push(block);
    }

    fn reuse(&self, block: u64) {
        lock(&self.0).1.push(block);
    }
}

/// Descriptors and some words, each in a line of its own.
struct Field<M: Media> {
    swaps: DescriptorPool<M>,
    words: u64,
    seen: Seen,
    heap: Heap<M>,
    _root: Root<M>,
}

const WORDS: u64 = 16;

impl<M: Media> Field<M> {
    fn new(threads: usize, per_thread: usize, words: usize) -> Self {
        let root = root::<M>();
        let heap = root.heap();
        let seen = Seen::default();
        let swaps =
            DescriptorPool::create(&heap, threads, per_thread, words, Box::new(seen.clone()))
                .unwrap();
        let at = heap.alloc(WORDS * LINE as u64).unwrap().get();
        let field = Self {
            swaps,
            words: at,
            seen,
            heap,
            _root: root,
        };
        for i in 0..WORDS as usize {
            field.set(i, i as u64 * 100);
        }
        field
    }

    fn word(&self, i: usize) -> &PWord {
        self.swaps.word(self.place(i))
    }

    fn place(&self, i: usize) -> u64 {
        self.words + (i * LINE) as u64
    }

    fn set(&self, i: usize, value: u64) {
        let pm = self.swaps.pm();
        self.word(i).store(pm, value, Ordering::Relaxed);
    }

    fn get(&self, i: usize) -> u64 {
        self.word(i).load(self.swaps.pm(), Ordering::Relaxed)
    }

    /// Returns a descriptor. Threads of other tests may hold the epoch back for a while.
    fn descriptor(&self) -> Descriptor<'_, M> {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            match self.swaps.allocate_descriptor() {
                Ok(descriptor) => return descriptor,
                Err(_) if Instant::now() < until => std::thread::yield_now(),
                Err(e) => panic!("{e}"),
            }
        }
    }

    /// Executes an operation on words, given with expected and desired values.
    fn swap(&self, words: &[(usize, u64, u64)]) -> bool {
        let mut swap = self.descriptor();
        for (i, old, new) in words {
            swap.add_word(self.word(*i), *old, *new).unwrap();
        }
        assert_eq!(swap.len(), words.len());
        swap.execute().unwrap()
    }

    fn policy(&self, old: u64, new: u64, policy: Policy) -> Descriptor<'_, M> {
        let mut swap = self.descriptor();
        swap.add_word_with(self.word(0), old, new, policy).unwrap();
        swap
    }

    fn reopen(&self) -> Result<(DescriptorPool<M>, Recovered), String> {
        DescriptorPool::open(&self.heap, self.swaps.offset(), Box::new(self.seen.clone()))
    }

    /// Writes a descriptor as an operation leaves it.
    fn forge(
        &self,
        number: usize,
        state: State,
        words: &[(usize, u64, u64)],
        policies: u64,
    ) -> Status {
        let (pm, at) = (self.swaps.pm(), self.swaps.descriptor_at(number));
        let generation = Status(self.swaps.status(number).load(pm, Ordering::Relaxed)).generation();
        let store = |word: u64, value: u64| {
            self.swaps
                .word(at + word * 8)
                .store(pm, value, Ordering::Relaxed);
        };
        for (i, (word, old, new)) in (0_u64..).zip(words) {
            let first = i / 2 * 8 + 1 + i % 2 * 3;
            store(first, self.place(*word));
            store(first + 1, *old);
            store(first + 2, *new);
        }
        let status = Status::new(state, generation, words.len(), policies);
        store(0, status.0);
        status
    }
}

#[test]
fn all_words_change_or_none() {
    for words in 1..=MAX_WORDS {
        let field = Field::<Medium>::new(1, 8, words);
        let all: Vec<_> = (0..words)
            .rev()
            .map(|i| (i, i as u64 * 100, i as u64 + 7))
            .collect();
        assert!(field.swap(&all));
        assert!((0..words).all(|i| field.swaps.read(field.word(i)) == i as u64 + 7));
        // One of them is not as expected: each in turn.
        for wrong in 0..words {
            let mut these: Vec<_> = (0..words).map(|i| (i, i as u64 + 7, 1)).collect();
            these[wrong].1 += 1;
            assert!(!field.swap(&these), "{wrong} of {words}");
            assert!((0..words).all(|i| field.get(i) == i as u64 + 7));
        }
        // A word may stay what it is.
        assert!(field.swap(&[(0, 7, 7)]));
        let counts = field.swaps.counts();
        assert_eq!((counts.attempts, counts.successes), (words as u64 + 2, 2));
        assert_eq!(counts.failures, words as u64);
        assert_eq!(counts.words, ((words + 1) * words + 1) as u64);
        assert_eq!(counts.helps, 0);
    }
}

/// Without flushes, fences and dirty statuses (which a debug assertion finds), where nothing is
/// durable.
#[test]
fn the_same_code_is_volatile_on_dram() {
    let field = Field::<Counting<Dram, false>>::new(1, 4, 3);
    let before = field.swaps.pm().counts();
    for round in 0..100 {
        assert!(field.swap(&[(2, 200 + round, 201 + round), (0, round, round + 1)]));
        assert!(!field.swap(&[(2, 200 + round, 5), (0, round, 5)]));
        assert!(field.swap(&[(1, 100 + round, 101 + round)]));
        let policy = field.policy(0, 4096, Policy::FreeOne);
        assert_eq!(policy.execute(), Ok(false));
    }
    let issued = field.swaps.pm().counts() - before;
    assert_eq!((issued.lines, issued.fences), (0, 0));
    assert!(field.seen.take().1.len() > 50, "blocks come back");
    assert_eq!((field.get(0), field.get(2)), (100, 300));
}

#[test]
fn errors_name_what_is_wrong_and_change_nothing() {
    let field = Field::<Medium>::new(1, 2, 2);
    let mut swap = field.swaps.allocate_descriptor().unwrap();
    assert!(swap.is_empty());
    swap.add_word(field.word(0), 0, 1).unwrap();
    let place = field.place(0);
    assert_eq!(
        swap.add_word(field.word(0), 0, 2),
        Err(WordError::Duplicate(place))
    );
    let flagged = 1 << 61;
    assert_eq!(
        swap.add_word(field.word(1), flagged, 2),
        Err(WordError::Flagged(flagged))
    );
    assert_eq!(
        swap.add_word(field.word(1), 2, DIRTY),
        Err(WordError::Flagged(DIRTY))
    );
    let elsewhere = PWord::new(0);
    let addr = elsewhere.addr().addr();
    assert_eq!(
        swap.add_word(&elsewhere, 0, 1),
        Err(WordError::Foreign(addr))
    );
    let own = field.swaps.status(0);
    assert_eq!(
        swap.add_word(own, 0, 1),
        Err(WordError::Foreign(own.addr().addr()))
    );
    let absent = field.word(1).addr().addr();
    assert_eq!(
        swap.remove_word(field.word(1)),
        Err(WordError::Absent(absent))
    );
    assert_eq!(
        swap.fill(field.word(0), 1),
        Err(WordError::NotReserved(place))
    );
    swap.reserve_entry(field.word(1), 100, Policy::None)
        .unwrap();
    assert_eq!(
        swap.add_word(field.word(2), 200, 1),
        Err(WordError::TooMany(2))
    );
    assert_eq!(
        swap.fill(field.word(1), FLAGS),
        Err(WordError::Flagged(FLAGS))
    );
    assert_eq!(swap.execute(), Err(ExecuteError::Unfilled(field.place(1))));
    let empty = field.swaps.allocate_descriptor().unwrap();
    assert_eq!(empty.execute(), Err(ExecuteError::Empty));
    for error in [
        WordError::Duplicate(64),
        WordError::Flagged(64),
        WordError::Absent(64),
    ] {
        assert!(error.to_string().contains("0x40"), "{error}");
    }
    // A word that was taken out is not part of it.
    let mut swap = field.swaps.allocate_descriptor().unwrap();
    swap.add_word(field.word(0), 55, 1).unwrap();
    swap.reserve_entry(field.word(1), 100, Policy::None)
        .unwrap();
    swap.remove_word(field.word(0)).unwrap();
    swap.fill(field.word(1), 9).unwrap();
    assert_eq!(swap.execute(), Ok(true));
    assert_eq!((field.get(0), field.get(1)), (0, 9));
}

#[test]
fn a_block_that_stays_or_is_named_twice_is_not_recycled() {
    let field = Field::<Medium>::new(1, 8, 4);
    let mut swap = field.descriptor();
    let old = field.get(1);
    for policy in [
        Policy::FreeOne,
        Policy::FreeOldOnSuccess,
        Policy::FreeNewOnFailure,
    ] {
        assert_eq!(
            swap.add_word_with(field.word(1), old, old, policy),
            Err(WordError::Recycled(old))
        );
    }
    swap.add_word_with(field.word(1), old, 4096, Policy::FreeOne)
        .unwrap();
    // The old one of both, the new one of both; but one word may hand its block to another.
    assert_eq!(
        swap.add_word_with(field.word(2), old, 0, Policy::FreeOldOnSuccess),
        Err(WordError::Recycled(old))
    );
    assert_eq!(
        swap.add_word_with(field.word(2), 200, 4096, Policy::FreeNewOnFailure),
        Err(WordError::Recycled(4096))
    );
    swap.reserve_entry(field.word(2), 200, Policy::FreeNewOnFailure)
        .unwrap();
    assert_eq!(
        swap.fill(field.word(2), 4096),
        Err(WordError::Recycled(4096))
    );
    swap.fill(field.word(2), old).unwrap();
    assert!(swap.execute().unwrap());
    assert_eq!((field.get(1), field.get(2)), (4096, old));
}

#[test]
fn descriptors_come_back_and_run_out() {
    let field = Field::<Medium>::new(1, 4, 2);
    let held: Vec<_> = (0..4)
        .map(|_| field.swaps.allocate_descriptor().unwrap())
        .collect();
    let out = field.swaps.allocate_descriptor().unwrap_err();
    assert_eq!(out, Exhausted { descriptors: 4 });
    drop(held);
    for i in 0..10_000 {
        assert!(field.swap(&[(0, i, i + 1), (1, 100 + i, 101 + i)]));
    }
}

/// Lines and fences of operations whose words are in lines of their own; see the table in the
/// module's head.
#[test]
fn what_operations_cost() {
    let field = Field::<Medium>::new(1, 64, 4);
    let cost = |words: &[(usize, u64, u64)]| {
        let before = field.swaps.pm().counts();
        let done = field.swap(words);
        let paid = field.swaps.pm().counts() - before;
        (done, paid.lines, paid.fences)
    };
    let goldens = [(1, 3, 3), (2, 6, 4), (3, 9, 4), (4, 11, 4)];
    for (n, lines, fences) in goldens {
        let words: Vec<_> = (0..n)
            .map(|i| (i, field.get(i), field.get(i) + 1))
            .collect();
        assert_eq!(cost(&words), (true, lines, fences), "{n} words");
    }
    let wrong = [(0, 1 << 40, 1), (1, field.get(1), 1)];
    assert_eq!(cost(&wrong), (false, 1, 1), "the first word is another");
    let wrong = [(0, field.get(0), 1), (1, 1 << 40, 1)];
    assert_eq!(cost(&wrong), (false, 2, 2), "the second word is another");
    let before = field.swaps.pm().counts();
    assert_eq!(field.swaps.read(field.word(3)), field.get(3));
    assert_eq!((field.swaps.pm().counts() - before).lines, 0, "reading");
}

#[test]
fn policies_say_which_block_goes() {
    for (policy, on_success, on_failure) in [
        (Policy::None, None, None),
        (Policy::FreeOne, Some(4096), Some(8192)),
        (Policy::FreeOldOnSuccess, Some(4096), None),
        (Policy::FreeNewOnFailure, None, Some(8192)),
    ] {
        let mut field = Field::<Medium>::new(1, 2, 2);
        let expect = |field: &mut Field<Medium>, block: Option<u64>, what: &str| {
            field.swaps.quiesce();
            let blocks: Vec<u64> = block.into_iter().collect();
            assert_eq!(
                field.seen.take(),
                (blocks.clone(), blocks),
                "{policy:?}, {what}"
            );
            field.swaps.quiesce();
            assert_eq!(
                field.seen.take(),
                (vec![], vec![]),
                "{policy:?}, {what}, again"
            );
        };
        field.set(0, 4096);
        assert_eq!(field.policy(4096, 8192, policy).execute(), Ok(true));
        let held: Vec<u64> = on_success.into_iter().collect();
        assert_eq!(field.swaps.held_blocks(), held);
        expect(&mut field, on_success, "success");
        assert_eq!(field.policy(4096, 8192, policy).execute(), Ok(false));
        expect(&mut field, on_failure, "failure");
        field.policy(4096, 8192, policy).discard();
        expect(&mut field, on_failure, "discarded");
        // 0 leads nowhere.
        field.set(0, 0);
        assert_eq!(field.policy(0, 5, policy).execute(), Ok(true));
        assert_eq!(field.policy(7, 0, policy).execute(), Ok(false));
        expect(&mut field, None, "nowhere");
    }
}

/// Without a close: blocks come back while operations go on, each once, and none while a thread may
/// look.
#[test]
fn blocks_come_back_after_their_readers() {
    let field = Field::<Medium>::new(1, 4, 2);
    field.set(0, 1 << 20);
    let guard = epoch::pin();
    for i in 0..3 {
        let (old, new) = ((1 << 20) + i, (1 << 20) + i + 1);
        assert_eq!(field.policy(old, new, Policy::FreeOne).execute(), Ok(true));
    }
    assert_eq!(
        field.seen.take(),
        (vec![], vec![]),
        "this thread may look at them"
    );
    drop(guard);
    for i in 3..200 {
        let (old, new) = ((1 << 20) + i, (1 << 20) + i + 1);
        assert_eq!(field.policy(old, new, Policy::FreeOne).execute(), Ok(true));
    }
    let (released, mut reused) = field.seen.take();
    assert_eq!(released, reused);
    assert!(reused.len() >= 190, "{}", reused.len());
    reused.sort_unstable();
    reused.dedup();
    assert_eq!(released.len(), reused.len(), "each once");
}

/// Transfers between random words by threads: the sum stays, and what is read is a value.
fn transfers<M: Media>(threads: usize) {
    const TIMES: u64 = 3_000;
    let field = Field::<M>::new(threads, 16, 3);
    for i in 0..WORDS as usize {
        field.set(i, 1_000_000);
    }
    let succeeded = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            let (field, succeeded) = (&field, &succeeded);
            scope.spawn(move || {
                let mut state = thread * 0x9E37_79B9 + 1;
                let mut random = |n: u64| {
                    state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                    (state >> 33) % n
                };
                for _ in 0..TIMES {
                    // Few words, so that operations meet; in any order.
                    let from = random(4) as usize;
                    let to = [(from + 1) % 4, (from + 3) % 4];
                    let words = [from, to[0], to[1]];
                    let read = words.map(|i| field.swaps.read(field.word(i)));
                    assert!(read.iter().all(|value| value & FLAGS == 0));
                    let amount = random(100);
                    if field.swap(&[
                        (words[0], read[0], read[0] - 2 * amount),
                        (words[1], read[1], read[1] + amount),
                        (words[2], read[2], read[2] + amount),
                    ]) {
                        succeeded.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let sum: u64 = (0..4).map(|i| field.get(i)).sum();
    assert_eq!(sum, 4_000_000);
    let counts = field.swaps.counts();
    assert_eq!(counts.attempts, threads as u64 * TIMES);
    assert_eq!(counts.successes, succeeded.into_inner());
    assert!(counts.successes >= TIMES, "{counts:?}");
}

#[test]
fn threads_keep_the_sum() {
    for threads in [2, 4, 8] {
        transfers::<Medium>(threads);
        transfers::<Dram>(threads);
    }
}

/// If an operation's thread has stopped, the next reader or writer that meets the operation ends
/// it, at each of its states.
#[test]
fn who_meets_an_operation_ends_it() {
    let words = [(1, 100, 11), (2, 200, 22)];
    for by_reading in [true, false] {
        for installed in 1..=2 {
            let field = Field::<Medium>::new(1, 4, 3);
            let status = field.forge(0, State::Undecided, &words, 0);
            let own = pointer(0, status.generation());
            for (word, _, _) in &words[..installed] {
                field.set(*word, own);
            }
            if by_reading {
                assert_eq!(field.swaps.read(field.word(1)), 11);
            } else {
                assert!(field.swap(&[(1, 11, 12), (3, 300, 33)]));
                assert_eq!(field.swaps.read(field.word(1)), 12);
            }
            assert_eq!(field.get(2), 22, "all of it");
            assert!(field.swaps.counts().helps > 0);
        }
    }
    // Its second word is another: it fails, and the first word is what it was.
    let field = Field::<Medium>::new(1, 4, 3);
    let status = field.forge(0, State::Undecided, &[(1, 100, 11), (2, 201, 22)], 0);
    field.set(1, pointer(0, status.generation()));
    assert_eq!(field.swaps.read(field.word(1)), 100);
    assert_eq!(field.get(2), 200);
    // An attempt that was not completed, of one that succeeded: the old value.
    let status = field.forge(0, State::Succeeded, &words, 0);
    field.set(1, conditional(0, status.generation(), 0, 3));
    assert_eq!(field.swaps.read(field.word(1)), 100);
}
