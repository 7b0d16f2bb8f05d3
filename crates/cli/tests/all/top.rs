//! `top`: plain views of a server at work, and what it says when there is none.

use crate::common::Bench;
use crate::common::server::Server;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

/// Sends commands, and waits until all are answered.
fn send(server: &Server, commands: &str) {
    let mut stream = server.connect();
    stream.write_all(commands.as_bytes()).unwrap();
    stream.write_all(b"ECHO done\r\n").unwrap();
    let mut replies = Vec::new();
    while !replies.ends_with(b"$4\r\ndone\r\n") {
        let mut some = [0; 1024];
        let read = stream.read(&mut some).unwrap();
        assert!(read > 0, "the server is gone");
        replies.extend_from_slice(&some[..read]);
    }
}

/// The line of a view that begins with that word, as words.
#[track_caller]
fn line<'v>(view: &'v str, first: &str) -> Vec<&'v str> {
    let found = view
        .lines()
        .find(|line| line.split_whitespace().next() == Some(first));
    let line = found.unwrap_or_else(|| panic!("no {first:?} in: {view}"));
    line.split_whitespace().collect()
}

#[test]
fn a_view_tells_what_the_server_has_done() {
    let b = Bench::new();
    let server = Server::start(&b, &["--set", "slowlog-log-slower-than=0"]);
    let commands = [
        "SET a 1",
        "SET b 2",
        "GET a",
        "LPUSH a x",
        "ECHO \x1b[2J",
        "SELECT 3",
        "SET c 3",
        "",
    ];
    send(&server, &commands.join("\r\n"));
    let view = b.run(&["top", &server.address, "--once"]).ok().text();
    assert_eq!(line(&view, "server")[1], server.address);
    assert_eq!(line(&view, "keys")[1], "3");
    assert!(view.contains("/s since the start  errors "), "{view}");
    assert_eq!(line(&view, "clients")[2..4], ["of", "10,000"]);
    let used = line(&view, "memory");
    assert!(used.contains(&"used") && used.contains(&"free"), "{view}");
    let set = line(&view, "set");
    assert_eq!((set[2], set[set.len() - 1]), ("3", "0"), "{view}");
    // It failed: the key holds a string.
    assert_eq!(line(&view, "lpush").last(), Some(&"1"), "{view}");
    assert!(
        view.contains("SLOW (UTC)") && view.contains("\\x1b[2J"),
        "{view}"
    );
    assert!(
        !view.contains('\x1b'),
        "what clients send moves no cursor: {view:?}"
    );
}

#[test]
fn rates_of_later_views_are_those_since_the_view_before() {
    let b = Bench::new();
    let server = Server::start(&b, &[]);
    send(&server, "SET a 1\r\n");
    let args = ["top", &server.address, "--interval", "0.1", "--count", "3"];
    let text = b.run(&args).ok().text();
    let views: Vec<&str> = text.split("\n\nserver").collect();
    assert_eq!(views.len(), 3, "{text}");
    assert!(views[0].contains("since the start") && !views[1].contains("since the start"));
    for view in &views[1..] {
        assert!(view.contains(" over "), "{view}");
        assert_eq!(line(view, "set")[1..4], ["0/s", "1", "-"], "{view}");
        assert_ne!(line(view, "info")[1], "0/s", "{view}");
    }
}

#[test]
fn who_does_not_get_in_is_told_what_to_do() {
    let b = Bench::new();
    let server = Server::start(&b, &["--set", "requirepass=secret"]);
    let address = server.address.as_str();
    b.run(&["top", address, "--once"])
        .fails(&["NOAUTH", "BRISTLECONE_PASSWORD"]);
    b.run(&["top", address, "--once", "--password", "wrong"])
        .fails(&["WRONGPASS"]);
    b.run(&["top", address, "--once", "--password", "secret"])
        .ok();
    let mut top = b.command();
    top.args(["top", address, "--once", "--user", "default"]);
    let output = top.env("BRISTLECONE_PASSWORD", "secret").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    send(&server, "AUTH secret\r\nACL SETUSER eve on >pw +ping\r\n");
    b.run(&[
        "top",
        address,
        "--once",
        "--user",
        "eve",
        "--password",
        "pw",
    ])
    .fails(&["NOPERM", "+slowlog"]);
}

#[test]
fn where_no_server_is_the_next_step_is_said() {
    let b = Bench::new();
    // Nobody listens at an address that was just given back.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    b.run(&["top", &free.to_string(), "--once"])
        .fails(&["connection refused", "serve POOL --listen"]);
    b.run(&["top", "no such place", "--once"])
        .ends(2, &["not an address"]);
    b.run(&["top", "--interval", "0"]).ends(2, &["from 0.1"]);
    let http = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = http.local_addr().unwrap().to_string();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = http.accept().unwrap();
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    b.run(&["top", &address, "--once"])
        .fails(&["no server of ours"]);
    answering.join().unwrap();
}

/// A key and a certificate for `localhost` that it signs itself. False where there is no openssl.
fn make_certificate(dir: &Path) -> bool {
    let mut openssl = Command::new("openssl");
    openssl
        .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"])
        .args([
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-subj",
            "/CN=localhost",
        ])
        .args(["-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(dir)
        .stderr(Stdio::null());
    openssl.status().is_ok_and(|status| status.success())
}

#[test]
fn tls_is_spoken_when_it_is_asked_for() {
    let b = Bench::new();
    if !make_certificate(b.dir()) {
        eprintln!("SKIPPED: no openssl here that makes a certificate");
        return;
    }
    let mut args = vec!["--tls-listen", "127.0.0.1:0"];
    args.extend(["--tls-cert", "cert.pem", "--tls-key", "key.pem"]);
    let mut server = Server::start(&b, &args);
    let told = server.line();
    let (_, port) = told.rsplit_once(':').unwrap();
    let address = format!("localhost:{port}");
    let view = b
        .run(&["top", &address, "--once", "--tls-ca", "cert.pem"])
        .ok();
    assert_eq!(line(&view.text(), "server")[1], address);
    b.run(&[
        "top",
        &format!("127.0.0.1:{port}"),
        "--once",
        "--tls-ca",
        "cert.pem",
    ])
    .fails(&["TLS", "certificate"]);
    b.run(&["top", &address, "--once", "--tls-ca", "key.pem"])
        .fails(&["key.pem", "no certificate"]);
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let b = Bench::new();
    let server = Server::start(&b, &[]);
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs = || {
        let mut options = std::fs::OpenOptions::new();
        Stdio::from(
            options
                .read(true)
                .write(true)
                .open(name.to_str().unwrap())
                .unwrap(),
        )
    };
    let mut top = Command::new(env!("CARGO_BIN_EXE_bristlecone"))
        .args(["top", &server.address, "--interval", "3600"])
        .stdin(theirs())
        .stdout(theirs())
        .stderr(theirs())
        .spawn()
        .unwrap();
    let mut terminal = std::fs::File::from(ours);
    let mut shown = Vec::new();
    let mut until = |end: &[u8]| {
        while !shown.windows(end.len()).any(|part| part == end) {
            let mut some = [0; 1024];
            let read = terminal.read(&mut some).unwrap();
            shown.extend_from_slice(&some[..read]);
        }
    };
    // The other screen, and the whole first view.
    until(b"\x1b[?1049h");
    until(b"\x1b[?2026l");
    let id = rustix::process::Pid::from_child(&top);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    until(b"\x1b[?1049l");
    assert!(top.wait().unwrap().success());
}
