//! Data symbols: the addresses of variables, by name, without debug information.
//!
//! In: `.symtab` of the file or its debug file, `.dynsym`. Out: [`DataSymbol`]s. Thread-local ones are
//! marked: they have an address in each thread and none in the file.
//! Does not: know types.

use object::LittleEndian as LE;
use object::elf;
use trapline_record::Svma;

use crate::demangle;
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

/// The data symbols of a file, and of its debug file.
#[derive(Clone, Copy)]
pub(crate) struct DataSymbols<'a> {
    pub(crate) main: &'a Elf,
    pub(crate) debug: Option<&'a Elf>,
}

impl<'a> DataSymbols<'a> {
    /// Those of that name, raw or demangled; each address once.
    pub(crate) fn named(self, name: &str) -> Vec<DataSymbol> {
        let mut found: Vec<DataSymbol> = Vec::new();
        self.each(&mut |raw, symbol| {
            let named = raw == name || demangle::short(raw).is_some_and(|text| text == name);
            if named
                && !found.iter().any(|one| one.at == symbol.at && one.thread_local == symbol.thread_local)
            {
                found.push(DataSymbol { name: name.to_owned(), ..symbol });
            }
        });
        found
    }
    /// The first one with that raw name; not a thread-local one.
    pub(crate) fn with_raw_name(self, raw: &str) -> Option<DataSymbol> {
        let mut found = None;
        self.each(&mut |name, symbol| {
            if found.is_none() && name == raw && !symbol.thread_local {
                found = Some(DataSymbol { name: raw.to_owned(), ..symbol });
            }
        });
        found
    }
    /// Names similar to `name`, the nearest first.
    pub(crate) fn similar(self, name: &str) -> Vec<String> {
        let mut near = Vec::new();
        self.each(&mut |raw, _| near.push(demangle::short(raw).unwrap_or_else(|| raw.to_owned())));
        crate::nearest::nearest_of(name, near.into_iter())
    }
    /// The one that contains an address.
    pub(crate) fn at(self, at: Svma) -> Option<DataSymbol> {
        let mut found = None;
        self.each(&mut |raw, symbol| {
            let holds = at.0.checked_sub(symbol.at.0).is_some_and(|into| into < symbol.size.max(1));
            if holds && !symbol.thread_local && found.is_none() {
                found = Some(DataSymbol { name: raw.to_owned(), ..symbol });
            }
        });
        found
    }
    /// Calls `each` for all of them, with their raw names.
    fn each(self, each: &mut dyn FnMut(&'a str, DataSymbol)) {
        for from in std::iter::once(self.main).chain(self.debug) {
            TABLES.into_iter().for_each(|kind| each_of(self.main, from, kind, each));
        }
    }
}

/// Calls `each` for all data symbols of a table, with their raw names.
fn each_of<'a>(main: &Elf, from: &'a Elf, kind: u32, each: &mut dyn FnMut(&'a str, DataSymbol)) {
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

/// Addresses and sizes of the data that a library exports: the loader may use another file's data of the same name.
pub(crate) fn exported(elf: &Elf) -> Vec<(Svma, u64)> {
    let Some(table) = SymbolTable::find(elf, elf::SHT_DYNSYM) else { return Vec::new() };
    let all = (1..).map_while(|index| table.symbol(index));
    let exported = all.filter(|symbol| {
        let is_shared = matches!(symbol.st_bind(), elf::STB_GLOBAL | elf::STB_WEAK | elf::STB_GNU_UNIQUE);
        let is_data = matches!(symbol.st_type(), elf::STT_OBJECT | elf::STT_NOTYPE | elf::STT_COMMON);
        is_shared
            && is_data
            && symbol.st_visibility() == elf::STV_DEFAULT
            && symbol.st_shndx.get(LE) != elf::SHN_UNDEF
    });
    exported.map(|symbol| (Svma(symbol.st_value.get(LE)), symbol.st_size.get(LE))).collect()
}

/// Whether an address is in a load that is not code, including its zeroed part.
fn is_data(elf: &Elf, at: u64) -> bool {
    elf.loads
        .iter()
        .any(|load| !load.executable() && at.checked_sub(load.svma.0).is_some_and(|into| into < load.memsz))
}

/// Types of the sections that contain data symbols.
const TABLES: [u32; 2] = [elf::SHT_SYMTAB, elf::SHT_DYNSYM];
