//! Sessions without connections: replies that wait for durability, rights, batches.

use crate::config::Settings;
use crate::fixture::{Fixture, on_disk};
use crate::server::Server;
use crate::session::{Flow, Session};
use bristlecone_pmem::media::journal::fault::FaultDisk;
use std::sync::Arc;

struct Bench {
    server: Server,
    _fixture: Fixture,
}

impl Bench {
    fn new() -> Self {
        let fixture = Fixture::new();
        let data = Arc::new(fixture.open());
        Self {
            server: Server::new(data, crate::commands::table(), Settings::default()).unwrap(),
            _fixture: fixture,
        }
    }

    fn session(&self) -> Session {
        let clients = &self.server.clients;
        let client = clients.enter(100, "a:1".into(), "b:2".into(), true);
        Session::new(&self.server, client.unwrap())
    }

    /// Returns the reply to one more command of a batch that is not settled yet.
    fn call(&self, session: &mut Session, line: &str) -> String {
        self.flow(session, line).0
    }

    fn flow(&self, session: &mut Session, line: &str) -> (String, Flow) {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let mut out = Vec::new();
        let (flow, done) = session.execute_batch(&self.server, &[&args], &mut out);
        assert_eq!(done, 1);
        (String::from_utf8_lossy(&out).into_owned(), flow)
    }

    fn all_durable(&self) -> bool {
        let data = &self.server.data;
        data.store().durable() >= data.applied()
    }
}

/// Returns a server behind a journal: there nothing is durable before somebody waits.
fn journalled() -> Bench {
    let data = Arc::new(on_disk(&FaultDisk::new(1), true));
    Bench {
        server: Server::new(data, crate::commands::table(), Settings::default()).unwrap(),
        _fixture: Fixture::new(),
    }
}

/// It said `ok` while every write failed.
#[test]
fn info_says_that_writes_fail_until_one_succeeds() {
    let disk = FaultDisk::new(1);
    let data = Arc::new(on_disk(&disk, true));
    let bench = Bench {
        server: Server::new(data, crate::commands::table(), Settings::default()).unwrap(),
        _fixture: Fixture::new(),
    };
    let mut a = bench.session();
    let status = |a: &mut Session| {
        let info = bench.call(a, "info persistence");
        let of = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("{info}")).to_owned()
        };
        assert_eq!(of("aof_last_bgrewrite_status:"), "ok");
        of("aof_last_write_status:")
    };
    let settle = || bench.server.data.settle(bench.server.data.applied());
    bench.call(&mut a, "set a v");
    settle().unwrap();
    assert_eq!(status(&mut a), "ok");
    disk.set_full(true);
    bench.call(&mut a, "set a w");
    settle().unwrap_err();
    assert_eq!(status(&mut a), "err");
    disk.set_full(false);
    settle().unwrap();
    assert_eq!(status(&mut a), "ok");
    let long = "v".repeat(1 << 20);
    let mut keys = 0;
    while bench.call(&mut a, &format!("set k{keys} {long}")) == "+OK\r\n" {
        keys += 1;
    }
    // A read is not a write.
    bench.call(&mut a, "get a");
    assert_eq!(status(&mut a), "err");
    bench.call(&mut a, "flushall");
    settle().unwrap();
    bench.call(&mut a, "set a v");
    assert_eq!(status(&mut a), "ok");
}

#[test]
fn who_watches_reads_what_was_changed_before() {
    let bench = journalled();
    let (mut a, mut b) = (bench.session(), bench.session());
    assert_eq!(bench.call(&mut a, "incr k"), ":1\r\n");
    assert!(!bench.all_durable());
    // The OK waits for that change, and so does what is read with it.
    assert_eq!(bench.call(&mut b, "watch k"), "+OK\r\n");
    assert_eq!(bench.call(&mut b, "get k"), "$1\r\n1\r\n");
    assert!(b.take_unsettled().is_some());
}

