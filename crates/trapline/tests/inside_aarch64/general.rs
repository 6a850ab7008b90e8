//! Consumers that use general registers alone: the path that saves no vectors, and when it is not taken.
#![allow(unsafe_code, reason = "handlers in assembly, which change registers")]

use std::arch::naked_asm;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use trapline::inside::{Consumer, Functions, Verdict, raw};

use crate::victim::{Victim, counting, word};

/// Adds one to the word that `data` points to, and one to x0 at the site. Overwrites the registers that a
/// function may, but no vector.
#[unsafe(naked)]
unsafe extern "C" fn adds(data: *mut c_void, hit: *mut raw::Hit) -> raw::Verdict {
    naked_asm!(
        "2: ldaxr x2, [x0]",
        "add x2, x2, #1",
        "stlxr w3, x2, [x0]",
        "cbnz w3, 2b",
        "ldr x3, [x1]",
        "ldr x4, [x3]",
        "add x4, x4, #1",
        "str x4, [x3]",
        "mov x0, #0",
        "mov x5, #-1",
        "mov x16, #-1",
        "mov x17, #-1",
        "mov x18, #-1",
        "cmp x0, #1",
        "ret",
    )
}

/// Goes on at the address in `data`.
#[unsafe(naked)]
unsafe extern "C" fn goes(data: *mut c_void, hit: *mut raw::Hit) -> raw::Verdict {
    naked_asm!("ldr x3, [x1]", "str x0, [x3, #256]", "mov x0, #0", "ret")
}

/// Moves the stack pointer by x0.
#[unsafe(naked)]
unsafe extern "C" fn moves(data: *mut c_void, hit: *mut raw::Hit) -> raw::Verdict {
    naked_asm!(
        "ldr x3, [x1]",
        "ldr x4, [x3]",
        "ldr x5, [x3, #248]",
        "add x4, x4, x5",
        "str x4, [x3, #248]",
        "mov x0, #0",
        "ret",
    )
}

/// Asks to be removed.
#[unsafe(naked)]
unsafe extern "C" fn leaves(data: *mut c_void, hit: *mut raw::Hit) -> raw::Verdict {
    naked_asm!("mov x0, #1", "ret")
}

fn general(entry: raw::Handler, data: u64) -> Consumer {
    let functions = Functions { entry: Some(entry), returns: None, filter: None, data: data as *mut c_void };
    // SAFETY: the handlers above use their arguments only as described, and general registers alone.
    unsafe { Consumer::functions(functions).general_regs_only() }
}

fn at(word: &'static AtomicU64) -> u64 {
    ptr::from_ref(word) as u64
}

#[test]
fn it_is_called_alone_and_among_others() {
    Victim::in_both_forms(|victim| {
        let (alone, other, function) = (word(), word(), victim.function("scale_and_add"));
        let probe = victim.register("scale_and_add", general(adds, at(alone)));
        assert_eq!(probe.sites(), [victim.form]);
        let calls = |n: u64| (0..n).for_each(|n| assert_eq!(function(n, 3), 2 * (n + 1) + 3));
        calls(100);
        assert_eq!((alone.load(Relaxed), probe.counts().hits, probe.counts().missed()), (100, 100, 0));
        // Two consumers: called like any others.
        let second = victim.register("scale_and_add", counting(other));
        calls(50);
        assert_eq!((alone.load(Relaxed), other.load(Relaxed), second.counts().hits), (150, 50, 150));
        drop(second);
        calls(50);
        assert_eq!((alone.load(Relaxed), other.load(Relaxed), probe.counts().hits), (200, 50, 200));
        drop(probe);
        assert_eq!((function(1, 3), alone.load(Relaxed)), (5, 200));
    });
}

#[test]
fn it_may_go_elsewhere_and_to_another_stack() {
    Victim::in_both_forms(|victim| {
        let twice = victim.address("twice");
        let probe = victim.register("moves", general(goes, twice).moves_ip());
        (0..50).for_each(|n| assert_eq!(victim.function("moves")(n, 5), 2 * n));
        drop(probe);
        let _probe = victim.register("stack", general(moves, 0).moves_sp());
        for by in [0_i64, 16, -16, 288, -288, 4096, -4096] {
            assert_eq!(victim.function("on_stack")(by.cast_unsigned(), 0).cast_signed(), by);
        }
    });
}

#[test]
fn a_hit_in_its_place_inside_another_counts_as_missed() {
    Victim::in_both_forms(|victim| {
        let (count, add) = (word(), victim.function("add"));
        let outer = victim.register(
            "moves",
            Consumer::entry(move |_| {
                add(1, 1);
                Verdict::Continue
            }),
        );
        let inner = victim.register("add", general(adds, at(count)));
        (0..10).for_each(|n| assert_eq!(victim.function("moves")(n, 2), 2 * n));
        assert_eq!((count.load(Relaxed), outer.counts().hits, inner.counts().nested), (0, 10, 10));
        assert_eq!((add(1, 1), count.load(Relaxed), inner.counts().hits), (7, 1, 1));
    });
}

#[test]
fn it_is_taken_out_when_it_says_so() {
    Victim::in_both_forms(|victim| {
        let probe = victim.register("add", general(leaves, 0));
        assert_eq!(victim.function("add")(1, 1), 4);
        trapline::inside::rescan().expect("a look");
        assert!(probe.sites().is_empty() && probe.counts().hits == 1);
        assert_eq!(victim.function("add")(1, 1), 4);
    });
}

/// Eight threads hit it while other consumers come and go beside it. No hit is lost.
#[test]
fn it_counts_exactly_while_others_come_and_go() {
    const CALLS: u64 = 2000;
    let victim = Victim::load();
    let (count, function) = (word(), victim.function("scale_and_add"));
    let probe = victim.register("scale_and_add", general(adds, at(count)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..CALLS).for_each(|n| assert_eq!(function(n, 1), 2 * (n + 1) + 1)));
        }
        for _ in 0..10 {
            drop(victim.register("scale_and_add", counting(word())));
        }
    });
    assert_eq!((count.load(Relaxed), probe.counts().hits), (4 * CALLS, 4 * CALLS));
    assert_eq!(probe.counts().missed(), 0);
}
