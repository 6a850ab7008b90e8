//! What of the layout depends on the processor: the length of the shortest instruction on arm64.

/// Offset of the byte of a return trampoline that a return leads to. It is behind the first instruction, which
/// never runs, so that an unwinder that looks one byte back still finds the same trampoline.
pub const RETURN: u64 = 4;
