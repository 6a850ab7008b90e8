//! Notes: the build id and the USDT probes.
//!
//! In: note sections and segments. Out: values.
//! Does not: read a USDT probe's arguments (`operands`).

use crate::elf::{Elf, slice, u32_at, u64_at};
use object::elf as constants;
use trapline_record::Svma;

/// A USDT probe, from `.note.stapsdt`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Usdt {
    /// Provider.
    pub provider: String,
    /// Name.
    pub name: String,
    /// Address of the nop, already corrected for prelink by `.stapsdt.base`.
    pub location: Svma,
    /// The base address in the note.
    pub base: Svma,
    /// Address of a `u16` that is not zero while the probe is traced; corrected likewise.
    pub semaphore: Option<Svma>,
    /// Argument descriptions, as in the note.
    pub args: String,
}

/// One note: owner, type, content.
type Note<'a> = (&'a [u8], u32, &'a [u8]);

/// The notes of a section or segment; ends at the first malformed one.
fn notes(data: &[u8], align: usize) -> impl Iterator<Item = Note<'_>> {
    let mut at = 0usize;
    std::iter::from_fn(move || {
        let (name_len, desc_len) = (u32_at(data, at)? as usize, u32_at(data, at + 4)? as usize);
        let kind = u32_at(data, at + 8)?;
        let name = data.get(at + 12..at.checked_add(12)?.checked_add(name_len)?)?;
        let desc_at = (at + 12 + name_len).checked_next_multiple_of(align)?;
        let desc = data.get(desc_at..desc_at.checked_add(desc_len)?)?;
        at = (desc_at + desc_len).checked_next_multiple_of(align)?;
        Some((name, kind, desc))
    })
}

/// The GNU build id; empty when there is none.
pub(crate) fn build_id(elf: &Elf) -> Vec<u8> {
    let sections = elf.sections.iter().filter(|s| s.kind == constants::SHT_NOTE);
    let in_sections = sections.filter_map(|s| elf.data(s)).map(|data| (data, 4));
    let segments = elf.headers.iter().filter(|h| h.kind == constants::PT_NOTE);
    let in_segments = segments.filter_map(|h| {
        let align = if h.align == 8 { 8 } else { 4 };
        Some((slice(elf.bytes.get(), h.offset, h.filesz)?, align))
    });
    in_segments
        .chain(in_sections)
        .take(1024)
        .flat_map(|(data, align)| notes(data, align))
        .find(|(name, kind, _)| *name == b"GNU\0" && *kind == constants::NT_GNU_BUILD_ID)
        .map(|(_, _, desc)| desc.to_vec())
        .unwrap_or_default()
}

/// All USDT probes, in the order of the notes.
pub(crate) fn usdt(elf: &Elf) -> Vec<Usdt> {
    let base = elf.section(".stapsdt.base").map(|s| s.svma);
    let data = elf.section_data(".note.stapsdt").unwrap_or_default();
    notes(data, 4)
        .filter(|(name, kind, _)| *name == b"stapsdt\0" && *kind == 3)
        .filter_map(|(_, _, desc)| marker(desc, base))
        .collect()
}

fn marker(desc: &[u8], section: Option<u64>) -> Option<Usdt> {
    let (pc, base, semaphore) = (u64_at(desc, 0)?, u64_at(desc, 8)?, u64_at(desc, 16)?);
    // Prelink moves sections but not notes; the section's address shows by how much. The semaphore is in
    // data, which moves with the text.
    let moved = section.filter(|_| base != 0).map_or(0, |actual| actual.wrapping_sub(base));
    let mut texts = desc.get(24..)?.split(|&byte| byte == 0);
    let mut text = || Some(String::from_utf8_lossy(texts.next()?).into_owned());
    let (provider, name, args) = (text()?, text()?, text()?);
    Some(Usdt {
        provider,
        name,
        location: Svma(pc.wrapping_add(moved)),
        base: Svma(base),
        semaphore: (semaphore != 0).then(|| Svma(semaphore.wrapping_add(moved))),
        args,
    })
}
