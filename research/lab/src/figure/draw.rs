//! The drawing of a figure: its panels side by side, as SVG.
//!
//! Text is not converted to outlines and uses a sans-serif face of the viewer. The same numbers
//! give the same file.

use super::{Panel, Places};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
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
            draw(area, panel)?;
        }
        root.present()?;
    }
    Ok(text)
}

/// The horizontal axis: marked at each number, or in the middle of each group.
struct Axis<'a> {
    ends: Range<f64>,
    marks: Vec<f64>,
    places: &'a Places,
}

impl<'a> Axis<'a> {
    fn of(places: &'a Places) -> Self {
        let (ends, marks) = match places {
            Places::Words(words) => {
                let middles = (0..words.len()).map(|i| i as f64 + 0.5).collect();
                (0.0..words.len().max(1) as f64, middles)
            }
            Places::Numbers(xs) => {
                let low = xs.iter().copied().fold(f64::INFINITY, f64::min);
                let high = xs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let ends = if low < high {
                    low..high
                } else {
                    low - 1.0..low + 1.0
                };
                (ends, xs.clone())
            }
        };
        Self {
            ends,
            marks,
            places,
        }
    }
}

impl Ranged for Axis<'_> {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.ends.start) / (self.ends.end - self.ends.start);
        limit.0 + (f64::from(limit.1 - limit.0) * share).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.ends.clone()
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

fn colour(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

fn draw(area: &Area<'_>, panel: &Panel) -> Drawn {
    let finite = |v: &&f64| v.is_finite();
    let values = || panel.series.iter().flat_map(|s| &s.values).filter(finite);
    let top = values().copied().fold(0.0, f64::max);
    let bottom = values().copied().fold(0.0, f64::min);
    // A panel of zeroes still needs an axis.
    let top = if top > bottom { top * 1.25 } else { 1.0 };
    let mut builder = ChartBuilder::on(area);
    builder
        .margin(10)
        .caption(&panel.title, ("sans-serif", 15))
        .x_label_area_size(42)
        .y_label_area_size(58);
    let mut chart = builder.build_cartesian_2d(Axis::of(&panel.places), bottom..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(panel.places.len().clamp(2, 12))
        .y_label_formatter(&|y| short(*y))
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
                    let value = if value.is_finite() { *value } else { 0.0 };
                    Rectangle::new([(left, 0.0), (left + width * 0.95, value)], fill)
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
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .label_font(("sans-serif", 12))
        .draw()?;
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
