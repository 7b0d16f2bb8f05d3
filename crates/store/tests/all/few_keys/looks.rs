//! Comparing all that can be read with the model: now, in each snapshot, and by each transaction.

use super::bench::{Bench, Outcome, PARTS, ensure, same};
use super::model::{Entries, Keys, Moment, Space, Value};
use super::program::{KEYS, Range};
use bristlecone_pmem::media::Auto;
use bristlecone_store::{Direction, Entries as Read, Entry, Keyspace, Snapshot};
use rand::RngExt;
use rand::rngs::SmallRng;
use std::ops::{Bound, ControlFlow};
use std::rc::Rc;

/// Ranges that are looked at after each step.
const LOOKS: usize = 3;

pub fn value_of(entry: Entry<'_>) -> Value {
    Value {
        bytes: Rc::new(entry.value.to_vec()),
        expires_at: entry.expires_at,
    }
}

/// Entries in short.
pub fn shown(entries: &[(Vec<u8>, Value)]) -> String {
    let each = entries.iter().map(|(key, value)| {
        let start = |bytes: &[u8]| bytes[..bytes.len().min(12)].escape_ascii().to_string();
        let (len, expires_at) = (value.bytes.len(), value.expires_at);
        let key = start(&key[key.len().saturating_sub(12)..]);
        format!("{key}={}({len} bytes, {expires_at:?})", start(&value.bytes))
    });
    format!("[{}]", each.collect::<Vec<_>>().join(", "))
}

/// All ranges over the keys of a program, and its prefixes.
fn all_ranges() -> Vec<Range> {
    let bounds = || {
        let each = (0..KEYS).flat_map(|key| [Bound::Included(key), Bound::Excluded(key)]);
        std::iter::once(Bound::Unbounded).chain(each)
    };
    let pairs = bounds().flat_map(|from| bounds().map(move |to| Range::Between(from, to)));
    pairs.chain((0..KEYS).map(Range::Prefix)).collect()
}

fn some_ranges(rng: &mut SmallRng) -> Vec<Range> {
    let all = all_ranges();
    (0..LOOKS)
        .map(|_| all[rng.random_range(0..all.len())])
        .collect()
}

