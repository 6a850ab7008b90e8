//! Why a want gets no patch: each reason names address, bytes and rule, and is what the user reads (SAFE-5).

use core::fmt;
use trapline_insn::x86_64::Immovable;
use trapline_record::Svma;

/// A place and what stands there.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Address as the file states it.
    pub at: Svma,
    bytes: [u8; 8],
    len: u8,
}

impl Place {
    /// The place at `at`, of which at most 8 bytes are kept.
    #[must_use]
    pub fn new(at: Svma, bytes: &[u8]) -> Self {
        let len = bytes.len().min(8);
        let mut kept = [0; 8];
        kept[..len].copy_from_slice(&bytes[..len]);
        Self { at, bytes: kept, len: len as u8 }
    }
    /// The bytes there.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} [", self.at)?;
        for (i, byte) in self.bytes().iter().enumerate() {
            write!(f, "{}{byte:02x}", if i == 0 { "" } else { " " })?;
        }
        write!(f, "]")
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a want gets no patch.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The window is cut short by a branch target, and no other tactic fits.
    #[error("{site}: a branch leads to {target:#x}, inside the 5 bytes of a jump")]
    BranchIn {
        /// The window.
        site: Place,
        /// The target inside it.
        target: Svma,
    },
    /// Fewer bytes than a jump needs, and no padding near.
    #[error("{site}: {room} bytes of code and padding, a jump needs 5")]
    TooShort {
        /// The window.
        site: Place,
        /// Bytes that may be overwritten.
        room: u8,
    },
    /// A call, system call or interrupt before the end of the window.
    #[error("{site}: {insn} returns into the 5 bytes of a jump")]
    ReturnsIn {
        /// The window.
        site: Place,
        /// The call.
        insn: Place,
    },
    /// An instruction that does something else in another place.
    #[error("{site}: instruction {insn} cannot be moved: {why}")]
    Immovable {
        /// The window.
        site: Place,
        /// The instruction.
        insn: Place,
        /// Why.
        why: Immovable,
    },
    /// An instruction that may fault, in a program that catches faults.
    #[error("{site}: {insn} may fault on a register operand, and the program catches SIGSEGV or SIGBUS")]
    MayFault {
        /// The window.
        site: Place,
        /// The instruction.
        insn: Place,
    },
    /// A filter or a text needs to know which thread it is.
    #[error(
        "{at:#x}: the process' C library is not known to keep thread numbers, and its seccomp filter may forbid gettid, which tid, str and buf need"
    )]
    NoThreadNumber {
        /// The function.
        at: Svma,
    },
    /// Bytes that are no instruction.
    #[error("{site}: not a known instruction")]
    NotCode {
        /// The place.
        site: Place,
    },
    /// The address is inside an instruction.
    #[error("{site}: not the start of an instruction; the one before begins at {starts:#x}")]
    InsideInstruction {
        /// The place asked for.
        site: Place,
        /// Start of the instruction that holds it.
        starts: Svma,
    },
    /// The address is not in the file's code.
    #[error("{at:#x} is not in the file's code")]
    NotInFile {
        /// The address.
        at: Svma,
    },
    /// A critical section of restartable sequences.
    #[error("{site}: inside the restartable sequence at {section:#x}, which a jump would abort for ever")]
    InRseq {
        /// The window.
        site: Place,
        /// Start of the section.
        section: Svma,
    },
    /// Part of how a Go program begins.
    #[error(
        "{at:#x}: Go's runtime runs it before the thread has a goroutine, which is to be read there; its calls can be counted (trapline count)"
    )]
    BeforeGoroutine {
        /// The function.
        at: Svma,
    },
    /// The window of another probe is in the way.
    #[error("{site}: the window of the probe at {other:#x} reaches into it")]
    Overlap {
        /// The window.
        site: Place,
        /// The other probe's address.
        other: Svma,
    },
    /// An indirect jump that may leave the function or not.
    #[error("exits unknown: the indirect jump {at} may leave the function")]
    ExitsUnknown {
        /// The jump.
        at: Place,
    },
    /// The function runs into bytes that are no instruction.
    #[error("exits unknown: {at} is not a known instruction")]
    ExitsUnreadable {
        /// The bytes.
        at: Place,
    },
    /// One exit cannot be patched, so durations would be wrong.
    #[error("the exit at {at:#x} cannot be patched: {why}")]
    ExitUnpatchable {
        /// The exit.
        at: Svma,
        /// Why.
        why: Box<Self>,
    },
    /// The function never returns: there is no exit to count.
    #[error("{at:#x} has no exit to count: it never returns")]
    NoExit {
        /// The function.
        at: Svma,
    },
    /// The return address may not be replaced.
    #[error("{at:#x}: its return address cannot be replaced: {why}")]
    NoSlot {
        /// The function.
        at: Svma,
        /// Why.
        why: NoSlot,
    },
    /// A consumer of returns would be called before the value is there.
    #[error("the exit {at} calls another function, whose return value is not there yet")]
    TailCall {
        /// The jump.
        at: Place,
    },
    /// Only a trap would reach it, and traps cannot be served.
    #[error("{site}: only a trap would reach it, and SIGTRAP is blocked or belongs to the program's runtime")]
    MustNotTrap {
        /// The instruction.
        site: Place,
    },
    /// A punned jump's target is occupied, and nothing else fits.
    #[error("{site}: every place that a jump could lead to is occupied")]
    NoRoom {
        /// The window.
        site: Place,
    },
    /// No displacement leads the module's whole text to free memory.
    #[error(
        "no free range of {need:#x} bytes at a trapping distance from the module's text at {text:#x}; {tried} were tried"
    )]
    NoSpace {
        /// Live address of the text.
        text: trapline_record::RemoteAddr,
        /// Bytes needed.
        need: u64,
        /// How many displacements were tried.
        tried: u32,
    },
    /// arm64: the word takes no branch, or its function's returns are not all known.
    #[error("{why}")]
    Word {
        /// Why.
        why: crate::aarch64::Refusal,
    },
    /// What is asked for is not made for this processor.
    #[error("{at:#x}: not on arm64 yet: {what}")]
    NotHere {
        /// The function or instruction.
        at: Svma,
        /// What is missing.
        what: &'static str,
    },
    /// A filter that no code of what is wanted decides by; a hit must not count as if it had passed.
    #[error("{at:#x}: {what}")]
    Undecided {
        /// The function or instruction.
        at: Svma,
        /// What is not decided.
        what: &'static str,
    },
    /// The want does not say which function, or which latency area.
    #[error("incomplete request for {at:#x}")]
    Incomplete {
        /// The address.
        at: Svma,
    },
}

