//! Faults of recovery that show only after a later operation, and a recovery that reads too far.

use bristlecone_crash::explore::{Options, explore, replay};
use bristlecone_crash::record::{Mutation, record};
use bristlecone_crash::subject::{Fault, FaultKind, Live, Op, Opened, Reply, Subject};
use bristlecone_crash::workload::Workload;
use bristlecone_pmem::media::sim::Model;
use bristlecone_pmem::media::{Access, MediaOptions, Sim};
use bristlecone_pmem::{Media, PWord};
use std::path::Path;
use std::sync::atomic::Ordering;

/// Places of the value (0: none), of the log's switch, and of its content, each on a line of its
/// own.
const VALUE: usize = 0;
const LOGGED: usize = 8;
const LOG: usize = 16;
/// Bytes of the medium. The simulation's buffer is longer.
const BYTES: usize = 256;

/// A subject with one value. An update goes through a redo log, an upsert straight to the value's
/// place.
struct Cell {
    /// True if recovery persists that the log no longer counts.
    right: bool,
    /// True if recovery from an update reads past the end of the medium.
    strays: bool,
}

struct LiveCell(Sim);

impl LiveCell {
    fn word(&self, at: usize) -> &PWord {
        // SAFETY: 1. inside the buffer (longer than `BYTES`) and 8-aligned; 2. all access is
        // atomic; 3. the medium keeps the buffer.
        unsafe { &*self.0.base().cast::<PWord>().add(at) }
    }

    fn get(&self, at: usize) -> u64 {
        self.word(at).load(&self.0, Ordering::Relaxed)
    }

    fn put(&self, at: usize, value: u64) {
        self.word(at).publish(&self.0, value);
    }

    fn value(&self) -> Option<u64> {
        Some(self.get(VALUE)).filter(|value| *value != 0)
    }
}

impl Live for LiveCell {
    fn apply(&self, op: &Op) -> Result<Reply, Fault> {
        match *op {
            Op::Upsert(0, value) => self.put(VALUE, value),
            Op::Update(0, _) if self.value().is_none() => return Ok(Reply::Refused),
            Op::Update(0, value) => {
                self.put(LOG, value);
                self.put(LOGGED, 1);
                self.put(VALUE, value);
                self.put(LOGGED, 0);
            }
            Op::Get(0) => return Ok(Reply::Found(self.value())),
            _ => return Err(Fault::new(FaultKind::Wrong, "not an operation of the cell")),
        }
        Ok(Reply::Done)
    }

    fn observe(&self, each: &mut dyn FnMut(u64, u64)) -> Result<(), Fault> {
        self.value().into_iter().for_each(|value| each(0, value));
        Ok(())
    }

    fn verify(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<(), Fault> {
        Ok(())
    }
}

impl Subject for Cell {
    fn name(&self) -> String {
        "cell".into()
    }

    fn capacity(&self) -> u64 {
        1
    }

    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        let options = MediaOptions {
            access: Access::Create,
            ..MediaOptions::default()
        };
        Ok(Box::new(LiveCell(
            Sim::open(Path::new("cell"), BYTES as u64, &options).unwrap(),
        )))
    }

    fn open(&self) -> Result<Opened, Fault> {
        let options = MediaOptions::default();
        let live = LiveCell(Sim::open(Path::new("cell"), BYTES as u64, &options).unwrap());
        if live.get(LOGGED) != 0 {
            if self.strays {
                live.get(BYTES / 8);
            }
            live.put(VALUE, live.get(LOG));
            if self.right {
                live.put(LOGGED, 0);
            } else {
                live.word(LOGGED).store(&live.0, 0, Ordering::Relaxed);
            }
        }
        Ok(Opened::Live(Box::new(live)))
    }

    fn can(&self, op: &Op) -> bool {
        matches!(op, Op::Upsert(0, _) | Op::Update(0, _) | Op::Get(0))
    }

    fn max_key(&self) -> u64 {
        0
    }
}

fn two_updates() -> Workload {
    Workload {
        setup: vec![Op::Upsert(0, 5)],
        ops: vec![Op::Update(0, 6), Op::Update(0, 7)],
        creation: false,
        dirty: false,
    }
}

#[test]
fn what_recovery_reads_past_the_pools_end_is_found() {
    let cell = Cell {
        right: true,
        strays: true,
    };
    let recording = record(&cell, &two_updates(), &Mutation::default()).unwrap();
    let totals = explore(&cell, &recording, &Options::new(Model::X86Tso), &|_| ());
    assert!(totals.violations > 0 && totals.violations < totals.images);
    for found in totals.found {
        assert_eq!(found.fault.kind, FaultKind::Recovery, "{found:?}");
        assert!(
            found
                .fault
                .what
                .contains("access to 0x100, past the pool's end at 0x100")
        );
    }
}

#[test]
fn what_recovery_does_not_persist_is_found_once_a_later_operation_is_lost() {
    let workload = two_updates();
    for model in Model::ALL {
        for right in [true, false] {
            let cell = Cell {
                right,
                strays: false,
            };
            let recording = record(&cell, &workload, &Mutation::default()).unwrap();
            let options = |nested| Options {
                nested,
                thorough_every: 1,
                ..Options::new(model)
            };
            let alone = explore(&cell, &recording, &options(false), &|_| ());
            assert_eq!(alone.violations, 0, "{model:?}: {:?}", alone.found);
            let options = options(true);
            let totals = explore(&cell, &recording, &options, &|_| ());
            assert_eq!(totals.exhaustive_points, totals.crash_points);
            assert_eq!(totals.nested_exhaustive_points, totals.nested_points);
            // A store buffer keeps the order of recovery's stores and the operation's, and its
            // fence makes both durable.
            let wrong = !right && model != Model::Eadr;
            assert_eq!(
                totals.violations > 0,
                wrong,
                "{model:?}: {:?}",
                totals.found
            );
            for found in totals.found {
                assert_eq!(found.fault.kind, FaultKind::Lost, "{found:?}");
                assert!(found.lost.iter().any(|lost| lost.at == 8 * LOGGED as u64));
                let (point, nested) = (&found.point, found.nested.as_ref());
                let again = replay(&cell, &recording, &options, point, nested).expect("the image");
                assert_eq!(again.map(|again| again.fault), Some(found.fault));
            }
        }
    }
}
