//! Where and while a program waits: the unused end of its vdso, and a word that changes as long as the tracer lives.
//!
//! In: a process, code that waits ([`crate::native::park`]). Out: room for it; a thread that keeps the word changing.
//! Does not: lead the program there.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
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
    pub(crate) fn start(memory: File, word: u64) -> io::Result<Self> {
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

/// The address of `len` zeros at the vdso's end.
pub(crate) fn end_of_vdso(pid: u32, memory: &File, len: usize) -> Option<u64> {
    let maps = procfs::read(format!("/proc/{pid}/maps")).ok()?;
    let maps = String::from_utf8_lossy(&maps);
    let range = maps.lines().find(|line| line.ends_with("[vdso]"))?.split(' ').next()?;
    let end = u64::from_str_radix(range.split_once('-')?.1, 16).ok()?;
    let at = (end - len as u64) & !7;
    let mut bytes = vec![1u8; len];
    memory.read_exact_at(&mut bytes, at).ok()?;
    bytes.iter().all(|&byte| byte == 0).then_some(at)
}

pub(crate) fn memory(pid: u32) -> io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))
}

pub(crate) fn write(memory: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    fault::point(|| memory.write_all_at(bytes, at))
}
