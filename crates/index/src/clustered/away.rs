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

/// Room for a value that is only looked at.
pub(super) type Room = OnceCell<Vec<u8>>;

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
        match self.content_away(reference, |tree| !tree.comes_in()) {
            Some(content) => Ok(Cow::Owned(content)),
            None => self.content_of(reference, sums).map(Cow::Borrowed),
        }
    }

    /// The content of a value that is not in memory, if it `stays` away.
    fn content_away(
        &self,
        reference: &Reference,
        stays: impl FnOnce(&Self) -> bool,
    ) -> Option<Vec<u8>> {
        let (block, len) = (reference.block, reference.len());
        let bytes = HEAD + len;
        if len > LONGEST || !self.is_away(block..block + bytes as u64) || !stays(self) {
            return None;
        }
        let mut content = vec![0; bytes];
        if !self.pm().read_away(block, &mut content)
            || content[..HEAD] != reference.encode()[..HEAD]
        {
            return None;
        }
        content.drain(..HEAD);
        let sum = crc32c::crc32c_append(self.salt as u32, &content);
        let [a, b, c] = reference.head;
        let sound = head_sum(sum, [a, b], len as u32) == (c >> 32) as u32;
        sound.then_some(content)
    }

    /// The content of a value that is not in memory, and does not come there to be looked at.
    pub(super) fn seen_away<'r>(&self, reference: &Reference, room: &'r Room) -> Option<&'r [u8]> {
        let content = self.content_away(reference, |_| true)?;
        Some(room.get_or_init(|| content))
    }
}
