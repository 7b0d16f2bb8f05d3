//! The operations of a torture writer: the same seed gives the same operations in writer and
//! checker, so the writer need only tell how far it came.
//!
//! Each thread has keys of its own, so the operations on one key are in one thread's order, and at
//! most one of them is under way when the writer dies.
//!
//! A thread that has finished an operation writes an acknowledgement of 16 bytes with one `write`,
//! which a pipe takes whole or not at all:
//!
//! ```text
//! | 0xA5 | outcome | thread (u16) | sequence number (u32) | version (u64) |      little-endian
//! ```

use rand::rngs::Xoshiro256PlusPlus as Random;
use rand::{RngExt, SeedableRng};

/// Keys that each thread works on.
pub const KEYS_PER_THREAD: u32 = 3_000;
/// Keys in a batch.
pub const BATCH: usize = 8;
/// Bytes of an acknowledgement.
pub const ACK: usize = 16;
const ACK_MARK: u8 = 0xA5;
/// The first message of a writer, when it has opened the pool.
pub const READY: [u8; ACK] = [0x5A; ACK];

/// A key, by number. Key `n` belongs to thread `n % threads`.
pub type KeyId = u32;

/// The bytes of key `id`: mostly short, some long, up to `longest`, the first empty, no two alike.
pub fn key(id: KeyId, longest: usize) -> Vec<u8> {
    if id == 0 {
        return Vec::new();
    }
    let mut key = format!("torture/{id:08}").into_bytes();
    match id % 509 {
        1 => key.resize(longest.min(64 << 10), b'+'),
        2..12 => key.resize(40 + (id % 300) as usize, b'.'),
        _ => {}
    }
    key
}

/// The bytes of version `version` of key `id`.
pub fn value(id: KeyId, version: u64) -> Vec<u8> {
    let mut random = Random::seed_from_u64(version ^ u64::from(id) << 32);
    let len = match random.random_range(0..256u32) {
        0 => random.random_range(2_000..16_000),
        1..40 => random.random_range(100..1_000),
        _ => random.random_range(0..100),
    };
    let mut value = Vec::with_capacity(8 + len + 8);
    value.extend_from_slice(&version.to_le_bytes());
    while value.len() < 8 + len {
        value.extend_from_slice(&random.random::<u64>().to_le_bytes());
    }
    value.truncate(8 + len);
    value
}

/// The version that a value claims to be.
pub fn version_of(value: &[u8]) -> Option<u64> {
    value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Store a value whatever is there.
    Upsert(KeyId),
    /// Replace a value if there is one.
    Update(KeyId),
    /// Remove the key.
    Remove(KeyId),
    /// Insert those keys of a batch that are not there; each is atomic by itself.
    Insert([KeyId; BATCH]),
}

/// An operation in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Place in the thread's sequence, from 0.
    pub sequence: u32,
    /// Version that the operation writes.
    pub version: u64,
    /// The operation.
    pub action: Action,
}

/// A thread's operations in one round.
pub struct Plan {
    random: Random,
    thread: u16,
    threads: u16,
    round: u32,
    sequence: u32,
}

impl Plan {
    /// The operations of `thread` of `threads` in round `round` under `seed`.
    pub fn new(seed: u64, round: u32, thread: u16, threads: u16) -> Self {
        let mix = u64::from(round) << 16 | u64::from(thread);
        let random = Random::seed_from_u64(seed ^ mix.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Self {
            random,
            thread,
            threads,
            round,
            sequence: 0,
        }
    }

    fn key(&mut self) -> KeyId {
        // Half of the work goes to a tenth of the keys, so that updates and removals find
        // something.
        let most = if self.random.random() {
            KEYS_PER_THREAD
        } else {
            KEYS_PER_THREAD / 10
        };
        self.random.random_range(0..most) * KeyId::from(self.threads) + KeyId::from(self.thread)
    }
}

impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let sequence = self.sequence;
        self.sequence = sequence.checked_add(1)?;
        let action = match self.random.random_range(0..100u32) {
            0..50 => Action::Upsert(self.key()),
            50..62 => Action::Update(self.key()),
            62..85 => Action::Remove(self.key()),
            _ => {
                let mut keys = [0; BATCH];
                for i in 0..BATCH {
                    keys[i] = self.key();
                    while keys[..i].contains(&keys[i]) {
                        keys[i] = self.key();
                    }
                }
                Action::Insert(keys)
            }
        };
        // Never the same twice, over threads and rounds: the thread is in the key already.
        let version = u64::from(self.round) << 32 | u64::from(sequence);
        Some(Step {
            sequence,
            version,
            action,
        })
    }
}

/// That an operation returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The thread.
    pub thread: u16,
    /// The operation's place in its sequence.
    pub sequence: u32,
    /// The version that it wrote.
    pub version: u64,
    /// For a batch, a bit per key that was inserted; else 1 if the key was there before.
    pub outcome: u8,
}

impl Ack {
    /// As bytes.
    pub fn encode(self) -> [u8; ACK] {
        let mut bytes = [0; ACK];
        bytes[0] = ACK_MARK;
        bytes[1] = self.outcome;
        bytes[2..4].copy_from_slice(&self.thread.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..].copy_from_slice(&self.version.to_le_bytes());
        bytes
    }

    /// From bytes; `None` if they are no acknowledgement.
    pub fn decode(bytes: &[u8; ACK]) -> Option<Self> {
        let [mark, outcome, t0, t1, s0, s1, s2, s3, version @ ..] = *bytes;
        (mark == ACK_MARK).then(|| Self {
            thread: u16::from_le_bytes([t0, t1]),
            sequence: u32::from_le_bytes([s0, s1, s2, s3]),
            version: u64::from_le_bytes(version),
            outcome,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn plans_repeat_and_keep_to_their_keys() {
        let steps: Vec<_> = Plan::new(7, 3, 1, 4).take(2_000).collect();
        assert_eq!(steps, Plan::new(7, 3, 1, 4).take(2_000).collect::<Vec<_>>());
        assert_ne!(steps, Plan::new(7, 4, 1, 4).take(2_000).collect::<Vec<_>>());
        for step in &steps {
            match &step.action {
                Action::Upsert(k) | Action::Update(k) | Action::Remove(k) => assert_eq!(k % 4, 1),
                Action::Insert(keys) => {
                    assert!(keys.iter().all(|k| k % 4 == 1));
                    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), BATCH);
                }
            }
        }
    }

    #[test]
    fn keys_and_values_tell_themselves_apart() {
        let keys: HashSet<_> = (0..12_000).map(|id| key(id, usize::MAX)).collect();
        assert_eq!(keys.len(), 12_000);
        assert!(keys.contains(&b""[..]) && keys.iter().any(|k| k.len() == 64 << 10));
        assert_eq!(version_of(&value(5, 99)), Some(99));
        assert_ne!(value(5, 99), value(6, 99));
        assert_eq!(version_of(b"short"), None);
    }

    #[test]
    fn acknowledgements_round_trip() {
        let ack = Ack {
            thread: 513,
            sequence: 70_000,
            version: 1 << 40,
            outcome: 0x81,
        };
        assert_eq!(Ack::decode(&ack.encode()), Some(ack));
        assert_eq!(Ack::decode(&READY), None);
    }
}
