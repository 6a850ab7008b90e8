//! HOLD-1, HOLD-2: which calls are held, that they go on when they are answered, and that they go on by
//! themselves otherwise.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use trapline_plan::Hold;
use trapline_plan::Origin::{Constant, Memory, Register, Unknown};
use trapline_plan::x86_64::stub::hold;
use trapline_record::control::at;
use trapline_record::control::fact::{CLOCK, FAULTS, FILTER, TRAPS};

use crate::arena::Arena;

type Function = extern "C" fn(u64, u64, u64) -> u64;

/// A function with an entry at which threads are held, and its two words. It returns a combination of its three
/// arguments.
fn held(arena: &mut Arena, what: Hold, red_zone: bool) -> (Function, &'static AtomicU64, &'static AtomicU64) {
    let words = (arena.word(0), arena.word(0) + 8);
    let mut out = Vec::new();
    hold(&mut out, arena.next(), what, words, red_zone);
    // lea rax, [rdi + 2 * rsi]; lea rax, [rax + 4 * rdx]; ret
    out.extend([0x48, 0x8D, 0x04, 0x77, 0x48, 0x8D, 0x04, 0x90, 0xC3]);
    let code = arena.put(&out);
    // SAFETY: the code was just put there, is a function of that type, and stays. Both words lie in the
    // arena's data, which stays too.
    unsafe {
        let word = |at: u64| &*(at as *const AtomicU64);
        (core::mem::transmute::<u64, Function>(code), word(words.0), word(words.1))
    }
}

