//! Tests of the research command.

#![allow(missing_docs)]

mod common;

mod bench;
mod claims;
mod crash;
mod damage;
mod designs;
mod figure;
mod leftovers;
mod model;
mod power_cut;
mod report;
