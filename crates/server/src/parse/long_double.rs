//! Floating-point numbers as Redis adds them: the 80-bit `long double` of x86-64, with 64 bits of
//! precision, and its decimal text with 17 digits after the point and no trailing zeros.
//!
//! Decimal texts and sums are rounded once each, half to even. Magnitudes below 2^-16382 keep full
//! precision, of which the processor would lose some; the text does not show them.

use num_bigint::{BigInt, BigUint, Sign};
use std::fmt;

/// Bits of precision.
const BITS: u64 = 64;
/// Magnitudes are below 2 to this power.
const TOO_LARGE: i64 = 16384;
/// The smallest magnitude above zero is 2 to this power.
const LEAST: i64 = -16445;
/// The longest text of a number, in bytes.
const MAX_TEXT: usize = 5 * 1024;
/// Digits after the point.
const DIGITS: u32 = 17;

/// A finite or infinite number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongDouble {
    /// `None` for an infinity, which only a text yields; no sum is infinite.
    mantissa: Option<BigInt>,
    exponent: i64,
}

impl Default for LongDouble {
    fn default() -> Self {
        Self {
            mantissa: Some(BigInt::ZERO),
            exponent: 0,
        }
    }
}

/// Rounds `magnitude * 2^exponent`, and slightly more if `sticky`, to 64 bits.
fn rounded(sign: Sign, magnitude: BigUint, exponent: i64, sticky: bool) -> LongDouble {
    let surplus = magnitude.bits().saturating_sub(BITS);
    let mut kept = &magnitude >> surplus;
    if surplus > 0 {
        let rest = &magnitude - (&kept << surplus);
        let half = BigUint::from(1u8) << (surplus - 1);
        if rest > half || rest == half && (sticky || kept.bit(0)) {
            kept += 1u8;
        }
    }
    LongDouble {
        mantissa: Some(BigInt::from_biguint(sign, kept)),
        exponent: exponent + surplus as i64,
    }
}

impl LongDouble {
    /// Parses a number as `strtold` does, without spaces around it. Returns `None` for NaN.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() >= MAX_TEXT {
            return None;
        }
        let (sign, digits) = match text {
            [b'-', digits @ ..] => (Sign::Minus, digits),
            [b'+', digits @ ..] => (Sign::Plus, digits),
            digits => (Sign::Plus, digits),
        };
        if ["inf", "infinity"]
            .iter()
            .any(|word| digits.eq_ignore_ascii_case(word.as_bytes()))
        {
            return Some(Self {
                mantissa: None,
                exponent: 0,
            });
        }
        let number = match digits {
            [b'0', b'x' | b'X', hex @ ..] => Self::of_digits(sign, hex, 16)?,
            _ => Self::of_digits(sign, digits, 10)?,
        };
        let zero = number.mantissa.as_ref()?.sign() == Sign::NoSign;
        (zero || (LEAST..TOO_LARGE).contains(&number.top())).then_some(number)
    }

    /// Parses digits with an optional point and an optional exponent: of 10, or of 2 in
    /// hexadecimal.
    fn of_digits(sign: Sign, text: &[u8], radix: u32) -> Option<Self> {
        let e: &[u8] = if radix == 16 { b"pP" } else { b"eE" };
        let end = text.iter().position(|byte| e.contains(byte));
        let (digits, exponent) = match end {
            None => (text, 0),
            Some(end) => (&text[..end], Self::exponent(&text[end + 1..])?),
        };
        let point = digits.iter().position(|byte| *byte == b'.');
        let (whole, fraction) = match point {
            None => (digits, &digits[digits.len()..]),
            Some(point) => (&digits[..point], &digits[point + 1..]),
        };
        let all = [whole, fraction].concat();
        if all.is_empty() {
            return None;
        }
        let values: Option<Vec<u8>> = all
            .iter()
            .map(|byte| char::from(*byte).to_digit(radix).map(|digit| digit as u8))
            .collect();
        let magnitude = BigUint::from_radix_be(&values?, radix)?;
        if magnitude == BigUint::ZERO {
            return Some(Self::default());
        }
        let after = fraction.len() as i64;
        if radix == 16 {
            return Some(rounded(sign, magnitude, exponent - 4 * after, false));
        }
        let exponent = exponent - after;
        // Beyond these the number is out of range whatever its digits are, whose count is limited.
        if !(-12_000..=12_000).contains(&exponent) {
            return None;
        }
        let power = BigUint::from(10u8).pow(exponent.unsigned_abs() as u32);
        if exponent >= 0 {
            return Some(rounded(sign, magnitude * power, 0, false));
        }
        // The quotient gets more bits than the precision needs.
        let shift = (power.bits() + BITS + 2).saturating_sub(magnitude.bits());
        let numerator = magnitude << shift;
        let quotient = &numerator / &power;
        let sticky = &quotient * &power != numerator;
        Some(rounded(sign, quotient, -(shift as i64), sticky))
    }

    /// Parses a decimal exponent. One that is far out of range is clamped.
    fn exponent(text: &[u8]) -> Option<i64> {
        let (negative, digits) = match text {
            [b'-', digits @ ..] => (true, digits),
            [b'+', digits @ ..] => (false, digits),
            digits => (false, digits),
        };
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let exponent = digits.iter().fold(0i64, |sum, digit| {
            (sum * 10 + i64::from(digit - b'0')).min(1_000_000)
        });
        Some(if negative { -exponent } else { exponent })
    }

    /// Returns the exponent `top` with 2^top <= magnitude < 2^(top + 1).
    fn top(&self) -> i64 {
        let bits = self.mantissa.as_ref().map_or(0, BigInt::bits);
        self.exponent + bits as i64 - 1
    }

    /// Returns the sum; `None` unless it is finite.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Option<Self> {
        let (a, b) = (self.mantissa.as_ref()?, other.mantissa.as_ref()?);
        let exponent = self.exponent.min(other.exponent);
        let aligned = |mantissa: &BigInt, of: i64| mantissa << (of - exponent) as u64;
        let sum = aligned(a, self.exponent) + aligned(b, other.exponent);
        let (sign, magnitude) = sum.into_parts();
        if sign == Sign::NoSign {
            return Some(Self::default());
        }
        let sum = rounded(sign, magnitude, exponent, false);
        (sum.top() < TOO_LARGE).then_some(sum)
    }
}

