//! Finds a call's stamp cell: from (function, stack pointer) to the place of its stamp.
//!
//! In: what is timed. Out: code that leaves the cell's address in rsi, or returns where its second word is; and
//! the search for behind the displaced code, for the case that the first look does not find it. See
//! `record::latency` for tags and blocks.
//!
//! ```text
//!   rsp + skipped  = S, the stack pointer at the function's entry
//!   base           tags; rsi in `lookup`, r11 for a mark
//!   rdx            tag; later the cell's offset in its block
//!   rax            number of the block; later the block's offset
//!   r8             S, or its distance from the goroutine stack's end, if `keeps_s`
//!   r9, r10        during a search: the block's number, and the blocks that are left; saved at rsp - 64, rsp - 72
//!   rcx            the function's number + 1, in code that functions share ([`Function::InRcx`]); it stays
//! ```
//!
//! Tag and first block. g is the goroutine's pointer, hi = `[g + 8]` its stack's end, and D = S - hi is below
//! 0. Products with PHI have 32 bits, of which a shift by 32 - n leaves the n = `count_bits` highest:
//!
//! ```text
//!   a thread             tag = S >> 12                             block = (tag · PHI) >> (32 - n)
//!   a goroutine          tag = (~D >> 12) + (g << 16)              block = ((tag ^ (tag >> 29)) · PHI) >> (32 - n)
//!   no goroutine, in Go  tag = S >> 12                             the same
//!   outermost            tag = (thread or g) << 16 | function >> 9 the same;  thread: the pointer at fs:0
//! ```
//!
//! A tag is looked for in STAMP_PROBES blocks from the first on, modulo 2^n: `[base + 8 · block] = tag`. With
//! r8 in place of S if `keeps_s`:
//!
//! ```text
//!   cell                 base + tags_len + (block << block_bits) + ((S & 0xff8) << (cell_bits - 3))
//!   outermost            base + tags_len + (block << block_bits) + 16 · (function & 511)
//! ```

use trapline_record::latency as words;

use super::super::asm::{Alu, Asm, Cond, Fix, Mem, R8, R9, R10, RAX, RCX, RDX, RSI, RSP, Reg, Shift};
use super::super::rseq::PHI;
use super::area::Latency;
use super::saves::{reload, save, skipped, spill};
use crate::x86_64::stub::machine::Liveness;

/// What marks a cell as the function's, in its second word.
pub(super) const fn owner(function: u32) -> i32 {
    function as i32 + 1
}

/// A search for a cell, and where it leaves the common path.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Lookup {
    /// The path without a goroutine: the jump, and where it comes back with tag and S.
    no_goroutine: Option<(Fix, u64)>,
    elsewhere: Fix,
    found: u64,
    /// Register that holds the tags' address until then.
    base: Reg,
}

/// Whether a missing tag is claimed or only reported.
#[derive(Clone, Copy, PartialEq)]
pub(in super::super) enum Claim {
    Yes,
    No,
}

/// Which function's calls some code is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Function {
    /// The one with this number.
    Known(u32),
    /// Functions share the code. rcx holds the number + 1, which is what marks a cell as a function's.
    InRcx,
}

/// The stamp cell of one call: of a function, at a place on the stack.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct StampCell {
    /// Address of the stamp memory.
    stamps: u64,
    shape: words::Stamps,
    /// The cell belongs to (thread, function).
    outermost: bool,
    /// Offset of the goroutine pointer from the thread pointer, in a Go program.
    go: Option<i32>,
    function: Function,
    /// Bytes from the stub's stack pointer to S.
    skipped: i32,
}

impl Lookup {
    /// Makes all its jumps off the common path lead here.
    pub(super) fn bind(self, asm: &mut Asm<'_>) {
        asm.bind(self.elsewhere);
        self.no_goroutine.into_iter().for_each(|(fix, _)| asm.bind(fix));
    }
}

