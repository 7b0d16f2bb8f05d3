//! Byte strings as people and files see them.
//!
//! | form | used by | lossless |
//! | --- | --- | --- |
//! | [`escape`]: printable UTF-8 as it is, the rest as `\xNN`, `\` as `\\` | `scan --format text`, messages | yes |
//! | [`base64`]: RFC 4648, padded | JSON and CSV fields named `…_base64` | yes |

use std::fmt::Write as _;
use std::path::Path;

/// Appends `bytes`: printable UTF-8 as it is, control characters and other bytes as `\xNN`.
pub fn escape_into(bytes: &[u8], out: &mut String) {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' {
                out.push_str("\\\\");
            } else if c.is_control() {
                let mut utf8 = [0; 4];
                push_hex(c.encode_utf8(&mut utf8).as_bytes(), out);
            } else {
                out.push(c);
            }
        }
        push_hex(chunk.invalid(), out);
    }
}

fn push_hex(bytes: &[u8], out: &mut String) {
    for b in bytes {
        // Writing to a String does not fail.
        let _ = write!(out, "\\x{b:02x}");
    }
}

/// `bytes`, escaped.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    escape_into(bytes, &mut out);
    out
}

/// A key or value for a message: escaped, quoted, and cut when long.
pub fn quoted(bytes: &[u8]) -> String {
    const MOST: usize = 60;
    if bytes.len() <= MOST {
        return format!("\"{}\"", escape(bytes));
    }
    let mut end = MOST;
    while end > MOST - 4 && bytes[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    format!("\"{}…\" ({} bytes)", escape(&bytes[..end]), bytes.len())
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// `bytes` in base64, padded.
pub fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word =
            group.iter().fold(0u32, |w, b| w << 8 | u32::from(*b)) << (8 * (3 - group.len()));
        for i in 0..4 {
            if i <= group.len() {
                out.push(char::from(ALPHABET[(word >> (18 - 6 * i)) as usize & 63]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

/// The bytes that `text` encodes, or what is wrong with it.
pub fn from_base64(text: &str) -> Result<Vec<u8>, String> {
    let body = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - body.len() > 2 {
        return Err(format!(
            "base64 of {} characters: not a whole number of groups of 4",
            text.len()
        ));
    }
    let mut out = Vec::with_capacity(body.len() / 4 * 3 + 2);
    for group in body.as_bytes().chunks(4) {
        let mut word = 0u32;
        for b in group {
            let digit = ALPHABET
                .iter()
                .position(|a| a == b)
                .ok_or_else(|| format!("{} is not a base64 character", quoted(&[*b])))?;
            word = word << 6 | digit as u32;
        }
        let bits = 6 * group.len() as u32;
        let whole = bits / 8;
        if bits % 8 == 6 || word & ((1 << (bits % 8)) - 1) != 0 {
            return Err("base64 that ends in the middle of a byte".to_owned());
        }
        word >>= bits % 8;
        for i in (0..whole).rev() {
            out.push((word >> (8 * i)) as u8);
        }
    }
    Ok(out)
}

/// `n` with separators: `12,345`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `n` bytes in the unit that reads best.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} bytes");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A duration in the unit that reads best.
pub fn duration(d: std::time::Duration) -> String {
    let s = d.as_secs_f64();
    if s >= 1.0 {
        format!("{s:.2} s")
    } else if s >= 1e-3 {
        format!("{:.1} ms", s * 1e3)
    } else {
        format!("{:.0} µs", s * 1e6)
    }
}

/// `n` things a second.
pub fn rate(n: u64, d: std::time::Duration) -> String {
    grouped((n as f64 / d.as_secs_f64().max(1e-9)).round() as u64)
}

/// A path or word as a POSIX shell wants it.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A path as a POSIX shell wants it.
pub fn shell_path(path: &Path) -> String {
    shell_word(&path.to_string_lossy())
}

/// This program as the person called it, for commands to repeat.
pub fn program() -> String {
    match std::env::args_os().next() {
        Some(name) => shell_path(name.as_ref()),
        None => "bristlecone".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_unambiguous() {
        assert_eq!(escape(b"Lyon"), "Lyon");
        assert_eq!(escape("Zürich\t".as_bytes()), "Zürich\\x09");
        assert_eq!(escape(b"\\x41\xff\0"), "\\\\x41\\xff\\x00");
        assert_eq!(escape("\u{85}".as_bytes()), "\\xc2\\x85");
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        let text = "é".repeat(100);
        let shown = quoted(text.as_bytes());
        assert!(shown.ends_with("é…\" (200 bytes)"), "{shown}");
        assert_eq!(quoted(b"a\"b"), "\"a\"b\"");
    }

    #[test]
    fn base64_matches_the_rfc() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
            assert_eq!(from_base64(coded).unwrap(), plain.as_bytes());
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_base64(&base64(&all)).unwrap(), all);
    }

    #[test]
    fn bad_base64_is_refused() {
        for bad in [
            "A", "AB", "ABC", "====", "A===", "AB=C", "Zh==", "Zm9=", "Zm 9", "Zm9v=",
        ] {
            assert!(from_base64(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(12_345_678), "12,345,678");
        assert_eq!(bytes(1023), "1023 bytes");
        assert_eq!(bytes(1 << 20), "1.0 MiB");
        assert_eq!(shell_word("a b'c"), r"'a b'\''c'");
        assert_eq!(shell_word("/tmp/x-1.pool"), "/tmp/x-1.pool");
    }
}
