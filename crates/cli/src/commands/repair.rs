//! `repair`: all that is whole in a damaged database, as a new one.

use crate::args::Repair;
use crate::damage::{Survey, describe};
use crate::database::{self, ROOT, server_bookkeeping};
use bristlecone_command::export::{beyond_saving, report};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::pool::{about, files_of, open_pool};
use bristlecone_command::records::survival;
use bristlecone_command::scratch::Unfinished;
use bristlecone_command::signals::remove_temporary_files_on_signals;
use bristlecone_command::text::{duration, grouped, program, quoted, shell_path};
use bristlecone_command::{print_report, progress};
use bristlecone_index::damage::collecting_damage;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Media, MediumKind, OpenError, Pool, PoolOptions};
use bristlecone_server::data::Data;
use bristlecone_store::{NAMELESS, SalvageError, Store, StoreOptions, WallClock};
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
    let damaged = open_pool(from, database::READ)?;
    database::expect(&damaged, from)?;
    let survey = progress::waiting("looking for damage", || Survey::of(&damaged, from))
        .map_err(|e| beyond_saving(&e))?;
    remove_temporary_files_on_signals()?;
    let mut options = PoolOptions::default();
    options.media.medium = args.write.medium.kind();
    options.media.durability = args.write.durability;
    let pool = Pool::<Auto>::create(to, &options).map_err(|e| match e {
        OpenError::Exists(_) => Failure::new(format!("{e}: name another file, or remove that one")),
        e => Failure::new(e.to_string()),
    })?;
    let medium = pool.info().medium;
    // Only what this command has made: not a device, nor a file that has the name of a journal.
    let [file, journal] = files_of(to);
    let unfinished = Unfinished::new(
        [
            to.is_file().then_some(file),
            (medium == MediumKind::Journal).then_some(journal),
        ]
        .into_iter()
        .flatten(),
    );
    let choice = StoreOptions::default().without_thread();
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
    // On a device, what opening the index does about damage would be durable.
    let copied = if damaged.pm().read_only() {
        collecting_damage(&mut copy).0
    } else {
        copy()
    };
    let salvaged = copied.map_err(|e| match e {
        SalvageError::From(e) => beyond_saving(&about(from, &e)),
        e => about(to, &e),
    })?;
    for what in survey.index.blocks.values() {
        report(&bar, &format_args!("damaged: index: {what}"));
    }
    if let Some(violation) = survey.violation() {
        report(&bar, &format_args!("damaged: index: {violation}"));
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
        skipped,
        collections_with_losses: lost,
        seconds: started.elapsed().as_secs_f64(),
    };
    tell(args, &summary, medium, started.elapsed())?;
    let whole = skipped == 0
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
        // What belongs together is not known, and a server would remove what seems to be left over.
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
