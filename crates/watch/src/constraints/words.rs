//! Requests, machines, and answers.

use std::fmt;
use std::num::NonZeroU8;

/// The largest number of debug registers of one kind that a CPU has (arm64's ID register has four bits for
/// the count).
pub const MAX_REGISTERS: u8 = 16;

/// A CPU, by the kernel's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Cpu(pub u32);

/// A task (a thread), by the kernel's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TaskId(u32);

/// What a breakpoint stops at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BreakpointKind {
    /// Memory that is read or written.
    Data,
    /// An instruction that is executed.
    Instruction,
}

/// Debug registers of each CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DebugRegisters {
    /// Every register takes either kind (x86: 4).
    Shared(u8),
    /// Each kind has its own registers (arm64).
    Apart {
        /// Number for data.
        data: u8,
        /// Number for instructions.
        instruction: u8,
    },
}

/// CPUs, all alike, and their debug registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    cpus: u32,
    registers: DebugRegisters,
}

/// The error for numbers that no machine has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{cpus} CPUs with {registers:?}: at least 1 CPU and at most {MAX_REGISTERS} registers of a kind are possible"
)]
pub struct BadMachine {
    /// Number of CPUs given.
    pub cpus: u32,
    /// Debug registers given.
    pub registers: DebugRegisters,
}

/// The target of a breakpoint: a task, or a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// The task, wherever it runs.
    Task(TaskId),
    /// The task, when it runs on this CPU.
    TaskOnCpu(TaskId, Cpu),
    /// This CPU, whatever runs on it.
    Cpu(Cpu),
}

/// The registers that a breakpoint takes: a number of one kind, on each CPU where it may be armed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Claim {
    kind: BreakpointKind,
    weight: NonZeroU8,
}

/// A breakpoint that is to be reserved.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    target: Target,
    claim: Claim,
}

/// A breakpoint that fits. It stays in the accounting that granted it until it is given back to that one.
#[derive(PartialEq, Eq, Hash, Debug)]
#[must_use = "registers stay taken until the reservation is released"]
pub struct Reservation(Request);

/// Why a breakpoint does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The registers are used up.
    #[error(
        "no register free: of {registers} on CPU {cpu}, {by_cpu} are pinned by breakpoints of the CPU and {by_task} by those of a task; {weight} more do not fit"
    )]
    NoRegister {
        /// A CPU on which it does not fit.
        cpu: Cpu,
        /// Number of registers of that kind there.
        registers: u32,
        /// Number that CPU targets pin there.
        by_cpu: u32,
        /// Number that the task pins there; for a CPU target, the most that any task pins there.
        by_task: u32,
        /// Number that was requested.
        weight: u32,
    },
    /// The machine has no such CPU.
    #[error("there is no CPU {cpu}: the machine has {cpus}")]
    NoCpu {
        /// The CPU that was requested.
        cpu: Cpu,
        /// Number of CPUs of the machine, which are numbered from 0.
        cpus: u32,
    },
}

/// Why a try form did nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TryError {
    /// Another operation holds a lock that is needed; nothing was changed.
    #[error("another operation on the breakpoint accounting is under way")]
    Busy,
    /// It does not fit.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// The registers that one task holds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Held {
    /// The task.
    pub task: TaskId,
    /// The CPU; `None` for registers that it holds wherever it runs.
    pub cpu: Option<Cpu>,
    /// Number of registers for data; for both kinds where these share registers.
    pub data: u32,
    /// Number of registers for instructions; 0 where the kinds share registers.
    pub instruction: u32,
}

/// Any accounting of breakpoints. [`Constraints`](super::Constraints) is the one to use. The others are there
/// to measure it and to prove it.
pub trait Accounting: Sync {
    /// Takes registers.
    ///
    /// # Errors
    /// When they are not free; nothing was changed.
    fn reserve(&self, request: Request) -> Result<Reservation, Refusal>;
    /// Gives registers back.
    fn release(&self, reservation: Reservation);
    /// Takes other registers in place of those of the reservation, for the same target.
    ///
    /// # Errors
    /// When they are not free; the reservation is unchanged.
    fn modify(&self, reservation: &mut Reservation, to: Claim) -> Result<(), Refusal>;
}

impl TaskId {
    /// One more than the largest number that Linux gives to a task (`PID_MAX_LIMIT`).
    pub const LIMIT: u32 = 1 << 22;
    /// Makes an id; `None` if the number cannot be a task's.
    #[must_use]
    pub const fn new(tid: u32) -> Option<Self> {
        if tid > 0 && tid < Self::LIMIT { Some(Self(tid)) } else { None }
    }
    /// The kernel's number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Machine {
    /// Makes a machine. `cpus` is the number of CPUs that can ever come online.
    ///
    /// # Errors
    /// There is no CPU, or there are more than [`MAX_REGISTERS`] registers.
    pub const fn new(cpus: u32, registers: DebugRegisters) -> Result<Self, BadMachine> {
        let most = match registers {
            DebugRegisters::Shared(n) => n,
            DebugRegisters::Apart { data, instruction } => {
                if data > instruction {
                    data
                } else {
                    instruction
                }
            }
        };
        if cpus == 0 || most > MAX_REGISTERS {
            Err(BadMachine { cpus, registers })
        } else {
            Ok(Self { cpus, registers })
        }
    }
    /// Number of CPUs.
    #[must_use]
    pub const fn cpus(&self) -> u32 {
        self.cpus
    }
    /// Debug registers of each CPU.
    #[must_use]
    pub const fn registers(&self) -> DebugRegisters {
        self.registers
    }
    /// Number of registers of each CPU that a kind may use.
    #[must_use]
    pub const fn registers_for(&self, kind: BreakpointKind) -> u8 {
        match (self.registers, kind) {
            (DebugRegisters::Shared(n), _) => n,
            (DebugRegisters::Apart { data, .. }, BreakpointKind::Data) => data,
            (DebugRegisters::Apart { instruction, .. }, BreakpointKind::Instruction) => instruction,
        }
    }
}

impl Target {
    /// One breakpoint of a kind, with the usual weight 1.
    #[must_use]
    pub const fn one(self, kind: BreakpointKind) -> Request {
        self.wants(Claim::one(kind))
    }
    /// A breakpoint with any claim.
    #[must_use]
    pub const fn wants(self, claim: Claim) -> Request {
        Request { target: self, claim }
    }
}

impl Claim {
    /// A claim of one register.
    #[must_use]
    pub const fn one(kind: BreakpointKind) -> Self {
        Self { kind, weight: NonZeroU8::MIN }
    }
    /// A claim of several registers.
    #[must_use]
    pub const fn weighing(kind: BreakpointKind, weight: NonZeroU8) -> Self {
        Self { kind, weight }
    }
    /// The kind of its registers.
    #[must_use]
    pub const fn kind(self) -> BreakpointKind {
        self.kind
    }
    /// Number of its registers.
    #[must_use]
    pub const fn weight(self) -> u8 {
        self.weight.get()
    }
}

impl Request {
    /// The target.
    #[must_use]
    pub const fn target(self) -> Target {
        self.target
    }
    /// Kind and number of registers.
    #[must_use]
    pub const fn claim(self) -> Claim {
        self.claim
    }
}

impl Reservation {
    /// Makes a reservation; for an [`Accounting`] that has just taken the registers.
    pub const fn granted(request: Request) -> Self {
        Self(request)
    }
    /// The target.
    #[must_use]
    pub const fn target(&self) -> Target {
        self.0.target
    }
    /// Kind and number of registers.
    #[must_use]
    pub const fn claim(&self) -> Claim {
        self.0.claim
    }
}
