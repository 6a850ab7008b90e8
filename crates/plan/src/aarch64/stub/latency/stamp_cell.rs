//! Finds a call's stamp cell: from the stack pointer at its entry to the place of its
//! stamp.
//!
//! In: what is timed. If only outermost calls are, the cell belongs to the thread (or the goroutine) and the
//! function. Out: code that leaves the cell's address in `CELL`. Behind the displaced code a search
//! follows, for the case that the first look does not find it. See `record::latency` for tags and blocks.
//!
//! ```text
//!               tag                            hash               nth
//!   thread      S >> 12                        tag                (S >> 3) mod 512
//!   goroutine   (~d >> 12) + (g << 16)         tag ^ (tag >> 29)  (d >> 3) mod 512      d = S - [g + STACK_END]
//!      g = 0    S >> 12                        tag ^ (tag >> 29)  (S >> 3) mod 512
//!   outermost   (t << 16) | (function >> 9)    tag ^ (tag >> 29)  function mod 512      t = g, or tpidr_el0
//!      g = 0    no cell
//!
//!   block = (hash·PHI mod 2^32) >> (32 - count_bits), then (block + 1) mod 2^count_bits, up to STAMP_PROBES blocks
//!   [stamps + 8 block] = tag
//!   cell  = stamps + tags_len + (block << block_bits) + (nth << cell_bits)
//!
//!            sp              x16 A           x17 B    x11 C          x14 CELL   x15 KEY   x13 INDEX
//!   lookup   S - depth       the tag there   S or d   -              stamps     tag       hash, then block
//!   search   S - depth - 16  the tag there   S or d   its address    stamps     tag       block
//!   found    S - depth       -               nth      -              cell       tag       block
//!
//!   sp + 0   x10, x9: only in the search, where they are LEFT and FAILED
//! ```
//!
//! A goroutine's tag has its g above the page's number: no thread's page has so large a number. All of this
//! uses flags.

use trapline_record::latency as words;

use super::super::asm::{Asm, Cond, Fix, Reg, SP};
use super::area::Latency;
use super::saves::{A, B, C, CELL, FRAME, G, INDEX, KEY, STACK_END};

/// Number of cells in a block, as a power of two.
const NTH_BITS: u32 = 9;
/// 2^32 over the golden ratio: spreads neighbouring numbers.
const PHI: u32 = 0x9E37_79B1;

/// A search for a cell, and where it leaves the common path.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Lookup {
    /// The path without a goroutine: the jump, and where it comes back with the tag.
    no_goroutine: Option<(Fix, u64)>,
    elsewhere: Fix,
    found: u64,
}

/// Whether a missing tag is claimed or only reported.
#[derive(Clone, Copy, PartialEq)]
pub(in super::super) enum Claim {
    Yes,
    No,
}

/// The stamp cell of one call: of a function, at a place on the stack.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct StampCell {
    /// Address of the stamp memory.
    stamps: u64,
    shape: words::Stamps,
    /// The cell belongs to (thread, function).
    outermost: bool,
    /// The call belongs to the goroutine that x28 names.
    goroutine: bool,
    function: u32,
}

impl StampCell {
    pub(in super::super) const fn of(latency: &Latency, function: u32, goroutine: bool) -> Self {
        let Latency { stamps, shape, outermost, .. } = *latency;
        Self { stamps, shape, outermost, goroutine, function }
    }
    /// What marks a cell as this function's, in its second word.
    pub(super) const fn number(&self) -> u32 {
        self.function + 1
    }
    /// `to` = what this call puts into its cell's second word. Uses `KEY`.
    ///
    /// ```text
    ///   owner = function + 1                 a cell for each call
    ///   owner = S                            only outermost calls
    ///   owner = S - [g + STACK_END]          the same, of goroutines
    /// ```
    pub(super) fn owner(&self, asm: &mut Asm, to: Reg) {
        if !self.outermost {
            return asm.number(to, self.number());
        }
        asm.add_imm(to, SP, FRAME.cast_signed());
        if self.goroutine {
            // The stack moves, and its end with it. Deeper places have smaller numbers here, too: none is
            // above the end.
            asm.load_at(KEY, G, STACK_END);
            asm.sub(to, to, KEY);
        }
    }
    /// Number of bits of a 32-bit hash that give a block's number.
    const fn index_bits(&self) -> u32 {
        self.shape.count_bits() as u32
    }
    /// `CELL` = the cell, if the first look finds it. `depth`: by how many bytes the stack pointer is below
    /// the program's.
    pub(in super::super) fn lookup(&self, asm: &mut Asm, depth: u32) -> Lookup {
        let shape = self.shape;
        asm.constant(CELL, self.stamps);
        asm.add_imm(B, SP, depth.cast_signed());
        let no_goroutine = self.key(asm);
        asm.number(A, PHI);
        asm.mul32(INDEX, INDEX, A);
        asm.bits(INDEX, INDEX, 32 - self.index_bits(), self.index_bits());
        asm.load_nth(A, CELL, INDEX);
        asm.compare(A, KEY);
        let elsewhere = asm.if_later(Cond::NotEqual);
        let found = asm.here();
        // There is a cell for every eight bytes of the stack page.
        asm.add_shifted(CELL, CELL, INDEX, shape.block_bits().into());
        let mut past = shape.tags_len() as u32;
        if self.outermost {
            past += (self.function & ((1 << NTH_BITS) - 1)) << shape.cell_bits();
        } else {
            asm.bits(B, B, 3, NTH_BITS);
            asm.add_shifted(CELL, CELL, B, shape.cell_bits().into());
        }
        asm.add_imm(CELL, CELL, past.cast_signed());
        Lookup { no_goroutine, elsewhere, found }
    }

