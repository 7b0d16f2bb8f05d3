//! Trees in pools that are salvaged: what leads to their pages is of an earlier time, is another
//! page's, or was made by somebody who means harm.

use super::image::{Entries, Spec, bytes_of};
use super::layout::Header;
use super::stored::Stored;
use super::table::{Kind, Word};
use super::tests_evict::Nobody;
use super::tests_hosted::{Tree, made_on};
use super::*;
use bristlecone_pmem::heap::damage_is_expected;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::{MediumKind, PWord};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tempfile::TempDir;

const PAGE: usize = 512;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(i: u32) -> Vec<u8> {
    format!("key {i:05}").into_bytes()
}

/// A tree in a file, and what it has.
struct Subject {
    dir: TempDir,
    tree: Tree,
    model: Model,
}

impl Subject {
    fn new(keys: u32) -> Self {
        damage_is_expected::here();
        let (dir, tree, _) = made_on(MediumKind::Mapped);
        let mut subject = Self {
            dir,
            tree,
            model: Model::new(),
        };
        (0..keys).for_each(|i| subject.put(&key(i), &[i as u8; 20]));
        subject
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.tree.put(key, value).unwrap();
        self.model.insert(key.to_vec(), value.to_vec());
    }

    fn remove(&mut self, key: &[u8]) {
        self.tree.modify(key, |_| Ok(Modification::Remove)).unwrap();
        self.model.remove(key);
    }

    fn tree(&self) -> &ClusteredTree<[u8], [u8], Auto> {
        self.tree.tree()
    }

    /// Numbers that have a word.
    fn numbers(&self) -> Vec<u32> {
        let numbers = Table::FIRST_ID..self.tree().table.end();
        numbers.filter(|id| self.word(*id) != 0).collect()
    }

    /// Leaf pages: the number and the block of each.
    fn leaves(&self) -> Vec<(u32, u64)> {
        let sound = |id| self.tree().sound(id).ok();
        let leaves = self.numbers().into_iter().filter_map(sound);
        let leaves = leaves.filter(|sound| sound.header.level == 0);
        leaves.map(|sound| (sound.header.id, sound.block)).collect()
    }

    /// Long values: the number and the word of each.
    fn values(&self) -> Vec<(u32, Word)> {
        let word = |id| Some((id, Word::decode(self.word(id), id).ok()??));
        let all = self.numbers().into_iter().filter_map(word);
        all.filter(|(_, word)| word.kind == Kind::Outer).collect()
    }

    /// The word of the table, as it lies there.
    fn word(&self, id: u32) -> u64 {
        let (tree, pm) = (self.tree(), self.tree().pm());
        let cell = tree.table.cell(pm, id);
        cell.map_or(0, |cell| cell.load(pm, Ordering::Relaxed))
    }

    /// Where the file has the word of the table.
    fn place(&self, id: u32) -> usize {
        let cell = self.tree().table.cell(self.tree().pm(), id).unwrap();
        self.place_of(cell)
    }

    fn place_of(&self, cell: &PWord) -> usize {
        std::ptr::from_ref(cell).addr() - self.tree().pm().base().addr()
    }

    /// The file as a kill leaves it.
    fn killed(&self) -> Copy {
        let path = self.dir.path().join("copy");
        let file = std::fs::read(self.dir.path().join("pool")).unwrap();
        Copy { path, file }
    }

    /// The file of the tree, which is closed, and what is in it.
    fn closed(self) -> (TempDir, Copy, Model) {
        drop(self.tree);
        let path = self.dir.path().join("copy");
        let file = std::fs::read(self.dir.path().join("pool")).unwrap();
        (self.dir, Copy { path, file }, self.model)
    }

    /// The words of a page of the tree.
    fn page(&self, about: &Spec<'_>, content: &[(&[u8], &[u8])]) -> Vec<u64> {
        let mut entries = Entries::default();
        for (key, value) in content {
            entries.push(key, &[], Stored::here(value));
        }
        let all = entries.part(0, entries.len());
        let mut words = Vec::new();
        let seed = self.tree().seed(about.generation);
        about.build(seed, &about.header(all), all, &mut words);
        words
    }
}

fn spec<'s>(id: u32, generation: u64, low: Option<&'s [u8]>, high: Option<&'s [u8]>) -> Spec<'s> {
    Spec {
        id,
        level: 0,
        generation,
        born_in: id,
        next: 0,
        low,
        high,
        dropped: &[],
        words: PAGE / 8,
        numbers: false,
    }
}

