//! The registers of a thread, in the form that the in-process engine uses.
//!
//! In and out: plain numbers. The layout is a contract with generated code (`plan`'s stubs store it) and with
//! C.

use super::Gpr;

/// General registers, flags and instruction pointer of one thread at one instruction.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Regs {
    /// By hardware number: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    pub gpr: [u64; 16],
    /// The address of the instruction.
    pub rip: u64,
    /// RFLAGS.
    pub rflags: u64,
}

impl Regs {
    /// One register's value.
    #[must_use]
    pub const fn get(&self, reg: Gpr) -> u64 {
        // There are 16. The mask avoids a bounds check that could panic, in code that runs at a hit.
        self.gpr[reg as usize & 15]
    }
    /// Sets one register.
    pub const fn set(&mut self, reg: Gpr, value: u64) {
        self.gpr[reg as usize & 15] = value;
    }
    /// The stack pointer.
    #[must_use]
    pub const fn sp(&self) -> u64 {
        self.get(Gpr::Rsp)
    }
    /// Sets the stack pointer.
    pub const fn set_sp(&mut self, to: u64) {
        self.set(Gpr::Rsp, to);
    }
    /// The function's result, if that is an integer: rax.
    #[must_use]
    pub const fn result(&self) -> u64 {
        self.get(Gpr::Rax)
    }
    /// Sets the function's result.
    pub const fn set_result(&mut self, to: u64) {
        self.set(Gpr::Rax, to);
    }
    /// The address of the instruction.
    #[must_use]
    pub const fn ip(&self) -> u64 {
        self.rip
    }
    /// Sets the address of the instruction.
    pub const fn set_ip(&mut self, to: u64) {
        self.rip = to;
    }
}

#[cfg(test)]
mod tests {
    use super::{Gpr, Regs};
    use std::mem::{offset_of, size_of};

    #[test]
    fn the_layout_is_what_stubs_store() {
        assert_eq!((offset_of!(Regs, gpr), offset_of!(Regs, rip), offset_of!(Regs, rflags)), (0, 128, 136));
        assert_eq!(size_of::<Regs>(), 144);
        let mut regs = Regs::default();
        regs.set(Gpr::Rsp, 7);
        assert_eq!((regs.gpr[4], regs.sp()), (7, 7));
    }
}