/// Why a return address may not be replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoSlot {
    /// Returns are compared with a copy of their addresses.
    #[error("the process runs with a shadow stack; its exits can be patched instead (--ret=exits)")]
    ShadowStack,
    /// A stack is moved, and every return address in it looked up.
    #[error(
        "Go moves its stacks and must know every return address; its exits can be patched instead (--ret=exits)"
    )]
    Go,
    /// Nothing returns there.
    #[error("the program begins here, with no return address")]
    ProgramEntry,
    /// Neither `ret` nor a jump to another function is to be seen.
    #[error("no return is found in it, so what it is entered with may be no return address")]
    NoReturn,
    /// The entry is reached in another way than by a call.
    #[error("{0} leads back to its first instruction")]
    Looped(Place),
    /// `setjmp` and the like.
    #[error("{0} reads the return address, or takes its address")]
    Named(Place),
}

impl Refusal {
    /// Whether it is exits that cannot be had: a return address may be replaced instead.
    #[must_use]
    pub fn is_of_exits(&self) -> bool {
        matches!(self.kind(), "exits-unknown" | "exit-unpatchable")
    }
    /// A stable word for statistics and JSON.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::BranchIn { .. } => "branch-in",
            Self::TooShort { .. } => "too-short",
            Self::ReturnsIn { .. } => "returns-in",
            Self::Immovable { .. } => "immovable",
            Self::MayFault { .. } => "may-fault",
            Self::NoThreadNumber { .. } => "no-thread-number",
            Self::NotCode { .. } => "not-code",
            Self::InsideInstruction { .. } => "inside-instruction",
            Self::NotInFile { .. } => "not-in-file",
            Self::InRseq { .. } => "in-rseq",
            Self::BeforeGoroutine { .. } => "no-goroutine",
            Self::Overlap { .. } => "overlap",
            Self::ExitsUnknown { .. } | Self::ExitsUnreadable { .. } => "exits-unknown",
            Self::ExitUnpatchable { .. } => "exit-unpatchable",
            Self::NoExit { .. } => "no-exit",
            Self::NoSlot { .. } => "no-slot",
            Self::TailCall { .. } => "tail-call",
            Self::MustNotTrap { .. } => "must-not-trap",
            Self::NoRoom { .. } | Self::NoSpace { .. } => "no-room",
            Self::Word { why } => why.kind(),
            Self::NotHere { .. } => "not-on-arm64",
            Self::Undecided { .. } => "undecided",
            Self::Incomplete { .. } => "incomplete",
        }
    }
}

/// Why a module cannot be planned at all.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No displacement leads the whole text to free memory.
    #[error("no free range of {need:#x} bytes at a trapping distance from {text:#x}; {tried} were tried")]
    NoSpace {
        /// Live address of the text.
        text: trapline_record::RemoteAddr,
        /// Bytes needed.
        need: u64,
        /// How many displacements were tried.
        tried: u32,
    },
    /// The file has no code for this engine.
    #[error("no x86-64 code in the file")]
    NoText,
    /// Latency is wanted, and no `LatencyInput` (or none with slots) was given.
    #[error("latency is wanted, and no place for entry stamps or slots was given")]
    NoStamps,
    /// A consumer is wanted, and `ModuleInput::calls` has none for it.
    #[error("no consumer was given for probe {probe}")]
    NoCallee {
        /// The want's probe.
        probe: u32,
    },
    /// A counter or latency index beyond the layout.
    #[error("{what} {index} is outside the data layout ({have})")]
    OutsideLayout {
        /// `counter` or `latency area`.
        what: &'static str,
        /// The index.
        index: u32,
        /// How many there are.
        have: u32,
    },
}
