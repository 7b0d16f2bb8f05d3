//! `SORT` and `SORT_RO`.

use super::{Words, key, number, one, rarely};
use rand::{Rng, RngExt};

fn pattern(rng: &mut impl Rng) -> Vec<u8> {
    let patterns = [
        "w_*", "w_*", "*", "s*", "h0->*", "h*->n1", "l*", "#", "none_*", "*->", "->*", "h?*", "",
    ];
    one(rng, &patterns).into()
}

/// Returns a command, and whether it may be spoilt. A stored result has one order, and does not
/// rest on numbers: see [`by_numbers_failed`].
pub fn command(rng: &mut impl Rng) -> (Words, bool) {
    if rarely(rng, 3) {
        return (weight(rng), false);
    }
    let name = one(rng, &["sort", "sort", "sort_ro"]);
    let group = one(rng, &["l", "e", "z"]);
    let mut words = vec![name.into(), key(rng, group)];
    let alpha = !rarely(rng, 4);
    if alpha {
        words.push(b"alpha".to_vec());
    }
    let by = rarely(rng, 3);
    if by {
        words.push(b"by".to_vec());
        words.push(if rarely(rng, 3) {
            b"nosort".to_vec()
        } else {
            pattern(rng)
        });
    }
    while rarely(rng, 3) {
        match rng.random_range(0..8) {
            0 | 1 => words.push(one(rng, &["asc", "desc", "desc"]).into()),
            2 | 3 if !by => words.extend([b"limit".to_vec(), number(rng), number(rng)]),
            4 | 5 => words.extend([b"get".to_vec(), pattern(rng)]),
            6 if alpha && !by && (name == "sort" || rarely(rng, 5)) => {
                words.extend([b"store".to_vec(), key(rng, "l")]);
            }
            7 => words.push(one(rng, &["store", "by", "limit", "foo"]).into()),
            _ => {}
        }
    }
    let stores = words.iter().any(|word| word == b"store");
    (words, !stores)
}

/// Returns a string that elements may refer to, usually a number.
fn weight(rng: &mut impl Rng) -> Words {
    let name = format!("w_n{}", rng.random_range(0..12)).into_bytes();
    let value = match rng.random_range(0..12) {
        0 => one(
            rng,
            &["", " 1", "1 ", "inf", "-inf", "nan", "1e400", "0x10", "x"],
        )
        .into(),
        1 => super::float(rng),
        _ => number(rng),
    };
    vec![b"set".to_vec(), name, value]
}

/// Returns how many elements of the reply belong together if the order of these groups has no
/// meaning: no order was asked for, or it is that of other texts, which may be equal.
pub fn unordered(words: &Words) -> Option<usize> {
    let has = |wanted: &[u8]| {
        words
            .iter()
            .filter(|word| word.eq_ignore_ascii_case(wanted))
            .count()
    };
    (has(b"by") > 0).then(|| has(b"get").max(1))
}

/// Returns true if the reply says that a weight is not a number. Redis says so also of numbers,
/// after a command with a number out of range: it checks `errno`, which that command has left.
pub fn by_numbers_failed(reply: &[u8]) -> bool {
    reply == b"-ERR One or more scores can't be converted into double\r\n"
}
