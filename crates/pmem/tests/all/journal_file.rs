//! Files as the journal uses them: what is written is there, whatever the system takes at a time,
//! and what the system refuses is an error.

use bristlecone_pmem::OpenError;
use bristlecone_pmem::media::journal::{FileStorage, Site, Storage};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

/// A file that does with each read or write what is said: so many bytes, or an error.
#[derive(Debug, Default)]
struct Told {
    answers: Mutex<VecDeque<Result<usize, ErrorKind>>>,
    calls: Mutex<Vec<(u64, Vec<u8>)>>,
    syncs: Mutex<Vec<Site>>,
}

impl Told {
    fn to(answers: impl IntoIterator<Item = Result<usize, ErrorKind>>) -> Self {
        Self {
            answers: Mutex::new(answers.into_iter().collect()),
            ..Self::default()
        }
    }

    fn answer(&self) -> io::Result<usize> {
        let answer = self.answers.lock().expect("no panics").pop_front();
        Ok(answer.expect("an answer")?)
    }

    fn calls(&self) -> Vec<(u64, Vec<u8>)> {
        self.calls.lock().expect("no panics").clone()
    }
}

impl Storage for Told {
    fn size(&self) -> io::Result<u64> {
        Err(ErrorKind::Unsupported.into())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let n = self.answer()?;
        into[..n].fill(offset as u8);
        Ok(n)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let mut calls = self.calls.lock().expect("no panics");
        calls.push((offset, bytes.to_vec()));
        self.answer()
    }

    fn sync_at(&self, site: Site) -> io::Result<()> {
        self.syncs.lock().expect("no panics").push(site);
        self.answer().map(drop)
    }

    fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn truncate(&self, _: u64) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn another(&self) -> io::Result<Arc<dyn Storage>> {
        Err(ErrorKind::Unsupported.into())
    }

    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }
}

fn kind(result: io::Result<impl Sized>) -> Option<ErrorKind> {
    result.err().map(|e| e.kind())
}

#[test]
fn all_is_written_however_little_is_taken_at_a_time() {
    let file = Told::to([Ok(2), Err(ErrorKind::Interrupted), Ok(1), Ok(3)]);
    file.write_all(10, &[1, 2, 3, 4, 5, 6]).expect("writes");
    let calls = [
        (10, vec![1, 2, 3, 4, 5, 6]),
        (12, vec![3, 4, 5, 6]),
        (12, vec![3, 4, 5, 6]),
        (13, vec![4, 5, 6]),
    ];
    assert_eq!(file.calls(), calls);
    let none = Told::default();
    none.write_all(10, &[]).expect("there is nothing to write");

    let file = Told::to([Ok(1), Ok(0), Ok(1)]);
    assert_eq!(kind(file.write_all(0, &[1, 2])), Some(ErrorKind::WriteZero));
    let file = Told::to([Ok(1), Err(ErrorKind::StorageFull), Ok(1)]);
    let refused = file.write_all(0, &[1, 2]);
    assert_eq!(kind(refused), Some(ErrorKind::StorageFull));
    assert_eq!(file.calls().len(), 2, "it is not tried again");
}

#[test]
fn all_is_read_up_to_the_end() {
    let file = Told::to([Ok(2), Err(ErrorKind::Interrupted), Ok(1), Ok(0), Ok(1)]);
    let mut into = [0; 6];
    assert_eq!(file.read_full(10, &mut into).expect("reads"), 3);
    assert_eq!(into, [10, 10, 12, 0, 0, 0], "each part where it belongs");
    let file = Told::to([Ok(2), Ok(1)]);
    let mut into = [0; 3];
    assert_eq!(file.read_full(7, &mut into).expect("reads"), 3);
    assert_eq!(into, [7, 7, 9]);
    let none = Told::default();
    assert_eq!(none.read_full(7, &mut []).expect("nothing to read"), 0);
    let file = Told::to([Ok(2), Err(ErrorKind::PermissionDenied), Ok(1)]);
    let refused = file.read_full(0, &mut into);
    assert_eq!(kind(refused), Some(ErrorKind::PermissionDenied));
}

