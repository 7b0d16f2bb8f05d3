//! The images that a power cut at a moment of the trace may leave.
//!
//! What is durable is decided by the syncs that have ended ([`Settled`]). All else is drawn: of
//! each file a prefix of the changes of its length and holes, of each directory a prefix of the
//! changes of names, and of each write any of its sectors. The head of the module above has the
//! model.

use super::image::{Bytes, Image};
use super::timeline::{Event, Name, Op, Timeline, folder_of, line_of};
use super::{Draw, Model, NamesLast, Plant};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// An image, and what it lacks.
#[derive(Debug)]
pub struct Cut {
    /// The files.
    pub image: Image,
    /// The changes that were lost, wholly or in part, in words.
    pub lost: Vec<String>,
    /// How many changes were not durable.
    pub pending: usize,
}

/// Makes images of one trace, for moments that do not descend.
#[derive(Debug)]
pub struct Cutter<'t> {
    timeline: &'t Timeline,
    model: Model,
    /// The events before this one are durable, for good, and applied.
    done: usize,
    state: State,
}

#[derive(Clone, Debug)]
struct State {
    /// What programs read.
    cached: Vec<Bytes>,
    /// What the disk has.
    disk: Vec<Bytes>,
    names: BTreeMap<String, Option<usize>>,
}

/// For each file and directory, where the latest sync began that has ended before the cut: what had
/// ended by then is durable.
#[derive(Debug, Default)]
struct Settled {
    contents: HashMap<usize, usize>,
    /// Lengths and holes, which a durable write settles as well.
    shapes: HashMap<usize, usize>,
    folders: HashMap<String, usize>,
    /// The place among the events of the sync that is ignored.
    ignored: Option<usize>,
}

/// How much of what is not durable a cut keeps.
#[derive(Clone, Copy, Debug)]
enum Luck {
    Nothing,
    Everything,
    /// Each change, wholly or not at all.
    Halves,
    /// Each sector.
    Sectors,
    /// All but one write.
    AllBut(usize),
    /// Only one write.
    Only(usize),
    /// Each write in one of these ways, or torn.
    Mixed,
    /// The last write is torn.
    LastTorn(usize),
}

fn latest(of: &mut HashMap<usize, usize>, file: usize, begin: usize) {
    let entry = of.entry(file).or_insert(begin);
    *entry = begin.max(*entry);
}

fn is_journal(title: &str) -> bool {
    title.ends_with(".journal")
}

impl Settled {
    fn at(timeline: &Timeline, model: Model, moment: usize) -> Self {
        let ended = |event: &Event| event.end.is_some_and(|end| end < moment);
        let file_synced = |event: &Event| match event.op {
            Op::Sync { file } => Some(file),
            Op::Write { file, through, .. } if through => Some(file),
            _ => None,
        };
        let of_journal =
            |event: &Event| file_synced(event).is_some_and(|f| is_journal(&timeline.titles[f]));
        let mut settled = Self::default();
        if model.plant == Some(Plant::SkipSync) {
            let syncs = timeline.events.iter().enumerate();
            settled.ignored = syncs
                .filter(|(_, event)| ended(event) && of_journal(event))
                .max_by_key(|(_, event)| event.end)
                .map(|(i, _)| i);
        }
        for (i, event) in timeline.events.iter().enumerate() {
            let skipped = match model.plant {
                None => false,
                Some(Plant::SkipSync) => settled.ignored == Some(i),
                Some(Plant::SkipJournal) => of_journal(event),
                Some(Plant::SkipPool) => {
                    file_synced(event).is_some_and(|f| timeline.titles[f] == super::DATABASE)
                }
                Some(Plant::SkipNames) => matches!(event.op, Op::SyncNames { .. }),
            };
            if !ended(event) || skipped {
                continue;
            }
            if let Some(file) = file_synced(event) {
                latest(&mut settled.shapes, file, event.begin);
            }
            match &event.op {
                Op::Sync { file } => latest(&mut settled.contents, *file, event.begin),
                Op::SyncNames { folder } => {
                    let entry = settled.folders.entry(folder.clone()).or_insert(event.begin);
                    *entry = event.begin.max(*entry);
                }
                _ => {}
            }
        }
        settled
    }

