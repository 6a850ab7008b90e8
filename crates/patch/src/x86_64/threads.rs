//! Which threads of a process are the program's own, and how long they may take. Emulators of this processor do not come here: what attaches needs
//! ptrace, which they do not have.

use trapline_target::{Process, ThreadStatus};

/// Where the C library keeps a thread's control block, in bytes from the thread pointer on: glibc's has about 2,300.
pub(crate) const CONTROL_BLOCK: std::ops::Range<i64> = 0..0x900;

/// Whether a thread runs none of the process' code.
pub(crate) const fn runs_nothing(_: &Process, _: &ThreadStatus) -> bool {
    false
}

/// Whether how long a thread sleeps and runs says nothing of the program.
pub(crate) const fn is_slow() -> bool {
    false
}
