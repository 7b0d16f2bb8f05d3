//! `export`: a keyspace as a file, damaged or not.

use crate::args::Export;
use crate::damage::{self, Survey};
use crate::database::{self, Place};
use bristlecone_command::export::{self, Source, beyond_saving, refuse, report};
use bristlecone_command::failure::Outcome;
use bristlecone_command::pool::{How, about, open_pool};
use bristlecone_command::records::Visit;
use bristlecone_command::text::quoted;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::Pool;
use bristlecone_server::data::spaces::check_format;
use bristlecone_store::WallClock;
use indicatif::ProgressBar;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

/// Writes a keyspace to a file.
pub fn run(args: &Export) -> Outcome {
    export::run(&args.export, || Ok(Box::new(Salvage::open(args)?)))
}

/// A keyspace of a database that is not open.
struct Salvage {
    pool: Arc<Pool<Auto>>,
    path: PathBuf,
    place: Place,
    /// The keyspace that it has.
    keyspace: String,
    survey: Survey,
    /// Entries of the keyspace that were skipped.
    skipped: u64,
}

impl Salvage {
    fn open(args: &Export) -> Outcome<Self> {
        let (asked, args) = (args.keyspace.as_deref(), &args.export);
        let path = &args.pool;
        let pool = open_pool(path, How::read(args.medium))?;
        database::expect(&pool, path)?;
        let survey = Survey::of(&pool, path).map_err(|e| {
            if args.skip_damaged {
                beyond_saving(&e)
            } else {
                e
            }
        })?;
        let damage = survey.problems().next();
        if let Some(what) = damage
            && !args.skip_damaged
        {
            return Err(refuse(args, &what));
        }
        let there = survey.keyspaces();
        let place = Place::choose(path, asked, &there)?;
        if place.typed() {
            check_format(survey.format.as_deref()).map_err(|e| about(path, &e))?;
        }
        let keyspace = place.keyspace(survey.order.as_deref());
        if asked.is_some() && !there.contains(&keyspace) {
            return Err(about(
                path,
                &format_args!(
                    "no keyspace {}; {}",
                    quoted(keyspace.as_bytes()),
                    database::list(&there)
                ),
            ));
        }
        Ok(Self {
            pool,
            path: path.clone(),
            place,
            keyspace,
            survey,
            skipped: 0,
        })
    }
}

impl Source for Salvage {
    fn typed(&self) -> bool {
        self.place.typed()
    }

    fn entries(&self) -> u64 {
        let whole = self.survey.whole.get(&self.keyspace);
        whole.copied().unwrap_or(0)
    }

    fn is_damaged(&self) -> bool {
        self.skipped > 0 || self.survey.problems().next().is_some()
    }

    fn each(&mut self, bar: Option<&ProgressBar>, visit: Visit<'_>) -> Outcome {
        let now = WallClock::default().now();
        let (place, keyspace, skipped) = (&self.place, &self.keyspace, &mut self.skipped);
        let walked = damage::salvage(&self.pool, &self.path, &mut |salvaged| {
            if salvaged.keyspace_name() != *keyspace {
                return ControlFlow::Continue(());
            }
            let shown = match &salvaged.found {
                Ok(entry) => place.show(entry, now),
                Err(e) => Err(e.to_string()),
            };
            match shown {
                Ok(Some(shown)) => visit(salvaged.key, &shown),
                Ok(None) => ControlFlow::Continue(()),
                Err(what) => {
                    if let Some(bar) = bar {
                        *skipped += 1;
                        let key = quoted(salvaged.key);
                        report(bar, &format_args!("skipped key {key}: {what}"));
                    }
                    ControlFlow::Continue(())
                }
            }
        });
        walked.map(drop)
    }

    fn finish(&self, _written: u64, bar: &ProgressBar) -> u64 {
        let survey = &self.survey;
        for name in survey.broken.iter().filter(|broken| broken.is_name) {
            report(bar, &format_args!("damaged: {}: {}", name.entry, name.what));
        }
        for what in survey.index_problems() {
            report(bar, &format_args!("damaged: {what}"));
        }
        let unseen = survey.unseen();
        if unseen > 0 {
            report(
                bar,
                &format_args!("skipped {unseen} keys that cannot be read, of whatever keyspace"),
            );
        }
        self.skipped + unseen
    }
}
