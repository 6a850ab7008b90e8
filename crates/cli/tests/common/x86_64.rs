//! What tests must know of x86-64.

/// Sites of a process with one probe: its own, and three at which threads are held that are about to change what it
/// relies on (`sigaction`, `prctl`, `syscall`).
pub(crate) const SITES_OF_ONE_PROBE: u32 = 5;