/// Another word of the control block, as it lies beside `ASKED`.
fn beside(asked: &'static AtomicU64, word: u64) -> &'static AtomicU64 {
    // SAFETY: the arena's data go on behind that word, and stay.
    unsafe { &*std::ptr::from_ref(asked).byte_add((word - at::ASKED) as usize) }
}

#[test]
fn calls_that_change_a_fact_ask_and_no_others() {
    let (handler, ignored, default) = ([0x1000u64], [1u64], [0u64]);
    let at = |action: &[u64; 1]| action.as_ptr() as u64;
    let cases = [
        (Hold::Sigaction, [11, at(&handler), 0], FAULTS),
        (Hold::Sigaction, [7, at(&handler), 0], FAULTS),
        (Hold::Sigaction, [11, at(&ignored), 0], 0),
        (Hold::Sigaction, [11, at(&default), 0], 0),
        (Hold::Sigaction, [11, 0, at(&default)], 0),
        (Hold::Sigaction, [10, at(&handler), 0], 0),
        (Hold::Sigaction, [5, at(&handler), 0], TRAPS),
        (Hold::Sigaction, [4, at(&handler), 0], TRAPS),
        (Hold::Sigaction, [5, at(&default), 0], 0),
        (Hold::Sigaction, [5, 0, at(&default)], 0),
        (Hold::Prctl, [26, 2, 0], CLOCK),
        (Hold::Prctl, [26, 1, 0], 0),
        (Hold::Prctl, [22, 2, 1], FILTER),
        (Hold::Prctl, [22, 1, 0], FILTER | CLOCK),
        (Hold::Prctl, [38, 1, 0], 0),
        (Hold::Prctl, [59, 1, 0], FILTER),
        (Hold::Prctl, [59, 2, 0], FILTER),
        (Hold::Prctl, [59, 0, 0], 0),
        (Hold::Syscall, [317, 1, 0], FILTER),
        (Hold::Syscall, [317, 0, 0], FILTER | CLOCK),
        (Hold::Syscall, [317, 2, 0], 0),
        (Hold::Syscall, [157, 26, 2], CLOCK),
        (Hold::Syscall, [157, 22, 2], FILTER),
        (Hold::Syscall, [157, 15, 2], 0),
        (Hold::Syscall, [13, 11, 0x1000], FAULTS),
        (Hold::Syscall, [13, 11, 0], 0),
        (Hold::Syscall, [13, 5, 0x1000], TRAPS),
        (Hold::Syscall, [13, 5, 0], 0),
        (Hold::Syscall, [39, 11, 2], 0),
        // The number in rdx, the arguments in rsi and rdi.
        (Hold::Call([Register(2), Register(6), Register(7)]), [2, 26, 157], CLOCK),
        (Hold::Call([Register(2), Register(6), Register(7)]), [157, 26, 2], 0),
        // What is not known counts as what changes the fact.
        (Hold::Call([Constant(157), Register(7), Unknown]), [26, 0, 0], CLOCK),
        (Hold::Call([Constant(157), Register(7), Unknown]), [22, 0, 0], FILTER | CLOCK),
        (Hold::Call([Constant(157), Register(7), Unknown]), [38, 0, 0], 0),
        (Hold::Call([Constant(13), Register(7), Unknown]), [11, 0, 0], FAULTS),
        (Hold::Call([Constant(13), Register(7), Unknown]), [10, 0, 0], 0),
    ];
    for red_zone in [false, true] {
        for (what, [a, b, c], facts) in cases {
            let mut arena = Arena::new();
            let (function, asked, closed) = held(&mut arena, what, red_zone);
            let sum = a.wrapping_add(2 * b).wrapping_add(4 * c);
            // Nothing relies on the facts, so no call asks.
            closed.store(u64::MAX, Ordering::SeqCst);
            assert_eq!(
                (function(a, b, c), asked.load(Ordering::SeqCst)),
                (sum, 0),
                "{what:?} {a} {b:#x} {c:#x}"
            );
            // All facts are relied on, and another thread answers each question.
            closed.store(0, Ordering::SeqCst);
            std::thread::scope(|scope| {
                let held = scope.spawn(|| function(a, b, c));
                if facts != 0 {
                    while asked.load(Ordering::SeqCst) != facts {
                        std::hint::spin_loop();
                    }
                    assert!(!held.is_finished(), "{what:?} {a} {b:#x} {c:#x} waits");
                    closed.store(facts, Ordering::SeqCst);
                }
                assert_eq!(held.join().expect("returned"), sum);
            });
            assert_eq!(
                (asked.load(Ordering::SeqCst), closed.load(Ordering::SeqCst)),
                (facts, facts),
                "{what:?} {a} {b:#x} {c:#x}: only the answering side closed it"
            );
            arena.unmap();
        }
    }
}

/// Words in registers that the stub uses itself, and on the stack. They are as before when the thread goes on.
#[test]
fn words_are_found_in_scratch_registers_and_on_the_stack() {
    let on_stack = |offset| Memory { base: 4, offset };
    let cases = [
        // rax = rdi, rcx = rsi.
        ([Register(0), Register(1), Constant(2)], [157, 26], CLOCK),
        ([Register(0), Register(1), Constant(2)], [157, 38], 0),
        ([Register(1), Register(0), Unknown], [11, 13], FAULTS),
        ([on_stack(8), on_stack(0), Constant(2)], [26, 157], CLOCK),
        ([on_stack(8), on_stack(0), Constant(2)], [157, 26], 0),
        ([on_stack(0), on_stack(8), Constant(1)], [317, 1], FILTER),
    ];
    for red_zone in [false, true] {
        for (words, [a, b], facts) in cases {
            let mut arena = Arena::new();
            let (asked_at, closed_at) = (arena.word(0), arena.word(0) + 8);
            // mov rax, rdi; mov rcx, rsi; push rsi; push rdi
            let mut out = vec![0x48, 0x89, 0xF8, 0x48, 0x89, 0xF1, 0x56, 0x57];
            let at = arena.next() + out.len() as u64;
            hold(&mut out, at, Hold::Call(words), (asked_at, closed_at), red_zone);
            // add rax, rcx; pop rcx; add rax, rcx; pop rcx; add rax, rcx; ret
            out.extend([0x48, 0x01, 0xC8, 0x59, 0x48, 0x01, 0xC8, 0x59, 0x48, 0x01, 0xC8, 0xC3]);
            let code = arena.put(&out);
            // SAFETY: the code was just put there, is a function of that type, and stays. Both words lie in
            // the arena's data, which stays too.
            let (function, asked, closed) = unsafe {
                let word = |at: u64| &*(at as *const AtomicU64);
                (core::mem::transmute::<u64, Function>(code), word(asked_at), word(closed_at))
            };
            // A fact that is closed keeps no thread.
            closed.store(facts, Ordering::SeqCst);
            assert_eq!((function(a, b, 0), asked.load(Ordering::SeqCst)), (2 * (a + b), 0), "{words:?}");
            closed.store(0, Ordering::SeqCst);
            std::thread::scope(|scope| {
                let held = scope.spawn(|| function(a, b, 0));
                while facts != 0 && asked.load(Ordering::SeqCst) != facts {
                    std::hint::spin_loop();
                }
                closed.store(facts, Ordering::SeqCst);
                assert_eq!(held.join().expect("returned"), 2 * (a + b), "{words:?}");
            });
            assert_eq!(asked.load(Ordering::SeqCst), facts, "{words:?} {a} {b}");
            arena.unmap();
        }
    }
}

/// In a thread of its own, so that an endless wait fails.
#[test]
fn a_thread_that_waits_in_vain_goes_on_and_closes_the_fact() {
    let mut arena = Arena::new();
    let (function, asked, closed) = held(&mut arena, Hold::Prctl, false);
    let (done, waits) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // The second call finds the fact closed.
        done.send((function(26, 2, 0), function(26, 2, 0))).expect("a thread waits");
    });
    let returned = waits.recv_timeout(Duration::from_secs(120)).expect("an end");
    assert_eq!(returned, (30, 30));
    assert_eq!((asked.load(Ordering::SeqCst), closed.load(Ordering::SeqCst)), (CLOCK, CLOCK));
}

