//! The store on a simulated disk.
//!
//! ```text
//! thread t, step s: one commit to keys of its own, which also says s at the key "t"
//!   put | delete | several keys in a transaction or batch | a long value | a value in parts
//!   dropping and clearing its own keyspace
//! between: vacuum, compact, checkpoint, closing and opening again
//! ```
//!
//! What is found says for each thread how many steps it holds; its keys are then exactly those that
//! these steps leave.

use super::DiskSubject;
use super::history::{Allowed, History, Recovered};
use crate::rng::Rng;
use crate::subject::{Fault, FaultKind};
use bristlecone_pmem::media::journal::fault::{FaultDisk, Which};
use bristlecone_pmem::media::{Access, Durability, Journal, Media, MediaOptions};
use bristlecone_pmem::pool::RootError;
use bristlecone_pmem::pool::layout::INITIAL;
use bristlecone_pmem::{OpenError, Pool};
use bristlecone_store::{
    Batch, Keyspace, Store, StoreError, StoreOptions, TransactionOptions, WallClock, WriteError,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// See the module's head.
pub struct StoreOnDisk;

const ROOT: &str = "store";
/// Steps of a run, all threads together.
const STEPS: u64 = 48;
/// Steps that follow a recovery, per thread, at most.
pub(super) const MORE: u64 = 3;
/// The number of keys of a thread in each of its keyspaces.
const KEYS: u64 = 24;

/// The values of a thread's keys, by the number of their keyspace and of the key: the step that
/// wrote each.
type Model = BTreeMap<(u8, u64), u64>;

/// What a step does to the keys, besides saying its number.
#[derive(Clone, Debug)]
enum Change {
    Put(u8, u64),
    Delete(u8, u64),
    /// All keys of the thread's own keyspace, which is dropped or cleared. Not one commit with the
    /// step's number, so it comes before that.
    Drop,
    Clear,
}

struct Plan {
    changes: Vec<Change>,
    transaction: bool,
    maintains: Maintains,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Maintains {
    No,
    Vacuum,
    Compact,
    Checkpoint,
}

/// A step of a thread; it follows from its number.
fn plan(seed: u64, thread: usize, step: u64) -> Plan {
    let mut rng = Rng::of(seed, 0x570e + thread as u64, step);
    let mut changes = Vec::new();
    match rng.below(16) {
        0 => changes.push(Change::Drop),
        1 => changes.push(Change::Clear),
        n => {
            let count = if n < 6 { 2 + rng.below(9) } else { 1 };
            for _ in 0..count {
                let (keyspace, key) = (rng.below(2) as u8, rng.below(KEYS));
                changes.push(match rng.below(4) {
                    0 => Change::Delete(keyspace, key),
                    _ => Change::Put(keyspace, key),
                });
            }
        }
    }
    Plan {
        changes,
        transaction: rng.below(2) == 0,
        maintains: match rng.below(12) {
            0 => Maintains::Vacuum,
            1 => Maintains::Compact,
            2 => Maintains::Checkpoint,
            _ => Maintains::No,
        },
    }
}

fn apply(model: &mut Model, plan: &Plan, step: u64) {
    for change in &plan.changes {
        match *change {
            Change::Put(keyspace, key) => drop(model.insert((keyspace, key), step)),
            Change::Delete(keyspace, key) => drop(model.remove(&(keyspace, key))),
            Change::Drop | Change::Clear => model.retain(|(keyspace, _), _| *keyspace == 0),
        }
    }
}

/// The value that a step wrote to a key.
fn value(seed: u64, step: u64, key: u64) -> Vec<u8> {
    let mut rng = Rng::of(seed, step, key);
    let len = match rng.below(40) {
        // Beyond 64 KiB runs of fresh blocks are written directly.
        0 => 66_000 + rng.index(70_000),
        1..4 => 3_000 + rng.index(30_000),
        4..10 => 300 + rng.index(900),
        _ => rng.index(60),
    };
    let begin = rng.next_u64().to_le_bytes();
    let mut bytes: Vec<u8> = Vec::from(step.to_le_bytes());
    bytes.extend(begin.iter().cycle().take(len));
    bytes
}

fn key_of(thread: usize, key: u64) -> Vec<u8> {
    format!("{thread}/{key:02}").into_bytes()
}

fn threads(seed: u64) -> usize {
    1 + (seed % 3) as usize
}

fn media(access: Access, seed: u64) -> MediaOptions {
    MediaOptions {
        access,
        reserve: 64 << 20,
        durability: match seed / 3 % 5 {
            0 => Durability::Interval(std::time::Duration::from_millis(1)),
            1 => Durability::None,
            _ => Durability::Immediate,
        },
        journal_max: [256 << 10, 1 << 20][(seed / 15 % 2) as usize],
        ..MediaOptions::default()
    }
}

fn store_options() -> StoreOptions {
    StoreOptions {
        node_bytes: Some(1024),
        clock: WallClock::new(|| 1000),
        ..StoreOptions::default().without_thread()
    }
}

fn on(disk: &FaultDisk, options: &MediaOptions) -> Result<Journal, OpenError> {
    Journal::open_on(
        disk.file(Which::Pool),
        disk.file(Which::Journal),
        Path::new("pool"),
        INITIAL,
        options,
    )
}

fn recovery(what: impl std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Recovery, what.to_string())
}

fn progress(what: impl std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Progress, what.to_string())
}

