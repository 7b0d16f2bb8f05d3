//! A server over TCP: order of replies, sessions, transactions, channels, users.

use crate::live::{Live, connect, encoded, same, settings};
use bristlecone_pmem::MediumKind;
use bristlecone_server::config::{Allowed, Settings};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

#[test]
fn pipelined_commands_are_answered_in_order_however_they_come() {
    for medium in [MediumKind::Mapped, MediumKind::Journal] {
        let live = Live::with(settings(), medium);
        let mut client = live.client();
        let mut sent = Vec::new();
        for i in 0..500 {
            let (key, value) = (format!("key{i}"), format!("value{i}"));
            sent.extend(encoded(&[b"SET", key.as_bytes(), value.as_bytes()]));
            sent.extend(encoded(&[b"GET", key.as_bytes()]));
        }
        sent.extend(b"get key7\r\nPING\r\n");
        for piece in sent.chunks(997) {
            client.send(piece);
        }
        for i in 0..500 {
            same(&client.reply(), "+OK\n");
            let value = format!("value{i}");
            same(&client.reply(), &format!("${}\n{value}\n", value.len()));
        }
        same(&client.reply(), "$6\nvalue7\n");
        same(&client.reply(), "+PONG\n");
    }
}

#[test]
fn values_that_are_set_in_a_row_are_set_in_order() {
    for medium in [MediumKind::Mapped, MediumKind::Journal] {
        let live = Live::with(settings(), medium);
        let mut client = live.client();
        let (mut sent, mut replies) = (Vec::new(), Vec::new());
        let mut say = |words: &[&str], reply: &str| {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            sent.extend(encoded(&words));
            replies.push(reply.to_owned());
        };
        for i in 0..200 {
            // The same keys again and again, in runs of all lengths.
            for j in 0..i % 40 {
                say(
                    &["SET", &format!("k{}", j % 7), &format!("{i} {j}")],
                    "+OK\n",
                );
            }
            match i % 40 {
                0 => say(&["RPUSH", &format!("list{i}"), "x"], ":1\n"),
                n => {
                    let value = format!("{i} {}", n - 1);
                    let reply = format!("${}\n{value}\n", value.len());
                    say(&["GET", &format!("k{}", (n - 1) % 7)], &reply);
                }
            }
            say(
                &["SET", "k0"],
                "-ERR wrong number of arguments for 'set' command\n",
            );
        }
        for piece in sent.chunks(1499) {
            client.send(piece);
        }
        for reply in &replies {
            same(&client.reply(), reply);
        }
        // A malformed request ends the connection after the replies to those before it.
        client.send(&encoded(&[b"SET", b"a", b"1"]).repeat(3));
        client.send(b"*1\r\nwrong\r\n");
        for _ in 0..3 {
            same(&client.reply(), "+OK\n");
        }
        same(
            &client.reply(),
            "-ERR Protocol error: expected '$', got 'w'\n",
        );
    }
}

#[test]
fn replies_that_are_not_read_hold_nobody_else_up() {
    let live = Live::start();
    let mut deaf = live.client();
    let value = vec![b'x'; 1 << 20];
    deaf.send(&encoded(&[b"SET", b"big", &value]));
    same(&deaf.reply(), "+OK\n");
    // These are 200 MiB of replies that are never read.
    deaf.send(&encoded(&[b"GET", b"big"]).repeat(200));
    let mut other = live.client();
    let start = Instant::now();
    for _ in 0..50 {
        same(&other.call("PING"), "+PONG\n");
    }
    assert!(start.elapsed() < Duration::from_secs(10));
    for _ in 0..200 {
        assert_eq!(deaf.reply().len(), "$1048576\r\n\r\n".len() + (1 << 20));
    }
}

