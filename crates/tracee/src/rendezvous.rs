//! Where a program's loader tells debuggers that all libraries are mapped: the function `_dl_debug_state`.
//!
//! In: the loader's address, memory. Out: the function's address, and a word that says what the loader does.
//! Does not: change anything, or wait.
//!
//! When a program starts, glibc calls that function twice: before it maps libraries, and when all of them are
//! mapped and relocated. Functions that choose implementations have run by then, constructors have not. musl
//! calls it once, at the same time. So does each `dlopen` later. The protocol is that of System V's `r_debug`
//! (`link.h`); both libraries export it under the same names, for debuggers.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::auxv::loader;
use crate::maps::{self, Mapping};
use crate::procfs;
use crate::waiting::memory;

/// Offsets of the list of libraries and of the state in `struct r_debug`, and the state's value when the list is
/// complete. Before the loader has begun, there is no list.
const LIST: u64 = 8;
const STATE: u64 = 24;
const COMPLETE: u32 = 0;
/// Tags of the dynamic section.
const STRTAB: u64 = 5;
const SYMTAB: u64 = 6;
const STRSZ: u64 = 10;
/// Types of program headers: the dynamic section, and what is read-only once the loader has relocated it.
const PT_DYNAMIC: u32 = 2;
const PT_GNU_RELRO: u32 = 0x6474_e552;
/// Granularity in which the loader makes memory read-only.
const PAGE: u64 = 4096;
/// Offset of the program headers in all files.
const HEADERS: u64 = 64;
/// Bytes of a symbol.
const SYMBOL: usize = 24;
/// Bounds of what is read; a loader's tables have some kilobytes, those of musl fifty.
const MOST_HEADERS: u64 = 64;
const MOST_BYTES: u64 = 1 << 20;

/// The function, and the loader's `r_debug`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rendezvous {
    /// Address of the function's first instruction.
    pub(crate) at: u64,
    /// Address of the structure.
    pub(crate) list: u64,
}

impl Rendezvous {
    /// Finds it in the loader that is mapped at `base`; `None` if that has no such function, or tells where its
    /// structure is only when it has run (musl).
    pub(crate) fn of(memory: &File, base: u64) -> Option<Self> {
        let symbols = Loader { memory, base }.symbols().ok()?;
        let find = |wanted: &[u8]| symbols.iter().find(|(name, _)| name == wanted).map(|one| one.1);
        Some(Self { at: find(b"_dl_debug_state")?, list: find(b"_r_debug")? })
    }
    /// Address of the word that says what the loader does.
    pub(crate) const fn state(self) -> u64 {
        self.list + STATE
    }
    /// Whether all libraries are mapped.
    fn is_complete(self, memory: &File) -> bool {
        let word = |at: u64| {
            let mut bytes = [0; 8];
            memory.read_exact_at(&mut bytes, at).ok().map(|()| u64::from_le_bytes(bytes))
        };
        let is_begun = word(self.list + LIST).is_some_and(|list| list != 0);
        is_begun && word(self.state()).is_some_and(|word| word as u32 == COMPLETE)
    }
}

/// Whether a process has passed its rendezvous; true also if it has none, or is gone.
pub(crate) fn is_passed(pid: u32) -> bool {
    let (Some(loader), Ok(memory)) = (loader(pid), memory(pid)) else { return true };
    Rendezvous::of(&memory, loader).is_none_or(|rendezvous| rendezvous.is_complete(&memory))
}

/// Whether a program's loader is still at its start, so that no code of the program or of its libraries has run. It maps
/// all of them, relocates them, and then makes memory read-only that the program's headers name: that memory can be
/// written until then. `headers`: address of the program headers. False for a program that names no such memory.
pub(crate) fn is_starting(pid: u32, memory: &File, headers: u64) -> bool {
    let program = Loader { memory, base: headers.saturating_sub(HEADERS) };
    let Ok((start, len)) = program.segment(PT_GNU_RELRO) else { return false };
    let first = start / PAGE * PAGE;
    let text = procfs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let holds = |one: &Mapping| (one.start.0..one.end.0).contains(&first);
    (start + len) / PAGE * PAGE > first && maps::parse(&text).iter().any(|one| holds(one) && one.perms.write)
}

/// Whether a program holds the runtime of a sanitizer, or needs it as a library. `headers`: address of its program
/// headers.
pub(crate) fn holds_sanitizer(memory: &File, headers: u64) -> bool {
    // gcc's static runtimes export only the functions of the C library that they stand in front of.
    const RUNTIMES: [&[u8]; 5] =
        [b"__asan_init", b"__tsan_init", b"__msan_init", b"__hwasan_init", b"pthread_getcpuclockid"];
    const LIBRARIES: [&[u8]; 5] = [b"libasan.", b"libtsan.", b"libhwasan.", b"liblsan.", b"libclang_rt."];
    let program = Loader { memory, base: headers.saturating_sub(HEADERS) };
    let needed = program.names().is_ok_and(|text| {
        text.split(|&byte| byte == 0).any(|name| LIBRARIES.iter().any(|library| name.starts_with(library)))
    });
    let has = |symbols: Vec<(Vec<u8>, u64)>| symbols.iter().any(|(name, _)| RUNTIMES.contains(&&name[..]));
    needed || program.symbols().is_ok_and(has)
}

