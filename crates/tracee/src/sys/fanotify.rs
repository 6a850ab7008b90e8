//! Permission events of files: whoever opens a marked file waits until the group answers.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::check;
use super::fd::owned;

/// Events that are read at once. The kernel opens a descriptor for each, and **denies** the opening if none is left.
const AT_ONCE: usize = 16;

/// A group of marks. When its last descriptor is closed, also by the tracer's death, the kernel lets all go.
#[derive(Debug)]
pub(crate) struct Group {
    fd: OwnedFd,
    /// Descriptors that are kept for the events of one round.
    reserve: Mutex<Vec<OwnedFd>>,
}

/// A thread that waits to open a file. Dropping this lets it.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) tid: u32,
    /// It is about to execute the file.
    pub(crate) executes: bool,
    file: File,
    group: Arc<Group>,
}

impl Opening {
    /// Device and inode of the file.
    pub(crate) fn file_id(&self) -> Option<(u64, u64)> {
        use std::os::unix::fs::MetadataExt;
        self.file.metadata().ok().map(|meta| (meta.dev(), meta.ino()))
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let response = libc::fanotify_response { fd: self.file.as_raw_fd(), response: libc::FAN_ALLOW };
        // SAFETY: `response` is live and of the size that is stated.
        unsafe {
            libc::write(self.group.fd.as_raw_fd(), (&raw const response).cast(), size_of_val(&response))
        };
    }
}

impl Group {
    /// Makes a group without marks.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = libc::FAN_CLASS_CONTENT
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK
            | libc::FAN_REPORT_TID
            | libc::FAN_UNLIMITED_QUEUE;
        let file = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_LARGEFILE;
        // SAFETY: plain numbers; a new descriptor.
        let fd = unsafe { owned(libc::fanotify_init(flags, file as libc::c_uint).into()) }?;
        let new = Self { fd, reserve: Mutex::default() };
        if new.keep_reserve() { Ok(new) } else { Err(io::Error::from_raw_os_error(libc::EMFILE)) }
    }
    /// Fills the reserve; false if descriptors are short. Then nothing must be read.
    pub(crate) fn keep_reserve(&self) -> bool {
        let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
        while reserve.len() < AT_ONCE {
            match self.fd.try_clone() {
                Ok(copy) => reserve.push(copy),
                Err(_) => return false,
            }
        }
        true
    }
    /// Marks the file that a path leads to: opening it, or executing it, is asked for.
    pub(crate) fn mark(&self, path: &Path, executes: bool) -> io::Result<()> {
        let mask = if executes { libc::FAN_OPEN_EXEC_PERM } else { libc::FAN_OPEN_PERM };
        let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
        let fd = self.fd.as_raw_fd();
        // SAFETY: the path is live and ends in zero.
        check(
            unsafe { libc::fanotify_mark(fd, libc::FAN_MARK_ADD, mask, libc::AT_FDCWD, path.as_ptr()) }
                .into(),
        )
        .map(drop)
    }
    pub(crate) fn descriptor(&self) -> i32 {
        self.fd.as_raw_fd()
    }
    /// Threads that wait, some at a time. Uses the reserve up.
    pub(crate) fn openings(self: &Arc<Self>) -> Vec<Opening> {
        const EVENT: usize = size_of::<libc::fanotify_event_metadata>();
        let mut buffer = [0u64; AT_ONCE * EVENT / size_of::<u64>()];
        self.reserve.lock().unwrap_or_else(PoisonError::into_inner).clear();
        // SAFETY: the buffer is live and of the size that is stated.
        let len =
            unsafe { libc::read(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), size_of_val(&buffer)) };
        let len = usize::try_from(len).unwrap_or(0);
        let words = EVENT / size_of::<u64>();
        let events = buffer[..len / size_of::<u64>()].chunks_exact(words);
        let opening = |event: &[u64]| {
            // SAFETY: the slice has the structure's size and alignment, and all its fields are plain integers.
            let event = unsafe { event.as_ptr().cast::<libc::fanotify_event_metadata>().read() };
            let fd = (event.fd >= 0).then_some(event.fd)?;
            // SAFETY: the kernel has opened the descriptor for the reader of the event.
            let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
            let executes = event.mask & libc::FAN_OPEN_EXEC_PERM != 0;
            Some(Opening { tid: event.pid.cast_unsigned(), executes, file, group: Arc::clone(self) })
        };
        events.filter_map(opening).collect()
    }
}