/// HOLD-1: the tracer's sign of life lets a thread wait anew. Beside it, another thread waits twice without such a sign.
#[test]
fn a_thread_waits_on_while_the_tracer_lives() {
    let (mut arena, mut other) = (Arena::new(), Arena::new());
    let (function, asked, closed) = held(&mut arena, Hold::Prctl, false);
    let (alone, _, unanswered) = held(&mut other, Hold::Prctl, false);
    let alive = beside(asked, at::ALIVE);
    let (over, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || over.send(function(26, 2, 0)));
    let silent = std::thread::spawn(move || {
        for _ in 0..2 {
            unanswered.store(0, Ordering::SeqCst);
            alone(26, 2, 0);
        }
    });
    while !silent.is_finished() {
        alive.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(ended.try_recv().is_err() && closed.load(Ordering::SeqCst) == 0, "it waits on");
    closed.store(CLOCK, Ordering::SeqCst);
    assert_eq!(ended.recv_timeout(Duration::from_secs(120)), Ok(30), "it was answered");
}

/// A thread goes on if its ticket has passed, although its fact is not closed. Its bit is set anew while it waits.
#[test]
fn a_thread_whose_ticket_has_passed_goes_on() {
    let mut arena = Arena::new();
    let (function, asked, closed) = held(&mut arena, Hold::Sigaction, false);
    let (passed, askers) = (beside(asked, at::PASSED), beside(asked, at::ASKERS));
    let action = [0x1000u64; 20];
    let action = action.as_ptr() as u64;
    let begun = Instant::now();
    let until = |is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it asks no more");
            beside(asked, at::ALIVE).fetch_add(1, Ordering::SeqCst);
            std::thread::yield_now();
        }
    };
    for ticket in 1..=3 {
        std::thread::scope(|scope| {
            let held = scope.spawn(|| function(11, action, 0));
            until(&|| askers.load(Ordering::SeqCst) == ticket && asked.load(Ordering::SeqCst) == FAULTS);
            // The answer to the one before.
            passed.store(ticket - 1, Ordering::SeqCst);
            asked.store(0, Ordering::SeqCst);
            until(&|| asked.load(Ordering::SeqCst) == FAULTS);
            assert!(!held.is_finished(), "ticket {ticket} waits");
            passed.store(ticket, Ordering::SeqCst);
            assert_eq!(held.join().expect("returned"), 11u64.wrapping_add(action.wrapping_mul(2)));
        });
    }
    assert_eq!(closed.load(Ordering::SeqCst), 0, "no thread closed the fact");
}
