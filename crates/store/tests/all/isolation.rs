//! The published isolation anomalies, each by its name: Adya's G0, G1a, G1b, G1c, G-single and
//! G2-item, and OTV, PMP and P4 of the surveys that followed. Each is tried with transactions
//! interleaved by hand, under both isolation levels.

use crate::common::{ALL, Fixture, text};
use bristlecone_pmem::media::Auto;
use bristlecone_store::{Isolation, Transaction, TransactionOptions, WriteError};
use std::ops::ControlFlow;

const BOTH: [Isolation; 2] = [Isolation::Snapshot, Isolation::Serializable];

/// Two rows, `x` = 10 and `y` = 20, in every design and under every level.
fn each(levels: &[Isolation], test: impl Fn(&Bench)) {
    for design in ALL {
        for isolation in levels {
            let f = Fixture::new(design);
            f.put("x", "10");
            f.put("y", "20");
            let isolation = *isolation;
            let bench = Bench { f, isolation };
            test(&bench);
            bench.f.store.vacuum_all().unwrap();
            bench.f.store.check().unwrap();
        }
    }
}

struct Bench {
    f: Fixture,
    isolation: Isolation,
}

type Tx = Transaction<Auto>;

impl Bench {
    fn begin(&self) -> Tx {
        let isolation = self.isolation;
        self.f.store.begin(TransactionOptions { isolation })
    }

    fn put(&self, tx: &mut Tx, key: &str, value: &str) {
        tx.put(&self.f.k, key.as_bytes(), value.as_bytes()).unwrap();
    }

    fn get(&self, tx: &mut Tx, key: &str) -> String {
        text(tx.get(&self.f.k, key.as_bytes()).unwrap()).unwrap_or_default()
    }

