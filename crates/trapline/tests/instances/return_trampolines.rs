//! What only replaced return addresses can do, and which functions are refused.

use trapline::inside::{Consumer, Error, Gpr, Returns, Tally, Verdict, find, register};
use trapline_tests::alone;

use crate::victim::Victim;
use crate::{How, Seen, deeper, of_the_kernel, probe, same, thrown, word};

use std::cell::Cell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const STACK: [How; 3] = [How::Trampoline, How::TrampolineByTrap, How::TrampolineGeneral];

/// The return of a tail call is also that of its callee: one stack word with two return trampolines, as the
/// kernel's uretprobes chain.
#[test]
fn tail_calls_return_in_a_chain() {
    for way in STACK {
        let victim = Victim::load();
        let (outer, inner) = (Seen::new(), Seen::new());
        let _probes =
            [probe(&victim, "tail", outer.session(), way), probe(&victim, "add", inner.session(), way)];
        (0..100).for_each(|n| assert_eq!(victim.function("tail")(n, 0), (n + 1) * 3 + 7));
        outer.expect(100, 100);
        inner.expect(100, 100);
    }
    let run =
        |victim: &Victim| (0..100).for_each(|n| assert_eq!(victim.function("tail")(n, 0), (n + 1) * 3 + 7));
    if let Some(returns) = of_the_kernel("tail", run) {
        assert_eq!(returns, 100);
    }
}

/// Calls on one stack word, one over the other. If no instance is free, those below keep what they hold.
#[test]
fn tail_calls_of_one_function_keep_what_they_hold() {
    for way in STACK {
        let victim = Victim::load();
        let seen = Seen::new();
        let probe = probe(&victim, "even", seen.session().maxactive(1), way);
        (0..20).for_each(|_| assert_eq!(victim.function("even")(28, 0), 5));
        let tally = probe.counts();
        assert_eq!(tally.hits + tally.empty, 20 * 15, "{tally:?}");
        assert!(tally.empty > 0 && tally.missed() == tally.empty, "{tally:?}");
        seen.expect(tally.hits, tally.hits);
    }
}

/// Exits are patched where possible, and return addresses replaced otherwise.
#[test]
fn the_choice_may_be_left_to_the_engine() {
    let victim = Victim::load();
    let auto = |name| {
        let seen = Seen::new();
        let consumer = seen.session().returns_by(Returns::Auto);
        (seen, register(&victim.path, victim.offset(name), consumer).expect("registered"))
    };
    let (tail, by_stack) = auto("tail");
    let (twice, by_exits) = auto("twice");
    assert_eq!(by_stack.returns_by(), Some(Returns::Stack));
    assert_eq!(by_exits.returns_by(), Some(Returns::Exits));
    (0..100).for_each(|n| assert_eq!(victim.function("tail")(n, 0), (n + 1) * 3 + 7));
    (0..100).for_each(|n| assert_eq!(victim.function("twice")(n, 0), n * 2));
    tail.expect(100, 100);
    twice.expect(100, 100);
}

/// The handler finds the value, the stack pointer of the entry, and the address where the call goes on. What
/// it changes reaches the caller.
#[test]
fn a_return_handler_sees_and_changes_what_it_does_at_an_exit() {
    for how in STACK.into_iter().chain([How::Jump]) {
        let victim = Victim::load();
        let (sum, wrong) = (word(), word());
        let consumer = Consumer::session(
            |hit| {
                hit.set_cookie(hit.regs().get(Gpr::Rdi));
                if hit.cookie() % 2 == 0 { Verdict::Continue } else { Verdict::IgnoreReturn }
            },
            move |hit| {
                let value = hit.regs().get(Gpr::Rax);
                wrong.fetch_add(u64::from(value != hit.cookie() * 2), SeqCst);
                sum.fetch_add(1, SeqCst);
                // SAFETY: the caller takes any value.
                unsafe { hit.regs_mut() }.set(Gpr::Rax, value + 1);
            },
        );
        let _probe = probe(&victim, "twice", consumer, how);
        (0..100).for_each(|n| assert_eq!(victim.function("twice")(n, 0), n * 2 + u64::from(n % 2 == 0)));
        assert_eq!((sum.load(SeqCst), wrong.load(SeqCst)), (50, 0));
    }
}

