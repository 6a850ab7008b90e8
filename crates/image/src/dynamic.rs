//! The tables that the loader reads: the dynamic table and the relocations.
//!
//! In: `PT_DYNAMIC`, or allocated relocation sections of static programs. Out: names, table addresses, one
//! list of relocations from RELA, JMPREL and RELR; which words they fill with what.
//! Does not: apply them.

use crate::elf::{Elf, Machine, Section, records, slice, text, u64_at};
use crate::readers::READERS;
use crate::symbols::SymbolTable;
use object::LittleEndian as LE;
use object::elf;
use trapline_record::Svma;

/// Compact relative relocations: address, and length in bytes (gABI, 2022).
const DT_RELR: u32 = 36;
const DT_RELRSZ: u32 = 35;

/// The entries of the dynamic table that are used.
#[derive(Debug, Default)]
pub(crate) struct Dynamic {
    pub(crate) needed: Vec<String>,
    pub(crate) soname: Option<String>,
    pub(crate) pie: bool,
    pub(crate) symtab: u64,
    pub(crate) strtab: u64,
    pub(crate) strsz: u64,
    rela: (u64, u64),
    jmprel: (u64, u64),
    relr: (u64, u64),
    /// Addresses of functions that the loader calls itself.
    pub(crate) calls: Vec<u64>,
    /// Arrays of such addresses: (address, length in bytes).
    pub(crate) arrays: [(u64, u64); 3],
    pub(crate) present: bool,
}

impl Dynamic {
    pub(crate) fn read(elf: &Elf) -> Self {
        let mut dynamic = Self::default();
        let Some(header) = elf.header(elf::PT_DYNAMIC) else { return dynamic };
        let data = slice(elf.bytes.get(), header.offset, header.filesz).unwrap_or_default();
        let mut names = Vec::new();
        let mut soname = None;
        for entry in records::<elf::Dyn64<LE>>(data) {
            let value = entry.d_val.get(LE);
            let Ok(tag) = u32::try_from(entry.d_tag.get(LE)) else { continue };
            match tag {
                elf::DT_NULL => break,
                elf::DT_NEEDED => names.push(value),
                elf::DT_SONAME => soname = Some(value),
                elf::DT_FLAGS_1 => dynamic.pie = value & u64::from(elf::DF_1_PIE) != 0,
                elf::DT_SYMTAB => dynamic.symtab = value,
                elf::DT_STRTAB => dynamic.strtab = value,
                elf::DT_STRSZ => dynamic.strsz = value,
                elf::DT_RELA => dynamic.rela.0 = value,
                elf::DT_RELASZ => dynamic.rela.1 = value,
                elf::DT_JMPREL => dynamic.jmprel.0 = value,
                elf::DT_PLTRELSZ => dynamic.jmprel.1 = value,
                DT_RELR => dynamic.relr.0 = value,
                DT_RELRSZ => dynamic.relr.1 = value,
                elf::DT_INIT | elf::DT_FINI => dynamic.calls.push(value),
                elf::DT_INIT_ARRAY => dynamic.arrays[0].0 = value,
                elf::DT_INIT_ARRAYSZ => dynamic.arrays[0].1 = value,
                elf::DT_FINI_ARRAY => dynamic.arrays[1].0 = value,
                elf::DT_FINI_ARRAYSZ => dynamic.arrays[1].1 = value,
                elf::DT_PREINIT_ARRAY => dynamic.arrays[2].0 = value,
                elf::DT_PREINIT_ARRAYSZ => dynamic.arrays[2].1 = value,
                _ => {}
            }
        }
        dynamic.present = true;
        let strings = elf.at(dynamic.strtab, dynamic.strsz).unwrap_or_default();
        let name = |at| text(strings, at).filter(|name| !name.is_empty()).map(str::to_owned);
        dynamic.needed = names.into_iter().take(4096).filter_map(name).collect();
        dynamic.soname = soname.and_then(name);
        dynamic
    }
}

/// The value that a relocation stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RelocKind {
    /// Bias + `addend`.
    Relative,
    /// The result of calling the resolver at `addend`.
    Irelative,
    /// A symbol's address + `addend`.
    Symbol,
}

/// One relocation of a 64-bit word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reloc {
    pub(crate) word: u64,
    pub(crate) kind: RelocKind,
    pub(crate) symbol: u32,
    pub(crate) addend: u64,
}

/// All relocations of words, sorted by the address of the word.
pub(crate) fn relocations(elf: &Elf, dynamic: &Dynamic) -> Vec<Reloc> {
    let mut found = Vec::new();
    if dynamic.present {
        for (at, len) in [dynamic.rela, dynamic.jmprel] {
            rela(elf.machine, elf.at(at, len).unwrap_or_default(), &mut found);
        }
        relr(elf, elf.at(dynamic.relr.0, dynamic.relr.1).unwrap_or_default(), &mut found);
    } else {
        let loaded = |s: &&Section| s.kind == elf::SHT_RELA && s.flags & u64::from(elf::SHF_ALLOC) != 0;
        for section in elf.sections.iter().filter(loaded).take(64) {
            rela(elf.machine, elf.data(section).unwrap_or_default(), &mut found);
        }
    }
    found.sort_unstable_by_key(|r| r.word);
    found.dedup();
    found
}

