//! Where files' code is mapped in this process, for readers that take no lock.
//!
//! In: the maps as the system states them, at each look. Out: which ranges changed since the last look; for
//! any thread, at any time, which file is mapped at an address ([`code_at`]), and a picture of all code at
//! one moment ([`code`]). Invariants: RGN-1 to RGN-5, which `trapline_runtime::regions` keeps. Does not:
//! decide when to look (`notice`), or choose what is probed.

use std::sync::OnceLock;

use trapline_record::{FileId, FileOffset, RemoteAddr};
use trapline_runtime::epoch::{Seal, ThreadPointer, Writer};
use trapline_runtime::regions::{self, Access, Mapped, PictureError, Range, Regions};
use trapline_runtime::registry::{FileSite, Files};
use trapline_tracee::Mapping;

use super::memory::{made, mapping_entries};
use super::notice::missed;

static REGIONS: OnceLock<Option<Regions>> = OnceLock::new();

/// Regions of this process, as hits look them up; for the holder of the engine's lock (see
/// [`engine`](super::memory::engine)).
pub(super) fn regions() -> Option<&'static Regions> {
    REGIONS.get_or_init(|| mapping_entries().map(Regions::new)).as_ref()
}

/// How often a region that is just changing is read before the reader gives up.
const LOOKS: u32 = 64;

/// Place of an address in a file's code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CodePlace {
    /// Device and inode of the file.
    pub file: FileId,
    /// Bytes from the start of the file.
    pub offset: u64,
}

/// A mapping of a file's code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Code {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The file, and the offset in it at which the mapping begins.
    pub place: CodePlace,
    /// Whether breakpoints can be set there: the mapping is private, not writable, and not of huge pages.
    pub takes_breakpoints: bool,
}

/// Finds the file with an address in its code, and the offset there; a stack is read with it. Takes no lock,
/// allocates nothing and may be called anywhere, even in a [`Consumer`](super::Consumer). It knows what was
/// mapped at the last look (see [`noticed`](super::noticed)).
///
/// `None` means one of three things. No file's code is known there; then the maps are read again soon, and a
/// later question for the same address finds what is there. Or the mapping kept changing while it was read.
/// Or more threads ask than there is room for.
#[must_use]
pub fn code_at(addr: u64) -> Option<CodePlace> {
    let found = known_at(addr);
    if found.is_none() {
        missed();
    }
    found
}

/// The same, but no look follows.
pub(super) fn known_at(addr: u64) -> Option<CodePlace> {
    let (engine, regions) = (made()?, REGIONS.get()?.as_ref()?);
    let (_, line) = engine.lines().of(ThreadPointer::own())?;
    let seal = Seal::new();
    let inside = line.enter(&seal);
    let found = (0..LOOKS).find_map(|_| regions.module(&inside, RemoteAddr(addr)).ok())??;
    Some(CodePlace { file: found.0, offset: found.1.0 })
}

/// All code of files that is mapped, as of one moment, in order of address. Others may map and unmap
/// meanwhile: no thread is stopped or waited for.
///
/// # Errors
/// If the mappings changed all the time, faster than they could be read.
pub fn code() -> Result<Vec<Code>, PictureError> {
    /// Room to begin with; it grows as needed.
    const ROOM: usize = 256;
    let Some(regions) = REGIONS.get().and_then(Option::as_ref) else { return Ok(Vec::new()) };
    let mut room = vec![None; ROOM];
    loop {
        match regions.picture(&mut room) {
            Ok(n) => return Ok(room[..n].iter().flatten().map(stated).collect()),
            Err(PictureError::TooMany) => room.resize(room.len() * 2, None),
            Err(other) => return Err(other),
        }
    }
}

fn stated(one: &Mapped) -> Code {
    let place = CodePlace { file: one.file, offset: one.offset.0 };
    Code { start: one.start.0, end: one.end.0, place, takes_breakpoints: one.takes_breakpoints }
}

/// A range in which something else is mapped than at the last look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Changed {
    pub(super) start: RemoteAddr,
    pub(super) end: RemoteAddr,
    /// The file that was there, or is there now.
    pub(super) file: FileId,
}

/// The writer's side.
#[derive(Debug, Default)]
pub(super) struct MappedFiles {
    map: Option<regions::Map>,
    files: Files,
    /// Regions for which the tables had no room.
    pub(super) missed: u64,
}

