//! Where and while a program waits: the unused end of its vdso, and a word that changes as long as the tracer lives.
//!
//! In: a process, code that waits ([`crate::native::park`]). Out: room for it; a thread that keeps the word changing.
//! Does not: lead the program there.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::procfs;
use crate::sys::fault;

/// How often the keeper changes the word that shows that the tracer lives.
const KEEP_EVERY: Duration = Duration::from_millis(50);

/// A thread that shows the parked program that the tracer lives.
#[derive(Debug)]
pub(crate) struct Keeper {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(crate) fn start(memory: Arc<File>, word: u64) -> io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let work = move || {
            let mut beats = 1u64;
            while stopped.recv_timeout(KEEP_EVERY) == Err(RecvTimeoutError::Timeout) {
                // If the program is gone, the write fails and nothing is lost.
                drop(memory.write_all_at(&beats.to_le_bytes(), word));
                beats += 1;
            }
        };
        let thread = std::thread::Builder::new().name("trapline-keeper".into()).spawn(work)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Why a program is not held whose vdso is full, or which has none.
pub(crate) const NO_ROOM: &str = "the unused end of its vdso, where it would wait, is too small";

/// Zeros at the end of a process' vdso. Its memory is open, so that what is written there can be taken back when no
/// descriptor is left.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) memory: Arc<File>,
    /// Address.
    pub(crate) at: u64,
    len: usize,
}

impl Room {
    /// Finds room for `len` bytes.
    ///
    /// # Errors
    /// [`NO_ROOM`] as [`io::ErrorKind::Unsupported`], or when the process cannot be read.
    pub(crate) fn find(pid: u32, len: usize) -> io::Result<Self> {
        let memory = Arc::new(memory(pid)?);
        let maps = procfs::read(format!("/proc/{pid}/maps"))?;
        let maps = String::from_utf8_lossy(&maps);
        let line = maps.lines().find(|line| line.ends_with("[vdso]"));
        let end = line.and_then(|line| line.split(' ').next()?.split_once('-'));
        let end = end.and_then(|(_, end)| u64::from_str_radix(end, 16).ok()).ok_or_else(no_room)?;
        let room = Self { memory, at: (end - len as u64) & !7, len };
        room.check().map(|()| room)
    }
    /// Checks that nothing is there.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub(crate) fn check(&self) -> io::Result<()> {
        let mut bytes = vec![1u8; self.len];
        self.memory.read_exact_at(&mut bytes, self.at)?;
        if bytes.iter().all(|&byte| byte == 0) { Ok(()) } else { Err(no_room()) }
    }
    /// Addresses.
    pub(crate) const fn range(&self) -> Range<u64> {
        self.at..self.at + self.len as u64
    }
    /// Writes code there.
    pub(crate) fn fill(&self, code: &[u8]) -> io::Result<()> {
        debug_assert!(code.len() <= self.len, "more code than room");
        write(&self.memory, self.at, code)
    }
    /// Gives it back.
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.fill(&vec![0; self.len])
    }
}

fn no_room() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, NO_ROOM)
}

pub(crate) fn memory(pid: u32) -> io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))
}

pub(crate) fn write(memory: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    fault::point(|| memory.write_all_at(bytes, at))
}
