//! Claims: the paper's statement, the measured number, and the verdict on it.
//!
//! ```text
//! effect of a ratio of 1.4, on the model, with a quarter of the effect on either side:
//!
//!     fails          | fails    | holds         | exceeds
//!  ------------------+----------+-------+-------+------------------>  measured
//!                    1         1.3     1.4     1.5
//!                 no effect         the paper
//! ```
//!
//! A claim's verdict and the words for its tolerance both follow from one [`Bands`], so they cannot
//! disagree. Tolerances are shares of the paper's *effect*, which for a ratio of 1.4 is 0.4, so
//! none accepts the effect's absence or its opposite.

use super::On;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A paper's statement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Stated {
    /// A number.
    Number(f64),
    /// Any other statement: a range, a direction.
    Words(String),
}

/// The statement of a claim that this project makes itself.
pub const NOT_IN_THE_PAPER: &str = "not in the paper";

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

/// The verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Stronger than the paper, in the direction that the paper claims.
    Exceeds,
    /// As the paper says.
    Holds,
    /// Otherwise than the paper says.
    Fails,
}

impl Verdict {
    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exceeds => "exceeds",
            Self::Holds => "holds",
            Self::Fails => "fails",
        }
    }

    /// Returns true unless the claim fails.
    #[must_use]
    pub const fn holds(self) -> bool {
        !matches!(self, Self::Fails)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Largest deviation from the paper's effect, as a share of it: counted or on the model, and on the
/// host, whose times vary.
const SLACK: f64 = 0.25;
const SLACK_ON_HOST: f64 = 0.3;
/// A ratio in words shows an effect if it differs from 1 by this much.
const NOTICEABLE: f64 = 0.02;
/// A ratio for which the paper says "much" or "significantly" differs from 1 by this much. The
/// least for which a paper says so with a number is 22 %.
const MUCH: f64 = 0.1;
/// A ratio for which the paper says "slightly" differs from 1 by no more than this.
const SLIGHT: f64 = 0.15;
/// Ratios of "comparable", "similar" and "constant" are no farther from 1.
const ALIKE: f64 = 0.1;

/// The numbers that are stronger than the paper's.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stronger {
    /// None: the paper states a level, not an advantage.
    None,
    /// Those beyond the paper's, farther from the absence of an effect.
    Farther,
    /// Those nearer to the absence of an effect: of a cost, a smaller one.
    Nearer,
}

/// A paper's statement on a number, from which the number's verdict follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expect {
    /// The number if there were no effect.
    absence: f64,
    low: f64,
    high: f64,
    /// Largest deviation, as a share of the effect.
    slack: f64,
    stronger: Stronger,
}

impl Expect {
    const fn of(absence: f64, low: f64, high: f64, stronger: Stronger) -> Self {
        Self {
            absence,
            low,
            high,
            slack: 1.0,
            stronger,
        }
    }

    /// Returns a statement on a ratio: an effect of `paper` - 1. A stronger effect exceeds.
    #[must_use]
    pub const fn ratio(paper: f64) -> Self {
        Self::of(1.0, paper, paper, Stronger::Farther)
    }

    /// Returns a statement on several ratios, from `low` to `high`. A stronger effect exceeds.
    #[must_use]
    pub const fn range(low: f64, high: f64) -> Self {
        Self::of(1.0, low, high, Stronger::Farther)
    }

    /// Returns a statement on a ratio that is a level, not an advantage: neither more nor less of
    /// it is stronger.
    #[must_use]
    pub const fn level(paper: f64) -> Self {
        Self::ratio(paper).either_way()
    }

    /// Returns a statement on a ratio that is a cost, of which the paper says that it is small. A
    /// smaller cost exceeds. None at all fails: then nothing was charged for.
    #[must_use]
    pub const fn cost(paper: f64) -> Self {
        Self::of(1.0, paper, paper, Stronger::Nearer)
    }

    /// Returns a statement on a number that is its own effect: a count, a share, a time.
    #[must_use]
    pub const fn number(paper: f64) -> Self {
        Self::of(0.0, paper, paper, Stronger::None)
    }

    /// Returns the statement of exactly `paper`.
    #[must_use]
    pub const fn exactly(paper: f64) -> Self {
        Self::between(paper, paper)
    }

