//! Which processors servers and clients run on, and how long a process was at work.

use crate::failure::{Failure, Outcome};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;

/// The processors that this process may use: the first half is the servers', the rest the clients'.
/// With one, nobody is kept to any.
#[derive(Clone, Debug)]
pub struct Processors(Option<[Vec<usize>; 2]>);

impl Default for Processors {
    fn default() -> Self {
        Self::new()
    }
}

impl Processors {
    /// Returns those that this thread may use.
    #[must_use]
    pub fn new() -> Self {
        let allowed = sched_getaffinity(None).unwrap_or_default();
        let mut servers: Vec<_> = (0..CpuSet::MAX_CPU)
            .filter(|cpu| allowed.is_set(*cpu))
            .collect();
        let clients = servers.split_off(servers.len() / 2);
        Self((!servers.is_empty()).then_some([servers, clients]))
    }

    /// Returns true if servers and clients have processors of their own.
    #[must_use]
    pub fn are_split(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the number of the servers' processors, and of the clients'.
    #[must_use]
    pub fn counts(&self) -> [usize; 2] {
        self.0
            .as_ref()
            .map_or([1, 1], |halves| halves.each_ref().map(Vec::len))
    }

    fn keep_to(&self, half: usize) -> Outcome {
        let Some(halves) = &self.0 else { return Ok(()) };
        let mut set = CpuSet::new();
        halves[half].iter().for_each(|cpu| set.set(*cpu));
        sched_setaffinity(None, &set)
            .map_err(|e| Failure::new(format!("choosing a processor failed: {e}")))
    }

    /// Keeps this thread, and what it starts, to the servers' processors.
    ///
    /// # Errors
    /// The system refuses.
    pub fn for_servers(&self) -> Outcome {
        self.keep_to(0)
    }

    /// Keeps this thread, and what it starts, to the clients' processors.
    ///
    /// # Errors
    /// The system refuses.
    pub fn for_clients(&self) -> Outcome {
        self.keep_to(1)
    }

    /// Lets this thread use all of them again.
    ///
    /// # Errors
    /// The system refuses.
    pub fn for_all(&self) -> Outcome {
        let Some(halves) = &self.0 else { return Ok(()) };
        let mut set = CpuSet::new();
        halves.iter().flatten().for_each(|cpu| set.set(*cpu));
        sched_setaffinity(None, &set)
            .map_err(|e| Failure::new(format!("choosing a processor failed: {e}")))
    }
}

/// Returns the seconds that the threads of a process were at work; 0 where the kernel does not
/// tell.
#[must_use]
pub fn worked(process: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let ns: u64 = threads
        .into_iter()
        .flatten()
        .filter_map(|thread| {
            let told = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            told.split_whitespace().next()?.parse::<u64>().ok()
        })
        .sum();
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::time::{Duration, Instant};

    #[test]
    fn work_is_told_from_waiting() {
        let id = std::process::id();
        let (before, start) = (worked(id), Instant::now());
        while start.elapsed() < Duration::from_millis(100) {
            black_box(start);
        }
        let busy = worked(id) - before;
        // Other tests' threads may have been at work too, and another process on this processor.
        assert!(busy > 0.001, "{busy}");
    }
}
