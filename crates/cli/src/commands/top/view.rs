//! A view as lines of text, the same for a terminal and for a file.

use super::sample::{Calls, Sample, Slow, Span};
use bristlecone_command::text::{bytes, duration, escape, grouped};
use std::time::Duration;

/// Commands that are shown where there is no screen to be filled.
const COMMANDS: usize = 20;

/// The lines of a view, as many as `height` has room for.
pub fn lines(address: &str, span: &Span<'_>, height: Option<usize>) -> Vec<String> {
    let slow = slow(&span.now.slow);
    let mut lines = summary(address, span);
    lines.push(String::new());
    let taken = lines.len() + 1 + slow.len() + 1;
    let most = height.map_or(COMMANDS, |height| height.saturating_sub(taken));
    lines.extend(commands(span, most));
    if !slow.is_empty() {
        lines.push(String::new());
        lines.extend(slow);
    }
    lines.truncate(height.unwrap_or(usize::MAX));
    lines
}

fn per_second(span: &Span<'_>, count: u64) -> String {
    let rate = span.rate(count);
    if rate > 0.0 && rate < 10.0 {
        format!("{rate:.1}/s")
    } else {
        format!("{}/s", grouped(rate.round() as u64))
    }
}

fn ratio(of: u64, by: u64) -> String {
    if by == 0 {
        return "-".to_owned();
    }
    format!("{:.1}", of as f64 / by as f64)
}

fn uptime(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    match days {
        0 => clock,
        days => format!("{days} d {clock}"),
    }
}

fn summary(address: &str, span: &Span<'_>) -> Vec<String> {
    let now: &Sample = span.now;
    let shown = |name: &str| escape(now.text(name).as_bytes());
    let rate = |name: &str| per_second(span, span.change(name));
    let count = |name: &str| grouped(now.number(name));
    let size = |name: &str| bytes(now.number(name));
    let over = match span.before {
        Some(_) => format!("over {:.1} s", span.length().as_secs_f64()),
        None => "since the start".to_owned(),
    };
    let bandwidth = |name: &str| bytes(span.rate(span.change(name)).round() as u64);
    let (settles, syncs) = (span.change("total_settles"), span.change("total_syncs"));
    let commits = span.change("applied_timestamp");
    vec![
        format!(
            "server      {address}  up {}  {}  {}  {}",
            uptime(now.number("uptime_in_seconds")),
            shown("medium"),
            shown("index"),
            shown("pool"),
        ),
        format!(
            "commands    {} {over}  errors {}  in {}/s  out {}/s",
            rate("total_commands_processed"),
            rate("total_error_replies"),
            bandwidth("total_net_input_bytes"),
            bandwidth("total_net_output_bytes"),
        ),
        format!(
            "clients     {} of {}  blocked {}  listening {}  new {}",
            count("connected_clients"),
            count("maxclients"),
            count("blocked_clients"),
            count("pubsub_clients"),
            rate("total_connections_received"),
        ),
        format!(
            "durability  commits {}  settles {}  commands per settle {}  syncs {}  commits per sync {}",
            per_second(span, commits),
            per_second(span, settles),
            ratio(span.change("total_settled_commands"), settles),
            per_second(span, syncs),
            ratio(commits, syncs),
        ),
        format!(
            "memory      resident {}  pool {}: used {}, free {}",
            size("used_memory"),
            size("pool_bytes"),
            size("pool_used_bytes"),
            size("pool_free_bytes"),
        ),
        format!(
            "keys        {}  {}  versions {}",
            grouped(now.keys),
            size("live_bytes"),
            count("versions"),
        ),
        format!(
            "vacuum      versions {}  {}/s  garbage {}  snapshots {}",
            rate("vacuumed_versions"),
            bandwidth("vacuumed_bytes"),
            size("garbage_bytes"),
            count("snapshots"),
        ),
    ]
}

fn commands(span: &Span<'_>, most: usize) -> Vec<String> {
    let title = format!(
        "{:<18} {:>11} {:>14} {:>9} {:>9} {:>9} {:>9}",
        "COMMAND", "CALLS", "TOTAL", "MEAN", "P50", "P99", "FAILED"
    );
    let time = |time: Option<Duration>| time.map_or_else(|| "-".to_owned(), duration);
    let line = |(name, all, now): (&str, &Calls, Calls)| {
        format!(
            "{:<18} {:>11} {:>14} {:>9} {:>9} {:>9} {:>9}",
            escape(name.as_bytes()),
            per_second(span, now.calls),
            grouped(all.calls),
            time(now.mean()),
            time(now.quantile(0.5)),
            time(now.quantile(0.99)),
            grouped(all.failed),
        )
    };
    let busiest = span.commands().into_iter().take(most);
    std::iter::once(title).chain(busiest.map(line)).collect()
}

/// The slow log's newest; nothing, if it is empty.
fn slow(entries: &[Slow]) -> Vec<String> {
    if entries.is_empty() {
        return Vec::new();
    }
    let title = format!(
        "{:<12} {:>9}  {:<21} {}",
        "SLOW (UTC)", "TOOK", "CLIENT", "COMMAND"
    );
    let line = |slow: &Slow| {
        let words: Vec<String> = slow.words.iter().map(|word| escape(word)).collect();
        format!(
            "{:<12} {:>9}  {:<21} {}",
            uptime(slow.at % 86_400),
            duration(slow.took),
            escape(&slow.client),
            words.join(" "),
        )
    };
    std::iter::once(title)
        .chain(entries.iter().map(line))
        .collect()
}
