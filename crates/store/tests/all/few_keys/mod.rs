//! Random programs over few keys, so that everything meets: three transactions with savepoints,
//! snapshots and cursors beside changes of every kind, expiries under a clock that also goes back,
//! keyspaces of one name, vacuums, compaction, and opening again after a close or a kill.
//!
//! After each step all that can be read is compared with a model that has all versions, and each
//! commit has to fail or not as the isolation level says. `SEED` in the environment is the first
//! seed, and `SEEDS` how many there are. What fails is shown with its seed, and without the steps
//! that it does not need.
//!
//! Where the specification leaves a choice, the model accepts both and no more: reads of single
//! keys go by the clock as it is, and those of values in parts by a snapshot's time, which does not
//! go back; NV-Store's vacuum keeps what a snapshot reads, and what it removes is no change.

mod bench;
mod looks;
mod model;
mod program;
mod transactions;
mod upkeep;

use crate::common::ALL;
use bench::{Bench, Outcome};
use program::{Program, program};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Programs that are run unless the environment says how many.
const SEEDS: u64 = 100;
/// Programs that fail and are shown.
const MOST_SHOWN: usize = 3;
/// Attempts to leave steps out.
const ATTEMPTS: usize = 600;

fn executed(design: &'static str, program: &Program) -> Outcome {
    let mut bench = Bench::new(design, program);
    let mut rng = SmallRng::seed_from_u64(program.seed);
    for (i, step) in program.steps.iter().enumerate() {
        let within = |e| format!("step {i}: {step:?}: {e}");
        bench.step(step).map_err(within)?;
        bench.look(&mut rng, false).map_err(within)?;
    }
    bench.end().map_err(|e| format!("at the end: {e}"))
}

/// Runs a program. Returns what is wrong, panics too.
fn run(design: &'static str, program: &Program) -> Outcome {
    let executed = catch_unwind(AssertUnwindSafe(|| executed(design, program)));
    executed.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// Leaves out steps for as long as the program fails. Returns what is wrong in the end.
fn minimise(design: &'static str, program: &mut Program, mut wrong: String) -> String {
    let (mut attempts, mut at_once) = (0, program.steps.len());
    while at_once > 0 {
        let (mut from, mut has_shrunk) = (0, false);
        while from < program.steps.len() && attempts < ATTEMPTS {
            attempts += 1;
            let mut shorter = program.clone();
            let to = (from + at_once).min(shorter.steps.len());
            shorter.steps.drain(from..to);
            match run(design, &shorter) {
                Err(e) => {
                    (*program, wrong, has_shrunk) = (shorter, e, true);
                }
                Ok(()) => from += at_once,
            }
        }
        if !has_shrunk || attempts >= ATTEMPTS {
            at_once /= 2;
        }
    }
    wrong
}

/// Runs the program of a seed. Returns what is wrong, with as few steps as show it.
fn wrong_with(design: &'static str, seed: u64) -> Option<String> {
    let mut program = program(seed);
    let wrong = run(design, &program).err()?;
    let last = minimise(design, &mut program, wrong.clone());
    let mut text = format!("{design}, seed {seed}: {wrong}\nin short: {last}\n");
    let Program {
        keys, medium, page, ..
    } = &program;
    let lens: Vec<_> = keys.iter().map(Vec::len).collect();
    let _ = writeln!(
        text,
        "on {medium:?}, pages {page:?}, keys of {lens:?} bytes"
    );
    for step in &program.steps {
        let _ = writeln!(text, "    {step:?}");
    }
    Some(text)
}

#[test]
fn programs_do_as_the_model_says() {
    let setting = |name: &str, otherwise: u64| {
        std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
    };
    let first = setting("SEED", 1);
    for design in ALL {
        let seeds = first..first + setting("SEEDS", SEEDS);
        let wrong: Vec<_> = (seeds.filter_map(|seed| wrong_with(design, seed)))
            .take(MOST_SHOWN)
            .collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
