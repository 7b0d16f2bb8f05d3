//! Giving memory back: pages that the pool file has are dropped from the image, and read from the
//! file again when they are next touched.
//!
//! ```text
//! nobody stores, and all that was stored is captured        (sections closed)
//! no line leaves the stage, no checkpoint takes pages       (lock of the pages behind)
//! a page that is not dirty, that no checkpoint is writing, and that has no line in the stage:
//! dropped
//! ```
//!
//! Such a page is as it was when the last checkpoint copied it, as a direct run has written it, or
//! as the file had it at opening. So the file has the same bytes, and a reader that comes in
//! between sees no change.

use super::commit::Core;
use super::image::{Behind, PAGE_LINES};
use crate::error::CommitError;
use crate::media::mapping::PAGE;
use crate::media::{Evicted, Goes, LINE};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{MutexGuard, TryLockError};
use std::time::Duration;

/// How long threads that store are waited for.
const PATIENCE: Duration = Duration::from_millis(20);

/// Pages are compared with the file before they are dropped.
static COMPARED: AtomicBool = AtomicBool::new(false);

/// Sets whether pages are compared with the pool file before they are dropped, for tests: a
/// difference is a store outside a section, or one that was never fenced, and panics.
#[doc(hidden)]
pub fn compare_when_evicting(compare: bool) {
    // ORDERING: Relaxed; as above.
    COMPARED.store(compare, Ordering::Relaxed);
}

impl Core {
    /// See [`Media::evict`](crate::media::Media::evict).
    pub fn evict(&self, ranges: &[Range<u64>], goes: &Goes<'_>) -> Result<Evicted, CommitError> {
        let mut evicted = Evicted::default();
        self.health()?;
        let Some(_closed) = self.sections.close(PATIENCE) else {
            evicted.busy = true;
            return Ok(evicted);
        };
        // All who store wait for this.
        let Some(behind) = self.try_behind() else {
            evicted.busy = true;
            return Ok(evicted);
        };
        // After a failed commit nothing is captured: memory has the only copy of later stores.
        // ORDERING: Acquire; pairs with the Release in `Core::record`.
        if !self.recording.load(Ordering::Acquire) {
            evicted.busy = true;
            return Ok(evicted);
        }
        let captured = self.captured_pages();
        let is_behind = |page: u64| {
            behind.dirty.has(page)
                || behind.writing.has(page)
                || captured.binary_search(&page).is_ok()
        };
        for range in ranges {
            let end = range.end.min(self.image.len()) / PAGE;
            let mut page = range.start.div_ceil(PAGE);
            while page < end {
                let from = page;
                while page < end && !is_behind(page) && goes(page * PAGE) {
                    page += 1;
                }
                if from < page {
                    self.drop_pages(from..page)?;
                    evicted.bytes += (page - from) * PAGE;
                }
                if page < end {
                    evicted.dirty += u64::from(is_behind(page)) * PAGE;
                    page += 1;
                }
            }
        }
        Ok(evicted)
    }

    /// The pages that are ahead of the pool file; `None` while long runs are written, for which
    /// their lock is held.
    pub fn try_behind(&self) -> Option<MutexGuard<'_, Behind>> {
        match self.behind.try_lock() {
            Ok(behind) => Some(behind),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The pages with lines that are in the stage, ascending.
    pub fn captured_pages(&self) -> Vec<u64> {
        let mut pages = Vec::new();
        self.stage.captured_lines(&mut |line, count| {
            pages.extend(line / PAGE_LINES..(line + count).div_ceil(PAGE_LINES));
        });
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    fn drop_pages(&self, pages: Range<u64>) -> Result<(), CommitError> {
        // ORDERING: Relaxed; set by tests, before.
        if COMPARED.load(Ordering::Relaxed) {
            self.assert_same(pages.clone());
        }
        let (at, len) = (pages.start * PAGE, (pages.end - pages.start) * PAGE);
        let dropped = self.image.reread(at, len);
        dropped.map_err(|source| CommitError::NoSpace {
            doing: "giving memory back",
            source,
        })
    }

    /// Checks that the pool file has what these pages have.
    fn assert_same(&self, pages: Range<u64>) {
        let mut memory = Vec::new();
        let mut file = vec![0; PAGE as usize];
        for page in pages {
            memory.clear();
            self.image.copy_page(page, &mut memory);
            let read = self.pool.read_full(page * PAGE, &mut file);
            let Ok(read) = read else { continue };
            let differs = (memory.chunks(LINE).zip(file[..read].chunks(LINE)))
                .position(|(memory, file)| memory != file);
            assert!(
                differs.is_none(),
                "page {page}, line {differs:?}: a store that no fence has captured would be lost"
            );
        }
    }
}
