//! A benchmark that was ended by SIGTERM left its pool on `/dev/shm`, which is memory, until the
//! machine was started again; so did one that was killed. Now signals remove what is temporary, and
//! a run removes what killed ones left.

use crate::common::Bench;
use crate::common::processes::{found, is_in_use, start, start_and_wait, wait_for};
use std::os::unix::process::ExitStatusExt;

#[test]
fn signals_remove_temporary_pools_and_end_who_works_on_them() {
    let dir = Bench::new();
    let path = dir.dir().to_str().unwrap().to_owned();
    let server = ["bench", "server", "--path", &path, "--records", "200000"];
    let torture = [
        "torture", "--medium", "mapped", "--kills", "5000", "--dir", &path,
    ];
    let served = [&torture[..], &["--server"]].concat();
    let cases: [(&[&str], &str, &str); 3] = [
        (&server, "bristlecone-bench-", "pool"),
        (&torture, "bristlecone-torture-", "torture.pool"),
        (&served, "bristlecone-torture-", "torture.pool"),
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
fn a_demo_that_is_interrupted_leaves_no_pools() {
    let b = Bench::new();
    let mut child = start(&b, &["demo", "--dir", "."]);
    wait_for("pool", || b.path("cities.pool").exists().then_some(()));
    b.shell(&format!("kill -INT {}", child.id())).ok();
    assert_eq!(child.wait().unwrap().signal(), Some(2));
    assert_eq!(std::fs::read_dir(b.dir()).unwrap().count(), 0);
}
