//! The explorer against a second, naive definition of the persistency models. The definition takes
//! all subsets of the stores of a tiny trace and keeps those that the model allows. The explorer
//! must visit exactly these images.

use bristlecone_crash::explore::{Options, explore};
use bristlecone_crash::record::{Mutation, record};
use bristlecone_crash::rng::Rng;
use bristlecone_crash::subject::{Fault, Live, Op, Opened, Reply, Subject};
use bristlecone_crash::workload::Workload;
use bristlecone_pmem::media::sim::{Event, EventKind, Model, Pending, Simulation, Strategy};
use bristlecone_pmem::media::{Access, MediaOptions, Sim};
use bristlecone_pmem::{Media, PWord, PWord16};
use std::collections::BTreeSet;
use std::panic::Location;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Lines that traces touch.
const LINES: u64 = 3;
const WORDS: usize = 8 * LINES as usize;
/// Largest number of pending stores of a trace, since all of their subsets are enumerated.
const MAX_PENDING: usize = 9;

type Image = Vec<u64>;

/// Half of a store, or a whole one of 8 bytes.
#[derive(Clone, Copy)]
struct Atom {
    instruction: usize,
    word: usize,
    value: u64,
    thread: u8,
    epoch: usize,
    /// True if every crash keeps it.
    kept: bool,
    /// True if a hole was punched over it.
    gone: bool,
    /// True if it changes nothing, so that another thread cannot have seen it.
    silent: bool,
}

/// Returns the atoms of a trace. Punched holes change `base`.
fn atoms(model: Model, unit: u8, base: &mut [u64], events: &[Event]) -> Vec<Atom> {
    let mut atoms: Vec<Atom> = Vec::new();
    let mut flushed: Vec<(u8, u64, usize)> = Vec::new();
    let mut epoch = 0;
    for (instruction, event) in events.iter().enumerate() {
        let words = match event.kind {
            EventKind::Store { at, .. } => at / 8..at / 8 + 1,
            EventKind::Store16 { at, .. } => at / 8..at / 8 + 2,
            EventKind::Load { at, bytes } => at / 8..(at + u64::from(bytes)) / 8,
            _ => 0..0,
        };
        if model == Model::Eadr {
            for other in (0..4).filter(|other| *other != event.thread) {
                let met = |atom: &&Atom| {
                    let there = atom.thread == other && !atom.gone && !atom.silent;
                    there && words.contains(&(atom.word as u64))
                };
                if let Some(last) = atoms.iter().rfind(met).map(|atom| atom.instruction) {
                    let seen = |a: &&mut Atom| a.thread == other && a.instruction <= last;
                    atoms.iter_mut().filter(seen).for_each(|a| a.kept = true);
                }
            }
        }
        let mut store = |word: u64, value: u64, silent: bool| {
            atoms.push(Atom {
                instruction,
                word: word as usize,
                value,
                thread: event.thread,
                epoch,
                kept: false,
                gone: false,
                silent,
            });
        };
        match event.kind {
            EventKind::Store { at, old, new } => store(at / 8, new, old == new),
            EventKind::Store16 { at, old, new } => {
                let torn = unit == 8;
                let low = old == new || torn && old as u64 == new as u64;
                let high = old == new || torn && old >> 64 == new >> 64;
                store(at / 8, new as u64, low);
                store(at / 8 + 1, (new >> 64) as u64, high);
            }
            EventKind::Flush { line } => flushed.push((event.thread, line / 64, atoms.len())),
            EventKind::Fence => {
                epoch += 1;
                for &(_, line, n) in flushed.iter().filter(|f| f.0 == event.thread) {
                    let of_line = |a: &&mut Atom| a.word as u64 / 8 == line;
                    let before = atoms[..n].iter_mut().filter(of_line);
                    before.for_each(|a| a.kept |= model != Model::Eadr);
                }
                flushed.retain(|f| f.0 != event.thread);
                let own = |a: &&mut Atom| a.thread == event.thread && model == Model::Eadr;
                atoms.iter_mut().filter(own).for_each(|a| a.kept = true);
            }
            EventKind::StoreFence => epoch += 1,
            EventKind::Zero { at, bytes } => {
                let range = (at / 8) as usize..((at + bytes) / 8) as usize;
                base[range.clone()].fill(0);
                let punched = |a: &&mut Atom| range.contains(&a.word);
                atoms.iter_mut().filter(punched).for_each(|a| a.gone = true);
            }
            EventKind::Load { .. } | EventKind::Resize { .. } => {}
        }
    }
    atoms.retain(|atom| !atom.gone);
    atoms
}

