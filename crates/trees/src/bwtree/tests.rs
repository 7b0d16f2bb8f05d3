//! Tests of single steps.
