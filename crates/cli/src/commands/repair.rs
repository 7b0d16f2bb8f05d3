//! `repair`: all that is whole in a damaged database, as a new one.

use crate::args::Repair;
use crate::damage::{Survey, collecting, describe};
use crate::database::{self, ROOT, server_bookkeeping};
use bristlecone_command::export::{beyond_saving, report};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::pool::{How, about, open_pool};
use bristlecone_command::records::survival;
use bristlecone_command::text::{duration, grouped, program, quoted, shell_path};
use bristlecone_command::{print_report, progress};
use bristlecone_pmem::MediumKind;
use bristlecone_pmem::Pool;
use bristlecone_pmem::media::Auto;
use bristlecone_server::data::Data;
use bristlecone_server::data::spaces::check_format;
use bristlecone_store::{NAMELESS, SalvageError, Store, WallClock};
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// The outcome, for scripts.
#[derive(Debug, Serialize)]
struct Summary {
    pool: String,
    damaged: String,
    medium: &'static str,
    survives: &'static str,
    keyspaces: u64,
    entries: u64,
    /// Faults in the pool's own tables, its superblock and its journal.
    pool_problems: usize,
    /// Damaged places, which are not in it.
    skipped: u64,
    /// Collections of a server's that have lost elements.
    collections_with_losses: u64,
    seconds: f64,
}

/// Makes a database of what is whole in another.
pub fn run(args: &Repair) -> Outcome {
    let (from, to) = (&args.pool, &args.new);
    if let (Ok(a), Ok(b)) = (from.canonicalize(), to.canonicalize())
        && a == b
    {
        return Err(Failure::Usage(format!(
            "{}: the damaged database itself, which is left as it is; name a new file",
            to.display()
        )));
    }
    let started = Instant::now();
    // A device grants no private mapping.
    let damaged = if database::READ.reads_only(from) {
        Pool::<Auto>::salvage(from).map_err(|e| Failure::new(e.to_string()))?
    } else {
        open_pool(from, database::READ)?
    };
    for what in damaged.problems() {
        eprintln!("damaged: {what}");
    }
    database::expect(&damaged, from).map_err(|e| {
        if damaged.problems().is_empty() {
            e
        } else {
            about(
                from,
                &"the root of its database is damaged: restore a backup",
            )
        }
    })?;
    let survey = progress::waiting("looking for damage", || Survey::of(&damaged, from))
        .map_err(|e| beyond_saving(&e))?;
    if server_bookkeeping(survey.keyspaces().iter().map(String::as_str)) {
        check_format(survey.format.as_deref()).map_err(|e| about(from, &e))?;
    }
    let (pool, unfinished) = database::new_pool(to, How::write(args.write))?;
    let medium = pool.info().medium;
    let choice = database::making();
    let store = Store::create(&pool, ROOT, &choice).map_err(|e| about(to, &e))?;
    let bar = progress::steps("copying", survey.whole.values().sum());
    let (mut entries, mut skipped) = (0_u64, 0_u64);
    let now = WallClock::default().now();
    let mut copy = || {
        Store::<Auto>::salvage_into(&damaged, ROOT, now, &store, &mut |salvaged| match &salvaged
            .found
        {
            Ok(_) => {
                entries += 1;
                if entries.is_multiple_of(4096) {
                    bar.set_position(entries);
                }
            }
            Err(e) => {
                skipped += 1;
                report(&bar, &format_args!("damaged: {}: {e}", describe(salvaged)));
            }
        })
    };
    let (copied, _) = collecting(&damaged, &mut copy);
    let salvaged = copied.map_err(|e| match e {
        SalvageError::From(e) => beyond_saving(&about(from, &e)),
        e => about(to, &e),
    })?;
    for what in survey.index_problems() {
        report(&bar, &format_args!("damaged: {what}"));
    }
    bar.finish_and_clear();
    let lost = mend(to, &store)?;
    let keyspaces = store.keyspaces().len() as u64;
    store
        .close()
        .map_err(|(_, e)| about(to, &format_args!("closing: {e}")))?;
    drop(pool);
    unfinished.keep();
    let summary = Summary {
        pool: to.display().to_string(),
        damaged: from.display().to_string(),
        medium: medium.name(),
        survives: medium.survives(),
        keyspaces,
        entries,
        pool_problems: damaged.problems().len(),
        skipped,
        collections_with_losses: lost,
        seconds: started.elapsed().as_secs_f64(),
    };
    tell(args, &summary, medium, started.elapsed())?;
    let whole = damaged.problems().is_empty()
        && skipped == 0
        && lost == 0
        && salvaged.violation.is_none()
        && survey.problems().next().is_none();
    if whole { Ok(()) } else { Err(Failure::Skipped) }
}

/// Mends the collections of a server's database, of which some elements may not be there. Returns
/// how many have lost any.
fn mend(path: &Path, store: &Store<Auto>) -> Outcome<u64> {
    let names = store.keyspaces();
    if !server_bookkeeping(names.iter().map(|keyspace| keyspace.name())) {
        return Ok(0);
    }
    if names
        .iter()
        .any(|keyspace| keyspace.name().starts_with(NAMELESS))
    {
        // Nobody can tell which elements belong to which keys, and a server would remove those that
        // seem to belong to none.
        eprintln!(
            "{}: keyspaces of a server's have lost their names and are there by their numbers: do not serve it, `export` them",
            path.display()
        );
        return Ok(0);
    }
    let mut lost = 0;
    let mended = progress::waiting("mending collections", || {
        let data = Data::open(store.clone()).map_err(|e| e.to_string())?;
        let mended = data.mend(&mut |mended| {
            lost += 1;
            if mended.is_broken {
                eprintln!(
                    "damaged: the head of key {} in database {}",
                    quoted(mended.key),
                    mended.db
                );
                return;
            }
            eprintln!(
                "changed: {} of the {} elements of key {} in database {} are there",
                mended.has,
                mended.had,
                quoted(mended.key),
                mended.db
            );
        });
        mended.map_err(|e| e.to_string())
    });
    mended.map_err(|e| about(path, &e))?;
    Ok(lost)
}

fn tell(args: &Repair, summary: &Summary, medium: MediumKind, took: Duration) -> Outcome {
    let pool = shell_path(&args.new);
    let mut text = format!(
        "made {pool} of what is whole in {}: {} entries in {} keyspaces, in {}\n{}",
        args.pool.display(),
        grouped(summary.entries),
        summary.keyspaces,
        duration(took),
        survival(medium),
    );
    if summary.skipped > 0 {
        text += &format!(
            "\n{} damaged places, named above, are not in it: restore what they had from a backup",
            grouped(summary.skipped)
        );
    }
    text += &format!(
        "\n{} check {pool}    # then put it in the place of the damaged one",
        program()
    );
    print_report(&text, summary, args.json)
}
