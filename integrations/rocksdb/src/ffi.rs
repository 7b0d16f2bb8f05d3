//! The C interface, `include/bristlecone_rocksdb.h`. No panic crosses it: each call that may fail
//! returns false and tells a fault, and each other one has a result that changes nothing.
//!
//! # Safety
//! Pointers to sessions, memtables and replays came from this module and were not closed. Buffers
//! have the lengths that go with them. Results are not used after what they lie in was closed.

use crate::error::{Fault, FaultKind};
use crate::key::{Comparator, CompareFunction};
use crate::memtable::Memtable;
use crate::replay::{Replay, Sequences};
use crate::session::{Options, Session};
use crate::table::{Kind, Start};
use std::ffi::{OsStr, c_char, c_void};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

/// Bytes of a fault's message, with the zero at its end.
pub const MESSAGE: usize = 512;

/// A fault, as C has it.
#[repr(C)]
pub struct CFault {
    kind: i32,
    message: [c_char; MESSAGE],
}

/// A session, as C has it.
pub struct CSession(Arc<Session>);

/// A buffer of bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Bytes {
    data: *const u8,
    len: usize,
}

impl Bytes {
    fn of(bytes: &[u8]) -> Self {
        Self {
            data: bytes.as_ptr(),
            len: bytes.len(),
        }
    }

    /// Returns the bytes.
    ///
    /// # Safety
    /// 1. There are so many there, for as long as the result is used.
    unsafe fn get<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: 1. as the caller promises.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

/// An entry, as C has it.
#[repr(C)]
pub struct CEntry {
    family: u32,
    kind: u32,
    key: Bytes,
    value: Bytes,
}

/// A memtable of the last session, as C has it.
#[repr(C)]
pub struct COld {
    family: u32,
    file: u64,
    entries: u64,
    first: u64,
    last: u64,
}

/// Calls `f`; a panic becomes a fault.
fn caught<T>(f: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        let what = format!("bug in bristlecone: {}", message.unwrap_or("it panicked"));
        Err(Fault::new(FaultKind::Corruption, what))
    })
}

/// Calls `f`, and tells C of a fault. Returns `None` then.
fn told<T>(fault: Option<&mut CFault>, f: impl FnOnce() -> Result<T, Fault>) -> Option<T> {
    match caught(f) {
        Ok(done) => Some(done),
        Err(e) => {
            if let Some(fault) = fault {
                fault.kind = e.kind as i32;
                let text = e.what.as_bytes();
                let text = &text[..text.len().min(MESSAGE - 1)];
                for (to, from) in fault.message.iter_mut().zip(text.iter().chain([&0])) {
                    *to = *from as c_char;
                }
            }
            None
        }
    }
}

/// Returns the order of keys that C asks for.
fn order(function: Option<CompareFunction>, context: *const c_void) -> Option<Comparator> {
    function.map(|function| Comparator { function, context })
}

/// Opens the pool of a database, or makes it. Returns null and a fault if that fails.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_session_open(
    path: Bytes,
    max_bytes: u64,
    scratch: bool,
    must_exist: bool,
    fault: Option<&mut CFault>,
) -> *mut CSession {
    // SAFETY: as the module's head says.
    let path = unsafe { path.get() };
    let open = || {
        let options = Options {
            path: OsStr::from_bytes(path).into(),
            max_bytes,
            scratch,
            must_exist,
        };
        Ok(Box::into_raw(Box::new(CSession(Session::open(&options)?))))
    };
    // SAFETY: as the module's head says.
    told(fault, open).unwrap_or(ptr::null_mut())
}

/// Closes a session. Its memtables and replays may be closed later.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_session_close(session: Option<Box<CSession>>) {
    let _ = caught(|| {
        drop(session);
        Ok(())
    });
}

macro_rules! session_call {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*), |$session:ident| $call:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As the module's head says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            session: &CSession,
            $($arg: $type,)*
            fault: Option<&mut CFault>,
        ) -> bool {
            let CSession($session) = session;
            told(fault, || $call).is_some()
        }
    };
}

