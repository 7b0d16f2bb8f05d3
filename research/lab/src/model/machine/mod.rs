//! The machine: cores with caches in front of the device and of DRAM, and the cost of each step of
//! an operation.
//!
//! ```text
//!  thread 0  clock, store buffer, fill buffers, flushes   L1 - L2 -+
//!  thread 1  ...                                          L1 - L2 -+- L3 -+- DRAM (inner nodes, locks)
//!  ...                                                             |      +- device (the pool)
//! ```
//!
//! # Rules
//! 1. *Loads are dependent.* A load waits for its line, and the next step starts then. Only lines
//!    that a program or a prefetcher requested earlier overlap: a *prefetch* takes a fill buffer
//!    without waiting, and a later load of the line waits for the rest. So the lines of a leaf that
//!    a design prefetches arrive together. The lines of a leaf that it walks arrive one after the
//!    other, unless the stream prefetcher sees three lines that ascend or descend.
//! 2. *Fill buffers* bound the outstanding lines. If all are taken, loads and prefetches wait for
//!    the first free one.
//! 3. *Stores* wait in the store buffer for their line and take effect in order. The core continues
//!    until the buffer is full.
//! 4. *A flush* writes the line with all stores before it, and is outstanding until the device has
//!    accepted the line. The flush of a clean line only costs its issue. As many flushes may be
//!    outstanding as there are fill buffers, or one if flushes are serial. *A fence* waits for
//!    stores and flushes. *A fence between stores* costs a constant, since stores take effect in
//!    order anyway.
//! 5. *Caches.* A level 2 cache includes its level 1 cache. Level 3 takes in the lines that level 2
//!    evicts, and keeps the lines that are read from it. A line that only another core has comes
//!    from that core. A store makes it the only copy. Dirty lines that level 3 evicts go to memory,
//!    and no thread waits for them.
//!
//! Every picosecond of a thread's clock is charged to one [`Cause`], so the causes add up to the
//! time.

use super::cache::{Cache, Victim};
use super::memory::{Memory, Time, time};
use super::trace::{DRAM, Step};
use super::{Core, Device};
use std::collections::VecDeque;

/// A cause of a thread's time; see [`super::Stalls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Compute,
    Cache,
    Dram,
    PmRead,
    Store,
    Flush,
    Fence,
    Bandwidth,
}

/// Number of causes.
pub(crate) const CAUSES: usize = Cause::Bandwidth as usize + 1;

/// Counts and times of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub by_cause: [Time; CAUSES],
    pub flushes: u64,
    pub fences: u64,
    /// Load instructions of one word each.
    pub loads: u64,
    /// Lines that came from the device or from DRAM.
    pub misses: u64,
}

/// A line on its way to a core.
#[derive(Clone, Copy, Debug)]
struct Fill {
    line: u64,
    at: Time,
    queued: Time,
    cause: Cause,
}

/// Lines that ascend, or descend, one by one.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    last: u64,
    run: u32,
    /// Meaningless while the stream has one line.
    descends: bool,
}

impl Stream {
    /// Returns the stream with one line more, if it is the stream's next line.
    fn followed_by(self, line: u64) -> Option<Self> {
        let descends = match self.run {
            0 => return None,
            _ if self.last + 1 == line => false,
            _ if self.last == line + 1 => true,
            _ => return None,
        };
        (self.run == 1 || self.descends == descends).then_some(Self {
            last: line,
            run: self.run + 1,
            descends,
        })
    }
}

/// Streams that the prefetcher follows at the same time.
const STREAMS: usize = 16;
/// Lines after which it follows a stream.
const STREAM_TRAINED: u32 = 3;
/// Lines of a page. The prefetcher does not leave it.
const PAGE_LINES: u64 = 64;

#[derive(Debug)]
struct Thread {
    clock: Time,
    l1: Cache,
    l2: Cache,
    fills: Vec<Fill>,
    /// Times at which the buffered stores take effect, in order.
    stores: VecDeque<Time>,
    last_store: Time,
    /// Times at which outstanding flushes are done, and the part that is a wait in the device.
    flushes: Vec<(Time, Time)>,
    /// Least recently used first.
    streams: [Stream; STREAMS],
    spent: Spent,
}

impl Thread {
    fn advance(&mut self, by: Time, cause: Cause) {
        self.clock += by;
        self.spent.by_cause[cause as usize] += by;
    }

