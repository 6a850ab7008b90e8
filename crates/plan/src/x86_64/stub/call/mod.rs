//! A hit that calls a consumer. The machine's state goes into an `insn::x86_64::Regs` on the stack; a
//! function is called with a number and that; then the state, as the function left it, goes back.
//!
//! In: the functions' addresses, the number, which components of the extended state to keep (as numbers, from
//! CPUID and XGETBV).
//! Out: a *gate* for each segment, which is code that does all of that; and for each site a few instructions
//! that lead through it.
//! Invariants: CALL-1 nothing is stored into the 128 bytes below the stack pointer, nor below the stack
//! pointer of the moment (a signal may come at any instruction). CALL-2 unless the function changes them,
//! registers, flags, vectors and red zone are bit-identical behind it. CALL-3 nothing is kept anywhere but on
//! the stack, so a function that never comes back leaves nothing behind.
//! Does not: know what is called. Shadow stacks: calls and returns here are paired, but a moved instruction
//! pointer is reached by a `ret`, which a shadow stack forbids.
//!
//! The stack, S being the stack pointer at the site:
//!
//! | where | what |
//! |---|---|
//! | S − 128 .. S | the program's red zone |
//! | S − 280 .. S − 136 | `Regs` |
//! | S − 288 | return address from the gate to the site's code |
//! | below, from a multiple of 64 down | XSAVE area, return address of the function |
//!
//! A function that is called without the extended state saved may answer that it needs it. The gate then
//! begins anew, from the same `Regs`, with the function that may use that state. Otherwise the function gives
//! one of three answers:
//!
//! - 0: go on with the displaced instructions, with the general registers and flags of `Regs` (the stack
//!   pointer stays);
//! - 1: all of `Regs` is loaded, and control goes to its rip;
//! - 2: all of `Regs` is loaded, and control goes to the displaced instructions.
//!
//! For the last two, the last step is `ret 128`, which pops from under the new red zone: one instruction that
//! loads rip and rsp at once, so that no signal can come in between.
//!
//! What is called most may be *inlined* (`inlined`): the gate holds a copy of its code, which costs no call
//! and no return.
//!
//! If all consumers wait for the return only, most of that is not needed. A third function, which *begins* a
//! call, finds only the registers stored that it may spoil. It may answer that more is to be done; the gate
//! then begins anew, with the second function.
//!
//! If such a call is armed as well, there is no way back: a jump leads to the gate, and another one to the
//! return trampoline. A way back is made only if the call could not be armed.
//!
//! No jump, call or return of the common path crosses or ends at a 32-byte boundary (`Asm::unbroken`). In a
//! copy of the gate that stood alone, that saved 2.5 of 13 ns.
//!
//! Flags are restored by `sahf` and an addition, not by `popfq`, which alone would take a third of a hit.
//! Bits that `sahf` does not restore (DF, AC, NT) are 0 in nearly all code. If one is set, it is cleared for
//! the call, as the ABI requires, and `popfq` restores it.
//!
//! The cost of a hit is in micro-operations, of which a core of 2019 executes four a cycle: some 120 from the
//! site and back, 30 cycles.

pub use inlined::InlinedPath;
pub(super) use inlined::return_path;
use inlined::{arm_inlined, begin_inlined, end_inlined};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R8, R9, R10, R11, R12, RAX, RBX, RCX, RDI, RDX, RSI, RSP, Reg};
use super::state::{ExtendedState, call_saved};
use crate::request::Callee;

mod inlined;