#[test]
fn a_durable_write_is_a_write_and_a_sync_unless_there_is_better() {
    let file = Told::to([Ok(1), Ok(1), Ok(0)]);
    (&file as &dyn Storage)
        .write_durable(5, &[1, 2])
        .expect("writes");
    assert_eq!(file.calls(), [(5, vec![1, 2]), (6, vec![2])]);
    let syncs = file.syncs.lock().expect("no panics").clone();
    assert_eq!(syncs.len(), 1);
    assert!(syncs[0].file().ends_with("journal_file.rs"), "{}", syncs[0]);
    let file = Told::to([Ok(2), Err(ErrorKind::StorageFull)]);
    let refused = (&file as &dyn Storage).write_durable(5, &[1, 2]);
    assert_eq!(kind(refused), Some(ErrorKind::StorageFull));
}

fn open(path: &Path) -> FileStorage {
    FileStorage::at(path, false).expect("opens")
}

#[test]
fn a_file_is_made_when_it_is_first_extended() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    let file = open(&path);
    assert!(!path.exists());
    assert_eq!(file.size().expect("has none"), 0);
    assert_eq!(file.read_full(0, &mut [0; 8]).expect("has none"), 0);
    file.truncate(0).expect("has none to cut");
    assert_eq!(kind(file.write_all(0, &[1])), Some(ErrorKind::NotFound));
    let file = &file as &dyn Storage;
    assert_eq!(kind(file.sync()), Some(ErrorKind::NotFound));
    let durable = file.write_durable(0, &[1]);
    assert_eq!(kind(durable), Some(ErrorKind::NotFound));
    assert_eq!(kind(file.punch(0, 4096)), Some(ErrorKind::NotFound));
    assert_eq!(kind(file.another()), Some(ErrorKind::NotFound));
    assert!(!path.exists());

    file.allocate(0, 10_000).expect("makes it");
    assert_eq!(std::fs::read(&path).expect("reads"), vec![0; 10_000]);
    file.write_all(100, &[1; 50]).expect("writes");
    file.sync().expect("syncs");
    file.allocate(10_000, 20_000).expect("extends it");
    file.write_durable(15_000, &[2; 50]).expect("writes");
    file.truncate(15_020).expect("shortens it");
    let mut expected = vec![0; 15_020];
    expected[100..150].fill(1);
    expected[15_000..].fill(2);
    assert_eq!(std::fs::read(&path).expect("reads"), expected);
    assert_eq!(file.size().expect("has a size"), 15_020);
    let again = open(&path);
    assert_eq!(again.size().expect("has a size"), 15_020);
    let mut found = vec![9; 20_000];
    assert_eq!(again.read_full(0, &mut found).expect("reads"), 15_020);
    assert_eq!(found[..15_020], expected);
}

#[test]
fn an_extension_has_real_space() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    let file = open(&path);
    file.allocate(0, 8192).expect("extends it");
    file.allocate(8192, 1 << 20).expect("extends it");
    let found = std::fs::metadata(&path).expect("is there");
    assert_eq!(found.len(), 1 << 20);
    assert!(found.blocks() * 512 >= 1 << 20, "{} blocks", found.blocks());
    file.allocate(1 << 20, u64::MAX >> 1)
        .expect_err("no disk has that");
    assert_eq!(
        file.size().expect("has a size"),
        1 << 20,
        "as long as before"
    );
}

#[test]
fn holes_read_as_zero_and_take_no_space() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    let file = open(&path);
    file.allocate(0, 1 << 20).expect("extends it");
    file.write_all(0, &vec![5; 1 << 20]).expect("writes");
    let before = std::fs::metadata(&path).expect("is there").blocks();
    file.punch(256 << 10, 512 << 10).expect("punches");
    let after = std::fs::metadata(&path).expect("is there");
    assert_eq!(after.len(), 1 << 20);
    assert!(before - after.blocks() >= 500 * 2, "{}", after.blocks());
    let bytes = std::fs::read(&path).expect("reads");
    let zero = |byte: &u8| *byte == 0;
    assert!(bytes[256 << 10..768 << 10].iter().all(zero));
    assert_eq!(bytes.iter().filter(|byte| zero(byte)).count(), 512 << 10);
    file.punch(1 << 20, 4096).expect("punches behind the end");
    assert_eq!(file.size().expect("has a size"), 1 << 20);
}

#[test]
fn another_handle_is_one_on_the_same_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let [path, moved] = ["file", "moved"].map(|name| folder.path().join(name));
    let file = open(&path);
    file.allocate(0, 4096).expect("makes it");
    let other = file.another().expect("opens");
    other.write_all(10, &[1, 2, 3]).expect("writes");
    other.sync().expect("syncs");
    let mut found = [0; 3];
    file.read_full(10, &mut found).expect("reads");
    assert_eq!(found, [1, 2, 3]);
    std::fs::rename(&path, moved).expect("renames");
    assert_eq!(kind(file.another()), Some(ErrorKind::NotFound));
    std::fs::write(&path, "another one").expect("writes");
    let error = file.another().expect_err("refuses").to_string();
    assert!(error.contains("another file has that name now"), "{error}");
    assert!(error.contains(path.to_str().expect("a name")), "{error}");
}

