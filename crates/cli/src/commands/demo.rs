//! `demo`: the main job on real data, told in under forty lines.

use crate::args::{Demo, DemoWriter};
use crate::contents::{Contents, close};
use crate::database::{self, DEFAULT};
use bristlecone::Database;
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::import::{Stop, Tally, load};
use bristlecone_command::pool::{How, files_of};
use bristlecone_command::process::{kill, spawn_self};
use bristlecone_command::records::{Range, Records, survival};
use bristlecone_command::rows::{self, Kind, Row, RowError};
use bristlecone_command::scratch::{Purpose, Scratch, Unfinished};
use bristlecone_command::signals::remove_temporary_files_on_signals;
use bristlecone_command::text::{
    bytes, duration, escape, grouped, program, quoted, rate, shell_path,
};
use rand::RngExt;
use std::collections::HashMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// 34,006 cities; see `data/README.md` for source and licence.
const CITIES: &[u8] = include_bytes!("../../data/cities.csv");
const CITY: &[u8] = b"FR/Lyon/2996944";
const PREFIX: &[u8] = b"IS/";
/// Rows that the writer stores and acknowledges at a time.
const WRITER_ROWS: usize = 32;

/// Shows the main job.
pub fn run(args: &Demo) -> Outcome {
    let mut out = io::stdout().lock();
    show(args, &mut out)
}

macro_rules! say {
    ($out:expr) => { writeln!($out).map_err(|e| Failure::output(&e)) };
    ($out:expr, $($arg:tt)*) => { writeln!($out, $($arg)*).map_err(|e| Failure::output(&e)) };
}

fn show(args: &Demo, out: &mut impl Write) -> Outcome {
    remove_temporary_files_on_signals()?;
    let (cities, killed, pools) = places(args.dir.as_deref())?;
    let shown = show_with(&cities, &killed, args, out);
    // Also after a failure, whose cause is to be found in them.
    pools.keep();
    shown
}

fn create(path: &Path, how: How) -> Outcome<Database> {
    database::create(path, how)
}

fn show_with(cities: &Path, killed: &Path, args: &Demo, out: &mut impl Write) -> Outcome {
    say!(
        out,
        "Bristlecone keeps records in key order and loses no acknowledged write.\n"
    )?;

    let how = How::durable(None);
    let store = Contents::named(cities, create(cities, how)?, DEFAULT)?;
    let medium = store.database().medium();
    say!(out, "1. A database is one file: {}", cities.display())?;
    say!(
        out,
        "   Medium {}, by what the path offers; {}.\n",
        medium.name(),
        survival(medium)
    )?;

    let mut tally = Tally::default();
    let started = Instant::now();
    load(&store, city_rows()?, 1024, &mut tally, |_| Ok(())).map_err(stopped)?;
    say!(
        out,
        "2. Import of the bundled cities.csv (GeoNames, CC BY 4.0):"
    )?;
    say!(out, "   {}\n", tally.summary(started.elapsed()))?;

    look_around(&store, out)?;
    let total = entries(&store)?;
    Box::new(store).close()?;

    let acknowledged = kill_a_writer(killed, total, out)?;
    recover(killed, &acknowledged, total, out)?;

    let (pool, program) = (shell_path(cities), program());
    say!(out, "Yours to try (the pools stay where they are):")?;
    say!(out, "   {program} scan {pool} --prefix JP/T --limit 5")?;
    say!(
        out,
        "   {program} put {pool} note/1 'hello' && {program} get {pool} note/1"
    )?;
    say!(out, "   {program} info {pool}")?;
    say!(out, "   {program} check {}", shell_path(killed))?;
    say!(
        out,
        "   {program} torture --medium {} --kills 20",
        torturable(medium)
    )?;
    if args.dir.is_none() {
        let folder = cities.parent().unwrap_or(cities);
        say!(
            out,
            "   rm -r {}    # when you have seen enough",
            shell_path(folder)
        )?;
    }
    Ok(())
}

fn torturable(medium: bristlecone_pmem::MediumKind) -> &'static str {
    match medium {
        bristlecone_pmem::MediumKind::Journal => "journal",
        _ => "mapped",
    }
}

/// The files that go if a signal ends the demo.
enum Pools {
    /// Both are in a directory of their own.
    Directory(Scratch),
    /// They are in a directory of the user's.
    Files(Unfinished),
}

