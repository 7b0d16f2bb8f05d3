//! The whole tree as one log.

pub mod lstree;
