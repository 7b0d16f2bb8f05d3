//! `export`: writes an index, damaged or not, to a file.

use crate::args::Export;
use crate::index::Index;
use bristlecone_command::args::ExportArgs;
use bristlecone_command::export::{self, Source, beyond_saving, refuse, report};
use bristlecone_command::failure::Outcome;
use bristlecone_command::inspect::without_path;
use bristlecone_command::pool::{How, open_pool};
use bristlecone_command::records::{Range, Records, Shown, Visit};
use bristlecone_command::text::quoted;
use bristlecone_designs::damage::{Damage, collecting_damage};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::Pool;
use indicatif::ProgressBar;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Writes an index to a file.
pub fn run(args: &Export) -> Outcome {
    let args = &args.export;
    export::run(args, || Ok(Box::new(Salvage::open(args)?)))
}

/// An index, with its damage.
struct Salvage {
    index: Index,
    damage: Damage,
    /// Number of damaged blocks that were reported with their keys.
    named: BTreeSet<u64>,
    /// The fault of its structure as a whole.
    violation: Option<String>,
}

impl Salvage {
    fn open(args: &ExportArgs) -> Outcome<Self> {
        let pool = open_pool(&args.pool, How::read(args.medium))?;
        if args.skip_damaged {
            Self::damaged(&pool, args)
        } else {
            Self::whole(&pool, args)
        }
    }

    fn whole(pool: &Arc<Pool<Auto>>, args: &ExportArgs) -> Outcome<Self> {
        let index = Index::open_in(pool, &args.pool).map_err(|e| {
            // Checks whether the index can only be opened past its damage.
            match Index::survey(pool, &args.pool) {
                (Ok(_), damage) if !damage.blocks.is_empty() => {
                    refuse(args, &without_path(&e, &args.pool))
                }
                _ => e,
            }
        })?;
        match index.verify() {
            // Only space is lost.
            Err(violation) if !violation.leak => return Err(refuse(args, &violation)),
            _ => {}
        }
        Ok(Self {
            index,
            damage: Damage::default(),
            named: BTreeSet::new(),
            violation: None,
        })
    }

    fn damaged(pool: &Arc<Pool<Auto>>, args: &ExportArgs) -> Outcome<Self> {
        let has_index = Index::kind_in(pool).is_some();
        let (surveyed, damage) = Index::survey(pool, &args.pool);
        let (index, violation) =
            surveyed.map_err(|e| if has_index { beyond_saving(&e) } else { e })?;
        Ok(Self {
            index,
            damage,
            named: BTreeSet::new(),
            violation: violation.filter(|v| !v.leak).map(|v| v.to_string()),
        })
    }
}

impl Source for Salvage {
    fn typed(&self) -> bool {
        false
    }

    /// Returns the number of entries that it counts, or that opening it found if damage kept it
    /// from counting.
    fn entries(&self) -> u64 {
        let index = &self.index;
        index.stats().entries.max(index.recovery().entries)
    }

    fn is_damaged(&self) -> bool {
        !self.damage.blocks.is_empty() || self.violation.is_some()
    }

    fn each(&mut self, bar: Option<&ProgressBar>, visit: Visit<'_>) -> Outcome {
        let (index, damage, named) = (&self.index, &self.damage, &mut self.named);
        let pm = index.pool().pm();
        let mut each = |key: &[u8], shown: &Shown<'_>| {
            let broken = [("key", Some(key)), ("value", shown.value)]
                .into_iter()
                .find_map(|(part, string)| Some((part, damage.block_of(pm, string?)?)));
            let Some((part, block)) = broken else {
                return visit(key, shown);
            };
            if let Some(bar) = bar {
                named.insert(block);
                let what = damage.blocks.get(&block).map_or("", String::as_str);
                let key = quoted(key);
                report(bar, &format_args!("skipped key {key}: its {part}: {what}"));
            }
            ControlFlow::Continue(())
        };
        // Damaged records are handed over too, so that their keys can be named.
        collecting_damage(|| index.scan(&Range::ALL, false, &mut each)).0
    }

    fn finish(&self, written: u64, bar: &ProgressBar) -> u64 {
        let blocks = &self.damage.blocks;
        let others = blocks.iter().filter(|(off, _)| !self.named.contains(off));
        for (_, what) in others {
            report(bar, &format_args!("skipped, if it was in use: {what}"));
        }
        if let Some(violation) = &self.violation {
            report(bar, &format_args!("damaged: {violation}"));
        }
        self.entries().saturating_sub(written)
    }
}
