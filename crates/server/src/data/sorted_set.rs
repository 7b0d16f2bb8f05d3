//! The representation of sorted sets: members, each with a score.
//!
//! ```text
//! small   members and scores (8) in turn, ordered by score and member
//! large   head: count (8)
//!         elements: id (8) | 'm' | spread (4) | member --> score (8)
//!                   id (8) | 's' | score (8) | member --> ""
//! ```
//! Encoded scores are ordered like the numbers.

use crate::data::collection::{Content, Packed, element, incomplete, spread};
use crate::data::fields::{FEW, some_of};
use crate::data::record::{Kind, Value};
use crate::data::spaces::Space;
use crate::data::tx::Tx;
use crate::data::{collection, fields};
use crate::error::{CommandError, Outcome};
use crate::parse::double::{from_ordered, ordered};
use std::ops::{Bound, ControlFlow};

/// A member and its score.
pub(crate) type Scored = (Vec<u8>, f64);

/// The members to visit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which<'a> {
    /// All members.
    All,
    /// Those with scores in a range.
    Scores(Scores),
    /// All members have this score: those from this member on, or up to it.
    Members(f64, Bound<&'a [u8]>),
}

/// A range of scores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scores {
    /// The lower bound.
    pub least: f64,
    /// The lower bound itself is excluded.
    pub after_least: bool,
    /// The upper bound.
    pub most: f64,
    /// The upper bound itself is excluded.
    pub before_most: bool,
}

impl Scores {
    /// Returns the range of encoded scores: the first, and the first after it. No score has the
    /// highest encoding.
    fn ends(self) -> (u64, u64) {
        let start = ordered(self.least) + u64::from(self.after_least);
        let end = ordered(self.most) + u64::from(!self.before_most);
        (start, end)
    }
}

/// The direction in which members are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the lowest score on.
    Ascending,
    /// From the highest score on.
    Descending,
}

/// A sorted set that a command works on.
#[derive(Debug)]
pub(crate) struct SortedSet {
    before: Option<Value>,
    expires_at: Option<u64>,
    content: Content,
    changed: bool,
}

/// Decodes a score.
fn score_of(bytes: &[u8]) -> f64 {
    // The length was checked when the record was opened.
    from_ordered(bytes.try_into().map_or(0, u64::from_be_bytes))
}

fn member_key(id: u64, member: &[u8]) -> Result<Vec<u8>, CommandError> {
    element(id, &[b"m", &spread(member).to_be_bytes()], member)
}

fn score_key(id: u64, score: f64, member: &[u8]) -> Result<Vec<u8>, CommandError> {
    element(id, &[b"s", &ordered(score).to_be_bytes()], member)
}

/// Returns the prefix of the keys of a large one's elements.
pub(crate) fn prefix(id: u64, of: u8) -> Vec<u8> {
    [&id.to_be_bytes()[..], &[of]].concat()
}

impl SortedSet {
    /// Returns the sorted set under `key`; an empty one if the key does not exist.
    pub fn load(tx: &mut Tx<'_>, key: &[u8]) -> Result<Self, CommandError> {
        match collection::load(tx, key, Kind::SortedSet)? {
            Some(value) => Self::of(value),
            None => Ok(Self::in_place_of(None)),
        }
    }

    /// Returns the sorted set of a value that was loaded.
    pub fn of(mut value: Value) -> Result<Self, CommandError> {
        let content = Content::take(&mut value)?;
        if let Content::Small(packed) = &content
            && packed.pairs().any(|(_, _, score)| score.len() != 8)
        {
            return Err(CommandError::damaged("a score"));
        }
        Ok(Self {
            expires_at: value.expires_at,
            before: Some(value),
            content,
            changed: false,
        })
    }

    /// Returns an empty one that does not expire, and that will replace `before` when it is saved.
    pub fn in_place_of(before: Option<Value>) -> Self {
        Self {
            changed: before.is_some(),
            before,
            expires_at: None,
            content: Content::Small(Packed::default()),
        }
    }

    /// Returns the number of members.
    pub fn len(&self) -> u64 {
        self.content.len(2)
    }

    /// Returns the bytes that it takes in memory.
    pub fn held(&self) -> usize {
        size_of::<Self>() + self.content.held()
    }

    /// Returns true if the key does not exist.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the score of a member.
    pub fn score(&self, tx: &mut Tx<'_>, member: &[u8]) -> Result<Option<f64>, CommandError> {
        match &self.content {
            Content::Small(packed) => {
                let found = packed.pairs().find(|(_, name, _)| *name == member);
                Ok(found.map(|(_, _, score)| score_of(score)))
            }
            Content::Large { id, .. } => match member_key(*id, member) {
                Ok(key) => tx.get_with(Space::Elements, &key, |entry| score_of(entry.value)),
                // A member that is too long does not exist.
                Err(_) => Ok(None),
            },
        }
    }

