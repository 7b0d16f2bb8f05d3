//! Writes a pattern through the `dax` medium, or checks one that an earlier run wrote.
//!
//! ```text
//! dax_probe write PATH BYTES    make PATH (or take a devdax device over); grow it; write; fence
//! dax_probe check PATH BYTES    open PATH both ways; every word must be what `write` left
//! dax_probe refuse PATH         PATH must be refused, as a place without persistent memory is
//! ```
//!
//! `write` ends without closing, syncing or unmapping anything: the pattern that `check` finds
//! after the machine was reset is there because of flush and fence alone.
//! `cargo run -p xtask -- dax` runs it so.

use bristlecone_pmem::media::{Dax, cpu};
use bristlecone_pmem::{Access, Media, MediaOptions, MediumKind, OpenError, PWord};
use std::error::Error;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

const WORD: u64 = 8;
/// Bytes of a new file, before it grows.
const INITIAL: u64 = 4 << 20;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("dax_probe: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[&str]) -> Result<(), Box<dyn Error>> {
    match args[..] {
        ["write", path, bytes] => write(Path::new(path), bytes.parse()?),
        ["check", path, bytes] => check(Path::new(path), bytes.parse()?),
        ["refuse", path] => refuse(Path::new(path)),
        _ => Err("usage: dax_probe write PATH BYTES | check PATH BYTES | refuse PATH".into()),
    }
}

/// Returns the word at `index`: never zero, different at each place.
fn pattern(index: u64) -> u64 {
    (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Returns the word at `index` of an opened pool that has it.
fn word(pm: &Dax, index: u64) -> &PWord {
    assert!(
        (index + 1) * WORD <= pm.len(),
        "word {index} is past the end"
    );
    // SAFETY: 1. the word is inside the pool, as just asserted, and `pm` keeps it mapped while the
    // reference lives; 2. the base is page-aligned, so the word is aligned; 3. any 8 bytes are a
    // valid `PWord`, which is atomic, so sharing it is sound.
    unsafe {
        &*pm.base()
            .wrapping_add((index * WORD) as usize)
            .cast::<PWord>()
    }
}

fn is_device(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|m| m.file_type().is_char_device())
}

fn open(path: &Path, access: Access) -> Result<Dax, OpenError> {
    let pm = Dax::open(
        path,
        INITIAL,
        &MediaOptions {
            access,
            ..MediaOptions::default()
        },
    )?;
    assert_eq!(pm.kind(), MediumKind::Dax, "the medium knows what it is");
    Ok(pm)
}

fn write(path: &Path, bytes: u64) -> Result<(), Box<dyn Error>> {
    let pm = open(path, Access::Create)?;
    let before = pm.base();
    if !is_device(path) {
        assert_eq!(pm.len(), INITIAL, "a new file has the bytes asked for");
        pm.grow(bytes)?;
    }
    assert_eq!(pm.base(), before, "growing moves nothing");
    for index in 0..bytes / WORD {
        word(&pm, index).store(&pm, pattern(index), Ordering::Relaxed);
    }
    // PERSIST: the whole pattern, before this process reports it.
    pm.flush(pm.base(), bytes as usize);
    pm.fence();
    println!(
        "wrote {bytes} bytes through {} ({}), {} bytes long",
        pm.kind().name(),
        cpu::detect().map_or("no flush", |kind| kind.name()),
        pm.len()
    );
    // No unmap, no close: the end of the process is as sudden as it can be.
    std::mem::forget(pm);
    Ok(())
}

fn check(path: &Path, bytes: u64) -> Result<(), Box<dyn Error>> {
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let pm = match open(path, access) {
            Err(OpenError::Unsupported { .. }) if is_device(path) && access == Access::ReadOnly => {
                println!("a device is refused for reading only, as it should be");
                continue;
            }
            opened => opened.map_err(|e| format!("{access:?}: {e}"))?,
        };
        compare(path, &pm, bytes).map_err(|e| format!("{access:?}: {e}"))?;
        pm.sync().map_err(|e| format!("{access:?}: {e}"))?;
    }
    println!("found all of {bytes} bytes through dax");
    Ok(())
}

fn compare(path: &Path, pm: &Dax, bytes: u64) -> Result<(), Box<dyn Error>> {
    if pm.len() < bytes {
        return Err(format!(
            "{}: {} bytes of {bytes} are there",
            path.display(),
            pm.len()
        )
        .into());
    }
    // ORDERING: Relaxed; one thread.
    let wrong = |index: &u64| word(pm, *index).load(pm, Ordering::Relaxed) != pattern(*index);
    let lost = (0..bytes / WORD).filter(wrong).count();
    if lost > 0 {
        return Err(format!("{}: {lost} of {} words lost", path.display(), bytes / WORD).into());
    }
    Ok(())
}

fn refuse(path: &Path) -> Result<(), Box<dyn Error>> {
    match open(path, Access::Create) {
        Ok(_) => Err(format!("{}: taken for persistent memory", path.display()).into()),
        Err(e @ OpenError::Unsupported { .. }) if !path.exists() => {
            println!("refused, as it should be: {e}");
            Ok(())
        }
        Err(e) => Err(format!("{}: not the refusal expected: {e}", path.display()).into()),
    }
}
