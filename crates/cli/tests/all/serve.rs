//! `serve`: settings, signals, and a server that is killed. (That nothing acknowledged is lost
//! while many write is a test of the server's crate.)

use crate::common::Bench;
use crate::common::server::Server;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Sends `request` and reads as many bytes as `reply` has.
fn ask(stream: &mut TcpStream, request: &str, reply: &str) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut found = vec![0; reply.len()];
    stream.read_exact(&mut found).unwrap();
    assert_eq!(String::from_utf8_lossy(&found), reply, "{request}");
}

#[test]
fn a_killed_server_is_started_again_and_has_what_it_acknowledged() {
    for medium in ["mapped", "journal"] {
        let b = Bench::new();
        for round in 0..3 {
            let mut server = Server::start(&b, &["--medium", medium]);
            let mut stream = server.connect();
            for before in 0..round {
                let (request, reply) = (format!("GET k{before}\r\n"), "$3\r\nyes\r\n");
                ask(&mut stream, &request, reply);
            }
            ask(&mut stream, &format!("SET k{round} yes\r\n"), "+OK\r\n");
            server.child.kill().unwrap();
        }
    }
}

#[test]
fn it_ends_when_it_is_told_to_and_keeps_what_it_has() {
    let b = Bench::new();
    b.file("serve.toml", "requirepass = \"secret\"\nmaxclients = 9\n");
    let config = ["--config", "serve.toml", "--set", "maxclients=7"];
    let mut server = Server::start(&b, &config);
    let mut stream = server.connect();
    ask(
        &mut stream,
        "GET k\r\n",
        "-NOAUTH Authentication required.\r\n",
    );
    ask(&mut stream, "AUTH secret\r\n", "+OK\r\n");
    ask(
        &mut stream,
        "CONFIG GET maxclients\r\n",
        "*2\r\n$10\r\nmaxclients\r\n$1\r\n7\r\n",
    );
    ask(&mut stream, "SET k v\r\n", "+OK\r\n");
    let pid = server.child.id().to_string();
    b.shell(&format!("kill -TERM {pid}")).ok();
    assert!(server.ends());
    let mut server = Server::start(&b, &[]);
    let mut stream = server.connect();
    ask(&mut stream, "GET k\r\n", "$1\r\nv\r\n");
    stream.write_all(b"SHUTDOWN\r\n").unwrap();
    assert!(server.ends());
}

#[test]
fn a_signal_right_after_the_start_ends_it_in_good_order() {
    let b = Bench::new();
    for _ in 0..20 {
        let mut server = Server::start(&b, &[]);
        server.signal(Signal::TERM);
        assert!(server.ends());
    }
}

/// A server reads what another setting wrote, and so do commands on the pool.
#[test]
fn long_values_are_compressed_if_a_server_is_told_to() {
    let b = Bench::new();
    let text = "a line of text; ".repeat(4000);
    let set = format!(
        "*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n${}\r\n{text}\r\n",
        text.len()
    );
    let mut used = Vec::new();
    for compression in ["no", "lz4", "zstd"] {
        let setting = format!("compression={compression}");
        let mut server = Server::start(&b, &["--set", &setting]);
        let mut stream = server.connect();
        if compression != "no" {
            ask(&mut stream, "STRLEN long\r\n", ":64000\r\n");
        }
        for _ in 0..3 {
            ask(&mut stream, &set, "+OK\r\n");
        }
        ask(&mut stream, "GETRANGE long 63998 -1\r\n", "$2\r\n; \r\n");
        server.stop();
        let info = b.run(&["info", "s.pool", "--json"]).ok().json();
        used.push(info["used_bytes"].as_u64().unwrap());
        b.run(&["check", "s.pool"]).ok();
    }
    let [plain, packed @ ..] = &used[..] else {
        panic!("{used:?}");
    };
    assert!(
        packed.iter().all(|packed| packed + 50_000 < *plain),
        "{used:?}"
    );
    assert_eq!(b.run(&["get", "s.pool", "long"]).ok().text(), text);
}

#[test]
fn wrong_settings_are_named_with_their_place() {
    let b = Bench::new();
    b.file("serve.toml", "timeout = 1\nmaxclients = \"many\"\n");
    b.run(&["serve", "s.pool", "--config", "serve.toml"])
        .ends(2, &["serve.toml:2", "maxclients", "many"]);
    b.run(&["serve", "s.pool", "--set", "nothing=1"])
        .ends(2, &["--set", "nothing"]);
    b.run(&["serve", "s.pool", "--set", "maxmemory-clients=101%"])
        .ends(2, &["--set", "maxmemory-clients", "101%"]);
    b.run(&["serve", "s.pool", "--set", "compression=gzip"])
        .ends(2, &["compression", "gzip", "'no', 'lz4' or 'zstd'"]);
}

