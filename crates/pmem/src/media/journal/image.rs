//! The pool's image in memory, which is read line by line while other threads store to it.

use super::log::lines_of;
use crate::error::SpaceError;
use crate::media::capture::{self, WORDS, bytes_of};
use crate::media::mapping::{Mapping, PAGE};
use crate::media::{LINE, cpu};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Lines in a page.
pub(super) const PAGE_LINES: u64 = PAGE / LINE as u64;

/// The image: a private mapping of the pool file, or anonymous memory filled from it.
#[derive(Debug)]
pub(super) struct Image {
    mapping: Mapping,
}

impl Image {
    pub fn new(mapping: Mapping) -> Self {
        Self { mapping }
    }

    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.mapping.base()
    }

    #[inline]
    pub fn len(&self) -> u64 {
        self.mapping.len()
    }

    pub fn capacity(&self) -> u64 {
        self.mapping.capacity()
    }

    /// Returns the number of whole lines below the end.
    #[inline]
    pub fn lines(&self) -> u64 {
        self.len() / LINE as u64
    }

    /// Returns a state that line `line` really had, at one moment of this call.
    #[inline]
    pub fn capture(&self, line: u64) -> [u64; WORDS] {
        debug_assert!(line < self.lines(), "line {line} of {}", self.lines());
        // SAFETY: the line is below the image's end, so it is mapped, and stays so while the image
        // is borrowed.
        unsafe { capture::capture(self.base(), line) }
    }

    /// Appends the lines of page `page` to `into`, each in a state that it really had; fewer than
    /// a page's at the end of the pool.
    pub fn copy_page(&self, page: u64, into: &mut Vec<u8>) {
        let first = page * PAGE_LINES;
        let last = (first + PAGE_LINES).min(self.lines());
        if first < last {
            cpu::prefetch(self.base().wrapping_add((first as usize) * LINE), 4 * LINE);
        }
        for line in first..last {
            into.extend_from_slice(&bytes_of(self.capture(line)));
        }
    }

    /// See [`Media::bring_alone`](crate::media::Media::bring_alone).
    pub fn bring_alone(&self, range: Range<u64>) {
        let (from, end) = (range.start / PAGE * PAGE, range.end.min(self.len()));
        if from < end {
            self.mapping.bring(from, end - from);
        }
    }

    /// See [`Media::touch_to_store`](crate::media::Media::touch_to_store).
    pub fn touch_to_store(&self, offset: u64) {
        let end = offset.checked_add(size_of::<u64>() as u64);
        if !offset.is_multiple_of(8) || end.is_none_or(|end| end > self.len()) {
            return;
        }
        let at = self.base().wrapping_add(offset as usize).cast();
        // SAFETY: 1. the word is aligned and below the image's end, so it is mapped, and stays so
        // while the image is borrowed; 2. all access to it is by atomic words, or exclusive to the
        // caller.
        let word = unsafe { AtomicU64::from_ptr(at) };
        // Compilers make a load of other operations that change nothing.
        // ORDERING: Relaxed (both); it changes nothing.
        let _ = word.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Replaces lines during recovery, while no other thread has the image.
    pub fn restore(&self, line: u64, bytes: &[u8]) {
        assert!(
            line * LINE as u64 + bytes.len() as u64 <= self.len(),
            "runs are checked against the image before they are applied"
        );
        // SAFETY: 1. the assertion keeps the range inside the mapped bytes; 2. recovery runs before
        // any other code gets the medium, so the access is exclusive; 3. `bytes` is not part of the
        // image.
        unsafe {
            let at = self.base().add(line as usize * LINE);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
        }
    }

    /// See [`Mapping::extend`].
    pub fn extend(&self, to: u64) -> Result<(), SpaceError> {
        self.mapping.extend(to)
    }

    /// See [`Mapping::extend_anonymous`].
    pub fn extend_anonymous(&self, to: u64) -> Result<(), SpaceError> {
        self.mapping.extend_anonymous(to)
    }

    /// See [`Mapping::retract`].
    pub fn retract(&self, to: u64) -> Result<u64, SpaceError> {
        self.mapping.retract(to)
    }

    /// See [`Mapping::use_small_pages`].
    pub fn use_small_pages(&self) {
        self.mapping.use_small_pages();
    }

    /// See [`Mapping::reread`].
    pub fn reread(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.mapping.reread(offset, len)
    }

    /// See [`Mapping::discard`].
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        self.mapping.discard(offset, len)
    }
}

