//! Memory of the engine under test, in whole pages, with names for the program that reads the trace; and
//! code.

use std::ffi::c_void;

pub(crate) const LINE: u64 = 64;

fn mapped(len: usize, protection: i32) -> *mut c_void {
    // SAFETY: a new anonymous mapping, in which nothing else lies and which is never unmapped.
    let at = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    at
}

/// Atomics, or structures of them, for which all zero is a valid value.
pub(crate) fn zeroed<T>(n: usize) -> &'static [T] {
    let at = mapped(n * size_of::<T>(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: zeroed pages of that length, which are never unmapped.
    unsafe { std::slice::from_raw_parts(at.cast(), n) }
}

/// The same, with a name.
pub(crate) fn named<T>(name: &str, n: usize) -> &'static [T] {
    let all = zeroed::<T>(n);
    tell(name, all.as_ptr() as u64, size_of_val(all) as u64);
    all
}

pub(crate) fn tell(name: &str, start: u64, len: u64) {
    println!("{name} {start:#x} {:#x}", start + len);
}

/// Room for generated code, and for what must lie beside it.
pub(crate) struct Code {
    at: u64,
    len: u64,
    used: u64,
}

impl Code {
    pub(crate) fn new(len: u64) -> Self {
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        Self { at: mapped(len as usize, all) as u64, len, used: 0 }
    }
    /// Room that was left free in another `Code`.
    pub(crate) const fn at(at: u64, len: u64) -> Self {
        Self { at, len, used: 0 }
    }
    pub(crate) const fn next(&self) -> u64 {
        self.at + self.used
    }
    /// Writes code without the XSAVEC and XRSTOR of the memory that the stack pointer points to.
    pub(crate) fn put(&mut self, code: &[u8]) -> u64 {
        const NOP: [u8; 5] = [0x0F, 0x1F, 0x44, 0, 0];
        let mut code = code.to_vec();
        for at in 0..code.len().saturating_sub(NOP.len() - 1) {
            let one = &mut code[at..at + NOP.len()];
            if *one == [0x48, 0x0F, 0xC7, 0x24, 0x24] || *one == [0x48, 0x0F, 0xAE, 0x2C, 0x24] {
                one.copy_from_slice(&NOP);
            }
        }
        let at = self.next();
        self.used = (self.used + code.len() as u64).next_multiple_of(64);
        assert!(self.used <= self.len);
        // SAFETY: inside our own mapping, where nothing runs yet.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, code.len()) };
        at
    }
    /// Leaves this many bytes free, from the next page on.
    pub(crate) fn skip(&mut self, len: u64) -> u64 {
        self.used = self.used.next_multiple_of(4096);
        let at = self.next();
        self.used = (self.used + len).next_multiple_of(4096);
        assert!(self.used <= self.len);
        at
    }
}
