//! The page as a whole, and its figures.

use super::data::{About, Report, ShownClaim, ShownFigure};
use super::{ledger, sections, strip};
use crate::figure::ledger::{Ledger, Row};
use crate::figure::{ALL, Bands, Panel, Series, Stated, Verdict, colour_of, digits, plot};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The verdicts as the page orders them.
const VERDICTS: [Verdict; 3] = [Verdict::Holds, Verdict::Exceeds, Verdict::Fails];

impl Report {
    /// Returns the page.
    ///
    /// # Errors
    /// A claim's tolerance is no words of one, or a panel cannot be drawn; the text says which.
    pub fn page(&self) -> Result<String, String> {
        let ledger = ledger()?;
        let mut papers = Vec::new();
        for paper in papers_in_order() {
            let figures = self.figures.iter().filter(|figure| figure.paper == paper);
            let figures: Vec<&ShownFigure> = figures.collect();
            let drawn: Result<Vec<Markup>, String> =
                figures.iter().map(|figure| draw(figure, &ledger)).collect();
            papers.push((paper, figures, drawn?));
        }
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { "Bristlecone: the papers' figures, measured" }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    header {
                        h1 { "The papers' figures, measured" }
                        (about(&self.about))
                        button #theme type="button" { "dark or light" }
                    }
                    (missing(&self.about))
                    nav aria-label="Contents" {
                        @for (paper, figures, _) in &papers {
                            @if !figures.is_empty() { a href={ "#" (anchor(paper)) } { (paper) } }
                        }
                        @for (id, title) in sections::present(self) { a href={ "#" (id) } { (title) } }
                    }
                    main {
                        section #summary {
                            h2 { "Claims" }
                            (self.summary(&papers))
                            (key())
                        }
                        @for (paper, figures, drawn) in &papers {
                            @if !figures.is_empty() {
                                section.paper-section id=(anchor(paper)) {
                                    h2 { (paper) }
                                    @for figure in drawn { (figure) }
                                }
                            }
                        }
                        (sections::all(self)?)
                    }
                    footer {
                        "Made by bristlecone-lab " (self.about.version) " on " (self.about.day)
                        ". The reasons why claims fail are those of docs/claims.toml."
                    }
                    script { (PreEscaped(SCRIPT)) }
                }
            }
        };
        Ok(page.into_string())
    }

    /// Returns the numbers of claims by paper and verdict.
    fn summary(&self, papers: &[(&str, Vec<&ShownFigure>, Vec<Markup>)]) -> Markup {
        let every: Vec<&ShownFigure> = self.figures.iter().collect();
        let rows = papers
            .iter()
            .map(|(paper, figures, _)| (*paper, figures))
            .filter(|(_, figures)| !figures.is_empty())
            .chain([("all", &every)]);
        html! {
            table.summary {
                thead { tr {
                    th { "paper" } th.bar { "" }
                    @for verdict in VERDICTS { th { (verdict) } }
                } }
                tbody {
                    @for (paper, figures) in rows {
                        @let counts = VERDICTS.map(|verdict| count(figures, verdict));
                        tr {
                            th { (paper) }
                            td.bar { (bar(counts)) }
                            @for count in counts { td { (count) } }
                        }
                    }
                }
            }
        }
    }
}

fn count(figures: &[&ShownFigure], verdict: Verdict) -> usize {
    figures.iter().map(|figure| figure.count(verdict)).sum()
}

/// Returns counts by verdict as parts of one bar.
fn bar(counts: [usize; 3]) -> Markup {
    let all = counts.iter().sum::<usize>().max(1);
    html! {
        span.parts {
            @for (verdict, count) in VERDICTS.iter().zip(counts) {
                span class=(verdict.name()) style=(format!("width:{:.2}%", count as f64 * 100.0 / all as f64)) {}
            }
        }
    }
}

/// Returns the papers, in the figures' order.
fn papers_in_order() -> Vec<&'static str> {
    let mut papers: Vec<&str> = Vec::new();
    for entry in ALL {
        if !papers.contains(&entry.paper) {
            papers.push(entry.paper);
        }
    }
    papers
}

/// Returns a text as the name of a place on the page.
pub(super) fn anchor(text: &str) -> String {
    let letter = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    text.chars().map(letter).collect()
}

fn about(about: &About) -> Markup {
    let gib = about.memory_bytes as f64 / f64::from(1 << 30);
    html! {
        p.about {
            (about.day) ", " (about.cpu) ", " (about.processors) " processors, "
            (format!("{gib:.0} GiB")) " of memory; figures at the scale \u{201c}" (about.scale) "\u{201d}."
            " Counted figures and those of the device model are the same on every machine; those of the host are this machine\u{2019}s."
        }
        @if !about.optimised {
            p.warning { "Made by a build for debugging: its times, and the host\u{2019}s figures, mean little." }
        }
    }
}

/// Returns what the report lacks.
fn missing(about: &About) -> Markup {
    let missing: Vec<_> = about
        .parts
        .iter()
        .filter(|part| !part.missing.is_empty())
        .collect();
    html! {
        @if !missing.is_empty() {
            details.warning open[missing.len() <= 6] {
                summary { "Partial: " (missing.len()) " of " (about.parts.len()) " parts were not made" }
                ul { @for part in missing { li { code { (part.name) } ": " (part.missing) } } }
            }
        }
    }
}