/// After a return trampoline, vectors, flags and all other registers are as the function left them.
#[test]
fn values_in_vector_registers_come_back() {
    for way in STACK {
        let victim = Victim::load();
        let seen = Seen::new();
        let _probe = probe(&victim, "scale", seen.session(), way);
        (0..100)
            .for_each(|n| assert_eq!(victim.floats("scale")(f64::from(n), 0.25), f64::from(n) * 0.25 + 0.5));
        seen.expect(100, 100);
    }
}

/// A consumer that waits only for returns and uses only general registers: the first call of a trampoline,
/// the next ones, calls that were left, and calls beyond `maxactive`.
#[test]
fn returns_alone() {
    let victim = Victim::load();
    let (returns, wrong) = (word(), word());
    let waits = |maxactive| {
        let consumer = Consumer::returns(move |hit| {
            let (sp, goes_to) = (hit.regs().get(Gpr::Rsp), hit.regs().rip);
            // SAFETY: the stack word of the call that returns; the caller's address is back in it.
            wrong.fetch_add(u64::from(unsafe { *(sp as *const u64) } != goes_to), SeqCst);
            returns.fetch_add(1, SeqCst);
        });
        consumer.maxactive(maxactive)
    };
    let seen = || (returns.swap(0, SeqCst), wrong.load(SeqCst));

    let twice = probe(&victim, "twice", waits(4), How::TrampolineGeneral);
    (0..1000).for_each(|n| assert_eq!(victim.function("twice")(n % 100, 0), n % 100 * 2));
    assert_eq!((seen(), twice.counts()), ((1000, 0), Tally { hits: 1000, ..Tally::default() }));

    let deep = probe(&victim, "deep", waits(61), How::TrampolineGeneral);
    (0..10).for_each(|_| assert_eq!(victim.function("deep")(60, 0), (6 << 60) - 1));
    assert_eq!((seen(), deep.counts()), ((610, 0), Tally { hits: 610, ..Tally::default() }));

    let with = probe(&victim, "with", waits(8), How::TrampolineGeneral);
    for depth in (0..500).rev() {
        deeper(depth, &|| thrown(crate::with(&victim)));
        assert_eq!(crate::with(&victim)(same, 4), 5);
    }
    assert_eq!((seen(), with.counts()), ((500, 0), Tally { hits: 1000, ..Tally::default() }));

    // One stack word and return address for all: trampolines of calls that were left are reused.
    for n in 0..1000 {
        thrown(crate::with(&victim));
        assert_eq!(with.counts().hits, 1001 + n);
    }
    assert_eq!((seen().0, with.counts().missed()), (0, 0));

    // A consumer that comes or goes while calls are in flight.
    let few = probe(&victim, "add", waits(2), How::TrampolineGeneral);
    (0..100).for_each(|_| assert_eq!(victim.function("add")(2, 1), 7));
    drop(few);
    (0..100).for_each(|_| assert_eq!(victim.function("add")(2, 1), 7));
    assert_eq!(seen(), (100, 0));
}

/// One call instruction that calls two functions in turn has one return trampoline for both; the entry there
/// keeps the site and way of the last call. Each return is reported for its own function. That also holds
/// when the probes, and the code that leads through them, have changed.
#[test]
fn one_place_that_calls_two_functions_has_one_trampoline_for_both() {
    let victim = Victim::load();
    let names = ["add", "twice"];
    let functions = names.map(|name| victim.function(name));
    for round in 0..20 {
        let wrong = word();
        let reported = names.map(|_| word());
        let waits = |n: usize| {
            let (its, own) = (functions[n] as *const () as u64, reported[n]);
            Consumer::returns(move |hit| {
                wrong.fetch_add(u64::from(hit.site() != its), SeqCst);
                own.fetch_add(1, SeqCst);
            })
        };
        // Registered in alternating order, so each is at another place in memory than the last time.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        let _probes = order.map(|n| probe(&victim, names[n], waits(n), How::TrampolineGeneral));
        for n in 0..100 {
            // Runs of different lengths, so that each function follows itself and the other.
            let which = usize::from(std::hint::black_box(n % 7 < 3));
            let expected = [n * 3 + 1, n * 2][which];
            assert_eq!(functions[which](n, 1), expected);
        }
        let sevens = |which: u64| (0..100).filter(|n| u64::from(n % 7 < 3) == which).count() as u64;
        let counted = reported.map(|one| one.load(SeqCst));
        assert_eq!((counted, wrong.load(SeqCst)), ([sevens(0), sevens(1)], 0), "round {round}");
    }
}

