//! All system calls of this crate, off the fast path: questions about this process' memory and threads,
//! barriers between its threads, and what signal handling needs. They are made directly, without libc.
//!
//! In and out: plain values, and structures as the kernel defines them. Errors are errno numbers.
//! Does not: keep anything, or rely on an answer that it did not get.

use crate::native::Info;
use crate::native::sys::{RESTORER as SA_RESTORER, call, nr};

/// This process' number.
fn pid() -> u64 {
    // SAFETY: getpid has no arguments.
    unsafe { call(nr::GETPID, [0; 6]) as u64 }
}

/// This thread's number.
pub(crate) fn tid() -> u64 {
    // SAFETY: gettid has no arguments.
    unsafe { call(nr::GETTID, [0; 6]) as u64 }
}

/// The stack for signal handlers that request one (`SA_ONSTACK`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AlternateStack {
    start: u64,
    size: u64,
}

impl AlternateStack {
    /// Whether an address lies on it.
    #[must_use]
    pub const fn contains(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.start) < self.size
    }
}

/// This thread's alternate stack, if it has one.
#[must_use]
pub fn alternate_stack() -> Option<AlternateStack> {
    const SS_DISABLE: u64 = 2;
    let mut stack = [0_u64; 3];
    // SAFETY: sigaltstack(NULL, &stack) writes one `stack_t`: address, flags (32 bits, then padding), size.
    let result = unsafe { call(nr::SIGALTSTACK, [0, (&raw mut stack) as u64, 0, 0, 0, 0]) };
    let [start, flags, size] = stack;
    (result == 0 && flags & SS_DISABLE == 0).then_some(AlternateStack { start, size })
}

/// Result of reading one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// The word.
    Is(u64),
    /// Nothing is mapped there.
    Gone,
    /// The system refuses the call.
    Unknown,
}

/// Result of reading several words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Read {
    /// All were read.
    All,
    /// Not all are mapped.
    Gone,
    /// The system refuses the call.
    Unknown,
}

/// Reads a word of this process that may not be mapped.
#[must_use]
pub fn read_word(at: u64) -> Word {
    let mut word = [0];
    match read_words(at, &mut word) {
        Read::All => Word::Is(word[0]),
        Read::Gone => Word::Gone,
        Read::Unknown => Word::Unknown,
    }
}

/// Reads words of this process that may not be mapped. Of the words in one page, all are read or none.
#[must_use]
pub(crate) fn read_words(at: u64, words: &mut [u64]) -> Read {
    const EFAULT: i64 = -14;
    let len = size_of_val(words) as u64;
    let (local, remote) = ([words.as_mut_ptr() as u64, len], [at, len]);
    let args = [pid(), local.as_ptr() as u64, 1, remote.as_ptr() as u64, 1, 0];
    // SAFETY: process_vm_readv on this process writes at most `len` bytes to `words`.
    let read = unsafe { call(nr::PROCESS_VM_READV, args) };
    match read {
        read if read == len as i64 => Read::All,
        EFAULT => Read::Gone,
        _ => Read::Unknown,
    }
}

/// Commands of membarrier(2): `MEMBARRIER_CMD_PRIVATE_EXPEDITED…` and their registrations.
const EXPEDITED: u64 = 1 << 3;
const REGISTER_EXPEDITED: u64 = 1 << 4;
const CORE_SYNC: u64 = 1 << 5;
const REGISTER_CORE_SYNC: u64 = 1 << 6;
const RESTART: u64 = 1 << 7;
const REGISTER_RESTART: u64 = 1 << 8;

fn barrier(command: u64) -> bool {
    // SAFETY: membarrier(command, 0, 0) has no pointers.
    unsafe { call(nr::MEMBARRIER, [command, 0, 0, 0, 0, 0]) == 0 }
}

/// Registers once for [`membarrier`] (membarrier(2), MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED; Linux 4.14).
#[must_use]
pub fn register_membarrier() -> bool {
    barrier(REGISTER_EXPEDITED)
}

/// Registers once for what a writer of code needs (membarrier(2),
/// MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE; Linux 4.16).
pub fn register_core_sync() -> bool {
    barrier(REGISTER_CORE_SYNC)
}

/// Makes every running thread of this process execute a full memory barrier. True if it did.
#[must_use]
pub fn membarrier() -> bool {
    barrier(EXPEDITED)
}

/// Registers once for [`restart_sequences`] (membarrier(2), Linux 5.10). False: not available, and pools must
/// have no per-CPU magazines.
#[must_use]
pub fn register_restarts() -> bool {
    barrier(REGISTER_RESTART)
}

/// Aborts every restartable sequence in progress in this process. Sequences that start afterwards see all
/// stores made before. Costs an interrupt on each CPU that runs a thread of this process. True if it
/// succeeded.
#[must_use]
pub fn restart_sequences() -> bool {
    // A forked child may have to register itself.
    barrier(RESTART) || (register_restarts() && barrier(RESTART))
}

/// Makes every running thread of this process synchronise its context (membarrier(2),
/// MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE; Linux 4.16). After that, each thread fetches code from cache
/// lines that were cleaned before. True if it succeeded.
#[must_use]
pub fn synchronise_cores() -> bool {
    // A forked child may have to register itself.
    barrier(CORE_SYNC) || (barrier(REGISTER_CORE_SYNC) && barrier(CORE_SYNC))
}

/// Whether every page from one address to another can be read.
#[must_use]
#[cfg(not(loom))]
pub(crate) fn are_readable(from: u64, to: u64) -> bool {
    const PAGE: u64 = 4096;
    const AT_ONCE: usize = 32;
    let (mut page, last) = (from / PAGE * PAGE, to / PAGE * PAGE);
    while page <= last {
        let count = AT_ONCE.min(((last - page) / PAGE + 1) as usize);
        let mut bytes = [0_u8; AT_ONCE];
        let local = [(&raw mut bytes) as u64, count as u64];
        let mut remote = [[0_u64, 1]; AT_ONCE];
        remote.iter_mut().zip((page..).step_by(PAGE as usize)).for_each(|(one, at)| one[0] = at);
        let args = [pid(), local.as_ptr() as u64, 1, remote.as_ptr() as u64, count as u64, 0];
        // SAFETY: process_vm_readv of ourselves writes at most `count` bytes to `bytes`.
        let read = unsafe { call(nr::PROCESS_VM_READV, args) };
        if read != count as i64 {
            return false;
        }
        page += count as u64 * PAGE;
    }
    true
}

/// Whether this process has a thread of that number, according to the kernel.
#[must_use]
#[cfg(not(loom))]
pub(crate) fn is_thread(tid: u32) -> bool {
    const ESRCH: i64 = -3;
    // SAFETY: no pointers; signal 0 is none.
    let answer = unsafe { call(nr::TGKILL, [pid(), tid.into(), 0, 0, 0, 0]) };
    answer != ESRCH
}

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
    let (pid, tid) = (pid(), tid());
    // SAFETY: reads one siginfo; the rest are numbers.
    unsafe {
        let info = core::ptr::from_ref(info) as u64;
        if call(nr::RT_TGSIGQUEUEINFO, [pid, tid, signal as u64, info, 0, 0]) < 0 {
            call(nr::TGKILL, [pid, tid, signal as u64, 0, 0, 0]);
        }
    }
}
