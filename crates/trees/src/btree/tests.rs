//! What is particular to this family; the shared scenarios are in `tests/`.