    /// Whether a change is durable.
    fn has(&self, timeline: &Timeline, model: Model, i: usize, moment: usize) -> bool {
        let event = &timeline.events[i];
        let Some(end) = event.end else {
            return matches!(event.op, Op::Said(_));
        };
        let before = |begin: Option<&usize>| begin.is_some_and(|begin| end < *begin);
        match &event.op {
            Op::Write { file, through, .. } => {
                let ignores = match model.plant {
                    Some(Plant::SkipSync) => self.ignored == Some(i),
                    Some(Plant::SkipJournal) => is_journal(&timeline.titles[*file]),
                    Some(Plant::SkipPool) => timeline.titles[*file] == super::DATABASE,
                    _ => false,
                };
                (*through && end < moment && !ignores) || before(self.contents.get(file))
            }
            Op::Length { file, .. } | Op::Zero { file, .. } => before(self.shapes.get(file)),
            Op::Name(name) => {
                let with_file = match name {
                    Name::Made(_, file) if model.names == NamesLast::WithFile => {
                        before(self.shapes.get(file))
                    }
                    _ => false,
                };
                with_file || before(self.folders.get(name.folder()))
            }
            Op::Sync { .. } | Op::SyncNames { .. } | Op::Said(_) => true,
        }
    }
}

impl State {
    fn rename(&mut self, name: &Name) {
        match name {
            Name::Made(path, file) => {
                self.names.insert(path.clone(), Some(*file));
            }
            Name::Folder(path) => {
                self.names.insert(path.clone(), None);
            }
            Name::Removed(path) => {
                self.names.remove(path);
            }
            Name::Moved(from, to) => {
                if let Some(file) = self.names.remove(from) {
                    self.names.insert(to.clone(), file);
                }
            }
        }
    }

    /// Applies a durable change.
    fn apply(&mut self, op: &Op) {
        match op {
            Op::Write {
                file, at, bytes, ..
            } => {
                self.cached[*file].write(*at, bytes);
                self.disk[*file].write(*at, bytes);
            }
            Op::Length { file, to, extends } => {
                set_length(&mut self.cached[*file], *to, *extends);
                set_length(&mut self.disk[*file], *to, *extends);
            }
            Op::Zero { file, range } => {
                self.cached[*file].zero(range.start, range.end);
                self.disk[*file].zero(range.start, range.end);
            }
            Op::Name(name) => self.rename(name),
            Op::Sync { .. } | Op::SyncNames { .. } | Op::Said(_) => {}
        }
    }

    fn image(&self) -> Image {
        let mut image = Image::default();
        let reached = |path: &str| {
            let mut folder = folder_of(path);
            while !folder.is_empty() {
                if self.names.get(folder) != Some(&None) {
                    return false;
                }
                folder = folder_of(folder);
            }
            true
        };
        for (path, file) in self.names.iter().filter(|(path, _)| reached(path)) {
            match file {
                Some(file) => {
                    let bytes = self.disk[*file].clone();
                    image.files.insert(path.clone(), bytes);
                }
                None => {
                    image.folders.insert(path.clone());
                }
            }
        }
        image
    }
}

fn set_length(bytes: &mut Bytes, to: u64, extends: bool) {
    if extends {
        bytes.extend(to);
    } else {
        bytes.resize(to);
    }
}

impl<'t> Cutter<'t> {
    /// Begins before all of it.
    #[must_use]
    pub fn new(timeline: &'t Timeline, model: Model) -> Self {
        let mut state = State {
            cached: timeline.files.clone(),
            disk: timeline.files.clone(),
            names: BTreeMap::new(),
        };
        for name in &timeline.names {
            state.rename(name);
        }
        Self {
            timeline,
            model,
            done: 0,
            state,
        }
    }

