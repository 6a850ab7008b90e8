//! Unwinds copied stacks by the tables that compilers write for exceptions (.eh_frame, .debug_frame), with
//! framehop.
//!
//! In: the top of a stack, with the registers that unwinding needs; the files that are mapped. Out: return
//! addresses. A copied stack is untrusted input, as all records are: nothing outside the copy is read, and no
//! stack has more than [`MOST`] addresses. Does not: know processes.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};
use object::elf::PF_X;
use object::{Object as _, ObjectSection as _, ObjectSegment as _, ReadCache, SegmentFlags};

use super::frame::{StackCopy, StackFile};
use super::native::registers::{Cache, Unwinder, registers};
use super::seen_code::SeenCode;

/// Most return addresses of a stack.
pub(crate) const MOST: usize = 1000;

type Bytes = Arc<[u8]>;

/// What a file has for unwinding.
#[derive(Clone, Default)]
struct Tables {
    /// Executable segments: file offset, address in the file's own terms, length. Others may share a page of the
    /// file with them: linkers that waste no bytes put two segments there, at different distances.
    segments: Vec<(u64, u64, u64)>,
    /// Address and bytes.
    eh_frame: Option<(u64, Bytes)>,
    eh_frame_hdr: Option<(u64, Bytes)>,
    debug_frame: Option<Bytes>,
    text: Option<(u64, u64)>,
    got: Option<(u64, u64)>,
}

/// Unwinds the copies of one process.
#[derive(Default)]
pub(crate) struct Copies {
    unwinder: Unwinder<Bytes>,
    cache: Cache,
    /// Tables by file; the file is held, so its address stays.
    tables: HashMap<usize, (Arc<StackFile>, Tables)>,
    /// Start addresses of modules that the unwinder knows.
    known: Vec<u64>,
    /// Version of the places that the unwinder knows.
    version: u64,
}

impl std::fmt::Debug for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copies").field("known", &self.known).finish_non_exhaustive()
    }
}

