//! Puts arguments where code that follows the psABI has them, for the actions of code that does not: Go's
//! functions, and USDT probes.
//!
//! In: a stub's code before and after it. Out: code that moves arguments there, and code that moves all
//! registers back; so one kind of stub serves all. No flag is changed. Does not: move what is returned (rax
//! in Go, too), floats (Go's X0 to X7 are the psABI's), or read memory.
//!
//! # Protocol
//!
//! *Go's functions*: registers are exchanged in pairs, and afterwards the same backwards. No memory is
//! touched, so it takes no room of the goroutine's stack. A thread that is interrupted in between, or
//! restarts a critical section, goes on as in any stub.
//!
//! ```text
//!                  rdi    rsi    rdx    rcx    r8     r9     rax    rbx
//!   site, exit     arg 3  arg 4  other  arg 2  arg 5  other' arg 0  arg 1      as Go's ABIInternal has them
//!   the action     arg 0  arg 1  arg 2  arg 3  arg 4  arg 5  other  other'     as the psABI has them
//! ```
//!
//! *USDT probes*: the stack pointer steps over the red zone, the six argument registers are pushed, and each
//! is loaded with an operand. If the operand is one of the six, its pushed word is loaded, otherwise the
//! register itself. Operands from the seventh on are pushed before that, the last one first, so the action finds
//! them at its stack pointer. Behind the action all of it is popped. A signal handler in between runs below what
//! was pushed. If the tracer dies, nothing remains: all of it belongs to the hit. Memory operands are addresses
//! here. What they point to is read as any field is (`text`), so a wrong operand cannot fault. A record's
//! stack pointer is lower by what was pushed. That does not matter, since nothing is paired by it: USDT
//! probes have no end.
//!
//! ```text
//!   rsp                operand 6, if there is one; operand 7, …      <- rsp at the action
//!   rsp + more         r9     <- S - RED_ZONE - PUSHED; more: 8 for each operand from the seventh on
//!   rsp + more + 8     r8
//!   rsp + more + 16    rcx
//!   rsp + more + 24    rdx
//!   rsp + more + 32    rsi
//!   rsp + more + 40    rdi
//!   S - RED_ZONE       the program's red zone
//!   S                  the program's stack pointer
//!   rdi … r9           the first six operands, in the order of `ARGUMENT`
//! ```

use trapline_record::addr::Bias;

use super::asm::{Asm, Mem, R8, R9, RAX, RBX, RCX, RDI, RDX, RSI, RSP, Reg};
use super::filter::{ARGUMENT, ARGUMENTS};
use super::machine::Liveness;
use crate::filter::OPERANDS;
use crate::hit::TEXTS_OF_KEYS;
use crate::request::Operand;

/// Go's registers for integers (ABIInternal) are rax, rbx, rcx, rdi, rsi, r8; the psABI's are rdi, rsi, rdx,
/// rcx, r8, r9. After exchanges in this order, each of the first six is where the stub expects it; rdx and r9
/// wait in rax and rbx.
const GO: [(Reg, Reg); 6] = [(RAX, RDI), (RAX, RCX), (RAX, RDX), (RBX, RSI), (RBX, R8), (RBX, R9)];
/// Code bytes of both exchanges.
pub(crate) const GO_BYTES: u64 = 2 * 3 * GO.len() as u64;
/// Upper bound of the code bytes around the action of a USDT probe.
pub(crate) const MARK_BYTES: u64 = 2 * (8 + 2 * 6) + 8 + (OPERANDS + TEXTS_OF_KEYS) as u64 * 50;

const RED_ZONE: i32 = 128;
/// By how many bytes the stack pointer is lower at the action of a USDT probe.
const PUSHED: i32 = 8 * ARGUMENT.len() as i32;

/// Where a hit's arguments are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgumentForm<'a> {
    /// Where stubs expect them.
    AsInC,
    /// In Go's registers.
    AsInGo,
    /// Where the note of a USDT probe places them.
    AsNoted(&'a [Operand], Bias),
}