/// Returns true if a crash that keeps `b` also keeps `a`, which is earlier or the other half.
fn binds(model: Model, unit: u8, a: &Atom, b: &Atom) -> bool {
    if a.instruction == b.instruction {
        return unit == 16;
    }
    let domain = |atom: &Atom| match model {
        Model::Eadr => usize::from(atom.thread),
        _ => atom.word / 8,
    };
    a.instruction < b.instruction
        && domain(a) == domain(b)
        && (model != Model::ArmV8 || a.epoch < b.epoch || a.word == b.word)
}

/// Returns all images that a crash after `events` may leave of `base`; `None` if there are too
/// many.
fn brute_force(model: Model, unit: u8, base: &[u64], events: &[Event]) -> Option<BTreeSet<Image>> {
    let mut base = base.to_vec();
    let atoms = atoms(model, unit, &mut base, events);
    let open: Vec<usize> = (0..atoms.len()).filter(|&i| !atoms[i].kept).collect();
    if open.len() > MAX_PENDING {
        return None;
    }
    let mut images = BTreeSet::new();
    for subset in 0..1_u32 << open.len() {
        let kept = |i: usize| match open.binary_search(&i) {
            Ok(n) => subset & 1 << n != 0,
            Err(_) => true,
        };
        let allowed = open.iter().all(|&a| {
            kept(a)
                || (0..atoms.len()).all(|b| !kept(b) || !binds(model, unit, &atoms[a], &atoms[b]))
        });
        if allowed {
            let mut image = base.clone();
            for (_, atom) in atoms.iter().enumerate().filter(|(i, _)| kept(*i)) {
                image[atom.word] = atom.value;
            }
            images.insert(image);
        }
    }
    Some(images)
}

/// A step on persistent memory.
#[derive(Clone, Copy, Debug)]
enum Do {
    Store(usize, u64),
    Store16(usize, u64, u64),
    Flush(u64),
    Fence,
    StoreFence,
    Punch(u64),
    Load(usize),
}

/// Returns a random step. It uses few words and values, so that stores meet and repeat.
fn random_step(rng: &mut Rng, lines: u64, fresh: &mut u64) -> Do {
    let line = rng.below(lines);
    let word = (line * 8 + rng.below(4)) as usize;
    let mut value = || match rng.below(4) {
        0 => rng.below(3),
        _ => {
            *fresh += 1;
            *fresh + 10
        }
    };
    let (a, b) = (value(), value());
    match rng.below(100) {
        0..50 => Do::Store(word, a),
        50..62 => Do::Store16(word / 2 * 2, a, b),
        62..76 => Do::Flush(line),
        76..86 => Do::Fence,
        86..92 => Do::StoreFence,
        92..94 => Do::Punch(line),
        _ => Do::Load(word),
    }
}

