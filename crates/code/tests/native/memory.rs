//! Memory for code. Each program has pages of its own, and no code is written where other code has run: emulators need not
//! see that code has changed.

use crate::machine::synchronize;

const PAGE: usize = 1 << 14;
/// Bytes of one mapping.
const BYTES: usize = 1 << 24;

/// Memory that can be written and run.
pub(crate) struct Memory {
    base: *mut u8,
    /// Offset of the next program.
    next: usize,
}

impl Memory {
    pub(crate) fn new() -> Self {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, which nothing else uses.
        let base = unsafe { libc::mmap(core::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Self { base: base.cast(), next: 0 }
    }
    /// Where the next program will lie.
    pub(crate) fn address(&self) -> u64 {
        self.base as u64 + self.next as u64
    }
    /// Calls `run` with the code in its place.
    pub(crate) fn with(&mut self, code: &[u8], run: impl FnOnce(u64)) {
        self.write(code);
        run(self.address());
        self.skip();
    }
    fn write(&mut self, code: &[u8]) {
        assert!(code.len() <= PAGE);
        // SAFETY: the mapping has that many bytes behind `next`, and no code there has run.
        unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), self.base.add(self.next), code.len()) };
        synchronize(self.address() as *mut u8, code.len());
    }
    /// Goes on to the next page.
    fn skip(&mut self) {
        self.next += PAGE;
        if self.next == BYTES {
            *self = Self::new();
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`; no code of it runs.
        unsafe { libc::munmap(self.base.cast(), BYTES) };
    }
}
