//! A program held at its entry point without a tracer.
//!
//! When a program's first own instruction is about to run, its libraries are mapped and relocated and their
//! constructors have run: the moment to probe it. But only one tracer can hold a process, and the batch that patches is
//! another thread. So the program is *parked*: its instruction pointer is set to a loop of one instruction written into the
//! unused end of its vdso, where no patch will ever be, and it is let go. It runs there, a thread like any other,
//! until [`Parked::release`] puts everything back. All stops here are made while it is stopped by ptrace.
//!
//! If the tracer dies before the program reaches its entry point, the program dies too (PTRACE_O_EXITKILL for launched
//! ones); if it dies while the program is parked, the program stays in the loop.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use crate::native::park::{BEHIND, IS_HELD, LOOP, TRAP};
use crate::regs::Regs;
use crate::serve::pause;
use crate::stuck::Stuck;
use crate::sys::perf::{self, Attr};
use crate::sys::wait::{self, Stop};
use crate::sys::{fault, ptrace, signals};

const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;

/// A process that loops at its entry point.
#[derive(Debug, PartialEq, Eq)]
pub struct Parked {
    pid: u32,
    entry: u64,
    at: u64,
    /// What the loop overwrote.
    saved: [u8; LOOP.len()],
}

impl Parked {
    /// Its pid.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }
    /// Where it will go on.
    #[must_use]
    pub const fn entry(&self) -> u64 {
        self.entry
    }
    /// Stops it, puts it back to its entry point; it is held by the calling thread afterwards.
    pub(crate) fn seize(&self) -> io::Result<()> {
        ptrace::seize(self.pid)?;
        ptrace::interrupt(self.pid)?;
        wait_stop(self.pid)?;
        let mut regs = Regs::read(self.pid, None)?;
        if regs.pc() == self.at {
            regs.set_pc(self.entry);
            regs.write(self.pid)?;
        }
        write(&memory(self.pid)?, self.at, &self.saved)
    }
    /// Lets it run its program.
    ///
    /// # Errors
    /// When it is gone.
    pub fn release(self) -> io::Result<()> {
        let work = move || {
            self.seize()?;
            ptrace::detach(self.pid)
        };
        in_own_thread(work)
    }
}

/// Runs what must be done by one thread, such as all ptrace requests to a tracee.
pub(crate) fn in_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let thread = std::thread::Builder::new().name("trapline-launch".into()).spawn(work)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the launching thread panicked")))
}

/// What waits for a program at its entry point.
///
/// It is a breakpoint of the processor, which the kernel holds for us. The program's memory stays as it is, so other tools' probes at the
/// same instruction may come and go, and it ends with us. Where the kernel grants none, it is a trap in the program's code; that one is
/// lost if another tool's probe there comes or goes meanwhile, and the program then runs unseen.
#[derive(Debug)]
pub(crate) struct EntryTrap {
    entry: u64,
    by: By,
}

#[derive(Debug)]
enum By {
    /// The program is there already: it has no interpreter.
    Nothing,
    Breakpoint(OwnedFd),
    /// A trap, and what is under it.
    Code([u8; TRAP.len()]),
}

