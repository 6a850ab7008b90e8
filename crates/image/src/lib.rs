//! Files as values: what a program's or library's file says about its code.
#![forbid(unsafe_code)]

mod bytes;
mod error;
mod pattern;

pub use bytes::{Bytes, DebugFile, DebugFiles, NoDebugFiles};
pub use error::ImageError;
pub use pattern::{Exact, Glob, Pattern, ProbeKind, ProbeSpec, SpecError, Version};
use trapline_record::{FileOffset, Svma};

/// Index into [`Image::functions`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FunctionIndex(pub u32);

/// `e_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageKind {
    /// Loaded where it says (`ET_EXEC`, bias 0).
    Exec,
    /// Position independent: PIE or library.
    Dyn,
}

/// `e_machine`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Machine {
    /// 62
    X86_64,
    /// 183
    Aarch64,
}

/// A `PT_LOAD`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Stated address of its first byte.
    pub svma: Svma,
    /// Where its bytes begin in the file.
    pub offset: FileOffset,
    /// Bytes in the file.
    pub filesz: u64,
    /// Bytes in memory.
    pub memsz: u64,
    /// `PF_X` (1), `PF_W` (2), `PF_R` (4).
    pub flags: u32,
}

/// Where a function's bounds came from; the first that knew it, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Source {
    /// `.symtab`
    Symtab,
    /// `.symtab` of a separate debug file
    DebugFile,
    /// `.dynsym`
    Dynsym,
    /// `.symtab` inside `.gnu_debugdata`
    DebugData,
    /// Go's `.gopclntab`
    GoPclntab,
    /// An unwind entry that no symbol covers; the function has no name
    Fde,
}

/// What a function's symbol stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The function itself.
    Plain,
    /// The resolver of an IFUNC: called once by the loader; the implementation lies elsewhere
    /// (see [`Image::pointer_slots`]).
    Ifunc,
}

/// One function: a range of code with a single known start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// First instruction.
    pub start: Svma,
    /// Bytes; never 0, never reaching into the next function.
    pub len: u64,
    /// Handle for [`Image::names`].
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

/// Which names of an image belong to a function; empty for functions known only from unwind entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Names {
    pub(crate) first: u32,
    pub(crate) count: u32,
}
impl Names {
    /// How many aliases.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count as usize
    }
    /// Whether it has no name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
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
    /// Bytes from its start; 0 unless `+off` or an inner address was given. Not checked to be an instruction's start.
    pub offset: u64,
}

/// Why a pattern chose nothing, with what may help.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NoMatch {
    /// Names like the wanted one, nearest first; demangled where that is how it was asked for.
    pub nearest: Vec<String>,
    /// The name is imported: this file only calls it through its PLT.
    pub imported: bool,
    /// The name exists as a function whose every call was inlined: how many inlined copies debug information lists.
    pub inlined: u32,
    /// The function exists but the offset is not below its length in bytes.
    pub beyond: Option<u64>,
    /// The file has no function at all that could be named (no symbols, no unwind entries).
    pub no_functions: bool,
}

/// A USDT marker, from `.note.stapsdt`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Usdt {
    /// Provider.
    pub provider: String,
    /// Name.
    pub name: String,
    /// The nop, already corrected for prelink by `.stapsdt.base`.
    pub location: Svma,
    /// The base that the note states.
    pub base: Svma,
    /// A `u16` that is non-zero while someone traces.
    pub semaphore: Option<Svma>,
    /// Argument descriptions, as in the note.
    pub args: String,
}

/// A critical section of restartable sequences (`__rseq_cs`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RseqSection {
    /// First byte.
    pub start: Svma,
    /// Bytes up to the commit's end.
    pub len: u64,
    /// Where the kernel sends an aborted one.
    pub abort: Svma,
}

/// A parsed file.
#[derive(Debug)]
pub struct Image {}

