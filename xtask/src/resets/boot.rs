//! One life of a machine: from power on until it is reset.

use super::medium::Medium;
use crate::machine::{self, Kernel};
use crate::tools::Outcome;
use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::process::Stdio;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long a disk that is to lose its power in a write may wait for one.
const NO_WRITE: Duration = Duration::from_secs(1);
/// How often it is asked.
const ASK: Duration = Duration::from_millis(5);
/// How many of its last lines are shown when a machine fails.
const LAST_LINES: usize = 60;
/// How long a failed machine may go on, to say more.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// The same for every boot.
pub struct Boot {
    pub kernel: Kernel,
    pub initramfs: File,
    /// For the kernel's command line.
    pub append: String,
    /// The medium that the database has to be on.
    pub expected_medium: &'static str,
    /// How long a machine has until it is ready.
    pub timeout: Duration,
    /// Shows all that it prints.
    pub verbose: bool,
}

/// The moment of the reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As soon as the database was looked at.
    Ready,
    /// So long after the machine began to open the database.
    Opening(Duration),
    /// So long after the threads began to write.
    Load(Duration),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("at rest"),
            Self::Opening(after) => write!(f, "{} ms into opening", after.as_millis()),
            Self::Load(after) => write!(f, "{} ms under load", after.as_millis()),
        }
    }
}

/// What a machine has seen of the database.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    /// It was reset before.
    Nothing,
    /// Each thread's keys are whole, and as this transaction of it leaves them.
    Reached(Vec<u64>),
    /// Contents that there cannot be.
    Wrong(String),
    /// The machine failed.
    Failed(String),
}

/// A life of a machine.
pub struct Booted {
    pub seen: Seen,
    /// How long it took to mount the file system and to open the database.
    pub opening: Option<Duration>,
    /// Each thread's last transaction that has to be there.
    pub promised: Vec<u64>,
    /// How many transactions were acknowledged.
    pub acknowledged: u64,
}

enum Line {
    /// Of the load.
    Port(String),
    /// Of the kernel, of the first process, or of the emulator.
    Console(String),
}

/// A life, as far as it has come.
struct Life<'b> {
    boot: &'b Boot,
    began: Instant,
    end: End,
    reset_at: Option<Instant>,
    opening: Option<Instant>,
    found: Vec<u64>,
    /// Its last lines.
    lines: VecDeque<String>,
    booted: Booted,
}

