//! Servers under load: the mixes of operations, the clients that send them, servers to compare
//! with, and the processors that both sides have.
//!
//! | module | holds |
//! | --- | --- |
//! | [`mix`] | [`Mix`] and [`Load`]: which operation is next, over which record |
//! | [`mod@drive`] | [`drive()`]: clients of a server for a slice of time |
//! | [`protocol`] | [`Protocol`]: Redis's or memcached's |
//! | [`peer`] | [`Peer`]: a redis-server or a memcached |
//! | [`processors`] | [`Processors`]: servers on one half of them, clients on the other; time at work |

pub mod drive;
pub mod mix;
pub mod peer;
pub mod processors;
pub mod protocol;

pub use drive::{Clients, Slice, drive, fill};
pub use mix::{Load, Mix, Op};
pub use peer::{Fsync, Peer};
pub use processors::Processors;
pub use protocol::Protocol;

/// A side is the bottleneck if its processors worked for this share of the time.
pub const BOUND: f64 = 0.9;
