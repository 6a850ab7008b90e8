//! A function's body: its instructions, where its branches land, where it is left.

use super::decode::Insn;

/// A range of a function: its body, or a cold part elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Address of the first byte.
    pub addr: u64,
    /// All bytes of the range.
    pub bytes: &'a [u8],
}

/// How a function is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitKind {
    /// `ret`, `rep ret`, `ret n`.
    Ret,
    /// Direct `jmp` out of all parts.
    TailJump(u64),
    /// Conditional branch out of all parts: an exit only when taken.
    TailBranch(u64),
    /// Indirect `jmp` that is a tail call: through a GOT slot or other memory.
    TailIndirect,
    /// The last instruction of a part runs on into what lies behind it; the address is the first one outside.
    FallThrough(u64),
}

/// One place where a function is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exit {
    /// The instruction that leaves.
    pub insn: Insn,
    /// How.
    pub kind: ExitKind,
}

/// What [`analyse`] found.
#[derive(Clone, Debug, Default)]
pub struct Body {
    /// All instructions, part by part in the order given, each part in address order.
    pub insns: Vec<Insn>,
    /// Addresses inside the parts that a direct branch, a call or a jump table of this function leads to. Sorted.
    pub targets: Vec<u64>,
    /// Direct targets outside the parts, calls included. Sorted.
    pub outside: Vec<u64>,
    /// Where the function is left. Empty for one that never returns.
    pub exits: Vec<Exit>,
    /// Indirect jumps that could be an exit, a jump table, or both. Not empty: exits are unknown.
    pub unresolved: Vec<u64>,
    /// First address where bytes are no instruction, if any: the sweep may be out of step behind it.
    pub invalid: Option<u64>,
}

impl Body {
    /// Whether `exits` is all of them.
    #[must_use]
    pub const fn exits_known(&self) -> bool {
        self.unresolved.is_empty() && self.invalid.is_none()
    }
}

/// Analyses one function. `parts[0]` is its body, the others its cold parts. `read(addr, size)` gives a little-endian
/// word of read-only data in the same address space (4 bytes as they stand; 8 bytes relocated), or `None`.
#[must_use]
pub fn analyse(parts: &[Part<'_>], read: &dyn Fn(u64, usize) -> Option<u64>) -> Body {
    let _ = (parts, read);
    todo!()
}
