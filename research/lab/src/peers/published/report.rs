//! The numbers of a run, as redb's table and as JSON.

use super::super::report::{Machine, short};
use super::{Engine, Published, PublishedParams};
use crate::limits::median;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// A run of redb's benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct PublishedReport {
    /// The machine that it ran on.
    pub machine: Machine,
    /// Version of this program.
    pub version: &'static str,
    /// False for a build for debugging, whose numbers mean little.
    pub optimised: bool,
    /// Directory of the engines' files.
    pub path: PathBuf,
    /// Elements of the bulk load.
    pub elements: u64,
    /// Rounds.
    pub rounds: usize,
    /// Seed of the elements.
    pub seed: u64,
    /// A row for each row of the table and engine.
    pub rows: Vec<PublishedRow>,
    /// Rows of the table in which the product is first; `None` if no peer takes part.
    pub first_in: Option<usize>,
    #[serde(skip)]
    engines: Vec<Engine>,
    /// The numbers of each row of the table and engine, by round.
    #[serde(skip)]
    numbers: Vec<Vec<Vec<f64>>>,
}

/// One row of the table for one engine.
#[derive(Clone, Debug, Serialize)]
pub struct PublishedRow {
    /// The row.
    pub row: Published,
    /// The engine.
    pub engine: Engine,
    /// Unit of the number: `ms` or `MiB`.
    pub unit: &'static str,
    /// The number, of which less is better: the median of the rounds.
    pub number: f64,
    /// The best peer's number by the engine's, so that more is better: the median of the rounds'
    /// ratios. `None` if no peer takes part.
    pub ratio_to_best_peer: Option<f64>,
    /// The peer with the lowest median.
    pub best_peer: Option<Engine>,
}

impl PublishedReport {
    pub(super) fn new(params: &PublishedParams, engines: &[Engine]) -> Self {
        Self {
            machine: Machine::here(),
            version: env!("CARGO_PKG_VERSION"),
            optimised: !cfg!(debug_assertions),
            path: params.path.clone(),
            elements: params.elements,
            rounds: params.rounds,
            seed: params.seed,
            rows: Vec::new(),
            first_in: None,
            engines: engines.to_vec(),
            numbers: vec![vec![Vec::new(); engines.len()]; Published::ALL.len()],
        }
    }

    /// Adds the number of a round.
    pub(super) fn push(&mut self, row: Published, engine: usize, number: f64) {
        self.numbers[row as usize][engine].push(number);
    }

    /// Makes the rows of what was added.
    pub(super) fn finish(&mut self) {
        self.machine.finish();
        let mut first = 0;
        for row in Published::ALL {
            let rounds = &self.numbers[row as usize];
            let medians: Vec<f64> = rounds.iter().map(|of| median(of.clone())).collect();
            let places = 0..self.engines.len();
            let peers = places
                .clone()
                .filter(|&place| self.engines[place].is_peer());
            let best = peers.min_by(|&a, &b| medians[a].total_cmp(&medians[b]));
            for place in places {
                let engine = self.engines[place];
                let ratio = best.map(|best| {
                    let pairs = rounds[best].iter().zip(&rounds[place]);
                    median(pairs.map(|(best, own)| best / own).collect())
                });
                first += usize::from(engine == Engine::Store && ratio.is_some_and(|r| r >= 1.0));
                self.rows.push(PublishedRow {
                    row,
                    engine,
                    unit: row.unit(),
                    number: medians[place],
                    ratio_to_best_peer: ratio,
                    best_peer: best.map(|best| self.engines[best]),
                });
            }
        }
        let compared = self.engines.contains(&Engine::Store) && self.engines.len() > 1;
        self.first_in = compared.then_some(first);
    }
}

impl fmt::Display for PublishedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        if !self.optimised {
            writeln!(f, "This is a build for debugging: its numbers mean little.")?;
        }
        writeln!(
            f,
            "\nredb's benchmark in {}: {} elements with keys of 24 and values of 150 bytes; less is \
             better, medians of {} rounds",
            self.path.display(),
            self.elements,
            self.rounds
        )?;
        write!(f, "{:30}", "")?;
        for engine in &self.engines {
            write!(f, "{:>11}", engine.name())?;
        }
        let compared = self.first_in.is_some();
        writeln!(f, "{}", if compared { "  best peer x store" } else { "" })?;
        for rows in self.rows.chunks(self.engines.len().max(1)) {
            let Some(first) = rows.first() else { continue };
            write!(f, "{:30}", format!("{} ({})", first.row, first.unit))?;
            for row in rows {
                let number = match row.number {
                    // Calls of nanoseconds, in milliseconds.
                    tiny if tiny < 0.01 => format!("{tiny:.5}"),
                    number => short(number),
                };
                write!(f, "{number:>11}")?;
            }
            let own = rows.iter().find(|row| row.engine == Engine::Store);
            match own.and_then(|own| Some((own.ratio_to_best_peer?, own.best_peer?))) {
                Some((ratio, best)) => writeln!(f, "  {ratio:.2} {best}")?,
                None => writeln!(f)?,
            }
        }
        match self.first_in {
            Some(first) => writeln!(f, "store is first in {first} of {}", Published::ALL.len()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_rounds_and_less_is_better() {
        let engines = [Engine::Store, Engine::Lmdb, Engine::Redb];
        let mut report = PublishedReport::new(&PublishedParams::default(), &engines);
        for row in Published::ALL {
            for (store, lmdb, redb) in [(10.0, 20.0, 90.0), (10.0, 30.0, 90.0), (50.0, 60.0, 90.0)]
            {
                let worse = if row == Published::Len { 10.0 } else { 1.0 };
                report.push(row, 0, store * worse);
                report.push(row, 1, lmdb);
                report.push(row, 2, redb);
            }
        }
        report.finish();
        assert_eq!(report.first_in, Some(8));
        let own: Vec<_> = report
            .rows
            .iter()
            .filter(|row| row.engine == Engine::Store)
            .collect();
        assert!(own.iter().all(|row| row.best_peer == Some(Engine::Lmdb)));
        assert_eq!(own[0].ratio_to_best_peer, Some(2.0));
        assert_eq!(own[3].ratio_to_best_peer, Some(0.2));
        assert_eq!(
            (own[0].number, own[0].unit, own[8].unit),
            (10.0, "ms", "MiB")
        );
        let text = report.to_string();
        for part in [
            "bulk load (ms)",
            "compacted size (MiB)",
            "2.00 lmdb",
            "first in 8 of 9",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rows"][3]["row"], "individual-writes");
        assert_eq!(json["rows"][0]["ratio_to_best_peer"], 2.0);
    }

    #[test]
    fn without_peers_there_is_no_comparison() {
        let mut report = PublishedReport::new(&PublishedParams::default(), &[Engine::Store]);
        for row in Published::ALL {
            report.push(row, 0, 1.0);
        }
        report.finish();
        assert_eq!(report.first_in, None);
        assert!(
            report
                .rows
                .iter()
                .all(|row| row.ratio_to_best_peer.is_none())
        );
        assert!(!report.to_string().contains("first in"));
    }
}
