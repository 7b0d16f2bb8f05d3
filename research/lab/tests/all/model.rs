//! Runs on the device model: their cost, the causes of their time, and that they repeat.

use bristlecone_lab::model::{Device, ModelError, ModelReport, RunSpec, Stalls, Workload, run};

/// Returns a run of a small tree with small caches, so that leaves come from the device.
fn spec(device: &str, workload: Workload, threads: usize) -> RunSpec {
    let device = Device::load(device)
        .unwrap()
        .with_core(|core| {
            core.l2_bytes = 64 << 10;
            core.l3_bytes = 256 << 10;
        })
        .unwrap();
    RunSpec {
        index: "lbtree".into(),
        node_bytes: Some(256),
        entry_bytes: 16,
        device,
        workload,
        threads,
        keys: 100_000,
        ops: 10_000,
        fill: 0.7,
        seed: 42,
    }
}

fn report(spec: &RunSpec) -> ModelReport {
    let mut last = 0;
    let report = run(spec, &mut |done| {
        assert!(done >= last, "progress goes on");
        last = done;
    })
    .unwrap();
    assert_eq!(last, spec.ops, "and ends at the end");
    assert!(
        (sum(&report.stalls) / report.ns_per_op - 1.0).abs() < 1e-9,
        "the parts make the whole: {report:?}"
    );
    report
}

fn sum(s: &Stalls) -> f64 {
    let waits = s.cache_ns + s.dram_ns + s.pm_read_ns + s.store_ns + s.flush_ns + s.fence_ns;
    s.compute_ns + waits + s.bandwidth_ns
}

fn near(value: f64, low: f64, high: f64) {
    assert!(
        (low..=high).contains(&value),
        "{value} not in {low}..{high}"
    );
}

#[test]
fn one_seed_one_figure_to_the_last_digit() {
    for workload in ["insert", "dense", "remove", "mixed:30"] {
        for threads in [1, 5] {
            let spec = RunSpec {
                fill: 1.0,
                ..spec("optane", workload.parse().unwrap(), threads)
            };
            let json = |report: &ModelReport| serde_json::to_string(report).unwrap();
            let first = json(&report(&spec));
            // Another thread, and epochs that cannot advance meanwhile, change nothing.
            let pinned = crossbeam_epoch::pin();
            let again = std::thread::scope(|s| s.spawn(|| json(&report(&spec))).join().unwrap());
            drop(pinned);
            assert_eq!(first, again, "{workload}, {threads} threads");
            let other = RunSpec { seed: 43, ..spec };
            assert_ne!(first.replace("42", "43"), json(&report(&other)));
        }
    }
}

#[test]
fn every_design_runs_every_workload_on_every_device() {
    for device in Device::shipped() {
        for name in Workload::names() {
            let workload = name.parse().unwrap();
            for (index, node_bytes) in [
                ("lbtree", 256),
                ("lbtree", 512),
                ("lbtree-traditional", 512),
                ("lbtree", 1024),
            ] {
                let spec = RunSpec {
                    index: index.into(),
                    node_bytes: Some(node_bytes),
                    keys: 5_000,
                    ops: 500,
                    ..spec(device, workload, 2)
                };
                let report = report(&spec);
                assert_eq!(
                    (report.device.as_str(), report.workload),
                    (*device, workload)
                );
                near(report.ns_per_op, 40.0, 5_000.0);
                near(report.mops * report.ns_per_op, 1_900.0, 2_000.0);
                let changes = !matches!(workload, Workload::Lookup | Workload::Scan { .. });
                assert_eq!(report.flushes_per_op > 0.0, changes, "{report:?}");
                assert_eq!(report.lines_written_per_op > 0.0, changes, "{report:?}");
            }
        }
    }
}

