//! ptrace requests, and starting a program as a tracee. All requests must come from the thread that seized the
//! tracee, or started it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use super::{check, fault, signals};
use crate::filter::Insn;

pub(crate) use super::native::{
    Registers, Vectors, forget_call, regs, restore_vectors, set_regs, signature, vectors,
};

/// PTRACE_EVENT_STOP.
pub(crate) const EVENT_STOP: i32 = 128;
const GET_RSEQ_CONFIGURATION: Request = 0x420f;
const SECCOMP_GET_FILTER: Request = 0x420c;
const GET_SIGNAL_MASK: Request = 0x420a;
const SET_SIGNAL_MASK: Request = 0x420b;
const GET_USER_DISPATCH: Request = 0x4211;

/// The type in which the C library takes a request's number.
#[cfg(not(target_env = "musl"))]
pub(super) type Request = libc::c_uint;
/// The same.
#[cfg(target_env = "musl")]
pub(super) type Request = libc::c_int;

/// Options of every seized thread. They ask for no stop at the end of a vfork. While a thread is stopped
/// there, an ignored SIGCHLD for it would wake another thread out of a call that cannot be restarted. That
/// thread would have no stop at which the call could be repaired.
pub(crate) const OPTIONS: i32 = libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACESYSGOOD;

/// A request that only reads. It is no fault point: a tracer that dies here leaves the target as the request
/// before left it.
pub(super) fn ask(request: Request, tid: u32, addr: usize, data: usize) -> io::Result<i64> {
    // SAFETY: every caller in `sys` passes either numbers, or pointers to live locals of the size that the
    // request writes.
    check(unsafe { libc::ptrace(request, tid as libc::pid_t, addr, data) })
}

/// A request that changes the target. Its address and data are numbers, or pointers to memory that lives
/// until it returns.
pub(super) fn raw(request: Request, tid: u32, addr: usize, data: usize) -> io::Result<i64> {
    // SAFETY: every caller in `sys` passes either numbers, or pointers to live locals of the size that the
    // request reads or writes.
    fault::point(|| check(unsafe { libc::ptrace(request, tid as libc::pid_t, addr, data) }))
}

/// Options for the threads of a process, and not for what it forks.
pub(crate) const THREADS_ONLY: i32 = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEEXEC;

pub(crate) fn seize(tid: u32, options: i32) -> io::Result<()> {
    raw(libc::PTRACE_SEIZE, tid, 0, options as usize).map(drop)
}
/// Seizes a thread for the stop of its next exec; births do not stop it.
pub(crate) fn seize_for_exec(tid: u32) -> io::Result<()> {
    raw(libc::PTRACE_SEIZE, tid, 0, libc::PTRACE_O_TRACEEXEC as usize).map(drop)
}
pub(crate) fn interrupt(tid: u32) -> io::Result<()> {
    raw(libc::PTRACE_INTERRUPT, tid, 0, 0).map(drop)
}
pub(crate) fn cont(tid: u32, signal: i32) -> io::Result<()> {
    raw(libc::PTRACE_CONT, tid, 0, signal as usize).map(drop)
}
/// Runs on to the next entry to, or exit from, a system call.
pub(crate) fn to_call(tid: u32) -> io::Result<()> {
    raw(libc::PTRACE_SYSCALL, tid, 0, 0).map(drop)
}
/// Leaves a thread in its group-stop, but reports its further events.
pub(crate) fn listen(tid: u32) -> io::Result<()> {
    raw(libc::PTRACE_LISTEN, tid, 0, 0).map(drop)
}
pub(crate) fn detach(tid: u32) -> io::Result<()> {
    raw(libc::PTRACE_DETACH, tid, 0, 0).map(drop)
}
/// Accepts ESRCH: a thread that was killed meanwhile needs nothing more, and its exit follows.
pub(crate) fn unless_killed(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}
pub(crate) fn set_options(tid: u32, options: i32) -> io::Result<()> {
    raw(libc::PTRACE_SETOPTIONS, tid, 0, options as usize).map(drop)
}

/// The number of the signal that the thread stopped for, and its si_code.
pub(crate) fn signal_info(tid: u32) -> io::Result<(i32, i32)> {
    // SAFETY: siginfo_t is plain integers; all-zero is a value of it.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    ask(libc::PTRACE_GETSIGINFO, tid, 0, (&raw mut info).addr_exposed())?;
    Ok((info.si_signo, info.si_code))
}

