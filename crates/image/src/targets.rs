//! Code addresses in data: the addresses that indirect jumps and calls, the loader and the unwinder may
//! reach.
//!
//! In: relocations, arrays, symbols, data words of position-dependent programs. Out: addresses, sorted. An
//! address that may be code but is not surely code is included: a target too many costs a refusal, one too
//! few a crash (SAFE-5).
//! Does not: see addresses that instructions compute (`lea`, jump tables of 32-bit distances); the planner
//! reads those.

use crate::dynamic::{Dynamic, Reloc, RelocKind};
use crate::elf::{Elf, ImageKind, u32_at, u64_at};
use crate::symbols::SymbolTable;
use object::LittleEndian as LE;
use object::elf as constants;
use trapline_record::Svma;

/// A critical section of restartable sequences (`struct rseq_cs`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RseqSection {
    /// Address of the first byte.
    pub start: Svma,
    /// Length in bytes, to the end of the commit.
    pub len: u64,
    /// Address at which the kernel continues an aborted sequence.
    pub abort: Svma,
}

/// The word at an address as the loader leaves it, minus the load bias.
fn word(elf: &Elf, relocs: &[Reloc], at: u64) -> Option<u64> {
    match relocs.binary_search_by_key(&at, |r| r.word) {
        Ok(index) if relocs[index].kind == RelocKind::Relative => Some(relocs[index].addend),
        _ => u64_at(elf.at(at, 8)?, 0),
    }
}

/// The words of an array of pointers.
fn words<'a>(elf: &'a Elf, relocs: &'a [Reloc], at: u64, len: u64) -> impl Iterator<Item = u64> + 'a {
    let len = elf.at(at, len).map_or(0, |_| len);
    (0..len / 8).filter_map(move |index| word(elf, relocs, at + 8 * index))
}

/// All code addresses found in relocations, in arrays and, if nothing is relocated, in data.
pub(crate) fn pointers(
    elf: &Elf,
    dynamic: &Dynamic,
    relocs: &[Reloc],
    table: Option<&SymbolTable<'_>>,
) -> Vec<u64> {
    let mut found: Vec<u64> = vec![elf.entry];
    for reloc in relocs {
        let base = match reloc.kind {
            RelocKind::Relative | RelocKind::Irelative => 0,
            RelocKind::Symbol => match table.and_then(|table| table.symbol(reloc.symbol)) {
                Some(symbol) if symbol.st_shndx.get(LE) != constants::SHN_UNDEF => symbol.st_value.get(LE),
                _ => continue,
            },
        };
        found.push(base.wrapping_add(reloc.addend));
    }
    found.extend(&dynamic.calls);
    for (at, len) in dynamic.arrays {
        found.extend(words(elf, relocs, at, len));
    }
    if elf.kind == ImageKind::Exec {
        found.extend(data_words(elf));
    }
    found.retain(|&at| elf.executable(at));
    found
}

/// Aligned words of everything loaded that is not code; without relocations any of them may be a pointer.
fn data_words(elf: &Elf) -> impl Iterator<Item = u64> + '_ {
    let code = u64::from(constants::SHF_EXECINSTR);
    let in_sections = elf
        .sections
        .iter()
        .filter(move |s| s.flags & u64::from(constants::SHF_ALLOC) != 0 && s.flags & code == 0);
    let loads = elf.loads.iter().filter(|s| elf.sections.is_empty() && !s.executable());
    let parts = in_sections.take(1024).filter_map(|s| Some((s.svma, elf.data(s)?)));
    let parts = parts.chain(loads.filter_map(|s| Some((s.svma.0, elf.at(s.svma.0, s.filesz)?))));
    let words = parts.flat_map(|(svma, data)| {
        let skip = (svma.next_multiple_of(8) - svma) as usize;
        let aligned = data.get(skip..).unwrap_or_default();
        aligned.chunks_exact(8).filter_map(|word| u64_at(word, 0))
    });
    // Sections of a valid file do not overlap.
    words.take(elf.bytes.get().len() / 8).filter(|&word| elf.executable(word))
}

/// Critical sections from `__rseq_cs` and `__rseq_cs_ptr_array`, sorted, each once.
pub(crate) fn rseq_sections(elf: &Elf, relocs: &[Reloc]) -> Vec<RseqSection> {
    let whole = elf.section("__rseq_cs").map(|s| (s.svma, s.size));
    let listed = elf.section("__rseq_cs_ptr_array").map(|s| (s.svma, s.size));
    let (at, len) = whole.unwrap_or_default();
    let len = elf.at(at, len).map_or(0, |_| len);
    let descriptors = (0..len / 32).map(|index| at + 32 * index);
    let (array, array_len) = listed.unwrap_or_default();
    let pointed = words(elf, relocs, array, array_len);
    let mut found: Vec<_> = descriptors.chain(pointed).filter_map(|at| descriptor(elf, relocs, at)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// `struct rseq_cs`: version 0 and flags, start, length up to the commit, abort.
fn descriptor(elf: &Elf, relocs: &[Reloc], at: u64) -> Option<RseqSection> {
    let version = u32_at(elf.at(at, 32)?, 0)?;
    let start = word(elf, relocs, at + 8)?;
    let (len, abort) = (word(elf, relocs, at + 16)?, word(elf, relocs, at + 24)?);
    let sound = version == 0 && elf.executable(start) && elf.executable(abort) && len > 0;
    sound.then_some(RseqSection { start: Svma(start), len, abort: Svma(abort) })
}
