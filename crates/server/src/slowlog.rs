//! The log of slow commands.

use crate::parse::{Arg, is};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The most arguments of an entry, and the most bytes of one of them.
const MAX_ARGUMENTS: usize = 32;
const MAX_ARGUMENT: usize = 128;

/// A slow command.
#[derive(Clone, Debug)]
pub struct Slow {
    /// Its number.
    pub id: u64,
    /// The time when it was executed, in s since 1970.
    pub at: u64,
    /// Its duration.
    pub took: Duration,
    /// Its arguments, shortened.
    pub args: Vec<Vec<u8>>,
    /// The client's address and name.
    pub client: (String, String),
}

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    entries: VecDeque<Slow>,
}

/// The newest slow commands.
#[derive(Debug, Default)]
pub struct SlowLog(Mutex<Inner>);

/// The replacement of secrets.
const REDACTED: &[u8] = b"(redacted)";

/// Returns the arguments, with those that may be secret replaced.
fn without_secrets<'a>(args: &[Arg<'a>]) -> Vec<Arg<'a>> {
    let name = args.first().copied().unwrap_or_default();
    let second = args.get(1).copied().unwrap_or_default();
    let shown = if is(name, "auth") {
        1
    } else if is(name, "hello") || is(name, "acl") || is(name, "config") && is(second, "set") {
        2
    } else {
        args.len()
    };
    let secret = args.iter().skip(shown).map(|_| REDACTED);
    args.iter().take(shown).copied().chain(secret).collect()
}

fn shortened(args: &[Arg<'_>]) -> Vec<Vec<u8>> {
    let one = |arg: &Arg<'_>| match arg.get(..MAX_ARGUMENT) {
        Some(start) if arg.len() > MAX_ARGUMENT => {
            let more = format!("... ({} more bytes)", arg.len() - MAX_ARGUMENT);
            [start, more.as_bytes()].concat()
        }
        _ => arg.to_vec(),
    };
    if args.len() <= MAX_ARGUMENTS {
        return args.iter().map(one).collect();
    }
    let kept = MAX_ARGUMENTS - 1;
    let more = format!("... ({} more arguments)", args.len() - kept);
    let shown = args.iter().take(kept).map(one);
    shown.chain([more.into_bytes()]).collect()
}

impl SlowLog {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry, and keeps the newest `most`.
    pub fn note(&self, args: &[Arg<'_>], took: Duration, client: (String, String), most: usize) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut inner = self.inner();
        let slow = Slow {
            id: inner.last,
            at: since.map_or(0, |since| since.as_secs()),
            took,
            args: shortened(&without_secrets(args)),
            client,
        };
        inner.last += 1;
        inner.entries.push_front(slow);
        inner.entries.truncate(most);
    }

    /// Returns the newest entries, the newest first.
    #[must_use]
    pub fn newest(&self, most: usize) -> Vec<Slow> {
        self.inner().entries.iter().take(most).cloned().collect()
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner().entries.len()
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all entries.
    pub fn clear(&self) {
        self.inner().entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_left_out() {
        let shown = |line: &str| {
            let args: Vec<Arg<'_>> = line.split(' ').map(str::as_bytes).collect();
            let shown: Vec<_> = without_secrets(&args)
                .into_iter()
                .map(String::from_utf8_lossy)
                .collect();
            shown.join(" ")
        };
        for (line, expected) in [
            ("AUTH bob pw", "AUTH (redacted) (redacted)"),
            ("hello 3 AUTH bob", "hello 3 (redacted) (redacted)"),
            ("acl SETUSER bob >pw", "acl SETUSER (redacted) (redacted)"),
            (
                "config Set requirepass x",
                "config Set (redacted) (redacted)",
            ),
            ("config get requirepass", "config get requirepass"),
            ("set a b", "set a b"),
        ] {
            assert_eq!(shown(line), expected);
        }
    }

    #[test]
    fn the_newest_are_kept_shortened() {
        let log = SlowLog::default();
        let long = vec![b'x'; 200];
        let many: Vec<Arg<'_>> = vec![&long; 40];
        for _ in 0..3 {
            log.note(&many, Duration::from_micros(5), Default::default(), 2);
        }
        let newest = log.newest(10);
        assert_eq!((newest.len(), newest[0].id, log.len()), (2, 2, 2));
        assert_eq!(newest[0].args.len(), 32);
        assert!(newest[0].args[0].ends_with(b"... (72 more bytes)"));
        assert_eq!(newest[0].args[31], b"... (9 more arguments)");
        log.clear();
        assert!(log.is_empty());
    }
}
