//! The sections beside the figures: the hardware, other databases, space, and the explorer.

use super::data::{Report, ShownComparison, ShownExplored, ShownMutated, ShownPeers};
use super::page::plots;
use crate::figure::{Panel, digits};
use crate::limits::Limits;
use maud::{Markup, html};
use std::collections::BTreeMap;

/// Returns the names and titles of the sections that a report has.
pub(super) fn present(report: &Report) -> Vec<(&'static str, &'static str)> {
    let explored = !(report.explored.is_empty() && report.mutated.is_empty());
    [
        ("peers", "Other databases", report.peers.is_some()),
        ("explorer", "Crashes explored", explored),
        ("limits", "The hardware's limits", report.limits.is_some()),
    ]
    .into_iter()
    .filter(|(_, _, present)| *present)
    .map(|(id, title, _)| (id, title))
    .collect()
}

/// Returns the sections that a report has.
pub(super) fn all(report: &Report) -> Result<Markup, String> {
    let peers = report.peers.as_ref().map(peers).transpose()?;
    let present = present(report);
    let title = |id: &str| {
        present
            .iter()
            .find(|(known, _)| *known == id)
            .map(|(_, title)| *title)
    };
    Ok(html! {
        @if let (Some(title), Some(peers)) = (title("peers"), peers) {
            section #peers { h2 { (title) } (peers) }
        }
        @if let Some(title) = title("explorer") {
            section #explorer { h2 { (title) } (explorer(report)) }
        }
        @if let (Some(title), Some(limits)) = (title("limits"), &report.limits) {
            section #limits { h2 { (title) } (hardware(limits)) }
        }
    })
}

fn hardware(limits: &Limits) -> Markup {
    let rows = [
        (
            "store to a cached line, flush it, fence",
            limits.flush_fence_ns,
            "ns",
        ),
        (
            "one more line flushed before that fence",
            limits.flush_extra_line_ns,
            "ns",
        ),
        ("a fence with nothing to flush", limits.fence_ns, "ns"),
        ("a load that misses every cache", limits.dram_miss_ns, "ns"),
        ("copying", limits.memcpy_gbps, "10\u{2079} bytes/s"),
        (
            "a durable overwrite of 4 KiB",
            limits.fdatasync_us,
            "\u{b5}s",
        ),
    ];
    html! {
        p { "What no design on this machine can go below. Lines are flushed by " code { (limits.flush_instruction) } "." }
        div.wide { table { tbody {
            @for (what, number, unit) in rows { tr { th { (what) } td { (digits(number)) } td.unit { (unit) } } }
        } } }
    }
}

fn peers(peers: &ShownPeers) -> Result<Markup, String> {
    let comparisons: Result<Vec<Markup>, String> = peers
        .comparisons
        .iter()
        .map(|comparison| compared(peers, comparison))
        .collect();
    let comparisons = comparisons?;
    Ok(html! {
        p {
            (peers.keys) " keys of 8 bytes, medians of " (peers.rounds)
            " rounds in which the engines take turns. Every call is durable when it returns."
        }
        @for comparison in comparisons { (comparison) }
    })
}

