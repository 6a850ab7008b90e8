//! The skeleton of an ELF file: header, loads, sections, and the position of an address in the bytes.
//!
//! In: bytes. Out: tables of numbers checked against the file's length (IMG-1: no later read leaves the file;
//! every accessor returns `None` instead).
//! Does not: know symbols, relocations or code.

use crate::{Bytes, ImageError};
use object::LittleEndian as LE;
use object::elf;
use object::pod::{Pod, from_bytes, slice_from_bytes};
use trapline_record::{FileOffset, Svma};

/// Maximum number of `PT_LOAD`s: more than any linker writes. Bounds the work of each look-up.
const MAX_LOADS: usize = 256;
/// Maximum length of a name in bytes: longer ones are treated as garbage. Bounds the work of each look-up.
const MAX_TEXT: usize = 1 << 16;
/// With what the names of packed sections begin in place of `.debug_`.
pub(crate) const PACKED_BY_NAME: &str = ".zdebug_";

/// `e_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageKind {
    /// Loaded at the address in the file (`ET_EXEC`, bias 0).
    Exec,
    /// Position independent: PIE or library.
    Dyn,
}

/// `e_machine`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Machine {
    /// `EM_X86_64`.
    X86_64,
    /// `EM_AARCH64`.
    Aarch64,
}

/// A `PT_LOAD`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Address of its first byte, as the ELF file states it.
    pub svma: Svma,
    /// Offset in the file of its first byte.
    pub offset: FileOffset,
    /// Length in the file, in bytes.
    pub filesz: u64,
    /// Length in memory, in bytes; the bytes beyond `filesz` are zero.
    pub memsz: u64,
    /// `PF_X` (1), `PF_W` (2), `PF_R` (4).
    pub flags: u32,
}

impl Segment {
    /// Whether it is mapped executable.
    #[must_use]
    pub const fn executable(&self) -> bool {
        self.flags & elf::PF_X != 0
    }
}

/// A program header other than `PT_LOAD`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) kind: u32,
    pub(crate) svma: u64,
    pub(crate) offset: u64,
    pub(crate) filesz: u64,
    pub(crate) memsz: u64,
    pub(crate) align: u64,
}

/// A section header.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) kind: u32,
    pub(crate) flags: u64,
    pub(crate) svma: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) link: u32,
}

/// Header, loads and sections of one file.
#[derive(Debug)]
pub(crate) struct Elf {
    pub(crate) bytes: Bytes,
    pub(crate) kind: ImageKind,
    pub(crate) machine: Machine,
    pub(crate) entry: u64,
    pub(crate) loads: Vec<Segment>,
    pub(crate) headers: Vec<Header>,
    pub(crate) sections: Vec<Section>,
}

impl Elf {
    /// Reads a file that will be mapped and run: every load and the section table must lie inside it.
    pub(crate) fn parse(bytes: Bytes) -> Result<Self, ImageError> {
        Self::read(bytes, true)
    }

    /// Reads a debug file; its loads have no bytes.
    pub(crate) fn parse_debug(bytes: Bytes) -> Result<Self, ImageError> {
        Self::read(bytes, false)
    }

    fn read(bytes: Bytes, runnable: bool) -> Result<Self, ImageError> {
        let data = bytes.get();
        let header = file_header(data)?;
        let machine = match header.e_machine.get(LE) {
            elf::EM_X86_64 => Machine::X86_64,
            elf::EM_AARCH64 => Machine::Aarch64,
            other => return Err(ImageError::Machine(other)),
        };
        let kind = match header.e_type.get(LE) {
            elf::ET_EXEC => ImageKind::Exec,
            elf::ET_DYN => ImageKind::Dyn,
            // What a compiler split off is an object file.
            elf::ET_REL if !runnable => ImageKind::Dyn,
            other => return Err(ImageError::Type(other)),
        };
        let sections = sections(data, header)?;
        let mut loads = Vec::new();
        let mut headers = Vec::new();
        for ph in program_headers(data, header)? {
            let (svma, offset) = (ph.p_vaddr.get(LE), ph.p_offset.get(LE));
            let (filesz, memsz) = (ph.p_filesz.get(LE), ph.p_memsz.get(LE));
            if ph.p_type.get(LE) == elf::PT_LOAD {
                if svma.checked_add(memsz.max(filesz)).is_none() {
                    return Err(ImageError::Malformed("a load ends beyond the address space"));
                }
                if runnable {
                    inside("a loaded segment", offset, filesz, data)?;
                }
                let flags = ph.p_flags.get(LE);
                loads.push(Segment { svma: Svma(svma), offset: FileOffset(offset), filesz, memsz, flags });
            } else {
                headers.push(Header {
                    kind: ph.p_type.get(LE),
                    svma,
                    offset,
                    filesz,
                    memsz,
                    align: ph.p_align.get(LE),
                });
            }
        }
        if loads.len() > MAX_LOADS {
            return Err(ImageError::Malformed("more than 256 loaded segments"));
        }
        if runnable && !loads.iter().any(Segment::executable) {
            return Err(ImageError::NoCode(loads.len() + headers.len()));
        }
        let entry = header.e_entry.get(LE);
        Ok(Self { bytes, kind, machine, entry, loads, headers, sections })
    }

