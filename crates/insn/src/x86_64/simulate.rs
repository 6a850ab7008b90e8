//! Instructions simulated: the effect of one on registers and memory, both given as values.
//!
//! In: an [`Op`], [`Regs`], a [`Memory`]. Out: the registers after it, or a [`Fault`]. Invariants: INSN-1;
//! INSN-3; SIM-1 after a fault registers and memory are as before. So the program can be given the signal
//! that it would have got, at the same instruction. No allocation.
//! Does not: fetch instructions, raise signals, or move a shadow stack ([`verdict`] has an option that says
//! whether there is one).
//!
//! There are two differences from the processor, both in programs that fault anyway. A jump, call or return
//! to an address that is not canonical faults at its target (as on AMD's processors), not at the instruction.
//! If the program is at a breakpoint of its own, the trap flag traps after the next instruction.

mod alu;
mod decode;
mod op;

pub use decode::verdict;
pub use op::{
    Action, Address, Alu, Base, Condition, Destination, LoopTest, Op, RegisterPart, Size, Target, Value,
    Verdict,
};

use super::gpr::Gpr;
use super::regs::Regs;

/// Memory as the program sees it. Each access is one access of the processor, however it is aligned.
pub trait Memory {
    /// The value at `addr`, zero-extended.
    ///
    /// # Errors
    /// The address of the fault.
    fn load(&mut self, addr: u64, size: Size) -> Result<u64, u64>;

    /// Stores the low bits of `value`: all of them, or none.
    ///
    /// # Errors
    /// The address of the fault.
    fn store(&mut self, addr: u64, size: Size, value: u64) -> Result<(), u64>;
}

/// The fault that the program would have got instead of the effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// A read.
    #[error("a load faults at {addr:#x}")]
    Load {
        /// The address of the fault.
        addr: u64,
    },
    /// A write.
    #[error("a store faults at {addr:#x}")]
    Store {
        /// The address of the fault.
        addr: u64,
    },
}

/// Carries out `op` at `regs.rip`.
///
/// # Errors
/// The fault; nothing is changed then.
pub fn simulate(op: &Op, regs: &mut Regs, memory: &mut impl Memory) -> Result<(), Fault> {
    let next = regs.rip.wrapping_add(op.len.into());
    let mut machine = Machine { regs, memory };
    let to = match op.action {
        Action::Nop => next,
        Action::Move { to, from, signed } => {
            let value = machine.read(from)?;
            machine.write(to, if signed { extend(value, from) } else { value })?;
            next
        }
        Action::Lea { to, from } => {
            let address = machine.address(from);
            machine.set(to, address);
            next
        }
        Action::Push(from) => {
            let value = machine.read(from)?;
            machine.push(value)?;
            next
        }
        Action::Pop(to) => {
            machine.pop(to)?;
            next
        }
        Action::Leave => {
            let frame = machine.regs.get(Gpr::Rbp);
            let saved = machine.load(frame, Size::Quad)?;
            machine.regs.set(Gpr::Rsp, frame.wrapping_add(8));
            machine.regs.set(Gpr::Rbp, saved);
            next
        }
        Action::Alu { what, to, from } => {
            machine.arithmetic(what, to, from)?;
            next
        }
        Action::Jump(to) => machine.target(to)?,
        Action::Branch { when, offset } if when.holds(machine.regs.rflags) => machine.at(offset),
        Action::Branch { .. } => next,
        Action::Loop { when, narrow, offset } => {
            if machine.count(when, narrow) {
                machine.at(offset)
            } else {
                next
            }
        }
        Action::Call(to) => {
            let target = machine.target(to)?;
            machine.push(next)?;
            target
        }
        Action::Return(release) => {
            let sp = machine.regs.sp();
            let to = machine.load(sp, Size::Quad)?;
            machine.regs.set(Gpr::Rsp, sp.wrapping_add(8).wrapping_add(release.into()));
            to
        }
    };
    machine.regs.rip = to;
    Ok(())
}

/// The value that was read from `from`, sign-extended.
fn extend(value: u64, from: Value) -> u64 {
    let Value::At(place) = from else { return value };
    let sign = place.size().sign();
    (value ^ sign).wrapping_sub(sign)
}

