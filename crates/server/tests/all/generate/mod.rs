//! Random commands, by family: over few keys and values, so that they meet, and some of them wrong.

#![allow(dead_code, reason = "not every test uses all of it")]

pub mod colliding;
pub mod hashes;
pub mod keys;
pub mod lists;
pub mod memcached;
pub mod multi;
pub mod sets;
pub mod sort;
pub mod sorted_sets;
pub mod strings;

use rand::{Rng, RngExt};

/// A command: its name and arguments.
pub type Words = Vec<Vec<u8>>;

/// Returns a command of these words.
pub fn words(words: &[&str]) -> Words {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// Returns one of these.
pub fn one<'a>(rng: &mut impl Rng, of: &[&'a str]) -> &'a str {
    of[rng.random_range(0..of.len())]
}

/// Returns true once in `n` times.
pub fn rarely(rng: &mut impl Rng, n: u32) -> bool {
    rng.random_range(0..n) == 0
}

/// Returns a key. Each family (`"s"`, `"h"`...) has few; now and then it is one of another family.
pub fn key(rng: &mut impl Rng, group: &str) -> Vec<u8> {
    let group = if rarely(rng, 12) {
        one(rng, &["s", "h", "e", "z", "l"])
    } else {
        group
    };
    format!("{group}{}", rng.random_range(0..6)).into_bytes()
}

/// Returns an integer, seldom one at the ends of 64 bits, or not a number.
pub fn number(rng: &mut impl Rng) -> Vec<u8> {
    let text = match rng.random_range(0..30) {
        0 => one(
            rng,
            &[
                "9223372036854775807",
                "-9223372036854775808",
                "9223372036854775806",
                "-9223372036854775807",
                "9223372036854775808",
                "4294967296",
            ],
        )
        .to_owned(),
        1 => one(rng, &["", "x", "1.5", "01", "-0", " 1", "+1", "1e3"]).to_owned(),
        2..8 => rng.random_range(-1000..100_000).to_string(),
        _ => rng.random_range(-5..12).to_string(),
    };
    text.into_bytes()
}

/// Returns a floating-point number, seldom a strange one, or not a number.
pub fn float(rng: &mut impl Rng) -> Vec<u8> {
    let text = match rng.random_range(0..20) {
        0 => one(
            rng,
            &[
                "inf", "-inf", "+inf", "nan", "1e400", "1e-400", "0x10", "abc", "", " 1", "1 ",
            ],
        )
        .to_owned(),
        1 => one(
            rng,
            &["1e10", "-2.5e3", "3.0", ".5", "5.", "1e17", "-0", "1e-5"],
        )
        .to_owned(),
        2..10 => rng.random_range(-10..20).to_string(),
        10..15 => format!("{:.1}", f64::from(rng.random_range(-99..99)) / 10.0),
        _ => format!(
            "{:.3}",
            f64::from(rng.random_range(-99_999..99_999)) / 1000.0
        ),
    };
    text.into_bytes()
}

/// Returns a value: short, often a number, seldom empty or binary.
pub fn value(rng: &mut impl Rng) -> Vec<u8> {
    match rng.random_range(0..12) {
        0 => Vec::new(),
        1 => (0..rng.random_range(1..40)).map(|_| rng.random()).collect(),
        2..5 => number(rng),
        5 => float(rng),
        6 => vec![b'x'; rng.random_range(30..80)],
        _ => one(
            rng,
            &["a", "b", "c", "abcab", "hello", "cabbage", "foo bar"],
        )
        .as_bytes()
        .to_vec(),
    }
}

/// Returns `command`, seldom spoilt: with an argument too few or too many, with another word, or
/// with letters of the other case.
pub fn spoilt(rng: &mut impl Rng, mut command: Words) -> Words {
    match rng.random_range(0..120) {
        0 if command.len() > 1 => {
            command.pop();
        }
        1 => command.push(value(rng)),
        2 if command.len() > 1 => {
            let at = rng.random_range(1..command.len());
            command[at] = value(rng);
        }
        3 => command[0].make_ascii_uppercase(),
        4 if command.len() > 2 => {
            let at = rng.random_range(2..command.len());
            command[at].make_ascii_uppercase();
        }
        5 if command.len() > 2 => {
            let at = rng.random_range(1..command.len());
            command.remove(at);
        }
        _ => {}
    }
    command
}
