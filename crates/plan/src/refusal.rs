//! Why a request gets no patch. Each reason names address, bytes and rule, and is what the user reads
//! (SAFE-5).

use core::fmt;
use trapline_insn::x86_64::Immovable;
use trapline_record::Svma;

/// An address and the bytes there.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CodeBytes {
    /// Stated address in the file.
    pub at: Svma,
    bytes: [u8; 8],
    len: u8,
}

impl CodeBytes {
    /// The place at `at`, with the first 8 of `bytes` at most.
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

impl fmt::Display for CodeBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} [", self.at)?;
        for (i, byte) in self.bytes().iter().enumerate() {
            write!(f, "{}{byte:02x}", if i == 0 { "" } else { " " })?;
        }
        write!(f, "]")
    }
}

impl fmt::Debug for CodeBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a request gets no patch.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The window is cut short by a branch target, and no other tactic fits.
    #[error("{site}: a branch leads to {target:#x}, inside the 5 bytes of a jump")]
    BranchIn {
        /// The window.
        site: CodeBytes,
        /// The target inside it.
        target: Svma,
    },
    /// There are fewer bytes than a jump needs, and no padding nearby.
    #[error("{site}: {room} bytes of code and padding, a jump needs 5")]
    TooShort {
        /// The window.
        site: CodeBytes,
        /// Bytes that may be overwritten.
        room: u8,
    },
    /// There is a call, system call or interrupt before the end of the window.
    #[error("{site}: {insn} returns into the 5 bytes of a jump")]
    ReturnsIn {
        /// The window.
        site: CodeBytes,
        /// The call.
        insn: CodeBytes,
    },
    /// An instruction does something else at another address.
    #[error("{site}: instruction {insn} cannot be moved: {why}")]
    Immovable {
        /// The window.
        site: CodeBytes,
        /// The instruction.
        insn: CodeBytes,
        /// The reason.
        why: Immovable,
    },
    /// An instruction may fault, in a program that catches faults.
    #[error("{site}: {insn} may fault on a register operand, and the program catches SIGSEGV or SIGBUS")]
    MayFault {
        /// The window.
        site: CodeBytes,
        /// The instruction.
        insn: CodeBytes,
    },
    /// A filter or a text needs the thread's number, which is not available.
    #[error(
        "{at:#x}: the process' C library is not known to keep thread numbers, and its seccomp filter may forbid gettid, which tid, str and buf need"
    )]
    NoThreadNumber {
        /// The function.
        at: Svma,
    },
    /// The bytes are no instruction.
    #[error("{site}: not a known instruction")]
    NotCode {
        /// The place.
        site: CodeBytes,
    },
    /// The address is inside an instruction.
    #[error("{site}: not the start of an instruction; the one before begins at {starts:#x}")]
    InsideInstruction {
        /// The requested place.
        site: CodeBytes,
        /// Start of the instruction that holds it.
        starts: Svma,
    },
    /// The address is not in the file's code.
    #[error("{at:#x} is not in the file's code")]
    NotInFile {
        /// The address.
        at: Svma,
    },
    /// The window touches a restartable sequence.
    #[error("{site}: inside the restartable sequence at {section:#x}, which a jump would abort for ever")]
    InRseq {
        /// The window.
        site: CodeBytes,
        /// Start of the section.
        section: Svma,
    },
    /// The function is part of how a Go program begins.
    #[error(
        "{at:#x}: Go's runtime runs it before the thread has a goroutine, which is to be read there; its calls can be counted (trapline count)"
    )]
    BeforeGoroutine {
        /// The function.
        at: Svma,
    },
    /// The function's unwind information begins within a frame.
    #[error(
        "{at:#x}: its unwind tables say that it is not entered by a call, so the end of a call cannot be put together with its beginning; its calls can be counted (trapline count)"
    )]
    NotCalled {
        /// The function.
        at: Svma,
    },
    /// A function of Go's runtime that begins on one goroutine and ends on another.
    #[error(
        "{at:#x}: Go's runtime changes the goroutine in it, so the end of a call cannot be put together with its beginning; its calls can be counted (trapline count)"
    )]
    ChangesGoroutine {
        /// The function.
        at: Svma,
    },
    /// It is not known where this version of Go's runtime goes on, nor where its functions have what.
    #[error(
        "{at:#x}: this file's version of Go is not known (1.16 and later are, unless their tables were changed), so neither is where its runtime goes on; its calls may be counted (trapline count)"
    )]
    UnknownGo {
        /// The function.
        at: Svma,
    },
    /// The window of another probe is in the way.
    #[error("{site}: the window of the probe at {other:#x} reaches into it")]
    Overlap {
        /// The window.
        site: CodeBytes,
        /// The other probe's address.
        other: Svma,
    },
    /// It is not known whether an indirect jump leaves the function.
    #[error("exits unknown: the indirect jump {at} may leave the function")]
    ExitsUnknown {
        /// The jump.
        at: CodeBytes,
    },
    /// The function runs into bytes that are no instruction.
    #[error("exits unknown: {at} is not a known instruction")]
    ExitsUnreadable {
        /// The bytes.
        at: CodeBytes,
    },
    /// One exit cannot be patched, so durations would be wrong.
    #[error("the exit at {at:#x} cannot be patched: {why}")]
    ExitUnpatchable {
        /// The exit.
        at: Svma,
        /// The refusal of that exit.
        why: Box<Self>,
    },
    /// The function never returns, so there is no exit to count.
    #[error("{at:#x} has no exit to count: it never returns")]
    NoExit {
        /// The function.
        at: Svma,
    },
    /// The return address may not be replaced.
    #[error("{at:#x}: its return address cannot be replaced: {why}")]
    NoTrampoline {
        /// The function.
        at: Svma,
        /// The reason.
        why: NoTrampoline,
    },
    /// A consumer of returns would be called before the returned value is known.
    #[error("the exit {at} calls another function, and its return value is not there yet")]
    TailCall {
        /// The jump.
        at: CodeBytes,
    },
    /// Only a trap would do, and traps cannot be served.
    #[error("{site}: only a trap would reach it, and SIGTRAP is blocked or belongs to the program's runtime")]
    MustNotTrap {
        /// The instruction.
        site: CodeBytes,
    },
    /// A punned jump's target is occupied, and nothing else fits.
    #[error("{site}: every place that a jump could lead to is occupied")]
    NoRoom {
        /// The window.
        site: CodeBytes,
    },
    /// Its stub would lack code.
    #[error("{site}: there is no code of what its hits do: {why}")]
    NoCode {
        /// The window.
        site: CodeBytes,
        /// The reason.
        why: trapline_code::NoCode,
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
    /// arm64: the word cannot take a branch, or its function's returns are not all known.
    #[error("{why}")]
    Word {
        /// The reason.
        why: crate::aarch64::refusal::Refusal,
    },
    /// The request is not implemented for this processor.
    #[error("{at:#x}: not on arm64 yet: {what}")]
    Unsupported {
        /// The function or instruction.
        at: Svma,
        /// What is missing.
        what: &'static str,
    },
    /// A filter that the code for this request cannot evaluate; a hit must not be counted as if it had
    /// passed.
    #[error("{at:#x}: {what}")]
    Undecided {
        /// What is not decided there.
        at: Svma,
        /// What is not decided.
        what: &'static str,
    },
    /// A kernel uprobe would count there, but was not asked for.
    #[error("{why}; a kernel uprobe counts there, at microseconds a hit: --kernel-uprobes")]
    KernelOnly {
        /// Why no jump does.
        why: Box<Self>,
    },
    /// The request does not name a function, or a latency area.
    #[error("incomplete request for {at:#x}")]
    Incomplete {
        /// The address.
        at: Svma,
    },
}

