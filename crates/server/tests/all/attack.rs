//! A web page could write to a server on the machine of its reader. A browser sends `POST /
//! HTTP/1.1` and `Host: ...` where the page tells it to, and the lines behind them were executed as
//! inline commands.

use crate::live::{Live, same, settings};
use bristlecone_pmem::MediumKind;
use bristlecone_server::config::Settings;

const REQUESTS: [&str; 6] = [
    "POST / HTTP/1.1\r\nHost: x\r\n\r\nSET stolen yes\r\n",
    "post / HTTP/1.1\r\n\r\nSET stolen yes\r\n",
    // The first line is a wrong GET; a browser's next one says where it goes.
    "GET / HTTP/1.1\r\nhOsT: 127.0.0.1:6379\r\n\r\nSET stolen yes\r\n",
    "SET before yes\r\nHost: x\r\nSET stolen yes\r\n",
    "*1\r\n$4\r\nPoSt\r\n*3\r\n$3\r\nSET\r\n$6\r\nstolen\r\n$3\r\nyes\r\n",
    "MULTI\r\nSET stolen yes\r\nHOST:\r\nEXEC\r\n",
];

#[test]
fn nothing_of_what_a_browser_sends_is_executed() {
    let live = Live::start();
    let mut other = live.client();
    for request in REQUESTS {
        let mut browser = live.client();
        browser.send(request.as_bytes());
        assert!(browser.is_closed(), "{request:?}");
        same(&other.call("EXISTS stolen"), ":0\n");
    }
    same(&other.call("GET before"), "$3\nyes\n");
}

#[test]
fn a_browser_that_has_not_said_who_it_is_is_sent_away_too() {
    let settings = Settings {
        requirepass: "secret".into(),
        ..settings()
    };
    let live = Live::with(settings, MediumKind::Mapped);
    for request in [
        "POST / HTTP/1.1\r\nAUTH secret\r\nSET stolen yes\r\n",
        "*1\r\n$5\r\nhost:\r\nAUTH secret\r\nSET stolen yes\r\n",
    ] {
        let mut browser = live.client();
        browser.send(request.as_bytes());
        assert!(browser.is_closed(), "{request:?}");
    }
    let mut other = live.client();
    same(&other.call("AUTH secret"), "+OK\n");
    same(&other.call("EXISTS stolen"), ":0\n");
}
