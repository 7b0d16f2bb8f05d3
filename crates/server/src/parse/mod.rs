//! Arguments of commands, read as Redis reads them: integers, floating-point numbers, keywords and
//! glob patterns.

pub(crate) mod c_number;
pub mod double;
pub mod glob;
pub mod long_double;

use crate::error::CommandError;

/// One argument of a command.
pub type Arg<'a> = &'a [u8];

/// Parses a 64-bit integer in Redis' strict form: no spaces, no `+`, no leading zeros, not `-0`.
///
/// # Errors
/// [`CommandError::not_an_integer`]
pub fn integer(text: Arg<'_>) -> Result<i64, CommandError> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    let negative = digits.len() < text.len();
    // Accumulated as a negative number: the range below zero has one value more.
    let below = digits.iter().try_fold(0i64, |number, digit| {
        let digit = i64::from(digit.wrapping_sub(b'0'));
        number.checked_mul(10)?.checked_sub(digit)
    });
    let number = below.filter(|_| plain).and_then(|below| {
        if negative {
            Some(below)
        } else {
            below.checked_neg()
        }
    });
    number.ok_or_else(CommandError::not_an_integer)
}

/// Returns true if the argument is this keyword, in any case.
pub fn is(arg: Arg<'_>, word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_taken_as_redis_takes_them() {
        for good in [
            "0",
            "7",
            "-1",
            "9223372036854775807",
            "-9223372036854775808",
        ] {
            assert_eq!(integer(good.as_bytes()).unwrap().to_string(), good);
        }
        for bad in [
            "",
            "-",
            "-0",
            "+1",
            "01",
            " 1",
            "1 ",
            "1.0",
            "9223372036854775808",
            "x",
        ] {
            assert!(integer(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
