//! The disks that a power cut may leave.

use super::mutants::{Left, Mutant};
use crate::rng::Rng;
use bristlecone_pmem::media::journal::fault::{Change, Event, FaultDisk, What, Which};

/// The pending changes whose subsets are all tried.
const FEW: usize = 3;

/// Where the journal's headers are.
const HEADERS: [usize; 2] = [0, 4096];

/// Where the journal's frames begin.
pub(super) const FRAMES: u64 = 8192;

/// Damage of a disk besides what a cut leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoilt {
    No,
    /// One of the journal's headers cannot be read.
    Header,
    /// Bytes of a frame are others.
    Frame,
}

/// What becomes of a change that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Lost,
    /// Each sector is kept or lost, by the numbers of this seed.
    Torn(u64),
}

/// A disk as it is while a recording is played.
pub(super) struct Playing<'a> {
    files: [Vec<u8>; 2],
    /// Changes that are not durable, of both files, in order.
    pending: Vec<(Which, &'a Change)>,
    /// Changes of a synced write, made up when played.
    arena: &'a Arena,
    events: &'a [Event],
    mutant: Option<&'a Mutant>,
    /// Headers are damaged at times, from when both were written.
    pub spoils: bool,
    /// The next event.
    at: usize,
}

/// The changes of the synced writes of a recording, by their events.
pub(super) struct Arena(Vec<Option<Change>>);

impl Arena {
    pub fn of(events: &[Event]) -> Self {
        let change = |event: &Event| match &event.what {
            What::Durable(offset, bytes, _) => Some(Change::Write(*offset, bytes.clone())),
            _ => None,
        };
        Self(events.iter().map(change).collect())
    }
}

impl<'a> Playing<'a> {
    /// Begins with the files as they were before the recording.
    pub fn new(
        files: [Vec<u8>; 2],
        events: &'a [Event],
        arena: &'a Arena,
        mutant: Option<&'a Mutant>,
    ) -> Self {
        Self {
            files,
            pending: Vec::new(),
            arena,
            events,
            mutant,
            spoils: false,
            at: 0,
        }
    }

    /// Plays the next event up to where its change is on its way. Returns false at the end.
    pub fn begin_next(&mut self) -> bool {
        let Some(event) = self.events.get(self.at) else {
            return false;
        };
        match &event.what {
            What::Change(change) => self.pending.push((event.which, change)),
            What::Durable(_, _, site) => {
                if self.left_out(site) != Some(Left::Write)
                    && let Some(change) = &self.arena.0[self.at]
                {
                    self.pending.push((event.which, change));
                }
            }
            What::Sync(_) => {}
        }
        self.at += 1;
        true
    }

    /// Ends the event that was begun: what it was to make durable is. Returns false if it was to
    /// make nothing durable.
    pub fn end(&mut self) -> bool {
        let event = &self.events[self.at - 1];
        match &event.what {
            What::Change(_) => return false,
            What::Durable(_, _, site) => {
                if self.left_out(site).is_none()
                    && let Some((which, change)) = self.pending.pop()
                {
                    change.apply(&mut self.files[which as usize], || true);
                }
            }
            What::Sync(site) => {
                if self.left_out(site).is_none() {
                    let file = &mut self.files[event.which as usize];
                    self.pending.retain(|(which, change)| {
                        if *which == event.which {
                            change.apply(file, || true);
                        }
                        *which != event.which
                    });
                }
            }
        }
        true
    }

    fn left_out(&self, site: &'static std::panic::Location<'static>) -> Option<Left> {
        self.mutant
            .filter(|mutant| mutant.site == site)
            .map(|mutant| mutant.left)
    }

    /// Calls `f` with up to `most` of the disks that a cut may leave here, and with what became of
    /// the pending changes. Ends when it returns false.
    pub fn disks(
        &self,
        most: usize,
        rng: &mut Rng,
        f: &mut dyn FnMut(FaultDisk, Spoilt, &str) -> bool,
    ) {
        for fates in self.fates(most, rng) {
            let mut order: Vec<usize> = (0..self.pending.len()).collect();
            // A disk writes in any order, which shows where changes overlap.
            if rng.below(4) == 0 {
                rng.shuffle(&mut order);
            }
            let mut files = self.files.clone();
            for i in order {
                let (which, change) = self.pending[i];
                let file = &mut files[which as usize];
                match fates[i] {
                    Fate::Kept => change.apply(file, || true),
                    Fate::Lost => {}
                    Fate::Torn(seed) => {
                        let mut rng = Rng::new(seed);
                        change.apply(file, || rng.below(2) == 0);
                    }
                }
            }
            let [pool, mut journal] = files;
            let mut what = self.describe(&fates);
            let spoilt = match self.spoils {
                true => self.spoil(&mut journal, rng, &mut what),
                false => Spoilt::No,
            };
            let disk = FaultDisk::new(rng.next_u64());
            disk.set_bytes(Which::Pool, pool);
            disk.set_bytes(Which::Journal, journal);
            if !f(disk, spoilt, &what) {
                return;
            }
        }
    }

