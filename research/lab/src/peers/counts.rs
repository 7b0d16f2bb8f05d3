//! What an engine takes beside time: memory, space on the disk, bytes written.
//!
//! All engines of a comparison are open in one process, whose memory and writes nobody can divide
//! among them. So the counts are taken in a process of their own for each engine, which runs the
//! same workloads once more. Its rates do not count.
//!
//! | count | is |
//! | --- | --- |
//! | resident | growth of the resident memory (`VmRSS`) since before the engine was opened. Pages of mapped files are in it: whole for the engines that map their files, not at all for those that read them into a cache of their own |
//! | anonymous | the part of it that is no file's (`RssAnon`) |
//! | files | blocks that the file system has allocated to the engine's files, while it is open |
//! | written | sectors that the block device of the files has written, from one `syncfs` before the workload to one after it. What the file system writes for the engine, its journal for one, is in it, and so is what other processes write to the device meanwhile. Compactions that the engine puts off until after the workload are not. There is none on tmpfs |
//!
//! `write_bytes` in `/proc/self/io` would be the process's own, but counts each page that is made
//! dirty with the whole folio around it: where a file system has large ones, as ext4 does since
//! Linux 6.16, a synced write of 4 KiB counts as up to 2 MiB.

use super::drive::{Driver, Tally};
use super::values::Values;
use super::workload::{Plan, Workload};
use super::{Params, engine};
use crate::LabError;
use rustix::fs::{major, minor, syncfs};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The counts after a workload.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// The workload.
    pub workload: Workload,
    /// Operations a second.
    pub ops_per_s: f64,
    /// Most bytes of resident memory during the workload.
    pub peak_bytes: u64,
    /// Bytes of resident memory, those of mapped files included.
    pub resident_bytes: u64,
    /// Bytes of resident memory that are not of files.
    pub anonymous_bytes: u64,
    /// Bytes allocated to the engine's files.
    pub file_bytes: u64,
    /// Entries that are there.
    pub entries: u64,
    /// Bytes that the workload wrote to the disk; `None` where that cannot be told.
    pub written_bytes: Option<u64>,
    /// Bytes of keys and values that the workload put, and of keys that it removed.
    pub user_bytes: u64,
}

impl Counts {
    /// Returns the files' bytes an entry.
    #[must_use]
    pub fn bytes_per_entry(&self) -> Option<f64> {
        (self.entries > 0).then(|| self.file_bytes as f64 / self.entries as f64)
    }

    /// Returns the bytes written for each byte that the workload put or removed.
    #[must_use]
    pub fn written_per_user_byte(&self) -> Option<f64> {
        let written = self.written_bytes?;
        (self.user_bytes > 0).then(|| written as f64 / self.user_bytes as f64)
    }
}

/// Runs the workloads of one engine, in the first directory and with the first size of values and
/// number of threads of `params`. Returns the counts after each of them.
///
/// The process should do nothing else, before or meanwhile.
///
/// # Errors
/// As [`run`](super::run).
pub fn count(params: &Params) -> Result<Vec<Counts>, LabError> {
    params.check()?;
    let (path, engine) = (&params.paths[0], params.engines[0]);
    let medium = engine::medium_of(path)?;
    let scratch = super::scratch(path)?;
    let values = Values::new(params.value_bytes[0]);
    let plan = Plan::new(params.keys, params.threads[0], params.seed);
    let before = Memory::now();
    let most = params.most_bytes(values.bytes());
    let store = engine.open(&engine::Place {
        dir: scratch.path(),
        medium,
        most_bytes: most,
        memory: params.memory,
    })?;
    let driver = Driver {
        store: &*store,
        plan: &plan,
        values: &values,
        slice: params.slice,
    };
    let device = Device::of(scratch.path())?;
    let (mut counts, mut entries) = (Vec::new(), 0);
    for workload in params.needed() {
        driver.prepare(workload)?;
        let before_it = device.written_bytes()?;
        Memory::forget_peak();
        let turn = driver.turn(workload)?;
        let Tally {
            user_bytes,
            inserted,
            removed,
            ..
        } = turn.tally;
        entries = entries + inserted - removed;
        if !params.workloads.contains(&workload) {
            continue;
        }
        let memory = Memory::now();
        let written = before_it.zip(device.written_bytes()?);
        counts.push(Counts {
            workload,
            ops_per_s: turn.ops_per_s,
            peak_bytes: memory.peak.saturating_sub(before.resident),
            resident_bytes: memory.resident.saturating_sub(before.resident),
            anonymous_bytes: memory.anonymous.saturating_sub(before.anonymous),
            file_bytes: allocated(&engine.directory(scratch.path()))?,
            entries,
            written_bytes: written.map(|(before, after)| after.saturating_sub(before)),
            user_bytes,
        });
    }
    Ok(counts)
}

/// Resident memory of this process in bytes.
#[derive(Clone, Copy)]
struct Memory {
    resident: u64,
    anonymous: u64,
    /// Most of what was resident since it was last forgotten.
    peak: u64,
}

impl Memory {
    fn forget_peak() {
        // Without the right to do so the peak is that of the process.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
    }

    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let bytes = |name| number(&status, name).unwrap_or(0) << 10;
        Self {
            resident: bytes("VmRSS:"),
            anonymous: bytes("RssAnon:"),
            peak: bytes("VmHWM:"),
        }
    }
}

