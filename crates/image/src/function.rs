//! Functions, their names, and the result of selecting some of them.
//!
//! These are plain values; the image that made them resolves their handles.

use trapline_record::Svma;

/// Index into [`crate::Image::functions`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FunctionIndex(pub u32);

/// Source of bounds and names, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Source {
    /// `.symtab`.
    Symtab,
    /// `.symtab` of a separate debug file.
    DebugFile,
    /// `.dynsym`.
    Dynsym,
    /// `.symtab` inside `.gnu_debugdata`.
    DebugData,
    /// Go's `.gopclntab`.
    GoPclntab,
    /// An unwind entry that no symbol covers; the function has no name.
    Fde,
}

/// What the symbol of a function denotes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FunctionKind {
    /// The function itself.
    Plain,
    /// The resolver of an IFUNC: the loader calls it once; the implementation is elsewhere (see
    /// [`crate::Image::pointer_words`]).
    Ifunc,
}

/// One function: a range of code with a single known start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// First instruction.
    pub start: Svma,
    /// Length in bytes; never 0, and never reaching into the next function.
    pub len: u64,
    /// Handle for [`crate::Image::names`].
    pub names: Names,
    /// Source of its bounds.
    pub source: Source,
    /// Function or IFUNC resolver.
    pub kind: FunctionKind,
    /// Pieces of it that the compiler put elsewhere (`foo.cold`), as (start, bytes).
    pub cold: Vec<(Svma, u64)>,
}

impl Function {
    /// Whether an address is in its main body.
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

/// Where a function takes its arguments and returns its value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Convention {
    /// As the platform's C functions do (System V ABI, AAPCS64).
    C,
    /// In Go's registers (ABIInternal): x86-64 rax, rbx, rcx, rdi, rsi, r8, …; arm64 x0 and on.
    Go,
    /// On the stack, as Go's assembly does (ABI0), or not known.
    Unknown,
}

/// The names of a function in an image; empty for functions known only from unwind entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Names {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Names {
    /// Number of names.
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

/// A place selected by a pattern: a function, and an offset into it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Selected {
    /// The function.
    pub function: FunctionIndex,
    /// Offset in bytes from its start, wrapping (an address may be in a cold piece before it); 0 unless
    /// `+off` or an inner address was given. It is not checked to be the start of an instruction.
    pub offset: u64,
}

/// Why a pattern selects nothing, with hints.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NoMatch {
    /// Names similar to the wanted one, nearest first; demangled, without parameters.
    pub nearest: Vec<String>,
    /// The name is imported: this file only calls it through its PLT.
    pub imported: bool,
    /// Number of inlined copies in the debug information, if the name is that of a function with inlined
    /// calls.
    pub inlined: u32,
    /// The function exists but the offset is not less than its length, which is this number of bytes.
    pub beyond: Option<u64>,
    /// The file has no function that could be named (no symbols, no unwind entries).
    pub no_functions: bool,
    /// A source line was wanted, and the file has no debug information.
    pub no_lines: bool,
}
