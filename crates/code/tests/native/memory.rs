//! A page that holds code.

/// Bytes of code at most.
const BYTES: usize = 1 << 18;

/// Memory that can be written and run.
pub(crate) struct Memory(*mut u8);

impl Memory {
    pub(crate) fn new() -> Self {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, which nothing else uses.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast())
    }
    pub(crate) fn address(&self) -> u64 {
        self.0 as u64
    }
    /// Writes code, and returns its address.
    pub(crate) fn write(&mut self, code: &[u8]) -> u64 {
        assert!(code.len() <= BYTES);
        // SAFETY: the mapping is that long, and no code of it runs now.
        unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), self.0, code.len()) };
        #[cfg(target_arch = "aarch64")]
        synchronize(self.0, code.len());
        self.address()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`; no code of it runs.
        unsafe { libc::munmap(self.0.cast(), BYTES) };
    }
}

/// Makes new code visible to instruction fetches (Arm ARM B2.7.4.2).
#[cfg(target_arch = "aarch64")]
fn synchronize(at: *mut u8, len: usize) {
    for line in (0..len).step_by(16) {
        // SAFETY: addresses of the mapping; these instructions change no data.
        unsafe { core::arch::asm!("dc cvau, {at}", "ic ivau, {at}", at = in(reg) at.add(line)) };
    }
    // SAFETY: barriers alone.
    unsafe { core::arch::asm!("dsb ish", "isb") };
}
