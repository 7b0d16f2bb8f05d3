//! The ledger: every claim of every figure, with its verdict and, if it fails, the reason.
//!
//! ```text
//!  docs/claims.toml --parse--> Ledger --differences--> nothing, or the build fails
//!        ^                       ^
//!        |                       +--update-- figures that were made: names, numbers, verdicts
//!        +--------- Display -----+----fill-- the tables of docs/figures.md
//! ```
//!
//! Counted and model figures are the same everywhere, so their rows must agree with the figures to
//! the last of [`DIGITS`] digits. A row on the host has the range of what was measured, the date
//! and the machine, and is compared with nothing. People write the reasons, and everything else is
//! written by `bristlecone-lab claims --update`.
//!
//! # Invariants
//! 1. A row's verdict is that of its tolerance on its number; on the host, the worse one of the
//!    range's two ends.
//! 2. Each figure has rows at each of its places, and each row has a figure. No claim has two.
//! 3. A claim that fails has a reason, and one that holds has none.

mod tables;

pub use tables::{Count, Summary};

use super::claim::rounded;
use super::{ALL, Bands, Figure, On, Stated, Verdict};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fmt;

/// Digits of a measured number.
pub const DIGITS: i32 = 6;

/// A claim in the ledger.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The figure's name.
    pub figure: String,
    /// The place.
    pub on: On,
    /// The claim.
    pub claim: String,
    /// The paper's number or words.
    pub paper: Stated,
    /// The words of the tolerance.
    pub tolerance: String,
    /// The measured number, counted or on the model.
    #[serde(default)]
    pub measured: Option<f64>,
    /// On the host, the least and the most that was measured.
    #[serde(default)]
    pub range: Option<[f64; 2]>,
    /// On the host, the date and the machine.
    #[serde(default)]
    pub when: String,
    /// The verdict; none on the host before anything is measured.
    #[serde(default)]
    pub verdict: Option<Verdict>,
    /// Why the claim fails.
    #[serde(default)]
    pub reason: String,
    /// The switch or the experiment that shows the reason.
    #[serde(default)]
    pub shown_by: String,
}

impl Row {
    /// Returns the verdict that the tolerance has on the row's numbers.
    fn judged(&self) -> Result<Option<Verdict>, String> {
        let bands: Bands = self.tolerance.parse().map_err(|e| format!("{e}"))?;
        let ends = match self.on {
            On::Host => self.range,
            On::Counted | On::Model => self.measured.map(|measured| [measured; 2]),
        };
        Ok(ends.and_then(|ends| ends.map(|end| bands.verdict(end)).into_iter().max()))
    }

    /// Returns true if the row has the claim of a figure at a place.
    fn is_of(&self, figure: &str, on: On) -> bool {
        self.figure == figure && self.on == on
    }

    /// Returns what distinguishes the row.
    fn place(&self) -> String {
        format!("{}, {}: {}", self.figure, self.on, self.claim)
    }

    /// Returns what is wrong with the row by itself.
    fn problem(&self) -> Option<String> {
        let place = self.place();
        match self.judged() {
            Err(e) => return Some(format!("{place}: {e}")),
            Ok(None) if self.on != On::Host => return Some(format!("{place}: not measured")),
            Ok(verdict) if verdict != self.verdict => {
                let name = |verdict: Option<Verdict>| verdict.map_or("nothing", Verdict::name);
                return Some(format!(
                    "{place}: the ledger says {}, its numbers {}",
                    name(self.verdict),
                    name(verdict)
                ));
            }
            Ok(_) => {}
        }
        match self.verdict {
            Some(Verdict::Fails) if self.reason.is_empty() => {
                Some(format!("{place}: fails, and has no reason"))
            }
            Some(Verdict::Holds) | None if !self.reason.is_empty() => {
                Some(format!("{place}: does not fail, and has a reason"))
            }
            _ => None,
        }
    }
}

/// A claim as a figure makes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Made {
    /// The claim.
    pub claim: String,
    /// The paper's number or words.
    pub paper: Stated,
    /// The words of the tolerance.
    pub tolerance: String,
    /// The measured number; none if nothing could be concluded.
    pub measured: Option<f64>,
    /// The verdict.
    pub verdict: Verdict,
}

