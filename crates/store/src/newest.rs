//! What is newest of a key, for writers: they hold the lock of its stripe, so it is committed, dead, or damaged.

use crate::commit::Inner;
use crate::error::Damage;
use crate::record::{self, Stamp, Terms};
use crate::recovery::SUMMED_MOST;
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use crossbeam_epoch::Guard;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The newest version of a key that counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// What the index leads to.
    pub entry: u64,
    /// The version's record: `entry`, unless that is dead.
    pub off: u64,
    pub ts: u64,
    /// It says itself that it is committed.
    pub stamped: bool,
    pub terms: Terms,
}

/// What the index leads to, under the lock of the key's stripe.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Newest {
    /// Nothing.
    None,
    /// A dead record, which is not before anything.
    Dead(u64),
    /// A record that cannot be what was written there. It may be replaced, not read; it is not freed before the next opening.
    Damaged(u64),
    Version(Head),
}

impl Newest {
    /// The offset in the index; 0 if there is no entry.
    pub fn entry(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Dead(off) | Self::Damaged(off) => *off,
            Self::Version(head) => head.entry,
        }
    }

    /// The record that a new one follows; 0 for none.
    pub fn off(&self) -> u64 {
        match self {
            Self::Version(head) => head.off,
            // Who reads at an earlier time finds that it is damaged.
            Self::Damaged(off) => *off,
            _ => 0,
        }
    }

    /// The record that is vacuumed once a new one has superseded it; 0 for none.
    pub fn obsolete(&self) -> u64 {
        match self {
            Self::Version(head) => head.off,
            _ => 0,
        }
    }

    /// Bytes of the version, if its block can be freed without another look at it; else 0.
    pub fn plain(&self) -> u64 {
        match self {
            Self::Version(head) if head.stamped && head.terms.is_whole() => head.terms.bytes(),
            _ => 0,
        }
    }

    /// When it was committed; 0 if there is nothing.
    pub fn ts(&self) -> u64 {
        match self {
            Self::Version(head) => head.ts,
            _ => 0,
        }
    }

    /// Whether it is a value, expired or not, or may be one: something that a deletion has to bury.
    pub fn is_value(&self) -> bool {
        match self {
            Self::None | Self::Dead(_) => false,
            Self::Damaged(_) => true,
            Self::Version(head) => !head.terms.is_tombstone(),
        }
    }
}

/// What is there when a key is changed.
pub(crate) struct Current<'a, M: Media> {
    inner: &'a Inner<M>,
    /// The record, and what it is unless it is damaged.
    off: u64,
    terms: Option<Terms>,
}

impl<'a, M: Media> Current<'a, M> {
    /// The value, which the index key that leads to it is compared with.
    pub fn value(&self, key: &[u8]) -> Result<Cow<'a, [u8]>, Damage> {
        let value = match &self.terms {
            Some(terms) => record::sound_value(self.inner.pm(), key, self.off, terms),
            None => Err(self.inner.why_damaged(key, self.off)),
        };
        value.map_err(|e| Damage::of_key(key, &e))
    }

    /// In ms since 1970; 0 for none.
    pub fn expiry(&self) -> u64 {
        self.terms.map_or(0, |terms| terms.expiry())
    }

    /// Bytes of the value.
    pub fn len(&self) -> usize {
        self.terms.map_or(0, |terms| terms.len())
    }
}

/// Keys whose entries lead to what opening found damaged. That may be another key's record, so
/// nothing is freed for such an entry's sake.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// Whether there are any: mostly there are none.
    any: AtomicBool,
    by_key: Mutex<HashMap<Vec<u8>, u64>>,
}

impl Suspects {
    pub fn new(entries: impl IntoIterator<Item = (Vec<u8>, u64)>) -> Self {
        let by_key: HashMap<_, _> = entries.into_iter().collect();
        Self {
            any: AtomicBool::new(!by_key.is_empty()),
            by_key: Mutex::new(by_key),
        }
    }

    /// Whether the entry of a key is one of them. A key that leads elsewhere by now is none any more.
    #[inline]
    fn are(&self, key: &[u8], entry: u64) -> bool {
        // ORDERING: Relaxed; it is set before the store is shared, and never again.
        self.any.load(Ordering::Relaxed) && self.find(key, entry)
    }

    #[cold]
    fn find(&self, key: &[u8], entry: u64) -> bool {
        let mut by_key = lock(&self.by_key);
        let found = by_key.get(key).map(|suspect| *suspect == entry);
        if found == Some(false) {
            by_key.remove(key);
        }
        found == Some(true)
    }
}

impl<M: Media> Inner<M> {
    /// The newest version of a key. The caller holds its stripe's lock.
    pub(crate) fn newest(&self, key: &[u8], guard: &Guard) -> Newest {
        self.newest_of(key, self.index.get(key), guard)
    }

    /// As [`newest`](Self::newest), of what the index leads to.
    pub(crate) fn newest_of(&self, key: &[u8], entry: Option<u64>, _guard: &Guard) -> Newest {
        let Some(entry) = entry else {
            return Newest::None;
        };
        if self.suspects.are(key, entry) {
            return Newest::Damaged(entry);
        }
        self.head(key, entry).unwrap_or(Newest::Damaged(entry))
    }

    /// The newest version from a record on that the index leads to.
    ///
    /// # Errors
    /// [`Damage`]
    fn head(&self, key: &[u8], entry: u64) -> Result<Newest, Damage> {
        let pm = self.pm();
        let mut off = entry;
        let mut header = record::header(pm, off)?;
        let mut stamp = self.stamp_of(off, header, 0)?;
        if stamp == Stamp::Dead {
            record::check_sum(pm, key, off, &header.terms(pm))?;
            off = header.previous(pm);
            if off == 0 {
                return Ok(Newest::Dead(entry));
            }
            header = record::header(pm, off)?;
            stamp = self.stamp_of(off, header, 0)?;
            record::check_sum(pm, key, off, &header.terms(pm))?;
        }
        let Some(ts) = stamp.ts() else {
            return Err(Damage::new(format!(
                "record {off:#x}: dead behind a dead one"
            )));
        };
        let terms = header.terms(pm);
        if !terms.sound() {
            return Err(Damage::new(format!(
                "record {off:#x}: no record is {terms:?}"
            )));
        }
        // Opening has not compared these, and what replaces this one frees what it leads to.
        if terms.len() > SUMMED_MOST {
            record::check_sum(pm, key, off, &terms)?;
        }
        Ok(Newest::Version(Head {
            entry,
            off,
            ts,
            stamped: matches!(stamp, Stamp::At(_)),
            terms,
        }))
    }

    /// What is wrong with a record that was found damaged.
    fn why_damaged(&self, key: &[u8], entry: u64) -> Damage {
        (self.head(key, entry).err())
            .unwrap_or_else(|| Damage::new(format!("record {entry:#x} was damaged")))
    }

    /// What is there of a key, for one who changes it; nothing if that has expired at `now`, or is none. What is damaged is there:
    /// nothing is made anew as if it had never been.
    pub(crate) fn current(
        &self,
        key: &[u8],
        newest: &Newest,
        now: impl FnOnce() -> u64,
    ) -> Option<Current<'_, M>> {
        let (off, terms) = match newest {
            Newest::None | Newest::Dead(_) => return None,
            Newest::Damaged(off) => (*off, None),
            Newest::Version(head) => {
                let absent = head.terms.absent_by(now);
                if absent && record::check_sum(self.pm(), key, head.off, &head.terms).is_ok() {
                    return None;
                }
                (head.off, Some(head.terms))
            }
        };
        let inner = self;
        Some(Current { inner, off, terms })
    }
}
