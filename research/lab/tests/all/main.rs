//! The integration tests in one program with a module for each subject, so that shared code is
//! compiled and linked once. `cargo test -p bristlecone-lab --test all model::` runs one module.
//! `same_everywhere` is only for optimized builds and is a program of its own.

mod designs;
mod figures;
mod micro;
mod model;
