//! Go's function table, which its linker keeps even in stripped programs.
//!
//! In: `.gopclntab` of Go 1.16 and later, as far as its header says that it is one of the forms known here. Out: entry,
//! end, name of each function, and the address where a recovered panic resumes it. Does not: read line tables.

use crate::elf::{Elf, Machine, text, u32_at, u64_at};

/// One function of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GoFunction {
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// File offset of its name.
    pub(crate) name: u64,
    /// Address of the call at which a recovered panic resumes; no branch leads there.
    pub(crate) resume: Option<u64>,
    /// Where its arguments are, as far as the table shows.
    pub(crate) passes: Passes,
}

/// What the table shows about the place of a function's arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Passes {
    /// In registers: Go's compiler made the function.
    Registers,
    /// Two functions have this name: one takes its arguments on the stack and calls the other, or the
    /// reverse.
    Either,
    /// Not known: it is written in assembly, or Go's compiler of that version used the stack.
    Unknown,
}

/// Flag in `_func`: the function is written in assembly (internal/abi, `FuncFlagAsm`).
const FLAG_ASM: u8 = 4;

/// What differs by version, and how it is known:
///
/// | what | 1.16, 1.17 | 1.18, 1.19 | from 1.20 |
/// |---|---|---|---|
/// | header | this word | this word | this word |
/// | addresses in the table | 8 bytes | 4 bytes | 4 bytes |
/// | flags of a function, so whether it is assembly | none | at 37 | at 41 |
/// | arguments in registers, g in r14 (x86-64) | 1.17: known where a function [checks its stack](checks_stack_by_r14) | yes | yes |
///
/// Another word is a version that is not known: `Image::is_unknown_go`.
const GO_1_16: u32 = 0xffff_fffa;
const GO_1_18: u32 = 0xffff_fff0;
const GO_1_20: u32 = 0xffff_fff1;

/// Whether the file was linked by Go.
pub(crate) fn is_go(elf: &Elf) -> bool {
    elf.sections.iter().any(|s| s.name.ends_with("gopclntab") || s.name == ".go.buildinfo")
}

/// Addresses that Go's runtime computes and later runs, although no branch and no pointer in the file leads
/// there. Each goroutine begins with the return address `goexit` + PCQuantum (runtime/proc.go, `newproc1`),
/// in all versions. `gogo`, `mcall`, `morestack` and `cgocallback` go on behind calls, which end windows.
/// `asyncPreempt` and `sigpanic` are entered at their start. The address in `systemstack_switch` is only
/// looked up, never run. Empty where `goexit` is not found, since then the version is not known, or no function
/// of the table is where it should be.
pub(crate) fn made_up(elf: &Elf, functions: &[GoFunction]) -> Vec<u64> {
    let quantum = match elf.machine {
        Machine::X86_64 => 1,
        Machine::Aarch64 => 4,
    };
    let bytes = elf.bytes.get();
    let is_goexit = |f: &&GoFunction| text(bytes, f.name).is_some_and(|name| name == "runtime.goexit");
    functions.iter().filter(is_goexit).map(|f| f.start + quantum).collect()
}

/// All functions, in order of address; empty when there is no table of a known version.
pub(crate) fn functions(elf: &Elf) -> Vec<GoFunction> {
    read(elf).unwrap_or_default()
}

/// The header's fields that are needed to read functions.
struct Header<'a> {
    table: &'a [u8],
    /// File offset of `table`.
    offset: u64,
    /// Distance of function names and of the function table from the header, in bytes.
    names: u64,
    functab: u64,
    count: usize,
    text: u64,
    /// Length of an address in the function table and in `_func`, in bytes: 4 from Go 1.18, 8 before.
    word: usize,
    /// Offset of the flags in `_func`, from Go 1.18 on.
    flags: Option<usize>,
}

fn header(elf: &Elf) -> Option<Header<'_>> {
    let section = elf.sections.iter().find(|s| s.name.ends_with("gopclntab"))?;
    let table = elf.data(section)?;
    let magic = u32_at(table, 0)?;
    if !matches!(magic, GO_1_16 | GO_1_18 | GO_1_20) || table.get(7) != Some(&8) {
        return None;
    }
    let field = |index: usize| u64_at(table, 8 + 8 * index);
    let count = usize::try_from(field(0)?).ok()?;
    let (names, functab, text, word) = match magic {
        GO_1_16 => (field(2)?, field(6)?, 0, 8),
        _ => (field(3)?, field(7)?, text_start(elf, field(2)?), 4),
    };
    // Go 1.20 inserted the line at which a function starts before them.
    let flags = match magic {
        GO_1_16 => None,
        GO_1_18 => Some(37),
        _ => Some(41),
    };
    let header = Header { table, offset: section.offset, names, functab, count, text, word, flags };
    // An entry is two words, so a count that does not fit is forged.
    (count.checked_mul(2 * header.word)? <= table.len()).then_some(header)
}

