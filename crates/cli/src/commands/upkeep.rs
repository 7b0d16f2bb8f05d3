//! `compact` and `backup`.

use crate::args::{Backup, Compact};
use crate::contents::close;
use crate::database;
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::pool::How;
use bristlecone_command::progress;
use bristlecone_command::text::{bytes, program, shell_path};
use std::io::{self, Write};

/// Gives unused space back to the file system.
pub fn compact(args: &Compact) -> Outcome {
    let args = &args.compact;
    let path = &args.pool;
    let report = progress::waiting("compacting", || {
        let db = database::open(path, How::write(args.write))?;
        let report = db.compact().map_err(|e| database::named(path, &e))?;
        close(path, db)?;
        Ok(report)
    })?;
    writeln!(
        io::stdout(),
        "compacted {}: {} before, {} after, {} more given back inside the file",
        path.display(),
        bytes(report.before_bytes),
        bytes(report.after_bytes),
        bytes(report.punched_bytes),
    )
    .map_err(|e| Failure::output(&e))
}

/// Copies a database.
pub fn backup(args: &Backup) -> Outcome {
    let args = &args.backup;
    if args.file.exists() {
        return Err(Failure::new(format!(
            "{}: there already; it was left alone: name another file or remove it",
            args.file.display()
        )));
    }
    // A database that cannot be opened is not worth a copy.
    let db = database::open(&args.pool, How::read(args.medium))?;
    let written = progress::waiting("copying", || db.store().pool().backup(&args.file))
        .map_err(|e| Failure::new(e.to_string()))?;
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
