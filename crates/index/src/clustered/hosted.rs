//! A tree under a store: reads at times and at the durable mark, and changes that return their
//! time stamps and are not committed one by one.
//!
//! A *time* shows all changes with stamps below it. [`begin`](HostedTree::begin) registers one, and
//! what it shows stays readable until [`end`](HostedTree::end).

use super::changes::{Batch, Conflict};
use super::marks::Marks;
use super::modify::{Each, Modified, Refused};
use super::observe::Observer;
use super::serial::Reads;
use super::versions::Past;
use super::visit::{EntryVisitor, Rescuing, Visits};
use super::write::{Changed, Expected};
use super::{
    ClusteredOptions, ClusteredTree, Compacted, LazyTree, MAX_KEY, MAX_VALUE, Modification,
    ReadError,
};
use crate::contract::{Direction, IndexStats, RecoveryReport, TreeError, VerifyReport, Violation};
use crate::contract::{DurableIndex, InsertError, OrderedIndex};
use bristlecone_pmem::heap::HeapStats;
use bristlecone_pmem::{CommitError, Media, Pool, SpaceError};
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Cow;
use std::fmt;
use std::ops::{Bound, ControlFlow, Deref};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A range of keys.
pub type KeyRange<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

/// When a read takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Now: changes count when they have been shown.
    Now,
    /// At the durable mark: no power cut undoes what is read.
    Durable,
    /// At a time that [`begin`](HostedTree::begin) has returned, and that has not ended.
    At(u64),
}

/// A tree of byte strings, opened as a [`LazyTree`] is, for a store.
///
/// Its changes are not committed: [`make_durable`](Self::make_durable) does that for all of them.
#[derive(Debug)]
pub struct HostedTree<M: Media>(pub(super) ClusteredTree<[u8], [u8], M>);

/// Reason why a change was not made. Nothing has changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ChangeError {
    /// The key or the value is too long.
    TooLong {
        /// Whether it is the key.
        key: bool,
        /// Its bytes.
        len: usize,
        /// Most bytes that it may have.
        most: usize,
    },
    /// A page or a value could not be read, or there is no space.
    Page(ReadError),
    /// Another change came first, of this key.
    Conflict {
        /// The key.
        key: Vec<u8>,
        /// The transaction has read the key, and does not change it.
        read: bool,
    },
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { key, len, most } => {
                let what = if *key { "key" } else { "value" };
                write!(f, "the {what} has {len} bytes; the most is {most}")
            }
            Self::Page(e) => e.fmt(f),
            Self::Conflict { key, .. } => {
                write!(f, "key \"{}\" has changed since", key.escape_ascii())
            }
        }
    }
}

impl std::error::Error for ChangeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Page(e) => Some(e),
            _ => None,
        }
    }
}

impl From<ReadError> for ChangeError {
    fn from(e: ReadError) -> Self {
        Self::Page(e)
    }
}

impl From<InsertError> for ChangeError {
    fn from(e: InsertError) -> Self {
        match e {
            InsertError::KeyTooLong { len, most } => Self::TooLong {
                key: true,
                len,
                most,
            },
            InsertError::ValueTooLong { len, most } => Self::TooLong {
                key: false,
                len,
                most,
            },
            InsertError::Space(e) => Self::Page(ReadError::Space(e)),
            // Those of a tree that is open for reading, and of changes that are not made here.
            _ => Self::Page(ReadError::Space(SpaceError::ReadOnly)),
        }
    }
}

/// A value that is read where it lies. While it exists, memory that is freed is not used again.
pub struct Pinned<'t> {
    value: Cow<'t, [u8]>,
    /// Pinned before the value was found.
    _guard: Guard,
}

impl Deref for Pinned<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.value
    }
}

impl fmt::Debug for Pinned<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

/// The present value of a key that is being visited or changed.
pub type Current<'v, M> = super::modify::Current<'v, [u8], [u8], M>;

/// One of the steps of [`HostedTree::execute`]: a key, and its new value, or `None` to look at it.
pub type Step<'s> = (&'s [u8], Option<&'s [u8]>);