/// Whether an event tells that a thread or process was made.
pub(crate) const fn is_birth(event: i32) -> bool {
    matches!(event, libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE)
}

/// The number that comes with an event; for births the new pid.
pub(crate) fn event_message(tid: u32) -> io::Result<u64> {
    let mut message = 0u64;
    ask(libc::PTRACE_GETEVENTMSG, tid, 0, (&raw mut message).addr_exposed())?;
    Ok(message)
}

pub(crate) fn signal_mask(tid: u32) -> io::Result<u64> {
    let mut mask = 0u64;
    ask(GET_SIGNAL_MASK, tid, 8, (&raw mut mask).addr_exposed())?;
    Ok(mask)
}
pub(crate) fn set_signal_mask(tid: u32, mask: u64) -> io::Result<()> {
    raw(SET_SIGNAL_MASK, tid, 8, (&raw const mask).addr_exposed()).map(drop)
}

/// Whether a thread gets its system calls back as signals (PR_SET_SYSCALL_USER_DISPATCH): the address of the byte that
/// says whether it does just now, or 0 if it always does. `None` if it makes its calls as any thread, or if the kernel
/// is older than 6.4 and does not tell.
pub(crate) fn user_dispatch(tid: u32) -> Option<u64> {
    // Mode, selector, and the range of code whose calls are always made.
    let mut words = [0u64; 4];
    ask(GET_USER_DISPATCH, tid, size_of_val(&words), words.as_mut_ptr().addr_exposed()).ok()?;
    (words[0] != 0).then_some(words[1])
}

/// The registered rseq area: address, length, signature. Address 0 when there is none.
pub(crate) fn rseq(tid: u32) -> io::Result<(u64, u32, u32)> {
    let mut words = [0u32; 6];
    ask(GET_RSEQ_CONFIGURATION, tid, size_of_val(&words), words.as_mut_ptr().addr_exposed())?;
    Ok((u64::from(words[0]) | u64::from(words[1]) << 32, words[2], words[3]))
}

/// A stopped thread's seccomp filters as classic BPF programs, the last added first.
pub(crate) fn seccomp_filters(tid: u32) -> io::Result<Vec<Vec<Insn>>> {
    let mut filters = Vec::new();
    loop {
        let len = match ask(SECCOMP_GET_FILTER, tid, filters.len(), 0) {
            Ok(len) => len as usize,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(filters),
            Err(error) => return Err(error),
        };
        let mut filter = vec![Insn::default(); len];
        ask(SECCOMP_GET_FILTER, tid, filters.len(), filter.as_mut_ptr().addr_exposed())?;
        filters.push(filter);
    }
}

/// Reads one of a thread's register sets into `bytes`; returns the number of bytes read.
pub(super) fn get_regset(tid: u32, set: usize, bytes: &mut [u8]) -> io::Result<usize> {
    let mut vec = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    ask(libc::PTRACE_GETREGSET, tid, set, (&raw mut vec).addr_exposed())?;
    Ok(vec.iov_len)
}

/// A pointer's address, for requests that take it as a number.
pub(super) trait Exposed {
    fn addr_exposed(self) -> usize;
}
impl<T> Exposed for *mut T {
    fn addr_exposed(self) -> usize {
        self.expose_provenance()
    }
}
impl<T> Exposed for *const T {
    fn addr_exposed(self) -> usize {
        self.expose_provenance()
    }
}

/// Starts a command as a tracee of the calling thread: it stops with SIGTRAP when it executes its program.
pub(crate) fn start_traced(command: &mut Command) -> io::Result<Child> {
    // SAFETY: the request takes no pointers.
    start(command, || check(unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) }).map(drop))
}

/// Starts a command that runs at once.
pub(crate) fn start_untraced(command: &mut Command) -> io::Result<Child> {
    start(command, || Ok(()))
}

/// Starts a command. Its signal mask is as we found ours, and SIGPIPE as a shell leaves it. The child calls
/// `first` before its exec; `first` must not allocate or take a lock.
fn start(command: &mut Command, first: fn() -> io::Result<()>) -> io::Result<Child> {
    let prepare = move || {
        signals::unblock();
        first()
    };
    // SAFETY: between fork and exec the closure makes system calls, allocates nothing and takes no lock.
    // `first` comes from this module's own callers, which keep to that.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}
