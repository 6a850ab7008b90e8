//! Threads of a process that run none of its code, because they belong to an emulator in which the process
//! runs.
//!
//! In: /proc. Out: whether a thread belongs to an emulator; which parts of the address space are taken, the
//! emulator's own memory included. A user-mode emulator (QEMU's) has a thread of its own beside each process'
//! threads. It blocks nearly all signals, and would look like a thread of the program in which no trap is
//! served. Does not: matter on a real processor of this kind.

use std::fs;
use std::sync::OnceLock;

use trapline_record::RemoteAddr;

use crate::error::{TargetError, gone_or};
use crate::maps;
use crate::process::Process;
use crate::status::ThreadStatus;

impl Process {
    /// Whether a thread of our process is an emulator's own, which the program does not see.
    ///
    /// QEMU shows the program its own file as `/proc/self/exe`, and passes on other names of the same link.
    /// It depends on SIGBUS. In threads that run the program it keeps that signal unblocked, whatever they
    /// ask for (linux-user, `process_pending_signals`). In its own threads SIGBUS is blocked.
    #[must_use]
    pub fn is_emulators(&self, thread: &ThreadStatus) -> bool {
        const SIGBUS: u64 = 1 << (libc::SIGBUS - 1);
        thread.blocked & SIGBUS != 0 && is_emulated()
    }
}

impl Process {
    /// What is mapped in the calling process. It is read by a name that an emulator passes on, so the
    /// emulator's own memory is included, which it hides from its program's maps.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn occupied(&self) -> Result<Vec<(RemoteAddr, RemoteAddr)>, TargetError> {
        let text = fs::read("/proc/thread-self/maps");
        let text = text.map_err(|error| gone_or(self.pid(), "read /proc/thread-self/maps", error))?;
        Ok(self.taken(&maps::parse(&text)))
    }
}

/// Whether this process runs in a user-mode emulator. What the kernel does at no cost may cost an emulator a
/// step for each page.
#[must_use]
pub fn is_emulated() -> bool {
    static EMULATED: OnceLock<bool> = OnceLock::new();
    *EMULATED.get_or_init(|| {
        let shown = fs::read_link("/proc/self/exe");
        let real = fs::read_link(format!("/proc/self/task/{}/exe", std::process::id()));
        matches!((shown, real), (Ok(shown), Ok(real)) if shown != real)
    })
}
