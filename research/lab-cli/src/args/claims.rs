//! Arguments of `claims`.

use clap::Args;
use std::path::PathBuf;

/// `claims`
#[derive(Debug, Args)]
#[command(after_help = "\
The ledger, claims.toml in --docs, has every claim of every figure, with the paper's value, the \
measured one, the verdict and, if the claim fails, the reason. Without --check and --update, its \
summary is printed. The figures are those of scale small, each made by a process of its own.

Examples:
  bristlecone-lab claims                         how many hold, by paper
  bristlecone-lab claims --check                 make all figures, and compare
  bristlecone-lab claims --check lb-fig11        the same for one figure
  bristlecone-lab claims --update                write new numbers and verdicts, keep the reasons
  bristlecone-lab claims --update bz-fig4 --host '2 processors, 2026-03-01'

Exit status: 0 done, 1 failed (or the ledger differs), 2 wrong usage.")]
pub struct Claims {
    /// Figures to make [default: all that are counted or on the model]
    #[arg(value_name = "FIGURE")]
    pub names: Vec<String>,
    /// Make the figures and compare the ledger with them
    #[arg(long)]
    pub check: bool,
    /// Make the figures and write their claims to the ledger and its tables to figures.md
    #[arg(long, conflicts_with = "check")]
    pub update: bool,
    /// With --update: measure on this machine instead, and widen the ranges in the ledger; MACHINE
    /// is the note on date and machine
    #[arg(
        long,
        value_name = "MACHINE",
        requires = "update",
        conflicts_with = "check"
    )]
    pub host: Option<String>,
    /// The directory of claims.toml and figures.md
    #[arg(long, value_name = "DIR", default_value = "docs")]
    pub docs: PathBuf,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}
