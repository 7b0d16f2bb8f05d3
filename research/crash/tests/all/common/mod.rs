//! Helpers of the tests of designs.

use bristlecone_crash::subject::{Fault, Live, Opened, Subject};

/// One in so many schedules, kills or images is tried.
pub const SHARE: u64 = if cfg!(feature = "thorough") { 1 } else { 2 };

/// A subject on a medium with a failure-atomic unit of 8 bytes.
pub struct Narrow(pub Box<dyn Subject>);

impl Subject for Narrow {
    fn name(&self) -> String {
        self.0.name()
    }
    fn unit(&self) -> u8 {
        8
    }
    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        self.0.create()
    }
    fn open(&self) -> Result<Opened, Fault> {
        self.0.open()
    }
}
