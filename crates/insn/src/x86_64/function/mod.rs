//! A function's body: its instructions, the targets of its branches, its exits.
//!
//! In: the bytes of a function and of its cold parts; a way to read constants (jump tables). Out: a [`Body`].
//! Invariants: INSN-1; SAFE-5: an indirect jump that is not surely a jump table or a tail call makes the
//! exits unknown, and is listed. `targets` may contain more than can be reached, never knowingly less.
//! Does not: follow calls, or decide whether a callee returns. If a part ends in a call, the callee is
//! assumed not to return.

mod indirect;

use super::decode::{Flow, Insn, sweep_into};
use core::ops::Range;
use indirect::Indirect;

/// Length of a short instruction in bytes. Room is reserved for a function of such instructions, so the list
/// seldom has to grow.
const SHORT: usize = 3;

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
    /// Indirect `jmp` that is a tail call: through a GOT slot or other memory.
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
}

/// Analyses one function. `parts[0]` is its body, the others its cold parts. `read(addr, size)` returns a
/// little-endian word of read-only data in the same address space (4 bytes as they are; 8 bytes relocated),
/// or `None`.
#[must_use]
pub fn analyse(parts: &[FunctionRange<'_>], read: &dyn Fn(u64, usize) -> Option<u64>) -> Body {
    let bytes: usize = parts.iter().map(|part| part.bytes.len()).sum();
    let mut insns = Vec::with_capacity(bytes / SHORT + 1);
    let mut ranges = Vec::with_capacity(parts.len());
    for part in parts {
        let begin = insns.len();
        sweep_into(part.bytes, part.addr, &mut insns);
        ranges.push(begin..insns.len());
    }
    let mut shape = Shape { parts, insns: &insns, ranges, body: Body::default() };
    for (nth, part) in parts.iter().enumerate() {
        shape.part(nth, part, read);
    }
    let mut body = shape.body;
    body.by_table.sort_unstable();
    body.by_table.dedup();
    Body { insns, ..body }
}

impl FunctionRange<'_> {
    const fn holds(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.addr) < self.bytes.len() as u64
    }
}

/// The function while it is being analysed.
struct Shape<'a> {
    parts: &'a [FunctionRange<'a>],
    insns: &'a [Insn],
    /// Ranges of `insns`, one for each part.
    ranges: Vec<Range<usize>>,
    body: Body,
}

impl Shape<'_> {
    fn holds(&self, addr: u64) -> bool {
        self.parts.iter().any(|part| part.holds(addr))
    }

    /// Whether a jump table may lead to this address: an instruction of the function starts there.
    fn is_start(&self, addr: u64) -> bool {
        let starts = |range: &Range<usize>| {
            let insns = self.insns.get(range.clone()).unwrap_or_default();
            insns.binary_search_by_key(&addr, |insn| insn.addr).is_ok()
        };
        self.parts.iter().zip(&self.ranges).any(|(part, range)| part.holds(addr) && starts(range))
    }

    fn part(&mut self, nth: usize, part: &FunctionRange<'_>, read: Read<'_>) {
        let all = self.insns;
        let insns = self.ranges.get(nth).and_then(|range| all.get(range.clone())).unwrap_or_default();
        let end = part.addr.wrapping_add(part.bytes.len() as u64);
        for (index, &insn) in insns.iter().enumerate() {
            match insn.flow {
                Flow::Ret => self.exit(insn, ExitKind::Ret),
                Flow::Jump(Some(target)) => self.direct(insn, target, Some(ExitKind::TailJump(target))),
                Flow::Branch(target) => self.direct(insn, target, Some(ExitKind::TailBranch(target))),
                Flow::Call(Some(target)) => self.direct(insn, target, None),
                Flow::Jump(None) => self.indirect(insns, index, part, read),
                Flow::Invalid => self.body.invalid = self.body.invalid.or(Some(insn.addr)),
                Flow::Next | Flow::Call(None) | Flow::Syscall | Flow::Trap => {}
            }
        }
        // Padding behind the last real instruction is not part of the function.
        let last = insns.iter().rev().find(|insn| !insn.is_padding()).or(insns.last());
        if let Some(&last) = last
            && last.flow.falls_through()
            && !matches!(last.flow, Flow::Call(_))
            && !self.holds(end)
        {
            self.exit(last, ExitKind::FallThrough(end));
        }
    }

    fn exit(&mut self, insn: Insn, kind: ExitKind) {
        self.body.exits.push(Exit { insn, kind });
    }

    fn direct(&mut self, insn: Insn, target: u64, leaves: Option<ExitKind>) {
        if self.holds(target) {
            self.body.targets.push(target);
            return;
        }
        self.body.outside.push(target);
        if let Some(kind) = leaves {
            self.exit(insn, kind);
        }
    }

    fn indirect(&mut self, insns: &[Insn], index: usize, part: &FunctionRange<'_>, read: Read<'_>) {
        let jump = insns[index];
        let is_body = self.parts.first().is_some_and(|body| body.addr == part.addr);
        match indirect::classify(insns, index, (part, is_body), &|addr| self.is_start(addr), read) {
            Indirect::Table(targets) => {
                self.body.targets.extend(&targets);
                self.body.by_table.extend(targets);
            }
            Indirect::Tail => self.exit(jump, ExitKind::TailIndirect),
            Indirect::To(target) => self.direct(jump, target, Some(ExitKind::TailJump(target))),
            Indirect::Away => {}
            Indirect::Unknown => self.body.unresolved.push(jump.addr),
        }
    }
}