    /// Damages some journals, and says where.
    fn spoil(&self, journal: &mut [u8], rng: &mut Rng, what: &mut String) -> Spoilt {
        let (spoilt, at) = match rng.below(8) {
            0 | 1 => (Spoilt::Header, HEADERS[rng.index(2)]),
            2 => {
                // A frame that was written not long ago.
                let frame = |event: &Event| match &event.what {
                    What::Change(Change::Write(at, bytes)) | What::Durable(at, bytes, _)
                        if event.which == Which::Journal && *at >= FRAMES =>
                    {
                        Some((*at as usize, bytes.len().saturating_sub(16)))
                    }
                    _ => None,
                };
                let past = self.events[..self.at].iter().rev().skip(rng.index(12));
                let Some((at, len)) = past.filter_map(frame).next() else {
                    return Spoilt::No;
                };
                (Spoilt::Frame, at + rng.index(len))
            }
            _ => return Spoilt::No,
        };
        match journal.get_mut(at..at + 16) {
            Some(bytes) if bytes.iter().any(|byte| *byte != 0) => bytes.fill(0x5a),
            _ => return Spoilt::No,
        }
        what.push_str(&format!("  and the journal is damaged at {at}\n"));
        spoilt
    }

    fn fates(&self, most: usize, rng: &mut Rng) -> Vec<Vec<Fate>> {
        let n = self.pending.len();
        if n == 0 {
            return vec![Vec::new()];
        }
        let newest = n - 1;
        let torn = |rng: &mut Rng| Fate::Torn(rng.next_u64());
        let mut all = vec![vec![Fate::Kept; n], vec![Fate::Lost; n]];
        if n <= FEW {
            let subset = |bits: usize| {
                let fate = |i: usize| match bits >> i & 1 {
                    0 => Fate::Lost,
                    _ => Fate::Kept,
                };
                (0..n).map(fate).collect()
            };
            all.extend((1..(1 << n) - 1).map(subset));
        }
        // One alone, all but one, one torn: the newest, and any.
        for i in [newest, rng.index(n)] {
            for (others, fate) in [
                (Fate::Lost, Fate::Kept),
                (Fate::Kept, Fate::Lost),
                (Fate::Lost, torn(rng)),
                (Fate::Kept, torn(rng)),
            ] {
                let mut fates = vec![others; n];
                fates[i] = fate;
                all.push(fates);
            }
        }
        // One file as it is in the page cache, the other as it was last synced.
        for file in [Which::Pool, Which::Journal] {
            let fate = |(which, _): &(Which, &Change)| match *which == file {
                true => Fate::Kept,
                false => Fate::Lost,
            };
            all.push(self.pending.iter().map(fate).collect());
        }
        for _ in 0..4 {
            let fate = |rng: &mut Rng| match rng.below(3) {
                0 => Fate::Kept,
                1 => Fate::Lost,
                _ => torn(rng),
            };
            all.push((0..n).map(|_| fate(rng)).collect());
        }
        let mut kept = Vec::new();
        for fates in all {
            if !kept.contains(&fates) {
                kept.push(fates);
            }
        }
        rng.shuffle(&mut kept);
        kept.truncate(most);
        kept
    }

    /// Describes the cut: the last events, and what became of the pending changes.
    fn describe(&self, fates: &[Fate]) -> String {
        use std::fmt::Write as _;
        let mut text = String::new();
        for (i, event) in self.events[..self.at]
            .iter()
            .enumerate()
            .rev()
            .take(6)
            .rev()
        {
            let _ = writeln!(text, "  event {i}: {}", describe(event));
        }
        for ((which, change), fate) in self.pending.iter().zip(fates) {
            let _ = writeln!(text, "  {fate:?}: {which:?} {}", describe_change(change));
        }
        text
    }
}

fn describe(event: &Event) -> String {
    let which = event.which;
    match &event.what {
        What::Change(change) => format!("{which:?} {}", describe_change(change)),
        What::Durable(offset, bytes, site) => {
            format!(
                "{which:?} {} bytes at {offset}, synced, by {site}",
                bytes.len()
            )
        }
        What::Sync(site) => format!("{which:?} is synced, by {site}"),
    }
}

fn describe_change(change: &Change) -> String {
    match change {
        Change::Write(offset, bytes) => format!("{} bytes at {offset}", bytes.len()),
        Change::Extend(len) => format!("extended to {len}"),
        Change::Truncate(len) => format!("cut to {len}"),
        Change::Punch(offset, len) => format!("a hole of {len} at {offset}"),
    }
}