impl Boot {
    /// Boots a machine and resets it: at the moment `end`, or after so many further writes of the
    /// disk.
    ///
    /// # Errors
    /// It does not start, or speaks nonsense.
    pub fn run(&self, medium: &Medium, fresh: bool, end: End, writes: u64) -> Outcome<Booted> {
        let create = if fresh { ",create" } else { "" };
        let mut command = machine::emulator(
            &self.kernel,
            &self.initramfs,
            &format!("{}{create}", self.append),
        );
        command
            .args(["-smp", "2", "-no-reboot"])
            .args(["-chardev", "file,id=console,path=/dev/stderr"])
            .args(["-serial", "chardev:console"])
            .args(["-chardev", "file,id=port,path=/dev/stdout"])
            .args(["-device", "virtio-serial-pci"])
            .args(["-device", "virtserialport,chardev=port"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let serving = medium.attach(&mut command)?;
        let mut machine = machine::start(&mut command)?;
        // It holds the emulator's ends of what is between us.
        drop(command);
        let (port, console) = (machine.0.stdout.take(), machine.0.stderr.take());
        let (port, console) = port.zip(console).ok_or("no pipes of the emulator")?;
        let (to, said) = mpsc::channel();
        let to_too = to.clone();
        machine::lines(port, move |line| to.send(Line::Port(line)).is_ok());
        machine::lines(console, move |line| {
            to_too.send(Line::Console(line)).is_ok()
        });

        let mut life = Life::new(self, end);
        let deadline = life.began + self.timeout;
        loop {
            let now = Instant::now();
            let until = life.reset_at.unwrap_or(deadline);
            if until <= now {
                break;
            }
            match said.recv_timeout(until - now) {
                Ok(line) => life.hear(line)?,
                Err(RecvTimeoutError::Timeout) if life.reset_at.is_none() => {
                    life.fail(format!(
                        "not ready in {} s; --timeout gives it longer",
                        self.timeout.as_secs()
                    ));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    life.fail("the machine ended by itself".to_owned());
                    break;
                }
            }
        }
        if matches!(end, End::Load(_) | End::Opening(_)) {
            medium.power_off_after(writes);
            let waits = Instant::now();
            while !medium.is_off() && waits.elapsed() < NO_WRITE {
                std::thread::sleep(ASK);
            }
            medium.power_off_after(0);
        }
        drop(machine);
        // What it had said before is in the pipes, and counts.
        for line in said {
            life.hear(line)?;
        }
        serving
            .join()
            .map_err(|_| "the thread of the medium panicked")??;
        Ok(life.booted)
    }
}

/// Returns true for messages about damage of the file system.
fn told_always(line: &str) -> bool {
    ["EXT4-fs", "corrupt"]
        .iter()
        .any(|what| line.contains(what))
}

impl<'b> Life<'b> {
    fn new(boot: &'b Boot, end: End) -> Self {
        Self {
            boot,
            began: Instant::now(),
            end,
            reset_at: None,
            opening: None,
            found: Vec::new(),
            lines: VecDeque::new(),
            booted: Booted {
                seen: Seen::Nothing,
                opening: None,
                promised: Vec::new(),
                acknowledged: 0,
            },
        }
    }

    fn fail(&mut self, what: String) {
        if !matches!(self.booted.seen, Seen::Wrong(_) | Seen::Failed(_)) {
            self.booted.seen = Seen::Failed(what);
            self.reset_at = Some(Instant::now() + LAST_WORDS);
            for line in self.lines.drain(..) {
                println!("{line}");
            }
        }
    }

    /// Shows a line now, or when the machine fails.
    fn note(&mut self, line: &str) {
        let line = format!("[{:6.1} s] {line}", self.began.elapsed().as_secs_f64());
        let failed = matches!(self.booted.seen, Seen::Failed(_));
        if self.boot.verbose || failed || told_always(&line) {
            println!("{line}");
            return;
        }
        if self.lines.len() == LAST_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    fn hear(&mut self, line: Line) -> Outcome {
        match line {
            Line::Port(line) => {
                // Not each acknowledgement.
                if !line.starts_with(|c: char| c.is_ascii_digit()) {
                    self.note(&format!("load: {line}"));
                }
                self.port(&line)
            }
            Line::Console(line) => {
                self.note(&line);
                if let Some((_, said)) = line.split_once("vm: ") {
                    if said == "opening" {
                        let now = Instant::now();
                        self.opening = Some(now);
                        if let End::Opening(after) = self.end {
                            self.reset_at = Some(now + after);
                        }
                    } else if said.starts_with("FAIL") {
                        self.fail(said.to_owned());
                    }
                } else if line.contains("Kernel panic") {
                    self.fail(line);
                }
                Ok(())
            }
        }
    }

    fn port(&mut self, line: &str) -> Outcome {
        let nonsense = || format!("the load says {line:?}");
        let numbers = |text: &str| {
            let (thread, number) = text.split_once(' ')?;
            Some((thread.parse::<usize>().ok()?, number.parse::<u64>().ok()?))
        };
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "opened" if rest == self.boot.expected_medium => {
                self.booted.opening = self.opening.map(|opening| opening.elapsed());
            }
            "opened" => {
                return Err(format!(
                    "the database is on the medium {rest}, not {}",
                    self.boot.expected_medium
                ));
            }
            "found" => match numbers(rest) {
                Some((thread, number)) if thread == self.found.len() => self.found.push(number),
                _ => return Err(nonsense()),
            },
            "ready" => {
                let now = Instant::now();
                self.booted.promised = self.found.clone();
                self.booted.seen = Seen::Reached(self.found.clone());
                match self.end {
                    End::Ready => self.reset_at = Some(now),
                    End::Load(after) => self.reset_at = Some(now + after),
                    End::Opening(_) => {}
                }
            }
            "wrong" => {
                self.booted.seen = Seen::Wrong(rest.to_owned());
                self.reset_at = Some(Instant::now());
            }
            _ => {
                let (thread, number) = numbers(line).ok_or_else(nonsense)?;
                let promised = self.booted.promised.get_mut(thread).ok_or_else(nonsense)?;
                // A thread's transactions are acknowledged one after the other.
                if number != *promised + 1 {
                    return Err(nonsense());
                }
                *promised = number;
                self.booted.acknowledged += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(end: End, lines: &[&str]) -> Outcome<(Booted, bool)> {
        let boot = Boot {
            kernel: Kernel {
                image: "none".into(),
                modules: "none".into(),
            },
            initramfs: tempfile::tempfile().unwrap(),
            append: String::new(),
            expected_medium: "journal",
            timeout: Duration::from_secs(1),
            verbose: false,
        };
        let mut life = Life::new(&boot, end);
        for line in lines {
            life.hear(match line.strip_prefix("console: ") {
                Some(line) => Line::Console(line.to_owned()),
                None => Line::Port((*line).to_owned()),
            })?;
        }
        Ok((life.booted, life.reset_at.is_some()))
    }

    const READY: [&str; 5] = [
        "console: vm: opening",
        "opened journal",
        "found 0 5",
        "found 1 0",
        "ready",
    ];

    #[test]
    fn acknowledgements_are_counted_by_thread() {
        let load = End::Load(Duration::from_secs(1));
        let (booted, reset) = heard(load, &READY[..4]).unwrap();
        assert!(booted.opening.is_some() && !reset);
        assert_eq!(booted.seen, Seen::Nothing);
        let lines = [&READY[..], &["1 1", "0 6", "1 2"]].concat();
        let (booted, reset) = heard(load, &lines).unwrap();
        assert!(reset);
        assert_eq!(booted.seen, Seen::Reached(vec![5, 0]));
        assert_eq!((booted.promised, booted.acknowledged), (vec![6, 2], 3));
        for nonsense in ["1 2", "2 1", "1 x", "hello", "found 7 1", "opened dax"] {
            let lines = [&READY[..], &[nonsense]].concat();
            assert!(heard(load, &lines).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn moments_and_failures_are_heard() {
        let opening = End::Opening(Duration::from_secs(1));
        assert!(heard(opening, &READY[..1]).unwrap().1);
        assert!(!heard(End::Ready, &READY[..1]).unwrap().1);
        assert!(heard(End::Ready, &READY).unwrap().1);
        let seen = |lines: &[&str]| heard(End::Ready, lines).unwrap().0.seen;
        let wrong = [
            "opened journal",
            "wrong a key",
            "console: vm: FAIL status 1",
        ];
        assert_eq!(seen(&wrong), Seen::Wrong("a key".to_owned()));
        let failed = ["console: vm: FAIL exit status 2"];
        assert_eq!(seen(&failed), Seen::Failed("FAIL exit status 2".to_owned()));
        let panic = ["console: [1.0] Kernel panic - not syncing"];
        assert!(matches!(seen(&panic), Seen::Failed(_)));
    }
}
