//! The comparison as a picture: for each directory and size of values a panel of bars over a
//! logarithmic axis.
//!
//! ```text
//! title of the panel                                legend
//! 1000 |      |              a bar is the median of the rounds, its whisker goes from the slowest
//!  100 |  ||| | ||| ...      to the fastest round, the number above it is the median
//!      +------------------
//!        load   insert       the operation, and the first engine's ratio to the fastest other one
//! ```
//!
//! Text is not converted to outlines. The same numbers give the same file.

use super::report::{EngineReport, OperationReport, Ratio, Report, Run, short};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Width of the picture in pixels.
const WIDTH: i32 = 980;
/// Height of a panel, from its title to the last line under its axis.
const PANEL: i32 = 330;
/// Height of the bars' area.
const PLOT: i32 = 210;
/// Height of what is under the panels.
const FOOT: i32 = 82;
/// Left and right end of the bars' area.
const LEFT: i32 = 74;
const RIGHT: i32 = WIDTH - 16;
/// Distance from a panel's upper edge to its bars' area.
const TOP: i32 = 46;
/// Share of an operation's place that its bars take.
const GROUP: f64 = 0.86;

/// Colours that people with any common kind of colour vision can distinguish (Okabe and Ito).
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
];
const TEXT: RGBColor = RGBColor(30, 30, 30);
const FAINT: RGBColor = RGBColor(105, 105, 105);
const GRID: RGBColor = RGBColor(222, 222, 222);
const FASTER: RGBColor = RGBColor(0, 100, 60);
const SLOWER: RGBColor = RGBColor(178, 60, 0);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Returns the report as the text of an SVG file.
///
/// # Errors
/// An error of the drawing library, which has none for a picture in memory.
pub fn draw(report: &Report) -> Result<String, Box<dyn std::error::Error>> {
    let height = PANEL * report.runs.len() as i32 + FOOT;
    let mut text = String::new();
    {
        let size = (WIDTH as u32, height as u32);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        for (place, run) in report.runs.iter().enumerate() {
            Panel::new(&root, run, PANEL * place as i32).draw()?;
        }
        foot(&root, report, height - FOOT)?;
        root.present()?;
    }
    Ok(text)
}

/// Draws text at a point of the picture.
struct Label<'a, 'b> {
    area: &'a Area<'b>,
    size: i32,
    colour: RGBColor,
    bold: bool,
    across: HPos,
}

impl<'a, 'b> Label<'a, 'b> {
    fn new(area: &'a Area<'b>, size: i32, colour: RGBColor) -> Self {
        Self {
            area,
            size,
            colour,
            bold: false,
            across: HPos::Center,
        }
    }

    fn bold(self) -> Self {
        Self { bold: true, ..self }
    }

    fn across(self, across: HPos) -> Self {
        Self { across, ..self }
    }

    fn at(&self, text: &str, x: i32, y: i32) -> Drawn {
        let face = if self.bold {
            FontStyle::Bold
        } else {
            FontStyle::Normal
        };
        let font = FontDesc::new(FontFamily::SansSerif, f64::from(self.size), face);
        let style = TextStyle::from(font)
            .color(&self.colour)
            .pos(Pos::new(self.across, VPos::Center));
        self.area.draw(&Text::new(text, (x, y), style))?;
        Ok(())
    }
}

/// Draws one comparison, from `top` on.
struct Panel<'a, 'b> {
    area: &'a Area<'b>,
    run: &'a Run,
    top: i32,
    /// Decades of the axis: from 10^low to 10^high thousand operations a second.
    low: i32,
    high: i32,
}

impl<'a, 'b> Panel<'a, 'b> {
    fn new(area: &'a Area<'b>, run: &'a Run, top: i32) -> Self {
        let rates = run.operations.iter().flat_map(|of| &of.kops);
        let ends = rates.fold((f64::INFINITY, 1.0_f64), |(low, high), rate| {
            (low.min(rate.min), high.max(rate.max))
        });
        // The axis does not begin below 1 operation a second.
        let low = ends.0.clamp(1e-3, 1e6).log10().floor() as i32;
        // This leaves room for the number above the highest bar.
        let high = ((ends.1 * 1.6).log10().ceil() as i32).max(low + 1);
        Self {
            area,
            run,
            top,
            low,
            high,
        }
    }

