//! The ledger's summary, and the tables of `docs/figures.md` that are made from it.

use super::{Ledger, Row};
use crate::figure::claim::rounded;
use crate::figure::{NOT_IN_THE_PAPER, On, Stated, Verdict, find};
use serde::Serialize;
use std::fmt::{self, Write as _};

/// The claims of a paper by verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// The paper; "all" of the sum.
    pub paper: String,
    /// Claims that hold.
    pub holds: u64,
    /// Claims that are exceeded.
    pub exceeds: u64,
    /// Claims that fail.
    pub fails: u64,
    /// Claims on the host that nobody has measured and recorded.
    pub not_recorded: u64,
}

impl Count {
    fn add(&mut self, verdict: Option<Verdict>) {
        *match verdict {
            Some(Verdict::Holds) => &mut self.holds,
            Some(Verdict::Exceeds) => &mut self.exceeds,
            Some(Verdict::Fails) => &mut self.fails,
            None => &mut self.not_recorded,
        } += 1;
    }

    /// Returns the number of claims with a verdict.
    #[must_use]
    pub fn judged(&self) -> u64 {
        self.holds + self.exceeds + self.fails
    }

    /// Returns the share of them that hold or are exceeded, in percent; 0 of none.
    #[must_use]
    pub fn percent(&self) -> f64 {
        (self.holds + self.exceeds) as f64 * 100.0 / self.judged().max(1) as f64
    }

    fn row(&self) -> String {
        format!(
            "| {} | {} | {} | {} | {:.0} % | {} |",
            self.paper,
            self.holds,
            self.exceeds,
            self.fails,
            self.percent(),
            self.not_recorded
        )
    }
}

/// The ledger in numbers. The claims that this project makes itself do not count.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Counted and on the model, by paper, and in all.
    pub same_everywhere: Vec<Count>,
    /// On the host, by paper, and in all.
    pub host: Vec<Count>,
    /// Faults of the ledger that show without a figure, such as a missing reason.
    pub problems: Vec<String>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (title, counts) in [
            ("Counted, and on the model", &self.same_everywhere),
            ("On the host", &self.host),
        ] {
            writeln!(
                f,
                "{title:<52} holds  exceeds  fails  holds or exceeds  not recorded"
            )?;
            for of in counts {
                writeln!(
                    f,
                    "  {:<50} {:>5}  {:>7}  {:>5}  {:>14.0} %  {:>12}",
                    of.paper,
                    of.holds,
                    of.exceeds,
                    of.fails,
                    of.percent(),
                    of.not_recorded
                )?;
            }
            writeln!(f)?;
        }
        match self.problems.len() {
            0 => writeln!(f, "Every claim that fails has a reason."),
            n => {
                writeln!(f, "{n} to look at:")?;
                self.problems.iter().try_for_each(|p| writeln!(f, "  {p}"))
            }
        }
    }
}

/// Returns a text as a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Returns a number as a table shows it.
fn shown(number: f64) -> String {
    rounded(number, 4).to_string()
}

impl Row {
    fn is_own(&self) -> bool {
        self.paper == Stated::Words(NOT_IN_THE_PAPER.to_owned())
    }

    fn here(&self) -> String {
        match (self.measured, self.range) {
            (Some(measured), _) => shown(measured),
            (None, Some([low, high])) if low == high => shown(low),
            (None, Some([low, high])) => format!("{} to {}", shown(low), shown(high)),
            (None, None) => "-".to_owned(),
        }
    }

    fn why(&self) -> String {
        match &*self.shown_by {
            "" => cell(&self.reason),
            shown_by => format!("{} (shown by {})", cell(&self.reason), cell(shown_by)),
        }
    }

    fn paper(&self) -> String {
        match &self.paper {
            Stated::Number(number) => shown(*number),
            Stated::Words(words) => cell(words),
        }
    }
}

impl Ledger {
    /// Returns the ledger in numbers.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let counts = |is: fn(On) -> bool| {
            let mut counts: Vec<Count> = Vec::new();
            let mut all = Count {
                paper: "all".to_owned(),
                ..Count::default()
            };
            for row in self.rows.iter().filter(|row| is(row.on) && !row.is_own()) {
                let paper = find(&row.figure).map_or("no paper", |entry| entry.paper);
                let place = counts.iter().position(|count| count.paper == paper);
                let place = place.unwrap_or_else(|| {
                    counts.push(Count {
                        paper: paper.to_owned(),
                        ..Count::default()
                    });
                    counts.len() - 1
                });
                counts[place].add(row.verdict);
                all.add(row.verdict);
            }
            counts.push(all);
            counts
        };
        Summary {
            same_everywhere: counts(|on| on != On::Host),
            host: counts(|on| on == On::Host),
            problems: self.problems(),
        }
    }

    /// Returns `docs/figures.md` with the ledger's tables between their markers.
    ///
    /// # Errors
    /// The marker that is missing.
    pub fn fill(&self, text: &str) -> Result<String, String> {
        let mut text = text.to_owned();
        for (name, table) in [
            ("summary", self.summary_table()),
            ("fails", self.table(|on| on != On::Host, Verdict::Fails)),
            ("exceeds", self.table(|on| on != On::Host, Verdict::Exceeds)),
            (
                "host fails",
                self.table(|on| on == On::Host, Verdict::Fails),
            ),
            (
                "host exceeds",
                self.table(|on| on == On::Host, Verdict::Exceeds),
            ),
        ] {
            let begin = format!("<!-- begin: {name} (claims --update) -->\n");
            let end = format!("<!-- end: {name} -->\n");
            let find = |marker: &str| {
                text.find(marker)
                    .ok_or_else(|| format!("the line {} is missing", marker.trim_end()))
            };
            let (from, to) = (find(&begin)? + begin.len(), find(&end)?);
            if to < from {
                return Err(format!("the line {} comes too early", end.trim_end()));
            }
            text.replace_range(from..to, &table);
        }
        Ok(text)
    }

    fn summary_table(&self) -> String {
        let summary = self.summary();
        let mut table = String::from(
            "| | holds | exceeds | fails | holds or exceeds | not recorded |\n\
             | --- | --- | --- | --- | --- | --- |\n",
        );
        for (title, counts) in [
            ("counted, and on the model", &summary.same_everywhere),
            ("on the host", &summary.host),
        ] {
            table.push_str(&format!("| **{title}** | | | | | |\n"));
            for count in counts {
                table.push_str(&count.row());
                table.push('\n');
            }
        }
        let missing: Vec<_> = self
            .without_claims()
            .map(|(name, on)| format!("`{name}` ({on})"))
            .collect();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            table.push_str(&format!("\nNot in the ledger yet: {missing}.\n"));
        }
        table
    }

    /// Returns the table of the claims of a verdict, at some places.
    fn table(&self, at: fn(On) -> bool, verdict: Verdict) -> String {
        let fails = verdict == Verdict::Fails;
        let mut table = if fails {
            "| figure | on | claim | paper | here | why |\n| --- | --- | --- | --- | --- | --- |\n"
        } else {
            "| figure | on | claim | paper | here | note |\n| --- | --- | --- | --- | --- | --- |\n"
        }
        .to_owned();
        let rows = self.rows.iter();
        for row in rows.filter(|row| at(row.on) && row.verdict == Some(verdict)) {
            // Writing to a string does not fail.
            let _ = writeln!(
                table,
                "| `{}` | {} | {} | {} | {} | {} |",
                row.figure,
                row.on,
                cell(&row.claim),
                row.paper(),
                row.here(),
                row.why()
            );
        }
        table
    }
}
