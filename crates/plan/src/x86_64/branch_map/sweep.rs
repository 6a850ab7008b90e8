//! Fills a branch map: sweeps functions, and what is no function's.
//!
//! In: an image, and which functions are needed. Out: marks in a [`BranchMap`] (MAP-1), and what is known of each
//! swept function: how many patches its exits may need, whether it loops to its entry, what it ends with.
//! Several threads may sweep at once: bits are set in any order.

use super::{BranchMap, Facts};
use crate::request::{Action, ActionRequest, Scope};
use crate::x86_64::body::body_of;
use std::sync::atomic::{AtomicUsize, Ordering};
use trapline_image::{Image, ImageKind};
use trapline_insn::x86_64::{Flow, ScanItem, padding_len, scan, sweep};
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

struct Swept {
    function: u32,
    exits: u32,
    looped: bool,
    closed: [Option<Svma>; 2],
}

impl BranchMap {
    /// Sweeps the functions in scope with up to `threads` threads.
    pub(crate) fn build(image: &Image, scope: Scope<'_>, threads: usize) -> Self {
        let mut map = Self::new(image);
        let chosen = match scope {
            Scope::For(requests) => map.unswept(image, requests),
            Scope::All => (0..image.functions().len() as u32).collect(),
        };
        let swept = std::thread::scope(|scope| {
            let data = || {
                image.each_code_target(&mut |at| map.mark_by_data(at.0));
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
    pub(crate) fn cover(&mut self, image: &Image, requests: &[ActionRequest], threads: usize) {
        let chosen = self.unswept(image, requests);
        let swept = self.sweep_all(image, &chosen, threads);
        self.note(swept);
    }

    /// Whether everything that these requests need was swept.
    pub(crate) fn covers(&self, image: &Image, requests: &[ActionRequest]) -> bool {
        self.unswept(image, requests).is_empty()
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
                (None, Action::CountAt(at) | Action::CallAt(at) | Action::RunAt(at)) => {
                    spans.push((at, at + 16))
                }
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
                ScanItem::ThroughEntry => swept.exits += 1,
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
                ScanItem::Return | ScanItem::ThroughEntry => {}
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
        if sweep(bytes, from).any(|i| i.flow() == Flow::Invalid) {
            return;
        }
        for insn in sweep(bytes, from) {
            insn.flow().target().into_iter().chain(insn.ip_rel()).for_each(|at| self.mark(at));
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
