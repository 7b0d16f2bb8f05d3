//! The book: the pages of `docs/`, in the order of `docs/SUMMARY.md`, which mdBook reads too.

use std::collections::BTreeSet;

/// The table of contents.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// The pages that the table of contents lists, as paths from the repository's root, in its order.
pub fn pages(summary: &str) -> Vec<String> {
    let links = summary.lines().flat_map(|line| line.split("](").skip(1));
    let targets = links.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    targets
        .filter(|target| target.ends_with(".md"))
        .map(|target| format!("docs/{}", target.trim_start_matches("./")))
        .collect()
}

/// Disagreements of `files` and the table of contents: pages that it lacks or lists twice.
pub fn disagreements(files: &BTreeSet<String>, summary: &str) -> Vec<String> {
    let pages = pages(summary);
    let mut seen = BTreeSet::new();
    let twice = pages.iter().filter(|page| !seen.insert(page.as_str()));
    let mut wrong: Vec<String> = twice
        .map(|page| format!("{SUMMARY}: lists {page} twice"))
        .collect();
    let unlisted = files.iter().filter(|file| {
        file.starts_with("docs/")
            && file.ends_with(".md")
            && *file != SUMMARY
            && !pages.contains(file)
    });
    wrong.extend(unlisted.map(|file| format!("{SUMMARY}: does not list {file}")));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENTS: &str = "# Summary\n\n[Introduction](introduction.md)\n\n# Users\n\n- [A](./a.md)\n  - [B](adr/b.md)\n- [Web](https://example.invalid/x)\n";

    #[test]
    fn pages_come_in_the_order_of_the_contents() {
        let expected = ["docs/introduction.md", "docs/a.md", "docs/adr/b.md"];
        assert_eq!(pages(CONTENTS), expected);
    }

    #[test]
    fn pages_that_are_not_listed_or_listed_twice_are_found() {
        let files = [
            "docs/a.md",
            "docs/c.md",
            "docs/c.svg",
            "docs/SUMMARY.md",
            "x.md",
        ];
        let files = files.map(str::to_owned).into_iter().collect();
        let found = disagreements(&files, &format!("{CONTENTS}- [A](a.md)\n"));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("lists docs/a.md twice"));
        assert!(found[1].contains("does not list docs/c.md"));
    }
}
