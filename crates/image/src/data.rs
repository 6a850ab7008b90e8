//! Data symbols: the addresses of variables, by name, without debug information.
//!
//! In: `.symtab` of the file or its debug file, `.dynsym`. Out: [`DataSymbol`]s. Thread-local ones are
//! marked: they have an address in each thread and none in the file.
//! Does not: know types.

use object::LittleEndian as LE;
use object::elf;
use trapline_record::Svma;

use crate::elf::Elf;
use crate::symbols::SymbolTable;

/// A variable, described by its symbol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataSymbol {
    /// Its name, demangled.
    pub name: String,
    /// Its address; meaningless when thread-local.
    pub at: Svma,
    /// Size in bytes; 0 when the symbol has no size.
    pub size: u64,
    /// Whether each thread has its own.
    pub thread_local: bool,
}

/// Calls `each` for all data symbols of a table, with their raw names.
pub(crate) fn each<'a>(main: &Elf, from: &'a Elf, kind: u32, each: &mut dyn FnMut(&'a str, DataSymbol)) {
    let Some(table) = SymbolTable::find(from, kind) else { return };
    let bytes = from.bytes.get();
    let mut index = 1;
    while let Some(symbol) = table.symbol(index) {
        index += 1;
        let defined = !matches!(symbol.st_shndx.get(LE), elf::SHN_UNDEF | elf::SHN_ABS | elf::SHN_COMMON);
        let thread_local = symbol.st_type() == elf::STT_TLS;
        let data = thread_local || matches!(symbol.st_type(), elf::STT_OBJECT | elf::STT_NOTYPE);
        let at = symbol.st_value.get(LE);
        if !defined || !data || !(thread_local || is_data(main, at)) {
            continue;
        }
        let Some(raw) = table.symbol_name(bytes, index - 1) else { continue };
        let (raw, _version) = raw.split_once('@').unwrap_or((raw, ""));
        let symbol =
            DataSymbol { name: String::new(), at: Svma(at), size: symbol.st_size.get(LE), thread_local };
        each(raw, symbol);
    }
}

/// Whether an address is in a load that is not code, including its zeroed part.
fn is_data(elf: &Elf, at: u64) -> bool {
    elf.loads
        .iter()
        .any(|load| !load.executable() && at.checked_sub(load.svma.0).is_some_and(|into| into < load.memsz))
}

/// Types of the sections that contain data symbols.
pub(crate) const TABLES: [u32; 2] = [elf::SHT_SYMTAB, elf::SHT_DYNSYM];
