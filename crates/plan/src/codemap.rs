//! Which bytes of a module may be branched to, and where its padding is.
//!
//! In: an image. Out: a bit for every byte of its code, and the pieces (function bodies, cold parts,
//! fragments) in address order. Invariant: MAP-1 every address that the swept code names by a direct branch,
//! a jump table, a `lea`, a relocation, a symbol or a landing pad is marked. A target that cannot be seen (a
//! computed jump without a table) is not marked; that is why windows have guards. A map of a part can be
//! extended later ([`CodeMap::cover`]); no function is swept twice.
//! Does not: decide about windows.

use crate::aarch64::exits::exit_bounds;
use crate::request::{Action, ActionRequest};
use crate::speculate::{Speculation, SpeculativeSites, plan_speculatively};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use trapline_image::{FunctionIndex, Image, ImageKind, Machine};
use trapline_insn::x86_64::{Body, Flow, FunctionRange, ScanItem, analyse, padding_len, scan, sweep};
use trapline_record::Svma;

/// Distance in bytes around a requested function within which padding may be used for it.
const AROUND: u64 = 256;
/// Number of jumps to a function's returns that may be patched, in addition to two for each return.
const WAYS: u32 = 8;
/// Number of functions that a thread takes at a time.
const BATCH: usize = 64;
/// Number of functions for which it is worth starting one more thread.
const WORTH_A_THREAD: usize = 4 * BATCH;
/// Length of `endbr64`, behind which a function's own loop may begin.
const ENDBR64: u64 = 4;
/// Padding is examined up to this many bytes.
const MAX_PADDING: u64 = 4096;

/// Which functions a [`CodeMap`] covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope<'a> {
    /// All of the module's text.
    All,
    /// The requested functions and their neighbours. A branch from elsewhere into a window is not seen then;
    /// a thread that takes it is served by the guards. Not for a process in which no trap can be served.
    For(&'a [ActionRequest]),
}

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
pub struct CodeMap {
    bits: Vec<Bits>,
    /// Pieces, sorted by address, not overlapping.
    parts: Vec<FunctionPart>,
    /// For each function: upper bound of patches that its exits need; 0 if it was not swept.
    exits: Vec<u32>,
    /// For each swept function: whether it jumps back to its own entry.
    looped: Vec<bool>,
    /// For each function: whether it was swept.
    is_swept: Vec<bool>,
    /// Result of speculative planning for a batch.
    speculation: Mutex<Speculation>,
}

impl CodeMap {
    /// Sweeps the functions in scope with up to `threads` threads.
    #[must_use]
    pub fn build(image: &Image, scope: Scope<'_>, threads: usize) -> Self {
        let functions = image.functions().len();
        if image.machine() == Machine::Aarch64 {
            // A patch covers one word there, so nothing can lead inside it, and no padding is needed.
            return Self {
                bits: Vec::new(),
                parts: Vec::new(),
                exits: exit_bounds(image),
                looped: vec![false; functions],
                is_swept: vec![true; functions],
                speculation: Mutex::default(),
            };
        }
        let mut map = Self {
            bits: bits_of(image),
            parts: parts_of(image),
            exits: vec![0; functions],
            looped: vec![false; functions],
            is_swept: vec![false; functions],
            speculation: Mutex::default(),
        };
        let chosen = match scope {
            Scope::For(requests) => map.unswept(image, requests),
            Scope::All => (0..functions as u32).collect(),
        };
        let swept = std::thread::scope(|scope| {
            let data = || {
                image.each_code_target(&mut |at| map.mark(at.0));
                if image.kind() == ImageKind::Exec {
                    map.mark_absolute_words(image);
                }
            };
            // Bits may be set in any order.
            let other = (threads > 1).then(|| scope.spawn(data));
            let swept = map.sweep_all(image, &chosen, threads);
            map.sweep_fragments(image);
            if other.is_none_or(|other| other.join().is_err()) {
                data();
            }
            swept
        });
        map.note(swept);
        if scope == Scope::All {
            map.sweep_gaps(image);
        }
        map
    }

