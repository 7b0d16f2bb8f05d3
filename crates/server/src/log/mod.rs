//! Structured logs on standard error or in a file, as text or as JSON.
//!
//! ```text
//! event --> throttle: 10 lines of a cause in 10 s --> queue of 4096 lines --> thread --> standard error, or the file
//!                  | others: counted                    | full: dropped, counted
//!                  +------------------------------------+--> report, once a second
//! ```
//!
//! Only the thread of the log waits for its destination: standard error may be a pipe without a
//! reader. Lines that do not fit into the queue are dropped. Both counts are logged later.

mod throttle;

use crate::config::{LogFormat, Settings};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use throttle::Throttle;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The most lines that wait to be written.
const QUEUE: usize = 4096;
/// How long the end of a process waits for lines that are not written yet.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it waits before it checks again whether the queue has room.
const PAUSE: Duration = Duration::from_millis(5);

/// The log of this process.
static LOG: OnceLock<Log> = OnceLock::new();

/// Why logs cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file cannot be opened: the setting is wrong.
    #[error("logfile {}: opening failed: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The thread that writes cannot be started.
    #[error("starting the thread of the log failed: {0}")]
    Thread(io::Error),
    /// Logs are set up already.
    #[error("logs are set up already")]
    Twice,
}

enum Message {
    Line(Vec<u8>),
    /// Reports that everything before it is written.
    End(SyncSender<()>),
}

/// The sending end of the queue.
#[derive(Clone, Debug)]
struct Queue {
    lines: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

/// Dropping this waits for the lines that are not written yet, for a second at most.
#[derive(Debug)]
#[must_use = "lines that are not written yet are lost with the process"]
pub struct Flush(());

#[derive(Debug)]
struct Log {
    queue: Queue,
    throttle: Throttle,
    /// Reopen the file before the next line.
    reopen: Arc<AtomicBool>,
    /// The number of dropped lines that was reported last.
    said: AtomicU64,
}

/// Sets up logs for the process, once.
///
/// # Errors
/// [`LogError`]; then nothing is set up.
pub fn start(settings: &Settings) -> Result<Flush, LogError> {
    let reopen: Arc<AtomicBool> = Arc::default();
    let place = match &settings.logfile {
        None => Place::StandardError,
        Some(path) => Place::File {
            file: open(path).map_err(|error| LogError::File {
                path: path.clone(),
                error,
            })?,
            path: path.clone(),
            reopen: Arc::clone(&reopen),
        },
    };
    let queue = Queue::start(place).map_err(LogError::Thread)?;
    let throttle = Throttle::default();
    let builder = tracing_subscriber::fmt()
        .with_writer(queue.clone())
        .with_ansi(false)
        .with_target(false)
        .with_max_level(settings.log_level);
    let done = match settings.log_format {
        LogFormat::Text => builder.finish().with(throttle.clone()).try_init(),
        LogFormat::Json => (builder.json().finish().with(throttle.clone())).try_init(),
    };
    done.map_err(|_| LogError::Twice)?;
    let log = Log {
        queue,
        throttle,
        reopen,
        said: AtomicU64::new(0),
    };
    LOG.set(log).map_err(|_| LogError::Twice)?;
    Ok(Flush(()))
}

/// Reopens the log's file before the next line, as after it was renamed.
pub fn reopen() {
    if let Some(log) = LOG.get() {
        // ORDERING: Release; pairs with the Acquire of `Place::write_line`.
        log.reopen.store(true, Ordering::Release);
    }
}

/// Logs how many lines were left out and dropped since the last report, of causes whose period has
/// ended.
pub fn report() {
    say(false);
}

fn say(all: bool) {
    let Some(log) = LOG.get() else { return };
    for (cause, lines) in log.throttle.take_left_out(all) {
        tracing::warn!(
            lines,
            cause,
            "more lines of this cause came than are written"
        );
    }
    // ORDERING: Relaxed; numbers for people.
    let dropped = log.queue.dropped.load(Ordering::Relaxed);
    // ORDERING: Relaxed; as above.
    let said = log.said.swap(dropped, Ordering::Relaxed);
    if said != dropped {
        // The total since the start: this line may be dropped, too, and the next one reports it
        // then.
        tracing::warn!(
            lines = dropped,
            "lines were dropped since the start: the log took them too slowly, or refused them"
        );
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        if let Some(log) = LOG.get() {
            say(true);
            log.queue.flush(PATIENCE);
        }
    }
}

impl Queue {
    fn start(mut place: Place) -> io::Result<Self> {
        let (lines, waiting) = sync_channel(QUEUE);
        let dropped: Arc<AtomicU64> = Arc::default();
        let lost = Arc::clone(&dropped);
        let thread = std::thread::Builder::new().name("log".into());
        // The thread ends with the process: it may be waiting for a reader that never comes.
        thread.spawn(move || write_all(&waiting, &mut place, &lost))?;
        Ok(Self { lines, dropped })
    }

