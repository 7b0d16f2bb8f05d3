//! `torture --server`: kill `bristlecone serve` at random moments under many clients.
//!
//! A round: clients write, some with several commands on their way, and note what was answered; the
//! server is killed with SIGKILL; another one is started on the pool, now and then after one more
//! that was killed while it was starting; every key is read. Commands on their way are done in
//! their order, so a client's keys must be what the answered commands left, or what those and the
//! first few of the others left.

mod plan;

use crate::args::Torture;
use crate::client::{Client, Reply};
use crate::database;
use crate::server::Server;
use bristlecone::{Database, Durability, Until};
use bristlecone_command::args::{TortureArgs, durability_text};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::pool::How;
use bristlecone_command::process::kill;
use bristlecone_command::torture::{Findings, Report, Tally, in_round};
use plan::{Plan, SHARED, State, Unit};
use rand::RngExt;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// How long the clients may take until each was answered once.
const MAX_BEGIN: Duration = Duration::from_secs(120);

/// A client's state when the server died.
#[derive(Default)]
struct Work {
    acknowledged: u64,
    /// The commands that were answered, in their order.
    done: Vec<Unit>,
    /// The commands that were on their way, in their order.
    open: VecDeque<Unit>,
    /// Replies that are wrong.
    wrong: Vec<String>,
}

/// Runs the rounds.
pub fn rounds(args: &Torture, pool: &Path) -> Outcome<Report> {
    let archive = args.archive.then(|| pool.with_extension("archive"));
    let durability = args.durability;
    let tls = args.tls_cert.as_deref().zip(args.tls_key.as_deref());
    let trusted = args.tls_cert.as_deref();
    let args = &args.torture;
    let started = Instant::now();
    let seed = args.seed.unwrap_or_else(rand::random);
    let clients = args.threads.unwrap_or(16);
    let mut arguments = [
        "--medium".to_owned(),
        args.medium.name().to_owned(),
        "--durability".to_owned(),
        durability_text(durability),
    ]
    .to_vec();
    if let Some(archive) = &archive {
        let dir = archive.display().to_string();
        arguments.extend(["--archive".to_owned(), dir]);
        // A full state now and then, and many rounds.
        for set in ["archive-every=7ms", "archive-full-every=300ms"] {
            arguments.extend(["--set".to_owned(), set.to_owned()]);
        }
    }
    if let Some((cert, key)) = tls {
        let [cert, key] = [cert, key].map(|file| file.display().to_string());
        let listen = "127.0.0.1:0".to_owned();
        for (name, value) in [("listen", listen), ("cert", cert), ("key", key)] {
            arguments.extend([format!("--tls-{name}"), value]);
        }
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut states = vec![State::default(); usize::from(clients)];
    let mut tally = Tally::new(args.kills);
    let mut server = Server::start(pool, &arguments)?;
    for round in 1..=args.kills {
        let named = |e: &Failure| in_round(round, e);
        let mut findings = Findings::default();
        let before = states.clone();
        let mut work =
            write_and_kill(server, trusted, &mut states, seed, round).map_err(|e| named(&e))?;
        if durability != Durability::Immediate {
            // Answered commands may be lost too, the last ones first.
            for work in &mut work {
                work.open = work.done.drain(..).chain(work.open.drain(..)).collect();
            }
            states = before;
        }
        if rand::rng().random_ratio(1, 8) {
            // It may be starting, recovering, or serving.
            let mut child = Server::spawn(pool, &arguments)?;
            std::thread::sleep(Duration::from_micros(rand::rng().random_range(0..30_000)));
            kill(&mut child)?;
        }
        // Else the server finds the pool as it was left.
        if round % 3 == 0 {
            check_pool(args, pool, &mut findings).map_err(|e| named(&e))?;
        }
        let at = Instant::now();
        server = Server::start(pool, &arguments).map_err(|e| named(&e))?;
        let reopened = at.elapsed();
        let client = connect(&server, trusted).map_err(|e| named(&e))?;
        compare(client, &mut states, work, &mut findings)
            .map_err(|e| named(&Failure::new(e.to_string())))?;
        tally.add(round, &findings, reopened);
    }
    server.stop()?;
    let mut findings = Findings::default();
    let entries = check_pool(args, pool, &mut findings)?;
    if let Some(archive) = &archive {
        check_archive(args, pool, archive, &mut findings)?;
    }
    tally.add_findings(args.kills, &findings);
    let report = tally.report(args, clients, seed, started.elapsed(), entries, true);
    Ok(report.at(durability))
}

/// Checks the database itself, with no server on it. Returns how many entries it has.
fn check_pool(args: &TortureArgs, path: &Path, findings: &mut Findings) -> Outcome<u64> {
    let how = How::durable(Some(args.medium.kind()));
    // Where nothing waits for it, a kill may have taken the making of the database too.
    let opened = database::options(path, how).create(true).open(path);
    let db = opened.map_err(|e| database::unopened(path, &e))?;
    match db.check() {
        Ok(report) => Ok(report.entries),
        Err(violation) => {
            findings.phantom(format!("the database is broken: {violation}"));
            Ok(0)
        }
    }
}

/// Compares what the archive leads to with the database.
fn check_archive(
    args: &TortureArgs,
    path: &Path,
    archive: &Path,
    findings: &mut Findings,
) -> Outcome {
    let failed = |e: &dyn Display| Failure::new(format!("restoring the archive: {e}"));
    let db = database::open(path, How::durable(Some(args.medium.kind())))?;
    let new = path.with_extension("restored");
    let restored = Database::restore_archive(archive, Until::End, &new);
    let (restored, report) = restored.map_err(|e| failed(&e))?;
    if let Err(e) = restored.check() {
        findings.phantom(format!("what was restored is broken: {e}"));
    }
    let [there, again] = [&db, &restored].map(content);
    let (there, again) = (
        there.map_err(|e| failed(&e))?,
        again.map_err(|e| failed(&e))?,
    );
    if there != again {
        findings.lost(format!(
            "the archive leads to {} entries of {}, after {} commits",
            again.len(),
            there.len(),
            report.commits
        ));
    }
    Ok(())
}

/// Keyspaces and keys, with values and their expiries.
type Content = BTreeMap<(String, Vec<u8>), (Vec<u8>, Option<u64>)>;

/// Everything that a database has.
fn content(db: &Database) -> bristlecone::Result<Content> {
    let snapshot = db.store().snapshot();
    let mut all = BTreeMap::new();
    for keyspace in snapshot.keyspaces().map_err(bristlecone::Error::other)? {
        let visit = |key: &[u8], entry: bristlecone_store::Entry<'_>| {
            let value = (entry.value.to_vec(), entry.expires_at);
            all.insert((keyspace.name().to_owned(), key.to_vec()), value);
            ControlFlow::Continue(())
        };
        let scanned = snapshot.scan::<Vec<u8>>(&keyspace, .., visit);
        scanned.map_err(bristlecone::Error::other)?;
    }
    Ok(all)
}

