//! Where a file's symbols come from: its own tables, a separate debug file, `.gnu_debugdata`, Go's table.
//!
//! In: a file, and a way to find its debug file. Out: symbols, with their names in the pool.
//! Does not: merge them (`functions`).

use crate::dynamic::Dynamic;
use crate::elf::Elf;
use crate::gopclntab::GoFunction;
use crate::symbols::{Import, Pool, Symbol, SymbolKind, SymbolTable, Versions};
use crate::{Bytes, DebugFile, DebugFiles, Source, debugdata, notes};
use object::elf as constants;

/// The dynamic symbol table, found by section or by the dynamic table.
pub(crate) fn dynamic_table<'a>(elf: &'a Elf, dynamic: &Dynamic) -> Option<SymbolTable<'a>> {
    SymbolTable::find(elf, constants::SHT_DYNSYM)
        .or_else(|| SymbolTable::from_dynamic(elf, dynamic.symtab, dynamic.strtab, dynamic.strsz))
}

/// Collects `.symtab` of the file itself, or of one that belongs to it; returns its number in the pool.
pub(crate) fn symtab(elf: &Elf, of: &Elf, source: Source, pool: &mut Pool, symbols: &mut Vec<Symbol>) -> u32 {
    let file = pool.add_file(&of.bytes);
    if let Some(table) = SymbolTable::find(of, constants::SHT_SYMTAB) {
        table.collect(elf, pool, file, source, None, symbols);
    }
    file
}

/// Collects `.symtab` and `.dynsym` of the file itself; returns its imports.
pub(crate) fn own_symbols(
    elf: &Elf,
    dynamic: &Dynamic,
    pool: &mut Pool,
    symbols: &mut Vec<Symbol>,
) -> Vec<Import> {
    let file = symtab(elf, elf, Source::Symtab, pool, symbols);
    let Some(table) = dynamic_table(elf, dynamic) else { return Vec::new() };
    let versions = Versions::find(elf, pool);
    table.collect(elf, pool, file, Source::Dynsym, versions.as_ref(), symbols);
    table.imports(pool, file, versions.as_ref())
}

/// Collects the symbols in `.gnu_debugdata`.
pub(crate) fn packed_symbols(elf: &Elf, pool: &mut Pool, symbols: &mut Vec<Symbol>) {
    let Some(unpacked) = debugdata::gnu_debugdata(elf) else { return };
    let Ok(small) = Elf::parse_debug(Bytes::from(unpacked)) else { return };
    symtab(elf, &small, Source::DebugData, pool, symbols);
}

/// Collects the functions of Go's table.
pub(crate) fn go_symbols(go: &[GoFunction], pool: &mut Pool, symbols: &mut Vec<Symbol>) {
    for function in go {
        let Some(name) = pool.name(0, function.name) else { continue };
        symbols.push(Symbol {
            start: function.start,
            size: function.len,
            name,
            source: Source::GoPclntab,
            kind: SymbolKind::Function,
            local: false,
            unit: 0,
        });
    }
}

/// The separate debug file, if the file has no symbol table and one is found; one of another build is
/// ignored.
pub(crate) fn find_debug(elf: &Elf, build_id: &[u8], debug: &mut dyn DebugFiles) -> Option<Elf> {
    if SymbolTable::find(elf, constants::SHT_SYMTAB).is_some() && elf.section(".debug_info").is_some() {
        return None;
    }
    let link = elf.section_data(".gnu_debuglink").and_then(|data| {
        let name = crate::elf::text(data, 0)?;
        Some((name.to_owned(), crate::elf::u32_at(data, data.len().checked_sub(4)?)?))
    });
    if build_id.is_empty() && link.is_none() {
        return None;
    }
    let request = DebugFile { build_id: build_id.to_vec(), link };
    let found = Elf::parse_debug(debug.find(&request)?).ok()?;
    let theirs = notes::build_id(&found);
    (build_id.is_empty() || theirs.is_empty() || theirs == build_id).then_some(found)
}