#[test]
fn only_files_are_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = FileStorage::at(folder.path(), true);
    assert!(matches!(refused, Err(OpenError::NotAFile(path)) if path == folder.path()));
    let device = Path::new("/dev/null");
    let refused = FileStorage::at(device, false);
    assert!(matches!(refused, Err(OpenError::NotAFile(path)) if path == device));
    let below = Path::new("/dev/null/file");
    assert!(matches!(
        FileStorage::at(below, false),
        Err(OpenError::Io { doing: "open", .. })
    ));
    let path = folder.path().join("file");
    std::fs::write(&path, "text").expect("writes");
    let file = FileStorage::at(&path, true).expect("opens");
    assert_eq!(file.size().expect("has a size"), 4);
    file.write_all(0, &[1]).expect_err("only for reading");
    assert_eq!(std::fs::read(&path).expect("reads"), b"text");
}

#[test]
fn a_name_that_cannot_be_made_durable_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let [link, target] = ["link", "target"].map(|name| folder.path().join(name));
    std::os::unix::fs::symlink(target, &link).expect("links");
    let file = open(&link.join("comm"));
    // In the meantime the folder is one that cannot be synced.
    std::fs::remove_file(&link).expect("removes");
    std::os::unix::fs::symlink("/proc/self", &link).expect("links");
    let refused = file.allocate(0, 4096);
    assert_eq!(kind(refused), Some(ErrorKind::InvalidInput));
}

/// This process's memory as a file, which cannot have holes and cannot be synced.
fn memory() -> FileStorage {
    let path = Path::new("/proc/self/mem");
    let file = std::fs::File::options().read(true).write(true).open(path);
    FileStorage::of(path, OwnedFd::from(file.expect("opens")))
}

/// Memory at a low address: the file of memory has a length of 2 GiB, as far as holes go.
fn low_memory(len: usize) -> &'static [AtomicU8] {
    let hint = std::ptr::without_provenance_mut(1 << 29);
    let (access, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: it is new memory, since without MAP_FIXED the address is only a wish.
    let mapped = unsafe { mmap_anonymous(hint, len, access, private) }.expect("maps");
    assert!(mapped.addr() + len < 1 << 31, "mapped at {mapped:p}");
    // SAFETY: 1. so many bytes are mapped, readable and zero; 2. they are never unmapped, and only
    // used through this slice of atomics.
    unsafe { std::slice::from_raw_parts(mapped.cast(), len) }
}

fn bytes_of(all: &[AtomicU8]) -> Vec<u8> {
    // ORDERING: Relaxed; this thread has written them.
    all.iter().map(|b| b.load(Ordering::Relaxed)).collect()
}

#[test]
fn a_hole_is_zeros_where_the_file_system_has_no_holes() {
    let all = low_memory(3 << 20);
    // ORDERING: Relaxed; no other thread has it.
    all.iter().for_each(|byte| byte.store(7, Ordering::Relaxed));
    let (from, len) = (1000, (2 << 20) + 500);
    memory()
        .punch(all.as_ptr().addr() as u64 + from, len)
        .expect("writes zeros");
    let found = bytes_of(all);
    let (from, end) = (from as usize, (from + len) as usize);
    assert!(found[from..end].iter().all(|byte| *byte == 0));
    assert!(found[..from].iter().all(|byte| *byte == 7));
    assert!(found[end..].iter().all(|byte| *byte == 7));
}

/// It has no synced writes either, so that a write and then a sync is tried, which fails.
#[test]
fn what_is_written_and_cannot_be_synced_is_an_error() {
    let all: Vec<_> = (0..1000).map(|_| AtomicU8::new(7)).collect();
    let file = memory();
    let at = all.as_ptr().addr() as u64 + 100;
    let refused = (&file as &dyn Storage).write_durable(at, &[8; 300]);
    assert_eq!(kind(refused), Some(ErrorKind::InvalidInput));
    let found = bytes_of(&all);
    assert_eq!(found[100..400], [8; 300]);
    assert_eq!(found.iter().filter(|byte| **byte == 8).count(), 300);
}