impl Pools {
    fn keep(self) {
        match self {
            Self::Directory(dir) => {
                let _ = dir.keep();
            }
            Self::Files(files) => files.keep(),
        }
    }
}

/// Paths of the two pools: in `dir` under names that are free, else in a new directory.
fn places(dir: Option<&Path>) -> Outcome<(PathBuf, PathBuf, Pools)> {
    let Some(dir) = dir else {
        let parent = std::env::temp_dir();
        let dir = Scratch::new(&parent, Purpose::Demo)
            .map_err(|e| Failure::io(&parent, "making a directory in it", &e))?;
        let [cities, killed] = ["cities.pool", "killed.pool"].map(|name| dir.path().join(name));
        return Ok((cities, killed, Pools::Directory(dir)));
    };
    fs::create_dir_all(dir).map_err(|e| Failure::io(dir, "making the directory", &e))?;
    let name = |what: &str, n: u32| match n {
        1 => dir.join(format!("{what}.pool")),
        n => dir.join(format!("{what}-{n}.pool")),
    };
    let (cities, killed) = (1..1000)
        .map(|n| (name("cities", n), name("killed", n)))
        .find(|(a, b)| !a.exists() && !b.exists())
        .ok_or_else(|| {
            Failure::new(format!(
                "{}: full of pools of earlier demos; remove some of them",
                dir.display()
            ))
        })?;
    let files = [&cities, &killed]
        .into_iter()
        .flat_map(|pool| files_of(pool));
    let files = Unfinished::new(files.filter(|file| !file.exists()));
    Ok((cities, killed, Pools::Files(files)))
}

/// Counts the keys.
fn entries(store: &Contents) -> Outcome<u64> {
    let mut keys = 0;
    store.scan(&Range::ALL, false, &mut |_, _| {
        keys += 1;
        ControlFlow::Continue(())
    })?;
    Ok(keys)
}

fn city_rows() -> Outcome<rows::Rows<'static>> {
    rows::read(Kind::Csv, CITIES, None, 1).map_err(|e| bundled(&e))
}

fn bundled(error: &RowError) -> Failure {
    Failure::new(format!("bundled cities.csv:{}: {}", error.line, error.what))
}

fn stopped(stop: Stop) -> Failure {
    match stop {
        Stop::Row(error) | Stop::Store(error) => bundled(&error),
        Stop::Output(failure) => failure,
        // The demo ends by a signal as any process does.
        Stop::Ended { line, .. } => Failure::new(format!("ended before row {line}")),
    }
}

fn look_around(store: &Contents, out: &mut impl Write) -> Outcome {
    let value = store
        .get(CITY)?
        .ok_or_else(|| Failure::new(format!("{} is not there after the import", quoted(CITY))))?;
    say!(out, "3. Look up {}:", quoted(CITY))?;
    say!(out, "   {}\n", escape(&value))?;

    let range = Range::new(None, None, Some(PREFIX));
    for (reverse, way) in [(false, "upwards"), (true, "downwards")] {
        let (mut keys, mut first) = (0, Vec::new());
        store.scan(&range, reverse, &mut |key, _| {
            keys += 1;
            if first.len() < 4 {
                first.push(escape(key));
            }
            ControlFlow::Continue(())
        })?;
        if !reverse {
            say!(
                out,
                "4. Scan the prefix {} ({keys} keys), both ways:",
                quoted(PREFIX)
            )?;
        }
        say!(out, "   {way:<9} {}, …", first.join(", "))?;
    }
    say!(out)
}

/// Starts the import once more, in another process on another pool, kills it on the way, and
/// answers the keys that it had acknowledged.
fn kill_a_writer(pool: &Path, total: u64, out: &mut impl Write) -> Outcome<Vec<Vec<u8>>> {
    close(pool, create(pool, How::durable(None))?)?;
    let mut child = spawn_self(|command| {
        command.arg("demo-writer").arg(pool);
    })?;
    let pipe = child
        .stdout
        .take()
        .ok_or_else(|| Failure::new("the writer has no output"))?;
    // A short pipe keeps the writer from running far ahead of its acknowledgements. Where the
    // system refuses, the writer is killed a little later.
    let _ = rustix::pipe::fcntl_setpipe_size(&pipe, 4096);
    let stop_at = rand::rng().random_range(total * 3 / 10..total * 6 / 10) as usize;
    let mut acknowledged = Vec::new();
    let mut status = None;
    // After the kill, what is left in the pipe was acknowledged too.
    for line in BufReader::with_capacity(4096, pipe).split(b'\n') {
        let key =
            line.map_err(|e| Failure::new(format!("reading the writer's output failed: {e}")))?;
        acknowledged.push(key);
        if acknowledged.len() >= stop_at && status.is_none() {
            status = Some(kill(&mut child)?);
        }
    }
    if status.is_none() {
        let status = kill(&mut child)?;
        return Err(Failure::new(format!(
            "the writer ended by itself ({status}) after {} rows",
            acknowledged.len()
        )));
    }
    say!(
        out,
        "5. The same import in another process, into {}:",
        pool.display()
    )?;
    say!(
        out,
        "   kill -9 on the way: it had acknowledged {} of {} rows.\n",
        grouped(acknowledged.len() as u64),
        grouped(total)
    )?;
    Ok(acknowledged)
}

