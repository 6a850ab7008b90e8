//! Handlers are called as often as the functions are, and what they see and change is right. Tests run in
//! each form if their results must not depend on it: by jump and by trap, and with consumers for which only
//! general registers are saved.
#![allow(unsafe_code, reason = "handlers that change registers, and that promise to use general ones only")]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use trapline::inside::{Consumer, Gpr, Hit, Registration, Regs, Request, Tactic, Verdict, register_all};

use crate::victim::Victim;

/// A word for a handler to use: tests run side by side, so each has its own.
pub(crate) fn word() -> &'static AtomicU64 {
    Box::leak(Box::new(AtomicU64::new(0)))
}

/// Counts entries.
pub(crate) fn counting(word: &'static AtomicU64) -> Consumer {
    Consumer::entry(move |_| {
        word.fetch_add(1, Relaxed);
        Verdict::Continue
    })
}

fn changing(change: impl Fn(&mut Regs) + Send + Sync + 'static) -> Consumer {
    Consumer::entry(move |hit: &mut Hit<'_>| {
        // SAFETY: each test changes registers to what its function may go on with.
        change(unsafe { hit.regs_mut() });
        Verdict::Continue
    })
}

/// Sets a probe on a function, by name.
pub(crate) type Probing<'a> = &'a dyn Fn(&str, Consumer) -> Registration;

/// Runs a test in each form, with a library of its own each time: by jump, by trap, and both again without
/// saving vector registers. For tests with functions that keep nothing in those.
pub(crate) fn every_way(test: impl Fn(&Victim, Probing<'_>)) {
    ways(&test, &[(false, false), (true, false), (false, true), (true, true)]);
}

fn both_ways(test: impl Fn(&Victim, Probing<'_>)) {
    ways(&test, &[(false, false), (true, false)]);
}

fn ways(test: &impl Fn(&Victim, Probing<'_>), ways: &[(bool, bool)]) {
    for &(by_trap, general) in ways {
        let victim = Victim::load();
        let before = victim.text();
        test(&victim, &|name, consumer| {
            let consumer = match general {
                // SAFETY: the functions under test keep nothing in vector registers.
                true => unsafe { consumer.general_regs_only() },
                false => consumer,
            };
            let request = Request { by_trap, ..Request::new(&victim.path, victim.offset(name), consumer) };
            let probe = register_all([request]).expect("registered").pop().expect("one");
            assert_eq!(probe.sites(), [if by_trap { Tactic::Trap } else { Tactic::Jump }], "{name}");
            probe
        });
        assert_eq!(before, victim.text(), "every byte is back");
    }
}

#[test]
fn an_entry_handler_is_called_at_every_call() {
    every_way(|victim, probing| {
        let (sum, add) = (word(), victim.function("add"));
        let handler = move |hit: &mut Hit<'_>| {
            sum.fetch_add(hit.regs().get(Gpr::Rdi), Relaxed);
            Verdict::Continue
        };
        let probe = probing("add", Consumer::entry(handler));
        for n in 0..100 {
            assert_eq!(add(n, 7), n * 3 + 7);
        }
        assert_eq!(sum.load(Relaxed), 99 * 100 / 2);
        assert_eq!(probe.counts().hits, 100);
        probe.unregister().expect("unregistered");
        assert_eq!(add(5, 7), 22);
        assert_eq!(sum.load(Relaxed), 99 * 100 / 2);
    });
}

#[test]
fn eight_threads_are_counted_exactly() {
    const CALLS: u64 = 20_000;
    every_way(|victim, probing| {
        let (count, twice) = (word(), victim.function("twice"));
        let probe = probing("twice", counting(count));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..CALLS).for_each(|n| assert_eq!(twice(n % 100, 0), n % 100 * 2)));
            }
        });
        assert_eq!((count.load(Relaxed), probe.counts().hits), (8 * CALLS, 8 * CALLS));
        assert_eq!(probe.counts().missed(), 0);
    });
}

#[test]
fn changed_registers_are_what_the_function_sees() {
    every_way(|victim, probing| {
        let add = victim.function("add");
        let _probe = probing("add", changing(|regs| regs.set(Gpr::Rdi, regs.get(Gpr::Rdi) + 1000)));
        assert_eq!(add(1, 5), 3008);
    });
}

#[test]
fn a_moved_instruction_pointer_is_gone_to_and_the_function_does_not_run() {
    every_way(|victim, probing| {
        let (add, twice) = (victim.function("add"), victim.address("twice"));
        // Even numbers go to another function with the same arguments, odd ones back to the caller at once.
        let consumer = changing(move |regs| {
            if regs.get(Gpr::Rdi) % 2 == 0 {
                regs.rip = twice;
                return;
            }
            // SAFETY: at a function's entry, the stack pointer points to the return address.
            regs.rip = unsafe { *(regs.sp() as *const u64) };
            regs.set(Gpr::Rsp, regs.sp() + 8);
            regs.set(Gpr::Rax, 77);
        });
        let _probe = probing("add", consumer.moves_ip().moves_sp());
        for n in 0..50 {
            assert_eq!(add(n, 5), if n % 2 == 0 { 2 * n } else { 77 });
        }
    });
}

