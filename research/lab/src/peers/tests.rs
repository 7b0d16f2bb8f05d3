//! Small runs of the whole rig.

use super::*;

fn small(dir: &Path) -> Params {
    Params {
        paths: vec![dir.to_path_buf()],
        value_bytes: vec![8, 100],
        keys: 2000,
        rounds: 2,
        slice: Duration::from_millis(5),
        ..Params::default()
    }
}

#[test]
fn every_engine_runs_every_workload_and_is_reported_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let params = small(dir.path());
    let engines = params.distinct();
    assert!(engines.len() >= 2);
    let mut steps = Vec::new();
    let mut note = |step: &Step<'_>| steps.push((step.done, step.total));
    let report = run(&params, &mut count, &mut note).unwrap();

    // Two sizes; two rounds of all workloads and the counts.
    let all = (2 * (2 * Workload::ALL.len() + 1) * engines.len()) as u64;
    let expected: Vec<_> = (0..all).map(|done| (done, all)).collect();
    assert_eq!(steps, expected);
    assert_eq!(report.comparisons.len(), 2);
    assert_eq!(report.rows.len(), 2 * Workload::ALL.len() * engines.len());
    let peers = engines.iter().any(|engine| engine.is_peer());
    for row in &report.rows {
        assert!(row.ops_per_s_min > 0.0, "{row:?}");
        assert!(row.ops_per_s_min <= row.ops_per_s && row.ops_per_s <= row.ops_per_s_max);
        assert_eq!(row.ratio_to_best_peer.is_some(), peers, "{row:?}");
        if row.best_peer == Some(row.engine) {
            assert_eq!(row.ratio_to_best_peer, Some(1.0));
        }
        if row.workload == Workload::Load {
            let bytes = row.bytes_per_entry.unwrap();
            assert!(bytes > 8.0 + row.value_bytes as f64, "{row:?}");
        }
        let reads = [Workload::Get, Workload::Scan100, Workload::YcsbC];
        if reads.contains(&row.workload) {
            assert_eq!(row.written_per_user_byte, None);
        }
    }

    let text = report.to_string();
    let svg = draw(&report).unwrap();
    for workload in Workload::ALL {
        assert!(text.contains(workload.name()), "{workload}: {text}");
        assert!(svg.contains(workload.name()), "{workload}");
    }
    for engine in &report.comparisons[0].engines {
        assert!(text.contains(&engine.version) && text.contains(engine.setting));
        assert!(svg.contains(engine.name.title()));
    }
    assert!(!svg.contains("NaN") && !text.contains("NaN"), "{text}");
    assert!(dir.path().read_dir().unwrap().next().is_none());
}

#[test]
fn threads_share_every_workload() {
    let dir = tempfile::tempdir().unwrap();
    let params = Params {
        threads: vec![3],
        value_bytes: vec![20],
        rounds: 1,
        ..small(dir.path())
    };
    let counts = count(&Params {
        engines: vec![Engine::Store],
        // Time enough for all calls.
        slice: Duration::from_secs(60),
        ..params.clone()
    });
    let counts = counts.unwrap();
    let after = |workload| {
        let found = counts.iter().find(|counts| counts.workload == workload);
        found.map(|counts| (counts.entries, counts.user_bytes))
    };
    assert_eq!(after(Workload::Load), Some((2000, 2000 * 28)));
    assert_eq!(after(Workload::YcsbC), Some((2000, 0)));
    // The first thread that has no calls left ends a turn, up to 16 calls of the others early.
    let (entries, bytes) = after(Workload::Insert).unwrap();
    assert!(entries > 2000 && entries <= 4000, "{entries}");
    assert_eq!(bytes, (entries - 2000) * 28);
    let (left, removed) = after(Workload::Delete).unwrap();
    let before = after(Workload::YcsbE).unwrap().0;
    assert_eq!(removed, (before - left) * 8);
    let report = run(&params, &mut count, &mut |_| ()).unwrap();
    assert!(report.rows.iter().all(|row| row.threads == 3));
}

#[test]
fn only_the_named_workloads_and_engines_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let params = Params {
        value_bytes: vec![8],
        rounds: 1,
        engines: vec![Engine::Tree, Engine::Tree],
        workloads: vec![Workload::Get, Workload::Insert, Workload::Get],
        ..small(dir.path())
    };
    let mut none = |_: &Params| Ok(Vec::new());
    let report = run(&params, &mut none, &mut |_| ()).unwrap();
    let rows = report.rows.iter().map(|row| (row.workload, row.engine));
    let rows: Vec<_> = rows.collect();
    assert_eq!(
        rows,
        [
            (Workload::Get, Engine::Tree),
            (Workload::Insert, Engine::Tree)
        ]
    );
    assert!(report.rows[0].resident_bytes.is_none());
}

#[test]
fn a_failure_of_the_counting_process_is_reported_and_leaves_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let params = Params {
        rounds: 1,
        ..small(dir.path())
    };
    let mut fail = |_: &Params| Err(LabError::index("counting", "it was killed"));
    let error = run(&params, &mut fail, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("it was killed"), "{error}");
    assert!(dir.path().read_dir().unwrap().next().is_none());
}

#[test]
fn parameters_out_of_range_are_refused() {
    let refused = |params: Params| {
        let error = run(&params, &mut count, &mut |_| ()).unwrap_err();
        error.to_string()
    };
    let usual = Params::default;
    let few = Params {
        keys: 10,
        ..usual()
    };
    assert!(refused(few).contains("keys"));
    let long = Params {
        value_bytes: vec![90_000],
        ..usual()
    };
    assert!(refused(long).contains("value_bytes cannot be \"90000\": it may be 8 to 65536"));
    let crowd = Params {
        threads: vec![1, 100],
        ..usual()
    };
    assert!(refused(crowd).contains("threads"));
    let none = Params {
        engines: Vec::new(),
        ..usual()
    };
    assert!(refused(none).contains("engines"));
    let idle = Params {
        workloads: Vec::new(),
        ..usual()
    };
    assert!(refused(idle).contains("workloads"));
}
