//! Import and export: what goes in comes out, and what a bad line leaves.

use crate::common::Bench;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

const CITIES: &str = "key,name,note\nFR/1,Lyon,\"on the \"\"Rhône\"\"\"\nIS/2,Reykjavík,\nJP/3,東京,\"two\nlines\"\n";

#[test]
fn csv_rows_become_objects_and_come_back_as_the_same_file() {
    let b = Bench::new();
    b.pool(&[]);
    b.file("cities.csv", CITIES);
    let ran = b.run(&["import", "p", "cities.csv"]).ok();
    assert!(
        ran.text().starts_with("imported 3 rows in"),
        "{}",
        ran.text()
    );
    assert!(
        ran.text()
            .contains("rows/s): 3 new keys, 0 replaced, 0 unchanged")
    );
    assert_eq!(
        b.run(&["get", "p", "FR/1"]).ok().text(),
        r#"{"key":"FR/1","name":"Lyon","note":"on the \"Rhône\""}"#
    );
    b.run(&["export", "p", "out.csv"]).ok();
    assert_eq!(std::fs::read_to_string(b.path("out.csv")).unwrap(), CITIES);
}

#[test]
fn the_key_column_can_be_chosen() {
    let b = Bench::new();
    b.pool(&[]);
    b.file("cities.csv", CITIES);
    b.run(&["import", "p", "cities.csv", "--key", "name"]).ok();
    assert!(b.run(&["get", "p", "東京"]).ok().text().contains("JP/3"));
    let told = b.run(&["export", "p", "out.csv"]).ok().text();
    assert!(told.contains("--key name"), "{told}");
    b.run(&["create", "q"]).ok();
    b.run(&["import", "q", "out.csv", "--key", "name"]).ok();
    assert_eq!(b.content("p"), b.content("q"));
    b.run(&["import", "p", "cities.csv", "--key", "size"])
        .fails(&["cities.csv:1:", "no column \"size\"", "--key: ", "\"name\""]);
    b.file("rows.jsonl", "{\"id\":7,\"x\":1}\n");
    b.run(&["import", "p", "rows.jsonl", "--key", "id"]).ok();
    assert_eq!(b.run(&["get", "p", "7"]).ok().text(), "{\"id\":7,\"x\":1}");
}

#[test]
fn an_import_replaces_and_counts() {
    let b = Bench::new();
    b.pool(&[("a", "old"), ("b", "same"), ("z", "stays")]);
    let rows = "key,value\na,new\nb,same\nc,1\nc,2\n";
    b.file("rows.csv", rows);
    let told = b.run(&["import", "p", "rows.csv"]).ok().text();
    assert!(told.contains("4 rows"), "{told}");
    assert!(
        told.contains("1 new keys, 2 replaced, 1 unchanged"),
        "{told}"
    );
    assert_eq!(
        b.run(&["scan", "p"]).ok().text(),
        "a\tnew\nb\tsame\nc\t2\nz\tstays\n"
    );
}

/// Runs the command that the message of a failed import gives.
fn resume(b: &Bench, stderr: &str) -> crate::common::Ran {
    let line = stderr
        .lines()
        .find_map(|l| l.split_once("go on with: "))
        .expect("a command")
        .1;
    b.shell(line)
}

#[test]
fn a_bad_jsonl_line_stops_the_import_there_and_it_can_go_on() {
    let b = Bench::new();
    b.pool(&[]);
    let good = |i: usize| format!("{{\"key\":\"k{i:05}\",\"n\":{i}}}\n");
    let mut rows: Vec<String> = (1..=3_000).map(good).collect();
    rows[2_499] = "{\"key\":\"k02500\",\"n\":}\n".to_owned();
    b.file("rows of mine.jsonl", rows.concat());
    let ran = b.run(&["import", "p", "rows of mine.jsonl"]).fails(&[
        "rows of mine.jsonl:2500: malformed JSON at column 21",
        "2,499 rows",
        "--from-line 2500",
    ]);
    let info = b.run(&["info", "p", "--json"]).ok().json();
    assert_eq!(info["entries"], 2_499);
    // Still wrong: the same message. Put right: the rest comes in.
    resume(&b, &ran.stderr).fails(&["rows of mine.jsonl:2500:"]);
    rows[2_499] = good(2_500);
    b.file("rows of mine.jsonl", rows.concat());
    let ran = resume(&b, &ran.stderr).ok();
    assert!(ran.text().contains("imported 501 rows"), "{}", ran.text());
    assert_eq!(b.content("p").lines().count(), 3_000);
    b.run(&["check", "p"]).ok();
}

