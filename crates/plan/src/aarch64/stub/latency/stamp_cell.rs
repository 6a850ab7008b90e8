//! Finds a call's stamp cell: from the stack pointer at its entry to the place of its
//! stamp.
//!
//! In: what is timed. If only outermost calls are, the cell belongs to the thread (or the goroutine) and the
//! function. Out: code that leaves the cell's address in `SLOT`; and the search for behind the displaced
//! code, for the case that the first look does not find it. See `record::latency` for tags and blocks. A
//! goroutine's tag is its page's, counted from its stack's end, with its g above that: no thread's page has
//! so large a number.

use trapline_record::latency as words;

use super::super::asm::{Asm, Cond, Fix, Reg, SP};
use super::timed::{A, B, C, G, INDEX, KEY, SLOT, STACK_END, Timed};

/// Number of cells in a block, as a power of two.
const SLOT_BITS: u32 = 9;
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

impl Timed<'_> {
    /// Number of bits of a 32-bit hash that give a block's number.
    const fn index_bits(&self) -> u32 {
        self.latency.shape.count_bits() as u32
    }
    /// In: by how many bytes the stack pointer is below the program's. Out: `SLOT`. Spoils `A`, `B`, `KEY`,
    /// `INDEX`.
    pub(in super::super) fn lookup(&self, asm: &mut Asm, depth: u32) -> Lookup {
        let shape = self.latency.shape;
        asm.constant(SLOT, self.latency.stamps);
        asm.add_imm(B, SP, depth.cast_signed());
        let no_goroutine = self.key(asm);
        asm.number(A, PHI);
        asm.mul32(INDEX, INDEX, A);
        asm.bits(INDEX, INDEX, 32 - self.index_bits(), self.index_bits());
        asm.load_nth(A, SLOT, INDEX);
        asm.compare(A, KEY);
        let elsewhere = asm.if_later(Cond::NotEqual);
        let found = asm.here();
        // In: SLOT = tags, INDEX = block's number, B = stack pointer. There is a cell for every eight bytes
        // of the stack page.
        asm.add_shifted(SLOT, SLOT, INDEX, shape.block_bits().into());
        let mut past = shape.tags_len() as u32;
        if self.latency.outermost {
            past += (self.function & ((1 << SLOT_BITS) - 1)) << shape.cell_bits();
        } else {
            asm.bits(B, B, 3, SLOT_BITS);
            asm.add_shifted(SLOT, SLOT, B, shape.cell_bits().into());
        }
        asm.add_imm(SLOT, SLOT, past.cast_signed());
        Lookup { no_goroutine, elsewhere, found }
    }

    /// In: `B` = S. Out: `KEY` = tag, `INDEX` = what is hashed; for a goroutine `B` = S less its stack's end.
    /// Jumps if there is no goroutine, and comes back with `KEY`. Spoils `A`.
    fn key(&self, asm: &mut Asm) -> Option<(Fix, u64)> {
        if self.latency.outermost {
            // A goroutine's tag is at hand wherever it runs. A thread that runs none has no cell.
            let no_goroutine = self.goroutine.then(|| asm.if_zero_later(G));
            if self.goroutine {
                asm.mov(KEY, G);
            } else {
                asm.thread_pointer(KEY);
            }
            asm.shift_left_by(KEY, KEY, 16);
            asm.number(A, self.function >> SLOT_BITS);
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
    /// `INDEX` = the tag's high bits in its low ones.
    fn fold(asm: &mut Asm) {
        asm.shift_right_by(INDEX, KEY, 29);
        asm.xor(INDEX, INDEX, KEY);
    }

    /// Goes on if the first look did not find the tag: searches from that block on. If found, goes to `found`
    /// with the block's number. Otherwise falls out of the end, and also if `Claim::No` meets a free tag.
    /// Spoils `A` and `C`.
    pub(in super::super) fn search(&self, asm: &mut Asm, lookup: Lookup, claim: Claim) {
        const LEFT: Reg = 10;
        const FAILED: Reg = 9;
        let (nowhere, no_goroutine) = match lookup.no_goroutine {
            Some((no_goroutine, _)) if self.latency.outermost => (Some(no_goroutine), None),
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
        asm.add_shifted(C, SLOT, INDEX, 3);
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