impl<M: Media> HostedTree<M> {
    /// Makes an empty tree in root `name`. `observer` is told of its changes.
    ///
    /// # Errors
    /// As of [`DurableIndex::create`].
    pub fn create(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &ClusteredOptions,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, TreeError> {
        let tree = ClusteredTree::create(pool, name, options)?;
        Ok(Self::over(tree.into(), observer))
    }

    /// Opens the tree in root `name`, as [`LazyTree::open`] does.
    ///
    /// # Errors
    /// As there.
    pub fn open(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &ClusteredOptions,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, TreeError> {
        Ok(Self::over(LazyTree::open(pool, name, options)?, observer))
    }

    fn over(tree: LazyTree<[u8], [u8], M>, observer: Arc<dyn Observer>) -> Self {
        let mut tree = tree.into_tree();
        tree.marks = Marks::new(tree.pm(), &tree.versions, tree.stamps.coming());
        tree.observer = Some(observer);
        Self(tree)
    }

    #[cfg(test)]
    pub(super) fn tree(&self) -> &ClusteredTree<[u8], [u8], M> {
        &self.0
    }

    #[cfg(test)]
    pub(super) fn into_tree(self) -> ClusteredTree<[u8], [u8], M> {
        self.0
    }

    /// Returns a number that it has not returned before, in this session or an earlier one.
    ///
    /// Persist cost: 1 line and 1 fence for each 2^20 numbers.
    pub fn new_number(&self) -> u64 {
        self.0.next_generation()
    }

    /// The highest number that can be [skipped](Self::skip_numbers). No tree gives as many.
    pub const MAX_NUMBER: u64 = 1 << 46;

    /// Makes [`new_number`](Self::new_number) return numbers above this one only, of at most
    /// [`MAX_NUMBER`](Self::MAX_NUMBER): for a tree that has entries of another one, with its
    /// numbers in them.
    ///
    /// Persist cost: 1 line and 1 fence, if the number is above the ceiling.
    pub fn skip_numbers(&self, number: u64) {
        let word = self.0.root().word(super::root::GENERATIONS);
        let number = number.min(Self::MAX_NUMBER);
        self.0.generations.skip(self.0.pm(), number, word);
    }

    /// Returns the first time stamp that this session can have given. The session before, unless
    /// it gave no stamp, began at an earlier one.
    pub fn first_stamp(&self) -> u64 {
        self.0.shown.first()
    }

    /// Returns the stamp that the next session begins at, if no more stamps are given than now.
    pub fn next_session(&self) -> u64 {
        self.0.stamps.ceiling()
    }

    /// Returns the time below which all changes have been shown.
    pub fn applied(&self) -> u64 {
        self.0.applied_time()
    }

    /// Returns the time below which all changes are durable.
    pub fn durable(&self) -> u64 {
        self.0.durable_time()
    }

    /// Makes the change of that stamp durable, which has been made, and all before it.
    ///
    /// # Errors
    /// [`CommitError`]: it is visible, and may or may not be there after a crash.
    pub fn make_durable(&self, stamp: u64) -> Result<(), CommitError> {
        self.0.make_stamp_durable(stamp)
    }

    /// Waits until the change of that stamp, which has been given, and all before it are shown.
    pub fn wait_shown(&self, stamp: u64) {
        self.0.shown.wait_for(stamp + 1);
    }

    /// Checks that no commit has failed.
    ///
    /// # Errors
    /// The failure.
    pub fn sound(&self) -> Result<(), CommitError> {
        self.0.marks.sound()
    }

    /// Begins to read at the present, or at the durable mark. Waits for changes that have begun to
    /// be shown.
    pub fn begin(&self, durable: bool) -> u64 {
        self.0.begin_reading(durable)
    }

    /// Begins another reading at a time that has begun and not ended.
    pub fn begin_again(&self, time: u64) {
        self.0.versions.begin_again(time);
    }

    /// Ends one reading at a time.
    pub fn end(&self, time: u64) {
        self.0.end_reading(time);
    }

    /// Returns the earliest time that is read at, and how many readings there are. The durable mark
    /// is not among them.
    pub fn readers(&self) -> (Option<u64>, usize) {
        let marks = &self.0.marks;
        self.0
            .versions
            .readers(marks.waits.then(|| marks.durable()))
    }

    /// Returns how many old values are kept for readers, and their bytes.
    pub fn kept(&self) -> (u64, u64) {
        self.0.versions.kept()
    }

    /// Calls `f` with the value of `key`, if it has one. Of a page that cannot be loaded, what is
    /// sound is read.
    ///
    /// # Errors
    /// [`ReadError`]: the key's page is damaged, or the value.
    #[inline]
    pub fn get<R>(
        &self,
        when: When,
        key: &[u8],
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, ReadError> {
        let mut once = Some(f);
        let f = |value: &[u8]| once.take().map(|f| f(value));
        let found = match when {
            When::Now => self.0.find_value(key, f),
            When::Durable => self.0.find_durable(key, f),
            When::At(time) => self.0.find_at(time, key, f),
        };
        match (found, once) {
            (Ok(found), _) => Ok(found.flatten()),
            (Err(ReadError::Damaged(what)), Some(f)) => {
                let guard = &epoch::pin();
                match self.get_rescued(key, what, guard)? {
                    Some(stored) => Ok(Some(f(&self.0.resolve(stored)?))),
                    None => Ok(None),
                }
            }
            (Err(e), _) => Err(e),
        }
    }

    /// Returns the value of `key`, where it lies.
    ///
    /// # Errors
    /// As of [`get`](Self::get).
    pub fn get_pinned(&self, when: When, key: &[u8]) -> Result<Option<Pinned<'_>>, ReadError> {
        let guard = epoch::pin();
        let past = match when {
            When::Now => self.0.latest(false, (key, key), &guard),
            When::Durable => self.0.latest(true, (key, key), &guard),
            When::At(time) => self.0.past_at(time, (key, key), &guard),
        };
        let value = match past {
            Ok(Some(past)) => self.0.resolve_past(past)?,
            Ok(None) => return Ok(None),
            Err(ReadError::Damaged(what)) => match self.get_rescued(key, what, &guard)? {
                Some(stored) => self.0.resolve(stored)?,
                None => return Ok(None),
            },
            Err(e) => return Err(e),
        };
        let _guard = guard;
        Ok(Some(Pinned { value, _guard }))
    }

    /// Returns where the keys end that share a page with this one; `None` after the last one. A
    /// hint: it may change at any time, and pages that are not loaded are taken together.
    #[must_use]
    pub fn page_end(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.0.inner.find_range(key, &epoch::pin()).high
    }

    /// Prefetches what reading or changing these keys will touch.
    pub fn prefetch(&self, keys: &[&[u8]]) {
        self.0.prefetch_keys(keys);
    }

    /// Visits the keys that the range has at a time that has begun and not ended, in their order or
    /// down, until `visit` breaks or fails. A page that cannot be loaded is read as far as it is
    /// sound, if that is all that the range has of it.
    ///
    /// # Errors
    /// [`ReadError`]: a page is damaged; and those of `visit`.
    pub fn scan(
        &self,
        time: u64,
        range: KeyRange<'_>,
        way: (Direction, Visits),
        visit: impl FnMut(&[u8], &Current<'_, M>) -> Result<ControlFlow<()>, ReadError>,
    ) -> Result<(), ReadError> {
        self.scan_with(time, range, way, visit)
    }

    /// As [`scan`](Self::scan), for a visitor that may take short values as they are.
    ///
    /// # Errors
    /// As there.
    pub fn scan_with(
        &self,
        time: u64,
        range: KeyRange<'_>,
        (direction, visits): (Direction, Visits),
        visitor: impl EntryVisitor<M>,
    ) -> Result<(), ReadError> {
        let mut visitor = Rescuing {
            tree: self,
            range,
            direction,
            visits,
            visitor,
        };
        (self.0).scan_stored(&range, direction, time, &mut visitor)
    }

    /// As [`scan`](Self::scan), upwards, of the keys that the range has when it begins.
    ///
    /// # Errors
    /// As there.
    pub fn scan_present(
        &self,
        range: KeyRange<'_>,
        visit: impl FnMut(&[u8], &Current<'_, M>) -> Result<ControlFlow<()>, ReadError>,
    ) -> Result<(), ReadError> {
        let time = self.begin(false);
        let scanned = self.scan(time, range, (Direction::Up, Visits::Keys), visit);
        self.end(time);
        scanned
    }

    /// Returns whether the tree has no key.
    ///
    /// # Errors
    /// [`ReadError`]: a page before the first key is damaged.
    pub fn is_empty(&self) -> Result<bool, ReadError> {
        let mut empty = true;
        self.scan_present((Bound::Unbounded, Bound::Unbounded), |_, _| {
            empty = false;
            Ok(ControlFlow::Break(()))
        })?;
        Ok(empty)
    }

    /// Returns how many damaged inner pages and words of the page table were made again from what
    /// they led to, and changes with one wrong bit, since the tree was opened.
    pub fn made_again(&self) -> u64 {
        // ORDERING: Relaxed; a count.
        self.0.made_again.load(Ordering::Relaxed)
    }

    fn writable(&self) -> Result<(), ReadError> {
        if self.0.read_only {
            return Err(SpaceError::ReadOnly.into());
        }
        Ok(())
    }

    /// Puts a value. Returns the change's stamp.
    ///
    /// # Errors
    /// [`ChangeError`]
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<u64, ChangeError> {
        self.writable()?;
        ClusteredTree::<[u8], [u8], M>::fits(key, value)?;
        match self.0.change(key, Some(value), Expected::Either)? {
            Changed::Done { stamp, .. } => Ok(stamp),
            Changed::Refused => unreachable!("nothing was expected of the key"),
        }
    }

    /// Changes `key` to what `decide` makes of what it has. Nobody changes the key in between.
    /// `decide` is called again if there was no space at first, and must not use the tree.
    ///
    /// # Errors
    /// [`ChangeError`]; and those of `decide`.
    pub fn modify(
        &self,
        key: &[u8],
        decide: impl FnMut(Option<Current<'_, M>>) -> Result<Modification<Vec<u8>>, ReadError>,
    ) -> Result<Modified, ChangeError> {
        self.writable()?;
        ClusteredTree::<[u8], [u8], M>::fits(key, &[])?;
        self.0
            .modify_by(key, decide)
            .map_err(|refused| match refused {
                Refused::Itself(e) => e.into(),
                Refused::Page(e, _) => e.into(),
            })
    }

    /// Makes all of the changes, or none: keys with their new values, or none to remove them. Each
    /// key occurs once. With `since`, a time that has begun and not ended, a key that has changed
    /// since is a conflict; and with `reads` one of these.
    ///
    /// Returns the stamp of the changes, `None` if there was nothing to change, and what they rest
    /// on, as [`modify`](Self::modify) does.
    ///
    /// # Errors
    /// [`ChangeError`]
    pub fn write<'c>(
        &self,
        changes: impl IntoIterator<Item = (&'c [u8], Option<&'c [u8]>)>,
        since: Option<u64>,
        reads: Option<&Reads<[u8]>>,
    ) -> Result<Modified, ChangeError> {
        let mut batch = self.0.batch_of(changes)?;
        if let Some(since) = since {
            batch = batch.if_unchanged_since(since, reads);
        }
        self.0.change_batch(&mut batch, true)?;
        let modified = batch.modified();
        match batch.conflict() {
            Some(Conflict { key, read }) => Err(ChangeError::Conflict { key, read }),
            None => Ok(modified),
        }
    }

    /// As [`write`](Self::write), of changes after which there is more space: they may use what is
    /// kept back for removals.
    ///
    /// # Errors
    /// As there.
    pub fn write_to_free<'c>(
        &self,
        changes: impl IntoIterator<Item = (&'c [u8], Option<&'c [u8]>)>,
    ) -> Result<Modified, ChangeError> {
        let mut batch = self.0.batch_of(changes)?;
        batch.frees = true;
        self.0.change_batch(&mut batch, true)?;
        Ok(batch.modified())
    }

    /// Removes keys, each durably by itself, and under one fence and time stamp if there is space.
    ///
    /// # Errors
    /// [`ChangeError`]; for want of space, some may have been removed.
    pub fn remove_all<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k [u8]> + Clone,
    ) -> Result<Modified, ChangeError> {
        let mut batch = self
            .0
            .batch_of(keys.clone().into_iter().map(|key| (key, None)))?;
        match self.0.change_batch(&mut batch, false) {
            // Removals one by one need no room in full pages.
            Err(ReadError::Space(_)) => {}
            done => return done.map(|()| batch.modified()).map_err(Into::into),
        }
        let mut all = Modified::default();
        for key in keys {
            let one = self.modify(key, |_| Ok(Modification::Remove))?;
            all.stamp = one.stamp.max(all.stamp);
            all.seen = all.seen.max(one.seen);
        }
        Ok(all)
    }

    /// Calls `each` with what each key has, in the order of the steps, until it breaks, and makes
    /// the changes before that, under one time stamp: durably each by itself, and shown together.
    /// Nobody changes the keys meanwhile. No key that is changed occurs twice.
    ///
    /// Returns how many steps came before `each` broke, and how they ended.
    ///
    /// # Errors
    /// [`ChangeError`]; and those of `each`.
    pub fn execute(
        &self,
        steps: &[Step<'_>],
        each: &mut Each<'_, [u8], [u8], M>,
    ) -> Result<(usize, Modified), ChangeError> {
        self.writable()?;
        let mut batch = Batch::with_room(steps.len());
        for (key, value) in steps {
            ClusteredTree::<[u8], [u8], M>::fits(key, value.unwrap_or(&[]))?;
            match value {
                Some(value) => batch.add(*key, Some(*value), Expected::Either),
                None => batch.look(*key),
            }
        }
        let done = self.0.execute_batch(&mut batch, each)?;
        Ok((done, batch.modified()))
    }

    /// Gives back the space of values that nobody needs any more, as far as there is space for
    /// that. Moves the durable mark first, which some may be kept for.
    ///
    /// # Errors
    /// [`CommitError`]; it is given back all the same where the mark is not needed.
    pub fn reclaim(&self) -> Result<(), CommitError> {
        if self.0.read_only {
            return Ok(());
        }
        let durable = self.make_durable(self.applied() - 1);
        self.0.renew_all();
        self.0.sweep_history();
        durable
    }

    /// As [`ClusteredTree::compact`]. Without `fills` pages with room for many entries stay as they
    /// are, unless two fit into one. Looks before each page whether to stop.
    ///
    /// # Errors
    /// As there.
    pub fn compact(&self, fills: bool, stops: &dyn Fn() -> bool) -> Result<Compacted, ReadError> {
        self.0.shrink(fills, stops)
    }

    /// Returns how much of the pool the tree has.
    pub fn space(&self) -> HeapStats {
        self.0.heap.stats()
    }

    /// Loads all pages that are not, as [`LazyTree::load_rest`] does.
    ///
    /// # Errors
    /// [`ReadError`], at the first page that cannot be read.
    pub fn load_rest(&self) -> Result<(), ReadError> {
        self.0.load_rest().map(|_| ())
    }

    /// Checks all pages, which it loads, and what they lead to.
    ///
    /// # Errors
    /// [`Violation`]
    pub fn verify(&self) -> Result<VerifyReport, Violation> {
        if let Err(e) = self.load_rest() {
            return Err(Violation::new(e.to_string()));
        }
        self.0.verify()
    }

    /// Returns counts of the pages that are loaded.
    pub fn stats(&self) -> IndexStats {
        self.0.stats()
    }

    /// As [`DurableIndex::recovery`].
    pub fn recovery(&self) -> &RecoveryReport {
        self.0.recovery()
    }

    /// Returns the damage that the opening passed over, as it does in a pool that is
    /// [salvaged](Pool::salvage).
    pub fn passed(&self) -> &[String] {
        &self.0.passed
    }

    /// Returns the pool that the tree is in.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        self.0.pool()
    }

    /// Longest key in bytes.
    pub const MAX_KEY: usize = MAX_KEY;
    /// Longest value in bytes.
    pub const MAX_VALUE: usize = MAX_VALUE;
}

impl<M: Media> ClusteredTree<[u8], [u8], M> {
    /// The value that a page or history has. The caller is pinned since before it was read.
    fn resolve_past<'t>(&'t self, past: Past<'t>) -> Result<Cow<'t, [u8]>, ReadError> {
        let is_outer = past.stored().outer;
        match past.into_reference() {
            Ok(reference) => self
                .content_or_copy(&reference, true)
                .map_err(ReadError::Value),
            Err(_) if is_outer => {
                let what = "a reference to a value leads nowhere";
                Err(ReadError::Value(what.into()))
            }
            Err(value) => Ok(value),
        }
    }
}