struct Machine<'a, M> {
    regs: &'a mut Regs,
    memory: &'a mut M,
}

impl<M: Memory> Machine<'_, M> {
    const fn at(&self, offset: i64) -> u64 {
        self.regs.rip.wrapping_add_signed(offset)
    }

    fn address(&self, of: Address) -> u64 {
        let base = match of.base {
            Base::Zero => 0,
            Base::Here => self.regs.rip,
            Base::Register(register) => self.regs.get(register),
        };
        let index = of.index.map_or(0, |index| self.regs.get(index) << (of.shift & 3));
        let sum = base.wrapping_add(index).wrapping_add_signed(of.offset);
        if of.narrow { sum & Size::Long.mask() } else { sum }
    }

    fn get(&self, part: RegisterPart) -> u64 {
        let whole = self.regs.get(part.of);
        (if part.high { whole >> 8 } else { whole }) & part.size.mask()
    }

    const fn set(&mut self, part: RegisterPart, value: u64) {
        let old = self.regs.get(part.of);
        let new = match part.size {
            Size::Byte if part.high => old & !0xFF00 | (value & 0xFF) << 8,
            Size::Byte | Size::Word => old & !part.size.mask() | value & part.size.mask(),
            Size::Long | Size::Quad => value & part.size.mask(),
        };
        self.regs.set(part.of, new);
    }

    fn load(&mut self, addr: u64, size: Size) -> Result<u64, Fault> {
        self.memory.load(addr, size).map_err(|addr| Fault::Load { addr })
    }

    fn store(&mut self, addr: u64, size: Size, value: u64) -> Result<(), Fault> {
        self.memory.store(addr, size, value).map_err(|addr| Fault::Store { addr })
    }

    fn read(&mut self, from: Value) -> Result<u64, Fault> {
        match from {
            Value::Constant(value) => Ok(value),
            Value::At(Destination::Register(part)) => Ok(self.get(part)),
            Value::At(Destination::Memory { at, size }) => self.load(self.address(at), size),
        }
    }

    fn write(&mut self, to: Destination, value: u64) -> Result<(), Fault> {
        match to {
            Destination::Register(part) => {
                self.set(part, value);
                Ok(())
            }
            Destination::Memory { at, size } => self.store(self.address(at), size, value),
        }
    }

    fn push(&mut self, value: u64) -> Result<(), Fault> {
        let sp = self.regs.sp().wrapping_sub(8);
        self.store(sp, Size::Quad, value)?;
        self.regs.set(Gpr::Rsp, sp);
        Ok(())
    }

    /// rsp moves first: an address may be based on it, and `pop rsp` overwrites it.
    fn pop(&mut self, to: Destination) -> Result<(), Fault> {
        let sp = self.regs.sp();
        let value = self.load(sp, Size::Quad)?;
        self.regs.set(Gpr::Rsp, sp.wrapping_add(8));
        self.write(to, value).inspect_err(|_| self.regs.set(Gpr::Rsp, sp))
    }

    fn arithmetic(&mut self, what: Alu, to: Destination, from: Value) -> Result<(), Fault> {
        let (a, b) = (self.read(Value::At(to))?, self.read(from)?);
        let (result, flags) = alu::compute(what, to.size(), a, b);
        if !what.only_flags() {
            self.write(to, result)?;
        }
        self.regs.rflags = self.regs.rflags & !alu::STATUS | flags;
        Ok(())
    }

    fn target(&mut self, of: Target) -> Result<u64, Fault> {
        match of {
            Target::Offset(offset) => Ok(self.at(offset)),
            Target::Through(place) => self.read(Value::At(place)),
        }
    }

    /// Decrements the count, and returns whether to jump.
    const fn count(&mut self, when: LoopTest, narrow: bool) -> bool {
        let mask = if narrow { Size::Long.mask() } else { Size::Quad.mask() };
        let mut count = self.regs.get(Gpr::Rcx) & mask;
        if !matches!(when, LoopTest::Zero) {
            count = count.wrapping_sub(1) & mask;
            self.regs.set(Gpr::Rcx, count);
        }
        when.holds(count, self.regs.rflags)
    }
}
