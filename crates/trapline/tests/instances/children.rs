//! Calls in which the process forks: a child returns by itself, ends in the call, or shares the memory.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use trapline::inside::Tally;

use super::{Called, Seen, every_way, probe, same, with};
use crate::victim::Victim;

#[test]
fn a_child_returns_by_itself_and_the_parent_too() {
    static PARENT: AtomicU64 = AtomicU64::new(0);
    extern "C" fn forks(x: u64) -> u64 {
        // SAFETY: the child returns through the probed call and ends; it allocates nothing.
        let child = unsafe { libc::fork() };
        PARENT.store(child as u64, SeqCst);
        x
    }
    every_way(|victim, how| {
        let seen = Seen::new();
        let _probe = probe(victim, "with", seen.session(), how);
        assert_eq!(with(victim)(forks, 4), 5);
        let child = PARENT.load(SeqCst) as i32;
        let reported = seen.returns.load(SeqCst) == 1 && seen.wrong.load(SeqCst) == 0;
        if child == 0 {
            let again = with(victim)(same, 1) == 2 && seen.returns.load(SeqCst) == 2;
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!reported) | i32::from(!again) << 1) };
        }
        let mut status = -1;
        // SAFETY: our child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(reported);
        assert_eq!(status, 0);
    });
}

#[test]
fn a_child_that_ends_in_a_call() {
    extern "C" fn exits(_: u64) -> u64 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(3) }
    }
    every_way(|victim, how| {
        let seen = Seen::new();
        let probe = probe(victim, "with", seen.session().maxactive(1), how);
        for _ in 0..20 {
            // SAFETY: the child calls and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                with(victim)(exits, 0);
            }
            let mut status = -1;
            // SAFETY: our child.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(libc::WEXITSTATUS(status), 3);
            assert_eq!(with(victim)(same, 1), 2);
        }
        seen.expect(20, 20);
        assert_eq!(probe.counts(), Tally { hits: 20, ..Tally::default() });
    });
}

#[test]
fn a_child_in_our_own_memory() {
    let run = |victim: &Victim| {
        // SAFETY: `vforks` is one.
        let vforks: extern "C" fn(Called, u64) -> u64 =
            unsafe { std::mem::transmute(victim.address("vforks")) };
        // SAFETY: both take and return numbers.
        let twice: Called = unsafe { std::mem::transmute(victim.address("twice")) };
        for _ in 0..20 {
            assert_eq!(vforks(twice, 1), 7);
            assert_eq!(twice(1), 2);
        }
    };
    every_way(|victim, how| {
        let seen = Seen::new();
        let _probe = probe(victim, "twice", seen.session(), how);
        run(victim);
        seen.expect(40, 40);
    });
}
