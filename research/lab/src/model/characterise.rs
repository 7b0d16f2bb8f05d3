//! A device's own figures, measured on the model (`gap-table1`).

use super::Device;
use super::drive::drive;
use super::machine::Machine;
use super::trace::Step;
use crate::workload::Random;
use serde::Serialize;
use std::convert::Infallible;

/// Bandwidth at a number of threads, in 10^9 bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BandwidthPoint {
    /// Simulated threads.
    pub threads: usize,
    /// Loads of consecutive lines.
    pub sequential_read_gbps: f64,
    /// Loads of lines anywhere.
    pub random_read_gbps: f64,
    /// Stores and flushes of consecutive lines.
    pub sequential_write_gbps: f64,
    /// Stores and flushes of lines anywhere.
    pub random_write_gbps: f64,
}

/// The figures of a device by streams of loads, stores and flushes: Table 1 of the paper on the gap
/// between DRAM and persistent memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Characteristics {
    /// The device.
    pub device: String,
    /// Dependent loads of consecutive lines, idle device.
    pub sequential_read_ns: f64,
    /// Dependent loads of lines anywhere, idle device.
    pub random_read_ns: f64,
    /// Store to a cached line, flush, fence, idle device.
    pub flush_ns: f64,
    /// By number of threads.
    pub bandwidth: Vec<BandwidthPoint>,
}

impl Characteristics {
    /// Returns the best of each column over all numbers of threads, which a table shows.
    #[must_use]
    pub fn peak(&self) -> BandwidthPoint {
        let best = |column: fn(&BandwidthPoint) -> f64| {
            self.bandwidth.iter().map(column).fold(0.0, f64::max)
        };
        BandwidthPoint {
            threads: self.bandwidth.iter().map(|p| p.threads).max().unwrap_or(0),
            sequential_read_gbps: best(|p| p.sequential_read_gbps),
            random_read_gbps: best(|p| p.random_read_gbps),
            sequential_write_gbps: best(|p| p.sequential_write_gbps),
            random_write_gbps: best(|p| p.random_write_gbps),
        }
    }
}

/// Lines of a bandwidth stream, of all threads together: 6 MB, so that the part that the device's
/// buffers absorb is below a fiftieth.
const LINES: u64 = 96 << 10;
/// Loads and flushes that a latency is the mean of.
const SAMPLES: u64 = 20_000;
/// Lines that random streams choose among: 4 GiB.
const RANDOM_LINES: u64 = 1 << 26;
/// Numbers of threads at which bandwidth is measured.
const THREADS: [usize; 6] = [1, 2, 4, 8, 16, 28];

/// Returns the mean time, in nanoseconds, of a repetition of some steps by one thread. `steps` gets
/// the number of the repetition.
pub(crate) fn repeated(
    device: &Device,
    times: u64,
    mut steps: impl FnMut(u64, &mut Vec<Step>),
) -> f64 {
    let mut machine = Machine::new(device, device, 1);
    let mut done = 0;
    let driven = drive::<Infallible>(&mut machine, 1, |_, into| {
        if done == times {
            return Ok(false);
        }
        steps(done, into);
        done += 1;
        Ok(true)
    });
    match driven {
        Ok(()) => machine.clock(0) as f64 / 1e3 / times as f64,
    }
}

/// Measures `device` with streams of loads, stores and flushes on the model. No figure is read back
/// from the description. The stream prefetcher is off, as in tools that measure latency.
#[must_use]
pub fn characterise(device: &Device) -> Characteristics {
    let mut device = device.clone();
    device.is.core.stream_lines = 0;
    let device = &device;
    let mut random = Random::new(1);
    Characteristics {
        device: device.name().into(),
        sequential_read_ns: read_latency(device, |i| i),
        random_read_ns: read_latency(device, |_| random.below(RANDOM_LINES)),
        flush_ns: flush_latency(device),
        bandwidth: THREADS
            .iter()
            .map(|&threads| BandwidthPoint {
                threads,
                sequential_read_gbps: bandwidth(device, threads, Stream::Loads, false),
                random_read_gbps: bandwidth(device, threads, Stream::Loads, true),
                sequential_write_gbps: bandwidth(device, threads, Stream::Writes, false),
                random_write_gbps: bandwidth(device, threads, Stream::Writes, true),
            })
            .collect(),
    }
}

fn machine(device: &Device, threads: usize) -> Machine {
    // Streams stay on the device, so the memory beside it does not matter.
    Machine::new(device, device, threads)
}

/// Returns the mean time of loads that wait for each other.
fn read_latency(device: &Device, mut line: impl FnMut(u64) -> u64) -> f64 {
    let mut machine = machine(device, 1);
    for i in 0..SAMPLES {
        let load = Step::Load {
            line: line(i),
            words: 1,
        };
        machine.step(0, load);
    }
    machine.clock(0) as f64 / 1e3 / SAMPLES as f64
}

