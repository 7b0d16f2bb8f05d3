//! The papers' figures and tables, regenerated: measurements beside the papers' claims.
//!
//! ```text
//! registry ALL --find--> Entry --run--> Figure -+- claims   the paper's statements, beside numbers
//!                                               +- panels   the numbers: table, CSV, SVG
//!                                               +- notes    remarks for the reader
//! ```
//!
//! A figure is one file with an [`Entry`] in it, and one line in [`ALL`]. The entry lists where the
//! figure runs: counted (instructions of the code, the same on any machine), on the device model
//! (deterministic), or on the host (timed). A claim that does not hold is a result like any other.
//!
//! | shared part | holds |
//! | --- | --- |
//! | `claim` | [`Claim`], the statement on its number, [`Expect`], and the [`Verdict`] |
//! | `ledger` | the claims of all figures, as `docs/claims.toml` has them |
//! | `panel` | [`Panel`]: lines over numbers or bars in groups; table and rows |
//! | `draw` | SVG of panels |
//! | `own` | [`own()`]: a figure of a design that is not in the registry |
//! | `served` | servers under load, ours and others, by turns on the host |
//! | `tree` | designs under test, on the model and on the host |
//! | `trial` | designs with the same operations, on the model or by turns on the host |

mod bz;
mod bz_complexity;
mod bz_fig4;
mod bz_fig6;
mod bz_fig8;
mod bz_fig9;
mod bz_footprint;
mod bz_recovery;
mod bz_stats;
mod claim;
mod crab;
mod crab_fig10;
mod crab_fig11;
mod crab_fig12;
mod crab_fig13;
mod crab_fig2;
mod crab_fig7;
mod crab_fig8;
mod draw;
mod error;
mod gap;
mod gap_fig10;
mod gap_fig11;
mod gap_fig13;
mod gap_fig14;
mod gap_fig16;
mod gap_fig17;
mod gap_fig18;
mod gap_fig4_5;
mod gap_fig6;
mod gap_fig7;
mod gap_fig8;
mod gap_fig9;
mod gap_table1;
mod gap_table2;
mod lb_fig10;
mod lb_fig11;
mod lb_fig13;
mod lb_fig14;
mod lb_fig15;
mod lb_fig17;
mod lb_insertion;
mod lb_theorem_3_5;
pub mod ledger;
mod nv;
mod nv_fig1;
mod nv_fig10;
mod nv_fig5;
mod nv_fig6;
mod nv_fig7;
mod nv_fig8;
mod nv_fig9a;
mod nv_fig9b;
mod nv_rebuilding;
mod nv_table4;
mod own;
mod panel;
mod served;
mod tree;
mod trial;

pub use claim::{Bands, Claim, Expect, NOT_IN_THE_PAPER, NoBands, Stated, Verdict};
pub use error::FigureError;
pub use own::{Comparison, own};
pub use panel::{Panel, Places, Series};
pub(crate) use {draw::colour_of, draw::plot, panel::digits};

use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Every figure, in the order of the papers.
pub const ALL: &[Entry] = &[
    lb_theorem_3_5::ENTRY,
    lb_fig10::ENTRY,
    lb_fig11::ENTRY,
    lb_fig13::ENTRY,
    lb_fig14::ENTRY,
    lb_fig15::ENTRY,
    lb_fig17::ENTRY,
    gap_table1::ENTRY,
    gap_fig4_5::ENTRY,
    gap_fig6::FIG6,
    gap_fig7::ENTRY,
    gap_fig8::ENTRY,
    gap_table2::ENTRY,
    gap_fig9::ENTRY,
    gap_fig10::ENTRY,
    gap_fig11::ENTRY,
    gap_fig6::FIG12,
    gap_fig13::ENTRY,
    gap_fig14::ENTRY,
    gap_fig16::ENTRY,
    gap_fig17::ENTRY,
    gap_fig18::ENTRY,
    crab_fig2::ENTRY,
    crab_fig7::FIG7,
    crab_fig8::ENTRY,
    crab_fig7::FIG9,
    crab_fig10::ENTRY,
    crab_fig11::ENTRY,
    crab_fig12::ENTRY,
    crab_fig13::ENTRY,
    bz_stats::TABLE1,
    bz_complexity::ENTRY,
    bz_fig4::FIG4,
    bz_fig4::FIG5,
    bz_fig6::ENTRY,
    bz_fig4::FIG7,
    bz_stats::STATS,
    bz_fig8::ENTRY,
    bz_footprint::ENTRY,
    bz_fig9::ENTRY,
    bz_recovery::ENTRY,
    nv_fig1::ENTRY,
    nv_fig5::ENTRY,
    nv_fig6::ENTRY,
    nv_fig7::ENTRY,
    nv_fig8::ENTRY,
    nv_table4::ENTRY,
    nv_fig9a::ENTRY,
    nv_fig9b::FIG9B,
    nv_fig9b::FIG9C,
    nv_fig10::ENTRY,
];

