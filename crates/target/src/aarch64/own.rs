//! Pages of our own code, exchanged.
//!
//! In: a file, an offset, an address. Out: a page of that file as spare code, which then takes another's place. What is written into it meanwhile, and why
//! that is how code changes here, is the patching room's business (`trapline_patch::own::protocol`). Does not: decide anything, stop anybody.
#![allow(unsafe_code, reason = "calls whose preconditions the patching room keeps")]

use std::fs::File;
use std::os::fd::AsFd;

use trapline_record::RemoteAddr;

use crate::error::TargetError;
use crate::own::{OwnCaller, failed};
use crate::sys::{aarch64, own};

/// A page of code that nobody runs yet; unmapped when it is dropped.
#[derive(Debug)]
pub struct Spare {
    at: RemoteAddr,
    len: u64,
}

impl Spare {
    /// Where it lies.
    #[must_use]
    pub const fn at(&self) -> RemoteAddr {
        self.at
    }
    /// Puts it in the place of the page at `to`.
    ///
    /// # Errors
    /// When the system refuses. Nothing was changed.
    pub fn put_over(self, to: RemoteAddr) -> Result<(), TargetError> {
        // SAFETY: only the patching room calls this, for a page that holds what the one at `to` holds but for words that it may change.
        unsafe { aarch64::move_over(self.at.0, to.0, self.len) }
            .map_err(failed(format!("exchange the page at {to}")))?;
        // It lies elsewhere now.
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        // SAFETY: ours alone, and nobody was led there.
        let unmapped = unsafe { own::munmap(self.at.0, self.len) };
        // What stays mapped is in nobody's way.
        drop(unmapped);
    }
}

impl OwnCaller {
    /// Bytes of a page.
    #[must_use]
    pub fn page_size() -> u64 {
        aarch64::page_size()
    }
    /// The page of a file at `off`, private, as code.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn spare(&mut self, file: &File, off: u64, guarded: bool) -> Result<Spare, TargetError> {
        let len = aarch64::page_size();
        let at = aarch64::map_code(file.as_fd(), off, len, guarded)
            .map_err(failed(format!("map a page at {off:#x} of a file as code")))?;
        Ok(Spare { at: RemoteAddr(at), len })
    }
    /// Memory for code that is written later, by way of /proc/self/mem; where nothing is mapped.
    ///
    /// # Errors
    /// When something is there, or the system refuses.
    pub fn code(&mut self, at: RemoteAddr, len: u64) -> Result<(), TargetError> {
        self.mmap(at, len, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }
    /// Whether the page at `at` is guarded (`PROT_BTI`), as the system states it.
    #[must_use]
    pub fn is_guarded(at: RemoteAddr) -> bool {
        aarch64::may_guard()
            && std::fs::read_to_string("/proc/self/smaps").is_ok_and(|smaps| guards(&smaps, at))
    }
}

/// Whether the mapping of `at`, of a text as `/proc/self/smaps`, has the flag.
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
    fn guarded_pages_are_told_by_the_system() {
        let smaps = "400000-600000 r-xp 0 0:1 5 /x\nSize: 2048 kB\nVmFlags: rd ex mr mw me bt\n\
                     800000-a00000 r-xp 0 0:1 6 /y\nSize: 2048 kB\nVmFlags: rd ex mr mw me\n";
        let of = |at| guards(smaps, RemoteAddr(at));
        assert_eq!([of(0x40_0000), of(0x5f_ffff), of(0x60_0000), of(0x80_0000)], [true, true, false, false]);
    }
}
