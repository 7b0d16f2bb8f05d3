//! Bristlecone's crash-state explorer.

pub mod concurrent;
pub mod history;
mod quiet;
pub mod subject;