/// A second consumer comes and goes. So calls from one place take their return trampoline by the full path
/// and by the fast one in turn, and each finds its own state there.
#[test]
fn a_trampoline_is_had_the_long_way_and_the_short_one_in_turn() {
    let victim = Victim::load();
    let function = victim.function("add");
    let (wrong, reported) = (word(), word());
    let waits = || {
        Consumer::returns(move |hit| {
            wrong.fetch_add(u64::from(hit.site() != function as *const () as u64), SeqCst);
            reported.fetch_add(1, SeqCst);
        })
    };
    let _first = probe(&victim, "add", waits(), How::TrampolineGeneral);
    for round in 0..40 {
        let second = (round % 2 == 1).then(|| probe(&victim, "add", waits(), How::TrampolineGeneral));
        for n in 0..10 {
            assert_eq!(function(std::hint::black_box(n), 1), n * 3 + 1);
        }
        let both = if second.is_some() { 20 } else { 10 };
        assert_eq!((reported.swap(0, SeqCst), wrong.load(SeqCst)), (both, 0), "round {round}");
    }
}

/// A consumer that waits only for returns. A child and its parent both return, each by itself; so does a call
/// after its probe is gone.
#[test]
fn calls_that_were_entered_from_their_trampolines_return_to_their_callers() {
    static CHILD: AtomicU64 = AtomicU64::new(0);
    static GATE: Barrier = Barrier::new(2);
    extern "C" fn forks(x: u64) -> u64 {
        // SAFETY: the child returns through the probed call and ends; it allocates nothing.
        CHILD.store(unsafe { libc::fork() } as u64, SeqCst);
        x
    }
    extern "C" fn blocks(x: u64) -> u64 {
        GATE.wait();
        GATE.wait();
        x
    }
    let victim = Victim::load();
    let returns = word();
    let waits = Consumer::returns(|_| {
        returns.fetch_add(1, SeqCst);
    });
    let first = probe(&victim, "with", waits, How::TrampolineGeneral);
    let with = crate::with(&victim);
    for n in 1..=5 {
        assert_eq!(with(forks, 4), 5);
        let (child, reported) = (CHILD.load(SeqCst) as i32, returns.load(SeqCst) == n);
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!reported)) };
        }
        let mut status = -1;
        // SAFETY: this process' own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(reported && status == 0, "{n}: {status}");
    }
    std::thread::scope(|scope| {
        let calls = scope.spawn(move || {
            // A single call site, which no compiler unrolls.
            let functions: Vec<extern "C" fn(u64) -> u64> = vec![same, same, same, blocks, same];
            std::hint::black_box(functions).into_iter().map(|function| with(function, 4)).collect::<Vec<_>>()
        });
        GATE.wait();
        first.unregister().expect("at once");
        GATE.wait();
        assert_eq!(calls.join().expect("it returns"), [5; 5]);
    });
    assert_eq!(returns.load(SeqCst), 5 + 3);
}

/// Threads side by side, each interrupted all the time by a handler that makes armed calls. It interrupts
/// while a trampoline is taken, while the function is entered from it, and while the call returns. In a
/// process of its own, which has its signals to itself.
///
/// However late the interrupting thread gets its turn, each other thread is interrupted among its calls: it goes
/// on calling until it has been, and the interrupting thread goes on until all others have ended. A signal that
/// is sent to a running thread is delivered when it next comes back from the kernel.
#[test]
fn every_return_is_its_call_s_whatever_interrupts_it() {
    alone("return_trampolines::every_return_is_its_call_s_whatever_interrupts_it", || {
        STACK.into_iter().for_each(storm);
    });
}

