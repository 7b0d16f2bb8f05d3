//! The representation of lists.
//!
//! ```text
//! small   elements
//! large   head: first position (8) | position after the last (8)     elements: id (8) | position (8) --> element
//! ```
//! Positions are numbers around `MIDDLE`: a list grows at both ends without moving its elements.

use crate::data::collection;
use crate::data::collection::{Packed, element, numbers};
use crate::data::record::{Kind, Value};
use crate::data::spaces::Space;
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use std::ops::{Bound, ControlFlow, Range};

/// The position of the first element of a list.
const MIDDLE: u64 = 1 << 63;

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The end with index 0.
    Left,
    /// The end with index -1.
    Right,
}

/// A list that a command works on.
#[derive(Debug)]
pub(crate) struct List {
    before: Option<Value>,
    expires_at: Option<u64>,
    content: Content,
    changed: bool,
}

#[derive(Debug)]
enum Content {
    Small(Packed),
    /// The positions.
    Large {
        id: u64,
        at: Range<u64>,
    },
}

/// The error of a list that has fewer elements than its head says.
fn lacking() -> CommandError {
    CommandError::reply(
        "ERR the pool is damaged: a list lacks an element; delete the key, or let `bristlecone repair` make a database of what is whole",
    )
}

fn key(id: u64, position: u64) -> Result<Vec<u8>, CommandError> {
    element(id, &[&position.to_be_bytes()], &[])
}

impl List {
    /// Returns the list under `key`; an empty one if the key does not exist.
    pub fn load(tx: &mut Tx<'_>, key: &[u8]) -> Result<Self, CommandError> {
        let mut value = collection::load(tx, key, Kind::List)?;
        let content = match &mut value {
            None => Content::Small(Packed::default()),
            Some(Value {
                id: Some(id), body, ..
            }) => {
                let [start, end] = numbers(body.as_slice())?;
                if start > end {
                    return Err(CommandError::damaged("the head of a list"));
                }
                Content::Large {
                    id: *id,
                    at: start..end,
                }
            }
            Some(value) => {
                let body = std::mem::take(&mut value.body);
                Content::Small(Packed::open(body, 1)?)
            }
        };
        Ok(Self {
            expires_at: value.as_ref().and_then(|before| before.expires_at),
            before: value,
            content,
            changed: false,
        })
    }