impl StampCell {
    pub(in super::super) const fn of(latency: &Latency, function: u32, site: Liveness) -> Self {
        Self::for_function(latency, Function::Known(function), site)
    }
    pub(super) const fn for_function(latency: &Latency, function: Function, site: Liveness) -> Self {
        let Latency { stamps, shape, outermost, go, .. } = *latency;
        Self { stamps, shape, outermost, go, function, skipped: skipped(site) }
    }
    /// Whether S must be kept in a register (r8), rather than computed from rsp again.
    pub(in super::super) const fn keeps_s(&self) -> bool {
        self.outermost || self.go.is_some()
    }
    /// Whether the call may be a goroutine's.
    pub(in super::super) const fn in_go(&self) -> bool {
        self.go.is_some()
    }
    /// Marks the cell in rsi as this call's, by its second word.
    pub(super) fn store_owner(&self, asm: &mut Asm<'_>) {
        let word = Mem::At(RSI, 8);
        match self.function {
            _ if self.outermost => asm.store(word, R8),
            Function::Known(function) => asm.store_imm(word, owner(function)),
            Function::InRcx => asm.store(word, RCX),
        }
    }
    /// By how many bits a 32-bit hash is shifted to get a block's number.
    const fn index_shift(&self) -> u8 {
        32 - self.shape.count_bits()
    }
    /// rsi = cell; r8 = S or D if `keeps_s`. Uses rax, rdx and flags.
    pub(in super::super) fn lookup(&self, asm: &mut Asm<'_>) -> Lookup {
        let lookup = self.find(asm, RSI);
        self.point(asm);
        lookup
    }
    /// Finds a call's own cell, if only the second word is needed. Returns its operand, valid until `base` or
    /// rdx changes. Uses rax and flags.
    pub(super) fn second_word(&self, asm: &mut Asm<'_>, base: Reg) -> (Lookup, Mem) {
        let lookup = self.find(asm, base);
        let (scale, blocks) = self.place(asm, base);
        (lookup, Mem::Sum(base, RDX, scale, blocks + 8))
    }
    /// `base` = tags, rax = block, rdx = tag; r8 = S or D if `keeps_s`. Jumps if the tag is elsewhere.
    fn find(&self, asm: &mut Asm<'_>, base: Reg) -> Lookup {
        asm.mov_imm64(base, self.stamps);
        let no_goroutine = self.key(asm);
        let elsewhere = asm.unbroken(|asm| {
            asm.alu_store(Alu::Cmp, Mem::Sum(base, RAX, 3, 0), RDX, false);
            asm.jcc_later(Cond::NotEqual)
        });
        Lookup { no_goroutine, elsewhere, found: asm.here(), base }
    }

    /// rdx = tag, rax = first block; r8 = S or D if `keeps_s`. Jumps if there is no goroutine; the second
    /// result is where that comes back with rdx and r8.
    fn key(&self, asm: &mut Asm<'_>) -> Option<(Fix, u64)> {
        asm.lea(RDX, Mem::At(RSP, self.skipped));
        if !self.keeps_s() {
            asm.shift(Shift::Right, RDX, 12, true);
            asm.imul_imm(RAX, RDX, PHI, false);
            asm.shift(Shift::Right, RAX, self.index_shift(), false);
            return None;
        }
        let no_goroutine = self.go.map(|offset| {
            asm.load(RAX, Mem::Fs(offset));
            asm.test(RAX, RAX, true);
            let no_goroutine = asm.jcc_later(Cond::Equal);
            asm.alu_load(Alu::Sub, RDX, Mem::At(RAX, 8)); // g.stack.hi
            no_goroutine
        });
        asm.mov(R8, RDX);
        if self.outermost {
            match self.go {
                Some(_) => asm.mov(RDX, RAX),
                None => asm.load(RDX, Mem::Fs(0)), // the psABI's pointer to itself
            }
            asm.shift(Shift::Left, RDX, 16, true);
            match self.function {
                Function::Known(function) => asm.alu_imm(Alu::Or, RDX, (function >> 9) as i32, true),
                Function::InRcx => {
                    asm.lea(RAX, Mem::At(RCX, -1));
                    asm.shift(Shift::Right, RAX, 9, true);
                    asm.alu(Alu::Or, RDX, RAX);
                }
            }
        } else {
            asm.not(RDX);
            asm.shift(Shift::Right, RDX, 12, true);
            asm.shift(Shift::Left, RAX, 16, true); // g is a multiple of 8: pages up to 2^19 never reach it
            asm.alu(Alu::Add, RDX, RAX);
        }
        let hash = asm.here();
        asm.mov(RAX, RDX);
        asm.shift(Shift::Right, RAX, 29, true);
        asm.alu(Alu::Xor, RAX, RDX);
        asm.imul_imm(RAX, RAX, PHI, false);
        asm.shift(Shift::Right, RAX, self.index_shift(), false);
        no_goroutine.map(|no_goroutine| (no_goroutine, hash))
    }

    /// The path of a thread of a Go program that runs no goroutine, as C libraries have them. Its stack does
    /// not move, and its page alone is the tag. No goroutine's tag is so small: its g lies above the 2^19
    /// that it would take. If outermost calls are requested, such a thread has no cell.
    fn without_goroutine(&self, asm: &mut Asm<'_>, lookup: Lookup) {
        if let Some((no_goroutine, hash)) = lookup.no_goroutine.filter(|_| !self.outermost) {
            asm.bind(no_goroutine);
            asm.mov(R8, RDX);
            asm.shift(Shift::Right, RDX, 12, true);
            asm.jmp(hash);
        }
    }

