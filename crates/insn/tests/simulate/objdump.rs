//! Decoding against a second disassembler, with operands: over whole libraries, and over all encodings of the
//! short classes.

use crate::machine::Rng;
use crate::text::{plain, render};
use object::Object;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use trapline_insn::x86_64::simulate::{Verdict, verdict};
use trapline_insn::x86_64::{Flow, Options, decode_one};

const LIBRARIES: [&str; 3] = [
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
];
/// Bytes that each encoding is padded to.
const ROOM: usize = 16;

#[derive(Default)]
struct Tally {
    same: usize,
    idle: usize,
    elsewhere: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

impl Tally {
    fn judge(&mut self, addr: u64, bytes: &[u8], text: &str) {
        let theirs = plain(text);
        match verdict(bytes, Options::default()) {
            // Both must agree on its length, except if objdump lists a part separately (a prefix on its own).
            Verdict::Simulate(op) if usize::from(op.len) != bytes.len() => {
                if !is_split(text) {
                    self.wrong.push(format!("{bytes:02x?} {text}: {op:?}"));
                }
            }
            Verdict::Simulate(op) => match render(&op, addr) {
                None if ["nop", "xchg ax,ax", "xchg rax,rax", "endbr64", "endbr32"]
                    .iter()
                    .any(|nop| theirs.contains(nop)) =>
                {
                    self.idle += 1
                }
                Some(ours) if ours == theirs || other_names(&ours, text).contains(&theirs) => self.same += 1,
                ours => self
                    .wrong
                    .push(format!("{bytes:02x?}\n  objdump {text}\n  plain   {theirs}\n  ours    {ours:?}")),
            },
            other => {
                if is_ours(&theirs, bytes) {
                    self.wrong.push(format!("{bytes:02x?} {text}: {other:?}"));
                }
                *self
                    .elsewhere
                    .entry(theirs.split(' ').next().unwrap_or_default().to_owned())
                    .or_default() += 1;
            }
        }
    }
    fn end(&self, what: &str, least: usize) {
        println!(
            "{what}: {} the same, {} without effect, {:?} not simulated",
            self.same,
            self.idle,
            self.elsewhere.values().sum::<usize>()
        );
        let shown: Vec<_> = self.wrong.iter().take(20).cloned().collect();
        assert!(self.wrong.is_empty(), "{what}: {} differ\n{}", self.wrong.len(), shown.join("\n"));
        assert!(self.same >= least, "{what}: only {} compared", self.same);
    }
}

/// Other names that objdump may use: a displacement without ModRM has no width, and an extension to the same
/// width is a move.
fn other_names(ours: &str, text: &str) -> Vec<String> {
    let mut names = vec![ours.replacen("mov ", "movzx ", 1), ours.replacen("movsxd ", "movsx ", 1)];
    if text.contains("ds:0x") {
        let widths = ["BYTE PTR ", "WORD PTR ", "D", "Q"];
        names.push(widths.iter().fold(ours.to_owned(), |text, width| text.replacen(width, "", 1)));
    }
    names
}

/// Whether objdump lists this on a line of its own, before the instruction that it belongs to.
fn is_split(text: &str) -> bool {
    let word = text.split_whitespace().last().unwrap_or_default();
    text.contains("(bad)")
        || word.starts_with("rex")
        || ["data16", "addr32", "cs", "ds", "es", "ss", "fs", "gs", "repz", "repnz"].contains(&word)
}

/// Whether objdump's text belongs to a class that is simulated, so that any other verdict is a mistake.
fn is_ours(theirs: &str, bytes: &[u8]) -> bool {
    let (name, operands) = theirs.split_once(' ').unwrap_or((theirs, ""));
    let class = [
        "nop", "endbr64", "push", "pop", "mov", "movzx", "movsx", "movsxd", "lea", "leave", "jmp", "call",
        "ret", "loop", "jrcxz",
    ];
    let arithmetic = ["add", "sub", "and", "or", "xor", "cmp", "test"];
    let first = operands.split(',').next().unwrap_or_default();
    let special = |operand: &str| {
        ["cs", "ds", "es", "ss", "fs", "gs"].contains(&operand)
            || operand.starts_with("cr")
            || operand.starts_with("dr")
            || operand.starts_with("db")
            || operand.starts_with("tr")
    };
    let below_red_zone =
        first.contains("[rsp") && first.contains("-0x") || first.contains("[esp") && first.contains("-0x");
    let excused = below_red_zone
        || theirs.contains("fs:")
        || theirs.contains("gs:")
        || operands.split(',').any(special)
        || operands.contains("FWORD")
        || operands.contains("TBYTE")
        || bytes.contains(&0x66)
            && matches!(name, "push" | "pop" | "call" | "jmp" | "ret" | "leave" | "loop" | "jrcxz")
        || theirs.contains("(bad)")
        || name == "movsxd" && bytes.contains(&0x66);
    let read_only = !first.contains("PTR") || matches!(name, "cmp" | "test");
    !excused && (class.contains(&name) || arithmetic.contains(&name) && read_only)
}

/// Runs objdump; calls `line` with address, bytes and text of each line of its output.
fn disassemble(arguments: &[String], mut line: impl FnMut(u64, &[u8], &str)) -> bool {
    let child = Command::new("objdump")
        .args(["-w", "-M", "intel", "--insn-width=16"])
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        println!("SKIP: objdump is not installed");
        return false;
    };
    for text in BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok) {
        let mut columns = text.split('\t');
        let addr =
            columns.next().and_then(|column| u64::from_str_radix(column.trim().strip_suffix(':')?, 16).ok());
        let (Some(addr), Some(hex)) = (addr, columns.next()) else { continue };
        let bytes: Vec<u8> =
            hex.split_whitespace().filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        line(addr, &bytes, columns.next().unwrap_or_default());
    }
    assert!(child.wait().expect("objdump ends").success());
    true
}

