//! The comparison as a picture: for each directory and size of values a panel of bars over a
//! logarithmic axis.
//!
//! ```text
//! title of the panel                                legend
//! 1000 |      |              a bar is the median of the rounds, its whisker goes from the slowest
//!  100 |  ||| | ||| ...      to the fastest round, the number above it is the median
//!      +------------------
//!        load   insert       the workload, and the first engine's ratio to the best peer
//! ```
//!
//! A comparison with more bars than a panel has room for goes on in the next one. Text is not
//! converted to outlines. The same numbers give the same file.

use super::Workload;
use super::report::{Comparison, EngineReport, Report, Row, short};
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
/// Share of a workload's place that its bars take.
const GROUP: f64 = 0.86;
/// Bars that a panel has room for.
const BARS: usize = 32;

/// Colours that people with any common kind of colour vision can distinguish (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(200, 186, 20),
    RGBColor(140, 140, 140),
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
    let panels = panels(report);
    let height = PANEL * panels.len() as i32 + FOOT;
    let mut text = String::new();
    {
        let size = (WIDTH as u32, height as u32);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        for (place, panel) in panels.iter().enumerate() {
            Axes::new(&root, panel, PANEL * place as i32).draw()?;
        }
        foot(&root, report, height - FOOT)?;
        root.present()?;
    }
    Ok(text)
}

/// A workload with a row for each engine.
type Group<'r> = (Workload, Vec<&'r Row>);

/// A part of a comparison.
struct Panel<'r> {
    comparison: &'r Comparison,
    groups: Vec<Group<'r>>,
    /// Groups that fit side by side, in all panels of the comparison.
    places: usize,
}

/// Returns the comparisons, cut into what a panel has room for.
fn panels(report: &Report) -> Vec<Panel<'_>> {
    let mut panels = Vec::new();
    for comparison in &report.comparisons {
        let groups = report.rows_of(comparison);
        let room = BARS / comparison.engines.len().max(1);
        let places = room.min(groups.len()).max(1);
        panels.extend(groups.chunks(places).map(|groups| Panel {
            comparison,
            groups: groups.to_vec(),
            places,
        }));
    }
    panels
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

/// Draws one panel, from `top` on.
struct Axes<'a, 'b> {
    area: &'a Area<'b>,
    panel: &'a Panel<'a>,
    top: i32,
    /// Decades of the axis: from 10^low to 10^high operations a second.
    low: i32,
    high: i32,
}

impl<'a, 'b> Axes<'a, 'b> {
    fn new(area: &'a Area<'b>, panel: &'a Panel<'a>, top: i32) -> Self {
        let rows = panel.groups.iter().flat_map(|(_, rows)| rows);
        let ends = rows.fold((f64::INFINITY, 1e3_f64), |(low, high), row| {
            (low.min(row.ops_per_s_min), high.max(row.ops_per_s_max))
        });
        // The axis does not begin below 1 operation a second.
        let low = ends.0.clamp(1.0, 1e9).log10().floor() as i32;
        // This leaves room for the number above the highest bar.
        let high = ((ends.1 * 1.6).log10().ceil() as i32).max(low + 1);
        Self {
            area,
            panel,
            top,
            low,
            high,
        }
    }