#[test]
fn few_threads_are_bound_by_latency_and_many_by_bandwidth() {
    let at = |threads| {
        let mut spec = spec("optane", Workload::Insert, threads);
        spec.ops = 20_000;
        report(&spec)
    };
    let (one, four, many, most) = (at(1), at(4), at(32), at(64));
    near(four.mops / one.mops, 3.5, 4.2);
    near(most.mops / many.mops, 0.9, 1.2);
    near(one.stalls.bandwidth_ns / one.ns_per_op, 0.0, 0.05);
    near(most.stalls.bandwidth_ns / most.ns_per_op, 0.5, 0.95);
    // The media bound the throughput: they read 41.2 bytes a nanosecond and write 11.4. A leaf is
    // read and written as a media line, so an insert takes 256 / 41.2 + 256 / 11.4 ns of the six
    // modules.
    let busy = |r: &ModelReport| {
        // A partly written media line is read first, and the write rate includes that time.
        let partial = r.media_bytes_written_per_op;
        (r.media_bytes_read_per_op - partial) / 41.2 + r.media_bytes_written_per_op / 11.4
    };
    near(busy(&most) * most.mops / 1e3, 0.8, 1.05);
    near(busy(&one) * one.mops / 1e3, 0.0, 0.15);
    // DRAM is far from its bounds with the same number of threads.
    let dram = report(&RunSpec {
        device: spec("dram", Workload::Insert, 1).device,
        ..spec("dram", Workload::Insert, 64)
    });
    near(dram.mops / most.mops, 2.0, 20.0);
}

#[test]
fn an_update_is_one_line_one_fence_and_on_optane_a_whole_media_line() {
    let optane = report(&spec("optane", Workload::Update, 1));
    assert_eq!((optane.flushes_per_op, optane.fences_per_op), (1.0, 1.0));
    assert_eq!(optane.lines_written_per_op, 1.0);
    near(optane.write_amplification, 3.7, 4.0);
    near(optane.stalls.fence_ns, 59.0, 62.0);
    let dram = report(&spec("dram", Workload::Update, 1));
    near(dram.write_amplification, 0.95, 1.0);
    near(dram.stalls.fence_ns, 54.0, 57.0);
    // The devices differ only in the times of a write and a read.
    let pcm = report(&spec("pcm", Workload::Update, 1));
    near(pcm.stalls.fence_ns - dram.stalls.fence_ns, 164.0, 166.0);
    assert_eq!(pcm.stalls.compute_ns, dram.stalls.compute_ns);
    assert_eq!(pcm.stalls.dram_ns, dram.stalls.dram_ns);
    assert_eq!(pcm.lines_read_per_op, dram.lines_read_per_op);
    near(pcm.stalls.pm_read_ns - dram.stalls.pm_read_ns, 35.0, 50.0);
    let lookup = report(&spec("optane", Workload::Lookup, 1));
    assert_eq!(lookup.stalls.fence_ns, 0.0);
    assert_eq!(lookup.write_amplification, 0.0);
    // A leaf is four lines of one media line.
    near(lookup.read_amplification, 0.99, 1.1);
    assert!(optane.ns_per_op > lookup.ns_per_op + 50.0);
}

#[test]
fn entry_moving_saves_lines_and_time_where_a_leaf_takes_many_inserts() {
    for (workload, fill) in [(Workload::DenseInsert, 0.7), (Workload::Insert, 1.0)] {
        let with = RunSpec {
            fill,
            keys: 20_000,
            ops: 40_000,
            ..spec("optane", workload, 1)
        };
        let without = RunSpec {
            index: "lbtree-traditional".into(),
            ..with.clone()
        };
        let (with, without) = (report(&with), report(&without));
        near(
            without.lines_written_per_op / with.lines_written_per_op,
            1.1,
            2.0,
        );
        near(without.ns_per_op / with.ns_per_op, 1.03, 2.0);
        assert!(without.fences_per_op > with.fences_per_op);
    }
}

