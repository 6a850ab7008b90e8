//! What a probe can do with an A64 word, as a value.
//!
//! In: nothing. Out: a [`Verdict`], with the operands of what is simulated ([`Op`]) or runs elsewhere ([`Away`]),
//! or the reason ([`Refusal`]). Does not: look at words (`decode`) or carry anything out.

use super::gpr::Gpr;

/// What can be done with a word under a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// [`simulate`](super::simulate()) does the same. The word may also be relocated.
    Simulate(Op),
    /// It runs at another address, [relocated](super::relocate()).
    OutOfLine(Away),
    /// No probe here.
    Refuse(Refusal),
}

/// An instruction that is simulated. Offsets are in bytes, from the instruction itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// `nop`, `yield`, `dgh`, `bti`, and `prfm` of a literal when simulated: no register and no memory
    /// changes.
    Nop,
    /// `b`, or with `link` `bl`.
    Branch {
        /// Distance to the target.
        offset: i32,
        /// The return address is written to x30.
        link: bool,
    },
    /// `b.cond`, `bc.cond`, `cbz`, `cbnz`, `tbz`, `tbnz`.
    BranchIf {
        /// When it is taken.
        test: Test,
        /// Distance to the target.
        offset: i32,
    },
    /// `br`, `blr` or `ret`.
    BranchTo {
        /// Which of them.
        through: Through,
        /// The register that holds the target; 31 is zero.
        to: Gpr,
    },
    /// `adr`, or with `pages` `adrp`.
    Address {
        /// Destination; 31 is zero.
        to: Gpr,
        /// Distance; for `adrp` from the page of the instruction, and a multiple of 4096.
        offset: i64,
        /// The distance is from the instruction's page.
        pages: bool,
    },
    /// `ldr`, `ldrsw`, `prfm` of a literal.
    Load {
        /// How the literal is used.
        literal: Literal,
        /// Destination; 31 is zero. For `prfm` the kind of prefetch.
        to: Gpr,
        /// Distance to the literal.
        offset: i32,
    },
    /// `stp` or `str` of general registers, pre-indexed by sp: sp moves by `offset`, and the registers go
    /// there.
    Push {
        /// 8 bytes each if true, else 4.
        wide: bool,
        /// The register stored at the lower address; 31 is zero.
        first: Gpr,
        /// The register stored above it (`stp`); 31 is zero.
        second: Option<Gpr>,
        /// What is added to sp.
        offset: i32,
    },
    /// `stp x29, x30, [sp, #offset]!`, as functions begin: a push in a form of its own, so that nothing has
    /// to be decided when it runs.
    PushFrame {
        /// What is added to sp.
        offset: i32,
    },
    /// `add` or `sub` of an immediate, 64 bits, without flags; so also `mov` from or to sp. 31 is sp.
    Add {
        /// Destination.
        to: Gpr,
        /// Source.
        from: Gpr,
        /// What is added.
        amount: i32,
    },
}

/// When a conditional branch is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// The flags decide.
    Flags(Cond),
    /// `cbz`, `cbnz`.
    Zero {
        /// The register; 31 is zero.
        of: Gpr,
        /// All 64 bits of it if true, else the lower 32.
        wide: bool,
        /// Taken when it is zero, or when it is not.
        when: bool,
    },
    /// `tbz`, `tbnz`.
    Bit {
        /// The register; 31 is zero.
        of: Gpr,
        /// Number of the bit.
        bit: u8,
        /// Taken when the bit has this value.
        when: bool,
    },
}

/// A condition, 0 to 15 in the order of the Arm ARM C1.2.4 (`eq`, `ne`, …, `al`, `nv`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cond(pub(super) u8);

impl Cond {
    /// Whether it holds with these flags: N, Z, C, V in bits 31 to 28, as in PSTATE.
    #[must_use]
    pub const fn holds(self, nzcv: u32) -> bool {
        let (n, z, c, v) =
            (nzcv >> 31 & 1 != 0, nzcv >> 30 & 1 != 0, nzcv >> 29 & 1 != 0, nzcv >> 28 & 1 != 0);
        let base = match self.0 >> 1 {
            0 => z,
            1 => c,
            2 => n,
            3 => v,
            4 => c && !z,
            5 => n == v,
            6 => n == v && !z,
            _ => return true,
        };
        base != (self.0 & 1 != 0)
    }
    /// Whether it is `al` or `nv`, which both always hold.
    #[must_use]
    pub const fn is_always(self) -> bool {
        self.0 >> 1 == 7
    }
}

/// A branch through a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Through {
    /// `br`.
    Jump,
    /// `blr`.
    Call,
    /// `ret`.
    Return,
}

/// What is loaded from a literal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Literal {
    /// 4 bytes, zero-extended.
    Word,
    /// 8 bytes.
    Double,
    /// 4 bytes, sign-extended (`ldrsw`).
    Signed,
    /// A hint that the data will be used (`prfm`).
    Prefetch,
}

/// A vector register's size, in a literal load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vector {
    /// 4 bytes.
    S,
    /// 8 bytes.
    D,
    /// 16 bytes.
    Q,
}

/// An instruction that can run at another address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Away {
    /// The same word does the same anywhere, and control goes on to the next word.
    Plain,
    /// `retaa`, `braa` and their kin: the same word does the same anywhere, and control never comes back. The
    /// modifier is a register, not the address of the instruction.
    Authenticated,
    /// `ldr` of a literal to a vector register.
    LoadVector {
        /// How many bytes.
        size: Vector,
        /// The vector register's number.
        to: u8,
        /// Distance to the literal.
        offset: i32,
    },
}

/// Why a word takes no probe.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, thiserror::Error)]
pub enum Refusal {
    /// `udf`.
    #[error("udf: permanently undefined, its address shows why")]
    Undefined,
    /// Not allocated, or newer than this table, in a group of instructions that may depend on their address.
    #[error("no instruction that is known")]
    Unallocated,
    /// `cb<cc>`, `cbb<cc>`, `cbh<cc>` (FEAT_CMPBR): branches that are not relocated yet.
    #[error("compares and branches (FEAT_CMPBR): not relocated yet")]
    CompareBranch,
    /// `brk`: another tool's breakpoint, and handlers look up its address.
    #[error("brk: traps, and its address is what shows why")]
    Breakpoint,
    /// `hlt`, `dcps1` to `dcps3`.
    #[error("halts for a debugger")]
    Halt,
    /// `svc`: the kernel may step back onto it to restart a call.
    #[error("svc: a system call")]
    SystemCall,
    /// `hvc`, `smc`.
    #[error("calls a hypervisor or secure monitor")]
    Monitor,
    /// An instruction that user space may not run: it traps, and handlers look up its address.
    #[error("privileged")]
    Privileged,
    /// `ldxr`, `stxr` and kin: an exception clears the monitor, and the loop around may never end.
    #[error("an exclusive load or store")]
    Exclusive,
    /// `cpyp`, `setm` and kin: the kernel steps back to the first of the three.
    #[error("part of a memory copy or set of three instructions")]
    MemoryCopy,
    /// Signs or authenticates with its own address as a modifier (FEAT_PAuth_LR).
    #[error("signs or authenticates by its own address")]
    SignsAddress,
    /// `blraa` and kin: a call that authenticates; it leaves its own address in x30.
    #[error("an authenticated call")]
    AuthenticatedCall,
    /// `tstart`, `ttest`, `tcommit`, `tcancel`.
    #[error("part of a transaction")]
    Transaction,
    /// 128-bit system instructions and registers.
    #[error("a system instruction of 128 bits")]
    System128,
}
