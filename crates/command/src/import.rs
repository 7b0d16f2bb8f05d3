//! `import`: rows of a file into a pool, in batches, and how to go on after a bad line.

use crate::args::ImportArgs;
use crate::failure::{Failure, Outcome};
use crate::records::{Records, Written};
use crate::rows::{self, Kind, Row, RowError};
use crate::signals::Asked;
use crate::text::{duration, grouped, program, quoted, rate, shell_path, shell_word};
use crate::{MAX_KEY, MAX_VALUE, print_json, print_report, progress};
use serde::Serialize;
use signal_hook::low_level::signal_name;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// Loads a file into the records that `open` opens. A malformed row stops the import; `keyspace` is
/// repeated in the command that the message gives for going on.
///
/// # Errors
/// The file or the pool cannot be opened, a row is malformed, or the pool does not take it.
/// Everything before that row is stored and durable.
pub fn run(
    args: &ImportArgs,
    keyspace: Option<&str>,
    open: impl FnOnce() -> Outcome<Box<dyn Records>>,
) -> Outcome {
    let kind = kind_of(&args.file, "import")?;
    let file = File::open(&args.file).map_err(|e| Failure::io(&args.file, "opening", &e))?;
    let about = file
        .metadata()
        .map_err(|e| Failure::io(&args.file, "opening", &e))?;
    if about.is_dir() {
        return Err(Failure::new(format!(
            "{}: a directory; expected a .csv or .jsonl file",
            args.file.display()
        )));
    }
    let bar = progress::file("importing", about.len());
    let rows = rows::read(
        kind,
        bar.wrap_read(file),
        args.key.as_deref(),
        args.from_line,
    )
    .map_err(|e| Failure::new(format!("{}:{}: {}", args.file.display(), e.line, e.what)))?;
    let records = open()?;
    let asked = Asked::by_signals()?;
    let started = Instant::now();
    let mut tally = Tally::default();
    let rows = rows.map(|row| {
        let row = row?;
        match asked.signal() {
            None => Ok(row),
            Some(signal) => Err(Stop::Ended {
                line: row.line,
                signal,
            }),
        }
    });
    let result = load(&*records, rows, BATCH_ROWS, &mut tally, |tally| {
        bar.set_message(format!(
            "{} rows, {}/s",
            grouped(tally.rows),
            rate(tally.rows, started.elapsed())
        ));
        Ok(())
    });
    // Whatever the durability level, what was imported is synced when this returns.
    let closed = records.close();
    let took = started.elapsed();
    bar.finish_and_clear();
    let (RowError { line, what }, remedy, ended_by) = match result {
        Ok(()) => {
            closed?;
            let text = format_args!("imported {}", tally.summary(took));
            return print_report(&text, &tally.report(took, None), args.json);
        }
        Err(Stop::Output(failure)) => return Err(failure),
        Err(Stop::Row(error)) => (error, "put the line right, then ", None),
        Err(Stop::Store(error)) => (error, "see to that, then ", None),
        Err(Stop::Ended { line, signal }) => {
            let by = signal_name(signal).unwrap_or("a signal");
            let what = format!("ended by {by} before this line");
            (RowError { line, what }, "", Some(signal))
        }
    };
    let message = stopped(args, keyspace, (line, &what), remedy, &tally, &closed);
    if args.json && closed.is_ok() {
        // Its reader may have been ended by the same signal. The message is what counts.
        let _ = print_json(&tally.report(took, Some(line)));
    }
    Err(match ended_by {
        Some(signal) => Failure::Ended { signal, message },
        None => Failure::new(message),
    })
}

/// Returns the kind of file that `verb` reads or writes.
///
/// # Errors
/// Its extension names none.
pub fn kind_of(file: &Path, verb: &str) -> Outcome<Kind> {
    Kind::of(file).ok_or_else(|| {
        Failure::Usage(format!(
            "{}: {verb} tells the format by the extension, which must be .csv or .jsonl",
            file.display()
        ))
    })
}

fn stopped(
    args: &ImportArgs,
    keyspace: Option<&str>,
    (line, what): (u64, &str),
    remedy: &str,
    tally: &Tally,
    closed: &Outcome,
) -> String {
    let mut message = format!("{}:{line}: {what}", args.file.display());
    if let Err(Failure::Message(e)) = closed {
        let _ = write!(message, "\n  and then: {e}");
        return message;
    }
    let from = if line > args.from_line && args.from_line > 1 {
        format!(" from line {} on", args.from_line)
    } else {
        String::new()
    };
    let _ = write!(
        message,
        "\n  everything before that line{from} is in the pool and durable ({} rows)\n  {remedy}go on with: {} import {} {}",
        grouped(tally.rows),
        program(),
        shell_path(&args.pool),
        shell_path(&args.file),
    );
    if let Some(key) = &args.key {
        let _ = write!(message, " --key {}", shell_word(key));
    }
    if let Some(keyspace) = keyspace {
        let _ = write!(message, " --keyspace {}", shell_word(keyspace));
    }
    let _ = write!(message, " --from-line {line}");
    message
}

/// Rows per batch: large enough to make the cost of a sync small.
const BATCH_ROWS: usize = 1024;
/// Bytes at which a batch is written whatever its rows.
const BATCH_BYTES: usize = 4 << 20;

