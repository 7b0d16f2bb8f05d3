//! Bristlecone's crash-state explorer.

pub mod subject;