    /// Waits until `at`. Up to `queued` of the wait is charged to the busy device.
    fn wait(&mut self, at: Time, queued: Time, cause: Cause) {
        let wait = at.saturating_sub(self.clock);
        let busy = wait.min(queued);
        self.advance(wait - busy, cause);
        self.advance(busy, Cause::Bandwidth);
    }

    /// Returns the fill whose end frees one of the `buffers`, if none is free now.
    fn full(&mut self, buffers: usize) -> Option<Fill> {
        let now = self.clock;
        self.fills.retain(|fill| fill.at > now);
        let over = self.fills.len().checked_sub(buffers)?;
        self.fills.sort_by_key(|fill| fill.at);
        Some(self.fills[over])
    }
}

/// Times of the core.
#[derive(Clone, Copy, Debug)]
struct Times {
    l2: Time,
    l3: Time,
    peer: Time,
    access: Time,
    operation: Time,
    locked: Time,
    flush: Time,
    fence: Time,
    store_fence: Time,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Machine {
    times: Times,
    fill_buffers: usize,
    /// Largest number of outstanding flushes.
    flush_buffers: usize,
    store_buffer: usize,
    stream_lines: u64,
    flush_keeps_line: bool,
    threads: Vec<Thread>,
    l3: Cache,
    dram: Memory,
    pm: Memory,
}

impl Machine {
    /// Returns a machine with `threads` cores in front of `device` and `dram`. Both descriptions
    /// have been checked.
    pub(crate) fn new(device: &Device, dram: &Device, threads: usize) -> Self {
        let core: &Core = device.core();
        let thread = || Thread {
            clock: 0,
            l1: Cache::new(core.l1_bytes, core.l1_ways),
            l2: Cache::new(core.l2_bytes, core.l2_ways),
            fills: Vec::new(),
            stores: VecDeque::new(),
            last_store: 0,
            flushes: Vec::new(),
            streams: [Stream::default(); STREAMS],
            spent: Spent::default(),
        };
        Self {
            times: Times {
                l2: time(core.l2_ns),
                l3: time(core.l3_ns),
                peer: time(core.peer_ns),
                access: time(core.access_ns),
                operation: time(core.operation_ns),
                locked: time(core.locked_ns),
                flush: time(core.flush_ns),
                fence: time(core.fence_ns),
                store_fence: time(core.store_fence_ns),
            },
            fill_buffers: core.line_fill_buffers as usize,
            flush_buffers: if core.serial_flush {
                1
            } else {
                core.line_fill_buffers as usize
            },
            store_buffer: core.store_buffer as usize,
            stream_lines: core.stream_lines,
            flush_keeps_line: core.flush_keeps_line,
            threads: (0..threads).map(|_| thread()).collect(),
            l3: Cache::new(core.l3_bytes, core.l3_ways),
            dram: Memory::new(dram),
            pm: Memory::new(device),
        }
    }

    /// Returns the clock of thread `t`.
    pub(crate) fn clock(&self, t: usize) -> Time {
        self.threads[t].clock
    }

    /// Returns the counts and times of thread `t` since the last restart.
    pub(crate) fn spent(&self, t: usize) -> Spent {
        self.threads[t].spent
    }

    /// Returns the device.
    pub(crate) fn pm(&self) -> &Memory {
        &self.pm
    }

    /// Resets clocks and counters. Caches and buffers keep their content, and nothing is
    /// outstanding.
    pub(crate) fn restart(&mut self) {
        for thread in &mut self.threads {
            thread.clock = 0;
            thread.fills.clear();
            thread.stores.clear();
            thread.last_store = 0;
            thread.flushes.clear();
            thread.spent = Spent::default();
        }
        self.dram.restart();
        self.pm.restart();
    }

    /// Empties the caches. Their content reaches memory uncharged.
    pub(crate) fn empty_caches(&mut self) {
        self.l3.clear();
        for thread in &mut self.threads {
            thread.l1.clear();
            thread.l2.clear();
        }
    }