    /// Draws an image for a cut at that moment of the trace.
    pub fn cut(&mut self, moment: usize, draw: &mut Draw) -> Cut {
        let events = &self.timeline.events;
        let begun = events.partition_point(|event| event.begin < moment);
        let settled = Settled::at(self.timeline, self.model, moment);
        let is_settled = |i: usize| settled.has(self.timeline, self.model, i, moment);
        while self.done < begun && is_settled(self.done) {
            self.state.apply(&events[self.done].op);
            self.done += 1;
        }
        let pending: Vec<usize> = (self.done..begun).filter(|i| !is_settled(*i)).collect();
        let writes: Vec<usize> = pending
            .iter()
            .copied()
            .filter(|i| matches!(events[*i].op, Op::Write { .. }))
            .collect();
        let luck = luck(&writes, draw);
        let kept = self.prefixes(self.done..begun, &is_settled, luck, draw);
        let mut state = self.state.clone();
        let mut lost = Vec::new();
        // Parts of files whose blocks changed with a change that was lost.
        let mut missing: HashMap<usize, Vec<Range<u64>>> = HashMap::new();
        for (i, event) in events.iter().enumerate().take(begun).skip(self.done) {
            match &event.op {
                Op::Write {
                    file, at, bytes, ..
                } => {
                    state.cached[*file].write(*at, bytes);
                    let missing = missing.get(file).map_or(&[][..], Vec::as_slice);
                    let keeps = sectors(*at..*at + bytes.len() as u64, self.model.sector);
                    let all = keeps.len();
                    let keeps = if is_settled(i) {
                        keeps
                    } else {
                        let drawn = kept_of(&keeps, i, luck, draw);
                        let lacks = |s: &Range<u64>| {
                            missing.iter().any(|m| s.start < m.end && m.start < s.end)
                        };
                        drawn.into_iter().filter(|s| !lacks(s)).collect()
                    };
                    let number = keeps.len();
                    for sector in &keeps {
                        state.disk[*file].copy(&state.cached[*file], sector.start, sector.end);
                    }
                    if number < all {
                        lost.push(format!(
                            "line {}: {} of {} sectors of {} bytes written to {} at {at}{}",
                            line_of(event.begin),
                            all - number,
                            all,
                            bytes.len(),
                            self.timeline.titles[*file],
                            kept_in_words(&keeps),
                        ));
                    }
                }
                Op::Length { file, to, extends } => {
                    let before = state.cached[*file].len();
                    set_length(&mut state.cached[*file], *to, *extends);
                    if kept.contains(&i) {
                        set_length(&mut state.disk[*file], *to, *extends);
                    } else if !extends || *to > before {
                        let from = before.min(*to);
                        missing.entry(*file).or_default().push(from..u64::MAX);
                        let title = &self.timeline.titles[*file];
                        lost.push(format!(
                            "line {}: length {to} of {title}",
                            line_of(event.begin)
                        ));
                    }
                }
                Op::Zero { file, range } => {
                    state.cached[*file].zero(range.start, range.end);
                    if kept.contains(&i) {
                        state.disk[*file].zero(range.start, range.end);
                    } else {
                        missing.entry(*file).or_default().push(range.clone());
                        let title = &self.timeline.titles[*file];
                        lost.push(format!(
                            "line {}: zeros {range:?} of {title}",
                            line_of(event.begin)
                        ));
                    }
                }
                Op::Name(name) if kept.contains(&i) => state.rename(name),
                Op::Name(name) => lost.push(format!("line {}: {name:?}", line_of(event.begin))),
                Op::Sync { .. } | Op::SyncNames { .. } | Op::Said(_) => {}
            }
        }
        if let Some(ignored) = settled.ignored {
            let line = line_of(events[ignored].begin);
            lost.push(format!("line {line}: this sync is ignored (--plant)"));
        }
        Cut {
            image: state.image(),
            lost,
            pending: pending.len(),
        }
    }

