//! Symbol tables as candidates for functions, and the pool of their names.
//!
//! In: `.symtab`, `.dynsym` with its versions, of the file itself, its debug file, its `.gnu_debugdata`. Out:
//! code symbols with address, size and a handle for their name. Names are positions in the files' bytes, so
//! that ten thousand of them cost no allocation; a name that is not UTF-8 is dropped.
//! Does not: merge aliases, demangle.

use crate::elf::{Elf, Section, records, text, u32_at};
use crate::{Bytes, Name, Source};
use object::LittleEndian as LE;
use object::elf;

/// A name: file, position, length and version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NameRef {
    file: u32,
    at: u32,
    len: u32,
    /// Index into `Pool::versions` + 1; 0 for none.
    version: u16,
    default: bool,
}

/// The files' bytes that contain the names.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    files: Vec<Bytes>,
    versions: Vec<String>,
}

impl Pool {
    pub(crate) fn add_file(&mut self, bytes: &Bytes) -> u32 {
        self.files.push(bytes.clone());
        self.files.len() as u32 - 1
    }

    /// The name as it is in the file.
    pub(crate) fn get(&self, name: NameRef) -> Name<'_> {
        let at = name.at as usize;
        let raw = self.files[name.file as usize].get().get(at..at + name.len as usize);
        let version = usize::from(name.version).checked_sub(1).and_then(|v| self.versions.get(v));
        Name {
            raw: raw.and_then(|raw| std::str::from_utf8(raw).ok()).unwrap_or_default(),
            version: version.map(String::as_str),
            default: name.default,
        }
    }

    fn version(&mut self, version: &str) -> u16 {
        let known = self.versions.iter().position(|v| v == version);
        let index = known.unwrap_or_else(|| {
            self.versions.push(version.to_owned());
            self.versions.len() - 1
        });
        u16::try_from(index + 1).unwrap_or(0)
    }

    /// A handle for the text at an absolute file offset; splits `name@VERSION`, the spelling in `.symtab`.
    pub(crate) fn name(&mut self, file: u32, at: u64) -> Option<NameRef> {
        let whole = text(self.files[file as usize].get(), at)?;
        let mut name = NameRef {
            file,
            at: u32::try_from(at).ok()?,
            len: whole.len() as u32,
            version: 0,
            default: false,
        };
        if let Some((plain, version)) = whole.split_once('@').filter(|(plain, _)| !plain.is_empty()) {
            let version = version.strip_prefix('@').inspect(|_| name.default = true).unwrap_or(version);
            let version = version.to_owned();
            name.len = plain.len() as u32;
            if self.versions.len() < usize::from(u16::MAX) {
                name.version = self.version(&version);
            }
        }
        (name.len > 0).then_some(name)
    }
}

/// A symbol of code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) name: NameRef,
    pub(crate) source: Source,
    pub(crate) kind: SymbolKind,
    pub(crate) local: bool,
    /// Number of the `STT_FILE` symbol above it; distinguishes static symbols of the same name.
    pub(crate) unit: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SymbolKind {
    Function,
    Ifunc,
    /// `STT_NOTYPE`: a function only if an unwind entry begins there.
    Label,
}

/// A dynamic symbol that this file imports from others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Import {
    pub(crate) name: NameRef,
    pub(crate) code: bool,
}

/// One symbol table and its strings.
pub(crate) struct SymbolTable<'a> {
    symbols: &'a [elf::Sym64<LE>],
    /// File offset of the string table, and its length.
    strings: (u64, u64),
}

impl<'a> SymbolTable<'a> {
    /// The table of that section type, if the file has one.
    pub(crate) fn find(elf: &'a Elf, kind: u32) -> Option<Self> {
        let section = elf.sections.iter().find(|s| s.kind == kind)?;
        let strings = elf.sections.get(section.link as usize)?;
        elf.data(strings)?;
        let symbols = records(elf.data(section)?);
        Some(Self { symbols, strings: (strings.offset, strings.size) })
    }

    /// `.dynsym` from the dynamic table only: it ends where the string table begins.
    pub(crate) fn from_dynamic(elf: &'a Elf, symtab: u64, strtab: u64, strsz: u64) -> Option<Self> {
        let len = strtab.checked_sub(symtab)?;
        let symbols = records(elf.at(symtab, len)?);
        Some(Self { symbols, strings: (elf.offset_of(strtab)?, strsz) })
    }

    fn name_at(&self, symbol: &elf::Sym64<LE>) -> Option<u64> {
        let at = u64::from(symbol.st_name.get(LE));
        (at != 0 && at < self.strings.1).then(|| self.strings.0.checked_add(at))?
    }