/// The functions that are called: `extern "C" fn(number, *mut Regs) -> u64`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallFunctions {
    /// For entries and single instructions; called with the extended state saved.
    pub entry: u64,
    /// For entries and single instructions; called first, without that state saved, for probes that do not
    /// ask for it. It leaves the extended state as it is. It may change all general registers except rbx,
    /// which is the address 8 below `Regs`, rbp and rsp. It may answer 3: call `entry` after all. r12 holds
    /// the number too, and must still hold it with that answer.
    pub general: u64,
    /// Called first at entries if [`only_returns`](crate::Callee::only_returns): rdi = the number, rsi = the
    /// site, rdx = its stack pointer. It may change rcx, rdx and r8 to r11. It answers in ecx: 0, or
    /// otherwise: call `general` after all.
    pub begin: u64,
    /// Inlined by the gate before `begin`, if present, with the same in the same registers. It changes rcx,
    /// rdx, r8 and r9. Its common path: done. Its other path: call `begin`.
    pub begins: Option<InlinedPath>,
    /// Inlined where calls may also be [armed](crate::Callee::arms); if absent, none is armed. It has the
    /// same in the same registers, and at rsp the value for the trampoline's `GO`. It changes the same
    /// registers. Its common path: the stack word holds a return trampoline, at
    /// [`ENTER`](trapline_record::trampolines::ENTER). Its other path: call `general` after all.
    pub arms: Option<InlinedPath>,
    /// For exits; called with the extended state saved.
    pub exit: u64,
    /// For exits, what `general` is for entries; the other function is `exit`.
    pub general_exit: u64,
    /// Inlined before `general_exit` if [`only_returns`](crate::Callee::only_returns), if present. It has
    /// what a function called there has, but with rsp a multiple of 16, and in rcx the exit's stack pointer.
    /// It may leave rsp anywhere below. Its common path: the answer is 0. Its other path: the answer is in
    /// eax; 3: call `general_exit`.
    pub ends: Option<InlinedPath>,
    /// Components of the extended state that are saved.
    pub state: ExtendedState,
}

/// The gate of one segment, through which all its calls go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gate {
    general: u64,
    entry: u64,
    begin: u64,
    arm: Option<u64>,
    exit: u64,
    general_exit: u64,
    end: u64,
}

impl Gate {
    /// Address that a site's stub calls, for an entry or an exit, and for these consumers.
    #[must_use]
    pub const fn way(&self, exit: bool, callee: &Callee) -> u64 {
        match (exit, callee.saves_state) {
            (true, true) => self.exit,
            (true, false) if callee.only_returns => self.end,
            (true, false) => self.general_exit,
            (false, true) => self.entry,
            (false, false) if callee.only_returns => match self.arm {
                Some(arm) if callee.arms => arm,
                _ => self.begin,
            },
            (false, false) => self.general,
        }
    }
    /// Whether that address is the path that arms calls.
    #[must_use]
    pub fn arms(&self, way: u64) -> bool {
        self.arm == Some(way)
    }
}

/// Bytes of `Regs`, and offsets in it.
const REGS: i32 = 144;
const RIP: i32 = 128;
const FLAGS: i32 = 136;
const RED_ZONE: i32 = 128;
/// Distance from the stack pointer at the site down to `Regs`.
const DOWN: i32 = RED_ZONE + 8 + REGS;
/// Offset of `Regs` in the gate: it lies above the gate's return address.
const FRAME: i32 = 8;
/// DF, NT, AC.
const SPECIAL: u32 = 1 << 10 | 1 << 14 | 1 << 18;

/// The answer that means: go on with the displaced instructions.
const DISPLACED: i32 = 2;
/// The answer that means: call the function for which the extended state is saved.
const WITH_STATE: i32 = 3;
/// Length of the instruction behind a site's call, which raises the stack pointer again.
const BACK_UP: i32 = 8;
/// Length of a `lea` that names an address.
const LEA: u64 = 7;

const fn gpr(n: u8) -> i32 {
    n as i32 * 8
}

/// Every general register but rsp.
fn gprs() -> impl Iterator<Item = Reg> {
    (0..16).filter(|&n| n != RSP.0).map(Reg)
}

/// Appends the code that leads a site at `ip` (any address) through the gate. `way` must lie within ±2 GiB.
pub fn call(out: &mut Vec<u8>, at: u64, way: u64, argument: u64, ip: u64) {
    let mut asm = Asm::new(out, at);
    asm.lea(RSP, Mem::At(RSP, -DOWN));
    led(&mut asm, 0, argument, ip);
    asm.unbroken(|asm| asm.call(way));
    back_up(&mut asm);
}

/// The same through [`CallFunctions::arms`]. A call that was armed does not come back from there; it goes on
/// at its return trampoline (see `return_path`).
pub fn call_arming(out: &mut Vec<u8>, at: u64, way: u64, argument: u64, ip: u64) {
    const JUMP: u64 = 5;
    let mut asm = Asm::new(out, at);
    asm.lea(RSP, Mem::At(RSP, -DOWN - FRAME));
    asm.store(Mem::At(RSP, FRAME + gpr(RCX.0)), RCX);
    led(&mut asm, FRAME, argument, ip);
    asm.unbroken_behind(LEA, |asm| {
        let behind = asm.here() + (LEA + JUMP) + BACK_UP as u64;
        asm.lea(RCX, Mem::Rip(behind));
        asm.jmp(way);
        debug_assert_eq!(asm.here() + BACK_UP as u64, behind);
    });
    back_up(&mut asm);
}

