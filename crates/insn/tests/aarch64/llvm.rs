//! A third opinion, from a decoder that shares nothing with the other two: LLVM's, as `llvm-mc` prints it.
//! Words that it does not know are skipped, since it may be older.

use std::collections::HashMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::classes::SIMULATED;
use super::{Rng, setting};
use trapline_insn::aarch64::{Away, Literal, Op, Test, Through, Verdict, decode};

/// LLVM's mnemonic for each word that it knows.
fn mnemonics(words: &[u32]) -> Option<HashMap<u32, String>> {
    let mut child = Command::new("llvm-mc")
        .args(["--disassemble", "--triple=aarch64", "--mattr=+v9a,+sve,+mte,+ls64,+pauth", "--show-encoding"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut text = String::new();
    for [a, b, c, d] in words.iter().map(|word| word.to_le_bytes()) {
        text += &format!("{a:#x} {b:#x} {c:#x} {d:#x}\n");
    }
    let mut stdin = child.stdin.take()?;
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().ok()?;
    drop(writer.join());
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(lines.lines().filter_map(entry).collect())
}

/// Parses `\tnop            // encoding: [0x1f,0x20,0x03,0xd5]`.
fn entry(line: &str) -> Option<(u32, String)> {
    let (text, encoding) = line.split_once("encoding: [")?;
    let name = text.split_whitespace().next()?.to_owned();
    let mut bytes = encoding.trim_end_matches(']').split(',').map(|byte| {
        // Bits that a linker would fill in are shown as `A`, or with a quote; our words have none.
        u8::from_str_radix(byte.trim().strip_prefix("0x")?, 16).ok()
    });
    let mut next = || bytes.next().flatten();
    Some((u32::from_le_bytes([next()?, next()?, next()?, next()?]), name))
}

/// Whether LLVM may give a simulated instruction this name.
fn may_simulate(op: Op, name: &str) -> bool {
    match op {
        Op::Nop => matches!(name, "nop" | "yield" | "hint" | "dgh" | "bti"),
        Op::Branch { link, .. } => name == if link { "bl" } else { "b" },
        Op::BranchIf { test: Test::Flags(_), .. } => name.starts_with("b.") || name.starts_with("bc."),
        Op::BranchIf { test: Test::Zero { when, .. }, .. } => name == if when { "cbz" } else { "cbnz" },
        Op::BranchIf { test: Test::Bit { when, .. }, .. } => name == if when { "tbnz" } else { "tbz" },
        Op::BranchTo { through: Through::Jump, .. } => name == "br",
        Op::BranchTo { through: Through::Call, .. } => name == "blr",
        Op::BranchTo { through: Through::Return, .. } => name == "ret",
        Op::Address { pages, .. } => name == if pages { "adrp" } else { "adr" },
        Op::Load { literal: Literal::Prefetch, .. } => name == "prfm",
        Op::Load { literal: Literal::Signed, .. } => name == "ldrsw",
        Op::Load { .. } => name == "ldr",
        Op::Push { second, .. } => name == if second.is_some() { "stp" } else { "str" },
        Op::PushFrame { .. } => name == "stp",
        Op::Add { .. } => matches!(name, "add" | "sub" | "mov"),
    }
}

/// Names of instructions that do something else at another address, or may not run there.
fn stays(name: &str) -> bool {
    let exact = [
        "b", "bl", "br", "blr", "ret", "cbz", "cbnz", "tbz", "tbnz", "adr", "adrp", "svc", "hvc", "smc",
        "brk", "hlt", "udf", "eret", "eretaa", "eretab", "drps", "tstart", "tcommit", "tcancel", "ttest",
    ];
    let starts = ["b.", "blra", "dcps", "ldx", "stx", "ldax", "stlx"];
    exact.contains(&name) || starts.iter().any(|start| name.starts_with(start))
}

#[test]
fn a_third_decoder_agrees() {
    let mut rng = Rng(0x11_7731);
    let runs = setting("TRAPLINE_A64_RUNS", 50_000);
    let random = (0..runs).map(|_| rng.next() as u32).collect::<Vec<_>>();
    // Branches, exceptions and system words are only a sixteenth of all words, and are those that matter. So
    // as many of them are added.
    let control = random.iter().map(|word| word & 0xE3FF_FFFF | 0x1400_0000);
    let classes = SIMULATED.iter().flat_map(|class| random.iter().take(500).map(|bits| class.word(*bits)));
    let words: Vec<u32> = random.iter().copied().chain(control).chain(classes).collect();
    let Some(theirs) = mnemonics(&words) else {
        println!("SKIP: no llvm-mc here");
        return;
    };
    let mut wrong = std::collections::BTreeMap::new();
    for (&word, name) in &theirs {
        let agreed = match decode(word) {
            Verdict::Simulate(op) => may_simulate(op, name),
            // SVE has its own `adr`, for vectors, which does the same at any address.
            Verdict::OutOfLine(Away::Plain) => !stays(name) || (name == "adr" && word >> 25 & 15 == 2),
            Verdict::OutOfLine(Away::LoadVector { .. }) => name == "ldr",
            Verdict::OutOfLine(Away::Authenticated) => name.starts_with("reta") || name.starts_with("bra"),
            // The second decoder checks the reason of a refusal. This test does not check that a refused word
            // could not have run.
            Verdict::Refuse(_) => true,
        };
        if !agreed {
            wrong.entry(format!("they say {name}, we say {:?}", decode(word))).or_insert(word);
        }
    }
    println!("{} of {} words are known to LLVM", theirs.len(), words.len());
    assert!(wrong.is_empty(), "{wrong:#x?}");
    assert!(theirs.len() > words.len() / 4);
}