/// Returns the explanation of strips, and the buttons that filter by verdict.
fn key() -> Markup {
    let bands: Result<Bands, _> = "1.3 to 1.5; more exceeds".parse();
    html! {
        div.key {
            @if let Ok(bands) = bands { (strip::strip(&bands, &Stated::Number(1.4), Some(1.62))) }
            p {
                "Each claim has a strip: in the dark band it holds, in the light one the measurement is stronger than the paper; the diamond is the paper\u{2019}s number, the dot ours. "
                "A band reaches a quarter of the paper\u{2019}s effect to either side, on the host three tenths."
            }
        }
        p.filter role="group" aria-label="Show claims" {
            "Show "
            button type="button" data-show="all" aria-pressed="true" { "all claims" }
            @for verdict in VERDICTS {
                button type="button" data-show=(verdict) aria-pressed="false" { "what " (verdict) }
            }
        }
    }
}

fn draw(figure: &ShownFigure, ledger: &Ledger) -> Result<Markup, String> {
    let place = format!("{}, {}", figure.name, figure.on);
    let plots = plots(&figure.panels).map_err(|e| format!("{place}: {e}"))?;
    let claims: Result<Vec<Markup>, String> = figure
        .claims
        .iter()
        .map(|claim| {
            let row = ledger.rows.iter().find(|row| {
                row.figure == figure.name && row.on == figure.on && row.claim == claim.made.claim
            });
            show(claim, row).map_err(|e| format!("{place}: {e}"))
        })
        .collect();
    let claims = claims?;
    Ok(html! {
        article.figure id=(format!("{}-{}", figure.name, figure.on)) {
            h3 {
                code { (figure.name) } " " (figure.title)
                " " span.chip.on { (figure.on) }
                @for verdict in VERDICTS {
                    @let count = figure.count(verdict);
                    @if count > 0 { " " span class={ "chip " (verdict) } { (count) " " (verdict) } }
                }
            }
            p.place { (figure.place) ", scale " (figure.scale) }
            (plots)
            @if !claims.is_empty() { ul.claims { @for claim in &claims { (claim) } } }
            @if !figure.notes.is_empty() {
                details { summary { "Notes" } ul { @for note in &figure.notes { li { (note) } } } }
            }
            details { summary { "Numbers" } @for panel in &figure.panels { (table(panel)) } }
        }
    })
}

/// Returns the plots of panels, with one legend if all have the same series.
pub(super) fn plots(panels: &[Panel]) -> Result<Markup, String> {
    let names = |panel: &Panel| -> Vec<String> {
        panel
            .series
            .iter()
            .map(|series| series.name.clone())
            .collect()
    };
    let shared = panels
        .windows(2)
        .all(|pair| names(&pair[0]) == names(&pair[1]));
    let drawn: Result<Vec<(&Panel, String)>, String> = panels
        .iter()
        .map(|panel| match plot(panel) {
            Ok(svg) => Ok((panel, svg)),
            Err(e) => Err(format!("drawing {:?} failed: {e}", panel.title)),
        })
        .collect();
    let drawn = drawn?;
    Ok(html! {
        @if let (true, Some(first)) = (shared, panels.first()) { (legend(&first.series)) }
        div.panels {
            @for (panel, svg) in &drawn {
                figure {
                    figcaption { (panel.title) }
                    @if !shared { (legend(&panel.series)) }
                    (PreEscaped(svg))
                }
            }
        }
    })
}

fn legend(series: &[Series]) -> Markup {
    html! {
        ul.legend {
            @for (place, series) in series.iter().enumerate() {
                li { span style=(format!("background:{}", colour_of(place))) {} (series.name) }
            }
        }
    }
}

fn table(panel: &Panel) -> Markup {
    html! {
        div.wide { table {
            caption { (panel.title) " (" (panel.y) ")" }
            thead { tr { th { (panel.x) } @for series in &panel.series { th { (series.name) } } } }
            tbody {
                @for (place, label) in panel.places.labels().into_iter().enumerate() {
                    tr {
                        th { (label) }
                        @for series in &panel.series {
                            td { @if let Some(value) = series.values.get(place) { (digits(*value)) } }
                        }
                    }
                }
            }
        } }
    }
}

/// Returns a claim: its verdict, its strip, and if it fails the ledger's reason.
fn show(claim: &ShownClaim, row: Option<&Row>) -> Result<Markup, String> {
    let made = &claim.made;
    let bands: Bands = made
        .tolerance
        .parse()
        .map_err(|e| format!("{}: {e}", made.claim))?;
    let reason = row.map(|row| (row.reason.as_str(), row.shown_by.as_str()));
    Ok(html! {
        li.claim data-verdict=(made.verdict) {
            span class={ "chip " (made.verdict) } { (made.verdict) }
            span.what { (made.claim) }
            (strip::strip(&bands, &made.paper, made.measured))
            span.numbers {
                @match made.measured {
                    Some(measured) => { strong { (digits(measured)) } }
                    None => { strong { "nothing" } }
                }
                " here, paper: " (made.paper) "; must be " (made.tolerance)
            }
            @if !claim.note.is_empty() { p.note { (claim.note) } }
            @if let (Verdict::Fails, Some((reason, shown_by))) = (made.verdict, reason) {
                @if !reason.is_empty() {
                    p.reason { (reason) @if !shown_by.is_empty() { " Shown by: " (shown_by) } }
                }
            }
        }
    })
}