    /// Sets the score of a member, whose current score is `before`.
    pub fn put(
        &mut self,
        tx: &mut Tx<'_>,
        member: &[u8],
        score: f64,
        before: Option<f64>,
    ) -> Outcome {
        if let Some(before) = before {
            if before == score {
                return Ok(());
            }
            self.take(tx, member, before)?;
        }
        self.changed = true;
        if let Content::Small(packed) = &mut self.content {
            let bytes = ordered(score).to_be_bytes();
            let after = packed
                .pairs()
                .find(|(_, name, other)| (*other, *name) > (&bytes[..], member));
            let at = after.map_or(packed.bytes(), |(place, _, _)| place.start);
            if packed.splice(at..at, 0, &[member, &bytes], 2) {
                return Ok(());
            }
            self.enlarge(tx)?;
        }
        if let Content::Large { id, count } = &mut self.content {
            *count += 1;
            write(tx, *id, member, score)?;
        }
        Ok(())
    }

    /// Makes it a large one.
    fn enlarge(&mut self, tx: &mut Tx<'_>) -> Outcome {
        let all = self.all(tx)?;
        let id = tx.data().new_id();
        self.content = Content::Large {
            id,
            count: all.len() as u64,
        };
        for (member, score) in all {
            write(tx, id, &member, score)?;
        }
        Ok(())
    }

    /// Removes a member with this score.
    pub fn take(&mut self, tx: &mut Tx<'_>, member: &[u8], score: f64) -> Outcome {
        self.changed = true;
        match &mut self.content {
            Content::Small(packed) => {
                let found = packed.pairs().find(|(_, name, _)| *name == member);
                if let Some(place) = found.map(|(place, _, _)| place) {
                    packed.splice(place, 2, &[], 2);
                }
                Ok(())
            }
            Content::Large { id, count } => {
                *count = count.saturating_sub(1);
                tx.delete(Space::Elements, &member_key(*id, member)?)?;
                tx.delete(Space::Elements, &score_key(*id, score, member)?)
            }
        }
    }

    /// Removes members that were found.
    pub fn take_all(&mut self, tx: &mut Tx<'_>, members: &[Scored]) -> Outcome {
        if members.len() as u64 == self.len() && !members.is_empty() {
            self.content = Content::Small(Packed::default());
            self.changed = true;
            return Ok(());
        }
        for (member, score) in members {
            self.take(tx, member, *score)?;
        }
        Ok(())
    }

