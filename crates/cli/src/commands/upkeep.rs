//! `compact` and `backup`.

use crate::args::{Backup, Compact};
use crate::failure::{Failure, Outcome};
use crate::progress;
use crate::store::{How, Store};
use crate::text::{bytes, program, shell_path};
use std::io::{self, Write};

/// Gives unused space back to the file system.
pub fn compact(args: &Compact) -> Outcome {
    let store = Store::open(&args.pool, How::write(args.write))?;
    let report = progress::waiting("compacting", || store.compact())?;
    store.close()?;
    writeln!(
        io::stdout(),
        "compacted {}: {} before, {} after, {} more given back inside the file",
        args.pool.display(),
        bytes(report.before_bytes),
        bytes(report.after_bytes),
        bytes(report.punched_bytes),
    )
    .map_err(|e| Failure::output(&e))
}

/// Copies a pool.
pub fn backup(args: &Backup) -> Outcome {
    if args.file.exists() {
        return Err(Failure::new(format!(
            "{}: there already; it was left alone: name another file or remove it",
            args.file.display()
        )));
    }
    let store = Store::open(&args.pool, How::read(args.medium))?;
    let written = progress::waiting("copying", || store.backup(&args.file))?;
    writeln!(
        io::stdout(),
        "copied {} to {}: {}\n{} check {}    # to be sure of the copy",
        args.pool.display(),
        args.file.display(),
        bytes(written),
        program(),
        shell_path(&args.file),
    )
    .map_err(|e| Failure::output(&e))
}
