//! Keeping the process within the memory that it may use, where the medium can give memory back.
//!
//! The tree bounds what is resident of the pool, as far as it knows. A thread reads how much of the
//! process really is, and sets that bound so that the whole stays below seven eighths of what it
//! may be. What the pool file does not have yet stays in memory: so changes that are ahead of the
//! file are bounded by a half ([`Media::bound_memory`]), beyond which commits wait for a
//! checkpoint.

use super::Core;
use bristlecone_pmem::memory::resident;
use bristlecone_pmem::{CommitError, Media};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the thread looks while there is enough.
const CALM: Duration = Duration::from_millis(10);
/// How often it does while there is not.
const BUSY: Duration = Duration::from_millis(1);
/// How often it does where nothing more can be given back.
const IN_VAIN: Duration = Duration::from_secs(1);
/// Of the pool so much may always be in memory: what is needed to work at all.
const LEAST: u64 = 8 << 20;

/// Sets what of the pool may be in memory, and gives back what is too much. Returns when to look
/// again.
fn keep_within<M: Media>(core: &Core<M>, most: u64) -> Result<Duration, CommitError> {
    let Some(now) = resident() else {
        return Ok(CALM);
    };
    let of_pool = core.tree.in_memory();
    let other = now.saturating_sub(of_pool);
    // If the tree counts more than there is, all of that may stay.
    let phantom = of_pool.saturating_sub(now);
    let high = most / 8 * 7;
    let bound = high.saturating_sub(other) + phantom;
    core.tree.bound_memory(bound.max(LEAST));
    if now <= high && of_pool <= bound {
        return Ok(CALM);
    }
    let mut given = core.tree.give_back()?;
    if resident().is_some_and(|now| now > high) {
        // The kernel has mapped pages that the tree did not count.
        given = core.tree.give_all_back()?;
    }
    let left = resident().map_or(0, |now| now.saturating_sub(high));
    if given.busy || left == 0 {
        return Ok(BUSY);
    }
    if given.dirty < left / 2 {
        // Either it comes as fast as it goes, or it is not of the pool.
        return Ok(if given.bytes > 0 { BUSY } else { IN_VAIN });
    }
    // Too many pages are dirty: once a checkpoint has written them, they can be dropped.
    core.pm().sync()?;
    // And what DRAM holds of its pages may be needed by readers at the durable mark.
    core.make_durable(core.applied())?;
    core.tree.give_all_back()?;
    Ok(BUSY)
}

/// Starts a thread that keeps the process within `most` bytes of memory until it is told to stop;
/// `None` where the medium cannot give memory back.
///
/// # Errors
/// The system refused a thread.
pub(super) fn spawn<M: Media>(
    core: &Arc<Core<M>>,
    most: u64,
) -> std::io::Result<Option<JoinHandle<()>>> {
    if !core.tree.can_give_back() || resident().is_none() {
        return Ok(None);
    }
    core.pm().bound_memory(most);
    core.tree.bound_memory(most);
    let core = Arc::clone(core);
    let life = move || {
        let mut interval = Duration::ZERO;
        while !core.control.wait_or_stop(interval) {
            interval = match keep_within(&core, most) {
                Ok(interval) => interval,
                // Writers are told, too.
                Err(CommitError::Failed { .. }) => return,
                Err(_) => IN_VAIN,
            };
        }
    };
    let spawned = std::thread::Builder::new()
        .name("store-memory".into())
        .spawn(life);
    spawned.map(Some)
}
