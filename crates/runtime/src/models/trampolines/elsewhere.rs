//! Calls that do not return where they began: their stack goes on in another thread, they are left and copied
//! away, or their process forks.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::thread;
use trapline_record::trampolines::at;

use super::{COUNT, Call, probe, table};
use crate::models::model;
use crate::probe::Probe;
use crate::trampolines::TrampolineTable;

/// A stack goes on in another thread, where its call returns; meanwhile this thread makes other calls.
fn handed_over(order: std::sync::atomic::Ordering) {
    model(Some(3), move || {
        let (table, probe, call) = (table(), probe(), Call::from(0x1000));
        let handed = Arc::new(AtomicU64::new(0));
        let given = Arc::clone(&handed);
        let ends = thread::spawn(move || {
            if given.load(order) == 1 {
                call.returns(table);
            }
        });
        assert!(call.enters(table, probe));
        handed.store(1, if order == Acquire { Release } else { Relaxed });
        let other = Call::from(0x2000);
        assert!(other.enters(table, probe));
        other.returns(table);
        ends.join().expect("it ends");
    });
}

#[test]
fn a_call_returns_to_its_caller_where_its_stack_is() {
    handed_over(Acquire);
}

#[test]
#[should_panic]
fn not_if_nothing_orders_the_two_threads() {
    handed_over(Relaxed);
}

/// A call is left, and its stack copied away. The next call at that word with the same return address gets
/// its trampoline; one with another address does not. Then the copy comes back.
fn left(again: fn(Call, &'static TrampolineTable, &Probe) -> bool) {
    model(Some(2), move || {
        let (table, probe, call) = (table(), probe(), Call::from(0x1000));
        assert!(call.enters(table, probe));
        let copied = call.word.load(Relaxed);
        let other = thread::spawn(move || {
            let other = Call::from(0x2000);
            if other.enters(table, probe) {
                other.returns(table);
            }
        });
        let elsewhere = Call { real: 0x5000, ..call };
        elsewhere.pushes();
        if again(elsewhere, table, probe) {
            elsewhere.lands(table);
        }
        call.pushes();
        assert!(call.enters(table, probe));
        assert_eq!(table.trampolines().number_of(copied), Some(call.trampoline(table)), "the same");
        call.returns(table);
        call.word.store(copied, Relaxed);
        assert_eq!(call.lands(table).0, 0x1000, "the copy finds the same way");
        other.join().expect("it calls");
    });
}

#[test]
fn what_was_left_is_reused_by_its_like_alone() {
    left(Call::enters);
}

#[test]
#[should_panic]
fn not_if_the_stack_word_alone_decides() {
    left(|call, table, probe| {
        let is_its = |&number: &u32| table.words.word(number, at::WORD).load(Acquire) == call.at();
        let Some(number) = (1..COUNT).find(is_its) else { return call.enters(table, probe) };
        table.words.word(number, at::REAL).store(call.real, Relaxed);
        table.words.word(number, at::WHAT).store(probe.address(), Relaxed);
        call.word.store(table.trampolines().address(number), Release);
        true
    });
}

/// What a child sees: each word as it is at some moment.
fn forked(table: &TrampolineTable) -> &'static TrampolineTable {
    let child = super::table();
    for number in 1..COUNT {
        child.words.byte(number).store(table.words.byte(number).load(Relaxed), Relaxed);
        for off in [at::REAL, at::WORD, at::WHAT, at::BOUND] {
            let word = table.words.word(number, off).load(Relaxed);
            child.words.word(number, off).store(word, Relaxed);
        }
    }
    child
}

/// A thread with a call in flight forks while another one is just taking a trampoline. In both processes the
/// call returns, and both make another call.
fn forks(fork: fn(&'static TrampolineTable) -> &'static TrampolineTable) {
    model(Some(2), move || {
        let (table, probe, call) = (table(), probe(), Call::from(0x1000));
        let beside = thread::spawn(move || {
            // Its entry is half written in the child, and no stack names it there.
            Call::from(0x2000).enters(table, probe);
        });
        assert!(call.enters(table, probe));
        let (child, held) = (fork(table), call.word.load(Relaxed));
        // The parent goes on.
        call.returns(table);
        // The child, at the same addresses.
        call.word.store(held, Relaxed);
        let own = Call::from(0x4000);
        let is_own = own.enters(child, probe);
        assert!(!is_own || own.trampoline(child) != call.trampoline(child), "its call goes on");
        call.returns(child);
        if is_own {
            own.returns(child);
        }
        beside.join().expect("it calls");
    });
}

#[test]
fn a_forked_child_returns_by_itself() {
    forks(forked);
}

#[test]
#[should_panic]
fn not_if_entries_were_shared() {
    forks(|table| table);
}