/// Connects, with TLS if there is a certificate to trust.
fn connect(server: &Server, trusted: Option<&Path>) -> Outcome<Client> {
    match trusted {
        Some(file) => Client::connect_securely(server.address(), file),
        None => Client::connect(server.address())
            .map_err(|e| Failure::new(format!("connecting to the server failed: {e}"))),
    }
}

/// Has all clients write, and kills the server at a random moment.
fn write_and_kill(
    server: Server,
    trusted: Option<&Path>,
    states: &mut [State],
    seed: u64,
    round: u64,
) -> Outcome<Vec<Work>> {
    let begun = AtomicU16::new(0);
    let clients: Vec<_> = states
        .iter()
        .map(|_| connect(&server, trusted))
        .collect::<Outcome<_>>()?;
    std::thread::scope(|scope| {
        let begun = &begun;
        let writers: Vec<_> = (0..)
            .zip(clients)
            .zip(states)
            .map(|((number, client), state)| {
                let plan = Plan::new(seed, round, number);
                scope.spawn(move || write(client, number, state, plan, begun))
            })
            .collect();
        let all = writers.len();
        let waiting = Instant::now();
        // ORDERING: Relaxed; only the number matters.
        while usize::from(begun.load(Ordering::Relaxed)) < all && waiting.elapsed() < MAX_BEGIN {
            std::thread::sleep(Duration::from_millis(1));
        }
        let begun = usize::from(begun.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_micros(rand::rng().random_range(0..150_000)));
        server.kill()?;
        let work = writers
            .into_iter()
            .map(|writer| writer.join().map_err(|_| Failure::new("a client panicked")))
            .collect::<Outcome<Vec<_>>>()?;
        if begun < all {
            return Err(Failure::new(format!(
                "{begun} of {all} clients were answered"
            )));
        }
        Ok(work)
    })
}

