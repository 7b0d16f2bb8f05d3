//! Structured logs on standard error, as text or as JSON.

use crate::config::{LogFormat, Settings};
use std::io;

/// Sets up logs for the process, as the settings say; once.
///
/// # Errors
/// They are set up already.
pub fn start(settings: &Settings) -> Result<(), String> {
    let builder = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        .with_max_level(settings.log_level);
    let done = match settings.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    done.map_err(|e| e.to_string())
}
