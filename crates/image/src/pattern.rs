//! What a user writes to name functions and markers: patterns and whole probe specifications.
use trapline_record::Svma;

/// Which functions of a file are meant.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// A name, raw or demangled, with or without its parameter list.
    Exact(Exact),
    /// `*` any run of characters, `?` any one character.
    Glob(Glob),
    /// `/…/`, unanchored.
    Regex(regex::Regex),
    /// The function or instruction at this address, as the ELF file states it.
    Address(Svma),
}

/// A plain name and what may stand behind it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Exact {
    /// The name as typed.
    pub name: String,
    /// `@VERSION`, or `@@` for the default version.
    pub version: Option<Version>,
    /// `+off`, bytes from the function's start.
    pub offset: u64,
}

/// A symbol version asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Version {
    /// `sym@@` or `sym@@VERSION`: the default version, with that name if one is given.
    Default(Option<String>),
    /// `sym@VERSION`: that version, default or not.
    Named(String),
}

/// A shell-like pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Glob(pub String);

/// What is counted at a probe's place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ProbeKind {
    /// `uprobe`: entry, or the instruction at an offset.
    Entry,
    /// `uretprobe`: every exit.
    Return,
    /// `usdt`: a marker.
    Usdt,
}

/// One probe as typed: `uprobe:PATH:func+off`, `usdt:PATH:provider:name`, `lib:func`, `func`, `PATH:0xADDR`.
#[derive(Clone, Debug)]
pub struct ProbeSpec {
    /// Entry, return or marker.
    pub kind: ProbeKind,
    /// Path, short library name or program name; `None`: the program itself, then its libraries.
    pub file: Option<String>,
    /// For `usdt`: the provider, when given (a pattern too).
    pub provider: Option<Pattern>,
    /// The function, or the marker's name.
    pub func: Pattern,
    /// The text it was parsed from.
    pub text: String,
}

/// Why a probe specification makes no sense.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// Nothing to probe was named.
    #[error("`{0}` names no function")]
    NoFunction(String),
    /// A probe type of another tool that is not for user space functions.
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
        /// What the compiler said.
        reason: String,
    },
    /// The number after `+` or of an address is none.
    #[error("`{0}` is neither a decimal number nor a hexadecimal one with 0x")]
    Number(String),
    /// An offset at a return probe, a glob, or a marker.
    #[error("`{0}`: an offset can only follow one plain function name of a uprobe")]
    Offset(String),
}

impl std::str::FromStr for Pattern {
    type Err = SpecError;
    fn from_str(_text: &str) -> Result<Self, SpecError> {
        todo!()
    }
}
impl std::str::FromStr for ProbeSpec {
    type Err = SpecError;
    fn from_str(_text: &str) -> Result<Self, SpecError> {
        todo!()
    }
}
impl Pattern {
    /// Whether a text matches; an address matches nothing.
    #[must_use]
    pub fn matches(&self, _text: &str) -> bool {
        todo!()
    }
}
impl std::fmt::Display for Pattern {
    fn fmt(&self, _f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        todo!()
    }
}