    /// The first section of that name; for `.debug_info` also `.zdebug_info`, as GNU's tools called one that they had packed
    /// before ELF had a flag for it.
    pub(crate) fn section(&self, name: &str) -> Option<&Section> {
        let packed = || name.strip_prefix(".debug_").map(|rest| format!("{PACKED_BY_NAME}{rest}"));
        let named = |name: &str| self.sections.iter().find(|s| s.name == name);
        named(name).or_else(|| named(&packed()?))
    }

    /// A section's bytes as they are in the file; `None` when it has none there or they are compressed.
    pub(crate) fn data(&self, section: &Section) -> Option<&[u8]> {
        let compressed =
            section.flags & u64::from(elf::SHF_COMPRESSED) != 0 || section.name.starts_with(PACKED_BY_NAME);
        if section.kind == elf::SHT_NOBITS || compressed {
            return None;
        }
        slice(self.bytes.get(), section.offset, section.size)
    }

    /// Bytes of the section of that name.
    pub(crate) fn section_data(&self, name: &str) -> Option<&[u8]> {
        self.data(self.section(name)?)
    }

    /// Program header of that type.
    pub(crate) fn header(&self, kind: u32) -> Option<&Header> {
        self.headers.iter().find(|h| h.kind == kind)
    }
    /// Path of the loader that the file names.
    pub(crate) fn interp(&self) -> Option<String> {
        let header = self.header(elf::PT_INTERP)?;
        let path = slice(self.bytes.get(), header.offset, header.filesz)?;
        text(path, 0).map(str::to_owned)
    }

    /// The load that contains an address in its file-backed part, and the offset in it.
    fn load_of(&self, at: u64) -> Option<(&Segment, u64)> {
        self.loads.iter().find_map(|s| {
            let into = at.checked_sub(s.svma.0)?;
            (into < s.filesz).then_some((s, into))
        })
    }

    /// File offset of a loaded byte.
    pub(crate) fn offset_of(&self, at: u64) -> Option<u64> {
        let (segment, into) = self.load_of(at)?;
        segment.offset.0.checked_add(into)
    }

    /// The bytes from an address to the end of its load's file-backed part.
    pub(crate) fn from(&self, at: u64) -> Option<&[u8]> {
        self.rest(self.load_of(at)?)
    }

    fn rest(&self, (segment, into): (&Segment, u64)) -> Option<&[u8]> {
        slice(self.bytes.get(), segment.offset.0.checked_add(into)?, segment.filesz - into)
    }

    /// `len` loaded bytes of code.
    pub(crate) fn text_at(&self, at: u64, len: u64) -> Option<&[u8]> {
        let found = self.load_of(at).filter(|(segment, _)| segment.executable())?;
        self.rest(found)?.get(..usize::try_from(len).ok()?)
    }

    /// `len` loaded bytes.
    pub(crate) fn at(&self, at: u64, len: u64) -> Option<&[u8]> {
        self.from(at)?.get(..usize::try_from(len).ok()?)
    }

    /// Whether an address lies in an executable load.
    pub(crate) fn executable(&self, at: u64) -> bool {
        self.load_of(at).is_some_and(|(s, _)| s.executable())
    }
}

/// `len` bytes at a file offset.
pub(crate) fn slice(data: &[u8], offset: u64, len: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    data.get(start..start.checked_add(usize::try_from(len).ok()?)?)
}

