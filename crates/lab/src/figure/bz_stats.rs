//! Swaps: their words by operation, and how many fail by threads (BzTree, table 1 and section 7.6).

use super::tree::sorted_keys;
use super::trial::SEED;
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::LabError;
use crate::micro::designs::Forgetting;
use crate::workload::{Random, value_of};
use bristlecone_pmem::media::{Access, MediaOptions};
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_trees::{BulkLoad, BzOptions, BzTree, DurableIndex, Fill, OrderedIndex};
use std::path::Path;

pub(super) const TABLE1: Entry = Entry {
    name: "bz-table1",
    title: "words of each operation's swaps",
    paper: papers::BZ,
    place: "section 4.2, table 1",
    on: &[On::Counted],
    run: words,
};
pub(super) const STATS: Entry = Entry {
    name: "bz-pmwcas-stats",
    title: "swaps that fail, by threads",
    paper: papers::BZ,
    place: "section 7.6",
    on: &[On::Host],
    run: failures,
};

type Tree = BzTree<u64, u64, Forgetting>;

fn tree(keys: &[u64]) -> Result<Tree, FigureError> {
    let media = MediaOptions {
        access: Access::Create,
        ..MediaOptions::default()
    };
    let pool = Pool::create(Path::new("dram"), &PoolOptions { media })?;
    let mut tree = Tree::create(&pool, "index", &BzOptions::default())
        .map_err(|e| LabError::index("creating the index", e))?;
    let pairs = keys.iter().map(|key| (*key, value_of(*key) >> 4));
    tree.bulk_load(pairs, Fill::USUAL)
        .map_err(|e| LabError::index("loading in bulk", e))?;
    Ok(tree)
}

/// A row of the table: swaps, the words of all of them, and the paper's words.
struct Row {
    name: &'static str,
    paper: &'static [u64],
    /// Words here, memory words included, after what comes before in the same call.
    words: Option<u64>,
    swaps: u64,
    /// Memory words.
    memory: u64,
    note: &'static str,
}

/// The swaps of a call and their words.
fn spent(tree: &Tree, call: impl FnOnce()) -> (u64, u64) {
    let before = tree.swap_counts();
    call();
    let after = tree.swap_counts();
    (after.attempts - before.attempts, after.words - before.words)
}

fn words(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    const LARGE: u64 = 1 << 61;
    let tree = tree(&sorted_keys(SEED, 20_000))?;
    let mut rows = [
        ("insert", &[2, 2][..], 0, ""),
        ("delete", &[2], 0, ""),
        ("update of a record pointer", &[3], 0, ""),
        (
            "update of an inlined payload",
            &[2, 2],
            0,
            "the old record is deleted in the same swap: with two words an update and a delete of one key would both succeed",
        ),
        ("consolidation", &[1, 2], 0, ""),
        ("split", &[1, 3], 2, ""),
        ("merge", &[2, 3], 2, ""),
    ]
    .map(|(name, paper, memory, note)| Row {
        name,
        paper,
        words: None,
        swaps: 0,
        memory,
        note,
    });
    let mut random = Random::new(SEED);
    let mut mine = Vec::new();
    let rounds = 60_000;
    let mut note = |row: usize, (swaps, words): (u64, u64)| {
        let row: &mut Row = &mut rows[row];
        row.swaps = swaps;
        row.words.get_or_insert(words);
    };
    for round in 0..rounds {
        if round % 6_000 == 0 {
            setting.step("counting", round, rounds);
        }
        // Grows, and then shrinks, so that nodes are split, consolidated and merged.
        let key = random.word();
        let leaves = |tree: &Tree| tree.stats().leaves;
        if round < rounds / 2 {
            let (swaps, spent_words) = spent(&tree, || {
                let _ = tree.insert(&key, &(key >> 4));
            });
            mine.push(key);
            match (swaps, spent_words) {
                (2, words) => note(0, (2, words)),
                // An insertion with one step of reshaping before it.
                (4, words) if words == 4 + 3 => note(4, (2, words - 4)),
                (4, words) => note(5, (2, words - 4)),
                _ => {}
            }
            if round % 100 == 0 {
                let update = |value| spent(&tree, || drop(tree.update(&key, &value)));
                note(2, update(1));
                let inlined = update(LARGE);
                if inlined.0 == 2 {
                    note(3, inlined);
                }
            }
        } else if let Some(key) = mine.pop() {
            let before = (round % 50 == 0).then(|| leaves(&tree));
            let (swaps, spent_words) = spent(&tree, || drop(tree.remove(&key)));
            match (swaps, spent_words) {
                (1, words) => note(1, (1, words)),
                (3, words)
                    if before.is_none_or(|before| leaves(&tree) < before) && words > 2 + 3 =>
                {
                    note(6, (2, words - 2));
                }
                _ => {}
            }
        }
    }
    let mut findings = Findings::default();
    let names = rows.iter().map(|row| row.name);
    let counted = |row: &Row| row.words.map_or(f64::NAN, |words| words as f64);
    findings.panels.push(
        Panel::bars("Words of an operation's swaps", "", "words", names)
            .with(
                "the paper",
                rows.iter()
                    .map(|row| row.paper.iter().sum::<u64>() as f64)
                    .collect(),
            )
            .with(
                "here, of the tree",
                rows.iter()
                    .map(|row| counted(row) - row.memory as f64)
                    .collect(),
            )
            .with(
                "here, with memory words",
                rows.iter().map(counted).collect(),
            ),
    );
    for row in &rows {
        let paper: Vec<String> = row.paper.iter().map(u64::to_string).collect();
        let sum = row.paper.iter().sum::<u64>() as f64;
        findings.claims.push(
            Claim::new(
                format!("{}: words of the tree, in {} swaps", row.name, row.swaps),
                &*paper.join(", "),
                counted(row) - row.memory as f64,
                Expect::near(sum, 0.0),
            )
            .note(row.note),
        );
    }
    findings.notes.push(
        "memory words change nothing in the tree: a swap recycles only blocks that its words name, and of a split or a merge \
         two nodes are named by no word of the tree"
            .to_owned(),
    );
    Ok(findings)
}