#[test]
fn unknown_commands_and_wrong_arguments_are_told_as_redis_does() {
    let live = Live::start();
    let mut client = live.client();
    for (command, reply) in [
        (
            "foo a b c",
            "-ERR unknown command 'foo', with args beginning with: 'a' 'b' 'c' \n",
        ),
        ("get", "-ERR wrong number of arguments for 'get' command\n"),
        (
            "select 4294967296",
            "-ERR value is out of range, value must between -2147483648 and 2147483647\n",
        ),
        ("select 16", "-ERR DB index is out of range\n"),
        (
            "ping a b",
            "-ERR wrong number of arguments for 'ping' command\n",
        ),
        (
            "client foo",
            "-ERR unknown subcommand 'foo'. Try CLIENT HELP.\n",
        ),
        ("select 99", "-ERR DB index is out of range\n"),
        ("select x", "-ERR value is not an integer or out of range\n"),
        ("hello 9", "-NOPROTO unsupported protocol version\n"),
        ("exec", "-ERR EXEC without MULTI\n"),
        ("discard", "-ERR DISCARD without MULTI\n"),
        (
            "auth a b",
            "-WRONGPASS invalid username-password pair or user is disabled.\n",
        ),
        (
            "config set foo bar",
            "-ERR Unknown option or number of arguments for CONFIG SET - 'foo'\n",
        ),
        (
            "config set maxclients x",
            "-ERR CONFIG SET failed (possibly related to argument 'maxclients') - argument couldn't be parsed into an integer\n",
        ),
        ("client kill 1.1.1.1:2", "-ERR No such client\n"),
        (
            "acl setuser bob foo",
            "-ERR Error in ACL SETUSER modifier 'foo': Syntax error\n",
        ),
        (
            "slowlog get x",
            "-ERR count should be greater than or equal to -1\n",
        ),
        ("command getkeys mset a b c d", "*2\n$1\na\n$1\nc\n"),
        ("acl whoami", "$7\ndefault\n"),
        ("quit", "+OK\n"),
    ] {
        same(&client.call(command), reply);
    }
    assert!(client.is_closed());
}

#[test]
fn databases_are_apart_and_reset_goes_back_to_the_first() {
    let live = Live::start();
    let mut client = live.client();
    same(&client.call("SET k zero"), "+OK\n");
    same(&client.call("SELECT 5"), "+OK\n");
    same(&client.call("GET k"), "$-1\n");
    same(&client.call("SET k five"), "+OK\n");
    same(&client.call("RESET"), "+RESET\n");
    same(&client.call("GET k"), "$4\nzero\n");
    assert!(client.call("INFO keyspace").contains("db5:keys=1"));
}

#[test]
fn hello_changes_the_protocol() {
    let live = Live::start();
    let mut client = live.client();
    assert!(
        client
            .call("HELLO 3 SETNAME me")
            .starts_with("%7\r\n$6\r\nserver\r\n")
    );
    same(&client.call("GET none"), "_\n");
    same(&client.call("CLIENT GETNAME"), "$2\nme\n");
    assert!(client.call("CONFIG GET timeout").starts_with("%1\r\n"));
    assert!(client.call("HELLO 2").starts_with("*14\r\n"));
    same(&client.call("GET none"), "$-1\n");
}

#[test]
fn transactions_run_together_with_what_is_not_data_between() {
    let live = Live::start();
    let mut client = live.client();
    let mut other = live.client();
    same(&client.call("MULTI"), "+OK\n");
    same(&client.call("SET a 1"), "+QUEUED\n");
    same(&client.call("PING"), "+QUEUED\n");
    same(&client.call("SELECT 3"), "+QUEUED\n");
    same(&client.call("SET a 3"), "+QUEUED\n");
    same(&client.call("ECHO x"), "+QUEUED\n");
    same(&client.call("INCR a"), "+QUEUED\n");
    same(&other.call("GET a"), "$-1\n");
    same(
        &client.call("EXEC"),
        "*6\n+OK\n+PONG\n+OK\n+OK\n$1\nx\n:4\n",
    );
    same(&client.call("GET a"), "$1\n4\n");
    same(&other.call("GET a"), "$1\n1\n");

    same(&client.call("MULTI"), "+OK\n");
    same(
        &client.call("MULTI"),
        "-ERR MULTI calls can not be nested\n",
    );
    same(
        &client.call("WATCH a"),
        "-ERR WATCH inside MULTI is not allowed\n",
    );
    same(&client.call("SET x 1"), "+QUEUED\n");
    assert!(client.call("NOTHING").starts_with("-ERR unknown command"));
    same(
        &client.call("EXEC"),
        "-EXECABORT Transaction discarded because of previous errors.\n",
    );
    same(&client.call("GET x"), "$-1\n");

    same(&client.call("MULTI"), "+OK\n");
    same(&client.call("SET x text"), "+QUEUED\n");
    same(&client.call("INCR x"), "+QUEUED\n");
    same(
        &client.call("EXEC"),
        "*2\n+OK\n-ERR value is not an integer or out of range\n",
    );
    same(&client.call("GET x"), "$4\ntext\n");
    same(&client.call("MULTI"), "+OK\n");
    same(&client.call("EXEC"), "*0\n");
}

