//! Amounts of memory: as settings give them, what the machine has, and what this process uses.

use std::fmt;
use std::str::FromStr;

/// Parses a number of bytes: `100`, `10k` (1000), `10kb` (1024), and so on.
pub(crate) fn parse_bytes<N: TryFrom<i64>>(text: &str) -> Result<N, String> {
    let lower = text.to_ascii_lowercase();
    let units = [
        ("kb", 1 << 10),
        ("mb", 1 << 20),
        ("gb", 1 << 30),
        ("k", 1_000),
        ("m", 1_000_000),
        ("g", 1_000_000_000),
        ("b", 1),
        ("", 1),
    ];
    units
        .into_iter()
        .find_map(|(unit, scale)| Some((lower.strip_suffix(unit)?, scale)))
        .and_then(|(digits, scale)| digits.parse::<i64>().ok()?.checked_mul(scale))
        .and_then(|bytes| N::try_from(bytes).ok())
        .ok_or_else(|| "argument must be a memory value".to_owned())
}

/// A number of bytes, or a share of the memory that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Bytes.
    Bytes(usize),
    /// A percentage.
    Percent(u8),
}

impl Share {
    /// Returns it in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => {
                let bytes = u128::from(available()) * u128::from(percent) / 100;
                usize::try_from(bytes).unwrap_or(usize::MAX)
            }
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "argument must be a memory or percent value".to_owned();
        match text.strip_suffix('%') {
            Some(digits) => {
                let percent = digits.parse().ok().filter(|percent| *percent <= 100);
                percent.map(Self::Percent).ok_or_else(wrong)
            }
            None => (parse_bytes(text).map(Self::Bytes)).map_err(|_| wrong()),
        }
    }
}

/// Returns the memory in bytes that this process may use: the machine's, or the limit of its
/// control groups.
#[must_use]
pub fn available() -> u64 {
    // Without a known limit nothing is too much.
    bristlecone_pmem::memory::available().unwrap_or(u64::MAX)
}

/// Returns the resident memory of this process in bytes; 0 if the system does not tell.
pub(crate) fn resident() -> u64 {
    bristlecone_pmem::memory::resident().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_taken_as_redis_takes_them() {
        for (text, share, shown) in [
            ("0", Share::Bytes(0), "0"),
            ("64mb", Share::Bytes(64 << 20), "67108864"),
            ("25%", Share::Percent(25), "25%"),
            ("100%", Share::Percent(100), "100%"),
        ] {
            assert_eq!(text.parse(), Ok(share));
            assert_eq!(share.to_string(), shown);
        }
        for text in ["", "%", "101%", "-1%", "-1", "x", "1.5%"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
        let quarter = Share::Percent(25).bytes() as u64;
        assert!(quarter > 0 && quarter <= available() / 4);
    }
}