    /// Returns an empty list that does not expire, and that will replace `before` when it is saved.
    pub fn in_place_of(before: Option<Value>) -> Self {
        Self {
            changed: before.is_some(),
            before,
            expires_at: None,
            content: Content::Small(Packed::default()),
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> u64 {
        match &self.content {
            Content::Small(packed) => packed.len() as u64,
            Content::Large { at, .. } => at.end - at.start,
        }
    }

    /// Returns true if the key does not exist.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the index of an argument, where negative numbers count from the end.
    pub fn index(&self, number: i64) -> Option<u64> {
        let index = match u64::try_from(number) {
            Ok(index) => index,
            Err(_) => self.len().checked_sub(number.unsigned_abs())?,
        };
        (index < self.len()).then_some(index)
    }

    /// Returns the place of an element in a small list.
    fn place(packed: &Packed, index: u64) -> Option<(Range<usize>, &[u8])> {
        packed.items().nth(usize::try_from(index).ok()?)
    }

    /// Returns an element.
    pub fn get(&self, tx: &mut Tx<'_>, index: u64) -> Result<Option<Vec<u8>>, CommandError> {
        match &self.content {
            Content::Small(packed) => Ok(Self::place(packed, index).map(|(_, item)| item.to_vec())),
            Content::Large { id, at } => {
                let item = tx.get(Space::Elements, &key(*id, at.start + index)?)?;
                if item.is_none() && index < self.len() {
                    return Err(lacking());
                }
                Ok(item)
            }
        }
    }

    /// Replaces an element.
    pub fn set(&mut self, tx: &mut Tx<'_>, index: u64, item: &[u8]) -> Outcome {
        self.changed = true;
        if let Content::Small(packed) = &mut self.content {
            let Some(place) = Self::place(packed, index).map(|(place, _)| place) else {
                return Ok(());
            };
            if packed.splice(place, 1, &[item], 1) {
                return Ok(());
            }
            self.enlarge(tx)?;
        }
        if let Content::Large { id, at } = &self.content {
            let key = key(*id, at.start + index)?;
            tx.put(Space::Elements, &key, item.to_vec(), None)?;
        }
        Ok(())
    }

    /// Adds an element at an end.
    pub fn push(&mut self, tx: &mut Tx<'_>, end: End, item: &[u8]) -> Outcome {
        self.changed = true;
        if let Content::Small(packed) = &mut self.content {
            let at = match end {
                End::Left => 0,
                End::Right => packed.bytes(),
            };
            if packed.splice(at..at, 0, &[item], 1) {
                return Ok(());
            }
            self.enlarge(tx)?;
        }
        let Content::Large { id, at } = &mut self.content else {
            return Ok(());
        };
        let moved = match end {
            End::Left => (at.start.checked_sub(1)).map(|start| (start..at.end, start)),
            End::Right => (at.end.checked_add(1)).map(|next| (at.start..next, at.end)),
        };
        let (wider, position) =
            moved.ok_or_else(|| CommandError::reply("ERR no room in the list"))?;
        tx.put(Space::Elements, &key(*id, position)?, item.to_vec(), None)?;
        *at = wider;
        Ok(())
    }

    /// Makes it a large one.
    fn enlarge(&mut self, tx: &mut Tx<'_>) -> Outcome {
        let all = self.part(tx, 0, u64::MAX)?;
        let id = tx.data().new_id();
        let at = MIDDLE..MIDDLE + all.len() as u64;
        for (position, item) in at.clone().zip(all) {
            tx.put(Space::Elements, &key(id, position)?, item, None)?;
        }
        self.content = Content::Large { id, at };
        Ok(())
    }

    /// Removes and returns up to `count` elements from an end, the outermost first.
    pub fn pop(
        &mut self,
        tx: &mut Tx<'_>,
        end: End,
        count: u64,
    ) -> Result<Vec<Vec<u8>>, CommandError> {
        let count = count.min(self.len());
        let mut items = match end {
            // A single one is found without a scan.
            _ if count == 1 => {
                let index = if end == End::Left { 0 } else { self.len() - 1 };
                self.get(tx, index)?.into_iter().collect()
            }
            End::Left => self.part(tx, 0, count)?,
            End::Right => self.part(tx, self.len() - count, count)?,
        };
        match end {
            End::Left => self.keep(tx, count, self.len() - count)?,
            End::Right => {
                self.keep(tx, 0, self.len() - count)?;
                items.reverse();
            }
        }
        Ok(items)
    }

    /// Removes all but `count` elements from index `start` on.
    pub fn keep(&mut self, tx: &mut Tx<'_>, start: u64, count: u64) -> Outcome {
        if count == self.len() {
            return Ok(());
        }
        self.changed = true;
        if count == 0 {
            // The elements are deleted with the head.
            self.content = Content::Small(Packed::default());
            return Ok(());
        }
        match &mut self.content {
            Content::Small(packed) => {
                let first = packed.items().nth(start as usize);
                let last = packed.items().nth((start + count - 1) as usize);
                if let (Some((first, _)), Some((last, _))) = (first, last) {
                    let after = packed.len() - (start + count) as usize;
                    packed.splice(last.end..packed.bytes(), after, &[], 1);
                    packed.splice(0..first.start, start as usize, &[], 1);
                }
            }
            Content::Large { id, at } => {
                let kept = at.start + start..at.start + start + count;
                for position in (at.start..kept.start).chain(kept.end..at.end) {
                    tx.delete(Space::Elements, &key(*id, position)?)?;
                }
                *at = kept;
            }
        }
        Ok(())
    }

    /// Inserts an element before the one at `index`. Those on the shorter side move.
    pub fn insert(&mut self, tx: &mut Tx<'_>, index: u64, item: &[u8]) -> Outcome {
        if let Content::Small(packed) = &mut self.content {
            let at = Self::place(packed, index).map_or(packed.bytes(), |(place, _)| place.start);
            self.changed = true;
            if packed.splice(at..at, 0, &[item], 1) {
                return Ok(());
            }
        }
        if index <= self.len() / 2 {
            let moved = self.part(tx, 0, index)?;
            self.push(tx, End::Left, item)?;
            for (at, moved) in moved.iter().enumerate() {
                self.set(tx, at as u64, moved)?;
            }
            self.set(tx, index, item)
        } else {
            let moved = self.part(tx, index, u64::MAX)?;
            self.push(tx, End::Right, item)?;
            for (at, moved) in moved.iter().enumerate() {
                self.set(tx, index + 1 + at as u64, moved)?;
            }
            self.set(tx, index, item)
        }
    }

    /// Removes the elements at these ascending indices. Those on the shorter side move.
    pub fn remove(&mut self, tx: &mut Tx<'_>, indices: &[u64]) -> Outcome {
        let (Some(&first), Some(&last)) = (indices.first(), indices.last()) else {
            return Ok(());
        };
        if let Content::Small(packed) = &mut self.content {
            for index in indices.iter().rev() {
                if let Some(place) = Self::place(packed, *index).map(|(place, _)| place) {
                    packed.splice(place, 1, &[], 1);
                }
            }
            self.changed = true;
            return Ok(());
        }
        let (len, gone) = (self.len(), indices.len() as u64);
        let is_left = |index: &u64| indices.binary_search(index).is_err();
        if len - first <= last + 1 {
            let items = self.part(tx, first, u64::MAX)?;
            let left = (first..len).zip(items).filter(|(index, _)| is_left(index));
            for (to, (_, item)) in (first..).zip(left.collect::<Vec<_>>()) {
                self.set(tx, to, &item)?;
            }
            self.keep(tx, 0, len - gone)
        } else {
            let items = self.part(tx, 0, last + 1)?;
            let left = (0..=last).zip(items).filter(|(index, _)| is_left(index));
            for (to, (_, item)) in (gone..).zip(left.collect::<Vec<_>>()) {
                self.set(tx, to, &item)?;
            }
            self.keep(tx, gone, len - gone)
        }
    }

    /// Returns up to `count` elements from index `start` on.
    pub fn part(
        &self,
        tx: &mut Tx<'_>,
        start: u64,
        count: u64,
    ) -> Result<Vec<Vec<u8>>, CommandError> {
        let mut items = Vec::new();
        if count == 0 {
            return Ok(items);
        }
        tx.counting(|tx, scratch| {
            self.visit(tx, End::Left, start, |_, item| {
                scratch.add(item)?;
                items.push(item.to_vec());
                if items.len() as u64 == count {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
        })?;
        Ok(items)
    }

    /// Visits the elements with their indices, from an end, after the first `skip` of them.
    pub fn visit(
        &self,
        tx: &mut Tx<'_>,
        from: End,
        skip: u64,
        mut visit: impl FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let len = self.len();
        if skip >= len {
            return Ok(());
        }
        match &self.content {
            Content::Small(packed) => {
                let mut items: Vec<(u64, &[u8])> =
                    (0..).zip(packed.items().map(|(_, item)| item)).collect();
                if from == End::Right {
                    items.reverse();
                }
                let _ = (items.into_iter().skip(skip as usize))
                    .try_for_each(|(index, item)| visit(index, item));
                Ok(())
            }
            Content::Large { id, at } => {
                let (start, end) = match from {
                    End::Left => (at.start + skip, at.end),
                    End::Right => (at.start, at.end - skip),
                };
                let (start, end) = (key(*id, start)?, key(*id, end)?);
                let range = (Bound::Included(&start[..]), Bound::Excluded(&end[..]));
                let first = at.start;
                let (mut found, mut ended) = (skip, true);
                let each = |key: &[u8], entry: bristlecone_store::Entry<'_>| {
                    let position = key.get(8..).and_then(<[u8]>::first_chunk);
                    let position = position.map_or(0, |bytes| u64::from_be_bytes(*bytes));
                    let index = position.saturating_sub(first);
                    let due = match from {
                        End::Left => found,
                        End::Right => len - 1 - found,
                    };
                    if index != due {
                        // One is missing.
                        return ControlFlow::Break(());
                    }
                    found += 1;
                    let flow = visit(index, entry.value);
                    ended = flow.is_continue();
                    flow
                };
                match from {
                    End::Left => tx.scan(Space::Elements, range, each)?,
                    End::Right => tx.scan_reverse(Space::Elements, range, each)?,
                }
                if ended && found != len {
                    return Err(lacking());
                }
                Ok(())
            }
        }
    }

    /// Saves it if it has changed.
    pub fn save(self, tx: &mut Tx<'_>, name: &[u8]) -> Outcome {
        if !self.changed {
            return Ok(());
        }
        let empty = self.is_empty();
        let (id, body) = match self.content {
            Content::Small(packed) => (None, packed.into_body()),
            Content::Large { id, at } => {
                let body = [at.start.to_be_bytes(), at.end.to_be_bytes()].concat();
                (Some(id), body)
            }
        };
        let value = Value {
            kind: Kind::List,
            id,
            expires_at: self.expires_at,
            body,
            item: None,
        };
        collection::save(tx, name, self.before.as_ref(), (!empty).then_some(&value))
    }
}