impl ArgumentForm<'_> {
    /// Appends the code before the action, to lie at `at`.
    pub fn before(self, out: &mut Vec<u8>, at: u64) {
        let mut asm = Asm::new(out, at);
        match self {
            Self::AsInC => {}
            Self::AsInGo => GO.into_iter().for_each(|(one, other)| asm.exchange(one, other)),
            Self::AsNoted(operands, bias) => {
                asm.lea(RSP, Mem::At(RSP, -RED_ZONE));
                ARGUMENT.into_iter().for_each(|reg| asm.push(reg));
                let (first, more) = operands.split_at(operands.len().min(ARGUMENTS));
                for (below, &operand) in (0..).zip(more.iter().rev()) {
                    let frame = Frame { below: 8 * below, bias };
                    frame.load(&mut asm, RDI, operand);
                    asm.push(RDI);
                }
                let frame = Frame { below: below(operands), bias };
                first.iter().zip(ARGUMENT).for_each(|(&operand, to)| frame.load(&mut asm, to, operand));
            }
        }
    }
    /// Appends the code behind the action, to lie at `at`.
    pub fn after(self, out: &mut Vec<u8>, at: u64) {
        let mut asm = Asm::new(out, at);
        match self {
            Self::AsInC => {}
            Self::AsInGo => GO.into_iter().rev().for_each(|(one, other)| asm.exchange(one, other)),
            Self::AsNoted(operands, _) => {
                if below(operands) > 0 {
                    asm.lea(RSP, Mem::At(RSP, below(operands)));
                }
                ARGUMENT.into_iter().rev().for_each(|reg| asm.pop(reg));
                asm.lea(RSP, Mem::At(RSP, RED_ZONE));
            }
        }
    }
    /// What is dead between the two.
    #[must_use]
    pub fn dead(self, site: Liveness) -> Liveness {
        let mut dead = site.dead;
        match self {
            Self::AsInC => {}
            Self::AsInGo => {
                for (one, other) in GO {
                    let differ = (dead >> one.0 ^ dead >> other.0) & 1;
                    dead ^= differ << one.0 | differ << other.0;
                }
            }
            Self::AsNoted(..) => ARGUMENT.into_iter().for_each(|reg| dead &= !(1 << reg.0)),
        }
        Liveness { dead, ..site }
    }
}

/// Which general register holds the program's value of a register (both by hardware numbers) between the exchanges in a
/// function of Go's.
#[must_use]
pub fn held_in_go(register: u8) -> u8 {
    GO.into_iter().fold(register, |at, (one, other)| match at {
        at if at == one.0 => other.0,
        at if at == other.0 => one.0,
        at => at,
    })
}

/// Bytes of the operands from the seventh on.
const fn below(operands: &[Operand]) -> i32 {
    8 * operands.len().saturating_sub(ARGUMENTS) as i32
}

/// The stack while operands are loaded.
#[derive(Clone, Copy)]
struct Frame {
    /// Bytes below the pushed registers.
    below: i32,
    bias: Bias,
}

