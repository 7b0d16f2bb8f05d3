//! The command `bristlecone-lab`.

use std::process::ExitCode;

fn main() -> ExitCode {
    bristlecone_lab_cli::run()
}
