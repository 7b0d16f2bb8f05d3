//! The micro-logs: a map whose entries move between two nodes.
//!
//! ```text
//! root word 0     --> log area
//! root words 1, 2 --> node | entries | state of key 0 | value | state of key 1 | ...
//! ```
//!
//! A key has a place in either node, and is in at most one of them. An insertion puts it into the
//! node with fewer entries. An upsert or update moves it to the other node. So every change takes
//! several words, in one node or in both:
//!
//! | new value | protected by |
//! | --- | --- |
//! | even | an undo record of the nodes that change |
//! | odd, and removals | a redo record of pairs of place and new word |
//!
//! # Crash states
//! The words that the armed record covers, in any state. Recovery undoes or redoes them.

use super::{make_pool, open_pool, verify_pool};
use crate::subject::{Fault, FaultKind, Live, Op, Opened, Reply, Subject};
use bristlecone_pmem::log::{Range, Record, image_words};
use bristlecone_pmem::media::Sim;
use bristlecone_pmem::pool::{DataKind, Root, RootError, RootKind};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Heap, Logs, Media, PWord, Pool};
use crossbeam_epoch as epoch;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

const ROOT: &str = "log";
/// Root word: the log area.
const LOGS: usize = 0;
/// First of the root words of the nodes.
const NODES: usize = 1;
const KEYS: u64 = 40;
/// Bytes of a node: the number of its entries, and a state and a value for every key.
const NODE: u64 = 8 + KEYS * 16;
/// State of a key that is in the node.
const THERE: u64 = u64::from_le_bytes(*b"IS-THERE");

/// The micro-logs as a subject.
#[derive(Clone, Copy, Debug)]
pub struct LogSubject;

fn kind() -> RootKind {
    RootKind {
        design: "log-subject".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: NODE as u32,
    }
}

impl Subject for LogSubject {
    fn name(&self) -> String {
        "log".into()
    }

    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        let made = |e: &dyn std::fmt::Display| Fault::new(FaultKind::Progress, e.to_string());
        let pool = make_pool()?;
        let root = pool.create_root(ROOT, &kind()).map_err(|e| made(&e))?;
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let logs =
            Logs::create(&heap, 2, image_words(2, 2 * NODE as usize)).map_err(|e| made(&e))?;
        let mut nodes = [0; 2];
        for node in &mut nodes {
            *node = heap.alloc(NODE).map_err(|e| made(&e))?.get();
        }
        let live = LiveLog::over(pool, root, heap, logs, nodes);
        let pm = live.pool.pm();
        for (i, node) in nodes.into_iter().enumerate() {
            // ORDERING (all): Relaxed; one thread, and nothing leads to the nodes yet.
            live.word(node).store(pm, 0, Ordering::Relaxed);
            for key in 0..KEYS {
                live.state(node, key).store(pm, 0, Ordering::Relaxed);
                live.value(node, key).store(pm, 0, Ordering::Relaxed);
            }
            // PERSIST: the empty node; fenced by `publish`.
            pm.flush(live.word(node).addr(), NODE as usize);
            let word = live.root.word(NODES + i);
            word.store(pm, node, Ordering::Relaxed);
        }
        let word = live.root.word(LOGS);
        word.store(pm, live.logs.offset(), Ordering::Relaxed);
        // PERSIST: the root words of the logs and the nodes, in one line; fenced by `publish` too.
        pm.flush(word.addr(), (NODES + 2) * 8);
        live.root.publish();
        Ok(Box::new(live))
    }

    fn open(&self) -> Result<Opened, Fault> {
        let Some(pool) = open_pool()? else {
            return Ok(Opened::Absent);
        };
        let root = match pool.open_root(ROOT, Some(&kind())) {
            Ok(root) => root,
            Err(RootError::NotFound(_)) => return Ok(Opened::Absent),
            Err(e) => return Err(Fault::new(FaultKind::Recovery, e.to_string())),
        };
        recover(pool, root)
            .map(|live| Opened::Live(Box::new(live)))
            .map_err(|what| Fault::new(FaultKind::Recovery, what))
    }

    fn max_key(&self) -> u64 {
        KEYS - 1
    }
}