    /// Waits until all lines sent before are written, up to that time.
    fn flush(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let (done, written) = sync_channel(1);
        let mut end = Message::End(done);
        while let Err(TrySendError::Full(back)) = self.lines.try_send(end) {
            if Instant::now() >= until {
                return;
            }
            end = back;
            std::thread::sleep(PAUSE);
        }
        // Lines that are not read by then are lost.
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

impl Write for Queue {
    /// Takes a whole line at once, as the formatter writes it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(Message::Line(line.to_vec())).is_err() {
            // ORDERING: Relaxed; a number for people.
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Queue {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// The destination of lines.
#[derive(Debug)]
enum Place {
    StandardError,
    File {
        file: File,
        path: PathBuf,
        reopen: Arc<AtomicBool>,
    },
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

impl Place {
    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            // `io::stderr()` has a lock, and other writers to it would wait as long as this one
            // does.
            Self::StandardError => write_to(rustix::stdio::stderr(), line),
            Self::File { file, path, reopen } => {
                // ORDERING: AcqRel; pairs with the Release of `reopen`.
                if reopen.swap(false, Ordering::AcqRel) {
                    match open(path) {
                        Ok(new) => *file = new,
                        // Lines go on into the previous file.
                        Err(e) => {
                            let path = path.display();
                            let text = format!("logfile {path}: opening it again failed: {e}\n");
                            // If this fails the line fails, too, and is counted.
                            let _ = file.write_all(text.as_bytes());
                        }
                    }
                }
                file.write_all(line)
            }
        }
    }
}

fn write_to(file: impl rustix::fd::AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(&file, bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn write_all(waiting: &Receiver<Message>, place: &mut Place, dropped: &AtomicU64) {
    while let Ok(message) = waiting.recv() {
        match message {
            Message::Line(line) => {
                // There is no other place to report it.
                if place.write_line(&line).is_err() {
                    // ORDERING: Relaxed; a number for people.
                    dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
            // The thread that asked may have stopped waiting.
            Message::End(done) => drop(done.try_send(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Standard error was a pipe without a reader: workers waited in `write`, and the server for
    /// them.
    #[test]
    fn nobody_waits_for_a_place_that_takes_nothing() {
        let (sender, _nobody_reads) = sync_channel(2);
        let mut queue = Queue {
            lines: sender,
            dropped: Arc::default(),
        };
        let start = Instant::now();
        for _ in 0..10 {
            queue.write_all(b"line\n").unwrap();
        }
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 8);
        queue.flush(Duration::from_millis(20));
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_renamed_file_is_left_and_another_one_begun() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let reopen: Arc<AtomicBool> = Arc::default();
        let mut place = Place::File {
            file: open(&path).unwrap(),
            path: path.clone(),
            reopen: Arc::clone(&reopen),
        };
        place.write_line(b"one\n").unwrap();
        let old = dir.path().join("old");
        std::fs::rename(&path, &old).unwrap();
        place.write_line(b"two\n").unwrap();
        reopen.store(true, Ordering::Release);
        place.write_line(b"three\n").unwrap();
        assert_eq!(std::fs::read(&old).unwrap(), b"one\ntwo\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"three\n");
    }

    #[test]
    fn all_lines_are_written_before_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut queue = Queue::start(Place::File {
            file: open(&path).unwrap(),
            path: path.clone(),
            reopen: Arc::default(),
        })
        .unwrap();
        for line in 0..1000 {
            writeln!(queue, "{line}").unwrap();
        }
        queue.flush(Duration::from_secs(20));
        let lines = std::fs::read_to_string(&path).unwrap();
        assert_eq!(lines.lines().last(), Some("999"));
    }
}