fn rela(machine: Machine, data: &[u8], found: &mut Vec<Reloc>) {
    for entry in records::<elf::Rela64<LE>>(data) {
        let kind = match (machine, entry.r_type(LE, false)) {
            (Machine::X86_64, elf::R_X86_64_RELATIVE) | (Machine::Aarch64, elf::R_AARCH64_RELATIVE) => {
                RelocKind::Relative
            }
            (Machine::X86_64, elf::R_X86_64_IRELATIVE) | (Machine::Aarch64, elf::R_AARCH64_IRELATIVE) => {
                RelocKind::Irelative
            }
            (Machine::X86_64, elf::R_X86_64_64 | elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT)
            | (Machine::Aarch64, elf::R_AARCH64_ABS64 | elf::R_AARCH64_GLOB_DAT | elf::R_AARCH64_JUMP_SLOT) => {
                RelocKind::Symbol
            }
            _ => continue,
        };
        let (word, addend) = (entry.r_offset.get(LE), entry.r_addend.get(LE).cast_unsigned());
        found.push(Reloc { word, kind, symbol: entry.r_sym(LE, false), addend });
    }
}

/// RELR: an even entry is the address of a word; an odd one is a bitmap of the next 63 words. The addend is in
/// the word.
fn relr(elf: &Elf, data: &[u8], found: &mut Vec<Reloc>) {
    // No word of the file is listed twice, so a valid table does not list more words than the file has.
    let mut budget = elf.bytes.get().len() / 8;
    let mut next = 0u64;
    let mut put = |word: u64| {
        let Some(left) = budget.checked_sub(1) else { return };
        budget = left;
        if let Some(addend) = elf.at(word, 8).and_then(|word| u64_at(word, 0)) {
            found.push(Reloc { word, kind: RelocKind::Relative, symbol: 0, addend });
        }
    };
    for word in data.chunks_exact(8).filter_map(|word| u64_at(word, 0)) {
        if word & 1 == 0 {
            put(word);
            next = word.wrapping_add(8);
        } else {
            (0..63).filter(|bit| word >> (bit + 1) & 1 != 0).for_each(|bit| put(next.wrapping_add(8 * bit)));
            next = next.wrapping_add(63 * 8);
        }
    }
}

/// Words that the loader fills.
pub(crate) struct FilledWords<'a> {
    /// The file.
    pub(crate) bytes: &'a [u8],
    /// The dynamic symbols, if there are any.
    pub(crate) table: Option<SymbolTable<'a>>,
    pub(crate) relocs: &'a [Reloc],
}

impl FilledWords<'_> {
    /// Those filled with the implementation of an IFUNC: with this resolver, or of the symbol `name`.
    pub(crate) fn with_implementation(&self, name: &str, resolver: Svma) -> Vec<Svma> {
        self.those(|reloc| match reloc.kind {
            RelocKind::Irelative => reloc.addend == resolver.0,
            RelocKind::Symbol => !name.is_empty() && self.symbol_name(reloc) == Some(name),
            RelocKind::Relative => false,
        })
    }
    /// Those filled with functions of other files that read their own return address. Sorted.
    pub(crate) fn with_readers(&self) -> Vec<Svma> {
        let mut words = self.those(|reloc| {
            reloc.kind == RelocKind::Symbol
                && self.symbol_name(reloc).is_some_and(|name| READERS.contains(&name))
        });
        words.sort_unstable();
        words
    }
    /// Those filled with the address of a variable that this file defines.
    pub(crate) fn with_address(&self, variable: Svma) -> Vec<Svma> {
        let Some(table) = &self.table else { return Vec::new() };
        self.those(|reloc| {
            let symbol = table.symbol(reloc.symbol).filter(|one| one.st_shndx.get(LE) != elf::SHN_UNDEF);
            reloc.kind == RelocKind::Symbol
                && reloc.addend == 0
                && symbol.is_some_and(|one| one.st_value.get(LE) == variable.0)
        })
    }
    fn symbol_name(&self, reloc: &Reloc) -> Option<&str> {
        self.table.as_ref().and_then(|table| table.symbol_name(self.bytes, reloc.symbol))
    }
    fn those(&self, wanted: impl Fn(&Reloc) -> bool) -> Vec<Svma> {
        self.relocs.iter().filter(|reloc| wanted(reloc)).map(|reloc| Svma(reloc.word)).collect()
    }
}
