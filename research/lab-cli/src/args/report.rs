//! Arguments of `report`.

use super::ScaleChoice;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `report`
#[derive(Debug, Args)]
#[command(after_help = "\
DIR/index.html is one page that needs nothing else: every figure of the papers with its claims,
verdicts and the reasons why claims fail, crashes explored, other databases, and what the hardware
allows. DIR/data has what it was made from, a JSON object for each part. Figures on the host and
comparisons run alone, so leave the machine alone while they do.

Ctrl-C ends it between parts: the page then says what it lacks, and --resume goes on.

Exit status: 0 all made, 1 something failed, which the page and the output name, 2 wrong usage.

Examples:
  bristlecone-lab report --out report
  bristlecone-lab report --out report --only counted,model
  bristlecone-lab report --out report --path /mnt/disk --resume")]
pub struct Report {
    /// Directory of the page and its data, created if missing
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Parts to make [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,...")]
    pub only: Vec<ReportPart>,
    /// Of the figures, only these [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub figure: Vec<String>,
    /// Amount of work of the figures, and of the comparison with other databases
    #[arg(long, value_enum, default_value_t)]
    pub scale: ScaleChoice,
    /// Directory for the files of limits and of other databases [default: that of --out]
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
    /// Keep what an earlier run in DIR has made, and make the rest
    #[arg(long)]
    pub resume: bool,
    /// Only write the page anew, from the data in DIR
    #[arg(long, conflicts_with_all = ["only", "figure", "scale", "path", "resume"])]
    pub page: bool,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// A part of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportPart {
    /// Figures of counts of the code's instructions
    Counted,
    /// Figures on the device model
    Model,
    /// Figures on this machine, timed
    Host,
    /// Crashes, mutants and schedules of the designs
    Explorer,
    /// The limits of the hardware
    Limits,
    /// The database beside other embedded ones
    Peers,
}
