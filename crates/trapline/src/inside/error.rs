//! Errors of probes in the own process.
//!
//! They follow the kernel's table for its own probes (`uprobe_register`, `attach_uprobe_multi`), with its
//! numbers: see [`Error::errno`].

use std::io;
use std::path::PathBuf;

use trapline_patch::PatchError;
use trapline_runtime::pool::BadRegion;
use trapline_tracee::TargetError;

/// Why nothing was registered, or why unregistering did not wait. A batch is registered whole or not at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The batch is empty.
    #[error("nothing to register")]
    Empty,
    /// More probes than the engine has room for.
    #[error("too many probes: {asked} more, {have} there already, {most} at most")]
    TooMany {
        /// Sites requested.
        asked: usize,
        /// Sites that were ever registered.
        have: usize,
        /// Largest possible number.
        most: usize,
    },
    /// A consumer without a handler.
    #[error("a consumer without an entry or return handler")]
    NoHandler,
    /// The file cannot be opened or inspected.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The path as given.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file was written to since it was first registered, so what is known of its code may be wrong.
    #[error("{} was changed since it was looked at; a new version belongs into a new file", path.display())]
    Changed {
        /// The path as given.
        path: PathBuf,
    },
    /// The file is no program or library for this machine.
    #[error("{}: {why}", path.display())]
    File {
        /// The path as given.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Several of a file's functions have the name.
    #[error("{}: {name} is the name of {} functions: {}; name its version, or BASENAME+0x… of one", path.display(), of.len(), of.join(", "))]
    Ambiguous {
        /// The file.
        path: PathBuf,
        /// The name as given.
        name: String,
        /// Each of them: its version, if it has one, and its address.
        of: Vec<String>,
    },
    /// The offset is beyond the file's end.
    #[error("{}: offset {offset:#x} is behind the file's end at {len:#x}", path.display())]
    BehindEnd {
        /// The file.
        path: PathBuf,
        /// The offset as given.
        offset: u64,
        /// Length of the file in bytes.
        len: u64,
    },
    /// The offset is not in the file's code.
    #[error("{}: offset {offset:#x} is not in the file's code", path.display())]
    NotCode {
        /// The file.
        path: PathBuf,
        /// The offset as given.
        offset: u64,
    },
    /// The offset is inside an instruction.
    #[error("{}: offset {offset:#x} is inside the instruction at {begins:#x}", path.display())]
    InsideInstruction {
        /// The file.
        path: PathBuf,
        /// The offset as given.
        offset: u64,
        /// Offset of the instruction.
        begins: u64,
    },
    /// The file itself has a breakpoint there.
    #[error("{}: the instruction at offset {offset:#x} is a breakpoint of the file's own", path.display())]
    Breakpoint {
        /// The file.
        path: PathBuf,
        /// The offset as given.
        offset: u64,
    },
    /// The code in memory is not the file's: another tool patched it, or the file was changed since it was
    /// mapped.
    #[error("{}, offset {offset:#x}: {why}", path.display())]
    Differs {
        /// The file.
        path: PathBuf,
        /// The offset as given.
        offset: u64,
        /// Address and bytes.
        why: String,
    },
    /// A return handler at another place than a function's start.
    #[error("{}: offset {offset:#x} is no function's start, so there is no return to wait for", path.display())]
    NotAnEntry {
        /// The file.
        path: PathBuf,
        /// The offset as given.
        offset: u64,
    },
    /// The semaphore's offset is not possible.
    #[error("{}: offset {semaphore:#x} is no semaphore: {why}", path.display())]
    BadSemaphore {
        /// The file.
        path: PathBuf,
        /// The offset as given.
        semaphore: u64,
        /// Why.
        why: &'static str,
    },
    /// The site is registered with another semaphore, or with none.
    #[error(
        "{}, offset {offset:#x}: registered with {}, so not with {}",
        path.display(),
        semaphore(*have),
        semaphore(*asked)
    )]
    OtherSemaphore {
        /// The file.
        path: PathBuf,
        /// Offset of the site.
        offset: u64,
        /// Semaphore that its consumers named before.
        have: Option<u64>,
        /// Semaphore as given.
        asked: Option<u64>,
    },
    /// One site cannot be patched. `why` names address, bytes and rule.
    #[error("{}, offset {offset:#x}: {why}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The offset as given.
        offset: u64,
        /// A stable word for the rule.
        kind: &'static str,
        /// In words.
        why: String,
    },
    /// There is no room for so many calls in flight: `maxactive` is 0 or absurdly large, or memory is short.
    #[error("{}, offset {offset:#x}: {why}", path.display())]
    Instances {
        /// The file.
        path: PathBuf,
        /// The offset as given.
        offset: u64,
        /// The reason, with the number.
        why: BadRegion,
    },
    /// Return addresses cannot be replaced in this process.
    #[error("{}, offset {offset:#x}: return addresses cannot be replaced here: {why}", path.display())]
    NoTrampolines {
        /// The file.
        path: PathBuf,
        /// The offset as given.
        offset: u64,
        /// In words.
        why: String,
    },
    /// The CPU cannot save vector registers in the compacted format.
    #[error("this CPU has no XSAVEC: vector registers could not be saved around consumers")]
    NoExtendedState,
    /// The kernel has no expedited membarrier, or no memory is left.
    #[error("the engine's memory cannot be made: no expedited membarrier, or no address space left")]
    NoEngine,
    /// The system refuses a signal handler.
    #[error(transparent)]
    Signals(#[from] trapline_runtime::native::InstallError),
    /// The program has installed a SIGTRAP handler over the engine's: traps would not be served.
    #[error("the program has installed a handler for SIGTRAP over the engine's, so no trap would be served")]
    TrapsTaken,
    /// The way to notice mappings must be chosen before anything is registered.
    #[error(
        "this process learns of its mappings already: the way is to be chosen before the first registration"
    )]
    NoticesAlready,
    /// A handler called this, and would wait for itself.
    #[error("a handler may not register or unregister")]
    InsideHandler,
    /// Code cannot be written at all: neither through /proc/self/mem, nor by making its pages writable for a
    /// moment.
    #[error(transparent)]
    Locked(TargetError),
    /// The process as a whole cannot be patched, because of another tracer or for want of memory.
    #[error(transparent)]
    Patch(PatchError),
}

