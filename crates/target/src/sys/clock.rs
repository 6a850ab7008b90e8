//! The counter that generated code reads.

/// The time-stamp counter.
pub(crate) fn ticks() -> u64 {
    // SAFETY: rdtsc has no precondition on x86-64; a process that may not read it gets SIGSEGV, and ours may.
    unsafe { core::arch::x86_64::_rdtsc() }
}
