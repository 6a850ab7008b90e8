//! At the entry of a function by which a program changes what patches rely on: the thread waits until these
//! patches are removed.
//!
//! In: which function, the addresses of two words of the control block (`ASKED`, `CLOSED`), within ±2 GiB.
//! Out: code that runs into the displaced code. It makes no system call and reads no clock. Of the program's
//! memory it loads only the action that `sigaction` itself loads next. So it is right whatever the program
//! has denied its threads.
//! Invariants: HOLD-1 a thread waits at most [`TURNS`] turns, whether or not it gets an answer. HOLD-2 a
//! thread that waited in vain closes the fact itself, so that no other thread waits for it. The answer comes
//! from `patch`'s `hold`. Does not: decide which patches rely on a fact.
//!
//! ```text
//!   rsp - 32   COUNT       turns that are left, while the thread waits
//!   rsp - 24   SAVED_RCX   rcx
//!   rsp - 16   FLAGS       flags, 4 bytes
//!   rsp - 8    SAVED_RAX   rax
//!   rsp                    = S - RED_ZONE if the function's own red zone may be live, else S
//!   rdi, rsi, rdx          the program's arguments, which stay as they are
//!   rcx                    the facts that the thread is about to change
//! ```
//!
//! ```text
//!   pass    if closed & facts = facts
//!   else    asked |= facts;  then up to TURNS turns, until closed & facts = facts
//!   then    if no turn is left: closed |= facts                                       (HOLD-2)
//! ```

use trapline_record::control::fact;

use super::asm::{Alu, Asm, Cond, Fix, Mem, RAX, RCX, RDI, RDX, RSI, RSP, Reg};
use crate::request::Hold;

/// Number of turns of `pause`, which takes 10 to 140 cycles: from half a second to three seconds of a CPU.
const TURNS: u32 = 1 << 26;
const RED_ZONE: i32 = 128;
const SAVED_RAX: i32 = -8;
const FLAGS: i32 = -16;
const SAVED_RCX: i32 = -24;

const SIGBUS: i32 = 7;
const SIGSEGV: i32 = 11;
const PR_SET_SECCOMP: i32 = 22;
const PR_SET_TSC: i32 = 26;
/// Arguments of `prctl`: reading the clock is taken away, and strict mode of seccomp.
const PR_TSC_SIGSEGV: i32 = 2;
const MODE_STRICT: i32 = 1;
/// Operations of `seccomp` that restrict the thread: strict mode, and a filter.
const SET_STRICT: i32 = 0;
const SET_FILTER: i32 = 1;

mod nr {
    pub(super) const RT_SIGACTION: i32 = 13;
    pub(super) const PRCTL: i32 = 157;
    pub(super) const SECCOMP: i32 = 317;
}

/// Ways out of the tests: to the end of the stub, and to where the thread waits.
#[derive(Default)]
struct Ways {
    pass: Vec<Fix>,
    wait: Vec<Fix>,
}

/// Appends the whole stub. `red_zone`: the function's own red zone may be live.
pub fn hold(out: &mut Vec<u8>, at: u64, hold: Hold, (asked, closed): (u64, u64), red_zone: bool) {
    let asm = &mut Asm::new(out, at);
    if red_zone {
        asm.lea(RSP, Mem::At(RSP, -RED_ZONE));
    }
    asm.store(Mem::At(RSP, SAVED_RAX), RAX);
    asm.flags_to_rax();
    asm.store32(Mem::At(RSP, FLAGS), RAX);
    asm.store(Mem::At(RSP, SAVED_RCX), RCX);
    let mut ways = Ways::default();
    match hold {
        Hold::Sigaction => action(asm, &mut ways, (RDI, RSI), true),
        Hold::Prctl => control(asm, &mut ways, (RDI, RSI)),
        Hold::Syscall => call(asm, &mut ways),
    }
    ways.wait.into_iter().for_each(|fix| asm.bind(fix));
    wait(asm, &mut ways.pass, (asked, closed));
    ways.pass.into_iter().for_each(|fix| asm.bind(fix));
    asm.load(RCX, Mem::At(RSP, SAVED_RCX));
    asm.load32(RAX, Mem::At(RSP, FLAGS));
    asm.flags_from_rax();
    asm.load(RAX, Mem::At(RSP, SAVED_RAX));
    if red_zone {
        asm.lea(RSP, Mem::At(RSP, RED_ZONE));
    }
}

