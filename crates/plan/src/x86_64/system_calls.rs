//! System calls of a program's own by which it may change what patches rely on.
//!
//! In: an image. Out: for each such call an instruction before it in the same straight stretch of code, and
//! where the call's number and arguments come from there. Invariant: SYS-1 nothing is known to jump between
//! that instruction and the call, and at least five bytes lie there. So a jump fits that covers no system
//! call, and no thread returns from the kernel into a window.
//! Does not: plan patches; find calls outside functions, or by other instructions than `syscall`.
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
use super::stub::may_change;
use crate::request::Hold;

const SYSCALL: [u8; 2] = [0x0F, 0x05];
/// Number of instructions before a call that are looked at.
const MOST: usize = 32;
/// Length in bytes of a jump.
const JUMP: u64 = 5;

/// A system call of a program's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SystemCall {
    /// The function that makes it.
    pub function: FunctionIndex,
    /// The instruction at which it can be held.
    pub at: Svma,
    /// How it is recognized there.
    pub hold: Hold,
    /// Facts that it may change (`record::control::fact`).
    pub facts: u64,
}

/// The system calls that may change a fact.
#[must_use]
pub fn system_calls(image: &Image) -> Vec<SystemCall> {
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
    sweep(bytes, f.start.0).any(|insn| insn.flow == Flow::Syscall)
}

fn calls_in(image: &Image, function: FunctionIndex) -> Vec<SystemCall> {
    let f = image.function(function);
    let body = body_of(image, f.start, f.len, &[]);
    let targets: HashSet<u64> = body.targets.iter().copied().collect();
    let is_call =
        |insn: &Insn| insn.flow == Flow::Syscall && image.text(Svma(insn.addr), 2) == Some(&SYSCALL);
    let calls = (0..body.insns.len()).filter(|&index| is_call(&body.insns[index]));
    calls
        .filter_map(|index| {
            let (at, words) = held_at(image, &body, &targets, index)?;
            Some(SystemCall { function, at, hold: Hold::Call(words), facts: may_change(words) })
        })
        .collect()
}

/// The instruction nearest to a call at which enough is known of it, if possible with its second argument. What
/// is constant over the whole stretch is constant from there too.
fn held_at(image: &Image, body: &Body, targets: &HashSet<u64>, call: usize) -> Option<(Svma, [Origin; 3])> {
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
        known.push((insn.addr, [Gpr::Rax, Gpr::Rdi, Gpr::Rsi].map(|register| origins.of(register))));
    }
    let (_, widest) = *known.last()?;
    let of_both = |near: [Origin; 3]| {
        core::array::from_fn(|n| if let Origin::Constant(_) = widest[n] { widest[n] } else { near[n] })
    };
    let fits = known.iter().map(|&(at, near)| (Svma(at), of_both(near)));
    let mut fits = fits.filter(|&(at, words)| end - at.0 >= JUMP && may_change(words) != 0);
    fits.clone().find(|(_, words)| words[2] != Origin::Unknown).or_else(|| fits.next())
}
