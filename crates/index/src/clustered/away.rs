//! Reading outer values that are not in memory from the pool file, beside memory.
//!
//! Where memory is short, a value that is read once should not come to memory: the system would map
//! what lies around it, too, and something else would have to go. So it is read into a buffer. A
//! sixteenth of the reads bring values to memory all the same: one that is read often is there
//! soon.
//!
//! The file has a page that is not in memory as it was when it left memory. Whether that is so is
//! looked up before the read, and may change: so what was read counts only if it has the head that
//! the reference repeats, and the sum, and memory is asked otherwise.

use super::ClusteredTree;
use super::outer::head_sum;
use super::stored::{HEAD, Reference};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use std::borrow::Cow;
use std::cell::OnceCell;

/// Longest value that is read so, in bytes: the buffer of a longer one costs more than its memory.
const LONGEST: usize = 64 << 10;
/// Bytes of a value that an [observer](super::Observer) sees, at least.
const SEEN: usize = 64;

/// Room for the beginning of a value, behind its head.
pub(super) type Beginning = OnceCell<[u8; HEAD + SEEN]>;

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// The content that a reference leads to, from memory or from the pool file. `sums`: whether
    /// its sum is compared in memory.
    ///
    /// The caller is as of [`content_of`](Self::content_of).
    pub(super) fn content_or_copy(
        &self,
        reference: &Reference,
        sums: bool,
    ) -> Result<Cow<'_, [u8]>, String> {
        match self.content_away(reference) {
            Some(content) => Ok(Cow::Owned(content)),
            None => self.content_of(reference, sums).map(Cow::Borrowed),
        }
    }

    /// The content of a value that is not in memory, and does not come there.
    fn content_away(&self, reference: &Reference) -> Option<Vec<u8>> {
        let bytes = HEAD + reference.len();
        let range = reference.block..reference.block + bytes as u64;
        if reference.len() > LONGEST || !self.is_away(range.clone()) || self.comes_in() {
            return None;
        }
        let mut content = vec![0; bytes];
        if !self.read_away(reference, &mut content) {
            return None;
        }
        content.drain(..HEAD);
        let sum = crc32c::crc32c_append(self.salt as u32, &content);
        let [a, b, c] = reference.head;
        let sound = head_sum(sum, [a, b], reference.len() as u32) == (c >> 32) as u32;
        sound.then_some(content)
    }

    /// The first bytes of a value that is not in memory, and does not come there.
    pub(super) fn beginning_away<'b>(
        &self,
        reference: &Reference,
        room: &'b Beginning,
    ) -> Option<&'b [u8]> {
        let bytes = HEAD + reference.len().min(SEEN);
        let range = reference.block..reference.block + bytes as u64;
        if !self.is_away(range) {
            return None;
        }
        let mut beginning = [0; HEAD + SEEN];
        if !self.read_away(reference, &mut beginning[..bytes]) {
            return None;
        }
        Some(&room.get_or_init(|| beginning)[HEAD..bytes])
    }

    /// Reads the block of a value from the pool file, from its beginning on. Returns whether it is
    /// that value's.
    fn read_away(&self, reference: &Reference, into: &mut [u8]) -> bool {
        self.pm().read_away(reference.block, into) && into[..HEAD] == reference.encode()[..HEAD]
    }
}
