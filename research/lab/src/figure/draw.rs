//! The drawing of a figure: its panels side by side, as SVG.
//!
//! Text is not converted to outlines and uses a sans-serif face of the viewer. The same numbers
//! give the same file.

use super::{Panel, Places};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::RGBColor;
use std::ops::Range;

/// Size of a panel in pixels.
const PANEL: (u32, u32) = (460, 340);
/// Largest number of panels in a row.
const ACROSS: usize = 3;
/// Height of the figure's title.
const TITLE: u32 = 34;
/// Colours that people with any common kind of colour vision can distinguish (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(0, 0, 0),
];
/// Share of a place that its group of bars takes.
const GROUP: f64 = 0.8;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Returns `title` over `panels` as the text of an SVG file.
pub(super) fn svg(title: &str, panels: &[Panel]) -> Result<String, Box<dyn std::error::Error>> {
    let down = panels.len().div_ceil(ACROSS).max(1);
    let across = panels.len().div_ceil(down).max(1);
    let size = (PANEL.0 * across as u32, TITLE + PANEL.1 * down as u32);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        let root = root.titled(title, ("sans-serif", 18))?;
        for (area, panel) in root.split_evenly((down, across)).iter().zip(panels) {
            draw(area, panel, true)?;
        }
        root.present()?;
    }
    Ok(text)
}

/// The ends of an axis, whose equal distances are equal differences or equal ratios.
struct Ends {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Ends {
    /// Returns true if numbers are better shown by their logarithms: all are above zero, and the
    /// largest is at least so many times the smallest.
    fn far_apart(numbers: impl Iterator<Item = f64> + Clone, times: f64) -> bool {
        let low = numbers.clone().fold(f64::INFINITY, f64::min);
        low > 0.0 && low.is_finite() && numbers.fold(0.0, f64::max) >= low * times
    }

    fn map(&self, value: f64, limit: (i32, i32)) -> i32 {
        let (low, high) = (self.low, self.high);
        let share = if self.logarithmic {
            (value.max(low) / low).ln() / (high / low).ln()
        } else {
            (value - low) / (high - low)
        };
        limit.0 + (f64::from(limit.1 - limit.0) * share).round() as i32
    }
}

/// The horizontal axis: marked at each number, or in the middle of each group.
struct Axis<'a> {
    ends: Ends,
    marks: Vec<f64>,
    places: &'a Places,
}

impl<'a> Axis<'a> {
    /// Numbers of which one is this many times another are drawn by their logarithms.
    const TIMES: f64 = 16.0;

    fn of(places: &'a Places) -> Self {
        let (low, high, marks) = match places {
            Places::Words(words) => {
                let middles = (0..words.len()).map(|i| i as f64 + 0.5).collect();
                (0.0, words.len().max(1) as f64, middles)
            }
            Places::Numbers(xs) => {
                let low = xs.iter().copied().fold(f64::INFINITY, f64::min);
                let high = xs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                if low < high {
                    (low, high, xs.clone())
                } else {
                    (low - 1.0, low + 1.0, xs.clone())
                }
            }
        };
        let logarithmic = match places {
            Places::Words(_) => false,
            Places::Numbers(xs) => Ends::far_apart(xs.iter().copied(), Self::TIMES),
        };
        Self {
            ends: Ends {
                low,
                high,
                logarithmic,
            },
            marks,
            places,
        }
    }
}

impl Ranged for Axis<'_> {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.ends.map(*value, limit)
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.ends.low..self.ends.high
    }
}

impl ValueFormatter<f64> for Axis<'_> {
    fn format_ext(&self, value: &f64) -> String {
        match self.places {
            Places::Words(words) => words.get(*value as usize).cloned().unwrap_or_default(),
            Places::Numbers(_) => short(*value),
        }
    }
}

/// The vertical axis.
struct Heights(Ends);

impl Heights {
    /// Numbers of which one is this many times another are drawn by their logarithms.
    const TIMES: f64 = 100.0;

