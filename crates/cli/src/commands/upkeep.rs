//! `compact` and `backup`.

use crate::args::{Backup, Compact};
use crate::failure::{Failure, Outcome};
use crate::keyspaces::{self, Kept};
use crate::progress;
use crate::store::{Contents, How, Store, open_pool};
use crate::text::{bytes, program, shell_path};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::{CompactReport, Pool};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

/// Gives unused space back to the file system.
pub fn compact(args: &Compact) -> Outcome {
    let report = progress::waiting("compacting", || compact_pool(args))?;
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

/// Compacts a pool with all that this program can open in it: what is not open keeps its space.
fn compact_pool(args: &Compact) -> Outcome<CompactReport> {
    let path = &args.pool;
    let pool = open_pool(path, How::write(args.write))?;
    let (index, stores) = open_all(&pool, path)?;
    for store in &stores {
        store
            .vacuum_all()
            .map_err(|e| keyspaces::of(path, store.name(), &e))?;
    }
    // What was vacuumed is free once readers have left; there are none.
    let report = pool
        .compact()
        .map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
    for store in stores {
        let name = store.name().to_owned();
        store
            .close()
            .map_err(|(_, e)| keyspaces::of(path, &name, &format_args!("closing: {e}")))?;
    }
    index.map_or(Ok(()), Store::close)?;
    Ok(report)
}

/// Opens the index and the stores of a pool. It has an index, or a store, or both.
fn open_all(pool: &Arc<Pool<Auto>>, path: &Path) -> Outcome<(Option<Store>, Vec<Kept>)> {
    let contents = Contents::of(pool);
    let index = match (&contents.index, contents.stores.is_empty()) {
        (None, false) => None,
        // Also where there is none, for the error that says what there is.
        _ => Some(Store::open_in(pool, path)?),
    };
    let stores = contents.stores.iter();
    let stores = stores.map(|name| keyspaces::open(pool, path, name));
    Ok((index, stores.collect::<Outcome<_>>()?))
}

/// Copies a pool.
pub fn backup(args: &Backup) -> Outcome {
    if args.file.exists() {
        return Err(Failure::new(format!(
            "{}: there already; it was left alone: name another file or remove it",
            args.file.display()
        )));
    }
    let path = &args.pool;
    let pool = open_pool(path, How::read(args.medium))?;
    // A pool that cannot be opened is not worth a copy.
    let _opened = open_all(&pool, path)?;
    let written = progress::waiting("copying", || pool.backup(&args.file))
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
