//! The superblock in an open pool: read, written and erased (layout: `format/superblock.rs`).
//!
//! # Crash states
//! A pool that is made over another one (on a device) first erases that one
//! ([`Superblock::erase`]): a crash leaves the old pool as it was, or none, or the new one.
//!
//! An update writes and persists one copy, then the other. A crash leaves one copy torn (its
//! checksum tells) or the two of different generations; the newest whole copy counts. That copy is
//! the last to be written by the next update: were it the first, a second crash could leave both
//! torn. A kill leaves a copy that counts, but maybe in the caches only, so an opening makes it
//! durable ([`Superblock::keep`], or with all that is in use) before it writes the other one.
//!
//! The torn copy stays as it is until an opening for writing writes over it, and that may crash
//! too. The copy is made of both then, but it is never the whole copy of a change that was
//! given up:
//!
//! 1. Contents that differ have different generations: a change takes the next one, an opening one
//!    that depends on its medium and comes after that. So the generation and the checksum of a copy
//!    are its own.
//! 2. No opening supplies what else a change writes: another size, where openings keep the old one,
//!    or "clean", where they write "in use".
//! 3. So all of a whole copy came from one writer; had that written all of it, it would not have
//!    been torn.

use crate::cell::PWord;
use crate::error::OpenError;
use crate::format::layout::CHUNK;
use crate::format::superblock::{BYTES, COPIES, Copy, Superblock};
use crate::media::Media;
use crate::planted;
use std::path::Path;
use std::sync::atomic::Ordering;
use uuid::Uuid;

impl Superblock {
    /// Reads both copies of an opened medium and chooses.
    pub(super) fn read<M: Media>(pm: &M, path: &Path) -> Result<Self, OpenError> {
        let [a, b] = COPIES.map(|at| bytes_at(pm, at));
        Self::choose(path, &a, &b)
    }

    /// Returns a stand-in for a pool whose copies are both lost: only its length is known.
    pub(super) fn guess<M: Media>(pm: &M) -> Self {
        Self {
            generation: 1,
            size: pm.len() / CHUNK * CHUNK,
            uuid: Uuid::nil(),
            clean: false,
            medium: None,
            copy: 0,
        }
    }

    /// Reads both copies of an opened medium; `None` for one that is not whole.
    pub(super) fn copies<M: Media>(pm: &M) -> [Option<Self>; 2] {
        COPIES.map(|at| match Self::decode(&bytes_at(pm, at)) {
            Copy::Whole(superblock) => Some(superblock),
            _ => None,
        })
    }

    /// Writes both copies, one after the other. After it, a crash finds this content.
    pub(super) fn write<M: Media>(&self, pm: &M) {
        for at in [COPIES[1 - self.copy], COPIES[self.copy]] {
            self.store_at(pm, at);
            if planted!(pm, "pool-both-copies") {
                continue;
            }
            // PERSIST: this whole copy, before the one that counts until then is touched.
            pm.persist(words(pm, at));
        }
        if planted!(pm, "pool-both-copies") {
            pm.flush_of(words(pm, COPIES[0]));
            pm.persist(words(pm, COPIES[1]));
        }
    }

    /// Makes the copy that counts durable as it is. A killed process may have left it in the
    /// caches.
    pub(super) fn keep<M: Media>(&self, pm: &M) {
        // PERSIST: this whole copy, before the other one is touched.
        pm.persist(words(pm, COPIES[self.copy]));
    }

    /// Ends the pool that may have been here, before anything of it is changed. Without a pool
    /// there is nothing to do.
    pub(super) fn erase<M: Media>(pm: &M) {
        // First what makes the copies count; until both are gone, one of them may, and all of the
        // old pool is there. Then the checksums: with the old ones, the magic of the new
        // superblock, alone, would make the old copy whole again.
        for i in [0, BYTES / 8 - 1] {
            let mut changed = false;
            for at in COPIES {
                let word = &words(pm, at)[i];
                // ORDERING (both): Relaxed; the pool is not shared yet.
                if word.load(pm, Ordering::Relaxed) != 0 {
                    word.store(pm, 0, Ordering::Relaxed);
                    // PERSIST: fenced below.
                    pm.flush_of(word);
                    changed = true;
                }
            }
            if changed {
                // PERSIST: neither copy counts, before its checksum or anything behind it changes.
                pm.fence();
            }
        }
    }

    fn store_at<M: Media>(&self, pm: &M, at: u64) {
        for (word, value) in words(pm, at).iter().zip(self.encode().chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(value);
            // ORDERING: Relaxed; read only while opening.
            word.store(pm, u64::from_le_bytes(eight), Ordering::Relaxed);
        }
    }
}

/// Returns the bytes of the copy at `at`.
fn bytes_at<M: Media>(pm: &M, at: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (word, out) in words(pm, at).iter().zip(bytes.chunks_exact_mut(8)) {
        // ORDERING: Relaxed; no thread writes while the pool is being opened or checked.
        out.copy_from_slice(&word.load(pm, Ordering::Relaxed).to_le_bytes());
    }
    bytes
}

/// Returns the words of the copy at `at`. The pool is at least two chunks long by then.
fn words<M: Media>(pm: &M, at: u64) -> &[PWord; BYTES / 8] {
    debug_assert!(
        at + BYTES as u64 <= pm.len(),
        "the caller checked the length"
    );
    // SAFETY: 1. `at + 512 <= len`, so the range is mapped; 2. both places are 8-aligned; 3. every
    // bit pattern is a valid PWord; 4. the mapping lives as long as `pm`.
    unsafe { &*pm.base().wrapping_add(at as usize).cast() }
}
