//! `create`, `put`, `get`, `del`, `scan`, `import`: the records of a keyspace.

use crate::args::{Create, Del, Get, Import, Put, Scan};
use crate::contents::{Contents, close};
use crate::database;
use bristlecone_command::failure::Outcome;
use bristlecone_command::pool::How;
use bristlecone_command::records::{self, survival};
use bristlecone_command::{import, print_report, scan};
use serde::Serialize;
use std::path::Path;

/// `create --json`
#[derive(Serialize)]
struct Created<'a> {
    pool: &'a Path,
    medium: &'static str,
    survives: &'static str,
}

/// Makes an empty database and tells what it survives.
pub fn create(args: &Create) -> Outcome {
    let db = database::create(&args.pool, How::write(args.write))?;
    let medium = db.medium();
    close(&args.pool, db)?;
    let text = format_args!(
        "created {}: an empty database on the {} medium\n{}",
        args.pool.display(),
        medium.name(),
        survival(medium),
    );
    let report = Created {
        pool: &args.pool,
        medium: medium.name(),
        survives: medium.survives(),
    };
    print_report(&text, &report, args.json)
}

/// Stores a value.
pub fn put(args: &Put) -> Outcome {
    let key = records::key(&args.key)?;
    let value = records::value(key, &args.value)?;
    let keyspace = args.keyspace.as_deref();
    let records = Contents::write(&args.pool, How::write(args.write), keyspace)?;
    records::put(records, key, &value, args.json)
}

/// Prints a value.
pub fn get(args: &Get) -> Outcome {
    let key = records::key(&args.key)?;
    let keyspace = args.keyspace.as_deref();
    let contents = Contents::read(&args.pool, How::read(args.medium), keyspace)?;
    records::print_value(&contents, key, args.json)
}

/// Removes a key.
pub fn del(args: &Del) -> Outcome {
    let key = records::key(&args.key)?;
    let keyspace = args.keyspace.as_deref();
    let records = Contents::write(&args.pool, How::write(args.write), keyspace)?;
    records::delete(records, key, args.json)
}

/// Prints a range.
pub fn scan(args: &Scan) -> Outcome {
    let keyspace = args.keyspace.as_deref();
    let contents = Contents::read(&args.pool, How::read(args.medium), keyspace)?;
    scan::print(&contents, &args.scan)
}

/// Loads a file.
pub fn import(args: &Import) -> Outcome {
    let keyspace = args.keyspace.as_deref();
    let args = &args.import;
    import::run(args, keyspace, || {
        Contents::write(&args.pool, How::write(args.write), keyspace)
    })
}
