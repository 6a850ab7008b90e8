//! Where a program changes what patches rely on: the thread waits until these patches are removed.
//!
//! In: where the call's number and arguments are ([`Hold`]), the addresses of two words of the control block
//! (`ASKED`, `CLOSED`; others lie at fixed distances), within ±2 GiB. Out: code that runs into the displaced code. It
//! makes no system call and reads no clock. Of the program's memory it loads only the action that `sigaction`
//! itself loads next, and words of the stack that the code behind it loads. So it is right whatever the program
//! has denied its threads.
//! Invariants: HOLD-1 a thread waits at most [`TURNS`] turns after the tracer's last sign of life (`ALIVE`), whether or
//! not it gets an answer. HOLD-2 a thread that waited in vain closes the fact itself, so that no other thread waits for
//! it. The answer comes from `patch`'s `hold`. Does not: decide which patches rely on a fact.
//!
//! | place | number | first, second argument | an unknown second argument |
//! |---|---|---|---|
//! | entry of C's `sigaction` | – | rdi, rsi; the action is loaded | – |
//! | entry of C's `prctl` | – | rdi, rsi | – |
//! | entry of C's `syscall` | rdi | rsi, rdx | – |
//! | before a system call (`system_calls`) | where it comes from | where they come from | changes the fact |
//!
//! ```text
//!   rsp - 48   TICKET      the thread's ticket
//!   rsp - 40   SEEN        the word `ALIVE`, as it was seen last
//!   rsp - 32   COUNT       turns that are left, while the thread waits
//!   rsp - 24   SAVED_RCX   rcx
//!   rsp - 16   FLAGS       flags, 4 bytes
//!   rsp - 8    SAVED_RAX   rax
//!   rsp                    = S - RED_ZONE if the function's own red zone may be live, else S
//!   rax                    the word that is looked at
//!   rcx                    the facts that the thread is about to change
//!   others                 the program's, which stay as they are
//! ```
//!
//! ```text
//!   pass    if closed & facts = facts
//!   else    asked |= facts;  ticket = askers += 1
//!   then    up to TURNS turns, until closed & facts = facts, or passed >= ticket;
//!           if alive changes: asked |= facts, and TURNS turns again
//!   then    if no turn is left: closed |= facts                                       (HOLD-2)
//! ```

use trapline_insn::origin::Origin;

use trapline_record::control::{INFORMED, at};

use super::asm::{Alu, Asm, Cond, Fix, Mem, RAX, RCX, RDI, RDX, RSI, RSP, Reg, Shift};
use crate::held_calls::{Numbers, Tests, decide};
use crate::request::Hold;

pub(crate) const NUMBERS: Numbers = Numbers { rt_sigaction: 13, prctl: 157, seccomp: 317 };
/// Number of turns of `pause`, which takes 10 to 140 cycles: from half a second to three seconds of a CPU.
pub(super) const TURNS: u32 = 1 << 26;
pub(super) const RED_ZONE: i32 = 128;
/// Offset of `sa_flags` in C's `struct sigaction`, of glibc and of musl, and a flag.
const SA_FLAGS: i32 = 136;
const SA_SIGINFO: i32 = 4;
const SAVED_RAX: i32 = -8;
const FLAGS: i32 = -16;
const SAVED_RCX: i32 = -24;

/// The first three arguments of a C function.
const ARGUMENTS: [Origin; 3] = [Origin::Register(RDI.0), Origin::Register(RSI.0), Origin::Register(RDX.0)];

/// Appends the whole stub. `red_zone`: the function's own red zone may be live.
pub fn hold(out: &mut Vec<u8>, start: u64, hold: Hold, words: (u64, u64), red_zone: bool) {
    let lowered = if red_zone { RED_ZONE } else { 0 };
    let mut test =
        Test { asm: Asm::new(out, start), lowered, handler: words.0 + (at::ASKED_HANDLER - at::ASKED) };
    begin(&mut test.asm, lowered);
    let (waits, mut passes) = decide(&mut test, hold, NUMBERS, ARGUMENTS);
    waits.into_iter().for_each(|jump| test.bind(jump));
    wait(&mut test.asm, &mut passes, words);
    passes.into_iter().for_each(|jump| test.bind(jump));
    end(&mut test.asm, lowered);
}

/// Saves rax, rcx and the flags.
pub(super) fn begin(asm: &mut Asm<'_>, lowered: i32) {
    if lowered != 0 {
        asm.lea(RSP, Mem::At(RSP, -lowered));
    }
    asm.store(Mem::At(RSP, SAVED_RAX), RAX);
    asm.flags_to_rax();
    asm.store32(Mem::At(RSP, FLAGS), RAX);
    asm.store(Mem::At(RSP, SAVED_RCX), RCX);
}

/// Puts them back.
pub(super) fn end(asm: &mut Asm<'_>, lowered: i32) {
    asm.load(RCX, Mem::At(RSP, SAVED_RCX));
    asm.load32(RAX, Mem::At(RSP, FLAGS));
    asm.flags_from_rax();
    asm.load(RAX, Mem::At(RSP, SAVED_RAX));
    if lowered != 0 {
        asm.lea(RSP, Mem::At(RSP, lowered));
    }
}

/// Decides which facts a thread is about to change.
struct Test<'a> {
    asm: Asm<'a>,
    /// Bytes by which the stub has lowered the stack pointer.
    lowered: i32,
    /// Address of the word `ASKED_HANDLER`.
    handler: u64,
}