/// The claims of a figure that was made, as its JSON has them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct MadeFigure {
    /// The figure's name.
    pub name: String,
    /// The place.
    pub on: On,
    /// Its claims.
    pub claims: Vec<Made>,
}

impl From<&Figure> for MadeFigure {
    fn from(figure: &Figure) -> Self {
        let claims = figure.claims.iter().map(|claim| Made {
            claim: claim.claim.clone(),
            paper: claim.paper.clone(),
            tolerance: claim.tolerance.clone(),
            measured: Some(claim.measured).filter(|measured| measured.is_finite()),
            verdict: claim.verdict,
        });
        Self {
            name: figure.name.to_owned(),
            on: figure.on,
            claims: claims.collect(),
        }
    }
}

/// All claims, in the order of the figures.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// The claims.
    #[serde(default, rename = "claim")]
    pub rows: Vec<Row>,
}

impl Ledger {
    /// Returns the ledger that a text in TOML is of.
    ///
    /// # Errors
    /// The place of the error in the text, and its cause.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|e| e.to_string())
    }

    /// Returns the faults of the ledger that show without a figure, such as a missing reason.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self.rows.iter().filter_map(Row::problem).collect();
        let mut known = BTreeSet::new();
        for row in &self.rows {
            if !known.insert((&row.figure, row.on, &row.claim)) {
                problems.push(format!("{}: twice in the ledger", row.place()));
            }
            if !places().any(|(name, on)| row.is_of(name, on)) {
                problems.push(format!("{}: there is no such figure", row.place()));
            }
        }
        let without = self.without_claims();
        problems.extend(without.map(|(name, on)| format!("{name}, {on}: no claims")));
        problems
    }

    /// Returns the figures, with their places, that have no claims here.
    fn without_claims(&self) -> impl Iterator<Item = (&'static str, On)> {
        places().filter(|(name, on)| !self.rows.iter().any(|row| row.is_of(name, *on)))
    }

    /// Returns the differences between the ledger and a counted or model figure that was made.
    #[must_use]
    pub fn differences(&self, made: &MadeFigure) -> Vec<String> {
        let rows: Vec<&Row> = (self.rows.iter())
            .filter(|row| row.is_of(&made.name, made.on))
            .collect();
        let mut differences = Vec::new();
        let mut differ = |claim: &str, what: String| {
            let place = format!("{}, {}: {claim}", made.name, made.on);
            differences.push(format!("{place}: {what}"));
        };
        let mut known = BTreeSet::new();
        for claim in &made.claims {
            let name = &claim.claim;
            if !known.insert(name) {
                differ(name, "the figure has this claim twice".to_owned());
            }
            let Some(row) = rows.iter().find(|row| row.claim == *name) else {
                differ(name, "missing from the ledger".to_owned());
                continue;
            };
            let measured = claim.measured.map(|measured| rounded(measured, DIGITS));
            if row.measured != measured {
                let number = |n: Option<f64>| n.map_or("nothing".to_owned(), |n| n.to_string());
                let (old, new) = (number(row.measured), number(measured));
                differ(name, format!("{old} in the ledger, {new} measured"));
            }
            if row.verdict != Some(claim.verdict) {
                let old = row.verdict.map_or("nothing", Verdict::name);
                differ(name, format!("{old} in the ledger, {} here", claim.verdict));
            }
            if row.tolerance != claim.tolerance {
                let (old, new) = (&row.tolerance, &claim.tolerance);
                differ(name, format!("must be {old} in the ledger, {new} here"));
            }
            if row.paper != claim.paper {
                let (old, new) = (&row.paper, &claim.paper);
                differ(name, format!("the paper: {old} in the ledger, {new} here"));
            }
        }
        for row in rows {
            if !known.contains(&row.claim) {
                differ(&row.claim, "the figure makes no such claim".to_owned());
            }
        }
        differences
    }

    /// Takes over the claims of a figure that was made. Reasons stay with their claims; `when` is
    /// the date and the machine of a figure on the host. Returns the changes of verdicts and the
    /// claims that came and went.
    pub fn update(&mut self, made: &MadeFigure, when: &str) -> Vec<String> {
        let (mut old, rest): (Vec<Row>, Vec<Row>) = std::mem::take(&mut self.rows)
            .into_iter()
            .partition(|row| row.is_of(&made.name, made.on));
        self.rows = rest;
        let mut changes = Vec::new();
        for claim in &made.claims {
            let before = old.iter().position(|row| row.claim == claim.claim);
            let before = before.map(|place| old.remove(place));
            let row = updated(made, claim, before.as_ref(), when);
            let verdict = |row: &Row| row.verdict.map_or("not measured", Verdict::name);
            match before {
                None => changes.push(format!("{}: new, {}", row.place(), verdict(&row))),
                Some(before) if before.verdict != row.verdict => changes.push(format!(
                    "{}: {}, was {}",
                    row.place(),
                    verdict(&row),
                    verdict(&before)
                )),
                Some(_) => {}
            }
            self.rows.push(row);
        }
        changes.extend(old.iter().map(|row| format!("{}: gone", row.place())));
        let order = |row: &Row| {
            let place = places().position(|(name, on)| row.is_of(name, on));
            place.unwrap_or(usize::MAX)
        };
        self.rows.sort_by_key(order);
        changes
    }
}