impl MappedFiles {
    /// Whether a file's code is known in a range.
    pub(super) fn overlaps(&self, start: RemoteAddr, end: RemoteAddr) -> bool {
        let mut all = self.map.iter().flat_map(regions::Map::iter);
        all.any(|one| one.start < end && start < one.end)
    }
    /// Makes these maps visible to readers. Returns what changed. A region for which the table has no room
    /// stays unknown, and takes no probe by trap.
    pub(super) fn follow(&mut self, writer: &mut Writer, maps: &[Mapping]) -> Vec<Changed> {
        let Some(regions) = regions() else { return Vec::new() };
        let map = self.map.get_or_insert_with(|| regions::Map::new(regions));
        let now: Vec<regions::Mapping> = maps.iter().filter_map(code_of).collect();
        let is_here = |list: &[regions::Mapping], one: &regions::Mapping| {
            list.binary_search_by_key(&one.start, |other| other.start).is_ok_and(|at| list[at] == *one)
        };
        let before: Vec<regions::Mapping> = map.iter().copied().collect();
        // First come the regions that exist. A region that was cut, or may be written now, goes from one
        // state to the next without a gap in which its traps would be unknown. After that, what is left of
        // others is gone.
        let new: Vec<_> = now.iter().filter(|one| !is_here(&before, one)).collect();
        for one in &new {
            self.missed += u64::from(map.map(writer, &mut self.files, **one).is_err());
        }
        let left: Vec<regions::Mapping> = map.iter().copied().filter(|one| !is_here(&now, one)).collect();
        for range in left.iter().filter_map(|one| Range::new(one.start, one.end)) {
            self.missed += u64::from(map.unmap(writer, range).is_err());
        }
        let gone = before.iter().filter(|one| !is_here(&now, one));
        gone.chain(new).map(|one| Changed { start: one.start, end: one.end, file: one.file }).collect()
    }
    /// A (file, offset) in the form that hits use.
    pub(super) fn site(&mut self, file: FileId, offset: FileOffset) -> Option<FileSite> {
        FileSite::new(self.files.number(file).ok()?, offset).ok()
    }
    /// The map that [`follow`](Self::follow) keeps.
    pub(super) const fn map(&self) -> Option<&regions::Map> {
        self.map.as_ref()
    }
}

/// A mapping in the engine's form, if it is of a file's code.
fn code_of(one: &Mapping) -> Option<regions::Mapping> {
    let file = one.file.filter(|_| one.perms.exec)?;
    let access = Access { exec: true, write: one.perms.write, shared: one.perms.shared, huge: is_huge(one) };
    Some(regions::Mapping { start: one.start, end: one.end, offset: one.offset, file, access })
}

/// Whether a mapping takes breakpoints (RGN-4).
pub(super) fn takes_breakpoints(one: &Mapping) -> bool {
    code_of(one).is_some_and(|one| one.access.takes_breakpoints())
}

/// Whether a mapping is of hugetlbfs: those mappings all consist of whole huge pages. Only such a mapping is
/// worth reading `smaps`, which walks all page tables.
fn is_huge(one: &Mapping) -> bool {
    const HUGE: u64 = 2 << 20;
    let whole = [one.start.0, one.end.0, one.offset.0].iter().all(|at| at.is_multiple_of(HUGE));
    whole && std::fs::read_to_string("/proc/self/smaps").is_ok_and(|smaps| page_kib(&smaps, one.start) > 4)
}

/// Page size in KiB of the mapping that begins there, from a text like `/proc/self/smaps`; 0 if there is
/// none.
fn page_kib(smaps: &str, start: RemoteAddr) -> u64 {
    let head = format!("{:x}-", start.0);
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&head));
    let size = lines.find_map(|line| line.strip_prefix("KernelPageSize:"));
    size.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::system::HugeCode;
    use super::{code_of, page_kib, takes_breakpoints};
    use trapline_record::RemoteAddr;
    use trapline_tracee::Process;

    #[test]
    fn a_file_of_huge_pages_takes_no_breakpoints() {
        let code = match HugeCode::map() {
            Ok(code) => code,
            Err(why) => return println!("SKIP: {why}"),
        };
        let maps = Process::open(std::process::id()).and_then(|own| own.maps()).expect("our own maps");
        let here = maps.iter().find(|one| one.start.0 == code.start()).expect("mapped");
        assert_eq!(code_of(here).map(|one| one.access.huge), Some(true));
        assert!(!takes_breakpoints(here));
    }

    #[test]
    fn huge_pages_are_as_the_system_shows_them() {
        let smaps = "400000-600000 r-xp 0 0:1 5 /x\nSize: 2048 kB\nKernelPageSize:        4 kB\nMMUPageSize: 4 kB\n\
                     800000-a00000 r-xp 0 0:1 6 /y\nSize: 2048 kB\nKernelPageSize:     2048 kB\n";
        let of = |start| page_kib(smaps, RemoteAddr(start));
        assert_eq!((of(0x40_0000), of(0x80_0000), of(0x90_0000)), (4, 2048, 0));
    }
}
