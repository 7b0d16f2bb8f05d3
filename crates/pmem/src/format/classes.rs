//! Size classes of blocks: chunk-table words hold indexes into [`CLASSES`].

/// Block sizes in bytes. Larger blocks take whole chunks.
pub const CLASSES: [u64; 21] = [
    16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192,
    12288, 16384, 32768,
];

/// Small blocks are multiples of `GRAIN`, up to `SMALL`.
const GRAIN: u64 = 16;
const SMALL: u64 = 256;

/// The class of each number of grains.
const CLASS_OF_SMALL: [u8; (SMALL / GRAIN) as usize + 1] = {
    let mut classes = [0; (SMALL / GRAIN) as usize + 1];
    let mut grains = 0;
    while grains < classes.len() {
        let mut class = 0;
        while CLASSES[class] < grains as u64 * GRAIN {
            class += 1;
        }
        classes[grains] = class as u8;
        grains += 1;
    }
    classes
};

/// Returns the class of the smallest block that holds `bytes`, or `None` if it takes whole chunks.
#[inline]
pub(crate) fn class_of(bytes: u64) -> Option<u8> {
    if bytes <= SMALL {
        return Some(CLASS_OF_SMALL[bytes.div_ceil(GRAIN) as usize]);
    }
    // At most 21 entries: the position always fits.
    let class = CLASSES.partition_point(|size| *size < bytes);
    (class < CLASSES.len()).then_some(class as u8)
}