impl Test<'_> {
    /// Notes the handler of the action at rax, and whether the signal is described to it. Uses rax, rcx, flags.
    fn note_handler(&mut self) {
        let asm = &mut self.asm;
        asm.load(RCX, Mem::At(RAX, 0));
        asm.load32(RAX, Mem::At(RAX, SA_FLAGS));
        asm.alu_imm(Alu::And, RAX, SA_SIGINFO, false);
        asm.shift(
            Shift::Left,
            RAX,
            INFORMED.trailing_zeros() as u8 - SA_SIGINFO.trailing_zeros() as u8,
            true,
        );
        asm.alu(Alu::Or, RCX, RAX);
        asm.store(Mem::Rip(self.handler), RCX);
    }
    /// Loads a word into rax. Flags stay.
    fn load(&mut self, word: Origin) {
        let asm = &mut self.asm;
        match word {
            Origin::Register(number) if number == RAX.0 => asm.load(RAX, Mem::At(RSP, SAVED_RAX)),
            Origin::Register(number) if number == RCX.0 => asm.load(RAX, Mem::At(RSP, SAVED_RCX)),
            Origin::Register(number) => asm.mov(RAX, Reg(number)),
            Origin::Memory { base, offset } if base == RSP.0 => {
                asm.load(RAX, Mem::At(RSP, offset.wrapping_add(self.lowered)));
            }
            Origin::Memory { base, offset } => asm.load(RAX, Mem::At(Reg(base), offset)),
            // Decided before the code runs (`held_calls`).
            Origin::Constant(_) | Origin::Unknown => {}
        }
    }
}

impl Tests for Test<'_> {
    type Jump = Fix;
    fn jump_if(&mut self, word: Origin, number: u32, is: bool) -> Fix {
        self.load(word);
        self.asm.alu_imm(Alu::Cmp, RAX, number.cast_signed(), false);
        self.asm.jcc_later(if is { Cond::Equal } else { Cond::NotEqual })
    }
    fn unless_handler(&mut self, action: Origin, loads: bool, jumps: &mut Vec<Fix>) {
        self.load(action);
        self.asm.test(RAX, RAX, true);
        jumps.push(self.asm.jcc_later(Cond::Equal));
        if loads {
            // The default action, and ignoring the signal, show no address to the program. Children set the
            // default for all signals before they execute another program.
            self.asm.alu_mem_imm(Alu::Cmp, Mem::At(RAX, 0), 1, false);
            jumps.push(self.asm.jcc_later(Cond::BelowEq));
            self.note_handler();
        }
    }
    fn changes(&mut self, facts: u64) -> Fix {
        self.asm.mov_imm32(RCX, facts as u32);
        self.jump()
    }
    fn jump(&mut self) -> Fix {
        self.asm.jmp_later()
    }
    fn bind(&mut self, jump: Fix) {
        self.asm.bind(jump);
    }
}

/// HOLD-1 and HOLD-2; rcx = facts. Uses rax and flags.
fn wait(asm: &mut Asm<'_>, pass: &mut Vec<Fix>, (asked, closed): (u64, u64)) {
    // All of them are closed already: most programs make such a change once, or no patch relies on the fact.
    asm.load(RAX, Mem::Rip(closed));
    asm.alu(Alu::And, RAX, RCX);
    asm.alu(Alu::Cmp, RAX, RCX);
    pass.push(asm.jcc_later(Cond::Equal));
    let ask = |asm: &mut Asm<'_>| asm.alu_store(Alu::Or, Mem::Rip(asked), RCX, true);
    let beside = |word: u64| asked + (word - at::ASKED);
    ask(asm);
    asm.alu_mem_imm(Alu::Add, Mem::Rip(beside(at::ASKERS)), 1, true);
    // Another thread's ticket may lie between the two. A later ticket passes later.
    asm.load(RAX, Mem::Rip(beside(at::ASKERS)));
    asm.store(Mem::At(RSP, TICKET), RAX);
    count_anew(asm, beside(at::ALIVE));
    let again = asm.here();
    asm.load(RAX, Mem::Rip(closed));
    asm.alu(Alu::And, RAX, RCX);
    asm.alu(Alu::Cmp, RAX, RCX);
    pass.push(asm.jcc_later(Cond::Equal));
    asm.load(RAX, Mem::Rip(beside(at::PASSED)));
    asm.alu_load(Alu::Cmp, RAX, Mem::At(RSP, TICKET));
    pass.push(asm.jcc_later(Cond::AboveEq));
    take_turn(asm, beside(at::ALIVE), again, ask);
    asm.alu_store(Alu::Or, Mem::Rip(closed), RCX, true);
}

/// All turns are left from now on. Uses rax.
pub(super) fn count_anew(asm: &mut Asm<'_>, alive: u64) {
    asm.load(RAX, Mem::Rip(alive));
    asm.store(Mem::At(RSP, SEEN), RAX);
    asm.mov_imm32(RAX, TURNS);
    asm.store(Mem::At(RSP, COUNT), RAX);
}

/// One turn; runs on when none is left. `ask` is appended where the tracer is seen to live. Uses rax and flags.
pub(super) fn take_turn(asm: &mut Asm<'_>, alive: u64, again: u64, ask: impl FnOnce(&mut Asm<'_>)) {
    asm.load(RAX, Mem::Rip(alive));
    asm.alu_load(Alu::Cmp, RAX, Mem::At(RSP, SEEN));
    let silent = asm.jcc_later(Cond::Equal);
    ask(asm);
    count_anew(asm, alive);
    asm.bind(silent);
    asm.raw(&PAUSE);
    asm.alu_mem_imm(Alu::Sub, Mem::At(RSP, COUNT), 1, false);
    asm.jcc(Cond::NotEqual, again);
}

/// Offset from rsp of the number of turns that are left.
const COUNT: i32 = -32;
/// Offset of the word `ALIVE` as it was seen last.
const SEEN: i32 = -40;
/// Offset of the thread's ticket.
const TICKET: i32 = -48;
const PAUSE: [u8; 2] = [0xF3, 0x90];