fn back_up(asm: &mut Asm<'_>) {
    let back = asm.here();
    asm.lea(RSP, Mem::At(RSP, DOWN));
    debug_assert_eq!(asm.here() - back, BACK_UP as u64);
}

/// Stores rdi and rsi in `Regs`, which lies `regs` bytes above the stack pointer, and loads them with
/// `argument` and `ip`.
fn led(asm: &mut Asm<'_>, regs: i32, argument: u64, ip: u64) {
    asm.store(Mem::At(RSP, regs + gpr(RDI.0)), RDI);
    asm.store(Mem::At(RSP, regs + gpr(RSI.0)), RSI);
    asm.mov_imm64(RDI, argument);
    if is_near(asm.here(), ip) {
        asm.lea(RSI, Mem::Rip(ip));
    } else {
        asm.mov_imm64(RSI, ip);
    }
}

/// Whether an instruction close behind `at` can name an address by 32 bits from its own.
fn is_near(at: u64, address: u64) -> bool {
    i32::try_from(address.wrapping_sub(at).cast_signed()).is_ok_and(|by| by.checked_sub(64).is_some())
}

/// Appends the gate, to lie at `at`.
pub fn gate(out: &mut Vec<u8>, at: u64, functions: &CallFunctions) -> Gate {
    let mut asm = Asm::new(out, at);
    asm.align(16);
    let moved = asm.here();
    leave(&mut asm);
    let entry = way(&mut asm, functions.entry, &Kind::Saved(functions.state), moved);
    let exit = way(&mut asm, functions.exit, &Kind::Saved(functions.state), moved);
    let general = way(&mut asm, functions.general, &Kind::General { again: entry.called }, moved);
    let general_exit = way(&mut asm, functions.general_exit, &Kind::General { again: exit.called }, moved);
    let arm = functions.arms.as_ref().map(|inlined| arm_inlined(&mut asm, inlined, general.start));
    let begin = begin(&mut asm, functions.begin, general.start);
    let begin = functions.begins.as_ref().map_or(begin, |inlined| begin_inlined(&mut asm, inlined, begin));
    let end = functions.ends.as_ref().map_or(general_exit.start, |inlined| {
        end_inlined(&mut asm, inlined, functions.general_exit, (exit.called, moved))
    });
    let [general, entry, exit, general_exit] = [general, entry, exit, general_exit].map(|way| way.start);
    Gate { general, entry, begin, arm, exit, general_exit, end }
}

/// What the code of return trampolines needs from a gate: the path to `functions.exit`.
pub(super) struct ReturnPath {
    /// Address to be called.
    pub(super) exit: u64,
    again: u64,
    moved: u64,
}

/// Appends that part of a gate, to lie at `at`.
pub(super) fn return_gate(out: &mut Vec<u8>, at: u64, functions: &CallFunctions) -> ReturnPath {
    let mut asm = Asm::new(out, at);
    asm.align(16);
    let moved = asm.here();
    leave(&mut asm);
    let exit = way(&mut asm, functions.exit, &Kind::Saved(functions.state), moved);
    ReturnPath { exit: exit.start, again: exit.called, moved }
}

/// The path for [`CallFunctions::begin`]. In: as for [`way`]. Flags wait in rax: the function uses no
/// instruction that DF or NT change, and only words at their natural alignment (AC).
fn begin(asm: &mut Asm<'_>, function: u64, general: u64) -> u64 {
    const SPOILT: [Reg; 6] = [RCX, RDX, R8, R9, R10, R11];
    let place = |reg: Reg| Mem::At(RSP, FRAME + gpr(reg.0));
    asm.align(64);
    let start = asm.here();
    asm.store(place(RAX), RAX);
    SPOILT.into_iter().for_each(|reg| asm.store(place(reg), reg));
    asm.flags_to_rax();
    asm.lea(RDX, Mem::At(RSP, FRAME + DOWN));
    asm.mov_imm64(R11, function);
    asm.unbroken(|asm| asm.call_reg(R11));
    let after_all = asm.unbroken(|asm| {
        asm.test(RCX, RCX, false);
        asm.jcc_later(Cond::NotEqual)
    });
    asm.flags_from_rax();
    [RAX, RDI, RSI].into_iter().chain(SPOILT).for_each(|reg| asm.load(reg, place(reg)));
    asm.unbroken(Asm::ret);
    asm.bind(after_all);
    asm.flags_from_rax();
    [RAX].into_iter().chain(SPOILT).for_each(|reg| asm.load(reg, place(reg)));
    asm.jmp(general);
    start
}

