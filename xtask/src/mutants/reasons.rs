//! Why a change is not noticed: `xtask/mutants.toml`, which lists the changes that no test can
//! notice, or that none should, as those that change nothing but the speed.

use super::Fate;
use super::build::Change;
use crate::tools::{self, Outcome};
use serde::Deserialize;

/// The list, from the repository's root.
pub const LIST: &str = "xtask/mutants.toml";

/// The list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reasons {
    #[serde(default)]
    change: Vec<Reason>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reason {
    /// Path from the repository's root.
    file: String,
    function: String,
    /// The changes as they are printed: `replace + with -`; all of the function if there is none.
    #[serde(default)]
    what: Vec<String>,
    why: String,
}

impl Reason {
    fn is_about(&self, change: &Change) -> bool {
        self.file == change.file
            && self.function == change.mutant.function
            && (self.what.is_empty() || self.what.contains(&change.mutant.what))
    }
}

impl Reasons {
    /// Reads the list.
    pub fn read() -> Outcome<Self> {
        let path = tools::root().join(LIST);
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{LIST}: {e}"))?;
        Self::parse(&text).map_err(|e| format!("{LIST}: {e}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let list: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        match list.change.iter().find(|one| one.why.trim().is_empty()) {
            Some(one) => Err(format!(
                "{} in {}: no reason",
                one.what.join(", "),
                one.file
            )),
            None => Ok(list),
        }
    }

    /// Returns why a change is not noticed, if the list says it.
    pub fn why(&self, change: &Change) -> Option<&str> {
        let found = self.change.iter().find(|one| one.is_about(change));
        found.map(|one| one.why.as_str())
    }

    /// Returns the entries all of whose changes were tried and noticed: they say what is wrong.
    pub fn outdated(&self, all: &[(&Change, &Fate)]) -> Vec<String> {
        let outdated = self.change.iter().filter(|one| {
            let mut about = all.iter().filter(|(change, _)| one.is_about(change));
            let first = about.next();
            first.is_some_and(|(_, fate)| fate.is_noticed())
                && about.all(|(_, fate)| fate.is_noticed())
        });
        outdated
            .map(|one| format!("{} in {}, {}", one.what.join(", "), one.function, one.file))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::sites::Mutant;

    fn change(file: &str, function: &str, what: &str) -> Change {
        Change {
            file: file.into(),
            mutant: Mutant {
                line: 1,
                column: 1,
                what: what.into(),
                function: function.into(),
            },
        }
    }

    #[test]
    fn a_reason_is_found_by_file_function_and_change() {
        let list = r#"
            [[change]]
            file = "a.rs"
            function = "f"
            what = ["replace + with -"]
            why = "a tuning constant"
            [[change]]
            file = "b.rs"
            function = "g"
            why = "all of it"
        "#;
        let list = Reasons::parse(list).unwrap();
        let why = |file, function, what| list.why(&change(file, function, what)).map(str::to_owned);
        let tuning = Some("a tuning constant".to_owned());
        assert_eq!(why("a.rs", "f", "replace + with -"), tuning);
        assert_eq!(why("a.rs", "f", "replace + with *"), None);
        assert_eq!(why("a.rs", "g", "replace + with -"), None);
        assert_eq!(why("b.rs", "g", "whatever"), Some("all of it".into()));
        let noticed = Fate::Killed("test".into());
        let told = change("a.rs", "f", "replace + with -");
        let outdated = |fate: &Fate| list.outdated(&[(&told, fate)]).len();
        assert_eq!((outdated(&noticed), outdated(&Fate::Survived(1))), (1, 0));
    }

    #[test]
    fn the_list_can_be_read_and_reasons_are_there() {
        Reasons::read().unwrap();
        let list = "[[change]]\nfile = \"a.rs\"\nfunction = \"f\"\nwhy = \" \"";
        assert!(Reasons::parse(list).unwrap_err().contains("no reason"));
    }
}