impl Copies {
    /// Writes return addresses to `to`, innermost first. Returns whether the stack goes on.
    pub(crate) fn unwind(&mut self, places: &SeenCode, copy: StackCopy<'_>, to: &mut Vec<u64>) -> bool {
        self.add_code(places);
        to.clear();
        let (regs, stack) = registers(&copy);
        let mut read = |at: u64| {
            let nth = at.checked_sub(copy.sp).filter(|past| past % 8 == 0).map(|past| past / 8);
            let word = nth.and_then(|nth| stack.get(usize::try_from(nth).ok()?));
            word.copied().ok_or(())
        };
        let mut frames = self.unwinder.iter_frames(copy.pc, regs, &mut self.cache, &mut read);
        loop {
            match frames.next() {
                Ok(Some(FrameAddress::InstructionPointer(_))) => {}
                Ok(Some(FrameAddress::ReturnAddress(_))) if to.len() == MOST => return true,
                Ok(Some(FrameAddress::ReturnAddress(address))) => to.push(address.get()),
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
    }
    /// Gives the unwinder the mapped modules, if they have changed.
    fn add_code(&mut self, places: &SeenCode) {
        if self.version == places.version() {
            return;
        }
        self.version = places.version();
        self.known.drain(..).for_each(|start| self.unwinder.remove_module(start));
        for (start, end, file, offset) in places.files() {
            let key = Arc::as_ptr(file).addr();
            let (_, tables) =
                self.tables.entry(key).or_insert_with(|| (Arc::clone(file), Tables::of(file.file.as_ref())));
            if let Some(module) = tables.module(&file.path, (start, end), offset) {
                self.unwinder.add_module(module);
                self.known.push(start);
            }
        }
    }
}

impl Tables {
    /// Empty for a file that cannot be read.
    fn of(file: Option<&File>) -> Self {
        file.and_then(|file| Self::read(file.try_clone().ok()?)).unwrap_or_default()
    }
    fn read(file: File) -> Option<Self> {
        let cache = ReadCache::new(file);
        let elf = object::File::parse(&cache).ok()?;
        let section = |name: &str| elf.section_by_name(name);
        let bytes = |name: &str| {
            let section = section(name)?;
            let data = section.uncompressed_data().ok()?;
            (!data.is_empty()).then(|| (section.address(), Bytes::from(&*data)))
        };
        let range = |name: &str| section(name).map(|section| (section.address(), section.size()));
        let is_code = |segment: &object::Segment<'_, '_, _>| matches!(segment.flags(), SegmentFlags::Elf { p_flags } if p_flags & PF_X != 0);
        let segment = |segment: object::Segment<'_, '_, _>| {
            let (offset, len) = segment.file_range();
            (offset, segment.address(), len)
        };
        Some(Self {
            segments: elf.segments().filter(is_code).map(segment).collect(),
            eh_frame: bytes(".eh_frame"),
            eh_frame_hdr: bytes(".eh_frame_hdr"),
            debug_frame: bytes(".debug_frame").map(|(_, bytes)| bytes),
            text: range(".text"),
            got: range(".got"),
        })
    }
    /// Module to which a range of code belongs.
    fn module(&self, path: &str, (start, end): (u64, u64), offset: u64) -> Option<Module<Bytes>> {
        const PAGE: u64 = 4096;
        let holds = |&&(at, _, len): &&(u64, u64, u64)| (at & !(PAGE - 1)..at + len).contains(&offset);
        let &(at, address, _) = self.segments.iter().find(holds)?;
        let bias = start.wrapping_sub(address.wrapping_add(offset).wrapping_sub(at));
        let range = |at: u64, len: u64| at..at.saturating_add(len);
        let of =
            |table: &Option<(u64, Bytes)>| table.as_ref().map(|(at, bytes)| range(*at, bytes.len() as u64));
        let data = |table: &Option<(u64, Bytes)>| table.as_ref().map(|(_, bytes)| Arc::clone(bytes));
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: self.text.map(|(at, len)| range(at, len)),
            text: None,
            stubs_svma: None,
            stub_helper_svma: None,
            got_svma: self.got.map(|(at, len)| range(at, len)),
            unwind_info: None,
            eh_frame_svma: of(&self.eh_frame),
            eh_frame: data(&self.eh_frame),
            eh_frame_hdr_svma: of(&self.eh_frame_hdr),
            eh_frame_hdr: data(&self.eh_frame_hdr),
            debug_frame: self.debug_frame.clone(),
            text_segment_svma: None,
            text_segment: None,
        };
        Some(Module::new(path.to_owned(), start..end, bias, sections))
    }
}

#[cfg(test)]
mod tests {
    use super::{Copies, MOST, StackCopy};
    use crate::stacks::SeenCode;

    /// Without tables, frames are followed by frame pointers, within the copy.
    #[test]
    fn nothing_is_read_outside_a_copy() {
        let (mut copies, places, mut to) = (Copies::default(), SeenCode::default(), Vec::new());
        let mut unwind = |sp: u64, frame: u64, words: &[u64]| {
            let cut = copies.unwind(&places, StackCopy { pc: 0x1000, sp, frame, words }, &mut to);
            (cut, to.clone())
        };
        for (sp, frame) in [(0x7000, 0x7000), (0, 0), (u64::MAX - 7, 8), (0x7000, 0x6ff8), (0x7000, 0x7001)] {
            let (_, addresses) = unwind(sp, frame, &[]);
            assert!(addresses.is_empty(), "{sp:#x} {frame:#x}");
        }
        let round: Vec<u64> =
            (0..4000).map(|n| if n % 2 == 0 { 0x7000 + (n + 2) * 8 } else { 0x2000 + n }).collect();
        let (cut, addresses) = unwind(0x7000, 0x7000, &round);
        assert!(cut && addresses.len() <= MOST, "{}", addresses.len());
    }
}
