//! Which threads of a process are the program's own, and how long they may take. Emulators of this processor do not come here: what attaches needs
//! ptrace, which they do not have.

use trapline_target::{Process, ThreadStatus};

/// Whether a thread runs none of the process' code.
pub(crate) const fn runs_nothing(_: &Process, _: &ThreadStatus) -> bool {
    false
}

/// Whether how long a thread sleeps and runs says nothing of the program.
pub(crate) const fn is_slow() -> bool {
    false
}
