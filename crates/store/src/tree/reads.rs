//! Reading keys.

use super::long::Place;
use super::value::{Found, Head, glimpsed, plain};
use super::{Core, damaged, read_error, time_of, when};
use crate::engine::{At, Ticket, Visit, VisitWithin, Wait};
use crate::entries::Entries;
use crate::entry::{Entry, Longer, expires_at, whole};
use crate::error::{Damage, ReadError};
use crate::key::PREFIX;
use crate::pinned::PinnedValue;
use bristlecone_index::Direction;
use bristlecone_index::clustered::{self, EntryVisitor, Visits, When};
use bristlecone_index::engine::Range;
use bristlecone_pmem::Media;
use crossbeam_epoch as epoch;
use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};

/// Whether a value with that expiry is there.
pub(super) fn is_live(expiry: u64, now: impl FnOnce() -> u64) -> bool {
    expiry == 0 || expiry > now()
}

/// A snapshot for as long as it takes to read, whatever becomes of the reader.
pub(super) struct Reading<'c, M: Media> {
    core: &'c Core<M>,
    pub(super) ticket: Ticket,
}

impl<'c, M: Media> Reading<'c, M> {
    pub(super) fn begin(core: &'c Core<M>, wait: Wait) -> Self {
        let ticket = core.enter(wait);
        Self { core, ticket }
    }
}

impl<M: Media> Drop for Reading<'_, M> {
    fn drop(&mut self) {
        self.core.leave(self.ticket);
    }
}

/// A visitor, and the most bytes of a value that it takes.
type Within<'v, 'w> = (&'v mut VisitWithin<'w>, u64);

/// Visits values, or what those are that are longer than `most` bytes.
struct Values<'c, M: Media, V: ?Sized> {
    core: &'c Core<M>,
    at: Ticket,
    most: u64,
    /// The key of a value that could not be read.
    reached: Option<Vec<u8>>,
    visit: &'c mut V,
}

