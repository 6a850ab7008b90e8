//! Unwind entries: the bounds of functions and their pieces in files without symbols, and landing pads of
//! exceptions.
//!
//! In: `.eh_frame` and the language-specific areas that it refers to. Out: ranges, sorted. If an entry's
//! first row is not the state right after a call, it describes a piece of a function (`foo.cold`) or a signal
//! trampoline, not a function. Its instructions before the first advance already move the CFA or save a
//! register.
//! Does not: unwind.

use crate::elf::{Elf, Machine};
use gimli::{BaseAddresses, CallFrameInstruction, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use object::elf as constants;
use std::collections::HashMap;
use trapline_record::Svma;

use crate::locals::{Frame, general_x86_64};

type Slice<'a> = gimli::EndianSlice<'a, LittleEndian>;

/// One frame description entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fde {
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// Address of its language-specific data.
    pub(crate) lsda: Option<u64>,
    /// Not a function's beginning: a cold piece, or a signal trampoline.
    pub(crate) fragment: bool,
}

impl Fde {
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// All entries in executable loads, sorted by start, one for each start.
pub(crate) fn entries(elf: &Elf) -> Vec<Fde> {
    let Some((svma, data)) = eh_frame(elf) else { return Vec::new() };
    let section = EhFrame::new(data, LittleEndian);
    let mut bases = BaseAddresses::default().set_eh_frame(svma);
    if let Some(text) = elf.section(".text") {
        bases = bases.set_text(text.svma);
    }
    let entry_cfa = match elf.machine {
        Machine::X86_64 => 8,
        Machine::Aarch64 => 0,
    };
    // `called`: by the offset of a CIE, whether its state is that of a function just called.
    let (mut cies, mut called) = (HashMap::new(), HashMap::new());
    let mut found = Vec::new();
    let mut walk = section.entries(&bases);
    // A malformed entry ends the walk; entries before it stay.
    while let Ok(Some(entry)) = walk.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let parsed = partial.parse(|section, bases, offset| {
            if let Some(cie) = cies.get(&offset) {
                return Ok(gimli::CommonInformationEntry::clone(cie));
            }
            let cie = section.cie_from_offset(bases, offset)?;
            called.insert(cie.offset(), common_start_is_called(cie.instructions(section, bases), entry_cfa));
            cies.insert(offset, cie.clone());
            Ok(cie)
        });
        let Ok(fde) = parsed else { continue };
        let (start, len) = (fde.initial_address(), fde.len());
        if len == 0 || !elf.executable(start) || start.checked_add(len).is_none() {
            continue;
        }
        let lsda = fde.lsda().and_then(|pointer| match pointer {
            gimli::Pointer::Direct(at) => Some(at),
            gimli::Pointer::Indirect(at) => elf.at(at, 8).and_then(|word| crate::elf::u64_at(word, 0)),
        });
        let fragment = fde.is_signal_trampoline()
            || called.get(&fde.cie().offset()) == Some(&false)
            || !starts_as_called(fde.instructions(&section, &bases), entry_cfa);
        found.push(Fde { start, len, lsda, fragment });
    }
    found.sort_unstable_by_key(|fde| (fde.start, std::cmp::Reverse(fde.len)));
    found.dedup_by_key(|fde| fde.start);
    found
}

