//! A claim as a strip: where it holds, what exceeds it, the paper's number and the measured one.
//!
//! ```text
//!        holds       exceeds
//!      |#######|::::::::::::::::
//!  --------<>---------o----------   <> the paper, o here
//! ```

use crate::figure::{Bands, Stated};
use maud::{Markup, html};

/// Width and height in units of the drawing.
const WIDTH: f64 = 220.0;
const HEIGHT: f64 = 22.0;
/// Distance of the outermost marks from the ends.
const EDGE: f64 = 14.0;
/// Numbers of which one is this many times another are drawn by their logarithms.
const TIMES: f64 = 20.0;

/// Returns the strip of a claim; nothing if there is no number to mark.
pub(super) fn strip(bands: &Bands, paper: &Stated, measured: Option<f64>) -> Markup {
    let paper = match paper {
        Stated::Number(number) => Some(*number),
        Stated::Words(_) => None,
    };
    let (low, high) = bands.holds();
    let exceeds = bands.exceeds();
    let ends = exceeds.map_or([low, high], |(from, to)| [from, to]);
    let marks: Vec<f64> = [Some(low), Some(high), paper, measured]
        .into_iter()
        .flatten()
        .chain(ends)
        .filter(|mark| mark.is_finite())
        .collect();
    let Some(measured) = measured.filter(|measured| measured.is_finite()) else {
        return html! {};
    };
    let axis = Axis::over(&marks);
    let span = |(from, to): (f64, f64)| {
        let (from, to) = (axis.at(from), axis.at(to));
        (from, (to - from).max(2.0))
    };
    let (holds, width) = span((low, high));
    html! {
        svg.strip viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) aria-hidden="true" {
            line.axis x1="0" x2=(WIDTH) y1="11" y2="11" {}
            @if let Some(exceeds) = exceeds {
                @let (from, width) = span(exceeds);
                rect.exceeds x=(shown(from)) y="6" width=(shown(width)) height="10" {}
            }
            rect.holds x=(shown(holds)) y="4" width=(shown(width)) height="14" {}
            @if let Some(paper) = paper {
                @let x = axis.at(paper);
                path.paper d=(format!("M{0} 3 L{1} 11 L{0} 19 L{2} 11 Z", shown(x), shown(x + 5.0), shown(x - 5.0))) {}
            }
            circle.here cx=(shown(axis.at(measured))) cy="11" r="4.5" {}
        }
    }
}

fn shown(place: f64) -> String {
    format!("{place:.1}")
}

/// The places of numbers along a strip.
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    fn over(marks: &[f64]) -> Self {
        let low = marks.iter().copied().fold(f64::INFINITY, f64::min);
        let high = marks.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self {
            low,
            high,
            logarithmic: low > 0.0 && high >= low * TIMES,
        }
    }

    /// Returns the place of a number: one that lies outside is at the end.
    fn at(&self, number: f64) -> f64 {
        let share = if self.low == self.high {
            match number.partial_cmp(&self.low) {
                Some(std::cmp::Ordering::Less) => return 0.0,
                Some(std::cmp::Ordering::Greater) => return WIDTH,
                _ => 0.5,
            }
        } else if self.logarithmic {
            (number.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (number - self.low) / (self.high - self.low)
        };
        (EDGE + share * (WIDTH - 2.0 * EDGE)).clamp(0.0, WIDTH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_lie_within_the_strip_and_in_order() {
        let axis = Axis::over(&[1.0, 1.4, 2.0]);
        assert!(!axis.logarithmic);
        let places = [f64::NEG_INFINITY, 1.0, 1.5, 2.0, f64::INFINITY].map(|n| axis.at(n));
        assert_eq!(places, [0.0, EDGE, WIDTH / 2.0, WIDTH - EDGE, WIDTH]);
        let axis = Axis::over(&[1.0, 100.0]);
        assert!(axis.logarithmic && (axis.at(10.0) - WIDTH / 2.0).abs() < 1e-9);
        assert_eq!(axis.at(0.0), 0.0);
        let one = Axis::over(&[2.0]);
        assert_eq!(
            [1.0, 2.0, 3.0].map(|n| one.at(n)),
            [0.0, WIDTH / 2.0, WIDTH]
        );
    }

    #[test]
    fn a_strip_has_what_the_claim_has() {
        let bands: Bands = "1.3 to 1.5; more exceeds".parse().unwrap();
        let all = strip(&bands, &1.4.into(), Some(1.7)).into_string();
        for part in [
            "class=\"exceeds\"",
            "class=\"holds\"",
            "class=\"paper\"",
            "class=\"here\"",
        ] {
            assert!(all.contains(part), "{part}: {all}");
        }
        let bands: Bands = "at least 1.02".parse().unwrap();
        let words = strip(&bands, &"more".into(), Some(1.7)).into_string();
        assert!(!words.contains("paper") && !words.contains("exceeds") && words.contains("here"));
        assert_eq!(strip(&bands, &"more".into(), None).into_string(), "");
        assert!(!all.contains("NaN") && !words.contains("inf"));
    }
}
