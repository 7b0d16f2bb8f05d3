//! The watchdog ends the process if a recovery loops without accessing persistent memory, and
//! prints a replay token.

use bristlecone_crash::explore::{Options, explore};
use bristlecone_crash::record::{Mutation, record};
use bristlecone_crash::subject::{Fault, Live, Opened, Subject};
use bristlecone_crash::subjects::reference::Reference;
use bristlecone_crash::token::{Token, WorkloadId};
use bristlecone_crash::workload::Kind;
use bristlecone_pmem::media::sim::Model;
use std::process::Command;

/// Set in the environment when this program runs itself.
const CHILD: &str = "BRISTLECONE_TEST_HANGS";

/// The reference array, with a recovery that hangs once there are three entries.
struct Endless(Reference);

impl Subject for Endless {
    fn name(&self) -> String {
        self.0.name()
    }

    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        self.0.create()
    }

    fn open(&self) -> Result<Opened, Fault> {
        let opened = self.0.open()?;
        if let Opened::Live(live) = &opened {
            let mut entries = 0;
            live.observe(&mut |_, _| entries += 1)?;
            if entries == 3 {
                loop {
                    std::hint::spin_loop();
                }
            }
        }
        Ok(opened)
    }

    fn max_key(&self) -> u64 {
        self.0.max_key()
    }
}

#[test]
fn an_endless_loop_is_named_and_ends_the_process() {
    if std::env::var_os(CHILD).is_some() {
        let subject = Endless(Reference::array());
        let workload = WorkloadId {
            kind: Kind::Dense,
            ops: 8,
            seed: 1,
            kept: None,
        };
        let recording = record(&subject, &workload.generate(&subject), &Mutation::default())
            .expect("nothing is opened before a crash");
        let options = Options {
            patience: 1,
            workload: Some(workload),
            ..Options::new(Model::ArmV8)
        };
        explore(&subject, &recording, &options, &|_| {});
        panic!("it came back");
    }
    let this = std::env::current_exe().expect("this program");
    let ran = Command::new(this)
        .args([
            "--exact",
            "watchdog::an_endless_loop_is_named_and_ends_the_process",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    for part in [
        "reference-array under armv8",
        "no progress: no end after 1 s",
        "crash during Insert(",
    ] {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
    let token = said
        .split_once("crash --replay '")
        .and_then(|(_, rest)| rest.split_once('\''))
        .unwrap_or_else(|| panic!("no token in: {said}"));
    let token: Token = token.0.parse().expect("a token");
    assert_eq!(token.workload.kind, Kind::Dense);
    assert!(
        token.point.events > 0 && !token.point.decisions.is_empty(),
        "{said}"
    );
}
