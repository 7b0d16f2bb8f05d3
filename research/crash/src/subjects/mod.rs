//! What can be explored, by name.
//!
//! # Known mistakes
//! Mistakes that durable indexes have been found to make. The flawed references
//! ([`reference::FLAWS`]) and the planted faults ([`planted::PLANTED`]) say which of these they are.
//!
//! 1. What makes an entry count (bit, counter, state) is durable before the entry.
//! 2. A new node is linked in without a fence after its flush.
//! 3. The wrong line is flushed.
//! 4. What crosses into a next line is flushed in part.
//! 5. A root pointer or header is not flushed.
//! 6. The allocator's metadata are not flushed.
//! 7. Flushes are taken to be ordered among themselves.
//! 8. A single field is forgotten: a sibling pointer, a count, a switch.
//! 9. Two related words are changed as if they were one.
//! 10. A split or merge links one side before the other can be reached.
//! 11. A move deletes before it inserts.
//! 12. A removal overlooks the duplicate that an interrupted move left.
//! 13. What takes several stores, or their order in a line, is taken for one store.
//! 14. Others see what a crash can undo.
//! 15. Something is put into a node or region that is itself not durable yet.
//! 16. A lock bit in persistent memory outlives the crash.
//! 17. Log slots are closer than a record is long.
//! 18. Space is lost before it is handed to its owner, or handed out twice.
//! 19. Recovery is left out because the first record it would look at is unused.
//! 20. A late helper does again what was decided since.
//! 21. What was begun before a crash, or by a thread that has stopped, is finished by no one.
//! 22. What was found is acted on after it has changed.

pub mod activated;
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

/// Every design, the pool, and the structures that are known to be right; none that is known to be wrong.
#[must_use]
pub fn all() -> Vec<Box<dyn Subject>> {
    let mut all = index::all();
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

/// The names of all subjects, those that are known to be wrong last.
#[must_use]
pub fn names() -> Vec<String> {
    let right = all();
    let right = right.iter().map(|subject| subject.name());
    right
        .chain(FLAWS.iter().map(|known| known.subject()))
        .collect()
}

/// The subject of that name: of [`names`], or an index in a leaf size that is not usually explored.
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

/// The subject of that name, or else every one of [`all`] whose name is `prefix` and more
/// (`lbtree`: in every layout), or else the indexes so called in a leaf size that is not usually
/// explored.
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

/// The keys of [`Op::Batch`](crate::subject::Op::Batch); past the largest number they start again at 0.
pub fn batch_keys(first: u64, step: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |i| first.wrapping_add(step.wrapping_mul(i)))
}

/// Opens the pool in the simulation; `None` if none was ever made there.
///
/// While a pool is made, its superblock's first copy is written last but one and its second copy last. A
/// crash before the first copy is whole leaves what [`OpenError::NotAPool`] names; every other error
/// is one of a pool that was there.
fn open_pool() -> Result<Option<Arc<Pool<Sim>>>, Fault> {
    match Pool::open(Path::new(PATH), &PoolOptions::default()) {
        Ok(pool) => Ok(Some(pool)),
        Err(OpenError::NotAPool { .. }) => Ok(None),
        Err(e) => Err(Fault::new(FaultKind::Recovery, e.to_string())),
    }
}

/// Opens the pool that an earlier try left, or makes one.
fn make_pool() -> Result<Arc<Pool<Sim>>, Fault> {
    match open_pool()? {
        Some(pool) => Ok(pool),
        None => Pool::create(Path::new(PATH), &PoolOptions::default())
            .map_err(|e| Fault::new(FaultKind::Progress, format!("making the pool: {e}"))),
    }
}

/// Checks the pool under a structure. `settled`: nothing was done since it was opened.
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