session_call!(
    /// Makes all that was inserted durable.
    bristlecone_session_commit(),
    |session| session.commit()
);
session_call!(
    /// Makes sure that there is room for a write of so many bytes, and for a new memtable of each
    /// of these column families.
    bristlecone_session_make_room(bytes: u64, families: *const u32, count: usize),
    |session| {
        let families = match count {
            0 => &[],
            // SAFETY: as the module's head says.
            _ => unsafe { std::slice::from_raw_parts(families, count) },
        };
        session.make_room(bytes, families)
    }
);
session_call!(
    /// Checks that memtables of the last session are of the database with this identity.
    bristlecone_session_check_owner(owner: u64),
    |session| session.check_owner(owner)
);
session_call!(
    /// Makes the session's memtables valid, and frees those of the last one.
    bristlecone_session_publish(owner: u64),
    |session| session.publish(owner)
);
session_call!(
    /// Notes that a column family was dropped.
    bristlecone_session_drop_family(family: u32),
    |session| { session.drop_family(family); Ok(()) }
);
session_call!(
    /// Begins a batch of several entries, with sequence numbers after one up to another.
    bristlecone_session_begin_batch(base: u64, last: u64),
    |session| session.begin_batch(base, last)
);

/// Ends a batch. Returns false if it failed with some entries inserted.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_session_end_batch(session: &CSession, failed: bool) -> bool {
    let CSession(session) = session;
    caught(|| Ok(session.end_batch(failed))).unwrap_or(false)
}

/// Notes that an entry could not be inserted. Returns true if it is of a batch, which has failed
/// half-way then.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_session_spilled(session: &CSession) -> bool {
    let CSession(session) = session;
    caught(|| Ok(session.spilled())).unwrap_or(true)
}

/// Returns the number that tells the session's pool from others.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_session_uuid(session: &CSession, out: &mut [u8; 16]) {
    let CSession(session) = session;
    *out = *session.pool().uuid().as_bytes();
}

/// Makes an empty memtable of a column family. Without a function its keys are in the order of
/// bytes.
///
/// # Safety
/// As the module's head says. `function` may be called with `context`, and two keys of an entry,
/// until the memtable is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_memtable_new(
    session: &CSession,
    family: u32,
    skip_list: bool,
    function: Option<CompareFunction>,
    context: *const c_void,
) -> *mut Memtable {
    let CSession(session) = session;
    let kind = match skip_list {
        true => Kind::SkipList,
        false => Kind::Tree,
    };
    let memtable = Memtable::new(session, family, kind, order(function, context));
    Box::into_raw(Box::new(memtable))
}

/// Closes a memtable.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_memtable_close(memtable: Option<Box<Memtable>>) {
    let _ = caught(|| {
        drop(memtable);
        Ok(())
    });
}

/// Returns the place for an entry of `len` bytes; null and a fault if there is no room.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_memtable_allocate(
    memtable: &Memtable,
    len: usize,
    fault: Option<&mut CFault>,
) -> *mut u8 {
    told(fault, || memtable.allocate(len)).unwrap_or(ptr::null_mut())
}

/// Inserts the entry at a place. Returns 1, 0 if its key is there, or -1 and a fault.
///
/// # Safety
/// As the module's head says. The place is an allocated one, and the entry has been written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_memtable_insert(
    memtable: &Memtable,
    at: *const u8,
    fault: Option<&mut CFault>,
) -> i32 {
    // SAFETY: as the module's head and this function's say.
    told(fault, || unsafe { memtable.insert(at) }).map_or(-1, i32::from)
}

/// Returns the first entry from a key on, if it has the same user key; otherwise null.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_memtable_get(memtable: &Memtable, key: Bytes) -> *const u8 {
    // SAFETY: as the module's head says.
    let key = unsafe { key.get() };
    caught(|| Ok(memtable.get(key)))
        .unwrap_or(None)
        .unwrap_or(ptr::null())
}