    /// Returns the statement of at least `bound`.
    #[must_use]
    pub const fn at_least(bound: f64) -> Self {
        Self::between(bound, f64::INFINITY)
    }

    /// Returns the statement of at most `bound`.
    #[must_use]
    pub const fn at_most(bound: f64) -> Self {
        Self::between(f64::NEG_INFINITY, bound)
    }

    /// Returns the statement of `low` to `high`, with no more slack.
    #[must_use]
    pub const fn between(low: f64, high: f64) -> Self {
        Self::of(0.0, low, high, Stronger::None).within(0.0)
    }

    /// Returns the statement, in words, that a ratio is above 1.
    #[must_use]
    pub const fn more() -> Self {
        Self::at_least(1.0 + NOTICEABLE)
    }

    /// Returns the statement, in words, that a ratio is below 1.
    #[must_use]
    pub const fn less() -> Self {
        Self::at_most(1.0 - NOTICEABLE)
    }

    /// Returns the statement, in words, that a ratio is far above 1.
    #[must_use]
    pub const fn much_more() -> Self {
        Self::at_least(1.0 + MUCH)
    }

    /// Returns the statement, in words, that a ratio is far below 1.
    #[must_use]
    pub const fn much_less() -> Self {
        Self::at_most(1.0 - MUCH)
    }

    /// Returns the statement, in words, that a ratio is a little above 1.
    #[must_use]
    pub const fn slightly_more() -> Self {
        Self::between(1.0 + NOTICEABLE, 1.0 + SLIGHT)
    }

    /// Returns the statement, in words, that a ratio is a little below 1.
    #[must_use]
    pub const fn slightly_less() -> Self {
        Self::between(1.0 - SLIGHT, 1.0 - NOTICEABLE)
    }

    /// Returns the statement, in words, that a ratio is about 1.
    #[must_use]
    pub const fn alike() -> Self {
        Self::between(1.0 - ALIKE, 1.0 + ALIKE)
    }

    /// Returns the statement with less slack: at most this share of the effect.
    #[must_use]
    pub const fn within(self, slack: f64) -> Self {
        Self { slack, ..self }
    }

    /// Returns the statement without a stronger side: outside the slack it fails.
    #[must_use]
    pub const fn either_way(self) -> Self {
        Self {
            stronger: Stronger::None,
            ..self
        }
    }

    /// Returns the statement of which a larger number is stronger.
    #[must_use]
    pub const fn more_is_better(self) -> Self {
        Self {
            stronger: Stronger::Farther,
            ..self
        }
    }

    /// Returns the statement of which a smaller number, above 0, is stronger.
    #[must_use]
    pub const fn less_is_better(self) -> Self {
        Self {
            stronger: Stronger::Nearer,
            ..self
        }
    }

    /// Returns the numbers of each verdict, at a place.
    #[must_use]
    pub fn bands(self, on: On) -> Bands {
        let most = match on {
            On::Counted | On::Model => SLACK,
            On::Host => SLACK_ON_HOST,
        };
        let slack = self.slack.min(most);
        // An open end has no slack, and infinity times 0 is no number.
        let outside = |end: f64| {
            if slack == 0.0 {
                0.0
            } else {
                slack * (end - self.absence).abs()
            }
        };
        let (low, high) = (
            rounded(self.low - outside(self.low), DIGITS),
            rounded(self.high + outside(self.high), DIGITS),
        );
        let above = self.low >= self.absence;
        let exceeds = match self.stronger {
            Stronger::None => None,
            Stronger::Farther if above => Some((high, f64::INFINITY)),
            Stronger::Farther => Some((f64::NEG_INFINITY, low)),
            Stronger::Nearer if above => Some((self.absence, low)),
            Stronger::Nearer => Some((high, self.absence)),
        };
        Bands { low, high, exceeds }
    }
}

/// Digits of the ends of a band.
const DIGITS: i32 = 5;

/// Returns a number rounded to so many digits, without the zeros before the first one.
pub(super) fn rounded(number: f64, digits: i32) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return number;
    }
    format!("{number:.*e}", (digits - 1) as usize)
        .parse()
        .unwrap_or(number)
}

