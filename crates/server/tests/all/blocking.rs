//! Clients that wait for elements: which of them gets which element, when, and what is left.

use crate::live::{Client, Live, encoded, same, settings};
use bristlecone_pmem::MediumKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// No test waits longer than this for clients to wait.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until this number of clients wait.
#[track_caller]
fn until_waiting(client: &mut Client<TcpStream>, number: usize) {
    let line = format!("blocked_clients:{number}\r\n");
    let until = Instant::now() + PATIENCE;
    loop {
        let info = client.call("INFO clients");
        if info.contains(&line) {
            return;
        }
        assert!(Instant::now() < until, "not {number} clients wait: {info}");
    }
}

/// Starts clients that wait with these commands, one after the other.
fn waiting(
    live: &Live,
    watcher: &mut Client<TcpStream>,
    commands: &[&str],
) -> Vec<Client<TcpStream>> {
    let mut clients = Vec::new();
    for command in commands {
        let mut client = live.client();
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        client.send(&encoded(&words));
        clients.push(client);
        until_waiting(watcher, clients.len());
    }
    clients
}

#[test]
fn who_waited_longest_is_served_first() {
    for medium in [MediumKind::Mapped, MediumKind::Journal] {
        let live = Live::with(settings(), medium);
        let mut client = live.client();
        let mut waiters = waiting(
            &live,
            &mut client,
            &["BLPOP k 0", "BRPOP k 0", "BLPOP other k 0"],
        );
        same(&client.call("RPUSH k a b c d"), ":4\n");
        same(&waiters[0].reply(), "*2\n$1\nk\n$1\na\n");
        same(&waiters[1].reply(), "*2\n$1\nk\n$1\nd\n");
        same(&waiters[2].reply(), "*2\n$1\nk\n$1\nb\n");
        same(&client.call("LRANGE k 0 -1"), "*1\n$1\nc\n");
        until_waiting(&mut client, 0);
    }
}

#[test]
fn who_pushes_sees_that_it_is_taken() {
    let live = Live::start();
    let mut client = live.client();
    let mut waiters = waiting(&live, &mut client, &["BLPOP k 0"]);
    // No other client comes between, whatever is sent at once.
    client.send(&encoded(&[b"RPUSH", b"k", b"a"]));
    client.send(&encoded(&[b"EXISTS", b"k"]));
    same(&client.reply(), ":1\n");
    same(&client.reply(), ":0\n");
    same(&waiters[0].reply(), "*2\n$1\nk\n$1\na\n");
}

#[test]
fn the_first_key_that_was_written_is_the_one() {
    let live = Live::start();
    let mut client = live.client();
    let mut waiters = waiting(&live, &mut client, &["BLPOP a b c 0"]);
    for command in ["MULTI", "RPUSH c 3", "RPUSH a 1", "EXEC"] {
        client.call(command);
    }
    same(&waiters[0].reply(), "*2\n$1\nc\n$1\n3\n");
    same(&client.call("LLEN a"), ":1\n");
    // Without waiting it is the first in the order of the arguments.
    same(&client.call("RPUSH c 4"), ":1\n");
    same(&client.call("BRPOP b c a 0"), "*2\n$1\nc\n$1\n4\n");
}

#[test]
fn what_is_gone_again_in_a_transaction_serves_nobody() {
    let live = Live::start();
    let mut client = live.client();
    let mut waiters = waiting(&live, &mut client, &["BLPOP k 0"]);
    for command in [
        "MULTI",
        "RPUSH k a",
        "DEL k",
        "EXEC",
        "SET k x",
        "SADD s x",
        "RENAME s k",
    ] {
        client.call(command);
    }
    until_waiting(&mut client, 1);
    same(&client.call("DEL k"), ":1\n");
    same(&client.call("LPUSH k a"), ":1\n");
    same(&waiters[0].reply(), "*2\n$1\nk\n$1\na\n");
}

#[test]
fn a_list_that_comes_from_elsewhere_serves_too() {
    let live = Live::start();
    let mut client = live.client();
    client.call("RPUSH list a");
    client.call("ZADD set 7 m");
    for (command, wait, reply) in [
        ("COPY list k", "BLPOP k 0", "*2\n$1\nk\n$1\na\n"),
        ("RENAME list k", "BLPOP k 0", "*2\n$1\nk\n$1\na\n"),
        (
            "ZUNIONSTORE k 1 set",
            "BZPOPMIN k 0",
            "*3\n$1\nk\n$1\nm\n$1\n7\n",
        ),
        (
            "ZRANGESTORE k set 0 -1",
            "BZMPOP 0 2 x k MAX COUNT 3",
            "*2\n$1\nk\n*1\n*2\n$1\nm\n$1\n7\n",
        ),
    ] {
        let mut waiters = waiting(&live, &mut client, &[wait]);
        client.call(command);
        same(&waiters[0].reply(), reply);
        same(&client.call("EXISTS k"), ":0\n");
    }
    // From another database.
    let mut waiters = waiting(&live, &mut client, &["BLMPOP 0 1 k LEFT COUNT 10"]);
    for command in ["SELECT 3", "RPUSH k a b"] {
        client.call(command);
    }
    until_waiting(&mut client, 1);
    same(&client.call("MOVE k 0"), ":1\n");
    same(&waiters[0].reply(), "*2\n$1\nk\n*2\n$1\na\n$1\nb\n");
}

