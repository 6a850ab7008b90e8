//! Why a request is not in place, as values.

use std::fmt;

use trapline_plan::Refusal;
use trapline_record::RemoteAddr;

/// Why a request is not in place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// The planner refused.
    Plan(Refusal),
    /// The planner refused, for a word on arm64.
    Word(trapline_plan::aarch64::Refusal),
    /// The process holds other bytes than the file.
    Differs {
        /// Address of the first byte.
        addr: RemoteAddr,
        /// The file's bytes.
        file: Vec<u8>,
        /// The process' bytes.
        found: Vec<u8>,
    },
    /// A patch of an earlier batch of ours covers these bytes, or relies on them.
    Held {
        /// Address of the patch.
        addr: RemoteAddr,
    },
    /// The file is not mapped there (any more), or not at that offset.
    NotMapped {
        /// Address of the patch.
        addr: RemoteAddr,
    },
    /// Guard traps cannot be served, and a thread stands, or a saved context points, between two instructions
    /// that the patch would cover.
    SavedContext {
        /// The boundary at which it stands or points.
        addr: RemoteAddr,
        /// Why traps cannot be served.
        because: NoTraps,
    },
    /// Guard traps cannot be served, and no single write covers the patch.
    CrossesLine {
        /// Address of the patch.
        addr: RemoteAddr,
        /// Why traps cannot be served.
        because: NoTraps,
    },
    /// Our own process cannot stop its threads. A window for which no write is known to be seen whole changes
    /// through traps, and traps cannot be served.
    Unproven {
        /// Address of the patch.
        addr: RemoteAddr,
        /// Why traps cannot be served.
        because: NoTraps,
    },
    /// Our own process cannot stop its threads. In a window with an interior boundary, a thread that stands
    /// there needs a trap, and traps cannot be served.
    NeedsTraps {
        /// Address of the patch.
        addr: RemoteAddr,
        /// Why traps cannot be served.
        because: NoTraps,
    },
    /// The module needs more separate code regions than it may have.
    TooManyRegions {
        /// Address of the patch.
        addr: RemoteAddr,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(why) => why.fmt(f),
            Self::Word(why) => why.fmt(f),
            Self::Differs { addr, file, found } => {
                write!(f, "{addr}: bytes differ from the file: ")?;
                write!(f, "{found:02x?} in memory, {file:02x?} in the file; ")?;
                match found.first() {
                    Some(0xe9 | 0xe8 | 0xeb | 0xff) => {
                        write!(f, "already patched with a jump by another tool, or another trapline?")
                    }
                    Some(0xcc) => write!(f, "a breakpoint or kernel uprobe of another tool?"),
                    _ => write!(f, "already patched by another tool?"),
                }
            }
            Self::Held { addr } => write!(f, "{addr}: an earlier patch of ours needs these bytes"),
            Self::NotMapped { addr } => write!(f, "{addr}: the file is no longer mapped there"),
            Self::SavedContext { addr, because } => {
                write!(f, "{addr}: a thread was interrupted right there, and {because}")
            }
            Self::CrossesLine { addr, because } => {
                write!(f, "{addr}: the patch crosses a cache line, which takes a trap, and {because}")
            }
            Self::NeedsTraps { addr, because } => {
                write!(f, "{addr}: a thread may stand inside the patch, which takes a trap, and {because}")
            }
            Self::Unproven { addr, because } => {
                write!(
                    f,
                    "{addr}: of this CPU it is not proven that a patch is seen whole, so it takes a trap, and {because}"
                )
            }
            Self::TooManyRegions { addr } => {
                write!(
                    f,
                    "{addr}: its module would take more than {} separate code regions",
                    trapline_plan::layout::SMALL_REGIONS
                )
            }
        }
    }
}

/// Why guard traps cannot be served in a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoTraps {
    /// A thread blocks the signal.
    Blocked {
        /// The thread.
        tid: u32,
    },
    /// The program's runtime owns the signal.
    Owned,
    /// The program has replaced our action.
    Taken,
}

impl fmt::Display for NoTraps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocked { tid } => write!(f, "SIGTRAP is blocked in thread {tid}"),
            Self::Owned => write!(f, "SIGTRAP belongs to the program's runtime"),
            Self::Taken => write!(f, "the program has set an action of its own for SIGTRAP or SIGILL"),
        }
    }
}
