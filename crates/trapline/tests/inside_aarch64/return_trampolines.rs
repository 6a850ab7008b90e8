//! Returns seen by replaced return addresses: each call returns to its caller and is reported once, in all
//! circumstances.
#![allow(unsafe_code, reason = "handlers that change registers, children, signals")]

use std::cell::Cell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use trapline::inside::{
    Consumer, Gpr, Registration, Regs, Returns, TRAMPOLINES, Tally, Verdict, register, returns_to,
};

use crate::victim::{Victim, in_child, word};

/// What a session of one function saw.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    entries: &'static AtomicU64,
    returns: &'static AtomicU64,
    wrong: &'static AtomicU64,
}

impl Seen {
    pub(crate) fn new() -> Self {
        Self { entries: word(), returns: word(), wrong: word() }
    }
    /// Cookies are stack pointers, which a function has at its return as at its entry.
    fn either(self) -> Consumer {
        self.waits(|_| true)
    }
    /// After a return trampoline, a call goes on at the address in x30.
    pub(crate) fn session(self) -> Consumer {
        self.waits(|regs| regs.pc == regs.get(Gpr::X30) && regs.pc % 4 == 0)
    }
    fn waits(self, stands: fn(&Regs) -> bool) -> Consumer {
        Consumer::session(
            move |hit| {
                self.entries.fetch_add(1, Relaxed);
                let sp = hit.regs().sp;
                hit.set_cookie(sp);
                Verdict::Continue
            },
            move |hit| {
                self.returns.fetch_add(1, Relaxed);
                let is_its = hit.cookie() == hit.regs().sp && stands(hit.regs());
                self.wrong.fetch_add(u64::from(!is_its), Relaxed);
            },
        )
    }
    #[track_caller]
    pub(crate) fn expect(self, entries: u64, returns: u64) {
        let seen = [self.entries, self.returns, self.wrong].map(|word| word.load(Relaxed));
        assert_eq!(seen, [entries, returns, 0]);
    }
}

pub(crate) fn probe(victim: &Victim, name: &str, consumer: Consumer) -> Registration {
    let probe = victim.register(name, consumer.returns_by(Returns::Stack));
    assert_eq!((probe.returns_by(), probe.sites()), (Some(Returns::Stack), vec![victim.form]), "{name}");
    probe
}

pub(crate) type Called = extern "C" fn(u64) -> u64;

pub(crate) fn with(victim: &Victim) -> extern "C" fn(Called, u64) -> u64 {
    // SAFETY: `with` is one.
    unsafe { std::mem::transmute(victim.address("with") as *const ()) }
}

#[test]
fn calls_come_back_once_and_the_code_is_as_it_was() {
    Victim::in_both_forms(|victim| {
        let before = victim.text();
        for (name, result) in
            [("twice", 12), ("pushes", 13), ("moves", 42), ("signs", 13), ("empty", 6), ("signs_leaf", 42)]
        {
            let (seen, function) = (Seen::new(), victim.function(name));
            let probe = probe(victim, name, seen.session());
            (0..50).for_each(|_| assert_eq!(function(6, 7), result, "{name}"));
            seen.expect(50, 50);
            assert_eq!(probe.counts(), Tally { hits: 50, ..Tally::default() }, "{name}");
            drop(probe);
            assert_eq!(function(6, 7), result, "{name}");
            seen.expect(50, 50);
        }
        assert!(victim.text() == before);
    });
}

/// The return of a tail call is also that of its callee: one stack pointer with two return trampolines, as
/// the kernel's uretprobes chain.
#[test]
fn tail_calls_return_in_a_chain() {
    Victim::in_both_forms(|victim| {
        let (outer, inner) = (Seen::new(), Seen::new());
        let _probes = [probe(victim, "tail", outer.session()), probe(victim, "add", inner.session())];
        (0..100).for_each(|n| assert_eq!(victim.function("tail")(n, 0), (n + 1) * 3 + 7));
        outer.expect(100, 100);
        inner.expect(100, 100);
    });
}

