//! Stamps: which commit a record belongs to.

use super::MAX_TIMESTAMP;

const PENDING: u64 = 1 << 63;
const SLOT_SHIFT: u32 = 55;
const DEAD: u64 = PENDING | 0xFF << SLOT_SHIFT;

/// Returns whether a commit can have that timestamp. No store lives long enough to reach the upper
/// limit.
pub(crate) fn is_valid_timestamp(ts: u64) -> bool {
    (1..MAX_TIMESTAMP / 2).contains(&ts)
}

/// The commit that a record belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// None: the commit that wrote it was undone.
    Dead,
    /// The commit of that timestamp.
    At(u64),
    /// The commit of that timestamp, if its slot of the commit table has that timestamp. Otherwise
    /// the commit is in progress, or a crash cut it short.
    Pending { slot: usize, ts: u64 },
}

impl Stamp {
    pub fn decode(word: u64) -> Self {
        let ts = word & MAX_TIMESTAMP;
        match word {
            DEAD => Self::Dead,
            _ if word & PENDING == 0 => Self::At(word & (PENDING - 1)),
            _ => Self::Pending {
                slot: (word >> SLOT_SHIFT) as usize & 0xFF,
                ts,
            },
        }
    }

    pub fn encode(self) -> u64 {
        match self {
            Self::Dead => DEAD,
            Self::At(ts) => ts,
            Self::Pending { slot, ts } => PENDING | (slot as u64) << SLOT_SHIFT | ts,
        }
    }

    /// Returns the timestamp of a record that is not dead.
    pub fn ts(self) -> Option<u64> {
        match self {
            Self::Dead => None,
            Self::At(ts) | Self::Pending { ts, .. } => Some(ts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_read_as_they_were_written() {
        for stamp in [
            Stamp::Dead,
            Stamp::At(1),
            Stamp::At(MAX_TIMESTAMP),
            Stamp::Pending { slot: 0, ts: 1 },
            Stamp::Pending {
                slot: 255,
                ts: MAX_TIMESTAMP,
            },
        ] {
            assert_eq!(Stamp::decode(stamp.encode()), stamp);
        }
        assert_eq!(Stamp::Dead.ts(), None);
        assert_eq!(Stamp::Pending { slot: 3, ts: 9 }.ts(), Some(9));
    }

    #[test]
    fn no_flipped_bit_makes_a_stamp_dead_or_a_committed_one_pending_under_a_slot() {
        for ts in [1, 2, 9, 1 << 30, (1 << 52) - 1] {
            for bit in 0..64 {
                let flipped = Stamp::decode(Stamp::At(ts).encode() ^ 1 << bit);
                assert!(
                    matches!(flipped, Stamp::At(_) | Stamp::Pending { slot: 0, .. }),
                    "{flipped:?}"
                );
                let pending = Stamp::Pending { slot: 63, ts };
                let flipped = Stamp::decode(pending.encode() ^ 1 << bit);
                let possible = match flipped {
                    Stamp::At(ts) => is_valid_timestamp(ts),
                    Stamp::Dead => true,
                    Stamp::Pending { .. } => false,
                };
                assert!(!possible, "{flipped:?}");
            }
        }
        for bit in 0..64 {
            match Stamp::decode(Stamp::Dead.encode() ^ 1 << bit) {
                Stamp::Dead => panic!("bit {bit}"),
                Stamp::At(ts) | Stamp::Pending { ts: ts @ 0, .. } => {
                    assert!(!is_valid_timestamp(ts))
                }
                Stamp::Pending { slot, .. } => assert_eq!(slot, 255),
            }
        }
    }
}
