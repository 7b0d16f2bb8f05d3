//! Panics as results: a subject that panics on a crash image, or in a schedule, is a finding.

use bristlecone_pmem::media::sim::OutOfSteps;
use shuttle::scheduler::DfsScheduler;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A panic that was caught.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caught {
    /// The code ran out of steps.
    OutOfSteps,
    /// Message and place of a panic.
    Panic(String),
}

/// Silences the panics that [`catch`] catches. Other panics are reported as before.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        // On its first run, the scheduler of simulated threads installs a hook that reports every
        // panic of the process as a failed test. This run makes it do so now, and its hook is
        // dropped.
        let mut config = shuttle::Config::new();
        config.failure_persistence = shuttle::FailurePersistence::None;
        shuttle::Runner::new(DfsScheduler::new(Some(1), false), config).run(|| {});
        drop(panic::take_hook());
        panic::set_hook(Box::new(move |info| {
            if QUIET.get() {
                let place = info
                    .location()
                    .map(|at| format!("{}:{}", at.file(), at.line()));
                PLACE.with(|last| *last.borrow_mut() = place);
            } else {
                before(info);
            }
        }));
    });
}

/// Runs `f` and returns its panic as a value, without a message on standard error. Calls nest.
pub(crate) fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Caught> {
    let before = QUIET.replace(true);
    // The callers roll back or abandon whatever a panicking `f` changed.
    let result = panic::catch_unwind(AssertUnwindSafe(f));
    QUIET.set(before);
    result.map_err(|payload| caught(&*payload))
}

fn caught(payload: &(dyn Any + Send)) -> Caught {
    if payload.is::<OutOfSteps>() {
        return Caught::OutOfSteps;
    }
    let text = (payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned()))
    .or_else(|| payload.downcast_ref::<String>().cloned())
    .unwrap_or_else(|| "a panic without a message".to_owned());
    let place = PLACE.with(|last| last.borrow_mut().take());
    Caught::Panic(match place {
        Some(place) => format!("{text} ({place})"),
        None => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_become_values() {
        install();
        assert_eq!(catch(|| 3), Ok(3));
        let text = catch(|| panic!("no {}", 7));
        let Err(Caught::Panic(text)) = text else {
            panic!("{text:?}");
        };
        assert!(
            text.starts_with("no 7 (") && text.contains("quiet.rs"),
            "{text}"
        );
        assert_eq!(
            catch(|| panic::panic_any(OutOfSteps)),
            Err::<(), _>(Caught::OutOfSteps)
        );
        assert!(!QUIET.get());
    }
}
