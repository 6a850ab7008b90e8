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
//! register itself. Behind the action they are popped. A signal handler in between runs below what was
//! pushed. If the tracer dies, nothing remains: all of it belongs to the hit. Memory operands are addresses
//! here. What they point to is read as any field is (`text`), so a wrong operand cannot fault. A record's
//! stack pointer is lower by what was pushed. That does not matter, since nothing is paired by it: USDT
//! probes have no end.
//!
//! ```text
//!   rsp                r9     <- rsp at the action: S - RED_ZONE - PUSHED
//!   rsp + 8            r8
//!   rsp + 16           rcx
//!   rsp + 24           rdx
//!   rsp + 32           rsi
//!   rsp + 40           rdi
//!   rsp + PUSHED       = S - RED_ZONE: the program's red zone
//!   S                  the program's stack pointer
//!   rdi … r9           the operands, in the order of `ARGUMENT`
//! ```

use trapline_record::addr::Bias;

use super::asm::{Asm, Mem, R8, R9, RAX, RBX, RCX, RDI, RDX, RSI, RSP, Reg};
use super::filter::ARGUMENT;
use super::machine::Liveness;
use crate::request::Operand;

/// Go's registers for integers (ABIInternal) are rax, rbx, rcx, rdi, rsi, r8; the psABI's are rdi, rsi, rdx,
/// rcx, r8, r9. After exchanges in this order, each of the first six is where the stub expects it; rdx and r9
/// wait in rax and rbx.
const GO: [(Reg, Reg); 6] = [(RAX, RDI), (RAX, RCX), (RAX, RDX), (RBX, RSI), (RBX, R8), (RBX, R9)];
/// Code bytes of both exchanges.
pub(crate) const GO_BYTES: u64 = 2 * 3 * GO.len() as u64;
/// Upper bound of the code bytes around the action of a USDT probe.
pub(crate) const MARK_BYTES: u64 = 2 * (8 + 2 * 6) + 6 * 48;

const RED_ZONE: i32 = 128;
/// By how many bytes the stack pointer is lower at the action of a USDT probe.
const PUSHED: i32 = 8 * ARGUMENT.len() as i32;

/// Where a hit's arguments are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ArgumentForm<'a> {
    /// Where stubs expect them.
    AsInC,
    /// In Go's registers.
    AsInGo,
    /// Where the note of a USDT probe places them.
    AsNoted(&'a [Operand], Bias),
}

impl ArgumentForm<'_> {
    /// Appends the code before the action, to lie at `at`.
    pub(crate) fn before(self, out: &mut Vec<u8>, at: u64) {
        let mut asm = Asm::new(out, at);
        match self {
            Self::AsInC => {}
            Self::AsInGo => GO.into_iter().for_each(|(one, other)| asm.exchange(one, other)),
            Self::AsNoted(operands, bias) => {
                asm.lea(RSP, Mem::At(RSP, -RED_ZONE));
                ARGUMENT.into_iter().for_each(|reg| asm.push(reg));
                operands.iter().zip(ARGUMENT).for_each(|(&operand, to)| load(&mut asm, to, operand, bias));
            }
        }
    }
    /// Appends the code behind the action, to lie at `at`.
    pub(crate) fn after(self, out: &mut Vec<u8>, at: u64) {
        let mut asm = Asm::new(out, at);
        match self {
            Self::AsInC => {}
            Self::AsInGo => GO.into_iter().rev().for_each(|(one, other)| asm.exchange(one, other)),
            Self::AsNoted(..) => {
                ARGUMENT.into_iter().rev().for_each(|reg| asm.pop(reg));
                asm.lea(RSP, Mem::At(RSP, RED_ZONE));
            }
        }
    }
    /// What is dead between the two.
    pub(crate) fn dead(self, site: Liveness) -> Liveness {
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

/// Where a register was pushed; `None` if it was not.
fn pushed(reg: Reg) -> Option<Mem> {
    let nth = ARGUMENT.into_iter().position(|other| other == reg)?;
    Some(Mem::At(RSP, PUSHED - 8 * (nth as i32 + 1)))
}

/// `to` = the program's value of register `from`; `to` was pushed.
fn fetch(asm: &mut Asm<'_>, to: Reg, from: Reg) {
    match pushed(from) {
        Some(at) => asm.load(to, at),
        None if from == RSP => asm.lea(to, Mem::At(RSP, PUSHED + RED_ZONE)),
        None => asm.mov(to, from),
    }
}

fn load(asm: &mut Asm<'_>, to: Reg, operand: Operand, bias: Bias) {
    match operand {
        Operand::Register(from) => fetch(asm, to, Reg(from & 15)),
        Operand::Constant(value) => asm.mov_imm64(to, value.cast_unsigned()),
        Operand::Static(at) => asm.mov_imm64(to, bias.live(at).0),
        Operand::Sum { base, index, scale } => {
            let (base, index) = (Reg(base & 15), Reg(index & 15));
            let moved = |reg| pushed(reg).is_some() || reg == RSP;
            match (moved(base), moved(index)) {
                (true, true) => {
                    fetch(asm, to, index);
                    (0..scale).for_each(|_| asm.lea(to, Mem::Sum(to, to, 0, 0)));
                    // The word of `to` is free: `to` was pushed, and the program's value is loaded from
                    // there.
                    let other = if to == RDI { RSI } else { RDI };
                    asm.push(other);
                    let at = |mem| match mem {
                        Mem::At(RSP, at) => Mem::At(RSP, at + 8),
                        other => other,
                    };
                    match pushed(base) {
                        Some(mem) => asm.load(other, at(mem)),
                        None => asm.lea(other, Mem::At(RSP, PUSHED + RED_ZONE + 8)),
                    }
                    asm.lea(to, Mem::Sum(other, to, 0, 0));
                    asm.pop(other);
                }
                (true, false) => {
                    fetch(asm, to, base);
                    asm.lea(to, Mem::Sum(to, index, scale, 0));
                }
                (false, _) => {
                    fetch(asm, to, index);
                    asm.lea(to, Mem::Sum(base, to, scale, 0));
                }
            }
        }
        Operand::Unknown => asm.mov_imm32(to, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::{ArgumentForm, Bias, GO, GO_BYTES, Liveness, MARK_BYTES, Operand};
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
            Operand::Sum { base: 7, index: 6, scale: 3 },
            Operand::Sum { base: 5, index: 13, scale: 3 },
        ] {
            let len = around(ArgumentForm::AsNoted(&[operand; 6], bias));
            assert!(len <= MARK_BYTES, "{operand:?}: {len}");
        }
    }
}
