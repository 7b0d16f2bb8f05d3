//! Tells the crate which versions of the Rust peers `Cargo.lock` names, for reports.

use std::path::Path;

fn main() {
    let lock = Path::new("../../Cargo.lock");
    println!("cargo:rerun-if-changed={}", lock.display());
    println!("cargo:rerun-if-changed=build.rs");
    let text = std::fs::read_to_string(lock).unwrap_or_default();
    for (package, variable) in [
        ("heed", "PEERS_HEED_VERSION"),
        ("redb", "PEERS_REDB_VERSION"),
        ("fjall", "PEERS_FJALL_VERSION"),
    ] {
        let version = locked(&text, package).unwrap_or("unknown");
        println!("cargo:rustc-env={variable}={version}");
    }
}

/// Returns the version of `package` in the text of a `Cargo.lock`.
fn locked<'t>(lock: &'t str, package: &str) -> Option<&'t str> {
    let (_, rest) = lock.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    rest.split('"').next()
}
