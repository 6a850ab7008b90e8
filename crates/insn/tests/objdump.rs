//! A second opinion: instruction lengths and direct targets of real binaries, against `objdump -d`.
//!
//! Both sweep linearly, and may get out of step where bytes are not code. So the share of agreeing
//! instructions has a lower limit. Where both start an instruction at the same address, and objdump knows its
//! mnemonic, they must agree.

use object::{Object, ObjectSection};
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use trapline_insn::x86_64::{Flow, sweep};

const BINARIES: [&str; 4] = [
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/bin/git",
    "/usr/bin/python3.11",
];
/// Maximum number of text bytes per binary: objdump takes a second per MB.
const MOST: u64 = 1 << 20;

#[test]
fn lengths_and_targets_agree_with_objdump() {
    let mut seen = 0;
    for path in BINARIES {
        if !std::path::Path::new(path).exists() {
            eprintln!("SKIPPED: {path} is not on this machine");
            continue;
        }
        match objdump(path) {
            Some((start, bytes, theirs)) => compare(path, start, &bytes, &theirs),
            None => eprintln!("SKIPPED: {path}: objdump is not installed"),
        }
        seen += 1;
    }
    assert!(seen > 0, "none of {BINARIES:?} is here");
}

/// Length of each instruction, and objdump's text for it, by address.
type Listing = HashMap<u64, (u8, String)>;

fn objdump(path: &str) -> Option<(u64, Vec<u8>, Listing)> {
    let data = std::fs::read(path).expect("readable");
    let file = object::File::parse(&*data).expect("ELF");
    let text = file.section_by_name(".text").expect(".text");
    let (start, len) = (text.address(), text.size().min(MOST));
    let bytes = text.data().expect("bytes")[..len as usize].to_vec();
    let mut child = Command::new("objdump")
        .args(["-d", "-w", "-j", ".text", "--insn-width=16"])
        .args([format!("--start-address={start}"), format!("--stop-address={}", start + len)])
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let listing = lines.map_while(Result::ok).filter_map(|line| parse(&line)).collect();
    assert!(child.wait().expect("objdump ends").success());
    Some((start, bytes, listing))
}

/// `  401000:\t55   \tpush   %rbp`
fn parse(line: &str) -> Option<(u64, (u8, String))> {
    let mut columns = line.split('\t');
    let addr = u64::from_str_radix(columns.next()?.trim().strip_suffix(':')?, 16).ok()?;
    let len = columns.next()?.split_whitespace().count();
    Some((addr, (len as u8, columns.next().unwrap_or_default().to_owned())))
}

fn compare(path: &str, start: u64, bytes: &[u8], theirs: &Listing) {
    let (mut same, mut targets, mut ours) = (0, 0, 0);
    for insn in sweep(bytes, start) {
        ours += 1;
        let Some((len, text)) = theirs.get(&insn.addr) else { continue };
        if insn.flow() == Flow::Invalid || text.contains("(bad)") || insn.end() > start + bytes.len() as u64 {
            continue;
        }
        // objdump lists a prefix without effect as an instruction of its own, and fwait apart from the
        // instruction that waits.
        if *len == 1
            && insn.len > 1
            && (text.starts_with("rex") || text.starts_with("data16") || text == "fwait")
        {
            continue;
        }
        assert_eq!(insn.len, *len, "{path} at {:#x}: {text}", insn.addr);
        same += 1;
        if let (Some(target), true) = (insn.flow().target(), text.contains('<')) {
            let operand = text.split('<').next().unwrap_or_default();
            let theirs = operand
                .split_whitespace()
                .last()
                .and_then(|word| u64::from_str_radix(word.rsplit(',').next().unwrap_or(word), 16).ok());
            assert_eq!(Some(target), theirs, "{path} at {:#x}: {text}", insn.addr);
            targets += 1;
        }
        if let (Some(word), Some(comment)) = (insn.ip_rel(), text.split("# ").nth(1)) {
            let theirs = u64::from_str_radix(comment.split_whitespace().next().unwrap_or_default(), 16).ok();
            assert_eq!(Some(word), theirs, "{path} at {:#x}: {text}", insn.addr);
        }
    }
    println!("{path}: {same} of {ours} instructions in step, {targets} targets");
    assert!(same * 1000 >= ours * 999, "{path}: only {same} of {ours} in step");
    assert!(targets > 1000, "{path}: only {targets} targets compared");
}
