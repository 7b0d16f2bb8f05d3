//! The load of `cargo run -p xtask -- resets`: it runs in a virtual machine that is reset.
//!
//! ```text
//! reset_load DATABASE SEED THREADS [create] [early]      a database in this process
//! reset_load ADDRESS:PORT SEED THREADS [create] [early]  a server, by Redis' protocol
//! ```
//!
//! It opens the database, checks it, compares all that it holds with the transactions that can have
//! led there ([`plan`]), and goes on with them in several threads until the machine is reset. Lines
//! on standard output:
//!
//! ```text
//! opened MEDIUM     about to be checked
//! found T N         the keys of thread T are as transaction N of it leaves them
//! ready             threads begin
//! T N               transaction N of thread T was acknowledged
//! wrong TEXT        the content is none that there can be; the last line
//! ```
//!
//! A line about a transaction is written once its call has returned. Some lines may be in the
//! kernel's queue when the machine is reset. With `early`, an error that is planted, a line is
//! written before the call.

mod database;
#[path = "../../src/resets/draw.rs"]
mod draw;
mod plan;
mod server;

use plan::{Content, Step};
use std::io::Write;
use std::process::ExitCode;

/// What the transactions go to.
trait Target: Sync {
    /// The name of the medium.
    fn medium(&self) -> Result<String, String>;

    /// Verifies it, and returns all that it holds.
    fn check(&self) -> Result<Content, String>;

    /// A thread's access to it.
    fn client(&self) -> Result<Box<dyn Client>, String>;
}

/// A thread's access to the target.
trait Client {
    /// Returns when the transaction is durable.
    fn commit(&mut self, thread: u16, step: &Step) -> Result<(), String>;
}

struct Arguments {
    target: String,
    seed: u64,
    threads: u16,
    create: bool,
    early: bool,
}

fn arguments() -> Option<Arguments> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [target, seed, threads, flags @ ..] = &args[..] else {
        return None;
    };
    flags
        .iter()
        .all(|f| f == "create" || f == "early")
        .then_some(())?;
    let given = |flag| flags.iter().any(|f| f == flag);
    Some(Arguments {
        target: target.clone(),
        seed: seed.parse().ok()?,
        threads: threads.parse().ok().filter(|n| *n > 0)?,
        create: given("create"),
        early: given("early"),
    })
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("usage: reset_load DATABASE|ADDRESS:PORT SEED THREADS [create] [early]");
        return ExitCode::from(2);
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // If it cannot be said, nobody listens.
            let _ = say(&format!("wrong {}", e.replace('\n', "; ")));
            ExitCode::FAILURE
        }
    }
}

