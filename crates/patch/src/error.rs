//! What makes a whole batch fail. What makes one probe fail is a [`Refused`](crate::Refused).

use std::time::Duration;

use trapline_plan::PlanError;
use trapline_tracee::{Process, TargetError};

/// Longest wait until a process that is ending has lost its memory.
const ENDING: Duration = Duration::from_secs(2);

/// Why nothing was attached, or could be cleaned up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PatchError {
    /// The process is gone, or we have no right to trace it.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A module has no plan.
    #[error("{module}: {source}")]
    Plan {
        /// The module's file.
        module: String,
        /// The planner's error.
        source: PlanError,
    },
    /// Its code runs as a translation by another program.
    #[error(
        "process {pid} runs under {by}, which executes a translation of the program's code: patches would be translated, too, and \
         lead nowhere; trace it without {by}"
    )]
    Translated {
        /// The process.
        pid: u32,
        /// The translator.
        by: &'static str,
    },
    /// Another Trapline traces the process.
    #[error("process {pid} is being traced by another trapline, process {tracer} ({comm}); stop it first")]
    InUse {
        /// The process.
        pid: u32,
        /// The other tracer.
        tracer: u32,
        /// Its name.
        comm: String,
    },
    /// A signal asked the tracer to end while it planned.
    #[error("interrupted before anything was changed in process {pid}")]
    Interrupted {
        /// The process.
        pid: u32,
    },
    /// The process is a Trapline itself, and its own memory holds what it shares with a target.
    #[error(
        "process {pid} is a trapline, which traces process {target}; a trapline that traces is not traced"
    )]
    IsTracer {
        /// The process.
        pid: u32,
        /// Its target.
        target: u32,
    },
    /// A tracer died there, and its patches are still in place.
    #[error(
        "process {pid} still holds patches of a trapline that died (process {tracer}); clean up first: trapline detach -p {pid}"
    )]
    LeftBehind {
        /// The process.
        pid: u32,
        /// The dead tracer.
        tracer: u32,
    },
    /// There is memory that another version has laid out.
    #[error(
        "process {pid} holds patches of another version of trapline ({found}, this is {ours}); use that version"
    )]
    OtherVersion {
        /// The process.
        pid: u32,
        /// The version found.
        found: u64,
        /// This version.
        ours: u64,
    },
    /// A process that forbids `rdtsc` cannot be timed.
    #[error(
        "thread {tid} of process {pid} may not read the time-stamp counter ({why}): it would be killed by a probe that takes \
         the time; `count` and `hist` of arguments take none"
    )]
    NoClock {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// What forbids it.
        why: &'static str,
    },
    /// Counting by thread would take a system call that a seccomp filter may punish.
    #[error(
        "process {pid} cannot be counted by thread: its C library is not known to keep thread numbers, and its seccomp \
         filter may forbid gettid"
    )]
    NoThreadNumber {
        /// The process.
        pid: u32,
    },
    /// A probe that reads text would make a system call that a filter might punish.
    #[error(
        "thread {tid} of process {pid} {does}, and reading what a str, a buf or a field lies behind takes one; trace it as ptr"
    )]
    NoTexts {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// What it does with its system calls.
        does: &'static str,
    },
    /// A thread filters its system calls, and waiting for the reader takes one.
    #[error(
        "thread {tid} of process {pid} {does}, and waiting for room in a full buffer takes one; record it without --lossless"
    )]
    NoWaits {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// What it does with its system calls.
        does: &'static str,
    },
    /// Its threads have not what compact records need.
    #[error(
        "the calls of process {pid} cannot be recorded in this way: {lack} (glibc has both from 2.35 on); use trapline trace -o FILE.trapline"
    )]
    Unrecordable {
        /// The process.
        pid: u32,
        /// What there is not.
        lack: &'static str,
    },
    /// More functions than a compact record can tell apart.
    #[error("process {pid} would have {probes} recorded functions, and a record can name {most}; name fewer")]
    ManyProbes {
        /// The process.
        pid: u32,
        /// Their number.
        probes: u32,
        /// Most of them.
        most: u32,
    },
    /// The address space has no room for entry stamps.
    #[error("process {pid} has no free range of {len} bytes for entry stamps")]
    NoRoomForStamps {
        /// The process.
        pid: u32,
        /// Number of bytes needed.
        len: u64,
    },
    /// What we map there would be charged to a control group that is near its limit.
    #[error(
        "the memory control group {group} of process {pid} has only {left_kib} KiB left of its {limit_kib} ({file}): what probes take \
         there ({needed_kib} KiB) could make the kernel end the process; raise the limit, or wait until there is more left"
    )]
    GroupFull {
        /// The process.
        pid: u32,
        /// The group that has the limit.
        group: String,
        /// Name of the limit's file.
        file: &'static str,
        /// The limit, in KiB.
        limit_kib: u64,
        /// What is left, in KiB.
        left_kib: u64,
        /// What is needed, in KiB.
        needed_kib: u64,
    },
    /// The target's control group must not pay, and ours has too little left.
    #[error(
        "process {pid} has a limit of memory, so Trapline would pay for the rings of records, and may take only {left_kib} KiB itself \
         ({needed_kib} KiB are needed, of which an eighth is used): run it in a control group with more, or count instead"
    )]
    NoMemory {
        /// The process.
        pid: u32,
        /// What we may still allocate, in KiB.
        left_kib: u64,
        /// What is needed, in KiB.
        needed_kib: u64,
    },
    /// Our own shared memory is too small for what is to be written: a fault of ours.
    #[error("internal: {what} does not fit into the shared memory ({at:#x} of {len:#x} bytes)")]
    Layout {
        /// What was to be written.
        what: &'static str,
        /// Offset at which it was to be written.
        at: u64,
        /// Size of the memory.
        len: u64,
    },
}

impl PatchError {
    /// Whether the process is gone.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::Target(error) if error.is_gone())
    }
    /// The error of something that was done to a process: that it is gone, if it ends at that moment. While it
    /// ends, no thread can be stopped or make a call, and no byte can be written; each has an error of its own.
    /// What was patched goes with the memory.
    pub(crate) fn or_gone(self, process: &Process) -> Self {
        if self.is_gone() || !process.loses_memory(ENDING) {
            return self;
        }
        let how = format!("it ended or executed another program ({self})");
        Self::Target(TargetError::Gone { pid: process.pid(), how })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use trapline_tracee::{Process, TargetError};

    use super::PatchError;

    /// What fails while a process ends, whatever it is.
    fn failed(pid: u32) -> PatchError {
        PatchError::Target(TargetError::NoCaller { pid, why: "no thread".to_owned() })
    }

    #[test]
    fn what_fails_while_a_process_ends_means_that_it_is_gone() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let process = Process::open(child.id()).expect("a child may be traced");
        let lives = failed(child.id()).or_gone(&process);
        child.kill().expect("it runs");
        let killed = failed(child.id()).or_gone(&process);
        child.wait().expect("it ended");
        let reaped = failed(child.id()).or_gone(&process);
        assert!(!lives.is_gone(), "{lives}");
        assert!(killed.is_gone() && reaped.is_gone(), "{killed}; {reaped}");
        assert!(killed.to_string().contains("no thread"), "{killed}");
    }
}
