//! The report: one page with every figure, made from what the commands that measure have written.
//!
//! ```text
//! bristlecone-lab report --out DIR
//!
//!   DIR/data/about.json          what made it, when, and where              |
//!            NAME-ON.json        figure NAME --on ON --json                 |  Report --page-->
//!            limits.json         bench limits --json                        |   DIR/index.html
//!            explorer.json, mutants.json, threads.json    crash --json      |
//!            peers.json          bench peers --json                         |
//!   docs/claims.toml, as compiled in: why claims fail                       |
//! ```
//!
//! A part whose file is missing is left out, and the page says so. It needs no other file, no
//! network and no script to be read; its script only switches colours and filters claims.
//!
//! | part | holds |
//! | --- | --- |
//! | `data` | what is read from the files |
//! | `page` | the page as a whole, and the figures |
//! | `sections` | limits, peers, space, and the explorer |
//! | `strip` | a claim's band, the paper's number and the measured one, as SVG |

mod data;
mod page;
mod sections;
mod strip;

pub use data::{About, FILES, Part, Report};

use crate::figure::ledger::Ledger;

/// The ledger of this version's figures.
const LEDGER: &str = include_str!("../../../../docs/claims.toml");

/// Returns the ledger of this version's figures.
///
/// # Errors
/// It is damaged; the build's tests exclude that.
pub fn ledger() -> Result<Ledger, String> {
    Ledger::parse(LEDGER)
}

#[cfg(test)]
mod tests;