    fn of(panel: &Panel) -> Self {
        let all = panel.series.iter().flat_map(|s| s.values.iter().copied());
        let values = all.filter(|value| value.is_finite());
        let top = values.clone().fold(0.0, f64::max);
        if Ends::far_apart(values.clone(), Self::TIMES) {
            let least = values.fold(f64::INFINITY, f64::min);
            let low = 10f64.powf(least.log10().floor());
            return Self(Ends {
                low,
                high: top * (top / low).powf(0.2),
                logarithmic: true,
            });
        }
        let low = values.fold(0.0, f64::min);
        Self(Ends {
            low,
            // A panel of zeroes still needs an axis.
            high: if top > low { top * 1.25 } else { 1.0 },
            logarithmic: false,
        })
    }

    /// Returns where a bar begins.
    fn ground(&self) -> f64 {
        if self.0.logarithmic { self.0.low } else { 0.0 }
    }
}

impl Ranged for Heights {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.0.map(*value, limit)
    }

    fn key_points<H: KeyPointHint>(&self, hint: H) -> Vec<f64> {
        if !self.0.logarithmic {
            return RangedCoordf64::from(self.range()).key_points(hint);
        }
        let powers = self.0.low.log10().round() as i32..=self.0.high.log10().floor() as i32;
        powers.map(|power| 10f64.powi(power)).collect()
    }

    fn range(&self) -> Range<f64> {
        self.0.low..self.0.high
    }
}

impl ValueFormatter<f64> for Heights {
    fn format_ext(&self, value: &f64) -> String {
        short(*value)
    }
}

fn colour(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

/// Returns the colour of a series as a style sheet has it.
pub(crate) fn colour_of(series: usize) -> String {
    let RGBColor(red, green, blue) = colour(series);
    themed(&format!("#{red:02X}{green:02X}{blue:02X}"))
}

/// Returns a drawing, or a colour, in which black is the colour of the text around it.
fn themed(drawing: &str) -> String {
    drawing.replace("#000000", "currentColor")
}

/// Returns a panel without its title and the names of its series, as SVG for a page of either
/// colour scheme.
pub(crate) fn plot(panel: &Panel) -> Result<String, Box<dyn std::error::Error>> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, PANEL).into_drawing_area();
        draw(&root, panel, false)?;
        root.present()?;
    }
    // Without a size it takes the width of its place; the view box keeps its shape.
    let (width, height) = PANEL;
    let sized = format!("<svg width=\"{width}\" height=\"{height}\"");
    Ok(themed(&text).replacen(&sized, "<svg role=\"img\"", 1))
}

fn draw(area: &Area<'_>, panel: &Panel, titled: bool) -> Drawn {
    let mut builder = ChartBuilder::on(area);
    builder
        .margin(10)
        .x_label_area_size(42)
        .y_label_area_size(58);
    if titled {
        builder.caption(&panel.title, ("sans-serif", 15));
    }
    let heights = Heights::of(panel);
    let ground = heights.ground();
    let mut chart = builder.build_cartesian_2d(Axis::of(&panel.places), heights)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(panel.places.len().clamp(2, 12))
        .x_desc(&panel.x)
        .y_desc(&panel.y)
        .label_style(("sans-serif", 12))
        .axis_desc_style(("sans-serif", 13))
        .draw()?;
    for (i, series) in panel.series.iter().enumerate() {
        let fill = colour(i).filled();
        let drawn = match &panel.places {
            Places::Words(_) => {
                let width = GROUP / panel.series.len() as f64;
                let bars = series.values.iter().enumerate().map(|(place, value)| {
                    let left = place as f64 + (1.0 - GROUP) / 2.0 + width * i as f64;
                    let value = if value.is_finite() { *value } else { ground };
                    Rectangle::new([(left, ground), (left + width * 0.95, value)], fill)
                });
                chart.draw_series(bars)?
            }
            Places::Numbers(xs) => {
                let points: Vec<(f64, f64)> = xs
                    .iter()
                    .copied()
                    .zip(series.values.iter().copied())
                    .filter(|(_, y)| y.is_finite())
                    .collect();
                let line = LineSeries::new(points.iter().copied(), colour(i).stroke_width(2));
                chart.draw_series(line)?;
                chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, fill)))?
            }
        };
        drawn
            .label(series.name.as_str())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], fill));
    }
    if titled {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .label_font(("sans-serif", 12))
            .draw()?;
    }
    Ok(())
}

