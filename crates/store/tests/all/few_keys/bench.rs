//! A store, its model, and all that a program has open on them; what each step does to both.

use super::looks::{shown, value_of};
use super::model::{Bytes, Change, Entries, Keys, Model, Moment, Value, expiry};
use super::program::{CURSORS, Given};
use super::program::{Give, NAMES, Program, Range, SNAPSHOTS, Step, TRANSACTIONS, Which};
use super::transactions::Tx;
use crate::common::{Hands, TREE, create, directory, on, open};
use bristlecone_pmem::Pool;
use bristlecone_pmem::media::{Auto, MediumKind};
use bristlecone_store::{
    Batch, Cursor, Entry, Keyspace, Snapshot, Step as StoreStep, Store, StoreOptions, Update,
    WriteError,
};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::fmt::Debug;
use std::ops::{Bound, ControlFlow};
use std::path::PathBuf;
use std::rc::Rc;
use tempfile::TempDir;

/// An error says in words how the store differs from the model.
pub type Outcome<T = ()> = Result<T, String>;

/// Returns the text as an error unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+));
        }
    };
}
pub(super) use ensure;

/// Returns an error unless both are the same.
pub fn same<T: PartialEq + Debug>(what: &str, found: &T, expected: &T) -> Outcome {
    ensure!(
        found == expected,
        "{what}: {found:?}, and it should be {expected:?}"
    );
    Ok(())
}

/// Bytes of address space that the pool may grow to.
const RESERVE: u64 = 512 << 20;
/// Bytes of a value in parts.
pub const PARTS: usize = (8 << 20) + 5;

/// A cursor, and what it is to give yet.
struct Held {
    cursor: Cursor<Auto>,
    rest: std::vec::IntoIter<(Vec<u8>, Value)>,
    position: Option<Vec<u8>>,
}

pub struct Bench<'p> {
    pub program: &'p Program,
    pub design: &'static str,
    pub model: Model,
    /// Of each keyspace of the model that this session has a handle of.
    pub handles: Vec<Option<Keyspace>>,
    pub txs: [Option<Tx>; TRANSACTIONS],
    pub snapshots: [Option<(Snapshot<Auto>, Moment)>; SNAPSHOTS],
    cursors: [Option<Held>; CURSORS],
    /// `None` while it is being opened again.
    store: Option<Store<Auto>>,
    pub(super) hands: Hands,
    options: StoreOptions,
    /// Values that were made: each is another one.
    made: usize,
    /// How often the pool's files were copied.
    copies: usize,
    dir: TempDir,
}

impl<'p> Bench<'p> {
    pub fn new(design: &'static str, program: &'p Program) -> Self {
        let hands = Hands::default();
        let options = StoreOptions {
            clock: hands.clock(),
            node_bytes: program.page.filter(|_| design == TREE),
            ..StoreOptions::default().without_thread()
        };
        let mut bench = Self {
            program,
            design,
            model: Model::default(),
            handles: Vec::new(),
            txs: Default::default(),
            snapshots: Default::default(),
            cursors: Default::default(),
            store: None,
            hands,
            options,
            made: 0,
            copies: 0,
            dir: directory(),
        };
        let home = bench.home();
        std::fs::create_dir(&home).unwrap();
        let pool = Pool::create(&home.join("pool"), &on(program.medium, RESERVE)).unwrap();
        bench.store = Some(create(&pool, "s", design, &bench.options).unwrap());
        bench
    }

    pub fn store(&self) -> &Store<Auto> {
        self.store.as_ref().unwrap()
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join(self.copies.to_string())
    }

