//! Which bytes of a module may be branched to, and where its padding is.
//!
//! In: an image. Out: a bit for every byte of its code, and the pieces (function bodies, cold parts,
//! fragments) in address order. Invariant: MAP-1 every address that the swept code names by a direct branch,
//! a jump table, a `lea`, a relocation, a symbol or a landing pad is marked. A target that cannot be seen (a
//! computed jump without a table) is not marked; that is why windows have guards. A map of a part can be
//! extended later ([`BranchMap::cover`]); no function is swept twice.
//! Does not: decide about windows. `sweep` fills the map.

mod sweep;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use trapline_image::{FunctionIndex, Image};
use trapline_insn::x86_64::padding_len;
use trapline_record::Svma;

use crate::x86_64::return_address::names_return_address;

/// Padding is examined up to this many bytes.
const MAX_PADDING: u64 = 4096;

/// A contiguous stretch of code that belongs to one function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FunctionPart {
    /// First byte.
    pub start: Svma,
    /// First byte after it.
    pub end: Svma,
    /// What is known about its end.
    facts: Facts,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Facts {
    /// Not swept, or control may run on into what follows.
    #[default]
    Open,
    /// The last instruction never falls through, so nothing runs into the padding behind it.
    Closed,
}

/// The bits of one executable segment.
#[derive(Debug)]
struct Bits {
    start: u64,
    len: u64,
    words: Vec<AtomicU64>,
}

impl Bits {
    fn mark(&self, at: u64) {
        let off = at.wrapping_sub(self.start);
        if off < self.len
            && let Some(word) = self.words.get((off / 64) as usize)
        {
            let bit = 1 << (off % 64);
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }
    fn get(&self, at: u64) -> bool {
        let off = at.wrapping_sub(self.start);
        let word = self.words.get((off / 64) as usize);
        off < self.len && word.is_some_and(|w| w.load(Ordering::Relaxed) >> (off % 64) & 1 == 1)
    }
}

/// Possible branch targets of a module, and the padding between its functions.
#[derive(Debug)]
pub(crate) struct BranchMap {
    bits: Vec<Bits>,
    /// The same of what data names: relocations, symbols, landing pads.
    by_data: Vec<Bits>,
    /// Pieces, sorted by address, not overlapping.
    parts: Vec<FunctionPart>,
    /// For each function: upper bound of patches that its exits need; 0 if it was not swept.
    exits: Vec<u32>,
    /// For each swept function: whether it jumps back to its own entry.
    looped: Vec<bool>,
    /// For each function: whether it was swept.
    is_swept: Vec<bool>,
    /// For each function that was asked about: the instruction by which it names its return address. The
    /// answer is the same in every process, and takes longer to find than the rest of a plan.
    named: OnceLock<Vec<OnceLock<Option<Svma>>>>,
}

impl BranchMap {
    /// The map of a file, with nothing swept yet.
    fn new(image: &Image) -> Self {
        let functions = image.functions().len();
        Self {
            bits: bits_of(image),
            by_data: bits_of(image),
            parts: parts_of(image),
            exits: vec![0; functions],
            looped: vec![false; functions],
            is_swept: vec![false; functions],
            named: OnceLock::new(),
        }
    }

    fn mark(&self, at: u64) {
        self.bits.iter().for_each(|b| b.mark(at));
    }
    fn mark_by_data(&self, at: u64) {
        self.mark(at);
        self.by_data.iter().for_each(|b| b.mark(at));
    }

    /// Whether something may branch to `at`.
    pub(crate) fn is_target(&self, at: Svma) -> bool {
        self.bits.iter().any(|b| b.get(at.0))
    }

    /// Whether data names `at`.
    pub(crate) fn is_named_by_data(&self, at: Svma) -> bool {
        self.by_data.iter().any(|b| b.get(at.0))
    }

    /// The first possible branch target in `from..to`.
    pub(crate) fn target_in(&self, from: Svma, to: Svma) -> Option<Svma> {
        let bits = self.bits.iter().find(|b| from.0.wrapping_sub(b.start) < b.len)?;
        (from.0..to.0).find(|&at| bits.get(at)).map(Svma)
    }

