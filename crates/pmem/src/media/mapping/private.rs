//! Memory of a private mapping: its own copies of the file's pages are dropped, for good or to be
//! read again.

use super::{Mapping, PAGE, Sharing};
use crate::error::SpaceError;
use crate::sync::lock;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::sync::atomic::Ordering;

impl Mapping {
    /// Drops this process's copies of a page-aligned range of private memory, which then reads as
    /// zero, as the hole in the file does.
    ///
    /// # Errors
    /// [`SpaceError`] if the kernel refuses.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        debug_assert!(offset.is_multiple_of(PAGE), "page-aligned by contract");
        // ORDERING: Relaxed; only changed under the growth lock, which the caller holds.
        let end = (offset + len).min(self.mapped.load(Ordering::Relaxed));
        if end <= offset {
            return Ok(());
        }
        let mut discarded = lock(&self.discarded);
        // Not MADV_DONTNEED, after which a read may meet a hole of a file on a full tmpfs.
        self.map_anonymous(offset, end)
            .map_err(|e| SpaceError::io("returning memory", e))?;
        match discarded.last_mut() {
            Some((_, last)) if *last == offset => *last = end,
            _ => discarded.push((offset, end)),
        }
        Ok(())
    }

    /// Drops this process's copies of a page-aligned range of a private mapping, which the file has
    /// the same bytes of. They are read from there when they are touched again. Without a file
    /// nothing happens.
    ///
    /// # Errors
    /// The kernel's. Nothing has changed then.
    pub(crate) fn reread(&self, offset: u64, len: u64) -> std::io::Result<()> {
        debug_assert!(self.sharing == Sharing::Private, "others have no copies");
        let Some(fd) = &self.file else {
            return Ok(());
        };
        let end = offset + len;
        let mut discarded = lock(&self.discarded);
        let mut mapped_again = Vec::new();
        for (from, to) in discarded.iter() {
            let (from, to) = (offset.max(*from), end.min(*to));
            if from < to {
                mapped_again.push((from, to));
            }
        }
        for (from, to) in mapped_again {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: 1. the range is inside the one that this value reserved; 2. the caller
            // promises that the file has its content, so readers see no change.
            unsafe {
                rustix::mm::mmap(
                    self.base.wrapping_add(from as usize).cast(),
                    (to - from) as usize,
                    ProtFlags::READ | ProtFlags::WRITE,
                    flags,
                    fd,
                    from,
                )?;
            }
            self.advise_pages(
                self.base.wrapping_add(from as usize).cast(),
                (to - from) as usize,
            );
            let parts = discarded.drain(..).collect::<Vec<_>>();
            for (start, stop) in parts {
                let around = [(start, stop.min(from)), (start.max(to), stop)];
                discarded.extend(around.into_iter().filter(|(start, stop)| start < stop));
            }
        }
        let at = self.base.wrapping_add(offset as usize).cast();
        // SAFETY: 1. the range is inside a private mapping of the file; 2. the caller promises that
        // the file has its content, so readers see no change, and that nobody stores there.
        unsafe { rustix::mm::madvise(at, len as usize, Advice::LinuxDontNeed) }?;
        Ok(())
    }

    /// Asks for huge pages, or against them. A refusal costs only speed, or memory.
    pub(super) fn advise_pages(&self, at: *mut c_void, bytes: usize) {
        // ORDERING: Relaxed; a hint.
        let advice = if self.small_pages.load(Ordering::Relaxed) {
            Advice::LinuxNoHugepage
        } else {
            Advice::LinuxHugepage
        };
        // SAFETY: 1. the range is one that this value has mapped; 2. the advice changes no content.
        let _ = unsafe { rustix::mm::madvise(at, bytes, advice) };
    }

    /// Brings pages to memory as if each were stored to, which maps none of those around them; an
    /// older kernel brings none. Their content does not change.
    pub(crate) fn bring(&self, offset: u64, len: u64) {
        let at = self.base.wrapping_add(offset as usize).cast();
        // SAFETY: 1. the range is one that this value has mapped, from a page's start on; 2. the
        // advice changes no content.
        let _ = unsafe { rustix::mm::madvise(at, len as usize, Advice::LinuxPopulateWrite) };
    }

    /// From now on a page that is touched does not come together with the two MiB around it.
    pub(crate) fn use_small_pages(&self) {
        // ORDERING: Relaxed (both); what is mapped at the same time gets the advice or is unmapped
        // again soon.
        self.small_pages.store(true, Ordering::Relaxed);
        let mapped = self.mapped.load(Ordering::Relaxed);
        self.advise_pages(self.base.cast(), mapped as usize);
    }
}