    /// Sweeps whatever else these requests need, with up to `threads` threads. The map is then as if it had
    /// been built for them too.
    pub fn cover(&mut self, image: &Image, requests: &[ActionRequest], threads: usize) {
        let chosen = self.unswept(image, requests);
        let swept = self.sweep_all(image, &chosen, threads);
        self.note(swept);
    }

    /// Whether everything that these requests need was swept.
    #[must_use]
    pub fn covers(&self, image: &Image, requests: &[ActionRequest]) -> bool {
        self.unswept(image, requests).is_empty()
    }

    /// Plans speculatively for a batch at these entries; `plan_speculatively` says how.
    /// [`plan_module`](crate::plan_module) takes the result once. Does nothing if it was done before, or if
    /// the result was taken already.
    pub fn plan_speculatively(&self, image: &Image, functions: &[FunctionIndex]) {
        let mut speculation = self.speculation();
        if matches!(*speculation, Speculation::None) {
            *speculation = Speculation::Is(plan_speculatively(image, self, functions));
        }
    }
    /// Takes the result of speculative planning; waits if a thread is still computing it. From now on none is
    /// computed.
    pub(crate) fn take_speculative(&self) -> Option<SpeculativeSites> {
        match std::mem::replace(&mut *self.speculation(), Speculation::Over) {
            Speculation::Is(speculative) => speculative,
            Speculation::None | Speculation::Over => None,
        }
    }
    /// Drops the result of speculative planning if it was not taken.
    pub fn forget_speculative(&self) {
        drop(self.take_speculative());
    }
    fn speculation(&self) -> MutexGuard<'_, Speculation> {
        self.speculation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something may branch to `at`.
    #[must_use]
    pub fn is_target(&self, at: Svma) -> bool {
        self.bits.iter().any(|b| b.get(at.0))
    }

    /// The first possible branch target in `from..to`.
    #[must_use]
    pub fn target_in(&self, from: Svma, to: Svma) -> Option<Svma> {
        let bits = self.bits.iter().find(|b| from.0.wrapping_sub(b.start) < b.len)?;
        (from.0..to.0).find(|&at| bits.get(at)).map(Svma)
    }

    /// The piece that holds `at`.
    ///
    /// # Errors
    /// The index of the first piece behind `at`, if no piece holds `at`.
    pub fn part_at(&self, at: Svma) -> Result<FunctionPart, usize> {
        let next = self.parts.partition_point(|p| p.start <= at);
        match next.checked_sub(1).map(|i| self.parts[i]) {
            Some(part) if at < part.end => Ok(part),
            _ => Err(next),
        }
    }

