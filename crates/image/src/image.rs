//! One parsed file: tables that are always needed are read at once, the others when they are first used.
//!
//! In: bytes. Out: answers about the file. [`Image::parse`] reads symbols, unwind entries and functions;
//! relocations, code targets and demangled names are read later.
//! Does not: change after it was made.

use crate::data::{self, DataSymbols};
use crate::dynamic::{Dynamic, FilledWords, Reloc};
use crate::elf::Elf;
use crate::function::Convention;
use crate::functions::{self, Functions};
use crate::gopclntab::{self, GoFunction, Passes};
use crate::locals::CodePlace;
use crate::sources::{dynamic_table, find_debug, go_symbols, own_symbols, packed_symbols, symtab};
use crate::split::Split;
use crate::symbols::{Import, Pool, SymbolTable};
use crate::unwind::{self, Fde};
use crate::{
    Btf, Bytes, DataSymbol, DebugFiles, DebugInfo, Function, FunctionIndex, ImageError, ImageKind, Machine,
    MarkArgument, Name, RseqSection, Segment, Source, SplitFiles, Usdt, debugdata, demangle, dynamic,
    inlined, notes, operands, targets,
};
use object::elf as constants;
use std::sync::{Arc, OnceLock};
use trapline_record::{FileOffset, Svma};

/// A parsed file.
#[derive(Debug)]
pub struct Image {
    elf: Elf,
    debug: Option<Elf>,
    split: Option<Arc<dyn SplitFiles>>,
    dynamic: Dynamic,
    interp: Option<String>,
    build_id: Vec<u8>,
    text: Vec<(Svma, u64)>,
    pool: Pool,
    imports: Vec<Import>,
    functions: Functions,
    fdes: Vec<Fde>,
    /// Go linked the file.
    by_go: bool,
    go: Vec<GoFunction>,
    made_up: OnceLock<Vec<u64>>,
    unknown_go: OnceLock<bool>,
    go_g: Option<i64>,
    usdt: OnceLock<Vec<Usdt>>,
    relocs: OnceLock<Vec<Reloc>>,
    rseq: OnceLock<Vec<RseqSection>>,
    readers: OnceLock<Vec<Svma>>,
    targets: OnceLock<Vec<Svma>>,
    landings: OnceLock<Vec<Svma>>,
}

impl Image {
    /// Reads a file's tables. Uses `debug` to find a separate debug file when the file has no `.symtab`.
    ///
    /// # Errors
    /// [`ImageError`] when the file is not a 64-bit little-endian ELF program, or is cut off. Broken optional
    /// tables (symbols, unwind entries, notes) are left out instead.
    pub fn parse(bytes: impl Into<Bytes>, debug: &mut dyn DebugFiles) -> Result<Self, ImageError> {
        let elf = Elf::parse(bytes.into())?;
        let dynamic = Dynamic::read(&elf);
        let build_id = notes::build_id(&elf);
        let mut pool = Pool::default();
        let mut symbols = Vec::new();
        let split = debug.split();
        let debug = find_debug(&elf, &build_id, debug);
        let imports = own_symbols(&elf, &dynamic, &mut pool, &mut symbols);
        if let Some(debug) = &debug {
            symtab(&elf, debug, Source::DebugFile, &mut pool, &mut symbols);
        }
        packed_symbols(&elf, &mut pool, &mut symbols);
        let go = gopclntab::functions(&elf);
        go_symbols(&go, &mut pool, &mut symbols);
        let fdes = unwind::entries(&elf);
        let functions = functions::build(&elf, &pool, symbols, &fdes);
        let interp = elf.interp();
        let text = functions::text_ranges(&elf);
        let go_g = gopclntab::g_offset(&elf);
        let by_go = gopclntab::is_go(&elf);
        Ok(Self {
            elf,
            debug,
            split,
            dynamic,
            interp,
            build_id,
            text,
            pool,
            imports,
            functions,
            fdes,
            by_go,
            go,
            made_up: OnceLock::new(),
            unknown_go: OnceLock::new(),
            go_g,
            usdt: OnceLock::new(),
            relocs: OnceLock::new(),
            rseq: OnceLock::new(),
            readers: OnceLock::new(),
            targets: OnceLock::new(),
            landings: OnceLock::new(),
        })
    }