    /// Returns the height of a rate in the picture.
    fn y(&self, kops: f64) -> i32 {
        let share =
            (kops.max(1e-9).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        self.top + TOP + PLOT - (share.clamp(0.0, 1.0) * f64::from(PLOT)).round() as i32
    }

    fn draw(&self) -> Drawn {
        Label::new(self.area, 17, TEXT)
            .bold()
            .across(HPos::Left)
            .at(&title(self.run), 14, self.top + 18)?;
        self.legend()?;
        self.axis()?;
        let places = self.run.operations.len().max(1) as f64;
        let wide = f64::from(RIGHT - LEFT) / places;
        for (place, operation) in self.run.operations.iter().enumerate() {
            self.group(operation, f64::from(LEFT) + wide * place as f64, wide)?;
        }
        Ok(())
    }

    fn legend(&self) -> Drawn {
        // Estimates the width of a name, its square and the gap after it.
        let width = |engine: &EngineReport| 34 + 8 * engine.name.len() as i32;
        let mut x = RIGHT - self.run.engines.iter().map(width).sum::<i32>();
        let label = Label::new(self.area, 14, TEXT).across(HPos::Left);
        for (engine, colour) in self.run.engines.iter().zip(COLOURS) {
            let square = [(x, self.top + 12), (x + 12, self.top + 24)];
            self.area.draw(&Rectangle::new(square, colour.filled()))?;
            label.at(engine.name, x + 17, self.top + 18)?;
            x += width(engine);
        }
        Ok(())
    }

    fn axis(&self) -> Drawn {
        let label = Label::new(self.area, 13, FAINT).across(HPos::Right);
        for decade in self.low..=self.high {
            let y = self.y(10_f64.powi(decade));
            let line = [(LEFT, y), (RIGHT, y)];
            self.area.draw(&PathElement::new(line, GRID))?;
            label.at(&decade_name(decade), LEFT - 7, y)?;
        }
        let base = [(LEFT, self.y(0.0)), (RIGHT, self.y(0.0))];
        self.area.draw(&PathElement::new(base, FAINT))?;
        let font = FontDesc::new(FontFamily::SansSerif, 13.0, FontStyle::Normal)
            .transform(FontTransform::Rotate270);
        let style = TextStyle::from(font)
            .color(&FAINT)
            .pos(Pos::new(HPos::Center, VPos::Center));
        let at = (16, self.top + TOP + PLOT / 2);
        self.area
            .draw(&Text::new("operations per second (log scale)", at, style))?;
        Ok(())
    }

    fn group(&self, operation: &OperationReport, left: f64, wide: f64) -> Drawn {
        let bar = wide * GROUP / operation.kops.len().max(1) as f64;
        let base = self.y(0.0);
        for (place, (rate, colour)) in operation.kops.iter().zip(COLOURS).enumerate() {
            let x = left + wide * (1.0 - GROUP) / 2.0 + bar * place as f64;
            let (from, to) = (x.round() as i32, (x + bar * 0.92).round() as i32);
            let corners = [(from, self.y(rate.median)), (to, base)];
            self.area.draw(&Rectangle::new(corners, colour.filled()))?;
            let (middle, low, high) = ((from + to) / 2, self.y(rate.min), self.y(rate.max));
            let whisker = [(middle, low), (middle, high)];
            self.area.draw(&PathElement::new(whisker, TEXT))?;
            let own = place == 0;
            let label = Label::new(self.area, 12, if own { TEXT } else { FAINT });
            let label = if own { label.bold() } else { label };
            label.at(&rate_name(rate.median), middle, high - 9)?;
        }
        let middle = (left + wide / 2.0).round() as i32;
        let name = Label::new(self.area, 15, TEXT).bold();
        name.at(operation.operation.name(), middle, base + 17)?;
        let summary = Label::new(self.area, 12, FAINT);
        summary.at(operation.operation.summary(), middle, base + 33)?;
        if let Some(ratio) = &operation.ratio {
            let colour = verdict(ratio);
            let other = self.run.engines[ratio.against].name;
            let text = format!("{} \u{d7} {other}", ratio_name(ratio.median));
            let label = Label::new(self.area, 15, colour).bold();
            label.at(&text, middle, base + 52)?;
        }
        Ok(())
    }
}

/// Returns the colour of a ratio: faint if the rounds disagree on which engine is faster.
fn verdict(ratio: &Ratio) -> RGBColor {
    if ratio.min > 1.0 {
        FASTER
    } else if ratio.max < 1.0 {
        SLOWER
    } else {
        FAINT
    }
}

fn title(run: &Run) -> String {
    let medium = match run.medium {
        "mapped" => "Mapped memory (tmpfs, as on persistent memory)",
        "dax" => "Persistent memory",
        "journal" => "Disk, one sync per call",
        other => other,
    };
    format!("{medium}: {}-byte values", run.value_bytes)
}

/// Formats a power of ten of thousand operations for the axis: 100, 1 K, 10 M.
fn decade_name(decade: i32) -> String {
    match decade {
        ..0 => format!("{}", 10_f64.powi(decade + 3)),
        0..3 => format!("{} K", 10_f64.powi(decade)),
        _ => format!("{} M", 10_f64.powi(decade - 3)),
    }
}

/// Formats thousand operations for the number above a bar: 950, 22 K, 1.5 M.
fn rate_name(kops: f64) -> String {
    match kops {
        k if k >= 999.5 => format!("{}M", short(k / 1e3)),
        k if k >= 0.995 => format!("{}K", short(k)),
        k => short(k * 1e3),
    }
}

/// Formats a ratio: 12, 4.1, 0.85.
fn ratio_name(ratio: f64) -> String {
    if ratio >= 9.95 {
        format!("{ratio:.0}")
    } else if ratio >= 1.995 {
        format!("{ratio:.1}")
    } else {
        format!("{ratio:.2}")
    }
}

/// Returns the notes on the measurement.
fn foot(area: &Area<'_>, report: &Report, top: i32) -> Drawn {
    let label = Label::new(area, 13, FAINT).across(HPos::Left);
    let machine = &report.machine;
    let sizes = report
        .runs
        .first()
        .map_or((0, 0), |run| (run.keys, run.rounds));
    let lines = [
        format!(
            "{} random keys of 8 bytes, one thread; every change is durable when its call returns. Bars: medians of {} rounds \
             in which the engines take turns;",
            rate_name(sizes.0 as f64 / 1e3),
            sizes.1
        ),
        "whiskers: slowest and fastest round. Below each operation: bristlecone beside the fastest of the others, median of \
         the rounds' ratios;"
            .to_owned(),
        "green or red where bristlecone was the faster or the slower one in every round, grey where rounds disagree."
            .to_owned(),
        format!(
            "{}, {} processors shared with other work (load average {:.1} to {:.1}).",
            machine.cpu, machine.processors, machine.load_before, machine.load_after
        ),
    ];
    for (place, line) in lines.iter().enumerate() {
        label.at(line, 14, top + 10 + 18 * place as i32)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_has_a_verdict_only_if_all_rounds_agree() {
        let ratio = |min, median, max| Ratio {
            against: 1,
            median,
            min,
            max,
        };
        assert_eq!(verdict(&ratio(1.1, 1.5, 2.0)), FASTER);
        assert_eq!(verdict(&ratio(0.1, 0.2, 0.9)), SLOWER);
        assert_eq!(verdict(&ratio(0.8, 1.1, 1.2)), FAINT);
    }

    #[test]
    fn rates_are_named_shortly() {
        let shown = [0.0042, 0.95, 22.7, 477.0, 1481.0, 12_000.0].map(rate_name);
        assert_eq!(shown, ["4.2", "950", "23K", "477K", "1.5M", "12M"]);
        let shown = [-1, 0, 2, 3, 4].map(decade_name);
        assert_eq!(shown, ["100", "1 K", "100 K", "1 M", "10 M"]);
        let shown = [0.853, 1.5, 4.06, 12.3].map(ratio_name);
        assert_eq!(shown, ["0.85", "1.50", "4.1", "12"]);
    }
}