fn storm(way: How) {
    /// Fewest calls, and fewest interruptions among them, of each thread.
    const CALLS: u64 = 20_000;
    const INTERRUPTIONS: u64 = 50;
    const THREADS: u64 = 4;
    thread_local! {
        /// Signals that this thread has handled.
        static HANDLED: Cell<u64> = const { Cell::new(0) };
    }
    static ADD: AtomicU64 = AtomicU64::new(0);
    static INNER: AtomicU64 = AtomicU64::new(0);
    extern "C" fn calls_too(_: i32) {
        // SAFETY: `add` of the victim that is loaded.
        let add: extern "C" fn(u64, u64) -> u64 = unsafe { std::mem::transmute(ADD.load(SeqCst)) };
        assert_eq!(add(1, 1), 4);
        HANDLED.set(HANDLED.get() + 1);
        INNER.fetch_add(1, SeqCst);
    }
    let victim = Victim::load();
    let (seen, reported) = (Seen::new(), word());
    let only = Consumer::returns(move |hit| {
        reported.fetch_add(hit.regs().get(Gpr::Rax), SeqCst);
    });
    let (twice, add) = (victim.function("twice"), victim.function("add"));
    ADD.store(add as *const () as u64, SeqCst);
    INNER.store(0, SeqCst);
    let probes = [probe(&victim, "twice", seen.session(), way), probe(&victim, "add", only, way)];
    // SAFETY: the handler calls a function that may be called anywhere, and stays.
    unsafe { libc::signal(libc::SIGUSR2, calls_too as *const () as usize) };
    let selves = [const { AtomicU64::new(0) }; THREADS as usize];
    let call = |own: &AtomicU64| {
        // SAFETY: no arguments.
        own.store(unsafe { libc::pthread_self() }, SeqCst);
        let enough = HANDLED.get() + INTERRUPTIONS;
        let mut n = 0;
        while n < CALLS || HANDLED.get() < enough {
            assert_eq!((twice(n % 100, 0), add(n, 1)), (n % 100 * 2, n * 3 + 1));
            n += 1;
        }
        n
    };
    let calls = std::thread::scope(|scope| {
        let threads = selves.each_ref().map(|own| scope.spawn(move || call(own)));
        while !threads.iter().all(|thread| thread.is_finished()) {
            for thread in selves.iter().map(|one| one.load(SeqCst)).filter(|one| *one != 0) {
                // SAFETY: the threads have not been joined.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
            }
        }
        // A thread that is finished may still run a handler until it has ended.
        threads.map(|thread| thread.join().expect("it ends"))
    });
    let (all, inner) = (calls.iter().sum::<u64>(), INNER.load(SeqCst));
    assert!(inner >= THREADS * INTERRUPTIONS, "{inner} interruptions");
    seen.expect(all, all);
    // A handler that interrupts a hit makes calls inside that hit, which are missed and counted.
    let counts = probes.each_ref().map(|probe| probe.counts());
    let nested = counts[1].nested;
    let outer = calls.into_iter().flat_map(|calls| 0..calls).map(|n| n * 3 + 1).sum::<u64>();
    assert_eq!(reported.load(SeqCst), outer + (inner - nested) * 4);
    let hits = Tally { hits: all, ..Tally::default() };
    assert_eq!(counts, [hits, Tally { hits: all + inner - nested, nested, ..hits }]);
}

/// More pairs of stack word and return address than can be bound: the others take a trampoline for each call.
/// In a process of its own, as half of its trampolines stay bound.
#[test]
fn stacks_of_every_depth() {
    alone("return_trampolines::stacks_of_every_depth", every_depth);
}