/// Collects what a visit gives, up to so many entries.
fn collect(found: &mut Entries, most: usize) -> impl FnMut(&[u8], Entry<'_>) -> ControlFlow<()> {
    move |key, entry| {
        found.push((key.to_vec(), value_of(entry)));
        if found.len() < most {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }
}

/// Compares the entries of a scan of a keyspace.
fn are(what: &str, found: &Entries, expected: &Entries) -> Outcome {
    ensure!(
        found == expected,
        "{what} gives {}, and should give {}",
        shown(found),
        shown(expected)
    );
    Ok(())
}

impl Bench<'_> {
    /// Compares all that can be read with the model, or some of it.
    pub fn look(&mut self, rng: &mut SmallRng, is_thorough: bool) -> Outcome {
        let ranges = |rng: &mut SmallRng| match is_thorough {
            true => all_ranges(),
            false => some_ranges(rng),
        };
        let now = self.model.snapshot();
        let fresh = self.store().snapshot();
        let names = self.store().keyspaces();
        self.names_are(names.iter().map(Keyspace::name), now)?;
        for number in 0..self.handles.len() {
            let Some(k) = self.handles[number].clone() else {
                continue;
            };
            let within = |e: String| format!("keyspace {number} ({}): {e}", k.name());
            let space = &self.model.spaces[number];
            self.latest_is(space, &k, now, rng).map_err(within)?;
            let each = self.snapshots.iter().flatten();
            let held = each.map(|(snapshot, at)| ("a snapshot", snapshot, *at));
            let of_txs = (self.txs.iter().flatten())
                .map(|tx| ("a transaction's snapshot", tx.inner.snapshot(), tx.at));
            let all = std::iter::once(("a new snapshot", &fresh, now));
            for (what, snapshot, at) in all.chain(held).chain(of_txs) {
                let looked = self.snapshot_is((snapshot, at), (space, &k), &ranges(rng), rng);
                let within = |e| within(format!("{what} at {at:?}: {e}"));
                looked.map_err(within)?;
            }
            self.transactions_are(number, &k, &ranges(rng), rng)
                .map_err(within)?;
        }
        let each = self.snapshots.iter().flatten();
        for (snapshot, at) in each.map(|(snapshot, at)| (snapshot, *at)) {
            let names = snapshot.keyspaces().map_err(|e| e.to_string())?;
            self.names_are(names.iter().map(Keyspace::name), at)?;
        }
        Ok(())
    }

    fn names_are<'n>(&self, found: impl Iterator<Item = &'n str>, at: Moment) -> Outcome {
        let spaces = self.model.spaces.iter();
        let mut expected: Vec<_> = spaces.filter_map(|one| one.name_at(at.commit)).collect();
        expected.sort_unstable();
        same("keyspaces", &found.collect(), &expected)
    }

    /// Compares reads of single keys at present.
    fn latest_is(
        &self,
        space: &Space,
        k: &Keyspace,
        snapshot: Moment,
        rng: &mut SmallRng,
    ) -> Outcome {
        let store = self.store();
        for key in &self.program.keys {
            let mut expected = space.get(key, self.model.present());
            if (space.newest(key)).is_some_and(|newest| newest.bytes.len() >= PARTS) {
                // It is read in a snapshot, whose time does not go back.
                expected = space.get(key, snapshot);
            }
            let way = rng.random_range(0..4);
            let found = match way {
                0 => store.get_pinned(k, key).map(|found| {
                    found.map(|found| Value {
                        bytes: Rc::new(found.to_vec()),
                        expires_at: found.expires_at(),
                    })
                }),
                1 => store.get_within(k, key, 1 << 30, value_of).map(|found| {
                    found.map(|found| found.unwrap_or_else(|e| panic!("{e:?} is too long")))
                }),
                2 => store.get_with(k, key, value_of),
                _ => {
                    let mut bytes = Vec::new();
                    let at = space.get(key, snapshot);
                    let read = store.get_range(k, key, 1..4, &mut bytes);
                    let len = at.map(|value| value.bytes.len() as u64);
                    same("length", &read.map_err(|e| e.to_string())?, &len)?;
                    let part = at.map_or(&[][..], |value| &value.bytes[..]);
                    let part = part.get(1..part.len().min(4)).unwrap_or(&[]);
                    same("range", &bytes.as_slice(), &part)?;
                    store.get_with(k, key, value_of)
                }
            };
            ensure!(
                found.as_ref().map_err(ToString::to_string)?.as_ref() == expected,
                "key {} has {found:?} now (way {way}), and should have {expected:?}",
                key.escape_ascii()
            );
        }
        let keys: Vec<&[u8]> = self.program.keys.iter().map(Vec::as_slice).collect();
        let mut found = Vec::new();
        let read = store.multi_get(k, &keys, |entry| {
            found.push(entry.map(value_of));
            ControlFlow::Continue(())
        });
        read.map_err(|e| e.to_string())?;
        let expected: Vec<_> = (keys.iter())
            .map(|key| space.get(key, snapshot).cloned())
            .collect();
        ensure!(found == expected, "several keys have other values");
        same("keys", &store.len(k), &space.len())?;
        same("is empty", &store.is_empty(k), &(space.len() == 0))
    }

    /// Compares reads of a snapshot.
    fn snapshot_is(
        &self,
        (snapshot, at): (&Snapshot<Auto>, Moment),
        (space, k): (&Space, &Keyspace),
        ranges: &[Range],
        rng: &mut SmallRng,
    ) -> Outcome {
        for key in &self.program.keys {
            let found = snapshot.get_with(k, key, value_of);
            ensure!(
                found.as_ref().map_err(ToString::to_string)?.as_ref() == space.get(key, at),
                "key {} has {found:?}, and should have {:?}",
                key.escape_ascii(),
                space.get(key, at)
            );
        }
        let all = space.all(at);
        for range in ranges {
            let keys = self.keys(*range);
            let mut inside = all.clone();
            inside.retain(|(key, _)| keys.contains(key));
            let most = [1, 2, usize::MAX][rng.random_range(0..3)];
            let visited = scanned(snapshot, k, &keys, &inside, most);
            visited.map_err(|e| format!("{range:?}, at most {most}: {e}"))?;
        }
        Ok(())
    }

    /// Compares reads of the transactions that are not serialisable: of others, these would count.
    fn transactions_are(
        &mut self,
        number: usize,
        k: &Keyspace,
        ranges: &[Range],
        rng: &mut SmallRng,
    ) -> Outcome {
        let all_keys = &self.program.keys;
        let ranges: Vec<_> = ranges.iter().map(|range| self.keys(*range)).collect();
        for tx in self.txs.iter_mut().flatten() {
            if tx.is_serializable {
                continue;
            }
            let stored = self.model.spaces[number].all(tx.at);
            let all = tx.merged(number, stored);
            for key in all_keys {
                let found = tx.inner.get_with(k, key, value_of);
                let found = found.map_err(|e| e.to_string())?;
                let expected = all.iter().find(|(other, _)| other == key);
                ensure!(
                    found.as_ref() == expected.map(|(_, value)| value),
                    "in a transaction, key {} has {found:?}, and should have {expected:?}",
                    key.escape_ascii()
                );
            }
            for keys in &ranges {
                let mut inside = all.clone();
                inside.retain(|(key, _)| keys.contains(key));
                let most = [1, 2, usize::MAX][rng.random_range(0..3)];
                for down in [false, true] {
                    let mut found = Entries::new();
                    let visit = collect(&mut found, most);
                    let scanned = match keys.clone() {
                        Keys::Prefix(prefix) => tx.inner.prefix(k, &prefix, visit),
                        Keys::Between(from, to) if down => {
                            (tx.inner).scan_reverse::<Vec<u8>>(k, (from, to), visit)
                        }
                        Keys::Between(from, to) => tx.inner.scan::<Vec<u8>>(k, (from, to), visit),
                    };
                    scanned.map_err(|e| e.to_string())?;
                    let reversed = down && matches!(keys, Keys::Between(..));
                    let what = format!("in a transaction, {keys:?}, down: {reversed}");
                    are(&what, &found, &first(&inside, most, reversed))?;
                }
            }
        }
        Ok(())
    }
}

