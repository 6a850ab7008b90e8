//! Return handlers: what they see and change, and which call they belong to. Tests run in both ways if their
//! results must not depend on it: with vector registers saved and without.
#![allow(unsafe_code, reason = "handlers that promise to use general registers only")]

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use trapline::inside::{Consumer, Error, Gpr, Tactic, Tally, Verdict, register};

use crate::calls::{counting, word};
use crate::victim::Victim;

/// Runs a test with consumers that save all registers, and with those that do not, each with a library of its
/// own.
fn both_ways(test: impl Fn(&Victim, &dyn Fn(Consumer) -> Consumer)) {
    test(&Victim::load(), &|consumer| consumer);
    // SAFETY: the functions under test keep nothing in vector registers.
    test(&Victim::load(), &|consumer| unsafe { consumer.general_regs_only() });
}

#[test]
fn a_return_handler_sees_and_changes_the_value() {
    both_ways(sees_and_changes);
}

fn sees_and_changes(victim: &Victim, of: &dyn Fn(Consumer) -> Consumer) {
    let before = victim.text();
    let (sum, twice) = (word(), victim.function("twice"));
    let consumer = Consumer::returns(move |hit| {
        sum.fetch_add(hit.regs().get(Gpr::Rax), Relaxed);
        // SAFETY: the caller takes any value.
        unsafe { hit.regs_mut() }.set(Gpr::Rax, 7);
    });
    let probe = register(&victim.path, victim.offset("twice"), of(consumer)).expect("registered");
    for n in 0..200 {
        assert_eq!(twice(n, 0), 7);
    }
    let value = |n: u64| if n > 100 { n * 3 + n + 1 } else { n * 2 };
    assert_eq!(sum.load(Relaxed), (0..200).map(value).sum::<u64>());
    assert_eq!(probe.counts(), Tally { hits: 200, ..Tally::default() });
    drop(probe);
    assert_eq!(twice(4, 0), 8);
    assert_eq!(before, victim.text());
}

#[test]
fn recursive_calls_find_their_own_cookies_and_those_that_declined_see_no_return() {
    both_ways(find_their_own_cookies);
}

fn find_their_own_cookies(victim: &Victim, of: &dyn Fn(Consumer) -> Consumer) {
    let fib = victim.function("fib");
    static SEEN: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
    // Allocated beforehand, since a handler may not allocate.
    SEEN.lock().unwrap().reserve(1000);
    let consumer = Consumer::session(
        |hit| {
            let n = hit.regs().get(Gpr::Rdi);
            hit.set_cookie(n + 1000);
            if n % 2 == 0 { Verdict::Continue } else { Verdict::IgnoreReturn }
        },
        |hit| SEEN.lock().unwrap().push((hit.cookie(), hit.regs().get(Gpr::Rax))),
    );
    let probe = register(&victim.path, victim.offset("fib"), of(consumer)).expect("registered");
    assert_eq!(fib(10, 0), 55);
    drop(probe);
    let plain = |n: u64| (0..n).fold((0, 1), |(a, b), _| (b, a + b)).0;
    let seen = std::mem::take(&mut *SEEN.lock().unwrap());
    assert!(seen.iter().all(|&(cookie, value)| cookie % 2 == 0 && plain(cookie - 1000) == value), "{seen:?}");
    // Within fib(10), fib(n) is entered fib(11 - n) times, and fib(0) as often as fib(2).
    let times = |n: u64| if n == 0 { plain(9) } else { plain(11 - n) };
    // The compiler may turn one of the two recursive calls into a loop. Whatever is left, each even n
    // returned as often as it was entered.
    let counted = |n: u64| seen.iter().filter(|&&(cookie, _)| cookie == n + 1000).count() as u64;
    assert_eq!(counted(10), 1);
    assert!((0..=10).step_by(2).all(|n| counted(n) <= times(n)));
    assert!(seen.len() > 5);
}

/// Threads side by side, each interrupted all the time: while it takes an instance and while it puts it back. Each
/// goes on calling until it has been interrupted, and is interrupted until it has ended.
#[test]
fn every_return_is_its_call_s_whatever_interrupts_it() {
    /// Fewest calls, and fewest interruptions among them, of each thread.
    const CALLS: u64 = 20_000;
    const INTERRUPTIONS: u64 = 50;
    const THREADS: usize = 4;
    both_ways(|victim, of| {
        let (entries, returns, wrong, twice) = (word(), word(), word(), victim.function("twice"));
        let consumer = Consumer::session(
            move |hit| {
                entries.fetch_add(1, Relaxed);
                let argument = hit.regs().get(Gpr::Rdi);
                hit.set_cookie(argument);
                Verdict::Continue
            },
            move |hit| {
                returns.fetch_add(1, Relaxed);
                let is_its = hit.cookie() * 2 == hit.regs().get(Gpr::Rax);
                wrong.fetch_add(u64::from(!is_its), Relaxed);
            },
        );
        let probe = register(&victim.path, victim.offset("twice"), of(consumer)).expect("registered");
        let sum = word();
        let only = Consumer::returns(move |hit| {
            sum.fetch_add(hit.regs().get(Gpr::Rax), Relaxed);
        });
        let other = register(&victim.path, victim.offset("add"), of(only)).expect("registered");
        let add = victim.function("add");
        let selves = [const { AtomicU64::new(0) }; THREADS];
        let call = &|own: &AtomicU64| {
            // SAFETY: no arguments.
            own.store(unsafe { libc::pthread_self() }, Relaxed);
            let enough = HANDLED.get() + INTERRUPTIONS;
            let mut n = 0;
            while n < CALLS || HANDLED.get() < enough {
                assert_eq!(twice(n % 100, 0), n % 100 * 2);
                assert_eq!(add(n, 1), n * 3 + 1);
                n += 1;
            }
            n
        };
        let calls = std::thread::scope(|scope| {
            // Kept, so that a thread that has ended can still be named.
            let threads = selves.each_ref().map(|own| scope.spawn(move || call(own)));
            interrupt(&selves, || threads.iter().all(|thread| thread.is_finished()));
            threads.map(|thread| thread.join().expect("it ends"))
        });
        let all = calls.iter().sum::<u64>();
        assert_eq!([entries, returns, wrong].map(|word| word.load(Relaxed)), [all, all, 0]);
        let sums = calls.into_iter().flat_map(|calls| 0..calls).map(|n| n * 3 + 1);
        assert_eq!(sum.load(Relaxed), sums.sum::<u64>());
        assert_eq!(probe.counts(), Tally { hits: all, ..Tally::default() });
        assert_eq!(other.counts(), Tally { hits: all, ..Tally::default() });
    });
}

