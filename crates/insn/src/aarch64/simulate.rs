//! Instructions simulated: the effect of one on registers and memory, both given as values.
//!
//! In: an [`Op`], [`Regs`], a [`Memory`]. Out: the state after it, or a [`Fault`]. Invariants: INSN-1;
//! INSN-3; SIM-1: after a fault the state is as before, including sp and pc. So the program can be given the
//! signal that it would have got, at the same instruction. No allocation, no `std`.
//! Does not: fetch instructions, or raise signals. Under a guarded control stack (FEAT_GCS) calls and returns
//! also move that stack, which only the processor can: see [`Op::moves_control_stack`].
//!
//! A push is all or nothing here, while a processor may have stored the first register when the second faults
//! (Arm ARM B2.2.1 leaves this open).

use super::gpr::Gpr;
use super::regs::Regs;
use super::verdict::{Literal, Op, Test, Through};

/// Memory as the program sees it. Sizes are 4, 8 and, for stores, 16 bytes. An access consists of naturally
/// aligned pieces of at most 8 bytes, each accessed at once.
pub trait Memory {
    /// Fills `into` from `addr` on.
    ///
    /// # Errors
    /// The lowest address that cannot be read.
    fn load(&mut self, addr: u64, into: &mut [u8]) -> Result<(), u64>;

    /// Stores `bytes` from `addr` on: all of them, or none.
    ///
    /// # Errors
    /// The lowest address that cannot be written.
    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), u64>;

    /// Whether the page of `pc` is guarded (`PROT_BTI`), in which `br` needs a stricter landing pad.
    fn is_guarded(&self, pc: u64) -> bool {
        let _ = pc;
        false
    }
}

/// The fault that the program would have got instead of the effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// SIGSEGV (or SIGBUS, depending on the mapping) on a read.
    #[error("a load from {addr:#x} faults")]
    Load {
        /// The lowest address that cannot be read.
        addr: u64,
    },
    /// SIGSEGV or SIGBUS on a write.
    #[error("a store to {addr:#x} faults")]
    Store {
        /// The lowest address that cannot be written.
        addr: u64,
    },
    /// SIGBUS, `BUS_ADRALN`: sp is not a multiple of 16 and is a base address (Linux sets `SCTLR_EL1.SA0`).
    #[error("the stack pointer {sp:#x} is not aligned to 16")]
    StackAlignment {
        /// The stack pointer.
        sp: u64,
    },
}

/// PSTATE.BTYPE.
const BTYPE: u64 = 3 << 10;
/// BTYPE after `blr`, which may land on `bti c`.
const BTYPE_CALL: u64 = 2 << 10;
/// BTYPE after `br` through x16 or x17, or from a page that is not guarded, which may land on any kind of
/// pad.
const BTYPE_VENEER: u64 = 1 << 10;
/// BTYPE after any other `br`, which may land on `bti j`.
const BTYPE_JUMP: u64 = 3 << 10;

impl Op {
    /// Whether it is a call or return, which a guarded control stack follows.
    #[must_use]
    pub const fn moves_control_stack(self) -> bool {
        matches!(
            self,
            Self::Branch { link: true, .. } | Self::BranchTo { through: Through::Call | Through::Return, .. }
        )
    }
}

const fn at(state: &Regs, offset: i64) -> u64 {
    state.pc.wrapping_add_signed(offset)
}