/// Sixteen on one stack pointer, and no more: the others run unprobed, and are counted.
#[test]
fn tail_calls_without_end_are_armed_to_a_depth() {
    const CHAIN: u64 = trapline_record::trampolines::CHAIN as u64;
    Victim::in_both_forms(|victim| {
        let seen = Seen::new();
        let probe = probe(victim, "even", seen.session().maxactive(64));
        (1..=10).for_each(|n| {
            assert_eq!(victim.function("even")(60, 0), 5);
            seen.expect(CHAIN * n, CHAIN * n);
        });
        assert_eq!(probe.counts(), Tally { hits: 10 * CHAIN, empty: 10 * (31 - CHAIN), ..Tally::default() });
    });
}

#[test]
fn recursion_has_a_trampoline_for_each_call() {
    Victim::in_both_forms(|victim| {
        let (deep, fib) = (Seen::new(), Seen::new());
        let _probes = [
            probe(victim, "deep", deep.session().maxactive(61)),
            probe(victim, "fib", fib.session().maxactive(64)),
        ];
        (0..10).for_each(|_| assert_eq!(victim.function("deep")(60, 0), (6 << 60) - 1));
        deep.expect(610, 610);
        assert_eq!(victim.function("fib")(10, 0), 55);
        fib.expect(177, 177);
    });
}

/// Exits are patched where possible, and return addresses replaced otherwise.
#[test]
fn the_choice_may_be_left_to_the_engine() {
    let victim = Victim::load();
    let auto = |name| {
        let seen = Seen::new();
        let consumer = seen.either().returns_by(Returns::Auto);
        (seen, register(&victim.path, victim.offset(name), consumer).expect("registered"))
    };
    for (name, returns, result) in
        [("tail", Returns::Stack, 25), ("jumps", Returns::Stack, 0), ("twice", Returns::Exits, 10)]
    {
        let (seen, probe) = auto(name);
        assert_eq!(probe.returns_by(), Some(returns), "{name}");
        let value = victim.function(name)(5, 0);
        assert!(value == result || result == 0, "{name}: {value}");
        seen.expect(1, 1);
    }
}