/// Formats a number for an axis: 50K, 1.5M, 0.25.
fn short(number: f64) -> String {
    for (unit, name) in [(1e9, "G"), (1e6, "M"), (1e3, "K")] {
        if number.abs() >= unit {
            return format!("{}{name}", (number / unit * 100.0).round() / 100.0);
        }
    }
    format!("{}", (number * 1000.0).round() / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_labelled_shortly() {
        let shown = [0.0, 0.25, 12.0, 50_000.0, 1_500_000.0, -2_000.0].map(short);
        assert_eq!(shown, ["0", "0.25", "12", "50K", "1.5M", "-2K"]);
    }

    #[test]
    fn numbers_far_apart_are_drawn_by_their_logarithms() {
        let heights = |values| {
            let panel = Panel::bars("t", "x", "y", ["a", "b"]).with("s", values);
            Heights::of(&panel)
        };
        let far = heights(vec![20.0, 2000.0]);
        assert!(far.0.logarithmic && far.ground() == 10.0 && far.0.high > 2000.0);
        let at = |value: f64| far.map(&value, (300, 0));
        assert_eq!((at(10.0), at(0.0), at(far.0.high)), (300, 300, 0));
        let decades = [at(10.0) - at(100.0), at(100.0) - at(1000.0)];
        assert!(decades[0].abs_diff(decades[1]) <= 1, "{decades:?}");
        assert_eq!(far.key_points(10), [10.0, 100.0, 1000.0]);
        for near in [
            vec![20.0, 1999.0],
            vec![0.0, 2000.0],
            vec![-1.0, 2000.0],
            vec![f64::NAN, f64::NAN],
        ] {
            assert!(!heights(near).0.logarithmic);
        }
        let places = |numbers: &[f64]| Places::Numbers(numbers.to_vec());
        let (far, near) = (places(&[1.0, 4.0, 16.0]), places(&[0.0, 4.0, 16.0]));
        let middle = |places| Axis::of(places).map(&4.0, (0, 100));
        assert_eq!((middle(&far), middle(&near)), (50, 25));
    }

    #[test]
    fn a_plot_is_black_where_its_page_s_text_is() {
        let panel = Panel::lines("dense", "insertions", "ms", [50e3, 100e3]);
        let text = plot(&panel.with("lbtree", vec![1.5, 3.0])).unwrap();
        assert!(
            text.contains("currentColor") && !text.contains("#000000"),
            "{text}"
        );
        assert!(text.contains("insertions") && !text.contains("lbtree") && !text.contains("dense"));
        assert_eq!(colour_of(0), "#0072B2");
        assert_eq!(colour_of(6), "currentColor");
    }

    #[test]
    fn lines_and_bars_are_drawn_with_their_names() {
        let panels = [
            Panel::lines("dense", "insertions", "ms", [50e3, 100e3])
                .with("lbtree", vec![1.5, 3.0])
                .with("other < one", vec![2.0, 4.25]),
            Panel::bars("latency", "access", "ns", ["read", "write"])
                .with("paper", vec![305.0, 90.0])
                .with("model", vec![300.0, f64::NAN]),
            Panel::bars("nothing", "", "", []),
            Panel::lines("one point", "x", "y", [3.0]).with("flat", vec![0.0]),
        ];
        let text = svg("lb-fig11: insertion time", &panels).unwrap();
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
        for part in [
            "lb-fig11: insertion time",
            "insertions",
            "lbtree",
            "other &lt; one",
            "50K",
            "latency",
            "read",
            "write",
            "model",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert_eq!(text, svg("lb-fig11: insertion time", &panels).unwrap());
    }
}
