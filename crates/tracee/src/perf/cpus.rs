//! What all kinds of rings have in common: one for each CPU that is online, as large as the limit allows.
//!
//! In: the system's list of CPUs, an event. Out: their numbers, the event's ring. Does not: read rings.

use std::io;
use std::os::fd::OwnedFd;

use crate::sys::perf::Ring;

/// An event that could not be opened.
#[derive(Debug)]
pub struct NotArmed {
    /// The thread.
    pub tid: u32,
    /// The CPU.
    pub cpu: u32,
    /// The kernel's error.
    pub source: io::Error,
}

/// Maps the largest ring that our limit of locked memory allows, at most `pages`.
pub(super) fn ring(event: OwnedFd, pages: u64) -> io::Result<Ring> {
    const LEAST: u64 = 8;
    let mut pages = pages.max(LEAST);
    loop {
        match Ring::with_pages(event.try_clone()?, pages) {
            Err(error) if pages > LEAST && error.raw_os_error() == Some(libc::EPERM) => pages /= 2,
            other => return other,
        }
    }
}

/// Numbers of `/sys/devices/system/cpu/online`, such as `0-3,8`.
pub(super) fn online_cpus() -> Vec<u32> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let cpus = parse_cpus(&text);
    if cpus.is_empty() { (0..crate::process::possible_cpus()).collect() } else { cpus }
}

fn parse_cpus(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::parse_cpus;

    #[test]
    fn cpus_are_listed_in_ranges() {
        assert_eq!(parse_cpus("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(parse_cpus(""), [0u32; 0]);
    }
}
