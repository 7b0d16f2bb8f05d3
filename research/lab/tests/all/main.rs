//! The integration tests in one program, a module for each subject: what they share is compiled and linked once.
//! `cargo test -p bristlecone-lab --test all model::` runs one module. `same_everywhere`, which is for optimized builds alone, is a
//! program of its own.

mod designs;
mod figures;
mod micro;
mod model;
