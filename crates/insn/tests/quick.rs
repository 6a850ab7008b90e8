//! The table-driven sweep compared with the decoder's sweep, over the text of real files and over random
//! bytes (QUICK-1).

use object::{Object, ObjectSection};
use trapline_insn::x86_64::{sweep, sweep_into};

const FILES: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
    "/usr/bin/git",
    "/usr/bin/python3.11",
    "/usr/local/go/bin/gofmt",
    "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus",
];

/// Asserts that both give the same for these bytes.
fn compare(what: &str, bytes: &[u8], addr: u64) {
    let (mut quick, full) = (Vec::new(), sweep(bytes, addr));
    sweep_into(bytes, addr, &mut quick);
    let mut count = 0;
    for (nth, full) in full.enumerate() {
        assert_eq!(quick.get(nth), Some(&full), "{what}");
        count += 1;
    }
    assert_eq!(quick.len(), count, "{what}");
}

#[test]
fn real_text_decodes_to_the_same() {
    let mut seen = 0;
    for path in FILES {
        let Ok(data) = std::fs::read(path) else { continue };
        let file = object::File::parse(&*data).expect("ELF");
        let text = file.section_by_name(".text").expect(".text");
        compare(path, text.data().expect("bytes"), text.address());
        seen += 1;
    }
    assert!(seen > 0, "none of {FILES:?} is here");
}

#[test]
fn chance_bytes_decode_to_the_same() {
    const FIRST: [&[u8]; 10] =
        [&[], &[], &[0x0F], &[0x66], &[0x48], &[0x41, 0x0F], &[0x66, 0x0F], &[0x66, 0x4F], &[0x64], &[0xFF]];
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for case in 0..1_500_000usize {
        let mut bytes = [0u8; 20];
        for byte in &mut bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = (state >> 32) as u8;
        }
        let first = FIRST[case % FIRST.len()];
        bytes[..first.len()].copy_from_slice(first);
        // Some are cut off at an arbitrary byte.
        let len = if case % 7 == 0 { 1 + case % 20 } else { 20 };
        compare(&format!("{bytes:02x?}"), &bytes[..len], 0x7FFF_FFFF_F000);
    }
}

#[test]
fn every_opcode_decodes_to_the_same() {
    let prefixes: [&[u8]; 11] = [
        &[],
        &[0x66],
        &[0x48],
        &[0x41],
        &[0x4F],
        &[0x66, 0x48],
        &[0x66, 0x44],
        &[0x64],
        &[0x65, 0x49],
        &[0xF2],
        &[0xF3],
    ];
    for (prefix, op, modrm) in prefixes
        .iter()
        .flat_map(|prefix| (0..512u32).flat_map(move |op| (0..=255u8).map(move |modrm| (prefix, op, modrm))))
    {
        let mut bytes = prefix.to_vec();
        if op > 0xFF {
            bytes.push(0x0F);
        }
        bytes.extend([op as u8, modrm]);
        bytes.extend([0x65, 0x83, 0xC0, 0x01, 0xF8, 0x90, 0xC3, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90]);
        compare("one", &bytes, 0x1000);
    }
}
