//! Compressing long values.
//!
//! A value is packed on its own, so reading one costs nothing but unpacking it, and the parts of a
//! value that has [parts](super::parts) are packed each for itself. The length before packing is
//! known from the head without unpacking.

use crate::error::Damage;
use crate::options::Compression;

/// Shortest value that is packed, in bytes.
const SHORTEST: usize = 512;
/// Longest value that is: what one entry of the tree can have.
pub(super) const LONGEST: u64 = 64 << 20;

/// Codec numbers, as values have them.
const LZ4: u8 = 1;
const ZSTD: u8 = 2;

/// Returns the codec and the packed bytes of a value, if packing it saves at least an eighth.
pub(super) fn pack(value: &[u8], with: Compression) -> Option<(u8, Vec<u8>)> {
    if value.len() < SHORTEST || value.len() as u64 > LONGEST {
        return None;
    }
    let packed: Option<(u8, Vec<u8>)> = match with {
        Compression::None => None,
        #[cfg(feature = "lz4")]
        Compression::Lz4 => Some((LZ4, lz4::pack(value)?)),
        #[cfg(feature = "zstd")]
        Compression::Zstd => Some((ZSTD, zstandard::pack(value)?)),
    };
    packed.filter(|(_, packed)| packed.len() <= value.len() / 8 * 7)
}

/// Returns the value of `len` bytes that was packed into `packed`.
///
/// # Errors
/// [`Damage`]: it is none, this build lacks the codec, or there is no memory for it.
pub(super) fn unpack(codec: u8, packed: &[u8], len: u64) -> Result<Vec<u8>, Damage> {
    let damage = |what: String| Damage::new(format!("its compressed value {what}"));
    if len > LONGEST {
        return Err(damage(format!("claims {len} bytes; the most is {LONGEST}")));
    }
    let value = zeros(len as usize);
    let mut value = value.ok_or_else(|| damage(format!("has {len} bytes: no memory for it")))?;
    let unpacked = match codec {
        LZ4 => lz4::unpack(packed, &mut value),
        ZSTD => zstandard::unpack(packed, &mut value),
        codec => Err(format!(
            "has codec {codec}, which this version does not know"
        )),
    };
    match unpacked.map_err(damage)? {
        found if found == value.len() => Ok(value),
        found => Err(damage(format!("has {found} bytes of {len}"))),
    }
}

/// Returns so many zeros, if there is memory for them.
fn zeros(len: usize) -> Option<Vec<u8>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(len).ok()?;
    zeros.resize(len, 0);
    Some(zeros)
}

#[cfg(feature = "lz4")]
mod lz4 {
    use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};

    pub(super) fn pack(value: &[u8]) -> Option<Vec<u8>> {
        let mut packed = super::zeros(get_maximum_output_size(value.len()))?;
        let len = compress_into(value, &mut packed).ok()?;
        packed.truncate(len);
        Some(packed)
    }

    pub(super) fn unpack(packed: &[u8], value: &mut [u8]) -> Result<usize, String> {
        decompress_into(packed, value).map_err(|e| format!("cannot be unpacked: {e}"))
    }
}

#[cfg(feature = "zstd")]
mod zstandard {
    use zstd::DEFAULT_COMPRESSION_LEVEL;
    use zstd::bulk::{compress_to_buffer, decompress_to_buffer};

    pub(super) fn pack(value: &[u8]) -> Option<Vec<u8>> {
        // It gives up where the result would be longer.
        let mut packed = super::zeros(value.len())?;
        let len = compress_to_buffer(value, &mut packed[..], DEFAULT_COMPRESSION_LEVEL).ok()?;
        packed.truncate(len);
        Some(packed)
    }

    pub(super) fn unpack(packed: &[u8], value: &mut [u8]) -> Result<usize, String> {
        decompress_to_buffer(packed, value).map_err(|e| format!("cannot be unpacked: {e}"))
    }
}

#[cfg(not(feature = "lz4"))]
mod lz4 {
    pub(super) fn unpack(_: &[u8], _: &mut [u8]) -> Result<usize, String> {
        Err(super::lacking("lz4"))
    }
}

