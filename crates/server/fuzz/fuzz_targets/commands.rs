//! Commands on data with arbitrary arguments, alone and in transactions, while time passes and the
//! sweeper works. There must be no panic, one complete reply to each, no damage, and an intact
//! store afterwards.
//!
//! One pool serves many inputs, each of which begins with empty databases. It is replaced now and
//! then.

#![no_main]

use arbitrary::Arbitrary;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{MediumKind, Pool, PoolOptions};
use bristlecone_server::command::Command;
use bristlecone_server::commands;
use bristlecone_server::data::watch::Watch;
use bristlecone_server::data::{Data, Reads};
use bristlecone_server::execute::exec::Queued;
use bristlecone_server::reply::{Out, Protocol};
use bristlecone_server::resp::reply_length;
use bristlecone_store::{Store, StoreOptions, WallClock};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// The most actions of one input.
const MAX_ACTIONS: usize = 200;
/// The most inputs that one pool serves.
const MAX_INPUTS: u32 = 2_000;

/// A word of a command.
#[derive(Arbitrary, Clone, Debug)]
enum Word {
    Key(u8),
    Member(u8),
    Small(i8),
    Whole(i64),
    Fraction(f64),
    Option(u8),
    Bytes(Vec<u8>),
    /// One byte, repeated.
    Long(u8, u16),
}

/// Words with a meaning for commands.
const OPTIONS: &[&str] = &[
    "NX",
    "XX",
    "GT",
    "LT",
    "CH",
    "INCR",
    "GET",
    "KEEPTTL",
    "PERSIST",
    "EX",
    "PX",
    "EXAT",
    "PXAT",
    "LIMIT",
    "COUNT",
    "MATCH",
    "TYPE",
    "WITHSCORES",
    "WITHVALUES",
    "BYSCORE",
    "BYLEX",
    "REV",
    "WEIGHTS",
    "AGGREGATE",
    "SUM",
    "MIN",
    "MAX",
    "BEFORE",
    "AFTER",
    "LEFT",
    "RIGHT",
    "AND",
    "OR",
    "XOR",
    "NOT",
    "BIT",
    "BYTE",
    "OVERFLOW",
    "WRAP",
    "SAT",
    "FAIL",
    "SET",
    "INCRBY",
    "u8",
    "i64",
    "u63",
    "#1",
    "IDX",
    "LEN",
    "MINMATCHLEN",
    "WITHMATCHLEN",
    "RANK",
    "MAXLEN",
    "REPLACE",
    "DB",
    "ENCODING",
    "REFCOUNT",
    "IDLETIME",
    "FREQ",
    "HELP",
    "STORE",
    "ASYNC",
    "SYNC",
    "+",
    "-",
    "+inf",
    "-inf",
    "inf",
    "nan",
    "(1",
    "(2",
    "[a",
    "(b",
    "[k1",
    "*",
    "k*",
    "[k-m]?",
    "string",
    "hash",
    "1e400",
    "0x1p3",
    "0",
    "1",
    "-1",
    "9223372036854775807",
    "-9223372036854775808",
];

impl Word {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Key(number) => format!("k{}", number % 6).into_bytes(),
            Self::Member(number) => format!("m{number}").into_bytes(),
            Self::Small(number) => number.to_string().into_bytes(),
            Self::Whole(number) => number.to_string().into_bytes(),
            Self::Fraction(number) => number.to_string().into_bytes(),
            Self::Option(number) => OPTIONS[usize::from(*number) % OPTIONS.len()].into(),
            Self::Bytes(bytes) => bytes.clone(),
            Self::Long(byte, length) => vec![*byte; usize::from(*length)],
        }
    }
}

#[derive(Arbitrary, Clone, Debug)]
struct Call {
    command: u8,
    /// The key that most commands have first.
    key: Option<u8>,
    words: Vec<Word>,
}

#[derive(Arbitrary, Debug)]
enum Action {
    Call(Call),
    Exec(Vec<Call>),
    /// One command with many members: a large collection.
    Many(Call, u8),
    Later(u32),
    Sweep,
    Resp3(bool),
    Database(u8),
}

