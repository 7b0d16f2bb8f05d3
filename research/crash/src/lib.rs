//! Bristlecone's crash-state explorer. It enumerates the states that a power cut can leave and
//! recovers each of them (`docs/design.md`, "How it is tested").
//!
//! | module | holds |
//! | --- | --- |
//! | [`subject`] | the interface of an explored structure: a map on a simulated pool |
//! | [`subjects`] | the explored structures, by name |
//! | [`workload`] | lists of operations that lead to interesting crash states |
//! | [`record`] | the run of a workload that yields the explored trace |
//! | [`explore`] | every crash point of a trace, and every image that a model allows there |
//! | [`violation`] | an image that fails, and its description |
//! | [`campaign`] | many workloads within a time budget; shrinking; replay |
//! | [`rng`] | seeded random numbers |
//! | [`token`] | replay tokens: one line that names an image exactly |
//! | [`mutants`] | mutation testing: does the explorer notice a missing flush or fence? |
//! | [`concurrent`] | simulated threads under a deterministic scheduler, with crashes |
//! | [`history`] | durable linearizability of their calls |
//! | [`oracle`] | the checks of a recovered image |
//! | [`disk`] | power cuts on a simulated disk, under the journal medium |
//! | [`over`] | pools created over an older pool |
//! | [`watchdog`] | an end to a run that hangs |

pub mod campaign;
pub mod concurrent;
mod deferred;
pub mod disk;
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
