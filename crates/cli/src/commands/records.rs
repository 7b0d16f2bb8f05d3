//! `create`, `put`, `get`, `del`: one pool, one key.

use crate::args::{Create, Del, Get, Put};
use crate::failure::{Failure, Outcome};
use crate::store::{How, MAX_KEY_BYTES, MAX_VALUE_BYTES, Store};
use crate::text::{program, quoted, shell_path};
use bristlecone_pmem::MediumKind;
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Makes an empty pool and tells what it survives.
pub fn create(args: &Create) -> Outcome {
    let store = Store::create(&args.pool, How::write(args.write), &args.index.durable()?)?;
    let (medium, design, node_bytes) = (store.info().medium, store.design(), store.node_bytes());
    store.close()?;
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "created {}: {} with {node_bytes}-byte nodes on the {} medium\n{}",
        args.pool.display(),
        design.name,
        medium.name(),
        survival(medium),
    )
    .map_err(|e| Failure::output(&e))
}

/// What a medium survives, as a sentence.
pub fn survival(medium: MediumKind) -> String {
    format!("acknowledged writes survive {}", medium.survives())
}

/// Stores a value.
pub fn put(args: &Put) -> Outcome {
    let key = key(&args.key)?;
    let stdin;
    let value = if args.value == "-" {
        stdin = standard_input()?;
        &stdin[..]
    } else {
        args.value.as_bytes()
    };
    if value.len() > MAX_VALUE_BYTES {
        return Err(Failure::new(format!(
            "the value for key {} has more than {MAX_VALUE_BYTES} bytes, which is the most; split it over several keys",
            quoted(key)
        )));
    }
    let store = Store::open(&args.pool, How::write(args.write))?;
    store.upsert(key, value)?;
    store.close()
}

/// Everything on standard input, up to one byte more than a value may have.
fn standard_input() -> Outcome<Vec<u8>> {
    let mut value = Vec::new();
    io::stdin()
        .lock()
        .take(MAX_VALUE_BYTES as u64 + 1)
        .read_to_end(&mut value)
        .map_err(|e| Failure::new(format!("standard input: reading failed: {e}")))?;
    Ok(value)
}

/// Prints a value.
pub fn get(args: &Get) -> Outcome {
    let key = key(&args.key)?;
    let store = Store::open(&args.pool, How::read(args.medium))?;
    let value = store.get(key).ok_or_else(|| missing(&args.pool, key))?;
    let mut out = io::stdout().lock();
    let line_break: &[u8] = if out.is_terminal() { b"\n" } else { b"" };
    out.write_all(&value)
        .and_then(|()| out.write_all(line_break))
        .and_then(|()| out.flush())
        .map_err(|e| Failure::output(&e))
}

/// Removes a key.
pub fn del(args: &Del) -> Outcome {
    let key = key(&args.key)?;
    let store = Store::open(&args.pool, How::write(args.write))?;
    let there = store.remove(key)?;
    store.close()?;
    if there {
        Ok(())
    } else {
        Err(missing(&args.pool, key))
    }
}

fn key(arg: &OsStr) -> Outcome<&[u8]> {
    let key = arg.as_bytes();
    if key.len() > MAX_KEY_BYTES {
        return Err(Failure::new(format!(
            "key {}: a key may have up to {MAX_KEY_BYTES} bytes; store a digest of it as the key and the rest in the value",
            quoted(key)
        )));
    }
    Ok(key)
}

fn missing(pool: &Path, key: &[u8]) -> Failure {
    Failure::new(format!(
        "{}: no key {}; `{} scan {}` lists what there is",
        pool.display(),
        quoted(key),
        program(),
        shell_path(pool)
    ))
}
