//! The public API of the crate `bristlecone`, one line an item, in a file that is committed: a
//! change of it shows in a review. Each of its types, traits and functions has an example in its
//! documentation.
//!
//! Rustdoc describes the crate in JSON, which is unstable: so the listing is made by the version of
//! the crate `public-api` that reads what this Rust writes ([`FORMAT`]). Only rustdoc is told to
//! allow that. An environment variable for all of cargo would have build scripts run again.

use crate::tools::{Outcome, cargo, root, run, say, target_dir};
use public_api::Builder;
use serde_json::Value;
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The crate.
const CRATE: &str = "bristlecone";
/// Where its listing is.
const LISTING: &str = "crates/bristlecone/public-api.txt";
/// The format of rustdoc's JSON that the pinned version of `public-api` reads; Rust 1.95 writes it.
const FORMAT: u64 = 57;

/// The heading that each item's documentation has.
const EXAMPLES: &str = "# Examples";

const HOW: &str = "cargo run -p xtask --features public-api -- public-api --update";

/// Compares the listing with the crate, or writes it.
///
/// # Errors
/// The lines that differ; items without an example.
pub fn compare(update: bool) -> Outcome {
    let json = describe()?;
    let found = listing(&json)?;
    let bare = without_examples(&json)?;
    if !bare.is_empty() {
        return Err(format!(
            "without `{EXAMPLES}` in the documentation:\n{}",
            bare.join("\n")
        ));
    }
    let path = root().join(LISTING);
    if update {
        std::fs::write(&path, &found).map_err(|e| format!("{LISTING}: {e}"))?;
        say(format!("{LISTING}: {} items", found.lines().count()));
        return Ok(());
    }
    let listed = std::fs::read_to_string(&path).map_err(|e| format!("{LISTING}: {e}"))?;
    let changes = changes(&listed, &found);
    if changes.is_empty() {
        say(format!(
            "{LISTING}: {} items, as they are",
            listed.lines().count()
        ));
        return Ok(());
    }
    Err(format!(
        "the public API is not that of {LISTING}; if that is meant, `{HOW}`\n{changes}"
    ))
}

/// Has rustdoc describe the crate, with all features. Returns its JSON.
fn describe() -> Outcome<String> {
    let target = target_dir()?;
    let wrapper = target.join("rustdoc-with-json");
    let written = std::fs::create_dir_all(&target)
        .and_then(|()| {
            let script = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";
            std::fs::write(&wrapper, script)
        })
        .and_then(|()| std::fs::set_permissions(&wrapper, PermissionsExt::from_mode(0o755)));
    written.map_err(|e| format!("{}: {e}", wrapper.display()))?;
    let mut rustdoc = cargo();
    rustdoc.env("RUSTDOC", &wrapper).env_remove("RUSTDOCFLAGS");
    rustdoc.args([
        "rustdoc",
        "--quiet",
        "--lib",
        "--all-features",
        "--package",
        CRATE,
    ]);
    rustdoc.args(["--", "-Z", "unstable-options", "--output-format", "json"]);
    run(&mut rustdoc)?;
    let json = target.join("doc").join(format!("{CRATE}.json"));
    std::fs::read_to_string(&json).map_err(|e| format!("{}: {e}", json.display()))
}

fn listing(json: &str) -> Outcome<String> {
    let described: Value =
        serde_json::from_str(json).map_err(|e| format!("rustdoc's JSON: {e}"))?;
    let format = described["format_version"].as_u64();
    if format != Some(FORMAT) {
        return Err(format!(
            "this rustdoc writes JSON of format {format:?}, and {FORMAT} is read; pin the version of the crate \
             `public-api` that reads it in xtask/Cargo.toml, with FORMAT in {}",
            file!()
        ));
    }
    let file = tempfile::NamedTempFile::new().map_err(|e| e.to_string())?;
    std::fs::write(file.path(), json).map_err(|e| e.to_string())?;
    lines_of(file.path())
}