#[test]
fn libraries_are_read_alike() {
    let mut seen = 0;
    for path in LIBRARIES.into_iter().filter(|path| std::path::Path::new(path).exists()) {
        let data = std::fs::read(path).expect("readable");
        let file = object::File::parse(&*data).expect("ELF");
        assert!(file.section_by_name(".text").is_some());
        let mut tally = Tally::default();
        let arguments = ["-d".to_owned(), "-j.text".to_owned(), path.to_owned()];
        if !disassemble(&arguments, |addr, bytes, text| tally.judge(addr, bytes, text)) {
            return;
        }
        tally.end(path, 10_000);
        seen += 1;
    }
    assert!(seen > 0, "none of {LIBRARIES:?} is here");
}

/// Every opcode of the classes, with every REX, every ModRM with and without each of some prefixes, and every
/// SIB of one opcode; the operands are random.
fn encodings() -> Vec<Vec<u8>> {
    let mut rng = Rng(0x2545_F491_4F6C_DD1D);
    let mut all = Vec::new();
    let rexes: Vec<Vec<u8>> = std::iter::once(vec![]).chain((0x40..0x50).map(|rex| vec![rex])).collect();
    let plain: Vec<u8> = (0x50..=0x5F)
        .chain(0xB0..=0xBF)
        .chain(0x70..=0x7F)
        .chain([0x6A, 0x68, 0xEB, 0xE9, 0xE8, 0xC3, 0xC2, 0xC9, 0x90])
        .chain(0xE0..=0xE3)
        .chain(0xA0..=0xA3)
        .chain([0xA8, 0xA9])
        .chain([0x04, 0x05, 0x2C, 0x2D, 0x24, 0x25, 0x0C, 0x0D, 0x34, 0x35, 0x3C, 0x3D])
        .collect();
    for prefix in [&[][..], &[0x66], &[0x67], &[0xF2], &[0xF3], &[0x2E], &[0x64]] {
        for rex in &rexes {
            all.extend(plain.iter().map(|&opcode| [prefix, rex, &[opcode]].concat()));
            all.extend((0x80..=0x8F).map(|opcode| [prefix, rex, &[0x0F, opcode]].concat()));
        }
    }
    // Both directions and widths of the six rows of arithmetic, as `native` generates them.
    let rows = [0x00u8, 0x08, 0x20, 0x28, 0x30, 0x38];
    let arithmetic = rows.iter().flat_map(|row| (0..4).map(move |form| vec![row | form]));
    let one_byte = [0x88u8, 0x89, 0x8A, 0x8B, 0x8D, 0xC6, 0xC7, 0x8F, 0xFF, 0x63, 0x80, 0x81, 0x83];
    let one_byte = one_byte.into_iter().chain([0x84, 0x85, 0xF6, 0xF7]).map(|opcode| vec![opcode]);
    let two_bytes = [0x1F, 0xB6, 0xB7, 0xBE, 0xBF].map(|opcode| vec![0x0F, opcode]);
    let with_modrm: Vec<Vec<u8>> = arithmetic.chain(one_byte).chain(two_bytes).collect();
    for opcode in &with_modrm {
        for prefix in [&[][..], &[0x66], &[0x67], &[0x3E], &[0x65]] {
            for rex in &rexes {
                all.extend((0..=255).map(|modrm| [prefix, rex, opcode, &[modrm, rng.next() as u8]].concat()));
            }
        }
    }
    for rex in &rexes {
        for modrm in [0x04, 0x4C, 0x94] {
            all.extend((0..=255).map(|sib| [rex, &[0x8B, modrm, sib][..]].concat()));
            all.extend((0..=255).map(|sib| [&[0x67], &rex[..], &[0x8D, modrm, sib]].concat()));
        }
    }
    all
}

