//! The representation of hashes and sets: names, each with a value. The values of a set are empty;
//! small sets do not store them.
//!
//! ```text
//! small   names and values in turn; only names in a set
//! large   head: count (8)     elements: id (8) | spread (4) | name --> value
//! ```

use crate::data::collection;
use crate::data::collection::{Content, Packed, element, incomplete, spread, width};
use crate::data::record::{Kind, Value};
use crate::data::spaces::Space;
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use rand::RngExt;
use rand::seq::SliceRandom;
use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};

/// The length of an element's key before its name.
const BEFORE_NAME: usize = 12;

/// A name and its value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// A hash or a set that a command works on.
#[derive(Debug)]
pub(crate) struct Fields {
    kind: Kind,
    before: Option<Value>,
    expires_at: Option<u64>,
    content: Content,
    changed: bool,
}

impl Fields {
    /// Returns the hash or set under `key`; an empty one if the key does not exist.
    pub fn load(tx: &mut Tx<'_>, key: &[u8], kind: Kind) -> Result<Self, CommandError> {
        match collection::load(tx, key, kind)? {
            Some(value) => Self::of(value),
            None => Ok(Self::in_place_of(kind, None)),
        }
    }

    /// Returns the hash or set of a value that was loaded.
    pub fn of(mut value: Value) -> Result<Self, CommandError> {
        let content = Content::take(&mut value)?;
        Ok(Self {
            kind: value.kind,
            expires_at: value.expires_at,
            before: Some(value),
            content,
            changed: false,
        })
    }

    /// Returns an empty one that does not expire, and that will replace `before` when it is saved.
    pub fn in_place_of(kind: Kind, before: Option<Value>) -> Self {
        Self {
            kind,
            changed: before.is_some(),
            before,
            expires_at: None,
            content: Content::Small(Packed::default()),
        }
    }

    /// Returns the number of names.
    pub fn len(&self) -> u64 {
        self.content.len(width(self.kind))
    }

    /// Returns true if the key does not exist.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that it takes in memory.
    pub fn held(&self) -> usize {
        size_of::<Self>() + self.content.held()
    }

