//! Registering and unregistering: while other threads hit, while libraries come and go, in forked children,
//! and when there are obstacles.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use trapline::inside::{
    Consumer, Error, Request, Tactic, Verdict, noticed, register, register_all, rescan, unregister_all,
};

use crate::calls::{counting, word};
use crate::maps::reads_loaders;
use crate::victim::{Victim, no_loading};

#[test]
fn a_file_that_is_not_mapped_yet_takes_hold_when_it_is_mapped() {
    let path = Victim::file();
    let offset = Victim::load_file(path.clone()).offset("add");
    let count = word();
    let probe = register(&path, offset, counting(count)).expect("registered");
    assert!(probe.sites().is_empty());
    if !reads_loaders() {
        return;
    }
    for round in 1..=3 {
        let before = noticed().impatient;
        let victim = Victim::load_file(path.clone());
        let add = victim.function("add");
        assert_eq!(add(1, 1), 4);
        if noticed().impatient == before {
            assert_eq!(count.load(Relaxed), round, "armed when dlopen returned");
            assert_eq!(probe.sites(), [Tactic::Jump]);
        }
        count.store(round, Relaxed);
        drop(victim);
        if noticed().impatient == before {
            assert!(probe.sites().is_empty(), "unmapped");
        }
    }
}

#[test]
fn a_batch_is_registered_whole_or_not_at_all() {
    let victim = Victim::load();
    let (before, count) = (victim.text(), word());
    let at = |name: &str, consumer| Request::new(&victim.path, victim.offset(name), consumer);
    let error = register_all([
        at("add", counting(count)),
        at("twice", counting(count)),
        at("tail", Consumer::returns(|_| {})),
        at("scale", counting(count)),
    ])
    .expect_err("a tail call");
    assert!(matches!(error, Error::Refused { offset, .. } if offset == victim.offset("tail")), "{error}");
    assert_eq!(before, victim.text());
    assert_eq!(victim.function("add")(1, 1), 4);
    assert_eq!(count.load(Relaxed), 0);
    let probes =
        register_all(["add", "twice", "scale"].map(|name| at(name, counting(count)))).expect("registered");
    assert_eq!(victim.function("twice")(200, 0), 801);
    assert_eq!(count.load(Relaxed), 2);
    unregister_all(probes).expect("unregistered");
    assert_eq!(before, victim.text());
}

/// attach_uprobe_fails: three good requests, and one that is a breakpoint itself, at each position in the
/// batch, by jump and by trap.
#[test]
fn a_batch_with_a_breakpoint_in_it_is_rolled_back() {
    const GOOD: [(&str, u64); 3] = [("add", 4), ("twice", 2), ("whole", 6)];
    let victim = Victim::load();
    let (before, own) = (victim.text(), victim.offset("stops"));
    let functions = || GOOD.iter().map(|(name, result)| (victim.function(name), *result));
    for (nth, by_trap) in (0..8).map(|n| (n / 2, n % 2 == 1)) {
        let (count, spoiled) = (word(), word());
        let good = || {
            let request = |(name, _): &(&str, u64)| Request {
                by_trap,
                ..Request::new(&victim.path, victim.offset(name), counting(count))
            };
            GOOD.iter().map(request).collect::<Vec<_>>()
        };
        let mut batch = good();
        batch.insert(nth, Request::new(&victim.path, own, counting(spoiled)));
        let error = register_all(batch).expect_err("a breakpoint");
        assert!(matches!(error, Error::Breakpoint { offset, .. } if offset == own), "{nth}: {error}");
        assert!(before == victim.text(), "{nth}");
        functions().for_each(|(function, result)| assert_eq!(function(1, 1), result));
        assert_eq!((count.load(Relaxed), spoiled.load(Relaxed)), (0, 0), "{nth}");
        let probes = register_all(good()).expect("without it");
        functions().for_each(|(function, result)| assert_eq!(function(1, 1), result));
        assert_eq!(count.load(Relaxed), 3);
        unregister_all(probes).expect("unregistered");
        assert!(before == victim.text());
    }
}

