//! The registers of a thread, in the form that the in-process engine uses.
//!
//! In and out: plain numbers. The layout is a contract with generated code (`plan`'s stubs store it) and with
//! C.

use core::mem::size_of;

use super::gpr::Gpr;

/// Bytes of the stack that a jump's stub uses: [`Regs`], then a word for the way back to the stub, and one
/// for the address of its `Jump`.
pub const FRAME: u32 = size_of::<Regs>() as u32 + 16;

/// General registers, stack pointer, program counter and flags of one thread at one instruction.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Regs {
    /// x0 to x30.
    pub x: [u64; 31],
    /// The stack pointer.
    pub sp: u64,
    /// The address of the instruction.
    pub pc: u64,
    /// PSTATE: N, Z, C, V in bits 31 to 28, BTYPE in bits 11 and 10, as the kernel reports it. Other bits are
    /// kept.
    pub pstate: u64,
}

impl Regs {
    /// A register's value; number 31 is zero.
    #[must_use]
    pub fn get(&self, of: Gpr) -> u64 {
        self.x.get(of.number() as usize).copied().unwrap_or(0)
    }
    /// Sets a register; number 31 stays zero.
    pub fn set(&mut self, of: Gpr, value: u64) {
        if let Some(register) = self.x.get_mut(of.number() as usize) {
            *register = value;
        }
    }
    /// The stack pointer.
    #[must_use]
    pub const fn sp(&self) -> u64 {
        self.sp
    }
    /// Sets the stack pointer.
    pub const fn set_sp(&mut self, to: u64) {
        self.sp = to;
    }
    /// The function's result, if that is an integer: x0.
    #[must_use]
    pub fn result(&self) -> u64 {
        self.get(Gpr::X0)
    }
    /// Sets the function's result.
    pub fn set_result(&mut self, to: u64) {
        self.set(Gpr::X0, to);
    }
    /// The address of the instruction.
    #[must_use]
    pub const fn ip(&self) -> u64 {
        self.pc
    }
    /// Sets the address of the instruction.
    pub const fn set_ip(&mut self, to: u64) {
        self.pc = to;
    }
}

#[cfg(test)]
mod tests {
    use super::{FRAME, Gpr, Regs};
    use core::mem::{offset_of, size_of};

    #[test]
    fn the_layout_is_what_stubs_store() {
        let offsets =
            [offset_of!(Regs, x), offset_of!(Regs, sp), offset_of!(Regs, pc), offset_of!(Regs, pstate)];
        assert_eq!((offsets, size_of::<Regs>(), FRAME), ([0, 248, 256, 264], 272, 288));
        let mut regs = Regs::default();
        regs.set(Gpr::X30, 7);
        regs.set(Gpr::R31, 8);
        assert_eq!((regs.x[30], regs.get(Gpr::X30), regs.get(Gpr::R31)), (7, 7, 0));
    }
}