#[cfg(not(feature = "zstd"))]
mod zstandard {
    pub(super) fn unpack(_: &[u8], _: &mut [u8]) -> Result<usize, String> {
        Err(super::lacking("zstd"))
    }
}

/// The message for a value that this build cannot unpack.
#[cfg(not(all(feature = "lz4", feature = "zstd")))]
fn lacking(feature: &str) -> String {
    format!("is readable only by a build of the library with the feature \"{feature}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values whose sums are right, and that no version has written.
    #[test]
    fn what_is_no_packed_value_is_damage_with_a_reason() {
        let text = |codec, packed: &[u8], len| unpack(codec, packed, len).unwrap_err().0;
        assert!(text(9, b"", 0).contains("codec 9"));
        assert!(text(LZ4, b"", LONGEST + 1).contains("67108865 bytes; the most is 67108864"));
        for codec in [LZ4, ZSTD] {
            assert!(!text(codec, b"\xFF\xFF\xFF", 700).is_empty());
        }
    }

    /// The codecs that this build has, with their numbers and what they make of a value.
    #[expect(clippy::type_complexity, reason = "named once")]
    fn codecs() -> Vec<(Compression, u8, fn(&[u8]) -> Option<Vec<u8>>)> {
        vec![
            #[cfg(feature = "lz4")]
            (Compression::Lz4, LZ4, lz4::pack),
            #[cfg(feature = "zstd")]
            (Compression::Zstd, ZSTD, zstandard::pack),
        ]
    }

    #[test]
    fn a_length_that_is_not_that_of_the_value_is_damage() {
        let value = vec![7; 5000];
        for (with, ..) in codecs() {
            let (codec, packed) = pack(&value, with).unwrap();
            assert_eq!(unpack(codec, &packed, 5000).unwrap(), value);
            assert!(unpack(codec, &packed, 4999).is_err());
            let e = unpack(codec, &packed, 5001).unwrap_err();
            assert!(e.0.ends_with("has 5000 bytes of 5001"), "{}", e.0);
            assert!(unpack(codec, &packed[..packed.len() - 1], 5000).is_err());
        }
    }

    #[test]
    fn short_values_are_not_packed() {
        for (with, codec, _) in codecs() {
            for len in [0, 1, SHORTEST - 1] {
                assert_eq!(pack(&vec![7; len], with), None, "{len}");
            }
            for len in [SHORTEST, SHORTEST + 1] {
                let value = vec![7; len];
                let (found, packed) = pack(&value, with).unwrap();
                assert_eq!(found, codec);
                assert_eq!(unpack(codec, &packed, len as u64).unwrap(), value);
            }
        }
        assert_eq!(pack(&[7; 5000], Compression::None), None);
    }

    #[test]
    fn the_longest_value_is_packed_and_no_longer_one() {
        for (with, codec, _) in codecs() {
            let longer = vec![0; LONGEST as usize + 1];
            assert_eq!(pack(&longer, with), None);
            let longest = &longer[1..];
            let (_, packed) = pack(longest, with).unwrap();
            assert!(unpack(codec, &packed, LONGEST).unwrap() == longest);
        }
    }

    #[test]
    fn a_value_is_packed_if_that_saves_an_eighth() {
        let len = 800;
        let mut state = 1_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .take(len)
        .collect();
        for (with, codec, shortened) in codecs() {
            let mut lengths = Vec::new();
            for same in 0..len {
                let value = [&noise[..len - same], &vec![7; same]].concat();
                let short = shortened(&value);
                let saves = short.filter(|short| short.len() <= 700);
                lengths.extend(saves.as_ref().map(Vec::len));
                assert_eq!(pack(&value, with), saves.map(|short| (codec, short)));
            }
            assert!(lengths.contains(&700) && lengths.len() < len, "{with:?}");
        }
    }

    #[cfg(not(feature = "zstd"))]
    #[test]
    fn a_missing_codec_is_named() {
        let e = unpack(ZSTD, b"", 0).unwrap_err();
        assert!(e.0.contains("the feature \"zstd\""), "{}", e.0);
    }
}