    /// From `B` = S to `KEY` = tag, `INDEX` = hash, `B` = S or d. Jumps if there is no goroutine, and comes
    /// back with `KEY`.
    fn key(&self, asm: &mut Asm) -> Option<(Fix, u64)> {
        if self.outermost {
            // A goroutine's tag is at hand wherever it runs. A thread that runs none has no cell.
            let no_goroutine = self.goroutine.then(|| asm.if_zero_later(G));
            if self.goroutine {
                asm.mov(KEY, G);
            } else {
                asm.thread_pointer(KEY);
            }
            asm.shift_left_by(KEY, KEY, 16);
            asm.number(A, self.function >> NTH_BITS);
            asm.or(KEY, KEY, A);
            let hash = asm.here();
            Self::fold(asm);
            return no_goroutine.map(|no_goroutine| (no_goroutine, hash));
        }
        if !self.goroutine {
            asm.bits(KEY, B, 12, 52);
            asm.mov(INDEX, KEY);
            return None;
        }
        let no_goroutine = asm.if_zero_later(G);
        asm.load_at(A, G, STACK_END);
        asm.sub(B, B, A);
        asm.not(KEY, B);
        asm.bits(KEY, KEY, 12, 52);
        asm.add_shifted(KEY, KEY, G, 16);
        let hash = asm.here();
        Self::fold(asm);
        Some((no_goroutine, hash))
    }
    /// `INDEX = tag ^ (tag >> 29)`
    fn fold(asm: &mut Asm) {
        asm.shift_right_by(INDEX, KEY, 29);
        asm.xor(INDEX, INDEX, KEY);
    }

    /// Goes on if the first look did not find the tag: searches from that block on. If found, goes to `found`
    /// with the block's number. Otherwise falls out of the end, and also if `Claim::No` meets a free tag.
    pub(in super::super) fn search(&self, asm: &mut Asm, lookup: Lookup, claim: Claim) {
        const LEFT: Reg = 10;
        const FAILED: Reg = 9;
        let (nowhere, no_goroutine) = match lookup.no_goroutine {
            Some((no_goroutine, _)) if self.outermost => (Some(no_goroutine), None),
            no_goroutine => (None, no_goroutine),
        };
        if let Some((no_goroutine, hash)) = no_goroutine {
            // The same as for a thread elsewhere: its stack does not move.
            asm.bind(no_goroutine);
            asm.bits(KEY, B, 12, 52);
            asm.b(hash);
        }
        asm.bind(lookup.elsewhere);
        asm.push_pair(LEFT, FAILED);
        asm.number(LEFT, words::STAMP_PROBES as u32);
        let again = asm.here();
        asm.add_shifted(C, CELL, INDEX, 3);
        asm.load_exclusive(A, C);
        asm.compare(A, KEY);
        let same = asm.if_later(Cond::Equal);
        let (mine, free) = match claim {
            Claim::Yes => {
                let taken = asm.unless_zero_later(A);
                asm.store_exclusive(FAILED, KEY, C);
                // A signal came in between, or another thread: look again.
                asm.unless_zero(FAILED, again);
                let mine = asm.b_later();
                asm.bind(taken);
                (Some(mine), None)
            }
            Claim::No => (None, Some(asm.if_zero_later(A))),
        };
        asm.add_imm(INDEX, INDEX, 1);
        asm.bits(INDEX, INDEX, 0, self.index_bits());
        asm.subtract32(LEFT, 1);
        asm.unless_zero(LEFT, again);
        if let Some(free) = free {
            asm.bind(free);
        }
        asm.pop_pair(LEFT, FAILED);
        let lost = asm.b_later();
        asm.bind(same);
        if let Some(mine) = mine {
            asm.bind(mine);
        }
        asm.pop_pair(LEFT, FAILED);
        asm.b(lookup.found);
        asm.bind(lost);
        nowhere.into_iter().for_each(|fix| asm.bind(fix));
    }
}