/// Writes until the server is gone. `begun` counts clients that were answered.
fn write(
    mut client: Client,
    number: u16,
    state: &mut State,
    mut plan: Plan,
    begun: &AtomicU16,
) -> Work {
    let mut work = Work::default();
    let mut requests = Vec::new();
    loop {
        work.open = plan.batch();
        requests.clear();
        for unit in &work.open {
            unit.encode(number, &mut requests);
        }
        if client.send(&requests).is_err() {
            return work;
        }
        while let Some(unit) = work.open.front() {
            let replies = (0..unit.replies()).map(|_| client.reply());
            let Ok(replies) = replies.collect::<io::Result<Vec<_>>>() else {
                return work;
            };
            let expected = state.apply(unit);
            if !answers(&replies, &expected) {
                let text = format!("client {number}: {unit:?} was answered {replies:?}");
                work.wrong.push(text);
            }
            work.done.extend(work.open.pop_front());
            work.acknowledged += 1;
            if work.acknowledged == 1 {
                // ORDERING: Relaxed; only the number matters.
                begun.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// True if a unit's replies are those that its changes get.
fn answers(replies: &[Reply], expected: &[Reply]) -> bool {
    match replies {
        [reply] => expected == [reply.clone()],
        // The shared counter's value is unknown by now.
        [begin, queued @ .., Reply::Array(done)] => {
            let is_queued = |reply: &Reply| *reply == Reply::Status(b"QUEUED".to_vec());
            *begin == Reply::ok()
                && queued.iter().all(is_queued)
                && matches!(done.split_last(), Some((Reply::Integer(_), done)) if done == expected)
        }
        _ => false,
    }
}

/// Reads every key, and takes over what is there.
fn compare(
    mut client: Client,
    states: &mut [State],
    work: Vec<Work>,
    findings: &mut Findings,
) -> io::Result<()> {
    let mut keys = 0;
    for ((number, state), work) in (0..).zip(states.iter_mut()).zip(work) {
        findings.acknowledged += work.acknowledged;
        for wrong in work.wrong {
            findings.phantom(wrong);
        }
        let mut requests = Vec::new();
        State::encode_reads(number, &mut requests);
        client.send(&requests)?;
        let mut found = State::default();
        for key in plan::keys() {
            let reply = client.reply()?;
            if !found.read(key, reply) {
                findings.phantom(format!(
                    "client {number}: key {key} has another kind of value"
                ));
            }
        }
        settle(number, state, &work.open, &found, findings);
        *state = found;
        keys += state.0.len() as i64;
    }
    let all: i64 = states.iter().map(State::tally).sum();
    let shared = match client.call(&[b"GET", SHARED])? {
        Reply::Null => 0,
        Reply::Bulk(digits) => String::from_utf8_lossy(&digits).parse().unwrap_or(-1),
        _ => -1,
    };
    if shared != all {
        findings.phantom(format!(
            "transactions: clients counted {all}, all together {shared}; one was done in part"
        ));
    }
    keys += i64::from(shared > 0);
    let size = client.call(&[b"DBSIZE"])?;
    if size != Reply::Integer(keys) {
        findings.phantom(format!("there are {keys} keys, DBSIZE says {size:?}"));
    }
    Ok(())
}

/// Compares what a client's keys hold with what they may hold.
fn settle(
    number: u16,
    acknowledged: &State,
    open: &VecDeque<Unit>,
    found: &State,
    findings: &mut Findings,
) {
    let mut possible = vec![acknowledged.clone()];
    for unit in open {
        let mut next = possible[possible.len() - 1].clone();
        next.apply(unit);
        possible.push(next);
    }
    if possible.contains(found) {
        return;
    }
    let mut all_possible = true;
    for key in plan::keys() {
        let is = found.0.get(&key);
        if possible.iter().all(|state| state.0.get(&key) != is) {
            all_possible = false;
            findings.lost(format!(
                "client {number}: key {key} is {}, acknowledged {}",
                plan::shown(is),
                plan::shown(acknowledged.0.get(&key))
            ));
        }
    }
    if all_possible {
        findings.phantom(format!(
            "client {number}: of the {} that were on their way some are there in part, or out of order",
            open.len()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client's state after some units, and what it sent next.
    fn history() -> (State, VecDeque<Unit>) {
        let mut plan = Plan::new(1, 1, 0);
        let mut state = State::default();
        for _ in 0..500 {
            for unit in plan.batch() {
                state.apply(&unit);
            }
        }
        let open = (0..20).flat_map(|_| plan.batch()).collect();
        (state, open)
    }

    fn findings(acknowledged: &State, open: &VecDeque<Unit>, found: &State) -> Findings {
        let mut findings = Findings::default();
        settle(0, acknowledged, open, found, &mut findings);
        findings
    }

    #[test]
    fn what_was_on_its_way_may_be_there_up_to_any_of_it() {
        let (state, open) = history();
        let mut found = state.clone();
        for unit in &open {
            let report = findings(&state, &open, &found);
            assert_eq!((report.lost, report.phantom), (0, 0));
            found.apply(unit);
        }
        assert_ne!(found, state);
    }

    #[test]
    fn what_is_missing_or_out_of_order_is_found() {
        let (state, open) = history();
        let mut found = state.clone();
        let (key, _) = found.0.pop_last().unwrap();
        let report = findings(&state, &open, &found);
        assert!(report.lost > 0, "key {key} is gone");
        // All but the first that was on its way.
        let mut found = state.clone();
        for unit in open.iter().skip(1) {
            found.apply(unit);
        }
        let report = findings(&state, &open, &found);
        assert!(report.lost + report.phantom > 0);
    }

    #[test]
    fn replies_are_compared() {
        let one = [Reply::Integer(1)];
        assert!(answers(&one, &one));
        assert!(!answers(&one, &[Reply::Integer(2)]));
        let transaction = |done: &[Reply]| {
            vec![
                Reply::ok(),
                Reply::Status(b"QUEUED".to_vec()),
                Reply::Array(done.to_vec()),
            ]
        };
        let done = transaction(&[Reply::Integer(1), Reply::Integer(99)]);
        assert!(answers(&done, &one));
        assert!(!answers(&transaction(&one), &one));
        let failed = vec![Reply::ok(), Reply::ok(), Reply::Error(b"ERR".to_vec())];
        assert!(!answers(&failed, &one));
    }
}
