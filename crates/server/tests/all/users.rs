//! Users and settings as operators change them: files that the server writes, wrong passwords,
//! rights that are taken away.

use crate::live::{Client, Live, connect, encoded, same, settings};
use bristlecone_pmem::MediumKind;
use bristlecone_server::config::Settings;
use std::time::{Duration, Instant};

#[test]
fn settings_and_users_are_written_and_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let (file, acl) = (dir.path().join("serve.toml"), dir.path().join("users.acl"));
    std::fs::write(&file, "# ours\ntimeout = 5 # seconds\n").unwrap();
    let read = || {
        let mut read = settings();
        read.read_file(&file).unwrap();
        read.aclfile = Some(acl.clone());
        read
    };
    let mut live = Live::with(read(), MediumKind::Mapped);
    let mut client = live.client();
    same(&client.call("CONFIG REWRITE"), "+OK\n");
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(
        text, "# ours\ntimeout = 5 # seconds\n",
        "nothing was changed"
    );
    same(&client.call("CONFIG SET timeout 77 maxclients 50"), "+OK\n");
    same(&client.call("CONFIG REWRITE"), "+OK\n");
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text, "# ours\ntimeout = 77 # seconds\nmaxclients = 50\n");
    same(&client.call("ACL SETUSER bob on >pw ~a* +@read"), "+OK\n");
    same(&client.call("ACL SAVE"), "+OK\n");
    live.reopen(read());
    let mut client = live.client();
    same(
        &client.call("CONFIG GET timeout"),
        "*2\n$7\ntimeout\n$2\n77\n",
    );
    same(&client.call("AUTH bob pw"), "+OK\n");
    assert!(client.call("SET a 1").starts_with("-NOPERM"));
    // What a file says is taken over as a whole, or not at all.
    let mut admin = live.client();
    let lines = std::fs::read_to_string(&acl).unwrap();
    std::fs::write(&acl, format!("{lines}user eve on nopass +nothing\n")).unwrap();
    let refused = admin.call("ACL LOAD");
    assert!(refused.contains("users.acl: line 3: ") && refused.contains("nothing was changed"));
    assert!(admin.call("ACL USERS").contains("bob"));
    let without = lines.lines().filter(|line| !line.starts_with("user bob"));
    std::fs::write(&acl, without.collect::<String>()).unwrap();
    same(&admin.call("ACL LOAD"), "+OK\n");
    assert!(client.is_closed() && !admin.call("ACL USERS").contains("bob"));
}

#[test]
fn without_files_there_is_nothing_to_write() {
    let live = Live::start();
    let mut client = live.client();
    let refused = client.call("CONFIG REWRITE");
    same(
        &refused,
        "-ERR The server is running without a config file\n",
    );
    for command in ["ACL SAVE", "ACL LOAD"] {
        let refused = client.call(command);
        assert!(refused.starts_with("-ERR This server is not configured to use an ACL file"));
    }
}

