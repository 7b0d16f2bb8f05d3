//! The limits of the hardware: the cost of the few operations that every design is made of.
//!
//! | figure | measured as |
//! | --- | --- |
//! | `flush_fence_ns` | store to a cached line, flush it, fence; a different line each time |
//! | `flush_extra_line_ns` | what three more stored and flushed lines add before that fence, each |
//! | `fence_ns` | store to a cached line, fence, nothing to flush |
//! | `dram_miss_ns` | one step of a pointer chase through 512 MiB on huge pages where granted |
//! | `memcpy_gbps` | bytes copied from one 64 MiB buffer to another, counted once |
//! | `fdatasync_us` | overwriting 4 KiB of preallocated file and `fdatasync` |
//!
//! Each figure is the median of several rounds, so an interrupted round does not change it.

use crate::LabError;
use crate::workload::Random;
use bristlecone_pmem::media::cpu::{self, FlushKind};
use bristlecone_pmem::media::{Access, Dram, LINE, Media, MediaOptions};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of the pointer chase: more than any cache holds.
const CHASE_BYTES: usize = 512 << 20;
const COPY_BYTES: usize = 64 << 20;
/// Lines that the flush loops use in turn: 64 KiB, which a near cache holds. The loops prefetch
/// them in case a flush evicts them.
const FLUSH_LINES: usize = 1024;
const PREFETCH_AHEAD: usize = 16;
const ROUNDS: usize = 31;
/// Time limit of the disk's measurement.
const DISK_TIME: Duration = Duration::from_secs(2);

/// The limits of the hardware. Field names are fixed, since scripts read them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Store, flush and fence of one line.
    pub flush_fence_ns: f64,
    /// Store and flush of one more line before the same fence.
    pub flush_extra_line_ns: f64,
    /// A fence with nothing to flush.
    pub fence_ns: f64,
    /// A load that misses every cache and depends on the load before.
    pub dram_miss_ns: f64,
    /// Copying, in 10^9 bytes a second.
    pub memcpy_gbps: f64,
    /// A durable overwrite of 4 KiB.
    pub fdatasync_us: f64,
    /// The processor's name.
    pub cpu: String,
    /// The flush instruction in use.
    pub flush_instruction: String,
}

/// Measures all limits, which takes a few seconds. `dir` is the directory whose `fdatasync` is
/// measured, with a file that is removed again.
///
/// # Errors
/// [`LabError`] if `dir` cannot hold a file, or memory does not suffice.
pub fn measure(dir: &Path) -> Result<Limits, LabError> {
    let (flush_fence_ns, flush_extra_line_ns) = flush_fence()?;
    Ok(Limits {
        flush_fence_ns,
        flush_extra_line_ns,
        fence_ns: fence()?,
        dram_miss_ns: dram_miss(CHASE_BYTES)?,
        memcpy_gbps: memcpy_gbps(COPY_BYTES)?,
        fdatasync_us: fdatasync_us(dir)?,
        cpu: cpu_name(),
        flush_instruction: flush_kind().name().to_owned(),
    })
}

/// Measures the cost of persisting one line, for reports that relate an operation to it.
///
/// # Errors
/// [`LabError`] if memory does not suffice.
pub fn flush_fence_ns() -> Result<f64, LabError> {
    flush_fence().map(|(one, _)| one)
}

fn flush_kind() -> FlushKind {
    if cpu::caches_are_persistent() {
        return FlushKind::None;
    }
    cpu::detect().unwrap_or(FlushKind::None)
}

/// Writes so much memory, on huge pages if the system grants them, and gives it back. A virtual
/// machine may have lent free memory to its host, and whoever needs it first pays for its return,
/// several times what the same allocation costs otherwise.
///
/// # Errors
/// [`LabError`]: there is not so much memory.
pub(crate) fn bring_in_memory(bytes: usize) -> Result<(), LabError> {
    const PAGE_WORDS: usize = 4096 / size_of::<u64>();
    let mut memory = Memory::new(bytes)?;
    let words = memory.words(usize::MAX);
    words
        .iter_mut()
        .step_by(PAGE_WORDS)
        .for_each(|word| *word = 1);
    std::hint::black_box(words);
    Ok(())
}

/// Zeroed memory, on huge pages if the system grants them.
struct Memory(Dram);

impl Memory {
    fn new(bytes: usize) -> Result<Self, LabError> {
        let options = MediaOptions {
            access: Access::Create,
            reserve: bytes as u64,
            ..MediaOptions::default()
        };
        Ok(Self(Dram::open(
            Path::new("memory for bench limits"),
            bytes as u64,
            &options,
        )?))
    }

