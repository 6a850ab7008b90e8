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
//! ```text
//!   …                       return address of the function; above it the XSAVE area, from a multiple of 64 on,
//!                           or nothing (`state`)
//!   S - 288   rbx           return address from the gate to the site's code
//!                           (`call_arming`: address of the displaced instructions, from `arm_inlined` on)
//!   S - 280   rbx + FRAME   `Regs`, 144 bytes: gpr[16], rip at + 128, rflags at + 136     = S - DOWN
//!   S - 136                 one word, from which `ret 128` pops rip if rsp stays (`regs::leave`)
//!   S - 128                 the program's red zone
//!   S                       the program's stack pointer
//! ```
//!
//! The registers. One that has another value than the program's is in `Regs`:
//!
//! ```text
//!   at the site               all the program's, rsp = S
//!   led                       rdi = number, rsi = the site's address; rsp = S - DOWN
//!   in the gate, `way`        rsp = S - 288
//!   fill                      rbx = rsp, rax = flags, rcx = S; DF, NT and AC are 0
//!   the function              rdi = number, rsi = Regs = rbx + 8; r12 = number too, without the state saved
//!   its answer                rax; rsp = rbx again
//!   begin                     rdi = number, rsi = site, rdx = S, rax = flags, r11 = function; answer in ecx
//!   at the end                all from `Regs`
//! ```
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
//! call, finds only the registers stored that it may overwrite. It may answer that more is to be done; the
//! gate then begins anew, with the second function.
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

mod inlined;
mod regs;

use super::asm::{Alu, Asm, Cond, Mem, R8, R9, R10, R11, R12, RAX, RBX, RCX, RDI, RDX, RSI, RSP, Reg};
use super::state::call_saved;
use crate::calls::{CallFunctions, Callee, ExtendedState};
pub(super) use inlined::return_path;
use inlined::{ReturnPath, arm_inlined, begin_inlined, end_inlined};
use regs::{BACK_UP, DOWN, FRAME, WITH_STATE, back_up, fill, gpr, leave, load_all, special_and_unusual};

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

/// Length of a `lea` that names an address.
const LEA: u64 = 7;

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

/// Stores rdi and rsi in `Regs` at rsp + `regs`; then rdi = `argument`, rsi = `ip`.
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

/// Appends that part of a gate, to lie at `at`.
pub(super) fn return_gate(out: &mut Vec<u8>, at: u64, functions: &CallFunctions) -> ReturnPath {
    let mut asm = Asm::new(out, at);
    asm.align(16);
    let moved = asm.here();
    leave(&mut asm);
    let exit = way(&mut asm, functions.exit, &Kind::Saved(functions.state), moved);
    ReturnPath { exit: exit.start, again: exit.called, moved }
}

/// The path for [`CallFunctions::begin`], which is entered as [`way`] is. Flags wait in rax: the function
/// uses no instruction that DF or NT change, and only words at their natural alignment (AC).
///
/// ```text
///   in    rdi = number, rsi = site, rsp = S - 288; `Regs` holds rdi and rsi
///   call  rdx = S, rax = flags, r11 = function; `Regs` also holds rax, rcx, rdx, r8 to r11
///   out   ecx = 0: all registers are the program's, `ret`;  else rdi and rsi as before, on to `general`
/// ```
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

/// Appends one path.
///
/// ```text
///   in    rdi = number, rsi = rip, rsp = S - 288, [rsp] = the return address; `Regs` holds rdi and rsi
///   out   rax = 0: all registers from `Regs`, `ret`;  else on to `again` or `moved`, rsp = rbx
/// ```
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
