//! What a process and its CPU offer to generated code, and what they forbid; on either processor.
//!
//! In: nothing but numbers, as others read them from a process. Out: plain values, which the planner and all
//! stubs name.
//! Does not: generate code. Each processor's stubs know what to do with these values.

use trapline_record::latency::at;

/// Where a registered thread's rseq area lies, as PTRACE_GET_RSEQ_CONFIGURATION reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rseq {
    /// Offset of the area from the thread pointer, in bytes.
    pub offset: i32,
    /// Signature that stands before an abort handler.
    pub signature: u32,
}

/// How generated code reads the number of the thread that runs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ThreadId {
    /// The C library keeps it: 32 bits at this offset from the thread pointer.
    At(i32),
    /// By a system call.
    #[default]
    Call,
    /// Not at all: it is kept nowhere, and a filter of system calls might punish the call.
    Unknown,
}

/// How durations are sorted into histogram buckets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Buckets {
    /// `record::hist`: 16 to an octave.
    #[default]
    Log,
    /// Bucket 0 is below `min`; then `count` buckets of `step` ticks; then one for all above.
    Linear {
        /// Lower bound of bucket 1, in ticks.
        min: u64,
        /// Width in ticks; 0 is taken as 1.
        step: u64,
        /// At most `record::hist::BUCKETS - 2`; a larger number is cut to that.
        count: u32,
    },
}

/// How a call leaves its function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitKind {
    /// By `ret`.
    Return,
    /// By a jump to another function, or by running on into one.
    Tail,
}

impl ExitKind {
    /// The word of a latency area in which such exits are counted.
    pub(crate) const fn word(self) -> u64 {
        match self {
            Self::Return => at::RETURNS,
            Self::Tail => at::TAIL_EXITS,
        }
    }
}

/// Whether a guard trap may happen in the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TrapsPolicy {
    /// Guard traps are served: windows of several instructions may be patched while threads run.
    #[default]
    Guarded,
    /// SIGTRAP is blocked in some thread, or the program owns it. Such windows are still planned; the crate
    /// `patch` checks [`Patch::starts`](crate::Patch::starts) against the stopped threads, and refuses.
    MustNotTrap,
}

/// Whether a kernel uprobe counts where no jump fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KernelUprobes {
    /// The tracer may set none.
    #[default]
    Unavailable,
    /// It may, but the user did not ask for them, as a hit costs microseconds. The refusal says that it may.
    NotAsked,
    /// It sets them.
    Asked,
}

/// Where stacks end, as far as this is known in a process; see `x86_64::stub::stack`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stacks {
    /// The main thread's stack: its lowest address when it was looked up, and the first address behind it.
    /// Empty if unknown.
    pub main: (u64, u64),
    /// Offset, from the thread pointer, of two words: the start of a thread's stack (0 for the main
    /// thread's), and its length.
    pub block: Option<i32>,
    /// Offset of the goroutine pointer from the thread pointer, in a Go program.
    pub go: Option<i32>,
}

/// What the process and its CPU offer and forbid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessTraits {
    /// Where threads have their rseq areas; `None` if some threads have none.
    pub rseq: Option<Rseq>,
    /// CPUs that may run the process (highest possible CPU number + 1).
    pub cpus: u32,
    /// The CPU has `rdpid`.
    pub rdpid: bool,
    /// `rdfsbase` may be used.
    pub fsgsbase: bool,
    /// arm64: one instruction can add to memory (FEAT_LSE).
    pub lse: bool,
    /// arm64: the CPU has vectors that a system call does not preserve (SVE).
    pub sve: bool,
    /// The program catches SIGSEGV or SIGBUS. Then no instruction is displaced that may fault on a
    /// register-based operand.
    pub has_fault_handler: bool,
    /// x86-64: those handlers see the original addresses of faults in copies
    /// ([`Action::Deliver`](crate::Action::Deliver)), so such an instruction may be displaced.
    pub faults_delivered: bool,
    /// A shadow stack is on, so no call is displaced.
    pub shadow_stack: bool,
    /// A Go program: the goroutine pointer is in r14, and stacks move.
    pub go: bool,
    /// Whether a guard trap may happen.
    pub traps: TrapsPolicy,
    /// Whether sites that no jump reaches get kernel uprobes.
    pub kernel_uprobes: KernelUprobes,
    /// Counter lines; see `record::counters`.
    pub lines: u32,
    /// How a stub reads a thread's number, if hits are counted by thread.
    pub thread_id: ThreadId,
    /// Where stacks end, if records hold stacks.
    pub stacks: Stacks,
    /// Ticks for which a thread waits at most that finds a compact ring full; `None` if none waits.
    pub waits: Option<u64>,
}

impl ProcessTraits {
    /// Traits of most processes: rseq as glibc lays it out, no handlers for faults, guard traps served.
    #[must_use]
    pub const fn usual(cpus: u32) -> Self {
        Self {
            rseq: Some(Rseq { offset: -160, signature: 0x5305_3053 }),
            cpus,
            rdpid: false,
            fsgsbase: true,
            lse: false,
            sve: false,
            has_fault_handler: false,
            faults_delivered: false,
            shadow_stack: false,
            go: false,
            traps: TrapsPolicy::Guarded,
            kernel_uprobes: KernelUprobes::Unavailable,
            lines: cpus + 1,
            thread_id: ThreadId::Call,
            stacks: Stacks { main: (0, 0), block: None, go: None },
            waits: None,
        }
    }
}