/// Detects that a handler of faults is installed. With `loads` it reads the action where the function will
/// load it anyway; without, any action counts. Runs on to where the thread waits.
fn action(asm: &mut Asm<'_>, ways: &mut Ways, (signal, action): (Reg, Reg), loads: bool) {
    asm.alu_imm(Alu::Cmp, signal, SIGSEGV, false);
    let is_fault = asm.jcc_later(Cond::Equal);
    asm.alu_imm(Alu::Cmp, signal, SIGBUS, false);
    ways.pass.push(asm.jcc_later(Cond::NotEqual));
    asm.bind(is_fault);
    asm.test(action, action, true);
    ways.pass.push(asm.jcc_later(Cond::Equal));
    if loads {
        // The default action, and ignoring the signal, both end the program at a fault.
        asm.alu_mem_imm(Alu::Cmp, Mem::At(action, 0), 1, false);
        ways.pass.push(asm.jcc_later(Cond::BelowEq));
    }
    asm.mov_imm32(RCX, fact::FAULTS as u32);
}

/// Detects such calls of `prctl`. Runs on to where the thread waits.
fn control(asm: &mut Asm<'_>, ways: &mut Ways, (option, value): (Reg, Reg)) {
    asm.alu_imm(Alu::Cmp, option, PR_SET_TSC, false);
    let other = asm.jcc_later(Cond::NotEqual);
    asm.alu_imm(Alu::Cmp, value, PR_TSC_SIGSEGV, false);
    ways.pass.push(asm.jcc_later(Cond::NotEqual));
    asm.mov_imm32(RCX, fact::CLOCK as u32);
    ways.wait.push(asm.jmp_later());
    asm.bind(other);
    asm.alu_imm(Alu::Cmp, option, PR_SET_SECCOMP, false);
    ways.pass.push(asm.jcc_later(Cond::NotEqual));
    filter(asm, ways, value, MODE_STRICT);
}

/// Detects that a filter comes, or strict mode, in which reading the clock is forbidden too. Runs on to where
/// the thread waits.
fn filter(asm: &mut Asm<'_>, ways: &mut Ways, mode: Reg, strict: i32) {
    asm.mov_imm32(RCX, fact::FILTER as u32);
    asm.alu_imm(Alu::Cmp, mode, strict, false);
    ways.wait.push(asm.jcc_later(Cond::NotEqual));
    asm.mov_imm32(RCX, (fact::FILTER | fact::CLOCK) as u32);
}

/// Detects such calls by `syscall`: its arguments are one register further on.
fn call(asm: &mut Asm<'_>, ways: &mut Ways) {
    asm.alu_imm(Alu::Cmp, RDI, nr::SECCOMP, false);
    let other = asm.jcc_later(Cond::NotEqual);
    asm.alu_imm(Alu::Cmp, RSI, SET_FILTER, false);
    ways.pass.push(asm.jcc_later(Cond::Above));
    filter(asm, ways, RSI, SET_STRICT);
    ways.wait.push(asm.jmp_later());
    asm.bind(other);
    asm.alu_imm(Alu::Cmp, RDI, nr::PRCTL, false);
    let other = asm.jcc_later(Cond::NotEqual);
    control(asm, ways, (RSI, RDX));
    ways.wait.push(asm.jmp_later());
    asm.bind(other);
    asm.alu_imm(Alu::Cmp, RDI, nr::RT_SIGACTION, false);
    ways.pass.push(asm.jcc_later(Cond::NotEqual));
    action(asm, ways, (RSI, RDX), false);
}

/// HOLD-1 and HOLD-2; rcx = facts. Uses rax and flags.
fn wait(asm: &mut Asm<'_>, pass: &mut Vec<Fix>, (asked, closed): (u64, u64)) {
    // All of them are closed already: most programs make such a change once, or no patch relies on the fact.
    asm.load(RAX, Mem::Rip(closed));
    asm.alu(Alu::And, RAX, RCX);
    asm.alu(Alu::Cmp, RAX, RCX);
    pass.push(asm.jcc_later(Cond::Equal));
    asm.alu_store(Alu::Or, Mem::Rip(asked), RCX, true);
    asm.mov_imm32(RAX, TURNS);
    asm.store(Mem::At(RSP, COUNT), RAX);
    let again = asm.here();
    asm.load(RAX, Mem::Rip(closed));
    asm.alu(Alu::And, RAX, RCX);
    asm.alu(Alu::Cmp, RAX, RCX);
    pass.push(asm.jcc_later(Cond::Equal));
    asm.raw(&PAUSE);
    asm.alu_mem_imm(Alu::Sub, Mem::At(RSP, COUNT), 1, false);
    asm.jcc(Cond::NotEqual, again);
    asm.alu_store(Alu::Or, Mem::Rip(closed), RCX, true);
}

/// Offset from rsp of the number of turns that are left.
const COUNT: i32 = -32;
const PAUSE: [u8; 2] = [0xF3, 0x90];
