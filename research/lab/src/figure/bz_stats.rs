//! Swaps: their words by operation, and the share that fails by threads (BzTree, table 1 and
//! section 7.6).

use super::tree::sorted_keys;
use super::trial::SEED;
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::LabError;
use crate::micro::designs::Forgetting;
use crate::workload::{Random, value_of};
use bristlecone_designs::{BulkLoad, BzOptions, BzTree, DurableIndex, Fill, OrderedIndex};
use bristlecone_pmem::media::{Access, MediaOptions};
use bristlecone_pmem::{MediumKind, Pool, PoolOptions};
use std::cmp::Ordering as Order;
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

pub(super) type Tree = BzTree<u64, u64, Forgetting>;

/// Returns a tree of these sorted keys. Its values are words that swaps replace.
pub(super) fn tree(keys: &[u64]) -> Result<Tree, FigureError> {
    let media = MediaOptions {
        access: Access::Create,
        medium: Some(MediumKind::Dram),
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

/// A row of the table.
struct Row {
    name: &'static str,
    /// The paper's words, swap by swap.
    paper: &'static [u64],
    /// Memory words among the words measured here.
    memory: u64,
    note: &'static str,
    /// Swaps measured here, the words of all of them with memory words, and the largest number of
    /// words of one.
    here: Option<(u64, u64)>,
    /// Number of occurrences.
    met: u64,
}

impl Row {
    const fn new(
        name: &'static str,
        paper: &'static [u64],
        memory: u64,
        note: &'static str,
    ) -> Self {
        Self {
            name,
            paper,
            memory,
            note,
            here: None,
            met: 0,
        }
    }

    /// Returns the paper's words of all swaps.
    fn stated(&self) -> f64 {
        self.paper.iter().sum::<u64>() as f64
    }
}

const INSERT: usize = 0;
const DELETE: usize = 1;
const POINTER: usize = 2;
const INLINED: usize = 3;
const CONSOLIDATION: usize = 4;
const SPLIT: usize = 5;
const MERGE: usize = 6;
const ROWS: [Row; 7] = [
    Row::new("insert", &[2, 2], 0, ""),
    Row::new("delete", &[2], 0, ""),
    Row::new("update of a record pointer", &[3], 0, ""),
    Row::new(
        "update of an inlined payload",
        &[2, 2],
        0,
        "the old record is deleted in the same swap: with two words an update and a delete of one key would both succeed",
    ),
    Row::new(
        "consolidation",
        &[1, 2],
        0,
        "the table has the installation's 2 only; the text freezes the node with one word before it, as a split does",
    ),
    Row::new("split", &[1, 3], 2, ""),
    Row::new("merge", &[2, 3], 2, ""),
];

/// Returns a value that is an inlined payload: too large for a word that swaps change.
const INLINE: u64 = 1 << 61;

/// Classifies the operations of one thread by their effect on the number of leaves, and adds up
/// their swaps and words.
struct Counting {
    tree: Tree,
    leaves: u64,
    rows: [Row; 7],
}

impl Counting {
    fn new(tree: Tree) -> Self {
        Self {
            leaves: tree.stats().leaves,
            tree,
            rows: ROWS,
        }
    }

    fn note(&mut self, row: usize, swaps: u64, words: u64) {
        let row = &mut self.rows[row];
        row.here = row.here.max(Some((swaps, words)));
        row.met += 1;
    }

    /// Runs one operation, which belongs to `row` unless it reshapes nodes. `operation` returns
    /// `false` if it did nothing.
    fn operation<E: std::error::Error + Send + Sync + 'static>(
        &mut self,
        row: usize,
        doing: &'static str,
        call: impl FnOnce(&Tree) -> Result<bool, E>,
    ) -> Result<(), FigureError> {
        let before = self.tree.swap_counts();
        let done = call(&self.tree).map_err(|e| LabError::index(doing, e))?;
        let after = self.tree.swap_counts();
        let swaps = after.attempts - before.attempts;
        let words = after.words - before.words;
        let own = self.rows[row].paper.len() as u64;
        if !done {
            return Ok(());
        }
        if swaps == own {
            self.note(row, swaps, words);
            return Ok(());
        }
        let leaves = self.tree.stats().leaves;
        let before = std::mem::replace(&mut self.leaves, leaves);
        // An operation with a further step, such as a parent's split, is not broken down, and
        // neither is any before the row itself has occurred.
        if let Some((_, plain)) = self.rows[row].here
            && swaps == own + 2
        {
            let reshaped = match leaves.cmp(&before) {
                Order::Equal => CONSOLIDATION,
                Order::Greater => SPLIT,
                Order::Less => MERGE,
            };
            self.note(reshaped, 2, words - plain);
        }
        Ok(())
    }
}

/// Runs every operation of the table often enough for leaves to be consolidated, split and merged.
fn words(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    const INSERTED: u64 = 30_000;
    const UPDATED: u64 = 300;
    /// More replacements of one key's record than a leaf has room for, so that it is consolidated.
    const REPLACED: u64 = 40;
    let mut counting = Counting::new(tree(&sorted_keys(SEED, 20_000))?);
    let mut random = Random::new(SEED);
    let keys: Vec<u64> = (0..INSERTED).map(|_| random.word()).collect();
    let total = 2 * INSERTED + UPDATED;
    for (done, key) in (1..).zip(&keys) {
        counting.operation(INSERT, "inserting", |tree| {
            tree.insert(key, &(key >> 4)).map(|()| true)
        })?;
        if done % 6_000 == 0 {
            setting.step("inserting", done, total);
        }
    }
    for (done, key) in (1..).zip(&keys[..UPDATED as usize]) {
        counting.operation(POINTER, "updating", |tree| {
            tree.update(key, &1).map(|()| true)
        })?;
        // From the second one on, an inlined payload replaces an inlined one, each in a new record.
        for value in 0..REPLACED {
            counting.operation(INLINED, "updating", |tree| {
                tree.update(key, &(INLINE + value)).map(|()| true)
            })?;
        }
        if done % 100 == 0 {
            setting.step("updating", INSERTED + done, total);
        }
    }
    for (done, key) in (1..).zip(&keys) {
        counting.operation(DELETE, "removing", |tree| tree.remove(key))?;
        if done % 6_000 == 0 {
            setting.step("removing", INSERTED + UPDATED + done, total);
        }
    }
    table(&counting.rows)
}

fn table(rows: &[Row]) -> Result<Findings, FigureError> {
    let mut findings = Findings::default();
    let (mut tree, mut all) = (Vec::new(), Vec::new());
    for row in rows {
        let (swaps, words) = row.here.ok_or_else(|| FigureError::NotFound {
            name: TABLE1.name,
            what: format!("{}: no such operation was met", row.name),
        })?;
        all.push(words as f64);
        let words = words as f64 - row.memory as f64;
        tree.push(words);
        let paper: Vec<String> = row.paper.iter().map(u64::to_string).collect();
        let what = format!("{}: words of the tree, in {swaps} swaps", row.name);
        let met = format!("the most of {} that were met", row.met);
        let note = match row.note {
            "" => met,
            note => format!("{met}; {note}"),
        };
        let expect = Expect::exactly(row.stated());
        findings
            .claims
            .push(Claim::new(what, &*paper.join(", "), words, expect).note(note));
    }
    let names = rows.iter().map(|row| row.name);
    findings.panels.push(
        Panel::bars("Words of an operation's swaps", "", "words", names)
            .with("the paper", rows.iter().map(Row::stated).collect())
            .with("here, of the tree", tree)
            .with("here, with memory words", all),
    );
    findings.notes.push(
        "memory words change nothing in the tree: a swap recycles only blocks that its words name, and of a split or a merge \
         two nodes are named by no word of the tree"
            .to_owned(),
    );
    findings.notes.push(
        "counted by one thread: an operation of two swaps more than its own has reshaped a leaf, and the number of leaves \
         says how: as many as before, one more, or one less"
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
