//! Threads, signals, and a writer that removes traps and places them: every hit is counted, and no thread is
//! lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use trapline_insn::aarch64::encode::{BRK, NOP};

use crate::site::{Site, arena, call, code, forget, nothing, site, text, trapped, trapped_at, write};

static FROM_SIGNALS: AtomicU64 = AtomicU64::new(0);
static IN_HANDLER: AtomicU64 = AtomicU64::new(0);

extern "C" fn hits_too(_: i32) {
    FROM_SIGNALS.fetch_add(1, Ordering::Relaxed);
    call(IN_HANDLER.load(Ordering::Relaxed), 3, 4);
}

const THREADS: usize = 8;
const CALLS: u64 = 4_000;

/// Signals with a handler that hits a probe arrive at threads that hit probes.
#[test]
fn a_storm_of_signals() {
    arena();
    let push =
        text!(storm_push: "stp x29, x30, [sp, #-16]!", "add x0, x0, x1", "ldp x29, x30, [sp], #16", "ret");
    let multiply = text!(storm_mul: "mul x0, x0, x1", "ret");
    let link = text!(storm_bl: "mov x9, x30", "bl 1f", "mov x30, x9", "ret", "1: mov x0, x1", "ret");
    let sites: [(u64, &'static Site); 3] =
        [(push, 0), (multiply, 0), (link, 1)].map(|(text, index)| trapped_at(text, index, nothing));
    IN_HANDLER.store(sites[1].0, Ordering::Relaxed);
    // SAFETY: a handler of this type; it makes direct calls and hits only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = hits_too as extern "C" fn(i32) as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    let done = AtomicBool::new(false);
    let threads: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let sent = std::thread::scope(|scope| {
        let workers: Vec<_> = threads
            .iter()
            .map(|id| {
                let sites = &sites;
                scope.spawn(move || {
                    arena();
                    // SAFETY: no arguments.
                    id.store(unsafe { libc::gettid() } as u64, Ordering::Release);
                    for round in 0..CALLS {
                        assert_eq!(call(sites[0].0, round, 7), round + 7);
                        assert_eq!(call(sites[1].0, round, 7), round * 7);
                        assert_eq!(call(sites[2].0, round, 7), 7);
                    }
                    id.store(0, Ordering::Release);
                })
            })
            .collect();
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while !done.load(Ordering::Relaxed) {
                for id in &threads {
                    let id = id.load(Ordering::Acquire);
                    // SAFETY: sent to a thread of this process; if that has ended, the call fails.
                    let send = |id: u64| unsafe {
                        libc::syscall(libc::SYS_tgkill, libc::getpid(), id, libc::SIGUSR1)
                    };
                    if id != 0 && send(id) == 0 {
                        sent += 1;
                    }
                }
                std::thread::yield_now();
            }
            sent
        });
        workers.into_iter().for_each(|worker| worker.join().expect("a worker"));
        done.store(true, Ordering::Relaxed);
        sender.join().expect("the sender")
    });
    let (all, from_signals) = (THREADS as u64 * CALLS, FROM_SIGNALS.load(Ordering::Relaxed));
    println!("{sent} signals sent, {from_signals} handled");
    assert!(from_signals > 0);
    assert_eq!(sites.map(|(_, site)| site.hits()), [all, all + from_signals, all]);
}

/// Traps are placed and removed under threads that run there, by live changes of a nop: each call is right,
/// whether it was a hit or not.
#[test]
fn traps_that_come_and_go() {
    let text = text!(come_and_go: "nop", "add x0, x0, x1", "ret");
    let function = code(text.words());
    arena();
    let done = AtomicBool::new(false);
    let (mut hits, mut rounds) = (0, 0_u64);
    let calls = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    arena();
                    let mut calls = 0_u64;
                    while !done.load(Ordering::Relaxed) {
                        assert_eq!(call(function, calls, 5), calls + 5);
                        calls += 1;
                    }
                    calls
                })
            })
            .collect();
        while rounds < 100 {
            // Table, then code; code, then table.
            let site = site(function, NOP, nothing);
            write(function, &[BRK]);
            // A worker that ended has failed, which is reported when it is joined.
            while rounds.is_multiple_of(4)
                && site.hits() == 0
                && !workers.iter().any(|worker| worker.is_finished())
            {
                std::thread::yield_now();
            }
            write(function, &[NOP]);
            forget(function);
            hits += site.hits();
            rounds += 1;
        }
        done.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().expect("a worker")).sum::<u64>()
    });
    println!("{calls} calls, {hits} hits, {rounds} rounds");
    assert!(hits >= 25 && hits <= calls);
}

/// Many threads start and end at once while they hit: each has a line of its own in the end, and the sum is
/// right.
#[test]
fn threads_that_come_and_go() {
    let site = trapped(text!(threads: "nop", "ret"), nothing);
    for _ in 0..10 {
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    arena();
                    (0..100).for_each(|round| assert_eq!(site.call(round, 0), round));
                });
            }
        });
    }
    assert_eq!(site.hits(), 10 * THREADS as u64 * 100);
}
