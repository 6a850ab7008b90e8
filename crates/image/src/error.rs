//! Why a file cannot be read as a program, or a probe's specification is invalid. Each error contains the
//! numbers or the text that show it.

/// The file is not a 64-bit little-endian ELF program or library for a supported processor, or parts of it
/// are outside the file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The first four bytes are not `\x7fELF`.
    #[error("not an ELF file: it begins with {0:02x?}")]
    NotElf(Vec<u8>),
    /// `EI_CLASS` says 32-bit.
    #[error("a 32-bit ELF file (class {0}); only 64-bit ones can be probed")]
    Not64(u8),
    /// `EI_DATA` says big-endian, or is invalid.
    #[error("not a little-endian ELF file (data encoding {0})")]
    NotLittleEndian(u8),
    /// `e_machine` is neither x86-64 (62) nor aarch64 (183).
    #[error("ELF file for machine {0}; expected x86-64 (62) or aarch64 (183)")]
    Machine(u16),
    /// `e_type` is neither `ET_EXEC` (2) nor `ET_DYN` (3).
    #[error("ELF file of type {0} is neither a program (2) nor a library or PIE (3)")]
    Type(u16),
    /// A table or segment reaches beyond the end of the file.
    #[error("truncated: {what} needs {needed:#x} bytes, the file has {have:#x}")]
    Truncated {
        /// Name of that part of the file.
        what: &'static str,
        /// End of that part, in bytes from the file's start.
        needed: u64,
        /// Length of the file in bytes.
        have: u64,
    },
    /// No executable `PT_LOAD`.
    #[error("no executable segment among {0} program headers")]
    NoCode(usize),
    /// A table has invalid content.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

/// Why a probe specification is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// It names nothing to probe.
    #[error("`{0}` names no function")]
    NoFunction(String),
    /// A probe type that does not apply to functions of programs.
    #[error("`{kind}:` probes are not supported; known are uprobe (u), uretprobe (ur) and usdt (U)")]
    Kind {
        /// The word before the first colon.
        kind: String,
    },
    /// The regular expression does not compile.
    #[error("`/{pattern}/` is no regular expression: {reason}")]
    Regex {
        /// The pattern between the slashes.
        pattern: String,
        /// The compiler's message.
        reason: String,
    },
    /// The number after `+`, or of an address, is invalid.
    #[error("`{0}` is neither a decimal number nor a hexadecimal one with 0x")]
    Number(String),
    /// An offset at a return probe, a glob, or a USDT probe.
    #[error("`{0}`: an offset can only follow one plain function name of a uprobe")]
    Offset(String),
    /// A source line at a return probe or a USDT probe.
    #[error("`{0}`: only a uprobe can name a source line")]
    Line(String),
    /// More parts than `provider:name` after a USDT probe's file.
    #[error("`{0}`: expected usdt:PATH:provider:name")]
    Parts(String),
}