/// Where the canonical frame address is at an instruction; `None`: it is not known, or computed.
pub(crate) fn frame(elf: &Elf, at: Svma) -> Option<Frame> {
    let (svma, data) = eh_frame(elf)?;
    let section = EhFrame::new(data, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(svma);
    let bases = elf.section(".text").map_or_else(|| bases.clone(), |text| bases.clone().set_text(text.svma));
    let mut context = gimli::UnwindContext::new();
    let row = section.unwind_info_for_address(&bases, &mut context, at.0, EhFrame::cie_from_offset).ok()?;
    let gimli::CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { return None };
    let base = match elf.machine {
        Machine::X86_64 => general_x86_64(register.0)?,
        Machine::Aarch64 => u8::try_from(register.0).ok().filter(|nth| *nth < 32)?,
    };
    Some(Frame { base, offset: i32::try_from(*offset).ok()? })
}

/// Whether the first state that entries have in common (their CIE's) is that of a function just called.
fn common_start_is_called(
    mut instructions: gimli::CallFrameInstructionIter<'_, Slice<'_>>,
    entry_cfa: u64,
) -> bool {
    let mut cfa = entry_cfa;
    while let Ok(Some(instruction)) = instructions.next() {
        if let CallFrameInstruction::DefCfa { offset, .. } | CallFrameInstruction::DefCfaOffset { offset } =
            instruction
        {
            cfa = offset;
        }
    }
    cfa == entry_cfa
}

/// Whether the first state of the rows is that of a function just called.
fn starts_as_called(
    mut instructions: gimli::CallFrameInstructionIter<'_, Slice<'_>>,
    entry_cfa: u64,
) -> bool {
    while let Ok(Some(instruction)) = instructions.next() {
        match instruction {
            CallFrameInstruction::AdvanceLoc { .. } | CallFrameInstruction::SetLoc { .. } => return true,
            CallFrameInstruction::DefCfaOffset { offset } if offset == entry_cfa => {}
            CallFrameInstruction::DefCfa { .. }
            | CallFrameInstruction::DefCfaSf { .. }
            | CallFrameInstruction::DefCfaRegister { .. }
            | CallFrameInstruction::DefCfaOffset { .. }
            | CallFrameInstruction::DefCfaOffsetSf { .. }
            | CallFrameInstruction::DefCfaExpression { .. }
            | CallFrameInstruction::Offset { .. }
            | CallFrameInstruction::OffsetExtendedSf { .. } => return false,
            _ => {}
        }
    }
    true
}

/// `.eh_frame`, found by its section, or by `.eh_frame_hdr` if sections were stripped.
fn eh_frame(elf: &Elf) -> Option<(u64, &[u8])> {
    if let Some(section) = elf.section(".eh_frame") {
        return Some((section.svma, elf.data(section)?));
    }
    let header = elf.header(constants::PT_GNU_EH_FRAME)?;
    let bytes = elf.at(header.svma, header.filesz)?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.svma);
    let parsed = gimli::EhFrameHdr::new(bytes, LittleEndian).parse(&bases, 8).ok()?;
    let gimli::Pointer::Direct(at) = parsed.eh_frame_ptr() else { return None };
    Some((at, elf.from(at)?))
}

/// Landing pads of exceptions that are thrown through these entries.
pub(crate) fn landing_pads(elf: &Elf, fdes: &[Fde]) -> Vec<u64> {
    let mut pads = Vec::new();
    // The tables of a valid file do not overlap, so together they are shorter than the file. In a forged file
    // all may be the same.
    let mut budget = elf.bytes.get().len();
    for fde in fdes {
        if let Some(at) = fde.lsda {
            // From a malformed area, what was read before the fault is used.
            let _ = call_sites(elf, at, fde, &mut pads, &mut budget);
        }
    }
    pads
}

/// Reads one area's call-site table: (start, length, landing pad, action), all encoded as its header says.
fn call_sites(elf: &Elf, at: u64, fde: &Fde, pads: &mut Vec<u64>, budget: &mut usize) -> Option<()> {
    let mut area = Cursor { data: elf.from(at)?, at: 0 };
    let base = match area.u8()? {
        0xff => fde.start,
        encoding => {
            let place = at + area.at as u64;
            let value = area.encoded(encoding)?;
            if encoding & 0x70 == 0x10 { place.wrapping_add(value) } else { value }
        }
    };
    if area.u8()? != 0xff {
        area.uleb()?;
    }
    let encoding = area.u8()?;
    let len = usize::try_from(area.uleb()?).ok()?;
    let end = area.at.checked_add(len)?;
    while area.at < end {
        *budget = budget.checked_sub(4)?;
        let (_start, _len) = (area.encoded(encoding)?, area.encoded(encoding)?);
        let pad = area.encoded(encoding)?;
        area.uleb()?;
        let target = base.wrapping_add(pad);
        if pad != 0 && elf.executable(target) {
            pads.push(target);
        }
    }
    Some(())
}

struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn u8(&mut self) -> Option<u8> {
        let byte = *self.data.get(self.at)?;
        self.at += 1;
        Some(byte)
    }
    fn uleb(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
    fn sleb(&mut self) -> Option<u64> {
        let begin = self.at;
        let value = self.uleb()?;
        let bits = 7 * (self.at - begin);
        let negative = self.data[self.at - 1] & 0x40 != 0;
        Some(if negative && bits < 64 { value | (u64::MAX << bits) } else { value })
    }
    /// A value in one of DWARF's pointer formats. The caller adds the base that it is relative to.
    fn encoded(&mut self, encoding: u8) -> Option<u64> {
        let (size, signed) = match encoding & 0x0f {
            0x1 => return self.uleb(),
            0x9 => return self.sleb(),
            0x2 => (2, false),
            0x3 => (4, false),
            0x0 | 0x4 | 0xc => (8, false),
            0xa => (2, true),
            0xb => (4, true),
            _ => return None,
        };
        let bytes = self.data.get(self.at..self.at.checked_add(size)?)?;
        self.at += size;
        let value = bytes.iter().rev().fold(0u64, |value, &byte| (value << 8) | u64::from(byte));
        let unused = 64 - 8 * size as u32;
        Some(if signed { ((value << unused).cast_signed() >> unused).cast_unsigned() } else { value })
    }
}
