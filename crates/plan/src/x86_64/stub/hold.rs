//! Where a program changes what patches rely on: the thread waits until these patches are removed.
//!
//! In: where the call's number and arguments are ([`Hold`]), the addresses of two words of the control block
//! (`ASKED`, `CLOSED`), within ±2 GiB. Out: code that runs into the displaced code. It makes no system call
//! and reads no clock. Of the program's memory it loads only the action that `sigaction` itself loads next,
//! and words of the stack that the code behind it loads. So it is right whatever the program has denied its
//! threads.
//! Invariants: HOLD-1 a thread waits at most [`TURNS`] turns, whether or not it gets an answer. HOLD-2 a
//! thread that waited in vain closes the fact itself, so that no other thread waits for it. The answer comes
//! from `patch`'s `hold`. Does not: decide which patches rely on a fact.
//!
//! | place | number | first, second argument | an unknown second argument |
//! |---|---|---|---|
//! | entry of C's `sigaction` | – | rdi, rsi; the action is loaded | – |
//! | entry of C's `prctl` | – | rdi, rsi | – |
//! | entry of C's `syscall` | rdi | rsi, rdx | – |
//! | before a system call (`system_calls`) | where it comes from | where they come from | changes the fact |
//!
//! ```text
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
//!   else    asked |= facts;  then up to TURNS turns, until closed & facts = facts
//!   then    if no turn is left: closed |= facts                                       (HOLD-2)
//! ```

use trapline_insn::origin::Origin;
use trapline_record::control::fact;

use super::asm::{Alu, Asm, Cond, Fix, Mem, RAX, RCX, RDI, RDX, RSI, RSP, Reg};
use crate::request::Hold;

/// Number of turns of `pause`, which takes 10 to 140 cycles: from half a second to three seconds of a CPU.
const TURNS: u32 = 1 << 26;
const RED_ZONE: i32 = 128;
const SAVED_RAX: i32 = -8;
const FLAGS: i32 = -16;
const SAVED_RCX: i32 = -24;

const SIGILL: u32 = 4;
const SIGTRAP: u32 = 5;
const SIGBUS: u32 = 7;
const SIGSEGV: u32 = 11;
const PR_SET_SECCOMP: u32 = 22;
const PR_SET_TSC: u32 = 26;
/// Arguments of `prctl`: reading the clock is taken away, and strict mode of seccomp.
const PR_TSC_SIGSEGV: u32 = 2;
const MODE_STRICT: u32 = 1;
/// Operations of `seccomp` that restrict the thread: strict mode, and a filter.
const SET_STRICT: u32 = 0;
const SET_FILTER: u32 = 1;

mod nr {
    pub(super) const RT_SIGACTION: u32 = 13;
    pub(super) const PRCTL: u32 = 157;
    pub(super) const SECCOMP: u32 = 317;
}

/// The first three arguments of a C function.
const ARGUMENTS: [Origin; 3] = [Origin::Register(RDI.0), Origin::Register(RSI.0), Origin::Register(RDX.0)];

/// Facts that a system call may change, by what is known of its number and its first two arguments. None if
/// the number or the first argument is not known: most calls change nothing.
pub(crate) const fn may_change([number, first, second]: [Origin; 3]) -> u64 {
    let fault = may_be(first, SIGSEGV) || may_be(first, SIGBUS);
    let trap = may_be(first, SIGTRAP) || may_be(first, SIGILL);
    let clock = may_be(first, PR_SET_TSC) && may_be(second, PR_TSC_SIGSEGV);
    let filter = may_be(first, PR_SET_SECCOMP);
    let seccomp = may_be(first, SET_STRICT) || may_be(first, SET_FILTER);
    if matches!(number, Origin::Unknown) || matches!(first, Origin::Unknown) {
        return 0;
    }
    let mut facts = 0;
    if may_be(number, nr::RT_SIGACTION) && fault {
        facts |= fact::FAULTS;
    }
    if may_be(number, nr::RT_SIGACTION) && trap {
        facts |= fact::TRAPS;
    }
    if may_be(number, nr::PRCTL) && clock {
        facts |= fact::CLOCK;
    }
    if may_be(number, nr::PRCTL) && filter || may_be(number, nr::SECCOMP) && seccomp {
        facts |= fact::FILTER | fact::CLOCK;
    }
    facts
}

const fn may_be(word: Origin, value: u32) -> bool {
    match word {
        Origin::Constant(constant) => constant == value,
        _ => true,
    }
}

/// Appends the whole stub. `red_zone`: the function's own red zone may be live.
pub fn hold(out: &mut Vec<u8>, at: u64, hold: Hold, (asked, closed): (u64, u64), red_zone: bool) {
    let lowered = if red_zone { RED_ZONE } else { 0 };
    let asm = Asm::new(out, at);
    let mut test = Test { asm, lowered, pass: Vec::new(), wait: Vec::new() };
    test.begin();
    let [first, second, _] = ARGUMENTS;
    match hold {
        Hold::Sigaction => test.action(first, second, true),
        Hold::Prctl => test.control(first, second),
        Hold::Syscall => test.call(ARGUMENTS),
        Hold::Call(words) => test.call(words),
    }
    test.end((asked, closed));
}

/// Decides which facts a thread is about to change.
struct Test<'a> {
    asm: Asm<'a>,
    /// Bytes by which the stub has lowered the stack pointer.
    lowered: i32,
    /// Ways out: to the end of the stub, and to where the thread waits.
    pass: Vec<Fix>,
    wait: Vec<Fix>,
}