    /// The piece that holds `at`.
    ///
    /// # Errors
    /// The index of the first piece behind `at`, if no piece holds `at`.
    pub(crate) fn part_at(&self, at: Svma) -> Result<FunctionPart, usize> {
        let next = self.parts.partition_point(|p| p.start <= at);
        match next.checked_sub(1).map(|i| self.parts[i]) {
            Some(part) if at < part.end => Ok(part),
            _ => Err(next),
        }
    }

    /// Number of padding bytes that begin at `end`, the end of a piece: whole `nop`s and `int3`s, or zeros,
    /// up to the next piece. Padding ends before the first branch target.
    pub(crate) fn padding_after(&self, image: &Image, end: Svma) -> u64 {
        let next = self.parts.partition_point(|p| p.start < end);
        let limit = self.parts.get(next).map_or(u64::MAX, |p| p.start.0);
        let limit = self
            .bits
            .iter()
            .find(|b| end.0.wrapping_sub(b.start) < b.len)
            .map_or(end.0, |b| limit.min(b.start + b.len));
        let room = (limit - end.0).min(MAX_PADDING);
        let Some(bytes) = image.text(end, room) else { return 0 };
        let known = padding_len(bytes, end.0) as u64;
        let zeros = bytes.iter().take_while(|b| **b == 0).count() as u64;
        let len = if zeros == room { zeros } else { known };
        self.target_in(end, end + len).map_or(len, |target| target.0 - end.0)
    }

    /// Padding near `at` into which nothing runs: (start, bytes) of each hole that overlaps `at ± reach`.
    pub(crate) fn holes<'a>(
        &'a self,
        image: &'a Image,
        at: Svma,
        reach: u64,
    ) -> impl Iterator<Item = (Svma, u64)> + 'a {
        let first =
            self.parts.partition_point(|p| p.end.0 + MAX_PADDING.min(reach) < at.0.saturating_sub(reach));
        self.parts[first..]
            .iter()
            .take_while(move |p| p.end.0 <= at.0 + reach)
            .filter(|p| p.facts == Facts::Closed)
            .map(|p| (p.end, self.padding_after(image, p.end)))
    }

    /// Upper bound of the patches that a function's exits need.
    pub(crate) fn exit_bound(&self, function: FunctionIndex) -> u32 {
        self.exits.get(function.0 as usize).copied().unwrap_or(0)
    }

    /// Whether a function that was swept jumps back to its own entry. If so, the bytes below the stack
    /// pointer may be in use there.
    pub(crate) fn is_looped(&self, function: FunctionIndex) -> bool {
        self.looped.get(function.0 as usize).copied().unwrap_or(false)
    }

    /// The instruction by which a function names its return address, if one does
    /// (`x86_64::return_address`). Found once for all processes and threads.
    pub(crate) fn names_return_address(&self, image: &Image, function: FunctionIndex) -> Option<Svma> {
        let find = || names_return_address(image, image.function(function).start);
        let all = self.named.get_or_init(|| image.functions().iter().map(|_| OnceLock::new()).collect());
        all.get(function.0 as usize).map_or_else(find, |known| *known.get_or_init(find))
    }
}

fn bits_of(image: &Image) -> Vec<Bits> {
    let mut all: Vec<Bits> = Vec::new();
    let mut segments: Vec<_> = image.segments().collect();
    segments.sort_by_key(|s| s.svma);
    for segment in segments {
        if all.last().is_some_and(|b| b.start + b.len > segment.svma.0)
            || image.text(segment.svma, segment.filesz).is_none()
        {
            continue;
        }
        let mut words = Vec::new();
        words.resize_with(segment.filesz.div_ceil(64) as usize, AtomicU64::default);
        all.push(Bits { start: segment.svma.0, len: segment.filesz, words });
    }
    all
}

fn parts_of(image: &Image) -> Vec<FunctionPart> {
    let functions = image.functions();
    let bodies = functions.iter().map(|f| (f.start, f.len));
    let cold = functions.iter().flat_map(|f| f.cold.iter().copied());
    let mut parts: Vec<FunctionPart> = bodies
        .chain(cold)
        .chain(image.fragments().iter().copied())
        .map(|(start, len)| FunctionPart {
            start,
            end: Svma(start.0.saturating_add(len)),
            facts: Facts::Open,
        })
        .collect();
    parts.sort_unstable_by_key(|p| (p.start, p.end));
    parts.dedup_by_key(|p| p.start);
    for i in 1..parts.len() {
        let next = parts[i].start;
        parts[i - 1].end = parts[i - 1].end.min(next);
    }
    parts
}
