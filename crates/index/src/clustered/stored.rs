//! Values as a page has them: here, or by a reference to a block of their own.

/// Words of a head.
pub(super) const HEAD_WORDS: usize = 3;
/// Bytes of a head.
pub(super) const HEAD: usize = HEAD_WORDS * 8;
/// Bytes of a reference.
pub(super) const REFERENCE: usize = HEAD + 8;

/// A value as a page has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored<'v> {
    /// The value, or a reference to an outer one.
    pub(super) bytes: &'v [u8],
    pub(super) outer: bool,
}

impl<'v> Stored<'v> {
    pub(super) fn here(bytes: &'v [u8]) -> Self {
        Self {
            bytes,
            outer: false,
        }
    }

    /// The reference; `None` if the value is here.
    #[inline]
    pub(super) fn reference(self) -> Option<Reference> {
        self.outer.then(|| Reference::decode(self.bytes)).flatten()
    }
}

/// The way to an outer value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) head: [u64; HEAD_WORDS],
    pub(super) block: u64,
}

impl Reference {
    pub(super) fn encode(&self) -> [u8; REFERENCE] {
        let [a, b, c] = self.head;
        let mut bytes = [0; REFERENCE];
        for (eight, word) in bytes.chunks_mut(8).zip([a, b, c, self.block]) {
            eight.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None` if these bytes are none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REFERENCE] = bytes.try_into().ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        let [a, b, c, block] = [0, 1, 2, 3].map(|i| u64::from_le_bytes(words[i]));
        let reference = Self {
            head: [a, b, c],
            block,
        };
        let is_place = block.is_multiple_of(64) && block >> 44 == 0;
        (reference.id() != 0 && is_place).then_some(reference)
    }

    pub(super) fn id(&self) -> u32 {
        self.head[0] as u32
    }

    pub(super) fn born_in(&self) -> u32 {
        (self.head[0] >> 32) as u32
    }

    pub(super) fn generation(&self) -> u64 {
        self.head[1] & ((1 << 48) - 1)
    }

    pub(super) fn place(&self) -> usize {
        (self.head[1] >> 48) as usize
    }

    pub(super) fn len(&self) -> usize {
        self.head[2] as u32 as usize
    }

    /// Number and birth, which no other value has.
    pub(super) fn identity(&self) -> [u64; 2] {
        [self.head[0], self.head[1]]
    }
}