    /// Returns the keys whose values are divisible by `divisor`.
    fn divisible(&self, tx: &mut Tx, divisor: u32) -> Vec<String> {
        let mut keys = Vec::new();
        tx.scan::<Vec<u8>>(&self.f.k, .., |key, entry| {
            let number: u32 = std::str::from_utf8(entry.value).unwrap().parse().unwrap();
            if number.is_multiple_of(divisor) {
                keys.push(String::from_utf8(key.to_vec()).unwrap());
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        keys
    }

    fn now(&self) -> (String, String) {
        (self.f.get("x").unwrap(), self.f.get("y").unwrap())
    }
}

fn conflict(result: Result<u64, WriteError>, key: &str) {
    match result {
        Err(WriteError::Conflict(e)) => {
            assert_eq!(
                (e.keyspace.as_str(), e.key.as_slice()),
                ("k", key.as_bytes())
            );
            assert!(e.to_string().contains(&format!("{key:?}")), "{e}");
        }
        other => unreachable!("no conflict: {other:?}"),
    }
}

#[test]
fn g0_dirty_write() {
    each(&BOTH, |b| {
        let (mut one, mut two) = (b.begin(), b.begin());
        b.put(&mut one, "x", "11");
        b.put(&mut two, "x", "12");
        b.put(&mut one, "y", "21");
        one.commit().unwrap();
        assert_eq!(b.now(), ("11".into(), "21".into()));
        b.put(&mut two, "y", "22");
        conflict(two.commit(), "x");
        assert_eq!(b.now(), ("11".into(), "21".into()));
    });
}

#[test]
fn g1a_aborted_read() {
    each(&BOTH, |b| {
        let (mut one, mut two) = (b.begin(), b.begin());
        b.put(&mut one, "x", "101");
        assert_eq!(b.get(&mut two, "x"), "10");
        assert_eq!(b.now().0, "10");
        one.rollback();
        assert_eq!(b.get(&mut two, "x"), "10");
        assert_eq!(two.commit().unwrap(), 0);
        assert_eq!(b.now().0, "10");
    });
}

#[test]
fn g1b_intermediate_read() {
    each(&BOTH, |b| {
        let (mut one, mut two) = (b.begin(), b.begin());
        b.put(&mut one, "x", "101");
        assert_eq!(b.get(&mut two, "x"), "10");
        b.put(&mut one, "x", "11");
        one.commit().unwrap();
        assert_eq!(b.get(&mut two, "x"), "10");
        two.commit().unwrap();
        assert_eq!(b.now().0, "11");
    });
}

#[test]
fn g1c_circular_information_flow() {
    each(&BOTH, |b| {
        let (mut one, mut two) = (b.begin(), b.begin());
        b.put(&mut one, "x", "11");
        b.put(&mut two, "y", "22");
        assert_eq!(b.get(&mut one, "y"), "20");
        assert_eq!(b.get(&mut two, "x"), "10");
        one.commit().unwrap();
        match b.isolation {
            Isolation::Snapshot => assert!(two.commit().is_ok(), "neither has seen the other"),
            Isolation::Serializable => conflict(two.commit(), "x"),
        }
    });
}

#[test]
fn otv_observed_transaction_vanishes() {
    each(&BOTH, |b| {
        let (mut one, mut two, mut three) = (b.begin(), b.begin(), b.begin());
        b.put(&mut one, "x", "11");
        b.put(&mut one, "y", "19");
        b.put(&mut two, "x", "12");
        one.commit().unwrap();
        let mut late = b.begin();
        assert_eq!(b.get(&mut three, "x"), "10");
        assert_eq!(b.get(&mut late, "x"), "11");
        b.put(&mut two, "y", "18");
        conflict(two.commit(), "x");
        assert_eq!(b.get(&mut three, "y"), "20");
        assert_eq!(b.get(&mut late, "y"), "19");
    });
}

#[test]
fn pmp_predicate_many_preceders() {
    each(&BOTH, |b| {
        let (mut one, mut two) = (b.begin(), b.begin());
        assert_eq!(b.divisible(&mut one, 3), [""; 0]);
        b.put(&mut two, "z", "30");
        two.commit().unwrap();
        assert_eq!(b.divisible(&mut one, 3), [""; 0]);
        // The same with what is written by it.
        let (mut one, mut two) = (b.begin(), b.begin());
        for key in b.divisible(&mut one, 20) {
            one.delete(&b.f.k, key.as_bytes()).unwrap();
        }
        b.put(&mut two, "x", "20");
        b.put(&mut two, "y", "30");
        two.commit().unwrap();
        conflict(one.commit(), "y");
        assert_eq!(b.now(), ("20".into(), "30".into()));
    });
}

#[test]
fn p4_lost_update() {
    each(&BOTH, |b| {
        let (mut one, mut two) = (b.begin(), b.begin());
        assert_eq!(
            (b.get(&mut one, "x"), b.get(&mut two, "x")),
            ("10".into(), "10".into())
        );
        b.put(&mut one, "x", "11");
        b.put(&mut two, "x", "11");
        one.commit().unwrap();
        conflict(two.commit(), "x");
        // Nor is an update lost that needed no transaction.
        let mut three = b.begin();
        let seen: i64 = b.get(&mut three, "x").parse().unwrap();
        b.f.store.increment(&b.f.k, b"x", 1).unwrap();
        b.put(&mut three, "x", &(seen + 1).to_string());
        conflict(three.commit(), "x");
        assert_eq!(b.now().0, "12");
    });
}

#[test]
fn g_single_read_skew() {
    each(&BOTH, |b| {
        let (mut one, mut two) = (b.begin(), b.begin());
        assert_eq!(b.get(&mut one, "x"), "10");
        assert_eq!(b.get(&mut two, "x"), "10");
        assert_eq!(b.get(&mut two, "y"), "20");
        b.put(&mut two, "x", "12");
        b.put(&mut two, "y", "18");
        two.commit().unwrap();
        assert_eq!(b.get(&mut one, "y"), "20");
        assert!(b.divisible(&mut one, 20).contains(&"y".to_owned()));
        one.commit().unwrap();
        // With a write that depends on the read.
        let (mut one, mut two) = (b.begin(), b.begin());
        assert_eq!(b.get(&mut one, "x"), "12");
        b.put(&mut two, "x", "10");
        b.put(&mut two, "y", "20");
        two.commit().unwrap();
        one.delete(&b.f.k, b"y").unwrap();
        conflict(one.commit(), "y");
    });
}

/// Write skew: both read `x` and `y`, and each writes the one that the other does not.
fn write_skew(b: &Bench) -> Result<u64, WriteError> {
    let (mut one, mut two) = (b.begin(), b.begin());
    for tx in [&mut one, &mut two] {
        assert_eq!((b.get(tx, "x"), b.get(tx, "y")), ("10".into(), "20".into()));
    }
    b.put(&mut one, "x", "11");
    b.put(&mut two, "y", "21");
    one.commit().unwrap();
    two.commit()
}

#[test]
fn g2_item_write_skew_happens_under_snapshot_isolation() {
    each(&[Isolation::Snapshot], |b| {
        write_skew(b).unwrap();
        assert_eq!(b.now(), ("11".into(), "21".into()));
    });
}

#[test]
fn g2_item_write_skew_is_prevented_when_serializable() {
    each(&[Isolation::Serializable], |b| {
        conflict(write_skew(b), "x");
        assert_eq!(b.now(), ("11".into(), "20".into()));
    });
}

/// Both search, find nothing, and insert what the other searched for.
fn phantoms(b: &Bench) -> Result<u64, WriteError> {
    let (mut one, mut two) = (b.begin(), b.begin());
    assert_eq!(b.divisible(&mut one, 3), [""; 0]);
    assert_eq!(b.divisible(&mut two, 3), [""; 0]);
    b.put(&mut one, "a", "30");
    b.put(&mut two, "z", "42");
    one.commit().unwrap();
    two.commit()
}

#[test]
fn g2_phantoms_are_prevented_when_serializable_only() {
    each(&[Isolation::Snapshot], |b| {
        phantoms(b).unwrap();
    });
    each(&[Isolation::Serializable], |b| conflict(phantoms(b), "a"));
}

/// Validation covers a range as far as it was read, and the absence of a key.
#[test]
fn what_was_not_read_is_no_conflict_when_serializable() {
    each(&[Isolation::Serializable], |b| {
        let read_first = |reverse: bool| {
            let mut tx = b.begin();
            let stop = |_: &[u8], _: bristlecone_store::Entry<'_>| ControlFlow::Break(());
            if reverse {
                tx.scan_reverse::<Vec<u8>>(&b.f.k, .., stop).unwrap();
            } else {
                tx.scan::<Vec<u8>>(&b.f.k, .., stop).unwrap();
            }
            b.put(&mut tx, "mine", "1");
            tx
        };
        let tx = read_first(false);
        b.f.put("y", "1");
        tx.commit().unwrap();
        let tx = read_first(false);
        b.f.put("a", "1");
        conflict(tx.commit(), "a");
        let tx = read_first(true);
        b.f.put("a", "2");
        tx.commit().unwrap();
        let tx = read_first(true);
        b.f.put("zz", "1");
        conflict(tx.commit(), "zz");
        let mut tx = b.begin();
        assert_eq!(tx.get(&b.f.k, b"none").unwrap(), None);
        b.put(&mut tx, "mine", "2");
        b.f.put("none", "1");
        conflict(tx.commit(), "none");
        // A key that was inserted and deleted meanwhile has changed all the same.
        let mut tx = b.begin();
        assert_eq!(tx.get(&b.f.k, b"gone").unwrap(), None);
        b.put(&mut tx, "mine", "3");
        b.f.put("gone", "1");
        b.f.store.delete(&b.f.k, b"gone").unwrap();
        b.f.store.vacuum_all().unwrap();
        conflict(tx.commit(), "gone");
        // A transaction's own writes do not count as reads.
        let mut tx = b.begin();
        b.put(&mut tx, "own", "1");
        assert_eq!(b.get(&mut tx, "own"), "1");
        tx.commit().unwrap();
    });
}
