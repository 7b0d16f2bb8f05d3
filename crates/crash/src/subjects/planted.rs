//! Planted.

/// Chunks.
pub const RELEASE_BEFORE_UNPUBLISH: &str = "pool: chunks released before the root is unpublished";
