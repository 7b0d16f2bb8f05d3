//! Claims: the paper's statement, the measured number, and whether the statement holds.
//!
//! A claim's verdict and the words for its tolerance both follow from one [`Expect`], so they
//! cannot disagree.

use serde::Serialize;
use std::fmt;

/// A paper's statement.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Stated {
    /// A number.
    Number(f64),
    /// Any other statement: a range, a direction.
    Words(String),
}

impl From<f64> for Stated {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Stated {
    fn from(words: &str) -> Self {
        Self::Words(words.to_owned())
    }
}

impl fmt::Display for Stated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => f.pad(&number.to_string()),
            Self::Words(words) => f.pad(words),
        }
    }
}

/// The condition on a measured number for its claim to hold. `slack` is a share: 0.05 allows 5 %
/// more or less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expect {
    /// At least `bound`, less `slack`.
    AtLeast {
        /// The lower bound.
        bound: f64,
        /// Allowed share below the bound.
        slack: f64,
    },
    /// At most `bound`, plus `slack`.
    AtMost {
        /// The upper bound.
        bound: f64,
        /// Allowed share above the bound.
        slack: f64,
    },
    /// `value`, plus or minus `slack`.
    Near {
        /// The value.
        value: f64,
        /// Allowed share of deviation.
        slack: f64,
    },
    /// From `low` to `high`, plus or minus `slack` at either end.
    Between {
        /// The lower bound.
        low: f64,
        /// The upper bound.
        high: f64,
        /// Allowed share outside the bounds.
        slack: f64,
    },
}

impl Expect {
    /// Returns the condition of at least `bound`.
    #[must_use]
    pub const fn at_least(bound: f64) -> Self {
        Self::AtLeast { bound, slack: 0.0 }
    }

    /// Returns the condition of at most `bound`.
    #[must_use]
    pub const fn at_most(bound: f64) -> Self {
        Self::AtMost { bound, slack: 0.0 }
    }

    /// Returns the condition of at least `bound`, less 30 %: for an "up to" of other machines and
    /// code.
    #[must_use]
    pub const fn about_at_least(bound: f64) -> Self {
        Self::AtLeast { bound, slack: 0.3 }
    }

    /// Returns the condition `value`, plus or minus a share of `slack`.
    #[must_use]
    pub const fn near(value: f64, slack: f64) -> Self {
        Self::Near { value, slack }
    }

    /// Returns true if `measured` meets the condition. NaN and infinity meet none.
    #[must_use]
    pub fn met_by(self, measured: f64) -> bool {
        let (low, high) = match self {
            Self::AtLeast { bound, slack } => (bound - bound.abs() * slack, f64::INFINITY),
            Self::AtMost { bound, slack } => (f64::NEG_INFINITY, bound + bound.abs() * slack),
            Self::Near { value, slack } => {
                (value - value.abs() * slack, value + value.abs() * slack)
            }
            Self::Between { low, high, slack } => {
                (low - low.abs() * slack, high + high.abs() * slack)
            }
        };
        measured.is_finite() && low <= measured && measured <= high
    }
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (words, slack) = match self {
            Self::AtLeast { bound, slack } => (format!("at least {bound}"), slack),
            Self::AtMost { bound, slack } => (format!("at most {bound}"), slack),
            Self::Near { value, slack: 0.0 } => (format!("exactly {value}"), &0.0),
            Self::Near { value, slack } => (format!("{value}"), slack),
            Self::Between { low, high, slack } => (format!("{low} to {high}"), slack),
        };
        if *slack == 0.0 {
            return f.pad(&words);
        }
        let sign = match self {
            Self::AtLeast { .. } => "-",
            Self::AtMost { .. } => "+",
            _ => "±",
        };
        // In binary, a share such as 0.07 times a hundred is not quite 7.
        let percent = (slack * 1e4).round() / 1e2;
        f.pad(&format!("{words}, {sign}{percent} %"))
    }
}

/// A claim of a paper, beside the measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// The claim.
    pub claim: String,
    /// The paper's number or words.
    pub paper: Stated,
    /// The measured number.
    pub measured: f64,
    /// The values of `measured` with which the claim holds.
    pub tolerance: String,
    /// True if the claim holds.
    pub holds: bool,
    /// A note on the measurement; may be empty.
    pub note: String,
}

impl Claim {
    /// Returns a claim that holds if `measured` meets `expect`.
    pub fn new(
        claim: impl Into<String>,
        paper: impl Into<Stated>,
        measured: f64,
        expect: Expect,
    ) -> Self {
        Self {
            claim: claim.into(),
            paper: paper.into(),
            measured,
            tolerance: expect.to_string(),
            holds: expect.met_by(measured),
            note: String::new(),
        }
    }

    /// Returns the claim with a note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_and_words_agree() {
        for (expect, words, met, missed) in [
            (Expect::at_least(1.35), "at least 1.35", 1.35, 1.3499),
            (Expect::at_most(1.31), "at most 1.31", 1.31, 1.3101),
            (
                Expect::AtLeast {
                    bound: 1.0,
                    slack: 0.07,
                },
                "at least 1, -7 %",
                0.931,
                0.929,
            ),
            (
                Expect::AtMost {
                    bound: 2.0,
                    slack: 0.1,
                },
                "at most 2, +10 %",
                2.19,
                2.21,
            ),
            (Expect::near(305.0, 0.15), "305, ±15 %", 350.7, 350.8),
            (Expect::near(2.0, 0.0), "exactly 2", 2.0, 2.000_001),
            (
                Expect::Between {
                    low: 1.2,
                    high: 1.24,
                    slack: 0.0,
                },
                "1.2 to 1.24",
                1.24,
                1.19,
            ),
            (
                Expect::Between {
                    low: 1.0,
                    high: 2.0,
                    slack: 0.1,
                },
                "1 to 2, ±10 %",
                0.91,
                2.3,
            ),
        ] {
            assert_eq!(expect.to_string(), words);
            assert!(expect.met_by(met), "{words}: {met}");
            assert!(!expect.met_by(missed), "{words}: {missed}");
            assert!(!expect.met_by(f64::NAN), "{words}: not a number");
            assert!(!expect.met_by(f64::INFINITY), "{words}: infinite");
        }
    }

    #[test]
    fn a_claim_in_json_has_the_fields_that_scripts_rely_on() {
        let claim = Claim::new("reads", 305.0, 310.5, Expect::near(305.0, 0.15)).note("random");
        assert_eq!(
            serde_json::to_string(&claim).unwrap(),
            r#"{"claim":"reads","paper":305.0,"measured":310.5,"tolerance":"305, ±15 %","holds":true,"note":"random"}"#
        );
        let claim = Claim::new("faster", "1.2-1.24x", 0.5, Expect::at_least(1.2));
        assert!(!claim.holds && claim.paper == "1.2-1.24x".into());
    }
}
