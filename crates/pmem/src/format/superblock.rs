//! The superblock: a file's description of itself, in two copies.
//!
//! ```text
//! offset  0 | magic "BRSTLCN1"
//!         8 | byte-order marker 0x01020304 (u32) | format version (u32)
//!        16 | generation (u64)                   | pool bytes (u64)
//!        32 | UUID (16 bytes)
//!        48 | clean (u32) | medium (u32)
//!       508 | CRC-32C of bytes 0..508 (u32)
//! ```
//!
//! `pool/superblock.rs` says in which order the copies are written, and which states a crash
//! leaves.

use super::MediumKind;
use super::layout::SUPERBLOCK_B;
use crate::error::OpenError;
use crate::version::VersionError;
use std::path::Path;
use uuid::Uuid;

pub(crate) const MAGIC: [u8; 8] = *b"BRSTLCN1";
/// The format version that this build writes, and the only one that it reads.
pub const FORMAT: u32 = 1;
const MARKER: u32 = 0x0102_0304;
pub(crate) const BYTES: usize = 512;
const CRC_AT: usize = 508;

/// The content of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub generation: u64,
    pub size: u64,
    pub uuid: Uuid,
    pub clean: bool,
    pub medium: Option<MediumKind>,
    /// Number of the copy that this was read from (0 or 1). The other may be torn.
    pub copy: usize,
}

/// Places of the copies.
pub(crate) const COPIES: [u64; 2] = [0, SUPERBLOCK_B];

/// The result of decoding one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    Whole(Superblock),
    Other(VersionError),
    OtherEndianness,
    NoMagic,
    BadChecksum,
}

