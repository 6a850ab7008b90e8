//! The system calls that signal handling needs, and their structures as the kernel defines them.
//!
//! In and out: plain values. Errors are errno numbers.
//! Does not: keep anything.

use crate::native::Info;
use crate::native::sys::RESTORER as SA_RESTORER;
use crate::native::syscall::{call, nr};

/// `struct sigaction` as the kernel defines it (rt_sigaction(2), "C library/kernel differences").
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SignalAction {
    /// [`DEFAULT`], [`IGNORE`], or a function's address.
    pub handler: u64,
    /// `SA_…`
    pub flags: u64,
    /// Address that the handler returns to, unless that is the vDSO.
    pub restorer: u64,
    /// Signals that are blocked while it runs: bit `n - 1` is signal `n`.
    pub mask: u64,
}

/// `SIG_DFL`
pub const DEFAULT: u64 = 0;
/// `SIG_IGN`
pub const IGNORE: u64 = 1;

/// Flags of an [`SignalAction`] (asm/signal.h).
pub mod flags {
    /// The handler gets siginfo and context.
    pub const SIGINFO: u64 = 4;
    /// `restorer` is set, if the processor's kernel requires it.
    pub const RESTORER: u64 = super::SA_RESTORER;
    /// Runs on the alternate stack, if there is one.
    pub const ON_STACK: u64 = 0x0800_0000;
    /// Interrupted calls are restarted.
    pub const RESTART: u64 = 0x1000_0000;
    /// The signal is not blocked while it is handled.
    pub const NO_DEFER: u64 = 0x4000_0000;
    /// The disposition becomes the default when the handler is called.
    pub const RESET_HAND: u64 = 0x8000_0000;
}

const MASK_BYTES: u64 = 8;

fn checked(result: i64) -> Result<(), i32> {
    if result < 0 { Err(-result as i32) } else { Ok(()) }
}

/// Reads a signal's disposition.
pub(crate) fn action(signal: i32) -> Result<SignalAction, i32> {
    let mut old = SignalAction::default();
    let args = [signal as u64, 0, (&raw mut old) as u64, MASK_BYTES, 0, 0];
    // SAFETY: writes one `SignalAction` to `old`; changes nothing else.
    checked(unsafe { call(nr::RT_SIGACTION, args) })?;
    Ok(old)
}

/// Changes a signal's disposition and returns the one before.
///
/// # Safety
/// The new action's handler and restorer can be called for as long as the action is installed.
pub(crate) unsafe fn set_action(signal: i32, new: &SignalAction) -> Result<SignalAction, i32> {
    let mut old = SignalAction::default();
    let args = [signal as u64, core::ptr::from_ref(new) as u64, (&raw mut old) as u64, MASK_BYTES, 0, 0];
    // SAFETY: reads one `SignalAction`, writes one; the caller guarantees that its addresses can be called.
    checked(unsafe { call(nr::RT_SIGACTION, args) })?;
    Ok(old)
}

/// How a mask is changed.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(crate) enum MaskChange {
    Block = 0,
    Set = 2,
}

/// Changes this thread's mask of blocked signals and returns the one before.
pub(crate) fn mask(how: MaskChange, signals: u64) -> u64 {
    let mut old = 0_u64;
    let args = [how as u64, (&raw const signals) as u64, (&raw mut old) as u64, MASK_BYTES, 0, 0];
    // SAFETY: reads 8 bytes, writes 8 bytes. It cannot fail with these arguments.
    unsafe { call(nr::RT_SIGPROCMASK, args) };
    old
}

/// Sends a signal to this thread, with the kernel's siginfo about it (rt_tgsigqueueinfo(2): to oneself, any
/// `si_code`).
pub(crate) fn raise(signal: i32, info: &Info) {
    // SAFETY: reads one siginfo; the rest are numbers.
    unsafe {
        let (pid, tid) = (call(nr::GETPID, [0; 6]) as u64, call(nr::GETTID, [0; 6]) as u64);
        let info = core::ptr::from_ref(info) as u64;
        if call(nr::RT_TGSIGQUEUEINFO, [pid, tid, signal as u64, info, 0, 0]) < 0 {
            call(nr::TGKILL, [pid, tid, signal as u64, 0, 0, 0]);
        }
    }
}