/// Carries out `op` at `state.pc`.
///
/// # Errors
/// The fault; nothing is changed then.
pub fn simulate(op: Op, state: &mut Regs, memory: &mut impl Memory) -> Result<(), Fault> {
    let (mut next, mut btype) = (at(state, 4), 0);
    match op {
        Op::Nop => {}
        Op::Branch { offset, link } => {
            if link {
                state.set(Gpr::X30, next);
            }
            next = at(state, offset.into());
        }
        Op::BranchIf { test, offset } => {
            if is_taken(test, state) {
                next = at(state, offset.into());
            }
        }
        Op::BranchTo { through, to } => {
            let target = state.get(to);
            btype = landing(through, to, memory.is_guarded(state.pc));
            if through == Through::Call {
                state.set(Gpr::X30, next);
            }
            next = target;
        }
        Op::Address { to, offset, pages } => {
            let base = if pages { state.pc & !0xFFF } else { state.pc };
            state.set(to, base.wrapping_add_signed(offset));
        }
        Op::Load { literal, to, offset } => {
            if let Some(value) = load(literal, at(state, offset.into()), memory)? {
                state.set(to, value);
            }
        }
        Op::Push { wide, first, second, offset } => {
            state.sp = push(state, memory, wide, (first, second), offset)?;
        }
        Op::PushFrame { offset } => {
            state.sp = push(state, memory, true, (Gpr::X29, Some(Gpr::X30)), offset)?;
        }
        Op::Add { to, from, amount } => {
            let base = if from.is_31() { state.sp } else { state.get(from) };
            let sum = base.wrapping_add_signed(amount.into());
            if to.is_31() {
                state.sp = sum;
            } else {
                state.set(to, sum);
            }
        }
    }
    state.pc = next;
    state.pstate = state.pstate & !BTYPE | btype;
    Ok(())
}

fn is_taken(test: Test, state: &Regs) -> bool {
    match test {
        Test::Flags(cond) => cond.holds(state.pstate as u32),
        Test::Zero { of, wide, when } => {
            let mask = if wide { u64::MAX } else { u64::from(u32::MAX) };
            (state.get(of) & mask == 0) == when
        }
        Test::Bit { of, bit, when } => (state.get(of) >> (bit & 63) & 1 != 0) == when,
    }
}

/// BTYPE after a branch through a register (Arm ARM, pseudocode of `BR` and `BLR`).
fn landing(through: Through, to: Gpr, guarded: bool) -> u64 {
    match through {
        Through::Call => BTYPE_CALL,
        Through::Jump if !guarded || to == Gpr::X16 || to == Gpr::X17 => BTYPE_VENEER,
        Through::Jump => BTYPE_JUMP,
        Through::Return => 0,
    }
}

/// The value for the register; `None` for a prefetch.
fn load(literal: Literal, addr: u64, memory: &mut impl Memory) -> Result<Option<u64>, Fault> {
    let mut bytes = [0; 8];
    let (whole, word) = (&mut bytes, literal != Literal::Double);
    let into = if word { whole.split_at_mut(4).0 } else { whole.as_mut_slice() };
    if literal == Literal::Prefetch {
        return Ok(None);
    }
    memory.load(addr, into).map_err(|addr| Fault::Load { addr })?;
    let value = u64::from_le_bytes(bytes);
    Ok(Some(match literal {
        Literal::Signed => i64::from(value as i32).cast_unsigned(),
        _ => value,
    }))
}

/// Stores one register or two; returns the new stack pointer.
fn push(
    state: &Regs,
    memory: &mut impl Memory,
    wide: bool,
    (first, second): (Gpr, Option<Gpr>),
    offset: i32,
) -> Result<u64, Fault> {
    if !state.sp.is_multiple_of(16) {
        return Err(Fault::StackAlignment { sp: state.sp });
    }
    let sp = state.sp.wrapping_add_signed(offset.into());
    let (low, high) = (state.get(first), second.map_or(0, |second| state.get(second)));
    let (value, size) = if wide {
        (u128::from(low) | u128::from(high) << 64, 8)
    } else {
        (u128::from(low as u32) | u128::from(high as u32) << 32, 4)
    };
    let bytes = value.to_le_bytes();
    let len = if second.is_some() { 2 * size } else { size };
    memory.store(sp, bytes.split_at(len).0).map_err(|addr| Fault::Store { addr })?;
    Ok(sp)
}
