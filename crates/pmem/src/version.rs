//! Versions of the formats that files have.

use std::fmt;
use std::ops::RangeInclusive;

/// A version of a format that this build does not read. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionError {
    /// The format, as the changelog calls it: `pool`, `journal`, `tree`, `store`, `server`,
    /// `backup`, `archive`, `index`.
    pub format: &'static str,
    /// The version found.
    pub found: u64,
    /// The oldest version that this build reads.
    pub oldest: u64,
    /// The newest version that this build reads: the one that it writes.
    pub newest: u64,
}

impl VersionError {
    /// Checks that a version is one of those that this build reads.
    ///
    /// # Errors
    /// It is not.
    pub fn check(
        format: &'static str,
        found: u64,
        readable: RangeInclusive<u64>,
    ) -> Result<(), Self> {
        if readable.contains(&found) {
            return Ok(());
        }
        let (oldest, newest) = readable.into_inner();
        Err(Self {
            format,
            found,
            oldest,
            newest,
        })
    }

    /// Returns whether a newer release wrote it; else an older one did.
    #[must_use]
    pub fn is_newer(&self) -> bool {
        self.found > self.newest
    }
}

impl fmt::Display for VersionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            format,
            found,
            oldest,
            newest,
        } = self;
        let age = if self.is_newer() {
            "a newer"
        } else {
            "an older"
        };
        write!(
            f,
            "made by {age} bristlecone: it has {format} format version {found}, and this one reads "
        )?;
        if oldest < newest {
            write!(f, "{oldest} to ")?;
        }
        write!(f, "{newest}; ")?;
        match *format {
            _ if self.is_newer() => write!(f, "install the release that made it, or a later one"),
            "backup" | "archive" => write!(
                f,
                "let the release that made it restore it, and back that up again"
            ),
            "index" => write!(f, "export it with the build that made it, and import that"),
            _ => write!(f, "`bristlecone upgrade` says what can be done"),
        }
    }
}

impl std::error::Error for VersionError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_found_and_readable_versions_and_the_next_step() {
        assert_eq!(VersionError::check("journal", 1, 1..=2), Ok(()));
        assert_eq!(VersionError::check("journal", 2, 1..=2), Ok(()));
        let text = |format, found, readable| {
            let e = VersionError::check(format, found, readable).unwrap_err();
            (e.is_newer(), e.to_string())
        };
        let (newer, message) = text("journal", 3, 1..=2);
        assert!(newer && message.contains("version 3, and this one reads 1 to 2; install"));
        let (newer, message) = text("tree", 2, 3..=3);
        assert!(!newer && message.contains("an older bristlecone"));
        assert!(
            message.contains("reads 3; `bristlecone upgrade`"),
            "{message}"
        );
        assert!(text("backup", 0, 1..=1).1.contains("restore it"));
    }
}