/// The address to which entries are relative: in the header, or in `runtime.moduledata` (from Go 1.26, and in
/// PIEs, where the header's word is a relocation), or the start of `.text`.
fn text_start(elf: &Elf, stated: u64) -> u64 {
    if stated != 0 {
        return stated;
    }
    let moduledata = || {
        let section = elf.section(".go.module")?;
        let minpc_text = elf.data(section)?.get(160..184)?;
        let (minpc, text) = (u64_at(minpc_text, 0)?, u64_at(minpc_text, 16)?);
        (minpc >= text && elf.executable(text)).then_some(text)
    };
    moduledata().or_else(|| elf.section(".text").map(|s| s.svma)).unwrap_or(0)
}

fn read(elf: &Elf) -> Option<Vec<GoFunction>> {
    let header = header(elf)?;
    let functab = header.table.get(usize::try_from(header.functab).ok()?..)?;
    let word = |at: usize| match header.word {
        4 => u32_at(functab, at).map(u64::from),
        _ => u64_at(functab, at),
    };
    let mut found = Vec::with_capacity(header.count.min(functab.len() / 8));
    for index in 0..header.count {
        let at = index * 2 * header.word;
        let (Some(entry), Some(info), Some(next)) =
            (word(at), word(at + header.word), word(at + 2 * header.word))
        else {
            break;
        };
        let Some(func) = usize::try_from(info).ok().and_then(|info| functab.get(info..)) else { continue };
        let start = header.text.wrapping_add(entry);
        // `_func`: entry, name offset, size of arguments, deferreturn.
        let (Some(name), Some(resume)) = (u32_at(func, header.word), u32_at(func, header.word + 8)) else {
            continue;
        };
        if next <= entry || !elf.executable(start) {
            continue;
        }
        let len = without_padding(elf, start, next - entry);
        let resume = (resume != 0 && u64::from(resume) < len).then(|| start + u64::from(resume));
        let name = header.offset.wrapping_add(header.names).wrapping_add(u64::from(name));
        let flags = header.flags.and_then(|at| func.get(at));
        let in_registers = match flags {
            Some(flags) => flags & FLAG_ASM == 0,
            None => checks_stack_by_r14(elf, start),
        };
        let passes = if in_registers { Passes::Registers } else { Passes::Unknown };
        found.push(GoFunction { start, len, name, resume, passes });
    }
    find_wrappers(elf.bytes.get(), &mut found);
    // The linker's entries for C code in between have no name.
    found.retain(|f| text(elf.bytes.get(), f.name).is_some_and(|name| !name.is_empty()));
    Some(found)
}

/// Whether a function begins by comparing its stack pointer with the limit in the goroutine that r14 points to:
/// `cmp rsp, [r14+16]`, or `lea r12, [rsp-n]` and `cmp r12, [r14+16]`. Only Go's compiler produces that, for functions that
/// take their arguments in registers. Assembly and Go 1.16 read g from thread-local memory there.
fn checks_stack_by_r14(elf: &Elf, start: u64) -> bool {
    let begins = elf.at(start, 12).filter(|_| elf.machine == Machine::X86_64);
    begins.is_some_and(|code| {
        matches!(
            code,
            [0x49, 0x3B, 0x66, 0x10, ..]
                | [0x4C, 0x8D, 0x64, 0x24, _, 0x4D, 0x3B, 0x66, 0x10, ..]
                | [0x4C, 0x8D, 0xA4, 0x24, _, _, _, _, 0x4D, 0x3B, 0x66, 0x10]
        )
    })
}

/// In this table Go's linker gives a function and its wrapper the same name. Only the symbol table
/// distinguishes them, by `.abi0`.
fn find_wrappers(bytes: &[u8], found: &mut [GoFunction]) {
    let mut names: Vec<&str> = found.iter().filter_map(|one| text(bytes, one.name)).collect();
    names.sort_unstable();
    let is_shared = |name: &str| names.get(names.partition_point(|&other| other < name) + 1) == Some(&name);
    for one in found.iter_mut().filter(|one| one.passes == Passes::Registers) {
        if text(bytes, one.name).is_none_or(is_shared) {
            one.passes = Passes::Either;
        }
    }
}

/// A length without the bytes with which Go fills the space between functions: int3 on x86-64, words of 0 on
/// arm64.
fn without_padding(elf: &Elf, start: u64, len: u64) -> u64 {
    let Some(code) = elf.at(start, len) else { return len };
    let padding = match elf.machine {
        Machine::X86_64 => code.iter().rev().take(63).take_while(|&&byte| byte == 0xcc).count(),
        Machine::Aarch64 => 4 * code.rchunks_exact(4).take(15).take_while(|word| **word == [0; 4]).count(),
    } as u64;
    if padding < len { len - padding } else { len }
}

/// Where `g` is, in bytes from the thread pointer: `runtime.tlsg` in the thread's static block, which ends
/// there.
pub(crate) fn g_offset(elf: &Elf) -> Option<i64> {
    if !is_go(elf) || elf.machine != Machine::X86_64 {
        return None;
    }
    let Some(tls) = elf.header(object::elf::PT_TLS) else { return Some(-8) };
    let end = tls.memsz.checked_next_multiple_of(tls.align.max(1))?;
    let stated = crate::symbols::SymbolTable::find(elf, object::elf::SHT_SYMTAB)
        .and_then(|table| table.tls(elf.bytes.get(), "runtime.tlsg"));
    match stated {
        Some(at) => Some(at.wrapping_sub(end).cast_signed()),
        None => (tls.memsz <= 8).then_some(-8),
    }
}
