//! Looking keys up.

use super::find::Found;
use super::page::Page;
use super::part::{Part, SEARCHED};
use super::scan::NOW;
use super::stored::Stored;
use super::versions::Past;
use super::{ClusteredTree, Handle, ReadError};
use crate::inner::Located;
use crate::repr::{KeyRepr, Repr};
use crate::sorted::key_word;
use bristlecone_pmem::Media;
use bristlecone_pmem::media::cpu;
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;

/// Keys that go down together.
pub(super) const TOGETHER: usize = 32;

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// A guard for searching.
    ///
    /// Where keys and values are numbers no pin is needed, whose full barrier would keep the cache
    /// misses of one search from overlapping with the next one's. Such a search reads type-stable
    /// memory: inner nodes, parts, and words of the pool, which stays mapped; and it uses nothing
    /// before the version has been validated. Byte strings are handed out where they lie, so their
    /// block must not be used again meanwhile.
    #[inline(always)]
    pub(super) fn with_guard<R>(f: impl FnOnce(&Guard) -> R) -> R {
        if Self::NUMBERS {
            // SAFETY: the guard is handed to searches alone, which neither defer nor follow
            // pointers where keys are numbers.
            f(unsafe { epoch::unprotected() })
        } else {
            f(&epoch::pin())
        }
    }

    /// Calls `f` with the value of `key`, if there is one.
    ///
    /// # Errors
    /// [`ReadError`], where the page of the key, or the value, is damaged, or cannot be loaded.
    #[inline]
    pub(super) fn find_value<R>(
        &self,
        key: &K,
        f: impl FnOnce(&V) -> R,
    ) -> Result<Option<R>, ReadError> {
        key.with_bytes(|bytes| {
            Self::with_guard(|guard| {
                loop {
                    let at = self.inner.find(key, guard);
                    let slot = match Handle::decode(at.leaf) {
                        Handle::Part(slot) => slot,
                        Handle::Unloaded(_) => {
                            if let Some(past) = self.past_away((key, bytes), guard) {
                                let past = past.as_ref().map(|past| Value::Stored(past.stored()));
                                return self.value(past, f);
                            }
                            self.load(key, &epoch::pin())?;
                            continue;
                        }
                    };
                    if let Some(found) = self.search(&at, slot, key, bytes) {
                        return self.value(found, f);
                    }
                }
            })
        })
    }

    /// The value that `key` has now, or at the durable mark, as a page or history has it.
    ///
    /// The guard keeps it readable.
    ///
    /// # Errors
    /// As of [`find_value`](Self::find_value).
    pub(super) fn latest(
        &self,
        durable: bool,
        (key, bytes): (&K, &[u8]),
        guard: &Guard,
    ) -> Result<Option<Past<'_>>, ReadError> {
        let mark = if durable && self.marks.waits {
            self.marks.durable()
        } else {
            NOW
        };
        loop {
            let Some((part, version)) = self.part_of_key(key, guard) else {
                if let Some(past) = self.past_away((key, bytes), guard) {
                    return Ok(past);
                }
                self.load(key, guard)?;
                continue;
            };
            let page = self.page_of(part);
            // First: of all records below the count, or a later one.
            let count = part.count();
            if part.latest() >= mark {
                let time = self.begin_reading(true);
                let past = self.past_at(time, (key, bytes), guard);
                self.end_reading(time);
                return past;
            }
            let found = page.find_among(part, bytes, key.hash(), count);
            let past = match found {
                Found::Absent => None,
                Found::Value(value) => Some(Past::of(page.stored(value))),
            };
            if part.version.validate(version) {
                return Ok(past);
            }
        }
    }

    /// Calls `f` with the value that `key` has at the durable mark.
    ///
    /// # Errors
    /// As of [`find_value`](Self::find_value).
    pub(super) fn find_durable<R>(
        &self,
        key: &K,
        f: impl FnOnce(&V) -> R,
    ) -> Result<Option<R>, ReadError> {
        if !self.marks.waits {
            return self.find_value(key, f);
        }
        let guard = &epoch::pin();
        key.with_bytes(|bytes| match self.latest(true, (key, bytes), guard)? {
            Some(past) => Ok(V::with_value_of(&self.resolve(past.stored())?, f)),
            None => Ok(None),
        })
    }

    /// The value of `key` in the part `slot`; `None` if that is not the right one, or was changing.
    #[inline(always)]
    fn search<'p>(
        &'p self,
        at: &Located,
        slot: u32,
        key: &K,
        bytes: &[u8],
    ) -> Option<Option<Value<'p>>> {
        if slot >= self.parts.capacity() {
            return None;
        }
        let part = self.part(slot);
        cpu::prefetch(std::ptr::from_ref(part).cast(), SEARCHED);
        self.pm().interleave();
        let version = part.version.try_read();
        let version = version.filter(|_| self.inner.validate(at))?;
        self.search_part(part, version, key, bytes)
    }

    #[inline(always)]
    fn search_part<'p>(
        &'p self,
        part: &Part,
        version: u64,
        key: &K,
        bytes: &[u8],
    ) -> Option<Option<Value<'p>>> {
        let page = self.page_of(part);
        let value = match page.find(part, bytes, key.hash()) {
            Found::Absent => None,
            Found::Value(value) if Self::NUMBERS => {
                Some(Value::Number(page.word(value.span.at / 8)))
            }
            Found::Value(value) => Some(Value::Stored(page.stored(value))),
        };
        part.version.validate(version).then_some(value)
    }

    #[inline(always)]
    fn value<R>(
        &self,
        found: Option<Value<'_>>,
        f: impl FnOnce(&V) -> R,
    ) -> Result<Option<R>, ReadError> {
        Ok(match found {
            None => None,
            Some(Value::Number(word)) => V::with_value_of(&word.to_le_bytes(), f),
            Some(Value::Stored(stored)) => V::with_value_of(&self.resolve(stored)?, f),
        })
    }

    /// Finds where keys are, and prefetches what searches for them touch, and `also`: the cache
    /// misses of many overlap.
    pub(super) fn go_down<Q: Borrow<K>>(
        &self,
        keys: &[Q],
        located: &mut [Located],
        guard: &Guard,
        also: impl Fn(Page<'_, M>, &Part),
    ) {
        self.inner.find_batch(keys, located, guard);
        let part_of = |at: &Located| match Handle::decode(at.leaf) {
            Handle::Part(slot) if slot < self.parts.capacity() => Some(self.part(slot)),
            _ => None,
        };
        for part in located.iter().filter_map(part_of) {
            cpu::prefetch(std::ptr::from_ref(part).cast(), SEARCHED);
        }
        for (key, at) in keys.iter().zip(&*located) {
            if let Some(part) = part_of(at) {
                let (page, key) = (self.page_of(part), key.borrow());
                key.with_bytes(|bytes| page.prefetch_key(part, bytes, key.hash()));
                also(page, part);
            }
        }
    }

    /// Prefetches what searches for these keys touch.
    pub(super) fn prefetch_keys<Q: Borrow<K>>(&self, keys: &[Q]) {
        let mut located = [Located::default(); TOGETHER];
        for keys in keys.chunks(TOGETHER) {
            self.go_down(keys, &mut located[..keys.len()], &epoch::pin(), |_, _| {});
        }
    }

    /// The values of `keys`, in order: the cache misses of many searches overlap.
    ///
    /// # Errors
    /// As of [`find_value`](Self::find_value); some of `out` is there then.
    pub(super) fn find_batch<Q: Borrow<K>>(
        &self,
        keys: &[Q],
        out: &mut Vec<Option<V::Owned>>,
    ) -> Result<(), ReadError> {
        out.clear();
        out.reserve(keys.len());
        let mut located = [Located::default(); TOGETHER];
        for keys in keys.chunks(TOGETHER) {
            let guard = epoch::pin();
            let located = &mut located[..keys.len()];
            self.go_down(keys, located, &guard, |_, _| {});
            for (key, at) in keys.iter().zip(&*located) {
                let key = key.borrow();
                let found = match Handle::decode(at.leaf) {
                    Handle::Part(slot) => key.with_bytes(|bytes| self.search(at, slot, key, bytes)),
                    Handle::Unloaded(_) => None,
                };
                out.push(match found {
                    Some(found) => self.value(found, ToOwned::to_owned)?,
                    None => self.find_value(key, ToOwned::to_owned)?,
                });
            }
        }
        Ok(())
    }
}

/// A value that was found.
#[derive(Clone, Copy)]
enum Value<'p> {
    /// A number, as the word that holds it.
    Number(u64),
    /// As the page has it.
    Stored(Stored<'p>),
}

impl<M: Media> Page<'_, M> {
    /// Prefetches what a search for the key would touch.
    #[inline(always)]
    fn prefetch_key(self, part: &Part, key: &[u8], hash: u32) {
        let matches = part.matches(hash as u8, part.count());
        if matches != 0 {
            let i = 127 - matches.leading_zeros() as usize;
            self.prefetch(part.place(i).word, 1);
        }
        let base = part.base();
        let (from, to) = part.near(key_word(base.rest(key)), base.entries);
        match base.form {
            Some(form) => {
                let entry = base.entry_words(form);
                self.prefetch(base.at + from * entry, (to - from) * entry);
            }
            None => self.prefetch(base.at + from / 4, 1),
        }
    }
}