    fn find<'p>(
        &self,
        packed: &'p Packed,
        name: &[u8],
    ) -> Option<(std::ops::Range<usize>, &'p [u8])> {
        if self.kind == Kind::Hash {
            let found = packed.pairs().find(|(_, field, _)| *field == name);
            found.map(|(place, _, value)| (place, value))
        } else {
            let found = packed.items().find(|(_, member)| *member == name);
            found.map(|(place, _)| (place, &[][..]))
        }
    }

    fn key(id: u64, name: &[u8]) -> Result<Vec<u8>, CommandError> {
        element(id, &[&spread(name).to_be_bytes()], name)
    }

    /// Returns the value of a name.
    pub fn get(&self, tx: &mut Tx<'_>, name: &[u8]) -> Result<Option<Vec<u8>>, CommandError> {
        match &self.content {
            Content::Small(packed) => Ok(self.find(packed, name).map(|(_, value)| value.to_vec())),
            Content::Large { id, .. } => match Self::key(*id, name) {
                Ok(key) => tx.get(Space::Elements, &key),
                // A name that is too long does not exist.
                Err(_) => Ok(None),
            },
        }
    }

    /// Returns true if the name exists.
    pub fn contains(&self, tx: &mut Tx<'_>, name: &[u8]) -> Result<bool, CommandError> {
        match &self.content {
            Content::Small(packed) => Ok(self.find(packed, name).is_some()),
            Content::Large { .. } => Ok(self.get(tx, name)?.is_some()),
        }
    }

    /// Sets the value of a name. Returns true if the name is new.
    pub fn put(
        &mut self,
        tx: &mut Tx<'_>,
        name: &[u8],
        value: &[u8],
    ) -> Result<bool, CommandError> {
        let width = width(self.kind);
        if let Content::Small(packed) = &self.content {
            let found = self.find(packed, name).map(|(place, _)| place);
            if found.is_some() && self.kind == Kind::Set {
                return Ok(false);
            }
            let new = found.is_none();
            let removed = if new { 0 } else { width };
            let place = found.unwrap_or(packed.bytes()..packed.bytes());
            let entry = [name, value];
            if let Content::Small(packed) = &mut self.content
                && packed.splice(place, removed, &entry[..width], width)
            {
                self.changed = true;
                return Ok(new);
            }
            self.enlarge(tx)?;
        }
        let Content::Large { id, count } = &mut self.content else {
            return Ok(false);
        };
        let key = Self::key(*id, name)?;
        let new = (tx.get_with(Space::Elements, &key, |_| ())?).is_none();
        if new || self.kind == Kind::Hash {
            tx.put(Space::Elements, &key, value.to_vec(), None)?;
            self.changed = true;
        }
        *count += u64::from(new);
        Ok(new)
    }

    /// Makes it a large one.
    fn enlarge(&mut self, tx: &mut Tx<'_>) -> Outcome {
        let all = self.all(tx)?;
        let id = tx.data().new_id();
        self.content = Content::Large {
            id,
            count: all.len() as u64,
        };
        for (name, value) in all {
            tx.put(Space::Elements, &Self::key(id, &name)?, value, None)?;
        }
        Ok(())
    }

    /// Removes a name. Returns false if it does not exist.
    pub fn remove(&mut self, tx: &mut Tx<'_>, name: &[u8]) -> Result<bool, CommandError> {
        let width = width(self.kind);
        let place = match &self.content {
            Content::Small(packed) => self.find(packed, name).map(|(place, _)| place),
            Content::Large { .. } => None,
        };
        match &mut self.content {
            Content::Small(packed) => {
                let Some(place) = place else {
                    return Ok(false);
                };
                packed.splice(place, width, &[], width);
            }
            Content::Large { id, count } => {
                let Ok(key) = Self::key(*id, name) else {
                    return Ok(false);
                };
                if (tx.get_with(Space::Elements, &key, |_| ())?).is_none() {
                    return Ok(false);
                }
                tx.delete(Space::Elements, &key)?;
                *count = count.saturating_sub(1);
            }
        }
        self.changed = true;
        Ok(true)
    }

    /// Visits all names with their values.
    pub fn visit(
        &self,
        tx: &mut Tx<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        match &self.content {
            Content::Small(packed) if self.kind == Kind::Hash => {
                let _ = packed
                    .pairs()
                    .try_for_each(|(_, name, value)| visit(name, value));
                Ok(())
            }
            Content::Small(packed) => {
                let _ = packed.items().try_for_each(|(_, name)| visit(name, &[]));
                Ok(())
            }
            Content::Large { id, count } => {
                let (mut found, mut ended) = (0, true);
                tx.prefix(Space::Elements, &id.to_be_bytes(), |key, entry| {
                    found += 1;
                    let flow = visit(key.get(BEFORE_NAME..).unwrap_or_default(), entry.value);
                    ended = flow.is_continue();
                    flow
                })?;
                if ended && found != *count {
                    return Err(incomplete(self.kind, *count, found));
                }
                Ok(())
            }
        }
    }

    /// Returns all names with their values.
    pub fn all(&self, tx: &mut Tx<'_>) -> Result<Vec<Pair>, CommandError> {
        tx.counting(|tx, scratch| {
            let mut all = Vec::new();
            self.visit(tx, |name, value| {
                scratch.add(name)?;
                scratch.add(value)?;
                all.push((name.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })?;
            Ok(all)
        })
    }

    /// Takes a step of a scan: returns about `count` names from `cursor` on, and the cursor of the
    /// next step, which is 0 at the end. A small one is returned in one step.
    pub fn step(
        &self,
        tx: &mut Tx<'_>,
        cursor: u64,
        count: u64,
    ) -> Result<(u64, Vec<Pair>), CommandError> {
        match &self.content {
            Content::Small(_) => Ok((0, self.all(tx)?)),
            Content::Large { id, .. } => step(tx, &id.to_be_bytes(), cursor, count),
        }
    }

    /// Returns a random name, with nearly equal probabilities.
    pub fn random(&self, tx: &mut Tx<'_>) -> Result<Option<Pair>, CommandError> {
        match &self.content {
            Content::Large { id, count } if *count > FEW => random(tx, &id.to_be_bytes()),
            _ => Ok(some_of(self.all(tx)?, 1).pop()),
        }
    }

    /// Returns `count` different random names, or all if there are fewer.
    pub fn sample(&self, tx: &mut Tx<'_>, count: u64) -> Result<Vec<Pair>, CommandError> {
        let (random, all) = (
            |tx: &mut Tx<'_>| self.random(tx),
            |tx: &mut Tx<'_>| self.all(tx),
        );
        sample(self.len(), count, tx, random, all)
    }

    /// Saves it if it has changed.
    pub fn save(self, tx: &mut Tx<'_>, key: &[u8]) -> Outcome {
        if !self.changed {
            return Ok(());
        }
        let after = self.content.into_value(self.kind, self.expires_at);
        collection::save(tx, key, self.before.as_ref(), after.as_ref())
    }

    /// Removes all names.
    pub fn clear(&mut self) {
        self.content = Content::Small(Packed::default());
        self.changed = true;
    }
}

/// Takes a step of a scan over the names under `prefix`; see [`Fields::step`].
pub(crate) fn step(
    tx: &mut Tx<'_>,
    prefix: &[u8],
    cursor: u64,
    count: u64,
) -> Result<(u64, Vec<Pair>), CommandError> {
    let Ok(from) = u32::try_from(cursor) else {
        return Ok((0, Vec::new()));
    };
    let start = [prefix, &from.to_be_bytes()].concat();
    let range = (Bound::Included(&start[..]), Bound::Unbounded);
    let mut found: Vec<Pair> = Vec::new();
    let (mut last, mut next) = (from, 0);
    tx.counting(|tx, scratch| {
        tx.scan(Space::Elements, range, |key, entry| {
            let Some((at, name)) = split(key, prefix) else {
                return ControlFlow::Break(());
            };
            // Names with the same spread belong to one step: the cursor cannot tell them apart.
            if found.len() as u64 >= count && at != last {
                next = u64::from(at);
                return ControlFlow::Break(());
            }
            last = at;
            scratch.add(name)?;
            scratch.add(entry.value)?;
            found.push((name.to_vec(), entry.value.to_vec()));
            ControlFlow::Continue(())
        })
    })?;
    Ok((next, found))
}

/// Returns the name under `prefix` that comes after `skip` others, from the spread `from` on; takes
/// from `skip` those that there are. Many names may have the same spread, which clients can choose.
fn nth(
    tx: &mut Tx<'_>,
    prefix: &[u8],
    from: u32,
    skip: &mut u64,
) -> Result<Option<Pair>, CommandError> {
    let start = [prefix, &from.to_be_bytes()].concat();
    let range = (Bound::Included(&start[..]), Bound::Unbounded);
    let mut found = None;
    tx.scan(Space::Elements, range, |key, entry| {
        if let Some((_, name)) = split(key, prefix) {
            if *skip > 0 {
                *skip -= 1;
                return ControlFlow::Continue(());
            }
            found = Some((name.to_vec(), entry.value.to_vec()));
        }
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// Splits the key of an element under `prefix` into its spread and its name.
fn split<'k>(key: &'k [u8], prefix: &[u8]) -> Option<(u32, &'k [u8])> {
    let (at, name) = key.strip_prefix(prefix)?.split_first_chunk()?;
    Some((u32::from_be_bytes(*at), name))
}

/// The number of consecutive names of which one is chosen at random. Gaps between spreads differ:
/// the first name after a random spread would favour names after wide gaps.
pub(crate) const FEW: u64 = 16;

/// Returns a random name under `prefix`, where there are more than [`FEW`].
pub(crate) fn random(tx: &mut Tx<'_>, prefix: &[u8]) -> Result<Option<Pair>, CommandError> {
    let mut skip = rand::rng().random_range(0..FEW);
    match nth(tx, prefix, rand::rng().random(), &mut skip)? {
        None => nth(tx, prefix, 0, &mut skip),
        found => Ok(found),
    }
}

/// The number of consecutive random names found before, after which all are read.
const MAX_IN_VAIN: u32 = 32;

/// The second half of an element: the value of a field, or the score of a member.
pub(crate) trait Bytes {
    /// Returns the bytes that it takes in memory, besides its own size.
    fn bytes(&self) -> usize;
}

impl Bytes for Vec<u8> {
    fn bytes(&self) -> usize {
        self.len()
    }
}

impl Bytes for f64 {
    fn bytes(&self) -> usize {
        0
    }
}

/// Returns true if reading `count` random names costs more than reading all.
pub(crate) fn is_expensive(count: u64, len: u64) -> bool {
    /// The number of consecutive names that are read in the time of one random name.
    const COST_RATIO: u64 = 24;
    count.saturating_mul(COST_RATIO) >= len
}

/// Returns `count` of `len` different ones, which `random` returns one by one and `all` at once.
pub(crate) fn sample<V: Bytes>(
    len: u64,
    count: u64,
    tx: &mut Tx<'_>,
    mut random: impl FnMut(&mut Tx<'_>) -> Result<Option<(Vec<u8>, V)>, CommandError>,
    all: impl FnOnce(&mut Tx<'_>) -> Result<Vec<(Vec<u8>, V)>, CommandError>,
) -> Result<Vec<(Vec<u8>, V)>, CommandError> {
    if is_expensive(count, len) {
        return Ok(some_of(all(tx)?, count));
    }
    let (mut names, mut found) = (BTreeSet::new(), Vec::new());
    // Names that a client chose to be close together may never be found. Otherwise at most one in
    // 24 has been found already.
    let mut in_vain = 0;
    for _ in 0..4 * count + 64 {
        if found.len() as u64 == count {
            return Ok(found);
        }
        let Some(one) = random(tx)? else {
            break;
        };
        if names.insert(one.0.clone()) {
            let (name, value) = &one;
            let _ = tx.scratch.add(name);
            let _ = tx.scratch.add_bytes(name.len() + value.bytes());
            tx.scratch.check()?;
            found.push(one);
            in_vain = 0;
        } else {
            in_vain += 1;
            if in_vain == MAX_IN_VAIN {
                break;
            }
        }
    }
    Ok(some_of(all(tx)?, count))
}

/// Returns `count` random ones of them, or all.
pub(crate) fn some_of<T>(mut all: Vec<T>, count: u64) -> Vec<T> {
    let count = usize::try_from(count).map_or(all.len(), |count| count.min(all.len()));
    // The shuffled part is at the end.
    let _ = all.partial_shuffle(&mut rand::rng(), count);
    all.split_off(all.len() - count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tx::WORK_OF_RECORD;
    use crate::fixture::Fixture;

    /// Returns one of many names that lie together.
    fn together(n: u64) -> Vec<u8> {
        let name = n.to_be_bytes();
        // The checksum of data followed by its own checksum is constant.
        let name = [&name[..], &crc32c::crc32c(&name).to_le_bytes()].concat();
        assert_eq!(spread(&name), spread(b"\0\0\0\0"));
        name
    }

    /// A cursor cannot tell names of one spread apart: the step that gives one gives all.
    #[test]
    fn a_scan_gives_names_that_lie_together_once() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let mut tx = data.begin(0);
        let mut set = Fields::load(&mut tx, b"s", Kind::Set).unwrap();
        let others = (0..200).map(|n| format!("n{n}").into_bytes());
        let mut all: Vec<_> = (0..100).map(together).chain(others).collect();
        for name in &all {
            set.put(&mut tx, name, &[]).unwrap();
        }
        let (mut cursor, mut found) = (0, Vec::new());
        loop {
            let (next, some) = set.step(&mut tx, cursor, 7).unwrap();
            found.extend(some.into_iter().map(|(name, _)| name));
            assert!(next == 0 || next > cursor, "{next} after {cursor}");
            if next == 0 {
                break;
            }
            cursor = next;
        }
        all.sort();
        found.sort();
        assert_eq!(found, all);
    }

    #[test]
    fn names_that_were_chosen_to_lie_together_take_no_longer() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let mut tx = data.begin(0);
        let mut set = Fields::load(&mut tx, b"s", Kind::Set).unwrap();
        let all = 5000;
        for n in 0..all {
            set.put(&mut tx, &together(n), &[]).unwrap();
        }
        set.save(&mut tx, b"s").unwrap();
        tx.commit().unwrap();
        let mut tx = data.begin(0);
        let set = Fields::load(&mut tx, b"s", Kind::Set).unwrap();
        let Content::Large { id, .. } = set.content else {
            panic!("small");
        };
        // The work of looking at twice as many.
        tx.short = Some(2 * FEW as usize * WORK_OF_RECORD);
        assert!(set.random(&mut tx).unwrap().is_some());
        tx.short = None;
        let mut skip = all - 1;
        let last = nth(&mut tx, &id.to_be_bytes(), 0, &mut skip).unwrap();
        assert!(last.is_some() && skip == 0);
        skip = all + 3;
        let none = nth(&mut tx, &id.to_be_bytes(), 0, &mut skip).unwrap();
        assert!(none.is_none() && skip == 3);
        let count = 200;
        assert!(!is_expensive(count, all));
        let found = set.sample(&mut tx, count).unwrap();
        let different: BTreeSet<_> = found.iter().map(|(name, _)| name).collect();
        assert_eq!((found.len(), different.len()), (200, 200));
        assert_eq!(
            fixture.call(&data, "spop s 300").split("$12").count(),
            1 + 300
        );
        assert_eq!(fixture.call(&data, "scard s"), ":4700\r\n");
    }
}
