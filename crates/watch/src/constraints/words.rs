//! What is asked, of what machine, and what is answered.

use std::fmt;
use std::num::NonZeroU8;

/// The most slots that one CPU has of one kind (arm64's ID register has four bits for the count).
pub const MAX_SLOTS: u8 = 16;

/// A CPU, by the kernel's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Cpu(pub u32);

/// A task (a thread), by the kernel's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TaskId(u32);

/// What a breakpoint stops at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Memory that is read or written.
    Data,
    /// An instruction that is executed.
    Instruction,
}

/// Debug registers of each CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slots {
    /// Every slot takes either kind (x86: 4).
    Shared(u8),
    /// Each kind has its own (arm64).
    Apart {
        /// For data.
        data: u8,
        /// For instructions.
        instruction: u8,
    },
}

/// CPUs, all alike, and their slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    cpus: u32,
    slots: Slots,
}

/// What cannot be a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{cpus} CPUs with {slots:?}: at least 1 CPU and at most {MAX_SLOTS} slots of a kind are possible")]
pub struct BadMachine {
    /// CPUs asked for.
    pub cpus: u32,
    /// Slots asked for.
    pub slots: Slots,
}

/// Where a breakpoint is to be armed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// Wherever the task runs.
    Task(TaskId),
    /// When the task runs on this CPU.
    TaskOnCpu(TaskId, Cpu),
    /// On this CPU, whatever runs.
    Cpu(Cpu),
}

/// What a breakpoint takes: slots of a kind, on each CPU where it may be armed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Claim {
    kind: Kind,
    weight: NonZeroU8,
}

/// A breakpoint to be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    target: Target,
    claim: Claim,
}

/// A breakpoint that fits. It stays accounted for until it is given back to the accounting that granted it.
#[derive(PartialEq, Eq, Hash, Debug)]
#[must_use = "slots stay taken until the reservation is released"]
pub struct Reservation(Request);

/// Why a breakpoint does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Slots are used up.
    #[error(
        "no slot free: of {slots} on CPU {cpu}, {by_cpu} are pinned by breakpoints of the CPU and {by_task} by those of a task; {weight} more do not fit"
    )]
    NoSlot {
        /// A CPU on which it does not fit.
        cpu: Cpu,
        /// Slots of the kind there.
        slots: u32,
        /// Pinned there by CPU targets.
        by_cpu: u32,
        /// Pinned there by the task asked for; for a CPU target, the most that any task pins there.
        by_task: u32,
        /// Asked for.
        weight: u32,
    },
    /// The machine is smaller.
    #[error("there is no CPU {cpu}: the machine has {cpus}")]
    NoCpu {
        /// Asked for.
        cpu: Cpu,
        /// What the machine has, from 0.
        cpus: u32,
    },
}

/// Why a try form gave nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TryError {
    /// Another operation is in the way; nothing was changed.
    #[error("another operation on the breakpoint accounting is under way")]
    Busy,
    /// It does not fit.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// What one task holds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Held {
    /// Who.
    pub task: TaskId,
    /// Where: wherever it runs, or on one CPU.
    pub cpu: Option<Cpu>,
    /// Slots for data; where slots are shared, for either kind.
    pub data: u32,
    /// Slots for instructions; 0 where slots are shared.
    pub instruction: u32,
}

/// Whatever keeps count of breakpoints. [`Constraints`](super::Constraints) is the one to use; the others are what it is
/// measured against and proven with.
pub trait Accounting: Sync {
    /// Takes slots.
    ///
    /// # Errors
    /// When they are not there; nothing was changed.
    fn reserve(&self, request: Request) -> Result<Reservation, Refusal>;
    /// Gives slots back.
    fn release(&self, reservation: Reservation);
    /// Takes other slots in place of those that the reservation has, at the same target.
    ///
    /// # Errors
    /// When they are not there; the reservation is as it was.
    fn modify(&self, reservation: &mut Reservation, to: Claim) -> Result<(), Refusal>;
}

impl TaskId {
    /// One more than the largest number that Linux gives to a task (`PID_MAX_LIMIT`).
    pub const LIMIT: u32 = 1 << 22;
    /// `None` for what is no task's number.
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
    /// `cpus` is the number of CPUs that may ever come on line.
    ///
    /// # Errors
    /// No CPU, or more than [`MAX_SLOTS`].
    pub const fn new(cpus: u32, slots: Slots) -> Result<Self, BadMachine> {
        let most = match slots {
            Slots::Shared(n) => n,
            Slots::Apart { data, instruction } => {
                if data > instruction {
                    data
                } else {
                    instruction
                }
            }
        };
        if cpus == 0 || most > MAX_SLOTS { Err(BadMachine { cpus, slots }) } else { Ok(Self { cpus, slots }) }
    }
    /// How many CPUs.
    #[must_use]
    pub const fn cpus(&self) -> u32 {
        self.cpus
    }
    /// Slots of each CPU.
    #[must_use]
    pub const fn slots(&self) -> Slots {
        self.slots
    }
    /// Slots that a kind may use on each CPU.
    #[must_use]
    pub const fn slots_for(&self, kind: Kind) -> u8 {
        match (self.slots, kind) {
            (Slots::Shared(n), _) => n,
            (Slots::Apart { data, .. }, Kind::Data) => data,
            (Slots::Apart { instruction, .. }, Kind::Instruction) => instruction,
        }
    }
}

impl Target {
    /// One breakpoint of a kind, with the usual weight 1.
    #[must_use]
    pub const fn one(self, kind: Kind) -> Request {
        self.wants(Claim::one(kind))
    }
    /// A breakpoint with any claim.
    #[must_use]
    pub const fn wants(self, claim: Claim) -> Request {
        Request { target: self, claim }
    }
}

impl Claim {
    /// One slot.
    #[must_use]
    pub const fn one(kind: Kind) -> Self {
        Self { kind, weight: NonZeroU8::MIN }
    }
    /// Several slots.
    #[must_use]
    pub const fn weighing(kind: Kind, weight: NonZeroU8) -> Self {
        Self { kind, weight }
    }
    /// What it stops at.
    #[must_use]
    pub const fn kind(self) -> Kind {
        self.kind
    }
    /// How many slots.
    #[must_use]
    pub const fn weight(self) -> u8 {
        self.weight.get()
    }
}

impl Request {
    /// Where.
    #[must_use]
    pub const fn target(self) -> Target {
        self.target
    }
    /// How much of what.
    #[must_use]
    pub const fn claim(self) -> Claim {
        self.claim
    }
}

impl Reservation {
    /// For an [`Accounting`] that has just taken the slots.
    pub const fn granted(request: Request) -> Self {
        Self(request)
    }
    /// Where.
    #[must_use]
    pub const fn target(&self) -> Target {
        self.0.target
    }
    /// How much of what.
    #[must_use]
    pub const fn claim(&self) -> Claim {
        self.0.claim
    }
}
