//! Ending by a signal in good order: without leaving temporary files, which on `/dev/shm` are
//! memory, or processes behind, and between two steps of long work.

use crate::failure::{Failure, Outcome};
use crate::scratch;
use crate::text::program;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// A second signal within this time is the first one's double.
const AGAIN: Duration = Duration::from_millis(500);

/// From here on SIGHUP, SIGINT and SIGTERM remove what is temporary, kill this process's children,
/// which work on that, and then do what they do by default: the process ends, by that signal. Those
/// that the process was started to ignore, as SIGHUP by `nohup`, it goes on ignoring.
///
/// # Errors
/// The system refuses; the signals do what they did before.
pub fn remove_temporary_files_on_signals() -> Outcome {
    on_signals(|signal| {
        scratch::remove_all(kill_children);
        // If the system refuses even that, the next signal tries again.
        let _ = emulate_default_handler(signal);
    })
}

/// Has a thread call `act` for each signal that would end the process.
fn on_signals(mut act: impl FnMut(i32) + Send + 'static) -> Outcome {
    let refused = |e| Failure::new(format!("waiting for signals failed: {e}"));
    let mut signals = Signals::new(heeded()).map_err(refused)?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || signals.forever().for_each(&mut act))
        .map_err(refused)?;
    Ok(())
}

/// The signals that end the process, but for those that it was started to ignore.
fn heeded() -> impl Iterator<Item = i32> {
    let ignored = ignored();
    let ending = [SIGHUP, SIGINT, SIGTERM].into_iter();
    ending.filter(move |signal| ignored >> (signal - 1) & 1 == 0)
}

/// Whether a signal has asked this process to end.
#[derive(Clone, Debug)]
pub struct Asked(Arc<AtomicI32>);

impl Asked {
    /// From here on the first SIGHUP, SIGINT or SIGTERM is kept here for the command to see, which
    /// ends when it has put things in order. The next one ends the process at once, unless it comes
    /// in the same moment: programs send a signal to a process and then to its group. Those that
    /// the process was started to ignore, it goes on ignoring.
    ///
    /// # Errors
    /// The system refuses; the signals do what they did before.
    pub fn by_signals() -> Outcome<Self> {
        let asked = Self(Arc::default());
        let (first, mut since) = (asked.clone(), None::<Instant>);
        on_signals(move |signal| match since {
            None => {
                // ORDERING: Relaxed; pairs with `signal`, nothing else is published.
                first.0.store(signal, Ordering::Relaxed);
                since = Some(Instant::now());
                eprintln!("{}: ending; once more ends it at once", program());
            }
            Some(at) if at.elapsed() < AGAIN => {}
            // If the system refuses even that, the next signal tries again.
            Some(_) => drop(emulate_default_handler(signal)),
        })?;
        Ok(asked)
    }

    /// The signal that has asked for it.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        // ORDERING: Relaxed; pairs with the store of the thread that waits for signals.
        let number = self.0.load(Ordering::Relaxed);
        (number != 0).then_some(number)
    }
}

/// The signals that this process ignores, a bit each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.unwrap_or(0)
}

/// Kills this process's children: servers and writers that it started. A child's number is not used
/// again before this process has waited for it, so nobody else is hit.
fn kill_children() {
    let own = std::process::id();
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return;
    };
    let numbers = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for number in numbers.filter(|number| parent_of(*number) == Some(own)) {
        if let Some(pid) = Pid::from_raw(number) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn parent_of(process: i32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind the name, which is in parentheses, come the state and the parent.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok()
}