/// Returns the event of a step on memory with the content `now`.
fn event_of(step: Do, thread: u8, now: &mut [u64]) -> Event {
    let wide = |lo: u64, hi: u64| u128::from(lo) | u128::from(hi) << 64;
    let kind = match step {
        Do::Store(word, new) => EventKind::Store {
            at: word as u64 * 8,
            old: std::mem::replace(&mut now[word], new),
            new,
        },
        Do::Store16(word, lo, hi) => EventKind::Store16 {
            at: word as u64 * 8,
            old: wide(
                std::mem::replace(&mut now[word], lo),
                std::mem::replace(&mut now[word + 1], hi),
            ),
            new: wide(lo, hi),
        },
        Do::Flush(line) => EventKind::Flush { line: line * 64 },
        Do::Fence => EventKind::Fence,
        Do::StoreFence => EventKind::StoreFence,
        Do::Punch(line) => {
            now[line as usize * 8..][..8].fill(0);
            EventKind::Zero {
                at: line * 64,
                bytes: 64,
            }
        }
        Do::Load(word) => EventKind::Load {
            at: word as u64 * 8,
            bytes: 8,
        },
    };
    Event {
        kind,
        thread,
        site: Location::caller(),
    }
}

fn memory(sim: &Simulation) -> Image {
    (0..WORDS as u32).map(|word| sim.word(word)).collect()
}

/// Returns every image of the pending stores, read in full; with `newest`, only those that keep
/// that store.
fn visit(sim: &Simulation, pending: &Pending, newest: Option<u32>) -> BTreeSet<Image> {
    sim.note_changes(true);
    let before = memory(sim);
    let start = sim.mark();
    let from = sim.expose(pending, newest);
    let opened = sim.mark();
    sim.set_strategy(Strategy::DepthFirst);
    let (mut images, mut decisions) = (BTreeSet::new(), BTreeSet::new());
    loop {
        sim.begin_image(0);
        sim.decide_rest();
        images.insert(memory(sim));
        let mut taken: Vec<_> = sim
            .decisions(start)
            .iter()
            .map(|d| (d.word, d.kept))
            .collect();
        taken.sort_unstable();
        assert!(decisions.insert(taken), "visited twice");
        sim.roll_back(opened);
        if !sim.next_image(0) {
            break;
        }
    }
    sim.roll_back(start);
    sim.close(from);
    sim.note_changes(false);
    assert_eq!(memory(sim), before, "rolled back");
    images
}

#[test]
fn images_of_random_traces_are_those_that_the_model_allows() {
    let sim = Simulation::new(1);
    let mut points = 0;
    for seed in 0..1500 {
        for model in Model::ALL {
            let mut rng = Rng::new(seed);
            let unit = if seed % 2 == 0 { 8 } else { 16 };
            let lines = 1 + seed % LINES;
            let threads = 1 + rng.below(2) as u8;
            let (mut now, mut fresh) = (vec![0; WORDS], 0);
            for (word, value) in now.iter_mut().enumerate() {
                *value = rng.below(3);
                sim.set_word(word as u32, *value);
            }
            let base = now.clone();
            let mut pending = Pending::new(model, unit);
            let (mut events, mut earlier) = (Vec::new(), BTreeSet::from([base.clone()]));
            for _ in 0..12 {
                let thread = 1 + rng.below(u64::from(threads)) as u8;
                let step = random_step(&mut rng, lines, &mut fresh);
                let event = event_of(step, thread, &mut now);
                events.push(event);
                pending.apply(&event, &mut |word, value| sim.set_word(word, value));
                if let EventKind::Zero { at, bytes } = event.kind {
                    sim.zero(at, bytes);
                }
                let Some(allowed) = brute_force(model, unit, &base, &events) else {
                    break;
                };
                let trace = || -> Vec<_> { events.iter().map(|e| (e.thread, e.kind)).collect() };
                let visited = visit(&sim, &pending, None);
                assert_eq!(visited, allowed, "{seed} {model:?} {unit}: {:?}", trace());
                // The images that the explorer visits at this point and visited at those before it.
                match event.kind {
                    EventKind::Store { old, new, .. } if old != new => {
                        earlier.extend(visit(&sim, &pending, Some(pending.newest())));
                    }
                    EventKind::Store16 { old, new, .. } if old != new => earlier.extend(visited),
                    EventKind::Zero { .. } => earlier.extend(visited),
                    _ => {}
                }
                assert!(
                    allowed.is_subset(&earlier),
                    "{seed} {model:?} {unit}: {:?}",
                    trace()
                );
                points += 1;
            }
        }
    }
    assert!(points > 10_000, "{points}");
}

