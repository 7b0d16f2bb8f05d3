//! `compact` and `backup`.

use crate::args::{Backup, Compact};
use crate::contents::close;
use crate::database;
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::pool::How;
use bristlecone_command::progress;
use bristlecone_command::upkeep::{print_compacted, print_copied};

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
    print_compacted(path, report, args.json)
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
    print_copied(&args.pool, &args.file, written, args.json)
}