/// The store, opened.
struct Live {
    store: Store<Journal>,
    seed: u64,
}

impl Live {
    /// Makes it on an empty disk, or on what a cut has left of a making.
    fn make(disk: &FaultDisk, seed: u64) -> Result<Self, Fault> {
        let pm = on(disk, &media(Access::Create, seed)).map_err(progress)?;
        let pool = Pool::create_on(pm, Path::new("pool")).map_err(progress)?;
        Self::make_in(&pool, seed)
    }

    fn make_in(pool: &Arc<Pool<Journal>>, seed: u64) -> Result<Self, Fault> {
        let store = Store::create(pool, ROOT, &store_options()).map_err(progress)?;
        Ok(Self { store, seed })
    }

    /// Opens it. Returns `None` if there is none, or only a pool.
    fn open(disk: &FaultDisk, seed: u64) -> Result<Option<Self>, Fault> {
        if disk.bytes(Which::Pool).is_empty() {
            return Ok(None);
        }
        let pm = on(disk, &media(Access::ReadWrite, seed)).map_err(recovery)?;
        let pool = match Pool::open_on(pm, Path::new("pool")) {
            Ok(pool) => pool,
            Err(OpenError::NotAPool { .. }) => return Ok(None),
            Err(e) => return Err(recovery(e)),
        };
        let store = match Store::open(&pool, ROOT, &store_options()) {
            Ok(store) => store,
            Err(StoreError::Root(RootError::NotFound(_))) => return Ok(None),
            Err(e) => return Err(recovery(e)),
        };
        if let Some(damaged) = store.recovery().damage.first() {
            return Err(recovery(damaged));
        }
        Ok(Some(Self { store, seed }))
    }

    fn keyspace(&self, thread: usize, number: u8) -> Result<Keyspace, WriteError> {
        match number {
            0 => self.store.keyspace("shared"),
            _ => self.store.keyspace(&format!("own {thread}")),
        }
    }

    /// Does a step of a thread.
    fn step(&self, thread: usize, step: u64) -> Result<(), WriteError> {
        let plan = plan(self.seed, thread, step);
        match plan.changes.first() {
            Some(Change::Drop) => {
                let own = self.keyspace(thread, 1)?;
                self.store.drop_keyspace(own)?;
            }
            Some(Change::Clear) => {
                let own = self.keyspace(thread, 1)?;
                self.store.clear(own)?;
            }
            _ => {}
        }
        let shared = self.keyspace(thread, 0)?;
        let says = (format!("{thread}").into_bytes(), step.to_le_bytes());
        let mut puts: BTreeMap<(u8, Vec<u8>), Option<Vec<u8>>> = BTreeMap::new();
        for change in &plan.changes {
            match *change {
                Change::Put(keyspace, key) => {
                    let value = value(self.seed, step, key);
                    puts.insert((keyspace, key_of(thread, key)), Some(value));
                }
                Change::Delete(keyspace, key) => {
                    puts.insert((keyspace, key_of(thread, key)), None);
                }
                Change::Drop | Change::Clear => {}
            }
        }
        let own = match puts.keys().any(|(keyspace, _)| *keyspace == 1) {
            true => self.keyspace(thread, 1)?,
            false => shared.clone(),
        };
        let keyspaces = [&shared, &own];
        if plan.transaction {
            let mut tx = self.store.begin(TransactionOptions::default());
            for ((keyspace, key), value) in &puts {
                match value {
                    Some(value) => tx.put(keyspaces[*keyspace as usize], key, value)?,
                    None => tx.delete(keyspaces[*keyspace as usize], key)?,
                }
            }
            tx.put(&shared, &says.0, &says.1)?;
            tx.commit()?;
        } else {
            let mut batch = Batch::new();
            for ((keyspace, key), value) in &puts {
                match value {
                    Some(value) => batch.put(keyspaces[*keyspace as usize], key, value),
                    None => batch.delete(keyspaces[*keyspace as usize], key),
                }
            }
            batch.put(&shared, &says.0, &says.1);
            self.store.write(batch)?;
        }
        match plan.maintains {
            Maintains::No => {}
            Maintains::Vacuum => drop(self.store.vacuum(8)?),
            Maintains::Compact => drop(self.store.compact()?),
            Maintains::Checkpoint => self.store.pool().pm().sync()?,
        }
        Ok(())
    }