    /// Returns the height of a rate in the picture.
    fn y(&self, ops_per_s: f64) -> i32 {
        let share =
            (ops_per_s.max(1e-6).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        self.top + TOP + PLOT - (share.clamp(0.0, 1.0) * f64::from(PLOT)).round() as i32
    }

    fn draw(&self) -> Drawn {
        Label::new(self.area, 17, TEXT)
            .bold()
            .across(HPos::Left)
            .at(&title(self.panel.comparison), 14, self.top + 18)?;
        self.legend()?;
        self.axis()?;
        let wide = f64::from(RIGHT - LEFT) / self.panel.places as f64;
        for (place, group) in self.panel.groups.iter().enumerate() {
            self.group(group, f64::from(LEFT) + wide * place as f64, wide)?;
        }
        Ok(())
    }

    fn legend(&self) -> Drawn {
        // Estimates the width of a name, its square and the gap after it.
        let width = |engine: &EngineReport| 30 + 7 * engine.name.title().len() as i32;
        let mut x = RIGHT - self.panel.comparison.engines.iter().map(width).sum::<i32>();
        let label = Label::new(self.area, 14, TEXT).across(HPos::Left);
        for (engine, colour) in self.panel.comparison.engines.iter().zip(COLOURS) {
            let square = [(x, self.top + 12), (x + 12, self.top + 24)];
            self.area.draw(&Rectangle::new(square, colour.filled()))?;
            label.at(engine.name.title(), x + 17, self.top + 18)?;
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

    fn group(&self, (workload, rows): &Group<'_>, left: f64, wide: f64) -> Drawn {
        let bar = wide * GROUP / rows.len().max(1) as f64;
        let base = self.y(0.0);
        for (place, (row, colour)) in rows.iter().zip(COLOURS).enumerate() {
            let x = left + wide * (1.0 - GROUP) / 2.0 + bar * place as f64;
            let (from, to) = (x.round() as i32, (x + bar * 0.92).round() as i32);
            let corners = [(from, self.y(row.ops_per_s)), (to, base)];
            self.area.draw(&Rectangle::new(corners, colour.filled()))?;
            let (low, high) = (self.y(row.ops_per_s_min), self.y(row.ops_per_s_max));
            let middle = i32::midpoint(from, to);
            let whisker = [(middle, low), (middle, high)];
            self.area.draw(&PathElement::new(whisker, TEXT))?;
            let own = !row.engine.is_peer();
            let label = Label::new(self.area, 12, if own { TEXT } else { FAINT });
            let label = if own { label.bold() } else { label };
            label.at(&rate_name(row.ops_per_s), middle, high - 9)?;
        }
        let middle = (left + wide / 2.0).round() as i32;
        let name = Label::new(self.area, 15, TEXT).bold();
        name.at(workload.name(), middle, base + 17)?;
        let summary = Label::new(self.area, 12, FAINT);
        summary.at(workload.summary(), middle, base + 33)?;
        let Some(row) = rows.first().filter(|row| !row.engine.is_peer()) else {
            return Ok(());
        };
        if let (Some(ratio), Some(best)) = (row.ratio_to_best_peer, row.best_peer) {
            let text = format!("{} \u{d7} {}", ratio_name(ratio), best.title());
            let label = Label::new(self.area, 15, verdict(row)).bold();
            label.at(&text, middle, base + 52)?;
        }
        Ok(())
    }
}

/// Returns the colour of a ratio: faint if the rounds disagree on which engine is faster.
fn verdict(row: &Row) -> RGBColor {
    if row.ratio_min.is_some_and(|ratio| ratio > 1.0) {
        FASTER
    } else if row.ratio_max.is_some_and(|ratio| ratio < 1.0) {
        SLOWER
    } else {
        FAINT
    }
}

fn title(comparison: &Comparison) -> String {
    let medium = match comparison.medium {
        "mapped" => "Mapped memory (tmpfs)",
        "dax" => "Persistent memory",
        "journal" => "Disk, one sync per call",
        other => other,
    };
    let threads = match comparison.threads {
        1 => String::new(),
        threads => format!(", {threads} threads"),
    };
    format!("{medium}: {}-byte values{threads}", comparison.value_bytes)
}

/// Formats a power of ten of operations for the axis: 100, 1 K, 10 M.
fn decade_name(decade: i32) -> String {
    match decade {
        ..3 => format!("{}", 10_f64.powi(decade)),
        3..6 => format!("{} K", 10_f64.powi(decade - 3)),
        _ => format!("{} M", 10_f64.powi(decade - 6)),
    }
}

/// Formats operations for the number above a bar: 950, 22K, 1.5M.
fn rate_name(ops_per_s: f64) -> String {
    match ops_per_s {
        rate if rate >= 999_500.0 => format!("{}M", short(rate / 1e6)),
        rate if rate >= 995.0 => format!("{}K", short(rate / 1e3)),
        rate => short(rate),
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
    let own = report.comparisons.first().map_or("", |comparison| {
        comparison
            .engines
            .first()
            .map_or("", |engine| engine.name.title())
    });
    let lines = [
        format!(
            "{} random keys of 8 bytes; every change is durable when its call returns. Bars: medians of {} rounds in which \
             the engines take turns;",
            rate_name(report.keys as f64),
            report.rounds
        ),
        format!(
            "whiskers: slowest and fastest round. Below each workload: {own} beside the fastest of the other projects' \
             engines, median of the rounds'"
        ),
        format!(
            "ratios; green or red where {own} was the faster or the slower one in every round, grey where rounds disagree."
        ),
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
    use crate::peers::Engine;

    fn row(min: f64, max: f64) -> Row {
        Row {
            path: "/dev/shm".into(),
            value_bytes: 8,
            workload: Workload::Get,
            engine: Engine::Store,
            threads: 1,
            ops_per_s: 1.0,
            ops_per_s_min: 1.0,
            ops_per_s_max: 1.0,
            ratio_to_best_peer: Some(f64::midpoint(min, max)),
            ratio_min: Some(min),
            ratio_max: Some(max),
            best_peer: Some(Engine::Lmdb),
            resident_bytes: None,
            peak_bytes: None,
            anonymous_bytes: None,
            bytes_per_entry: None,
            written_per_user_byte: None,
        }
    }

    #[test]
    fn a_ratio_has_a_verdict_only_if_all_rounds_agree() {
        assert_eq!(verdict(&row(1.1, 2.0)), FASTER);
        assert_eq!(verdict(&row(0.1, 0.9)), SLOWER);
        assert_eq!(verdict(&row(0.8, 1.2)), FAINT);
    }

    #[test]
    fn rates_are_named_shortly() {
        let shown = [4.2, 950.0, 22_700.0, 477e3, 1.481e6, 12e6].map(rate_name);
        assert_eq!(shown, ["4.2", "950", "23K", "477K", "1.5M", "12M"]);
        let shown = [2, 3, 5, 6, 7].map(decade_name);
        assert_eq!(shown, ["100", "1 K", "100 K", "1 M", "10 M"]);
        let shown = [0.853, 1.5, 4.06, 12.3].map(ratio_name);
        assert_eq!(shown, ["0.85", "1.50", "4.1", "12"]);
    }
}
