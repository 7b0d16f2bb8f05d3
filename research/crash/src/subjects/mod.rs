//! The explored structures, by name.
//!
//! # Known mistakes
//! These are mistakes that durable indexes are known to have made. The flawed references
//! ([`reference::FLAWS`]) and the planted faults ([`planted::PLANTED`]) refer to them by number.
//!
//! 1. The word that makes an entry count (bit, counter, state) is durable before the entry.
//! 2. A new node is linked in without a fence after its flush.
//! 3. The wrong line is flushed.
//! 4. An entry that crosses into the next line is flushed in part.
//! 5. A root pointer or header is not flushed.
//! 6. The allocator's metadata is not flushed.
//! 7. The code assumes that flushes are ordered among themselves.
//! 8. A single field is forgotten: a sibling pointer, a count, a switch.
//! 9. Two related words are changed as if they were one.
//! 10. A split or merge links one side before the other can be reached.
//! 11. A move deletes before it inserts.
//! 12. A removal overlooks the duplicate that an interrupted move left.
//! 13. The code treats several stores, or their order in a line, as one store.
//! 14. Other threads see a change that a crash can undo.
//! 15. An entry goes into a node or region that is not durable itself.
//! 16. A lock bit in persistent memory outlives the crash.
//! 17. Log slots are closer than a record is long.
//! 18. Space is lost before it is handed to its owner, or handed out twice.
//! 19. Recovery is skipped because the first record is unused.
//! 20. A late helper repeats a step that has been decided since.
//! 21. No thread finishes an operation that a crash cut short, or whose thread has stopped.
//! 22. An operation acts on a finding that has changed since.
//! 23. A change is made although what it rests on has changed.
//! 24. What a killed process left in the caches is taken for durable.

pub mod activated;
pub mod batches;
pub mod index;
pub mod log;
pub mod planted;
pub mod pmwcas;
pub mod pool;
pub mod reference;
#[cfg(feature = "unproven")]
pub mod store;
#[cfg(test)]
mod tests;

use crate::subject::{Fault, FaultKind, Subject};
use activated::ActivatedSubject;
use bristlecone_pmem::media::Sim;
use bristlecone_pmem::pool::PoolReport;
use bristlecone_pmem::{OpenError, Pool, PoolOptions};
use log::LogSubject;
use pmwcas::PmwcasSubject;
use pool::PoolSubject;
use reference::{FLAWS, Reference};
use std::path::Path;
use std::sync::Arc;

/// The name that messages give to the simulated pool.
const PATH: &str = "simulated pool";

/// Returns every design, the pool, and the structures that are known to be right, but none with a
/// flaw.
#[must_use]
pub fn all() -> Vec<Box<dyn Subject>> {
    let mut all = index::all();
    all.push(Box::new(batches::BatchSubject::<u64>::new()));
    all.push(Box::new(batches::BatchSubject::<[u8]>::new()));
    all.push(Box::new(batches::BatchSubject::<u64>::lazy()));
    all.push(Box::new(batches::BatchSubject::<[u8]>::lazy()));
    all.push(Box::new(LogSubject));
    for subject in [PmwcasSubject::ONE, PmwcasSubject::SEVERAL] {
        all.push(Box::new(subject));
    }
    all.push(Box::new(ActivatedSubject));
    all.push(Box::new(PoolSubject::new()));
    all.push(Box::new(PoolSubject::regions()));
    #[cfg(feature = "unproven")]
    for subject in store::StoreSubject::all() {
        all.push(Box::new(subject));
    }
    all.push(Box::new(Reference::array()));
    all.push(Box::new(Reference::blocks()));
    all
}

/// Returns the names of all subjects, the flawed ones last.
#[must_use]
pub fn names() -> Vec<String> {
    let right = all();
    let right = right.iter().map(|subject| subject.name());
    right
        .chain(FLAWS.iter().map(|known| known.subject()))
        .collect()
}

/// Returns the subject of that name: one of [`names`], or an index in a leaf size that is not
/// explored by default.
#[must_use]
pub fn named(name: &str) -> Option<Box<dyn Subject>> {
    let flawed = FLAWS.iter().find(|known| known.subject() == name);
    match flawed {
        Some(known) => Some(Box::new(Reference::flawed(known.flaw))),
        None => all()
            .into_iter()
            .find(|subject| subject.name() == name)
            .or_else(|| index::every_size().find(|subject| subject.name() == name)),
    }
}

/// Returns the subject of that name. If there is none, returns every one of [`all`] whose name
/// begins with `prefix-` (`lbtree` gives all of its layouts), or else the indexes of that name in
/// the other leaf sizes.
#[must_use]
pub fn matching(prefix: &str) -> Vec<Box<dyn Subject>> {
    let begins = |subject: &dyn Subject| {
        let name = subject.name();
        name.strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with('-'))
    };
    if let Some(subject) = named(prefix) {
        return vec![subject];
    }
    let usual: Vec<_> = all().into_iter().filter(|s| begins(&**s)).collect();
    if !usual.is_empty() {
        return usual;
    }
    index::every_size().filter(|s| begins(&**s)).collect()
}

/// Returns the keys of [`Op::Batch`](crate::subject::Op::Batch). Past the largest number they wrap
/// to 0.
pub fn batch_keys(first: u64, step: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |i| first.wrapping_add(step.wrapping_mul(i)))
}

/// Opens the pool in the simulation. Returns `None` if none was ever created there.
///
/// The creation of a pool ends with its superblock: the first copy, and then the second. A crash
/// before the first copy is whole gives [`OpenError::NotAPool`]. Every other error concerns an
/// existing pool.
fn open_pool() -> Result<Option<Arc<Pool<Sim>>>, Fault> {
    match Pool::open(Path::new(PATH), &PoolOptions::default()) {
        Ok(pool) => Ok(Some(pool)),
        Err(OpenError::NotAPool { .. }) => Ok(None),
        Err(e) => Err(Fault::new(FaultKind::Recovery, e.to_string())),
    }
}

/// Opens the pool that an interrupted creation left, or creates one.
fn make_pool() -> Result<Arc<Pool<Sim>>, Fault> {
    match open_pool()? {
        Some(pool) => Ok(pool),
        None => Pool::create(Path::new(PATH), &PoolOptions::default())
            .map_err(|e| Fault::new(FaultKind::Progress, format!("making the pool: {e}"))),
    }
}

/// Checks the pool under a structure. `settled` is true if no operation was done since it was
/// opened.
fn verify_pool(pool: &Pool<Sim>, settled: bool) -> Result<PoolReport, Fault> {
    let report = (pool.verify()).map_err(|found| Fault::broken(found.what, found.leak))?;
    let info = pool.info();
    if info.used_bytes + info.free_bytes != info.pool_bytes {
        return Err(Fault::new(
            FaultKind::Leak,
            format!(
                "{} bytes used and {} free of {}",
                info.used_bytes, info.free_bytes, info.pool_bytes
            ),
        ));
    }
    if settled && report.ownerless_chunks + report.idle_chunks > 0 {
        return Err(Fault::new(
            FaultKind::Leak,
            format!(
                "recovery left {} chunks to roots that are not there and {} to roots with nothing \
                 in them",
                report.ownerless_chunks, report.idle_chunks
            ),
        ));
    }
    Ok(report)
}
