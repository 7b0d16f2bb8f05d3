//! Bristlecone's crash-state explorer.

pub mod subject;
pub mod subjects;