impl<M, V> EntryVisitor<M> for Values<'_, M, V>
where
    M: Media,
    V: FnMut(&[u8], Result<Entry<'_>, Longer>) -> ControlFlow<()> + ?Sized,
{
    #[inline(always)]
    fn short(&mut self, key: &[u8], value: &[u8]) -> Option<ControlFlow<()>> {
        let value = plain(value).filter(|value| value.len() as u64 <= self.most)?;
        let expires_at = None;
        Some((self.visit)(key, Ok(Entry { value, expires_at })))
    }

    fn entry(
        &mut self,
        key: &[u8],
        current: &clustered::Current<'_, M>,
    ) -> Result<ControlFlow<()>, clustered::ReadError> {
        if let Some(flow) = current
            .short_value()
            .and_then(|value| self.short(key, value))
        {
            return Ok(flow);
        }
        let mut visit = |key: &[u8], found: Result<Entry<'_>, Longer>| (self.visit)(key, found);
        let to = (&mut visit as &mut VisitWithin<'_>, self.most);
        let visited = self.core.scan_long(self.at, key, current, to);
        visited.inspect_err(|_| self.reached = Some(key.to_vec()))
    }
}

/// A value, and when it expires.
type Whole = (Vec<u8>, Option<u64>);

/// A read at a snapshot or now.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    when: When,
    /// The time in ms that expiries are compared with; `None` for the wall clock's.
    now: Option<u64>,
}

impl Moment {
    pub(super) fn of(at: At) -> Self {
        match at {
            At::Latest(wait) => Self {
                when: when(wait),
                now: None,
            },
            At::Snapshot(ticket) => Self {
                when: When::At(time_of(ticket.ts)),
                now: Some(ticket.now),
            },
        }
    }
}

impl<M: Media> Core<M> {
    /// The timestamp of a read.
    fn ts_of(&self, moment: Moment) -> u64 {
        match moment.when {
            When::Now => u64::MAX,
            When::Durable => self.durable(),
            When::At(time) => time - 1,
        }
    }

    pub(super) fn is_visible(&self, key: &[u8], moment: Moment) -> bool {
        !self.is_dropped_by(key, || self.ts_of(moment))
    }

    fn now_of(&self, moment: Moment) -> u64 {
        moment.now.unwrap_or_else(|| self.wall.now())
    }

    /// Calls `f` with the value of a key, if it has one of at most `most` bytes. Returns what a
    /// longer one is, which is neither unpacked nor assembled.
    pub(super) fn get_within(
        &self,
        at: At,
        key: &[u8],
        most: u64,
        f: &mut dyn FnMut(Entry<'_>),
    ) -> Result<Option<Longer>, ReadError> {
        let moment = Moment::of(at);
        if !self.is_visible(key, moment) {
            return Ok(None);
        }
        let Some(place) = self.place_of(key)? else {
            return Ok(None);
        };
        let mut longer = None;
        let mut is_longer = |len: u64, expiry: u64| {
            let is = len > most && is_live(expiry, || self.now_of(moment));
            let expires_at = expires_at(expiry);
            longer = is.then_some(Longer { len, expires_at });
            is
        };
        let found = self.tree.get(moment.when, &place, |stored| {
            let unpacked;
            let (value, expiry) = match Found::of(stored)? {
                Found::Here(value, expiry) => {
                    if is_longer(value.len() as u64, expiry) {
                        return Ok(false);
                    }
                    (value, expiry)
                }
                Found::Packed(packed) => {
                    if is_longer(packed.len, packed.expiry)
                        || !is_live(packed.expiry, || self.now_of(moment))
                    {
                        return Ok(false);
                    }
                    unpacked = packed.unpack()?;
                    (&unpacked[..], packed.expiry)
                }
                Found::Apart(head) => return Ok(!is_longer(head.len, head.expiry)),
            };
            if is_live(expiry, || self.now_of(moment)) {
                f(Entry {
                    value,
                    expires_at: expires_at(expiry),
                });
            }
            Ok(false)
        });
        let found = found.map_err(|e| read_error(Some(key), e))?;
        let is_apart = found.unwrap_or(Ok(false));
        if is_apart.map_err(|e: Damage| Damage::of_key(key, &e))?
            && let Some((value, expires_at)) = self.get_apart(at, key, &place)?
        {
            f(Entry {
                value: &value,
                expires_at,
            });
        }
        Ok(longer)
    }

    /// Returns a value that has parts, if it is still there, and its expiry.
    #[cold]
    fn get_apart(&self, at: At, key: &[u8], place: &[u8]) -> Result<Option<Whole>, ReadError> {
        // Head and parts at one time.
        let (ticket, _reading) = match at {
            At::Latest(wait) => {
                let reading = Reading::begin(self, wait);
                (reading.ticket, Some(reading))
            }
            At::Snapshot(ticket) => (ticket, None),
        };
        if self.is_dropped_by(key, || ticket.ts) {
            // Since it was found; the sweep may have removed parts already.
            return Ok(None);
        }
        let when = When::At(time_of(ticket.ts));
        let read = || -> Result<Option<Whole>, clustered::ReadError> {
            let head = self.tree.get(when, place, |stored| {
                Ok(match Found::of(stored)? {
                    Found::Here(value, expiry) => (Err(value.to_vec()), expiry),
                    Found::Packed(packed) if !is_live(packed.expiry, || ticket.now) => {
                        (Err(Vec::new()), packed.expiry)
                    }
                    Found::Packed(packed) => (Err(packed.unpack()?), packed.expiry),
                    Found::Apart(head) => (Ok(head), head.expiry),
                })
            })?;
            let Some((found, expiry)) = head.transpose().map_err(damaged)? else {
                return Ok(None);
            };
            if !is_live(expiry, || ticket.now) {
                return Ok(None);
            }
            let value = found.map_or_else(Ok, |head| self.assemble(when, place, &head));
            Ok(Some((value?, expires_at(expiry))))
        };
        read().map_err(|e| read_error(Some(key), e))
    }

    pub(super) fn get_pinned(
        &self,
        at: At,
        key: &[u8],
    ) -> Result<Option<PinnedValue<'_>>, ReadError> {
        let moment = Moment::of(at);
        if !self.is_visible(key, moment) {
            return Ok(None);
        }
        let Some(place) = self.place_of(key)? else {
            return Ok(None);
        };
        let pinned = self.tree.get_pinned(moment.when, &place);
        let Some(pinned) = pinned.map_err(|e| read_error(Some(key), e))? else {
            return Ok(None);
        };
        let (len, expiry) = match Found::of(&pinned).map_err(|e| Damage::of_key(key, &e))? {
            Found::Here(value, expiry) => (value.len(), expiry),
            Found::Packed(packed) => {
                if !is_live(packed.expiry, || self.now_of(moment)) {
                    return Ok(None);
                }
                let value = packed.unpack().map_err(|e| Damage::of_key(key, &e))?;
                let expires_at = expires_at(packed.expiry);
                let value = PinnedValue::of_record(Cow::Owned(value), expires_at, epoch::pin());
                return Ok(Some(value));
            }
            Found::Apart(_) => {
                let whole = self.get_apart(at, key, &place)?;
                return Ok(whole.map(|(value, expires_at)| {
                    PinnedValue::of_record(Cow::Owned(value), expires_at, epoch::pin())
                }));
            }
        };
        if !is_live(expiry, || self.now_of(moment)) {
            return Ok(None);
        }
        let from = pinned.len() - len;
        Ok(Some(PinnedValue::in_tree(pinned, from, expires_at(expiry))))
    }

    pub(super) fn multi_get(
        &self,
        wait: Wait,
        keys: &[&[u8]],
        most: u64,
        f: &mut dyn FnMut(Option<Entry<'_>>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        self.prefetch(keys);
        let reading = Reading::begin(self, wait);
        let ticket = reading.ticket;
        let read = keys.iter().try_for_each(|key| {
            let mut flow = None;
            let got = self.get_within(At::Snapshot(ticket), key, most, &mut |entry| {
                flow = Some(f(Some(entry)));
            });
            match got.map(|longer| match longer {
                Some(_) => ControlFlow::Break(()),
                None => flow.unwrap_or_else(|| f(None)),
            }) {
                Ok(ControlFlow::Continue(())) => ControlFlow::Continue(()),
                Ok(ControlFlow::Break(())) => ControlFlow::Break(Ok(())),
                Err(e) => ControlFlow::Break(Err(e)),
            }
        });
        read.break_value().unwrap_or(Ok(()))
    }

    pub(super) fn scan(
        &self,
        at: Ticket,
        range: Range<'_>,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), ReadError> {
        let way = (direction, u64::MAX);
        self.scan_by(at, range, way, &mut whole(visit))
    }

    /// Visits a range, with what a value of more than `most` bytes is in its place: it is neither
    /// unpacked nor assembled.
    pub(super) fn scan_within(
        &self,
        at: Ticket,
        range: Range<'_>,
        way: (Direction, u64),
        visit: &mut VisitWithin<'_>,
    ) -> Result<(), ReadError> {
        self.scan_by(at, range, way, visit)
    }

    pub(super) fn read(
        &self,
        at: Ticket,
        range: Range<'_>,
        direction: Direction,
        into: &mut Entries,
    ) -> Result<(), ReadError> {
        let way = (direction, u64::MAX);
        let visit =
            |key: &[u8], entry: Entry<'_>| into.push(key.get(PREFIX..).unwrap_or(&[]), entry.value);
        self.scan_by(at, range, way, &mut whole(visit))
    }

    /// As [`scan_within`](Self::scan_within), for each kind of visitor by itself.
    #[inline]
    fn scan_by(
        &self,
        at: Ticket,
        range: Range<'_>,
        (direction, most): (Direction, u64),
        visit: &mut (impl FnMut(&[u8], Result<Entry<'_>, Longer>) -> ControlFlow<()> + ?Sized),
    ) -> Result<(), ReadError> {
        let way = (direction, Visits::Values);
        let mut values = Values {
            core: self,
            at,
            most,
            reached: None,
            visit,
        };
        let visited = self.visit(at, range, way, &mut values);
        visited.map_err(|e| read_error(values.reached.as_deref(), e))
    }

    /// Visits a key whose value is long, expires, or has parts.
    #[inline(never)]
    fn scan_long(
        &self,
        at: Ticket,
        key: &[u8],
        current: &clustered::Current<'_, M>,
        (visit, most): Within<'_, '_>,
    ) -> Result<ControlFlow<()>, clustered::ReadError> {
        let unpacked;
        let stored = current.value()?;
        let found = Found::of(&stored).map_err(damaged)?;
        let (len, expiry) = match &found {
            Found::Here(value, expiry) => (value.len() as u64, *expiry),
            Found::Packed(packed) => (packed.len, packed.expiry),
            Found::Apart(head) => (head.len, head.expiry),
        };
        if !is_live(expiry, || at.now) {
            return Ok(ControlFlow::Continue(()));
        }
        let expires_at = expires_at(expiry);
        if len > most {
            return Ok(visit(key, Err(Longer { len, expires_at })));
        }
        let value = match found {
            Found::Here(value, _) => value,
            Found::Packed(packed) => {
                unpacked = packed.unpack().map_err(damaged)?;
                &unpacked[..]
            }
            Found::Apart(head) => return self.scan_apart(at, key, &head, visit),
        };
        Ok(visit(key, Ok(Entry { value, expires_at })))
    }

    /// Visits a key whose value has parts.
    #[cold]
    fn scan_apart(
        &self,
        at: Ticket,
        key: &[u8],
        head: &Head,
        visit: &mut VisitWithin<'_>,
    ) -> Result<ControlFlow<()>, clustered::ReadError> {
        let Place::At(place) = self.place(key)? else {
            return Ok(ControlFlow::Continue(()));
        };
        let value = self.assemble(When::At(time_of(at.ts)), &place, head)?;
        let entry = Entry {
            value: &value,
            expires_at: expires_at(head.expiry),
        };
        Ok(visit(key, Ok(entry)))
    }

    pub(super) fn scan_keys(
        &self,
        at: Ticket,
        range: Range<'_>,
        visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let way = (Direction::Up, Visits::Keys);
        let mut keys = |key: &[u8], current: &clustered::Current<'_, M>| {
            let expiry = glimpsed(current.glimpse()).expiry;
            Ok(if is_live(expiry, || at.now) {
                visit(key)
            } else {
                ControlFlow::Continue(())
            })
        };
        let visited = self.visit(at, range, way, &mut keys);
        visited.map_err(|e| read_error(None, e))
    }

    /// Visits the keys of a range of one keyspace, expired ones included.
    #[inline]
    fn visit(
        &self,
        at: Ticket,
        range: Range<'_>,
        way: (Direction, Visits),
        visitor: &mut impl EntryVisitor<M>,
    ) -> Result<(), clustered::ReadError> {
        if let Bound::Included(first) | Bound::Excluded(first) = range.0
            && self.is_dropped_by(first, || at.ts)
        {
            return Ok(());
        }
        let time = time_of(at.ts);
        let scanned = self.scan_places(time, range, way, visitor);
        scanned.map(|_| ())
    }

    pub(super) fn prefetch(&self, keys: &[&[u8]]) {
        self.tree.prefetch(keys);
    }
}