impl From<PatchError> for Error {
    fn from(error: PatchError) -> Self {
        match error {
            PatchError::Target(error @ TargetError::Locked { .. }) => Self::Locked(error),
            other => Self::Patch(other),
        }
    }
}

fn semaphore(offset: Option<u64>) -> String {
    offset.map_or_else(|| "no semaphore".into(), |offset| format!("the semaphore at {offset:#x}"))
}

impl Error {
    /// What the kernel returns in the same case.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::TooMany { .. } => libc::E2BIG,
            Self::File { .. } => libc::EBADF,
            Self::Unreadable { source, .. } => match source.raw_os_error() {
                Some(errno) => errno,
                None => libc::EIO,
            },
            Self::Changed { .. } => libc::ESTALE,
            Self::Empty
            | Self::NoHandler
            | Self::Ambiguous { .. }
            | Self::BehindEnd { .. }
            | Self::NotCode { .. }
            | Self::InsideInstruction { .. }
            | Self::BadSemaphore { .. }
            | Self::OtherSemaphore { .. }
            | Self::NotAnEntry { .. } => libc::EINVAL,
            Self::Breakpoint { .. }
            | Self::Differs { .. }
            | Self::Refused { .. }
            | Self::NoTrampolines { .. } => libc::EOPNOTSUPP,
            Self::NoExtendedState => libc::ENODEV,
            Self::NoEngine | Self::Instances { why: BadRegion::OutOfMemory(_), .. } => libc::ENOMEM,
            Self::Instances { .. } => libc::EINVAL,
            Self::InsideHandler => libc::EDEADLK,
            Self::NoticesAlready => libc::EALREADY,
            Self::TrapsTaken | Self::Patch(PatchError::InUse { .. } | PatchError::LeftBehind { .. }) => {
                libc::EBUSY
            }
            Self::Signals(_) | Self::Locked(_) | Self::Patch(_) => libc::EPERM,
        }
    }
}