/// As many whole records as the bytes contain.
pub(crate) fn records<T: Pod>(data: &[u8]) -> &[T] {
    slice_from_bytes(data, data.len() / size_of::<T>()).map_or(&[], |(records, _)| records)
}

/// The NUL-terminated text at an offset of a string table; `None` when it is not UTF-8 or is longer than any
/// name.
pub(crate) fn text(table: &[u8], at: u64) -> Option<&str> {
    let rest = table.get(usize::try_from(at).ok()?..)?;
    let rest = &rest[..rest.len().min(MAX_TEXT)];
    std::ffi::CStr::from_bytes_until_nul(rest).ok()?.to_str().ok()
}

pub(crate) fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

pub(crate) fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(data.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn inside(what: &'static str, offset: u64, len: u64, data: &[u8]) -> Result<(), ImageError> {
    let have = data.len() as u64;
    let needed = offset.saturating_add(len);
    if needed > have { Err(ImageError::Truncated { what, needed, have }) } else { Ok(()) }
}

fn file_header(data: &[u8]) -> Result<&elf::FileHeader64<LE>, ImageError> {
    if data.get(..4) != Some(&elf::ELFMAG[..]) {
        return Err(ImageError::NotElf(data.iter().take(4).copied().collect()));
    }
    match data.get(4) {
        Some(&elf::ELFCLASS64) => {}
        Some(&other) => return Err(ImageError::Not64(other)),
        None => inside("the ELF header", 0, 64, data)?,
    }
    match data.get(5) {
        Some(&elf::ELFDATA2LSB) => {}
        Some(&other) => return Err(ImageError::NotLittleEndian(other)),
        None => inside("the ELF header", 0, 64, data)?,
    }
    inside("the ELF header", 0, 64, data)?;
    from_bytes(data).map(|(header, _)| header).map_err(|()| ImageError::Malformed("ELF header"))
}

fn program_headers<'a>(
    data: &'a [u8],
    header: &elf::FileHeader64<LE>,
) -> Result<&'a [elf::ProgramHeader64<LE>], ImageError> {
    let (offset, count) = (header.e_phoff.get(LE), u64::from(header.e_phnum.get(LE)));
    if count > 0 && header.e_phentsize.get(LE) != 56 {
        return Err(ImageError::Malformed("program headers are not 56 bytes each"));
    }
    inside("the program header table", offset, count * 56, data)?;
    Ok(slice(data, offset, count * 56).map_or(&[], records))
}

fn sections(data: &[u8], header: &elf::FileHeader64<LE>) -> Result<Vec<Section>, ImageError> {
    let offset = header.e_shoff.get(LE);
    if offset == 0 {
        return Ok(Vec::new());
    }
    if header.e_shentsize.get(LE) != 64 {
        return Err(ImageError::Malformed("section headers are not 64 bytes each"));
    }
    inside("the section header table", offset, 64, data)?;
    let first: &elf::SectionHeader64<LE> = match slice(data, offset, 64).map(records) {
        Some([first]) => first,
        _ => return Err(ImageError::Malformed("section header table")),
    };
    // If there are more than 0xff00 sections, the numbers are in the first header.
    let count = match header.e_shnum.get(LE) {
        0 => first.sh_size.get(LE),
        n => u64::from(n),
    };
    let names = match header.e_shstrndx.get(LE) {
        elf::SHN_XINDEX => first.sh_link.get(LE),
        n => u32::from(n),
    };
    let len = count.saturating_mul(64);
    inside("the section header table", offset, len, data)?;
    let table: &[elf::SectionHeader64<LE>] = slice(data, offset, len).map_or(&[], records);
    let strings = table
        .get(names as usize)
        .and_then(|s| slice(data, s.sh_offset.get(LE), s.sh_size.get(LE)))
        .unwrap_or_default();
    let section = |s: &elf::SectionHeader64<LE>| Section {
        name: text(strings, u64::from(s.sh_name.get(LE))).unwrap_or_default().chars().take(256).collect(),
        kind: s.sh_type.get(LE),
        flags: s.sh_flags.get(LE),
        svma: s.sh_addr.get(LE),
        offset: s.sh_offset.get(LE),
        size: s.sh_size.get(LE),
        link: s.sh_link.get(LE),
    };
    Ok(table.iter().map(section).collect())
}
