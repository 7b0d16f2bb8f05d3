//! The newest version of a key, as writers find it. They hold the lock of the key's stripe, so it
//! is committed, dead or damaged, and never in progress.

use crate::read::Reader;
use crate::record::{self, MAX_VERIFIED_BYTES, Meta, Stamp};
use bristlecone_pmem::Media;
use bristlecone_store::Damage;
use crossbeam_epoch::Guard;
use std::borrow::Cow;

/// The newest committed version of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// The record that the index leads to.
    pub entry: u64,
    /// The version's record: `entry`, or the one before it if `entry` is dead.
    pub off: u64,
    pub ts: u64,
    /// Its stamp is a timestamp, not pending.
    pub stamped: bool,
    pub meta: Meta,
}

/// The newest record of a key, found under the lock of its stripe.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Newest {
    /// There is no entry.
    None,
    /// A dead record without a version before it.
    Dead(u64),
    /// A damaged record. It may be replaced, but not read, and is not freed before the store is
    /// opened again.
    Damaged(u64),
    Version(Head),
}

impl Newest {
    /// Returns the offset in the index; 0 if there is no entry.
    pub fn entry(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Dead(off) | Self::Damaged(off) => *off,
            Self::Version(head) => head.entry,
        }
    }

    /// Returns the record that a new version's `previous` leads to; 0 for none.
    pub fn off(&self) -> u64 {
        match self {
            Self::Version(head) => head.off,
            // A reader at an earlier timestamp is to find the damage.
            Self::Damaged(off) => *off,
            _ => 0,
        }
    }

    /// Returns the record to be vacuumed once a new version has superseded it; 0 for none.
    pub fn obsolete(&self) -> u64 {
        match self {
            Self::Version(head) => head.off,
            _ => 0,
        }
    }

    /// Returns the version's bytes if it can be freed without reading it again: stamped, and in one
    /// block. Else 0.
    pub fn plain_bytes(&self) -> u64 {
        match self {
            Self::Version(head) if head.stamped && head.meta.is_whole() => head.meta.bytes(),
            _ => 0,
        }
    }

    /// Returns the timestamp of its commit; 0 if there is none.
    pub fn ts(&self) -> u64 {
        match self {
            Self::Version(head) => head.ts,
            _ => 0,
        }
    }

    /// Returns whether it is or may be a value, expired or not: a deletion then needs a tombstone.
    pub fn is_value(&self) -> bool {
        match self {
            Self::None | Self::Dead(_) => false,
            Self::Damaged(_) => true,
            Self::Version(head) => !head.meta.is_tombstone(),
        }
    }
}

/// The value that a change of a key finds.
pub(crate) struct Current<'a, M: Media> {
    reader: &'a Reader<M>,
    /// The record; its metadata unless it is damaged.
    off: u64,
    meta: Option<Meta>,
}

impl<'a, M: Media> Current<'a, M> {
    /// Returns the value, once the record's checksum has been compared.
    ///
    /// # Errors
    /// [`Damage`], which names the key.
    pub fn value(&self, key: &[u8]) -> Result<Cow<'a, [u8]>, Damage> {
        let value = match &self.meta {
            Some(meta) => record::verified_value(self.reader.pm(), key, self.off, meta),
            None => Err(self.reader.why_damaged(key, self.off)),
        };
        value.map_err(|e| Damage::of_key(key, &e))
    }

    /// Returns the expiry in ms since 1970; 0 for none.
    pub fn expiry(&self) -> u64 {
        self.meta.map_or(0, |meta| meta.expiry())
    }

    /// Returns the length of the value in bytes.
    pub fn len(&self) -> usize {
        self.meta.map_or(0, |meta| meta.len())
    }
}

impl<M: Media> Reader<M> {
    /// Finds the newest version of a key. The caller holds its stripe's lock.
    pub(crate) fn newest(&self, key: &[u8], guard: &Guard) -> Newest {
        self.newest_of(key, self.index.get(key), guard)
    }

    /// As [`newest`](Self::newest), of a key whose index entry is known.
    pub(crate) fn newest_of(&self, key: &[u8], entry: Option<u64>, _guard: &Guard) -> Newest {
        let Some(entry) = entry else {
            return Newest::None;
        };
        if self.damaged.contains(key, entry) {
            return Newest::Damaged(entry);
        }
        self.head(key, entry).unwrap_or(Newest::Damaged(entry))
    }

    /// Finds the newest version in the chain that begins at the record `entry`.
    ///
    /// # Errors
    /// [`Damage`]
    fn head(&self, key: &[u8], entry: u64) -> Result<Newest, Damage> {
        let pm = self.pm();
        let mut off = entry;
        let mut header = record::header(pm, off)?;
        let mut stamp = self.stamp_of(off, header, 0)?;
        if stamp == Stamp::Dead {
            record::verify_checksum(pm, key, off, &header.meta(pm))?;
            off = header.previous(pm);
            if off == 0 {
                return Ok(Newest::Dead(entry));
            }
            header = record::header(pm, off)?;
            stamp = self.stamp_of(off, header, 0)?;
            record::verify_checksum(pm, key, off, &header.meta(pm))?;
        }
        let Some(ts) = stamp.ts() else {
            return Err(Damage::new(format!(
                "record {off:#x}: dead behind a dead one"
            )));
        };
        let meta = header.meta(pm);
        if !meta.is_valid() {
            return Err(Damage::new(format!(
                "record {off:#x}: no record is {meta:?}"
            )));
        }
        // Opening has not compared the checksums of long values, and replacing this one frees the
        // blocks that it names. A bit that has flipped since makes an empty value look like a
        // tombstone, over which a deletion would write nothing.
        if meta.len() > MAX_VERIFIED_BYTES || meta.is_tombstone() {
            record::verify_checksum(pm, key, off, &meta)?;
        }
        Ok(Newest::Version(Head {
            entry,
            off,
            ts,
            stamped: matches!(stamp, Stamp::At(_)),
            meta,
        }))
    }

    /// Returns what is wrong with a record that was found damaged.
    fn why_damaged(&self, key: &[u8], entry: u64) -> Damage {
        (self.head(key, entry).err())
            .unwrap_or_else(|| Damage::new(format!("record {entry:#x} was damaged")))
    }

    /// Returns the current value of a key for a change of it; `None` if there is none or it has
    /// expired at `now`. A damaged record is returned too: a change must not act as if the key had
    /// never been there.
    pub(crate) fn current(
        &self,
        key: &[u8],
        newest: &Newest,
        now: impl FnOnce() -> u64,
    ) -> Option<Current<'_, M>> {
        let (off, meta) = match newest {
            Newest::None | Newest::Dead(_) => return None,
            Newest::Damaged(off) => (*off, None),
            Newest::Version(head) => {
                let absent = head.meta.absent_by(now);
                if absent && record::verify_checksum(self.pm(), key, head.off, &head.meta).is_ok() {
                    return None;
                }
                (head.off, Some(head.meta))
            }
        };
        let reader = self;
        Some(Current { reader, off, meta })
    }
}
