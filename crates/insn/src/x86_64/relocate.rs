//! Displaced instructions: the same effect at a new address.

use super::decode::{Insn, sweep};

/// Instructions at their new place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Relocated {
    /// The code.
    pub bytes: Vec<u8>,
    /// For each instruction: its offset in the window, and the offset of its copy in `bytes`.
    pub offsets: Vec<(u8, u32)>,
    /// Whether control can run off the end of `bytes`; the caller then appends a jump to `next`.
    pub falls_through: bool,
    /// Address of the instruction behind the window.
    pub next: u64,
}

/// What the target demands of displaced code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// A shadow stack is on: a call cannot be emulated by a push.
    pub shadow_stack: bool,
}

/// Why an instruction must stay where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Immovable {
    /// Bytes that decode to nothing known.
    #[error("no instruction that is known")]
    Invalid,
    /// `xbegin`.
    #[error("a transaction's abort address depends on its place")]
    Xbegin,
    /// Far jump, call or return.
    #[error("a far branch")]
    Far,
    /// `int3`, `ud2` and the like: handlers look their address up.
    #[error("traps, and its address is what tells why")]
    Trap,
    /// A near branch with an operand-size prefix: processors disagree on its length.
    #[error("a branch whose length processors disagree on")]
    OperandSize,
    /// An indirect call by `rsp`, or through the word that the call itself writes.
    #[error("a call whose target depends on the push it makes")]
    CallByStack,
    /// A call under a shadow stack.
    #[error("a call, and the shadow stack is on")]
    ShadowStack,
    /// A call, system call or interrupt that has instructions behind it in the window.
    #[error("returns into the window")]
    NotLast,
    /// What it names would be more than 2 GiB away.
    #[error("{target:#x} is out of reach from the new place")]
    OutOfReach {
        /// The address named.
        target: u64,
    },
}

/// A window that cannot be displaced.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RelocateError {
    /// One instruction must stay.
    #[error("instruction {bytes:02x?} at {addr:#x} cannot be moved: {why}")]
    Immovable {
        /// Its address.
        addr: u64,
        /// Its bytes.
        bytes: Vec<u8>,
        /// The reason.
        why: Immovable,
    },
    /// A branch inside the window to a place in it where no instruction starts.
    #[error("branch at {addr:#x} leads to {target:#x}, inside another instruction of the window")]
    IntoInstruction {
        /// The branch.
        addr: u64,
        /// Where it leads.
        target: u64,
    },
    /// Instructions and bytes given do not belong together, or are more than 255 bytes.
    #[error("{insns} instructions do not match {bytes} bytes")]
    Mismatch {
        /// How many instructions.
        insns: usize,
        /// How many bytes.
        bytes: usize,
    },
}

/// Whether an instruction may be displaced at all, as the last of its window, without a shadow stack.
///
/// # Errors
/// The reason why not.
pub fn may_displace(insn: &Insn) -> Result<(), Immovable> {
    let _ = insn;
    todo!()
}

/// [`relocate_with`] the default options.
///
/// # Errors
/// As [`relocate_with`].
pub fn relocate(insns: &[Insn], bytes: &[u8], to: u64) -> Result<Relocated, RelocateError> {
    relocate_with(insns, bytes, to, Options::default())
}

/// The window `insns`, whose bytes are `bytes`, made to work at `to`. A branch to the window's own first instruction
/// still goes to the old place, where the patch is: a loop to the site is a hit each time. Branches to its other
/// instructions go to their copies.
///
/// # Errors
/// What cannot be moved, with address and bytes.
pub fn relocate_with(
    insns: &[Insn],
    bytes: &[u8],
    to: u64,
    options: Options,
) -> Result<Relocated, RelocateError> {
    let _ = (insns, bytes, to, options);
    todo!()
}

/// Decodes any bytes at `from` and relocates them to `to`: the entry point for fuzzing.
///
/// # Errors
/// As [`relocate_with`].
pub fn relocate_bytes(
    bytes: &[u8],
    from: u64,
    to: u64,
    options: Options,
) -> Result<Relocated, RelocateError> {
    let insns: Vec<Insn> = sweep(bytes, from).collect();
    relocate_with(&insns, bytes, to, options)
}
