//! The analysis of one function: each instruction is looked at once, in order of address.
//!
//! In: the parts of a function; a way to read constants. Out: a [`Body`]. [`function`](super) has the
//! invariants.
//! Does not: decide about indirect jumps (`indirect`).

use super::super::decode::{Flow, sweep_into};
use super::indirect::{self, Indirect};
use super::{Body, Exit, ExitKind, FunctionRange, Insn, Read};
use core::ops::Range;

/// Length of a short instruction in bytes. Room is reserved for a function of such instructions, so the list
/// seldom has to grow.
const SHORT: usize = 3;

/// Analyses one function. `parts[0]` is its body, the others its cold parts. `read(addr, size)` returns a
/// little-endian word of read-only data in the same address space (4 bytes as they are; 8 bytes relocated),
/// or `None`.
#[must_use]
pub fn analyse(parts: &[FunctionRange<'_>], read: &dyn Fn(u64, usize) -> Option<u64>) -> Body {
    analyse_further(Body::default(), parts, read)
}

/// The same of a function of which the first parts were analysed before, and `known` is what was found. Only the
/// others are decoded. If none were, `known` is empty, and gives its memory.
#[must_use]
pub fn analyse_further(
    known: Body,
    parts: &[FunctionRange<'_>],
    read: &dyn Fn(u64, usize) -> Option<u64>,
) -> Body {
    let (mut insns, mut ranges, body) = known.without_shape();
    let further = parts.get(ranges.len()..).unwrap_or_default();
    let bytes: usize = further.iter().map(|part| part.bytes.len()).sum();
    insns.reserve(bytes / SHORT + 1);
    for part in further {
        let begin = insns.len();
        sweep_into(part.bytes, part.addr, &mut insns);
        ranges.push(begin..insns.len());
    }
    let mut shape = Shape { parts, insns: &insns, ranges, body };
    for (nth, part) in parts.iter().enumerate() {
        shape.part(nth, part, read);
    }
    let Shape { ranges, mut body, .. } = shape;
    body.by_table.sort_unstable();
    body.by_table.dedup();
    Body { insns, parts: ranges, ..body }
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
            match insn.flow() {
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
            && last.flow().falls_through()
            && !matches!(last.flow(), Flow::Call(_))
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
            Indirect::JumpTable(targets) => {
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