#[test]
fn wrong_passwords_are_answered_later_and_later() {
    let live = Live::with(
        Settings {
            requirepass: "secret".into(),
            ..settings()
        },
        MediumKind::Mapped,
    );
    let (mut client, mut admin) = (live.client(), live.client());
    same(&admin.call("AUTH secret"), "+OK\n");
    let mut wrong = || {
        let begun = Instant::now();
        assert!(client.call("AUTH guess").starts_with("-WRONGPASS"));
        begun.elapsed()
    };
    let first: Vec<Duration> = (0..3).map(|_| wrong()).collect();
    let later: Vec<Duration> = (0..3).map(|_| wrong()).collect();
    assert!(
        later.iter().min() > first.iter().max(),
        "{first:?} {later:?}"
    );
    assert!(later[0] >= Duration::from_millis(100) && later[2] >= Duration::from_millis(400));
    // Another connection from there waits too; others are served meanwhile, and who knows the
    // password begins anew.
    let mut other = live.client();
    let begun = Instant::now();
    other.send(&encoded(&[b"HELLO", b"3", b"AUTH", b"default", b"guess"]));
    while !admin.call("INFO stats").contains("acl_access_denied:7") {
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    let mut third = live.client();
    same(&third.call("AUTH secret"), "+OK\n");
    same(&third.call("PING"), "+PONG\n");
    assert!(
        begun.elapsed() < Duration::from_millis(700),
        "{:?}",
        begun.elapsed()
    );
    assert!(other.reply().starts_with("-WRONGPASS"));
    assert!(begun.elapsed() >= Duration::from_millis(800));
    let begun = Instant::now();
    assert!(live.client().call("AUTH guess").starts_with("-WRONGPASS"));
    assert!(
        begun.elapsed() < Duration::from_millis(100),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn who_waits_for_a_key_loses_the_right_to_it() {
    let live = Live::start();
    let mut admin = live.client();
    same(&admin.call("ACL SETUSER bob on >pw ~a ~b +@all"), "+OK\n");
    let waiting = |key: &str| {
        let mut client = Client::new(connect(live.address()));
        same(&client.call("AUTH bob pw"), "+OK\n");
        client.send(&encoded(&[b"BLPOP", key.as_bytes(), b"0"]));
        client
    };
    let (mut a, mut b) = (waiting("a"), waiting("b"));
    let until = Instant::now() + Duration::from_secs(10);
    while !admin.call("INFO clients").contains("blocked_clients:2") {
        assert!(Instant::now() < until);
    }
    // Other rights, and other keys, are no matter.
    same(&admin.call("ACL SETUSER bob -set"), "+OK\n");
    same(&admin.call("ACL SETUSER bob resetkeys ~b"), "+OK\n");
    assert!(a.is_closed());
    same(&admin.call("RPUSH a 1"), ":1\n");
    same(&admin.call("RPUSH b 1"), ":1\n");
    same(&b.reply(), "*2\n$1\nb\n$1\n1\n");
    same(&admin.call("LLEN a"), ":1\n");
    let mut c = waiting("b");
    while !admin.call("INFO clients").contains("blocked_clients:1") {
        assert!(Instant::now() < until);
    }
    same(&admin.call("ACL SETUSER bob -blpop"), "+OK\n");
    assert!(c.is_closed());
}

/// `CONFIG SET` and `CONFIG REWRITE` waited for each other's lock for ever.
#[test]
fn settings_are_changed_and_written_at_the_same_time() {
    const TIMES: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let (file, acl) = (dir.path().join("serve.toml"), dir.path().join("users.acl"));
    std::fs::write(&file, "# ours\nmaxclients = 50\n").unwrap();
    let mut read = settings();
    read.read_file(&file).unwrap();
    read.aclfile = Some(acl.clone());
    let live = Live::with(read, MediumKind::Mapped);
    let commands = [
        |n: usize| format!("CONFIG SET timeout {}", 1000 + n),
        |_: usize| "CONFIG REWRITE".to_owned(),
        |_: usize| "CONFIG REWRITE".to_owned(),
        |_: usize| "ACL SAVE".to_owned(),
        |_: usize| "ACL SAVE".to_owned(),
    ];
    std::thread::scope(|scope| {
        for command in commands {
            let mut client = live.client();
            scope.spawn(move || {
                for n in 0..TIMES {
                    let command = command(n);
                    same(&client.call(&command), "+OK\n");
                }
            });
        }
    });
    let mut client = live.client();
    same(&client.call("CONFIG REWRITE"), "+OK\n");
    let text = std::fs::read_to_string(&file).unwrap();
    let last = 1000 + TIMES - 1;
    assert_eq!(text, format!("# ours\nmaxclients = 50\ntimeout = {last}\n"));
    same(&client.call("ACL LOAD"), "+OK\n");
    // Nothing else is left there.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}
