//! `MULTI`, `EXEC`, `WATCH` and their relatives; commands of other families come between them.

use super::{Words, key, one, rarely};
use rand::{Rng, RngExt};

/// Returns a command.
pub fn command(rng: &mut impl Rng) -> Words {
    match rng.random_range(0..12) {
        0..4 => vec![b"multi".to_vec()],
        4..8 => vec![b"exec".to_vec()],
        8 => vec![one(rng, &["discard", "unwatch"]).into()],
        9 if rarely(rng, 10) => vec![one(rng, &["exec", "multi", "watch"]).into(), b"x".to_vec()],
        _ => {
            let mut command = vec![b"watch".to_vec()];
            command.extend((0..rng.random_range(1..3)).map(|_| key(rng, "s")));
            command
        }
    }
}
