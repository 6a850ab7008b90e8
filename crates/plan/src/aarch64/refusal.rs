//! Why a word gets no patch. Each reason names address, word and rule (SAFE-5).
//!
//! x86-64's reasons are those of the crate (`crate::refusal`); these are for programs that probe themselves, too,
//! where a single word is judged without a plan.

use trapline_code::NoCode;
use trapline_code::aarch64::asm::NoWords;
use trapline_insn::aarch64::Immovable;

/// Why there is no patch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The function has no such word, or consists of landing pads.
    #[error("{start:#x}: the function has no word number {index}")]
    NoWord {
        /// Start of the function.
        start: u64,
        /// The requested index.
        index: usize,
    },
    /// No probe may be on this word, or its copy would not work where the stub lies.
    #[error("{at:#x} [{word:08x}]: {why}")]
    Immovable {
        /// Address of the word.
        at: u64,
        /// The word.
        word: u32,
        /// The reason.
        why: Immovable,
    },
    /// The word is between an exclusive load and its store.
    #[error(
        "{at:#x} [{word:08x}]: between an exclusive load and its store, which a hit would make fail for ever"
    )]
    Exclusive {
        /// Address of the word.
        at: u64,
        /// The word.
        word: u32,
    },
    /// A branch must land there, and a `b` is no landing pad.
    #[error("{at:#x} [{word:08x}]: a landing pad; the probe belongs on the word behind it, or is a trap")]
    LandingPad {
        /// Address of the word.
        at: u64,
        /// The word.
        word: u32,
    },
    /// No `b` reaches the stub, or the island.
    #[error("{at:#x}: a branch does not reach the stub at {stub:#x}")]
    OutOfReach {
        /// Address of the word.
        at: u64,
        /// Address of the stub.
        stub: u64,
    },
    /// Not all of its returns are its own.
    #[error(
        "{at:#x} [{word:08x}]: leaves the function by a jump to {to:#x}, so not all of its returns can be seen"
    )]
    LeavesByJump {
        /// Address of the jump.
        at: u64,
        /// The word.
        word: u32,
        /// Where it leads.
        to: u64,
    },
    /// Not all of its returns are known.
    #[error("{at:#x} [{word:08x}]: a jump through a register, so not all of its returns are known")]
    LeavesAnywhere {
        /// Address of the jump.
        at: u64,
        /// The word.
        word: u32,
    },
    /// It runs on into what lies behind it.
    #[error("{at:#x} [{word:08x}]: the function runs on into the next one, which returns in its place")]
    RunsOn {
        /// Address of its last word.
        at: u64,
        /// The word.
        word: u32,
    },
    /// No return can be reached.
    #[error("{start:#x}: the function never returns")]
    NeverReturns {
        /// Start of the function.
        start: u64,
    },
    /// The return address cannot be replaced, as in `setjmp` and `vfork`.
    #[error(
        "{at:#x} [{word:08x}]: {what}, so the function's return address cannot be replaced; its exits can be patched instead"
    )]
    NoTrampoline {
        /// The instruction.
        at: u64,
        /// The word.
        word: u32,
        /// What it does.
        what: &'static str,
    },
    /// The function is not entered with a return address.
    #[error("{start:#x}: its return address cannot be replaced: {what}")]
    NoReturnAddress {
        /// Start of the function.
        start: u64,
        /// The reason.
        what: &'static str,
    },
    /// Its stub would lack code.
    #[error("{at:#x}: there is no code of what its hits do: {why}")]
    NoCode {
        /// Address of the word.
        at: u64,
        /// The reason.
        why: NoCode,
    },
    /// There is no room for a copy from which a branch leads back.
    #[error("{at:#x}: within 128 MiB of it there is no room for a copy")]
    NoRoom {
        /// Address of the word.
        at: u64,
    },
}

impl Refusal {
    /// Why the word at `at` gets no stub at `stub`.
    pub(super) const fn of(why: NoWords, at: u64, stub: u64) -> Self {
        match why {
            NoWords::Far => Self::OutOfReach { at, stub },
            NoWords::NoCode(why) => Self::NoCode { at, why },
        }
    }
    /// A stable word for the rule.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NoWord { .. } => "no-instruction",
            Self::Immovable { .. } => "immovable",
            Self::Exclusive { .. } => "exclusive",
            Self::LandingPad { .. } => "landing-pad",
            Self::OutOfReach { .. } => "out-of-reach",
            Self::LeavesByJump { .. } => "tail-call",
            Self::LeavesAnywhere { .. } => "exits-unknown",
            Self::RunsOn { .. } | Self::NeverReturns { .. } => "no-exit",
            Self::NoTrampoline { .. } | Self::NoReturnAddress { .. } => "no-slot",
            Self::NoCode { .. } => "no-code",
            Self::NoRoom { .. } => "no-room",
        }
    }
}
