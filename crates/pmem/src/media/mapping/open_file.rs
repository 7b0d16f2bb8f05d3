//! An open file that is unlocked when it is dropped.

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, getpid};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An open file. Dropping it unlocks and closes the file.
///
/// Closing the descriptor would not be enough: a process that another thread is starting has a copy
/// of it from its fork to its exec, and a lock lasts until the last copy is closed.
#[derive(Debug)]
pub struct OpenFile {
    fd: OwnedFd,
    /// The process that opened it.
    owner: Pid,
}

impl OpenFile {
    pub fn new(fd: OwnedFd) -> Self {
        let owner = getpid();
        Self { fd, owner }
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // A child that was forked shares the lock, and must leave it to its parent.
        if self.owner == getpid() {
            // If this fails, closing the descriptor still gives the lock back.
            let _ = flock(&self.fd, FlockOperation::Unlock);
        }
    }
}
