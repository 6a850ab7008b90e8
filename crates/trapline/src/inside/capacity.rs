//! How much the engine has room for.
//!
//! In: nothing. Out: numbers of things that are mapped once. Pages that are never written to take no memory.
//! Does not: map.

/// What depends on the processor, and on whether it is emulated (`room` in the twin folders).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Capacity {
    /// Number of threads that can be distinguished; hits of further ones count as missed.
    pub(super) lines: usize,
    /// Most probes.
    pub(super) probes: usize,
}

impl Capacity {
    /// As much as address space allows; pages that are never written to take no memory.
    pub(super) const USUAL: Self = Self { lines: 4096, probes: 1 << 17 };
}

/// Most mappings of code that are known at a time. Mappings that are gone stay for pictures until their entry
/// is needed.
pub(super) const REGIONS: usize = 1 << 16;
/// Table entries for calls kept in place: those of 1024 stack pages, 8 MiB if all are used. If more pages are
/// in use, they share entries, and calls take longer.
pub(super) const PLACES: usize = 1 << 18;
/// Number of hints at return trampolines, for as many stack pages.
pub(super) const HINTS: usize = 1 << 18;
/// Number of quick hints at return trampolines: four for each trampoline, so that few are shared by two
/// calls; and as many again that stay 0.
pub(super) const QUICK: usize = 1 << 17;
