//! `completions` and `man`: help for shells and for `man`, made of what the command line declares.

use crate::args::{Cli, Completions, Man};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::text::shell_path;
use clap::CommandFactory;
use std::io::{self, Write};

/// The command's name.
const NAME: &str = "bristlecone";

/// Prints the completions of a shell.
pub fn completions(args: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), NAME, &mut script);
    io::stdout()
        .write_all(&script)
        .map_err(|e| Failure::output(&e))
}

/// Writes manual pages.
pub fn man(args: &Man) -> Outcome {
    let folder = &args.folder;
    if !folder.is_dir() {
        return Err(Failure::Usage(format!(
            "{}: no folder; make it, or name another one",
            folder.display()
        )));
    }
    clap_mangen::generate_to(Cli::command(), folder)
        .map_err(|e| Failure::io(folder, "writing the pages", &e))?;
    writeln!(
        io::stdout(),
        "wrote the pages; `man {}` shows the first",
        shell_path(&folder.join("bristlecone.1"))
    )
    .map_err(|e| Failure::output(&e))
}
