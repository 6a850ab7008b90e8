//! Threads of a process that run none of its code: those of an emulator that the process runs in.
//!
//! In: /proc. Out: whether a thread is such a one; what of the address space is taken, the emulator's own memory included. A user-mode emulator (QEMU's) has a thread of its own beside each process' threads; it blocks nearly
//! all signals, and would look like a thread of the program that no trap may find. Does not: matter on a processor of this kind.

use std::fs;
use std::sync::OnceLock;

use trapline_record::RemoteAddr;

use crate::error::TargetError;
use crate::maps;
use crate::process::{Process, gone_or};
use crate::status::ThreadStatus;

impl Process {
    /// Whether a thread of ours is an emulator's own, of which the program knows nothing.
    ///
    /// QEMU shows the program its own file as `/proc/self/exe`, and passes other names of the same link through. It keeps SIGBUS, of which it lives,
    /// unblocked in threads that run the program, whatever these ask for (linux-user, `process_pending_signals`), and blocked in its own.
    #[must_use]
    pub fn is_emulators(&self, thread: &ThreadStatus) -> bool {
        const SIGBUS: u64 = 1 << (libc::SIGBUS - 1);
        thread.blocked & SIGBUS != 0 && is_emulated()
    }
}

impl Process {
    /// What is mapped in the process that asks, by a name that an emulator passes through: its own memory, which it keeps from its program's maps, is there too.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn occupied(&self) -> Result<Vec<(RemoteAddr, RemoteAddr)>, TargetError> {
        let text = fs::read("/proc/thread-self/maps");
        let text = text.map_err(|error| gone_or(self.pid(), "read /proc/thread-self/maps", error))?;
        Ok(maps::parse(&text).iter().map(|one| (one.start, one.end)).collect())
    }
}

/// Whether this process runs in an emulator of processes. What its kernel does for nothing may cost such a one a step for each page.
#[must_use]
pub fn is_emulated() -> bool {
    static EMULATED: OnceLock<bool> = OnceLock::new();
    *EMULATED.get_or_init(|| {
        let shown = fs::read_link("/proc/self/exe");
        let real = fs::read_link(format!("/proc/self/task/{}/exe", std::process::id()));
        matches!((shown, real), (Ok(shown), Ok(real)) if shown != real)
    })
}