/// Fills the rest of an encoding's room with nops. From eight bytes on it is a single nop, so that objdump's
/// list stays short.
fn idle(rest: &mut [u8]) {
    rest.fill(0x90);
    if let Some(longer) = rest.len().checked_sub(8) {
        let (prefixes, nop) = rest.split_at_mut(longer);
        prefixes.fill(0x66);
        nop.copy_from_slice(&[0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn encodings_are_read_alike() {
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
    let all = encodings();
    let mut image = Vec::with_capacity(all.len() * ROOM);
    for head in &all {
        let mut bytes = head.clone();
        bytes.resize_with(ROOM, || rng.next() as u8);
        image.extend(bytes);
    }
    // The bytes behind an encoding in its room are nops, so that both disassemblers start the next room in
    // step.
    for (room, head) in image.chunks_exact_mut(ROOM).zip(&all) {
        let simulated = match verdict(room, Options::default()) {
            Verdict::Simulate(op) => Some(op.len),
            _ => None,
        };
        let decoded = || decode_one(room, 0).filter(|insn| insn.flow() != Flow::Invalid).map(|insn| insn.len);
        match simulated.or_else(decoded) {
            Some(len) => idle(&mut room[usize::from(len)..]),
            // Not an instruction: objdump shows it byte by byte, and may split it in any way.
            None => room[head.len()..].fill(0x90),
        }
    }
    let folder = std::env::temp_dir().join(format!("trapline-encodings-{}", std::process::id()));
    let mut file = std::fs::File::create(&folder).expect("a file");
    file.write_all(&image).expect("written");
    let arguments = ["-D", "-z", "-bbinary", "-mi386:x86-64"].map(str::to_owned);
    let arguments: Vec<_> = arguments.into_iter().chain([folder.display().to_string()]).collect();
    let mut tally = Tally::default();
    let mut starts = 0;
    let ran = disassemble(&arguments, |addr, bytes, text| {
        if addr.is_multiple_of(ROOM as u64) {
            starts += 1;
            tally.judge(addr, bytes, text);
        }
    });
    std::fs::remove_file(&folder).expect("it is there");
    if ran {
        assert!(starts * 100 >= all.len() * 98, "{starts} of {} in step", all.len());
        tally.end("encodings", all.len() / 3);
    }
}