    /// The whole file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.elf.bytes.get()
    }
    /// Whether the file is position-dependent.
    #[must_use]
    pub const fn kind(&self) -> ImageKind {
        self.elf.kind
    }
    /// The instruction set.
    #[must_use]
    pub const fn machine(&self) -> Machine {
        self.elf.machine
    }
    /// The program's entry point.
    #[must_use]
    pub const fn entry(&self) -> Svma {
        Svma(self.elf.entry)
    }
    /// All `PT_LOAD`s, in file order.
    #[must_use]
    pub fn loads(&self) -> &[Segment] {
        &self.elf.loads
    }
    /// The executable `PT_LOAD`s.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.elf.loads.iter().filter(|s| s.executable())
    }
    /// File offset of a loaded byte; `None` for addresses without bytes in the file.
    #[must_use]
    pub fn offset_of(&self, at: Svma) -> Option<FileOffset> {
        self.elf.offset_of(at.0).map(FileOffset)
    }
    /// Address of a byte of the file, in executable loads first; `None` for bytes that are not loaded.
    #[must_use]
    pub fn svma_of(&self, at: FileOffset) -> Option<Svma> {
        let others = self.elf.loads.iter().filter(|s| !s.executable());
        self.segments().chain(others).find_map(|s| {
            let into = at.0.checked_sub(s.offset.0)?;
            (into < s.filesz).then(|| s.svma + into)
        })
    }
    /// `len` bytes of an executable load, as they are in the file.
    #[must_use]
    pub fn text(&self, at: Svma, len: u64) -> Option<&[u8]> {
        self.elf.text_at(at.0, len)
    }
    /// `len` bytes of a load that is not writable, or of its RELRO part, which contains jump tables; not
    /// relocated.
    #[must_use]
    pub fn rodata(&self, at: Svma, len: u64) -> Option<&[u8]> {
        let inside = |svma: u64, size: u64| {
            at.0.checked_sub(svma).is_some_and(|into| into.checked_add(len).is_some_and(|end| end <= size))
        };
        let read_only = |s: &Segment| s.flags & constants::PF_W == 0 && inside(s.svma.0, s.filesz);
        let relro = self.elf.header(constants::PT_GNU_RELRO);
        let constant = self.elf.loads.iter().any(read_only) || relro.is_some_and(|h| inside(h.svma, h.memsz));
        constant.then(|| self.elf.at(at.0, len))?
    }
    /// Ranges (start, length in bytes) of executable sections, or of executable loads if there are no
    /// sections; sorted.
    #[must_use]
    pub fn text_ranges(&self) -> &[(Svma, u64)] {
        &self.text
    }
    /// All functions, sorted by start, not overlapping.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.functions.list
    }
    /// One function.
    ///
    /// # Panics
    /// When the index belongs to another image and is out of range here.
    #[must_use]
    pub fn function(&self, index: FunctionIndex) -> &Function {
        &self.functions.list[index.0 as usize]
    }
    /// The function with an address in its body or its cold piece.
    #[must_use]
    pub fn function_at(&self, at: Svma) -> Option<FunctionIndex> {
        let before = |count: usize| count.checked_sub(1);
        let list = &self.functions.list;
        let body = before(list.partition_point(|f| f.start <= at)).filter(|&i| list[i].contains(at));
        let cold = &self.functions.cold;
        let piece = || {
            let (start, len, owner) = cold[before(cold.partition_point(|c| c.0 <= at))?];
            (at - start < len).then_some(owner as usize)
        };
        body.or_else(piece).map(|index| FunctionIndex(index as u32))
    }
    /// The same. It is faster if one of the next few functions from `first` on contains the address, as when
    /// many are looked up in order.
    #[must_use]
    pub fn function_near(&self, at: Svma, first: Option<FunctionIndex>) -> Option<FunctionIndex> {
        const FEW: usize = 4;
        let first = first.map_or(0, |first| first.0 as usize);
        let near = self.functions.list.iter().enumerate().skip(first).take(FEW);
        let found = near.into_iter().find(|(_, function)| function.contains(at));
        found.map(|(index, _)| FunctionIndex(index as u32)).or_else(|| self.function_at(at))
    }
    /// Pieces of functions, (start, length in bytes), sorted: unwind entries that do not begin as a function
    /// does, where no symbol names the function. A direct jump from a function into one stays in that
    /// function.
    #[must_use]
    pub fn fragments(&self) -> &[(Svma, u64)] {
        &self.functions.fragments
    }
    /// A function's names, with the one that callers use first.
    pub fn names(&self, function: &Function) -> impl Iterator<Item = Name<'_>> {
        let first = function.names.first as usize;
        let names = self.functions.names.get(first..first + function.names.len()).unwrap_or_default();
        names.iter().map(|&name| self.pool.get(name))
    }
    /// The first name, demangled with its parameters; `BASENAME+0x…` for a function without names.
    #[must_use]
    pub fn display_name(&self, function: &Function, basename: &str) -> String {
        match self.names(function).next() {
            Some(name) => demangle::full(name.raw).unwrap_or_else(|| name.raw.to_owned()),
            None => format!("{basename}+{:#x}", function.start),
        }
    }
    /// Undefined symbols: functions that this file calls through its PLT or GOT.
    pub fn imported(&self) -> impl Iterator<Item = Name<'_>> {
        self.imports.iter().filter(|i| i.code).map(|i| self.pool.get(i.name))
    }
    pub(crate) fn inlined_copies(&self, name: &str) -> u32 {
        inlined::copies(self.debug.as_ref().unwrap_or(&self.elf), name)
    }
    /// Variables with a symbol of that name, raw or demangled; each address once.
    #[must_use]
    pub fn data_named(&self, name: &str) -> Vec<DataSymbol> {
        self.data_symbols().named(name)
    }
    /// The first variable with that raw symbol name; not a thread-local one.
    #[must_use]
    pub fn data_symbol(&self, raw: &str) -> Option<DataSymbol> {
        self.data_symbols().with_raw_name(raw)
    }
    /// Names of variables similar to `name`, the nearest first.
    #[must_use]
    pub fn data_near(&self, name: &str) -> Vec<String> {
        self.data_symbols().similar(name)
    }
    /// The variable that contains an address, used to name the address.
    #[must_use]
    pub fn data_at(&self, at: Svma) -> Option<DataSymbol> {
        self.data_symbols().at(at)
    }
    fn data_symbols(&self) -> DataSymbols<'_> {
        DataSymbols { main: &self.elf, debug: self.debug.as_ref() }
    }
    /// Types, variables and lines of the file or its debug file; `None` without DWARF. Takes time and memory
    /// in proportion to the debug sections.
    #[must_use]
    pub fn debug_info(&self) -> Option<DebugInfo> {
        let has = |elf: &&Elf| elf.section(".debug_info").is_some();
        let elf = self.debug.as_ref().filter(has).or_else(|| Some(&self.elf).filter(has))?;
        DebugInfo::read(elf, Split::new(self.split.clone()))
    }
    /// What the file says of an instruction, for variables there ([`DebugInfo::local`]).
    #[must_use]
    pub fn code_place(&self, at: Svma) -> CodePlace {
        // The program is searched first, so nothing replaces what it exports.
        let is_program = self.kind() == ImageKind::Exec
            || self.dynamic.pie
            || (self.interp.is_some() && self.dynamic.soname.is_none());
        let replaceable = if is_program { Vec::new() } else { data::exported(&self.elf) };
        CodePlace { at, frame: unwind::frame(&self.elf, at), replaceable }
    }
    /// Functions' types from the file's `.BTF` section, or its debug file's.
    #[must_use]
    pub fn btf(&self) -> Option<Btf> {
        let section = |elf: &Elf| Btf::read(&debugdata::section(elf, ".BTF"), elf.machine == Machine::X86_64);
        section(&self.elf).or_else(|| self.debug.as_ref().and_then(section))
    }
    /// The file's USDT probes, in the order of its notes.
    pub fn usdt(&self) -> &[Usdt] {
        self.usdt.get_or_init(|| notes::usdt(&self.elf))
    }
    /// The places of a USDT probe's arguments, from the first on.
    #[must_use]
    pub fn mark_arguments(&self, marker: &Usdt) -> Vec<MarkArgument> {
        operands::mark_arguments(&marker.args, self.machine())
    }
    /// Whether Go linked it.
    #[must_use]
    pub const fn is_go(&self) -> bool {
        self.by_go
    }
    /// Whether Go's function table lists a function that begins there. That is code of Go's compiler or
    /// assembler, not C code linked into the program.
    #[must_use]
    pub fn is_go_at(&self, start: Svma) -> bool {
        self.go.binary_search_by_key(&start.0, |function| function.start).is_ok()
    }
    /// Whether Go linked the file, and its function table is missing or of a version that is not known. Then it is
    /// not known at which addresses Go's runtime goes on, nor where functions take their arguments.
    pub fn is_unknown_go(&self) -> bool {
        *self.unknown_go.get_or_init(|| self.is_go() && self.made_up().is_empty())
    }
    fn made_up(&self) -> &[u64] {
        self.made_up.get_or_init(|| gopclntab::made_up(&self.elf, &self.go))
    }
    /// Whether Go's compiler made the code at an address, and keeps the goroutine in r14 (x86-64): functions of
    /// Go's compiler, from the first version whose table distinguishes them.
    #[must_use]
    pub fn keeps_goroutine(&self, at: Svma) -> bool {
        let before = self.go.partition_point(|function| function.start <= at.0);
        let function = before.checked_sub(1).map(|nth| self.go[nth]);
        function.is_some_and(|one| at.0 - one.start < one.len && one.passes != Passes::Unknown)
    }
    /// How the function that begins there takes its arguments and returns its value.
    #[must_use]
    pub fn convention_at(&self, start: Svma) -> Convention {
        let Ok(nth) = self.go.binary_search_by_key(&start.0, |function| function.start) else {
            return if self.is_unknown_go() { Convention::Unknown } else { Convention::C };
        };
        // The name in Go's table, which lacks this suffix, may be listed besides the symbol's name.
        let names = self.function_at(start).map(|index| self.names(self.function(index)));
        let is_abi0 = names.into_iter().flatten().any(|name| name.raw.ends_with(".abi0"));
        match self.go[nth].passes {
            Passes::Registers if !is_abi0 => Convention::Go,
            Passes::Either if !is_abi0 && self.has_symbols() => Convention::Go,
            _ => Convention::Unknown,
        }
    }
    fn has_symbols(&self) -> bool {
        SymbolTable::find(&self.elf, constants::SHT_SYMTAB).is_some()
    }
    /// Whether unwind tables say that code begins there with its return address deeper in the stack: it is not entered by
    /// a call.
    #[must_use]
    pub fn begins_within_frame(&self, start: Svma) -> bool {
        let nth = self.fdes.binary_search_by_key(&start.0, |fde| fde.start);
        nth.is_ok_and(|nth| self.fdes[nth].fragment)
    }
    /// Addresses that no branch leads to, sorted: exception landing pads, and where Go resumes after a panic.
    pub fn landings(&self) -> &[Svma] {
        self.landings.get_or_init(|| {
            let pads = unwind::landing_pads(&self.elf, &self.fdes).into_iter();
            let mut found: Vec<Svma> =
                pads.chain(self.go.iter().filter_map(|f| f.resume)).map(Svma).collect();
            found.sort_unstable();
            found.dedup();
            found
        })
    }
    /// Where a Go program on x86-64 keeps `g`, in bytes from the thread pointer (usually −8); `None` when
    /// unknown.
    #[must_use]
    pub const fn go_g_in_tls(&self) -> Option<i64> {
        self.go_g
    }
    /// Whether it is a program that needs neither a loader nor libraries.
    #[must_use]
    pub fn is_static(&self) -> bool {
        let program = self.kind() == ImageKind::Exec || self.dynamic.pie;
        program && self.interp.is_none() && self.dynamic.needed.is_empty()
    }
    /// Names of the libraries that it needs.
    #[must_use]
    pub fn needed(&self) -> &[String] {
        &self.dynamic.needed
    }
    /// The name that a library gives itself.
    #[must_use]
    pub fn soname(&self) -> Option<&str> {
        self.dynamic.soname.as_deref()
    }
    /// Path of its loader.
    #[must_use]
    pub fn interp(&self) -> Option<&str> {
        self.interp.as_deref()
    }
    /// GNU build id; empty when it has none.
    #[must_use]
    pub fn build_id(&self) -> &[u8] {
        &self.build_id
    }
    fn relocs(&self) -> &[Reloc] {
        self.relocs.get_or_init(|| dynamic::relocations(&self.elf, &self.dynamic))
    }
    /// Critical sections of restartable sequences, sorted.
    pub fn rseq_sections(&self) -> &[RseqSection] {
        self.rseq.get_or_init(|| targets::rseq_sections(&self.elf, self.relocs()))
    }
    /// Words that the loader fills with the implementation of an IFUNC: those with the resolver `resolver`,
    /// and GOT and PLT words of the symbol `name`. Pass 0 as resolver for a symbol that another file defines.
    #[must_use]
    pub fn pointer_words(&self, name: &str, resolver: Svma) -> Vec<Svma> {
        self.filled_words().with_implementation(name, resolver)
    }
    /// Words of the GOT and the PLT that lead to functions of other files that read their own return address.
    /// Sorted.
    pub fn reader_words(&self) -> &[Svma] {
        self.readers.get_or_init(|| self.filled_words().with_readers())
    }
    /// Words in which the loader stores the address that this file uses for one of its own variables, if it
    /// leaves that to the loader. Another file's definition may take precedence, most often the program's
    /// copy.
    #[must_use]
    pub fn data_words(&self, variable: Svma) -> Vec<Svma> {
        self.filled_words().with_address(variable)
    }
    fn filled_words(&self) -> FilledWords<'_> {
        let table = dynamic_table(&self.elf, &self.dynamic);
        FilledWords { bytes: self.elf.bytes.get(), table, relocs: self.relocs() }
    }
    /// Code addresses that may be reached by other ways than a direct branch. They are relocated pointers,
    /// the loader's arrays, every symbol, every unwind entry, landing pads, where Go resumes after a panic,
    /// addresses that Go's runtime computes. Sorted, each once. Jump tables of distances are not included
    /// (see [`Image::rodata`]).
    pub fn code_targets(&self) -> &[Svma] {
        self.targets.get_or_init(|| {
            let mut found = Vec::new();
            self.each_code_target(&mut |at| found.push(at));
            found.sort_unstable();
            found.dedup();
            found
        })
    }
    /// The same in no particular order; some occur more than once.
    pub fn each_code_target(&self, each: &mut dyn FnMut(Svma)) {
        let mut each = |at: u64| each(Svma(at));
        let table = dynamic_table(&self.elf, &self.dynamic);
        let pointers = targets::pointers(&self.elf, &self.dynamic, self.relocs(), table.as_ref());
        pointers.into_iter().for_each(&mut each);
        unwind::landing_pads(&self.elf, &self.fdes).into_iter().for_each(&mut each);
        self.fdes.iter().for_each(|fde| each(fde.start));
        self.functions.list.iter().for_each(|f| each(f.start.0));
        self.functions.cold.iter().for_each(|piece| each(piece.0.0));
        self.rseq_sections().iter().for_each(|s| each(s.abort.0));
        self.functions.labels.iter().for_each(|&at| each(at));
        self.go.iter().filter_map(|f| f.resume).for_each(&mut each);
        self.made_up().iter().copied().for_each(each);
    }
}
