//! Bytes that must be unpacked first: `.gnu_debugdata` (xz) and compressed debug sections (zlib, zstd).
//!
//! In: packed bytes. Out: unpacked ones, never more than a stated limit (IMG-3).
//! Does not: fail; data that cannot be unpacked is treated as missing.

use crate::elf::{Elf, PACKED_BY_NAME, Section, u32_at, u64_at};
use object::elf as constants;
use std::borrow::Cow;

/// Maximum length of `.gnu_debugdata`, in unpacked bytes; those of distributions are a few megabytes.
const MAX_DEBUGDATA: u64 = 256 << 20;
/// Maximum length of a debug section, in unpacked bytes.
const MAX_SECTION: u64 = 2 << 30;

/// The small ELF file inside `.gnu_debugdata`.
pub(crate) fn gnu_debugdata(elf: &Elf) -> Option<Vec<u8>> {
    let mut packed = elf.section_data(".gnu_debugdata")?;
    let size = unpacked_len(packed).filter(|&size| size <= MAX_DEBUGDATA)?;
    let mut unpacked = Vec::with_capacity(usize::try_from(size).ok()?);
    lzma_rs::xz_decompress(&mut packed, &mut unpacked).ok()?;
    Some(unpacked)
}

/// Number of unpacked bytes of an xz stream: the sum over its LZMA2 chunks, which contain their unpacked
/// lengths. So a forged stream is recognized before memory is spent on it. The index follows the blocks of a
/// stream and is not a block, so the sum ends there.
fn unpacked_len(xz: &[u8]) -> Option<u64> {
    let check_len = match xz.get(7)? & 0xf {
        0 => 0,
        1..=3 => 4,
        4..=6 => 8,
        7..=9 => 16,
        10..=12 => 32,
        _ => 64,
    };
    let mut at = 12usize;
    let mut total = 0u64;
    while *xz.get(at)? != 0 {
        let begin = at;
        at += (usize::from(xz[at]) + 1) * 4;
        loop {
            let control = *xz.get(at)?;
            let word = |at: usize| Some(u64::from(u16::from_be_bytes([*xz.get(at)?, *xz.get(at + 1)?])) + 1);
            match control {
                0 => break at += 1,
                // Stored: length, bytes.
                1 | 2 => {
                    let len = word(at + 1)?;
                    total += len;
                    at += 3 + len as usize;
                }
                // Packed: 21 bits of unpacked length, packed length, perhaps new properties, bytes.
                0x80.. => {
                    total += (u64::from(control & 0x1f) << 16) + word(at + 1)?;
                    at += 5 + usize::from(control >= 0xc0) + word(at + 3)? as usize;
                }
                _ => return None,
            }
        }
        at += (4 - (at - begin) % 4) % 4 + check_len;
    }
    Some(total)
}

/// A debug section's bytes, unpacked if `SHF_COMPRESSED` is set; empty when the section is absent.
pub(crate) fn section<'a>(elf: &'a Elf, name: &str) -> Cow<'a, [u8]> {
    elf.section(name).map(|section| unpacked(elf, section)).unwrap_or_default()
}

/// The bytes of all sections of a name, one behind the other: compilers give each type a section of its own in what is not
/// linked. Nothing if they are more than so many.
pub(crate) fn joined(elf: &Elf, name: &str, most: u64) -> Vec<u8> {
    let mut all = Vec::new();
    for section in elf.sections.iter().filter(|section| section.name == name) {
        let one = unpacked(elf, section);
        if (all.len() + one.len()) as u64 > most {
            return Vec::new();
        }
        all.extend_from_slice(&one);
    }
    all
}

fn unpacked<'a>(elf: &'a Elf, section: &Section) -> Cow<'a, [u8]> {
    let by_name = section.name.starts_with(PACKED_BY_NAME);
    if section.flags & u64::from(constants::SHF_COMPRESSED) == 0 && !by_name {
        return elf.data(section).map(Cow::Borrowed).unwrap_or_default();
    }
    let packed = crate::elf::slice(elf.bytes.get(), section.offset, section.size).unwrap_or_default();
    let whole = if by_name { decompress_by_name(packed) } else { decompress(packed) };
    whole.map(Cow::Owned).unwrap_or_default()
}

/// `ZLIB`, the size in eight bytes of big endian, then the packed bytes; or the bytes as they are.
fn decompress_by_name(packed: &[u8]) -> Option<Vec<u8>> {
    let Some(rest) = packed.strip_prefix(b"ZLIB") else { return Some(packed.to_vec()) };
    let (size, data) = rest.split_first_chunk()?;
    inflate(object::read::CompressionFormat::Zlib, u64::from_be_bytes(*size), data)
}

/// `Elf64_Chdr` (type, reserved, size, alignment), then the packed bytes.
fn decompress(packed: &[u8]) -> Option<Vec<u8>> {
    use object::read::CompressionFormat;
    let format = match u32_at(packed, 0)? {
        constants::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
        constants::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
        _ => return None,
    };
    inflate(format, u64_at(packed, 8)?, packed.get(24..)?)
}

fn inflate(format: object::read::CompressionFormat, uncompressed_size: u64, data: &[u8]) -> Option<Vec<u8>> {
    // Deflate packs at most 1032 to 1; a section that claims more than 4096 is forged.
    if uncompressed_size > MAX_SECTION || uncompressed_size > (data.len() as u64).saturating_mul(4096) {
        return None;
    }
    object::read::CompressedData { format, data, uncompressed_size }.decompress().ok().map(Cow::into_owned)
}