/// The papers, as figures name them.
mod papers {
    pub(super) const LB: &str = "LB+-Trees (PVLDB 13(7), 2020)";
    pub(super) const NV: &str = "NV-Tree (IEEE TC, 2016)";
    pub(super) const CRAB: &str = "Crab-tree (ACM TECS, 2020)";
    pub(super) const BZ: &str = "BzTree (PVLDB 11(5), 2018)";
    pub(super) const GAP: &str = "Closing the Performance Gap (UCSC-CRSS-20-01)";
}

/// The source of a figure's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum On {
    /// Counts of the code's instructions, the same on every machine.
    Counted,
    /// The device model: simulated time, the same on every machine.
    Model,
    /// This machine, timed.
    Host,
}

impl On {
    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counted => "counted",
            Self::Model => "model",
            Self::Host => "host",
        }
    }
}

/// The amount of work of a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scale {
    /// A small part of `Small`, for tests that a figure runs. Its numbers mean nothing.
    Glance,
    /// Under a minute on two cores.
    #[default]
    Small,
    /// The paper's sizes, as far as one machine's memory and some minutes allow.
    Paper,
}

impl Scale {
    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Glance => "glance",
            Self::Small => "small",
            Self::Paper => "paper",
        }
    }

    /// Returns `small` or `paper`, by scale.
    pub(crate) fn pick<T>(self, small: T, paper: T) -> T {
        match self {
            Self::Glance | Self::Small => small,
            Self::Paper => paper,
        }
    }

    /// Returns a number of keys or operations by scale; a fiftieth of `small` at a glance.
    pub(crate) fn amount(self, small: u64, paper: u64) -> u64 {
        match self {
            Self::Glance => (small / 50).max(1),
            Self::Small => small,
            Self::Paper => paper,
        }
    }
}

macro_rules! named {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.name())
            }
        }
    )*};
}

named!(On, Scale);

/// Returns names separated by commas.
fn names_of(on: &[On]) -> String {
    let names: Vec<_> = on.iter().map(|on| on.name()).collect();
    names.join(", ")
}

/// The progress of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// The current work.
    pub doing: &'a str,
    /// Units of work done.
    pub done: u64,
    /// Units of all work.
    pub total: u64,
}

/// The request for a figure.
pub(crate) struct Setting<'a> {
    /// The place, one of those that its entry lists.
    pub on: On,
    /// The amount of work.
    pub scale: Scale,
    progress: &'a mut dyn FnMut(&Step<'_>),
}

impl Setting<'_> {
    /// Reports the progress of the figure.
    pub fn step(&mut self, doing: &str, done: u64, total: u64) {
        (self.progress)(&Step { doing, done, total });
    }
}

/// The results of a figure's own code.
#[derive(Default)]
pub(crate) struct Findings {
    pub claims: Vec<Claim>,
    pub panels: Vec<Panel>,
    pub notes: Vec<String>,
}

/// A figure in the registry.
#[derive(Serialize)]
pub struct Entry {
    /// Returns its name.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The paper.
    pub paper: &'static str,
    /// Its place in the paper.
    pub place: &'static str,
    /// The places where it runs; the first is the default.
    pub on: &'static [On],
    #[serde(skip)]
    run: fn(&mut Setting<'_>) -> Result<Findings, FigureError>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("name", &self.name)
            .field("on", &self.on)
            .finish_non_exhaustive()
    }
}

impl Entry {
    /// Returns the places where it runs, separated by commas.
    #[must_use]
    pub fn places(&self) -> String {
        names_of(self.on)
    }

    /// Makes the figure at the place `on`, or at its default place if `None`. Calls `progress`
    /// after every step.
    ///
    /// # Errors
    /// [`FigureError::Elsewhere`] if it does not run there, and the errors of its measurements.
    pub fn run(
        &self,
        on: Option<On>,
        scale: Scale,
        progress: &mut dyn FnMut(&Step<'_>),
    ) -> Result<Figure, FigureError> {
        let on = match on {
            Some(on) if !self.on.contains(&on) => {
                return Err(FigureError::Elsewhere {
                    name: self.name,
                    on,
                    can: self.on,
                });
            }
            Some(on) => on,
            None => self.on.first().copied().unwrap_or(On::Host),
        };
        let Findings {
            claims,
            panels,
            notes,
        } = (self.run)(&mut Setting {
            on,
            scale,
            progress,
        })?;
        Ok(Figure {
            name: self.name,
            title: self.title,
            paper: self.paper,
            place: self.place,
            on,
            scale,
            claims: claims.into_iter().map(|claim| claim.judged(on)).collect(),
            svg: None,
            csv: None,
            panels,
            notes,
        })
    }
}

/// Returns the figure of a name.
///
/// # Errors
/// [`FigureError::Unknown`], with similar names.
pub fn find(name: &str) -> Result<&'static Entry, FigureError> {
    ALL.iter()
        .find(|entry| entry.name == name)
        .ok_or_else(|| FigureError::Unknown {
            name: name.to_owned(),
            near: near(name, ALL.iter().map(|entry| entry.name)),
        })
}

