//! System calls of a program's own, by `syscall` instructions: see `crate::system_calls`.
//!
//! In: an image. Out: for each call that may change a fact an instruction before it, and where number and
//! arguments come from there. SYS-1: at least five bytes lie between the two, so a jump fits that covers no
//! system call.
//!
//! ```text
//!   mov %rcx, %rsi      ◀ held here: the number is in rax, the arguments are in rbx and rcx    (Go)
//!   mov %rbx, %rdi
//!   syscall
//!
//!   movslq %edi, %rsi
//!   mov $157, %eax      ◀ held here: the number is 157, the arguments are 26 and rsi           (C)
//!   mov $26, %edi
//!   syscall
//! ```

use std::collections::HashSet;

use memchr::memmem;
use trapline_image::{FunctionIndex, Image};
use trapline_insn::origin::Origin;
use trapline_insn::x86_64::{Body, Flow, Gpr, Insn, Origins, sweep};
use trapline_record::Svma;

use super::body::body_of;
use super::stub::NUMBERS;

const SYSCALL: [u8; 2] = [0x0F, 0x05];
/// Number of instructions before a call that are looked at.
const MOST: usize = 32;
/// Length in bytes of a jump.
const JUMP: u64 = 5;

/// The calls that may change a fact: the function, the instruction at which each can be held, and where number
/// and arguments come from there.
pub(crate) fn calls(image: &Image) -> Vec<(FunctionIndex, Svma, [Origin; 3])> {
    let mut functions: Vec<FunctionIndex> = Vec::new();
    for &(start, len) in image.text_ranges() {
        let text = image.text(start, len).unwrap_or_default();
        let found = memmem::find_iter(text, &SYSCALL).filter_map(|at| image.function_at(start + at as u64));
        functions.extend(found);
    }
    functions.sort_unstable();
    functions.dedup();
    // The two bytes are mostly parts of other instructions.
    functions.retain(|function| has_call(image, *function));
    functions.into_iter().flat_map(|function| calls_in(image, function)).collect()
}

fn has_call(image: &Image, function: FunctionIndex) -> bool {
    let f = image.function(function);
    let bytes = image.text(f.start, f.len).unwrap_or_default();
    sweep(bytes, f.start.0).any(|insn| insn.flow() == Flow::Syscall)
}

fn calls_in(image: &Image, function: FunctionIndex) -> Vec<(FunctionIndex, Svma, [Origin; 3])> {
    let f = image.function(function);
    let body = body_of(image, f.start, f.len, &[]);
    let targets: HashSet<u64> = body.targets.iter().copied().collect();
    let is_call =
        |insn: &Insn| insn.flow() == Flow::Syscall && image.text(Svma(insn.addr), 2) == Some(&SYSCALL);
    let calls = (0..body.insns.len()).filter(|&index| is_call(&body.insns[index]));
    calls
        .filter_map(|index| {
            let known = before(image, &body, &targets, index);
            let end = body.insns[index].addr;
            let (at, words) = NUMBERS.nearest(&known, |at| end - at.0 >= JUMP)?;
            Some((function, at, words))
        })
        .collect()
}

/// The instructions before a call, nearest first, each with the origins of number and arguments there.
fn before(image: &Image, body: &Body, targets: &HashSet<u64>, call: usize) -> Vec<(Svma, [Origin; 3])> {
    let end = body.insns[call].addr;
    let mut known = Vec::new();
    let mut follows = end;
    for insn in body.insns[..call].iter().rev().take(MOST) {
        if insn.end() != follows || targets.contains(&follows) {
            break;
        }
        follows = insn.addr;
        let stretch = image.text(Svma(insn.addr), end - insn.addr);
        let Some(origins) = stretch.and_then(|bytes| Origins::over(bytes, insn.addr)) else { break };
        known.push((Svma(insn.addr), [Gpr::Rax, Gpr::Rdi, Gpr::Rsi].map(|register| origins.of(register))));
    }
    known
}
