//! Reports of accesses to an index's part in DRAM, so that the device model can charge for them.
//!
//! A traced medium sees every access to the pool. Inner nodes and lock tables are in DRAM, which
//! the medium does not see, and yet most of a search's time may go there. So structures in DRAM
//! take a [`DramTrace`] from the medium that they serve
//! ([`Instrument::Dram`](super::Instrument::Dram)) and report to it. On any ordinary medium it is
//! [`Untraced`], whose reports compile to nothing.
//!
//! Where a structure lies differs from run to run, so places are counted from its start, and two of
//! one kind are not told apart.
//!
//! # Concurrency
//! `Traced` (feature `explore`) reports to the observer of the calling thread; other threads'
//! reports go nowhere.

/// The memory that a report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DramRegion {
    /// Nodes of an inner index, in the order of their handles.
    Inner,
    /// A table of version locks.
    Locks,
    /// A table that leads from leaves' numbers to their records, from its first entry on.
    Mapping,
    /// The pool: prefetches only, which no load or store reports.
    Pool,
}

/// The kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DramAccess {
    /// Read.
    Load,
    /// Written.
    Store,
    /// Read and written by a locked instruction.
    Locked,
    /// Prefetched.
    Prefetch,
}

/// One report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DramTouch {
    /// The memory.
    pub region: DramRegion,
    /// The kind of access.
    pub access: DramAccess,
    /// Place, in bytes from the region's start.
    pub at: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Reports of a structure in DRAM about its accesses.
pub trait DramTrace: Send + Sync + 'static {
    /// Reports `bytes` at `at` (from the region's start).
    fn touch(region: DramRegion, access: DramAccess, at: u64, bytes: u64);
}

/// Reports nothing, at no cost.
#[derive(Clone, Copy, Debug)]
pub enum Untraced {}

impl DramTrace for Untraced {
    #[inline(always)]
    fn touch(_: DramRegion, _: DramAccess, _: u64, _: u64) {}
}

#[cfg(feature = "explore")]
mod traced {
    use super::{DramAccess, DramRegion, DramTouch, DramTrace};
    use std::cell::RefCell;

    /// Reports to the calling thread's observer, if it has one.
    #[derive(Clone, Copy, Debug)]
    pub enum Traced {}

    /// Receives every report of the thread that it was set on.
    pub type DramObserver = Box<dyn FnMut(&DramTouch)>;

    thread_local! {
        static OBSERVER: RefCell<Option<DramObserver>> = const { RefCell::new(None) };
    }

    impl Traced {
        /// Sets the calling thread's observer and returns the one before. It must not itself cause
        /// reports; those would be lost.
        pub fn observe(observer: Option<DramObserver>) -> Option<DramObserver> {
            OBSERVER.with(|o| o.replace(observer))
        }
    }

    impl DramTrace for Traced {
        #[inline]
        fn touch(region: DramRegion, access: DramAccess, at: u64, bytes: u64) {
            OBSERVER.with(|observer| {
                if let Ok(mut observer) = observer.try_borrow_mut()
                    && let Some(observer) = observer.as_mut()
                {
                    observer(&DramTouch {
                        region,
                        access,
                        at,
                        bytes,
                    });
                }
            });
        }
    }
}

#[cfg(feature = "explore")]
pub use traced::{DramObserver, Traced};

#[cfg(all(test, feature = "explore"))]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn reports_reach_the_threads_own_observer_until_it_is_taken_away() {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let into = Rc::clone(&seen);
        let before = Traced::observe(Some(Box::new(move |touch| into.borrow_mut().push(*touch))));
        assert!(before.is_none());
        Traced::touch(DramRegion::Inner, DramAccess::Load, 128, 16);
        Untraced::touch(DramRegion::Inner, DramAccess::Load, 0, 8);
        std::thread::spawn(|| Traced::touch(DramRegion::Locks, DramAccess::Locked, 0, 8))
            .join()
            .unwrap();
        assert!(Traced::observe(None).is_some());
        Traced::touch(DramRegion::Inner, DramAccess::Store, 0, 8);
        let only = DramTouch {
            region: DramRegion::Inner,
            access: DramAccess::Load,
            at: 128,
            bytes: 16,
        };
        assert_eq!(*seen.borrow(), [only]);
    }
}
