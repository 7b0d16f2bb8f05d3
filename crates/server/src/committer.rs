//! Makes what connections wrote durable, for many of them at once.
//!
//! On mapped memory that takes no time, and the connection does it. A journal has to be synced: one thread does that, for all connections
//! that wait, while their worker threads go on with others.

use crate::data::Data;
use crate::table::{add, value};
use bristlecone_pmem::{Media, MediumKind};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::watch;

/// What has been settled.
#[derive(Clone, Debug, Default)]
struct Settled {
    /// Up to this time stamp, everything is durable.
    durable: u64,
    /// Up to this one nobody may be answered.
    failed: u64,
    error: String,
}

#[derive(Debug, Default)]
struct Wanted {
    ts: u64,
    stop: bool,
    /// The thread waits until more is wanted: else it need not be told, which takes a system call.
    idle: bool,
}

#[derive(Default)]
struct Shared {
    wanted: Mutex<Wanted>,
    more: Condvar,
    /// How often what is written was made durable.
    syncs: AtomicU64,
}

impl Shared {
    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes writes durable. See the module's head.
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
    /// Returns a committer, with its thread if the medium needs one.
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

    /// Returns how often what connections had written was made durable, each time for all that waited.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        value(&self.shared.syncs)
    }

    /// Returns true if settling takes time, in which others can do something.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.thread.is_some()
    }

    /// Waits until everything up to that time stamp is durable. `alone`: nobody else is to be served meanwhile, so that this thread does the
    /// work, instead of waking another one and being woken.
    ///
    /// # Errors
    /// It is not: nobody may be answered.
    pub async fn settle(&self, ts: u64, alone: bool) -> Result<(), String> {
        if alone || !self.waits() {
            add(&self.shared.syncs, 1);
            return self.data.settle(ts).map_err(|e| e.to_string());
        }
        if self.data.store().durable() >= ts {
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
            // It ends; whether it panicked was shown when it did.
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
        let outcome = data.settle(ts);
        add(&shared.syncs, 1);
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
