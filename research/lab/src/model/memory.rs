//! A memory device in simulated time: modules with read buffers, write-combining buffers and media
//! that serve one request at a time.
//!
//! ```text
//!  64-byte line -> module (by address) -> interface -+-> write-combining buffers -> queue --+
//!                                                    |    (also answer reads)               v
//!                                                    +-> read buffers / open rows <------ media
//! ```
//!
//! A request carries its time of arrival. The answer is the time at which its line is read or
//! durable, and the part of it that was a wait for a busy part. Requests are served in the order of
//! the calls, which the caller keeps close to the order of time. A request for a later time leaves
//! the time before it free for others.
//!
//! * *Read.* A line in a combining or read buffer costs the buffered latency, any other line the
//!   full latency and a read of its media line. If a read buffer holds many media lines (a DRAM
//!   row), the one that opens it is transferred at the random rate and the others at the sequential
//!   rate.
//! * *Write.* A line joins its media line in the combining buffers. If its media line has no buffer
//!   and none is free, one is written to the media: the one complete for longest, or else the one
//!   not written to for longest. If too many such writes wait, the module accepts the line only
//!   when the first is done.
//!
//! All times are integer picoseconds.

use super::Device;
use super::device::LINE;
use std::collections::VecDeque;

/// Picoseconds.
pub(crate) type Time = u64;

/// Converts the nanoseconds of a description to picoseconds.
pub(crate) fn time(ns: f64) -> Time {
    (ns * 1e3).round() as Time
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub at: Time,
    /// The part of the time that was a wait for a busy part.
    pub queued: Time,
}

/// Counts of transferred lines and media bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub lines_read: u64,
    pub lines_written: u64,
    pub media_read: u64,
    pub media_written: u64,
}

/// A part of a module that serves one request at a time.
///
/// A request may be for a later time, such as a flush behind a store that waits for its line. Other
/// requests fit into the gap before it.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    /// Time from which it is free.
    free: Time,
    /// The last gap before that time, in which it is free as well.
    gap: (Time, Time),
}

impl Busy {
    /// Takes it for `service` from `at` on, or as soon as it is free. Returns the start.
    fn take(&mut self, at: Time, service: Time) -> Time {
        let early = at.max(self.gap.0);
        if early + service <= self.gap.1 {
            self.gap.0 = early + service;
            return early;
        }
        let start = at.max(self.free);
        if start > self.free {
            self.gap = (self.free, start);
        }
        self.free = start + service;
        start
    }
}

/// A media line with 64-byte lines that wait to be written.
#[derive(Clone, Copy, Debug)]
struct Combining {
    media_line: u64,
    lines: u64,
}

#[derive(Clone, Debug, Default)]
struct Module {
    interface: Busy,
    media: Busy,
    /// Read buffers, most recently used last: the content, and the time from which it is there.
    buffers: VecDeque<(u64, Time)>,
    /// Combining buffers, most recently written last.
    combining: VecDeque<Combining>,
    /// Times at which the waiting media writes will be done.
    queue: VecDeque<Time>,
}

/// A device. See the module's head.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    modules: Vec<Module>,
    interleave_lines: u64,
    media_lines: u64,
    buffer_lines: u64,
    latency: Time,
    buffered_latency: Time,
    buffers: usize,
    transfer: Time,
    media_read: Time,
    media_read_random: Time,
    accept: Time,
    combining: usize,
    queue: usize,
    media_write: Time,
    reads_before_partial: bool,
    traffic: Traffic,
}