impl fmt::Display for LongDouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(mantissa) = &self.mantissa else {
            return f.write_str("inf");
        };
        let scaled = mantissa.magnitude() * BigUint::from(10u8).pow(DIGITS);
        let scaled = if self.exponent >= 0 {
            scaled << self.exponent.unsigned_abs()
        } else {
            let shift = self.exponent.unsigned_abs();
            let kept = &scaled >> shift;
            let rest = &scaled - (&kept << shift);
            let half = BigUint::from(1u8) << (shift - 1);
            if rest > half || rest == half && kept.bit(0) {
                kept + 1u8
            } else {
                kept
            }
        };
        let digits = format!("{scaled:0>width$}", width = DIGITS as usize + 1);
        let (whole, fraction) = digits.split_at(digits.len() - DIGITS as usize);
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        let minus = mantissa.sign() == Sign::Minus && scaled != BigUint::ZERO;
        let sign = if minus { "-" } else { "" };
        write!(f, "{sign}{whole}{point}{fraction}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> String {
        let number = |text: &str| LongDouble::parse(text.as_bytes()).unwrap();
        number(a)
            .plus(&number(b))
            .map_or_else(|| "none".to_owned(), |sum| sum.to_string())
    }

    #[test]
    fn sums_are_those_of_redis() {
        // The results of Redis 7.0 on x86-64.
        assert_eq!(sum("0.1", "0.2"), "0.3");
        assert_eq!(sum("10.50", "0.1"), "10.6");
        assert_eq!(sum("5.0e3", "2.0e2"), "5200");
        assert_eq!(sum("3", "-3.0"), "0");
        assert_eq!(sum("-1e-30", "0"), "0");
        assert_eq!(sum("1e18", "0.3"), "1000000000000000000.3125");
        assert_eq!(sum("0x10", "0"), "16");
        assert_eq!(sum("1e4932", "1e4932"), "none");
        assert_eq!(sum("inf", "1"), "none");
        assert_eq!(sum(".5", "1."), "1.5");
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for bad in [
            "",
            " 1",
            "1 ",
            "nan",
            "1e",
            "e1",
            ".",
            "-",
            "--1",
            "1e5000",
            "1e-5000",
            "x",
            "1_0",
            "0x",
            "1e99999999999999999999",
        ] {
            assert_eq!(LongDouble::parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(LongDouble::parse(&[b'1'; MAX_TEXT]), None);
    }
}