    /// Whether what returned is durable.
    fn waits(&self) -> bool {
        self.store.pool().pm().durability() == Durability::Immediate
    }

    /// Returns how many steps of a thread are there, and checks that its keys are theirs.
    fn check(&self, thread: usize) -> Result<u64, Fault> {
        let says = match self.store.find_keyspace("shared") {
            Some(shared) => {
                let says = self.store.get(&shared, format!("{thread}").as_bytes());
                says.map_err(recovery)?
            }
            None => None,
        };
        let steps = match says.as_ref().map(|value| value.first_chunk::<8>()) {
            None => 0,
            Some(Some(steps)) => u64::from_le_bytes(*steps),
            Some(None) => return Err(Fault::new(FaultKind::Torn, "a number of steps is cut")),
        };
        let mut model = Model::new();
        for step in 1..=steps {
            apply(&mut model, &plan(self.seed, thread, step), step);
        }
        let mut found = Model::new();
        let prefix = format!("{thread}/");
        for keyspace in 0..2 {
            let name = match keyspace {
                0 => "shared".to_owned(),
                _ => format!("own {thread}"),
            };
            let Some(handle) = self.store.find_keyspace(&name) else {
                continue;
            };
            let mut wrong = None;
            let snapshot = self.store.snapshot();
            let scanned = snapshot.scan::<Vec<u8>>(&handle, .., |key, entry| {
                let Some(rest) = key.strip_prefix(prefix.as_bytes()) else {
                    return ControlFlow::Continue(());
                };
                let number = std::str::from_utf8(rest).ok().and_then(|n| n.parse().ok());
                let step = entry
                    .value
                    .first_chunk::<8>()
                    .map(|n| u64::from_le_bytes(*n));
                match (number, step) {
                    (Some(number), Some(step)) if entry.value == value(self.seed, step, number) => {
                        found.insert((keyspace, number), step);
                    }
                    _ => wrong = Some(format!("no step wrote the value of {key:?}")),
                }
                ControlFlow::Continue(())
            });
            scanned.map_err(recovery)?;
            if let Some(what) = wrong {
                return Err(Fault::new(FaultKind::Torn, what));
            }
        }
        // The next step may have dropped or cleared the keyspace, and have come no further.
        let next = plan(self.seed, thread, steps + 1);
        let mut dropped = model.clone();
        if matches!(next.changes.first(), Some(Change::Drop | Change::Clear)) {
            apply(&mut dropped, &next, steps + 1);
        }
        if found != model && found != dropped {
            let differs = |key: &&(u8, u64)| found.get(key) != model.get(key);
            let first = model.keys().chain(found.keys()).find(differs);
            let what = format!(
                "thread {thread} has {steps} steps; keyspace and key {first:?} should have the value of step {:?} and have that of {:?}",
                first.and_then(|key| model.get(key)),
                first.and_then(|key| found.get(key)),
            );
            let kind = match model.keys().all(|key| found.contains_key(key)) {
                true => FaultKind::Phantom,
                false => FaultKind::Lost,
            };
            return Err(Fault::new(kind, what));
        }
        Ok(steps)
    }
}

impl Live {
    /// Returns how many steps of each thread are there, if these are allowed.
    fn within(&self, allowed: &Allowed) -> Result<Vec<u64>, Fault> {
        let bounds = allowed.least.iter().zip(&allowed.most).enumerate();
        let each = bounds.map(|(thread, (least, most))| {
            let steps = self.check(thread)?;
            if (least..=most).contains(&&steps) {
                return Ok(steps);
            }
            let kind = match steps < *least {
                true => FaultKind::Lost,
                false => FaultKind::Phantom,
            };
            let what = format!(
                "thread {thread} has {steps} steps; {least} were acknowledged and {most} begun"
            );
            Err(Fault::new(kind, what))
        });
        each.collect()
    }
}