/// The result of an import.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Rows stored.
    pub rows: u64,
    new: u64,
    replaced: u64,
}

/// `import --json`
#[derive(Serialize)]
struct Report {
    rows: u64,
    new: u64,
    replaced: u64,
    unchanged: u64,
    seconds: f64,
    /// The first line that was not imported; none at the end of the file.
    stopped_at_line: Option<u64>,
}

impl Tally {
    fn unchanged(&self) -> u64 {
        self.rows - self.new - self.replaced
    }

    fn report(&self, took: Duration, stopped_at_line: Option<u64>) -> Report {
        Report {
            rows: self.rows,
            new: self.new,
            replaced: self.replaced,
            unchanged: self.unchanged(),
            seconds: took.as_secs_f64(),
            stopped_at_line,
        }
    }

    /// Returns the counts in words, with the rate.
    #[must_use]
    pub fn summary(&self, took: Duration) -> String {
        format!(
            "{} rows in {} ({} rows/s): {} new keys, {} replaced, {} unchanged",
            grouped(self.rows),
            duration(took),
            rate(self.rows, took),
            grouped(self.new),
            grouped(self.replaced),
            grouped(self.unchanged()),
        )
    }
}

/// Why an import stopped.
pub enum Stop {
    /// A row was wrong.
    Row(RowError),
    /// The pool did not take a row.
    Store(RowError),
    /// Telling about it failed.
    Output(Failure),
    /// A signal asked for it.
    Ended {
        /// The first line that was not imported.
        line: u64,
        /// The signal's number.
        signal: i32,
    },
}

impl From<RowError> for Stop {
    fn from(error: RowError) -> Self {
        Self::Row(error)
    }
}

/// Rows gathered for one multi-row write, each key once.
#[derive(Default)]
struct Batch {
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    lines: Vec<u64>,
    places: HashMap<Vec<u8>, usize>,
    bytes: usize,
    /// Rows whose key came again in the same batch: they were replaced before they were written.
    repeats: u64,
}

impl Batch {
    fn add(&mut self, row: Row) {
        self.bytes += row.key.len() + row.value.len();
        if let Some(&place) = self.places.get(&row.key) {
            self.pairs[place].1 = row.value;
            self.repeats += 1;
            return;
        }
        self.places.insert(row.key.clone(), self.pairs.len());
        self.pairs.push((row.key, row.value));
        self.lines.push(row.line);
    }

    fn write(&mut self, records: &dyn Records, tally: &mut Tally) -> Result<(), RowError> {
        let mut wrong: Option<RowError> = None;
        let written = records.put_all(&self.pairs);
        for (line, result) in self.lines.iter().zip(written) {
            match result {
                Ok(became) => {
                    // Rows after a failed one are not counted: the import goes on from it.
                    if wrong.is_none() {
                        tally.rows += 1;
                        tally.new += u64::from(became == Written::New);
                        tally.replaced += u64::from(became == Written::Replaced);
                    }
                }
                Err(failure) if wrong.is_none() => {
                    let what = failure.message().unwrap_or("not stored").to_owned();
                    wrong = Some(RowError { line: *line, what });
                }
                Err(_) => {}
            }
        }
        if wrong.is_none() {
            tally.rows += self.repeats;
            tally.replaced += self.repeats;
        }
        *self = Self::default();
        wrong.map_or(Ok(()), Err)
    }
}

/// Stores rows, `batch_rows` at a time, and calls `after` behind each batch, when it is durable.
/// Stops at the first row that is wrong, with everything before it stored.
///
/// # Errors
/// [`Stop`]
pub fn load<E: Into<Stop>>(
    records: &dyn Records,
    rows: impl Iterator<Item = Result<Row, E>>,
    batch_rows: usize,
    tally: &mut Tally,
    mut after: impl FnMut(&Tally) -> Outcome,
) -> Result<(), Stop> {
    let mut batch = Batch::default();
    for row in rows {
        let row = match row.map_err(E::into).and_then(|row| Ok(fitting(row)?)) {
            Ok(row) => row,
            Err(stop) => {
                batch.write(records, tally).map_err(Stop::Store)?;
                return Err(stop);
            }
        };
        batch.add(row);
        if batch.pairs.len() >= batch_rows || batch.bytes >= BATCH_BYTES {
            batch.write(records, tally).map_err(Stop::Store)?;
            after(tally).map_err(Stop::Output)?;
        }
    }
    batch.write(records, tally).map_err(Stop::Store)?;
    after(tally).map_err(Stop::Output)
}

/// The row, if a pool can hold it.
fn fitting(row: Row) -> Result<Row, RowError> {
    let (key, value) = (row.key.len(), row.value.len());
    let too_long = |what: &str, len: usize, most: usize| {
        Err(RowError {
            line: row.line,
            what: format!(
                "key {}: the {what} has {len} bytes; the most is {most}",
                quoted(&row.key)
            ),
        })
    };
    if key > MAX_KEY {
        return too_long("key", key, MAX_KEY);
    }
    if value > MAX_VALUE {
        return too_long("value", value, MAX_VALUE);
    }
    Ok(row)
}
