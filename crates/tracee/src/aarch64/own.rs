//! Exchanging pages of our own code.
//!
//! In: a file, an offset, an address. Out: a page of that file as spare code, which then replaces another
//! page. What is written into it meanwhile, and why code is changed like this here, is described in
//! `trapline_patch::own::protocol`. Does not: decide anything, stop a thread.
#![allow(unsafe_code, reason = "the patching code keeps the preconditions of these calls")]

use std::fs::File;
use std::os::fd::AsFd;

use trapline_record::RemoteAddr;

use crate::error::TargetError;
use crate::own::{OwnCaller, failed};
use crate::sys::{aarch64, own};

/// A page of code that no thread runs yet. It is unmapped when it is dropped.
#[derive(Debug)]
pub struct Spare {
    at: RemoteAddr,
    len: u64,
}

impl Spare {
    /// Its address.
    #[must_use]
    pub const fn at(&self) -> RemoteAddr {
        self.at
    }
    /// Moves it over the page at `to`.
    ///
    /// # Errors
    /// When the system refuses. Nothing has changed then.
    pub fn put_over(self, to: RemoteAddr) -> Result<(), TargetError> {
        // SAFETY: only `trapline_patch` calls this. Its page holds the same as the one at `to`, except words
        // that it may change.
        unsafe { aarch64::move_over(self.at.0, to.0, self.len) }
            .map_err(failed(format!("exchange the page at {to}")))?;
        // The page is no longer at its old address.
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        // SAFETY: the page belongs to this value alone, and no code leads to it.
        let unmapped = unsafe { own::munmap(self.at.0, self.len) };
        // If it stays mapped, it disturbs nothing.
        drop(unmapped);
    }
}

impl OwnCaller {
    /// Size of a page in bytes.
    #[must_use]
    pub fn page_size() -> u64 {
        aarch64::page_size()
    }
    /// Maps the page of a file at `off`, private, as code.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn spare(&mut self, file: &File, off: u64, guarded: bool) -> Result<Spare, TargetError> {
        let len = aarch64::page_size();
        let at = aarch64::map_code(file.as_fd(), off, len, guarded)
            .map_err(failed(format!("map a page at {off:#x} of a file as code")))?;
        Ok(Spare { at: RemoteAddr(at), len })
    }
    /// Maps memory for code that is written later through /proc/self/mem, at an address where nothing is
    /// mapped.
    ///
    /// # Errors
    /// When something is mapped there, or the system refuses.
    pub fn code(&mut self, at: RemoteAddr, len: u64) -> Result<(), TargetError> {
        self.mmap(at, len, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }
    /// Whether the page at `at` is guarded (`PROT_BTI`), according to the system.
    #[must_use]
    pub fn is_guarded(at: RemoteAddr) -> bool {
        aarch64::may_guard()
            && std::fs::read_to_string("/proc/self/smaps").is_ok_and(|smaps| guards(&smaps, at))
    }
}

/// Whether the mapping of `at` has the flag, in a text like `/proc/self/smaps`.
fn guards(smaps: &str, at: RemoteAddr) -> bool {
    let mut here = false;
    for line in smaps.lines() {
        let head = line.split_once(' ').map_or(line, |(head, _)| head);
        let range = head
            .split_once('-')
            .map(|(start, end)| (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16)));
        if let Some((Ok(start), Ok(end))) = range {
            here = (start..end).contains(&at.0);
        } else if here && let Some(flags) = line.strip_prefix("VmFlags:") {
            return flags.split_whitespace().any(|flag| flag == "bt");
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::guards;
    use trapline_record::RemoteAddr;

    #[test]
    fn guarded_pages_are_reported_by_the_system() {
        let smaps = "400000-600000 r-xp 0 0:1 5 /x\nSize: 2048 kB\nVmFlags: rd ex mr mw me bt\n\
                     800000-a00000 r-xp 0 0:1 6 /y\nSize: 2048 kB\nVmFlags: rd ex mr mw me\n";
        let of = |at| guards(smaps, RemoteAddr(at));
        assert_eq!([of(0x40_0000), of(0x5f_ffff), of(0x60_0000), of(0x80_0000)], [true, true, false, false]);
    }
}
