//! Floating-point numbers, as sorted sets read and write them.

use crate::error::CommandError;

/// Parses a number as `strtod` does. Returns `None` if the text is not a number as a whole, or is
/// NaN.
fn parse(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    // The sign has been taken.
    if digits.starts_with(['-', '+']) {
        return None;
    }
    let magnitude = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => hexadecimal(&digits[2..])?,
        _ => digits.parse::<f64>().ok()?,
    };
    let number = if negative { -magnitude } else { magnitude };
    (!number.is_nan()).then_some(number)
}

/// Parses hexadecimal digits with a point and a power of two; exact to 60 bits.
fn hexadecimal(digits: &str) -> Option<f64> {
    let (digits, power) = match digits.split_once(['p', 'P']) {
        Some((digits, power)) => (digits, power.parse::<i32>().ok()?),
        None => (digits, 0),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && part.is_empty() {
        return None;
    }
    let mut mantissa: u64 = 0;
    let mut exponent = i64::from(power);
    for (at, digit) in whole.chars().chain(part.chars()).enumerate() {
        let value = u64::from(digit.to_digit(16)?);
        let fraction = at >= whole.len();
        if mantissa >> 60 == 0 {
            mantissa = mantissa << 4 | value;
            exponent -= if fraction { 4 } else { 0 };
        } else {
            exponent += if fraction { 0 } else { 4 };
        }
    }
    // In steps, so that no power is out of range before the product is.
    let mut number = mantissa as f64;
    while exponent != 0 && number != 0.0 && number.is_finite() {
        let step = exponent.clamp(-1000, 1000);
        number *= 2f64.powi(step as i32);
        exponent -= step;
    }
    Some(number)
}

/// Parses a score or a weight, which must not be out of range.
pub(crate) fn double(text: &[u8]) -> Result<f64, CommandError> {
    let number = parse(text).ok_or_else(CommandError::not_a_float)?;
    let has = |digits: std::ops::RangeInclusive<u8>| text.iter().any(|byte| digits.contains(byte));
    let too_large = number.is_infinite() && has(b'0'..=b'9');
    let hexadecimal = text.iter().any(|byte| matches!(byte, b'x' | b'X'));
    let mantissa = text
        .split(|byte| !hexadecimal && matches!(byte, b'e' | b'E') || matches!(byte, b'p' | b'P'));
    let digits = mantissa.into_iter().next().unwrap_or_default();
    let too_small = number == 0.0 && digits.iter().any(|byte| matches!(byte, b'1'..=b'9'));
    if too_large || too_small {
        return Err(CommandError::not_a_float());
    }
    Ok(number)
}

/// Parses the end of a range of scores, without its `(`.
pub(crate) fn bound(text: &[u8]) -> Option<f64> {
    let text = text.trim_ascii_start();
    if text.is_empty() {
        return Some(0.0);
    }
    parse(text)
}

/// Formats a number with 17 significant digits, as `%.17g` does.
pub(crate) fn text(number: f64) -> String {
    general(number, 17)
}

/// Formats a number with so many significant digits, at least one, as `%.*g` does.
pub(crate) fn general(number: f64, digits: usize) -> String {
    let last = digits.max(1) - 1;
    if number.is_nan() {
        return if number.is_sign_negative() {
            "-nan"
        } else {
            "nan"
        }
        .to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:.last$e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(mantissa) => ("-", mantissa),
        None => ("", mantissa),
    };
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let digits = digits.trim_end_matches('0');
    let with_point = |whole: &str, part: &str| {
        let point = if part.is_empty() { "" } else { "." };
        format!("{sign}{whole}{point}{part}")
    };
    match exponent {
        _ if digits.is_empty() => format!("{sign}0"),
        _ if (0..=last as i32).contains(&exponent) => {
            let whole = exponent as usize + 1;
            let padded = format!("{digits:0<whole$}");
            let (whole, part) = padded.split_at(whole);
            with_point(whole, part)
        }
        -4..0 => {
            let zeros = "0".repeat(exponent.unsigned_abs() as usize - 1);
            with_point("0", &format!("{zeros}{digits}"))
        }
        _ => {
            let (whole, part) = digits.split_at(1);
            let sign = if exponent < 0 { '-' } else { '+' };
            let power = exponent.unsigned_abs();
            with_point(whole, part) + &format!("e{sign}{power:02}")
        }
    }
}

/// Encodes a number in eight bytes that are ordered like the numbers. Both zeros have one encoding.
pub(crate) fn ordered(number: f64) -> u64 {
    let bits = (number + 0.0).to_bits();
    if bits >> 63 == 0 {
        bits | 1 << 63
    } else {
        !bits
    }
}

/// Decodes a number.
pub(crate) fn from_ordered(bits: u64) -> f64 {
    f64::from_bits(if bits >> 63 == 0 {
        !bits
    } else {
        bits ^ 1 << 63
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_redis_reads_them() {
        let good: [(&str, f64); 14] = [
            ("1", 1.0),
            ("-1.5", -1.5),
            ("+2", 2.0),
            (".5", 0.5),
            ("5.", 5.0),
            ("1e3", 1000.0),
            ("0x10", 16.0),
            ("0x1.8p1", 3.0),
            ("0x1p-1074", 5e-324),
            ("inf", f64::INFINITY),
            ("-Infinity", f64::NEG_INFINITY),
            ("0e5", 0.0),
            ("5e-324", 5e-324),
            (
                "0xffffffffffffffffffff",
                1_208_925_819_614_629_174_706_175.0,
            ),
        ];
        for (given, number) in good {
            assert_eq!(double(given.as_bytes()).unwrap(), number, "{given}");
        }
        for bad in [
            "",
            " 1",
            "1 ",
            "x",
            "nan",
            "-nan",
            "1e400",
            "-1e400",
            "1e-400",
            "0x",
            "0x1p-2000",
            "--1",
            "+-1",
            "1e",
            "0xg",
            "1p3",
        ] {
            assert!(double(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(bound(b""), Some(0.0));
        assert_eq!(bound(b" 1"), Some(1.0));
        assert_eq!(bound(b"1e400"), Some(f64::INFINITY));
        assert_eq!(bound(b"nan"), None);
    }

    #[test]
    fn numbers_are_written_with_seventeen_digits() {
        for (number, given) in [
            (0.1, "0.10000000000000001"),
            (3.0, "3"),
            (-0.5, "-0.5"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1.5e300, "1.5000000000000001e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1.0000000000000001e-05"),
            (2f64.powi(-25), "2.9802322387695312e-08"),
            (123_456.75, "123456.75"),
            (0.0, "0"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(text(number), given);
        }
    }

    #[test]
    fn ordered_bytes_are_in_the_numbers_order() {
        let numbers = [
            f64::NEG_INFINITY,
            -1e300,
            -1.0,
            -5e-324,
            0.0,
            5e-324,
            1.0,
            1e300,
            f64::INFINITY,
        ];
        assert!(numbers.is_sorted_by(|a, b| ordered(*a) < ordered(*b)));
        for number in numbers {
            assert_eq!(from_ordered(ordered(number)), number);
        }
        assert_eq!(ordered(-0.0), ordered(0.0));
    }
}