thread_local! {
    /// Signals of `interrupt` that this thread has handled.
    static HANDLED: Cell<u64> = const { Cell::new(0) };
}

/// Sends signals to the threads, one after the other, until it is to stop.
fn interrupt(threads: &[AtomicU64], over: impl Fn() -> bool) {
    extern "C" fn handled(_: i32) {
        HANDLED.set(HANDLED.get() + 1);
    }
    // SAFETY: the handler counts, and stays; the threads have not been joined.
    unsafe {
        libc::signal(libc::SIGUSR2, handled as *const () as usize);
        while !over() {
            for thread in threads.iter().map(|one| one.load(Relaxed)).filter(|one| *one != 0) {
                libc::pthread_kill(thread, libc::SIGUSR2);
            }
        }
    }
}

/// A function that does not run holds nothing, and neither does a call that was declined.
#[test]
fn calls_that_no_consumer_waits_for_hold_nothing() {
    both_ways(|victim, of| {
        let (returns, twice) = (word(), victim.function("twice"));
        let consumer = Consumer::session(
            move |hit| {
                let argument = hit.regs().get(Gpr::Rdi);
                if argument % 2 == 0 {
                    return Verdict::IgnoreReturn;
                }
                // SAFETY: at a function's entry, the stack pointer points to the return address, and the
                // registers are as if the function had returned at once.
                unsafe {
                    let regs = hit.regs_mut();
                    let back = *(regs.get(Gpr::Rsp) as *const u64);
                    regs.set(Gpr::Rsp, regs.get(Gpr::Rsp) + 8);
                    regs.set(Gpr::Rax, 1);
                    regs.rip = back;
                }
                Verdict::Continue
            },
            move |_| {
                returns.fetch_add(1, Relaxed);
            },
        );
        let consumer = of(consumer.maxactive(1)).moves_ip().moves_sp();
        let probe = register(&victim.path, victim.offset("twice"), consumer).expect("registered");
        for n in 0..100 {
            assert_eq!(twice(n, 0), if n % 2 == 0 { n * 2 } else { 1 });
        }
        assert_eq!(returns.load(Relaxed), 0);
        assert_eq!(probe.counts(), Tally { hits: 100, ..Tally::default() });
    });
}

/// Others come and go beside one that waits alone. Each call is reported to the consumers that were there, by
/// the fast path or the full one.
#[test]
fn a_second_consumer_comes_and_goes() {
    both_ways(|victim, of| {
        let (first, second, add) = (word(), word(), victim.function("add"));
        let counts = |word: &'static AtomicU64| {
            Consumer::returns(move |_| {
                word.fetch_add(1, Relaxed);
            })
        };
        let offset = victim.offset("add");
        let one = register(&victim.path, offset, of(counts(first))).expect("registered");
        for round in 1..=3 {
            add(1, 1);
            let other = register(&victim.path, offset, of(counts(second))).expect("registered");
            add(1, 1);
            let entries = register(&victim.path, offset, of(counting(second))).expect("registered");
            add(1, 1);
            drop(other);
            add(1, 1);
            drop(entries);
            add(1, 1);
            assert_eq!((first.load(Relaxed), second.load(Relaxed)), (5 * round, 4 * round));
        }
        assert_eq!(one.counts(), Tally { hits: 15, ..Tally::default() });
    });
}

#[test]
fn returns_may_be_wanted_later_and_entries_go_on() {
    let victim = Victim::load();
    let (entries, returns, add) = (word(), word(), victim.function("add"));
    let offset = victim.offset("add");
    let first = register(&victim.path, offset, counting(entries)).expect("registered");
    add(1, 1);
    let second = register(
        &victim.path,
        offset,
        Consumer::returns(move |_| {
            returns.fetch_add(1, Relaxed);
        }),
    )
    .expect("registered");
    (0..10).for_each(|n| assert_eq!(add(n, 0), n * 3));
    assert_eq!((entries.load(Relaxed), returns.load(Relaxed)), (11, 10));
    drop(second);
    add(1, 1);
    assert_eq!((entries.load(Relaxed), returns.load(Relaxed)), (12, 10));
    assert_eq!(first.sites(), [Tactic::Jump]);
}

#[test]
fn a_tail_call_has_no_return_here() {
    let victim = Victim::load();
    let consumer = Consumer::returns(|_| {});
    let error = register(&victim.path, victim.offset("tail"), consumer).expect_err("refused");
    assert!(matches!(error, Error::Refused { kind: "tail-call", .. }), "{error}");
    let count = word();
    let _probe = register(&victim.path, victim.offset("tail"), counting(count)).expect("registered");
    assert_eq!(victim.function("tail")(1, 0), 13);
    assert_eq!(count.load(Relaxed), 1);
}
