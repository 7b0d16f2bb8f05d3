//! Giving memory back: pages that the pool file has are dropped from the image, and read from the
//! file again when they are next touched.
//!
//! ```text
//! no checkpoint runs                                        (keeper)
//! no frame is being written                                 (log lock)
//! nobody stores, and all that was stored is captured        (sections closed)
//! a page with no line in the dirty set, in a sealed frame, or in the stage: dropped
//! ```
//!
//! A page without such lines is as it was when the last checkpoint copied it, or as the file had it
//! at opening. So the file has the same bytes, and a reader that comes in between sees no change.

use super::commit::Core;
use super::image::PAGE_LINES;
use crate::error::CommitError;
use crate::media::mapping::PAGE;
use crate::media::{Evicted, LINE};
use crate::sync::lock;
use std::ops::Range;
use std::sync::TryLockError;
use std::sync::atomic::{AtomicBool, Ordering};
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
    pub fn evict(
        &self,
        range: Range<u64>,
        keep: &dyn Fn(u64) -> bool,
    ) -> Result<Evicted, CommitError> {
        let first = range.start.div_ceil(PAGE);
        let end = range.end.min(self.image.len()) / PAGE;
        let mut evicted = Evicted::default();
        if first >= end {
            return Ok(evicted);
        }
        self.health()?;
        let busy = Evicted {
            busy: true,
            ..Evicted::default()
        };
        let _keeper = match self.keeper.try_lock() {
            Ok(keeper) => keeper,
            Err(TryLockError::Poisoned(keeper)) => keeper.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(busy),
        };
        let log = lock(&self.log);
        let Some(_closed) = self.sections.close(PATIENCE) else {
            return Ok(busy);
        };
        // What was not captured is in memory only.
        // ORDERING: Acquire; pairs with the Release in `Core::record`.
        if !self.recording.load(Ordering::Acquire) {
            return Ok(busy);
        }
        let mut dirty = vec![false; (end - first) as usize];
        for page in first..end {
            dirty[(page - first) as usize] = log.dirty.has(page);
        }
        let mut mark = |line: u64, count: u64| {
            let pages = line / PAGE_LINES..(line + count).div_ceil(PAGE_LINES);
            for page in pages.start.max(first)..pages.end.min(end) {
                dirty[(page - first) as usize] = true;
            }
        };
        log.pending_lines(&mut mark);
        self.stage.captured_lines(&mut mark);
        let goes = |page: u64| !dirty[(page - first) as usize] && !keep(page * PAGE);
        let mut page = first;
        while page < end {
            let from = page;
            while page < end && goes(page) {
                page += 1;
            }
            if from < page {
                self.drop_pages(from..page)?;
                evicted.bytes += (page - from) * PAGE;
            } else {
                evicted.dirty += u64::from(dirty[(page - first) as usize]) * PAGE;
                page += 1;
            }
        }
        Ok(evicted)
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
