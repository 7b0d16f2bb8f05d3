//! Measures embedded stores against each other and draws the result.
//!
//! ```text
//! cargo run --release -p bristlecone-lab --features peers --example stores -- \
//!     --path /dev/shm --path . --value-bytes 8,100 --keys 200K --out docs/stores.svg
//! ```
//!
//! The numbers go to standard output, and as JSON beside the picture.

use bristlecone_lab::stores::{self, Params};
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let mut params = Params::default();
    let mut paths = Vec::new();
    let mut out = None;
    let mut words = std::env::args().skip(1);
    while let Some(name) = words.next() {
        let value = words
            .next()
            .ok_or(format!("{name}: its value is missing"))?;
        match name.as_str() {
            "--path" => paths.push(PathBuf::from(value)),
            "--out" => out = Some(PathBuf::from(value)),
            "--keys" => params.keys = bristlecone_lab::parse_count(&value)?,
            "--rounds" => params.rounds = value.parse()?,
            "--slice-ms" => params.slice = Duration::from_millis(value.parse()?),
            "--value-bytes" => params.value_bytes = list(&value)?,
            "--engines" => params.engines = list(&value)?,
            _ => return Err(format!("{name}: there is no such option").into()),
        }
    }
    if !paths.is_empty() {
        params.paths = paths;
    }
    let report = stores::run(&params, &mut |told| eprintln!("{told}"))?;
    print!("{report}");
    if let Some(out) = out {
        std::fs::write(&out, stores::draw(&report)?)?;
        let json = serde_json::to_string_pretty(&report)?;
        std::fs::write(out.with_extension("json"), json + "\n")?;
    }
    Ok(())
}

fn list<T: std::str::FromStr>(text: &str) -> Result<Vec<T>, T::Err> {
    text.split(',').map(str::parse).collect()
}
