//! Servers under load: the mixes of operations, the clients that send them, Redis to compare with,
//! and the processors that both sides have.
//!
//! | module | holds |
//! | --- | --- |
//! | [`mix`] | [`Mix`] and [`Load`]: which operation is next, over which record |
//! | [`mod@drive`] | [`drive()`]: clients of a server for a slice of time |
//! | [`redis`] | [`Redis`]: a redis-server |
//! | [`processors`] | [`Processors`]: servers on one half of them, clients on the other; time at work |

pub mod drive;
pub mod mix;
pub mod processors;
pub mod redis;

pub use drive::{Clients, Slice, drive, fill};
pub use mix::{Load, Mix, Op};
pub use processors::Processors;
pub use redis::{Fsync, Redis};

/// A side is the bottleneck if its processors worked for this share of the time.
pub const BOUND: f64 = 0.9;