    pub(crate) fn symbol(&self, index: u32) -> Option<&'a elf::Sym64<LE>> {
        self.symbols.get(index as usize)
    }

    pub(crate) fn symbol_name<'b>(&self, bytes: &'b [u8], index: u32) -> Option<&'b str> {
        text(bytes, self.name_at(self.symbol(index)?)?)
    }

    /// Value of the thread-local symbol of that name: its offset in the static block.
    pub(crate) fn tls(&self, bytes: &[u8], name: &str) -> Option<u64> {
        let mut found = self.symbols.iter().filter(|s| s.st_type() == elf::STT_TLS);
        let symbol = found.find(|s| self.name_at(s).and_then(|at| text(bytes, at)) == Some(name))?;
        Some(symbol.st_value.get(LE))
    }

    /// Code symbols defined in executable loads of `main`.
    pub(crate) fn collect(
        &self,
        main: &Elf,
        pool: &mut Pool,
        file: u32,
        source: Source,
        versions: Option<&Versions<'_>>,
        into: &mut Vec<Symbol>,
    ) {
        let mut unit = 0;
        for (index, symbol) in self.symbols.iter().enumerate().skip(1) {
            let kind = match symbol.st_type() {
                elf::STT_FUNC => SymbolKind::Function,
                elf::STT_GNU_IFUNC => SymbolKind::Ifunc,
                elf::STT_NOTYPE => SymbolKind::Label,
                elf::STT_FILE => {
                    unit += 1;
                    continue;
                }
                _ => continue,
            };
            let start = symbol.st_value.get(LE);
            let section = symbol.st_shndx.get(LE);
            let defined = section != elf::SHN_UNDEF && section != elf::SHN_ABS && section != elf::SHN_COMMON;
            if !defined || !main.executable(start) {
                continue;
            }
            let Some(mut name) = self.name_at(symbol).and_then(|at| pool.name(file, at)) else { continue };
            if let Some((version, default)) = versions.and_then(|v| v.of(index)) {
                (name.version, name.default) = (version, default);
            }
            let local = symbol.st_bind() == elf::STB_LOCAL;
            let size = symbol.st_size.get(LE);
            into.push(Symbol { start, size, name, source, kind, local, unit });
        }
    }

    /// Undefined symbols.
    pub(crate) fn imports(&self, pool: &mut Pool, file: u32, versions: Option<&Versions<'_>>) -> Vec<Import> {
        let undefined = |symbol: &&elf::Sym64<LE>| symbol.st_shndx.get(LE) == elf::SHN_UNDEF;
        let with_index = self.symbols.iter().enumerate().skip(1);
        with_index
            .filter(|(_, symbol)| undefined(symbol))
            .filter_map(|(index, symbol)| {
                let mut name = pool.name(file, self.name_at(symbol)?)?;
                if let Some((version, default)) = versions.and_then(|v| v.of(index)) {
                    (name.version, name.default) = (version, default);
                }
                let code = matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_NOTYPE | elf::STT_GNU_IFUNC);
                Some(Import { name, code })
            })
            .collect()
    }
}

/// `.gnu.version`, with the names that `.gnu.version_d` and `.gnu.version_r` give to its numbers.
#[derive(Debug)]
pub(crate) struct Versions<'a> {
    of_symbol: &'a [u8],
    /// For each version number, the index into the pool + 1.
    names: Vec<u16>,
}

impl<'a> Versions<'a> {
    /// Reads the three tables; `None` when the file has no versions.
    pub(crate) fn find(elf: &'a Elf, pool: &mut Pool) -> Option<Self> {
        let of = |kind| elf.sections.iter().find(|s: &&Section| s.kind == kind);
        let of_symbol = elf.data(of(elf::SHT_GNU_VERSYM)?)?;
        let mut names = vec![0; 2];
        for (kind, defines) in [(elf::SHT_GNU_VERDEF, true), (elf::SHT_GNU_VERNEED, false)] {
            let Some(section) = of(kind) else { continue };
            let strings = elf.sections.get(section.link as usize).and_then(|s| elf.data(s));
            let (Some(data), Some(strings)) = (elf.data(section), strings) else { continue };
            let mut put = |number: u16, name: u64| {
                let number = usize::from(number & 0x7fff);
                if names.len() <= number {
                    names.resize(number + 1, 0);
                }
                names[number] = text(strings, name).map_or(0, |name| pool.version(name));
            };
            let _ = if defines { definitions(data, &mut put) } else { needs(data, &mut put) };
        }
        Some(Self { of_symbol, names })
    }

    /// Pool index + 1, and whether it is the default version, for the symbol with that index.
    fn of(&self, index: usize) -> Option<(u16, bool)> {
        let word = self.of_symbol.get(2 * index..2 * index + 2)?;
        let number = u16::from_le_bytes([word[0], word[1]]);
        let version = *self.names.get(usize::from(number & 0x7fff))?;
        (version != 0).then_some((version, number & 0x8000 == 0))
    }
}

/// `Elf64_Verdef` chain: the first `Verdaux` of each is its name. The base definition (flag 1) is the file
/// itself.
fn definitions(data: &[u8], put: &mut impl FnMut(u16, u64)) -> Option<()> {
    let mut at = 0usize;
    // Bounded, since a chain that steps back would never end.
    for _ in 0..data.len() / 20 {
        let head = u32_at(data, at)?;
        let number = u32_at(data, at + 4)? as u16;
        let (aux, next) = (u32_at(data, at + 12)? as usize, u32_at(data, at + 16)? as usize);
        if (head >> 16) & 1 == 0 {
            put(number, u64::from(u32_at(data, at.checked_add(aux)?)?));
        }
        if next == 0 {
            break;
        }
        at = at.checked_add(next)?;
    }
    Some(())
}

/// `Elf64_Verneed` chain, each with a chain of `Vernaux`.
fn needs(data: &[u8], put: &mut impl FnMut(u16, u64)) -> Option<()> {
    let mut at = 0usize;
    let mut left = data.len() / 16;
    loop {
        let (aux, next) = (u32_at(data, at + 8)? as usize, u32_at(data, at + 12)? as usize);
        let mut aux_at = at.checked_add(aux)?;
        loop {
            left = left.checked_sub(1)?;
            let number = (u32_at(data, aux_at + 4)? >> 16) as u16;
            put(number, u64::from(u32_at(data, aux_at + 8)?));
            match u32_at(data, aux_at + 12)? as usize {
                0 => break,
                step => aux_at = aux_at.checked_add(step)?,
            }
        }
        match next {
            0 => return Some(()),
            step => at = at.checked_add(step)?,
        }
    }
}