#[test]
fn counts_of_keys_wait_until_they_are_durable() {
    let bench = Bench::new();
    let (mut a, mut b) = (bench.session(), bench.session());
    bench.call(&mut a, "set k v");
    assert_eq!(bench.call(&mut b, "dbsize"), ":1\r\n");
    assert!(b.take_unsettled().is_some());
    assert!(bench.call(&mut b, "info keyspace").contains("keys=1"));
    assert!(b.take_unsettled().is_some());
}

#[test]
fn what_others_are_told_of_is_durable_before() {
    let bench = Bench::new();
    let (mut a, mut b) = (bench.session(), bench.session());
    bench.call(&mut b, "subscribe news");
    for lines in [
        &["set k 1", "publish news k"][..],
        &["multi", "set k 2", "publish news k", "exec"],
    ] {
        for line in lines {
            bench.call(&mut a, line);
        }
        assert!(bench.all_durable());
        let mut told = Vec::new();
        b.client().account.take_messages(&mut told);
        assert!(told.ends_with(b"news\r\n$1\r\nk\r\n"));
    }
}

#[test]
fn a_connection_sees_what_it_wrote_in_its_memory_usage() {
    let bench = Bench::new();
    let mut a = bench.session();
    bench.call(&mut a, "set k value");
    assert!(bench.call(&mut a, "memory usage k").starts_with(':'));
}

#[test]
fn a_password_is_required_again_though_the_setting_is_the_same() {
    let bench = Bench::new();
    let mut a = bench.session();
    for line in [
        "config set requirepass one",
        "acl setuser default resetpass >two",
        "config set REQUIREPASS one",
    ] {
        assert_eq!(bench.call(&mut a, line), "+OK\r\n", "{line}");
    }
    let user = bench.server.users.get(b"default").unwrap();
    assert!(user.knows(b"one") && !user.knows(b"two"));
}

fn bob(bench: &Bench, rules: &str) -> Session {
    let mut admin = bench.session();
    let line = format!("acl setuser bob on >pw {rules}");
    assert_eq!(bench.call(&mut admin, &line), "+OK\r\n");
    let mut bob = bench.session();
    assert_eq!(bench.call(&mut bob, "auth bob pw"), "+OK\r\n");
    bob
}

#[test]
fn values_of_all_keys_are_for_who_may_touch_all() {
    let bench = Bench::new();
    for (rules, allowed) in [("+@all ~b*", false), ("+@all resetkeys ~*", true)] {
        let mut bob = bob(&bench, rules);
        for line in [
            "bc.range - + withvalues",
            "bc.revrange + -",
            "bc.prefix b",
            "bc.count - +",
        ] {
            let refused = bench.call(&mut bob, line).starts_with("-NOPERM");
            assert_eq!(refused, !allowed, "{line}");
        }
        assert!(bench.call(&mut bob, "bc.snapshot").starts_with(':'));
    }
}

#[test]
fn other_clients_are_administrators_business() {
    let bench = Bench::new();
    let mut user = bob(&bench, "+client +@connection");
    for line in [
        "client list",
        "client KILL id 999",
        "client no-evict on",
        "client unblock 1",
    ] {
        assert!(bench.call(&mut user, line).starts_with("-NOPERM"), "{line}");
    }
    assert_eq!(bench.call(&mut user, "client setname x"), "+OK\r\n");
    let mut admin = bob(&bench, "+@admin");
    assert_eq!(bench.call(&mut admin, "client kill id 999"), ":0\r\n");
    let mut not = bob(&bench, "+@all -@admin");
    assert!(bench.call(&mut not, "client list").starts_with("-NOPERM"));
}

#[test]
fn rights_that_were_taken_away_do_not_outlast_in_a_transaction() {
    let bench = Bench::new();
    let mut user = bob(&bench, "+@all ~*");
    for line in ["multi", "set a 1", "config get timeout", "set b 2", "ping"] {
        bench.call(&mut user, line);
    }
    let mut admin = bench.session();
    bench.call(&mut admin, "acl setuser bob resetkeys ~b -config");
    assert!(user.begin_batch(&bench.server));
    let reply = bench.call(&mut user, "exec");
    let parts: Vec<&str> = reply.split("\r\n").collect();
    assert_eq!(parts[0], "*4");
    assert!(
        parts[1].starts_with("-NOPERM ACLs rules changed"),
        "{reply}"
    );
    assert!(
        parts[2].starts_with("-NOPERM ACLs rules changed"),
        "{reply}"
    );
    assert_eq!(parts[3..], ["+OK", "+PONG", ""]);
    assert_eq!(bench.call(&mut admin, "get a"), "$-1\r\n");
}