#[test]
fn probes_close_to_each_other_share_a_window_and_come_and_go_by_themselves() {
    let victim = Victim::load();
    let before = victim.text();
    let red = victim.function("red");
    let inside = victim.offset_of_address(victim.address("red_inside"));
    let out = word();
    let counts: [_; 4] = std::array::from_fn(|_| word());
    // The instruction and the three one-byte nops after it, one registration after the other.
    let mut probes: Vec<_> = [0, 4, 5, 6]
        .iter()
        .zip(counts)
        .map(|(at, count)| register(&victim.path, inside + at, counting(count)).expect("registered"))
        .collect();
    red(out.as_ptr() as u64, 1);
    assert_eq!(counts.map(|count| count.load(Relaxed)), [1, 1, 1, 1]);
    probes.remove(1).unregister().expect("unregistered");
    red(out.as_ptr() as u64, 1);
    assert_eq!(counts.map(|count| count.load(Relaxed)), [2, 1, 2, 2]);
    drop(probes);
    red(out.as_ptr() as u64, 1);
    assert_eq!(counts.map(|count| count.load(Relaxed)), [2, 1, 2, 2]);
    assert_eq!(before, victim.text());
}

#[test]
fn unregistering_waits_for_handlers_that_run() {
    let victim = Victim::load();
    let add = victim.function("add");
    static INSIDE: AtomicBool = AtomicBool::new(false);
    static GO_ON: AtomicBool = AtomicBool::new(false);
    static OVER: AtomicBool = AtomicBool::new(false);
    let consumer = Consumer::entry(|_| {
        INSIDE.store(true, SeqCst);
        while !GO_ON.load(SeqCst) {
            std::hint::spin_loop();
        }
        OVER.store(true, SeqCst);
        Verdict::Continue
    });
    let probe = register(&victim.path, victim.offset("add"), consumer).expect("registered");
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(add(1, 1), 4));
        while !INSIDE.load(SeqCst) {
            std::hint::spin_loop();
        }
        let waiter = scope.spawn(|| {
            probe.unregister().expect("unregistered");
            assert!(OVER.load(SeqCst), "returned while the handler ran");
        });
        // This does not prove waiting, the assertion above does; it gives a wrong implementation the time to
        // show.
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waiter.is_finished());
        GO_ON.store(true, SeqCst);
    });
}

#[test]
fn a_handler_may_not_register() {
    let victim = Victim::load();
    let refused = word();
    let consumer = Consumer::entry(move |_| {
        refused.store(u64::from(matches!(rescan(), Err(Error::InsideHandler))), Relaxed);
        Verdict::Continue
    });
    let _probe = register(&victim.path, victim.offset("add"), consumer).expect("registered");
    victim.function("add")(1, 1);
    assert_eq!(refused.load(Relaxed), 1);
}

#[test]
fn a_probe_that_all_its_consumers_want_removed_is_taken_out_at_the_next_look() {
    let victim = Victim::load();
    let (before, count, add) = (victim.text(), word(), victim.function("add"));
    let verdict = word();
    let consumer = Consumer::entry(move |_| {
        count.fetch_add(1, Relaxed);
        if verdict.load(Relaxed) == 1 { Verdict::Remove } else { Verdict::Continue }
    });
    let probe = register(&victim.path, victim.offset("add"), consumer).expect("registered");
    let stays = register(&victim.path, victim.offset("add"), counting(word())).expect("registered");
    verdict.store(1, Relaxed);
    add(1, 1);
    rescan().expect("a look");
    assert_eq!(probe.sites().len(), 1, "one of them did not say so");
    drop(stays);
    add(1, 1);
    rescan().expect("a look");
    assert_eq!(before, victim.text());
    add(1, 1);
    assert_eq!(count.load(Relaxed), 2);
}

