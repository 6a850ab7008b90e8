//! Text from which no `b` reaches room for a stub: all that is free within its reach is taken, except a few
//! pages.

use trapline::report::Tactic;
use trapline::stacks::Symbols;
use trapline::{Session, Unwinding};

use crate::command::patched;
use crate::stacks::names;
use crate::victim::{CROWDED, ENDLESS, FUNCTIONS, OUTER, THREADS, Victim, calls_of, of, times_of};

const TIMES: u64 = 100;

/// A victim that leaves so many single pages free near its code.
fn crowded(pages: &str) -> Option<Victim> {
    Victim::start_with(&[(CROWDED, pages)])
}

/// All sites used an island, and the text is unchanged.
fn assert_over_islands(finished: &trapline::Finished, victim: &Victim, before: &[u8]) {
    let tactics: Vec<_> = finished.summary.patched.iter().collect();
    println!("{tactics:?}, {} bytes stay mapped", finished.summary.left_mapped);
    assert!(matches!(tactics[..], [(Tactic::Short, 1..)]), "{tactics:?}");
    assert!(victim.text() == before, "put back");
}

#[test]
fn counts_are_exact() {
    let Some(mut victim) = crowded("1") else { return };
    let before = victim.text();
    let session = victim.count("victim_*");
    assert!(patched(&before, &victim.text()) >= FUNCTIONS.len());
    assert_eq!(victim.call("all", TIMES), TIMES * THREADS * FUNCTIONS.len() as u64, "wrong values");
    let finished = session.detach();
    for (name, ..) in FUNCTIONS {
        let own = if name == "victim_loop" { 8 } else { calls_of(name) };
        assert_eq!(of(&finished.reports[0], name), own * TIMES * THREADS, "{name}");
    }
    assert_over_islands(&finished, &victim, &before);
    assert_eq!(victim.call("all", TIMES), TIMES * THREADS * FUNCTIONS.len() as u64, "wrong values");
    // The only page is reused.
    let session = victim.count("victim_nop");
    assert_eq!(victim.call("victim_nop", TIMES), TIMES * THREADS, "wrong values");
    let finished = session.detach();
    assert_eq!(of(&finished.reports[0], "victim_nop"), TIMES * THREADS);
    assert_over_islands(&finished, &victim, &before);
}

#[test]
fn each_call_is_timed() {
    let Some(mut victim) = crowded("1") else { return };
    let before = victim.text();
    let session = victim.time("victim_*");
    assert_eq!(victim.call("all", TIMES), TIMES * THREADS * FUNCTIONS.len() as u64, "wrong values");
    let finished = session.detach();
    for (name, ..) in FUNCTIONS {
        let times = times_of(&finished.reports[0], name);
        let unclear = (times.in_flight, times.unpaired, times.unreturned);
        assert_eq!((times.calls, unclear), (calls_of(name) * TIMES * THREADS, (0, 0, 0)), "{name}");
    }
    assert_over_islands(&finished, &victim, &before);
}

#[test]
fn records_and_stacks_are_what_they_are_elsewhere() {
    let Some(mut victim) = crowded("1") else { return };
    let before = victim.text();
    let pid = victim.pid();
    let builder = || Session::builder().pid(pid).probe("victim_six").expect("a probe");
    let session = builder().record(6, true).expect("a session");
    assert_eq!(victim.call(OUTER, TIMES), TIMES * THREADS, "wrong values");
    let finished = session.detach();
    assert_eq!((finished.calls.len() as u64, finished.summary.missed), (TIMES * THREADS, 0));
    for call in &finished.calls {
        let first = call.arguments[0];
        assert_eq!(call.arguments[..6], [0, 1, 2, 3, 4, 5].map(|n| first + n), "{call:?}");
        assert_eq!(call.returned, Some(2 * first + 5), "{call:?}");
    }
    assert_over_islands(&finished, &victim, &before);
    let session = builder().stacks(Unwinding::FramePointers(16), false).expect("a session");
    assert_eq!(victim.call(OUTER, TIMES), TIMES * THREADS, "wrong values");
    let finished = session.detach();
    assert_eq!(finished.stacks.iter().map(|sum| sum.calls).sum::<u64>(), TIMES * THREADS);
    let mut symbols = Symbols::default();
    for sum in &finished.stacks {
        let names = names(&mut symbols, sum);
        assert_eq!(names[..3], ["victim_six", "victim_inner", "victim_outer"], "{names:?}");
    }
    assert_over_islands(&finished, &victim, &before);
}