    /// Does one step of thread `t`.
    pub(crate) fn step(&mut self, t: usize, step: Step) {
        let times = self.times;
        match step {
            Step::Operation => self.threads[t].advance(times.operation, Cause::Compute),
            Step::Load { line, words } => self.load(t, line, words),
            Step::Store { line, words } => self.store(t, line, words),
            Step::Prefetch { line } => {
                self.threads[t].advance(times.access, Cause::Compute);
                self.request(t, line, true);
            }
            Step::Locked { line } => {
                let thread = &mut self.threads[t];
                thread.wait(thread.last_store, 0, Cause::Store);
                thread.stores.clear();
                self.load(t, line, 1);
                self.own(t, line);
                self.threads[t].advance(times.locked, Cause::Compute);
            }
            Step::StoreFence => self.threads[t].advance(times.store_fence, Cause::Fence),
            Step::Flush { line } => self.flush(t, line),
            Step::NonTemporal { line } => {
                self.threads[t].advance(self.times.access, Cause::Compute);
                self.evict(line, false);
                self.write_back(t, line);
            }
            Step::Fence => {
                let thread = &mut self.threads[t];
                thread.spent.fences += 1;
                thread.advance(times.fence, Cause::Compute);
                let mut last = (thread.last_store, 0);
                for flush in thread.flushes.drain(..) {
                    last = last.max(flush);
                }
                thread.wait(last.0, last.1, Cause::Fence);
                thread.stores.clear();
            }
        }
    }

    fn load(&mut self, t: usize, line: u64, words: u32) {
        self.threads[t].spent.loads += u64::from(words);
        self.threads[t].advance(self.times.access * Time::from(words), Cause::Compute);
        let missed = self.threads[t].l1.state(line).is_none();
        let fill = self.request(t, line, true);
        self.threads[t].wait(fill.at, fill.queued, fill.cause);
        if self.stream_lines > 0 {
            self.follow_streams(t, line, missed);
        }
    }

    fn store(&mut self, t: usize, line: u64, words: u32) {
        for _ in 0..words {
            let thread = &mut self.threads[t];
            thread.advance(self.times.access, Cause::Compute);
            while thread.stores.front().is_some_and(|at| *at <= thread.clock) {
                thread.stores.pop_front();
            }
            if thread.stores.len() >= self.store_buffer
                && let Some(first) = thread.stores.pop_front()
            {
                thread.wait(first, 0, Cause::Store);
            }
            let fill = self.request(t, line, false);
            let thread = &mut self.threads[t];
            thread.last_store = thread.last_store.max(fill.at).max(thread.clock);
            thread.stores.push_back(thread.last_store);
        }
        self.own(t, line);
    }

    /// Marks a line of thread `t` as dirty, and removes all other copies.
    fn own(&mut self, t: usize, line: u64) {
        let thread = &mut self.threads[t];
        if thread.l1.state(line) == Some(true) {
            return;
        }
        thread.l1.touch(line, true);
        self.l3.remove(line);
        for (i, peer) in self.threads.iter_mut().enumerate() {
            if i != t && peer.l2.remove(line).is_some() {
                peer.l1.remove(line);
            }
        }
    }

    /// Brings a line into the caches of thread `t`. Returns the fill, with the time at which the
    /// line is there. A request without a free fill buffer waits for one: with the core if
    /// `blocks`, or else in the store buffer.
    fn request(&mut self, t: usize, line: u64, blocks: bool) -> Fill {
        let most = self.fill_buffers;
        let thread = &mut self.threads[t];
        let mut at = thread.clock;
        let here = |at| Fill {
            line,
            at,
            queued: 0,
            cause: Cause::Compute,
        };
        if thread.l1.touch(line, false) {
            let pending = thread.fills.iter().find(|fill| fill.line == line);
            return pending.copied().unwrap_or_else(|| here(at));
        }
        if let Some(first) = thread.full(most) {
            if blocks {
                thread.wait(first.at, first.queued, first.cause);
            }
            at = first.at;
        }
        let mut fill = here(at);
        let mut dirty = false;
        if thread.l2.touch(line, false) {
            (fill.at, fill.cause) = (at + self.times.l2, Cause::Cache);
        } else if self.l3.touch(line, false) {
            // The thread's copy is the newest from now on.
            dirty = self.l3.clean(line) == Some(true);
            (fill.at, fill.cause) = (at + self.times.l3, Cause::Cache);
        } else if let Some(from) = self.take_from_peer(t, line) {
            dirty = from;
            (fill.at, fill.cause) = (at + self.times.peer, Cause::Cache);
        } else {
            let (memory, cause) = if line >= DRAM {
                (&mut self.dram, Cause::Dram)
            } else {
                (&mut self.pm, Cause::PmRead)
            };
            let answer = memory.read(line, at);
            self.threads[t].spent.misses += 1;
            fill = Fill {
                line,
                at: answer.at,
                queued: answer.queued,
                cause,
            };
        }
        self.threads[t].fills.push(fill);
        self.fill_caches(t, line, dirty);
        fill
    }