/// A structure whose operations are random stores, and whose recovery records the words it reads.
struct Scripted {
    unit: u8,
    model_seed: u64,
    scripts: Vec<Vec<Do>>,
    next: Arc<AtomicUsize>,
    seen: Arc<Mutex<BTreeSet<Image>>>,
    /// True if recovery reads all words; else each word it reads decides the next.
    whole: bool,
}

impl Scripted {
    /// Returns one with so many random scripts of one to four steps.
    fn random(seed: u64, mut rng: Rng, scripts: usize) -> Self {
        let mut fresh = 0;
        let mut script = || {
            (0..1 + rng.below(4))
                .map(|_| random_step(&mut rng, LINES, &mut fresh))
                .collect()
        };
        Self {
            unit: if seed.is_multiple_of(2) { 8 } else { 16 },
            model_seed: seed,
            scripts: (0..scripts).map(|_| script()).collect(),
            next: Arc::default(),
            seen: Arc::default(),
            whole: !seed.is_multiple_of(3),
        }
    }

    /// Returns the words that recovery reads of an image, in order, with their content.
    fn reads(&self, mut word: impl FnMut(usize) -> u64) -> Image {
        if self.whole {
            return (0..WORDS).map(word).collect();
        }
        let mut path = Vec::new();
        let mut at = 0;
        for n in 0..6 {
            let value = word(at);
            path.extend([at as u64, value]);
            at = ((at as u64 * 3 + value + n + self.model_seed) % LINES * 8 + value % 4) as usize;
        }
        path
    }

    /// Returns the stores of a recovery that read these words.
    fn repairs(&self, read: &Image) -> Vec<Do> {
        let sum = read.iter().fold(self.model_seed, |sum, word| {
            (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        });
        // Word 7 tells that there is nothing left to repair.
        let mut rng = Rng::new(sum);
        let mut fresh = sum % 1000 * 1000;
        let steps = 1 + rng.below(4);
        (0..steps)
            .map(|_| random_step(&mut rng, LINES, &mut fresh))
            .collect()
    }
}

struct ScriptedLive {
    sim: Sim,
    scripts: Vec<Vec<Do>>,
    next: Arc<AtomicUsize>,
}

/// Returns a word of the simulated memory, as programs reach it.
fn word_at(sim: &Sim, word: usize) -> &PWord {
    assert!(word < WORDS);
    // SAFETY: 1. inside the buffer and 8-aligned; 2. all access is atomic; 3. `sim` keeps the
    // buffer.
    unsafe { &*sim.base().cast::<PWord>().add(word) }
}

fn perform(sim: &Sim, step: Do) {
    match step {
        Do::Store(word, value) => word_at(sim, word).store(sim, value, Ordering::Relaxed),
        Do::Store16(word, lo, hi) => {
            assert!(word.is_multiple_of(2) && word + 1 < WORDS);
            let value = u128::from(lo) | u128::from(hi) << 64;
            // SAFETY: as in `word_at`; 16-aligned, since the word's number is even.
            let wide = unsafe { &*sim.base().add(word * 8).cast::<PWord16>() };
            wide.store(sim, value, Ordering::Relaxed).unwrap();
        }
        Do::Flush(line) => sim.flush(word_at(sim, line as usize * 8).addr(), 64),
        Do::Fence => sim.fence(),
        Do::StoreFence => sim.store_fence(),
        Do::Punch(line) => sim.punch(line * 64, 64).unwrap(),
        Do::Load(word) => {
            word_at(sim, word).load(sim, Ordering::Relaxed);
        }
    }
}

impl Live for ScriptedLive {
    fn apply(&self, _: &Op) -> Result<Reply, Fault> {
        // ORDERING: Relaxed; one thread records.
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        for step in &self.scripts[n] {
            perform(&self.sim, *step);
        }
        Ok(Reply::Done)
    }