/// Pages that the pool file does not have as the image has them, as far as that is captured.
#[derive(Debug, Default)]
pub(super) struct Behind {
    /// Of lines that left the stage, for frames, since the last checkpoint began.
    pub dirty: DirtyPages,
    /// Of the checkpoint that is being made.
    pub writing: DirtyPages,
}

impl Behind {
    /// Their number; one that is dirty again while it is being written counts twice.
    pub fn count(&self) -> u64 {
        self.dirty.count() + self.writing.count()
    }
}

/// The pages with lines that the journal has, or will have, and the pool file may lack.
#[derive(Debug, Default)]
pub(super) struct DirtyPages {
    words: Vec<u64>,
    count: u64,
}

impl DirtyPages {
    /// Marks the pages of a frame's payload.
    pub fn mark_frame(&mut self, payload: &[u8]) {
        lines_of(payload, &mut |line, count| self.mark_lines(line, count));
    }

    /// Marks the pages of `count` lines from `line` on.
    pub fn mark_lines(&mut self, line: u64, count: u64) {
        for page in line / PAGE_LINES..=(line + count - 1) / PAGE_LINES {
            self.mark(page);
        }
    }

    pub fn mark(&mut self, page: u64) {
        let at = (page / 64) as usize;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        let (word, bit) = (&mut self.words[at], 1 << (page % 64));
        self.count += u64::from(*word & bit == 0);
        *word |= bit;
    }

    /// Forgets all pages.
    pub fn clear(&mut self) {
        self.words.fill(0);
        self.count = 0;
    }

    /// Whether the page is marked.
    pub fn has(&self, page: u64) -> bool {
        let word = self.words.get((page / 64) as usize);
        word.is_some_and(|word| word & 1 << (page % 64) != 0)
    }

    /// Returns how many pages are marked.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Removes and returns the marked pages of the first `bytes` bytes, in order; forgets the rest.
    pub fn take(&mut self, bytes: u64) -> Vec<u64> {
        let mut pages = Vec::with_capacity(self.count as usize);
        let end = bytes.div_ceil(PAGE);
        let mut left = self.count;
        for (i, word) in self.words.iter_mut().enumerate() {
            if left == 0 {
                break;
            }
            while *word != 0 {
                let page = i as u64 * 64 + u64::from(word.trailing_zeros());
                *word &= *word - 1;
                left -= 1;
                if page < end {
                    pages.push(page);
                }
            }
        }
        self.count = 0;
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_pages_are_taken_once_in_order_and_inside_the_pool() {
        let mut dirty = DirtyPages::default();
        dirty.mark_lines(63, 2);
        dirty.mark(1000);
        dirty.mark(0);
        dirty.mark(200_000);
        assert!(dirty.has(1) && !dirty.has(2) && !dirty.has(1 << 40));
        assert_eq!(dirty.count(), 4);
        assert_eq!(dirty.take(1001 * PAGE), [0, 1, 1000]);
        assert!(dirty.take(1 << 30).is_empty());
    }

    /// Pages are marked a word of 64 at a time.
    #[test]
    fn each_page_is_marked_by_itself() {
        let mut dirty = DirtyPages::default();
        for page in [0, 1, 63, 64, 65, 127, 128, 4000] {
            assert!(!dirty.has(page), "{page}");
            dirty.mark(page);
            dirty.mark(page);
            assert!(dirty.has(page), "{page}");
        }
        assert_eq!(dirty.count(), 8);
        for page in [2, 62, 66, 126, 129, 3999, 4001, 4064] {
            assert!(!dirty.has(page), "{page}");
        }
        // The last line of a page, a whole page, and a line on each side of a page's end.
        let mut lines = DirtyPages::default();
        for (line, count) in [(127, 1), (192, 64), (319, 2)] {
            lines.mark_lines(line, count);
        }
        assert_eq!(lines.count(), 4);
        let behind = Behind {
            dirty,
            writing: lines,
        };
        assert_eq!(behind.count(), 12);
        let Behind { mut dirty, writing } = behind;
        let mut lines = writing;
        assert_eq!(lines.take(5 * PAGE), [1, 3, 4]);
        assert_eq!(lines.count(), 0);
        lines.mark(7);
        assert_eq!((lines.count(), lines.take(8 * PAGE)), (1, vec![7]));
        lines.mark(9);
        assert_eq!(lines.take(8 * PAGE + 1), [8; 0], "beyond the end");
        lines.mark(9);
        assert_eq!(lines.take(9 * PAGE + 1), [9], "the end is in it");
        dirty.clear();
        assert_eq!(dirty.count(), 0);
        assert!(!dirty.has(0) && !dirty.has(4000));
        assert!(dirty.take(u64::MAX / 2).is_empty());
    }
}
