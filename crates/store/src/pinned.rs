//! Values that are read in place, where they are not freed meanwhile.

use bristlecone_index::clustered::Pinned;
use crossbeam_epoch::Guard;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

/// The value of a key, in place; one of more than 1 MiB may be a copy. While it exists, freed
/// memory is not reused in this process, so drop it soon.
pub struct PinnedValue<'s> {
    value: Value<'s>,
    expires_at: Option<u64>,
}

enum Value<'s> {
    /// The guard was pinned before the record was found, so its block is not reused before this is
    /// dropped.
    Record(Cow<'s, [u8]>, #[expect(dead_code, reason = "held")] Guard),
    /// The value begins there.
    Tree(Pinned<'s>, usize),
}

impl<'s> PinnedValue<'s> {
    /// The value of a record that was found under this guard.
    #[doc(hidden)]
    #[must_use]
    pub fn of_record(value: Cow<'s, [u8]>, expires_at: Option<u64>, guard: Guard) -> Self {
        Self {
            value: Value::Record(value, guard),
            expires_at,
        }
    }

    /// A value in a page of a tree, without its first `from` bytes.
    pub(crate) fn in_tree(pinned: Pinned<'s>, from: usize, expires_at: Option<u64>) -> Self {
        Self {
            value: Value::Tree(pinned, from),
            expires_at,
        }
    }

    /// Returns when the value expires, in ms since 1970.
    #[must_use]
    pub fn expires_at(&self) -> Option<u64> {
        self.expires_at
    }
}

impl Deref for PinnedValue<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.value {
            Value::Record(value, _) => value,
            Value::Tree(pinned, from) => &pinned[*from..],
        }
    }
}

impl fmt::Debug for PinnedValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}
