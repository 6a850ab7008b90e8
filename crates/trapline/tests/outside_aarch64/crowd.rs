//! An address space with no room near a program's code, as a large text or large reservations beside it
//! leave.
//!
//! In: an address of the code, and the number of single pages that stay free. Out: all other free memory
//! within reach of a `b` is mapped without use.

const PAGE: u64 = 4096;
/// Bytes that a `b` reaches, and some more.
const REACH: u64 = 130 << 20;

/// Takes all free memory around `code`, but for this many pages below it. Each has one more free page on
/// either side, since nothing is placed right beside another mapping's code.
pub(crate) fn crowd(code: u64, pages: u64) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("our maps");
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("an address");
    let ranges = maps.lines().filter_map(|line| line.split(' ').next()?.split_once('-'));
    let mut taken: Vec<(u64, u64)> = ranges.map(|(start, end)| (hex(start), hex(end))).collect();
    let file = taken.iter().find(|range| (range.0..range.1).contains(&code)).copied().expect("it is mapped");
    let (low, high) = ((file.0 - REACH) & !(PAGE - 1), (file.1 + REACH) & !(PAGE - 1));
    let holes = (0..pages).map(|nth| ((file.0 - REACH / 2) & !(PAGE - 1)) + 4 * nth * PAGE);
    for (hole, end) in holes.map(|hole| (hole, hole + 3 * PAGE)) {
        assert!(taken.iter().all(|range| range.1 <= hole || end <= range.0), "something is there");
        taken.push((hole, end));
    }
    taken.sort_unstable();
    let mut from = low;
    for (start, end) in taken.into_iter().chain([(high, high)]) {
        let to = start.clamp(low, high);
        if from < to {
            take(from, to);
        }
        from = from.max(end);
    }
}

fn take(from: u64, to: u64) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a new mapping at an address where nothing was mapped.
    let at = unsafe { libc::mmap(from as *mut _, (to - from) as usize, libc::PROT_NONE, flags, -1, 0) };
    assert_eq!(at as u64, from, "{}", std::io::Error::last_os_error());
}
