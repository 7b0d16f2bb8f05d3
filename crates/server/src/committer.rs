//! Makes what connections wrote durable, for many of them at once.
//!
//! A mapped medium needs no time for that, and the connection does it. A journal has to be synced:
//! one thread does it for all connections that wait, while their worker threads serve others.

use crate::data::Data;
use crate::table::Durations;
use bristlecone_pmem::{Durability, Media, MediumKind};
use bristlecone_store::WriteError;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::watch;

/// The progress of the committer.
#[derive(Clone, Debug, Default)]
struct Settled {
    /// Everything up to this time stamp is durable.
    durable: u64,
    /// Replies that rest on anything up to this time stamp must not be sent.
    failed: u64,
    error: String,
}

#[derive(Debug, Default)]
struct Wanted {
    ts: u64,
    stop: bool,
    /// The thread sleeps until more is wanted. Otherwise it need not be woken, which saves a system
    /// call.
    idle: bool,
}

#[derive(Default)]
struct Shared {
    wanted: Mutex<Wanted>,
    more: Condvar,
    /// How often writes were made durable, and how long that took.
    syncs: Durations,
}

impl Shared {
    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, data: &Data, ts: u64) -> Result<(), WriteError> {
        let started = Instant::now();
        let settled = data.settle(ts);
        self.syncs.note(started.elapsed(), 1);
        settled
    }
}

/// Makes writes durable. See the module's documentation.
pub struct Committer {
    data: Arc<Data>,
    shared: Arc<Shared>,
    settled: watch::Receiver<Settled>,
    /// `None` if settling takes no time.
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Committer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Committer({:?})", self.settled.borrow())
    }
}

impl Committer {
    /// Starts a committer, with its thread if the medium needs one.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(data: Arc<Data>) -> std::io::Result<Self> {
        let shared: Arc<Shared> = Arc::default();
        let (tell, settled) = watch::channel(Settled::default());
        let waits = data.store().pool().pm().kind() == MediumKind::Journal;
        let thread = if waits {
            let (shared, data) = (Arc::clone(&shared), Arc::clone(&data));
            let thread = std::thread::Builder::new().name("committer".into());
            Some(thread.spawn(move || commit(&shared, &data, &tell))?)
        } else {
            None
        };
        Ok(Self {
            data,
            shared,
            settled,
            thread,
        })
    }

    /// Returns how often writes were made durable, each time for all connections that waited, and
    /// how long that took.
    #[must_use]
    pub fn syncs(&self) -> &Durations {
        &self.shared.syncs
    }

    /// Returns true if settling takes time, in which others can be served.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.thread.is_some()
    }

    /// Waits until everything up to that time stamp is durable. If no other connection needs this
    /// thread (`alone`), it does the work itself, instead of waking another thread and being woken.
    ///
    /// # Errors
    /// The text of the error: replies that rest on it must not be sent.
    pub async fn settle(&self, ts: u64, alone: bool) -> Result<(), String> {
        if alone || !self.waits() {
            return self
                .shared
                .settle(&self.data, ts)
                .map_err(|e| e.to_string());
        }
        let store = self.data.store();
        let pm = store.pool().pm();
        // Where nothing waits for durability, all is called durable at once: but not more of it is
        // taken than the medium has room for.
        let waits_for_room = pm.durability() != Durability::Immediate && pm.is_behind();
        if store.durable() >= ts && !waits_for_room {
            return Ok(());
        }
        let idle = {
            let mut wanted = self.shared.wanted();
            wanted.ts = wanted.ts.max(ts);
            std::mem::take(&mut wanted.idle)
        };
        if idle {
            self.shared.more.notify_one();
        }
        let mut settled = self.settled.clone();
        let done = settled
            .wait_for(|settled| settled.durable >= ts || settled.failed >= ts)
            .await;
        match done {
            Ok(settled) if settled.durable >= ts => Ok(()),
            Ok(settled) => Err(settled.error.clone()),
            Err(_) => Err("the committer has ended".into()),
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.shared.wanted().stop = true;
            self.shared.more.notify_one();
            // The thread ends. If it panicked, that was reported then.
            let _ = thread.join();
        }
    }
}

fn commit(shared: &Shared, data: &Data, tell: &watch::Sender<Settled>) {
    let mut done = 0;
    loop {
        let ts = {
            let mut wanted = shared.wanted();
            while !wanted.stop && wanted.ts <= done {
                wanted.idle = true;
                wanted = shared
                    .more
                    .wait(wanted)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if wanted.stop && wanted.ts <= done {
                return;
            }
            wanted.ts
        };
        let outcome = shared.settle(data, ts);
        done = ts;
        tell.send_modify(|settled| match outcome {
            Ok(()) => settled.durable = ts,
            Err(e) => {
                tracing::error!(error = %e, "making writes durable failed");
                settled.failed = ts;
                settled.error = e.to_string();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Fixture, with_durability};
    use bristlecone_pmem::media::journal::fault::FaultDisk;
    use std::time::Duration;

    /// Where nothing waited for durability nothing waited at all: behind a slow disk the journal
    /// became longer than its limit, and so did what was still to be written to it; of a full one
    /// nobody was told.
    #[test]
    fn who_does_not_wait_for_durability_waits_for_the_disk() {
        let interval = Durability::Interval(Duration::from_millis(5));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        for durability in [interval, Durability::None] {
            let (disk, fixture) = (FaultDisk::new(3), Fixture::new());
            let data = Arc::new(with_durability(&disk, true, durability));
            let committer = Committer::start(Arc::clone(&data)).unwrap();
            let settle = || runtime.block_on(committer.settle(data.applied(), false));
            let set =
                |i: usize| fixture.call(&data, &format!("set key{} {}", i % 99, "v".repeat(900)));
            assert_eq!(set(0), "+OK\r\n");
            assert_eq!(settle(), Ok(()));
            disk.set_full(true);
            let pm = data.store().pool().pm();
            let written = (1..10_000).find(|i| {
                set(*i);
                pm.is_behind()
            });
            assert!(written.is_some(), "{durability:?}: all of it is in memory");
            let error = settle().unwrap_err();
            assert!(error.contains("space"), "{durability:?}: {error}");
            disk.set_full(false);
            let begun = Instant::now();
            while settle().is_err() {
                assert!(begun.elapsed() < Duration::from_secs(30));
                std::thread::sleep(Duration::from_millis(5));
                set(0);
            }
        }
    }
}
