//! `model`: simulates an index on a described memory device.

use crate::args::{Model, Simulate};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::progress;
use bristlecone_lab::LabError;
use bristlecone_lab::model::{self, Device, ModelError, ModelReport, RunSpec};
use std::io::{self, Write};

/// Simulates the run.
pub fn run(args: &Model) -> Outcome {
    let spec = RunSpec {
        node_bytes: args.node_bytes,
        entry_bytes: args.entry_bytes,
        ..spec(&args.index, &args.simulate)?
    };
    reported(&args.simulate, |done| model::run(&spec, done))
}

/// Returns the run of `index` in its default leaf size.
pub fn spec(index: &str, args: &Simulate) -> Outcome<RunSpec> {
    Ok(RunSpec {
        threads: args.threads.into(),
        keys: args.keys,
        ops: args.ops,
        fill: args.fill,
        seed: args.seed,
        ..RunSpec::new(
            index,
            Device::load(&args.device).map_err(failed)?,
            args.workload,
        )
    })
}

/// Prints the report of what `simulate` does, which tells how many operations are done.
pub fn reported(
    args: &Simulate,
    simulate: impl FnOnce(&mut dyn FnMut(u64)) -> Result<ModelReport, ModelError>,
) -> Outcome {
    let bar = progress::steps("simulating", args.ops);
    let report = simulate(&mut |done| bar.set_position(done));
    bar.finish_and_clear();
    let report = report.map_err(failed)?;
    if args.json {
        eprint!("{}", table(&report));
        bristlecone_command::print_json(&report)
    } else {
        write!(io::stdout(), "{}", table(&report)).map_err(|e| Failure::output(&e))
    }
}

/// Returns the failure of the command.
pub fn failed(error: ModelError) -> Failure {
    match error {
        ModelError::UnknownDevice { .. } | ModelError::Lab(LabError::Parameter { .. }) => {
            Failure::Usage(error.to_string())
        }
        error => Failure::new(error.to_string()),
    }
}

/// Prints the report for a person.
fn table(r: &ModelReport) -> String {
    let mut text = format!(
        "{}, leaves of {} bytes, on {}: {} of {} keys ({:.0} % full), {} operations, threads: {}, seed {}\n\n",
        r.index,
        r.node_bytes,
        r.device,
        r.workload,
        r.keys,
        r.fill * 100.0,
        r.ops,
        r.threads,
        r.seed
    );
    let mut row = |what: &str, number: f64, unit: &str| {
        text.push_str(&format!("{what:<34} {number:>12.3}  {unit}\n"));
    };
    row("simulated time per operation", r.ns_per_op, "ns");
    for (what, ns) in [
        ("  compute", r.stalls.compute_ns),
        ("  caches", r.stalls.cache_ns),
        ("  DRAM", r.stalls.dram_ns),
        ("  loads from the device", r.stalls.pm_read_ns),
        ("  store buffer", r.stalls.store_ns),
        ("  flushes", r.stalls.flush_ns),
        ("  fences", r.stalls.fence_ns),
        ("  queues of a busy device", r.stalls.bandwidth_ns),
    ] {
        row(what, ns, "ns");
    }
    row("all threads", r.mops, "million operations/s");
    for (what, number, unit) in [
        ("lines read", r.lines_read_per_op, "per operation"),
        ("lines written", r.lines_written_per_op, "per operation"),
        (
            "media read",
            r.media_bytes_read_per_op,
            "bytes per operation",
        ),
        (
            "media written",
            r.media_bytes_written_per_op,
            "bytes per operation",
        ),
        ("read amplification", r.read_amplification, ""),
        ("write amplification", r.write_amplification, ""),
        ("flushes", r.flushes_per_op, "per operation"),
        ("fences", r.fences_per_op, "per operation"),
    ] {
        row(what, number, unit);
    }
    text
}
