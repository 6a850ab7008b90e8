//! The sixteen general registers, by name and as sets of 16 bits.

use iced_x86::Register;

/// A general register, by its hardware number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "the registers' own names")]
pub enum Gpr {
    Rax,
    Rcx,
    Rdx,
    Rbx,
    Rsp,
    Rbp,
    Rsi,
    Rdi,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
}

impl Gpr {
    /// All sixteen, in hardware order.
    pub const ALL: [Self; 16] = [
        Self::Rax,
        Self::Rcx,
        Self::Rdx,
        Self::Rbx,
        Self::Rsp,
        Self::Rbp,
        Self::Rsi,
        Self::Rdi,
        Self::R8,
        Self::R9,
        Self::R10,
        Self::R11,
        Self::R12,
        Self::R13,
        Self::R14,
        Self::R15,
    ];
    /// This register's bit in a 16-bit set.
    #[must_use]
    pub const fn bit(self) -> u16 {
        1 << self as u8
    }
    pub(crate) fn of(register: Register) -> Option<Self> {
        if !register.is_gpr() {
            return None;
        }
        let number = register.full_register() as usize - Register::RAX as usize;
        Self::ALL.get(number).copied()
    }
}
