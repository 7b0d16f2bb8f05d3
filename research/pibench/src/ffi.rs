//! The C interface, `include/bristlecone_pibench.h`. No panic crosses it. PiBench has no way to be
//! told of an error, so the first one of each call goes to standard error, and the call says that
//! nothing was done.
//!
//! # Safety
//! Trees came from [`bristlecone_pibench_open`] and were not closed. Buffers have the lengths that
//! go with them, or those of the tree's keys and values. No other call is under way while a tree is
//! loaded or closed.

use crate::{Fault, Options, Tree};
use bristlecone_designs::designs::DESIGNS;
use std::ffi::{OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;
use std::sync::Once;

/// A buffer of bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Bytes {
    data: *const u8,
    len: usize,
}

impl Bytes {
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

/// Calls `f`. A fault or a panic, the first of this `call`, is told on standard error; `otherwise`
/// is the result then.
fn told<T>(
    call: &'static str,
    once: &Once,
    otherwise: T,
    f: impl FnOnce() -> Result<T, Fault>,
) -> T {
    let told = |what: &dyn std::fmt::Display| {
        once.call_once(|| eprintln!("bristlecone-pibench: {call}: {what}"));
    };
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(done)) => done,
        Ok(Err(e)) => {
            told(&e);
            otherwise
        }
        Err(panic) => {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
            told(&format!("a bug: {}", message.unwrap_or("it panicked")));
            otherwise
        }
    }
}

/// Writes a text with a zero at its end into a buffer of `len` bytes, cut where that is short.
///
/// # Safety
/// 1. The buffer has so many bytes.
unsafe fn write(text: &str, to: *mut c_char, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: 1. as the caller promises; any bytes are characters of C.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), len) };
    let text = &text.as_bytes()[..text.len().min(len - 1)];
    to[..text.len()].copy_from_slice(text);
    to[text.len()] = 0;
}

/// Opens the index of a design in a pool, or makes both. Returns null and a message of at most
/// `len` bytes if that fails.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_pibench_open(
    design: Bytes,
    path: Bytes,
    pool_bytes: u64,
    key_bytes: usize,
    value_bytes: usize,
    threads: usize,
    message: *mut c_char,
    len: usize,
) -> *mut Tree {
    let open = || {
        // SAFETY: 1. as the module's head says.
        let (design, path) = unsafe { (design.get(), path.get()) };
        let design = String::from_utf8_lossy(design);
        Tree::open(&Options {
            design: &design,
            path: Path::new(OsStr::from_bytes(path)),
            pool_bytes,
            key_bytes,
            value_bytes,
            threads,
        })
    };
    let opened = catch_unwind(AssertUnwindSafe(open));
    let text = match opened {
        Ok(Ok(tree)) => return Box::into_raw(Box::new(tree)),
        Ok(Err(e)) => e.to_string(),
        Err(_) => "a bug: it panicked; the message is above".to_owned(),
    };
    // SAFETY: 1. as the module's head says.
    unsafe { write(&text, message, len) };
    ptr::null_mut()
}

/// Closes a tree and its pool.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_pibench_close(tree: Option<Box<Tree>>) {
    static ONCE: Once = Once::new();
    if let Some(tree) = tree {
        told("close", &ONCE, (), || tree.close());
    }
}

/// Writes the name of the `i`th design into a buffer of `len` bytes. Returns false if there are
/// fewer.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_pibench_design(i: usize, to: *mut c_char, len: usize) -> bool {
    let design = DESIGNS.get(i);
    if let Some(design) = design {
        // SAFETY: 1. as the module's head says.
        unsafe { write(design.name, to, len) };
    }
    design.is_some()
}

/// Fills an empty tree from entries, keys and values one after the other.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_pibench_load(tree: &mut Tree, records: Bytes) -> bool {
    static ONCE: Once = Once::new();
    told("bulk_load", &ONCE, false, || {
        // SAFETY: 1. as the module's head says.
        tree.load(unsafe { records.get() }).map(|()| true)
    })
}

/// Copies the value of a key.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_pibench_find(tree: &Tree, key: Bytes, out: *mut u8) -> bool {
    static ONCE: Once = Once::new();
    told("find", &ONCE, false, || {
        // SAFETY: 1. as the module's head says.
        let (key, out) = unsafe {
            let out = std::slice::from_raw_parts_mut(out, tree.value_bytes);
            (key.get(), out)
        };
        tree.find(key, out)
    })
}

/// Inserts an entry whose key is not there.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_pibench_insert(tree: &Tree, key: Bytes, value: Bytes) -> bool {
    static ONCE: Once = Once::new();
    told("insert", &ONCE, false, || {
        // SAFETY: 1. as the module's head says.
        let (key, value) = unsafe { (key.get(), value.get()) };
        tree.insert(key, value)
    })
}

/// Replaces the value of a key that is there.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_pibench_update(tree: &Tree, key: Bytes, value: Bytes) -> bool {
    static ONCE: Once = Once::new();
    told("update", &ONCE, false, || {
        // SAFETY: 1. as the module's head says.
        let (key, value) = unsafe { (key.get(), value.get()) };
        tree.update(key, value)
    })
}

/// Removes the entry of a key that is there.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_pibench_remove(tree: &Tree, key: Bytes) -> bool {
    static ONCE: Once = Once::new();
    told("remove", &ONCE, false, || {
        // SAFETY: 1. as the module's head says.
        tree.remove(unsafe { key.get() })
    })
}

/// Copies up to `most` entries from a key on into a buffer that has room for them. Returns their
/// number.
///
/// # Safety
/// As the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bristlecone_pibench_scan(
    tree: &Tree,
    key: Bytes,
    most: usize,
    out: *mut u8,
) -> usize {
    static ONCE: Once = Once::new();
    if most == 0 {
        return 0;
    }
    told("scan", &ONCE, 0, || {
        let bytes = most * (tree.key_bytes + tree.value_bytes);
        // SAFETY: 1. as the module's head says.
        let (key, out) = unsafe { (key.get(), std::slice::from_raw_parts_mut(out, bytes)) };
        tree.scan(key, most, out)
    })
}
