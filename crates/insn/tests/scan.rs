//! The scan by tables against the sweep by the decoder, on the text of real files (SCAN-1).

use object::{Object, ObjectSection};
use trapline_insn::x86_64::{Flow, Insn, ScanItem, scan, sweep};

const FILES: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
    "/usr/bin/git",
    "/usr/bin/python3.11",
    "/usr/local/go/bin/gofmt",
];

/// What a scan should find for one instruction; it does not distinguish the two kinds of indirect jumps.
fn expected(insn: &Insn, out: &mut Vec<ScanItem>) {
    match insn.flow() {
        Flow::Jump(Some(to)) | Flow::Branch(to) => out.push(ScanItem::Jump(to)),
        Flow::Call(Some(to)) => out.push(ScanItem::Call(to)),
        Flow::Jump(None) => out.push(ScanItem::Indirect),
        Flow::Ret => out.push(ScanItem::Return),
        _ => {}
    }
    out.extend(insn.ip_rel().map(ScanItem::Name));
}

#[test]
fn a_scan_finds_what_a_sweep_finds() {
    let mut seen = 0;
    for path in FILES {
        let Ok(data) = std::fs::read(path) else { continue };
        let file = object::File::parse(&*data).expect("ELF");
        let text = file.section_by_name(".text").expect(".text");
        let bytes = text.data().expect("bytes");
        seen += compare(path, text.address(), bytes);
    }
    assert!(seen > 0, "none of {FILES:?} is here");
}

/// Compares piece by piece, so that data in the text does not put either out of step for long.
fn compare(path: &str, addr: u64, bytes: &[u8]) -> usize {
    let mut agreed = 0;
    let mut begin = 0;
    while begin < bytes.len() {
        let mut end = begin;
        let mut invalid = false;
        let mut want = Vec::new();
        let mut last = None;
        for insn in sweep(&bytes[begin..], addr + begin as u64).take(50) {
            invalid |= insn.flow() == Flow::Invalid;
            expected(&insn, &mut want);
            end += usize::from(insn.len);
            last = Some(insn);
        }
        let mut got = Vec::new();
        let result = scan(&bytes[begin..end], addr + begin as u64, |found| {
            got.push(if found == ScanItem::ThroughEntry { ScanItem::Indirect } else { found });
        });
        if !invalid {
            assert_eq!(got, want, "{path}: {:#x}", addr + begin as u64);
            assert_eq!(result.leaves, last.is_some_and(|l| !l.flow().falls_through()), "{path} {last:?}");
            assert!(!result.invalid);
            agreed += 1;
        }
        begin = end;
    }
    agreed
}

#[test]
fn every_opcode_steps_like_the_decoder() {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for case in 0..400_000u64 {
        let mut bytes = [0u8; 16];
        for byte in &mut bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = (state >> 32) as u8;
        }
        if case % 3 == 0 {
            bytes[0] = 0x0F;
        }
        let Some(insn) = sweep(&bytes, 0x1000).next().filter(|i| i.flow() != Flow::Invalid) else { continue };
        let mut want = Vec::new();
        expected(&insn, &mut want);
        let mut got = Vec::new();
        let whole = &bytes[..usize::from(insn.len)];
        let result = scan(whole, 0x1000, |found| {
            got.push(if found == ScanItem::ThroughEntry { ScanItem::Indirect } else { found });
        });
        assert_eq!((got, result.leaves), (want, !insn.flow().falls_through()), "{whole:02x?} {insn:?}");
    }
}

#[test]
fn speed_is_printed() {
    let Ok(data) = std::fs::read(FILES[4]) else { return };
    let file = object::File::parse(&*data).expect("ELF");
    let text = file.section_by_name(".text").expect(".text");
    let bytes = text.data().expect("bytes");
    let mut best = [std::time::Duration::MAX; 2];
    for _ in 0..5 {
        let start = std::time::Instant::now();
        let mut count = 0u64;
        scan(bytes, text.address(), |_| count += 1);
        best[0] = best[0].min(start.elapsed());
        let start = std::time::Instant::now();
        let swept = sweep(bytes, text.address()).count();
        best[1] = best[1].min(start.elapsed());
        assert!(count > 0 && swept > 0);
    }
    println!("{} bytes: scan {:?}, sweep {:?}", bytes.len(), best[0], best[1]);
}
