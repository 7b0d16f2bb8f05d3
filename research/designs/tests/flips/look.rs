//! A pool, and what is read of it with one bit flipped.

use super::contents::{ABSENT, Change, Contents, Pairs, changes};
use bristlecone_designs::damage;
use bristlecone_designs::engines::{Engine, Maker};
use bristlecone_designs::index::Direction;
use bristlecone_pmem::media::{Sim, sim::Attached, sim::Simulation};
use bristlecone_pmem::{Pool, PoolOptions};
use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;

/// Something wrong that nothing reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Silent {
    /// A key that was put is not there, or one is that was not.
    Keys,
    /// A key has another value.
    Values,
}

impl Silent {
    pub fn name(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Values => "values",
        }
    }
}

/// What became of the flips.
#[derive(Default)]
pub struct Flipped {
    flips: u64,
    reported: u64,
    keys: u64,
    values: u64,
    first: Option<String>,
}

impl Flipped {
    pub fn silent(&self) -> BTreeSet<Silent> {
        let kinds = [(Silent::Keys, self.keys), (Silent::Values, self.values)];
        let there = kinds.into_iter().filter(|(_, count)| *count > 0);
        there.map(|(kind, _)| kind).collect()
    }
}

impl fmt::Display for Flipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            flips, reported, ..
        } = self;
        write!(f, "{flips} flips, {reported} reported")?;
        write!(f, ", silent: keys {}, values {}", self.keys, self.values)?;
        match &self.first {
            Some(first) => write!(f, " ({first})"),
            None => Ok(()),
        }
    }
}

/// A pool with an index.
pub struct Subject<'m, K: Contents + ?Sized> {
    maker: &'m dyn Maker<K, K, Sim>,
    sim: Simulation,
    _attached: Attached,
    pairs: Pairs<K>,
}

/// Only a name: pools are in memory.
const PATH: &str = "pool";
const ROOT: &str = "index";

impl<'m, K: Contents + ?Sized> Subject<'m, K> {
    /// Makes one, and closes it, or lets go of it as a kill does.
    pub fn new(maker: &'m dyn Maker<K, K, Sim>, closed: bool) -> Self {
        let sim = Simulation::new(8 << 20);
        let attached = sim.attach();
        let pool = Pool::<Sim>::create(Path::new(PATH), &PoolOptions::default());
        let pool = pool.expect("a new pool");
        let index = maker.create(&pool, ROOT).expect("a new index");
        let mut pairs = Pairs::<K>::new();
        for change in changes() {
            match change {
                Change::Put(n, value) => {
                    let (key, value) = (K::key(n), K::value(value));
                    index.upsert(key.borrow(), value.borrow()).expect("room");
                    pairs.insert(key, value);
                }
                Change::Remove(n) => {
                    let key = K::key(n);
                    let key: &K = key.borrow();
                    let there = index.remove(key).expect("removal");
                    assert_eq!(there, pairs.remove(key).is_some());
                }
            }
        }
        if closed {
            index.close().expect("closing");
            drop(pool);
        } else {
            // A killed process closes nothing.
            std::mem::forget((index, pool));
        }
        sim.note_changes(true);
        Self {
            maker,
            sim,
            _attached: attached,
            pairs,
        }
    }

    /// Flips the bits of the lines that have any content, `most` of them, and looks at each.
    pub fn flip_all(&self, name: &str, most: usize) -> Flipped {
        let mark = self.sim.mark();
        for frozen in [false, true] {
            assert_eq!(
                self.look(frozen, name),
                Ok(BTreeSet::new()),
                "{name}: whole"
            );
            self.sim.roll_back(mark);
        }
        let used = |word: &u32| {
            let line = word / 8 * 8;
            (line..line + 8).any(|word| self.sim.word(word) != 0)
        };
        let words: Vec<u32> = (0..(self.sim.len() / 8) as u32).filter(used).collect();
        // Odd, so that all bits of words have their turn.
        let step = (words.len() * 64 / most).max(1) | 1;
        let bits = words
            .into_iter()
            .flat_map(|word| (0..64).map(move |bit| (word, bit)));
        let mut flipped = Flipped::default();
        for (i, (word, bit)) in bits.step_by(step).enumerate() {
            self.sim.set_word(word, self.sim.word(word) ^ 1 << bit);
            let what = format!("bit {bit} of the word at {:#x}", word * 8);
            // Reading a pool that is open for writing, or for reading only.
            let looked = self.look(i % 3 == 2, &what);
            self.sim.roll_back(mark);
            flipped.flips += 1;
            match looked {
                Err(_) => flipped.reported += 1,
                Ok(silent) => {
                    flipped.keys += u64::from(silent.contains(&Silent::Keys));
                    flipped.values += u64::from(silent.contains(&Silent::Values));
                    if !silent.is_empty() && flipped.first.is_none() {
                        flipped.first = Some(what);
                    }
                }
            }
        }
        flipped
    }

    /// Opens the pool, reads all and checks it. Returns what is wrong and not reported.
    fn look(&self, frozen: bool, what: &str) -> Result<BTreeSet<Silent>, String> {
        self.sim.set_frozen(frozen);
        let looked = self.look_now(what);
        self.sim.set_frozen(false);
        looked
    }

    fn look_now(&self, what: &str) -> Result<BTreeSet<Silent>, String> {
        let pool = Pool::<Sim>::open(Path::new(PATH), &PoolOptions::default());
        let pool = pool.map_err(|e| e.to_string())?;
        let index = self.maker.open(&pool, ROOT).map_err(|e| e.to_string())?;
        let (silent, met) = damage::reading(|| self.read(&*index, what));
        let checked = check(&pool, &*index);
        // Its close would only be rolled back.
        self.sim.set_frozen(true);
        drop(index);
        drop(pool);
        match met {
            Some(met) => {
                assert!(checked.is_err(), "{what}: `check` finds nothing: {met}");
                Err(met)
            }
            None => checked.map(|()| silent),
        }
    }

    /// Reads all. Returns what is wrong.
    fn read(&self, index: &dyn Engine<K, K>, what: &str) -> BTreeSet<Silent> {
        let mut silent = BTreeSet::new();
        let mut compare = |key: &K, found: Option<&K>| {
            let expected = self.pairs.get(key).map(Borrow::borrow);
            match (expected, found) {
                (expected, found) if expected == found => {}
                (Some(_), Some(_)) => _ = silent.insert(Silent::Values),
                _ => _ = silent.insert(Silent::Keys),
            }
        };
        for n in 0..ABSENT + 5 {
            let key = K::key(n);
            let found = index.get(key.borrow());
            compare(key.borrow(), found.as_ref().map(Borrow::borrow));
        }
        for direction in [Direction::Up, Direction::Down] {
            let mut seen = BTreeSet::new();
            let mut visits = 0;
            let all = (Bound::Unbounded, Bound::Unbounded);
            index.scan(all, direction, None, &mut |key, value| {
                visits += 1;
                assert!(visits < 100_000, "{what}: the scan does not end");
                compare(key, Some(value));
                seen.insert(key.to_owned());
                ControlFlow::Continue(())
            });
            for key in self
                .pairs
                .keys()
                .filter(|key| !seen.contains::<K>((*key).borrow()))
            {
                compare(key.borrow(), None);
            }
        }
        silent
    }
}

/// Checks all that can be checked.
fn check<K: Contents + ?Sized>(
    pool: &Arc<Pool<Sim>>,
    index: &dyn Engine<K, K>,
) -> Result<(), String> {
    index.verify().map_err(|e| e.what)?;
    pool.verify().map_err(|e| e.what)?;
    Ok(())
}
