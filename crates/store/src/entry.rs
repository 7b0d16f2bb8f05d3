//! Values with their expiries, as the store gives and takes them.

use std::ops::ControlFlow;

/// The value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The value.
    pub value: &'a [u8],
    /// When it expires, in ms since 1970.
    pub expires_at: Option<u64>,
}

/// A value that a read does not take since it is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Longer {
    /// Its length in bytes.
    pub len: u64,
    /// When it expires, in ms since 1970.
    pub expires_at: Option<u64>,
}

/// The change that the function of an [update](crate::Store::update) decides on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// No change.
    Keep,
    /// A new value.
    Put {
        /// The value, up to 512 MiB.
        value: Vec<u8>,
        /// When it expires, in ms since 1970.
        expires_at: Option<u64>,
    },
    /// The key goes.
    Delete,
}

/// Returns the expiry as engines store it: 0 for none.
pub fn expiry(expires_at: Option<u64>) -> u64 {
    // 0 stands for none. A time of 0 and one of 1 have both passed.
    expires_at.map_or(0, |at| at.max(1))
}

/// Returns the expiry as users see it.
pub fn expires_at(expiry: u64) -> Option<u64> {
    (expiry != 0).then_some(expiry)
}

/// Returns a visitor of values of any length as one of those that are not too long.
pub fn whole(
    mut visit: impl FnMut(&[u8], Entry<'_>) -> ControlFlow<()>,
) -> impl FnMut(&[u8], Result<Entry<'_>, Longer>) -> ControlFlow<()> {
    // None is too long.
    move |key, found| found.map_or(ControlFlow::Continue(()), |entry| visit(key, entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_comes_back_and_none_is_none() {
        for (given, stored) in [(None, 0), (Some(0), 1), (Some(1), 1), (Some(70), 70)] {
            assert_eq!(expiry(given), stored);
            assert_eq!(expires_at(stored), given.map(|at| at.max(1)));
        }
    }

    #[test]
    fn a_visitor_of_whole_values_ends_when_it_says_so() {
        let mut seen = Vec::new();
        let entry = Entry {
            value: b"v",
            expires_at: None,
        };
        let longer = Longer {
            len: 9,
            expires_at: None,
        };
        let mut visit = whole(|key: &[u8], found: Entry<'_>| {
            assert_eq!(found, entry);
            seen.push(key.to_vec());
            match seen.len() {
                2 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        assert!(visit(b"a", Ok(entry)).is_continue());
        assert!(visit(b"b", Err(longer)).is_continue());
        assert!(visit(b"c", Ok(entry)).is_break());
        drop(visit);
        assert_eq!(seen, [b"a", b"c"]);
    }
}