fn recover(pool: Arc<Pool<Sim>>, root: Root<Sim>) -> Result<LiveLog, String> {
    let guard = epoch::pin();
    let heap = root.heap();
    heap.begin_recovery();
    // ORDERING (both): Relaxed; the root is being opened.
    let at = root.word(LOGS).load(pool.pm(), Ordering::Relaxed);
    let logs = Logs::open(&heap, at, image_words(2, 2 * NODE as usize))?;
    let nodes = [NODES, NODES + 1].map(|i| root.word(i).load(pool.pm(), Ordering::Relaxed));
    logs.mark(&heap, &guard)?;
    for node in nodes {
        heap.mark(node, NODE, &guard)?;
    }
    heap.finish_recovery();
    let live = LiveLog::over(pool, root, heap, logs, nodes);
    live.logs.recover(|record| live.apply_record(record))?;
    Ok(live)
}

struct LiveLog {
    logs: Logs<Sim>,
    nodes: [u64; 2],
    /// Held while the words of the nodes are changed or read.
    changing: Mutex<()>,
    heap: Heap<Sim>,
    root: Root<Sim>,
    pool: Arc<Pool<Sim>>,
}

/// A place in a node, and its new word.
type Change = (u64, u64);

impl LiveLog {
    fn over(
        pool: Arc<Pool<Sim>>,
        root: Root<Sim>,
        heap: Heap<Sim>,
        logs: Logs<Sim>,
        nodes: [u64; 2],
    ) -> Self {
        Self {
            logs,
            nodes,
            changing: Mutex::default(),
            heap,
            root,
            pool,
        }
    }

    /// Returns the word at `at`, a place in a node.
    fn word(&self, at: u64) -> &PWord {
        let pm = self.pool.pm();
        debug_assert!(at.is_multiple_of(8) && at + 8 <= pm.len(), "{at:#x}");
        // SAFETY: 1. nodes are blocks of `NODE` bytes that the allocator handed out or recovery
        // marked, and `apply_record` checks that a record's place is inside one; 2. places are
        // 8-aligned; 3. any bits are a valid PWord; 4. the mapping lives as long as the pool, which
        // `self` holds.
        unsafe { &*pm.base().wrapping_add(at as usize).cast_const().cast() }
    }

    fn state(&self, node: u64, key: u64) -> &PWord {
        self.word(node + 8 + key * 16)
    }

    fn value(&self, node: u64, key: u64) -> &PWord {
        self.word(node + 16 + key * 16)
    }

    #[track_caller]
    fn load(&self, word: &PWord) -> u64 {
        // ORDERING: Relaxed; the mutex orders operations, and creation and recovery run on one
        // thread.
        word.load(self.pool.pm(), Ordering::Relaxed)
    }

    fn inside(&self, at: u64, bytes: u64) -> bool {
        let fits = |node: &u64| at >= *node && at + bytes <= node + NODE;
        at.is_multiple_of(8) && self.nodes.iter().any(fits)
    }

    /// Stores and flushes the changes.
    fn store(&self, changes: &[Change]) {
        let pm = self.pool.pm();
        for (at, new) in changes {
            // ORDERING: Relaxed; the mutex orders operations.
            self.word(*at).store(pm, *new, Ordering::Relaxed);
            // PERSIST: the change; fenced before its record is disarmed.
            pm.flush_of(self.word(*at));
        }
    }

    fn apply_record(&self, record: Record<'_>) -> Result<(), String> {
        match record {
            Record::Undo(ranges) => match ranges.iter().find(|r| !self.inside(r.off, r.bytes)) {
                Some(range) => Err(format!("an image of {range:?}, which is no node")),
                None => Ok(()),
            },
            Record::Redo(words) => {
                let (pairs, rest) = words.as_chunks::<2>();
                if !rest.is_empty() || pairs.iter().any(|pair| !self.inside(pair[0], 8)) {
                    return Err(format!("a change that is of no node: {words:#x?}"));
                }
                let changes: Vec<Change> = pairs.iter().map(|pair| (pair[0], pair[1])).collect();
                self.store(&changes);
                Ok(())
            }
        }
    }

    /// Makes all changes in one atomic step.
    fn change(&self, changes: &[Change], undo: bool) {
        let mut slot = self.logs.take();
        if undo {
            let changed = |node: &u64| changes.iter().any(|c| c.0 >= *node && c.0 < node + NODE);
            let ranges: Vec<Range> = self
                .nodes
                .into_iter()
                .filter(changed)
                .map(|off| Range { off, bytes: NODE })
                .collect();
            slot.arm_images(&ranges);
        } else {
            let words: Vec<u64> = changes.iter().flat_map(|(at, new)| [*at, *new]).collect();
            slot.arm(&words);
        }
        self.store(changes);
        // PERSIST: the changes, before their record is disarmed.
        self.pool.pm().fence();
        slot.disarm();
    }

