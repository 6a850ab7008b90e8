//! Which threads of a process are the program's own, and how long they may take. Under an emulator of this
//! processor this code is not used: attaching needs ptrace, which emulators do not have.

use trapline_tracee::{Process, ThreadStatus};

/// Where the C library keeps a thread's control block, in bytes from the thread pointer on: glibc's has about
/// 2,300.
pub(crate) const CONTROL_BLOCK: std::ops::Range<i64> = 0..0x900;

/// Whether a thread runs none of the process' code.
pub(crate) const fn runs_nothing(_: &Process, _: &ThreadStatus) -> bool {
    false
}

/// Whether a thread's times of sleeping and running say nothing about the program.
pub(crate) const fn is_slow() -> bool {
    false
}