/// The first so many entries from one end.
fn first(entries: &Entries, most: usize, down: bool) -> Entries {
    if down {
        entries.iter().rev().take(most).cloned().collect()
    } else {
        entries.iter().take(most).cloned().collect()
    }
}

/// Compares all ways to go through a range of a snapshot, that has these entries.
fn scanned(
    snapshot: &Snapshot<Auto>,
    k: &Keyspace,
    keys: &Keys,
    inside: &Entries,
    most: usize,
) -> Outcome {
    let text = |e: bristlecone_store::ReadError| e.to_string();
    let up = first(inside, most, false);
    let mut found = Entries::new();
    let (from, to) = match keys {
        Keys::Prefix(prefix) => {
            let visited = snapshot.prefix(k, prefix, collect(&mut found, most));
            visited.map_err(text)?;
            are("a prefix", &found, &up)?;
            let mut cursor = snapshot.cursor_prefix(k, prefix);
            let pairs = cursor.next_batch(100).map_err(text)?;
            let expected = inside.iter().map(|(key, value)| (key, &*value.bytes));
            ensure!(
                pairs.iter().map(|(key, value)| (key, value)).eq(expected),
                "a cursor of a prefix gives other pairs"
            );
            return Ok(());
        }
        Keys::Between(from, to) => (from.clone(), to.clone()),
    };
    let range = || (from.clone(), to.clone());
    let visited = snapshot.scan::<Vec<u8>>(k, range(), collect(&mut found, most));
    visited.map_err(text)?;
    are("a scan", &found, &up)?;
    let mut found = Entries::new();
    let visited = snapshot.scan_reverse::<Vec<u8>>(k, range(), collect(&mut found, most));
    visited.map_err(text)?;
    are("a scan down", &found, &first(inside, most, true))?;
    let mut seen = Vec::new();
    let visited = snapshot.scan_keys::<Vec<u8>>(k, range(), |key| {
        seen.push(key.to_vec());
        if seen.len() < most {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    visited.map_err(text)?;
    same(
        "keys",
        &seen,
        &up.iter().map(|(key, _)| key.clone()).collect(),
    )?;
    let count = snapshot.count::<Vec<u8>>(k, range()).map_err(text)?;
    same("count", &count, &(inside.len() as u64))?;
    for direction in [Direction::Up, Direction::Down] {
        let down = direction == Direction::Down;
        let mut read = Read::new(most.min(100), 1 << 30, 0);
        let done = snapshot.read::<Vec<u8>>(k, range(), direction, &mut read);
        done.map_err(text)?;
        let (bytes, places) = read.into_parts();
        let pair = |place: &bristlecone_store::Place| {
            let (key, value) = (place.key as usize, place.value as usize);
            let key_ends = place.at + key;
            (
                &bytes[place.at..key_ends],
                &bytes[key_ends..key_ends + value],
            )
        };
        let expected = first(inside, most.min(100), down);
        let expected = expected
            .iter()
            .map(|(key, value)| (&key[..], &value.bytes[..]));
        ensure!(
            places.iter().map(pair).eq(expected),
            "reading ahead, {direction:?}, gives other entries"
        );
        let mut cursor = match down {
            true => snapshot.cursor_reverse::<Vec<u8>>(k, range()),
            false => snapshot.cursor::<Vec<u8>>(k, range()),
        };
        let mut given = Vec::new();
        loop {
            let some = cursor.next_keys(most.min(3)).map_err(text)?;
            let position = cursor.position().map(<[u8]>::to_vec);
            if some.is_empty() {
                break;
            }
            same("position", &position.as_ref(), &some.last())?;
            given.extend(some);
        }
        let expected = first(inside, usize::MAX, down);
        let expected = expected.iter().map(|(key, _)| key.clone()).collect();
        same("a cursor", &given, &expected)?;
    }
    Ok(())
}