#[test]
fn who_may_not_hear_a_channel_any_more_is_sent_away() {
    let bench = Bench::new();
    let mut user = bob(&bench, "+@all ~* &a* &b*");
    let mut other = bob(&bench, "+@all");
    bench.call(&mut user, "subscribe a1");
    bench.call(&mut user, "psubscribe b*");
    bench.call(&mut other, "subscribe a1");
    let told = |rules: &str| {
        let mut admin = bench.session();
        bench.call(&mut admin, &format!("acl setuser bob {rules}"));
        let bob = bench.server.users.get(b"bob").unwrap();
        bench.server.pubsub.not_allowed(&bob).len()
    };
    assert_eq!(told("resetchannels &a* &b* &c"), 0);
    assert!(user.begin_batch(&bench.server));
    assert_eq!(told("resetchannels &a*"), 1);
    assert!(!user.begin_batch(&bench.server) && other.begin_batch(&bench.server));
    assert_eq!(told("resetchannels"), 2);
    // A client that takes the right from itself gets its reply first.
    let mut own = bob(&bench, "+@all ~* resetchannels &*");
    assert_eq!(bench.call(&mut own, "hello 3").chars().next(), Some('%'));
    bench.call(&mut own, "subscribe a");
    let (reply, flow) = bench.flow(&mut own, "acl setuser bob resetchannels");
    assert_eq!((reply.as_str(), flow), ("+OK\r\n", Flow::Close));
}

#[test]
fn names_have_limits() {
    let bench = Bench::new();
    let mut a = bench.session();
    let (fits, long) = ("x".repeat(1024), "x".repeat(1025));
    for (line, name) in [
        ("client setname", "Client names"),
        ("client setinfo lib-name", "lib-name"),
        ("client setinfo LIB-VER", "lib-ver"),
    ] {
        assert_eq!(bench.call(&mut a, &format!("{line} {fits}")), "+OK\r\n");
        assert_eq!(
            bench.call(&mut a, &format!("{line} {long}")),
            format!("-ERR {name} cannot be longer than 1024 bytes.\r\n")
        );
    }
    let hello = bench.call(&mut a, &format!("hello 2 setname {long}"));
    assert!(hello.starts_with("-ERR Client names"), "{hello}");
    let long = "x".repeat((64 << 10) + 1);
    for line in ["subscribe", "psubscribe", "pubsub channels"] {
        let reply = bench.call(&mut a, &format!("{line} {long}"));
        assert!(reply.starts_with("-ERR a channel's name"), "{line}");
    }
    let reply = bench.call(&mut a, &format!("publish {long} x"));
    assert!(reply.starts_with("-ERR a channel's name"));
}

#[test]
fn what_cannot_run_is_refused_when_it_is_queued() {
    let bench = Bench::new();
    let mut a = bench.session();
    for line in [
        "client foo",
        "object foo k",
        "object encoding",
        "config foo",
        "command foo",
        "pubsub foo",
    ] {
        bench.call(&mut a, "multi");
        let reply = bench.call(&mut a, line);
        assert!(reply.starts_with("-ERR "), "{line}: {reply}");
        let reply = bench.call(&mut a, "exec");
        assert!(reply.starts_with("-EXECABORT"), "{line}: {reply}");
    }
    bench.call(&mut a, "multi");
    for line in ["client id", "object encoding k", "command", "command count"] {
        assert_eq!(bench.call(&mut a, line), "+QUEUED\r\n", "{line}");
    }
    assert!(bench.call(&mut a, "exec").starts_with("*4\r\n"));
    bench.call(&mut a, "multi");
    assert_eq!(
        bench.call(&mut a, "exec now"),
        "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n"
    );
    assert_eq!(bench.call(&mut a, "exec"), "-ERR EXEC without MULTI\r\n");
}