    /// rsi = the cell in block rax; rsi = tags before. Uses rax, rdx and flags.
    fn point(&self, asm: &mut Asm<'_>) {
        let shape = self.shape;
        if self.outermost {
            let blocks = shape.tags_len() as i32;
            asm.shift(Shift::Left, RAX, shape.block_bits(), false);
            let known = match self.function {
                Function::Known(function) => (function & 511) as i32 * 16,
                Function::InRcx => {
                    asm.lea(RDX, Mem::At(RCX, -1));
                    asm.alu_imm(Alu::And, RDX, 511, false);
                    asm.shift(Shift::Left, RDX, 4, false);
                    asm.alu(Alu::Add, RSI, RDX);
                    0
                }
            };
            asm.lea(RSI, Mem::Sum(RSI, RAX, 0, blocks + known));
            return;
        }
        let (scale, blocks) = self.place(asm, RSI);
        asm.lea(RSI, Mem::Sum(RSI, RDX, scale, blocks));
    }
    /// Computes the place of a call's own cell: `base` + rdx · 2^scale + offset. Returns scale and offset.
    fn place(&self, asm: &mut Asm<'_>, base: Reg) -> (u8, i32) {
        let shape = self.shape;
        // A block's number times its length needs more than 32 bits only if the memory does.
        asm.shift(Shift::Left, RAX, shape.block_bits(), false);
        if self.keeps_s() {
            asm.mov32(RDX, R8);
        } else {
            asm.lea(RDX, Mem::At(RSP, self.skipped));
        }
        asm.alu_imm(Alu::And, RDX, 0xff8, false);
        asm.alu(Alu::Add, base, RAX);
        // A cell for every eight bytes of the page.
        let scale = match shape.cell_bits() - 3 {
            scale @ 0..=3 => scale,
            scale => {
                asm.shift(Shift::Left, RDX, scale, false);
                0
            }
        };
        (scale, shape.tags_len() as i32)
    }

    /// Compares the cell's second word with what this call puts there.
    pub(super) fn compare_owner(&self, asm: &mut Asm<'_>) {
        let word = Mem::At(RSI, 8);
        match self.function {
            _ if self.outermost => asm.alu_store(Alu::Cmp, word, R8, false),
            Function::Known(function) => asm.cmp_mem_imm(word, owner(function)),
            Function::InRcx => asm.alu_store(Alu::Cmp, word, RCX, false),
        }
    }

    /// Searches for the tag from the block in rax on. If found, jumps to `found` with rax = block. Otherwise
    /// falls out of the end, and also if `Claim::No` meets a free tag.
    fn probe(&self, asm: &mut Asm<'_>, claim: Claim, Lookup { base, found, .. }: Lookup) {
        spill(asm, save::R9, R9);
        spill(asm, save::R10, R10);
        asm.mov32(R9, RAX);
        asm.mov_imm32(R10, words::STAMP_PROBES as u32);
        let again = asm.here();
        asm.load(RAX, Mem::Sum(base, R9, 3, 0));
        asm.alu(Alu::Cmp, RAX, RDX);
        let same = asm.jcc_later(Cond::Equal);
        asm.test(RAX, RAX, true);
        let (mine, free) = match claim {
            Claim::Yes => {
                let taken = asm.jcc_later(Cond::NotEqual);
                asm.cmpxchg(Mem::Sum(base, R9, 3, 0), RDX);
                let mine = asm.jcc_later(Cond::Equal);
                // A signal handler on this page may have claimed the tag for the same key.
                asm.alu(Alu::Cmp, RAX, RDX);
                let handler = asm.jcc_later(Cond::Equal);
                asm.bind(taken);
                (Some((mine, handler)), None)
            }
            Claim::No => (None, Some(asm.jcc_later(Cond::Equal))),
        };
        asm.alu_imm(Alu::Add, R9, 1, false);
        asm.alu_imm(Alu::And, R9, (1 << self.shape.count_bits()) - 1, false);
        asm.alu_imm(Alu::Sub, R10, 1, false);
        asm.jcc(Cond::NotEqual, again);
        if let Some(free) = free {
            asm.bind(free);
        }
        reload(asm, R10, save::R10);
        reload(asm, R9, save::R9);
        let lost = asm.jmp_later();
        asm.bind(same);
        if let Some((mine, handler)) = mine {
            asm.bind(mine);
            asm.bind(handler);
        }
        asm.mov32(RAX, R9);
        reload(asm, R10, save::R10);
        reload(asm, R9, save::R9);
        asm.jmp(found);
        asm.bind(lost);
    }

    /// Goes on if the first look did not find the tag; falls out of the end if there is no block.
    pub(in super::super) fn search(&self, asm: &mut Asm<'_>, lookup: Lookup, claim: Claim) {
        self.without_goroutine(asm, lookup);
        asm.bind(lookup.elsewhere);
        self.probe(asm, claim, lookup);
    }

    /// A search for the case that the first look did not find the tag. What follows counts a call whose cell is
    /// not found. Uses rax and flags.
    pub(super) fn miss(&self, asm: &mut Asm<'_>, lookup: Lookup, claim: Claim) {
        self.search(asm, lookup, claim);
        let no_goroutine =
            lookup.no_goroutine.filter(|_| self.outermost).map(|(no_goroutine, _)| no_goroutine);
        no_goroutine.into_iter().for_each(|fix| asm.bind(fix));
    }
}