/// Returns the first number of the line that begins with `name`.
fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The block device of a directory's file system.
struct Device {
    directory: File,
    /// Its statistics, in `/sys`.
    statistics: PathBuf,
}

impl Device {
    fn of(directory: &Path) -> Result<Self, LabError> {
        let opened = File::open(directory).and_then(|file| Ok((file.metadata()?.dev(), file)));
        let (number, file) = opened.map_err(|e| LabError::io(directory, "opening", e))?;
        let (major, minor) = (major(number), minor(number));
        Ok(Self {
            directory: file,
            statistics: format!("/sys/dev/block/{major}:{minor}/stat").into(),
        })
    }

    /// Returns the bytes that it has written since the system started; `None` if it is none, as
    /// that of tmpfs, or the system does not tell. What is dirty in the file system is written
    /// first.
    fn written_bytes(&self) -> Result<Option<u64>, LabError> {
        let Ok(text) = std::fs::read_to_string(&self.statistics) else {
            return Ok(None);
        };
        syncfs(&self.directory).map_err(|e| LabError::io(&self.statistics, "syncing", e))?;
        let text = std::fs::read_to_string(&self.statistics).unwrap_or(text);
        Ok(sectors_written(&text).map(|sectors| sectors * BLOCK))
    }
}

/// Bytes of a sector, and of a block in a file's metadata.
const BLOCK: u64 = 512;

/// Returns the sectors written of a block device's statistics: the seventh number.
fn sectors_written(statistics: &str) -> Option<u64> {
    statistics.split_whitespace().nth(6)?.parse().ok()
}

/// Returns the bytes allocated to a file, or to all files of a directory.
pub(super) fn allocated(path: &Path) -> Result<u64, LabError> {
    let failed = |e| LabError::io(path, "reading its size", e);
    let meta = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        // An engine's background thread may have removed it meanwhile.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(failed(e)),
    };
    if !meta.is_dir() {
        return Ok(meta.blocks() * BLOCK);
    }
    let mut sum = 0;
    for entry in std::fs::read_dir(path).map_err(failed)? {
        sum += allocated(&entry.map_err(failed)?.path())?;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Random;
    use std::os::unix::fs::FileExt;

    #[test]
    fn allocated_bytes_are_those_of_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("below");
        std::fs::create_dir(&below).unwrap();
        let sparse = std::fs::File::create(below.join("sparse")).unwrap();
        sparse.set_len(64 << 20).unwrap();
        sparse.write_all_at(&[1; 8192], 32 << 20).unwrap();
        std::fs::write(dir.path().join("small"), [1; 100]).unwrap();
        sparse.sync_all().unwrap();
        let bytes = allocated(dir.path()).unwrap();
        assert!((8192..1 << 20).contains(&bytes), "{bytes}");
        assert_eq!(allocated(&dir.path().join("absent")).unwrap(), 0);
    }

    #[test]
    fn memory_of_this_process_is_told() {
        let before = Memory::now();
        let touched = vec![1_u8; 32 << 20];
        let after = Memory::now();
        assert!(std::hint::black_box(&touched).iter().all(|byte| *byte == 1));
        assert!(before.anonymous > 0 && before.resident > before.anonymous);
        let grown = after.anonymous - before.anonymous;
        assert!(grown > 24 << 20, "{grown}");
        assert_eq!(number("VmRSS:\t  12 kB\n", "VmRSS:"), Some(12));
        assert_eq!(number("", "VmRSS:"), None);
    }

    #[test]
    fn a_disk_tells_what_it_has_written() {
        let shown = "  1 2 3 4 5 6 700 8 9 10 11\n";
        assert_eq!(sectors_written(shown), Some(700));
        assert_eq!(sectors_written("1 2"), None);
        let dir = tempfile::tempdir().unwrap();
        let device = Device::of(dir.path()).unwrap();
        // A file system in memory, or one of a container, has no device.
        let Some(before) = device.written_bytes().unwrap() else {
            return;
        };
        // Random, for file systems that compress.
        let mut random = Random::new(9);
        let words = (0..1 << 18).flat_map(|_| random.word().to_le_bytes());
        std::fs::write(dir.path().join("file"), words.collect::<Vec<_>>()).unwrap();
        let after = device.written_bytes().unwrap().unwrap();
        assert!(after - before >= 2 << 20, "{}", after - before);
    }

    #[test]
    fn memory_file_systems_have_no_device() {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
            return;
        };
        let device = Device::of(dir.path()).unwrap();
        assert_eq!(device.written_bytes().unwrap(), None);
    }

    #[test]
    fn shares_of_nothing_are_none() {
        let counts = Counts {
            workload: Workload::Get,
            ops_per_s: 1e6,
            peak_bytes: 4 << 20,
            resident_bytes: 1,
            anonymous_bytes: 1,
            file_bytes: 8192,
            entries: 0,
            written_bytes: Some(0),
            user_bytes: 0,
        };
        assert_eq!(counts.bytes_per_entry(), None);
        assert_eq!(counts.written_per_user_byte(), None);
        let more = Counts {
            entries: 64,
            written_bytes: Some(300),
            user_bytes: 100,
            ..counts
        };
        assert_eq!(more.bytes_per_entry(), Some(128.0));
        assert_eq!(more.written_per_user_byte(), Some(3.0));
        let unknown = Counts {
            written_bytes: None,
            ..more
        };
        assert_eq!(unknown.written_per_user_byte(), None);
    }
}
