//! The longest keys, values and names that a store takes.

use bristlecone_pmem::pool::ROOT_NAME;

/// Suffix of the name of an index's root, after the store's name.
pub(crate) const INDEX_SUFFIX: &str = ".index";

/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = 64 << 10;
/// Longest value in bytes.
pub const MAX_VALUE_BYTES: usize = 512 << 20;
/// Longest name of a store in bytes.
pub const MAX_NAME_BYTES: usize = ROOT_NAME - INDEX_SUFFIX.len();
/// Longest name of a keyspace in bytes.
pub const MAX_KEYSPACE_NAME_BYTES: usize = 1024;
