//! A design whose whole tree is one log.

pub mod lstree;
