//! `export`: a pool as a file that appears whole or not at all.

use super::import::kind_of;
use crate::args::Export;
use crate::failure::{Failure, Outcome};
use crate::progress;
use crate::rows::{Kind, csv, json};
use crate::store::{How, Range, Store};
use crate::text::{duration, grouped, program, rate, shell_path, shell_word};
use indicatif::ProgressBar;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

/// Writes a pool to a file.
pub fn run(args: &Export) -> Outcome {
    let kind = kind_of(&args.file, "export")?;
    let target = &args.file;
    if target.is_dir() {
        return Err(Failure::new(format!(
            "{}: a directory; name a file in it",
            target.display()
        )));
    }
    if let (Ok(a), Ok(b)) = (args.pool.canonicalize(), target.canonicalize())
        && a == b
    {
        return Err(Failure::Usage(format!(
            "{}: the pool itself; export to another file",
            target.display()
        )));
    }
    let store = Store::open(&args.pool, How::read(args.medium))?;
    let folder = match target.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let failed = |e: &io::Error| Failure::io(target, "writing", e);
    // As a plain creation would make it: the process's umask applies.
    let mut file = tempfile::Builder::new()
        .prefix(".bristlecone-export-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(|e| failed(&e))?;
    let started = Instant::now();
    let bar = progress::steps("exporting", store.stats().entries);
    let (records, key) = write(&store, kind, file.as_file_mut(), &bar).map_err(|e| failed(&e))?;
    bar.finish_and_clear();
    file.as_file().sync_all().map_err(|e| failed(&e))?;
    file.persist(target).map_err(|e| failed(&e.error))?;
    File::open(folder)
        .and_then(|f| f.sync_all())
        .map_err(|e| failed(&e))?;
    let took = started.elapsed();
    let key = key
        .map(|k| format!(" --key {}", shell_word(&k)))
        .unwrap_or_default();
    writeln!(
        io::stdout(),
        "exported {} records in {} ({} records/s)\n{} import POOL {}{key}    # reads it back",
        grouped(records),
        duration(took),
        rate(records, took),
        program(),
        shell_path(target),
    )
    .map_err(|e| Failure::output(&e))
}

/// Writes all records; answers how many, and the key column where `import` would not guess it.
fn write(
    store: &Store,
    kind: Kind,
    file: &mut File,
    bar: &ProgressBar,
) -> io::Result<(u64, Option<String>)> {
    let mut out = BufWriter::with_capacity(256 << 10, file);
    let mut records = 0;
    let mut result = Ok(());
    let mut key_column = None;
    let mut step = |written: io::Result<()>| {
        records += 1;
        if records % 4096 == 0 {
            bar.set_position(records);
        }
        match written {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                result = Err(e);
                ControlFlow::Break(())
            }
        }
    };
    match kind {
        Kind::Jsonl => {
            let mut line = String::new();
            store.scan(&Range::ALL, false, |key, value| {
                line.clear();
                json::push_line(key, value, &mut line);
                line.push('\n');
                step(out.write_all(line.as_bytes()))
            });
        }
        Kind::Csv => {
            let mut survey = csv::Survey::new();
            store.scan(&Range::ALL, false, |key, value| {
                survey.see(key, value);
                ControlFlow::Continue(())
            });
            let plan = survey.plan();
            if let csv::Plan::Table { names, key } = &plan
                && *key > 0
            {
                key_column = Some(names[*key].clone());
            }
            plan.write_header(&mut out)?;
            store.scan(&Range::ALL, false, |key, value| {
                step(plan.write(key, value, &mut out))
            });
        }
    }
    result?;
    out.flush()?;
    Ok((records, key_column))
}
