//! What can be in the way of probing ourselves.
//!
//! The kernel's table for its own probes (`uprobe_register`, `attach_uprobe_multi`) with its numbers: see [`Error::errno`].

use std::path::PathBuf;

use trapline_patch::PatchError;

/// Why nothing was registered, or why unregistering could not be waited for. A batch is registered whole or not at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An empty batch.
    #[error("nothing to register")]
    Empty,
    /// More probes than the engine has room for.
    #[error("too many probes: {asked} more, {have} there already, {most} at most")]
    TooMany {
        /// Sites asked for.
        asked: usize,
        /// Sites that were ever registered.
        have: usize,
        /// The most.
        most: usize,
    },
    /// A consumer without a handler.
    #[error("a consumer without an entry or return handler")]
    NoHandler,
    /// The file cannot be opened, or is no program or library of this machine.
    #[error("{}: {why}", path.display())]
    File {
        /// The path as given.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The offset lies behind the file's end.
    #[error("{}: offset {offset:#x} is behind the file's end at {len:#x}", path.display())]
    BehindEnd {
        /// The file.
        path: PathBuf,
        /// As given.
        offset: u64,
        /// Bytes of the file.
        len: u64,
    },
    /// The offset is not in the file's code.
    #[error("{}: offset {offset:#x} is not in the file's code", path.display())]
    NotCode {
        /// The file.
        path: PathBuf,
        /// As given.
        offset: u64,
    },
    /// A return handler somewhere else than at a function's start.
    #[error("{}: offset {offset:#x} is no function's start, so there is no return to wait for", path.display())]
    NotAnEntry {
        /// The file.
        path: PathBuf,
        /// As given.
        offset: u64,
    },
    /// One site cannot be patched. `why` names address, bytes and rule.
    #[error("{}, offset {offset:#x}: {why}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// As given.
        offset: u64,
        /// A stable word for the rule.
        kind: &'static str,
        /// In words.
        why: String,
    },
    /// The CPU cannot save vector registers in the compacted format.
    #[error("this CPU has no XSAVEC: vector registers could not be saved around consumers")]
    NoExtendedState,
    /// The kernel has no expedited membarrier, or no memory is left.
    #[error("the engine's memory cannot be made: no expedited membarrier, or no address space left")]
    NoEngine,
    /// Called from a handler, which would wait for itself.
    #[error("a handler may not register or unregister")]
    InsideHandler,
    /// The process as a whole: another tracer, memory that cannot be written.
    #[error(transparent)]
    Patch(#[from] PatchError),
}

impl Error {
    /// What the kernel answers in the same case.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::TooMany { .. } => libc::E2BIG,
            Self::File { .. } => libc::EBADF,
            Self::Empty
            | Self::NoHandler
            | Self::BehindEnd { .. }
            | Self::NotCode { .. }
            | Self::NotAnEntry { .. } => libc::EINVAL,
            Self::Refused { .. } => libc::EOPNOTSUPP,
            Self::NoExtendedState => libc::ENODEV,
            Self::NoEngine => libc::ENOMEM,
            Self::InsideHandler => libc::EDEADLK,
            Self::Patch(PatchError::InUse { .. } | PatchError::LeftBehind { .. }) => libc::EBUSY,
            Self::Patch(_) => libc::EPERM,
        }
    }
}