    /// Visits members in order.
    pub fn visit(
        &self,
        tx: &mut Tx<'_>,
        which: Which<'_>,
        direction: Direction,
        mut visit: impl FnMut(&[u8], f64) -> ControlFlow<()>,
    ) -> Outcome {
        match &self.content {
            Content::Small(packed) => {
                let mut wanted: Vec<(&[u8], f64)> = packed
                    .pairs()
                    .map(|(_, member, score)| (member, score_of(score)))
                    .filter(|(_, score)| match which {
                        Which::Scores(scores) => {
                            let (start, end) = scores.ends();
                            (start..end).contains(&ordered(*score))
                        }
                        _ => true,
                    })
                    .collect();
                if direction == Direction::Descending {
                    wanted.reverse();
                }
                let _ = (wanted.into_iter()).try_for_each(|(member, score)| visit(member, score));
                Ok(())
            }
            Content::Large { id, count } => {
                let (start, end) = bounds(*id, which, direction);
                if end <= start {
                    return Ok(());
                }
                let range = (Bound::Included(&start[..]), Bound::Excluded(&end[..]));
                let (mut torn, mut found, mut ended) = (false, 0, true);
                let each = |key: &[u8], _: bristlecone_store::Entry<'_>| {
                    found += 1;
                    let parts = key.get(9..).and_then(<[u8]>::split_first_chunk);
                    let flow = match parts {
                        Some((score, member)) => {
                            visit(member, from_ordered(u64::from_be_bytes(*score)))
                        }
                        None => {
                            torn = true;
                            ControlFlow::Break(())
                        }
                    };
                    ended = flow.is_continue();
                    flow
                };
                match direction {
                    Direction::Ascending => tx.scan(Space::Elements, range, each)?,
                    Direction::Descending => tx.scan_reverse(Space::Elements, range, each)?,
                }
                if torn {
                    return Err(CommandError::damaged("a score"));
                }
                if ended && found != *count && matches!(which, Which::All) {
                    return Err(incomplete(Kind::SortedSet, *count, found));
                }
                Ok(())
            }
        }
    }

    /// Returns `count` members from rank `start` on. Takes time in proportion to the distance from
    /// the nearer end.
    pub fn ranks(
        &self,
        tx: &mut Tx<'_>,
        start: u64,
        count: u64,
        direction: Direction,
    ) -> Result<Vec<Scored>, CommandError> {
        let mut found = Vec::new();
        let len = self.len();
        let count = count.min(len.saturating_sub(start));
        if count == 0 {
            return Ok(found);
        }
        let after = len - start - count;
        let turned = after < start;
        let (mut skip, from) = match (turned, direction) {
            (false, direction) => (start, direction),
            (true, Direction::Ascending) => (after, Direction::Descending),
            (true, Direction::Descending) => (after, Direction::Ascending),
        };
        tx.counting(|tx, scratch| {
            self.visit(tx, Which::All, from, |member, score| {
                if skip > 0 {
                    skip -= 1;
                    return ControlFlow::Continue(());
                }
                scratch.add(member)?;
                found.push((member.to_vec(), score));
                if found.len() as u64 == count {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
        })?;
        if turned {
            found.reverse();
        }
        Ok(found)
    }

    /// Returns all members, by score.
    pub fn all(&self, tx: &mut Tx<'_>) -> Result<Vec<Scored>, CommandError> {
        self.ranks(tx, 0, u64::MAX, Direction::Ascending)
    }

    /// Takes a step of a scan; see [`Fields::step`](fields::Fields::step).
    pub fn step(
        &self,
        tx: &mut Tx<'_>,
        cursor: u64,
        count: u64,
    ) -> Result<(u64, Vec<Scored>), CommandError> {
        match &self.content {
            Content::Small(_) => Ok((0, self.all(tx)?)),
            Content::Large { id, .. } => {
                let (next, found) = fields::step(tx, &prefix(*id, b'm'), cursor, count)?;
                let scored = |(member, score): (Vec<u8>, Vec<u8>)| (member, score_of(&score));
                Ok((next, found.into_iter().map(scored).collect()))
            }
        }
    }

    /// Returns a random member, with nearly equal probabilities.
    pub fn random(&self, tx: &mut Tx<'_>) -> Result<Option<Scored>, CommandError> {
        match &self.content {
            Content::Large { id, count } if *count > FEW => {
                let found = fields::random(tx, &prefix(*id, b'm'))?;
                Ok(found.map(|(member, score)| (member, score_of(&score))))
            }
            _ => Ok(some_of(self.all(tx)?, 1).pop()),
        }
    }

    /// Saves it if it has changed.
    pub fn save(self, tx: &mut Tx<'_>, key: &[u8]) -> Outcome {
        if !self.changed {
            return Ok(());
        }
        let after = self.content.into_value(Kind::SortedSet, self.expires_at);
        collection::save(tx, key, self.before.as_ref(), after.as_ref())
    }
}

/// Puts both records of a member.
fn write(tx: &mut Tx<'_>, id: u64, member: &[u8], score: f64) -> Outcome {
    let bytes = ordered(score).to_be_bytes().to_vec();
    let by_score = score_key(id, score, member)?;
    tx.put(Space::Elements, &member_key(id, member)?, bytes, None)?;
    tx.put(Space::Elements, &by_score, Vec::new(), None)
}

/// Puts the record by score of a member whose other record is there.
pub(crate) fn mend_member(tx: &mut Tx<'_>, id: u64, key: &[u8], value: &[u8]) -> Outcome {
    let Some(member) = key.get(13..) else {
        return Err(CommandError::damaged("a member of a sorted set"));
    };
    let other = score_key(id, score_of(value), member)?;
    if (tx.get_with(Space::Elements, &other, |_| ())?).is_none() {
        tx.put(Space::Elements, &other, Vec::new(), None)?;
    }
    Ok(())
}

/// Puts the record by member of one whose record by score is there. The latter goes if the member
/// has another score.
pub(crate) fn mend_score(tx: &mut Tx<'_>, id: u64, key: &[u8]) -> Outcome {
    let parts = key.get(9..).and_then(<[u8]>::split_first_chunk::<8>);
    let Some((score, member)) = parts else {
        return Err(CommandError::damaged("a score"));
    };
    let other = member_key(id, member)?;
    match tx.get(Space::Elements, &other)? {
        None => tx.put(Space::Elements, &other, score.to_vec(), None),
        Some(known) if known == score => Ok(()),
        Some(_) => tx.delete(Space::Elements, key),
    }
}

/// Returns the key of the first element to visit in a large one, and the key after the last.
fn bounds(id: u64, which: Which<'_>, direction: Direction) -> (Vec<u8>, Vec<u8>) {
    let at =
        |score: u64, member: &[u8]| [&prefix(id, b's')[..], &score.to_be_bytes(), member].concat();
    match which {
        Which::All => (at(0, b""), at(u64::MAX, b"")),
        Which::Scores(scores) => {
            let (start, end) = scores.ends();
            (at(start, b""), at(end, b""))
        }
        Which::Members(score, bound) => {
            let (start, end) = (ordered(score), ordered(score) + 1);
            // The key after a member's is the same with a zero byte.
            let place = match bound {
                Bound::Unbounded => None,
                Bound::Included(member) => Some((member, direction == Direction::Descending)),
                Bound::Excluded(member) => Some((member, direction == Direction::Ascending)),
            };
            let edge = place.map(|(member, next)| {
                let mut key = at(start, member);
                key.extend(next.then_some(0));
                key
            });
            match direction {
                Direction::Ascending => (edge.unwrap_or_else(|| at(start, b"")), at(end, b"")),
                Direction::Descending => (at(start, b""), edge.unwrap_or_else(|| at(end, b""))),
            }
        }
    }
}
