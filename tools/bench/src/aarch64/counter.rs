//! The processor's counter of instructions, and marks for a program that watches the processor.
#![allow(unsafe_code, reason = "perf_event_open; executes a trap")]

use std::fs::File;
use std::io::{Error, Read as _};
use std::os::fd::FromRawFd as _;

use anyhow::{Context as _, Result, ensure};

/// Number of the mark behind each row. `BEGIN` is the mark before row 0.
pub(super) const END: u64 = 0x6FF;
pub(super) const BEGIN: u64 = 0x700;
/// Mark of the last possible row.
const LAST: u64 = 0x7FF;

/// Counts this thread's instructions: all of them, or those of user space alone.
pub(super) struct Counter(File);

impl Counter {
    /// # Errors
    /// There is no such counter here (user-mode emulation), or permission is missing.
    pub(super) fn new(user_only: bool) -> Result<Self> {
        // perf_event_attr (linux/perf_event.h): type and size, config, …, and flags at offset 40, of which
        // bit 5 leaves out the kernel.
        let mut attr = [0_u64; 16];
        attr[0] = 128 << 32;
        attr[1] = 1;
        attr[5] = u64::from(user_only) << 5;
        // SAFETY: the pointer is to one attr of 128 bytes that lives through the call; it counts this thread
        // on any CPU.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), 0, -1, -1, 0) };
        ensure!(fd >= 0, "no counter of instructions here: perf_event_open: {}", Error::last_os_error());
        // SAFETY: the descriptor was just opened, and nothing else owns it.
        Ok(Self(unsafe { File::from_raw_fd(fd as i32) }))
    }
    fn read(&self) -> u64 {
        let mut value = [0; 8];
        let read = (&self.0).read_exact(&mut value);
        read.map_or(0, |()| u64::from_le_bytes(value))
    }
    /// Instructions that `run` took.
    pub(super) fn of(&self, run: impl FnOnce()) -> u64 {
        let before = self.read();
        run();
        self.read() - before
    }
}

/// Executes a `brk` with that number, which no probe uses. The handler that [`own_marks`] installs skips it.
pub(super) fn mark(number: u64) -> Result<()> {
    ensure!((END..=LAST).contains(&number), "no mark {number:#x}: too many rows");
    let at = super::bed::code(&[0xD420_0000 | (number as u32) << 5, 0xD65F_03C0])?;
    super::bed::call(at, 0);
    Ok(())
}

extern "C" fn behind(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: this handler is installed with SA_SIGINFO, so the kernel passes a valid context.
    unsafe { (*context).uc_mcontext.pc += 4 };
}

/// Installs the handler for this program's own traps, the marks. Call it before any other handler is
/// installed.
pub(super) fn own_marks() -> Result<()> {
    // SAFETY: the handler has the type that the flags ask for, and the program has no other handler of
    // SIGTRAP yet.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = behind as extern "C" fn(_, _, _) as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut())
    };
    (done == 0).then_some(()).context("sigaction")
}
