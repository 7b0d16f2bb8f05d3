//! Chromium without a window: pages as a reader sees them.

use crate::tools::{self, Outcome};
use std::path::Path;
use std::process::{Command, Stdio};

/// Width and height of a window in pixels.
pub type Size = (u32, u32);

/// Opens a page and returns what `what` asks for: `--dump-dom` the page when its scripts have run,
/// `--screenshot=FILE` nothing. `profile` is a folder of the browser's own.
pub fn browse(
    profile: &Path,
    dark: bool,
    size: Size,
    what: &str,
    address: &str,
) -> Outcome<String> {
    let mut browser = Command::new("chromium");
    browser
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
        ])
        .args(["--no-first-run", "--disable-background-networking"])
        .args([
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
        ])
        .arg(format!("--window-size={},{}", size.0, size.1))
        .arg("--virtual-time-budget=30000")
        .arg(format!(
            "--blink-settings=preferredColorScheme={}",
            u8::from(!dark)
        ))
        .arg(format!("--user-data-dir={}", profile.display()))
        .args([what, address])
        .stderr(Stdio::null());
    tools::output(&mut browser)
}