/// Puts up to `most` entries into `out`, in order, upwards or downwards: from `key` on, or after
/// it; from the end if there is none. Returns their number.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_memtable_scan(
    memtable: &Memtable,
    key: Bytes,
    after: bool,
    up: bool,
    out: *mut *const u8,
    most: usize,
) -> usize {
    // SAFETY: as the module's head says.
    let key = unsafe { key.get() };
    let from = match (key.is_empty(), after) {
        (true, _) => Start::End,
        (false, true) => Start::After(key),
        (false, false) => Start::At(key),
    };
    let mut found = 0;
    let scanned = caught(|| {
        memtable.scan(from, up, &mut |entry| {
            if found == most {
                return ControlFlow::Break(());
            }
            // SAFETY: `out` has room for `most`, and `found` is below it.
            unsafe { *out.add(found) = entry };
            found += 1;
            match found == most {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        Ok(())
    });
    scanned.map_or(0, |()| found)
}

/// Returns whether a place is in the memtable's pool.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_session_holds(session: &CSession, at: *const u8) -> bool {
    use bristlecone_pmem::Media;
    let CSession(session) = session;
    let pm = session.pool().pm();
    (at.addr()).wrapping_sub(pm.base().addr()) < pm.len() as usize
}

/// Returns the bytes that a memtable has in the pool, about.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_memtable_bytes(memtable: &Memtable) -> u64 {
    memtable.bytes()
}

/// Notes that no entry will follow. Returns true if a batch has failed half-way, some entries of
/// which the memtable may have.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_memtable_read_only(memtable: &Memtable) -> bool {
    caught(|| Ok(memtable.read_only())).unwrap_or(true)
}

/// Notes that a flush writes the entries to a file.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_memtable_flushing(
    memtable: &Memtable,
    file: u64,
    fault: Option<&mut CFault>,
) -> bool {
    told(fault, || memtable.flushing(file)).is_some()
}

/// Notes that all entries are in files.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_memtable_flushed(
    memtable: &Memtable,
    fault: Option<&mut CFault>,
) -> bool {
    told(fault, || memtable.flushed()).is_some()
}

/// Begins a replay of what the last session wrote and no file has.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_replay_new(session: &CSession) -> *mut Replay {
    let CSession(session) = session;
    Box::into_raw(Box::new(Replay::new(session)))
}

/// Ends a replay.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub extern "C" fn bristlecone_replay_close(replay: Option<Box<Replay>>) {
    drop(replay);
}

/// Tells of the `i`-th memtable, from 0: its column family and file. Returns false if there are
/// fewer.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_replay_old(replay: &Replay, i: usize, old: &mut COld) -> bool {
    let out = old;
    let Some(old) = replay.old().get(i) else {
        return false;
    };
    (out.family, out.file) = (old.family, old.file);
    true
}

/// Reads the entries of the `i`-th memtable, and tells of them.
///
/// # Safety
/// As the module's head says, and as [`bristlecone_memtable_new`]'s for the function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_replay_read(
    replay: &mut Replay,
    i: usize,
    function: Option<CompareFunction>,
    context: *const c_void,
    old: &mut COld,
    fault: Option<&mut CFault>,
) -> bool {
    let read = || replay.read(i, order(function, context));
    told(fault, read)
        .map(|sequences| {
            (old.entries, old.first, old.last) =
                (sequences.entries, sequences.first, sequences.last);
        })
        .is_some()
}

/// Leaves out what was read of a memtable, because it is in a file.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_replay_leave_out(replay: &mut Replay, old: &COld) {
    let sequences = Sequences {
        entries: old.entries,
        first: old.first,
        last: old.last,
    };
    replay.leave_out(old.family, sequences);
}

/// Puts all that was read in the order in which it was written. Returns the number of entries.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_replay_sort(replay: &mut Replay) -> u64 {
    replay.sort()
}

/// Tells the next entry. Returns false at the end.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_replay_next(replay: &mut Replay, entry: &mut CEntry) -> bool {
    let Some((next, family)) = replay.next_entry() else {
        return false;
    };
    *entry = CEntry {
        family,
        kind: (next.trailer & 0xFF) as u32,
        key: Bytes::of(next.user_key),
        value: Bytes::of(next.value),
    };
    true
}

/// Checks a memtable's index. Returns the number of its entries, or -1 and a fault.
///
/// # Safety
/// As the module's head says. Nothing is inserted meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_memtable_verify(
    memtable: &Memtable,
    fault: Option<&mut CFault>,
) -> i64 {
    let verify = || (memtable.verify()).map_err(|e| Fault::new(FaultKind::Corruption, e));
    told(fault, verify).map_or(-1, |entries| entries as i64)
}