impl Memory {
    pub(crate) fn new(device: &Device) -> Self {
        let (g, r, w) = (&device.is.geometry, &device.is.read, &device.is.write);
        // A module has its share of the rate.
        let service = |bytes: u64, gbps: f64| time(bytes as f64 * g.modules as f64 / gbps);
        Self {
            modules: vec![Module::default(); g.modules as usize],
            interleave_lines: g.interleave_bytes / LINE,
            media_lines: g.media_line_bytes / LINE,
            buffer_lines: r.buffer_bytes / LINE,
            latency: time(r.latency_ns),
            buffered_latency: time(r.buffered_latency_ns),
            buffers: r.buffers as usize,
            transfer: service(LINE, r.interface_gbps),
            media_read: service(g.media_line_bytes, r.media_gbps),
            media_read_random: service(g.media_line_bytes, r.random_media_gbps),
            accept: time(w.accept_ns),
            combining: w.combining_buffers as usize,
            queue: w.queue as usize,
            media_write: service(g.media_line_bytes, w.media_gbps),
            reads_before_partial: w.reads_before_partial,
            traffic: Traffic::default(),
        }
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Resets the clock and the counters. Buffers keep their content.
    pub(crate) fn restart(&mut self) {
        self.traffic = Traffic::default();
        for module in &mut self.modules {
            module.interface = Busy::default();
            module.media = Busy::default();
            module.queue.clear();
            for (_, ready) in &mut module.buffers {
                *ready = 0;
            }
        }
    }

    fn module(&self, line: u64) -> usize {
        (line / self.interleave_lines % self.modules.len() as u64) as usize
    }

    /// Returns the bit of a line in its media line, which has at most 64 lines.
    fn bit(&self, line: u64) -> u64 {
        1 << (line % self.media_lines)
    }

    /// Reads a 64-byte line at time `at`.
    pub(crate) fn read(&mut self, line: u64, at: Time) -> Answer {
        self.traffic.lines_read += 1;
        let (bit, media_line) = (self.bit(line), line / self.media_lines);
        let index = self.module(line);
        let module = &mut self.modules[index];
        let start = module.interface.take(at, self.transfer);
        let queued = start - at;
        let waits = |c: &Combining| c.media_line == media_line && c.lines & bit != 0;
        if module.combining.iter().any(waits) {
            return Answer {
                at: start + self.buffered_latency,
                queued,
            };
        }
        let tag = line / self.buffer_lines;
        let open = module.buffers.iter().position(|(held, _)| *held == tag);
        let mut ready = 0;
        let mut service = self.media_read_random;
        if let Some(open) = open.and_then(|open| module.buffers.remove(open)) {
            if self.buffer_lines == self.media_lines {
                // The line is in the buffer, or on its way to it.
                module.buffers.push_back(open);
                return Answer {
                    at: open.1.max(start + self.buffered_latency),
                    queued,
                };
            }
            (service, ready) = (self.media_read, open.1);
        } else if module.buffers.len() == self.buffers {
            module.buffers.pop_front();
        }
        self.traffic.media_read += self.media_lines * LINE;
        let access = module.media.take(start, service);
        let answer = if open.is_some() {
            // While a row is being opened, the next line of it waits too.
            ready.max(access + self.buffered_latency)
        } else {
            access + self.latency
        };
        module
            .buffers
            .push_back((tag, if open.is_some() { ready } else { answer }));
        Answer {
            at: answer,
            queued: access - at,
        }
    }

    /// Writes a 64-byte line at time `at`.
    pub(crate) fn write(&mut self, line: u64, at: Time) -> Answer {
        self.traffic.lines_written += 1;
        let (bit, media_line) = (self.bit(line), line / self.media_lines);
        let whole = if self.media_lines == 64 {
            u64::MAX
        } else {
            (1 << self.media_lines) - 1
        };
        let index = self.module(line);
        let module = &mut self.modules[index];
        let mut start = module.interface.take(at, self.transfer);
        let mut lines = bit;
        let held = module
            .combining
            .iter()
            .position(|c| c.media_line == media_line)
            .and_then(|held| module.combining.remove(held));
        if let Some(held) = held {
            lines |= held.lines;
        } else if module.combining.len() == self.combining {
            let complete = module.combining.iter().position(|c| c.lines == whole);
            if let Some(victim) = module.combining.remove(complete.unwrap_or(0)) {
                while module.queue.front().is_some_and(|done| *done <= start) {
                    module.queue.pop_front();
                }
                if module.queue.len() >= self.queue
                    && let Some(done) = module.queue.pop_front()
                {
                    start = done;
                }
                let access = module.media.take(start, self.media_write);
                module.queue.push_back(access + self.media_write);
                self.traffic.media_written += self.media_lines * LINE;
                if victim.lines != whole && self.reads_before_partial {
                    // The write rate includes the time of this read, since it was measured with it.
                    self.traffic.media_read += self.media_lines * LINE;
                }
            }
        }
        module.combining.push_back(Combining { media_line, lines });
        Answer {
            at: start + self.accept,
            queued: start - at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Random;

    fn memory(name: &str) -> Memory {
        Memory::new(&Device::load(name).unwrap())
    }

    #[test]
    fn a_media_line_is_read_once_for_its_four_lines() {
        let mut optane = memory("optane");
        let first = optane.read(0, 0);
        assert_eq!((first.at, first.queued), (305_000, 0));
        // A neighbour that is requested meanwhile arrives together with the line.
        assert_eq!(optane.read(1, 10_000).at, 305_000);
        let late = optane.read(3, 1_000_000);
        assert_eq!(late.at, 1_000_000 + 123_700);
        let traffic = optane.traffic();
        assert_eq!((traffic.lines_read, traffic.media_read), (3, 256));
        assert_eq!(
            optane.read(4, 2_000_000).at,
            2_305_000,
            "the next media line"
        );
    }

    #[test]
    fn a_read_buffer_is_reused_when_others_are_newer() {
        let mut optane = memory("optane");
        // All lines are on module 0: 16 media lines of a 4 KiB grain, every sixth grain.
        let line = |i: u64| (i / 16 * 6 * 16 + i % 16) * 4;
        for i in 0..65 {
            optane.read(line(i), i * 1_000_000);
        }
        let reads = |o: &Memory| o.traffic().media_read / 256;
        assert_eq!(reads(&optane), 65);
        optane.read(line(1), 100_000_000);
        assert_eq!(reads(&optane), 65, "the second of 65 is still here");
        optane.read(line(0), 101_000_000);
        assert_eq!(reads(&optane), 66, "the first is not");
    }

    #[test]
    fn a_busy_media_makes_reads_wait_and_says_so() {
        let mut optane = memory("optane");
        let mut last = Answer { at: 0, queued: 0 };
        // Each request reads one media line of one module, all at the same time.
        for i in 0..16 {
            last = optane.read(i * 4, 0);
        }
        let service = time(256.0 * 6.0 / 41.2);
        assert_eq!(last.queued, 15 * service);
        assert_eq!(last.at, 305_000 + 15 * service);
    }

    #[test]
    fn a_request_for_a_later_time_leaves_the_time_before_to_others() {
        let mut busy = Busy::default();
        assert_eq!(busy.take(0, 10), 0);
        assert_eq!(busy.take(100, 10), 100, "a gap from 10 to 100");
        assert_eq!(busy.take(5, 10), 10, "behind the first");
        assert_eq!(busy.take(50, 10), 50);
        assert_eq!(
            busy.take(95, 10),
            110,
            "what is left of the gap is too short"
        );
        assert_eq!(busy.take(105, 10), 120);
        let mut optane = memory("optane");
        let flush = optane.write(0, 1_000_000);
        assert_eq!((flush.at, flush.queued), (1_061_000, 0));
        assert_eq!(
            optane.read(4, 0).queued,
            0,
            "a read before it, of its module"
        );
    }

    #[test]
    fn random_lines_are_amplified_and_sequential_ones_are_not() {
        let lines = 200_000_u64;
        let amplification = |name: &str, sequential: bool| {
            let mut memory = memory(name);
            let mut random = Random::new(7);
            let mut at = 0;
            for i in 0..lines {
                let line = if sequential { i } else { random.below(1 << 24) };
                at = memory.write(line, at).at;
            }
            let traffic = memory.traffic();
            assert_eq!(traffic.lines_written, lines);
            traffic.media_written as f64 / (lines * 64) as f64
        };
        assert!((3.9..=4.0).contains(&amplification("optane", false)));
        assert!((0.98..=1.0).contains(&amplification("optane", true)));
        assert!((0.98..=1.0).contains(&amplification("dram", false)));
        assert!((0.98..=1.0).contains(&amplification("cxl", false)));
    }

    #[test]
    fn a_line_waiting_to_be_written_is_read_from_its_buffer_and_joined_by_neighbours() {
        let mut optane = memory("optane");
        for line in 0..4 {
            assert_eq!(optane.write(line, 0).queued / 1_000, line * 3);
        }
        assert_eq!(optane.read(2, 1_000_000).at, 1_000_000 + 123_700);
        assert_eq!(optane.traffic().media_read, 0);
        assert_eq!(optane.modules[0].combining.len(), 1);
    }

    #[test]
    fn a_full_queue_holds_writes_back() {
        let mut optane = memory("optane");
        // Scattered lines of one module: once its 64 buffers are full, each line costs a media
        // write, and once 8 of these wait, a line waits for one.
        let mut accepted = 0;
        for i in 0..200_u64 {
            let answer = optane.write(i / 16 * 6 * 64 + i % 16 * 4, 0);
            if i < 64 + 8 {
                assert!(answer.queued < 250_000, "{i}: {answer:?}");
            }
            accepted = answer.at;
        }
        let writes = 200 - 64 - 8;
        let service = time(256.0 * 6.0 / 11.4);
        let expected = writes * service;
        assert!(
            accepted.abs_diff(expected) < 2 * service,
            "{accepted} {expected}"
        );
    }

    #[test]
    fn a_row_of_dram_is_opened_once() {
        let mut dram = memory("dram");
        assert_eq!(dram.read(0, 0).at, 101_000);
        assert_eq!(dram.read(1, 1_000_000).at, 1_000_000 + 80_700);
        assert_eq!(dram.traffic().media_read, 128);
        // Another row of the same module, and then the first again: both are open now.
        assert_eq!(dram.read(6 * 64, 2_000_000).at, 2_101_000);
        assert_eq!(dram.read(2, 3_000_000).at, 3_000_000 + 80_700);
    }
}