/// Returns the mean time of a store to a cached line, its flush, and a fence.
fn flush_latency(device: &Device) -> f64 {
    let mut machine = machine(device, 1);
    let mut sum = 0;
    for line in 0..SAMPLES {
        machine.step(0, Step::Load { line, words: 1 });
        let before = machine.clock(0);
        machine.step(0, Step::Store { line, words: 1 });
        machine.step(0, Step::Flush { line });
        machine.step(0, Step::Fence);
        sum += machine.clock(0) - before;
    }
    sum as f64 / 1e3 / SAMPLES as f64
}

/// The stream of a bandwidth measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    /// Loads that do not wait for each other: each is prefetched as far ahead as the fill buffers
    /// allow.
    Loads,
    /// Writes of whole lines past the caches, like non-temporal stores, with a fence at the end.
    Writes,
}

/// Returns the bytes per nanosecond of `threads` simultaneous streams, each over lines of its own.
fn bandwidth(device: &Device, threads: usize, stream: Stream, random: bool) -> f64 {
    let mut machine = machine(device, threads);
    let each = LINES / threads as u64;
    let ahead = device.core().line_fill_buffers;
    // A thread's lines, by number. Sequential regions start at different modules.
    let line = |t: usize, i: u64| {
        let region = t as u64 * (each.next_multiple_of(64) + 64);
        if random {
            Random::new(region + i).below(RANDOM_LINES)
        } else {
            region + i
        }
    };
    let mut done = vec![0_u64; threads];
    drive(&mut machine, threads, |t, steps| {
        let i = done[t];
        done[t] += 1;
        match stream {
            Stream::Loads if i < each => {
                if i == 0 {
                    steps.extend((0..ahead).map(|i| Step::Prefetch { line: line(t, i) }));
                }
                let (line, next) = (line(t, i), line(t, i + ahead));
                steps.push(Step::Load { line, words: 1 });
                if i + ahead < each {
                    steps.push(Step::Prefetch { line: next });
                }
            }
            Stream::Writes if i < each => steps.push(Step::NonTemporal { line: line(t, i) }),
            Stream::Writes if i == each => steps.push(Step::Fence),
            _ => return Ok::<_, std::convert::Infallible>(false),
        }
        Ok(true)
    })
    .unwrap_or_else(|never| match never {});
    let longest = (0..threads).map(|t| machine.clock(t)).max().unwrap_or(0);
    (each * threads as u64 * 64) as f64 * 1e3 / longest as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table 1 of the paper, per device: GB/s sequential read, random read, sequential write,
    /// random write; nanoseconds sequential read, random read, clwb. The model is within 5 %.
    #[test]
    fn the_table_of_the_paper_is_met() {
        for (name, paper) in [
            ("dram", [105.9, 70.4, 52.3, 52.0, 81.0, 101.0, 57.0]),
            ("optane", [38.9, 10.3, 11.5, 2.8, 169.0, 305.0, 62.0]),
        ] {
            let measured = characterise(&Device::load(name).unwrap());
            let peak = measured.peak();
            let model = [
                peak.sequential_read_gbps,
                peak.random_read_gbps,
                peak.sequential_write_gbps,
                peak.random_write_gbps,
                measured.sequential_read_ns,
                measured.random_read_ns,
                measured.flush_ns,
            ];
            for (paper, model) in paper.into_iter().zip(model) {
                assert!(
                    (0.95..=1.05).contains(&(model / paper)),
                    "{name}: {model} for {paper}"
                );
            }
        }
    }

    #[test]
    fn bandwidth_grows_with_threads_until_the_device_is_busy() {
        let optane = characterise(&Device::load("optane").unwrap()).bandwidth;
        let at = |threads| optane.iter().find(|p| p.threads == threads).unwrap();
        let (one, two, sixteen, most) = (at(1), at(2), at(16), at(28));
        assert!(two.random_read_gbps > 1.8 * one.random_read_gbps);
        assert!(most.random_read_gbps < 1.1 * sixteen.random_read_gbps);
        // Few threads are enough to keep writes busy.
        assert!(most.random_write_gbps < 1.2 * one.random_write_gbps);
    }

    #[test]
    fn figures_are_measured_and_not_read_back() {
        // With half the fill buffers one thread reads half as much, which is not in the
        // description.
        let optane = Device::load("optane").unwrap();
        let one = |device: &Device| bandwidth(device, 1, Stream::Loads, true);
        let half = optane.with_core(|core| core.line_fill_buffers = 6).unwrap();
        let ratio = one(&optane) / one(&half);
        assert!((1.9..2.1).contains(&ratio), "{ratio}");
    }
}
