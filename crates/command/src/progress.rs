//! Progress bars, on standard error and only when that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

fn bar(length: Option<u64>, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr());
    // The templates are constants; a wrong one falls back to the default style.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// A bar over the bytes of a file; its message tells the rows and their rate.
pub fn file(doing: &'static str, bytes: u64) -> ProgressBar {
    let bar = bar(
        Some(bytes),
        "{prefix} [{bar:30}] {percent:>3}%  {msg}  {eta} left",
    );
    bar.set_prefix(doing);
    bar
}

/// A bar over countable things.
pub fn steps(doing: &'static str, total: u64) -> ProgressBar {
    let bar = bar(
        Some(total),
        "{prefix} [{bar:30}] {human_pos}/{human_len}  {msg}  {eta} left",
    );
    bar.set_prefix(doing);
    bar
}

/// A count that has no known end.
pub fn counter(of: &'static str) -> ProgressBar {
    let bar = bar(
        None,
        "{spinner} {msg}: {human_pos} {prefix}, {per_sec}, {elapsed}",
    );
    bar.set_prefix(of);
    bar
}

/// Runs `work` under a spinner that tells the time it has taken.
pub fn waiting<R>(doing: &'static str, work: impl FnOnce() -> R) -> R {
    let spinner = bar(None, "{spinner} {prefix}, {elapsed} so far");
    spinner.set_prefix(doing);
    spinner.enable_steady_tick(Duration::from_millis(250));
    let result = work();
    spinner.finish_and_clear();
    result
}
