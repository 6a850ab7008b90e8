//! Return handlers: what they see and change, and which call they belong to.
#![allow(unsafe_code, reason = "handlers that change registers")]

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use trapline::inside::{Consumer, Gpr, Hit, Tally, Verdict};

use crate::victim::{Victim, counting, counting_returns, word};

#[test]
fn a_return_handler_sees_and_changes_the_value() {
    Victim::in_both_forms(|victim| {
        let before = victim.text();
        let (sum, twice) = (word(), victim.function("twice"));
        let consumer = Consumer::returns(move |hit| {
            sum.fetch_add(hit.regs().result(), Relaxed);
            // SAFETY: the caller takes any value.
            unsafe { hit.regs_mut() }.set(Gpr::X0, 7);
        });
        let probe = victim.register("twice", consumer);
        (0..200).for_each(|n| assert_eq!(twice(n, 0), 7));
        let value = |n: u64| if n > 100 { n * 3 + n + 1 } else { n * 2 };
        assert_eq!(sum.load(Relaxed), (0..200).map(value).sum::<u64>());
        assert_eq!(probe.counts(), Tally { hits: 200, ..Tally::default() });
        drop(probe);
        assert!(twice(4, 0) == 8 && victim.text() == before);
    });
}

#[test]
fn recursive_calls_find_their_own_cookies_and_those_that_declined_see_no_return() {
    Victim::in_both_forms(|victim| {
        let fib = victim.function("fib");
        static SEEN: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
        // Allocated beforehand, since a handler may not allocate.
        SEEN.lock().expect("whole").clear();
        SEEN.lock().expect("whole").reserve(1000);
        let consumer = Consumer::session(
            |hit| {
                let n = hit.regs().x[0];
                hit.set_cookie(n + 1000);
                if n % 2 == 0 { Verdict::Continue } else { Verdict::IgnoreReturn }
            },
            |hit| SEEN.lock().expect("whole").push((hit.cookie(), hit.regs().result())),
        );
        let probe = victim.register("fib", consumer.maxactive(64));
        assert_eq!(fib(8, 0), 21);
        let plain = |n: u64| (0..n).fold((0, 1), |(a, b), _| (b, a + b)).0;
        let seen = SEEN.lock().expect("whole");
        assert!(
            seen.iter().all(|&(cookie, value)| cookie % 2 == 0 && plain(cookie - 1000) == value),
            "{seen:?}"
        );
        // Calls of fib(n) in fib(8), for even n.
        let calls: u64 = (0..=8).step_by(2).map(|n| if n == 0 { plain(7) } else { plain(9 - n) }).sum();
        assert_eq!((seen.len() as u64, probe.counts().missed(), probe.counts().unreturned), (calls, 0, 0));
    });
}

/// One word, two calls: the second finds the first one's trap there.
#[test]
fn a_word_may_be_an_entry_and_a_return_and_an_instruction_at_once() {
    Victim::in_both_forms(|victim| {
        let (before, empty) = (victim.text(), victim.function("empty"));
        let (entries, returns, both) = (word(), word(), word());
        let first = victim.register("empty", counting(entries));
        empty(1, 2);
        let handler = move |hit: &mut Hit<'_>| {
            returns.fetch_add(hit.regs().result(), Relaxed);
        };
        let second = victim.register("empty", Consumer::returns(handler));
        assert_eq!(empty(5, 0), 5);
        assert_eq!((entries.load(Relaxed), returns.load(Relaxed)), (2, 5));
        let last = victim.offset("far_b") + 8;
        let third = victim.register("far_b", counting_returns(both));
        let fourth = victim.register_at(last, counting(both));
        assert_eq!(victim.function("far_b")(5, 2), 3);
        assert_eq!((both.load(Relaxed), fourth.counts().hits, third.counts().hits), (2, 1, 1));
        drop(third);
        assert_eq!((victim.function("far_b")(5, 2), both.load(Relaxed)), (3, 3));
        drop((first, fourth));
        empty(5, 0);
        assert_eq!((entries.load(Relaxed), returns.load(Relaxed)), (2, 10));
        drop(second);
        assert!(victim.text() == before);
    });
}

/// A word that only looks like a return, in a function's data, is left alone.
#[test]
fn data_is_no_return() {
    Victim::in_both_forms(|victim| {
        let (before, count) = (victim.text(), word());
        let holds = victim.function("holds_data");
        let value = holds(0, 0);
        let probe = victim.register("holds_data", counting_returns(count));
        for calls in 1..=10 {
            assert_eq!((holds(0, 0), count.load(Relaxed)), (value, calls));
        }
        drop(probe);
        assert!(victim.text() == before);
    });
}
