//! Keeping the process within the memory that it may use, where the medium can give memory back.
//!
//! The tree bounds what is resident of the pool, as far as it knows. A thread reads how much of the
//! process really is, and sets that bound so that the whole stays below seven eighths of what it
//! may be. What the pool file does not have yet stays in memory: so changes that are ahead of the
//! file are bounded by a part of that ([`Media::bound_ahead`]), beyond which commits wait for a
//! checkpoint.

use super::Core;
use bristlecone_pmem::memory::resident;
use bristlecone_pmem::{CommitError, Media};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the thread looks while there is enough.
const CALM: Duration = Duration::from_millis(10);
/// How often it does while there is not.
const BUSY: Duration = Duration::from_millis(1);
/// How often it does where nothing more can be given back.
const IN_VAIN: Duration = Duration::from_secs(1);
/// How often it looks how much is ahead of the pool file.
const AHEAD: Duration = Duration::from_millis(100);
/// Of what may be in memory of the pool, one of so many bytes may be ahead of its file.
const OF_POOL: u64 = 2;
/// Of the pool so much may always be in memory: what is needed to work at all.
const LEAST: u64 = 8 << 20;

/// Bytes that are ahead of the pool file, and so cannot be given back. Commits keep them bounded.
/// While there are hardly any commits, they only leave less memory for what is read.
#[derive(Debug)]
struct Ahead {
    looked: Instant,
    bytes: u64,
}

impl Ahead {
    /// Whether `bytes` that are ahead now are worth a checkpoint, where so many may be of the pool.
    fn is_idle(&mut self, bytes: u64, of_pool: u64) -> bool {
        let before = std::mem::replace(&mut self.bytes, bytes);
        // Fewer than before are what came since the last checkpoint.
        bytes > of_pool / 16 && (before..before + before / 8).contains(&bytes)
    }
}

/// Writes what is ahead of the pool file to it.
fn write_back<M: Media>(core: &Core<M>) -> Result<(), CommitError> {
    core.pm().sync()?;
    // And what DRAM holds of its pages may be needed by readers at the durable mark.
    core.make_durable(core.applied())
}

/// Sets what of the pool may be in memory, and gives back what is too much. Returns when to look
/// again.
fn keep_within<M: Media>(
    core: &Core<M>,
    most: u64,
    ahead: &mut Ahead,
) -> Result<Duration, CommitError> {
    let Some(now) = resident() else {
        return Ok(CALM);
    };
    let of_pool = core.tree.in_memory();
    let other = now.saturating_sub(of_pool);
    // If the tree counts more than there is, all of that may stay.
    let phantom = of_pool.saturating_sub(now);
    let high = most / 8 * 7;
    let bound = high.saturating_sub(other) + phantom;
    let bound = bound.max(LEAST);
    core.tree.bound_memory(bound);
    core.pm().bound_ahead(bound.min(high) / OF_POOL);
    if ahead.looked.elapsed() >= AHEAD && core.tree.is_short_of_memory() {
        ahead.looked = Instant::now();
        let bytes = core.pm().ahead();
        if bytes.is_some_and(|bytes| ahead.is_idle(bytes, bound)) {
            match write_back(core) {
                Err(e @ CommitError::Failed { .. }) => return Err(e),
                // Without space for it, the rest can be given back all the same.
                Err(_) => ahead.looked += IN_VAIN,
                Ok(()) => ahead.bytes = 0,
            }
        }
    }
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
    write_back(core)?;
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
    core.pm().bound_ahead(most / OF_POOL);
    core.tree.bound_memory(most);
    let core = Arc::clone(core);
    let life = move || {
        let mut interval = Duration::ZERO;
        let mut ahead = Ahead {
            looked: Instant::now(),
            bytes: 0,
        };
        while !core.control.wait_or_stop(interval) {
            interval = match keep_within(&core, most, &mut ahead) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ahead_is_written_once_it_hardly_grows() {
        let mut ahead = Ahead {
            looked: Instant::now(),
            bytes: 0,
        };
        let most = 16 << 20;
        let looks = [1 << 20, 2 << 20, 3 << 20, (3 << 20) + 1, 4 << 20, 4 << 20];
        let idle = looks.map(|bytes| ahead.is_idle(bytes, most));
        assert_eq!(idle, [false, false, false, true, false, true]);
        // Others have made a checkpoint, and go on.
        let looks = [3 << 20, 2 << 20, 3 << 20];
        assert!(looks.iter().all(|bytes| !ahead.is_idle(*bytes, most)));
        // Little, and hardly more than little.
        assert!(!ahead.is_idle(most / 16, most) && !ahead.is_idle(most / 16, most));
        assert!(ahead.is_idle(most / 16 + 1, most));
        assert!(ahead.is_idle(most / 16 + 1, most));
    }
}