/// The measured numbers of each verdict. All others fail, and so does what is no number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bands {
    /// From `low` to `high` the claim holds.
    low: f64,
    high: f64,
    /// Between these, without the ends, the measurement exceeds the claim.
    exceeds: Option<(f64, f64)>,
}

impl Bands {
    /// Returns the ends between which a claim holds; an open one is infinite.
    #[must_use]
    pub fn holds(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    /// Returns the ends between which a measurement exceeds the claim.
    #[must_use]
    pub fn exceeds(&self) -> Option<(f64, f64)> {
        self.exceeds
    }

    /// Returns the verdict on a measured number.
    #[must_use]
    pub fn verdict(&self, measured: f64) -> Verdict {
        if !measured.is_finite() {
            return Verdict::Fails;
        }
        if self.low <= measured && measured <= self.high {
            return Verdict::Holds;
        }
        match self.exceeds {
            Some((low, high)) if low < measured && measured < high => Verdict::Exceeds,
            _ => Verdict::Fails,
        }
    }
}

/// Words that are not those of a band.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoBands(String);

impl fmt::Display for NoBands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no tolerance", self.0)
    }
}

impl std::error::Error for NoBands {}

impl FromStr for Bands {
    type Err = NoBands;

    /// Returns the bands that these words are of.
    fn from_str(words: &str) -> Result<Self, NoBands> {
        let number = |text: &str| text.parse::<f64>().ok().filter(|n| n.is_finite());
        let pair = |text: &str, between: &str| {
            let (low, high) = text.split_once(between)?;
            Some((number(low)?, number(high)?))
        };
        let bands = || {
            let (holds, stronger) = match words.split_once("; ") {
                Some((holds, stronger)) => (holds, stronger.strip_suffix(" exceeds")),
                None => (words, Some("none")),
            };
            let (low, high) = if let Some(value) = holds.strip_prefix("exactly ") {
                (number(value)?, number(value)?)
            } else if let Some(low) = holds.strip_prefix("at least ") {
                (number(low)?, f64::INFINITY)
            } else if let Some(high) = holds.strip_prefix("at most ") {
                (f64::NEG_INFINITY, number(high)?)
            } else {
                pair(holds, " to ")?
            };
            let exceeds = match stronger? {
                "none" => None,
                "more" => Some((high, f64::INFINITY)),
                "less" => Some((f64::NEG_INFINITY, low)),
                between => Some(pair(between.strip_prefix("between ")?, " and ")?),
            };
            Some(Self { low, high, exceeds })
        };
        bands().ok_or_else(|| NoBands(words.to_owned()))
    }
}

impl fmt::Display for Bands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = (self.low, self.high);
        let mut words = if low == high {
            format!("exactly {low}")
        } else if high == f64::INFINITY {
            format!("at least {low}")
        } else if low == f64::NEG_INFINITY {
            format!("at most {high}")
        } else {
            format!("{low} to {high}")
        };
        match self.exceeds {
            None => {}
            Some((_, f64::INFINITY)) => words.push_str("; more exceeds"),
            Some((f64::NEG_INFINITY, _)) => words.push_str("; less exceeds"),
            Some((low, high)) => words.push_str(&format!("; between {low} and {high} exceeds")),
        }
        f.pad(&words)
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
    /// The values of `measured` with which the claim holds, and those that exceed it.
    pub tolerance: String,
    /// The verdict.
    pub verdict: Verdict,
    /// True unless the claim fails.
    pub holds: bool,
    /// A note on the measurement; may be empty.
    pub note: String,
    #[serde(skip)]
    expect: Expect,
}

