//! Whole numbers as C's `strtoull` and `strtol` read them, with memcached's conditions.

/// Parses a number as C's `strtoull` does, as memcached calls it: white space and a sign may come
/// before it, white space and anything behind it.
#[must_use]
pub(crate) fn unsigned(text: &[u8]) -> Option<u64> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let (negative, magnitude, rest) = c_number(text)?;
    let magnitude = u64::try_from(magnitude?).ok()?;
    let value = if negative {
        magnitude.wrapping_neg()
    } else {
        magnitude
    };
    let is_negative = value > i64::MAX as u64 && text.contains(&b'-');
    (rest.first().is_none_or(|byte| is_space(*byte)) && !is_negative).then_some(value)
}

/// Parses a number as C's `strtol` does, as memcached calls it.
#[must_use]
pub(crate) fn signed(text: &[u8]) -> Option<i64> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let (negative, magnitude, rest) = c_number(text)?;
    let magnitude = i128::try_from(magnitude?).ok()?;
    let value = if negative { -magnitude } else { magnitude };
    let value = i64::try_from(value).ok()?;
    (rest.first().is_none_or(|byte| is_space(*byte))).then_some(value)
}

fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Returns the sign, the magnitude (`None` if it is beyond all types) and the rest of the text.
fn c_number(text: &[u8]) -> Option<(bool, Option<u128>, &[u8])> {
    let start = text.iter().position(|byte| !is_space(*byte))?;
    let text = &text[start..];
    let (negative, text) = match text.first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 {
        return None;
    }
    let (digits, rest) = text.split_at(digits);
    let magnitude = digits.iter().try_fold(0u128, |sum, digit| {
        sum.checked_mul(10)?.checked_add(u128::from(digit - b'0'))
    });
    Some((negative, magnitude, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        for (text, value) in [
            ("0", Some(0)),
            (" \t12 x", Some(12)),
            ("+7", Some(7)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("99999999999999999999999999999999999999999999", None),
            ("-1", None),
            ("-18446744073709551615", Some(1)),
            ("12x", None),
            ("x", None),
            ("", None),
            ("-", None),
            ("5\0x", Some(5)),
        ] {
            assert_eq!(unsigned(text.as_bytes()), value, "{text:?}");
        }
        for (text, value) in [
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("1.5", None),
        ] {
            assert_eq!(signed(text.as_bytes()), value, "{text:?}");
        }
    }
}
