//! A function's body: its instructions, the targets of its branches, its exits.
//!
//! In: the bytes of a function and of its cold parts; a way to read constants (jump tables). Out: a [`Body`].
//! Invariants: INSN-1; SAFE-5: an indirect jump that is not surely a jump table or a tail call makes the
//! exits unknown, and is listed. `targets` may contain more than can be reached, never knowingly less.
//! Does not: follow calls, or decide whether a callee returns. If a part ends in a call, the callee is
//! assumed not to return.

mod analysis;
mod indirect;

pub use analysis::{analyse, analyse_further};

use super::decode::Insn;
use core::ops::Range;

/// Reads a constant: see [`analyse`].
type Read<'a> = &'a dyn Fn(u64, usize) -> Option<u64>;

/// A range of a function: its body, or a cold part elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct FunctionRange<'a> {
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
    /// Indirect `jmp` that is a tail call: through a GOT entry or other memory.
    TailIndirect,
    /// The last instruction of a part goes on into the code behind it; the address is the first one outside.
    FallThrough(u64),
}

/// One exit of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exit {
    /// The instruction by which it is left.
    pub insn: Insn,
    /// The kind of exit.
    pub kind: ExitKind,
}

/// What [`analyse`] found.
#[derive(Clone, Debug, Default)]
pub struct Body {
    /// All instructions, part by part in the order given, each part in address order.
    pub insns: Vec<Insn>,
    /// Ranges of `insns`, one for each part.
    pub parts: Vec<Range<usize>>,
    /// Addresses inside the parts that a direct branch, a call or a jump table of this function leads to. In
    /// no order; some occur more than once.
    pub targets: Vec<u64>,
    /// The addresses in `targets` that a jump table leads to. Sorted.
    pub by_table: Vec<u64>,
    /// Direct targets outside the parts, calls included. In no order.
    pub outside: Vec<u64>,
    /// The exits. Empty for a function that never returns. `eh_return` is none: the call ends like one that
    /// `longjmp` leaves.
    pub exits: Vec<Exit>,
    /// Indirect jumps that could be an exit, a jump table, or both. If there are any, the exits are unknown.
    pub unresolved: Vec<u64>,
    /// First address where bytes are no instruction, if any: the sweep may be out of step after it.
    pub invalid: Option<u64>,
}

impl Body {
    /// Whether `exits` contains all of them.
    #[must_use]
    pub const fn exits_known(&self) -> bool {
        self.unresolved.is_empty() && self.invalid.is_none()
    }
    /// An empty one with the same memory.
    #[must_use]
    pub fn emptied(self) -> Self {
        let (mut insns, mut parts, body) = self.without_shape();
        insns.clear();
        parts.clear();
        Self { insns, parts, ..body }
    }
    /// The instructions, the ranges of the parts, and an empty body with the memory of the rest.
    fn without_shape(mut self) -> (Vec<Insn>, Vec<Range<usize>>, Self) {
        for addresses in [&mut self.targets, &mut self.by_table, &mut self.outside, &mut self.unresolved] {
            addresses.clear();
        }
        self.exits.clear();
        let (insns, parts) = (std::mem::take(&mut self.insns), std::mem::take(&mut self.parts));
        (insns, parts, Self { invalid: None, ..self })
    }
}

impl FunctionRange<'_> {
    const fn holds(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.addr) < self.bytes.len() as u64
    }
}