    /// Copies the line from another core. Returns whether it was dirty; `None` if no other core has
    /// it.
    fn take_from_peer(&mut self, t: usize, line: u64) -> Option<bool> {
        for (i, peer) in self.threads.iter_mut().enumerate() {
            if i == t {
                continue;
            }
            if let Some(dirty) = peer.l2.clean(line) {
                return Some(peer.l1.clean(line) == Some(true) || dirty);
            }
        }
        None
    }

    /// Puts a line into both caches of thread `t`. Displaced lines move one level out.
    fn fill_caches(&mut self, t: usize, line: u64, dirty: bool) {
        let thread = &mut self.threads[t];
        if let Some(Victim { line, dirty }) = thread.l2.insert(line, dirty) {
            let dirty = thread.l1.remove(line) == Some(true) || dirty;
            if let Some(Victim { line, dirty: true }) = self.l3.insert(line, dirty) {
                let memory = if line >= DRAM {
                    &mut self.dram
                } else {
                    &mut self.pm
                };
                memory.write(line, thread.clock);
            }
        }
        if let Some(Victim { line, dirty: true }) = thread.l1.insert(line, false) {
            thread.l2.touch(line, true);
        }
    }

    fn flush(&mut self, t: usize, line: u64) {
        let dirty = self.evict(line, self.flush_keeps_line);
        let thread = &mut self.threads[t];
        thread.spent.flushes += 1;
        thread.advance(self.times.flush, Cause::Compute);
        if dirty {
            self.write_back(t, line);
        }
    }

    /// Cleans a line in all caches, or removes it from them. Returns true if it was dirty.
    fn evict(&mut self, line: u64, keep: bool) -> bool {
        let take = |cache: &mut Cache| {
            let was = if keep {
                cache.clean(line)
            } else {
                cache.remove(line)
            };
            was == Some(true)
        };
        let mut dirty = take(&mut self.l3);
        for thread in &mut self.threads {
            dirty |= take(&mut thread.l1);
            dirty |= take(&mut thread.l2);
        }
        dirty
    }

    /// Sends a line to the device, as soon as one more flush may be outstanding and the stores
    /// before it have taken effect.
    fn write_back(&mut self, t: usize, line: u64) {
        let most = self.flush_buffers;
        let thread = &mut self.threads[t];
        thread.flushes.retain(|(at, _)| *at > thread.clock);
        if thread.flushes.len() >= most
            && let Some(first) = (0..most).min_by_key(|i| thread.flushes[*i])
        {
            let (at, queued) = thread.flushes.swap_remove(first);
            thread.wait(at, queued, Cause::Flush);
        }
        let at = thread.clock.max(thread.last_store);
        let answer = self.pm.write(line, at);
        thread.flushes.push((answer.at, answer.queued));
    }

    /// Follows the streams of thread `t`'s loads and prefetches ahead of them. Misses start and
    /// train a stream. After training, hits on prefetched lines keep it going.
    fn follow_streams(&mut self, t: usize, line: u64, missed: bool) {
        let streams = &mut self.threads[t].streams;
        let known = streams.iter().position(|s| s.followed_by(line).is_some());
        let stream = match known.and_then(|at| streams[at].followed_by(line)) {
            Some(stream) if missed || stream.run > STREAM_TRAINED => stream,
            None if missed => Stream {
                last: line,
                run: 1,
                descends: false,
            },
            _ => return,
        };
        streams.copy_within(known.unwrap_or(0) + 1.., known.unwrap_or(0));
        streams[STREAMS - 1] = stream;
        if stream.run < STREAM_TRAINED {
            return;
        }
        let page = line / PAGE_LINES * PAGE_LINES;
        for distance in 1..=self.stream_lines {
            let ahead = if stream.descends {
                line.checked_sub(distance)
            } else {
                Some(line + distance)
            };
            let Some(ahead) = ahead.filter(|line| (page..page + PAGE_LINES).contains(line)) else {
                return;
            };
            let thread = &mut self.threads[t];
            let clock = thread.clock;
            thread.fills.retain(|fill| fill.at > clock);
            if thread.fills.len() >= self.fill_buffers {
                return;
            }
            if thread.l1.state(ahead).is_none() {
                self.request(t, ahead, true);
            }
        }
    }
}

#[cfg(test)]
mod tests;
