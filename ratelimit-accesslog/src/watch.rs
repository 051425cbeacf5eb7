//! Notification of writes to a log's files, by inotify.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

/// Maximum number of files that are watched at once: the log, and the file that had its name before.
const FILES_MAX: usize = 2;

/// Watched files. A write to one of them makes a descriptor readable.
#[derive(Debug)]
pub(crate) struct Watch {
    inotify: Inotify,
    /// Watched files by device and inode, oldest first.
    files: VecDeque<((u64, u64), WatchDescriptor)>,
}

impl Watch {
    /// Returns a watch without files. None if the system allows no further one.
    pub(crate) fn new() -> Option<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).ok()?;
        Some(Self { inotify, files: VecDeque::new() })
    }

    /// Watches an open file, and stops to watch the oldest one if there are too many. Changes nothing if the system
    /// does not allow it.
    pub(crate) fn add(&mut self, id: (u64, u64), file: impl AsFd) {
        if self.has(id) {
            return;
        }
        // The descriptor's own path names the open file even if another one has taken its name.
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        let Ok(watched) = self.inotify.add_watch(path.as_str(), AddWatchFlags::IN_MODIFY) else { return };
        self.files.push_back((id, watched));
        if self.files.len() > FILES_MAX
            && let Some((_, oldest)) = self.files.pop_front()
        {
            // The watch of a removed file has ended by itself.
            self.inotify.rm_watch(oldest).ok();
        }
    }

    /// Returns true if the file with this device and inode is watched.
    pub(crate) fn has(&self, id: (u64, u64)) -> bool {
        self.files.iter().any(|(of, _)| *of == id)
    }

    /// Makes the descriptor unreadable until the next write.
    pub(crate) fn drain(&self) {
        // The kernel joins equal events, so one read takes them all, or it fails because there are none.
        self.inotify.read_events().ok();
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
