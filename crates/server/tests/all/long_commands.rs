//! A command that took long held up all connections of its thread, and another command that waited
//! for its lock held up those of a second thread.
//!
//! The order of events is judged, not the time: how often another connection of the only thread was
//! answered before the long command was. Each command here takes as long as hundreds of such
//! answers.

use crate::live::{Client, Live, connect, encoded, same, settings};
use bristlecone_pmem::MediumKind;
use bristlecone_server::config::Settings;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The length of a long string: it is stored in parts.
const LONG: usize = 128 << 20;
/// Without help, another connection is answered once or twice before the long command has begun.
const ANSWERS: usize = 12;

fn one_thread() -> Live {
    let settings = Settings {
        threads: 1,
        ..settings()
    };
    Live::with(settings, MediumKind::Mapped)
}

/// Sends requests on one connection, and returns how often another one was answered until all
/// replies had come, and the last reply.
fn answers_meanwhile(live: &Live, requests: &[u8], replies: usize) -> (usize, String) {
    let (mut slow, mut quick) = (live.client(), live.client());
    same(&slow.call("PING"), "+PONG\n");
    same(&quick.call("PING"), "+PONG\n");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        slow.send(requests);
        let slow = scope.spawn(|| {
            let last = (0..replies).map(|_| slow.reply()).last();
            done.store(true, Ordering::SeqCst);
            last.unwrap_or_default()
        });
        let answers = answers_until(&mut quick, &done);
        (answers, slow.join().unwrap())
    })
}

/// Returns how often a client was answered until something was done.
fn answers_until(quick: &mut Client<TcpStream>, done: &AtomicBool) -> usize {
    let mut answers = 0;
    while !done.load(Ordering::SeqCst) {
        same(&quick.call("SET quick x"), "+OK\n");
        same(&quick.call("GET quick"), "$1\nx\n");
        answers += 1;
    }
    answers
}

