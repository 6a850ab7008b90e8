//! What the kernel reports about a signal, besides the thread's state.
//!
//! In: nothing. Out: a structure in the kernel's layout (asm-generic/siginfo.h), not a C library's.
//! Does not: keep anything.

/// `siginfo_t`, as far as faults and traps fill it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// The signal.
    pub signal: i32,
    errno: i32,
    /// The signal's reason; above 0 it comes from the kernel.
    pub code: i32,
    padding: i32,
    /// The address that the signal is about: of memory, or of the instruction.
    pub addr: u64,
    rest: [u64; 13],
}

impl Info {
    /// The siginfo of a signal as the kernel would have raised it.
    #[must_use]
    pub const fn forced(signal: i32, code: i32, addr: u64) -> Self {
        Self { signal, errno: 0, code, padding: 0, addr, rest: [0; 13] }
    }
    /// Whether the kernel raised the signal for something that this thread did.
    #[must_use]
    pub const fn is_forced(&self) -> bool {
        self.code > 0
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_layout_is_the_kernels() {
        assert_eq!(size_of::<super::Info>(), size_of::<libc::siginfo_t>());
    }
}
