//! Values that are written from a stream and read in ranges: never all of one is in memory.

use super::Core;
use super::parts::{OWNER, PART, Stored, assembled};
use super::reads::{Moment, Reading, is_live};
use super::value::{Found, Head};
use super::{damaged, long, read_error, time_of, write_error};
use crate::engine::{At, Wait};
use crate::error::{ReadError, WriteError};
use crate::limits::MAX_VALUE_BYTES;
use crate::streams::{slice, within};
use bristlecone_index::clustered::{self, When};
use bristlecone_pmem::Media;
use std::borrow::Cow;
use std::io::Read;
use std::ops::Range;

/// Reads from a stream until `part` has so many bytes as parts have, or the stream ends.
fn read_part(from: &mut dyn Read, part: &mut Vec<u8>) -> Result<(), WriteError> {
    part.clear();
    let read = from.take(PART as u64).read_to_end(part);
    read.map(|_| ()).map_err(WriteError::Source)
}

impl<M: Media> Core<M> {
    /// Puts the value that a stream gives, and returns its length. Nobody is kept waiting for the
    /// stream: the parts are put one by one, and the key has the value once all are there.
    ///
    /// # Errors
    /// [`WriteError`]; the key has what it had, and the parts are swept.
    pub(super) fn put_from(
        &self,
        key: &[u8],
        from: &mut dyn Read,
        expiry: u64,
        wait: Wait,
    ) -> Result<u64, WriteError> {
        self.writable()?;
        let mut part = Vec::new();
        read_part(from, &mut part)?;
        if part.len() < PART {
            self.put(key, &part, expiry, wait)?;
            return Ok(part.len() as u64);
        }
        let inside = |change: &mut dyn FnMut() -> Result<u64, WriteError>| {
            self.retry_for_space(|| self.change([key], wait, &mut *change))
        };
        let mut place = Cow::Borrowed(key);
        inside(&mut || {
            place = Cow::Owned(self.make_place(key)?.into_owned());
            Ok(0)
        })?;
        let (number, _) = long::owner::<M>(&place).unwrap_or((0, 0));
        let mut head = Head {
            expiry,
            id: self.tree.new_number(),
            len: 0,
        };
        // Gives the parts back unless it is kept.
        let stored = Stored::apart((number, head.id), &head, &self.counts);
        inside(&mut || self.put_part((number, head.id), OWNER, &place))?;
        let mut i = 0;
        loop {
            let len = head.len as usize + part.len();
            if len > MAX_VALUE_BYTES {
                let most = MAX_VALUE_BYTES;
                return Err(WriteError::ValueTooLong { len, most });
            }
            inside(&mut || self.put_part((number, head.id), i, &part))?;
            // What is not durable yet is in memory.
            self.pm().commit()?;
            head.len = len as u64;
            i += 1;
            if part.len() < PART {
                // The stream has ended, whatever it may give later.
                break;
            }
            read_part(from, &mut part)?;
            if part.is_empty() {
                break;
            }
        }
        let stamp = inside(&mut || {
            let put = self.counts.naming(std::iter::once((key, &*place)), || {
                self.tree.put(&place, &head.encode())
            });
            put.map_err(|e| write_error(Some(key), e))
        })?;
        stored.keep();
        self.wait_for(stamp, wait)?;
        Ok(head.len)
    }

    /// Adds the bytes of a range of a value to `into`, as far as it has them. Returns the value's
    /// length; `None` if there is no value. Of a value in parts, only those are read that the range
    /// has.
    ///
    /// # Errors
    /// [`ReadError`]
    pub(super) fn get_range(
        &self,
        at: At,
        key: &[u8],
        range: Range<u64>,
        into: &mut Vec<u8>,
    ) -> Result<Option<u64>, ReadError> {
        // Head and parts at one time.
        let (ticket, _reading) = match at {
            At::Latest(wait) => {
                let reading = Reading::begin(self, wait);
                (reading.ticket, Some(reading))
            }
            At::Snapshot(ticket) => (ticket, None),
        };
        let moment = Moment::of(At::Snapshot(ticket));
        if !self.is_visible(key, moment) {
            return Ok(None);
        }
        let Some(place) = self.place_of(key)? else {
            return Ok(None);
        };
        let when = When::At(time_of(ticket.ts));
        let begun = into.len();
        let mut read = || -> Result<Option<u64>, clustered::ReadError> {
            let found = self.tree.get(when, &place, |stored| {
                Ok(match Found::of(stored)? {
                    Found::Here(value, expiry) => {
                        into.extend_from_slice(slice(value, &range));
                        (Ok(value.len() as u64), expiry)
                    }
                    Found::Packed(packed) => {
                        let is_live = is_live(packed.expiry, || ticket.now);
                        if is_live && !within(&range, packed.len).is_empty() {
                            let value = packed.unpack()?;
                            into.extend_from_slice(slice(&value, &range));
                        }
                        (Ok(packed.len), packed.expiry)
                    }
                    Found::Apart(head) => (Err(head), head.expiry),
                })
            })?;
            let Some((found, expiry)) = found.transpose().map_err(damaged)? else {
                return Ok(None);
            };
            if !is_live(expiry, || ticket.now) {
                into.truncate(begun);
                return Ok(None);
            }
            match found {
                Ok(len) => Ok(Some(len)),
                Err(head) => {
                    let here = within(&range, head.len);
                    into.append(&mut assembled(&self.tree, when, &place, &head, here)?);
                    Ok(Some(head.len))
                }
            }
        };
        read().map_err(|e| read_error(Some(key), e))
    }
}
