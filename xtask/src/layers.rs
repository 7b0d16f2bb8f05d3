//! Checks which crate depends on which: every arrow points down (`docs/design.md`, "Layers").
//!
//! A crate that is not in [`LAYERS`] fails, as does an arrow that is not. Dependencies of tests are
//! free. Products, the crates below `crates/`, depend on `bristlecone-pmem` without its feature for
//! tools ([`TOOLS`]).

use crate::tools::metadata;
use serde_json::Value;

/// Each crate with the crates of the project that it may use.
const LAYERS: [(&str, &[&str]); 18] = [
    ("bristlecone-pmem", &[]),
    ("bristlecone-index", &["bristlecone-pmem"]),
    (
        "bristlecone-store",
        &["bristlecone-index", "bristlecone-pmem"],
    ),
    (
        "bristlecone",
        &["bristlecone-index", "bristlecone-pmem", "bristlecone-store"],
    ),
    (
        "bristlecone-server",
        &["bristlecone-pmem", "bristlecone-store"],
    ),
    ("bristlecone-service", &["bristlecone"]),
    ("bristlecone-peers", &[]),
    ("bristlecone-schedules", &[]),
    (
        "bristlecone-designs",
        &["bristlecone-index", "bristlecone-pmem"],
    ),
    (
        "bristlecone-pibench",
        &[
            "bristlecone-designs",
            "bristlecone-index",
            "bristlecone-pmem",
        ],
    ),
    (
        "bristlecone-rocksdb",
        &[
            "bristlecone-designs",
            "bristlecone-index",
            "bristlecone-pmem",
        ],
    ),
    (
        "bristlecone-nv-store",
        &["bristlecone-index", "bristlecone-pmem", "bristlecone-store"],
    ),
    (
        "bristlecone-crash",
        &[
            "bristlecone-designs",
            "bristlecone-nv-store",
            "bristlecone-pmem",
            "bristlecone-store",
        ],
    ),
    (
        "bristlecone-lab",
        &[
            "bristlecone",
            "bristlecone-command",
            "bristlecone-designs",
            "bristlecone-nv-store",
            "bristlecone-peers",
            "bristlecone-pmem",
            "bristlecone-server",
            "bristlecone-store",
        ],
    ),
    ("bristlecone-command", &["bristlecone-pmem"]),
    (
        "bristlecone-cli",
        &[
            "bristlecone",
            "bristlecone-command",
            "bristlecone-index",
            "bristlecone-pmem",
            "bristlecone-server",
            "bristlecone-store",
        ],
    ),
    (
        "bristlecone-lab-cli",
        &[
            "bristlecone-command",
            "bristlecone-crash",
            "bristlecone-designs",
            "bristlecone-lab",
            "bristlecone-pmem",
        ],
    ),
    ("xtask", &[]),
];

/// The feature of `bristlecone-pmem` that only tools and tests turn on.
const TOOLS: &str = "explore";

/// Checks the workspace.
///
/// # Errors
/// The arrows that must not be, one a line.
pub fn run() -> Result<(), String> {
    let workspace = metadata()?;
    let wrong = wrong_arrows(&workspace)?;
    if wrong.is_empty() {
        println!("{} crates: every arrow points down", LAYERS.len());
        return Ok(());
    }
    Err(format!(
        "{}\n(the layers are in xtask/src/layers.rs)",
        wrong.join("\n")
    ))
}

fn text<'v>(value: &'v Value, field: &str) -> Result<&'v str, String> {
    value[field]
        .as_str()
        .ok_or_else(|| format!("cargo metadata: no {field} in {value}"))
}

fn list<'v>(value: &'v Value, field: &str) -> Result<&'v Vec<Value>, String> {
    value[field]
        .as_array()
        .ok_or_else(|| format!("cargo metadata: no list {field}"))
}

/// Finds what is in the workspace and must not be.
fn wrong_arrows(workspace: &Value) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    let packages = list(workspace, "packages")?;
    let names: Vec<&str> = packages
        .iter()
        .map(|package| text(package, "name"))
        .collect::<Result<_, _>>()?;
    for (package, name) in packages.iter().zip(&names) {
        let Some((_, allowed)) = LAYERS.iter().find(|(known, _)| known == name) else {
            wrong.push(format!("{name}: a crate without a layer"));
            continue;
        };
        for dependency in list(package, "dependencies")? {
            let on = text(dependency, "name")?;
            let of_tests = dependency["kind"].as_str() == Some("dev");
            if names.contains(&on) && !of_tests && !allowed.contains(&on) {
                wrong.push(format!("{name} -> {on}"));
            }
            let for_tools = dependency["features"]
                .as_array()
                .is_some_and(|features| features.iter().any(|feature| feature == TOOLS));
            let product = package["manifest_path"]
                .as_str()
                .is_some_and(|path| path.contains("/crates/"));
            if product && !of_tests && for_tools {
                wrong.push(format!("{name} -> {on} with the feature {TOOLS}"));
            }
        }
    }
    for (known, _) in LAYERS.iter().filter(|(known, _)| !names.contains(known)) {
        wrong.push(format!("{known}: there is no such crate"));
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The workspace as the layers say, with one dependency more.
    fn workspace(from: &str, to: &str, kind: Option<&str>) -> Value {
        let packages: Vec<Value> = LAYERS
            .iter()
            .map(|(name, _)| {
                let more = json!([{ "name": to, "kind": kind }]);
                let none = json!([{ "name": "serde", "kind": null }]);
                json!({ "name": name, "dependencies": if *name == from { more } else { none } })
            })
            .collect();
        json!({ "packages": packages })
    }

    #[test]
    fn arrows_up_are_found_and_those_of_tests_are_free() {
        let wrong = |from, to, kind| wrong_arrows(&workspace(from, to, kind)).unwrap();
        let found = wrong("bristlecone-pmem", "bristlecone-designs", None);
        assert_eq!(found, ["bristlecone-pmem -> bristlecone-designs"]);
        assert!(wrong("bristlecone-pmem", "bristlecone-designs", Some("dev")).is_empty());
        assert!(wrong("bristlecone-designs", "bristlecone-pmem", None).is_empty());
        let found = wrong("bristlecone-store", "bristlecone-crash", None);
        assert_eq!(found, ["bristlecone-store -> bristlecone-crash"]);
    }

    #[test]
    fn crates_without_a_layer_and_layers_without_a_crate_are_found() {
        let mut workspace = workspace("xtask", "serde", None);
        workspace["packages"][0]["name"] = "bristlecone-new".into();
        let found = wrong_arrows(&workspace).unwrap();
        assert!(found[0].starts_with("bristlecone-new: "), "{found:?}");
        assert_eq!(
            found.last().unwrap(),
            "bristlecone-pmem: there is no such crate"
        );
    }
}