fn every_depth() {
    let victim = Victim::load();
    let seen = Seen::new();
    let probe = probe(&victim, "twice", seen.session(), How::TrampolineGeneral);
    const DEPTHS: u64 = 4 * trapline::inside::TRAMPOLINES as u64;
    extern "C" fn at(depth: u64, function: extern "C" fn(u64, u64) -> u64) {
        // SAFETY: room on the stack, below which the function is called.
        unsafe {
            std::arch::asm!(
                "mov r12, rsp; sub rsp, rdi; and rsp, -16; call rsi; mov rsp, r12",
                inout("rdi") depth * 16 => _, inout("rsi") function => _, out("r12") _, clobber_abi("C"),
            );
        }
    }
    let run = || (0..DEPTHS).for_each(|depth| at(depth, victim.function("twice")));
    std::thread::scope(|scope| {
        let big = std::thread::Builder::new().stack_size(16 << 20);
        big.spawn_scoped(scope, run).expect("a thread").join().expect("it ends");
    });
    seen.expect(DEPTHS, DEPTHS);
    assert_eq!(probe.counts(), Tally { hits: DEPTHS, ..Tally::default() });
}

/// One form for all consumers that wait at a site, and back to exits when the last of them is gone.
#[test]
fn a_site_has_one_form() {
    let victim = Victim::load();
    let by = |seen: Seen, returns| {
        register(&victim.path, victim.offset("twice"), seen.session().returns_by(returns))
            .expect("registered")
    };
    let run = || (0..10).for_each(|n| assert_eq!(victim.function("twice")(n, 0), n * 2));
    let (one, other, third) = (Seen::new(), Seen::new(), Seen::new());
    let exits = by(one, Returns::Exits);
    run();
    let stack = by(other, Returns::Stack);
    assert_eq!(exits.returns_by(), Some(Returns::Stack));
    run();
    drop(stack);
    run();
    drop(exits);
    let again = by(third, Returns::Exits);
    assert_eq!(again.returns_by(), Some(Returns::Exits));
    run();
    one.expect(30, 30);
    other.expect(10, 10);
    third.expect(10, 10);
}

/// More calls in flight than there are return trampolines: those beyond run unprobed, and are counted. Alone in
/// a process, as other tests' calls would hold trampolines too.
#[test]
fn without_a_free_trampoline_a_call_is_missed_and_counted() {
    const NAME: &str = "return_trampolines::without_a_free_trampoline_a_call_is_missed_and_counted";
    const DEPTH: u64 = trapline::inside::TRAMPOLINES as u64 + 1000;
    trapline_tests::alone(NAME, || {
        let victim = Victim::load();
        let seen = Seen::new();
        let probe = probe(&victim, "deep", seen.session().maxactive(32_000), How::Trampoline);
        let plain = (0..DEPTH).fold(5_u64, |value, _| value.wrapping_mul(2).wrapping_add(1));
        let run = move || {
            assert_eq!(victim.function("deep")(DEPTH, 0), plain);
            let tally = probe.counts();
            assert_eq!(tally.hits + tally.empty, DEPTH + 1, "{tally:?}");
            assert!(tally.empty > 1000 && tally.hits > DEPTH / 2, "{tally:?}");
            let reported = [seen.entries, seen.returns, seen.wrong].map(|word| word.load(SeqCst));
            assert_eq!(reported, [tally.hits, tally.hits, 0]);
        };
        let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(run);
        thread.expect("a thread").join().expect("right");
    });
}

#[test]
fn a_function_that_cannot_have_trampolines_is_refused_by_name() {
    let by_stack = |file: &str, name: &str| {
        let (file, offset) = find(file, name).expect("there");
        register(file, offset, Consumer::returns(|_| {}).returns_by(Returns::Stack)).expect_err("refused")
    };
    for (name, says) in [("setjmp", "return address"), ("_exit", "no exit"), ("vfork", "return address")] {
        let error = by_stack("libc", name);
        assert!(
            matches!(error, Error::Refused { .. }) && error.to_string().contains(says),
            "{name}: {error}"
        );
        assert_eq!(error.errno(), libc::EOPNOTSUPP);
    }
}