impl Frame {
    /// Where a register was pushed; `None` if it was not.
    fn pushed(self, reg: Reg) -> Option<Mem> {
        let nth = ARGUMENT.into_iter().position(|other| other == reg)?;
        Some(Mem::At(RSP, self.below + PUSHED - 8 * (nth as i32 + 1)))
    }
    /// `to` = the program's value of register `from`; `to` was pushed.
    fn fetch(self, asm: &mut Asm<'_>, to: Reg, from: Reg) {
        match self.pushed(from) {
            Some(at) => asm.load(to, at),
            None if from == RSP => asm.lea(to, Mem::At(RSP, self.below + PUSHED + RED_ZONE)),
            None => asm.mov(to, from),
        }
    }
    /// `to` = the operand; `to` was pushed.
    fn load(self, asm: &mut Asm<'_>, to: Reg, operand: Operand) {
        match operand {
            Operand::Register(from) => self.fetch(asm, to, Reg(from & 15)),
            Operand::Vector(from) => asm.vector_to(to, from & 15),
            Operand::Constant(value) => asm.mov_imm64(to, value.cast_unsigned()),
            Operand::Static(at) => asm.mov_imm64(to, self.bias.live(at).0),
            Operand::Sum { base, index, scale, .. } => {
                self.sum(asm, to, (Reg(base & 15), Reg(index & 15), scale))
            }
            Operand::Unknown => asm.mov_imm32(to, 0),
        }
    }
    /// `to = base + (index << scale)`
    fn sum(self, asm: &mut Asm<'_>, to: Reg, (base, index, scale): (Reg, Reg, u8)) {
        let moved = |reg| self.pushed(reg).is_some() || reg == RSP;
        match (moved(base), moved(index)) {
            (true, true) => {
                self.fetch(asm, to, index);
                (0..scale).for_each(|_| asm.lea(to, Mem::Sum(to, to, 0, 0)));
                // Another register gives way for a moment.
                let other = if to == RDI { RSI } else { RDI };
                asm.push(other);
                Self { below: self.below + 8, ..self }.fetch(asm, other, base);
                asm.lea(to, Mem::Sum(other, to, 0, 0));
                asm.pop(other);
            }
            (true, false) => {
                self.fetch(asm, to, base);
                asm.lea(to, Mem::Sum(to, index, scale, 0));
            }
            (false, _) => {
                self.fetch(asm, to, index);
                asm.lea(to, Mem::Sum(base, to, scale, 0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use trapline_image::Extend;

    use super::{
        ArgumentForm, Bias, GO, GO_BYTES, Liveness, MARK_BYTES, OPERANDS, Operand, TEXTS_OF_KEYS, held_in_go,
    };
    use crate::x86_64::stub::filter::ARGUMENT;

    #[test]
    fn each_argument_is_where_stubs_look_for_it() {
        // Numbers of registers in registers.
        let mut held: Vec<u8> = (0..16).collect();
        GO.into_iter().for_each(|(one, other)| held.swap(one.0.into(), other.0.into()));
        let arguments = ARGUMENT.map(|reg| held[usize::from(reg.0)]);
        assert_eq!(arguments, [0, 3, 1, 7, 6, 8], "rax, rbx, rcx, rdi, rsi, r8");
        for reg in 0..16_u16 {
            let moved = ArgumentForm::AsInGo.dead(Liveness { dead: 1 << reg, ..Liveness::default() }).dead;
            let at = held.iter().position(|&of| u16::from(of) == reg).expect("a register");
            assert_eq!(moved, 1 << at);
            assert_eq!(usize::from(held_in_go(reg as u8)), at);
        }
    }

    #[test]
    fn what_stands_around_an_action_is_bounded() {
        let around = |passed: ArgumentForm<'_>| {
            let mut out = Vec::new();
            passed.before(&mut out, 0x1000);
            passed.after(&mut out, 0x2000);
            out.len() as u64
        };
        assert_eq!(around(ArgumentForm::AsInC), 0);
        assert_eq!(around(ArgumentForm::AsInGo), GO_BYTES);
        let bias = Bias::default();
        for operand in [
            Operand::Register(4),
            Operand::Constant(i64::MIN),
            Operand::Static(trapline_record::Svma(u64::MAX / 2)),
            Operand::Vector(15),
            Operand::Sum { base: 7, index: 6, scale: 3, extend: Extend::Whole },
            Operand::Sum { base: 5, index: 13, scale: 3, extend: Extend::Whole },
        ] {
            let len = around(ArgumentForm::AsNoted(&[operand; OPERANDS + TEXTS_OF_KEYS], bias));
            assert!(len <= MARK_BYTES, "{operand:?}: {len}");
        }
    }
}
