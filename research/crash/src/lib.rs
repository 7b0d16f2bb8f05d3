//! Bristlecone's crash-state explorer: proof by enumeration (`docs/design.md`, "How it is tested").
//!
//! | module | holds |
//! | --- | --- |
//! | [`subject`] | what is explored: any structure on a simulated pool, seen as a map |
//! | [`subjects`] | the structures that exist |
//! | [`workload`] | which operations bring it where its crash states are interesting |
//! | [`record`] | running a workload once; its trace is what is explored |
//! | [`explore`] | every crash point of a trace, every image that a model allows there |
//! | [`violation`] | an image that is wrong, and how to say so |
//! | [`campaign`] | many workloads, until a budget is spent; shrinking; replay |
//! | [`rng`] | random numbers that a seed determines |
//! | [`token`] | one line that names an image exactly |
//! | [`mutants`] | what the explorer notices when a flush or fence is missing |
//! | [`concurrent`] | threads under a deterministic scheduler, and crashes of them |
//! | [`history`] | durable linearizability of what they did |
//! | [`oracle`] | what must hold of whatever recovery made of an image |
//! | [`over`] | pools that are made over others |
//! | [`watchdog`] | an end to what does not end by itself |

pub mod campaign;
pub mod concurrent;
mod deferred;
pub mod explore;
pub mod history;
pub mod mutants;
pub mod oracle;
pub mod over;
mod quiet;
pub mod record;
pub mod rng;
pub mod subject;
pub mod subjects;
pub mod token;
pub mod violation;
pub mod watchdog;
pub mod workload;
