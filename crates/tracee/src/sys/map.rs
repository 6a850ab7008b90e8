//! A shared file mapped here, as words and as bytes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

/// A mapping of a file: shared and writable, and private once the file is sealed against writes.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to no thread; its words are reached as atomics, its bytes by volatile copies.
unsafe impl Send for Map {}
// SAFETY: as for Send.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `len` bytes. The file must be at least that long, and stay so.
    pub(crate) fn new(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Self::with(file, len, libc::MAP_SHARED)
    }
    fn with(file: BorrowedFd<'_>, len: usize, flags: i32) -> io::Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; the descriptor is open while borrowed.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast())
            .map(|base| Self { base, len })
            .ok_or_else(|| io::Error::other("mapped at 0"))
    }
    /// Seals the file against writes if no other mapping could write there. Returns false, and leaves
    /// everything unchanged, if one could. During the attempt our own mapping is a private one, which reads
    /// the same.
    ///
    /// # Errors
    /// When the file cannot be sealed or mapped. If it could not be mapped shared again it stays private, and
    /// can still be read.
    pub(crate) fn seal(&mut self, file: BorrowedFd<'_>) -> io::Result<bool> {
        let private = Self::with(file, self.len, libc::MAP_PRIVATE | libc::MAP_NORESERVE)?;
        drop(std::mem::replace(self, private));
        let sealed = super::fd::seal_writes(file);
        if !matches!(sealed, Ok(true)) {
            *self = Self::new(file, self.len)?;
        }
        sealed
    }
    /// Keeps the memory mapped when the value goes.
    pub(crate) fn leave(self) {
        let _ = std::mem::ManuallyDrop::new(self);
    }
    /// Its words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, lives as long as `self`, and AtomicU64 has any bit pattern.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }
    /// Wakes all threads, of whatever processes, that wait by futex on the 32 bits at this offset; nothing outside the mapping.
    pub(crate) fn wake(&self, off: u64) {
        let Some(word) = self.at(off, 4) else { return };
        // SAFETY: FUTEX_WAKE takes an address and a number, and only compares the address with those that threads wait on.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
    }
    fn at(&self, off: u64, len: usize) -> Option<*mut u8> {
        let off = usize::try_from(off).ok()?;
        // SAFETY: `off + len` was checked to lie inside the mapping.
        (off.checked_add(len)? <= self.len).then(|| unsafe { self.base.as_ptr().add(off) })
    }
    /// Copies bytes in; returns false when out of range. Each word is a store of its own, never a vector's.
    /// The reason is an emulator of arm64 (QEMU before 8.2). The C library copies short ranges by stores of
    /// SVE. At such a store the emulator discards its translated code only for the store's first byte. It
    /// then runs old code behind that byte, where a page that held code is reused.
    pub(crate) fn write(&self, off: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.at(off, bytes.len()) else { return false };
        let (head, rest) = bytes.split_at(to.align_offset(8).min(bytes.len()));
        let words = rest.chunks_exact(8);
        let tail = words.remainder();
        // SAFETY: `at` checked the range, and words begin at a multiple of eight. Another process may read
        // them, so no reference is made.
        unsafe {
            head.iter().enumerate().for_each(|(n, byte)| to.add(n).write_volatile(*byte));
            let mut next = to.add(head.len());
            for word in words {
                next.cast::<u64>().write_volatile(word.try_into().map_or(0, u64::from_ne_bytes));
                next = next.add(8);
            }
            tail.iter().enumerate().for_each(|(n, byte)| next.add(n).write_volatile(*byte));
        }
        true
    }
    /// Copies bytes out; false when out of range.
    pub(crate) fn read(&self, off: u64, into: &mut [u8]) -> bool {
        self.at(off, into.len()).is_some_and(|from| {
            // SAFETY: as in `write`.
            unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
            true
        })
    }
}

#[cfg(test)]
impl Map {
    /// Maps the first bytes of a file readable, makes them executable, and unmaps them again.
    pub(crate) fn executable(file: &std::fs::File, len: usize) -> io::Result<()> {
        // SAFETY: a new mapping at an address of the kernel's choice, which no other code knows.
        let result = unsafe {
            let fd = file.as_raw_fd();
            let base = libc::mmap(ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0);
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let result = libc::mprotect(base, len, libc::PROT_READ | libc::PROT_EXEC);
            libc::munmap(base, len);
            result
        };
        super::check(result.into()).map(drop)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length, and nothing borrowed from it is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
