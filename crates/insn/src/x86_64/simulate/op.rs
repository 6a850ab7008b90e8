//! Decoded instructions as values, small enough to copy at every hit.
//!
//! Everything is relative to the instruction's own address, so that one [`Op`] serves every mapping of its
//! file.
//! Does not: decode ([`super::verdict`] does), or run anything ([`super::simulate`] does).

use crate::x86_64::gpr::Gpr;
use crate::x86_64::relocate::Immovable;

/// Width of an operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Size {
    /// 8 bits.
    Byte = 1,
    /// 16 bits.
    Word = 2,
    /// 32 bits. Writing this size to a register clears its upper half.
    Long = 4,
    /// 64 bits.
    Quad = 8,
}

impl Size {
    /// A mask of all its bits.
    #[must_use]
    pub const fn mask(self) -> u64 {
        match self {
            Self::Byte => 0xFF,
            Self::Word => 0xFFFF,
            Self::Long => 0xFFFF_FFFF,
            Self::Quad => u64::MAX,
        }
    }
    /// A mask of its highest bit.
    #[must_use]
    pub const fn sign(self) -> u64 {
        self.mask() ^ self.mask() >> 1
    }
    pub(super) const fn of_bytes(bytes: usize) -> Option<Self> {
        Some(match bytes {
            1 => Self::Byte,
            2 => Self::Word,
            4 => Self::Long,
            8 => Self::Quad,
            _ => return None,
        })
    }
}

/// A register, or part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisterPart {
    /// The whole register.
    pub of: Gpr,
    /// How much of it, from bit 0 on.
    pub size: Size,
    /// Bits 8 to 15 instead: `ah`, `ch`, `dh`, `bh`.
    pub high: bool,
}

/// The first summand of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// Nothing.
    Zero,
    /// The address of the instruction itself (not of the one behind it, as in the encoding).
    Here,
    /// A register.
    Register(Gpr),
}

/// How an operand in memory is addressed. There is no segment base: operands with one are not simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// Added to the sum.
    pub offset: i64,
    /// The first summand.
    pub base: Base,
    /// Shifted left by `shift` and added.
    pub index: Option<Gpr>,
    /// 0 to 3.
    pub shift: u8,
    /// The sum is cut to 32 bits (address-size prefix).
    pub narrow: bool,
}

/// An operand that can be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// A register.
    Register(RegisterPart),
    /// Memory.
    Memory {
        /// Its address.
        at: Address,
        /// Its size.
        size: Size,
    },
}

impl Destination {
    /// Its width.
    #[must_use]
    pub const fn size(self) -> Size {
        match self {
            Self::Register(RegisterPart { size, .. }) | Self::Memory { size, .. } => size,
        }
    }
}

/// An operand that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// The value at this place.
    At(Destination),
    /// A constant, sign-extended.
    Constant(u64),
}

/// Where a jump or call goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// This far from the instruction's own address, in bytes.
    Offset(i64),
    /// To the address at this place.
    Through(Destination),
}

/// A condition on the flags, by the low four bits of its opcodes (SDM vol. 2, B.1.4.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Condition(u8);

impl Condition {
    /// The condition with that number; only the low four bits count.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self(number & 15)
    }
    /// Its number, 0 to 15: o, no, b, ae, e, ne, be, a, s, ns, p, np, l, ge, le, g.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// When a `loop` or `jrcxz` jumps to its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoopTest {
    /// `loop`: the count, less one, is not 0.
    Count,
    /// `loope`: and ZF is set.
    CountEqual,
    /// `loopne`: and ZF is clear.
    CountNotEqual,
    /// `jrcxz`: the count is 0. It is not changed.
    Zero,
}

/// An operation of two operands that sets the flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alu {
    /// `add`
    Add,
    /// `sub`
    Sub,
    /// `and`
    And,
    /// `or`
    Or,
    /// `xor`
    Xor,
    /// `cmp`: `sub` without its result.
    Cmp,
    /// `test`: `and` without its result.
    Test,
}

impl Alu {
    /// Whether it only sets flags.
    #[must_use]
    pub const fn only_flags(self) -> bool {
        matches!(self, Self::Cmp | Self::Test)
    }
}

/// What an instruction does, besides going on to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Nothing: `nop` of any length, `endbr64`.
    Nop,
    /// `mov`, `movzx`, `movsx`, `movsxd`.
    Move {
        /// Destination.
        to: Destination,
        /// Source, which may be narrower.
        from: Value,
        /// The source is sign-extended, not zero-extended.
        signed: bool,
    },
    /// `lea`
    Lea {
        /// Destination.
        to: RegisterPart,
        /// The address.
        from: Address,
    },
    /// `push`, 64 bits.
    Push(Value),
    /// `pop`, 64 bits. Its address, if based on rsp, is computed after the increment.
    Pop(Destination),
    /// `leave`
    Leave,
    /// Arithmetic. Memory is only read: if the processor reads and writes one operand, that is one step for a
    /// signal handler, and here it would be two.
    Alu {
        /// Which operation.
        what: Alu,
        /// First operand, and destination.
        to: Destination,
        /// Second operand.
        from: Value,
    },
    /// `jmp`
    Jump(Target),
    /// `jcc`
    Branch {
        /// The condition under which it jumps.
        when: Condition,
        /// Distance of the target from the instruction's own address.
        offset: i64,
    },
    /// `loop`, `loope`, `loopne`, `jrcxz`
    Loop {
        /// The condition under which it jumps.
        when: LoopTest,
        /// The count is in ecx (address-size prefix).
        narrow: bool,
        /// Distance of the target from the instruction's own address.
        offset: i64,
    },
    /// `call`
    Call(Target),
    /// `ret`, which adds this many further bytes to rsp.
    Return(u16),
}

/// One instruction that can be simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// What it does.
    pub action: Action,
    /// Its length in bytes.
    pub len: u8,
}

/// How a trap's handler carries out the instruction that the trap replaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// By simulation.
    Simulate(Op),
    /// By running a copy that jumps back.
    OutOfLine,
    /// It must stay where it is.
    Refuse(Immovable),
}
