//! One module per command or group of commands.

pub mod archive;
pub mod bench;
pub mod demo;
pub mod export;
pub mod help;
pub mod inspect;
pub mod records;
pub mod repair;
pub mod restore;
pub mod serve;
pub mod top;
pub mod torture;
pub mod upgrade;
pub mod upkeep;
