//! A benchmark that SIGTERM ended, or that was killed, left its pool on `/dev/shm`, which is
//! memory, until the next reboot. Now signal handlers remove temporary files, and a run removes the
//! files of killed ones.

use crate::common::Bench;
use crate::common::processes::{found, is_in_use, start, start_and_wait, wait_for};
use std::os::unix::process::ExitStatusExt;

const MICRO: [&str; 8] = [
    "bench", "micro", "--keys", "3M", "--ops", "insert", "--path", ".",
];

#[test]
fn signals_remove_temporary_pools_and_end_who_works_on_them() {
    let dir = Bench::new();
    let path = dir.dir().to_str().unwrap().to_owned();
    let torture = [
        "torture", "--medium", "mapped", "--kills", "5000", "--dir", &path,
    ];
    let peers = [
        "bench",
        "peers",
        "--engines",
        "store",
        "--keys",
        "3M",
        "--path",
        &path,
    ];
    let cases: [(&[&str], &str, &str); 3] = [
        (&peers, "bristlecone-bench-", "store/pairs.db"),
        (&MICRO, "bristlecone-bench-", "micro.pool"),
        (&torture, "bristlecone-torture-", "torture.pool"),
    ];
    for (args, prefix, pool) in cases {
        for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
            let (mut child, pools) = start_and_wait(&dir, args, prefix, pool);
            assert!(pools.to_str().unwrap().contains(&child.id().to_string()));
            dir.shell(&format!("kill -{name} {}", child.id())).ok();
            let status = child.wait().unwrap();
            assert_eq!(status.signal(), Some(number), "{args:?}: {status}");
            assert!(found(&dir, "bristlecone-").is_empty(), "{args:?}");
            wait_for("end of its processes", || {
                (!is_in_use(&pools)).then_some(())
            });
        }
    }
}

#[test]
fn a_signal_ends_the_process_that_counts_and_removes_its_files() {
    let b = Bench::new();
    let args = [
        "bench",
        "peers",
        "--engines",
        "store",
        "--workloads",
        "load",
        "--keys",
        "500K",
        "--rounds",
        "1",
        "--path",
        b.dir().to_str().unwrap(),
    ];
    let mut child = start(&b, &args);
    // The process that counts has a directory in that of its parent.
    let counting = wait_for("process that counts", || {
        let outer = found(&b, "bristlecone-bench-");
        let inner = outer.iter().flat_map(|dir| dir.read_dir()).flatten();
        let mut inner = inner.flatten().map(|entry| entry.path());
        inner.find(|dir| dir.join("store/pairs.db").exists())
    });
    assert!(is_in_use(counting.parent().unwrap()));
    b.shell(&format!("kill -INT {}", child.id())).ok();
    assert_eq!(child.wait().unwrap().signal(), Some(2));
    wait_for("end of the process", || {
        (!is_in_use(counting.parent().unwrap())).then_some(())
    });
    assert!(found(&b, "bristlecone-").is_empty());
}

#[test]
fn a_run_that_was_told_to_ignore_hangups_does() {
    let b = Bench::new();
    let program = crate::common::PROGRAM;
    let line = format!(
        "trap '' HUP; {program} bench micro --keys 300K --ops insert --path . >out 2>err & \
         while ! ls -d bristlecone-bench-* >/dev/null 2>&1; do sleep 0.01; done; \
         kill -HUP $!; wait $!"
    );
    b.shell(&line).ok();
    assert!(
        std::fs::read_to_string(b.path("out"))
            .unwrap()
            .contains("insert")
    );
}

#[test]
fn the_next_run_removes_what_a_killed_one_left_unless_someone_has_it_open() {
    let b = Bench::new();
    let (mut child, left) = start_and_wait(&b, &MICRO, "bristlecone-bench-", "micro.pool");
    // While it runs, another run leaves its files alone.
    let quick = [
        "bench", "micro", "--keys", "2K", "--ops", "insert", "--path", ".",
    ];
    b.run(&quick).ok();
    assert!(left.join("micro.pool").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(left.join("micro.pool").exists());
    let open = std::fs::File::open(left.join("micro.pool")).unwrap();
    open.lock_shared().unwrap();
    b.run(&quick).ok();
    assert!(left.join("micro.pool").exists(), "it is in use");
    drop(open);
    b.run(&quick).ok();
    assert!(found(&b, "bristlecone-").is_empty());
}