/// Executes these lines as one batch of steps. Returns how many were executed so.
fn steps(bench: &Bench, session: &mut Session, lines: &[&str]) -> (usize, String) {
    let words: Vec<Vec<&[u8]>> = lines
        .iter()
        .map(|line| line.split(' ').map(str::as_bytes).collect())
        .collect();
    let commands: Vec<&[&[u8]]> = words.iter().map(Vec::as_slice).collect();
    let mut out = Vec::new();
    let done = session.execute_steps(&bench.server, &commands, &mut out);
    (done, String::from_utf8(out).unwrap())
}

#[test]
fn a_batch_of_sets_ends_where_more_than_a_step_is_needed() {
    let bench = journalled();
    let mut a = bench.session();
    let sets = |session: &mut Session, pairs: &[(&str, &str)]| {
        let lines = pairs
            .iter()
            .map(|(key, value)| format!("set {key} {value}"));
        let lines: Vec<String> = lines.collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (done, out) = steps(&bench, session, &lines);
        assert_eq!(out, "+OK\r\n".repeat(done));
        done
    };
    assert_eq!(sets(&mut a, &[("k", "1"), ("l", "2"), ("k", "3")]), 2);
    assert!(!bench.all_durable() && a.take_unsettled().is_some());
    (bench.server.data)
        .settle(bench.server.data.applied())
        .unwrap();
    assert_eq!(
        bench.call(&mut a, "mget k l"),
        "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"
    );
    // A small collection is one record; a large one leaves elements.
    bench.call(&mut a, "rpush small x");
    assert_eq!(sets(&mut a, &[("small", "1"), ("l", "2")]), 2);
    let member = "m".repeat(100);
    for i in 0..300 {
        bench.call(&mut a, &format!("sadd large {member}{i}"));
    }
    let three = [("k", "4"), ("large", "5"), ("n", "6")];
    assert_eq!(sets(&mut a, &three), 1);
    assert_eq!(sets(&mut a, &three[1..]), 0);
    assert_eq!(bench.call(&mut a, "scard large"), ":300\r\n");
    // Watchers are told.
    let mut b = bench.session();
    bench.call(&mut b, "watch n");
    assert_eq!(sets(&mut a, &[("n", "6"), ("k", "7")]), 2);
    bench.call(&mut b, "multi");
    assert_eq!(bench.call(&mut b, "exec"), "*-1\r\n");
    // A single command is executed by itself.
    assert_eq!(sets(&mut a, &[("n", "7")]), 0);
    let stats = bench.call(&mut a, "info commandstats");
    assert!(stats.contains("cmdstat_set:calls=7,"), "{stats}");
}

/// The batch had an admission of its own, which had to repeat what the other one said.
#[test]
fn steps_are_admitted_as_commands_are() {
    let bench = Bench::new();
    let mut a = bench.session();
    bench.call(&mut a, "set k 1");
    // A queued, silenced or forbidden command is not a step.
    for line in ["multi", "client reply skip", "subscribe news"] {
        let mut c = bench.session();
        bench.call(&mut c, line);
        assert_eq!(
            steps(&bench, &mut c, &["set n 8", "set k 8"]).0,
            0,
            "{line}"
        );
        assert_eq!(steps(&bench, &mut c, &["get k", "get k"]).0, 0, "{line}");
    }
    // With RESP3, subscribers may use all commands.
    let mut c = bench.session();
    bench.call(&mut c, "hello 3");
    bench.call(&mut c, "subscribe news");
    assert_eq!(steps(&bench, &mut c, &["get k", "get none"]).0, 2);
    // Rights to keys end the batch; the next command is refused by itself.
    bench.call(&mut a, "acl setuser bob on nopass ~n* +@all");
    bench.call(&mut a, "auth bob x");
    let lines = ["set n 9", "get n1", "get k", "get n"];
    assert_eq!(steps(&bench, &mut a, &lines), (2, "+OK\r\n$-1\r\n".into()));
    assert_eq!(steps(&bench, &mut a, &lines[2..]).0, 0);
    assert!(bench.call(&mut a, "get k").starts_with("-NOPERM"));
    assert_eq!(bench.call(&mut a, "get n"), "$1\r\n9\r\n");
    // A client that has not authenticated may use neither.
    bench.server.users.require("secret", &bench.server.table);
    let mut stranger = bench.session();
    assert_eq!(steps(&bench, &mut stranger, &["get n", "set n 1"]).0, 0);
    assert!(bench.call(&mut stranger, "get n").starts_with("-NOAUTH"));
}