/// Returns every figure at every place, in the ledger's order.
fn places() -> impl Iterator<Item = (&'static str, On)> {
    ALL.iter().flat_map(|entry| {
        let mut on = entry.on.to_vec();
        on.sort_unstable();
        on.into_iter().map(|on| (entry.name, on))
    })
}

/// Returns the row of a claim that was made. `before` is its row so far.
fn updated(made: &MadeFigure, claim: &Made, before: Option<&Row>, when: &str) -> Row {
    let measured = claim.measured.map(|measured| rounded(measured, DIGITS));
    let mut row = Row {
        figure: made.name.clone(),
        on: made.on,
        claim: claim.claim.clone(),
        paper: claim.paper.clone(),
        tolerance: claim.tolerance.clone(),
        measured,
        range: None,
        when: String::new(),
        verdict: Some(claim.verdict),
        reason: before.map(|row| row.reason.clone()).unwrap_or_default(),
        shown_by: before.map(|row| row.shown_by.clone()).unwrap_or_default(),
    };
    if made.on == On::Host {
        row.measured = None;
        row.range = before.and_then(|row| row.range);
        row.when = before.map(|row| row.when.clone()).unwrap_or_default();
        if let Some(measured) = measured {
            let [low, high] = row.range.unwrap_or([measured; 2]);
            row.range = Some([low.min(measured), high.max(measured)]);
            when.clone_into(&mut row.when);
        }
        row.verdict = row.judged().unwrap_or_default();
    }
    row
}

/// The text before the claims.
const HEAD: &str = "\
# Every claim of every figure of the papers. `bristlecone-lab claims --update` writes everything but
# `reason` (why a claim fails) and `shown_by` (the switch or the experiment that shows the reason),
# which are written by hand. docs/figures.md says what the fields mean, and has the tables made
# from this file.
";

/// Returns a string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEAD)?;
        for row in &self.rows {
            writeln!(f, "\n[[claim]]")?;
            writeln!(f, "figure = {}", quoted(&row.figure))?;
            writeln!(f, "on = {}", quoted(row.on.name()))?;
            writeln!(f, "claim = {}", quoted(&row.claim))?;
            match &row.paper {
                Stated::Number(number) => writeln!(f, "paper = {number:?}")?,
                Stated::Words(words) => writeln!(f, "paper = {}", quoted(words))?,
            }
            writeln!(f, "tolerance = {}", quoted(&row.tolerance))?;
            if let Some(measured) = row.measured {
                writeln!(f, "measured = {measured:?}")?;
            }
            if let Some([low, high]) = row.range {
                writeln!(f, "range = [{low:?}, {high:?}]")?;
            }
            let verdict = row.verdict.map_or("", Verdict::name);
            for (name, text) in [
                ("when", &*row.when),
                ("verdict", verdict),
                ("reason", &row.reason),
                ("shown_by", &row.shown_by),
            ] {
                if !text.is_empty() {
                    writeln!(f, "{name} = {}", quoted(text))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
