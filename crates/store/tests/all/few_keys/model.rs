//! The model of a store: all versions of all keys, each with the number of its commit.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;

/// The bytes of a value.
pub type Bytes = Rc<Vec<u8>>;

/// A value with its expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub bytes: Bytes,
    pub expires_at: Option<u64>,
}

impl Value {
    pub fn is_live(&self, now: u64) -> bool {
        self.expires_at.is_none_or(|at| at > now)
    }
}

/// Returns the expiry that comes back: of a time of 0, and of one of 1, it is 1.
pub fn expiry(at: Option<u64>) -> Option<u64> {
    at.map(|at| at.max(1))
}

/// A state of a key.
#[derive(Clone, Debug)]
pub struct Version {
    /// The number of the commit.
    pub commit: u64,
    /// `None`: it went.
    pub value: Option<Value>,
    /// The vacuum removed it.
    pub is_swept: bool,
}

/// The state that a read is of.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The number of the last commit that it sees.
    pub commit: u64,
    /// The time that it compares expiries with.
    pub now: u64,
}

/// The keys that a scan goes through.
#[derive(Clone, Debug)]
pub enum Keys {
    Between(Bound<Vec<u8>>, Bound<Vec<u8>>),
    Prefix(Vec<u8>),
}

impl Keys {
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::Between(from, to) => {
                let of = |bound: &Bound<Vec<u8>>| bound.clone();
                RangeBounds::<Vec<u8>>::contains(&(of(from), of(to)), &key.to_vec())
            }
            Self::Prefix(prefix) => key.starts_with(prefix),
        }
    }

    /// Whether no key is between the bounds.
    pub fn are_none(&self) -> bool {
        let Self::Between(Bound::Included(from) | Bound::Excluded(from), to) = self else {
            return false;
        };
        match to {
            Bound::Included(to) | Bound::Excluded(to) => {
                to < from || to == from && !self.contains(from)
            }
            Bound::Unbounded => false,
        }
    }
}

/// Keys with their values, in the order of a scan.
pub type Entries = Vec<(Vec<u8>, Value)>;

/// A keyspace, dropped or not.
#[derive(Debug, Default)]
pub struct Space {
    /// Its name from each of these commits on; `None` once it is dropped.
    pub names: Vec<(u64, Option<&'static str>)>,
    pub keys: BTreeMap<Vec<u8>, Vec<Version>>,
}

impl Space {
    /// Its name after that commit, if it exists then.
    pub fn name_at(&self, commit: u64) -> Option<&'static str> {
        let named = self.names.iter().rev().find(|(from, _)| *from <= commit);
        named.and_then(|(_, name)| *name)
    }

    pub fn name(&self) -> Option<&'static str> {
        self.name_at(u64::MAX)
    }

    /// The commit that dropped it.
    pub fn dropped(&self) -> Option<u64> {
        let last = self.names.last().filter(|(_, name)| name.is_none());
        last.map(|(commit, _)| *commit)
    }

    /// The newest value of a key, expired or not.
    pub fn newest(&self, key: &[u8]) -> Option<&Value> {
        self.keys.get(key)?.last()?.value.as_ref()
    }

    pub fn get(&self, key: &[u8], at: Moment) -> Option<&Value> {
        self.name_at(at.commit)?;
        let versions = self.keys.get(key)?;
        let seen = versions.iter().rev().find(|one| one.commit <= at.commit);
        let value = seen?.value.as_ref()?;
        value.is_live(at.now).then_some(value)
    }

    /// All that a read sees.
    pub fn all(&self, at: Moment) -> Entries {
        let each = self.keys.keys();
        each.filter_map(|key| Some((key.clone(), self.get(key, at)?.clone())))
            .collect()
    }

    /// The keys of the keyspace that count: expired ones do until they are swept.
    pub fn len(&self) -> u64 {
        match self.name() {
            Some(_) => (self.keys.keys())
                .filter(|key| self.newest(key).is_some())
                .count() as u64,
            None => 0,
        }
    }
}

/// A change of a key: its new value, or none.
pub type Change = (usize, Vec<u8>, Option<Value>);

#[derive(Debug, Default)]
pub struct Model {
    pub spaces: Vec<Space>,
    /// The number of the last commit.
    pub commit: u64,
    /// The time by the clock.
    pub wall: u64,
    /// The latest time that a snapshot of this session has seen: snapshots do not go back.
    pub latest: u64,
}

impl Model {
    /// Takes a snapshot. Its time is never before that of an earlier one.
    pub fn snapshot(&mut self) -> Moment {
        self.latest = self.latest.max(self.wall);
        Moment {
            commit: self.commit,
            now: self.latest,
        }
    }

    /// Returns the state that a read of one key sees, which goes by the clock as it is.
    pub fn present(&self) -> Moment {
        Moment {
            commit: self.commit,
            now: self.wall,
        }
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.spaces
            .iter()
            .position(|space| space.name() == Some(name))
    }

    /// Makes changes in one commit, the last of each key. One that removes what is not there is
    /// none. Returns whether there was one.
    pub fn change(&mut self, changes: impl IntoIterator<Item = Change>, is_swept: bool) -> bool {
        let mut last: BTreeMap<(usize, Vec<u8>), Option<Value>> = BTreeMap::new();
        for (space, key, value) in changes {
            last.insert((space, key), value);
        }
        last.retain(|(space, key), value| {
            value.is_some() || self.spaces[*space].newest(key).is_some()
        });
        if last.is_empty() {
            return false;
        }
        self.commit += 1;
        for ((space, key), value) in last {
            let versions = self.spaces[space].keys.entry(key).or_default();
            versions.push(Version {
                commit: self.commit,
                value,
                is_swept,
            });
        }
        true
    }

    /// Gives a keyspace a name, or none, in a commit of its own. Returns its number.
    pub fn name(&mut self, space: Option<usize>, name: Option<&'static str>) -> usize {
        self.commit += 1;
        let number = space.unwrap_or_else(|| {
            self.spaces.push(Space::default());
            self.spaces.len() - 1
        });
        self.spaces[number].names.push((self.commit, name));
        number
    }

    /// The versions of keys of `keys` that are newer than that commit.
    pub fn since(&self, space: usize, keys: &Keys, commit: u64) -> Vec<(&[u8], &Version)> {
        let all = self.spaces[space].keys.iter();
        let inside = all.filter(|(key, _)| keys.contains(key));
        inside
            .flat_map(|(key, versions)| versions.iter().map(move |one| (key.as_slice(), one)))
            .filter(|(_, one)| one.commit > commit)
            .collect()
    }
}