    /// Number of padding bytes that begin at `end`, the end of a piece: whole `nop`s and `int3`s, or zeros,
    /// up to the next piece. Padding ends before the first branch target.
    #[must_use]
    pub fn padding_after(&self, image: &Image, end: Svma) -> u64 {
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
    pub fn holes<'a>(
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
    #[must_use]
    pub fn exit_bound(&self, function: trapline_image::FunctionIndex) -> u32 {
        self.exits.get(function.0 as usize).copied().unwrap_or(0)
    }

    /// Whether a function that was swept jumps back to its own entry. If so, the bytes below the stack
    /// pointer may be in use there.
    #[must_use]
    pub fn is_looped(&self, function: trapline_image::FunctionIndex) -> bool {
        self.looped.get(function.0 as usize).copied().unwrap_or(false)
    }

    fn mark(&self, at: u64) {
        self.bits.iter().for_each(|b| b.mark(at));
    }

    /// The requested functions, and those with code close to them, unless they were swept already.
    fn unswept(&self, image: &Image, requests: &[ActionRequest]) -> Vec<u32> {
        let mut spans = Vec::with_capacity(requests.len());
        for request in requests {
            match (request.function, request.action) {
                (Some(function), _) => {
                    let f = image.function(function);
                    spans.push((f.start, f.end()));
                    spans.extend(f.cold.iter().map(|&(start, len)| (start, start + len)));
                }
                (None, Action::CountAt(at) | Action::CallAt(at)) => spans.push((at, at + 16)),
                (None, _) => {}
            }
        }
        spans.sort_unstable();
        let (functions, mut next, mut chosen) = (image.functions(), 0, Vec::new());
        for (start, end) in spans {
            next = skip(functions, next, |f| f.end().0.saturating_add(AROUND) < start.0);
            let near = functions[next..].iter().take_while(|f| f.start.0 <= end.0.saturating_add(AROUND));
            let until = next + near.count();
            chosen.extend((next..until).filter(|&n| !self.is_swept[n]).map(|n| n as u32));
            next = until;
        }
        chosen
    }

    fn sweep_all(&self, image: &Image, chosen: &[u32], threads: usize) -> Vec<Swept> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut found = Vec::new();
            loop {
                let from = next.fetch_add(BATCH, Ordering::Relaxed);
                let Some(batch) = chosen.get(from..(from + BATCH).min(chosen.len())) else { break };
                if batch.is_empty() {
                    break;
                }
                found.extend(batch.iter().map(|&index| self.sweep_function(image, index)));
            }
            found
        };
        let threads = threads.min(chosen.len().div_ceil(WORTH_A_THREAD));
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut all = work();
            all.extend(others.into_iter().filter_map(|t| t.join().ok()).flatten());
            all
        })
    }

    /// Stores what the sweep found about each function.
    fn note(&mut self, found: Vec<Swept>) {
        let mut last = 0;
        for swept in found {
            if let Some(is_swept) = self.is_swept.get_mut(swept.function as usize) {
                *is_swept = true;
            }
            if let Some(count) = self.exits.get_mut(swept.function as usize) {
                *count = swept.exits;
            }
            if let Some(looped) = self.looped.get_mut(swept.function as usize) {
                *looped = swept.looped;
            }
            for end in swept.closed.into_iter().flatten() {
                let in_order = last == 0 || self.parts[last - 1].end < end;
                last = skip(&self.parts, if in_order { last } else { 0 }, |p| p.end < end);
                if let Some(part) = self.parts.get_mut(last).filter(|p| p.end == end) {
                    part.facts = Facts::Closed;
                }
            }
        }
    }

    /// Marks every address that a function's code names. A full analysis is done only if there is an indirect
    /// jump, which may be a jump table.
    fn sweep_function(&self, image: &Image, index: u32) -> Swept {
        let function = &image.functions()[index as usize];
        let mut swept = Swept { function: index, exits: 1, closed: [None; 2], looped: false };
        let entry = |to: u64| to == function.start.0 || to == function.start.0 + ENDBR64;
        let (mut indirect, mut inner, mut returns) = (false, 0, 0);
        let parts = [(function.start, function.len)];
        for (n, &(start, len)) in parts.iter().chain(&function.cold).enumerate() {
            let Some(bytes) = image.text(start, len) else { continue };
            let scanned = scan(bytes, start.0, |found| match found {
                ScanItem::Jump(to) => {
                    self.mark(to);
                    swept.looped |= entry(to);
                    let leaves = u32::from(to.wrapping_sub(start.0) >= len);
                    swept.exits += leaves;
                    inner += 1 - leaves;
                }
                ScanItem::Call(at) | ScanItem::Name(at) => self.mark(at),
                ScanItem::Return => returns += 1,
                ScanItem::ThroughSlot => swept.exits += 1,
                ScanItem::Indirect => {
                    indirect = true;
                    swept.exits += 1;
                }
            });
            if let Some(closed) = swept.closed.get_mut(n).filter(|_| scanned.leaves) {
                *closed = Some(start + len);
            }
            swept.exits += u32::from(n != 0);
        }
        // If a return cannot be patched, the jumps to it are patched instead, up to this bound.
        swept.exits += returns + inner.min(WAYS + 2 * returns);
        if indirect {
            let body = body_of(image, function.start, function.len, &function.cold);
            body.targets.iter().for_each(|&at| self.mark(at));
            swept.looped |= body.targets.iter().any(|&at| entry(at));
        }
        swept
    }

    /// Sweeps parts of functions that have unwind entries of their own, and no names.
    fn sweep_fragments(&self, image: &Image) {
        for &(start, len) in image.fragments() {
            let Some(bytes) = image.text(start, len) else { continue };
            let mut indirect = false;
            scan(bytes, start.0, |found| match found {
                ScanItem::Jump(at) | ScanItem::Call(at) | ScanItem::Name(at) => self.mark(at),
                ScanItem::Indirect => indirect = true,
                ScanItem::Return | ScanItem::ThroughSlot => {}
            });
            if indirect {
                let body = body_of(image, start, len, &[]);
                body.targets.iter().chain(&body.outside).for_each(|&at| self.mark(at));
            }
        }
    }

    /// Sweeps code that no function covers (PLT stubs, assembly without symbols). A gap that does not decode
    /// as a whole is data, and names nothing.
    fn sweep_gaps(&self, image: &Image) {
        for &(start, len) in image.text_ranges() {
            let mut at = start;
            while at < start + len {
                let (gap_end, resume) = match self.part_at(at) {
                    Ok(part) => (at, part.end),
                    Err(next) => {
                        let end = self.parts.get(next).map_or(start + len, |p| p.start.min(start + len));
                        (end, end)
                    }
                };
                self.sweep_gap(image, at, gap_end);
                at = resume;
            }
        }
    }

    fn sweep_gap(&self, image: &Image, start: Svma, end: Svma) {
        let Some(bytes) = image.text(start, end - start).filter(|b| !b.is_empty()) else { return };
        let bytes = &bytes[padding_len(bytes, start.0).min(bytes.len())..];
        if bytes.iter().all(|b| *b == 0) {
            return;
        }
        let from = end.0 - bytes.len() as u64;
        if sweep(bytes, from).any(|i| i.flow == Flow::Invalid) {
            return;
        }
        for insn in sweep(bytes, from) {
            insn.flow.target().into_iter().chain(insn.ip_rel()).for_each(|at| self.mark(at));
        }
    }

    /// Marks words in the read-only data of a program at fixed addresses that could be pointers into code.
    fn mark_absolute_words(&self, image: &Image) {
        for load in image.loads() {
            let Some(bytes) = image.rodata(load.svma, load.filesz) else { continue };
            let skip = load.svma.0.wrapping_neg() % 8;
            let words = bytes.get(skip as usize..).unwrap_or(&[]).as_chunks::<8>().0;
            words.iter().for_each(|w| self.mark(u64::from_le_bytes(*w)));
        }
    }
}