/// One form for all consumers that wait at a site, and back to exits when the last of them is gone.
#[test]
fn a_site_has_one_form() {
    let victim = Victim::load();
    let by = |seen: Seen, returns| {
        register(&victim.path, victim.offset("twice"), seen.either().returns_by(returns)).expect("registered")
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

/// What a handler changes reaches the caller; if it moves the program counter, the call goes on there.
#[test]
fn a_return_handler_sees_and_changes_what_it_does_at_an_exit() {
    Victim::in_both_forms(|victim| {
        let (sum, elsewhere) = (word(), victim.address("moves"));
        let consumer = Consumer::session(
            |hit| {
                let n = hit.regs().x[0];
                hit.set_cookie(n);
                if n % 2 == 0 { Verdict::Continue } else { Verdict::IgnoreReturn }
            },
            move |hit| {
                assert_eq!(hit.regs().result(), hit.cookie() * 2);
                sum.fetch_add(1, Relaxed);
                let on = hit.cookie() % 4 == 0;
                // SAFETY: the caller takes any value; the other function multiplies it, and returns to the
                // caller.
                let regs = unsafe { hit.regs_mut() };
                regs.set_result(regs.result() + 1);
                regs.x[1] = 3;
                regs.pc = if on { elsewhere } else { regs.pc };
            },
        );
        let _probe = probe(victim, "twice", consumer.moves_ip());
        for n in 0..100 {
            let reported = n * 2 + u64::from(n % 2 == 0);
            assert_eq!(victim.function("twice")(n, 0), if n % 4 == 0 { reported * 3 } else { reported });
        }
        assert_eq!(sum.load(Relaxed), 50);
    });
}

/// Calls that are left: calls like them reuse their trampolines, and no return is reported for them.
#[test]
fn what_longjmp_leaves_is_had_again() {
    Victim::in_both_forms(|victim| {
        let (seen, catches) = (Seen::new(), victim.function("catches"));
        let probe = probe(victim, "leaves", seen.session().maxactive(2));
        const CALLS: u64 = 1000;
        for n in 0..CALLS {
            assert_eq!(catches(n, 0), if n % 2 == 1 { 1000 } else { n });
        }
        seen.expect(CALLS, CALLS / 2);
        let counts = probe.counts();
        assert_eq!((counts.hits, counts.missed(), counts.unreturned), (CALLS, 0, CALLS / 2 - 1));
    });
}

/// More calls in flight than there are return trampolines: those beyond run unprobed, and are counted. In a
/// child, which has trampolines of its own.
#[test]
fn without_a_free_trampoline_a_call_is_missed_and_counted() {
    const DEPTH: u64 = TRAMPOLINES as u64 + 500;
    let victim = Victim::load();
    let seen = Seen::new();
    let probe = probe(&victim, "deep", seen.session().maxactive(32_000));
    let plain = (0..=DEPTH).fold(2_u64, |value, _| value.wrapping_mul(2).wrapping_add(1));
    let run = || {
        let value = victim.function("deep")(DEPTH, 0);
        let tally = probe.counts();
        let reported = [seen.entries, seen.returns, seen.wrong].map(|word| word.load(SeqCst));
        let all = tally.hits + tally.empty == DEPTH + 1 && tally.empty > 500 && tally.hits > DEPTH / 2;
        i32::from(!(value == plain && all && reported == [tally.hits, tally.hits, 0]))
    };
    let in_room = || {
        std::thread::scope(|scope| {
            let big = std::thread::Builder::new().stack_size(64 << 20);
            big.spawn_scoped(scope, run).expect("a thread").join().expect("it ends")
        })
    };
    assert_eq!(in_child(in_room), 0);
}

/// A probe goes while calls are in flight: they return through their trampolines, and no return is reported.
/// A child returns by itself.
#[test]
fn calls_in_flight_return_to_their_callers() {
    static GATE: Barrier = Barrier::new(2);
    extern "C" fn blocks(x: u64) -> u64 {
        GATE.wait();
        GATE.wait();
        x
    }
    extern "C" fn forks(x: u64) -> u64 {
        // SAFETY: the child returns through the probed call, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            return x + 100;
        }
        let mut status = -1;
        // SAFETY: this process' own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        if status == 0 { x } else { 99 }
    }
    Victim::in_both_forms(|victim| {
        let (seen, with) = (Seen::new(), with(victim));
        let first = probe(victim, "with", seen.session());
        for n in 1..=3 {
            let value = with(forks, 4);
            if value == 105 {
                let reported = seen.returns.load(SeqCst) == n;
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!reported)) };
            }
            assert_eq!(value, 5);
            seen.expect(n, n);
        }
        std::thread::scope(|scope| {
            let calls = scope.spawn(|| with(blocks, 4));
            GATE.wait();
            first.unregister().expect("at once");
            GATE.wait();
            assert_eq!(calls.join().expect("it returns"), 5);
        });
        seen.expect(4, 3);
    });
}

