//! Insertion into volatile B+-trees in persistent memory: the gain of group flushing, by threads
//! (UCSC-CRSS-20-01, section 6.2, figure 14).

use super::gap::{
    Contender, MOPS, NS, Of, Sweep, by_threads, grown_note, insertions, keys, pm, sweep_behind,
};
use super::lb_insertion::shrunk;
use super::tree::{BTREE, BTREE_GF, BTREE_GF_LOAD, Design, UNSORTED_LEAF};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Setting, papers};

pub(super) const ENTRY: Entry = Entry {
    name: "gap-fig14",
    title: "group flushing: insertion throughput and latency, by threads",
    paper: papers::GAP,
    place: "section 6.2, figure 14",
    on: &[On::Model],
    run,
};

const fn contender(design: Design) -> Contender {
    pm(design.name, design)
}

const CONTENDERS: [Contender; 4] = [
    contender(BTREE),
    contender(BTREE_GF),
    contender(BTREE_GF_LOAD),
    contender(UNSORTED_LEAF),
];
const ALL: [usize; 4] = [0, 1, 2, 3];
/// Of [`CONTENDERS`].
const PLAIN: usize = 0;
const GROUPED: usize = 1;
const SWITCHED: usize = 2;
const UNSORTED: usize = 3;
const THREADS: [usize; 5] = [1, 8, 16, 32, 48];
/// Of [`THREADS`].
const ONE: usize = 0;
const FEW: usize = 1;
const MANY: usize = THREADS.len() - 1;
/// The phase that counts. In the one before it, the switch also measures the load.
const SECOND: usize = 1;
const WRITTEN: Of = |r| r.media_bytes_written_per_op;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = keys(setting);
    let points = by_threads(&THREADS, &insertions(keys));
    let sweep = sweep_behind(shrunk, setting, "inserting", keys, &CONTENDERS, &points)?;
    let mut findings = Findings::default();
    for (title, y, of) in [
        ("(a) throughput", "million insertions/s", MOPS),
        ("(b) latency", "ns an insertion", NS),
        ("media traffic", "bytes written an insertion", WRITTEN),
    ] {
        let panel = sweep.panel((title, "threads", y), &ALL, SECOND, of);
        findings.panels.push(panel);
    }
    findings.claims = claims(&sweep);
    findings.notes = vec![
        grown_note(keys),
        "nodes of 512 bytes; the switch is at 16 writing threads".to_owned(),
    ];
    Ok(findings)
}

fn claims(sweep: &Sweep<'_>) -> Vec<Claim> {
    let over = |threads, pair, of| sweep.over(threads, pair, SECOND, of);
    vec![
        Claim::new(
            "48 threads: throughput, btree w GF over btree",
            1.24,
            over(MANY, (GROUPED, PLAIN), MOPS),
            Expect::ratio(1.24),
        ),
        Claim::new(
            "1 thread: latency, btree w GF over btree",
            "higher below 16 threads",
            over(ONE, (GROUPED, PLAIN), NS),
            Expect::more(),
        )
        .note("the model counts half a nanosecond of instructions a flush"),
        Claim::new(
            "8 threads: latency, btree w GF over btree",
            "higher below 16 threads",
            over(FEW, (GROUPED, PLAIN), NS),
            Expect::more(),
        ),
        Claim::new(
            "48 threads: throughput, unsorted leaf over btree w GF",
            "slightly higher",
            over(MANY, (UNSORTED, GROUPED), MOPS),
            Expect::slightly_more(),
        ),
        Claim::new(
            "48 threads: bytes that the media writes for an insertion, btree w GF over btree",
            "sequentiality is preserved",
            over(MANY, (GROUPED, PLAIN), WRITTEN),
            Expect::less(),
        ),
        Claim::new(
            "1 thread: throughput, switched over btree",
            "GF only when the system load is high",
            over(ONE, (SWITCHED, PLAIN), MOPS),
            Expect::between(0.98, 1.02),
        ),
        Claim::new(
            "48 threads: throughput, switched over btree w GF",
            "GF only when the system load is high",
            over(MANY, (SWITCHED, GROUPED), MOPS),
            Expect::between(0.95, 1.05),
        ),
    ]
}
