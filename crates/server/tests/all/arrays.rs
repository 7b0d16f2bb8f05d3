//! Commands and replies of a million elements.

use crate::live::{Live, encoded, same};
use std::collections::HashSet;
use std::io::Read;

#[test]
fn a_million_arguments_are_taken() {
    let live = Live::start();
    let mut client = live.client();
    let mut sent = b"*1000001\r\n$3\r\nDEL\r\n".to_vec();
    sent.extend(b"$0\r\n\r\n".repeat(1_000_000));
    // Whatever the command says to it, it is one reply.
    client.send(&sent);
    client.send(b"PING\r\n");
    let first = client.reply();
    assert!(first.starts_with(':') || first.starts_with('-'), "{first}");
    same(&client.reply(), "+PONG\n");
    client.send(b"*1048577\r\n");
    same(
        &client.reply(),
        "-ERR Protocol error: invalid multibulk length\n",
    );
}

#[test]
fn many_elements_go_in_and_out() {
    elements_go_in_and_out(100_000);
}

#[test]
#[ignore = "takes minutes without optimisation"]
fn a_million_elements_go_in_and_out() {
    elements_go_in_and_out(1_000_000);
}

fn elements_go_in_and_out(many: usize) {
    let live = Live::start();
    let mut client = live.client();
    client.stream.set_read_timeout(None).unwrap();
    let pairs = |i: usize| format!("$7\r\nk{i:06}\r\n$7\r\nv{i:06}\r\n");
    let mut sent = format!("*{}\r\n$4\r\nMSET\r\n", many + 1);
    sent.extend((0..many / 2).map(pairs));
    client.send(sent.as_bytes());
    same(&client.reply(), "+OK\n");
    same(&client.call("DBSIZE"), &format!(":{}\n", many / 2));
    let last = many / 2 - 1;
    same(
        &client.call(&format!("GET k{last:06}")),
        &format!("$7\nv{last:06}\n"),
    );
    let mut sent = format!("*{}\r\n$4\r\nSADD\r\n$1\r\ns\r\n", many + 2);
    sent.extend((0..many).map(|i| format!("$7\r\nm{i:06}\r\n")));
    client.send(sent.as_bytes());
    let all = format!(":{many}\n");
    same(&client.reply(), &all);
    same(&client.call("SCARD s"), &all);
    let last = many - 1;
    same(&client.call(&format!("SISMEMBER s m{last:06}")), ":1\n");
    // Others were served meanwhile, and are now.
    same(&live.client().call("PING"), "+PONG\n");
    client.send(&encoded(&[b"SMEMBERS", b"s"]));
    let expected = format!("*{many}\r\n").into_bytes();
    let mut header = vec![0; expected.len()];
    client.stream.read_exact(&mut header).unwrap();
    assert_eq!(header, expected);
    let mut members = vec![0; many * "$7\r\nm000000\r\n".len()];
    client.stream.read_exact(&mut members).unwrap();
    same(&client.call("PING"), "+PONG\n");
    let distinct: HashSet<&[u8]> = members.chunks("$7\r\nm000000\r\n".len()).collect();
    assert_eq!(distinct.len(), many);
    same(&client.call("UNLINK s"), ":1\n");
}