/// A trampoline's address leads to the call's real return address; any other address leads to none.
#[test]
fn an_unwinder_of_its_own_may_ask() {
    static LINK: AtomicU64 = AtomicU64::new(0);
    let victim = Victim::load();
    let real = word();
    let consumer = Consumer::session(
        |hit| {
            LINK.store(hit.regs().get(Gpr::X30), SeqCst);
            Verdict::Continue
        },
        |_| {},
    );
    let _probe = probe(&victim, "signs_leaf", consumer);
    assert_eq!(victim.function("signs_leaf")(6, 0), 42);
    let seen = Seen::new();
    let _other = probe(&victim, "tail", seen.session());
    // The second probe of a chain is entered with the first one's trampoline as return address.
    let inner = Consumer::entry(move |hit| {
        real.store(hit.regs().get(Gpr::X30), SeqCst);
        Verdict::Continue
    });
    let _inner = victim.register("add", inner);
    assert_eq!(victim.function("tail")(1, 0), 13);
    let (trampoline, caller) = (real.load(SeqCst), LINK.load(SeqCst));
    let leads = returns_to(trampoline).expect("a return trampoline");
    assert!(leads != 0 && leads % 4 == 0 && returns_to(caller).is_none() && returns_to(leads).is_none());
}

/// A signal handler returns into the vdso, which unwinders recognize only by that address. So its calls are
/// missed, and counted.
#[test]
fn what_returns_into_the_vdso_keeps_its_return_address() {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    if !maps.lines().any(|line| line.ends_with("[vdso]")) {
        println!("SKIP: no vdso here");
        return;
    }
    Victim::in_both_forms(|victim| {
        let seen = Seen::new();
        let probe = probe(victim, "signs_leaf", seen.session());
        let leaf = victim.function("signs_leaf");
        // SAFETY: the handler is a function of a number; it is taken away before the library goes.
        unsafe {
            let before = libc::signal(libc::SIGUSR1, leaf as *const () as usize);
            (0..3).for_each(|_| assert_eq!(libc::raise(libc::SIGUSR1), 0));
            libc::signal(libc::SIGUSR1, before);
        }
        assert_eq!(leaf(6, 0), 42);
        assert_eq!(probe.counts(), Tally { hits: 1, empty: 3, ..Tally::default() });
        seen.expect(1, 1);
    });
}

/// Threads side by side, each interrupted all the time by a handler that makes armed calls: while a
/// trampoline is taken, and while a call returns. Each goes on calling until it has been interrupted, and is
/// interrupted until it has ended.
#[test]
fn every_return_is_its_calls_whatever_interrupts_it() {
    /// Fewest calls, and fewest interruptions among them, of each thread.
    const CALLS: u64 = 1000;
    const INTERRUPTIONS: u64 = 10;
    const THREADS: u64 = 3;
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
    Victim::in_both_forms(|victim| {
        let (twice, add) = (Seen::new(), Seen::new());
        let functions = (victim.function("twice"), victim.function("add"));
        ADD.store(functions.1 as *const () as u64, SeqCst);
        INNER.store(0, SeqCst);
        let probes = [probe(victim, "twice", twice.session()), probe(victim, "add", add.session())];
        // SAFETY: the handler calls a function that may be called anywhere, and stays.
        unsafe { libc::signal(libc::SIGUSR2, calls_too as *const () as usize) };
        let selves = [const { AtomicU64::new(0) }; THREADS as usize];
        let call = |own: &AtomicU64| {
            // SAFETY: no arguments.
            own.store(unsafe { libc::pthread_self() }, SeqCst);
            let enough = HANDLED.get() + INTERRUPTIONS;
            let mut n = 0;
            while n < CALLS || HANDLED.get() < enough {
                assert_eq!((functions.0(n % 100, 0), functions.1(n, 1)), (n % 100 * 2, n * 3 + 1));
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
                std::thread::yield_now();
            }
            threads.map(|thread| thread.join().expect("it ends"))
        });
        let (all, inner) = (calls.into_iter().sum::<u64>(), INNER.load(SeqCst));
        assert!(inner >= THREADS * INTERRUPTIONS, "{inner} interruptions");
        let counts = probes.each_ref().map(Registration::counts);
        let nested = counts[1].nested;
        assert_eq!((counts[0].hits, counts[1].hits), (all, all + inner - nested));
        twice.expect(all, all);
        add.expect(all + inner - nested, all + inner - nested);
        assert_eq!(counts.map(|one| one.empty + one.unreturned), [0, 0]);
    });
}