    /// Returns the first `words` words, or all if there are fewer.
    fn words(&mut self, words: usize) -> &mut [u64] {
        let words = words.min(self.0.len() as usize / size_of::<u64>());
        // SAFETY: 1. `base` is page-aligned and `len` bytes from it are mapped and zeroed, so there
        // are `words` initialised words. 2. `self` owns the medium and hands out no other pointer
        // into it, and the slice borrows `self` mutably.
        unsafe { std::slice::from_raw_parts_mut(self.0.base().cast(), words) }
    }
}

pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    match figures.len() {
        0 => 0.0,
        n if n % 2 == 1 => figures[n / 2],
        n => f64::midpoint(figures[n / 2 - 1], figures[n / 2]),
    }
}

fn ns_each(elapsed: Duration, times: usize) -> f64 {
    elapsed.as_nanos() as f64 / times as f64
}

const LINE_WORDS: usize = LINE / size_of::<u64>();

/// Measures the cost of one line under a fence, and of each of three further lines.
fn flush_fence() -> Result<(f64, f64), LabError> {
    let mut memory = Memory::new(FLUSH_LINES * LINE)?;
    let lines = memory.words(FLUSH_LINES * LINE_WORDS);
    let kind = flush_kind();
    let mut round = |lines_per_fence: usize, stamp: u64| {
        let started = Instant::now();
        for group in 0..FLUSH_LINES / lines_per_fence {
            for line in group * lines_per_fence..(group + 1) * lines_per_fence {
                let ahead = (line + PREFETCH_AHEAD) % FLUSH_LINES;
                cpu::prefetch(lines[ahead * LINE_WORDS..].as_ptr().cast(), LINE);
                lines[line * LINE_WORDS] = stamp;
                // PERSIST: the measured instructions; nothing depends on the durability of these
                // lines.
                cpu::flush(kind, lines[line * LINE_WORDS..].as_ptr().cast(), LINE);
            }
            cpu::persist_fence();
        }
        ns_each(started.elapsed(), FLUSH_LINES / lines_per_fence)
    };
    let (mut one, mut four) = (Vec::new(), Vec::new());
    for stamp in 0..ROUNDS as u64 {
        one.push(round(1, stamp));
        four.push(round(4, stamp));
    }
    let (one, four) = (median(one), median(four));
    Ok((one, ((four - one) / 3.0).max(0.0)))
}

fn fence() -> Result<f64, LabError> {
    let mut memory = Memory::new(4096)?;
    let words = memory.words(LINE_WORDS);
    let times = 4096;
    let rounds = (0..ROUNDS).map(|_| {
        let started = Instant::now();
        for stamp in 0..times {
            words[0] = black_box(stamp as u64);
            // PERSIST: the measured instructions; nothing depends on the durability of these lines.
            cpu::persist_fence();
        }
        ns_each(started.elapsed(), times)
    });
    Ok(median(rounds.collect()))
}

/// Measures one step of a pointer chase through `bytes` (a power of two) of lines, linked into one
/// random cycle.
fn dram_miss(bytes: usize) -> Result<f64, LabError> {
    let mut memory = Memory::new(bytes)?;
    let words = memory.words(bytes / size_of::<u64>());
    link_in_one_cycle(words);
    let steps = 50_000;
    let mut at = 0_usize;
    let rounds = (0..9).map(|_| {
        // Each round continues where the last one stopped, so that no line is visited twice.
        let started = Instant::now();
        for _ in 0..steps {
            at = words[at] as usize;
        }
        black_box(at);
        ns_each(started.elapsed(), steps)
    });
    Ok(median(rounds.collect()))
}

/// Stores in the first word of each line the index of another line, so that all lines form one
/// cycle (Sattolo's algorithm).
fn link_in_one_cycle(words: &mut [u64]) {
    let lines = words.len() / LINE_WORDS;
    for line in 0..lines {
        words[line * LINE_WORDS] = (line * LINE_WORDS) as u64;
    }
    let mut random = Random::new(1);
    for line in (1..lines).rev() {
        let other = random.below(line as u64) as usize;
        words.swap(line * LINE_WORDS, other * LINE_WORDS);
    }
}

fn memcpy_gbps(bytes: usize) -> Result<f64, LabError> {
    let (mut from, mut to) = (Memory::new(bytes)?, Memory::new(bytes)?);
    let words = bytes / size_of::<u64>();
    let (from, to) = (from.words(words), to.words(words));
    from.fill(1);
    let rounds = (0..9).map(|_| {
        let started = Instant::now();
        to.copy_from_slice(black_box(from));
        black_box(&mut *to);
        bytes as f64 / started.elapsed().as_nanos() as f64
    });
    Ok(median(rounds.collect()))
}