/// Returns the names of `all` that are similar to `name`, the likeliest first.
fn near<'a>(name: &str, all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    /// Largest number of names to offer.
    const MAX_OFFERED: usize = 5;
    let name: Vec<char> = name.to_lowercase().chars().take(64).collect();
    let mut near: Vec<(usize, &str)> = all
        .filter_map(|other| {
            let letters: Vec<char> = other.chars().collect();
            let away = distance(&name, &letters);
            let part = name.len() >= 2 && letters.windows(name.len()).any(|w| w == name);
            (part || away <= letters.len() / 3).then_some((away, other))
        })
        .collect();
    near.sort_unstable();
    near.into_iter()
        .take(MAX_OFFERED)
        .map(|(_, name)| name)
        .collect()
}

/// Returns the number of letters to add, drop or change to turn `a` into `b` (Levenshtein).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// A figure with its results.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Returns its name.
    pub name: &'static str,
    /// Where its numbers come from.
    pub on: On,
    /// The amount of its work.
    pub scale: Scale,
    /// The paper's claims, beside the measurements.
    pub claims: Vec<Claim>,
    /// The drawing, if it was written.
    pub svg: Option<PathBuf>,
    /// The numbers, if they were written.
    pub csv: Option<PathBuf>,
    /// Its title.
    pub title: &'static str,
    /// The paper.
    pub paper: &'static str,
    /// Its place in the paper.
    pub place: &'static str,
    /// The numbers.
    pub panels: Vec<Panel>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

impl Figure {
    /// Writes NAME-ON.svg and NAME-ON.csv to `dir`, which is created if it does not exist, and
    /// keeps their paths.
    ///
    /// # Errors
    /// [`FigureError::Write`], naming the file or directory.
    pub fn write(&mut self, dir: &Path) -> Result<(), FigureError> {
        ready(dir)?;
        let file = |ending| dir.join(format!("{}-{}.{ending}", self.name, self.on));
        let (svg, csv) = (file("svg"), file("csv"));
        let title = format!("{}: {} ({})", self.name, self.title, self.on);
        let drawing = draw::svg(&title, &self.panels).map_err(|e| FigureError::write(&svg, e))?;
        fs::write(&svg, drawing).map_err(|e| FigureError::write(&svg, e))?;
        let rows = self.rows().map_err(|e| FigureError::write(&csv, e))?;
        fs::write(&csv, rows).map_err(|e| FigureError::write(&csv, e))?;
        (self.svg, self.csv) = (Some(svg), Some(csv));
        Ok(())
    }

    fn rows(&self) -> Result<Vec<u8>, csv::Error> {
        let mut rows = csv::Writer::from_writer(Vec::new());
        rows.write_record(["panel", "x", "series", "value"])?;
        for row in self.panels.iter().flat_map(Panel::rows) {
            rows.write_record(row)?;
        }
        rows.into_inner().map_err(|e| e.into_error().into())
    }
}

/// Creates `dir` if it does not exist, and checks that files can be created in it. It is called
/// before the work whose result goes there.
///
/// # Errors
/// [`FigureError::Write`], naming the directory.
pub fn ready(dir: &Path) -> Result<(), FigureError> {
    fs::create_dir_all(dir)
        .and_then(|()| tempfile::tempfile_in(dir).map(drop))
        .map_err(|e| FigureError::write(dir, e))
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.name, self.title)?;
        writeln!(
            f,
            "{}, {}; {}, scale {}\n",
            self.paper, self.place, self.on, self.scale
        )?;
        for panel in &self.panels {
            writeln!(f, "{panel}")?;
        }
        if !self.claims.is_empty() {
            writeln!(f, "Claims")?;
        }
        let cells = |claim: &Claim| {
            let paper = match &claim.paper {
                Stated::Number(number) => number.to_string(),
                // The words are too wide for a column and stand behind the claim.
                Stated::Words(_) => "-".to_owned(),
            };
            let measured = panel::digits(claim.measured);
            [
                claim.verdict.to_string(),
                paper,
                measured,
                claim.tolerance.clone(),
            ]
        };
        let heads = ["verdict", "paper", "measured", "must be"].map(str::to_owned);
        let heads = (!self.claims.is_empty()).then_some(heads);
        let rows: Vec<_> = (heads.into_iter())
            .chain(self.claims.iter().map(cells))
            .collect();
        let what = |claim: &Claim| match &claim.paper {
            Stated::Number(_) => claim.claim.clone(),
            Stated::Words(words) => format!("{}; the paper: {words}", claim.claim),
        };
        let last = std::iter::once("claim".to_owned()).chain(self.claims.iter().map(what));
        panel::write_table(f, &rows, last)?;
        let claims = self.claims.iter().filter(|claim| !claim.note.is_empty());
        let notes: Vec<String> = claims
            .map(|claim| format!("{}: {}", claim.claim, claim.note))
            .chain(self.notes.iter().cloned())
            .collect();
        if !notes.is_empty() {
            let gap = if self.claims.is_empty() { "" } else { "\n" };
            writeln!(f, "{gap}Notes")?;
        }
        for note in notes {
            writeln!(f, "  {note}")?;
        }
        for path in [&self.svg, &self.csv].into_iter().flatten() {
            writeln!(f, "\nwritten: {}", path.display())?;
        }
        Ok(())
    }
}