impl Test<'_> {
    fn begin(&mut self) {
        let asm = &mut self.asm;
        if self.lowered != 0 {
            asm.lea(RSP, Mem::At(RSP, -self.lowered));
        }
        asm.store(Mem::At(RSP, SAVED_RAX), RAX);
        asm.flags_to_rax();
        asm.store32(Mem::At(RSP, FLAGS), RAX);
        asm.store(Mem::At(RSP, SAVED_RCX), RCX);
    }
    fn end(mut self, words: (u64, u64)) {
        let asm = &mut self.asm;
        self.wait.into_iter().for_each(|fix| asm.bind(fix));
        wait(asm, &mut self.pass, words);
        self.pass.into_iter().for_each(|fix| asm.bind(fix));
        asm.load(RCX, Mem::At(RSP, SAVED_RCX));
        asm.load32(RAX, Mem::At(RSP, FLAGS));
        asm.flags_from_rax();
        asm.load(RAX, Mem::At(RSP, SAVED_RAX));
        if self.lowered != 0 {
            asm.lea(RSP, Mem::At(RSP, self.lowered));
        }
    }
    /// Loads a word into rax. One that is not known counts as `unknown`. Flags stay.
    fn load(&mut self, word: Origin, unknown: u32) {
        let asm = &mut self.asm;
        match word {
            Origin::Register(number) if number == RAX.0 => asm.load(RAX, Mem::At(RSP, SAVED_RAX)),
            Origin::Register(number) if number == RCX.0 => asm.load(RAX, Mem::At(RSP, SAVED_RCX)),
            Origin::Register(number) => asm.mov(RAX, Reg(number)),
            Origin::Memory { base, offset } if base == RSP.0 => {
                asm.load(RAX, Mem::At(RSP, offset.wrapping_add(self.lowered)));
            }
            Origin::Memory { base, offset } => asm.load(RAX, Mem::At(Reg(base), offset)),
            Origin::Constant(value) => asm.mov_imm32(RAX, value),
            Origin::Unknown => asm.mov_imm32(RAX, unknown),
        }
    }
    /// Compares the low 32 bits of a word.
    fn compare(&mut self, word: Origin, value: u32) {
        self.load(word, value);
        self.asm.alu_imm(Alu::Cmp, RAX, value.cast_signed(), false);
    }
    fn pass_if(&mut self, condition: Cond) {
        self.pass.push(self.asm.jcc_later(condition));
    }
    fn wait_now(&mut self) {
        self.wait.push(self.asm.jmp_later());
    }
    /// Runs `then` if the word has this value.
    fn if_is(&mut self, word: Origin, value: u32, then: impl FnOnce(&mut Self)) {
        self.compare(word, value);
        let other = self.asm.jcc_later(Cond::NotEqual);
        then(self);
        self.wait_now();
        self.asm.bind(other);
    }
    /// Detects that a handler of faults or traps is installed. With `loads` it reads the action where the
    /// function will load it anyway; without, any action counts as a handler. Runs on to where the thread
    /// waits.
    fn action(&mut self, signal: Origin, action: Origin, loads: bool) {
        let is_one = |test: &mut Self, signals: [u32; 2]| {
            signals.map(|value| {
                test.compare(signal, value);
                test.asm.jcc_later(Cond::Equal)
            })
        };
        let traps = is_one(self, [SIGTRAP, SIGILL]);
        let faults = is_one(self, [SIGSEGV, SIGBUS]);
        self.pass.push(self.asm.jmp_later());
        traps.into_iter().for_each(|fix| self.asm.bind(fix));
        self.asm.mov_imm32(RCX, fact::TRAPS as u32);
        let known = self.asm.jmp_later();
        faults.into_iter().for_each(|fix| self.asm.bind(fix));
        self.asm.mov_imm32(RCX, fact::FAULTS as u32);
        self.asm.bind(known);
        self.load(action, 1);
        self.asm.test(RAX, RAX, true);
        self.pass_if(Cond::Equal);
        if loads {
            // The default action, and ignoring the signal, show no address to the program. Children set the
            // default for all signals before they execute another program.
            self.asm.alu_mem_imm(Alu::Cmp, Mem::At(RAX, 0), 1, false);
            self.pass_if(Cond::BelowEq);
        }
    }
    /// Detects such calls of `prctl`. Runs on to where the thread waits.
    fn control(&mut self, option: Origin, value: Origin) {
        self.if_is(option, PR_SET_TSC, |test| {
            test.compare(value, PR_TSC_SIGSEGV);
            test.pass_if(Cond::NotEqual);
            test.asm.mov_imm32(RCX, fact::CLOCK as u32);
        });
        self.compare(option, PR_SET_SECCOMP);
        self.pass_if(Cond::NotEqual);
        self.filter(value, MODE_STRICT);
    }
    /// Detects that a filter comes, or strict mode, in which reading the clock is forbidden too. Runs on to
    /// where the thread waits.
    fn filter(&mut self, mode: Origin, strict: u32) {
        self.compare(mode, strict);
        self.asm.mov_imm32(RCX, fact::FILTER as u32);
        self.wait.push(self.asm.jcc_later(Cond::NotEqual));
        self.asm.mov_imm32(RCX, (fact::FILTER | fact::CLOCK) as u32);
    }
    /// Detects such system calls.
    fn call(&mut self, [number, first, second]: [Origin; 3]) {
        self.if_is(number, nr::SECCOMP, |test| {
            test.compare(first, SET_FILTER);
            test.pass_if(Cond::Above);
            test.filter(first, SET_STRICT);
        });
        self.if_is(number, nr::PRCTL, |test| test.control(first, second));
        self.compare(number, nr::RT_SIGACTION);
        self.pass_if(Cond::NotEqual);
        self.action(first, second, false);
    }
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
