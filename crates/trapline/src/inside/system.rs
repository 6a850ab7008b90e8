//! What the engine asks of the C library and the system, each question in a safe form.
//!
//! In: functions, and values. Out: answers. Does not: decide anything.
#![allow(unsafe_code, reason = "the C library is called, and calls back with pointers that it was given")]

use core::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// Makes libc call `before` before each fork in the thread that forks, and `after` behind it, in parent and
/// child. They call nothing that is forbidden in a forked child.
pub(super) fn around_forks(before: extern "C" fn(), after: extern "C" fn()) {
    // SAFETY: the functions live as long as the program.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
}

/// Address at which the dynamic loader is mapped; 0 in a program without one.
pub(super) fn loader_base() -> u64 {
    // SAFETY: it only returns a number.
    unsafe { libc::getauxval(libc::AT_BASE) }
}

/// Signals that instructions raise; all others are blocked.
const RAISED: [i32; 6] =
    [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSYS];

/// Blocks signals while a thread is made. The new thread inherits the mask, so no signal reaches it before it
/// could set its own.
pub(super) fn with_signals_blocked<T>(body: impl FnOnce() -> T) -> T {
    with_mask(libc::SIG_SETMASK, body)
}

/// Blocks signals around work that makes threads for as long as it takes, so the program's signals go to its
/// own threads. Signals that instructions raise keep their state.
pub(super) fn with_signals_held<T>(body: impl FnOnce() -> T) -> T {
    with_mask(libc::SIG_BLOCK, body)
}

fn with_mask<T>(how: i32, body: impl FnOnce() -> T) -> T {
    let _before = Mask::change(how);
    body()
}

/// Former signal mask of this thread; it is restored at the end, even after a panic.
struct Mask(libc::sigset_t);

impl Mask {
    fn change(how: i32) -> Self {
        let (mut blocked, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both sets are live and written before they are read; the calls change only this thread's
        // mask.
        unsafe {
            libc::sigfillset(blocked.as_mut_ptr());
            for signal in RAISED {
                libc::sigdelset(blocked.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(how, blocked.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: the mask is the one that `change` saved.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// One call that this thread is in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// Address of the instruction that it is at.
    pub(super) at: u64,
    /// Lowest address of its part of the stack.
    pub(super) low: u64,
    /// Address of its function; 0 if no table has it.
    pub(super) function: u64,
}

/// State of the unwinder at one frame.
#[repr(C)]
struct Context {
    _private: [u8; 0],
}

type See<'a> = &'a mut dyn FnMut(Frame) -> bool;

// Itanium C++ ABI, "Exception Handling ABI", 1.3; the standard library links it.
unsafe extern "C" {
    /// Calls `take` with each frame, from the innermost on, until it answers anything but 0.
    fn _Unwind_Backtrace(take: extern "C" fn(*mut Context, *mut c_void) -> c_int, see: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut Context) -> usize;
    fn _Unwind_GetCFA(context: *mut Context) -> usize;
    fn _Unwind_GetRegionStart(context: *mut Context) -> usize;
}

/// Calls `see` with each frame of this thread, from the innermost on, until it answers false or no unwind
/// table covers the next one.
pub(super) fn walk(mut see: impl FnMut(Frame) -> bool) {
    let mut see: See<'_> = &mut see;
    // SAFETY: `take` gets `see`, which outlives the call, and never unwinds.
    unsafe { _Unwind_Backtrace(take, (&raw mut see).cast()) };
}

extern "C" fn take(context: *mut Context, see: *mut c_void) -> c_int {
    // SAFETY: `context` is the frame that the unwinder is at, and `see` is what `walk` handed over.
    let (see, frame) = unsafe {
        let frame = Frame {
            at: _Unwind_GetIP(context) as u64,
            low: _Unwind_GetCFA(context) as u64,
            function: _Unwind_GetRegionStart(context) as u64,
        };
        (&mut *see.cast::<See<'_>>(), frame)
    };
    c_int::from(!see(frame))
}

/// A file of huge pages, mapped as code. No page of it is touched: the system need not have one.
#[cfg(test)]
pub(super) struct HugeCode(*mut c_void);

#[cfg(test)]
impl HugeCode {
    const LEN: usize = 2 << 20;
    /// Maps one, or returns what to say where that is not possible.
    pub(super) fn map() -> Result<Self, String> {
        use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
        // SAFETY: a new file, and a new mapping of it to which nothing else refers.
        unsafe {
            let file = libc::memfd_create(c"huge".as_ptr(), libc::MFD_HUGETLB);
            if file < 0 {
                return Err(format!("no huge pages: {}", std::io::Error::last_os_error()));
            }
            let file = OwnedFd::from_raw_fd(file);
            assert_eq!(libc::ftruncate(file.as_raw_fd(), Self::LEN as i64), 0);
            let (prot, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_NORESERVE);
            let at = libc::mmap(std::ptr::null_mut(), Self::LEN, prot, flags, file.as_raw_fd(), 0);
            if at == libc::MAP_FAILED {
                return Err(format!("huge pages are not mapped here: {}", std::io::Error::last_os_error()));
            }
            Ok(Self(at))
        }
    }
    pub(super) fn start(&self) -> u64 {
        self.0 as u64
    }
}

#[cfg(test)]
impl Drop for HugeCode {
    fn drop(&mut self) {
        // SAFETY: `map` made it, and nothing refers to it.
        unsafe { libc::munmap(self.0, Self::LEN) };
    }
}
