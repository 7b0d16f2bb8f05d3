//! Commands on a bare index: `create`, `put`, `get`, `del`, `scan`, `import`, `compact`, `backup`.

use crate::args::{Backup, Compact, Create, Del, Get, Import, Put, Scan};
use crate::index::Index;
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::pool::{How, about, damaged, open_pool};
use bristlecone_command::records::{self, Records, survival};
use bristlecone_command::upkeep::{print_compacted, print_copied};
use bristlecone_command::{import, print_report, progress, scan};
use serde::Serialize;
use std::path::Path;

/// `create --json`
#[derive(Serialize)]
struct Created<'a> {
    pool: &'a Path,
    design: &'static str,
    node_bytes: u32,
    medium: &'static str,
    survives: &'static str,
}

/// Creates a pool with an empty index, and prints what it survives.
pub fn create(args: &Create) -> Outcome {
    let index = Index::create(&args.pool, How::write(args.write), &args.index.durable()?)?;
    let (medium, design, node_bytes) = (index.info().medium, index.design(), index.node_bytes());
    Box::new(index).close()?;
    let text = format_args!(
        "created {}: {} with {node_bytes}-byte nodes on the {} medium\n{}",
        args.pool.display(),
        design.name,
        medium.name(),
        survival(medium),
    );
    let report = Created {
        pool: &args.pool,
        design: design.name,
        node_bytes,
        medium: medium.name(),
        survives: medium.survives(),
    };
    print_report(&text, &report, args.json)
}

/// Stores a value.
pub fn put(args: &Put) -> Outcome {
    let key = records::key(&args.key)?;
    let value = records::value(key, &args.value)?;
    let index = Index::open(&args.pool, How::write(args.write))?;
    records::put(Box::new(index), key, &value, args.json)
}

/// Prints a value.
pub fn get(args: &Get) -> Outcome {
    let key = records::key(&args.key)?;
    let index = Index::open(&args.pool, How::read(args.medium))?;
    records::print_value(&index, key, args.json)
}

/// Removes a key.
pub fn del(args: &Del) -> Outcome {
    let key = records::key(&args.key)?;
    let index = Index::open(&args.pool, How::write(args.write))?;
    records::delete(Box::new(index), key, args.json)
}

/// Prints a range.
pub fn scan(args: &Scan) -> Outcome {
    let index = Index::open(&args.pool, How::read(args.medium))?;
    scan::print(&index, &args.scan)
}

/// Loads a file.
pub fn import(args: &Import) -> Outcome {
    let args = &args.import;
    import::run(args, None, || {
        Ok(Box::new(Index::open(&args.pool, How::write(args.write))?))
    })
}

/// Gives unused space back to the file system.
pub fn compact(args: &Compact) -> Outcome {
    let args = &args.compact;
    let report = progress::waiting("compacting", || {
        // Only an open index gives its space back.
        let index = Index::open(&args.pool, How::write(args.write))?;
        let report = index.pool().compact().map_err(|e| about(&args.pool, &e))?;
        Box::new(index).close()?;
        Ok(report)
    })?;
    print_compacted(&args.pool, report, args.json)
}

/// Copies a pool.
pub fn backup(args: &Backup) -> Outcome {
    let args = &args.backup;
    let pool = open_pool(&args.pool, How::read(args.medium))?;
    // A damaged index is not worth a copy.
    let index = Index::open_in(&pool, &args.pool)?;
    match index.verify() {
        // Only space is lost.
        Err(violation) if !violation.leak => {
            return Err(damaged(&args.pool, &violation, "nothing was written"));
        }
        _ => {}
    }
    let written = progress::waiting("copying", || pool.backup(&args.file))
        .map_err(|e| Failure::new(e.to_string()))?;
    print_copied(&args.pool, &args.file, written, args.json)
}