/// Why a return address may not be replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoTrampoline {
    /// Returns are compared with a copy of their addresses.
    #[error("the process runs with a shadow stack; its exits can be patched instead (--ret=exits)")]
    ShadowStack,
    /// The runtime moves stacks, and looks up every return address in them.
    #[error(
        "Go moves its stacks and must know every return address; its exits can be patched instead (--ret=exits)"
    )]
    Go,
    /// No call leads here, so nothing returns.
    #[error("the program begins here, with no return address")]
    ProgramEntry,
    /// Neither a `ret` nor a jump to another function is found.
    #[error("no return is found in it, so what it is entered with may be no return address")]
    NoReturn,
    /// The entry is reached in another way than by a call.
    #[error("{0} leads back to its first instruction")]
    Looped(CodeBytes),
    /// The function reads its return address, as `setjmp` does.
    #[error("{0} reads the return address, or takes its address")]
    Named(CodeBytes),
}

impl Refusal {
    /// Whether the exits cannot be found or patched. Then the return address may be replaced instead.
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
            Self::BeforeGoroutine { .. } | Self::ChangesGoroutine { .. } => "no-goroutine",
            Self::NotCalled { .. } => "not-called",
            Self::UnknownGo { .. } => "unknown-go",
            Self::Overlap { .. } => "overlap",
            Self::ExitsUnknown { .. } | Self::ExitsUnreadable { .. } => "exits-unknown",
            Self::ExitUnpatchable { .. } => "exit-unpatchable",
            Self::NoExit { .. } => "no-exit",
            Self::NoTrampoline { .. } => "no-slot",
            Self::TailCall { .. } => "tail-call",
            Self::MustNotTrap { .. } => "must-not-trap",
            Self::NoCode { .. } => "no-code",
            Self::NoRoom { .. } | Self::NoSpace { .. } => "no-room",
            Self::Word { why } => why.kind(),
            Self::Unsupported { .. } => "not-on-arm64",
            Self::Undecided { .. } => "undecided",
            Self::KernelOnly { .. } => "kernel-only",
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
    /// Durations are requested, and there is no `LatencyInput` (or none with return trampolines).
    #[error("durations are requested, but there is no place for entry stamps or return trampolines")]
    NoStamps,
    /// A consumer is requested, and `ModuleInput::calls` has none for it.
    #[error("no consumer was given for probe {probe}")]
    NoCallee {
        /// The request's probe.
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
