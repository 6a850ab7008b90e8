//! Handlers are called as often as the functions are, and what they see and change takes effect: for words
//! that are simulated, and for words that run in a copy.
#![allow(unsafe_code, reason = "handlers that change registers")]

use std::sync::atomic::Ordering::Relaxed;

use trapline::inside::{Consumer, Gpr, Hit, Regs, Verdict, register_all, unregister_all};

use crate::victim::{Victim, counting, word};

/// Functions of two numbers, and what they return for (6, 7).
const FUNCTIONS: [(&str, u64); 8] = [
    ("add", 25),
    ("pushes", 13),
    ("signs", 13),
    ("lands", 13),
    ("moves", 42),
    ("loads", 113),
    ("pages", 13),
    ("far_a", 13),
];

fn changing(change: impl Fn(&mut Regs) + Send + Sync + 'static) -> Consumer {
    Consumer::entry(move |hit: &mut Hit<'_>| {
        // SAFETY: each test sets the registers to values with which its function may go on.
        change(unsafe { hit.regs_mut() });
        Verdict::Continue
    })
}

#[test]
fn an_entry_handler_is_called_at_every_call_with_the_arguments() {
    Victim::in_both_forms(|victim| {
        let (before, maps) = (victim.text(), victim.maps());
        for (name, result) in FUNCTIONS {
            let (sum, function, at) = (word(), victim.function(name), victim.address(name));
            let handler = move |hit: &mut Hit<'_>| {
                assert_eq!((hit.site(), hit.regs().pc), (at, at));
                sum.fetch_add(hit.regs().x[0] * 100 + hit.regs().x[1], Relaxed);
                Verdict::Continue
            };
            let probe = victim.register(name, Consumer::entry(handler));
            assert_eq!(probe.sites(), [victim.form], "{name}");
            for _ in 0..50 {
                assert_eq!(function(6, 7), result, "{name}");
            }
            assert_eq!((sum.load(Relaxed), probe.counts().hits), (50 * 607, 50), "{name}");
            probe.unregister().expect("unregistered");
            assert_eq!((function(6, 7), sum.load(Relaxed)), (result, 50 * 607), "{name}");
        }
        assert!(before == victim.text(), "every word is back");
        assert_eq!(maps, victim.maps());
    });
}

#[test]
fn a_batch_over_many_pages_is_in_place_at_once_and_the_maps_show_the_file() {
    Victim::in_both_forms(|victim| {
        let before = (victim.text(), victim.maps());
        let count = word();
        let request = |(name, _): (&str, u64)| victim.request(victim.offset(name), counting(count));
        let probes = register_all(FUNCTIONS.map(request)).expect("registered");
        for (name, result) in FUNCTIONS {
            assert_eq!(victim.function(name)(6, 7), result);
        }
        assert_eq!(count.load(Relaxed), FUNCTIONS.len() as u64);
        // The same pages of the same file are at the same addresses, and none of them is writable and
        // executable.
        let now = victim.maps();
        assert_eq!(before.1, now);
        assert!(now.iter().all(|map| !map.1.contains("wx")), "{now:?}");
        unregister_all(probes).expect("unregistered");
        assert!(before == (victim.text(), victim.maps()));
    });
}

#[test]
fn changed_registers_are_what_the_function_sees() {
    Victim::in_both_forms(|victim| {
        let add = victim.function("add");
        let _probe = victim.register("add", changing(|regs| regs.set(Gpr::X0, regs.get(Gpr::X0) + 1000)));
        assert_eq!(add(1, 5), 3008);
    });
}

#[test]
fn a_moved_instruction_pointer_is_gone_to_and_the_function_does_not_run() {
    Victim::in_both_forms(|victim| {
        let (moves, twice) = (victim.function("moves"), victim.address("twice"));
        // Goes on in another function with the same argument; for odd ones, back to the caller at once.
        let consumer = changing(move |regs| {
            if regs.x[0] % 2 == 0 {
                regs.pc = twice;
            } else {
                regs.pc = regs.get(Gpr::X30);
                regs.set_result(77);
            }
        });
        let _probe = victim.register("moves", consumer.moves_ip());
        for n in 0..50 {
            assert_eq!(moves(n, 5), if n % 2 == 0 { 2 * n } else { 77 });
        }
    });
}

#[test]
fn vectors_are_kept_around_a_handler_that_uses_them() {
    Victim::in_both_forms(|victim| {
        let (scale, sum) = (victim.floats("scale"), word());
        let consumer = Consumer::entry(move |hit| {
            let noise: [f64; 8] = std::array::from_fn(|n| n as f64 * hit.site() as f64);
            sum.store(
                std::hint::black_box(noise.map(|x| x.sqrt() * 3.0)).iter().sum::<f64>() as u64,
                Relaxed,
            );
            Verdict::Continue
        });
        let _probe = victim.register("scale", consumer);
        for n in 0..50 {
            let (x, y) = (f64::from(n) * 0.25, 3.5);
            assert_eq!(scale(x, y).to_bits(), (x * y + 0.5).to_bits());
        }
        assert_ne!(sum.load(Relaxed), 0);
    });
}

#[test]
fn the_newest_consumer_is_called_first_and_each_comes_and_goes_by_itself() {
    Victim::in_both_forms(|victim| {
        let (order, add) = (word(), victim.function("add"));
        let digit = |digit: u64| {
            Consumer::entry(move |_| {
                order.store(order.load(Relaxed) * 10 + digit, Relaxed);
                Verdict::Continue
            })
        };
        let [first, second, third] = [1, 2, 3].map(|n| victim.register("add", digit(n)));
        add(1, 1);
        assert_eq!(order.swap(0, Relaxed), 321);
        second.unregister().expect("unregistered");
        add(1, 1);
        assert_eq!(order.swap(0, Relaxed), 31);
        drop((first, third));
        add(1, 1);
        assert_eq!(order.load(Relaxed), 0);
    });
}

#[test]
fn a_filter_is_asked_first() {
    Victim::in_both_forms(|victim| {
        let (count, add) = (word(), victim.function("add"));
        let _probe = victim.register("add", counting(count).filter(|hit| hit.regs().x[0] > 90));
        (0..100).for_each(|n| assert_eq!(add(n, 0), n * 3));
        assert_eq!(count.load(Relaxed), 9);
    });
}

#[test]
fn a_hit_inside_a_handler_runs_unprobed_and_counts_as_missed() {
    Victim::in_both_forms(|victim| {
        let (sum, add) = (word(), victim.function("add"));
        let consumer = Consumer::entry(move |_| {
            sum.fetch_add(add(1, 1), Relaxed);
            Verdict::Continue
        });
        let probe = victim.register("add", consumer);
        (0..10).for_each(|n| assert_eq!(add(n, 0), n * 3));
        assert_eq!((sum.load(Relaxed), probe.counts().hits, probe.counts().nested), (40, 10, 10));
    });
}

#[test]
fn every_instruction_of_a_function_may_be_probed() {
    Victim::in_both_forms(|victim| {
        for (name, words, result) in [("signs", 6, 13), ("pushes", 5, 13), ("loads", 5, 113)] {
            let (count, function) = (word(), victim.function(name));
            let at = |n: u64| victim.request(victim.offset(name) + 4 * n, counting(count));
            let probes = register_all((0..words).map(at)).expect("registered");
            for calls in 1..=10 {
                assert_eq!((function(6, 7), count.load(Relaxed)), (result, calls * words), "{name}");
            }
            unregister_all(probes).expect("unregistered");
            assert_eq!((function(6, 7), count.load(Relaxed)), (result, 10 * words), "{name}");
        }
    });
}