    /// Draws the changes of lengths, holes and names that are kept: of each file and each directory
    /// a prefix, with all that is durable.
    fn prefixes(
        &self,
        window: Range<usize>,
        is_settled: &impl Fn(usize) -> bool,
        luck: Luck,
        draw: &mut Draw,
    ) -> std::collections::HashSet<usize> {
        /// Whose changes are ordered.
        #[derive(PartialEq, Eq, PartialOrd, Ord)]
        enum Of<'t> {
            File(usize),
            Folder(&'t str),
        }
        let mut chains: BTreeMap<Of<'_>, (Vec<usize>, usize)> = BTreeMap::new();
        for i in window {
            let of = match &self.timeline.events[i].op {
                Op::Length { file, .. } | Op::Zero { file, .. } => Of::File(*file),
                Op::Name(name) => Of::Folder(name.folder()),
                Op::Write { file, .. } if is_settled(i) => {
                    // Blocks that a durable write is in are where it says.
                    if let Some((chain, least)) = chains.get_mut(&Of::File(*file)) {
                        *least = chain.len();
                    }
                    continue;
                }
                _ => continue,
            };
            let (chain, least) = chains.entry(of).or_default();
            chain.push(i);
            if is_settled(i) {
                *least = chain.len();
            }
        }
        let mut kept = std::collections::HashSet::new();
        for (chain, least) in chains.values() {
            let more = chain.len() - least;
            let more = match luck {
                Luck::Nothing => 0,
                Luck::Everything => more,
                _ => match draw.below(3) {
                    0 => 0,
                    1 => more,
                    _ => draw.below(more as u64 + 1) as usize,
                },
            };
            kept.extend(&chain[..least + more]);
        }
        kept
    }
}

fn luck(writes: &[usize], draw: &mut Draw) -> Luck {
    let (kind, one) = (
        draw.below(8),
        draw.below(writes.len().max(1) as u64) as usize,
    );
    match (kind, writes.get(one), writes.last()) {
        (0, ..) => Luck::Nothing,
        (1, ..) => Luck::Everything,
        (2, ..) => Luck::Halves,
        (3, ..) => Luck::Sectors,
        (4, Some(one), _) => Luck::AllBut(*one),
        (5, Some(one), _) => Luck::Only(*one),
        (6, _, Some(last)) => Luck::LastTorn(*last),
        _ => Luck::Mixed,
    }
}

/// Returns the ranges of the sectors that a range of bytes is in.
fn sectors(range: Range<u64>, sector: u64) -> Vec<Range<u64>> {
    let numbers = range.start / sector..range.end.div_ceil(sector);
    numbers.map(|n| n * sector..(n + 1) * sector).collect()
}

/// Draws the sectors of a write that reach the disk.
fn kept_of(all: &[Range<u64>], i: usize, luck: Luck, draw: &mut Draw) -> Vec<Range<u64>> {
    let whole = |keep: bool| if keep { all.to_vec() } else { Vec::new() };
    let random = |draw: &mut Draw| {
        let sectors = all.iter().filter(|_| draw.below(2) == 0);
        sectors.cloned().collect::<Vec<_>>()
    };
    let torn = |draw: &mut Draw| {
        let at = draw.below(all.len() as u64 + 1) as usize;
        match draw.below(3) {
            0 => all[..at].to_vec(),
            1 => all[at..].to_vec(),
            _ => random(draw),
        }
    };
    match luck {
        Luck::Nothing => whole(false),
        Luck::Everything => whole(true),
        Luck::Halves => whole(draw.below(2) == 0),
        Luck::Sectors => random(draw),
        Luck::AllBut(one) => whole(one != i),
        Luck::Only(one) => whole(one == i),
        Luck::Mixed => match draw.below(3) {
            0 => whole(false),
            1 => whole(true),
            _ => torn(draw),
        },
        Luck::LastTorn(last) if last == i => torn(draw),
        Luck::LastTorn(_) => whole(true),
    }
}

/// Says which sectors of a torn write are there.
fn kept_in_words(kept: &[Range<u64>]) -> String {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for sector in kept {
        match runs.last_mut() {
            Some(last) if last.end == sector.start => last.end = sector.end,
            _ => runs.push(sector.clone()),
        }
    }
    if runs.is_empty() {
        return String::new();
    }
    let shown: Vec<String> = runs.iter().take(8).map(|r| format!("{r:?}")).collect();
    let more = if runs.len() > 8 { ", ..." } else { "" };
    format!("; it has {}{more}", shown.join(", "))
}
