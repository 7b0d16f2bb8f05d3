//! Counts in the notation of people: `10M`, `64k`, `1_000`, `2.5M`.

use crate::LabError;

/// Parses a count: digits, optionally with `_` or a decimal fraction, and optionally followed by
/// `k`, `M` or `G` (thousand, million, thousand million) in either case.
///
/// # Errors
/// [`LabError::Parameter`], naming the text, if it is no count, not a whole number, or too large.
pub fn parse_count(text: &str) -> Result<u64, LabError> {
    let wrong = || {
        LabError::parameter(
            "a count",
            text,
            "a whole number such as 5000, 64k, 2.5M or 1G",
        )
    };
    let trimmed = text.trim();
    let (digits, unit) = match trimmed.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&trimmed[..at], 1_000_u64),
        Some((at, 'm' | 'M')) => (&trimmed[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&trimmed[..at], 1_000_000_000),
        _ => (trimmed, 1),
    };
    let digits: String = digits.chars().filter(|c| *c != '_').collect();
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) || digits.ends_with('.') {
        return Err(wrong());
    }
    let mut count = whole
        .parse::<u64>()
        .ok()
        .and_then(|whole| whole.checked_mul(unit))
        .ok_or_else(wrong)?;
    let mut unit = unit;
    for digit in fraction.bytes().map(|b| u64::from(b - b'0')) {
        if !unit.is_multiple_of(10) && digit != 0 {
            return Err(wrong());
        }
        unit /= 10;
        count = count.checked_add(digit * unit).ok_or_else(wrong)?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, count) in [
            ("0", 0),
            ("5000", 5_000),
            ("1_000", 1_000),
            ("64k", 64_000),
            ("10M", 10_000_000),
            ("2.5m", 2_500_000),
            ("1.000G", 1_000_000_000),
            (" 3K ", 3_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_count(text).unwrap(), count, "{text}");
        }
    }

    #[test]
    fn refuses_the_rest_and_names_it() {
        for text in [
            "",
            "k",
            "-1",
            "1e6",
            "0x10",
            "1.5",
            "1.",
            ".5M",
            "1.0005k",
            "ten",
            "1MM",
            "20000000000G",
        ] {
            let message = parse_count(text).expect_err(text).to_string();
            assert!(message.contains(&format!("{text:?}")), "{message}");
        }
    }
}