/// A pool and its clock.
struct Place {
    data: Data,
    now: Arc<AtomicU64>,
    inputs: u32,
    _dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let dir = dir.expect("a directory for temporary files");
        let now = Arc::new(AtomicU64::new(1));
        let clock = Arc::clone(&now);
        let choice = StoreOptions {
            clock: WallClock::new(move || clock.load(Ordering::SeqCst)),
            ..StoreOptions::default().without_thread()
        };
        let mut options = PoolOptions::default();
        options.media.medium = Some(MediumKind::Mapped);
        let pool = Pool::<Auto>::create(&dir.path().join("pool"), &options).expect("a pool");
        let store = Store::create(&pool, "s", &choice).expect("a store");
        Self {
            data: Data::open(store).expect("databases"),
            now,
            inputs: 0,
            _dir: dir,
        }
    }
}

/// Returns the command and its words if it takes this many.
fn known(
    table: &[&'static Command],
    call: &Call,
    more: u8,
) -> Option<(&'static Command, Vec<Vec<u8>>)> {
    let command = table[usize::from(call.command) % table.len()];
    let mut words = vec![command.spec.name.as_bytes().to_vec()];
    words.extend(call.key.map(|key| Word::Key(key).bytes()));
    words.extend(call.words.iter().map(Word::bytes));
    for number in 0..2 * u16::from(more) {
        // Scores and members, fields and values, elements.
        let member = if number % 2 == 0 {
            number.to_string()
        } else {
            format!("m{number}")
        };
        words.push(member.into_bytes());
    }
    let takes = command.spec.takes(words.len());
    takes.then_some((command, words))
}

/// Checks that a reply is complete, and does not report damage.
fn check(words: &[Vec<u8>], reply: &[u8]) {
    assert_eq!(
        reply_length(reply),
        Some(reply.len()),
        "{words:?}: {reply:?}"
    );
    let text = String::from_utf8_lossy(reply);
    assert!(
        !text.starts_with("-ERR the pool is damaged"),
        "{words:?}: {text}"
    );
}

fn run(place: &Place, actions: &[Action]) {
    let table: Vec<&'static Command> = commands::data().collect();
    let data = &place.data;
    let (mut db, mut protocol) = (0, Protocol::Resp2);
    let call = |call: &Call, more: u8, db: usize, protocol: Protocol| {
        let Some((command, words)) = known(&table, call, more) else {
            return;
        };
        let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let mut reply = Vec::new();
        data.run(
            command,
            db,
            &args,
            Reads::Applied,
            &mut Out::new(&mut reply, protocol),
        );
        check(&words, &reply);
    };
    for action in actions.iter().take(MAX_ACTIONS) {
        match action {
            Action::Call(one) => call(one, 0, db, protocol),
            Action::Many(one, more) => call(one, *more, db, protocol),
            Action::Exec(calls) => {
                let queued = calls.iter().filter_map(|one| known(&table, one, 0));
                let queued: Vec<_> = queued
                    .map(|(command, args)| Queued { command, db, args })
                    .collect();
                let mut watch = Watch::default();
                let _ = data.watch(&mut watch, db, b"k1");
                let mut reply = Vec::new();
                data.exec(&queued, &mut watch, &mut Out::new(&mut reply, protocol));
                check(&[b"exec".to_vec()], &reply);
            }
            Action::Later(ms) => {
                place.now.fetch_add(u64::from(*ms), Ordering::SeqCst);
            }
            Action::Sweep => {
                data.sweep().expect("sweeping");
            }
            Action::Resp3(resp3) => {
                protocol = if *resp3 {
                    Protocol::Resp3
                } else {
                    Protocol::Resp2
                };
            }
            Action::Database(number) => db = usize::from(number % 2),
        }
    }
}

fuzz_target!(|actions: Vec<Action>| {
    thread_local!(static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) });
    PLACE.with_borrow_mut(|kept| {
        let place = kept.get_or_insert_with(Place::new);
        let flush = commands::data().find(|command| command.spec.name == "flushall");
        let flush = flush.expect("a command that is there");
        let mut reply = Vec::new();
        let mut out = Out::new(&mut reply, Protocol::Resp2);
        place
            .data
            .run(flush, 0, &[b"flushall"], Reads::Applied, &mut out);
        assert_eq!(reply, b"+OK\r\n");
        run(place, &actions);
        while place.data.sweep().expect("sweeping") {}
        let (data, store) = (&place.data, place.data.store());
        data.settle(data.applied()).expect("settling");
        // Or versions of all inputs before would have to be checked, too.
        store.vacuum(usize::MAX).expect("a vacuum");
        store.check().expect("a store that is whole");
        place.inputs += 1;
        if place.inputs == MAX_INPUTS {
            *kept = None;
        }
    });
});
