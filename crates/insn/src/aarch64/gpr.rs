//! The general registers, by number.

/// A general register as a field of an instruction contains it: 0 to 30, and 31, which is the zero register
/// or the stack pointer, depending on the instruction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Gpr(u8);

impl Gpr {
    /// A function's first argument, and its result.
    pub const X0: Self = Self(0);
    /// A function's second argument.
    pub const X1: Self = Self(1);
    /// The number of a system call.
    pub const X8: Self = Self(8);
    /// IP0, which a linker's veneer may use between a call and its callee (AAPCS64, 6.1.1).
    pub const X16: Self = Self(16);
    /// IP1, which a veneer may use as well.
    pub const X17: Self = Self(17);
    /// The frame pointer.
    pub const X29: Self = Self(29);
    /// The link register.
    pub const X30: Self = Self(30);
    /// The zero register, or the stack pointer.
    pub const R31: Self = Self(31);

    /// The field of 5 bits that begins at bit `at` of `word`.
    #[must_use]
    pub const fn field(word: u32, at: u32) -> Self {
        Self((word >> at & 31) as u8)
    }
    /// Its number, at most 31.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0 as u32
    }
    /// Whether it is number 31.
    #[must_use]
    pub const fn is_31(self) -> bool {
        self.0 == 31
    }
}