#[test]
fn gets_and_sets_of_a_batch_are_executed_in_order() {
    let bench = journalled();
    let mut a = bench.session();
    bench.call(&mut a, "set k 1");
    bench.call(&mut a, "set gone 1 pxat 1");
    bench.call(&mut a, "rpush list x");
    let lines = [
        "get k",
        "set l 2",
        "get none",
        "set gone 3",
        "get k",
        "get l",
        "set k 4",
    ];
    let answers = "$1\r\n1\r\n+OK\r\n$-1\r\n+OK\r\n$1\r\n1\r\n";
    // A key that was set is read by the next batch, and one that is read is set after that.
    assert_eq!(steps(&bench, &mut a, &lines), (5, answers.into()));
    assert!(!bench.all_durable() && a.take_unsettled().is_some());
    assert_eq!(
        steps(&bench, &mut a, &lines[5..]),
        (2, "$1\r\n2\r\n+OK\r\n".into())
    );
    // An expired value is not read before it is set, either.
    bench.call(&mut a, "set gone 1 pxat 1");
    let gone = ["get gone", "set m 1"];
    assert_eq!(steps(&bench, &mut a, &gone), (2, "$-1\r\n+OK\r\n".into()));
    // A value of another type ends it, and so do options.
    let list = ["set m 2", "get list", "set m 3"];
    assert_eq!(steps(&bench, &mut a, &list), (1, "+OK\r\n".into()));
    let option = ["set m 4", "get k", "set m 5 nx"];
    assert_eq!(
        steps(&bench, &mut a, &option),
        (2, "+OK\r\n$1\r\n4\r\n".into())
    );
    // Clients that wait for a list are not served by a string.
    let mut b = bench.session();
    bench.call(&mut b, "blpop w 0");
    assert_eq!(
        steps(&bench, &mut a, &["set w 6", "get k"]),
        (2, "+OK\r\n$1\r\n4\r\n".into())
    );
    assert!(b.waiter().is_some());
    bench.call(&mut a, "del w");
    bench.call(&mut a, "rpush w x");
    assert_eq!(bench.call(&mut a, "llen w"), ":0\r\n");
    let stats = bench.call(&mut a, "info commandstats");
    assert!(stats.contains("cmdstat_get:calls=7,"), "{stats}");
    assert!(stats.contains("cmdstat_set:calls=10,"), "{stats}");
}

#[test]
fn a_batch_of_gets_reads_what_is_durable_or_its_own() {
    let bench = journalled();
    let mut a = bench.session();
    let gets = |session: &mut Session, keys: &[&str]| {
        let lines: Vec<String> = keys.iter().map(|key| format!("get {key}")).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        steps(&bench, session, &lines)
    };
    bench.call(&mut a, "set k 1");
    bench.call(&mut a, "set empty ");
    bench.call(&mut a, "set gone 1 pxat 1");
    // It reads what it has written, durable or not.
    assert!(!bench.all_durable());
    let all = ["k", "none", "empty", "gone", "k"];
    let answers = "$1\r\n1\r\n$-1\r\n$0\r\n\r\n$-1\r\n$1\r\n1\r\n";
    assert_eq!(gets(&mut a, &all), (5, answers.into()));
    // Others read what is durable, and their replies need not wait.
    let mut b = bench.session();
    assert_eq!(gets(&mut b, &["k", "none"]).1, "$-1\r\n$-1\r\n");
    assert!(b.take_unsettled().is_none());
    // A value of another type ends it, and so do long replies.
    bench.call(&mut a, "rpush list x");
    assert_eq!(gets(&mut a, &["k", "list", "k"]).0, 1);
    assert_eq!(gets(&mut a, &["list", "k"]), (0, String::new()));
    let long = "v".repeat(100 << 10);
    bench.call(&mut a, &format!("set long {long}"));
    assert_eq!(gets(&mut a, &["long"; 8]).0, 3);
    assert_eq!(gets(&mut a, &["k"]).0, 0);
}

