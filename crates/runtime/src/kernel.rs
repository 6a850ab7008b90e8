//! Questions to the kernel about this process, off the fast path: its memory, barriers between its threads.
//! The system calls are made directly, without libc.
//!
//! In: addresses, or nothing. Out: plain values.
//! Does not: keep anything, or rely on an answer that it did not get.

use crate::native::syscall::{call, nr};

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
    // SAFETY: process_vm_readv on this process writes at most `len` bytes to `words`; getpid has no
    // arguments.
    let read = unsafe {
        let pid = call(nr::GETPID, [0; 6]);
        call(nr::PROCESS_VM_READV, [pid as u64, local.as_ptr() as u64, 1, remote.as_ptr() as u64, 1, 0])
    };
    match read {
        read if read == len as i64 => Read::All,
        EFAULT => Read::Gone,
        _ => Read::Unknown,
    }
}

/// Commands of membarrier(2): `MEMBARRIER_CMD_PRIVATE_EXPEDITED…` and their registrations.
const EXPEDITED: u64 = 1 << 3;
const REGISTER_EXPEDITED: u64 = 1 << 4;
const REGISTER_CORE_SYNC: u64 = 1 << 6;
const RESTART: u64 = 1 << 7;
const REGISTER_RESTART: u64 = 1 << 8;

pub(crate) fn barrier(command: u64) -> bool {
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