impl Claim {
    /// Returns a claim with the verdict that `expect` has on `measured` counted or on the model.
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
            tolerance: String::new(),
            verdict: Verdict::Fails,
            holds: false,
            note: String::new(),
            expect,
        }
        .judged(On::Model)
    }

    /// Returns the claim with the verdict and the tolerance of a place.
    #[must_use]
    pub(super) fn judged(mut self, on: On) -> Self {
        let bands = self.expect.bands(on);
        self.tolerance = bands.to_string();
        self.verdict = bands.verdict(self.measured);
        self.holds = self.verdict.holds();
        self
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
    use Verdict::{Exceeds, Fails, Holds};

    /// Asserts the words of a statement at a place, and the verdicts on some numbers.
    #[track_caller]
    fn judges(expect: Expect, on: On, words: &str, verdicts: &[(f64, Verdict)]) {
        let bands = expect.bands(on);
        assert_eq!(bands.to_string(), words);
        assert_eq!(words.parse(), Ok(bands));
        for (measured, verdict) in verdicts {
            assert_eq!(bands.verdict(*measured), *verdict, "{words}: {measured}");
        }
        for measured in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(bands.verdict(measured), Fails, "{words}: {measured}");
        }
    }

    #[test]
    fn a_quarter_of_the_effect_is_allowed_and_more_of_it_exceeds() {
        let above = [
            (1.0, Fails),
            (0.6, Fails),
            (1.3074, Fails),
            (1.3075, Holds),
            (1.41, Holds),
            (1.5125, Holds),
            (1.5126, Exceeds),
            (79.0, Exceeds),
        ];
        let ratio = Expect::ratio(1.41);
        judges(ratio, On::Model, "1.3075 to 1.5125; more exceeds", &above);
        assert_eq!(ratio.bands(On::Counted), ratio.bands(On::Model));
        let below = [
            (1.0, Fails),
            (1.3, Fails),
            (0.7226, Fails),
            (0.7225, Holds),
            (0.5375, Holds),
            (0.5374, Exceeds),
        ];
        let words = "0.5375 to 0.7225; less exceeds";
        judges(Expect::ratio(0.63), On::Model, words, &below);
    }

    #[test]
    fn the_host_has_thirty_percent_of_the_effect() {
        let verdicts = [(1.286, Fails), (1.287, Holds), (1.534, Exceeds)];
        let words = "1.287 to 1.533; more exceeds";
        judges(Expect::ratio(1.41), On::Host, words, &verdicts);
        let words = "1.369 to 1.451; more exceeds";
        let closer = Expect::ratio(1.41).within(0.1);
        judges(closer, On::Host, words, &[(1.36, Fails), (1.37, Holds)]);
        assert_eq!(closer.bands(On::Host), closer.bands(On::Model));
    }

    #[test]
    fn a_level_fails_on_either_side() {
        let verdicts = [(1.57, Fails), (1.77, Holds), (1.97, Fails), (1.0, Fails)];
        judges(
            Expect::level(1.77),
            On::Model,
            "1.5775 to 1.9625",
            &verdicts,
        );
        let verdicts = [(1.79, Fails), (2.5, Holds), (3.21, Fails)];
        let range = Expect::range(2.0, 3.0).within(0.1).either_way();
        judges(range, On::Model, "1.9 to 3.2", &verdicts);
    }

    #[test]
    fn a_smaller_cost_exceeds_and_none_fails() {
        let words = "0.9375 to 0.9625; between 0.9625 and 1 exceeds";
        let verdicts = [
            (0.93, Fails),
            (0.95, Holds),
            (0.97, Exceeds),
            (1.0, Fails),
            (1.1, Fails),
        ];
        judges(Expect::cost(0.95), On::Model, words, &verdicts);
        let words = "1.15 to 1.25; between 1 and 1.15 exceeds";
        let verdicts = [
            (1.26, Fails),
            (1.2, Holds),
            (1.1, Exceeds),
            (1.0, Fails),
            (0.9, Fails),
        ];
        judges(Expect::cost(1.2), On::Model, words, &verdicts);
    }

    #[test]
    fn a_number_is_its_own_effect() {
        let verdicts = [(259.0, Fails), (305.0, Holds), (351.0, Fails)];
        let words = "259.25 to 350.75";
        judges(
            Expect::number(305.0).within(0.15),
            On::Model,
            words,
            &verdicts,
        );
        let words = "9 to 15; between 0 and 9 exceeds";
        let verdicts = [(15.1, Fails), (12.0, Holds), (5.0, Exceeds), (0.0, Fails)];
        let less = Expect::number(12.0).less_is_better();
        judges(less, On::Model, words, &verdicts);
        let words = "0.093 to 0.155; more exceeds";
        let verdicts = [(0.09, Fails), (0.1, Holds), (0.2, Exceeds), (-0.1, Fails)];
        let more = Expect::number(0.124).more_is_better();
        judges(more, On::Model, words, &verdicts);
        judges(
            Expect::number(0.0),
            On::Model,
            "exactly 0",
            &[(0.0, Holds), (0.1, Fails)],
        );
    }

    #[test]
    fn words_refuse_no_effect_and_the_opposite() {
        for (expect, words, met, missed) in [
            (Expect::at_least(1.35), "at least 1.35", 1.35, 1.3499),
            (Expect::at_most(1.31), "at most 1.31", 1.31, 1.3101),
            (Expect::exactly(2.0), "exactly 2", 2.0, 2.000_001),
            (Expect::between(0.98, 1.02), "0.98 to 1.02", 1.02, 1.021),
            (Expect::alike(), "0.9 to 1.1", 1.09, 1.11),
            (Expect::more(), "at least 1.02", 1.03, 1.0),
            (Expect::less(), "at most 0.98", 0.97, 1.0),
            (Expect::much_more(), "at least 1.1", 1.2, 1.05),
            (Expect::much_less(), "at most 0.9", 0.8, 0.95),
            (Expect::slightly_more(), "1.02 to 1.15", 1.1, 1.2),
            (Expect::slightly_less(), "0.85 to 0.98", 0.9, 0.8),
        ] {
            judges(expect, On::Host, words, &[(met, Holds), (missed, Fails)]);
        }
        for effect in [
            Expect::more(),
            Expect::less(),
            Expect::much_more(),
            Expect::much_less(),
            Expect::slightly_more(),
            Expect::slightly_less(),
        ] {
            assert_eq!(effect.bands(On::Host).verdict(1.0), Fails, "{effect:?}");
        }
    }

    #[test]
    fn words_of_no_band_are_refused() {
        for words in [
            "",
            "1",
            "1 to",
            "1 to x",
            "at least",
            "at most NaN",
            "exactly inf",
            "1 to 2; more",
            "1 to 2; much exceeds",
            "1 to 2; between 1 exceeds",
        ] {
            let refused = words.parse::<Bands>().unwrap_err().to_string();
            assert!(refused.contains(words) && refused.contains("no tolerance"));
        }
    }

    #[test]
    fn no_slack_reaches_the_effect_s_absence() {
        for paper in [0.05, 0.27, 0.95, 1.02, 1.41, 20.0] {
            for expect in [
                Expect::ratio(paper),
                Expect::level(paper),
                Expect::cost(paper),
            ] {
                for on in [On::Counted, On::Model, On::Host] {
                    let bands = expect.bands(on);
                    let opposite = 1.0 - (paper - 1.0);
                    for measured in [1.0, opposite] {
                        assert_eq!(bands.verdict(measured), Fails, "{bands}: {measured}");
                    }
                    assert_eq!(bands.verdict(paper), Holds, "{bands}: {paper}");
                }
            }
        }
    }

    #[test]
    fn a_claim_in_json_has_the_fields_that_scripts_rely_on() {
        let expect = Expect::number(305.0).within(0.15);
        let claim = Claim::new("reads", 305.0, 310.5, expect).note("random");
        assert_eq!(
            serde_json::to_string(&claim).unwrap(),
            r#"{"claim":"reads","paper":305.0,"measured":310.5,"tolerance":"259.25 to 350.75","verdict":"holds","holds":true,"note":"random"}"#
        );
        let claim = Claim::new("faster", "1.2-1.24x", 0.5, Expect::range(1.2, 1.24));
        assert!(!claim.holds && claim.paper == "1.2-1.24x".into());
        let claim = Claim::new("faster", 1.2, 2.0, Expect::ratio(1.2));
        assert_eq!((claim.holds, claim.verdict), (true, Exceeds));
    }

    #[test]
    fn a_claim_is_judged_where_it_was_measured() {
        let claim = Claim::new("faster", 1.4, 1.29, Expect::ratio(1.4));
        assert_eq!(claim.verdict, Fails);
        let claim = claim.judged(On::Host);
        assert_eq!((claim.verdict, claim.holds), (Holds, true));
        assert_eq!(claim.tolerance, "1.28 to 1.52; more exceeds");
    }
}