fn u32_at(bytes: &[u8; BYTES], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

fn u64_at(bytes: &[u8; BYTES], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

impl Superblock {
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&MARKER.to_le_bytes());
        bytes[12..16].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.size.to_le_bytes());
        bytes[32..48].copy_from_slice(self.uuid.as_bytes());
        bytes[48..52].copy_from_slice(&u32::from(self.clean).to_le_bytes());
        let medium = self.medium.map_or(0, MediumKind::code);
        bytes[52..56].copy_from_slice(&u32::from(medium).to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; BYTES]) -> Copy {
        if bytes[0..8] != MAGIC {
            return Copy::NoMagic;
        }
        if u32_at(bytes, 8) == MARKER.swap_bytes() {
            return Copy::OtherEndianness;
        }
        let newest = u64::from(FORMAT);
        let version = VersionError::check("pool", u32_at(bytes, 12).into(), newest..=newest);
        let sum_is_right = crc32c::crc32c(&bytes[..CRC_AT]) == u32_at(bytes, CRC_AT);
        match version {
            // A newer one may have its sum elsewhere.
            Err(e) if sum_is_right || e.is_newer() && u32_at(bytes, 8) == MARKER => {
                return Copy::Other(e);
            }
            _ if !sum_is_right => return Copy::BadChecksum,
            _ => {}
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[32..48]);
        Copy::Whole(Self {
            generation: u64_at(bytes, 16),
            size: u64_at(bytes, 24),
            uuid: Uuid::from_bytes(uuid),
            clean: u32_at(bytes, 48) == 1,
            medium: u8::try_from(u32_at(bytes, 52))
                .ok()
                .and_then(MediumKind::from_code),
            copy: 0,
        })
    }

    /// Returns the superblock that an opening for writing on `medium` writes: in use.
    pub(crate) fn opened(self, medium: MediumKind) -> Self {
        Self {
            // Not the next one: the other copy may be torn (`pool/superblock.rs`, crash states, 1).
            generation: self.generation + 1 + u64::from(medium.code()),
            clean: false,
            medium: Some(medium),
            ..self
        }
    }

    /// Returns the same, as if read from copy number `copy`.
    pub(crate) fn with_copy(self, copy: usize) -> Self {
        Self { copy, ..self }
    }

    /// Reads the superblock of a file that is not open, if it has a whole one.
    pub(crate) fn peek(path: &Path) -> Option<Self> {
        use std::os::unix::fs::{FileExt, OpenOptionsExt};
        // Opening a FIFO must not wait.
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = std::fs::File::options()
            .read(true)
            .custom_flags(nonblocking)
            .open(path)
            .ok()?;
        let (mut a, mut b) = ([0; BYTES], [0; BYTES]);
        file.read_exact_at(&mut a, 0).ok()?;
        // A file cut short before copy B still has copy A.
        let _ = file.read_exact_at(&mut b, SUPERBLOCK_B);
        Self::choose(path, &a, &b).ok()
    }

    /// Writes both copies to a file that is no open pool.
    pub(crate) fn write_to(&self, file: &std::fs::File) -> std::io::Result<()> {
        use std::os::unix::fs::FileExt;
        let bytes = self.encode();
        file.write_all_at(&bytes, 0)?;
        file.write_all_at(&bytes, SUPERBLOCK_B)
    }

    pub(crate) fn choose(path: &Path, a: &[u8; BYTES], b: &[u8; BYTES]) -> Result<Self, OpenError> {
        match (Self::decode(a), Self::decode(b)) {
            (Copy::Whole(a), Copy::Whole(b)) => Ok(if a.generation >= b.generation {
                a
            } else {
                b.with_copy(1)
            }),
            (Copy::Whole(a), _) => Ok(a),
            (_, Copy::Whole(b)) => Ok(b.with_copy(1)),
            (Copy::NoMagic, Copy::NoMagic) => Err(OpenError::NotAPool {
                path: path.to_path_buf(),
                found: if a.iter().all(|byte| *byte == 0) {
                    "it begins with zeros".into()
                } else {
                    format!("it begins with {:?}", String::from_utf8_lossy(&a[..8]))
                },
            }),
            (Copy::Other(version), _) | (_, Copy::Other(version)) => Err(OpenError::Version {
                path: path.to_path_buf(),
                version,
            }),
            (Copy::OtherEndianness, _) | (_, Copy::OtherEndianness) => {
                Err(OpenError::OtherEndianness(path.to_path_buf()))
            }
            // Copy B is written after A is whole, so no pool ever looked like this.
            (Copy::BadChecksum, Copy::NoMagic) => Err(OpenError::NotAPool {
                path: path.to_path_buf(),
                found: "it begins like a pool whose making was interrupted".into(),
            }),
            _ => Err(OpenError::Corrupt {
                path: path.to_path_buf(),
                what: "both superblock copies (offsets 0 and 4096) fail their checksum".into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            generation: 7,
            size: 2 << 20,
            uuid: Uuid::from_u128(0x1234),
            clean: true,
            medium: Some(MediumKind::Journal),
            copy: 0,
        }
    }

    #[test]
    fn round_trip_and_choice_with_copy() {
        let path = Path::new("p");
        let old = sample().encode();
        let new = Superblock {
            generation: 8,
            ..sample()
        }
        .encode();
        assert_eq!(Superblock::choose(path, &old, &new).unwrap().generation, 8);
        assert_eq!(Superblock::choose(path, &new, &old).unwrap().generation, 8);
        for bit in 0..BYTES * 8 {
            let mut torn = new;
            torn[bit / 8] ^= 1 << (bit % 8);
            let chosen = Superblock::choose(path, &torn, &old).unwrap();
            assert_eq!(chosen, sample().with_copy(1), "bit {bit}");
        }
    }

    /// Writes the words of `new` that `kept` names over `old`.
    fn torn(old: &[u8; BYTES], new: &[u8; BYTES], kept: u64) -> [u8; BYTES] {
        let mut bytes = *old;
        let words = bytes.chunks_exact_mut(8).zip(new.chunks_exact(8));
        for (i, (word, new)) in words.filter(|(word, new)| word != new).enumerate() {
            if kept >> i & 1 == 1 {
                word.copy_from_slice(new);
            }
        }
        bytes
    }

    #[test]
    fn no_change_that_was_given_up_is_completed_by_openings() {
        let path = Path::new("p");
        let in_use = sample().opened(MediumKind::Mapped);
        let next = |of: &Superblock| Superblock {
            generation: of.generation + 1,
            ..of.clone()
        };
        let grown = Superblock {
            size: 4 << 20,
            ..next(&in_use)
        };
        let closed = Superblock {
            clean: true,
            ..next(&in_use)
        };
        let unopened = sample();
        let used = sample().opened(MediumKind::Dax);
        let changes = [(&in_use, grown), (&in_use, closed), (&unopened, used)];
        let media = [MediumKind::Mapped, MediumKind::Dax, MediumKind::Journal];
        let mut given_up = 0;
        for (counts, change) in &changes {
            let old = counts.encode();
            for kept in 0..1 << 4 {
                let first = torn(&old, &change.encode(), kept);
                // The second crash tears the first opening's copy, the third the second one's.
                for (a, b) in media.iter().flat_map(|a| media.map(|b| (*a, b))) {
                    let openings = [a, b].map(|medium| (*counts).clone().opened(medium));
                    let [a, b] = openings.each_ref().map(Superblock::encode);
                    if Superblock::choose(path, &old, &first).unwrap() != **counts {
                        continue; // the change was whole
                    }
                    given_up += 1;
                    for kept in 0..1 << 8 {
                        let second = torn(&first, &a, kept & 15);
                        let third = torn(&second, &b, kept >> 4);
                        for bytes in [second, third] {
                            let found = Superblock::choose(path, &old, &bytes).unwrap();
                            let found = found.with_copy(0);
                            assert!(
                                found == **counts || openings.contains(&found),
                                "{found:?} of {change:?}, over {counts:?}"
                            );
                        }
                    }
                }
            }
        }
        assert!(given_up > 200, "{given_up} torn copies");
    }

    /// A copy of another version, whose sum is right.
    fn with_version(copy: &[u8; BYTES], version: u32) -> [u8; BYTES] {
        let mut copy = *copy;
        copy[12..16].copy_from_slice(&version.to_le_bytes());
        let sum = crc32c::crc32c(&copy[..CRC_AT]);
        copy[CRC_AT..].copy_from_slice(&sum.to_le_bytes());
        copy
    }

    #[test]
    fn errors_say_which() {
        let path = Path::new("p");
        let good = sample().encode();
        let with = |at: usize, bytes: &[u8]| {
            let mut copy = good;
            copy[at..at + bytes.len()].copy_from_slice(bytes);
            Superblock::choose(path, &copy, &copy).unwrap_err()
        };
        assert!(matches!(with(0, b"x"), OpenError::NotAPool { .. }));
        assert!(matches!(
            with(8, &[1, 2, 3, 4]),
            OpenError::OtherEndianness(_)
        ));
        assert!(matches!(
            with(12, &[9, 0, 0, 0]),
            OpenError::Version { version, .. } if version.found == 9 && version.is_newer()
        ));
        let older = with_version(&good, 0);
        assert!(matches!(
            Superblock::choose(path, &older, &older),
            Err(OpenError::Version { version, .. }) if version.found == 0 && !version.is_newer()
        ));
        assert!(matches!(with(100, b"x"), OpenError::Corrupt { .. }));
        let zeros = [0; BYTES];
        let mut torn = good;
        torn[CRC_AT..].fill(0);
        assert!(
            matches!(Superblock::choose(path, &torn, &zeros), Err(OpenError::NotAPool { found, .. }) if found.contains("interrupted"))
        );
        assert!(matches!(
            Superblock::choose(path, &torn, &torn),
            Err(OpenError::Corrupt { .. })
        ));
        assert!(
            matches!(Superblock::choose(path, &zeros, &zeros), Err(OpenError::NotAPool { found, .. }) if found.contains("zeros"))
        );
    }
}