/// Reopens the killed writer's pool and compares it with what was acknowledged.
fn recover(pool: &Path, acknowledged: &[Vec<u8>], total: u64, out: &mut impl Write) -> Outcome {
    let started = Instant::now();
    let store = Contents::default_of(pool, How::durable(None))?;
    let took = started.elapsed();
    let db = store.database();
    let info = db.store().pool().info();
    let rows = city_rows()?
        .map(|row| row.map(|Row { key, value, .. }| (key, value)))
        .collect::<Result<HashMap<_, _>, _>>()
        .map_err(|e| bundled(&e))?;
    let mut lost = 0;
    for key in acknowledged {
        let value = store.get(key)?;
        lost += u64::from(value.is_none() || rows.get(key) != value.as_ref());
    }
    let (mut there, mut strange) = (0u64, 0);
    store.scan(&Range::ALL, false, &mut |key, shown| {
        there += 1;
        strange += u64::from(rows.get(key).map(Vec::as_slice) != shown.value);
        ControlFlow::Continue(())
    })?;
    let verified = db.check();
    say!(
        out,
        "6. Reopened in {}: {} read from the journal, no key before it is asked for.",
        duration(took),
        bytes(info.media_recovery.bytes_read),
    )?;
    let acked = acknowledged.len() as u64;
    if lost > 0 || strange > 0 || there >= total {
        return Err(Failure::new(format!(
            "{}: {lost} acknowledged rows are not there, {strange} rows are not as they were written, {there} of {total} there in all",
            pool.display()
        )));
    }
    if let Err(violation) = verified {
        return Err(Failure::new(format!("{}: {violation}", pool.display())));
    }
    say!(
        out,
        "   Every acknowledged row is there: {0} of {0}, compared byte for byte.",
        grouped(acked)
    )?;
    say!(
        out,
        "   {} more that were under way are there whole; nothing is half there; the structure verifies.",
        grouped(there.saturating_sub(acked))
    )?;

    let mut tally = Tally::default();
    let started = Instant::now();
    load(&store, city_rows()?, 1024, &mut tally, |_| Ok(())).map_err(stopped)?;
    let took = started.elapsed();
    let entries = entries(&store)?;
    Box::new(store).close()?;
    say!(
        out,
        "   Importing again completes it: {} rows ({}/s), {} keys.\n",
        grouped(tally.rows),
        rate(tally.rows, took),
        grouped(entries)
    )
}

/// The process that `demo` kills: imports and writes each key to standard output once it is
/// durable.
pub fn writer(args: &DemoWriter) -> Outcome {
    let store = Contents::default_of(&args.pool, How::durable(None))?;
    let keys: Vec<Vec<u8>> = city_rows()?
        .map(|row| row.map(|r| r.key))
        .collect::<Result<_, _>>()
        .map_err(|e| bundled(&e))?;
    let mut sent = 0;
    let mut out = io::stdout().lock();
    load(
        &store,
        city_rows()?,
        WRITER_ROWS,
        &mut Tally::default(),
        |tally| {
            let stored = tally.rows as usize;
            let mut lines = Vec::new();
            for key in &keys[sent..stored] {
                lines.extend_from_slice(key);
                lines.push(b'\n');
            }
            sent = stored;
            // Line-buffered output is flushed here whole: every line ends with a line break.
            out.write_all(&lines)
                .and_then(|()| out.flush())
                .map_err(|e| Failure::output(&e))
        },
    )
    .map_err(stopped)?;
    // Done before the kill came: wait for it all the same.
    drop(out);
    std::thread::sleep(std::time::Duration::from_secs(60));
    Ok(())
}