/// Whether the extended state is saved.
enum Kind {
    Saved(ExtendedState),
    /// It is not; if it must be after all, the path goes on at `again`.
    General {
        again: u64,
    },
}

/// One path through the gate.
struct Way {
    start: u64,
    /// Address behind the code that completes `Regs`.
    called: u64,
}

/// Appends one path. In: `Regs` with rdi and rsi stored, rdi = number, rsi = rip, the return address under
/// `Regs`.
fn way(asm: &mut Asm<'_>, function: u64, kind: &Kind, moved: u64) -> Way {
    asm.align(64);
    let start = asm.here();
    let special = fill(asm, Some(RSI));
    let called = asm.here();
    asm.lea(RSI, Mem::At(RBX, FRAME));
    let call = |asm: &mut Asm<'_>| {
        if is_near(asm.here(), function) {
            return asm.unbroken(|asm| asm.call(function));
        }
        asm.mov_imm64(RAX, function);
        asm.unbroken(|asm| asm.call_reg(RAX));
    };
    match kind {
        Kind::General { .. } => {
            asm.mov(R12, RDI);
            asm.alu_imm(Alu::And, RSP, -16, true);
            call(asm);
            asm.mov(RSP, RBX);
        }
        Kind::Saved(state) => call_saved(asm, *state, call),
    }
    let not_on = asm.unbroken(|asm| {
        asm.test(RAX, RAX, false);
        asm.jcc_later(Cond::NotEqual)
    });
    let loaded = load_all(asm, |asm| asm.unbroken(Asm::ret));
    asm.bind(not_on);
    if let Kind::General { again } = kind {
        asm.mov(RDI, R12);
        asm.alu_imm(Alu::Cmp, RAX, WITH_STATE, false);
        asm.jcc(Cond::Equal, *again);
    }
    asm.jmp(moved);
    special_and_unusual(asm, (special, called), loaded);
    Way { start, called }
}

/// Completes `Regs`, except for the instruction pointer if no register holds it. Returns the jump that is
/// taken if flags are set that must not be set in a call.
fn fill(asm: &mut Asm<'_>, rip: Option<Reg>) -> Fix {
    // All by rbx: with rsp, a core inserts a micro-operation between a push and the next use as an address.
    let regs = |at: i32| Mem::At(RBX, FRAME + at);
    asm.store(Mem::At(RSP, FRAME + gpr(RBX.0)), RBX);
    asm.mov(RBX, RSP);
    asm.pushfq();
    fill_gprs(asm);
    rip.into_iter().for_each(|rip| asm.store(regs(RIP), rip));
    asm.pop(RAX);
    asm.store(regs(FLAGS), RAX);
    fill_sp(asm)
}

/// The same where nothing lies below yet, not even rdi and rsi: the flags are pushed to their place.
fn fill_below(asm: &mut Asm<'_>) -> Fix {
    let regs = |at: i32| Mem::At(RBX, FRAME + at);
    let flags = FLAGS + 8 - DOWN;
    asm.lea(RSP, Mem::At(RSP, flags));
    asm.pushfq();
    asm.lea(RSP, Mem::At(RSP, 8 - flags - DOWN - FRAME));
    [RBX, RDI, RSI].into_iter().for_each(|reg| asm.store(Mem::At(RSP, FRAME + gpr(reg.0)), reg));
    asm.mov(RBX, RSP);
    fill_gprs(asm);
    asm.load32(RAX, regs(FLAGS));
    fill_sp(asm)
}

/// Stores all but rbx, rdi and rsi, which are stored already.
fn fill_gprs(asm: &mut Asm<'_>) {
    for reg in gprs().filter(|reg| ![RBX, RDI, RSI].contains(reg)) {
        asm.store(Mem::At(RBX, FRAME + gpr(reg.0)), reg);
    }
}