    pub fn key(&self, key: usize) -> &'p [u8] {
        &self.program.keys[key]
    }

    pub fn keys(&self, range: Range) -> Keys {
        let bound = |bound: Bound<usize>| bound.map(|key| self.key(key).to_vec());
        match range {
            Range::Between(from, to) => Keys::Between(bound(from), bound(to)),
            Range::Prefix(key) => Keys::Prefix(self.key(key).to_vec()),
        }
    }

    /// The keyspace that a step is about, if there is one: its number in the model, and its handle.
    pub fn resolve(&self, which: Which) -> Option<(usize, Keyspace)> {
        let name = NAMES[which.name];
        let had_it = |number: &usize| {
            let space = &self.model.spaces[*number];
            let had = space.names.iter().rev().find_map(|(_, name)| *name);
            space.name().is_none() && had == Some(name) && self.handles[*number].is_some()
        };
        let number = if which.is_stale {
            (0..self.model.spaces.len()).rev().find(had_it)?
        } else {
            self.model.find(name)?
        };
        Some((number, self.handles[number].clone()?))
    }

    /// Returns the answer of a write to a keyspace; `None` if it was refused since that is dropped,
    /// as it has to be then.
    pub(super) fn written<T: Debug>(
        &self,
        space: usize,
        answer: Result<T, WriteError>,
    ) -> Outcome<Option<T>> {
        match (self.model.spaces[space].name(), answer) {
            (Some(_), Ok(answer)) => Ok(Some(answer)),
            (None, Err(WriteError::Dropped { .. })) => Ok(None),
            (name, answer) => Err(format!("of keyspace {name:?}: {answer:?}")),
        }
    }

    pub fn give(&mut self, give: Give) -> Bytes {
        self.made += 1;
        Rc::new(match give {
            Give::Number(number) => number.to_string().into_bytes(),
            Give::Bytes(len) => {
                let one = format!("{} {len} ", self.made).into_bytes();
                one.into_iter().cycle().take(len).collect()
            }
        })
    }

    pub fn value(&mut self, give: Give, expires_at: Option<u64>) -> Value {
        Value {
            bytes: self.give(give),
            expires_at: expiry(expires_at),
        }
    }

    pub fn given(&mut self, given: Given) -> Option<Value> {
        given.map(|(give, expires_at)| self.value(give, expires_at))
    }

    fn put(&mut self, space: usize, key: &[u8], value: Option<Value>) {
        self.model.change([(space, key.to_vec(), value)], false);
    }

    /// Takes a step, and compares what it says.
    pub fn step(&mut self, step: &Step) -> Outcome {
        match step.clone() {
            Step::Put(which, key, give, expires_at) => {
                let Some((space, k)) = self.resolve(which) else {
                    return Ok(());
                };
                let (key, value) = (self.key(key), self.value(give, expires_at));
                let put = (self.store()).put_expiring(&k, key, &value.bytes, expires_at);
                if self.written(space, put)?.is_some() {
                    self.put(space, key, Some(value));
                }
                Ok(())
            }
            Step::PutParts(which, key, expires_at) => {
                let Some((space, k)) = self.resolve(which) else {
                    return Ok(());
                };
                let (key, value) = (self.key(key), self.value(Give::Bytes(PARTS), expires_at));
                let put = self.store().put_from(&k, key, &value.bytes[..], expires_at);
                if let Some(len) = self.written(space, put)? {
                    same("length", &len, &(PARTS as u64))?;
                    self.put(space, key, Some(value));
                }
                Ok(())
            }
            Step::Delete(which, key) => {
                let Some((space, k)) = self.resolve(which) else {
                    return Ok(());
                };
                let key = self.key(key);
                let there = self.model.spaces[space].get(key, self.model.present());
                let expected = there.is_some();
                let deleted = self.store().delete(&k, key);
                if let Some(deleted) = self.written(space, deleted)? {
                    same("deleted", &deleted, &expected)?;
                    self.put(space, key, None);
                }
                Ok(())
            }
            Step::Swap(..)
            | Step::Increment(..)
            | Step::Merge(..)
            | Step::Keep(..)
            | Step::Expire(..) => self.update(step),
            Step::Write(changes) => self.write(changes),
            Step::MultiPut(which, puts, refused) => self.multi_put(which, puts, refused),
            Step::Execute(which, steps, most) => self.execute(which, steps, most),
            Step::Snapshot(s) => {
                let moment = self.model.snapshot();
                let snapshot = self.store().snapshot();
                self.snapshots[s] = Some((snapshot, moment));
                Ok(())
            }
            Step::Clone(from, to) => {
                self.snapshots[to] = self.snapshots[from].clone();
                Ok(())
            }
            Step::Release(s) => {
                self.snapshots[s] = None;
                Ok(())
            }
            Step::Open(c, within, which, range, down) => {
                self.open_cursor(c, within, which, range, down);
                Ok(())
            }
            Step::Next(c, most, keys_only) => self.next(c, most, keys_only),
            Step::Close(c) => {
                self.cursors[c] = None;
                Ok(())
            }
            Step::Make(name) => self.make(NAMES[name]),
            Step::Drop(which) => self.drop_keyspace(which, false),
            Step::Clear(which) => self.drop_keyspace(which, true),
            Step::Rename(which, to) => self.rename(which, NAMES[to]),
            Step::Clock(now) => {
                self.model.wall = now;
                self.hands.set(now);
                Ok(())
            }
            Step::Vacuum(most) => {
                let report = self.store().vacuum(most).map_err(|e| e.to_string())?;
                self.vacuumed(Some(report.expired), false)
            }
            Step::VacuumAll => {
                let report = self.store().vacuum_all().map_err(|e| e.to_string())?;
                self.vacuumed(Some(report.expired), true)
            }
            Step::Compact => {
                self.store().compact().map_err(|e| e.to_string())?;
                self.vacuumed(None, true)
            }
            Step::Scrub => {
                let damage = self.store().scrub().map_err(|e| e.to_string())?;
                ensure!(damage.is_empty(), "scrubbing found {damage:?}");
                Ok(())
            }
            Step::Check => self.check(),
            Step::Reopen => {
                self.close();
                self.open_again()
            }
            Step::Kill => {
                let from = self.home();
                self.copies += 1;
                crate::journal::copy(&from, &self.home());
                self.close();
                std::fs::remove_dir_all(&from).unwrap();
                self.open_again()
            }
            of_transaction => self.transaction(&of_transaction),
        }
    }

    pub fn check(&self) -> Outcome {
        let checked = self.store().check();
        checked.map(drop).map_err(|e| e.to_string())
    }

    /// Lets go of all that is open.
    pub fn release(&mut self) {
        self.txs = Default::default();
        self.snapshots = Default::default();
        self.cursors = Default::default();
    }

    fn close(&mut self) {
        self.release();
        self.handles.iter_mut().for_each(|handle| *handle = None);
        self.store = None;
    }

    fn open_again(&mut self) -> Outcome {
        let options = on(self.program.medium, RESERVE);
        let pool = Pool::open(&self.home().join("pool"), &options).map_err(|e| e.to_string())?;
        let store = open(&pool, "s", &self.options).map_err(|e| e.to_string())?;
        for (space, handle) in self.model.spaces.iter().zip(&mut self.handles) {
            if let Some(name) = space.name() {
                *handle = store.find_keyspace(name);
                ensure!(handle.is_some(), "keyspace {name:?} is gone");
            }
        }
        self.store = Some(store);
        self.model.latest = 0;
        Ok(())
    }

    /// An update of one key by what it has.
    fn update(&mut self, step: &Step) -> Outcome {
        let (Step::Swap(which, key, ..)
        | Step::Increment(which, key, _)
        | Step::Merge(which, key)
        | Step::Keep(which, key)
        | Step::Expire(which, key, _)) = *step
        else {
            unreachable!("{step:?}")
        };
        let Some((space, k)) = self.resolve(which) else {
            return Ok(());
        };
        let key = self.key(key);
        let there = self.model.spaces[space].get(key, self.model.present());
        let there = there.cloned();
        let expires_at = there.as_ref().and_then(|value| value.expires_at);
        let found = there.as_ref().map(|value| value.bytes.as_slice());
        let with = |bytes: Vec<u8>, expires_at| {
            let bytes = Rc::new(bytes);
            Some(Some(Value { bytes, expires_at }))
        };
        // The new state, if there is one.
        let new: Option<Option<Value>> = match *step {
            Step::Swap(_, _, is_right, new) => {
                let new = new.map(|give| self.give(give));
                let wrong = Some(&b"something else"[..]);
                let expected = if is_right { found } else { wrong };
                let new_bytes = new.as_ref().map(|bytes| bytes.as_slice());
                let swapped = (self.store()).compare_and_swap(&k, key, expected, new_bytes);
                let Some(swapped) = self.written(space, swapped)? else {
                    return Ok(());
                };
                match swapped {
                    Ok(()) => same("swapped", &true, &is_right)?,
                    Err(other) => {
                        same("swapped", &false, &is_right)?;
                        ensure!(other.as_deref() == found, "found {other:?}");
                    }
                }
                let expires_at = None;
                is_right.then(|| new.map(|bytes| Value { bytes, expires_at }))
            }
            Step::Increment(_, _, by) => {
                let number = match found {
                    None => Some(0),
                    Some(text) => {
                        (std::str::from_utf8(text).ok()).and_then(|text| text.parse::<i64>().ok())
                    }
                };
                let sum = number.map(|number| number + by);
                match self.store().increment(&k, key, by) {
                    Err(WriteError::NotANumber { .. })
                        if sum.is_none() && self.model.spaces[space].name().is_some() =>
                    {
                        None
                    }
                    answer => match self.written(space, answer)? {
                        Some(answer) => {
                            same("sum", &Some(answer), &sum)?;
                            with(answer.to_string().into_bytes(), expires_at)
                        }
                        None => None,
                    },
                }
            }
            Step::Merge(..) => {
                let mut seen = None;
                let merged = self.store().merge(&k, key, |old| {
                    seen = Some(old.map(<[u8]>::to_vec));
                    match old {
                        Some(old) if old.len() > 2_000 => None,
                        old => Some([old.unwrap_or_default(), b"+"].concat()),
                    }
                });
                if self.written(space, merged)?.is_none() {
                    return Ok(());
                }
                ensure!(
                    seen.as_ref().map(Option::as_deref) == Some(found),
                    "merged what was not there"
                );
                match found {
                    Some(old) if old.len() > 2_000 => Some(None),
                    old => with([old.unwrap_or_default(), b"+"].concat(), expires_at),
                }
            }
            Step::Expire(_, _, at) => {
                let done = self.store().expire(&k, key, at);
                let Some(done) = self.written(space, done)? else {
                    return Ok(());
                };
                same("has a value", &done, &found.is_some())?;
                found.and_then(|bytes| with(bytes.to_vec(), expiry(at)))
            }
            _ => {
                let kept = self.newest_by(&k, key);
                let Some(kept) = self.written(space, kept)? else {
                    return Ok(());
                };
                ensure!(kept == there, "{kept:?} is there, not {there:?}");
                None
            }
        };
        if let Some(value) = new {
            self.put(space, key, value);
        }
        Ok(())
    }

    /// Returns the newest value of a key, read by an update that changes nothing.
    pub(super) fn newest_by(&self, k: &Keyspace, key: &[u8]) -> Result<Option<Value>, WriteError> {
        self.store().update(k, key, |entry| {
            let found = entry.map(value_of);
            Ok((Update::Keep, found))
        })
    }

    fn write(&mut self, changes: Vec<(Which, usize, Given)>) -> Outcome {
        let (mut batch, mut wanted) = (Batch::new(), Vec::<Change>::new());
        for (which, key, given) in changes {
            let Some((space, k)) = self.resolve(which) else {
                continue;
            };
            let (key, value) = (self.key(key), self.given(given));
            match &value {
                Some(value) => batch.put_expiring(&k, key, &value.bytes, value.expires_at),
                None => batch.delete(&k, key),
            }
            wanted.push((space, key.to_vec(), value));
        }
        let dropped =
            (wanted.iter()).find(|(space, ..)| self.model.spaces[*space].name().is_none());
        let dropped = dropped.map(|(space, ..)| *space);
        let before = self.store().applied();
        let written = self.store().write(batch);
        match dropped {
            Some(space) => self.written(space, written).map(drop),
            None => {
                let ts = written.map_err(|e| e.to_string())?;
                if self.model.change(wanted, false) {
                    ensure!(ts > before, "time stamp {ts} after {before}");
                }
                Ok(())
            }
        }
    }

    fn is_apart(&self, value: &Value) -> bool {
        self.design == TREE && value.bytes.len() >= PARTS
    }

    fn multi_put(&mut self, which: Which, puts: Vec<(usize, Give)>, refused: usize) -> Outcome {
        let Some((space, k)) = self.resolve(which) else {
            return Ok(());
        };
        let puts = puts.into_iter().map(|(key, give)| {
            let value = self.value(give, None);
            (self.key(key), value)
        });
        let puts: Vec<(&[u8], Value)> = puts.collect();
        let given: Vec<(&[u8], &[u8])> = (puts.iter())
            .map(|(key, value)| (*key, value.bytes.as_slice()))
            .collect();
        let replaces = |entry: Entry<'_>| entry.value.len() % 3 != refused;
        let done = self.store().multi_put(&k, &given, replaces);
        if puts.is_empty() {
            return same("puts", &done.map_err(|e| e.to_string())?, &0);
        }
        let Some(done) = self.written(space, done)? else {
            return Ok(());
        };
        let mut wanted = Vec::<Change>::new();
        for (key, value) in puts {
            let newest = self.model.spaces[space].newest(key);
            let refuses = newest
                .is_some_and(|newest| newest.bytes.len() % 3 == refused || self.is_apart(newest));
            if refuses || wanted.iter().any(|(_, before, _)| before == key) {
                break;
            }
            wanted.push((space, key.to_vec(), Some(value)));
        }
        same("puts", &done, &wanted.len())?;
        self.model.change(wanted, false);
        Ok(())
    }

    fn execute(&mut self, which: Which, steps: Vec<(usize, Option<Give>)>, most: usize) -> Outcome {
        let Some((space, k)) = self.resolve(which) else {
            return Ok(());
        };
        let steps = steps.into_iter().map(|(key, give)| {
            let value = give.map(|give| self.value(give, None));
            (self.key(key), value)
        });
        let steps: Vec<(&[u8], Option<Value>)> = steps.collect();
        let given = steps.iter().map(|(key, value)| match value {
            Some(value) => (*key, StoreStep::Put(value.bytes.as_slice())),
            None => (*key, StoreStep::Get),
        });
        let given: Vec<_> = given.collect();
        let mut seen: Vec<Option<Value>> = Vec::new();
        let done = self.store().execute_batch(&k, &given, |entry| {
            if seen.len() == most {
                return ControlFlow::Break(());
            }
            seen.push(entry.map(value_of));
            ControlFlow::Continue(())
        });
        if steps.is_empty() {
            return same("steps", &done.map_err(|e| e.to_string())?, &0);
        }
        let Some(done) = self.written(space, done)? else {
            return Ok(());
        };
        let (mut wanted, mut expected) = (Vec::<Change>::new(), Vec::new());
        let mut before: Vec<(&[u8], bool)> = Vec::new();
        for (key, value) in steps {
            let repeated =
                (before.iter()).any(|(other, put)| *other == key && (*put || value.is_some()));
            let newest = self.model.spaces[space].newest(key);
            let too_long = newest.is_some_and(|value| value.bytes.len() >= PARTS);
            let stops = newest.is_some_and(|newest| self.is_apart(newest));
            if repeated || expected.len() == most || stops || too_long && value.is_none() {
                break;
            }
            let now = self.model.wall;
            let live = newest.filter(|newest| value.is_some() || newest.is_live(now));
            expected.push(live.cloned());
            before.push((key, value.is_some()));
            if value.is_some() {
                wanted.push((space, key.to_vec(), value));
            }
        }
        same("steps", &done, &expected.len())?;
        ensure!(seen == expected, "the steps saw other values");
        self.model.change(wanted, false);
        Ok(())
    }

    fn open_cursor(
        &mut self,
        c: usize,
        within: Option<usize>,
        which: Which,
        range: Range,
        down: bool,
    ) {
        let Some((space, k)) = self.resolve(which) else {
            return;
        };
        let (snapshot, moment) = match within {
            Some(s) => match &self.snapshots[s] {
                Some((snapshot, moment)) => (snapshot.clone(), *moment),
                None => return,
            },
            None => {
                let moment = self.model.snapshot();
                (self.store().snapshot(), moment)
            }
        };
        let keys = self.keys(range);
        let mut rest = self.model.spaces[space].all(moment);
        rest.retain(|(key, _)| keys.contains(key));
        let cursor = match keys {
            Keys::Prefix(prefix) => snapshot.cursor_prefix(&k, &prefix),
            Keys::Between(from, to) if down => {
                rest.reverse();
                snapshot.cursor_reverse::<Vec<u8>>(&k, (from, to))
            }
            Keys::Between(from, to) if within.is_none() => snapshot.into_cursor(&k, (from, to)),
            Keys::Between(from, to) => snapshot.cursor::<Vec<u8>>(&k, (from, to)),
        };
        self.cursors[c] = Some(Held {
            cursor,
            rest: rest.into_iter(),
            position: None,
        });
    }

    fn next(&mut self, c: usize, most: usize, keys_only: bool) -> Outcome {
        let Some(held) = &mut self.cursors[c] else {
            return Ok(());
        };
        let expected: Entries = held.rest.by_ref().take(most).collect();
        if let Some((last, _)) = expected.last() {
            held.position = Some(last.clone());
        }
        let found = if keys_only {
            held.cursor.next_keys(most).map(|keys| {
                ensure!(
                    keys.iter().eq(expected.iter().map(|(key, _)| key)),
                    "the cursor gave keys {keys:?}, and should have given {}",
                    shown(&expected)
                );
                Ok(())
            })
        } else {
            let pair = |key: &[u8], entry: Entry<'_>| (key.to_vec(), value_of(entry));
            held.cursor.next_with(most, pair).map(|found| {
                ensure!(
                    found == expected,
                    "the cursor gave {}, and should have given {}",
                    shown(&found),
                    shown(&expected)
                );
                Ok(())
            })
        };
        found.map_err(|e| e.to_string())??;
        let position = held.cursor.position().map(<[u8]>::to_vec);
        same("the cursor's position", &position, &held.position)
    }

    /// Compares all that is left at the end, when nobody reads any more.
    pub fn end(&mut self) -> Outcome {
        let mut rng = SmallRng::seed_from_u64(0);
        self.look(&mut rng, true)?;
        self.release();
        self.step(&Step::VacuumAll)?;
        self.look(&mut rng, true)?;
        self.check()?;
        let stats = self.store().stats();
        same("snapshots", &stats.snapshots, &0)?;
        // On a journal, the durable mark keeps some.
        let is_clean = stats.garbage_bytes == 0 || self.program.medium == MediumKind::Journal;
        ensure!(is_clean, "{} bytes of garbage", stats.garbage_bytes);
        self.step(&Step::Kill)?;
        self.look(&mut rng, false)?;
        self.check()
    }
}