impl Image {
    /// Reads a file's tables; asks `debug` for a separate debug file when the file has no `.symtab`.
    ///
    /// # Errors
    /// [`ImageError`] when the file is no 64-bit little-endian ELF program, or its program headers make no sense.
    /// Broken optional tables (symbols, unwind, notes) are left out instead.
    pub fn parse(_bytes: Bytes, _debug: &mut dyn DebugFiles) -> Result<Self, ImageError> {
        todo!()
    }
    /// Exec or Dyn.
    pub fn kind(&self) -> ImageKind {
        todo!()
    }
    /// Machine.
    pub fn machine(&self) -> Machine {
        todo!()
    }
    /// All `PT_LOAD`s in file order.
    pub fn loads(&self) -> &[Segment] {
        todo!()
    }
    /// The executable `PT_LOAD`s.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.loads().iter().filter(|s| s.flags & 1 != 0)
    }
    /// File offset of a loaded byte.
    pub fn offset_of(&self, _at: Svma) -> Option<FileOffset> {
        todo!()
    }
    /// Stated address of a file offset, executable segments first.
    pub fn svma_of(&self, _at: FileOffset) -> Option<Svma> {
        todo!()
    }
    /// Bytes of executable segments.
    pub fn text(&self, _at: Svma, _len: u64) -> Option<&[u8]> {
        todo!()
    }
    /// Bytes of segments that are not writable (jump tables); also RELRO parts.
    pub fn rodata(&self, _at: Svma, _len: u64) -> Option<&[u8]> {
        todo!()
    }
    /// Ranges (start, bytes) of executable sections, or of executable segments where there are no sections; sorted.
    pub fn text_ranges(&self) -> &[(Svma, u64)] {
        todo!()
    }
    /// All functions, sorted by start, not overlapping.
    pub fn functions(&self) -> &[Function] {
        todo!()
    }
    /// One function.
    pub fn function(&self, _index: FunctionIndex) -> &Function {
        todo!()
    }
    /// The function whose main body or cold piece holds an address.
    pub fn function_at(&self, _at: Svma) -> Option<FunctionIndex> {
        todo!()
    }
    /// Pieces of functions that unwind entries describe but that are no function of their own (their first row is
    /// not a function's entry state) and whose owner no symbol tells: (start, bytes), sorted. A jump from a function
    /// into one of these stays in the function.
    pub fn fragments(&self) -> &[(Svma, u64)] {
        todo!()
    }
    /// A function's names, primary first.
    pub fn names(&self, _function: &Function) -> impl Iterator<Item = Name<'_>> {
        std::iter::empty()
    }
    /// Demangled primary name with parameters; `basename+0x…` for a function without names.
    pub fn display_name(&self, _function: &Function, _basename: &str) -> String {
        todo!()
    }
    /// Functions that a pattern means; `basename` is the file's own name, for `BASENAME+0x…`.
    ///
    /// # Errors
    /// [`NoMatch`] when there is none.
    pub fn select(&self, _pattern: &Pattern, _basename: &str) -> Result<Vec<Selected>, NoMatch> {
        todo!()
    }
    /// Undefined function symbols: what this file calls through its PLT or GOT.
    pub fn imported(&self) -> impl Iterator<Item = Name<'_>> {
        std::iter::empty()
    }
    /// USDT markers, in file order.
    pub fn usdt(&self) -> &[Usdt] {
        todo!()
    }
    /// Whether it is a Go program.
    pub fn is_go(&self) -> bool {
        todo!()
    }
    /// Whether it has no interpreter and no needed library.
    pub fn is_static(&self) -> bool {
        todo!()
    }
    /// `DT_NEEDED`.
    pub fn needed(&self) -> &[String] {
        todo!()
    }
    /// `DT_SONAME`.
    pub fn soname(&self) -> Option<&str> {
        todo!()
    }
    /// `PT_INTERP`.
    pub fn interp(&self) -> Option<&str> {
        todo!()
    }
    /// Build id, possibly empty.
    pub fn build_id(&self) -> &[u8] {
        todo!()
    }
    /// `e_entry`.
    pub fn entry(&self) -> Svma {
        todo!()
    }
    /// Critical sections of restartable sequences, sorted.
    pub fn rseq_sections(&self) -> &[RseqSection] {
        todo!()
    }
    /// Addresses of words that the loader fills with the implementation of an IFUNC: IRELATIVE slots whose resolver
    /// is `resolver`, GOT and PLT slots of symbols with one of `names`.
    pub fn pointer_slots(&self, _name: &str, _resolver: Svma) -> Vec<Svma> {
        todo!()
    }
    /// Code addresses that something other than a direct branch may reach: relocated pointers, init arrays, symbols
    /// inside functions, landing pads. Sorted, without duplicates. Jump tables are not in it (see [`Image::rodata`]).
    pub fn code_targets(&self) -> &[Svma] {
        todo!()
    }
}
