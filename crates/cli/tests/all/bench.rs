//! The benchmark runs, and its JSON has the fields that scripts rely on.

use crate::common::Bench;

#[test]
fn a_server_is_measured_under_both_mixes() {
    let b = Bench::new();
    let args = [
        "bench",
        "server",
        "--clients",
        "1,3",
        "--pipeline",
        "4",
        "--records",
        "1K",
        "--slice-ms",
        "20",
        "--rounds",
        "1",
        "--path",
        ".",
        "--json",
    ];
    let report = b.run(&args).ok().json();
    let rows = report["rows"].as_array().expect("rows");
    let told: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row["mix"].as_str().unwrap(),
                row["clients"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("status-update", 1),
            ("status-update", 3),
            ("session-store", 1),
            ("session-store", 3)
        ]
    );
    for row in rows {
        let figures = &row["bristlecone"];
        assert!(figures["kops"].as_f64().unwrap() > 0.0, "{row}");
        assert!(figures["p99_us"].as_f64() >= figures["p50_us"].as_f64());
        assert!(row["redis"].is_null() && row["ratio"].is_null());
    }
    let left = std::fs::read_dir(b.dir()).unwrap().count();
    assert_eq!(left, 0, "nothing is left behind");
}
