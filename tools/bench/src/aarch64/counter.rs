//! The processor's counter of instructions, and marks for who watches the processor.
#![allow(unsafe_code, reason = "perf_event_open; executes a trap")]

use std::fs::File;
use std::io::{Error, Read as _};
use std::os::fd::FromRawFd as _;

use anyhow::{Context as _, Result, ensure};

/// Behind a row, and in front of the first.
pub(super) const END: u64 = 0x6FF;
pub(super) const BEGIN: u64 = 0x700;
/// The last row.
const LAST: u64 = 0x7FF;

/// Instructions of this thread: all, or those of user space alone.
pub(super) struct Counter(File);

impl Counter {
    /// # Errors
    /// There is no such counter here: an emulator of user mode, or no permission.
    pub(super) fn new(user_only: bool) -> Result<Self> {
        // perf_event_attr (linux/perf_event.h): type and size, config, …, flags at 40: bit 5 leaves the kernel out.
        let mut attr = [0_u64; 16];
        attr[0] = 128 << 32;
        attr[1] = 1;
        attr[5] = u64::from(user_only) << 5;
        // SAFETY: one attr of 128 bytes; this thread, any CPU.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), 0, -1, -1, 0) };
        ensure!(fd >= 0, "no counter of instructions here: perf_event_open: {}", Error::last_os_error());
        // SAFETY: new, and nobody else's.
        Ok(Self(unsafe { File::from_raw_fd(fd as i32) }))
    }
    fn read(&self) -> u64 {
        let mut value = [0; 8];
        let read = (&self.0).read_exact(&mut value);
        read.map_or(0, |()| u64::from_le_bytes(value))
    }
    /// Of what is run.
    pub(super) fn of(&self, run: impl FnOnce()) -> u64 {
        let before = self.read();
        run();
        self.read() - before
    }
}

/// Executes a `brk` of that number, which is nobody's: the handler that [`own_marks`] puts there goes on behind it.
pub(super) fn mark(number: u64) -> Result<()> {
    ensure!((END..=LAST).contains(&number), "no mark {number:#x}: too many rows");
    let at = super::bed::code(&[0xD420_0000 | (number as u32) << 5, 0xD65F_03C0])?;
    super::bed::call(at, 0);
    Ok(())
}

extern "C" fn behind(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: installed with SA_SIGINFO: this signal's own.
    unsafe { (*context).uc_mcontext.pc += 4 };
}

/// This program's own traps are the marks. To be called before anybody else's handler is installed.
pub(super) fn own_marks() -> Result<()> {
    // SAFETY: a handler of the kind that the flags say, for a program that has none.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = behind as extern "C" fn(_, _, _) as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut())
    };
    (done == 0).then_some(()).context("sigaction")
}