/// Returns a comparison: rates, ratios to the best peer, and space.
fn compared(peers: &ShownPeers, comparison: &ShownComparison) -> Result<Markup, String> {
    let rows: Vec<_> = peers
        .rows
        .iter()
        .filter(|row| {
            row.path == comparison.path
                && row.value_bytes == comparison.value_bytes
                && row.threads == comparison.threads
        })
        .collect();
    let mut workloads: Vec<&str> = Vec::new();
    for row in &rows {
        if !workloads.contains(&row.workload.as_str()) {
            workloads.push(&row.workload);
        }
    }
    let of = |engine: &str, workload: &str| {
        rows.iter()
            .find(|row| row.engine == engine && row.workload == workload)
    };
    let title = format!(
        "{} ({}), values of {} bytes, {} threads",
        comparison.path, comparison.medium, comparison.value_bytes, comparison.threads
    );
    let mut rates = Panel::bars("rate", "", "calls/s", workloads.iter().copied());
    let mut space = Panel::bars(
        "space after the last workload",
        "",
        "bytes/entry",
        ["files", "resident MiB"],
    );
    for engine in &comparison.engines {
        let rate =
            |workload: &&str| of(&engine.name, workload).map_or(f64::NAN, |row| row.ops_per_s);
        rates = rates.with(&engine.name, workloads.iter().map(rate).collect());
        let last = workloads
            .last()
            .and_then(|workload| of(&engine.name, workload));
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        space = space.with(
            &engine.name,
            vec![
                last.and_then(|row| row.bytes_per_entry).unwrap_or(f64::NAN),
                last.and_then(|row| row.resident_bytes)
                    .map_or(f64::NAN, mib),
            ],
        );
    }
    let plots = plots(&[rates, space])?;
    Ok(html! {
        article.figure {
            h3 { (title) }
            (plots)
            details { summary { "Ratio to the best of the others, and settings" }
                div.wide { table {
                    thead { tr { th { "workload" } @for engine in &comparison.engines { th { (engine.name) } } th { "best" } } }
                    tbody { @for workload in &workloads { tr {
                        th { (workload) }
                        @for engine in &comparison.engines {
                            @let ratio = of(&engine.name, workload).and_then(|row| row.ratio_to_best_peer);
                            td { @if let Some(ratio) = ratio { (digits(ratio)) } }
                        }
                        @let best = rows.iter().find(|row| row.workload == *workload);
                        td { @if let Some(best) = best.and_then(|row| row.best_peer.as_deref()) { (best) } }
                    } } }
                } }
                ul { @for engine in &comparison.engines { li { (engine.name) " " (engine.version) ": " (engine.setting) } } }
            }
        }
    })
}

/// The explorations of a design, added up over models.
#[derive(Default)]
struct Totals {
    models: Vec<String>,
    points: u64,
    images: u64,
    schedules: u64,
    violations: u64,
    leaks: u64,
    mutants: u64,
    killed: u64,
    rest: u64,
}

impl Totals {
    fn add(&mut self, explored: &ShownExplored, images: u64) {
        if !self.models.contains(&explored.model) {
            self.models.push(explored.model.clone());
        }
        self.points += explored.crash_points;
        self.images += images;
        self.violations += explored.violations;
        self.leaks += explored.leaks;
    }

    fn mutants(&mut self, mutated: &ShownMutated) {
        self.mutants += mutated.sites + mutated.orderings;
        self.killed += mutated.killed;
        self.rest += mutated.without_effect + mutated.unneeded.len() as u64;
    }
}

fn explorer(report: &Report) -> Markup {
    let mut by_design: BTreeMap<&str, Totals> = BTreeMap::new();
    for explored in &report.explored {
        let images = explored.images + explored.nested_images + explored.killed_images;
        by_design
            .entry(&explored.index)
            .or_default()
            .add(explored, images);
    }
    for explored in &report.threads {
        let totals = by_design.entry(&explored.index).or_default();
        totals.schedules += explored.workloads;
        totals.add(explored, explored.images);
    }
    for mutated in &report.mutated {
        by_design
            .entry(&mutated.index)
            .or_default()
            .mutants(mutated);
    }
    let sum = |of: fn(&Totals) -> u64| by_design.values().map(of).sum::<u64>();
    html! {
        p {
            "At every flush and fence of a workload the power fails, in every way that the persistency model allows; each image is opened and compared with what was acknowledged. "
            "In all " strong { (grouped(sum(|t| t.images))) } " images and " (grouped(sum(|t| t.schedules)))
            " schedules of threads, with " strong { (sum(|t| t.violations)) } " violations and " (sum(|t| t.leaks))
            " leaks. A mutant lacks one flush, fence or ordering of the code, and must be noticed."
        }
        div.wide { table {
            thead { tr {
                th { "design" } th { "models" } th { "crash points" } th { "images" } th { "schedules" }
                th { "violations" } th { "leaks" } th { "mutants" } th { "noticed" } th { "without effect" }
            } }
            tbody { @for (design, t) in &by_design { tr {
                th { (design) } td { (t.models.join(", ")) }
                @for number in [t.points, t.images, t.schedules, t.violations, t.leaks, t.mutants, t.killed, t.rest] {
                    td { (grouped(number)) }
                }
            } } }
        } }
    }
}

/// Formats a number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}