/// Returns the public types, traits, functions and re-exports without an example, each with its
/// place.
fn without_examples(json: &str) -> Outcome<Vec<String>> {
    let described: Value =
        serde_json::from_str(json).map_err(|e| format!("rustdoc's JSON: {e}"))?;
    let items = described["index"]
        .as_object()
        .ok_or("rustdoc's JSON has no index")?;
    let items = || items.values().filter(|item| item["crate_id"] == 0);
    // Methods that a trait declares are public as the trait is. Those that an implementation of one
    // has are described there.
    let of_traits: Vec<&Value> = items()
        .filter_map(|item| item["inner"]["trait"]["items"].as_array())
        .flatten()
        .collect();
    let local: Vec<&Value> = items().map(|item| &item["id"]).collect();
    let needs_example = |item: &&Value| {
        let public = item["visibility"] == "public";
        let Some((kind, inner)) = item["inner"]
            .as_object()
            .and_then(|inner| inner.iter().next())
        else {
            return false;
        };
        match kind.as_str() {
            "struct" | "enum" | "trait" | "type_alias" => public,
            "function" => public || of_traits.contains(&&item["id"]),
            "use" => public && !local.contains(&&inner["id"]),
            _ => false,
        }
    };
    let described = |item: &&Value| {
        item["docs"]
            .as_str()
            .is_some_and(|docs| docs.contains(EXAMPLES))
    };
    let mut bare: Vec<String> = items()
        .filter(needs_example)
        .filter(|item| !described(item))
        .map(|item| {
            let name = item["name"]
                .as_str()
                .or(item["inner"]["use"]["name"].as_str());
            let (file, line) = (&item["span"]["filename"], &item["span"]["begin"][0]);
            format!(
                "{}:{line}: {}",
                file.as_str().unwrap_or("?"),
                name.unwrap_or("?")
            )
        })
        .collect();
    bare.sort();
    Ok(bare)
}

fn lines_of(json: &Path) -> Outcome<String> {
    let api = Builder::from_rustdoc_json(json)
        .sorted(true)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()
        .map_err(|e| e.to_string())?;
    let mut lines = String::new();
    for item in api.items() {
        writeln!(lines, "{item}").map_err(|e| e.to_string())?;
    }
    Ok(lines)
}

/// Items that are gone, and items that are new.
fn changes(listed: &str, found: &str) -> String {
    let missing = |from: &str, of: &str, sign: &str| -> String {
        let of: Vec<&str> = of.lines().collect();
        let lines = from.lines().filter(|line| !of.contains(line));
        lines.map(|line| format!("{sign} {line}\n")).collect()
    };
    missing(listed, found, "-") + &missing(found, listed, "+")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_what_one_side_has_alone() {
        assert_eq!(changes("a\nb\n", "a\nb\n"), "");
        assert_eq!(changes("a\nb\n", "b\nc\n"), "- a\n+ c\n");
    }

    #[test]
    fn items_without_an_example_are_named() {
        let item = |id: u32, visibility: &str, docs: &str, inner: Value| {
            serde_json::json!({
                "id": id, "crate_id": 0, "name": format!("item{id}"), "visibility": visibility, "docs": docs,
                "span": {"filename": "lib.rs", "begin": [id, 1]}, "inner": inner,
            })
        };
        let shown = "Does it.\n\n# Examples\n```\n```";
        let json = serde_json::json!({"index": {
            "1": item(1, "public", shown, serde_json::json!({"struct": {}})),
            "2": item(2, "public", "", serde_json::json!({"enum": {}})),
            "3": item(3, "crate", "", serde_json::json!({"function": {}})),
            "4": item(4, "public", shown, serde_json::json!({"trait": {"items": [5]}})),
            "5": item(5, "default", "", serde_json::json!({"function": {}})),
            "6": item(6, "default", "", serde_json::json!({"function": {}})),
            "7": item(7, "public", "", serde_json::json!({"use": {"name": "Enum", "id": 2}})),
            "8": item(8, "public", "", serde_json::json!({"use": {"name": "Other", "id": 99}})),
        }});
        let bare = without_examples(&json.to_string()).unwrap();
        assert_eq!(
            bare,
            ["lib.rs:2: item2", "lib.rs:5: item5", "lib.rs:8: item8"]
        );
    }

    #[test]
    fn another_format_is_refused_by_number() {
        let error = listing("{\"format_version\": 1}").unwrap_err();
        assert!(
            error.contains("Some(1)") && error.contains("public-api"),
            "{error}"
        );
    }
}