/// A loader's file, or a program's, as it is mapped.
struct Loader<'a> {
    memory: &'a File,
    base: u64,
}

impl Loader<'_> {
    fn bytes(&self, at: u64, len: u64) -> io::Result<Vec<u8>> {
        if len > MOST_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; len as usize];
        self.memory.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }
    /// Address of a table. glibc's loader relocates its own dynamic section, musl's does not.
    fn address(&self, word: u64) -> u64 {
        if word < self.base { self.base + word } else { word }
    }
    /// Names and addresses of its exported symbols.
    fn symbols(&self) -> io::Result<Vec<(Vec<u8>, u64)>> {
        let none = || io::Error::from(io::ErrorKind::InvalidData);
        let dynamic = self.dynamic()?;
        let find = |tag: u64| dynamic.iter().find(|one| one.0 == tag).map(|one| self.address(one.1));
        let (symbols, names) = (find(SYMTAB).ok_or_else(none)?, find(STRTAB).ok_or_else(none)?);
        // The table of names lies behind that of symbols in all loaders.
        let len = names.checked_sub(symbols).ok_or_else(none)?;
        let table = self.bytes(symbols, len)?;
        let text = self.names()?;
        // Other tables may lie between the two; what they hold names no symbol.
        let symbol = |entry: &[u8]| {
            let (at, value) = (half(entry, 0)?, word(entry, 8)?);
            let name = text.get(at as usize..)?.split(|&byte| byte == 0).next()?;
            (at != 0 && value != 0).then(|| (name.to_vec(), self.base.wrapping_add(value)))
        };
        Ok(table.chunks_exact(SYMBOL).filter_map(symbol).collect())
    }
    /// Its table of names, which also has those of the libraries that it needs.
    fn names(&self) -> io::Result<Vec<u8>> {
        let none = || io::Error::from(io::ErrorKind::InvalidData);
        let dynamic = self.dynamic()?;
        let find = |tag: u64| dynamic.iter().find(|one| one.0 == tag).map(|one| one.1).ok_or_else(none);
        self.bytes(self.address(find(STRTAB)?), find(STRSZ)?)
    }
    /// Pairs of its dynamic section.
    fn dynamic(&self) -> io::Result<Vec<(u64, u64)>> {
        let (at, len) = self.segment(PT_DYNAMIC)?;
        let section = self.bytes(at, len)?;
        Ok(section.chunks_exact(16).filter_map(|pair| Some((word(pair, 0)?, word(pair, 8)?))).collect())
    }
    /// Address and length of the first segment of a type.
    fn segment(&self, kind: u32) -> io::Result<(u64, u64)> {
        let none = || io::Error::from(io::ErrorKind::InvalidData);
        let header = self.bytes(self.base, 64)?;
        if header[..4] != *b"\x7FELF" {
            return Err(none());
        }
        let (at, count) = (word(&header, 32).ok_or_else(none)?, half(&header, 56).ok_or_else(none)? & 0xFFFF);
        let headers = self.bytes(self.base + at, u64::from(count).min(MOST_HEADERS) * 56)?;
        let is_it = |header: &&[u8]| half(header, 0) == Some(kind);
        let header = headers.chunks_exact(56).find(is_it).ok_or_else(none)?;
        let (at, len) = (word(header, 16).ok_or_else(none)?, word(header, 40).ok_or_else(none)?);
        Ok((self.address(at), len))
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::Rendezvous;
    use std::fs::File;
    use std::process::Command;

    /// Judge: readelf.
    #[test]
    fn the_loader_of_this_program_has_one() {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("own maps");
        let is_loader = |line: &&str| line.contains("/ld-linux") || line.contains("/ld-musl");
        let Some(line) = maps.lines().find(is_loader) else {
            return eprintln!("SKIPPED the loader's rendezvous: this program is static");
        };
        let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
        let base = number(line.split('-').next().expect("an address"));
        let memory = File::open("/proc/self/mem").expect("own memory");
        let found = Rendezvous::of(&memory, base).expect("a rendezvous");
        let path = line.split_whitespace().last().expect("a path");
        let table = Command::new("readelf").args(["-W", "--dyn-syms", path]).output().expect("readelf");
        let table = String::from_utf8_lossy(&table.stdout).into_owned();
        let symbol = table.lines().find(|line| line.contains(" _dl_debug_state")).expect("it is exported");
        let value = number(symbol.split_whitespace().nth(1).expect("its value"));
        assert_eq!(found.at, base + value, "{table}");
        assert!(found.is_complete(&memory));
    }
}