#[test]
fn a_list_of_a_swapped_database_serves_too() {
    let live = Live::start();
    let mut client = live.client();
    let mut waiters = waiting(&live, &mut client, &["BLPOP k 0"]);
    same(&client.call("SELECT 1"), "+OK\n");
    same(&client.call("RPUSH k a b"), ":2\n");
    until_waiting(&mut client, 1);
    same(&client.call("SWAPDB 0 1"), "+OK\n");
    same(&waiters[0].reply(), "*2\n$1\nk\n$1\na\n");
    same(&client.call("LLEN k"), ":0\n");
    same(&client.call("SELECT 0"), "+OK\n");
    same(&client.call("LLEN k"), ":1\n");
}

#[test]
fn what_is_moved_serves_who_waits_where_it_goes() {
    let live = Live::start();
    let mut client = live.client();
    let commands = [
        "BLMOVE a b LEFT RIGHT 0",
        "BRPOPLPUSH b c 0",
        "BLPOP c 0",
        "BLMOVE c c LEFT RIGHT 0",
    ];
    let mut waiters = waiting(&live, &mut client, &commands);
    same(&client.call("RPUSH a x"), ":1\n");
    same(&waiters[0].reply(), "$1\nx\n");
    same(&waiters[1].reply(), "$1\nx\n");
    same(&waiters[2].reply(), "*2\n$1\nc\n$1\nx\n");
    same(&client.call("EXISTS a b c"), ":0\n");
    same(&client.call("RPUSH c y z"), ":2\n");
    same(&waiters[3].reply(), "$1\ny\n");
    same(&client.call("LRANGE c 0 -1"), "*2\n$1\nz\n$1\ny\n");
}

#[test]
fn where_it_cannot_be_put_it_stays() {
    let live = Live::start();
    let mut client = live.client();
    let mut waiters = waiting(
        &live,
        &mut client,
        &["BLMOVE a b LEFT RIGHT 0", "BLPOP a 0"],
    );
    client.call("SET b string");
    same(&client.call("RPUSH a x"), ":1\n");
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value\n";
    same(&waiters[0].reply(), wrong);
    same(&waiters[1].reply(), "*2\n$1\na\n$1\nx\n");
}