/// Writes a line with one system call.
fn say(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    let said = out.write_all(format!("{line}\n").as_bytes());
    said.and_then(|()| out.flush())
        .map_err(|e| format!("standard output: {e}"))
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let Arguments { seed, threads, .. } = *arguments;
    let target: Box<dyn Target> = if arguments.target.starts_with('/') {
        Box::new(database::Opened::new(&arguments.target, arguments.create)?)
    } else {
        Box::new(server::Served::new(&arguments.target)?)
    };
    say(&format!("opened {}", target.medium()?))?;
    let reached = compared(&target.check()?, seed, threads)?;
    for (thread, number) in reached.iter().enumerate() {
        say(&format!("found {thread} {number}"))?;
    }
    say("ready")?;
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .zip(reached)
            .map(|(thread, reached)| {
                let target = &*target;
                scope.spawn(move || {
                    let mut client = target.client()?;
                    for number in reached + 1.. {
                        let step = plan::step(seed, thread, number);
                        let acknowledge = || say(&format!("{thread} {number}"));
                        if arguments.early {
                            acknowledge()?;
                        }
                        client
                            .commit(thread, &step)
                            .map_err(|e| format!("transaction {number} of thread {thread}: {e}"))?;
                        if !arguments.early {
                            acknowledge()?;
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        running.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err("a thread panicked".to_owned()))
        })
    })
}

/// Returns how far each thread came, if the content is what these transactions leave, wholly.
fn compared(content: &Content, seed: u64, threads: u16) -> Result<Vec<u64>, String> {
    let reached = (0..threads).map(|thread| match content.get(&plan::marker(thread)) {
        None => Ok(0),
        Some(value) => plan::number(value).ok_or(format!("the marker of thread {thread} is short")),
    });
    let reached: Vec<u64> = reached.collect::<Result<_, _>>()?;
    // A number that was never reached would take for ever to recompute.
    if let Some(thread) = reached.iter().position(|n| *n > 10_000_000) {
        return Err(format!(
            "thread {thread} is said to be at transaction {}",
            reached[thread]
        ));
    }
    let expected = plan::content(seed, &reached);
    if *content == expected {
        return Ok(reached);
    }
    let keys = expected.keys().chain(content.keys());
    let mut wrong: Vec<_> = keys
        .filter(|key| content.get(*key) != expected.get(*key))
        .collect();
    wrong.sort_unstable();
    wrong.dedup();
    let described = |key: &Vec<u8>| {
        let shown = |value: Option<&Vec<u8>>| match value {
            None => "nothing".to_owned(),
            Some(v) => format!(
                "{} bytes ({}...)",
                v.len(),
                v[..v.len().min(12)].escape_ascii()
            ),
        };
        format!(
            "{}: {} instead of {}",
            key.escape_ascii(),
            shown(content.get(key)),
            shown(expected.get(key))
        )
    };
    let first: Vec<String> = wrong.iter().take(5).map(|key| described(key)).collect();
    Err(format!(
        "{} keys are not as transactions {reached:?} of the threads leave them: {}",
        wrong.len(),
        first.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REACHED: [u64; 3] = [40, 0, 60];

    fn wrong(change: impl FnOnce(&mut Content)) -> String {
        let mut content = plan::content(7, &REACHED);
        change(&mut content);
        compared(&content, 7, 3).unwrap_err()
    }

    #[test]
    fn contents_are_what_the_transactions_leave() {
        let mut content = Content::new();
        let mut counts = [0; 3];
        for (thread, reached) in (0..).zip(REACHED) {
            for number in 1..=reached {
                let step = plan::step(7, thread, number);
                counts[usize::from(thread)] += u64::from(step.counts);
                for (key, value) in step.changes {
                    match value {
                        Some(value) => content.insert(key, value),
                        None => content.remove(&key),
                    };
                }
            }
        }
        assert!(counts[0] > 0 && counts[1] == 0 && counts[2] > 0);
        for thread in [0, 2] {
            let count = counts[usize::from(thread)].to_string();
            content.insert(plan::counter(thread), count.into_bytes());
        }
        let sum = counts.iter().sum::<u64>().to_string();
        content.insert(plan::SHARED.to_vec(), sum.into_bytes());
        assert_eq!(compared(&content, 7, 3), Ok(REACHED.to_vec()));
        assert_eq!(compared(&Content::new(), 7, 3), Ok(vec![0; 3]));
    }

    #[test]
    fn other_contents_are_wrong() {
        let told = wrong(|content| {
            let key = content
                .keys()
                .find(|key| key.starts_with(b"0/short"))
                .cloned();
            content.remove(&key.unwrap());
        });
        assert!(
            told.contains("1 keys") && told.contains("nothing instead of"),
            "{told}"
        );
        let told = wrong(|content| {
            let long = content.iter_mut().find(|(_, value)| value.len() > 10_000);
            let (_, value) = long.unwrap();
            let last = value.len() - 1;
            value[last] ^= 1;
        });
        assert!(told.contains("1 keys") && told.contains("/long/"), "{told}");
        wrong(|content| drop(content.insert(b"1/short/0001".to_vec(), b"x".to_vec())));
        wrong(|content| drop(content.insert(plan::SHARED.to_vec(), b"1".to_vec())));
        // A marker without the rest of its transactions.
        wrong(|content| {
            let step = plan::step(7, 2, 75);
            let (key, value) = step.changes.into_iter().next_back().unwrap();
            content.insert(key, value.unwrap());
        });
        wrong(|content| drop(content.insert(plan::marker(1), b"short".to_vec())));
        wrong(|content| drop(content.insert(plan::marker(1), vec![0xff; 8])));
    }
}
