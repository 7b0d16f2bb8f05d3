//! Opening a pool's file.

use crate::args::{MediumArgs, WriteArgs};
use crate::failure::{Failure, Outcome};
use crate::text::{program, shell_path};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::media::journal::journal_path;
use bristlecone_pmem::{Access, Durability, MediumKind, Pool, PoolOptions};
use std::fmt::Display;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Returns the files that a pool may have.
#[must_use]
pub fn files_of(pool: &Path) -> [PathBuf; 2] {
    [pool.to_path_buf(), journal_path(pool)]
}

/// How to open a pool.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// The medium, or `None` to let the path decide.
    pub medium: Option<MediumKind>,
    /// When a write counts as done.
    pub durability: Durability,
    /// For reading only.
    pub read_only: bool,
}

impl How {
    /// For reading, with the medium that the arguments name.
    #[must_use]
    pub fn read(args: MediumArgs) -> Self {
        Self {
            medium: args.medium.kind(),
            durability: Durability::Immediate,
            read_only: true,
        }
    }

    /// For writing, as the arguments say.
    #[must_use]
    pub fn write(args: WriteArgs) -> Self {
        Self {
            medium: args.medium.kind(),
            durability: args.durability,
            read_only: false,
        }
    }

    /// For writing with immediate durability.
    #[must_use]
    pub fn durable(medium: Option<MediumKind>) -> Self {
        Self {
            medium,
            durability: Durability::Immediate,
            read_only: false,
        }
    }

    /// Whether the pool at `path` is opened for reading only. A devdax device grants no private
    /// mapping, so even reading opens it for writing.
    #[must_use]
    pub fn reads_only(self, path: &Path) -> bool {
        let device = fs::metadata(path).is_ok_and(|m| m.file_type().is_char_device());
        self.read_only && !device
    }

    /// The same as the pool's options.
    #[must_use]
    pub fn options(self, access: Access) -> PoolOptions {
        let mut options = PoolOptions::default();
        options.media.access = access;
        options.media.durability = self.durability;
        options.media.medium = self.medium;
        options
    }
}

/// Opens a pool, whatever is in it.
///
/// # Errors
/// The pool cannot be opened; the message names its path.
pub fn open_pool(path: &Path, how: How) -> Outcome<Arc<Pool<Auto>>> {
    let access = if how.reads_only(path) {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    };
    Pool::open(path, &how.options(access)).map_err(|e| Failure::new(e.to_string()))
}

/// Returns an error about `path`.
pub fn about(path: &Path, what: &dyn Display) -> Failure {
    Failure::new(format!("{}: {what}", path.display()))
}

/// Returns the error of a command that met damage, with what became of the rest.
pub fn damaged(path: &Path, what: &dyn Display, rest: &str) -> Failure {
    Failure::new(format!(
        "{}: damaged: {what}; {rest}\n`{} check {}` lists all damage",
        path.display(),
        program(),
        shell_path(path),
    ))
}