/// Index of the first element from `next` on for which `before` is false; the elements are sorted, and it is
/// usually close.
fn skip<T>(all: &[T], next: usize, before: impl Fn(&T) -> bool) -> usize {
    const STEPS: usize = 8;
    let steps = all[next..].iter().take(STEPS).take_while(|one| before(one)).count();
    let more = if steps < STEPS { 0 } else { all[next + steps..].partition_point(before) };
    next + steps + more
}

struct Swept {
    function: u32,
    exits: u32,
    looped: bool,
    closed: [Option<Svma>; 2],
}

/// Analyses a function and its cold parts.
pub(crate) fn body_of(image: &Image, start: Svma, len: u64, cold: &[(Svma, u64)]) -> Body {
    let mut parts = Vec::with_capacity(1 + cold.len());
    for &(start, len) in [(start, len)].iter().chain(cold) {
        if let Some(bytes) = image.text(start, len) {
            parts.push(FunctionRange { addr: start.0, bytes });
        }
    }
    analyse(&parts, &|at, size| read_word(image, at, size))
}

fn read_word(image: &Image, at: u64, size: usize) -> Option<u64> {
    let bytes = image.rodata(Svma(at), size as u64)?;
    let mut word = [0; 8];
    word.get_mut(..size)?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(word))
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
