//! What is particular to this design; the shared scenarios are in `tests/`.
