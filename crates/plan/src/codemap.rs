//! What is known of a file's code before it is planned.
//!
//! In: a file, which of its functions matter. Out: on x86-64, where branches lead and where padding is
//! (`x86_64::branch_map`), with a place for what is planned in advance (`x86_64::speculate`). On arm64 a patch
//! covers one word, so nothing can lead inside it and no padding is needed: only how many exits functions have.
//! Does not: decide about windows.

use crate::aarch64::function::exits::exit_bounds;
use crate::request::{ActionRequest, Scope};
use crate::x86_64::branch_map::{BranchMap, FunctionPart};
use crate::x86_64::speculate::Speculation;
use trapline_image::{FunctionIndex, Image, Machine};
use trapline_record::Svma;

/// Possible branch targets of a module, the padding between its functions, and the number of their exits.
#[derive(Debug)]
pub struct CodeMap(ByProcessor);

#[derive(Debug)]
enum ByProcessor {
    X86_64(Box<BranchMap>, Speculation),
    /// For each function: upper bound of the words by which it is left.
    Aarch64(Vec<u32>),
}

impl CodeMap {
    /// Sweeps the functions in scope with up to `threads` threads.
    #[must_use]
    pub fn build(image: &Image, scope: Scope<'_>, threads: usize) -> Self {
        Self(match image.machine() {
            Machine::X86_64 => {
                ByProcessor::X86_64(Box::new(BranchMap::build(image, scope, threads)), Speculation::default())
            }
            Machine::Aarch64 => ByProcessor::Aarch64(exit_bounds(image)),
        })
    }
    /// Sweeps whatever else these requests need, with up to `threads` threads. The map is then as if it had
    /// been built for them too.
    pub fn cover(&mut self, image: &Image, requests: &[ActionRequest], threads: usize) {
        if let ByProcessor::X86_64(map, _) = &mut self.0 {
            map.cover(image, requests, threads);
        }
    }
    /// Whether everything that these requests need was swept.
    #[must_use]
    pub fn covers(&self, image: &Image, requests: &[ActionRequest]) -> bool {
        self.branches().is_none_or(|map| map.covers(image, requests))
    }

    /// The map of branches, and what was planned in advance: of a file for x86-64.
    pub(crate) fn x86_64(&self) -> Option<(&BranchMap, &Speculation)> {
        match &self.0 {
            ByProcessor::X86_64(map, speculation) => Some((map, speculation)),
            ByProcessor::Aarch64(_) => None,
        }
    }
    fn branches(&self) -> Option<&BranchMap> {
        self.x86_64().map(|(map, _)| map)
    }

    /// Plans speculatively for a batch at these entries; `x86_64::speculate` describes how.
    /// [`plan_module`](crate::plan_module) takes the result once. Does nothing if it was done before, or if
    /// the result was taken already.
    pub fn plan_speculatively(&self, image: &Image, functions: &[FunctionIndex]) {
        if let Some((map, speculation)) = self.x86_64() {
            speculation.plan(image, map, functions);
        }
    }
    /// Drops the result of speculative planning if it was not taken.
    pub fn forget_speculative(&self) {
        drop(self.x86_64().and_then(|(_, speculation)| speculation.take()));
    }

    /// Whether something may branch to `at`.
    #[must_use]
    pub fn is_target(&self, at: Svma) -> bool {
        self.branches().is_some_and(|map| map.is_target(at))
    }
    /// The first possible branch target in `from..to`.
    #[must_use]
    pub fn target_in(&self, from: Svma, to: Svma) -> Option<Svma> {
        self.branches()?.target_in(from, to)
    }
    /// The piece that holds `at`.
    ///
    /// # Errors
    /// The index of the first piece behind `at`, if no piece holds `at`.
    pub fn part_at(&self, at: Svma) -> Result<FunctionPart, usize> {
        self.branches().ok_or(0_usize)?.part_at(at)
    }
    /// Padding near `at` into which nothing runs: (start, bytes) of each hole that overlaps `at ± reach`.
    pub fn holes<'a>(
        &'a self,
        image: &'a Image,
        at: Svma,
        reach: u64,
    ) -> impl Iterator<Item = (Svma, u64)> + 'a {
        self.branches().into_iter().flat_map(move |map| map.holes(image, at, reach))
    }
    /// Upper bound of the patches that a function's exits need.
    #[must_use]
    pub fn exit_bound(&self, function: FunctionIndex) -> u32 {
        match &self.0 {
            ByProcessor::X86_64(map, _) => map.exit_bound(function),
            ByProcessor::Aarch64(exits) => exits.get(function.0 as usize).copied().unwrap_or(0),
        }
    }
    /// Whether a function that was swept jumps back to its own entry. If so, the bytes below the stack
    /// pointer may be in use there.
    #[must_use]
    pub fn is_looped(&self, function: FunctionIndex) -> bool {
        self.branches().is_some_and(|map| map.is_looped(function))
    }
}