#[test]
fn vector_arguments_and_results_are_kept_around_a_handler_that_uses_vectors() {
    both_ways(|victim, probing| {
        let scale = victim.floats("scale");
        let sum = word();
        let consumer = Consumer::entry(move |hit| {
            let noise: [f64; 8] = std::array::from_fn(|n| n as f64 * hit.site() as f64);
            sum.store(
                std::hint::black_box(noise.map(|x| x.sqrt() * 3.0)).iter().sum::<f64>() as u64,
                Relaxed,
            );
            Verdict::Continue
        });
        let _probe = probing("scale", consumer);
        for n in 0..100 {
            let (x, y) = (f64::from(n) * 0.25, 3.5);
            assert_eq!(scale(x, y).to_bits(), (x * y + 0.5).to_bits());
        }
        assert_ne!(sum.load(Relaxed), 0);
    });
}

#[test]
fn the_red_zone_of_a_leaf_is_kept_at_an_instruction_inside_it() {
    for by_trap in [false, true] {
        let victim = Victim::load();
        let (count, red) = (word(), victim.function("red"));
        let offset = victim.offset_of_address(victim.address("red_inside"));
        let request = Request { by_trap, ..Request::new(&victim.path, offset, counting(count)) };
        let probes = register_all([request]).expect("registered");
        let out = word();
        for n in 0..100u64 {
            // Both words are in the red zone while the handler runs: n, then its complement.
            assert_eq!(red(out.as_ptr() as u64, n), 0);
            assert_eq!(out.load(Relaxed), u64::MAX);
        }
        assert_eq!((count.load(Relaxed), probes[0].counts().hits), (100, 100));
    }
}

#[test]
fn no_room_for_a_jump_is_a_trap() {
    let victim = Victim::load();
    let (count, tiny, after) = (word(), victim.function("tiny"), victim.function("after"));
    let requests =
        ["tiny", "after"].map(|name| Request::new(&victim.path, victim.offset(name), counting(count)));
    let probes = register_all(requests).expect("registered");
    assert_eq!(probes[0].sites(), [Tactic::Trap]);
    for n in 0..10 {
        tiny(n, n);
        assert_eq!(after(n, 0), 5 * n);
    }
    assert_eq!((probes[0].counts().hits, probes[1].counts().hits), (10, 10));
    assert_eq!(count.load(Relaxed), 20);
}

#[test]
fn the_newest_consumer_is_called_first() {
    every_way(|victim, probing| {
        let (order, add) = (word(), victim.function("add"));
        let digit = |digit: u64| {
            Consumer::entry(move |_| {
                order.store(order.load(Relaxed) * 10 + digit, Relaxed);
                Verdict::Continue
            })
        };
        let probes = [1, 2, 3].map(|n| probing("add", digit(n)));
        add(1, 1);
        assert_eq!(order.swap(0, Relaxed), 321);
        let [first, second, third] = probes;
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
    every_way(|victim, probing| {
        let (count, add) = (word(), victim.function("add"));
        let _probe = probing("add", counting(count).filter(|hit| hit.regs().get(Gpr::Rdi) > 90));
        (0..100).for_each(|n| assert_eq!(add(n, 0), n * 3));
        assert_eq!(count.load(Relaxed), 9);
    });
}

#[test]
fn a_hit_inside_a_handler_runs_unprobed_and_counts_as_missed() {
    every_way(|victim, probing| {
        let (sum, add) = (word(), victim.function("add"));
        let consumer = Consumer::entry(move |_| {
            sum.fetch_add(add(1, 1), Relaxed);
            Verdict::Continue
        });
        let probe = probing("add", consumer);
        (0..10).for_each(|n| assert_eq!(add(n, 0), n * 3));
        assert_eq!(sum.load(Relaxed), 40);
        assert_eq!((probe.counts().hits, probe.counts().nested), (10, 10));
    });
}

#[test]
fn vectors_are_kept_by_the_engine_itself_around_a_handler_that_leaves_them_alone() {
    extern "C" fn quiet(data: *const AtomicU64) {
        // SAFETY: the test's word.
        unsafe { std::arch::asm!("lock inc qword ptr [{}]", in(reg) data) };
    }
    let victim = Victim::load();
    let scale = victim.floats("scale");
    let (count, before) = (word(), victim.text());
    let at = word().as_ptr() as usize;
    let quiet = std::hint::black_box(quiet as extern "C" fn(*const AtomicU64));
    let consumer = Consumer::entry(move |_| {
        quiet(at as *const AtomicU64);
        Verdict::Continue
    });
    // SAFETY: a call, an increment, a constant.
    let consumer = unsafe { consumer.general_regs_only() };
    let request = Request::new(&victim.path, victim.offset("scale"), consumer);
    let probes = register_all([request]).expect("registered");
    let check = |calls: u32| {
        for n in 0..calls {
            let (x, y) = (f64::from(n) * 0.25, 3.5);
            assert_eq!(scale(x, y).to_bits(), (x * y + 0.5).to_bits());
        }
    };
    check(100);
    assert_eq!(probes[0].counts().hits, 100);
    // A second consumer: from now on, the fast path does not suffice.
    let second = register_all([Request::new(&victim.path, victim.offset("scale"), counting(count))])
        .expect("registered");
    check(100);
    assert_eq!((probes[0].counts().hits, count.load(Relaxed)), (200, 100));
    drop(second);
    check(100);
    drop(probes);
    assert_eq!(before, victim.text());
}

#[test]
fn a_consumer_alone_may_want_its_probe_removed() {
    every_way(|victim, probing| {
        let (count, add) = (word(), victim.function("add"));
        let consumer = Consumer::entry(move |_| {
            count.fetch_add(1, Relaxed);
            Verdict::Remove
        });
        let probe = probing("add", consumer);
        add(1, 1);
        trapline::inside::rescan().expect("a look");
        add(1, 1);
        assert_eq!((count.load(Relaxed), probe.sites().len()), (1, 0));
    });
}
