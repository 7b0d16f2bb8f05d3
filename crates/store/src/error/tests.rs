//! Messages and sources of errors.

use super::*;
use std::error::Error;

fn version() -> VersionError {
    VersionError {
        format: "store",
        found: 9,
        oldest: 1,
        newest: 2,
    }
}

fn damage() -> Damage {
    Damage::new("torn")
}

#[test]
fn a_version_that_is_not_read_is_told_from_other_reasons() {
    for error in [
        StoreError::Version(version()),
        StoreError::Index(TreeError::Version(version())),
    ] {
        assert_eq!(error.version(), Some(&version()));
        assert!(error.to_string().contains('9'), "{error}");
    }
    assert_eq!(StoreError::Damaged(damage()).version(), None);
}

/// The source of an error is its cause, and the error's message includes it.
#[test]
fn errors_lead_to_what_caused_them() {
    let of_source = || WriteError::Source(io::Error::other("no more"));
    let errors: Vec<(Box<dyn Error>, &str)> = vec![
        (Box::new(of_source()), "no more"),
        (Box::new(WriteError::Damaged(damage())), "torn"),
        (Box::new(StoreError::Version(version())), "9"),
        (Box::new(StoreError::Damaged(damage())), "torn"),
        (Box::new(StoreError::Write(of_source().into())), "no more"),
        (
            Box::new(StoreError::Thread(io::Error::other("no threads"))),
            "no threads",
        ),
        (
            Box::new(SalvageError::From(StoreError::Damaged(damage()))),
            "torn",
        ),
        (Box::new(SalvageError::Into(of_source())), "no more"),
    ];
    for (error, cause) in errors {
        assert!(error.to_string().contains(cause), "{error}");
        let source = error.source().unwrap();
        assert!(source.to_string().contains(cause), "{error}: {source}");
    }
    assert!(WriteError::ReadOnly.source().is_none());
}