impl EntryTrap {
    /// Sets the trap in a process that is stopped at its exec.
    pub(crate) fn set(pid: u32) -> io::Result<Self> {
        let auxv = fs::read(format!("/proc/{pid}/auxv"))?;
        let entry = auxv_word(&auxv, AT_ENTRY).ok_or_else(|| io::Error::other("no AT_ENTRY in its auxv"))?;
        if auxv_word(&auxv, AT_BASE).unwrap_or(0) == 0 {
            return Ok(Self { entry, by: By::Nothing });
        }
        if let Ok(breakpoint) = breakpoint(pid, entry) {
            return Ok(Self { entry, by: By::Breakpoint(breakpoint) });
        }
        let memory = memory(pid)?;
        let mut under = [0u8; TRAP.len()];
        memory.read_exact_at(&mut under, entry)?;
        write(&memory, entry, &TRAP)?;
        Ok(Self { entry, by: By::Code(under) })
    }
    /// Whether the program is at its entry point already (it has no interpreter).
    pub(crate) const fn is_there(&self) -> bool {
        matches!(self.by, By::Nothing)
    }
    /// Parks the process, which is stopped by this trap, and lets it go.
    pub(crate) fn park(self, pid: u32) -> io::Result<Parked> {
        let entry = self.entry;
        self.clear(pid)?;
        let memory = memory(pid)?;
        let at = end_of_vdso(pid, &memory).unwrap_or(entry);
        let mut saved = [0u8; LOOP.len()];
        memory.read_exact_at(&mut saved, at)?;
        write(&memory, at, &LOOP)?;
        let mut regs = Regs::read(pid, None)?;
        regs.set_pc(at);
        regs.write(pid)?;
        ptrace::detach(pid)?;
        Ok(Parked { pid, entry, at, saved })
    }
    /// Removes the trap.
    pub(crate) fn clear(self, pid: u32) -> io::Result<()> {
        match self.by {
            By::Nothing => Ok(()),
            By::Breakpoint(breakpoint) => {
                drop(breakpoint);
                Ok(())
            }
            By::Code(under) => write(&memory(pid)?, self.entry, &under),
        }
    }
    /// Whether a signal stop is this trap.
    pub(crate) fn is_hit(&self, pid: u32, signal: i32) -> bool {
        let behind = if matches!(self.by, By::Code(_)) { BEHIND } else { 0 };
        signal == libc::SIGTRAP && Regs::read(pid, None).is_ok_and(|regs| regs.pc() == self.entry + behind)
    }
}

/// A breakpoint of the processor that stops a thread before it executes this instruction. It goes when the descriptor is closed.
fn breakpoint(tid: u32, at: u64) -> io::Result<OwnedFd> {
    if !IS_HELD {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let flags = perf::EXCLUDE_KERNEL | perf::EXCLUDE_HV | perf::REMOVE_ON_EXEC | perf::SIGTRAP;
    let attr = Attr {
        kind: perf::BREAKPOINT,
        bp_type: perf::EXECUTE,
        config1: at,
        config2: size_of::<u64>() as u64,
        sample_period: 1,
        flags,
        ..Attr::default()
    };
    perf::open(attr, tid.cast_signed(), -1)
}

/// Zeros for the loop at the vdso's end.
fn end_of_vdso(pid: u32, memory: &File) -> Option<u64> {
    let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
    let maps = String::from_utf8_lossy(&maps);
    let range = maps.lines().find(|line| line.ends_with("[vdso]"))?.split(' ').next()?;
    let end = u64::from_str_radix(range.split_once('-')?.1, 16).ok()?;
    let at = end - LOOP.len() as u64;
    let mut bytes = [1u8; LOOP.len()];
    memory.read_exact_at(&mut bytes, at).ok()?;
    bytes.iter().all(|&byte| byte == 0).then_some(at)
}

fn auxv_word(auxv: &[u8], key: u64) -> Option<u64> {
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
    auxv.chunks_exact(16).find(|pair| word(&pair[..8]) == Some(key)).and_then(|pair| word(&pair[8..]))
}

fn memory(pid: u32) -> io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))
}

fn write(memory: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    fault::point(|| memory.write_all_at(bytes, at))
}

/// Waits for the next stop of a tracee, and takes it. A loader takes as long as it takes, so only Ctrl-C ends the wait.
pub(crate) fn wait_stop(pid: u32) -> io::Result<Stop> {
    let gone = || io::Error::other("it ended");
    let start = Instant::now();
    let stop = loop {
        match wait::peek(pid)? {
            Some(stop) => break stop,
            None if signals::asked_to_end(start) => {
                return Err(io::Error::other(format!(
                    "asked to end while waiting for its next stop: {}",
                    Stuck::of(pid, pid)
                )));
            }
            None => pause(start.elapsed()),
        }
    };
    if matches!(stop, Stop::Exit { .. }) {
        return Err(gone());
    }
    wait::take(pid)?.ok_or_else(gone)
}
