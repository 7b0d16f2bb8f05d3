//! Limits how many lines of one cause are logged, so that a client that fails as often as it likes
//! cannot fill the disk.
//!
//! A cause is a place in the program that logs. Debug lines are not limited.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The most lines of one cause in each period.
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Cause {
    /// The start of the period.
    since: Instant,
    written: u32,
    left_out: u64,
    /// The message of its lines.
    text: String,
}

/// Decides which events are logged. Clones share their counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Throttle(Arc<Mutex<HashMap<Identifier, Cause>>>);

impl Throttle {
    fn causes(&self) -> MutexGuard<'_, HashMap<Identifier, Cause>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if an event of this cause is logged now.
    fn admits(&self, cause: Identifier, now: Instant, text: impl FnOnce() -> String) -> bool {
        let mut causes = self.causes();
        let cause = causes.entry(cause).or_insert_with(|| Cause {
            since: now,
            written: 0,
            left_out: 0,
            text: String::new(),
        });
        if now.saturating_duration_since(cause.since) >= PERIOD {
            (cause.since, cause.written) = (now, 0);
        }
        if cause.written < LINES {
            cause.written += 1;
            return true;
        }
        if cause.left_out == 0 {
            cause.text = text();
        }
        cause.left_out += 1;
        false
    }

    /// Returns the causes whose period has ended, or all of them, each with the number of its lines
    /// that were left out. Each is returned once.
    pub fn take_left_out(&self, all: bool) -> Vec<(String, u64)> {
        let mut causes = self.causes();
        let over = causes.values_mut().filter(|cause| {
            // At the end of a period, so that there is one line for it.
            cause.left_out > 0 && (all || cause.since.elapsed() >= PERIOD)
        });
        let taken = over.map(|cause| {
            let lines = std::mem::take(&mut cause.left_out);
            (std::mem::take(&mut cause.text), lines)
        });
        taken.collect()
    }
}

impl<S: Subscriber> Layer<S> for Throttle {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let meta = event.metadata();
        if *meta.level() > Level::INFO {
            return true;
        }
        self.admits(meta.callsite(), Instant::now(), || {
            let mut text = Text::default();
            event.record(&mut text);
            text.0
        })
    }
}

/// The message of an event.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    /// Counts what comes through.
    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for Seen {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut text = Text::default();
            event.record(&mut text);
            self.0.lock().unwrap().push(text.0);
        }
    }

    /// Wrong passwords were logged 190,000 times a second.
    #[test]
    fn lines_of_one_cause_are_limited_and_the_rest_is_counted() {
        let (throttle, seen) = (Throttle::default(), Seen::default());
        let subscriber = tracing_subscriber::registry()
            .with(seen.clone())
            .with(throttle.clone());
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..1000 {
                tracing::warn!(client = "x", "wrong password");
                tracing::debug!("all of these");
            }
            tracing::warn!("another cause");
        });
        let seen = seen.0.lock().unwrap();
        let count = |text: &str| seen.iter().filter(|seen| *seen == text).count();
        assert_eq!(count("wrong password"), LINES as usize);
        assert_eq!((count("another cause"), count("all of these")), (1, 1000));
        assert_eq!(throttle.take_left_out(false), []);
        for cause in throttle.causes().values_mut() {
            cause.since -= PERIOD;
        }
        assert_eq!(
            throttle.take_left_out(false),
            [("wrong password".to_owned(), 990)]
        );
        assert_eq!(throttle.take_left_out(false), []);
    }
}