    /// Returns the node that `key` is in.
    fn find(&self, key: u64) -> Option<usize> {
        (0..2).find(|i| self.load(self.state(self.nodes[*i], key)) == THERE)
    }

    fn entries(&self, node: usize) -> u64 {
        self.load(self.word(self.nodes[node]))
    }

    fn insert(&self, key: u64, value: u64) {
        let to = usize::from(self.entries(1) < self.entries(0));
        let node = self.nodes[to];
        let changes = [
            (node, self.entries(to) + 1),
            (node + 8 + key * 16, THERE),
            (node + 16 + key * 16, value),
        ];
        self.change(&changes, value.is_multiple_of(2));
    }

    /// Moves a key that is in node `from` to the other one, with a new value.
    fn shift(&self, key: u64, from: usize, value: u64) {
        let (old, new) = (self.nodes[from], self.nodes[1 - from]);
        let changes = [
            (old, self.entries(from) - 1),
            (old + 8 + key * 16, 0),
            (new, self.entries(1 - from) + 1),
            (new + 8 + key * 16, THERE),
            (new + 16 + key * 16, value),
        ];
        self.change(&changes, value.is_multiple_of(2));
    }

    fn remove(&self, key: u64, from: usize) {
        let node = self.nodes[from];
        let changes = [(node, self.entries(from) - 1), (node + 8 + key * 16, 0)];
        self.change(&changes, false);
    }
}

impl Live for LiveLog {
    fn apply(&self, op: &Op) -> Result<Reply, Fault> {
        let _changing = lock(&self.changing);
        match *op {
            Op::Insert(key, value) => match self.find(key) {
                Some(_) => return Ok(Reply::Refused),
                None => self.insert(key, value),
            },
            Op::Upsert(key, value) => match self.find(key) {
                Some(from) => self.shift(key, from, value),
                None => self.insert(key, value),
            },
            Op::Update(key, value) => match self.find(key) {
                Some(from) => self.shift(key, from, value),
                None => return Ok(Reply::Refused),
            },
            Op::Remove(key) => match self.find(key) {
                Some(from) => self.remove(key, from),
                None => return Ok(Reply::Refused),
            },
            Op::Get(key) => {
                let node = self.find(key).map(|i| self.nodes[i]);
                let value = node.map(|node| self.load(self.value(node, key)));
                return Ok(Reply::Found(value));
            }
            Op::Batch {
                first,
                step,
                count,
                value,
            } => {
                for key in super::batch_keys(first, step, count) {
                    if self.find(key).is_none() {
                        self.insert(key, value);
                    }
                }
            }
            Op::Compact => {
                self.pool
                    .compact()
                    .map_err(|e| Fault::new(FaultKind::Progress, format!("{op:?}: {e}")))?;
            }
            Op::Reopen => {
                let what = format!("{op:?}: the explorer closes and opens");
                return Err(Fault::new(FaultKind::Progress, what));
            }
        }
        Ok(Reply::Done)
    }

    fn observe(&self, each: &mut dyn FnMut(u64, u64)) -> Result<(), Fault> {
        for key in 0..KEYS {
            if let Some(node) = self.find(key) {
                each(key, self.load(self.value(self.nodes[node], key)));
            }
        }
        Ok(())
    }

    fn verify(&self) -> Result<(), Fault> {
        let broken = |what: String| Err(Fault::new(FaultKind::Structure, what));
        let mut there = [0; 2];
        for key in 0..KEYS {
            let states = self.nodes.map(|node| self.load(self.state(node, key)));
            for (count, state) in there.iter_mut().zip(states) {
                match state {
                    THERE => *count += 1,
                    0 => {}
                    state => return broken(format!("key {key}: state {state:#x}")),
                }
            }
            if states == [THERE; 2] {
                return broken(format!("key {key} is in both nodes"));
            }
        }
        let counted = [self.entries(0), self.entries(1)];
        if counted != there {
            return broken(format!(
                "{there:?} entries in the nodes, {counted:?} counted"
            ));
        }
        if let Err(what) = self
            .logs
            .recover(|record| Err(format!("{record:?} is armed")))
        {
            return broken(what);
        }
        let live = self.heap.live_blocks();
        if live != 3 {
            let what = format!("{live} blocks are in use: two nodes and a log have 3");
            return Err(Fault::new(FaultKind::Leak, what));
        }
        verify_pool(&self.pool, false).map(|_| ())
    }

    fn close(self: Box<Self>) -> Result<(), Fault> {
        // Dropping the pool, after its root, marks it clean.
        Ok(())
    }
}