/// Attached and detached while two threads call: each value is right.
#[test]
fn threads_that_call_meanwhile_are_not_harmed() {
    let Some(mut victim) = crowded("8") else { return };
    let before = victim.text();
    for name in ["victim_push", "victim_zero", "victim_loop"] {
        victim.begin(name, ENDLESS);
        let mut seen = 0;
        for _ in 0..8 {
            let session = victim.count(name);
            std::thread::sleep(std::time::Duration::from_millis(20));
            let finished = session.detach();
            seen += of(&finished.reports[0], name);
            assert_over_islands(&finished, &victim, &before);
        }
        // Any line ends it; then it reports how many values were wrong.
        victim.begin(name, ENDLESS);
        assert_eq!(victim.end(), 0, "{name}: wrong values");
        assert!(seen > 0, "{name}");
    }
}

/// Islands of one function are where another's were, at times on the same page of memory, while two threads
/// call.
#[test]
fn what_lay_in_a_page_before_is_not_run() {
    let Some(mut victim) = crowded("1") else { return };
    let before = victim.text();
    for nth in 0..24 {
        let name = ["victim_push", "victim_zero", "victim_loop"][nth % 3];
        victim.begin(name, ENDLESS);
        let session = victim.count(name);
        std::thread::sleep(std::time::Duration::from_millis(10));
        let finished = session.detach();
        victim.begin(name, ENDLESS);
        assert_eq!(victim.end(), 0, "{name}: wrong values");
        assert!(of(&finished.reports[0], name) > 0, "{name}");
        assert_over_islands(&finished, &victim, &before);
    }
}

/// An emulator drops the code that it translated when other code is written over it through another mapping,
/// wherever in the page it begins.
#[test]
fn code_written_over_other_code_is_what_runs() {
    use std::os::fd::{FromRawFd as _, OwnedFd};
    // SAFETY: a new descriptor, which nothing else owns.
    let made = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"code".as_ptr(), libc::MFD_ALLOW_SEALING)) };
    let theirs = std::fs::File::from(made.try_clone().expect("a second descriptor"));
    let ours = trapline_tracee::SharedMap::new(made, 4096).expect("a map");
    let (prot, fd) = (libc::PROT_READ | libc::PROT_EXEC, std::os::fd::AsRawFd::as_raw_fd(&theirs));
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, prot, libc::MAP_SHARED, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    for (nth, off) in (1..=100_u32).flat_map(|nth| [0, 4, 20, 24].map(|off| (nth, off))) {
        // mov w0, #nth; ret
        let code: Vec<u8> =
            [0x5280_0000 | nth << 5, 0xD65F_03C0].iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
        let mut page = vec![0; off];
        page.extend(code);
        // The C library copies so few bytes by one store of SVE.
        page.resize(32, 0);
        assert!(ours.write(0, &page));
        // SAFETY: mapped, and a function that takes nothing and returns a number.
        let got = unsafe {
            trapline_runtime::aarch64::cache::clean(at as u64, 32);
            std::mem::transmute::<u64, extern "C" fn() -> u32>(at as u64 + off as u64)()
        };
        assert_eq!(got, nth, "at byte {off}");
    }
    // SAFETY: mapped above, and no thread runs there any more.
    unsafe { libc::munmap(at, 4096) };
}

/// Not even a page is free.
#[test]
fn where_no_island_is_in_reach_it_is_reported() {
    let Some(mut victim) = crowded("0") else { return };
    let before = victim.text();
    let builder = Session::builder().pid(victim.pid()).probe("victim_push").expect("a probe");
    let error = builder.count().expect_err("refused").to_string();
    println!("{error}");
    assert!(error.contains("within 128 MiB of it there is no room"), "{error}");
    assert!(victim.text() == before);
    assert_eq!(victim.call("all", 1), THREADS * FUNCTIONS.len() as u64);
}