/// In: eax = flags. Leaves the stack pointer in rcx.
fn fill_sp(asm: &mut Asm<'_>) -> Fix {
    asm.lea(RCX, Mem::At(RBX, FRAME + DOWN));
    asm.store(Mem::At(RBX, FRAME + gpr(RSP.0)), RCX);
    asm.unbroken(|asm| {
        asm.test_imm32(RAX, SPECIAL);
        asm.jcc_later(Cond::NotEqual)
    })
}

/// Loads flags and general registers from `Regs`, then does `back` to the site. Returns the jump that is
/// taken if the flags need more, which changes no register, and the address to which that comes back.
fn load_all(asm: &mut Asm<'_>, back: impl Fn(&mut Asm<'_>)) -> (Fix, u64) {
    /// Length of the test and its jump.
    const ASKED: u64 = 6 + 6;
    asm.load32(RAX, Mem::At(RSP, FRAME + FLAGS));
    let load = |asm: &mut Asm<'_>, reg: Reg| asm.load(reg, Mem::At(RSP, FRAME + gpr(reg.0)));
    let mut others = gprs().filter(|&reg| reg != RAX);
    // These loads align the test, in place of instructions that do nothing.
    while !asm.is_unbroken(ASKED) {
        let Some(reg) = others.next() else { break };
        load(asm, reg);
    }
    let unusual = asm.unbroken(|asm| {
        asm.test_imm32(RAX, SPECIAL);
        asm.jcc_later(Cond::NotEqual)
    });
    asm.bytes_to_flags();
    let rest = asm.here();
    std::iter::once(RAX).chain(others).for_each(|reg| load(asm, reg));
    back(asm);
    (unusual, rest)
}

/// Emits the code to which the jumps of [`fill`] and [`load_all`] lead, and which comes back from there.
fn special_and_unusual(asm: &mut Asm<'_>, (special, called): (Fix, u64), (unusual, load): (Fix, u64)) {
    asm.bind(special);
    asm.raw(&[0x6A, 0x02]); // push 2: all flags 0
    asm.popfq();
    asm.jmp(called);
    asm.bind(unusual);
    asm.push_mem(Mem::At(RSP, FRAME + FLAGS));
    asm.popfq();
    asm.jmp(load);
}

/// Loads all of `Regs`. In: eax = the answer, rbx + 8 = `Regs`, rsp = rbx; at rsp lies the return address to
/// the site's code.
///
/// What is popped at the end lies under the new red zone, which may be anywhere: above `Regs`, below, or
/// across it. So `Regs` is first copied to below both, then from there to its place. The stack pointer is
/// below everything that is in use throughout.
fn leave(asm: &mut Asm<'_>) {
    /// Distance from the word of rip, under the new red zone, down to the first register that is popped.
    const POPPED: i32 = 15 * 8 + 8;
    let (from, slot, copy) = (RSI, RCX, RSP);
    asm.alu_imm(Alu::Cmp, RAX, DISPLACED, false);
    let elsewhere = asm.jcc_later(Cond::NotEqual);
    asm.load(RAX, Mem::At(RBX, 0));
    asm.lea(RAX, Mem::At(RAX, BACK_UP));
    asm.store(Mem::At(RBX, FRAME + RIP), RAX);
    asm.bind(elsewhere);
    asm.lea(from, Mem::At(RBX, FRAME));
    asm.load(slot, Mem::At(from, gpr(RSP.0)));
    asm.lea(slot, Mem::At(slot, -RED_ZONE - 8));
    asm.lea(RDX, Mem::At(slot, -POPPED));
    asm.alu(Alu::Cmp, RDX, RBX);
    let below = asm.jcc_later(Cond::BelowEq);
    asm.mov(RDX, RBX);
    asm.bind(below);
    asm.lea(copy, Mem::At(RDX, -REGS));
    for at in (0..REGS).step_by(8) {
        asm.load(RAX, Mem::At(from, at));
        asm.store(Mem::At(copy, at), RAX);
    }
    let places = gprs().map(|reg| gpr(reg.0)).chain([FLAGS, RIP]);
    for (at, to) in places.zip((-POPPED..).step_by(8)) {
        asm.load(RAX, Mem::At(copy, at));
        asm.store(Mem::At(slot, to), RAX);
    }
    asm.lea(RSP, Mem::At(slot, -POPPED));
    for reg in gprs() {
        asm.pop(reg);
    }
    asm.popfq();
    asm.raw(&[0xC2, RED_ZONE as u8, 0]); // ret 128
}