fn fdatasync_us(dir: &Path) -> Result<f64, LabError> {
    const BLOCK: usize = 4096;
    const BLOCKS: u64 = 256;
    let fail = |doing| move |e: std::io::Error| LabError::io(dir, doing, e);
    let file: File = tempfile::tempfile_in(dir).map_err(fail("making a file to sync"))?;
    // The file is written and not only allocated, since the first write to an unwritten extent
    // changes metadata too.
    let zeros = vec![0; BLOCK * BLOCKS as usize];
    file.write_all_at(&zeros, 0).map_err(fail("writing"))?;
    file.sync_all().map_err(fail("syncing"))?;
    let began = Instant::now();
    let mut rounds = Vec::new();
    let mut block = [0_u8; BLOCK];
    for round in 0..BLOCKS {
        block.fill(round as u8);
        let started = Instant::now();
        file.write_all_at(&block, round * 97 % BLOCKS * BLOCK as u64)
            .map_err(fail("writing"))?;
        file.sync_data().map_err(fail("syncing"))?;
        rounds.push(started.elapsed().as_nanos() as f64 / 1e3);
        if began.elapsed() > DISK_TIME {
            break;
        }
    }
    Ok(median(rounds))
}

/// Returns the processor's name from the kernel, or else its architecture.
pub(crate) fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = |field: &str| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .find_map(|(name, value)| {
                (name.trim() == field && !value.trim().is_empty()).then(|| value.trim().to_owned())
            })
    };
    named("model name").unwrap_or_else(|| {
        let part = named("CPU part")
            .map(|part| format!(" (part {part})"))
            .unwrap_or_default();
        format!("{}{part}", std::env::consts::ARCH)
    })
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "processor                  {}", self.cpu)?;
        writeln!(f, "flush instruction          {}", self.flush_instruction)?;
        writeln!(
            f,
            "flush + fence, one line    {:>9.1} ns",
            self.flush_fence_ns
        )?;
        writeln!(
            f,
            "  each further line        {:>9.1} ns",
            self.flush_extra_line_ns
        )?;
        writeln!(f, "fence alone                {:>9.1} ns", self.fence_ns)?;
        writeln!(
            f,
            "dependent DRAM miss        {:>9.1} ns",
            self.dram_miss_ns
        )?;
        writeln!(
            f,
            "memcpy                     {:>9.1} GB/s",
            self.memcpy_gbps
        )?;
        write!(
            f,
            "4 KiB write + fdatasync    {:>9.1} us",
            self.fdatasync_us
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_measured() {
        let (one, extra) = flush_fence().unwrap();
        assert!(one > 0.5 && one < 1e6, "{one}");
        assert!((0.0..1e6).contains(&extra), "{extra}");
        let fence = fence().unwrap();
        assert!(fence > 0.1 && fence < 1e6, "{fence}");
        let miss = dram_miss(64 << 20).unwrap();
        assert!(miss > 0.5 && miss < 1e6, "{miss}");
        assert!(memcpy_gbps(8 << 20).unwrap() > 0.01);
        assert!(fdatasync_us(&std::env::temp_dir()).unwrap() > 0.0);
        assert!(!cpu_name().is_empty());
    }

    #[test]
    fn the_chase_visits_every_line_once() {
        let mut words = vec![0; 512 * LINE_WORDS];
        link_in_one_cycle(&mut words);
        let mut seen = vec![false; 512];
        let mut at = 0;
        for _ in 0..512 {
            assert_eq!(at % LINE_WORDS, 0);
            assert!(
                !std::mem::replace(&mut seen[at / LINE_WORDS], true),
                "line {at} twice"
            );
            at = words[at] as usize;
        }
        assert_eq!(at, 0, "after all lines the cycle closes");
    }

    #[test]
    fn json_has_exactly_the_fields_that_scripts_rely_on() {
        let limits = Limits {
            flush_fence_ns: 1.0,
            flush_extra_line_ns: 2.0,
            fence_ns: 3.0,
            dram_miss_ns: 4.0,
            memcpy_gbps: 5.0,
            fdatasync_us: 6.0,
            cpu: "c".into(),
            flush_instruction: "clwb".into(),
        };
        let json = serde_json::to_value(&limits).unwrap();
        let mut names: Vec<_> = json
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        names.sort_unstable();
        let mut expected = [
            "flush_fence_ns",
            "flush_extra_line_ns",
            "fence_ns",
            "dram_miss_ns",
            "memcpy_gbps",
            "fdatasync_us",
            "cpu",
            "flush_instruction",
        ];
        expected.sort_unstable();
        assert_eq!(names, expected);
        assert!(limits.to_string().contains("clwb"));
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let message = fdatasync_us(Path::new("/no/such/dir"))
            .unwrap_err()
            .to_string();
        assert!(message.contains("/no/such/dir"), "{message}");
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
