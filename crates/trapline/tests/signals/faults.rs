//! Faults in displaced instructions, and signals that arrive there: the program sees its own addresses, by
//! jump and by trap.

use std::sync::atomic::Ordering::Relaxed;

use crate::program::{AT_WATCHED, Library, SENT, Seen, WATCHED, call, nowhere, seen};

#[test]
fn a_fault_is_reported_at_the_original_and_the_instruction_done_once() {
    for by_trap in [false, true] {
        let library = Library::load();
        // Function to call, faulting address, and its result for 7 and a fresh page.
        for (name, at, result) in [("load", "load", 0), ("bump", "bump", 5), ("later", "later+3", 7)] {
            // By trap, on the instruction itself.
            let probe = library.quiet(if by_trap { at } else { name }, by_trap);
            let page = nowhere() + 0x20;
            let seen = seen(0, || assert_eq!(library.call(name, page, 7), result, "{name}"));
            let wanted = Seen { signal: libc::SIGSEGV, rip: library.address(at), addr: page };
            assert_eq!(seen, Some(wanted), "{name}, by trap: {by_trap}");
            assert_eq!(probe.counts().hits, 1, "{name}");
        }
    }
}

#[test]
fn a_handler_may_go_on_behind_the_original() {
    for by_trap in [false, true] {
        let library = Library::load();
        let probe = library.quiet("divide+5", by_trap);
        assert_eq!(library.call("divide", 40, 8), 5);
        let at = library.address("divide+5");
        let seen = seen(3, || assert_eq!(library.call("divide", 40, 0), 40));
        assert_eq!(seen, Some(Seen { signal: libc::SIGFPE, rip: at, addr: at }), "by trap: {by_trap}");
        assert_eq!(probe.counts().hits, 2);
    }
}

/// Signals are sent to a thread that is nearly always in one displaced instruction, or on the way back from
/// it.
#[test]
fn a_signal_that_arrives_in_a_copy_sees_the_original() {
    for by_trap in [false, true] {
        let library = Library::load();
        let at = library.address("slow+5");
        let probe = library.quiet("slow+5", by_trap);
        WATCHED.store(at, Relaxed);
        [&AT_WATCHED, &SENT].iter().for_each(|count| count.store(0, Relaxed));
        // SAFETY: this thread's own number.
        let (pid, tid) = unsafe { (libc::getpid(), libc::gettid()) };
        let mut calls = 0;
        std::thread::scope(|scope| {
            let sender = scope.spawn(move || {
                // As many as it takes: a signal that is sent while another is pending merges with it.
                while SENT.load(Relaxed) < 300
                    || AT_WATCHED.load(Relaxed) == 0 && SENT.load(Relaxed) < 100_000
                {
                    // SAFETY: to a thread that outlives this scope, with a handler.
                    unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGBUS) };
                    std::thread::yield_now();
                }
            });
            while !sender.is_finished() {
                assert_eq!(library.call("slow", 0, 0), 0);
                calls += 1;
            }
        });
        let (sent, there) = (SENT.load(Relaxed), AT_WATCHED.load(Relaxed));
        assert!(there > 0, "{there} of {sent}, by trap: {by_trap}");
        assert_eq!(probe.counts().hits, calls);
    }
}

#[test]
fn a_trap_of_the_programs_is_the_programs() {
    let library = Library::load();
    let probe = library.quiet("load", true);
    let seen = seen(0, || assert_eq!(library.call("trapping", 9, 0), 9));
    let at = library.address("trapping");
    assert_eq!(seen.map(|seen| (seen.signal, seen.rip)), Some((libc::SIGTRAP, at + 1)));
    assert_eq!(probe.counts().hits, 0);
}

#[test]
fn a_thread_that_comes_to_the_middle_of_a_window_goes_on_in_the_copy() {
    let library = Library::load();
    let (inner, middle) = (library.address("inner"), library.address("inner+3"));
    let probe = library.quiet("inner", false);
    let seen = seen(0, || {
        assert_eq!((call(inner, 3, 4), call(middle, 5, 6)), (7, 11));
    });
    assert_eq!((seen, probe.counts().hits), (None, 1));
    // A trap in the middle when the window is gone; then the window again.
    drop(probe);
    let trap = library.quiet("inner+3", true);
    assert_eq!((call(inner, 3, 4), call(middle, 5, 6), trap.counts().hits), (7, 11, 2));
    drop(trap);
    let again = library.quiet("inner", false);
    assert_eq!((call(inner, 3, 4), call(middle, 5, 6), again.counts().hits), (7, 11, 2));
}
