//! `figure`: the papers' figures and tables, regenerated beside their claims.

use crate::args::Figure;
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::progress;
use bristlecone_command::signals::remove_temporary_files_on_signals;
use bristlecone_lab::figure::{self, Entry, FigureError, Step};
use indicatif::ProgressBar;
use std::io::{self, Write};
use std::path::Path;

/// Makes the figure, or lists all of them.
pub fn run(args: &Figure) -> Outcome {
    let Some(name) = args.name.as_deref() else {
        return list(args.json);
    };
    remove_temporary_files_on_signals()?;
    let entry = figure::find(name).map_err(failed)?;
    let on = args.on.map(|on| on.on());
    made(args.out.as_deref(), args.json, |progress| {
        entry.run(on, args.scale.scale(), progress)
    })
}

/// Prints the figure that `make` makes, which tells of its progress, and writes it to `out`.
pub fn made(
    out: Option<&Path>,
    json: bool,
    make: impl FnOnce(&mut dyn FnMut(&Step<'_>)) -> Result<figure::Figure, FigureError>,
) -> Outcome {
    if let Some(dir) = out {
        figure::ready(dir).map_err(failed)?;
    }
    let bar = progress::steps("measuring", 1);
    let made = make(&mut |step| follow(&bar, step));
    bar.finish_and_clear();
    let mut figure = made.map_err(failed)?;
    if let Some(dir) = out {
        figure.write(dir).map_err(failed)?;
    }
    if json {
        eprint!("{figure}");
        bristlecone_command::print_json(&figure)
    } else {
        write!(io::stdout(), "{figure}").map_err(|e| Failure::output(&e))
    }
}

fn failed(error: FigureError) -> Failure {
    match error {
        FigureError::Unknown { .. } | FigureError::Elsewhere { .. } => {
            Failure::Usage(error.to_string())
        }
        error => Failure::new(error.to_string()),
    }
}

fn follow(bar: &ProgressBar, step: &Step<'_>) {
    bar.set_message(step.doing.to_owned());
    if bar.length() != Some(step.total) {
        bar.set_length(step.total);
        bar.reset_eta();
    }
    bar.set_position(step.done);
}

fn list(json: bool) -> Outcome {
    if json {
        return bristlecone_command::print_json(&figure::ALL);
    }
    let mut out = io::stdout().lock();
    let width = |of: fn(&Entry) -> usize| figure::ALL.iter().map(of).max().unwrap_or(0);
    let (name, on) = (width(|e| e.name.len()), width(|e| e.places().len()));
    for entry in figure::ALL {
        writeln!(
            out,
            "{:name$}  {:on$}  {} ({}, {})",
            entry.name,
            entry.places(),
            entry.title,
            entry.paper,
            entry.place
        )
        .map_err(|e| Failure::output(&e))?;
    }
    Ok(())
}