/// Does the steps of a thread from `first` on. Returns the error that ended it early.
fn steps(
    open: &Live,
    disk: &FaultDisk,
    thread: usize,
    (first, count): (u64, u64),
    history: &History,
) -> Option<WriteError> {
    for step in first..first + count {
        history.began(disk, thread, step);
        if let Err(e) = open.step(thread, step) {
            return Some(e);
        }
        if open.waits() {
            history.acknowledged(disk, thread);
        }
    }
    None
}

/// Does steps of all threads.
fn together(
    open: &Live,
    disk: &FaultDisk,
    firsts: &[u64],
    count: u64,
    history: &History,
) -> Result<Option<WriteError>, Fault> {
    let ends = std::thread::scope(|scope| {
        let spawn = |(thread, first): (usize, &u64)| {
            let first = *first;
            scope.spawn(move || steps(open, disk, thread, (first, count), history))
        };
        let threads: Vec<_> = firsts.iter().enumerate().map(spawn).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.collect::<Result<Vec<_>, _>>()
    });
    let ends = ends.map_err(|_| progress("a thread of the run panicked"))?;
    Ok(ends.into_iter().flatten().next())
}

impl DiskSubject for StoreOnDisk {
    fn name(&self) -> &'static str {
        "store"
    }

    fn work(&self, disk: &FaultDisk, seed: u64, history: &History) -> Result<(), Fault> {
        let threads = threads(seed);
        history.has(threads);
        let unless_failed = |e: Fault| match disk.has_failed() {
            true => Ok(()),
            false => Err(e),
        };
        let mut open = match Live::make(disk, seed) {
            Ok(open) => open,
            Err(e) => return unless_failed(e),
        };
        if !open.waits()
            && let Err(e) = open.store.pool().pm().sync()
        {
            return unless_failed(progress(e));
        }
        history.made(disk);
        let each = STEPS / threads as u64 / 2;
        if let Some(e) = together(&open, disk, &vec![1; threads], each, history)? {
            return unless_failed(progress(e));
        }
        let mut next = vec![1 + each; threads];
        if seed % 4 < 3 {
            // Closed in order, or killed, and opened again.
            if !seed.is_multiple_of(4) {
                disk.kill();
            }
            drop(open);
            open = match Live::open(disk, seed) {
                Ok(Some(open)) => open,
                Ok(None) => return unless_failed(progress("what was there is not")),
                Err(e) => return unless_failed(e),
            };
            let allowed = history.allowed(disk.events());
            let found = open.within(&allowed)?;
            history.found(disk, &found);
            next = found.iter().map(|steps| steps + 1).collect();
        }
        if let Some(e) = together(&open, disk, &next, each, history)? {
            return unless_failed(progress(e));
        }
        drop(open);
        Ok(())
    }

    fn recover(&self, disk: &FaultDisk, seed: u64, allowed: &Allowed) -> Result<Recovered, Fault> {
        let open = match Live::open(disk, seed)? {
            Some(open) => open,
            None if allowed.made => {
                return Err(Fault::new(FaultKind::Lost, "the store is gone"));
            }
            None => return Ok(Recovered::default()),
        };
        let found = open.within(allowed)?;
        let opened = Some(disk.events());
        let checked = open.store.check();
        checked.map_err(|found| Fault::broken(found.what, found.leak))?;
        let pool = open.store.pool();
        pool.verify()
            .map_err(|found| Fault::broken(found.what, found.leak))?;
        // It works on.
        let history = History::of(found.len());
        history.made(disk);
        history.found(disk, &found);
        let firsts: Vec<u64> = found.iter().map(|steps| steps + 1).collect();
        let more = 1 + seed % MORE;
        if let Some(e) = together(&open, disk, &firsts, more, &history)? {
            return Err(progress(e));
        }
        for (thread, before) in found.iter().enumerate() {
            let now = open.check(thread)?;
            if now != before + more {
                let what =
                    format!("thread {thread} has {now} steps after {before} and {more} more");
                return Err(Fault::new(FaultKind::Wrong, what));
            }
        }
        Ok(Recovered { opened, history })
    }
}