#[test]
fn long_transactions_run() {
    let bench = Bench::new();
    let mut a = bench.session();
    bench.call(&mut a, "multi");
    for _ in 0..300 {
        bench.call(&mut a, "incr n");
    }
    assert!(bench.call(&mut a, "exec").ends_with(":300\r\n"));
}

#[test]
fn what_a_client_has_waited_for_is_durable_before_it_is_answered() {
    let bench = journalled();
    let (mut a, mut b) = (bench.session(), bench.session());
    assert_eq!(bench.flow(&mut a, "blpop k 0"), (String::new(), Flow::Wait));
    a.take_unsettled();
    assert_eq!(bench.call(&mut b, "rpush k x"), ":1\r\n");
    assert!(!bench.all_durable());
    let mut out = Vec::new();
    a.waited(&bench.server, &mut out);
    assert_eq!(out, b"*2\r\n$1\r\nk\r\n$1\r\nx\r\n");
    assert!(a.take_unsettled().is_some());
    // A client that is gone no longer waits.
    assert_eq!(bench.flow(&mut a, "blpop k 0").1, Flow::Wait);
    a.leave(&bench.server);
    bench.call(&mut b, "rpush k y");
    assert_eq!(bench.call(&mut b, "llen k"), ":1\r\n");
}

#[test]
fn sorting_by_other_keys_is_for_who_may_touch_all() {
    let bench = Bench::new();
    let mut admin = bench.session();
    bench.call(
        &mut admin,
        "acl setuser eve on nopass ~l* +sort +sort_ro +rpush",
    );
    let mut eve = bench.session();
    assert_eq!(bench.call(&mut eve, "auth eve x"), "+OK\r\n");
    bench.call(&mut eve, "rpush l 2 1");
    assert_eq!(bench.call(&mut eve, "sort l by nosort store l2"), ":2\r\n");
    for (line, option) in [("sort l by w*", "BY"), ("sort_ro l get #", "GET")] {
        let refused =
            format!("-ERR {option} option of SORT denied due to insufficient ACL permissions\r\n");
        assert_eq!(bench.call(&mut eve, line), refused);
    }
    let refused = bench.call(&mut eve, "sort l store other");
    assert!(refused.starts_with("-NOPERM "), "{refused}");
}

#[test]
fn commands_with_subcommands_have_help() {
    let bench = Bench::new();
    let mut session = bench.session();
    for name in [
        "acl", "client", "command", "config", "debug", "latency", "memory", "object", "pubsub",
        "slowlog",
    ] {
        let help = bench.call(&mut session, &format!("{name} HELP"));
        let lines: Vec<&str> = help.split_terminator("\r\n").collect();
        assert_eq!(lines[0], format!("*{}", lines.len() - 1), "{help}");
        assert!(lines[1].starts_with(&format!("+{} <subcommand> ", name.to_uppercase())));
        assert_eq!(lines[lines.len() - 2..], ["+HELP", "+    Print this help."]);
        let wrong = format!("-ERR wrong number of arguments for '{name}|help' command\r\n");
        assert_eq!(bench.call(&mut session, &format!("{name} help x")), wrong);
    }
    bench.call(&mut session, "multi");
    assert_eq!(bench.call(&mut session, "client help"), "+QUEUED\r\n");
    assert!(
        bench
            .call(&mut session, "exec")
            .contains("+CLIENT <subcommand> ")
    );
}

#[test]
fn there_are_no_replicas() {
    let bench = Bench::new();
    let mut session = bench.session();
    assert_eq!(
        bench.call(&mut session, "role"),
        "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"
    );
    bench.call(&mut session, "set k v");
    assert_eq!(bench.call(&mut session, "wait 1 100"), ":0\r\n");
    let negative = "-ERR timeout is negative\r\n";
    assert_eq!(bench.call(&mut session, "wait 1 -1"), negative);
}
