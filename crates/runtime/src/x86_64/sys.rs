//! The system calls that signal handling needs, made directly: no C library is asked, so errno stays as it is, and nobody who
//! wraps those calls is fooled.
//!
//! In and out: plain values and the kernel's own structures. Errors are errno numbers. Does not: keep anything.

use core::arch::{asm, global_asm};

use super::context::Info;

/// `struct sigaction` as the kernel has it (rt_sigaction(2), "C library/kernel differences").
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Action {
    /// [`DEFAULT`], [`IGNORE`], or a function's address.
    pub handler: u64,
    /// `SA_…`
    pub flags: u64,
    /// Where the handler returns to.
    pub restorer: u64,
    /// Blocked while it runs: bit `n - 1` is signal `n`.
    pub mask: u64,
}

/// `SIG_DFL`
pub const DEFAULT: u64 = 0;
/// `SIG_IGN`
pub const IGNORE: u64 = 1;

/// Flags of an [`Action`] (asm/signal.h).
pub mod flags {
    /// The handler gets siginfo and context.
    pub const SIGINFO: u64 = 4;
    /// `restorer` is set, which x86-64 demands.
    pub const RESTORER: u64 = 0x0400_0000;
    /// Runs on the alternate stack, if there is one.
    pub const ON_STACK: u64 = 0x0800_0000;
    /// Interrupted calls are restarted.
    pub const RESTART: u64 = 0x1000_0000;
    /// The signal is not blocked while it is handled.
    pub const NO_DEFER: u64 = 0x4000_0000;
    /// The disposition becomes the default when the handler is called.
    pub const RESET_HAND: u64 = 0x8000_0000;
}

mod nr {
    pub(super) const RT_SIGACTION: u64 = 13;
    pub(super) const RT_SIGPROCMASK: u64 = 14;
    pub(super) const GETPID: u64 = 39;
    pub(super) const GETTID: u64 = 186;
    pub(super) const TGKILL: u64 = 234;
    pub(super) const RT_TGSIGQUEUEINFO: u64 = 297;
}

const MASK_BYTES: u64 = 8;

// The bytes are those of the usual C libraries: unwinders know a signal's frame by them.
global_asm!(
    ".pushsection .text.trapline_restorer, \"ax\", @progbits",
    ".hidden trapline_runtime_restorer",
    ".globl trapline_runtime_restorer",
    ".type trapline_runtime_restorer, @function",
    ".balign 16",
    "nop",
    "trapline_runtime_restorer:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0", // mov rax, 15
    "syscall",
    ".size trapline_runtime_restorer, . - trapline_runtime_restorer",
    ".popsection",
);

unsafe extern "C" {
    fn trapline_runtime_restorer();
}

/// Where our handlers return to: rt_sigreturn.
pub(super) fn restorer() -> u64 {
    trapline_runtime_restorer as *const () as u64
}

/// # Safety
/// As the call itself asks.
unsafe fn call(number: u64, args: [u64; 4]) -> i64 {
    let result: i64;
    // SAFETY: the caller answers for number and arguments; the kernel changes rax, rcx, r11 and nothing else.
    unsafe {
        asm!("syscall", inlateout("rax") number as i64 => result, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], out("rcx") _, out("r11") _, options(nostack));
    }
    result
}

fn checked(result: i64) -> Result<(), i32> {
    if result < 0 { Err(-result as i32) } else { Ok(()) }
}

/// A signal's disposition.
pub(super) fn action(signal: i32) -> Result<Action, i32> {
    let mut old = Action::default();
    // SAFETY: writes one `Action` to `old`; changes nothing else.
    checked(unsafe { call(nr::RT_SIGACTION, [signal as u64, 0, (&raw mut old) as u64, MASK_BYTES]) })?;
    Ok(old)
}

/// Changes it; gives the one before.
///
/// # Safety
/// The new action's handler and restorer can be called for as long as it stands.
pub(super) unsafe fn set_action(signal: i32, new: &Action) -> Result<Action, i32> {
    let mut old = Action::default();
    let args = [signal as u64, core::ptr::from_ref(new) as u64, (&raw mut old) as u64, MASK_BYTES];
    // SAFETY: reads one `Action`, writes one; the caller vouches for what it leads to.
    checked(unsafe { call(nr::RT_SIGACTION, args) })?;
    Ok(old)
}

/// How a mask is changed.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(super) enum How {
    Block = 0,
    Set = 2,
}

/// Changes this thread's mask of blocked signals; gives the one before.
pub(super) fn mask(how: How, signals: u64) -> u64 {
    let mut old = 0_u64;
    // SAFETY: reads 8 bytes, writes 8 bytes. It cannot fail with these arguments.
    unsafe {
        call(nr::RT_SIGPROCMASK, [how as u64, (&raw const signals) as u64, (&raw mut old) as u64, MASK_BYTES])
    };
    old
}

/// Sends a signal to this thread, with what the kernel said about it (rt_tgsigqueueinfo(2): to oneself, any `si_code`).
pub(super) fn raise(signal: i32, info: &Info) {
    // SAFETY: reads one siginfo; the rest are numbers.
    unsafe {
        let (pid, tid) = (call(nr::GETPID, [0; 4]) as u64, call(nr::GETTID, [0; 4]) as u64);
        let info = core::ptr::from_ref(info) as u64;
        if call(nr::RT_TGSIGQUEUEINFO, [pid, tid, signal as u64, info]) < 0 {
            call(nr::TGKILL, [pid, tid, signal as u64, 0]);
        }
    }
}