/// A wrong address or certificate ended the server with status 1, and systemd, which is told not to
/// start it again after status 2, started it again and again.
#[test]
fn settings_that_cannot_be_had_end_it_with_status_2() {
    let b = Bench::new();
    b.file("key", "no key");
    b.file("cert", "no certificate");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let tls = ["--tls-listen", "127.0.0.1:0"];
    let all = |more: &[&'static str]| [&tls[..], more].concat();
    for (args, parts) in [
        (all(&[]), &["tls-listen needs tls-cert and tls-key"][..]),
        (all(&["--tls-cert", "cert"]), &["tls-cert and tls-key"]),
        (all(&["--tls-key", "key"]), &["tls-cert and tls-key"]),
        (
            all(&["--tls-cert", "absent", "--tls-key", "key"]),
            &["absent", "No such file"],
        ),
        (all(&["--tls-cert", "cert", "--tls-key", "key"]), &["TLS: "]),
        (vec!["--tls-cert", "cert"], &["tls-cert needs tls-key"]),
        (vec!["--tls-key", "key"], &["tls-key needs tls-cert"]),
        (
            vec!["--tls-cert", "cert", "--tls-key", "key"],
            &["without tls-listen"],
        ),
        (vec!["--set", "logfile=no/such/log"], &["no/such/log"]),
    ] {
        b.run(&[&["serve", "s.pool", "--listen", "127.0.0.1:0"], &args[..]].concat())
            .ends(2, parts);
        assert!(!b.path("s.pool").exists(), "{args:?} made a pool");
    }
    b.run(&["serve", "s.pool", "--listen", "nowhere"])
        .ends(2, &["listening on nowhere failed"]);
    b.run(&["serve", "s.pool", "--listen", &taken])
        .ends(2, &[&taken, "in use"]);
    let metrics = ["--listen", "127.0.0.1:0", "--metrics", &taken];
    b.run(&[&["serve", "s.pool"], &metrics[..]].concat())
        .ends(2, &[&taken, "in use"]);
    let user = "users = [\"bob +nonsense\"]\n";
    b.file("serve.toml", user);
    let config = ["--listen", "127.0.0.1:0", "--config", "serve.toml"];
    b.run(&[&["serve", "s.pool"], &config[..]].concat())
        .ends(2, &["bob"]);
}

/// Failed logins were logged by the threads that serve: 816 of them, and a pipe that nobody read,
/// stopped the server for good, and SIGTERM with it.
#[test]
fn a_standard_error_that_nobody_reads_holds_nobody_up() {
    let b = Bench::new();
    let (_nobody_reads, mut full) = std::io::pipe().unwrap();
    let room = rustix::pipe::fcntl_getpipe_size(&full).unwrap();
    full.write_all(&vec![b'.'; room]).unwrap();
    let args = ["--set", "requirepass=secret", "--set", "log-level=debug"];
    let mut server = Server::with_stderr(&b, &args, full.into());
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    // Each makes two lines at least.
    for _ in 0..500 {
        let mut stream = server.connect();
        ask(&mut stream, "HELLO\r\n", "-NOAUTH");
    }
    let mut stream = server.connect();
    ask(&mut stream, &"AUTH wrong\r\n".repeat(5), &wrong.repeat(5));
    let mut stream = server.connect();
    ask(&mut stream, "AUTH secret\r\nPING\r\n", "+OK\r\n+PONG\r\n");
    server.signal(Signal::TERM);
    assert!(server.ends());
}

/// Waits until a file has that text, and gives all of it.
fn holds(path: &Path, text: &str) -> String {
    let start = Instant::now();
    loop {
        let found = std::fs::read_to_string(path).unwrap_or_default();
        if found.contains(text) {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{found}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// SIGHUP, which tells servers to begin their logs anew, killed this one.
#[test]
fn a_hangup_begins_the_log_anew_and_lines_of_one_cause_are_limited() {
    let b = Bench::new();
    let limit = ["--set", "client-query-buffer-limit=100"];
    let mut server = Server::start(&b, &[&limit[..], &["--set", "logfile=log"]].concat());
    for _ in 0..500 {
        let mut stream = server.connect();
        stream.write_all(&[b'x'; 200]).unwrap();
        // It is disconnected, perhaps before all of that was read.
        let _ = stream.read(&mut [0; 1]);
    }
    let mut stream = server.connect();
    let (log, old) = (b.path("log"), b.path("log.1"));
    let line = "longer than client-query-buffer-limit";
    holds(&log, line);
    std::fs::rename(&log, &old).unwrap();
    server.signal(Signal::HUP);
    holds(&log, "told to reload");
    ask(&mut stream, "PING\r\n", "+PONG\r\n");
    server.signal(Signal::TERM);
    assert!(server.ends());
    // Lines that were left out are counted, when a period ends or the server does.
    holds(&log, "lines=490");
    let written = holds(&old, line).matches(line).count();
    assert_eq!(written, 10);
}