#[test]
fn what_the_processor_keeps_it_does_not_read_again() {
    // With a flush that leaves the line, the right-most leaf stays in the cache.
    let evicts = spec("optane", Workload::DenseInsert, 1);
    let keeps = RunSpec {
        device: evicts
            .device
            .with_core(|core| core.flush_keeps_line = true)
            .unwrap(),
        ..evicts.clone()
    };
    let (evicts, keeps) = (report(&evicts), report(&keeps));
    assert!(keeps.lines_read_per_op < 0.5 * evicts.lines_read_per_op);
    assert!(keeps.ns_per_op < evicts.ns_per_op - 50.0);
    assert_eq!(keeps.lines_written_per_op, evicts.lines_written_per_op);
    // A shared cache that holds the whole tree.
    let small = spec("optane", Workload::Lookup, 1);
    let large = RunSpec {
        device: small
            .device
            .with_core(|core| core.l3_bytes = 32 << 20)
            .unwrap(),
        ..small.clone()
    };
    let (small, large) = (report(&small), report(&large));
    assert!(small.lines_read_per_op > 3.0, "{small:?}");
    assert!(large.lines_read_per_op < 0.7 * small.lines_read_per_op);
    assert!(large.ns_per_op < small.ns_per_op);
}

#[test]
fn inner_nodes_are_charged_to_dram() {
    let few = report(&RunSpec {
        keys: 2_000,
        ..spec("optane", Workload::Lookup, 1)
    });
    let many = report(&RunSpec {
        keys: 1_000_000,
        ..spec("optane", Workload::Lookup, 1)
    });
    assert!(many.stalls.dram_ns > few.stalls.dram_ns + 50.0, "{many:?}");
    assert!(
        many.stalls.compute_ns > few.stalls.compute_ns + 10.0,
        "deeper"
    );
}

#[test]
fn a_spec_that_makes_no_sense_is_refused_by_name_and_value() {
    let refused = |change: fn(&mut RunSpec), said: &str| {
        let mut bad = spec("dram", Workload::Remove, 1);
        change(&mut bad);
        let message = run(&bad, &mut |_| {}).unwrap_err().to_string();
        assert!(message.contains(said), "{message}");
    };
    refused(
        |spec| spec.index = "b-tree".into(),
        "index cannot be \"b-tree\"",
    );
    refused(
        |spec| spec.node_bytes = Some(300),
        "the node size cannot be \"300\"",
    );
    refused(|spec| spec.threads = 0, "threads cannot be \"0\"");
    refused(|spec| spec.threads = 65, "threads cannot be \"65\"");
    refused(|spec| spec.keys = 0, "keys cannot be \"0\"");
    refused(|spec| spec.ops = 0, "ops cannot be \"0\"");
    refused(|spec| spec.ops = 100_001, "ops cannot be \"100001\"");
    refused(|spec| spec.fill = 0.0, "fill cannot be \"0\"");
    refused(|spec| spec.fill = 1.2, "fill cannot be \"1.2\"");
    refused(|spec| spec.fill = f64::NAN, "fill cannot be \"NaN\"");
    refused(
        |spec| {
            spec.keys = 200_000_000;
            spec.fill = 0.01;
            spec.node_bytes = Some(1024);
        },
        "the pool may take 381 GiB of at most 16",
    );
}

#[test]
fn a_text_that_is_no_workload_is_refused_with_the_workloads_there_are() {
    for text in [
        "",
        "inserts",
        "mixed:101",
        "mixed:",
        "mixed:-1",
        "scan:",
        "scan:0",
    ] {
        let error: ModelError = text.parse::<Workload>().unwrap_err();
        let message = error.to_string();
        assert!(message.contains(&format!("{text:?}")), "{message}");
        assert!(message.contains("dense"), "{message}");
    }
    for name in Workload::names() {
        let workload: Workload = name.parse().unwrap();
        assert_eq!(workload.to_string().parse::<Workload>().unwrap(), workload);
    }
}