fn request(line: &str) -> Vec<u8> {
    encoded(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

#[track_caller]
fn holds_nobody_up(live: &Live, line: &str, reply: &str) {
    let (answers, found) = answers_meanwhile(live, &request(line), 1);
    same(&found, reply);
    assert!(answers >= ANSWERS, "{line}: {answers} answers meanwhile");
}

#[test]
fn commands_on_long_strings_hold_nobody_up() {
    let live = one_thread();
    let last = LONG - 1;
    for (line, reply) in [
        (format!("SETRANGE long {last} x"), format!(":{LONG}\n")),
        (format!("SETRANGE long {last} y"), format!(":{LONG}\n")),
        (format!("SETBIT other {} 1", LONG * 8 - 1), ":0\n".into()),
        ("BITCOUNT long".into(), ":5\n".into()),
        ("BITPOS long 1".into(), format!(":{}\n", last * 8 + 1)),
        ("BITOP NOT other long".into(), format!(":{LONG}\n")),
        ("APPEND long z".into(), format!(":{}\n", LONG + 1)),
        ("COPY long copy".into(), ":1\n".into()),
        ("RENAME copy copied".into(), "+OK\n".into()),
    ] {
        holds_nobody_up(&live, &line, &reply);
    }
    // It reads no more than that.
    same(&live.client().call("GETRANGE long -2 -1"), "$2\nyz\n");
    // A command that was executed twice counts once.
    let stats = live.client().call("INFO stats");
    let count = |name: &str| {
        let line = stats.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].parse::<u64>().unwrap()
    };
    assert_eq!(count("keyspace_misses:"), 0);
    // A pipeline's GETs, which are executed together otherwise.
    let gets = ["SET short x", "GET short", "BITCOUNT long", "GET short"];
    let gets: Vec<u8> = gets.iter().flat_map(|line| request(line)).collect();
    let (answers, _) = answers_meanwhile(&live, &gets, 4);
    assert!(answers >= ANSWERS, "{answers}");
}

#[test]
fn a_transaction_that_takes_long_holds_nobody_up_and_is_executed_once() {
    let live = one_thread();
    let line = format!("SETRANGE long {} x", LONG - 1);
    same(&live.client().call(&line), &format!(":{LONG}\n"));
    let lines = ["MULTI", "INCR n", "PING", "BITCOUNT long", "INCR n", "EXEC"];
    let requests: Vec<u8> = lines.iter().flat_map(|line| request(line)).collect();
    let (answers, reply) = answers_meanwhile(&live, &requests, 6);
    same(&reply, "*4\n:1\n+PONG\n:4\n:2\n");
    assert!(answers >= ANSWERS, "{answers}");
    same(&live.client().call("GET n"), "$1\n2\n");
}

#[test]
fn commands_on_many_elements_hold_nobody_up() {
    let live = one_thread();
    let mut client = live.client();
    for n in 0..100_000 / 500 {
        let members: Vec<String> = (0..500).map(|m| format!("member{}", n * 500 + m)).collect();
        client.call(&format!("SADD large {}", members.join(" ")));
    }
    for n in 0..1000 {
        let members: Vec<String> = (0..60).map(|m| format!("{m} {n}-{m}")).collect();
        client.call(&format!("ZADD z{n} {}", members.join(" ")));
    }
    let sets: Vec<String> = (0..1000).map(|n| format!("z{n}")).collect();
    let sets = sets.join(" ");
    for (line, reply) in [
        ("SUNIONSTORE stored large large", ":100000\n"),
        ("SINTERCARD 2 large stored", ":100000\n"),
        ("SDIFFSTORE none large stored", ":0\n"),
        (&format!("ZUNIONSTORE scores 1000 {sets}"), ":60000\n"),
        ("ZCOUNT none 0 1", ":0\n"),
        ("ZREMRANGEBYRANK scores 0 -2", ":59999\n"),
    ] {
        if line.starts_with("ZCOUNT") {
            // A short one in between.
            same(&client.call(line), reply);
        } else {
            holds_nobody_up(&live, line, reply);
        }
    }
}

/// The thread of a writer that waited for a lock answered nobody.
#[test]
fn who_waits_for_the_lock_of_a_long_command_holds_nobody_up() {
    let live = one_thread();
    let line = format!("SETRANGE long {} x", LONG - 1);
    for waiting in ["APPEND long y", "WATCH long"] {
        let mut others: Vec<_> = (0..3).map(|_| live.client()).collect();
        let (answers, reply) = {
            let live = &live;
            let line = &line;
            std::thread::scope(|scope| {
                let long = scope.spawn(move || answers_meanwhile(live, &request(line), 1));
                for other in &mut others {
                    other.send(&request(waiting));
                }
                long.join().unwrap()
            })
        };
        assert!(reply.starts_with(":1342177"), "{reply}");
        assert!(answers >= ANSWERS, "{waiting}: {answers}");
        others.iter_mut().for_each(|other| {
            assert!(!other.reply().starts_with('-'));
        });
    }
}

/// All that came with one read was executed before others were answered: thousands of commands.
#[test]
fn many_commands_at_once_hold_nobody_up() {
    let settings = Settings {
        threads: 1,
        memcached: Some("127.0.0.1:0".into()),
        ..settings()
    };
    let live = Live::with(settings, MediumKind::Mapped);
    let set = live.client().call("SETRANGE k 999999 x");
    same(&set, ":1000000\n");
    let counts = request("BITCOUNT k").repeat(2000);
    let (answers, last) = answers_meanwhile(&live, &counts, 2000);
    same(&last, ":4\n");
    assert!(answers >= ANSWERS, "{answers}");
    // Changes of a memcached client that wants no replies.
    let mut slow = connect(live.running().memcached_address().unwrap());
    let long = "x".repeat(500_000);
    let mut reply = [0; 8];
    slow.write_all(format!("set l 0 0 500000\r\n{long}\r\n").as_bytes())
        .unwrap();
    slow.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"STORED\r\n");
    let appends = "append l 0 0 1 noreply\r\nx\r\n".repeat(1500) + "mn\r\n";
    let mut quick = live.client();
    same(&quick.call("PING"), "+PONG\n");
    let done = AtomicBool::new(false);
    let answers = std::thread::scope(|scope| {
        slow.write_all(appends.as_bytes()).unwrap();
        scope.spawn(|| {
            let mut reply = [0; 4];
            slow.read_exact(&mut reply).unwrap();
            done.store(true, Ordering::SeqCst);
            assert_eq!(&reply, b"MN\r\n");
        });
        answers_until(&mut quick, &done)
    });
    assert!(answers >= ANSWERS, "{answers}");
}

/// One with a lock that never ends, and one that waits for all locks: neither holds up the only
/// thread, also where the first one catches errors.
#[test]
fn scripts_that_never_end_hold_nobody_up_and_end_with_the_server() {
    let mut live = one_thread();
    let endless: &[u8] = b"while true do pcall(function() while true do end end) end";
    let endless = encoded(&[b"EVAL", endless, b"1", b"key"]);
    let (mut one, mut all, mut quick) = (live.client(), live.client(), live.client());
    one.send(&endless);
    let text: &[u8] = b"return redis.call('flushall')";
    all.send(&encoded(&[b"EVAL", text, b"0"]));
    let killed = |quick: &mut Client<TcpStream>| quick.call("SCRIPT KILL") == "+OK\n";
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        same(&quick.call("PING"), "+PONG\n");
        same(&quick.call("GET nothing"), "$-1\n");
    }
    let until = Instant::now() + Duration::from_secs(20);
    while !killed(&mut quick) && Instant::now() < until {}
    let stopped = one.reply();
    assert!(stopped.contains("killed by user"), "{stopped}");
    all.reply();
    // Nobody stops this one.
    one.send(&endless);
    std::thread::sleep(Duration::from_millis(200));
    same(&quick.call("GET nothing"), "$-1\n");
    let before = Instant::now();
    live.stop();
    assert!(before.elapsed() < Duration::from_secs(30));
}