#[test]
fn a_bad_csv_line_stops_the_import_there_and_it_can_go_on() {
    let b = Bench::new();
    b.pool(&[]);
    let bad = "id,a,b\r\n1,x,y\r\n2,\"x\r\nx\",y\r\n3,x\r\n4,x,y\r\n";
    b.file("rows.csv", bad);
    let ran = b.run(&["import", "p", "rows.csv", "--key", "id"]).fails(&[
        "rows.csv:5: 2 fields where the header has 3",
        "(2 rows)",
        "--key id --from-line 5",
    ]);
    assert_eq!(b.content("p").lines().count(), 2);
    b.file("rows.csv", bad.replace("3,x\r\n", "3,x,z\r\n"));
    let ran = resume(&b, &ran.stderr).ok();
    assert!(ran.text().contains("imported 2 rows"), "{}", ran.text());
    assert_eq!(b.content("p").lines().count(), 4);
    b.file("open.csv", "id,a\n1,x\n2,\"y\n3,z\n");
    b.run(&["import", "p", "open.csv"])
        .fails(&["open.csv:3: a quotation mark is not closed"]);
}

#[test]
fn an_import_that_is_interrupted_says_how_to_go_on() {
    let b = Bench::new();
    b.pool(&[]);
    assert_eq!(b.shell("mkfifo rows.jsonl").status, Some(0));
    let mut child = b
        .command()
        .args(["import", "p", "rows.jsonl", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let row = |i: usize| format!("{{\"key\":\"k{i:07}\",\"n\":{i}}}\n");
    let mut pipe = std::fs::File::options()
        .write(true)
        .open(b.path("rows.jsonl"))
        .unwrap();
    // Rows come until nobody reads them: the import has ended, by the signal.
    let written = (1..).find(|i| {
        if *i == 3_000 {
            b.shell(&format!("kill -INT {}", child.id())).ok();
        }
        pipe.write_all(row(*i).as_bytes()).is_err()
    });
    let written = written.unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(2));
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let stopped_at = report["stopped_at_line"].as_u64().unwrap();
    assert!(stopped_at <= written as u64, "{stopped_at} of {written}");
    assert_eq!(report["rows"], stopped_at - 1);
    let told = format!("rows.jsonl:{stopped_at}: ended by SIGINT before this line");
    assert!(stderr.contains(&told), "{stderr}");
    assert_eq!(b.content("p").lines().count() as u64, stopped_at - 1);
    // The command that it gave brings the rest.
    std::fs::remove_file(b.path("rows.jsonl")).unwrap();
    b.file("rows.jsonl", (1..=written).map(row).collect::<String>());
    resume(&b, &stderr).ok();
    assert_eq!(b.content("p").lines().count(), written);
}

#[test]
fn what_cannot_be_imported_is_named() {
    let b = Bench::new();
    b.pool(&[]);
    b.file("rows.txt", "a");
    b.run(&["import", "p", "rows.txt"])
        .ends(2, &["rows.txt", ".csv or .jsonl"]);
    b.run(&["import", "p", "absent.csv"])
        .fails(&["absent.csv: opening failed"]);
    std::fs::create_dir(b.path("dir.csv")).unwrap();
    b.run(&["import", "p", "dir.csv"])
        .fails(&["dir.csv: a directory"]);
    b.file("empty.csv", "");
    b.run(&["import", "p", "empty.csv"])
        .fails(&["empty.csv:1: empty file"]);
    let ran = b.run(&["import", "p", "empty.csv"]).fails(&[]);
    assert!(!ran.stderr.contains("go on with"), "{}", ran.stderr);
    b.file("twice.csv", "a,b,a\n1,2,3\n");
    b.run(&["import", "p", "twice.csv"])
        .fails(&["twice.csv:1:", "\"a\"", "rename"]);
    b.file("latin.csv", b"id,name\n1,M\xfcnchen\n");
    b.run(&["import", "p", "latin.csv"])
        .fails(&["latin.csv:2:", "column 2 (name): not UTF-8"]);
    b.file("latin.jsonl", b"{\"key\":\"1\",\"name\":\"M\xfcnchen\"}\n");
    b.run(&["import", "p", "latin.jsonl"])
        .fails(&["latin.jsonl:1: not UTF-8 from byte 21"]);
    b.file("keyless.jsonl", "{\"key\":\"1\"}\n{\"id\":2}\n");
    b.run(&["import", "p", "keyless.jsonl"])
        .fails(&["keyless.jsonl:2: no field \"key\"", "--key"]);
    let long = format!(
        "{{\"key\":\"a\"}}\n{{\"key\":\"{}\"}}\n",
        "k".repeat(65_537)
    );
    b.file("long.jsonl", long);
    b.run(&["import", "p", "long.jsonl"])
        .fails(&["long.jsonl:2: key \"kkk", "65536"]);
    b.run(&["import", "p", "long.jsonl", "--from-line", "0"])
        .ends(2, &["--from-line"]);
    b.run(&["import", "absent", "keyless.jsonl"])
        .fails(&["absent: no such file", "create"]);
    b.file("none.jsonl", "");
    assert!(
        b.run(&["import", "p", "none.jsonl"])
            .ok()
            .text()
            .starts_with("imported 0 rows")
    );
    // The records before the bad lines are there.
    let keys: Vec<_> = b
        .content("p")
        .lines()
        .map(|l| l.chars().take(12).collect::<String>())
        .collect();
    assert_eq!(keys, ["{\"key\":\"1\",\"", "{\"key\":\"a\",\""]);
}

#[test]
fn any_pool_survives_export_and_import() {
    let b = Bench::new();
    b.pool(&[
        ("", "empty key"),
        ("k", ""),
        ("json", "{\"key\":\"json\",\"a\":1}"),
        ("other", "{\"key\":\"json\",\"a\":1}"),
        ("pair", "{\"key\":\"pair\",\"value\":\"v\"}"),
        ("array", "[1, 2]"),
        ("lines", "a\r\nb\n"),
        ("quote\"s", "\"\",,"),
        ("number", "1e5"),
        ("bom", "\u{feff}x"),
    ]);
    let text_only = b.content("p");
    b.run_with(&["put", "p", "binary", "-"], b"\xff\xfe\x00\r\n")
        .ok();
    let all = b.content("p");
    for name in ["out.csv", "out.jsonl"] {
        b.run(&["export", "p", name]).ok();
        b.run(&["create", name.split_once('.').unwrap().1]).ok();
        b.run(&["import", name.split_once('.').unwrap().1, name])
            .ok();
        assert_eq!(b.content(name.split_once('.').unwrap().1), all, "{name}");
    }
    let lines = std::fs::read_to_string(b.path("out.jsonl")).unwrap();
    assert!(lines.contains("\n{\"key\":\"json\",\"a\":1}\n"), "{lines}");
    assert!(
        lines.contains("{\"key\":\"other\",\"value\":{\"key\":\"json\",\"a\":1}}"),
        "{lines}"
    );
    // Without the binary value the CSV file is plain text.
    b.run(&["del", "p", "binary"]).ok();
    assert_eq!(b.content("p"), text_only);
    b.run(&["export", "p", "out.csv"]).ok();
    let csv = std::fs::read_to_string(b.path("out.csv")).unwrap();
    assert!(csv.starts_with("key,value\n"), "{csv}");
}

#[test]
fn an_export_appears_whole_or_not_at_all() {
    let b = Bench::new();
    b.pool(&[("k", "v")]);
    b.file("out.csv", "before");
    b.run(&["export", "p", "out.csv"]).ok();
    assert_eq!(
        std::fs::read_to_string(b.path("out.csv")).unwrap(),
        "key,value\nk,v\n"
    );
    b.run(&["export", "p", "no/such/out.csv"])
        .fails(&["no/such/out.csv: writing failed"]);
    b.run(&["export", "p", "."]).ends(2, &[".csv or .jsonl"]);
    std::fs::create_dir(b.path("dir.csv")).unwrap();
    b.run(&["export", "p", "dir.csv"])
        .fails(&["dir.csv: a directory"]);
    b.run(&["create", "pool.csv"]).ok();
    b.run(&["export", "pool.csv", "./pool.csv"])
        .ends(2, &["the pool itself"]);
    b.run(&["check", "pool.csv"]).ok();
    let left: Vec<_> = std::fs::read_dir(b.dir())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.contains("export"))
        .collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn a_full_disk_stops_the_import_and_it_can_go_on() {
    for medium in ["mapped", "journal"] {
        let b = Bench::new();
        b.run(&["create", "p", "--medium", medium]).ok();
        let rows: String = (0..30_000)
            .map(|i| format!("{{\"key\":\"{i:06}\",\"t\":\"{i:0100}\"}}\n"))
            .collect();
        b.file("rows.jsonl", rows);
        // A limit on the size of files stands in for a full disk (8192 blocks of 512 bytes).
        let program = crate::common::PROGRAM;
        let limited = format!("trap '' XFSZ; ulimit -f 8192; {program} import p rows.jsonl");
        let ran = b
            .shell(&limited)
            .fails(&["rows.jsonl:", "out of space", "go on with: "]);
        let stored = b.content("p").lines().count();
        assert!((1_000..30_000).contains(&stored), "{stored} rows");
        b.run(&["check", "p"]).ok();
        let told = resume(&b, &ran.stderr).ok().text();
        assert!(told.starts_with("imported "), "{told}");
        assert_eq!(b.content("p").lines().count(), 30_000);
        b.run(&["check", "p"]).ok();
        // A pool that cannot be made leaves no file behind.
        let limited = format!("trap '' XFSZ; ulimit -f 100; {program} create q --medium {medium}");
        b.shell(&limited).fails(&["q: "]);
        assert!(!b.path("q").exists());
    }
}