/// Two threads register and unregister, four call: no hit is lost meanwhile, and nothing of the probes is
/// left.
#[test]
fn a_race_of_attach_and_detach_with_hits() {
    for by_trap in [false, true] {
        let victim = Victim::load();
        let (before, stop) = (victim.text(), AtomicBool::new(false));
        let names = ["add", "twice", "fib"];
        let steady = word();
        let always =
            Request { by_trap, ..Request::new(&victim.path, victim.offset("scale"), counting(steady)) };
        let always = register_all([always]).expect("registered");
        let called = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let [add, twice, fib] = names.map(|name| victim.function(name));
                    let scale = victim.floats("scale");
                    let mut n = 0;
                    while !stop.load(Relaxed) {
                        n += 1;
                        assert_eq!(add(n, 2), n * 3 + 2);
                        assert_eq!(twice(n % 100, 0), n % 100 * 2);
                        assert_eq!(fib(7, 0), 13);
                        assert_eq!(scale(2.0, 4.0), 8.5);
                    }
                    called.fetch_add(n, Relaxed);
                });
            }
            let racers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        for round in 0..60 {
                            let name = names[round % 3];
                            let seen = word();
                            let consumer = if round % 2 == 0 {
                                counting(seen)
                            } else {
                                Consumer::returns(move |_| {
                                    seen.fetch_add(1, Relaxed);
                                })
                            };
                            let request = Request {
                                by_trap,
                                ..Request::new(&victim.path, victim.offset(name), consumer)
                            };
                            let probe = register_all([request]).expect("registered");
                            while seen.load(Relaxed) < 10 {
                                std::hint::spin_loop();
                            }
                            unregister_all(probe).expect("unregistered");
                            let then = seen.load(Relaxed);
                            std::thread::yield_now();
                            assert_eq!(seen.load(Relaxed), then, "a handler ran after unregistering");
                        }
                    })
                })
                .collect();
            racers.into_iter().for_each(|racer| racer.join().expect("a racer"));
            stop.store(true, Relaxed);
        });
        assert_eq!(steady.load(Relaxed), called.load(Relaxed));
        drop(always);
        assert_eq!(before, victim.text());
    }
}

/// A window is used by one probe, then planned anew for its neighbours, for returns, for one that takes a
/// trap. The consumers that were there before see all hits.
#[test]
fn no_hit_is_lost_while_patches_change() {
    const ROUNDS: usize = 8;
    for round in 0..ROUNDS {
        let victim = Victim::load();
        let before = victim.text();
        let inside = victim.offset_of_address(victim.address("red_inside"));
        let (steady, entries, stop) = (word(), word(), AtomicBool::new(false));
        let by_trap = round % 4 == 3;
        let at = |offset, consumer| Request { by_trap, ..Request::new(&victim.path, offset, consumer) };
        let first = register_all([at(inside, counting(steady)), at(victim.offset("add"), counting(entries))]);
        let first = first.expect("registered");
        let called = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let (red, add, out) = (victim.function("red"), victim.function("add"), word());
                    let mut n = 0;
                    while !stop.load(Relaxed) {
                        n += 1;
                        assert_eq!(red(out.as_ptr() as u64, n), 0);
                        assert_eq!(add(n, 1), n * 3 + 1);
                    }
                    called.fetch_add(n, Relaxed);
                });
            }
            let mut more = Vec::new();
            for step in 0..4 {
                let then = steady.load(Relaxed);
                while steady.load(Relaxed) < then + 2000 {
                    std::thread::yield_now();
                }
                let request = match step {
                    0 => Request::new(&victim.path, inside + 4, counting(word())),
                    1 => Request::new(&victim.path, inside + 6, counting(word())),
                    2 => Request::new(&victim.path, victim.offset("add"), Consumer::returns(|_| {})),
                    _ => Request::new(&victim.path, inside, counting(word()).moves_ip()),
                };
                more.push(register_all([request]).expect("registered"));
            }
            more.into_iter().for_each(|one| unregister_all(one).expect("unregistered"));
            stop.store(true, Relaxed);
        });
        assert_eq!([steady, entries].map(|count| count.load(Relaxed)), [called.load(Relaxed); 2], "{round}");
        drop(first);
        assert_eq!(before, victim.text());
    }
}