/// A file that is to be damaged.
struct Copy {
    path: std::path::PathBuf,
    file: Vec<u8>,
}

impl Copy {
    fn set_word(&mut self, at: usize, word: u64) {
        self.set(at as u64, &word.to_le_bytes());
    }

    fn set(&mut self, at: u64, bytes: &[u8]) {
        self.file[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Chunks that were never used.
    fn unused(&self) -> Vec<u64> {
        let chunks = 1..self.file.len() as u64 / CHUNK;
        let is_unused = |chunk: &u64| {
            let chunk = &self.file[(chunk * CHUNK) as usize..][..CHUNK as usize];
            chunk.iter().all(|byte| *byte == 0)
        };
        chunks
            .filter(is_unused)
            .map(|chunk| chunk * CHUNK)
            .collect()
    }

    /// Blocks that have a page with that number, whether or not something leads there.
    fn blocks_of(&self, id: u32) -> Vec<u64> {
        let blocks = (0..self.file.len() - PAGE).step_by(64);
        let has = |at: &usize| {
            let (words, _) = self.file[*at..].as_chunks();
            let words: [u64; 6] = std::array::from_fn(|i| u64::from_le_bytes(words[i]));
            let header = Header::decode(&words, (words[1] >> 48) as usize);
            header.is_some_and(|header| header.id == id)
        };
        blocks.filter(has).map(|at| at as u64).collect()
    }

    fn saved(&self) -> Saved {
        std::fs::write(&self.path, &self.file).unwrap();
        saved(&self.path)
    }
}

/// What is saved of a file.
#[derive(Debug, PartialEq)]
struct Saved {
    model: Model,
    /// What is told of keys and of pages.
    lost: Vec<(Vec<u8>, String)>,
    passed: Vec<String>,
}

impl Saved {
    /// All of `model` is there, and nothing but `passed` is told.
    #[track_caller]
    fn is_all(&self, model: &Model, passed: &[&str]) {
        assert_eq!(self.lost, []);
        assert_eq!(self.passed.len(), passed.len(), "{:?}", self.passed);
        for (told, part) in self.passed.iter().zip(passed) {
            assert!(told.contains(part), "{:?}", self.passed);
        }
        assert!(self.model == *model);
    }
}

fn opened(pool: &Arc<Pool<Auto>>) -> Result<Tree, crate::TreeError> {
    let options = ClusteredOptions {
        page_bytes: PAGE as u32,
    };
    Tree::open(pool, "t", &options, Arc::new(Nobody))
}

fn saved(path: &Path) -> Saved {
    read(&opened(&Pool::salvage(path).unwrap()).unwrap())
}

fn read(tree: &Tree) -> Saved {
    let (mut model, mut lost) = (Model::new(), Vec::new());
    let mut broken = Vec::new();
    let rescued = tree.rescue(
        (Bound::Unbounded, Bound::Unbounded),
        |key, current| {
            match current.value() {
                Ok(value) => {
                    let before = model.insert(key.to_vec(), value.to_vec());
                    assert_eq!(before, None, "given twice");
                }
                Err(e) => broken.push((key.to_vec(), e.to_string())),
            }
            Ok(ControlFlow::Continue(()))
        },
        |one, what| lost.push((one.key().to_vec(), what.to_owned())),
    );
    rescued.unwrap();
    lost.extend(broken);
    Saved {
        model,
        lost,
        passed: tree.passed().to_vec(),
    }
}

#[test]
fn of_a_whole_tree_nothing_is_told() {
    let mut subject = Subject::new(600);
    for i in (0..600).filter(|i| i % 7 != 0) {
        subject.remove(&key(i));
    }
    subject.put(&key(3), &[3; 3_000]);
    subject.killed().saved().is_all(&subject.model, &[]);
    let (_dir, copy, model) = subject.closed();
    copy.saved().is_all(&model, &[]);
}

/// A disk that did not write a sector of the page table left words of pages that had been merged
/// away. Their keys were led to them, and so came back from the dead.
#[test]
fn a_page_that_was_merged_away_has_no_keys() {
    let mut subject = Subject::new(900);
    let before: Vec<_> = subject.leaves();
    let words: Vec<u64> = before.iter().map(|(id, _)| subject.word(*id)).collect();
    let file = subject.killed().file;
    for i in (100..800).filter(|i| i % 25 != 0) {
        subject.remove(&key(i));
    }
    for i in (100..800).step_by(25) {
        subject.put(&key(i), b"changed since");
    }
    let sound = subject.numbers().into_iter();
    let sound = sound.filter_map(|id| subject.tree().sound(id).ok());
    let in_use: BTreeSet<u64> = sound.map(|sound| sound.block).collect();
    let mut copies = vec![(subject.killed(), false)];
    let places: Vec<usize> = before.iter().map(|(id, _)| subject.place(*id)).collect();
    let gone: Vec<bool> = (before.iter())
        .map(|(id, block)| subject.word(*id) == 0 && !in_use.contains(block))
        .collect();
    assert!(gone.iter().filter(|gone| **gone).count() > 10);
    let (_dir, copy, model) = subject.closed();
    copies.push((copy, true));
    for (mut copy, is_closed) in copies {
        for (i, (_, block)) in before.iter().enumerate().filter(|(i, _)| gone[*i]) {
            copy.set_word(places[i], words[i]);
            let at = *block as usize;
            copy.set(*block, &file[at..at + PAGE]);
        }
        let saved = copy.saved();
        assert_eq!(saved.lost, []);
        assert!(saved.model == model);
        let is_told = |told: &String| told.contains("not as it was when it was closed");
        assert_eq!(saved.passed.iter().any(is_told), is_closed);
    }
}

/// Words of an earlier time lead to blocks that other pages have by now. The pages were whole, and
/// could not be read.
#[test]
fn words_of_an_earlier_time_lead_to_the_newest_pages() {
    let mut subject = Subject::new(900);
    let words: Vec<u64> = (1..65).map(|id| subject.word(id)).collect();
    for round in 0..40 {
        for i in 0..900 {
            subject.put(&key(i), &[round; 20]);
        }
    }
    // The blocks of before have other pages.
    let named = |id: u32| {
        let word = Word::decode(words[id as usize - 1], id).ok().flatten();
        let named = word.and_then(|word| subject.tree().checked_page(word.block).ok());
        named.map(|(_, header, _)| (header.id, word.unwrap().is_of(header.generation)))
    };
    let others = (1..65).filter(|id| named(*id).is_some_and(|named| named != (*id, true)));
    let others: Vec<u32> = others.filter(|id| subject.word(*id) != 0).collect();
    assert!(others.len() > 20, "{others:?}");
    let mut copy = subject.killed();
    for id in &others {
        copy.set_word(subject.place(*id), words[*id as usize - 1]);
    }
    let saved = copy.saved();
    assert_eq!((saved.passed.len(), &saved.lost), (others.len(), &vec![]));
    assert!(
        saved
            .passed
            .iter()
            .all(|told| told.contains("the newest page"))
    );
    assert!(saved.model == subject.model);
}

/// Two pages that lie in each other's blocks were both lost.
#[test]
fn pages_that_were_swapped_are_found() {
    let subject = Subject::new(900);
    let leaves = subject.leaves();
    let (one, two) = (leaves[3].1 as usize, leaves[9].1 as usize);
    let mut copy = subject.killed();
    for i in 0..PAGE {
        copy.file.swap(one + i, two + i);
    }
    let told = ["leads to something else; the newest page"; 2];
    copy.saved().is_all(&subject.model, &told);
}

/// Its number had been another page's before. That one, which began elsewhere, was given in its
/// place.
#[test]
fn a_page_of_an_earlier_life_of_a_number_is_not_given() {
    let subject = Subject::new(900);
    let leaves = subject.leaves();
    let (id, block) = leaves[5];
    let (low, generation) = {
        let sound = subject.tree().sound(id).unwrap();
        let low = sound.page.low(&sound.header).unwrap().to_vec();
        (low, sound.header.generation)
    };
    let mut copy = subject.killed();
    copy.set_word(subject.place(id), 0);
    let chunk = copy.unused()[0];
    let (from, to) = (key(700), key(710));
    for generation in [generation - 1, generation + 1] {
        let about = spec(id, generation, Some(&from), Some(&to));
        let page = subject.page(&about, &[(&key(700), b"of an earlier life")]);
        copy.set(chunk, bytes_of(&page));
        // The right one is there.
        let told = ["the newest page"];
        copy.saved().is_all(&subject.model, &told);
    }
    // Whatever it was before that has not been written over since would do.
    let mut blocks = copy.blocks_of(id);
    blocks.retain(|at| *at != chunk);
    assert!(blocks.contains(&block));
    blocks.iter().for_each(|at| copy.set(*at, &[0; PAGE]));
    let saved = copy.saved();
    assert!(saved.model.len() < subject.model.len());
    assert!(
        saved
            .model
            .iter()
            .all(|(key, value)| subject.model[key] == *value)
    );
    assert_eq!(saved.lost.len(), 1);
    assert_eq!(saved.lost[0].0, low);
    assert!(saved.passed[0].ends_with("is gone"), "{:?}", saved.passed);
}

/// A sector of the page table was overwritten with zeros. The last change of a page, which had been
/// acknowledged, led to a long value whose word was there: it was taken for one that a crash had
/// cut short, and the value of before was given.
#[test]
fn the_last_change_of_a_page_counts_without_the_word_of_its_value() {
    let mut subject = Subject::new(200);
    subject.put(&key(50), &[7; 3_000]);
    subject.put(b"key 00120 and more", &[8; 3_000]);
    let mut copy = subject.killed();
    let values = subject.values();
    assert_eq!(values.len(), 2);
    for (id, _) in values {
        copy.set_word(subject.place(id), 0);
    }
    copy.saved().is_all(&subject.model, &[]);
}

/// Whether a newborn value counts could not be found out, since the word of its page was damaged.
/// So nothing was saved at all.
#[test]
fn a_newborn_value_of_a_page_that_is_lost_costs_nothing_else() {
    let mut subject = Subject::new(400);
    subject.put(&key(50), &[7; 3_000]);
    let (value, mut newborn) = subject.values()[0];
    newborn.newborn = true;
    let has_key = |(id, _): &(u32, u64)| {
        let sound = subject.tree().sound(*id).unwrap();
        let (low, high) = (
            sound.page.low(&sound.header),
            sound.page.high(&sound.header),
        );
        let key = &key(50)[..];
        low.is_none_or(|low| low <= key) && high.is_none_or(|high| key < high)
    };
    let (id, block) = subject.leaves().into_iter().find(has_key).unwrap();
    let mut copy = subject.killed();
    copy.set_word(subject.place(value), newborn.encode(value));
    copy.saved().is_all(&subject.model, &[]);
    copy.set_word(subject.place(id), subject.word(id) ^ (1 << 20 | 1 << 40));
    copy.saved().is_all(&subject.model, &["the newest page"]);
    copy.set(block, &[0; PAGE]);
    let saved = copy.saved();
    assert!(
        saved.model.len() > 350 && saved.lost.len() == 1,
        "{saved:?}"
    );
    assert!(
        saved
            .model
            .iter()
            .all(|(key, value)| subject.model[key] == *value)
    );
}

/// A crash came while a batch was spread over a chain of pages: a newborn page, which never
/// counted, led to one whose word had not been stored. That was told as damage.
#[test]
fn a_chain_of_pages_that_never_counted_is_no_damage() {
    let subject = Subject::new(400);
    let tree = subject.tree();
    let (old, _) = subject.leaves()[3];
    let old = tree.sound(old).unwrap();
    let generation = tree.next_generation();
    let reserve = || {
        let of_page = Some(generation);
        (tree.table)
            .reserve(tree.root(), &tree.heap, of_page)
            .unwrap()
    };
    let (one, two) = (reserve(), reserve());
    let low = [old.page.low(&old.header).unwrap(), b"1"].concat();
    let about = Spec {
        born_in: old.header.id,
        next: two,
        ..spec(one, generation, Some(&low), Some(b"z"))
    };
    let mut entries = Entries::default();
    entries.push(&low, &[], Stored::here(b"uncommitted"));
    let page = tree.write_page(&about, &entries, (0, 1)).unwrap();
    tree.bear(&page);
    subject.killed().saved().is_all(&subject.model, &[]);
}

/// A newborn page of which nobody can say any more whether it counts, since the page that it was
/// born in is lost, was given and not told.
#[test]
fn a_newborn_page_of_a_page_that_is_lost_is_told() {
    let subject = Subject::new(900);
    let leaves = subject.leaves();
    let header = |id| subject.tree().sound(id).unwrap().header;
    let born = leaves.iter().find(|(id, _)| {
        let (born, is_leaf) = (header(*id), |id| leaves.iter().any(|(leaf, _)| *leaf == id));
        let parent = born.born_in;
        parent != *id && is_leaf(parent) && header(parent).generation >= born.generation
    });
    let (id, _) = *born.unwrap();
    let parent = subject.tree().sound(header(id).born_in).unwrap().block;
    let mut newborn = Word::decode(subject.word(id), id).unwrap().unwrap();
    newborn.newborn = true;
    let mut copy = subject.killed();
    copy.set_word(subject.place(id), newborn.encode(id));
    copy.saved().is_all(&subject.model, &[]);
    copy.set(parent, &[0; PAGE]);
    let saved = copy.saved();
    assert!(
        saved.model.len() > 800 && saved.lost.len() == 1,
        "{saved:?}"
    );
    let what = format!("newborn page {id}");
    assert!(saved.passed[0].contains(&what), "{:?}", saved.passed);
}

/// For each page that could not be read all others were looked at, as if it were an inner page
/// that these could make again.
#[test]
fn every_other_page_of_many_may_be_lost() {
    let subject = Subject::new(60_000);
    let leaves = subject.leaves();
    assert!(leaves.len() > 5_000, "{}", leaves.len());
    let mut copy = subject.killed();
    let mut expected = subject.model.clone();
    for (id, block) in leaves.iter().step_by(2) {
        let sound = subject.tree().sound(*id).unwrap();
        let low = sound.page.low(&sound.header).unwrap_or_default().to_vec();
        let high = sound.page.high(&sound.header).map(<[u8]>::to_vec);
        let from = expected.range(low..).map(|(key, _)| key.clone());
        let inside = |key: &Vec<u8>| high.as_ref().is_none_or(|high| key < high);
        let gone: Vec<_> = from.take_while(inside).collect();
        gone.iter().for_each(|key| drop(expected.remove(key)));
        copy.set(*block, &[0; 64]);
    }
    let saved = copy.saved();
    assert!(saved.model == expected);
    assert!(saved.lost.len() > leaves.len() / 4, "{}", saved.lost.len());
    assert_eq!(saved.passed, [""; 0]);
}

/// Pages with right sums whose fences overlap, end before they begin, or lead in circles: each key
/// is given once at most, and what only whole pages have is given.
#[test]
fn fences_may_be_anything() {
    let subject = Subject::new(300);
    let mut draw = SmallRng::seed_from_u64(11);
    let free = subject.tree().table.end();
    let sample = |draw: &mut SmallRng| match draw.random_range(0..12) {
        0 => None,
        1 => Some(Vec::new()),
        2 => Some(vec![b'k'; draw.random_range(1..200)]),
        _ => Some(key(draw.random_range(0..400))),
    };
    for round in 0..60 {
        let mut copy = subject.killed();
        let chunk = copy.unused()[0];
        for i in 0..draw.random_range(1..100) {
            let id = match draw.random_range(0..8) {
                0 => draw.random_range(1..free),
                _ => free + draw.random_range(0..30),
            };
            let (low, high) = (sample(&mut draw), sample(&mut draw));
            let generation = draw.random_range(1..1_000_000);
            let next = [0, 1, id, free, u32::MAX, 1 << 31 | id][draw.random_range(0..6)];
            let about = Spec {
                next,
                level: [0, 0, 0, 1, 255][draw.random_range(0..5)],
                born_in: draw.random_range(0..free),
                ..spec(id, generation, low.as_deref(), high.as_deref())
            };
            let child = [id, 1, free + 1, u32::MAX][draw.random_range(0..4)].to_le_bytes();
            let value = [&child[..], &[0; 4]].concat();
            let one = low.clone().unwrap_or_default();
            let page = subject.page(&about, &[(&one, &value)]);
            if page.len() * 8 > PAGE {
                continue;
            }
            let block = chunk + i * PAGE as u64;
            copy.set(block, bytes_of(&page));
            let newborn = draw.random_ratio(1, 6);
            let word = Word::new(Kind::Page, block, generation, newborn);
            let word = word.encode(id);
            copy.set_word(
                subject.place(id),
                if draw.random_ratio(1, 6) { 0 } else { word },
            );
        }
        let saved = copy.saved();
        assert!(saved.model.len() < 600, "round {round}");
    }
}

/// Root words that led to one segment of the table again and again made it as long as no file is.
#[test]
fn segments_of_the_table_are_different_ones() {
    let subject = Subject::new(300);
    let root = subject.tree().root();
    let first = root::required(root, root::SEGMENTS).unwrap();
    for (segment, block) in [(1, first), (1, first + 32), (1, first - 64)] {
        let word = root::SEGMENTS + segment;
        let mut copy = subject.killed();
        copy.set_word(subject.place_of(root.word(word)), root::word(word, block));
        std::fs::write(&copy.path, &copy.file).unwrap();
        let pool = Pool::salvage(&copy.path).unwrap();
        let e = opened(&pool).unwrap_err().to_string();
        assert!(e.contains("segment 1 of the page table"), "{e}");
    }
}

/// Names the file that another process of this test writes to.
const WRITES_TO: &str = "BRISTLECONE_TEST_WRITES_TO";

/// Returns the name of the file by which that process says that it has begun.
fn begun(path: &Path) -> PathBuf {
    path.with_extension("begun")
}

/// Changes a tree in all ways, without end.
fn write_to(tree: &Tree, mut draw: SmallRng) -> ! {
    let (mut key_of, values) = (draw.clone(), [[b'v'; 900], [b'w'; 900]]);
    let mut any = move || key(key_of.random_range(0..3_000));
    loop {
        let value = &values[draw.random_range(0..2)][..];
        let value = &value[..[20, 20, 60, 900][draw.random_range(0..4)]];
        match draw.random_range(0..6) {
            0 => {
                // Pages are spread over, and merged.
                let (from, removes) = (draw.random_range(0..2_500), draw.random_ratio(1, 3));
                let keys: Vec<_> = (from..from + draw.random_range(1..500)).map(key).collect();
                let value = (!removes).then_some(value);
                let changes = keys.iter().map(|key| (&key[..], value));
                match removes {
                    true => tree.write_to_free(changes).unwrap(),
                    false => tree.write(changes, None, None).unwrap(),
                };
            }
            1 => {
                let keys = BTreeSet::from([any(), any(), any(), any()]);
                let changes = keys.iter().map(|key| (&key[..], Some(value)));
                tree.write(changes, None, None).unwrap();
            }
            2 => {
                let removed = tree.modify(&any(), |_| Ok(Modification::Remove));
                removed.unwrap();
            }
            _ => drop(tree.put(&any(), value).unwrap()),
        }
    }
}

/// Whatever a kill leaves is whole, and salvaged as opening finds it.
#[test]
fn a_kill_at_any_moment_is_no_damage() {
    if let Some(path) = std::env::var_os(WRITES_TO) {
        let pool = Pool::open(Path::new(&path), &Default::default()).unwrap();
        let tree = opened(&pool).unwrap();
        std::fs::write(begun(Path::new(&path)), "").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (tree, seed) = (&tree, rand::rng().random());
                scope.spawn(move || write_to(tree, SmallRng::seed_from_u64(seed)));
            }
        });
    }
    let subject = Subject::new(0);
    let (dir, copy, _) = subject.closed();
    let path = dir.path().join("pool");
    let this = "clustered::tests_salvaged::a_kill_at_any_moment_is_no_damage";
    let mut keys = BTreeSet::new();
    for i in 0..40 {
        let mut writer = std::process::Command::new(std::env::current_exe().unwrap())
            .args([this, "--exact"])
            .env(WRITES_TO, &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // On an emulated processor the process takes seconds to begin.
        while !begun(&path).exists() {
            assert_eq!(writer.try_wait().unwrap(), None, "it ended before it began");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(40 + i * 7 % 50));
        writer.kill().unwrap();
        writer.wait().unwrap();
        std::fs::remove_file(begun(&path)).unwrap();
        std::fs::copy(&path, &copy.path).unwrap();
        let found = saved(&path);
        let whole = opened(&Pool::open(&copy.path, &Default::default()).unwrap()).unwrap();
        let whole = read(&whole);
        assert_eq!((&found.lost, &found.passed), (&vec![], &vec![]), "kill {i}");
        assert!(found == whole, "kill {i}");
        keys.insert(found.model.len());
    }
    assert!(keys.len() > 10, "{keys:?}");
}