    fn observe(&self, _: &mut dyn FnMut(u64, u64)) -> Result<(), Fault> {
        Ok(())
    }

    fn verify(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<(), Fault> {
        Ok(())
    }
}

impl Subject for Scripted {
    fn name(&self) -> String {
        "scripted".into()
    }

    fn unit(&self) -> u8 {
        self.unit
    }

    fn capacity(&self) -> u64 {
        1
    }

    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        Ok(Box::new(self.live()))
    }

    fn open(&self) -> Result<Opened, Fault> {
        let live = self.live();
        let read = self.reads(|word| word_at(&live.sim, word).load(&live.sim, Ordering::Relaxed));
        for step in self.repairs(&read) {
            perform(&live.sim, step);
        }
        self.seen.lock().unwrap().insert(read);
        Ok(Opened::Live(Box::new(live)))
    }

    /// Workloads try no operation after recovery.
    fn can(&self, _: &Op) -> bool {
        false
    }
}

impl Scripted {
    fn live(&self) -> ScriptedLive {
        let options = MediaOptions {
            access: Access::Create,
            ..MediaOptions::default()
        };
        ScriptedLive {
            sim: Sim::open(Path::new("scripted"), WORDS as u64 * 8, &options).unwrap(),
            scripts: self.scripts.clone(),
            next: Arc::clone(&self.next),
        }
    }

    /// Returns everything that recovery may read after a crash in operation `n` or at its end.
    fn allowed(
        &self,
        model: Model,
        events: &[Event],
        from: usize,
        nested: bool,
    ) -> Option<BTreeSet<Image>> {
        let base = vec![0; WORDS];
        let mut reads = BTreeSet::new();
        let mut recovered: BTreeSet<Image> = BTreeSet::new();
        for n in from..=events.len() {
            for image in brute_force(model, self.unit, &base, &events[..n])? {
                if !recovered.insert(image.clone()) {
                    continue;
                }
                let read = self.reads(|word| image[word]);
                if nested {
                    let (mut now, mut trace) = (image.clone(), Vec::new());
                    for step in self.repairs(&read) {
                        trace.push(event_of(step, 0, &mut now));
                        for again in brute_force(model, self.unit, &image, &trace)? {
                            reads.insert(self.reads(|word| again[word]));
                        }
                    }
                }
                reads.insert(read);
            }
        }
        Some(reads)
    }

