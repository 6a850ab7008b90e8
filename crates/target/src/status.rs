//! What /proc says about one thread.

/// A thread's seccomp mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Seccomp {
    /// None.
    #[default]
    Off,
    /// Only read, write, exit, sigreturn.
    Strict,
    /// A BPF filter.
    Filter,
}

/// Facts from /proc/PID/task/TID/status. Signal sets have signal `n` at bit `n − 1`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ThreadStatus {
    /// Its thread id.
    pub tid: u32,
    /// Its process.
    pub tgid: u32,
    /// Its name.
    pub comm: String,
    /// State letter: R, S, D, T, t, Z, X, I.
    pub state: char,
    /// Parent process.
    pub ppid: u32,
    /// Who traces it, 0 for nobody.
    pub tracer: u32,
    /// Real, effective, saved, file-system user ids.
    pub uids: [u32; 4],
    /// The same for groups.
    pub gids: [u32; 4],
    /// Its pid as each pid namespace sees it, ours first.
    pub ns_pids: Vec<u32>,
    /// Pending for the thread.
    pub pending: u64,
    /// Pending for the process.
    pub shared_pending: u64,
    /// Blocked.
    pub blocked: u64,
    /// Ignored.
    pub ignored: u64,
    /// Caught by a handler.
    pub caught: u64,
    /// Effective capabilities.
    pub cap_eff: u64,
    /// Permitted capabilities.
    pub cap_prm: u64,
    /// Seccomp mode.
    pub seccomp: Seccomp,
    /// Has a user shadow stack (x86_Thread_features: shstk).
    pub shadow_stack: bool,
    /// It has an address space (kernel threads and zombies have none).
    pub has_memory: bool,
}

/// Facts from /proc/PID/task/TID/syscall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InCall {
    /// On a CPU or ready to run.
    Running,
    /// Blocked in a system call.
    Call {
        /// Its number.
        nr: u64,
        /// Its six arguments.
        args: [u64; 6],
        /// Stack pointer.
        sp: u64,
        /// Instruction pointer (after the `syscall`).
        pc: u64,
    },
    /// Blocked outside a call (a fault, or stopped).
    Elsewhere {
        /// Stack pointer.
        sp: u64,
        /// Instruction pointer.
        pc: u64,
    },
}
