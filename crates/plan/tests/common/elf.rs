//! The smallest library that has functions: one executable segment, a symbol table.

use trapline_image::{Image, NoDebugFiles};

/// Stated address at which the code begins, and its offset in the file.
pub(crate) const TEXT: u64 = 0x1000;

/// A library whose code is `text`, with functions (offset, bytes) named f0, f1, …
pub(crate) fn library(text: &[u8], functions: &[(u64, u64)]) -> Image {
    library_for(62, text, functions)
}

/// The same for another processor, by its ELF number.
pub(crate) fn library_for(machine: u16, text: &[u8], functions: &[(u64, u64)]) -> Image {
    let mut strings = vec![0];
    let mut symbols = vec![0u8; 24];
    for (n, &(start, len)) in functions.iter().enumerate() {
        symbols.extend((strings.len() as u32).to_le_bytes());
        symbols.extend([0x12, 0, 1, 0]); // GLOBAL FUNC, section 1
        symbols.extend((TEXT + start).to_le_bytes());
        symbols.extend(len.to_le_bytes());
        strings.extend(format!("f{n}\0").bytes());
    }
    let names = b"\0.text\0.symtab\0.strtab\0.shstrtab\0";
    let mut file = vec![0; TEXT as usize];
    file.extend(text);
    let end = file.len() as u64;
    let mut put = |bytes: &[u8]| {
        while !file.len().is_multiple_of(8) {
            file.push(0);
        }
        let at = file.len() as u64;
        file.extend(bytes);
        (at, bytes.len() as u64)
    };
    let (symtab, strtab, shstrtab) = (put(&symbols), put(&strings), put(names));
    let sections = [
        section(0, 0, 0, 0, (0, 0), 0, 0),
        section(1, 1, 6, TEXT, (TEXT, text.len() as u64), 0, 0),
        section(7, 2, 0, 0, symtab, 3, 24),
        section(15, 3, 0, 0, strtab, 0, 0),
        section(23, 3, 0, 0, shstrtab, 0, 0),
    ];
    let (table, _) = put(&sections.concat());
    header(&mut file, machine, table, end);
    Image::parse(file, &mut NoDebugFiles).unwrap()
}

fn section(
    name: u32,
    kind: u32,
    flags: u64,
    addr: u64,
    (off, len): (u64, u64),
    link: u32,
    entry: u64,
) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(name.to_le_bytes());
    out.extend(kind.to_le_bytes());
    [flags, addr, off, len].iter().for_each(|w| out.extend(w.to_le_bytes()));
    out.extend(link.to_le_bytes());
    out.extend(u32::from(link != 0).to_le_bytes());
    [8, entry].iter().for_each(|w: &u64| out.extend(w.to_le_bytes()));
    out
}

fn header(file: &mut [u8], machine: u16, table: u64, end: u64) {
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(16, &3u16.to_le_bytes());
    put(18, &machine.to_le_bytes());
    put(20, &1u32.to_le_bytes());
    put(32, &64u64.to_le_bytes());
    put(40, &table.to_le_bytes());
    for (at, value) in [(52, 64u16), (54, 56), (56, 1), (58, 64), (60, 5), (62, 4)] {
        put(at, &value.to_le_bytes());
    }
    put(64, &1u32.to_le_bytes());
    put(68, &5u32.to_le_bytes());
    for (at, value) in [(72, 0u64), (80, 0), (88, 0), (96, end), (104, end), (112, 0x1000)] {
        put(at, &value.to_le_bytes());
    }
}