    /// Returns everything that a process may read after a kill at which stores are pending, and
    /// that recovery may read after a power cut in the recovery from that.
    fn allowed_after_kills(&self, model: Model, events: &[Event]) -> Option<BTreeSet<Image>> {
        let base = vec![0; WORDS];
        let mut reads = BTreeSet::new();
        for n in 0..=events.len() {
            let mut trace = events[..n].to_vec();
            if brute_force(model, self.unit, &base, &trace)?.len() == 1 {
                continue; // nothing is pending: the kill is a crash
            }
            let mut visible = base.clone();
            for event in &trace {
                match event.kind {
                    EventKind::Store { at, new, .. } => visible[at as usize / 8] = new,
                    EventKind::Store16 { at, new, .. } => {
                        visible[at as usize / 8] = new as u64;
                        visible[at as usize / 8 + 1] = (new >> 64) as u64;
                    }
                    EventKind::Zero { at, .. } => visible[at as usize / 8..][..8].fill(0),
                    _ => {}
                }
            }
            let read = self.reads(|word| visible[word]);
            for step in self.repairs(&read) {
                // No thread of the first process has this number: its fences are its own.
                trace.push(event_of(step, NEXT, &mut visible));
                for again in brute_force(model, self.unit, &base, &trace)? {
                    reads.insert(self.reads(|word| again[word]));
                }
            }
            reads.insert(read);
        }
        Some(reads)
    }
}

/// A thread of the process after a kill.
const NEXT: u8 = 9;

#[test]
fn the_power_cuts_after_a_kill_leave_exactly_what_the_model_allows() {
    let mut compared = 0;
    for seed in 0..200 {
        for model in [Model::X86Tso, Model::ArmV8] {
            let subject = Scripted::random(seed, Rng::new(seed ^ 0xDEAD), 2);
            let workload = Workload {
                setup: vec![],
                ops: vec![Op::Compact; 2],
                creation: true,
                dirty: false,
            };
            let recording = record(&subject, &workload, &Mutation::default()).unwrap();
            let events = &recording.events;
            let (Some(kills), Some(crashes)) = (
                subject.allowed_after_kills(model, events),
                subject.allowed(model, events, 0, true),
            ) else {
                continue;
            };
            let options = Options {
                kills: 1,
                thorough_every: u64::MAX,
                ..Options::new(model)
            };
            let totals = explore(&subject, &recording, &options, &|_| ());
            assert_eq!(totals.violations, 0, "{:?}", totals.found);
            let seen = std::mem::take(&mut *subject.seen.lock().unwrap());
            let what = format!("{seed} {model:?}: {:?}", subject.scripts);
            if totals.killed_exhaustive_points == totals.killed_points && totals.kills > 0 {
                let missed: Vec<_> = kills.difference(&seen).collect();
                assert!(missed.is_empty(), "{what}: {missed:?} not visited");
                compared += 1;
            }
            let wrong: Vec<_> = (seen.iter())
                .filter(|image| !kills.contains(*image) && !crashes.contains(*image))
                .collect();
            assert!(wrong.is_empty(), "{what}: {wrong:?} visited");
        }
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn the_explorer_visits_exactly_what_the_model_allows() {
    let mut compared = 0;
    for seed in 0..100 {
        for (model, nested) in Model::ALL.into_iter().flat_map(|m| [(m, false), (m, true)]) {
            let subject = Scripted::random(seed, Rng::new(seed ^ 0x5EED), 3);
            let setup = (seed % 4 / 2) as usize;
            let workload = Workload {
                setup: vec![Op::Compact; setup],
                ops: vec![Op::Compact; 3 - setup],
                creation: setup == 0,
                dirty: false,
            };
            let recording = record(&subject, &workload, &Mutation::default()).unwrap();
            let from = recording.steps[setup].end;
            let from = if setup == 0 { 0 } else { from };
            let Some(allowed) = subject.allowed(model, &recording.events, from, nested) else {
                continue;
            };
            let options = Options {
                nested,
                thorough_every: if nested { 1 } else { 3 },
                workers: 1 + (seed % 2) as usize,
                ..Options::new(model)
            };
            let totals = explore(&subject, &recording, &options, &|_| ());
            assert_eq!(totals.violations, 0, "{:?}", totals.found);
            assert_eq!(totals.exhaustive_points, totals.crash_points);
            let seen = std::mem::take(&mut *subject.seen.lock().unwrap());
            let what = format!("{seed} {model:?} nested {nested}: {:?}", subject.scripts);
            let missed: Vec<_> = allowed.difference(&seen).collect();
            if totals.nested_exhaustive_points == totals.nested_points {
                assert!(missed.is_empty(), "{what}: {missed:?} not visited");
                compared += 1;
            }
            // Even without crashes in recovery, `check_idempotence` recovers once more and reads
            // what the first recovery left, as after a crash that lost nothing.
            if nested {
                let wrong: Vec<_> = seen.difference(&allowed).collect();
                assert!(wrong.is_empty(), "{what}: {wrong:?} visited");
            }
        }
    }
    assert!(compared > 300, "{compared}");
}