#[test]
fn a_forked_child_is_probed_and_may_register_and_unregister_by_itself() {
    let victim = Victim::load();
    let (count, add, twice) = (word(), victim.function("add"), victim.function("twice"));
    let patched = register(&victim.path, victim.offset("add"), counting(count)).expect("registered");
    let text = victim.text();
    let status = in_child(|| {
        let own = word();
        add(1, 1);
        let there = count.load(Relaxed) == 1;
        let probe = register(&victim.path, victim.offset("twice"), counting(own)).expect("registered");
        twice(1, 1);
        add(1, 1);
        let both = own.load(Relaxed) == 1 && count.load(Relaxed) == 2;
        probe.unregister().expect("unregistered");
        twice(1, 1);
        let out = own.load(Relaxed) == 1 && victim.text() == text;
        i32::from(!there) | i32::from(!both) << 1 | i32::from(!out) << 2
    });
    assert_eq!(status, 0);
    assert_eq!(victim.text(), text, "the parent's text is its own");
    add(1, 1);
    assert_eq!(count.load(Relaxed), 1, "and so are its counts");
    // What is taken here is taken from the child's copy.
    let mut patched = Some(patched);
    let status = in_child(|| {
        let Ok(()) = unregister_all(patched.take()) else { return 1 };
        add(1, 1);
        i32::from(count.load(Relaxed) != 1)
    });
    assert_eq!(status, 0);
    add(1, 1);
    assert_eq!(count.load(Relaxed), 2);
}

/// Runs `body` in a forked child; returns its exit status.
pub(crate) fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: libc's fork leaves the child's allocator usable; the child leaves by _exit.
    unsafe {
        let guard = no_loading();
        let pid = libc::fork();
        drop(guard);
        if pid == 0 {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(99);
            libc::_exit(code);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        assert!(libc::WIFEXITED(status), "signal {}", libc::WTERMSIG(status));
        libc::WEXITSTATUS(status)
    }
}

#[test]
fn what_is_in_the_way_has_a_name() {
    let victim = Victim::load();
    let count = word();
    let text = victim.offset("add");
    let errno = |result: Result<_, Error>| result.map(drop).expect_err("in the way").errno();
    assert_eq!(errno(register_all([])), libc::EINVAL);
    assert_eq!(errno(register("/", 0, counting(count)).map(|p| vec![p])), libc::EBADF);
    assert_eq!(errno(register("/nowhere", 0, counting(count)).map(|p| vec![p])), libc::ENOENT);
    assert_eq!(errno(register("/etc/passwd", 0, counting(count)).map(|p| vec![p])), libc::EBADF);
    let at = |offset, consumer| register(&victim.path, offset, consumer).map(|p| vec![p]);
    assert!(matches!(at(u64::MAX, counting(count)), Err(Error::BehindEnd { .. })));
    assert!(matches!(at(0, counting(count)), Err(Error::NotCode { .. })));
    assert!(matches!(at(text + 1, Consumer::returns(|_| {})), Err(Error::NotAnEntry { .. })));
    assert!(matches!(at(text, Consumer::default()), Err(Error::NoHandler)));
    let middle = at(text + 1, counting(count)).expect_err("inside an instruction");
    assert!(matches!(middle, Error::InsideInstruction { .. }), "{middle}");
    let many = (0..200_000).map(|_| Request::new(&victim.path, text, Consumer::entry(|_| Verdict::Continue)));
    assert_eq!(errno(register_all(many)), libc::E2BIG);
}
