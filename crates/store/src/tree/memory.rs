//! Keeping the process within the memory that it may use, where the medium can give memory back.
//!
//! A thread reads how much memory of the process is resident. Above three quarters of what it may
//! be, it drops what the tree and its medium can read again from the pool file, down to five
//! eighths. What the file does not have yet stays: so changes that are ahead of the file are
//! bounded by a quarter ([`Media::bound_dirty`]), beyond which commits wait for a checkpoint.

use super::Core;
use bristlecone_index::clustered::Hands;
use bristlecone_pmem::memory::resident;
use bristlecone_pmem::{CommitError, Media};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the thread looks while there is enough.
const CALM: Duration = Duration::from_millis(10);
/// How often it does while there is not.
const BUSY: Duration = Duration::from_millis(1);
/// How often it does where nothing more can be given back.
const IN_VAIN: Duration = Duration::from_secs(1);
/// Times that it goes around at once.
const ROUNDS: usize = 4;

/// What has been given back.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Times that memory was short.
    pub shortages: AtomicU64,
}

/// Gives memory back until `low` bytes are resident, if there is that much to give. Returns whether
/// there was.
fn give_back<M: Media>(core: &Core<M>, hands: &mut Hands, low: u64) -> Result<bool, CommitError> {
    for _ in 0..ROUNDS {
        let Some(now) = resident() else {
            return Ok(true);
        };
        if now <= low {
            return Ok(true);
        }
        let at_work = core.control.hold();
        let share = now / (now - low);
        let evicted = core
            .tree
            .evict(hands, share, || resident().is_none_or(|now| now <= low))?;
        drop(at_work);
        if evicted.busy || core.control.is_stopped() {
            return Ok(false);
        }
    }
    Ok(false)
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
    if core.pm().sections().is_none() || resident().is_none() {
        return Ok(None);
    }
    core.pm().bound_dirty(most / 4);
    let core = Arc::clone(core);
    let (high, low) = (most / 4 * 3, most / 8 * 5);
    let life = move || {
        let mut hands = Hands::default();
        let mut interval = CALM;
        while !core.control.wait_or_stop(interval) {
            interval = CALM;
            if resident().is_none_or(|now| now <= high) {
                continue;
            }
            // ORDERING: Relaxed; a statistic.
            core.memory.shortages.fetch_add(1, Ordering::Relaxed);
            let given = give_back(&core, &mut hands, low).and_then(|enough| {
                if enough {
                    return Ok(true);
                }
                // What is left may be ahead of the file.
                core.pm().sync()?;
                give_back(&core, &mut hands, low)
            });
            interval = match given {
                Ok(true) => BUSY,
                Ok(false) => IN_VAIN,
                // Writers are told, too.
                Err(_) => return,
            };
        }
    };
    let spawned = std::thread::Builder::new()
        .name("store-memory".into())
        .spawn(life);
    spawned.map(Some)
}
