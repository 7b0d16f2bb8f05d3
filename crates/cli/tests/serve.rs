//! `serve`: settings, signals, and a server that is killed. (That nothing acknowledged is lost while many write is a test of the server's crate.)

mod common;

use common::Bench;
use common::server::Server;
use std::io::{Read, Write};
use std::net::TcpStream;

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
    let mut server = Server::start(&b, &["--design", "nvtree"]);
    let mut stream = server.connect();
    ask(&mut stream, "GET k\r\n", "$1\r\nv\r\n");
    stream.write_all(b"SHUTDOWN\r\n").unwrap();
    assert!(server.ends());
}

#[test]
fn wrong_settings_are_named_with_their_place() {
    let b = Bench::new();
    b.file("serve.toml", "timeout = 1\nmaxclients = \"many\"\n");
    b.run(&["serve", "s.pool", "--config", "serve.toml"])
        .ends(2, &["serve.toml:2", "maxclients", "many"]);
    b.run(&["serve", "s.pool", "--set", "nothing=1"])
        .ends(2, &["--set", "nothing"]);
    b.run(&["serve", "s.pool", "--listen", "nowhere"])
        .fails(&["listening on nowhere failed"]);
    b.run(&["serve", "s.pool", "--tls-listen", "127.0.0.1:0"])
        .fails(&["tls-cert"]);
}