fn failures(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = setting.scale.amount(1_000_000, 10_000_000);
    let each = setting.scale.amount(200_000, 2_000_000);
    let sorted = sorted_keys(SEED, keys);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threads = vec![1, cores, 4 * cores, 16];
    threads.sort_unstable();
    threads.dedup();
    let tree = tree(&sorted)?;
    let total = threads.iter().map(|n| *n as u64 * each).sum();
    let (mut shares, mut done) = (Vec::new(), 0);
    for count in &threads {
        let before = tree.swap_counts();
        std::thread::scope(|scope| -> Result<(), LabError> {
            let work = |thread: u64| -> Result<(), LabError> {
                let mut random = Random::new(SEED ^ thread << 8);
                for _ in 0..each {
                    let key = sorted[random.below(keys) as usize];
                    if random.below(2) == 0 {
                        std::hint::black_box(tree.get(&key));
                    } else {
                        tree.upsert(&key, &(random.word() >> 4))
                            .map_err(|e| LabError::index("upserting", e))?;
                    }
                }
                Ok(())
            };
            let threads: Vec<_> = (0..*count as u64)
                .map(|n| scope.spawn(move || work(n)))
                .collect();
            for thread in threads {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            Ok(())
        })?;
        let after = tree.swap_counts();
        let attempts = after.attempts - before.attempts;
        shares.push((after.failures - before.failures) as f64 * 100.0 / attempts as f64);
        done += *count as u64 * each;
        setting.step("upserting", done, total);
    }
    let at_cores = threads.iter().position(|n| *n == cores).unwrap_or_default();
    let mut claims = vec![Claim::new(
        format!("percent of swaps that fail, {cores} threads"),
        "less than 0.2",
        shares[at_cores],
        Expect::at_most(0.2),
    )];
    claims.push(Claim::new(
        format!(
            "percent of swaps that fail, {} threads",
            threads[threads.len() - 1]
        ),
        "less than 0.2",
        shares[threads.len() - 1],
        Expect::at_most(0.2),
    ));
    let places = threads.iter().map(|n| *n as f64);
    Ok(Findings {
        claims,
        panels: vec![
            Panel::lines("Swaps that fail", "threads", "%", places).with("BzTree", shares),
        ],
        notes: vec![format!(
            "balanced mix of lookups and upserts, uniform over {keys} records, in DRAM; this machine has {cores} processors, \
             and more threads than that take turns"
        )],
    })
}