#[test]
fn timeouts_and_unblocking_are_told() {
    let live = Live::start();
    let mut client = live.client();
    same(&client.call("BLPOP k 0.01"), "*-1\n");
    same(&client.call("BLMOVE k d LEFT LEFT 0.01"), "*-1\n");
    let mut waiters = waiting(
        &live,
        &mut client,
        &["BLPOP k 0", "BZPOPMAX k 1000", "BLPOP k 0"],
    );
    let ids: Vec<String> = client
        .call("CLIENT LIST")
        .lines()
        .filter(|line| line.contains(" flags=b "))
        .map(|line| line[3..].split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(ids.len(), 3);
    same(&client.call(&format!("CLIENT UNBLOCK {}", ids[0])), ":1\n");
    same(
        &client.call(&format!("CLIENT UNBLOCK {} ERROR", ids[1])),
        ":1\n",
    );
    same(&waiters[0].reply(), "*-1\n");
    same(
        &waiters[1].reply(),
        "-UNBLOCKED client unblocked via CLIENT UNBLOCK\n",
    );
    for who in ["0", "9999", &ids[0]] {
        same(
            &client.call(&format!("CLIENT UNBLOCK {who} TIMEOUT")),
            ":0\n",
        );
    }
    same(
        &client.call("CLIENT UNBLOCK 1 soon"),
        "-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR\n",
    );
    // They take nothing any more, and go on.
    same(&client.call("RPUSH k a b"), ":2\n");
    same(&waiters[2].reply(), "*2\n$1\nk\n$1\na\n");
    same(&waiters[0].call("LPOP k"), "$1\nb\n");
}

#[test]
fn who_is_gone_takes_nothing() {
    let live = Live::start();
    let mut client = live.client();
    let mut waiters = waiting(&live, &mut client, &["BLPOP k 0", "BLPOP k 0", "BLPOP k 0"]);
    let killed = client.call("CLIENT LIST");
    let killed = killed
        .lines()
        .find(|line| line.contains(" flags=b "))
        .unwrap();
    let id = killed[3..].split(' ').next().unwrap();
    same(&client.call(&format!("CLIENT KILL ID {id}")), ":1\n");
    until_waiting(&mut client, 2);
    drop(waiters.remove(1));
    until_waiting(&mut client, 1);
    same(&client.call("RPUSH k a b"), ":2\n");
    same(&waiters[1].reply(), "*2\n$1\nk\n$1\na\n");
    same(&client.call("LRANGE k 0 -1"), "*1\n$1\nb\n");
}

#[test]
fn what_is_sent_while_waiting_is_for_later() {
    let live = Live::start();
    let mut client = live.client();
    let mut waiter = live.client();
    for words in [["SET", "a", "1"], ["BLPOP", "k", "0"], ["GETSET", "a", "2"]] {
        waiter.send(&encoded(&words.map(str::as_bytes)));
    }
    // Earlier requests are replied to meanwhile.
    same(&waiter.reply(), "+OK\n");
    until_waiting(&mut client, 1);
    waiter.send(&encoded(&[b"CLIENT", b"REPLY", b"SKIP"]));
    waiter.send(&encoded(&[b"BLPOP", b"k", b"0"]));
    waiter.send(&encoded(&[b"GET", b"a"]));
    same(&client.call("GET a"), "$1\n1\n");
    same(&client.call("RPUSH k x"), ":1\n");
    same(&waiter.reply(), "*2\n$1\nk\n$1\nx\n");
    same(&waiter.reply(), "$1\n1\n");
    until_waiting(&mut client, 1);
    same(&client.call("RPUSH k y"), ":1\n");
    // The second one was not to be answered.
    same(&waiter.reply(), "$1\n2\n");
    same(&client.call("EXISTS k"), ":0\n");
}

#[test]
fn in_a_transaction_nobody_waits_and_who_watches_is_told() {
    let live = Live::start();
    let mut client = live.client();
    for command in [
        "MULTI",
        "BLPOP k 0",
        "BLMOVE k d LEFT LEFT 0",
        "BZPOPMIN k 0",
    ] {
        client.call(command);
    }
    same(&client.call("EXEC"), "*3\n*-1\n$-1\n*-1\n");
    let mut waiters = waiting(&live, &mut client, &["BLMOVE k d LEFT LEFT 0"]);
    let mut watcher = live.client();
    for command in ["WATCH d", "MULTI", "GET x"] {
        watcher.call(command);
    }
    same(&client.call("RPUSH k a"), ":1\n");
    same(&waiters[0].reply(), "$1\na\n");
    same(&watcher.call("EXEC"), "*-1\n");
}

#[test]
fn a_server_stops_though_clients_wait_and_what_was_given_is_gone() {
    let mut live = Live::with(settings(), MediumKind::Journal);
    let mut client = live.client();
    let mut waiters = waiting(&live, &mut client, &["BLPOP k 0", "BLPOP none 0"]);
    same(&client.call("RPUSH k a b"), ":2\n");
    same(&waiters[0].reply(), "*2\n$1\nk\n$1\na\n");
    live.reopen(settings());
    assert!(waiters[1].is_closed());
    same(&live.client().call("LRANGE k 0 -1"), "*1\n$1\nb\n");
}

/// Every element is taken once, also in RESP3.
#[test]
fn many_who_wait_and_many_who_push_lose_nothing() {
    const EACH: usize = 300;
    const SIDES: usize = 4;
    let live = Live::start();
    let takers: Vec<_> = (0..SIDES)
        .map(|side| {
            let mut client = live.client();
            std::thread::spawn(move || {
                client.call("HELLO 3");
                let command = match side % 2 {
                    0 => "BLPOP a b 0",
                    _ => "BLMPOP 0 2 b a RIGHT",
                };
                let mut taken = Vec::new();
                for _ in 0..EACH {
                    let reply = client.call(command);
                    taken.push(reply.lines().last().unwrap().to_owned());
                }
                taken
            })
        })
        .collect();
    let pushers: Vec<_> = (0..SIDES)
        .map(|side| {
            let mut client = live.client();
            std::thread::spawn(move || {
                for number in 0..EACH {
                    let key = ["a", "b"][number % 2];
                    client.call(&format!("RPUSH {key} {side}:{number}"));
                }
            })
        })
        .collect();
    pushers
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    let mut taken: Vec<String> = takers
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect();
    taken.sort();
    let mut pushed: Vec<String> = (0..SIDES)
        .flat_map(|side| (0..EACH).map(move |number| format!("{side}:{number}")))
        .collect();
    pushed.sort();
    assert_eq!(taken, pushed);
    let mut client = live.client();
    same(&client.call("EXISTS a b"), ":0\n");
    until_waiting(&mut client, 0);
}
