//! Functions, their names, and what selecting some of them gives.
//!
//! Plain values; the image that made them resolves their handles.

use crate::Source;
use trapline_record::Svma;

/// Index into [`crate::Image::functions`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FunctionIndex(pub u32);

/// What a function's symbol stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The function itself.
    Plain,
    /// The resolver of an IFUNC: called once by the loader; the implementation lies elsewhere
    /// (see [`crate::Image::pointer_slots`]).
    Ifunc,
}

/// One function: a range of code with a single known start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// First instruction.
    pub start: Svma,
    /// Bytes; never 0, never reaching into the next function.
    pub len: u64,
    /// Handle for [`crate::Image::names`].
    pub names: Names,
    /// What told its bounds.
    pub source: Source,
    /// Function or IFUNC resolver.
    pub kind: Kind,
    /// Pieces of it that the compiler put elsewhere (`foo.cold`), as (start, bytes).
    pub cold: Vec<(Svma, u64)>,
}

impl Function {
    /// Whether an address lies in its main body.
    #[must_use]
    pub fn contains(&self, at: Svma) -> bool {
        at >= self.start && at.0 - self.start.0 < self.len
    }
    /// First byte after its main body.
    #[must_use]
    pub fn end(&self) -> Svma {
        self.start + self.len
    }
}

/// Where a function takes its arguments and leaves what it returns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Convention {
    /// As the platform's C does (System V ABI, AAPCS64).
    C,
    /// In Go's registers (ABIInternal): x86-64 rax, rbx, rcx, rdi, rsi, r8, …; arm64 x0 and on.
    Go,
    /// On the stack, as Go's assembly does (ABI0), or it cannot be told.
    Unknown,
}

/// Which names of an image belong to a function; empty for functions known only from unwind entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Names {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Names {
    /// How many aliases.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize
    }
    /// Whether it has no name.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// One raw symbol name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name<'a> {
    /// As in the symbol table, mangled, without version.
    pub raw: &'a str,
    /// `VERSION` of `sym@VERSION`.
    pub version: Option<&'a str>,
    /// Whether that version is the default one (`sym@@VERSION`).
    pub default: bool,
}

/// A place that a pattern chose: a function, and how far into it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Selected {
    /// The function.
    pub function: FunctionIndex,
    /// Bytes from its start, wrapping (an address may lie in a cold piece before it); 0 unless `+off` or an inner
    /// address was given. Not checked to be an instruction's start.
    pub offset: u64,
}

/// Why a pattern chose nothing, with what may help.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NoMatch {
    /// Names like the wanted one, nearest first; demangled, without parameters.
    pub nearest: Vec<String>,
    /// The name is imported: this file only calls it through its PLT.
    pub imported: bool,
    /// The name exists as a function whose calls were inlined: how many inlined copies debug information lists.
    pub inlined: u32,
    /// The function exists but the offset is not below its length, which is this many bytes.
    pub beyond: Option<u64>,
    /// The file has no function at all that could be named (no symbols, no unwind entries).
    pub no_functions: bool,
}