#[test]
fn a_watched_key_that_changes_undoes_the_transaction() {
    let live = Live::start();
    let (mut client, mut other) = (live.client(), live.client());
    for (change, reply) in [("SET k 1", "*-1\n"), ("SET other 1", "*1\n+OK\n")] {
        same(&client.call("WATCH k"), "+OK\n");
        same(&other.call(change), "+OK\n");
        same(&client.call("MULTI"), "+OK\n");
        same(&client.call("SET mine 1"), "+QUEUED\n");
        same(&client.call("EXEC"), reply);
    }
    same(&client.call("WATCH k"), "+OK\n");
    same(&other.call("SET k 2"), "+OK\n");
    same(&client.call("UNWATCH"), "+OK\n");
    same(&client.call("MULTI"), "+OK\n");
    same(&client.call("PING"), "+QUEUED\n");
    same(&client.call("EXEC"), "*1\n+PONG\n");
}

#[test]
fn messages_reach_those_who_listen() {
    let live = Live::start();
    let (mut listener, mut client) = (live.client(), live.client());
    same(
        &listener.call("SUBSCRIBE a"),
        "*3\n$9\nsubscribe\n$1\na\n:1\n",
    );
    same(
        &listener.call("PSUBSCRIBE b*"),
        "*3\n$10\npsubscribe\n$2\nb*\n:2\n",
    );
    same(&client.call("PUBLISH a hello"), ":1\n");
    same(&client.call("PUBLISH bc there"), ":1\n");
    same(&client.call("PUBLISH c nobody"), ":0\n");
    same(&listener.reply(), "*3\n$7\nmessage\n$1\na\n$5\nhello\n");
    same(
        &listener.reply(),
        "*4\n$8\npmessage\n$2\nb*\n$2\nbc\n$5\nthere\n",
    );
    assert!(
        listener
            .call("GET k")
            .starts_with("-ERR Can't execute 'get': only (P|S)SUBSCRIBE")
    );
    same(&listener.call("PING"), "*2\n$4\npong\n$0\n\n");
    same(&client.call("PUBSUB CHANNELS"), "*1\n$1\na\n");
    same(
        &client.call("PUBSUB NUMSUB a c"),
        "*4\n$1\na\n:1\n$1\nc\n:0\n",
    );
    same(&client.call("PUBSUB NUMPAT"), ":1\n");
    same(
        &listener.call("UNSUBSCRIBE"),
        "*3\n$11\nunsubscribe\n$1\na\n:1\n",
    );
    same(
        &listener.call("PUNSUBSCRIBE"),
        "*3\n$12\npunsubscribe\n$2\nb*\n:0\n",
    );
    same(&listener.call("GET k"), "$-1\n");
    assert!(listener.call("HELLO 3").starts_with('%'));
    same(
        &listener.call("SUBSCRIBE a"),
        ">3\n$9\nsubscribe\n$1\na\n:1\n",
    );
    same(&listener.call("GET k"), "_\n");
    drop(listener);
    let gone = Instant::now();
    while client.call("PUBLISH a x") != ":0\r\n" {
        assert!(gone.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn who_is_told_of_a_write_can_read_it() {
    let live = Live::with(settings(), MediumKind::Journal);
    let (mut listener, mut reader, mut client) = (live.client(), live.client(), live.client());
    listener.call("SUBSCRIBE news");
    for i in 0..50 {
        let value = i.to_string();
        let mut batch = encoded(&[b"SET", b"k", value.as_bytes()]);
        batch.extend(encoded(&[b"PUBLISH", b"news", b"k"]));
        client.send(&batch);
        same(&listener.reply(), "*3\n$7\nmessage\n$4\nnews\n$1\nk\n");
        same(
            &reader.call("GET k"),
            &format!("${}\n{value}\n", value.len()),
        );
        same(&client.reply(), "+OK\n");
        same(&client.reply(), ":1\n");
    }
}

#[test]
fn who_does_not_take_messages_is_disconnected() {
    let live = Live::with(
        Settings {
            client_output_buffer_limit: 1 << 20,
            ..settings()
        },
        MediumKind::Mapped,
    );
    let (mut deaf, mut client) = (live.client(), live.client());
    deaf.call("SUBSCRIBE a");
    let message = vec![b'x'; 200 << 10];
    let start = Instant::now();
    loop {
        client.send(&encoded(&[b"PUBLISH", b"a", &message]));
        if client.reply() == ":0\r\n" {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    assert!(deaf.is_closed());
}

#[test]
fn a_password_is_asked_for_and_users_have_their_rights() {
    let live = Live::with(
        Settings {
            requirepass: "secret".into(),
            users: vec!["bob on >pw ~b* &ch* +@string +client -set".into()],
            ..settings()
        },
        MediumKind::Mapped,
    );
    let mut client = live.client();
    same(&client.call("GET k"), "-NOAUTH Authentication required.\n");
    assert!(
        client
            .call("HELLO 3")
            .starts_with("-NOAUTH HELLO must be called")
    );
    same(
        &client.call("AUTH wrong"),
        "-WRONGPASS invalid username-password pair or user is disabled.\n",
    );
    same(&client.call("AUTH secret"), "+OK\n");
    same(&client.call("SET b1 x"), "+OK\n");
    let mut bob = live.client();
    assert!(bob.call("HELLO 2 AUTH bob pw").starts_with("*14"));
    same(&bob.call("GET b1"), "$1\nx\n");
    assert!(bob.call("GET a").starts_with("-NOPERM"));
    assert!(bob.call("SET b1 y").starts_with("-NOPERM"));
    assert!(bob.call("MGET b1 a").starts_with("-NOPERM"));
    assert!(bob.call("CONFIG GET *").starts_with("-NOPERM"));
    assert!(bob.call("MULTI").starts_with("-NOPERM"));
    // A change holds from the next command on.
    same(&client.call("ACL SETUSER bob +set"), "+OK\n");
    same(&bob.call("SET b1 y"), "+OK\n");
    same(&client.call("ACL DELUSER bob nobody"), ":1\n");
    assert!(bob.is_closed());
    same(&client.call("CONFIG SET requirepass other"), "+OK\n");
    let mut third = live.client();
    assert!(third.call("AUTH secret").starts_with("-WRONGPASS"));
    same(&third.call("AUTH default other"), "+OK\n");
    // Strangers may not send much.
    let mut stranger = live.client();
    stranger.send(b"*11\r\n");
    same(
        &stranger.reply(),
        "-ERR Protocol error: unauthenticated multibulk length\n",
    );
    assert!(stranger.is_closed());
}

#[test]
fn a_subscriber_whose_channels_are_taken_away_is_disconnected() {
    let live = Live::start();
    let (mut client, mut bob) = (live.client(), live.client());
    let rules = "ACL SETUSER bob on >pw +@all ~* &a* &b*";
    same(&client.call(rules), "+OK\n");
    same(&bob.call("AUTH bob pw"), "+OK\n");
    bob.call("SUBSCRIBE a");
    bob.call("PSUBSCRIBE b*");
    same(&client.call("ACL SETUSER bob resetchannels &a*"), "+OK\n");
    assert!(bob.is_closed());
    same(&client.call("PUBLISH a x"), ":0\n");
}

#[test]
fn clients_are_listed_killed_and_silenced() {
    let live = Live::start();
    let (mut client, mut other) = (live.client(), live.client());
    same(&other.call("CLIENT SETNAME other"), "+OK\n");
    same(&other.call("CLIENT SETINFO lib-name x"), "+OK\n");
    let list = client.call("CLIENT LIST");
    assert!(
        list.contains(" name=other ") && list.contains("lib-name=x"),
        "{list}"
    );
    let id: String = other
        .call("CLIENT ID")
        .trim_matches([':', '\r', '\n'])
        .into();
    same(&client.call(&format!("CLIENT KILL ID {id}")), ":1\n");
    assert!(other.is_closed());
    client.send(&encoded(&[b"CLIENT", b"REPLY", b"OFF"]));
    client.send(&encoded(&[b"SET", b"a", b"1"]));
    same(&client.call("CLIENT REPLY ON"), "+OK\n");
    client.send(&encoded(&[b"CLIENT", b"REPLY", b"SKIP"]));
    client.send(&encoded(&[b"SET", b"a", b"2"]));
    same(&client.call("GET a"), "$1\n2\n");
}

#[test]
fn the_server_tells_about_itself() {
    let live = Live::with(
        Settings {
            slowlog_log_slower_than: 0,
            enable_debug_command: Allowed::Local,
            metrics: Some("127.0.0.1:0".into()),
            ..settings()
        },
        MediumKind::Mapped,
    );
    let mut client = live.client();
    same(&client.call("SET a 1"), "+OK\n");
    let info = client.call("INFO");
    for part in [
        "# Server",
        "redis_version:7.",
        "connected_clients:1",
        "db0:keys=1",
    ] {
        assert!(info.contains(part), "{part} in {info}");
    }
    assert!(
        client
            .call("INFO commandstats")
            .contains("cmdstat_set:calls=1,")
    );
    let slow = client.call("SLOWLOG GET 100");
    assert!(slow.contains("$3\r\nSET\r\n$1\r\na\r\n"), "{slow}");
    assert!(
        client
            .call("LATENCY HISTOGRAM set")
            .contains("histogram_usec")
    );
    let start = Instant::now();
    same(&client.call("DEBUG SLEEP 0.2"), "+OK\n");
    assert!(start.elapsed() >= Duration::from_millis(200));
    same(&client.call("MEMORY USAGE none"), "$-1\n");
    let mut http = connect(live.running().metrics_address().unwrap());
    http.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    http.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    assert!(text.contains("bristlecone_command_seconds_count{command=\"set\"} 1\n"));
}

#[test]
fn what_was_answered_is_there_after_a_stop() {
    for medium in [MediumKind::Mapped, MediumKind::Journal] {
        let mut live = Live::with(settings(), medium);
        let mut client = live.client();
        for i in 0..100 {
            same(&client.call(&format!("SET k{i} v{i}")), "+OK\n");
        }
        let mut idle = live.client();
        same(&idle.call("PING"), "+PONG\n");
        live.reopen(settings());
        assert!(idle.is_closed());
        let mut client = live.client();
        for i in 0..100 {
            let value = format!("v{i}");
            same(
                &client.call(&format!("GET k{i}")),
                &format!("${}\n{value}\n", value.len()),
            );
        }
    }
}

#[test]
fn a_backup_is_written_on_demand() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("backup");
    let live = Live::with(
        Settings {
            backup_file: Some(file.clone()),
            ..settings()
        },
        MediumKind::Mapped,
    );
    let mut client = live.client();
    same(&client.call("SET a 1"), "+OK\n");
    same(&client.call("SAVE"), "+OK\n");
    let first = std::fs::metadata(&file).unwrap().len();
    assert!(first > 0);
    same(&client.call("SET b 22222"), "+OK\n");
    same(&client.call("BGSAVE"), "+Background saving started\n");
    let start = Instant::now();
    while std::fs::metadata(&file).unwrap().len() == first {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!file.with_extension("part").exists());
    let without = Live::start();
    let mut none = without.client();
    assert!(none.call("SAVE").starts_with("-ERR no backup file"));
    // SHUTDOWN ends the connection without a word.
    client.send(&encoded(&[b"SHUTDOWN", b"NOSAVE"]));
    assert!(client.is_closed());
}
