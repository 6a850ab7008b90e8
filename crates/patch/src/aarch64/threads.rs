//! Which threads of a process are the program's own, and how long they may take.

use trapline_tracee::{Process, ThreadStatus};

/// Where the C library keeps a thread's control block, in bytes from the thread pointer on (AAELF64, TLS
/// variant I): glibc's has about 1,900.
pub(crate) const CONTROL_BLOCK: std::ops::Range<i64> = -0x900..0;

/// Whether a thread runs none of the process' code: it need not be waited for, and it never unblocks
/// anything.
pub(crate) fn runs_nothing(process: &Process, thread: &ThreadStatus) -> bool {
    process.is_emulators(thread)
}

/// Whether a thread's times of sleeping and running say nothing about the program.
pub(crate) fn is_slow() -> bool {
    trapline_tracee::is_emulated()
}
